"""fathom chat --base-url: the same conversation, with a server's model."""

from __future__ import annotations

import io
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openai
import pytest

from fathom.entrypoints.cli.main import main
from tests.server.conftest import POOL
from tests.server.processes import Server

HELLO = "Ask away. Ctrl-C stops an answer, Ctrl-D ends.\n"
CUT = "[cut off by --max-tokens or the end of the context]\n"
QUESTIONS = ["Tiny models", "and more of them"]
SAMPLING = {"temperature": 0.0, "max_tokens": 8}


@pytest.fixture
def chat(server: Server, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> Callable[..., tuple[int, str, str]]:
    """chat(lines, flag, ...): the exit status, and what was printed."""

    def run(lines: list[str], *flags: str, url: str = server.url) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "stdin", io.StringIO("\n".join(lines)))
        capsys.readouterr()
        status = main(["chat", "--base-url", url, "--temperature=0", "--max-tokens=8", *flags])
        return (status, *capsys.readouterr())

    return run


def test_turns_are_remembered(chat: Any, client: openai.OpenAI) -> None:
    messages: list[Any] = [{"role": "system", "content": "be kind"}]
    wanted = ""
    for question in QUESTIONS:
        messages.append({"role": "user", "content": question})
        answer = client.chat.completions.create(model="tiny", messages=messages, **SAMPLING).choices[0].message
        messages.append({"role": "assistant", "content": answer.content})
        wanted += f"{answer.content}\n"
    assert chat([QUESTIONS[0], "", QUESTIONS[1]], "--system", "be kind") == (0, wanted, f"{HELLO}{CUT}{CUT}\n")


class Interrupting(io.StringIO):
    """A terminal at which Ctrl-C is pressed once: as soon as something stands there."""

    printed_first = ""

    def write(self, text: str) -> int:
        written = super().write(text)
        if text and not self.printed_first:
            self.printed_first = text
            signal.raise_signal(signal.SIGINT)
        return written


@pytest.mark.parametrize("is_remote", [True, False])
def test_of_an_answer_that_is_stopped_is_remembered_what_was_said(
    server: Server,
    client: openai.OpenAI,
    tiny_chat_model: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    is_remote: bool,
) -> None:
    local = [str(tiny_chat_model), "--no-multiprocess", "--num-threads=1", "--no-show-progress", POOL]
    where = ["--base-url", server.url] if is_remote else local
    terminal = Interrupting()
    monkeypatch.setattr(sys, "stdin", io.StringIO("\n".join(QUESTIONS)))
    monkeypatch.setattr(sys, "stdout", terminal)
    assert main(["chat", *where, "--temperature=0", "--max-tokens=8"]) == 0
    said = terminal.printed_first
    asked: list[Any] = [{"role": "user", "content": QUESTIONS[0]}, {"role": "assistant", "content": said}]
    asked.append({"role": "user", "content": QUESTIONS[1]})
    answer = client.chat.completions.create(model="tiny", messages=asked, **SAMPLING).choices[0].message.content
    assert terminal.getvalue() == f"{said}\n{answer}\n"
    assert capsys.readouterr().err == f"{HELLO}[stopped]\n{CUT}\n"


def test_a_question_that_is_refused_does_not_end_the_chat(chat: Any, thinker: Server) -> None:
    status, out, err = chat(["?!" * 5000, *QUESTIONS], url=thinker.url)
    assert (status, out) == chat(QUESTIONS, url=thinker.url)[:2]
    assert err.startswith(f"{HELLO}fathom: ")
    assert "4096" in err


def test_a_server_that_is_not_there(chat: Any) -> None:
    status, out, err = chat(QUESTIONS, url="http://127.0.0.1:1")
    assert (status, out, err.count("\n")) == (1, "", 1)
    assert err.startswith("fathom: no answer from http://127.0.0.1:1: ")
    status, out, err = chat(QUESTIONS, "--model=some", url="http://127.0.0.1:1")
    assert (status, out) == (0, "")
    assert err.count("fathom: no answer from") == 2


def test_a_key_is_needed(chat: Any, guarded: Server) -> None:
    status, out, err = chat(QUESTIONS, url=guarded.url)
    assert (status, out) == (1, "")
    assert f"fathom: {guarded.url}/v1/models answers 401: " in err
    status, out, _ = chat(QUESTIONS, "--api-key=one", url=guarded.url)
    assert (status, out.count("\n") >= 2) == (0, True)
