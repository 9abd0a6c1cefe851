"""The works that engines compete in, and their prompts: made-up token ids by work and round, the same for everyone.

Where computing prompts is part of the time, every round has prompts of its own, so that no prefix cache remembers them
from the round before. Decode has the same in all rounds, since its prompts are to be cached.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

SMOLLM2, QWEN, GEMMA = "smollm2-135m", "qwen2.5-coder-0.5b", "gemma3-270m"
FIRST_ID, LAST_ID = 100, 40_000  # in every model's vocabulary, and no control tokens


@dataclass(frozen=True)
class Prompts:
    """token_ids and output_lens of each request."""

    token_ids: list[list[int]]
    output_lens: list[int]


@dataclass(frozen=True)
class Decode:
    """Generating for some sequences at once, prompts computed before the clock starts. Rate: generated tokens/s."""

    sequences: int
    context: int
    output: int

    def make_prompts(self, random: Random) -> Prompts:
        return Prompts([_ids(random, self.context) for _ in range(self.sequences)], [self.output] * self.sequences)

    @property
    def concurrency(self) -> int:
        return self.sequences


@dataclass(frozen=True)
class Prefill:
    """Computing one prompt, up to its first token. Rate: prompt tokens/s."""

    length: int
    concurrency = 1

    def make_prompts(self, random: Random) -> Prompts:
        return Prompts([_ids(random, self.length)], [1])


@dataclass(frozen=True)
class Requests:
    """Requests submitted all at once, as to a server; lengths uniform within bounds. Rate: generated tokens/s."""

    count: int
    inputs: tuple[int, int]
    outputs: tuple[int, int]
    prefix: int = 0

    def make_prompts(self, random: Random) -> Prompts:
        shared = _ids(random, self.prefix)
        token_ids = [shared + _ids(random, random.randint(*self.inputs)) for _ in range(self.count)]
        return Prompts(token_ids, [random.randint(*self.outputs) for _ in range(self.count)])

    @property
    def concurrency(self) -> int:
        return self.count

    @property
    def most_tokens(self) -> int:
        """Of one request."""
        return self.prefix + self.inputs[1] + self.outputs[1]


Task = Decode | Prefill | Requests


@dataclass(frozen=True)
class Work:
    """A task with a model. rivals: None means all.

    qualifies_in: the work that chooses the formats for this one too; None: this one does. most_pairs: for works that
    only a plot needs.
    """

    name: str
    title: str
    model: str
    task: Task
    most_pairs: int | None = None
    qualifies_in: str | None = None
    rivals: tuple[str, ...] | None = None

    def prompts(self, round_number: int) -> Prompts:
        """Of this round; the seed is the work's name and, but for Decode, the round's number."""
        seed = self.name if isinstance(self.task, Decode) else f"{self.name} {round_number}"
        return self.task.make_prompts(Random(seed))

    def for_qualifying(self) -> Work:
        """A shorter one that tells formats apart: a quarter of the requests."""
        task = self.task
        return replace(self, task=replace(task, count=max(4, task.count // 4))) if isinstance(task, Requests) else self


def _decode(count: int) -> Work:
    return Work(f"decode-{count}", f"decode, {count} sequences of 64 after 128", SMOLLM2, Decode(count, 128, 64))


def _context(length: int) -> Work:
    title = f"decode, 1 sequence of 32 after {length:,}"
    return Work(f"context-{length}", title, SMOLLM2, Decode(1, length, 32), most_pairs=2, qualifies_in="decode-1")


def _same_file(model: str, short: str) -> list[Work]:
    title, rivals = model.capitalize(), ("llama.cpp",)
    return [
        Work(f"{short}-decode-1", f"{title}: decode, 1 sequence of 128", model, Decode(1, 128, 128), rivals=rivals),
        Work(f"{short}-prefill-512", f"{title}: prefill, 512 tokens", model, Prefill(512), rivals=rivals),
    ]


WORKS = [
    Work("decode-1", "decode, 1 sequence of 128 after 128", SMOLLM2, Decode(1, 128, 128)),
    *(_decode(count) for count in (8, 32, 64)),
    *(Work(f"prefill-{n}", f"prefill, {n:,} tokens", SMOLLM2, Prefill(n)) for n in (512, 1024)),
    Work("mixed-64", "64 requests, in 32-256, out 32-256", SMOLLM2, Requests(64, (32, 256), (32, 256))),
    Work("prefix-16", "16 requests sharing 1,000 tokens", SMOLLM2, Requests(16, (32, 32), (32, 32), prefix=1000)),
    *(_context(length) for length in (1024, 4096, 8000)),
    *_same_file(QWEN, "qwen"),
    *_same_file(GEMMA, "gemma"),
]
CONCURRENCY_PLOT = {1: "decode-1", 8: "decode-8", 32: "decode-32", 64: "decode-64"}
CONTEXT_PLOT = {128: "decode-1", 1024: "context-1024", 4096: "context-4096", 8000: "context-8000"}


def _ids(random: Random, count: int) -> list[int]:
    return [random.randint(FIRST_ID, LAST_ID) for _ in range(count)]
