"""What lm-eval's local-completions sends, byte for byte, and what it reads from the answers.

It scores a continuation by `token_logprobs[len(context):-1]`, so that the lists need an entry for each token of the
prompt and for exactly one more, whatever that one is; a continuation is greedy if the chosen value is the best of
`top_logprobs`. It tokenises by /tokenizer_info and /tokenize, and sorts choices by their index.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from fathom import LLM, SamplingParams
from tests.conftest import ENDLESS_CONTEXT
from tests.server.forced import ids_of, says
from tests.server.processes import Server

TEXTS = ["The sea is wide", "A", "Two plus two is four. The sun rises in the east.", "The sea is deep"]
SCORING: dict[str, Any] = {
    "model": "tiny",
    "temperature": 0,
    "max_tokens": 1,
    "logprobs": 1,
    "seed": 1234,
    "echo": True,
}


@pytest.fixture(scope="module")
def llm(tiny_chat_model: Path) -> Iterator[LLM]:
    """The same model offline."""
    with LLM(str(tiny_chat_model), multiprocess=False, num_threads=1, show_progress=False) as engine:
        yield engine


def offline_scores(llm: LLM, prompts: list[list[int]]) -> list[list[tuple[float, bool]]]:
    """For each token behind the first: its logprob, and whether it was the best."""
    params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=1)
    outputs = llm.generate([{"prompt_token_ids": ids} for ids in prompts], params, use_tqdm=False)
    scores = []
    for output, ids in zip(outputs, prompts, strict=True):
        assert output.prompt_logprobs is not None
        chosen = [entry[token] for entry, token in zip(output.prompt_logprobs, ids, strict=True) if entry is not None]
        scores.append([(entry.logprob, entry.rank == 1) for entry in chosen])
    return scores


def scores_of(choice: dict[str, Any], prompt_length: int) -> list[tuple[float, bool]]:
    """As lm-eval reads them."""
    logprobs = choice["logprobs"]
    assert len(logprobs["token_logprobs"]) == len(logprobs["top_logprobs"]) == prompt_length + 1
    values, best = logprobs["token_logprobs"][1:-1], logprobs["top_logprobs"][1:-1]
    return [(value, value == max(top.values())) for value, top in zip(values, best, strict=True)]


def test_scores_of_a_batch_of_token_ids_are_the_offline_engine_s(server: Server, llm: LLM) -> None:
    """Five prompts a request, four requests at once, twice: the second time the prefixes are cached."""
    prompts = [ids_of(server, text) for text in TEXTS]
    greedy = SamplingParams(temperature=0, max_tokens=8)
    (said,) = llm.generate([{"prompt_token_ids": prompts[0]}], greedy, use_tqdm=False)
    prompts.append(prompts[0] + list(said.outputs[0].token_ids))
    expected = offline_scores(llm, prompts)
    assert [greedy for _, greedy in expected[-1][-8:]] == [True] * 8
    assert not all(greedy for _, greedy in expected[0])

    def ask(_: int) -> dict[str, Any]:
        return dict(server.post("/v1/completions", prompt=prompts, **SCORING).json())

    for _ in range(2):
        with ThreadPoolExecutor(4) as pool:
            answers = list(pool.map(ask, range(4)))
        for answer in answers:
            choices = sorted(answer["choices"], key=lambda choice: choice["index"])
            found = [scores_of(choice, len(ids)) for choice, ids in zip(choices, prompts, strict=True)]
            assert found == expected


def test_texts_give_the_same_scores(server: Server, llm: LLM) -> None:
    """tokenized_requests=False: a list of texts, or with batch_size 1 a text; a BOS is the tokenizer's to add."""
    expected = offline_scores(llm, [server.post("/tokenize", prompt=text).json()["tokens"] for text in TEXTS])
    answer = server.post("/v1/completions", prompt=TEXTS, **SCORING).json()
    lengths = [len(scores) + 1 for scores in expected]
    assert [scores_of(*pair) for pair in zip(answer["choices"], lengths, strict=True)] == expected
    alone = server.post("/v1/completions", prompt=TEXTS[0], **SCORING).json()
    assert scores_of(alone["choices"][0], lengths[0]) == expected[0]


def test_with_max_tokens_0_the_prompt_alone_is_scored(server: Server, llm: LLM) -> None:
    prompts = [ids_of(server, text) for text in TEXTS]
    answer = server.post("/v1/completions", prompt=prompts, **(SCORING | {"max_tokens": 0})).json()
    for choice, expected in zip(answer["choices"], offline_scores(llm, prompts), strict=True):
        assert choice["logprobs"]["token_logprobs"] == [None, *[value for value, _ in expected]]
    assert answer["usage"]["completion_tokens"] == 0


def test_an_answer_that_ends_at_once_has_its_entry_too(thinker: Server) -> None:
    """The end-of-sequence token is in no text, but lm-eval cuts the last entry off whatever it is."""
    info = thinker.http.get("/tokenizer_info").json()
    (end,) = ids_of(thinker, info["eos_token"])
    prompt = ids_of(thinker, TEXTS[0])
    body = SCORING | says(thinker, [end]) | {"ignore_eos": False, "prompt": [prompt]}
    (choice,) = thinker.post("/v1/completions", **body).json()["choices"]
    assert choice["text"] == thinker.post("/detokenize", tokens=prompt).json()["prompt"]
    assert choice["finish_reason"] == "stop"
    scores_of(choice, len(prompt))


def test_generate_until(server: Server, llm: LLM) -> None:
    """Token ids and several stops, the end-of-sequence token's spelling among them."""
    info = server.http.get("/tokenizer_info").json()
    prompts = [ids_of(server, text) for text in TEXTS]
    stop = ["e", "\n\n", info["eos_token"]]
    params = SamplingParams(temperature=0, max_tokens=24, stop=stop)
    expected = llm.generate([{"prompt_token_ids": ids} for ids in prompts], params, use_tqdm=False)
    answer = server.post(
        "/v1/completions", model="tiny", prompt=prompts, max_tokens=24, temperature=0, stop=stop, seed=1234
    ).json()
    texts = {choice["index"]: choice["text"] for choice in answer["choices"]}
    assert texts == {number: output.outputs[0].text for number, output in enumerate(expected)}


def test_the_tokenizer_s_own_tokens_and_template(server: Server, llm: LLM) -> None:
    tokenizer = llm.get_tokenizer()
    assert tokenizer is not None
    assert server.http.get("/tokenizer_info").json() == {
        "bos_token": tokenizer.bos_token,
        "eos_token": tokenizer.eos_token,
        "unk_token": tokenizer.unk_token,
        "pad_token": tokenizer.pad_token,
        "chat_template": tokenizer.chat_template,
        "vocab_size": tokenizer.vocab_size,
        "model_max_length": ENDLESS_CONTEXT,
    }


def test_a_template_of_the_flags_is_the_one_that_is_shown(thinker: Server) -> None:
    assert "<think>" in thinker.http.get("/tokenizer_info").json()["chat_template"]
