"""/v1/completions through OpenAI's client: every form of a prompt, and each field as it shows in the answer."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import openai
import pytest

from fathom import LLM, SamplingParams
from tests.server.processes import Server

GREEDY: dict[str, Any] = {"model": "tiny", "temperature": 0, "max_tokens": 8}


@pytest.fixture(scope="module")
def llm(tiny_chat_model: Path) -> Iterator[LLM]:
    """The same model offline."""
    with LLM(str(tiny_chat_model), multiprocess=False, num_threads=1, max_num_seqs=8, show_progress=False) as engine:
        yield engine


def test_the_answer_is_the_offline_engine_s(client: openai.OpenAI, llm: LLM) -> None:
    (expected,) = llm.generate("The sea", SamplingParams(temperature=0, max_tokens=8), use_tqdm=False)
    answer = client.completions.create(prompt="The sea", **GREEDY)
    (choice,) = answer.choices
    assert (choice.text, choice.finish_reason) == (expected.outputs[0].text, "length")
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == len(expected.prompt_token_ids)
    assert (answer.usage.completion_tokens, answer.object, answer.model) == (8, "text_completion", "tiny")
    assert answer.id.startswith("cmpl-")


def test_texts_and_token_ids_in_every_form_come_back_in_order(client: openai.OpenAI, llm: LLM) -> None:
    tokenizer = llm.get_tokenizer()
    assert tokenizer is not None
    texts = ["A", "BB", "The sea is wide"]
    ids = [tokenizer.encode(text) for text in texts]
    from_texts = client.completions.create(prompt=texts, **GREEDY)
    from_ids = client.completions.create(prompt=ids, **GREEDY)
    one_by_one = [client.completions.create(prompt=prompt, **GREEDY).choices[0].text for prompt in ids]
    assert [choice.text for choice in from_texts.choices] == one_by_one
    assert [choice.text for choice in from_ids.choices] == one_by_one
    assert [choice.index for choice in from_ids.choices] == [0, 1, 2]
    assert from_ids.usage is not None
    assert from_ids.usage.prompt_tokens == sum(map(len, ids))


def test_a_batch_of_prompts_with_n_and_echo(client: openai.OpenAI) -> None:
    prompts = ["A", "BB", "CCC"]
    options: dict[str, Any] = {"model": "tiny", "temperature": 1, "max_tokens": 4, "n": 2, "echo": True, "seed": 3}
    answer = client.completions.create(prompt=prompts, **options)
    assert [choice.index for choice in answer.choices] == list(range(6))
    assert all(choice.text.startswith(prompts[choice.index // 2]) for choice in answer.choices)
    assert answer.choices[0].text != answer.choices[1].text
    usage = answer.usage
    assert usage is not None
    lengths = [client.completions.create(prompt=p, **GREEDY).usage.prompt_tokens for p in prompts]  # type: ignore[union-attr]
    assert usage.prompt_tokens == sum(lengths)  # each once, not n times
    assert usage.completion_tokens <= 24
    streamed: dict[int, str] = {}
    for chunk in client.completions.create(prompt=prompts, stream=True, **options):
        for choice in chunk.choices:
            streamed[choice.index] = streamed.get(choice.index, "") + choice.text
    assert streamed == {choice.index: choice.text for choice in answer.choices}


def test_echo_and_logprobs_have_an_entry_for_each_token(client: openai.OpenAI, llm: LLM) -> None:
    answer = client.completions.create(prompt="The cat sat", echo=True, logprobs=2, **GREEDY)
    (choice,), usage = answer.choices, answer.usage
    logprobs = choice.logprobs
    assert logprobs is not None
    assert usage is not None
    assert logprobs.tokens is not None
    assert logprobs.token_logprobs is not None
    assert logprobs.text_offset is not None
    assert logprobs.top_logprobs is not None
    assert len(logprobs.tokens) == usage.total_tokens
    assert (logprobs.token_logprobs[0], logprobs.top_logprobs[0]) == (None, None)
    assert all(isinstance(value, float) for value in logprobs.token_logprobs[1:])
    for token, offset in zip(logprobs.tokens, logprobs.text_offset, strict=True):
        assert choice.text.startswith(token, offset) or token == "<s>", (token, offset)
    expected = llm.generate(
        "The cat sat", SamplingParams(temperature=0, max_tokens=8, logprobs=2, prompt_logprobs=2), use_tqdm=False
    )[0]
    assert expected.prompt_logprobs is not None
    assert expected.outputs[0].logprobs is not None
    positions = [*expected.prompt_logprobs, *expected.outputs[0].logprobs]
    ids = [*expected.prompt_token_ids, *expected.outputs[0].token_ids]
    for position, token_id, value in zip(positions, ids, logprobs.token_logprobs, strict=True):
        assert value == (None if position is None else position[token_id].logprob)


def test_only_the_prompt_with_max_tokens_0(client: openai.OpenAI) -> None:
    options: dict[str, Any] = GREEDY | {"max_tokens": 0}
    echoed = client.completions.create(prompt="The cat sat", echo=True, logprobs=1, **options)
    assert echoed.usage is not None
    assert (echoed.choices[0].text, echoed.usage.completion_tokens) == ("The cat sat", 0)
    assert echoed.choices[0].logprobs is not None
    assert len(echoed.choices[0].logprobs.tokens or ()) == echoed.usage.prompt_tokens
    silent = client.completions.create(prompt="The cat sat", **options)
    assert (silent.choices[0].text, silent.choices[0].finish_reason) == ("", "length")


def test_best_of_returns_the_likeliest_and_counts_all(client: openai.OpenAI) -> None:
    options: dict[str, Any] = {"model": "tiny", "temperature": 1, "max_tokens": 6, "seed": 4, "logprobs": 0}
    every = client.completions.create(prompt="The sea", n=5, **options)
    best = client.completions.create(prompt="The sea", n=2, best_of=5, **options)

    def mean(choice: Any) -> float:
        return math.fsum(choice.logprobs.token_logprobs) / len(choice.logprobs.token_logprobs)

    ranked = sorted(every.choices, key=mean, reverse=True)
    assert [choice.text for choice in best.choices] == [choice.text for choice in ranked[:2]]
    assert [choice.index for choice in best.choices] == [0, 1]
    assert best.usage == every.usage.model_copy(update={"prompt_tokens_details": ANY})  # type: ignore[union-attr]


def test_seeds_repeat_and_their_absence_does_not(server: Server, client: openai.OpenAI) -> None:
    options: dict[str, Any] = {"model": "tiny", "prompt": "The sea", "temperature": 1, "max_tokens": 12}
    seeded = {client.completions.create(seed=1, **options).choices[0].text for _ in range(3)}
    free = {client.completions.create(**options).choices[0].text for _ in range(3)}
    assert len(seeded) == 1
    assert len(free) == 3


@pytest.mark.parametrize("include", [False, True])
def test_the_earliest_stop_string_ends_the_answer(client: openai.OpenAI, include: bool) -> None:
    options: dict[str, Any] = GREEDY | {"max_tokens": 40}
    whole = client.completions.create(prompt="The sea", **options).choices[0].text
    early, late = whole[5:8], whole[12:15]
    extra = {"include_stop_str_in_output": include}
    stopped = client.completions.create(prompt="The sea", stop=[late, early], extra_body=extra, **options)
    (choice,) = stopped.choices
    end = whole.index(early) + (len(early) if include else 0)
    assert (choice.text, choice.finish_reason) == (whole[:end], "stop")
    assert choice.model_extra is not None
    assert choice.model_extra["stop_reason"] == early
    joined = "".join(
        chunk.choices[0].text
        for chunk in client.completions.create(
            prompt="The sea", stop=[late, early], stream=True, extra_body=extra, **options
        )
    )
    assert joined == choice.text


def test_extension_fields_reach_the_engine(server: Server, client: openai.OpenAI) -> None:
    def ids(**fields: Any) -> list[int]:
        answer = server.post("/v1/completions", prompt="The sea", return_token_ids=True, **GREEDY, **fields).json()
        return list(answer["choices"][0]["token_ids"])

    assert ids(allowed_token_ids=[7]) == [7] * 8
    assert ids(logit_bias={"9": 100}) == [9] * 8
    free = ids()
    assert ids(stop_token_ids=[free[2]]) == free[: free.index(free[2]) + 1]
    assert ids(stop_token_ids=[free[0]], min_tokens=3)[0] != free[0]
    assert len(ids(ignore_eos=True, allowed_token_ids=[1])) == 8
    assert ids(truncate_prompt_tokens=1) != free
    answer = server.post(
        "/v1/completions",
        prompt="The sea",
        logprobs=1,
        return_tokens_as_token_ids=True,
        return_token_ids=True,
        **GREEDY,
    ).json()["choices"][0]
    assert answer["logprobs"]["tokens"] == [f"token_id:{token_id}" for token_id in answer["token_ids"]]
    assert len(answer["prompt_token_ids"]) > 1


def test_prompt_logprobs_and_explanation_are_the_same_streamed_or_not(server: Server) -> None:
    body = {"prompt": "The sea", "prompt_logprobs": 1, "explain": True, **GREEDY}
    whole = server.post("/v1/completions", **body).json()["choices"][0]
    assert whole["prompt_logprobs"][0] is None
    assert all(entry["rank"] >= 1 for position in whole["prompt_logprobs"][1:] for entry in position.values())
    explained = whole["explain"]
    assert (explained["sampling_params"]["max_tokens"], explained["num_preemptions"]) == (8, 0)
    body["seed"] = explained["sampling_params"]["seed"]
    assert min(explained["queue_ms"], explained["prefill_ms"], explained["decode_ms"]) >= 0
    chunks = list(server.client().completions.create(stream=True, model="tiny", prompt="The sea", extra_body=body))
    assert chunks[0].choices[0].model_extra is not None
    assert chunks[0].choices[0].model_extra["prompt_logprobs"] == whole["prompt_logprobs"]
    assert chunks[-1].choices[0].model_extra is not None
    assert chunks[-1].choices[0].model_extra["explain"]["sampling_params"] == explained["sampling_params"]


def test_the_seed_that_is_explained_repeats_the_answer(server: Server) -> None:
    body = {"prompt": "The sea", "temperature": 1, "max_tokens": 12}
    first = server.http.post("/v1/completions", json=body, headers={"X-Fathom-Explain": "1"}).json()["choices"][0]
    again = server.post("/v1/completions", seed=first["explain"]["sampling_params"]["seed"], **body).json()
    assert again["choices"][0]["text"] == first["text"]


def test_cached_tokens_and_salts(server: Server) -> None:
    prompt = "Twelve ships went out to sea. " * 8

    def cached(salt: str) -> int:
        usage = server.post("/v1/completions", prompt=prompt, cache_salt=salt, **GREEDY).json()["usage"]
        return int(usage["prompt_tokens_details"]["cached_tokens"])

    assert [cached("a"), cached("b")] == [0, 0]
    assert cached("a") == cached("b") > 0


def test_a_prompt_that_fills_the_context(thinker: Server) -> None:
    length = thinker.http.get("/v1/models").json()["data"][0]["max_model_len"]
    fits = thinker.post("/v1/completions", prompt=[5] * (length - 1), model="tiny", max_tokens=100)
    assert fits.json()["usage"]["completion_tokens"] == 1
    refused = thinker.post("/v1/completions", prompt=[5] * length, model="tiny")
    error = refused.json()["error"]
    assert (refused.status_code, error["code"]) == (400, "context_length_exceeded")
    assert str(length) in error["message"]
