"""Several fronts at one engine: each gets and ends what is its own, and leaves nothing when it is gone."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import numpy as np
import pytest
import zmq

from fathom import EngineConfig, SamplingParams
from fathom.client.async_mp import AsyncMPClient
from fathom.client.attached import AttachedClient, AttachedEngine
from fathom.client.launch import EngineProcess
from fathom.core.fronts import split
from fathom.errors import EngineDeadError
from fathom.frontend import boot
from fathom.step import LogprobsArrays
from fathom.wire.messages import AddRequests, EngineCoreOutput, EngineCoreOutputs, EngineCoreRequest, FinishReason
from fathom.wire.sockets import fronts_address
from tests.client.processes import PATIENCE_S
from tests.core.helpers import every_output

Attach = Callable[[str], "Reader"]
Test = Callable[[Path, AsyncMPClient, Attach], Awaitable[None]]

LONG = SamplingParams(temperature=0, max_tokens=None, ignore_eos=True)  # of the endless model
SHORT = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)


def requests(params: SamplingParams, *names: str) -> AddRequests:
    prompt = np.array([5, 6, 7], np.int32)
    return AddRequests([prompt], [params], [EngineCoreRequest(name, 0, 0, seed=1) for name in names])


class Reader:
    """Reads all that a front gets, as a server does; `got` has it by request."""

    def __init__(self, client: AttachedClient) -> None:
        self.client = client
        self.got: dict[str, list[EngineCoreOutput]] = {}
        self.task = asyncio.ensure_future(self._read())

    async def _read(self) -> None:
        while True:
            for output in every_output(await self.client.get_outputs()):
                self.got.setdefault(output.request_id, []).append(output)

    async def whole(self, name: str) -> list[EngineCoreOutput]:
        """A request's outputs once it has ended, taken out."""
        while name not in self.got or self.got[name][-1].finish_reason is None:
            await asyncio.sleep(0.005)
        return self.got.pop(name)

    async def has(self, *names: str, outputs: int = 1) -> None:
        """Wait until it has got so many outputs of each of these requests."""
        while not all(len(self.got.get(name, ())) >= outputs for name in names):
            await asyncio.sleep(0.005)


async def running(front: Reader, number: int) -> None:
    """Wait until so many requests run."""
    while (await front.client.call("get_stats"))["num_running"] != number:
        await asyncio.sleep(0.01)


def with_an_engine(model: Path, test: Test) -> None:
    """test(socket folder, the engine's owner, attach(identity)): run beside an engine for fronts."""

    async def main() -> None:
        config = EngineConfig.from_options(model=str(model), num_threads=1, max_num_seqs=8)
        process = EngineProcess(config.parallel)
        owner = AsyncMPClient(process)
        fronts: list[Reader] = []
        try:
            await owner.start(boot.prepare(config).setup, PATIENCE_S, fronts=True)
            ready = await owner.wait_ready()

            def attach(identity: str) -> Reader:
                link = AttachedEngine(process.folder, identity.encode())
                fronts.append(Reader(AttachedClient(link, ready)))
                return fronts[-1]

            async with asyncio.timeout(PATIENCE_S):
                await test(process.folder, owner, attach)
        finally:
            for front in fronts:
                front.task.cancel()
                front.client.close()
            owner.close()

    asyncio.run(main())


