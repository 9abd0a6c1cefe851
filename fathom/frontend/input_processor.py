"""InputProcessor: from what a caller hands over to requests that the engine can trust.

Everything that can be wrong with a request is found here, in the caller's process, before it is sent: what the
prompt is made of, whether it fits, and the sampling parameters that depend on the model.
"""

from __future__ import annotations

import operator
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from random import Random
from typing import Any, TypeVar

import msgspec

from fathom.errors import ContextLengthError, ValidationError
from fathom.frontend.contradictions import check_something_is_left
from fathom.frontend.distinct import map_distinct
from fathom.frontend.tokenizer.tokenizer import Tokenizer, check_text
from fathom.inputs import Prompt
from fathom.logits_processors import ProcessorName, processors_of_engine
from fathom.sampling_params import SamplingParams

T = TypeVar("T")
_PROMPT_KEYS = frozenset({"prompt", "prompt_token_ids", "cache_salt"})


@dataclass(slots=True)
class ProcessedRequest:
    """A request that passed every check. seed is set even if the caller gave none."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    params: SamplingParams
    seed: int
    arrival_time: float
    priority: int = 0
    cache_salt: str | None = None


class InputProcessor:
    """Checks and tokenises.

    Args:
        tokenizer: None if the model has none; then prompts must be token ids.
        vocab_size: ids at or above it are refused.
        max_model_len: longest sequence, as fitted to the KV cache.
        max_logprobs: most logprobs that may be asked for; -1: all.
        eos_token_ids: what ends an answer, unless ignore_eos.
        default_params: sampling parameters of requests that bring none.
        seed: of the seeds given to requests without one; None: from the system's entropy.
        by_priority: whether the engine looks at priorities; else only 0 is accepted.
        logits_processors: the engine's option of that name.
    """

    def __init__(
        self,
        tokenizer: Tokenizer | None,
        *,
        vocab_size: int,
        max_model_len: int,
        max_logprobs: int,
        eos_token_ids: Sequence[int],
        default_params: SamplingParams,
        seed: int | str | None,
        by_priority: bool,
        logits_processors: Sequence[str],
    ) -> None:
        self.tokenizer = tokenizer
        self.max_model_len = max_model_len
        self.default_params = default_params
        self._vocab_size = vocab_size
        self._max_logprobs = max_logprobs
        self._eos_token_ids = list(eos_token_ids)
        self._seeds = Random(seed)
        self._by_priority = by_priority
        self._logits_processors = logits_processors

    def process(
        self,
        request_ids: Sequence[str],
        prompts: Sequence[Prompt],
        params: Sequence[SamplingParams | None],
        priorities: Sequence[int] | None = None,
    ) -> list[ProcessedRequest]:
        """Check and tokenise a batch; either all of it is right or nothing of it is accepted.

        Raises:
            ValidationError: names the field and the value. ContextLengthError: a prompt is too long.
        """
        prepared = map_distinct(self._complete, params)
        texts, token_ids, salts = self._read_prompts(prompts)
        arrival_time = time.time()
        requests = []
        request_ids = _as_sent("request_id", list(request_ids), list[str])
        priorities = _as_sent("priority", list(priorities or [0] * len(request_ids)), list[int])
        self._check_priorities(priorities)
        self._check_prompts(token_ids)
        for index, request_id in enumerate(request_ids):
            requests.append(
                ProcessedRequest(
                    request_id=request_id,
                    prompt=texts[index],
                    prompt_token_ids=token_ids[index],
                    params=prepared[index],
                    seed=self._seed(prepared[index]),
                    arrival_time=arrival_time,
                    priority=priorities[index],
                    cache_salt=salts[index],
                )
            )
        return requests

    def _check_priorities(self, priorities: Sequence[int]) -> None:
        wanted = next((priority for priority in priorities if priority), 0)
        if wanted and not self._by_priority:
            raise ValidationError(
                f"priority={wanted} would change nothing: this engine serves first come first.",
                parameter="priority",
                value=wanted,
                hint="Start it with scheduling_policy='priority'.",
            )

    def draw_seed(self) -> int:
        """A seed for a request that brings none."""
        return self._seeds.getrandbits(63)

    # ---------------------------------------------------------------- prompts

    def _read_prompts(self, prompts: Sequence[Prompt]) -> tuple[list[str | None], list[list[int]], list[str | None]]:
        """Texts (None where ids were given), token ids and cache salts; all texts are tokenised at once."""
        texts: list[str | None] = []
        ids: list[list[int] | None] = []
        salts: list[str | None] = []
        try:
            for prompt in prompts:
                text, token_ids, salt = self._parse(prompt)
                texts.append(text)
                ids.append(token_ids)
                salts.append(salt)
        except ValidationError as error:
            raise _of_prompt(error, len(texts), len(prompts)) from None
        to_encode = [text for text, known in zip(texts, ids, strict=True) if known is None and text is not None]
        encoded = iter(self._encode(to_encode))
        return texts, [known if known is not None else next(encoded) for known in ids], salts

    def _parse(self, prompt: Prompt) -> tuple[str | None, list[int] | None, str | None]:
        if isinstance(prompt, str):
            return prompt, None, None
        if not isinstance(prompt, Mapping):
            return None, _read_ids(prompt), None
        return self._parse_mapping(prompt)

    @staticmethod
    def _parse_mapping(prompt: Mapping[str, Any]) -> tuple[str | None, list[int] | None, str | None]:
        unknown = {key for key, value in prompt.items() if value is not None} - _PROMPT_KEYS
        if unknown:
            name = sorted(map(str, unknown))[0]
            raise ValidationError(
                f"prompts with {name!r} are not supported.",
                parameter=name,
                value=prompt[name],
                hint=f"A prompt's dictionary may hold {', '.join(map(repr, sorted(_PROMPT_KEYS)))}.",
            )
        text, ids, salt = prompt.get("prompt"), prompt.get("prompt_token_ids"), prompt.get("cache_salt")
        if salt is not None:
            _check_salt(salt)
        if not isinstance(text, str) and (text is not None or ids is None):
            raise ValidationError(
                "a prompt dictionary needs 'prompt' (a text) or 'prompt_token_ids'.",
                parameter="prompt",
                value=text,
            )
        return text, None if ids is None else _read_ids(ids), salt

    def _encode(self, texts: list[str]) -> list[list[int]]:
        if not texts:
            return []
        if self.tokenizer is None:
            raise ValidationError(
                "this model has no tokenizer.",
                parameter="prompt",
                hint="Pass prompt_token_ids instead of text.",
            )
        return self.tokenizer.encode_batch(texts)

    def _check_prompts(self, prompts: list[list[int]]) -> None:
        num_right = 0
        try:
            for token_ids in prompts:
                self._check_prompt(token_ids)
                num_right += 1
        except ValidationError as error:
            raise _of_prompt(error, num_right, len(prompts)) from None

    def _check_prompt(self, token_ids: list[int]) -> None:
        if not token_ids:
            raise ValidationError("the prompt is empty.", parameter="prompt", hint="It needs at least one token.")
        if len(token_ids) >= self.max_model_len:
            raise ContextLengthError(
                f"the prompt has {len(token_ids)} tokens, but the context holds {self.max_model_len} with at least "
                "one token of the answer.",
                parameter="prompt",
                value=len(token_ids),
                hint=f"Shorten it to {self.max_model_len - 1} tokens, or raise max_model_len if the model allows.",
            )
        # A tokenizer may know more tokens than the model, so this is not only for ids that a caller gave.
        for token_id in (min(token_ids), max(token_ids)):
            if not 0 <= token_id < self._vocab_size:
                raise ValidationError(
                    f"prompt token id {token_id} is not in the vocabulary of {self._vocab_size}.",
                    parameter="prompt_token_ids",
                    value=token_id,
                )

    # ---------------------------------------------------------------- sampling parameters

    def _complete(self, given: SamplingParams | None) -> SamplingParams:
        """The parameters, or the defaults, checked and with what only the model knows."""
        params = self.default_params if given is None else given
        if not isinstance(params, SamplingParams):
            raise ValidationError(
                f"sampling_params must be SamplingParams, got {type(params).__name__}.",
                parameter="sampling_params",
                value=params,
            )
        if params.stop and self.tokenizer is None:
            raise ValidationError("stop needs a tokenizer, and this model has none.", parameter="stop")
        for name in ("logprobs", "prompt_logprobs"):
            self._check_logprobs(name, getattr(params, name))
        for name in ("stop_token_ids", "allowed_token_ids", "logit_bias"):
            for token_id in getattr(params, name) or ():
                if token_id >= self._vocab_size:
                    raise ValidationError(
                        f"{name} holds {token_id}, which is not in the vocabulary of {self._vocab_size}.",
                        parameter=name,
                        value=token_id,
                    )
        self._check_logits_processors(params.logits_processors or ())
        complete = msgspec.structs.replace(
            params, eos_token_ids=self._eos_token_ids, bad_words_token_ids=self._encode_bad_words(params)
        )
        check_something_is_left(complete, self._vocab_size)
        return _as_sent("sampling_params", complete, SamplingParams)

    def _check_logprobs(self, name: str, wanted: int | None) -> None:
        if wanted is None or self._max_logprobs == -1:
            return
        if (self._vocab_size if wanted == -1 else wanted) > self._max_logprobs:
            raise ValidationError(
                f"{name}={wanted} is more than this engine allows, {self._max_logprobs}.",
                parameter=name,
                value=wanted,
                hint="Start it with a larger max_logprobs, or -1 for no limit.",
            )

    def _check_logits_processors(self, wanted: Iterable[str]) -> None:
        for name in wanted:
            if not any(name in processor.known_as for processor in self._processors):
                loaded = ", ".join(dict.fromkeys(processor.short for processor in self._processors))
                raise ValidationError(
                    f"logits_processors holds {name!r}, and no such processor is loaded.",
                    parameter="logits_processors",
                    value=name,
                    hint=f"There is {loaded}." if loaded else "There is none; start the engine with logits_processors.",
                )

    @cached_property
    def _processors(self) -> list[ProcessorName]:
        """Looked up by the first request that names one: entry points are a walk through all installed packages."""
        return list(processors_of_engine(self._logits_processors))

    def _encode_bad_words(self, params: SamplingParams) -> list[list[int]]:
        """The token ids of each bad word, at the start of a text and after a space."""
        if not params.bad_words:
            return []
        if self.tokenizer is None:
            raise ValidationError("bad_words needs a tokenizer, and this model has none.", parameter="bad_words")
        found: list[list[int]] = []
        for word in params.bad_words:
            bare = word.lstrip()
            for text in (bare, " " + bare) if bare else (word,):
                ids = self.tokenizer.encode(text, add_special_tokens=False)
                if not ids:
                    raise ValidationError(
                        f"bad_words holds {word!r}, which has no tokens.", parameter="bad_words", value=word
                    )
                if ids not in found:
                    found.append(ids)
        return found

    def _seed(self, params: SamplingParams) -> int:
        return self.draw_seed() if params.seed is None else params.seed


def _of_prompt(error: ValidationError, index: int, num_prompts: int) -> ValidationError:
    """The error with the prompt's place in its batch, if there are several to look through."""
    if num_prompts == 1:
        return error
    message = f"prompts[{index}]: {error.message}"
    return type(error)(message, parameter=error.parameter, value=error.value, hint=error.hint)


