"""fathom run-batch: a row out for each row in, whatever the row; going on after a break; bounded memory."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import fathom
from fathom.entrypoints.batch.files import OutputFile, check_paths, read_lines
from fathom.entrypoints.batch.run import BatchRun, Tally
from fathom.entrypoints.cli.main import main
from fathom.errors import ConfigError, EngineDeadError
from tests.client.processes import PATIENCE_S, comes_true
from tests.stand_in import write_stand_in

FLAGS = ("--num-threads", "1", "--max-model-len", "64", "--max-num-seqs", "2", "--no-show-progress")


def chat(custom_id: str, text: str = "Hi", **body: Any) -> dict[str, Any]:
    body = {"messages": [{"role": "user", "content": text}], "max_tokens": 3, "temperature": 0, **body}
    return {"custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions", "body": body}


def completion(custom_id: str, prompt: Any = "Tiny models", **body: Any) -> dict[str, Any]:
    body = {"prompt": prompt, "max_tokens": 3, "temperature": 0, **body}
    return {"custom_id": custom_id, "url": "/v1/completions", "body": body}


ROWS: list[tuple[Any, int | None, str | None]] = [
    # (row, status of the response, code of the error)
    (completion("plain"), 200, None),
    (chat("chat"), 200, None),
    (completion("several", ["A", "BB"], n=2, temperature=1, seed=3), 200, None),
    (completion("ids", [1, 2, 3]), 200, None),
    (b'{"custom_id": "cut', None, "invalid_json"),
    ({"custom_id": "embed", "url": "/v1/embeddings", "body": {"input": "x"}}, 501, "not_supported_by_model"),
    (completion("long", "word " * 200), 400, "context_length_exceeded"),
    (completion("plain", "again"), None, "duplicate_custom_id"),
    (completion("field", what=1), 400, "unknown_parameter"),
    (completion("value", temperature=-1), 400, "invalid_value"),
    (completion("model", model="other"), 404, "model_not_found"),
    (completion("stream", stream=True), None, None),
    ({**completion("url"), "url": "/health"}, None, "unknown_url"),
    ({**completion("get"), "method": "GET"}, None, None),
    ({"custom_id": "bodyless", "url": "/v1/completions"}, None, "missing_required_parameter"),
    ({"url": "/v1/completions", "body": {}}, None, "missing_required_parameter"),
    ({"custom_id": 7, "url": "/v1/completions", "body": {}}, None, "invalid_type"),
    (b"[]", None, "invalid_type"),
    (b'{"custom_id": "\xff"}', None, "invalid_json"),
    (b'{"body": ' + b"[" * 5000, None, "invalid_json"),
    (chat("surrogate", "x \ud83d y"), None, "invalid_json"),
    (completion("last"), 200, None),
]


def write_rows(path: Path, rows: list[Any]) -> Path:
    lines = [row if isinstance(row, bytes) else json.dumps(row).encode() for row in rows]
    path.write_bytes(b"\n".join(lines) + b"\n")
    return path


def answers_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture(scope="module")
def model(tiny: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stand-in")
    write_stand_in(tiny("llama-gqa"), folder)
    return next(folder.iterdir())


@pytest.fixture(scope="module")
def answered(model: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """(input, output) of a run over ROWS."""
    folder = tmp_path_factory.mktemp("batch")
    source = write_rows(folder / "in.jsonl", [row for row, _, _ in ROWS])
    source.write_bytes(b"\xef\xbb\xbf" + source.read_bytes().replace(b"\n", b"\r\n\n", 2))
    target = folder / "out.jsonl"
    assert main(["run-batch", str(model), "-i", str(source), "-o", str(target), *FLAGS]) == 0
    return source, target


def test_each_row_has_its_answer_or_its_error(answered: tuple[Path, Path]) -> None:
    answers = answers_of(answered[1])
    assert len(answers) == len(ROWS)
    left = list(answers)
    for row, status, code in ROWS:
        given = row.get("custom_id") if isinstance(row, dict) else None
        custom_id = given if isinstance(given, str) else None
        (found, *_) = [
            answer
            for answer in left
            if answer["custom_id"] == custom_id
            and (answer["response"] or {}).get("status_code") == status
            and (code is None or answer["error"]["code"] == code)
        ]
        left.remove(found)
        assert (found["error"] is None) == (status == 200), found
        if status is not None and status != 200:
            assert found["response"]["body"] == {"error": found["error"]}
    assert len({answer["id"] for answer in answers}) == len(answers)


def test_answers_are_the_engine_s(answered: tuple[Path, Path], model: Path) -> None:
    bodies = {
        row["custom_id"]: row["response"]["body"]
        for row in answers_of(answered[1])
        if (row["response"] or {}).get("status_code") == 200
    }
    llm = fathom.LLM(str(model), num_threads=1, max_model_len=64, multiprocess=False)
    params = fathom.SamplingParams(temperature=0, max_tokens=3)
    (plain,) = llm.generate("Tiny models", params, use_tqdm=False)
    (talk,) = llm.chat([{"role": "user", "content": "Hi"}], params, use_tqdm=False)
    llm.shutdown()
    assert bodies["plain"]["choices"][0]["text"] == bodies["last"]["choices"][0]["text"] == plain.outputs[0].text
    assert bodies["chat"]["choices"][0]["message"]["content"] == talk.outputs[0].text
    assert [choice["index"] for choice in bodies["several"]["choices"]] == [0, 1, 2, 3]


def test_a_run_that_broke_off_goes_on(
    answered: tuple[Path, Path], model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, whole = answered
    lines = whole.read_bytes().splitlines(keepends=True)
    # Killed while it wrote: the duplicate's error and a few answers are there, the original's is not.
    kept = [line for line in lines if b'"plain"' not in line or b"duplicate" in line][:9]
    (tmp_path / "out.jsonl").write_bytes(b"".join(kept) + lines[-1][:20])
    arguments = ["run-batch", str(model), "-i", str(source), "-o", str(tmp_path / "out.jsonl"), *FLAGS, "--strict"]
    assert main(arguments) == 1
    assert "9 rows already; going on" in capsys.readouterr().err
    after = answers_of(tmp_path / "out.jsonl")
    assert (tmp_path / "out.jsonl").read_bytes().startswith(b"".join(kept))
    assert sorted(map(essence, after)) == sorted(map(essence, answers_of(whole)))


def essence(row: dict[str, Any]) -> str:
    body = (row["response"] or {}).get("body", {})
    return json.dumps([row["custom_id"], row["error"], body.get("choices"), body.get("usage")])


def test_an_interrupted_run_leaves_whole_lines_and_no_process(endless: Path, tmp_path: Path) -> None:
    rows = [completion(str(n), ignore_eos=True, max_tokens=40 if n < 20 else 10**9) for n in range(40)]
    source, target = write_rows(tmp_path / "in.jsonl", rows), tmp_path / "out.jsonl"
    arguments = ["run-batch", str(endless), "-i", str(source), "-o", str(target), "--num-threads=1"]
    arguments += ["--max-num-seqs=2", "--no-show-progress"]
    process = subprocess.Popen([sys.executable, "-m", "fathom", *arguments], stderr=subprocess.PIPE, text=True)
    try:
        assert comes_true(lambda: process.poll() is not None or (target.exists() and target.stat().st_size > 0))
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=PATIENCE_S)
    finally:
        process.kill()
    assert process.returncode == 130, err
    assert "Traceback" not in err
    assert 0 < len(answers_of(target)) <= 20


# ---------------------------------------------------------------- the runner, before an application of a few lines


class Echo:
    """Answers each row with its body's number, after a turn of the loop; counts who waits; dies when told."""

    def __init__(self, dies_at: int | None = None) -> None:
        self.waiting = 0
        self.most = 0
        self.asked = 0
        self._dies_at = dies_at

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body = json.loads((await receive())["body"])
        self.asked += 1
        self.waiting += 1
        self.most = max(self.most, self.waiting)
        await asyncio.sleep(0)
        self.waiting -= 1
        dead = self._dies_at is not None and self.asked >= self._dies_at
        error = {"message": "gone", "type": "t", "param": None, "code": "engine_dead"}
        usage = {"prompt_tokens": 2, "completion_tokens": 1}
        answer = {"error": error} if dead else {"number": body["number"], "usage": usage}
        await send({"type": "http.response.start", "status": 503 if dead else 200, "headers": []})
        await send({"type": "http.response.body", "body": json.dumps(answer).encode()})


