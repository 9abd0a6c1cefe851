"""Servers that tests share. Each is started once; tests that end a server start their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import openai
import pytest

from fathom.weights.catalogue import CATALOGUE
from fathom.weights.download import pull
from tests.conftest import ENDLESS_CONTEXT
from tests.server.forced import FAVOURED, FORCED
from tests.server.processes import Server
from tests.stand_in import write_stand_in

POOL = f"--kv-cache-memory-bytes={2**28}"
"""More than one endless answer takes; what else there is would be divided into a million blocks."""


@pytest.fixture(scope="session")
def tiny_chat_model(tiny: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama with a chat template and, as `endless`, a context that no answer gets through."""
    folder = tmp_path_factory.mktemp("stand-in")
    write_stand_in(tiny("llama-gqa"), folder, ENDLESS_CONTEXT)
    return next(folder.iterdir())


@pytest.fixture(scope="session")
def server(tiny_chat_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A tiny model, served as it comes, as "tiny"."""
    flags = ["--served-model-name=tiny", "--seed=0", POOL]
    started = Server(tiny_chat_model, tmp_path_factory.mktemp("server"), *flags)
    yield started
    assert started.stop() == 0


@pytest.fixture(scope="session")
def client(server: Server) -> openai.OpenAI:
    return server.client()


TOOL_TEMPLATE = (
    "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
    "{% if tools %}Call one of {{ tools | tojson }} within <tool_call>.\n{% endif %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


@pytest.fixture(scope="session")
def guarded(tiny_chat_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The tiny model with keys, admin routes, a template for tools and a queue of two by priority behind one place."""
    flags = ["--api-key=one", "--enable-admin", "--max-queue=2", "--max-num-seqs=1", "--max-queue-tokens=3000"]
    flags += ["--max-num-batched-tokens=2048", "--scheduling-policy=priority", POOL]
    flags += ["--allowed-origins=https://example.com", "--engine-stall-timeout=0.5", "--max-body-bytes=100000"]
    tmp = tmp_path_factory.mktemp("guarded")
    flags += [f"--chat-template={TOOL_TEMPLATE}", "--trust-request-chat-template", f"--profile-folder={tmp}/profile"]
    flags += [f"--logits-processors={FORCED}", f"--logits-processors={FAVOURED}"]
    started = Server(tiny_chat_model, tmp, *flags, env={"FATHOM_API_KEY": "two"})
    started.http.headers["Authorization"] = "Bearer one"
    yield started
    assert started.stop() == 0


@pytest.fixture(scope="session")
def smollm2(smollm2_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The default model; it says what a request tells it to (see forced.py)."""
    flags = ["--served-model-name=smollm2", f"--logits-processors={FORCED}"]
    started = Server(smollm2_path, tmp_path_factory.mktemp("smollm2"), *flags)
    yield started
    assert started.stop() == 0


@pytest.fixture(scope="session")
def coder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Qwen2.5-Coder, which calls tools, as "coder"."""
    path = pull(CATALOGUE["qwen2.5-coder-0.5b"], show_progress=False)
    started = Server(path, tmp_path_factory.mktemp("coder"), "--served-model-name=coder", "--max-model-len=4096")
    yield started
    assert started.stop() == 0


THINKING_TEMPLATE = (
    "{% if tools %}{{ tools | tojson }} <tool_call>{% endif %}"
    "{% for message in messages %}{{ message.role }}: {{ message.reasoning_content }}|{{ message.content }}"
    "{% for call in message.tool_calls or [] %} call {{ call.function.name }} {{ call.id }}{% endfor %}"
    "{% if message.role == 'tool' %} {{ message.name }} {{ message.tool_call_id }}{% endif %}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: "
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% else %}<think>\n{% endif %}"
    "{% endif %}"
)
"""Opens a reasoning block unless it is told not to, and writes calls as Hermes does."""


@pytest.fixture(scope="session")
def thinker(tiny_chat_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The tiny model with a template that opens reasoning, and 4,096 tokens of context, as "tiny"."""
    flags = [
        "--served-model-name=tiny",
        "--max-model-len=4096",
        f"--chat-template={THINKING_TEMPLATE}",
        f"--logits-processors={FORCED}",
    ]
    started = Server(tiny_chat_model, tmp_path_factory.mktemp("thinker"), *flags)
    yield started
    assert started.stop() == 0