def _read_ids(ids: Any) -> list[int]:
    """Token ids from a list, an array or a tensor: whatever counts as integers, but no bools."""
    if hasattr(ids, "tolist"):
        ids = ids.tolist()
    if isinstance(ids, (str, bytes, bytearray, Mapping)) or not isinstance(ids, Iterable):
        raise ValidationError(
            f"a prompt must be a text, a list of token ids or a dictionary, got {type(ids).__name__}.",
            parameter="prompt",
            value=ids,
        )
    items = list(ids)
    return items if set(map(type, items)) <= {int} else [_read_id(item) for item in items]


def _read_id(item: Any) -> int:
    try:
        if not isinstance(item, bool):
            return operator.index(item)
    except TypeError:
        pass
    raise ValidationError(f"prompt token ids must be integers, got {item!r}.", parameter="prompt_token_ids", value=item)


def _check_salt(salt: Any) -> None:
    if not isinstance(salt, str) or not salt:
        raise ValidationError("cache_salt must be a non-empty string.", parameter="cache_salt", value=salt)
    check_text(salt, "cache_salt")


def _as_sent(name: str, value: T, kind: type[T]) -> T:
    """The value as the engine will read it. What it could not read, it could not answer either."""
    try:
        return msgspec.msgpack.decode(msgspec.msgpack.encode(value), type=kind)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise ValidationError(f"{name} does not hold what it should: {error}", parameter=name, value=value) from None