def run_over(app: Any, source: Path, target: Path, *, in_flight: int = 8, longest: int = 10_000) -> Tally:
    with OutputFile(target) as output:
        batch = BatchRun(app, output, None, longest, lambda tally: None)
        asyncio.run(batch.run(source, in_flight))
        return batch.tally


def numbered(count: int, start: int = 0) -> list[dict[str, Any]]:
    return [{"custom_id": f"row {n}", "url": "/v1/completions", "body": {"number": n}} for n in range(start, count)]


def test_memory_and_rows_in_flight_are_bounded(tmp_path: Path) -> None:
    app, count = Echo(), 6_000
    source = write_rows(tmp_path / "in.jsonl", numbered(count))
    tracemalloc.start()
    tally = run_over(app, source, tmp_path / "out.jsonl")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert tally == Tally(answered=count, prompt_tokens=2 * count, completion_tokens=count)
    assert app.most == 8
    assert peak < 200 * count  # both files together have 360 bytes a row
    answers = {row["custom_id"]: row["response"]["body"]["number"] for row in answers_of(tmp_path / "out.jsonl")}
    assert answers == {f"row {n}": n for n in range(count)}
    again = run_over(app, source, tmp_path / "out.jsonl")
    assert (again, app.asked) == (Tally(skipped=count), count)


