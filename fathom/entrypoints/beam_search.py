"""Beam search: the likeliest continuations of a prompt, found by following several at once.

A loop over `LLM.generate`, one token at a time for all beams of all prompts together. The prefix cache has what a beam
has in common with the one it grew from, so a step computes little more than the newest tokens.

The rules are vLLM's: each beam is continued with its 2 * beam_width likeliest tokens, and the beam_width best of all
continue. A score is the sum of log-probabilities over length ** length_penalty, where length counts the prompt too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec
from tqdm import tqdm

from fathom.entrypoints.progress import ProgressBar
from fathom.errors import ConfigError, ValidationError
from fathom.frontend.input_processor import ProcessedRequest
from fathom.inputs import Prompt
from fathom.outputs import Logprob
from fathom.sampling_params import SamplingParams

if TYPE_CHECKING:
    from fathom.entrypoints.llm import LLM


class BeamSearchParams(msgspec.Struct):
    """What is searched for.

    Args:
        beam_width: how many beams are followed, and how many answers there are; at least 1.
        max_tokens: most tokens of an answer; at least 1.
        ignore_eos: go on past the end-of-sequence token.
        temperature: 0; beams are ranked by the model's own log-probabilities.
        length_penalty: above 1 favours longer answers, below 1 shorter ones.
        include_stop_str_in_output: leave the end-of-sequence token in `tokens`.
        skip_special_tokens: leave special tokens out of the text.

    Raises:
        ValidationError: names the field, the value and the rule.
    """

    beam_width: int
    max_tokens: int
    ignore_eos: bool = False
    temperature: float = 0.0
    length_penalty: float = 1.0
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True

    def __post_init__(self) -> None:
        for name in ("beam_width", "max_tokens"):
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise ValidationError(f"{name} must be an integer of at least 1.", parameter=name, value=value)
        if self.temperature != 0:
            raise ValidationError(
                f"temperature={self.temperature!r} is not supported with beams.",
                parameter="temperature",
                value=self.temperature,
                hint="Leave it at 0: they are ranked by the model's own log-probabilities.",
            )


@dataclass(slots=True)
class BeamSearchSequence:
    """One beam. tokens: of prompt and answer. text: theirs. logprobs: as SamplingParams(logprobs=...) gives them."""

    tokens: list[int]
    logprobs: list[dict[int, Logprob]] = field(default_factory=list)
    cum_logprob: float = 0.0
    text: str | None = None
    finish_reason: str | None = None
    stop_reason: int | None = None


@dataclass(slots=True)
class BeamSearchOutput:
    """What was found for one prompt, the best first."""

    sequences: list[BeamSearchSequence]


@dataclass(slots=True)
class _Search:
    """One prompt's: the beams that go on, and those that have ended."""

    prompt: ProcessedRequest
    room: int  # tokens that still fit
    beams: list[BeamSearchSequence]
    ended: list[BeamSearchSequence] = field(default_factory=list)


def search_beams(
    llm: LLM, prompts: Sequence[Prompt], params: BeamSearchParams, use_tqdm: ProgressBar
) -> list[BeamSearchOutput]:
    """Search for each prompt; errors as in LLM.beam_search."""
    one_token = _one_token(llm, params)
    processor = llm.llm_engine.input_processor
    requests = processor.process([str(i) for i in range(len(prompts))], prompts, [one_token] * len(prompts))
    searches = [
        _Search(request, processor.max_model_len - len(request.prompt_token_ids), [_first_beam(request)])
        for request in requests
    ]
    make_bar: Any = use_tqdm if callable(use_tqdm) else tqdm
    quiet = {} if callable(use_tqdm) else {"desc": "Beam search", "unit": "token", "disable": not use_tqdm}
    for _ in make_bar(range(params.max_tokens), **quiet):
        going_on = [search for search in searches if search.beams and search.room > 0]
        if not going_on:
            break
        _advance(llm, going_on, params, one_token)
    return [BeamSearchOutput(_best(llm, search, params)) for search in searches]


