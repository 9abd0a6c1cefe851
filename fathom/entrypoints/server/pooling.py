"""Embeddings, scores and classes: asked of a model that only generates text, they are refused by name."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from fathom.entrypoints.server.errors import ApiError
from fathom.entrypoints.server.serving import Serving


async def unable(serving: Serving, http: Request) -> Response:
    """501: the loaded model cannot do this."""
    name = serving.model_names[0]
    raise ApiError(501, f"{http.url.path} is not supported: {name} generates text.", code="not_supported_by_model")
