"""Workload: requests made up from a seed. The same numbers give the same tokens, on every machine and version.

Prompts are token ids, not text, so that their lengths are exact whatever the tokenizer.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from fathom.errors import ValidationError


@dataclass(frozen=True)
class Workload:
    """prompts: token ids of each request. output_lens: tokens of each answer. shape: the numbers it was made from."""

    prompts: list[list[int]]
    output_lens: list[int]
    shape: dict[str, Any]

    @property
    def num_prompt_tokens(self) -> int:
        return sum(map(len, self.prompts))

    @property
    def num_output_tokens(self) -> int:
        return sum(self.output_lens)

    def describe(self) -> dict[str, Any]:
        """The shape and what came of it; enough to make the same workload again."""
        return self.shape | {
            "prompt_tokens": self.num_prompt_tokens,
            "output_tokens": self.num_output_tokens,
            "shortest_prompt": min(map(len, self.prompts)),
            "longest_prompt": max(map(len, self.prompts)),
        }

    def check_fits(self, max_model_len: int) -> Workload:
        """Itself.

        Raises:
            ValidationError: a request is longer than the model's context.
        """
        needed = max(len(prompt) + length for prompt, length in zip(self.prompts, self.output_lens, strict=True))
        if needed > max_model_len:
            raise ValidationError(
                f"the longest request has {needed} tokens, but the context holds {max_model_len}.",
                parameter="input_len",
                value=needed,
                hint="Lower --input-len or --output-len, or raise --max-model-len.",
            )
        return self


def make_workload(
    num_prompts: int,
    input_len: int,
    output_len: int,
    *,
    vocab_size: int,
    seed: int = 0,
    range_ratio: float = 0.0,
    prefix_len: int = 0,
) -> Workload:
    """Requests of random tokens.

    Args:
        input_len, output_len: tokens of each prompt and answer.
        range_ratio: 0: exactly these lengths; r: uniform from (1 - r) to (1 + r) times them, each request anew.
        prefix_len: tokens that all prompts begin with, on top of input_len.
    """
    random = Random(seed)
    prefix = _token_ids(random, prefix_len, vocab_size)
    prompts, output_lens = [], []
    for _ in range(num_prompts):
        prompts.append(prefix + _token_ids(random, _length(random, input_len, range_ratio), vocab_size))
        output_lens.append(_length(random, output_len, range_ratio))
    shape = {
        "num_prompts": num_prompts,
        "input_len": input_len,
        "output_len": output_len,
        "random_range_ratio": range_ratio,
        "prefix_len": prefix_len,
        "seed": seed,
    }
    return Workload(prompts, output_lens, shape)


def add_workload_flags(
    parser: argparse.ArgumentParser, *, num_prompts: int | None, input_len: int | Sequence[int], output_len: int
) -> None:
    """--num-prompts (unless None), --input-len (several, if the default is several) and --output-len."""
    group = parser.add_argument_group("workload (made-up tokens; --seed makes another)")
    if num_prompts is not None:
        group.add_argument("--num-prompts", type=at_least(1), default=num_prompts, help="requests (%(default)s)")
    several: dict[str, Any] = {} if isinstance(input_len, int) else {"nargs": "+"}
    group.add_argument(
        "--input-len", type=at_least(1), default=input_len, help="tokens of a prompt (%(default)s)", **several
    )
    group.add_argument(
        "--output-len", type=at_least(2), default=output_len, help="tokens of an answer, at least 2 (%(default)s)"
    )


def at_least(least: int) -> Any:
    """A type for argparse: integers from `least` on."""

    def integer(text: str) -> int:
        if int(text) < least:
            raise argparse.ArgumentTypeError(f"must be at least {least}, got {text}")
        return int(text)

    return integer


def ratio(text: str) -> float:
    """A type for argparse: a number from 0 to below 1."""
    if not 0 <= float(text) < 1:
        raise argparse.ArgumentTypeError(f"must be in [0, 1), got {text}")
    return float(text)


def positive(text: str) -> float:
    """A type for argparse: a number above 0, or inf."""
    if not float(text) > 0:
        raise argparse.ArgumentTypeError(f"must be above 0, got {text}")
    return float(text)


def _length(random: Random, length: int, range_ratio: float) -> int:
    least, most = max(1, round(length * (1 - range_ratio))), round(length * (1 + range_ratio))
    return least + int(random.random() * (most - least + 1))


def _token_ids(random: Random, count: int, vocab_size: int) -> list[int]:
    return [int(random.random() * vocab_size) for _ in range(count)]  # random() alone never changes between Pythons
