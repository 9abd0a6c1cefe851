"""GET /v1/models and /v1/models/{id}: the model, under each of its names."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from fathom.entrypoints.server.http import json_response
from fathom.entrypoints.server.protocol.other import ModelCard, ModelList
from fathom.entrypoints.server.serving import Serving


async def list_models(serving: Serving, http: Request) -> Response:
    """The model, under each of its names."""
    return json_response(ModelList(data=[_card(serving, name) for name in serving.model_names]))


async def show_model(serving: Serving, http: Request) -> Response:
    """One name of the model."""
    return json_response(_card(serving, serving.check_model(http.path_params["model"])))


def _card(serving: Serving, name: str) -> ModelCard:
    return ModelCard(
        id=name,
        created=serving.created,
        root=serving.engine.config.model.model,
        max_model_len=serving.engine.input_processor.max_model_len,
    )