def test_whose_request_is_whose(model: Path, tmp: Path) -> None:
    async def test(folder: Path, owner: AsyncMPClient, attach: Attach) -> None:
        one, two = attach("one"), attach("two")
        await one.client.add_requests(requests(LONG, "mine"))
        await running(two, 1)
        await one.has("mine")
        await two.client.abort_requests(["mine"])  # not its own
        await two.client.add_requests(requests(SHORT, "mine"))
        (refused,) = await two.whole("mine")
        assert (refused.finish_reason, refused.error) == (FinishReason.ERROR, "request id 'mine' is in use")
        await two.client.add_requests(requests(SHORT, "yours"))
        assert sum(len(output.new_token_ids) for output in await two.whole("yours")) == 4
        assert (await two.client.call("get_stats"))["num_running"] == 1
        await one.client.abort_requests(["mine", "mine", "nobody"])
        await running(two, 0)
        await two.client.add_requests(requests(SHORT, "mine"))
        assert sum(len(output.new_token_ids) for output in await two.whole("mine")) == 4
        assert (set(one.got), set(two.got)) == ({"mine"}, set())
        assert one.got["mine"][-1].finish_reason is None
        assert await two.client.call("check_invariants")
        with zmq.Context() as context, context.socket(zmq.DEALER) as stranger:
            stranger.linger = 0
            stranger.connect(fronts_address(folder))
            for frames in ([b""], [b"\x00", b"\xff"], [b"cos\nmkdir\n."]):
                stranger.send_multipart(frames)
            assert (await one.client.call("get_stats"))["num_running"] == 0

    with_an_engine(model, test)


def test_a_front_that_is_gone_counts_no_more(model: Path, tmp: Path) -> None:
    """Its requests end, and those that are found in its messages afterwards never begin."""

    async def test(folder: Path, owner: AsyncMPClient, attach: Attach) -> None:
        one, two = attach("one"), attach("two")
        await one.client.add_requests(requests(LONG, "a", "b"))
        await two.client.add_requests(requests(LONG, "c"))
        await running(two, 3)
        await one.has("a", "b")
        owner.front_gone(b"one")
        await running(two, 1)
        await one.client.add_requests(requests(LONG, "late"))
        await two.has("c", outputs=len(two.got.get("c", ())) + 500)
        await running(two, 1)
        await two.client.abort_requests(["c"])
        await running(two, 0)
        assert set(one.got) == {"a", "b"}
        assert await two.client.call("check_invariants")
        two.client.engine_gone("it was killed")
        with pytest.raises(EngineDeadError, match="it was killed"):
            await two.task

    with_an_engine(model, test)


def test_a_step_is_split_without_mixing_rows() -> None:
    """Brute force: 200 random steps; each front's rows are those of its requests, in any order."""
    chance = np.random.default_rng(0)
    for _ in range(200):
        fronts = {f"front-{number}".encode() for number in range(chance.integers(1, 4))}
        count = int(chance.integers(0, 12))
        owners = {f"r{number}": sorted(fronts)[chance.integers(len(fronts))] for number in range(0, count, 2)}
        owners |= {f"r{number}": sorted(fronts)[0] for number in range(1, count, 3)}
        asked = [number for number in range(count) if chance.random() < 0.6]
        rows = {number: row for row, number in enumerate(chance.permutation(asked).tolist())}
        by_row = np.array(sorted(rows, key=lambda number: rows[number]), np.int32)
        logprobs = LogprobsArrays.joined([(by_row[:, None] * 10, by_row[:, None], by_row)]) if asked else None
        outputs = [EngineCoreOutput(f"r{n}", [n], logprobs_row=rows.get(n, -1)) for n in range(count)]
        bare = {f"r{n}": [n] for n in range(count) if n not in rows and chance.random() < 0.5}
        outputs = [output for output in outputs if output.request_id not in bare]
        parts = split(EngineCoreOutputs(outputs, logprobs, tokens=bare), owners, fronts)
        given = {output.request_id: identity for identity, part in parts.items() for output in part.outputs}
        given |= {request_id: identity for identity, part in parts.items() for request_id in part.tokens}
        assert given == owners
        assert all(token_ids == bare[key] for part in parts.values() for key, token_ids in part.tokens.items())
        for part in parts.values():
            asking = [output for output in part.outputs if output.logprobs_row >= 0]
            assert (part.logprobs is None) == (not asking)
            if part.logprobs is not None:
                assert len(part.logprobs) == len(asking)
                for output in asking:
                    assert part.logprobs.ranks[output.logprobs_row] == output.new_token_ids[0]
                    assert part.logprobs.token_ids[output.logprobs_row, 0] == output.new_token_ids[0] * 10
