"""LLM.chat: conversations through the model's template. What templates themselves may do is tests/frontend's."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fathom import LLM, SamplingParams
from fathom.errors import ContextLengthError, ValidationError
from tests.entrypoints.conftest import make_llm

TEMPLATE = (
    "<s>{% if tools %}[{{ tools[0]['function']['name'] }}]{% endif %}"
    "{% for message in messages %}"
    "{% if message['role'] == 'alien' %}{{ raise_exception('no aliens') }}{% endif %}"
    "{{ message['role'][0] }}:{{ message['content'] }}{% if not loop.last or add_generation_prompt %}|{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}a{{ mark }}:{% endif %}"
)
GREEDY = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True)
HELLO = [{"role": "user", "content": "hello"}]
TOOL = {"type": "function", "function": {"name": "look", "parameters": {}}}


@pytest.fixture(scope="module")
def chat_llm(tiny: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    folder = tmp_path_factory.mktemp("chat") / "model"
    shutil.copytree(tiny("llama-gqa"), folder)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(config | {"chat_template": TEMPLATE}))
    with make_llm(folder) as made:
        yield made


def prompts(llm: LLM, messages: Any, **options: Any) -> list[str]:
    """The prompt texts of a chat; their tokens must be the text's own, with nothing added."""
    outputs = llm.chat(messages, GREEDY, use_tqdm=False, **options)
    tokenizer = llm.get_tokenizer()
    for output in outputs:
        assert output.prompt_token_ids == tokenizer.encode(output.prompt, add_special_tokens=False)
        assert len(output.outputs[0].token_ids) == 4
    return [output.prompt for output in outputs]


def test_one_conversation_and_several(chat_llm: LLM) -> None:
    longer = [*HELLO, {"role": "assistant", "content": "yes"}, {"role": "user", "content": "go"}]
    assert prompts(chat_llm, HELLO) == ["<s>u:hello|a:"]
    assert prompts(chat_llm, tuple(HELLO)) == ["<s>u:hello|a:"]
    assert prompts(chat_llm, [HELLO]) == ["<s>u:hello|a:"]
    assert prompts(chat_llm, [longer, HELLO]) == ["<s>u:hello|a:yes|u:go|a:", "<s>u:hello|a:"]


def test_special_tokens_are_written_once(chat_llm: LLM) -> None:
    (output,) = chat_llm.chat(HELLO, GREEDY, use_tqdm=False)
    assert output.prompt_token_ids.count(0) == 1


def test_options_of_the_template(chat_llm: LLM) -> None:
    assert prompts(chat_llm, HELLO, add_generation_prompt=False) == ["<s>u:hello"]
    assert prompts(chat_llm, HELLO, tools=[TOOL]) == ["<s>[look]u:hello|a:"]
    assert prompts(chat_llm, HELLO, chat_template_kwargs={"mark": "!"}) == ["<s>u:hello|a!:"]
    assert prompts(chat_llm, HELLO, chat_template="{{ messages[0].content }}.") == ["hello."]


def test_the_final_message_is_continued(chat_llm: LLM) -> None:
    begun = [*HELLO, {"role": "assistant", "content": "The sea"}]
    options = {"continue_final_message": True, "add_generation_prompt": False}
    assert prompts(chat_llm, begun, **options) == ["<s>u:hello|a:The sea"]
    with pytest.raises(ValidationError, match="Pass add_generation_prompt=False"):
        chat_llm.chat(begun, GREEDY, use_tqdm=False, continue_final_message=True)


def test_one_set_of_parameters_for_each_conversation(chat_llm: LLM) -> None:
    params = [SamplingParams(temperature=0.0, max_tokens=count, ignore_eos=True) for count in (2, 5)]
    outputs = chat_llm.chat([HELLO, HELLO], params, use_tqdm=False)
    assert [len(output.outputs[0].token_ids) for output in outputs] == [2, 5]
    with pytest.raises(ValidationError, match="2 entries for 1 prompts"):
        chat_llm.chat(HELLO, params, use_tqdm=False)


def test_the_answer_is_that_of_the_rendered_prompt(chat_llm: LLM) -> None:
    (chat,) = chat_llm.chat(HELLO, GREEDY, use_tqdm=False)
    ids = chat_llm.get_tokenizer().encode("<s>u:hello|a:", add_special_tokens=False)
    assert chat_llm.generate([ids], GREEDY, use_tqdm=False)[0].outputs[0].text == chat.outputs[0].text


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([], "messages is empty"),
        ([[]], "messages is empty"),
        ([HELLO, []], "messages is empty"),
        ("hello", "messages must be a list of messages, got str"),
        (None, "messages must be a list of messages, got NoneType"),
        (HELLO[0], "messages must be a list of messages, got dict"),
        (["hello"], "messages[0] must be a dict with a role"),
        ([{"content": "x"}], "messages[0] must be a dict with a role"),
        ([*HELLO, HELLO], "messages[1] must be a dict with a role"),
        ([{"role": "user", "content": 5}], "messages[0].content must be text or a list of text parts, got int"),
        ([{"role": "user", "content": "\ud83d"}], "messages[0].content holds a lone surrogate U+D83D"),
        ([{"role": "alien", "content": "x"}], "no aliens"),
    ],
    ids=repr,
)
def test_what_is_no_conversation(chat_llm: LLM, messages: Any, words: str) -> None:
    with pytest.raises(ValidationError) as caught:
        chat_llm.chat(messages, GREEDY, use_tqdm=False)
    assert words in str(caught.value)
    assert chat_llm.get_stats()["num_waiting"] == 0


def test_a_conversation_that_is_too_long(chat_llm: LLM) -> None:
    with pytest.raises(ContextLengthError, match="the context holds 128"):
        chat_llm.chat([{"role": "user", "content": "?!" * 200}], GREEDY, use_tqdm=False)
    assert prompts(chat_llm, HELLO) == ["<s>u:hello|a:"]


def test_without_a_template(llm: LLM) -> None:
    with pytest.raises(ValidationError, match="has no chat template"):
        llm.chat(HELLO, GREEDY, use_tqdm=False)
    assert prompts(llm, HELLO, chat_template="{{ messages[0].content }}") == ["hello"]


def test_the_caller_s_messages_are_left_as_they_were(chat_llm: LLM) -> None:
    messages = [{"role": "user", "content": "hello", "name": None}]
    prompts(chat_llm, messages)
    assert messages == [{"role": "user", "content": "hello", "name": None}]
