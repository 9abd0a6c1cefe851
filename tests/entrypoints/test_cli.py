"""The fathom command: what it prints where, its exit status, and one line instead of a traceback."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import fathom
from fathom.config import iter_options
from fathom.entrypoints.cli.main import COMMANDS, main

PROMPT = "Tiny models"
QUIET = ("--no-multiprocess", "--num-threads", "1", "--max-model-len", "128", "--no-show-progress")


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FATHOM_LOGGING_LEVEL", "WARNING")


@pytest.fixture
def command(tiny: Callable[[str], Path], capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """command("generate", ...): run it here on the tiny model; (exit status, stdout, stderr)."""

    def run(name: str, *arguments: str) -> tuple[int, str, str]:
        options = [*QUIET, "--model", str(tiny("llama-gqa"))] if name in ("generate", "chat") else []
        try:
            status = main([name, *options, *arguments])
        except SystemExit as ended:
            status = int(ended.code or 0)
        return (status, *capsys.readouterr())

    return run


def feed(monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content), encoding="utf-8"))


# ---------------------------------------------------------------- generate


def test_generate_prints_the_answer_and_what_it_cost(command: Any, llm: fathom.LLM) -> None:
    status, out, err = command("generate", PROMPT, "--temperature", "0", "--max-tokens", "6")
    params = fathom.SamplingParams(temperature=0.0, max_tokens=6)
    (output,) = llm.generate(PROMPT, params, use_tqdm=False)
    assert (status, out) == (0, output.outputs[0].text + "\n")
    assert err.startswith(f"[{len(output.prompt_token_ids)} tokens in, 6 out (length); ready in ")
    assert err.count("\n") == 1


def test_generate_streams(tiny: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    pieces: list[str] = []
    monkeypatch.setattr(sys.stdout, "write", lambda text: pieces.append(text) or len(text))
    arguments = [*QUIET, "--model", str(tiny("llama-gqa")), "--temperature", "0", "--max-tokens", "12"]
    assert main(["generate", PROMPT, *arguments]) == 0
    assert len([piece for piece in pieces if piece]) > 5
    assert pieces[-1] == "\n"


def test_generate_reads_standard_input(command: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    flags = ("--temperature", "0", "--max-tokens", "4")
    _, expected, _ = command("generate", PROMPT, *flags)
    feed(monkeypatch, PROMPT.encode())
    assert command("generate", "-", *flags)[:2] == (0, expected)
    feed(monkeypatch, b"\xff\xfe")
    status, _, err = command("generate", "-", *flags)
    assert (status, err.count("\n")) == (1, 1)
    assert "surrogate" in err


def test_raw_leaves_the_template_out(command: Any, tiny: Callable[[str], Path]) -> None:
    flags = ("--temperature", "0", "--max-tokens", "4")
    assert command("generate", "--raw", PROMPT, *flags)[1] == command("generate", PROMPT, *flags)[1]
    status, _, err = command("generate", "--raw", "")
    assert (status, err) == (1, "fathom: the prompt is empty. It needs at least one token.\n")


def test_sampling_flags(command: Any) -> None:
    free = ("generate", PROMPT, "--temperature", "1", "--max-tokens", "8")
    seeded = [command(*free, "--sampling-seed", seed)[1] for seed in ("1", "1", "2")]
    assert seeded[0] == seeded[1] != seeded[2]
    engine = [command(*free, "--seed", seed)[1] for seed in ("1", "1", "2")]
    assert engine[0] == engine[1] != engine[2]
    assert len({command(*free)[1] for _ in range(3)}) == 3
    greedy = command(*free[:2], "--temperature", "0", "--max-tokens", "8")[1]
    assert command(*free, "--top-k", "1")[1] == greedy
    assert command(*free, "--min-p", "1")[1] == greedy
    assert command(*free, "--top-p", "0.000001")[1] == greedy
    stop = greedy[2:4]
    assert command(*free, "--top-k", "1", "--stop", stop, "--stop", "zzz")[1] == greedy.partition(stop)[0] + "\n"


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        ((), 2, "fathom generate: the following arguments are required: prompt; see `fathom generate --help`"),
        (
            ("a", "--tempature", "1"),
            2,
            "fathom generate: unknown argument --tempature (did you mean --temperature?); see `fathom generate --help`",
        ),
        (("a", "--temp", "1"), 2, "fathom generate: unknown argument --temp; see `fathom generate --help`"),
        (("a", "b"), 2, "fathom generate: unknown argument b; see `fathom generate --help`"),
        (("a", "--dtype", "fp8"), 2, "fathom generate: argument --dtype: invalid choice: 'fp8'"),
        (("a", "--max-tokens", "x"), 2, "fathom generate: argument --max-tokens: invalid int value: 'x'"),
        (("a", "--max-tokens", "0"), 1, "fathom: max_tokens must be at least 1, got 0."),
        (("a", "--temperature", "-1"), 1, "fathom: temperature must be in [0, 2], got -1.0."),
        (("a", "--model", "nonsense", "--top-p", "7"), 1, "fathom: top_p must be in (0, 1], got 7.0."),
        (("a", "--temperature", "nan"), 1, "fathom: temperature must be a finite number, got nan."),
        (("a", "--stop", ""), 1, "fathom: stop must hold non-empty strings, got ''."),
        (("a", "--block-size", "0"), 1, "fathom: block_size must be at least 1, got 0."),
        (("a", "--max-model-len", "9999"), 1, "fathom: max_model_len=9999 is more than the model's context length"),
        (("a", "--logits-processors", "word"), 1, "fathom: The logits processor 'word' is no \"module:Class\"."),
        (("a" * 5000,), 1, "fathom: the prompt has "),
        (("\udcff",), 1, "fathom: prompt holds a lone surrogate U+DCFF at character 0."),
    ],
    ids=str,
)
def test_a_mistake_is_one_line(command: Any, arguments: tuple[str, ...], status: int, message: str) -> None:
    found, out, err = command("generate", *arguments)
    assert (found, out) == (status, "")
    assert err.startswith(message)
    assert err.count("\n") == 1


def test_an_unknown_model_lists_what_was_tried(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "a", "--model", "smolm2-135m", "--no-multiprocess"]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("fathom: The model 'smolm2-135m' was not found. Tried: local folder: ")
    assert err.rstrip().endswith("Did you mean 'smollm2-135m'?")


# ---------------------------------------------------------------- chat


def test_chat_with_piped_input(command: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    feed(monkeypatch, f"{PROMPT}\n\n   \n{PROMPT}".encode())
    status, out, err = command("chat", "--temperature", "0", "--max-tokens", "4")
    first, second, end = out.split("\n")
    assert (status, end) == (0, "")
    assert first == second != ""
    cut = "[cut off by --max-tokens or the end of the context]\n"
    assert err == f"Ask away. Ctrl-C stops an answer, Ctrl-D ends.\n{cut}{cut}\n"


def test_a_question_that_fails_does_not_end_the_chat(command: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    feed(monkeypatch, f"{'?!' * 300}\n{PROMPT}\n".encode())
    status, out, err = command("chat", "--temperature", "0", "--max-tokens", "4")
    assert status == 0
    assert out.count("\n") == 1
    assert "fathom: the prompt has" in err


def test_a_system_message_needs_a_template(command: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    feed(monkeypatch, b"hello\n")
    _, out, err = command("chat", "--system", "be kind")
    assert out == ""
    assert "fathom: The model has no chat template." in err


# ---------------------------------------------------------------- doctor, pull, help


def test_doctor_shows_everything(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tiny: Callable[[str], Path]
) -> None:
    monkeypatch.setenv("FATHOM_CACHE", str(tmp_path))
    folder = str(tiny("gemma3"))
    capsys.readouterr()
    assert main(["doctor", folder]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    for words in (
        f"fathom                 {fathom.__version__}",
        "python                 3.",
        "torch                  2.",
        "cores                  ",
        "CPU features           ",
        " GiB available",
        "device                 cpu",
        "smollm2-135m           not here; `fathom pull smollm2-135m` fetches it",
        f"cache                  {tmp_path}",
        f"choices for {folder}",
        "architecture           Gemma3ForCausalLM, 3 layers",
        "max_model_len=256      the model's own context length",
        "dtype=float32          ",
        "num_threads=",
    ):
        assert words in out
    assert "MISSING" not in out
    assert main(["doctor", "gemma3-270m"]) == 0  # and nothing is fetched
    assert "choices for gemma3-270m\n  unknown                not here" in capsys.readouterr().out
    assert not any(tmp_path.iterdir())
    assert main(["doctor", "nonsense"]) == 1
    assert "error                  The model 'nonsense' was not found" in capsys.readouterr().out


def test_pull_list(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FATHOM_CACHE", str(tmp_path))
    assert main(["pull", "--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["smollm2-135m", "qwen2.5-coder-0.5b", "gemma3-270m"]
    assert not any("(cached)" in line for line in lines)


def test_help_has_a_flag_for_every_option(command: Any) -> None:
    _, out, _ = command("generate", "--help")
    for name, kind, _, _ in iter_options():
        assert f"--{name.replace('_', '-')}" in out
        assert kind is not bool or f"--no-{name.replace('_', '-')}" in out
    _, out, _ = command("--help")
    assert all(name in out for name in COMMANDS)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "fathom: the following arguments are required: COMMAND; see `fathom --help`\n"),
        (["fly"], "fathom: argument COMMAND: invalid choice: 'fly'"),
        (["--fly"], "fathom: "),
    ],
    ids=str,
)
def test_no_such_command(capsys: pytest.CaptureFixture[str], arguments: list[str], message: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith(message)


# ---------------------------------------------------------------- as real processes


def run(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(arguments, capture_output=True, text=True, timeout=120, check=False, **options)


@pytest.mark.parametrize("way", [["-m", "fathom"], ["-m", "fathom.entrypoints.cli.main"]], ids=" ".join)
def test_version(way: list[str]) -> None:
    ended = run(sys.executable, *way, "--version")
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, f"fathom {fathom.__version__}\n", "")


def test_generate_in_a_process_of_its_own(tiny: Callable[[str], Path]) -> None:
    arguments = ("--model", str(tiny("llama-gqa")), "--temperature", "0", "--max-tokens", "4", "--num-threads", "1")
    ended = run(sys.executable, "-m", "fathom", "generate", PROMPT, *arguments)
    assert ended.returncode == 0, ended.stderr
    assert len(ended.stdout) > 1
    assert "4 out (length)" in ended.stderr
    assert "INFO" not in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_reader_that_leaves_early_is_no_error(tiny: Callable[[str], Path]) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    arguments = ("--model", str(tiny("llama-gqa")), "--max-tokens", "40", *QUIET)
    with os.fdopen(write_end, "w") as closed_pipe:
        ended = subprocess.run(
            [sys.executable, "-m", "fathom", "generate", PROMPT, *arguments],
            stdout=closed_pipe,
            stderr=subprocess.PIPE,
            text=True,
            timeout=120,
            check=False,
        )
    assert (ended.returncode, ended.stderr) == (141, "")


# ---------------------------------------------------------------- flags of vLLM's, and words that are nearly right


def test_flags_of_vllm_that_change_nothing_are_accepted(command: Any) -> None:
    flags = ("--trust-remote-code", "--swap-space", "4", "--dtype", "float", "--task", "generate", "--no-enable-lora")
    plain = command("generate", PROMPT, "--temperature", "0", "--max-tokens", "6")
    assert command("generate", PROMPT, "--temperature", "0", "--max-tokens", "6", *flags)[:2] == plain[:2]


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (("--enable-lora",), "fathom: enable_lora=True is not supported. Leave it out, or at False or None."),
        (("--data-parallel-size", "2"), "fathom: data_parallel_size=2 is not supported. Start several engines"),
        (
            ("--max-model-len", "many"),
            "fathom generate: argument --max-model-len: invalid int value: 'many' (write 8192, ",
        ),
        (("--max-model-len", "-5"), "fathom: max_model_len must be at least 2, got -5."),
        (("--nothing-like-it",), "fathom generate: unknown argument --nothing-like-it; see `fathom generate --help`"),
    ],
)
def test_other_flags_are_refused_in_one_line(command: Any, flags: tuple[str, ...], problem: str) -> None:
    status, out, err = command("generate", PROMPT, *flags)
    assert status in (1, 2)
    assert out == ""
    assert err.startswith(problem)
    assert err.count("\n") == 1


def test_lengths_may_have_letters(command: Any) -> None:
    _, _, err = command("generate", PROMPT, "--max-model-len", "1M")
    assert err.startswith("fathom: max_model_len=1048576 is more than the model's context length")


def test_a_conversation_names_its_model_as_a_server_does(command: Any) -> None:
    status, _, err = command("chat", "no such model", "--system-prompt", "You are brief.")
    assert status == 1
    assert err.splitlines()[-1].startswith("fathom: The model 'no such model' was not found. Tried: ")


def test_a_model_that_is_not_found_is_one_line_that_ends_with_the_way_out(command: Any) -> None:
    status, _, err = command("pull", "smolm2-135m")
    assert (status, err.count("\n")) == (1, 1)
    assert err.endswith(" Did you mean 'smollm2-135m'?\n")


def test_a_folder_that_holds_gguf_files_names_one(tmp_path: Path, command: Any) -> None:
    (tmp_path / "some.gguf").touch()
    _, _, err = command("pull", str(tmp_path))
    assert f"{tmp_path} has no config.json, but {tmp_path}/some.gguf, which can be named itself" in err


@pytest.mark.parametrize("name", ["./no-such.gguf", "models/no-such.gguf", "../no-such"])
def test_a_path_that_leads_nowhere_is_not_looked_for_elsewhere(name: str, command: Any) -> None:
    _, _, err = command("pull", name)
    assert "Hugging Face: the name is not of the form owner/repository." in err


def test_ctrl_c_while_a_command_is_imported_is_no_traceback(monkeypatch: pytest.MonkeyPatch, command: Any) -> None:
    def interrupted(name: str) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr("importlib.import_module", interrupted)
    assert command("serve") == (130, "", "")
