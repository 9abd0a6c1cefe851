"""LaunchedTokens: what a step has sampled, on its way from the device to the host."""

from __future__ import annotations

from dataclasses import dataclass

from fathom.step import ModelRunnerOutput, PendingOutput
from fathom.worker.device import Mark
from fathom.worker.prompt_logprobs import PromptScores
from fathom.worker.sample.samples import SamplerOutput, Samples


@dataclass(frozen=True, slots=True)
class LaunchedTokens(PendingOutput):
    """The step's results as copies that are under way, and what is needed of the batch as it was.

    samples, prompts: the host's copies. arrival: passed when they are there.
    request_ids: of the batch's rows. live_outputs: of the sampled rows, the processors' lists, and each one's entry for
    the new token.
    """

    samples: Samples
    prompts: dict[str, PromptScores]
    arrival: Mark
    request_ids: list[str]
    live_outputs: list[tuple[list[int], int]]

    def result(self) -> ModelRunnerOutput:
        """Wait for the copies. May be called on any thread, once or again."""
        self.arrival.synchronize()
        output = self.samples.output()
        sampled = {
            self.request_ids[row]: token_id
            for row, token_id in zip(self.samples.rows.tolist(), output.token_ids, strict=True)
            if token_id >= 0
        }
        return step_output(sampled, output, self.request_ids, self.prompts)

    def tell_processors(self) -> None:
        """Wait, and write the tokens' values to the live lists; on the thread that samples."""
        self.arrival.synchronize()
        for (output_ids, index), token_id in zip(self.live_outputs, self.samples.token_ids.tolist(), strict=True):
            output_ids[index] = token_id


def step_output(
    sampled: dict[str, int], output: SamplerOutput, request_ids: list[str], prompts: dict[str, PromptScores]
) -> ModelRunnerOutput:
    """A step's result by request. request_ids: of the batch's rows."""
    result = ModelRunnerOutput(sampled)
    if output.logprobs is not None:
        result.logprobs = output.logprobs
        result.logprobs_rows = {request_ids[row]: index for index, row in enumerate(output.logprobs_rows)}
    if output.errors:
        result.errors = {request_ids[row]: message for row, message in output.errors.items()}
    if prompts:
        result.prompt_logprobs = {request_id: scores.arrays() for request_id, scores in prompts.items()}
    return result