def _one_token(llm: LLM, params: BeamSearchParams) -> SamplingParams:
    """What one step asks of each beam."""
    if not isinstance(params, BeamSearchParams):
        raise ValidationError(
            f"params must be BeamSearchParams, got {type(params).__name__}.", parameter="params", value=params
        )
    options = llm.llm_engine.config.model
    if options.logprobs_mode != "raw_logprobs":
        raise ConfigError(
            f"beam search needs logprobs_mode=raw_logprobs, got {options.logprobs_mode}.",
            parameter="logprobs_mode",
            value=options.logprobs_mode,
            hint="Make the LLM without it.",
        )
    if -1 < options.max_logprobs < 2 * params.beam_width:
        raise ValidationError(
            f"beam_width={params.beam_width} needs {2 * params.beam_width} logprobs, and this engine allows "
            f"{options.max_logprobs}.",
            parameter="beam_width",
            value=params.beam_width,
            hint=f"Make the LLM with max_logprobs={2 * params.beam_width}.",
        )
    return SamplingParams(temperature=0.0, max_tokens=1, logprobs=2 * params.beam_width, ignore_eos=True)


def _first_beam(request: ProcessedRequest) -> BeamSearchSequence:
    return BeamSearchSequence(list(request.prompt_token_ids))


def _advance(llm: LLM, searches: list[_Search], params: BeamSearchParams, one_token: SamplingParams) -> None:
    """One token for every beam of these searches."""
    prompts = [
        {"prompt_token_ids": beam.tokens, "cache_salt": search.prompt.cache_salt}
        for search in searches
        for beam in search.beams
    ]
    outputs = iter(llm.generate(prompts, one_token, use_tqdm=False))
    for search in searches:
        candidates = []
        for beam in search.beams:
            answer = next(outputs).outputs[0]
            if answer.logprobs is None or not len(answer.logprobs):  # it failed, which has been logged
                continue
            position = answer.logprobs[0]
            assert position is not None
            for token, score in list(position.items())[: 2 * params.beam_width]:
                grown = _grown(beam, token, score, position)
                if token in search.prompt.params.eos_token_ids and not params.ignore_eos:
                    search.ended.append(_ended(grown, token, params))
                else:
                    candidates.append(grown)
        candidates.sort(key=lambda beam: _score(beam, params), reverse=True)
        search.beams = candidates[: params.beam_width]
        search.room -= 1


def _grown(beam: BeamSearchSequence, token: int, score: Logprob, position: dict[int, Logprob]) -> BeamSearchSequence:
    return BeamSearchSequence([*beam.tokens, token], [*beam.logprobs, position], beam.cum_logprob + score.logprob)


def _ended(beam: BeamSearchSequence, token: int, params: BeamSearchParams) -> BeamSearchSequence:
    beam.finish_reason, beam.stop_reason = "stop", token
    if not params.include_stop_str_in_output:
        beam.tokens.pop()
    return beam


def _score(beam: BeamSearchSequence, params: BeamSearchParams) -> float:
    """The end-of-sequence token's log-probability counts, its length does not."""
    length = len(beam.tokens) - (beam.finish_reason == "stop" and params.include_stop_str_in_output)
    return beam.cum_logprob / max(1, length) ** params.length_penalty


def _best(llm: LLM, search: _Search, params: BeamSearchParams) -> list[BeamSearchSequence]:
    for beam in search.beams:
        beam.finish_reason = "length"
    found = sorted(search.ended + search.beams, key=lambda beam: _score(beam, params), reverse=True)
    best = found[: params.beam_width]
    tokenizer = llm.get_tokenizer()
    if tokenizer is not None:
        for beam in best:
            beam.text = tokenizer.decode(beam.tokens, skip_special_tokens=params.skip_special_tokens)
    return best
