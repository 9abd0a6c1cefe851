"""The races' client that does not look at what it reads still knows whether all of it came."""

from __future__ import annotations

import asyncio

import pytest

from benchmarks.peers.contender import ContenderError
from benchmarks.peers.plain_client import ask_all
from benchmarks.peers.works import Prompts
from tests.server.processes import Server


def test_every_token_is_asked_for_and_counted(server: Server) -> None:
    before = server.metrics()
    prompts = Prompts([[20 + number, 30, 40] for number in range(6)], [3 + number for number in range(6)])
    assert asyncio.run(ask_all(server.url, "tiny", prompts)) > 0
    after = server.metrics()
    assert after["generation_tokens_total"] - before["generation_tokens_total"] == sum(prompts.output_lens)


def test_an_answer_without_tokens_is_no_measurement(server: Server) -> None:
    with pytest.raises(ContenderError, match="There is no model 'no-such-model' here"):
        asyncio.run(ask_all(server.url, "no-such-model", Prompts([[20]], [3])))
