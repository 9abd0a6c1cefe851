"""GET / and what belongs to it: the page for people, files of the folder beside this one, as they are."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response

from fathom.entrypoints.server.serving import Serving

FOLDER = Path(__file__).parent / "page"
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
FILES = {"/": "index.html"} | {
    f"/page/{path.name}": path.name for path in sorted(FOLDER.iterdir()) if path.name != "index.html"
}
"""Path -> file in FOLDER."""
_HEADERS = {
    "Cache-Control": "no-cache",
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}


async def page(serving: Serving, http: Request) -> Response:
    """A page for people: a chat, and the engine step by step."""
    name = FILES[http.scope["path"]]
    content, tag = _read(name)
    headers = {**_HEADERS, "ETag": tag}
    if http.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(content, headers=headers, media_type=_TYPES[Path(name).suffix])


@cache
def _read(name: str) -> tuple[bytes, str]:
    """A file's content, and a tag that changes with it."""
    content = (FOLDER / name).read_bytes()
    return content, f'"{hashlib.sha256(content).hexdigest()[:16]}"'
