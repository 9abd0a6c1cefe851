"""A client that does next to nothing with an answer: on the server's own cores, one that reads every piece takes time
that is then missing to what it measures."""

from __future__ import annotations

import asyncio
import json
import re
import time
from urllib.parse import urlsplit

from benchmarks.peers.contender import ContenderError
from benchmarks.peers.works import Prompts

_TAIL = 4096
"""Bytes of the end of a stream that surely hold its usage."""


async def ask_all(url: str, model: str, prompts: Prompts) -> float:
    """Stream the answers to all prompts at once; returns the seconds that took. Each must have all its tokens."""
    start = time.perf_counter()
    jobs = [
        _stream(url, {"model": model, "prompt": ids, "max_tokens": tokens, "temperature": 0, "ignore_eos": True})
        for ids, tokens in zip(prompts.token_ids, prompts.output_lens, strict=True)
    ]
    found = await asyncio.gather(*jobs)
    seconds = time.perf_counter() - start
    if found != list(prompts.output_lens):
        raise ContenderError(f"answers of {found} tokens instead of {list(prompts.output_lens)}")
    return seconds


async def _stream(url: str, body: dict[str, object]) -> int:
    """How many tokens the answer says it has; all else of it is read and forgotten."""
    place = urlsplit(url)
    content = json.dumps(body | {"stream": True, "stream_options": {"include_usage": True}}).encode()
    reader, writer = await asyncio.open_connection(place.hostname, place.port)
    try:
        writer.write(
            f"POST /v1/completions HTTP/1.1\r\nHost: {place.netloc}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(content)}\r\nConnection: close\r\n\r\n".encode()
            + content
        )
        end = b""
        while piece := await reader.read(1 << 16):
            end = (end + piece)[-_TAIL:]
    finally:
        writer.close()
    counts = re.findall(rb'"completion_tokens": ?(\d+)', end)
    if not counts:
        raise ContenderError(f"a stream without usage: {end[-300:].decode(errors='replace')}")
    return int(counts[-1])