def test_a_dead_engine_ends_the_run_and_loses_no_row(tmp_path: Path) -> None:
    source = write_rows(tmp_path / "in.jsonl", numbered(100))
    with pytest.raises(EngineDeadError, match="run it again"):
        run_over(Echo(dies_at=50), source, tmp_path / "out.jsonl")
    assert 0 < len(answers_of(tmp_path / "out.jsonl")) < 100
    run_over(Echo(), source, tmp_path / "out.jsonl")
    assert sorted(row["response"]["body"]["number"] for row in answers_of(tmp_path / "out.jsonl")) == list(range(100))


def test_a_line_that_is_too_long_is_a_row_with_an_error(tmp_path: Path) -> None:
    rows = [*numbered(1), b"x" * 3_000_000, *numbered(2, start=1), b"y" * 20_000]
    source = write_rows(tmp_path / "in.jsonl", rows)
    assert [number for number, line in read_lines(source, 10_000) if line is None] == [2, 4]
    assert run_over(Echo(), source, tmp_path / "out.jsonl").failed == 2
    errors = [row["error"] for row in answers_of(tmp_path / "out.jsonl") if row["error"]]
    assert [error["code"] for error in errors] == ["body_too_large"] * 2
    assert "Line 2 is longer than 10000 bytes; --max-body-bytes" in errors[0]["message"]


# ---------------------------------------------------------------- files


@pytest.mark.parametrize(
    ("source", "target", "parameter"),
    [
        ("https://example.com/in.jsonl", "out.jsonl", "input_file"),
        ("in.jsonl", "s3://bucket/out.jsonl", "output_file"),
        ("missing.jsonl", "out.jsonl", "input_file"),
        ("in.jsonl", "in.jsonl", "output_file"),
        ("in.jsonl", "nowhere/out.jsonl", "output_file"),
        ("in.jsonl", "other.txt", "output_file"),
        ("in.jsonl", ".", "output_file"),
    ],
)
def test_files_that_will_not_do(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    source: str,
    target: str,
    parameter: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    write_rows(tmp_path / "in.jsonl", numbered(1))
    (tmp_path / "other.txt").write_text("my notes\n")
    with pytest.raises(ConfigError) as caught:
        OutputFile(check_paths(source, target)[1])
    assert caught.value.parameter == parameter
    assert main(["run-batch", "-i", source, "-o", target]) == 1
    err = capsys.readouterr().err
    assert (err.startswith(f"fathom: {parameter}"), err.count("\n")) == (True, 1)
    assert (tmp_path / "other.txt").read_text() == "my notes\n"


def test_a_full_disk_is_named(tmp_path: Path) -> None:
    if not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full here")
    source = write_rows(tmp_path / "in.jsonl", numbered(3))
    with OutputFile(tmp_path / "out.jsonl") as output:
        output._file.close()
        output._file = open("/dev/full", "wb")  # noqa: SIM115 - OutputFile closes it
        with pytest.raises(ConfigError, match="No space left"):
            asyncio.run(BatchRun(Echo(), output, None, 10_000, lambda tally: None).run(source, 2))
        output._file = open(os.devnull, "wb")  # noqa: SIM115
