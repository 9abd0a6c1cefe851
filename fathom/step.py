"""A step is two values: SchedulerOutput goes to the worker, ModelRunnerOutput comes back.

Both are plain data (strings, ints, numpy arrays), so a step can be logged, sent to another process, or
replayed. Differences are sent, not state: a request's tokens cross once, when it is admitted; after that
only its new blocks do, since the worker appends the tokens that it samples itself.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import msgspec
import numpy as np

from fathom.sampling_params import SamplingParams


class LogprobsArrays(msgspec.Struct, array_like=True):
    """Log-probabilities of n positions, packed into one array, which is handed on as it is.

    packed: [n * (2 * width + 1)] int32: token ids, the bits of logprobs, and ranks, as the properties show them.
    width: 1 + k, the chosen token first, then the k best.
    """

    packed: np.ndarray
    width: int

    @classmethod
    def empty(cls, n: int, k: int) -> LogprobsArrays:
        """Room for them, not yet written."""
        return cls(np.empty(n * (2 * k + 3), np.int32), 1 + k)

    @classmethod
    def joined(cls, parts: Sequence[tuple[np.ndarray, np.ndarray, np.ndarray]]) -> LogprobsArrays:
        """Of (token ids, logprobs, ranks), one part's positions behind the other's."""
        token_ids, logprobs, ranks = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
        bits = logprobs.astype(np.float32, copy=False).view(np.int32)
        packed = np.concatenate([token_ids.ravel(), bits.ravel(), ranks], dtype=np.int32)
        return cls(packed, token_ids.shape[1])

    @property
    def arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return self.token_ids, self.logprobs, self.ranks

    @property
    def token_ids(self) -> np.ndarray:
        """[n, width] int32."""
        return self.packed[: len(self) * self.width].reshape(-1, self.width)

    @property
    def logprobs(self) -> np.ndarray:
        """[n, width] float32."""
        cells = len(self) * self.width
        return self.packed[cells : 2 * cells].view(np.float32).reshape(-1, self.width)

    @property
    def ranks(self) -> np.ndarray:
        """[n] int32, the chosen tokens'; 1 is the best."""
        return self.packed[2 * len(self) * self.width :]

    def __len__(self) -> int:
        return len(self.packed) // (2 * self.width + 1)

    def chosen_logprob(self, position: int) -> float:
        return float(self.packed.view(np.float32)[(len(self) + position) * self.width])

    def take(self, positions: np.ndarray | list[int]) -> LogprobsArrays:
        """Some positions, by number or by mask."""
        return LogprobsArrays.joined([(self.token_ids[positions], self.logprobs[positions], self.ranks[positions])])


class NewRequestData(msgspec.Struct):
    """A request that enters the worker's batch: new, or resumed after preemption (then with its output so far).

    token_ids: [n] int32, prompt and generated tokens. block_ids: one list per KV group.
    """

    request_id: str
    token_ids: np.ndarray
    num_prompt_tokens: int
    num_computed_tokens: int
    block_ids: tuple[list[int], ...]
    sampling_params: SamplingParams
    seed: int
    choice: int


class SchedulerOutput(msgspec.Struct):
    """One step's work.

    num_scheduled_tokens: request id -> tokens to compute in this step.
    new_block_ids: request id -> blocks to append to its tables, one list per KV group; only for requests that
        the worker knows already and that got new blocks.
    finished_request_ids: rows to drop first (finished, aborted or preempted since the last step).
    num_context_requests, num_context_tokens: how much of the step is prefill.
    sampled_tokens: request id -> (its place in the sequence, token) of tokens that have become known since the last
        step; only with several stages, for those that do not sample themselves.
    """

    num_scheduled_tokens: dict[str, int]
    total_num_scheduled_tokens: int
    new_requests: list[NewRequestData]
    new_block_ids: dict[str, tuple[list[int], ...]]
    finished_request_ids: list[str]
    num_context_requests: int
    num_context_tokens: int
    sampled_tokens: dict[str, tuple[int, int]] = {}

    @property
    def annotation(self) -> str:
        """The step's name in logs and profiles."""
        return annotate(
            self.num_context_requests,
            self.num_context_tokens,
            self.num_generation_requests,
            self.num_generation_tokens,
        )

    @property
    def num_generation_requests(self) -> int:
        return len(self.num_scheduled_tokens) - self.num_context_requests

    @property
    def num_generation_tokens(self) -> int:
        return self.total_num_scheduled_tokens - self.num_context_tokens


def annotate(context_requests: int, context_tokens: int, generation_requests: int, generation_tokens: int) -> str:
    """A step's name: how many rows and tokens of its batch are prefill and decode."""
    return f"execute_context_{context_requests}({context_tokens})_generation_{generation_requests}({generation_tokens})"


class ModelRunnerOutput(msgspec.Struct):
    """What a step produced.

    sampled_token_ids: request id -> the sampled token, for each request whose last token was computed.
    logprobs: one row per entry of `logprobs_rows`; prompt_logprobs: request id -> rows for the prompt's
        positions 1 .. n-1, delivered once, when the prompt is complete.
    errors: request id -> why it failed (its logits were not finite, its logits processor raised ...).
    """

    sampled_token_ids: dict[str, int]
    logprobs: LogprobsArrays | None = None
    logprobs_rows: dict[str, int] = {}
    prompt_logprobs: dict[str, LogprobsArrays] = {}
    errors: dict[str, str] = {}


class PendingOutput(ABC):
    """A step's output that a device has not delivered yet; the step has been launched, and the next one may be."""

    @abstractmethod
    def result(self) -> ModelRunnerOutput:
        """Wait for it. Not of the thread that launches steps, or it launches none meanwhile."""


class PrefillTimes(msgspec.Struct):
    """What a step with n tokens of a prompt takes, in seconds: fixed_s + n * (token_s + context_token_s * p).

    p: the n tokens' mean position.
    """

    fixed_s: float
    token_s: float
    context_token_s: float
