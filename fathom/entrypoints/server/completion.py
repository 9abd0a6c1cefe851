"""POST /v1/completions: text, token ids, or lists of either, carried on."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from fathom.entrypoints.server.assembly.common import Explainer
from fathom.entrypoints.server.assembly.completion import CompletionAssembler, CompletionOptions, fold_completion
from fathom.entrypoints.server.assembly.logprobs import TokenNames
from fathom.entrypoints.server.errors import bad_request
from fathom.entrypoints.server.generation import Job, streamed, whole
from fathom.entrypoints.server.http import read_request
from fathom.entrypoints.server.prompts import ServedPrompt, completion_prompts, truncate
from fathom.entrypoints.server.protocol.completion import CompletionRequest
from fathom.entrypoints.server.sampling import default_max_tokens, fit_max_tokens, sampling_params
from fathom.entrypoints.server.serving import Serving
from fathom.entrypoints.server.tracing import trace_of
from fathom.sampling_params import SamplingParams

_DEFAULT_MAX_TOKENS = 16


async def create_completion(serving: Serving, http: Request) -> Response:
    """Carry text on, whole or streamed."""
    serving.check_open()
    request = await read_request(http, CompletionRequest, serving.settings.max_body_bytes)
    envelope = serving.envelope("cmpl-", http, request)
    best_of, explain = _best_of(request), serving.wants_explanation(http, request)
    prompts = [_cut(serving, request, prompt) for prompt in await completion_prompts(serving, request)]
    params = [_params(serving, request, prompt, best_of, explain) for prompt in prompts]
    job = Job(
        id=envelope.id,
        prompts=[
            {"prompt": prompt.text, "prompt_token_ids": prompt.token_ids, "cache_salt": request.cache_salt}
            for prompt in prompts
        ],
        params=params,
        priority=request.priority,
        seconds=serving.deadline_of(http, request),
        user=request.user,
        trace=trace_of(http.scope),
    )
    options = CompletionOptions(
        n=request.n or 1,
        best_of=best_of,
        echo=bool(request.echo),
        prompt_only=request.max_tokens == 0,
        names=_names(serving, request),
        top_logprobs=request.logprobs or 0,
        skip_special_tokens=request.skip_special_tokens,
        token_ids=request.return_token_ids,
        prompt_logprobs=request.prompt_logprobs is not None,
        explainer=Explainer(params[0], envelope.model) if explain else None,
    )
    texts = [_echoed(serving, request, prompt) for prompt in prompts] if request.echo else [""] * len(prompts)
    assembler = CompletionAssembler(envelope, options, texts, [len(prompt.token_ids) for prompt in prompts])
    if request.stream:
        return await streamed(serving, job, assembler)
    return await whole(serving, http, job, assembler, fold_completion)


def _best_of(request: CompletionRequest) -> int:
    n = request.n or 1
    best_of = request.best_of or n
    if best_of < n:
        raise bad_request(f"best_of={best_of} must not be less than n={n}.", "best_of")
    if best_of > n and request.stream:
        raise bad_request("best_of greater than n cannot be streamed, since the best are known in the end.", "best_of")
    return best_of


def _cut(serving: Serving, request: CompletionRequest, prompt: ServedPrompt) -> ServedPrompt:
    room = serving.engine.input_processor.max_model_len - max(1, request.max_tokens or 1)
    kept = truncate(prompt.token_ids, request.truncate_prompt_tokens, request.truncation_side, max(0, room))
    return prompt if kept is prompt.token_ids else ServedPrompt(None, kept)


def _params(
    serving: Serving, request: CompletionRequest, prompt: ServedPrompt, best_of: int, explain: bool
) -> SamplingParams:
    n = request.n or 1
    default = default_max_tokens(serving) or _DEFAULT_MAX_TOKENS
    prompt_logprobs = request.prompt_logprobs
    if request.echo and request.logprobs is not None:
        wanted = (request.logprobs, request.logprobs if prompt_logprobs is None else prompt_logprobs)
        prompt_logprobs = -1 if -1 in wanted else max(wanted)
    return sampling_params(
        serving,
        request,
        n=best_of,
        max_tokens=fit_max_tokens(serving, request.max_tokens, len(prompt.token_ids), default),
        logprobs=0 if request.logprobs is None and best_of > n else request.logprobs,
        prompt_logprobs=prompt_logprobs,
        explain=explain,
        deltas=best_of == n and bool(request.stream or explain),
    )


def _names(serving: Serving, request: CompletionRequest) -> TokenNames | None:
    if request.logprobs is None:
        return None
    return TokenNames(serving.engine.tokenizer, request.return_tokens_as_token_ids)


def _echoed(serving: Serving, request: CompletionRequest, prompt: ServedPrompt) -> str:
    """The prompt's text. Token ids are decoded as the answer is."""
    if prompt.text is not None:
        return prompt.text
    return serving.need_tokenizer("echo").decode(prompt.token_ids, request.skip_special_tokens)
