"""fathom bench serve: what is sent and counted is exact, at Fathom's server and at others; times are only there."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from fathom.entrypoints.cli.bench.latencies import failures, latencies, meets, percentile, rates
from fathom.entrypoints.cli.bench.load import Answer, Pace
from fathom.entrypoints.cli.bench.workload import make_workload
from fathom.entrypoints.cli.main import main
from fathom.entrypoints.cli.openai_client import EventReader
from fathom.errors import RequestFailedError
from tests.client.processes import comes_true
from tests.models.tiny import VOCAB_SIZE
from tests.server.plain_server import PlainServer
from tests.server.processes import Server

SHAPE = ("--random-input-len=10", "--random-output-len=6", f"--vocab-size={VOCAB_SIZE}", "--no-show-progress")


@pytest.fixture
def bench(capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """bench("--base-url=...", ...): what it prints as JSON."""

    def run(*arguments: str, status: int = 0) -> Any:
        capsys.readouterr()
        assert main(["bench", "serve", *SHAPE, "--json", *arguments]) == status
        out, err = capsys.readouterr()
        assert err == ""
        return json.loads(out)

    return run


@pytest.fixture
def plain() -> Iterator[Callable[..., PlainServer]]:
    """plain(strict=True, ...): a server that is not Fathom."""
    started: list[PlainServer] = []

    def start(**options: Any) -> PlainServer:
        started.append(PlainServer(**options))
        return started[-1]

    yield start
    for server in started:
        server.close()


# ---------------------------------------------------------------- at Fathom's server


def test_the_server_counts_the_same(bench: Any, server: Server) -> None:
    before = server.metrics()
    load = ("--num-prompts=5", "--random-range-ratio=0.5", "--seed=3", "--max-concurrency", "1", "4")
    found = bench("--base-url", server.url, *load, "--goodput", "ttft:60000", "e2el:60000")
    assert found["engine"] == {
        "url": server.url,
        "model": "tiny",
        "endpoint": "/v1/completions",
        "prompts": "token ids",
        "ignore_eos": True,
    }
    shape = {"vocab_size": VOCAB_SIZE, "range_ratio": 0.5}
    rows = [make_workload(5, 10, 6, seed=3 + number, **shape) for number in (1, 2)]
    for row, workload, concurrency in zip(found["rows"], rows, (1, 4), strict=True):
        assert (row["rate"], row["concurrency"]) == (None, concurrency)
        assert (row["succeeded"], row["failed"]) == (5, 0)
        assert row["in tokens"] == workload.num_prompt_tokens
        assert row["out tokens"] == workload.num_output_tokens
        assert row["out tok/s"] * row["seconds"] == pytest.approx(workload.num_output_tokens)
        assert row["good requests/s"] == row["requests/s"] == pytest.approx(5 / row["seconds"])
    assert [(row["concurrency"], row["ms"]) for row in found["details"]] == [
        (concurrency, metric) for concurrency in (1, 4) for metric in ("ttft", "tpot", "itl", "e2el")
    ]
    assert all(0 <= row["p50"] <= row["p90"] <= row["p99"] <= row["most"] for row in found["details"])

    after = server.metrics()
    probe = make_workload(1, 10, 6, seed=3, **shape)  # two tokens to see what the server takes, then a warm-up
    prompt_tokens = sum(workload.num_prompt_tokens for workload in rows) + 2 * probe.num_prompt_tokens
    output_tokens = sum(workload.num_output_tokens for workload in rows) + probe.num_output_tokens + 2
    assert after["prompt_tokens_total"] - before["prompt_tokens_total"] == prompt_tokens
    assert after["generation_tokens_total"] - before["generation_tokens_total"] == output_tokens


def test_chats_are_asked_in_words(bench: Any, server: Server) -> None:
    found = bench("--base-url", f"{server.url}/v1/", "--endpoint=/v1/chat/completions", "--num-prompts=3")
    assert (found["engine"]["prompts"], found["engine"]["ignore_eos"]) == ("words", True)
    assert (found["rows"][0]["succeeded"], found["rows"][0]["out tokens"]) == (3, 18)
    assert not [note for note in found["notes"] if "as long as" in note]


def test_a_key_is_sent(bench: Any, guarded: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    one = ("--base-url", guarded.url, "--num-prompts=1")
    assert bench(*one, "--api-key=one")["rows"][0]["succeeded"] == 1
    monkeypatch.setenv("FATHOM_API_KEY", "two")
    assert bench(*one)["rows"][0]["succeeded"] == 1


def test_what_the_server_turns_away_is_counted(bench: Any, guarded: Server) -> None:
    load = ("--num-prompts=12", "--random-output-len=1500", "--num-warmups=0", "--api-key=one")
    found = bench("--base-url", guarded.url, *load)
    (row,) = found["rows"]
    assert row["succeeded"] + row["failed"] == 12
    assert row["out tokens"] == 1500 * row["succeeded"]
    assert row["failed"] > 0
    assert [note for note in found["notes"] if f"{row['failed']} failed: 429" in note]


KILLED = """
import os, signal, sys, psutil
from fathom.entrypoints.cli.bench.own_server import own_server
with own_server({"model": sys.argv[1], "num_threads": 1}):
    print(*[child.pid for child in psutil.Process().children(recursive=True)], flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_its_server_ends_with_it_however_that_ends(tiny_chat_model: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(tiny_chat_model)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == -signal.SIGKILL
    server, engine = map(int, done.stdout.split())
    assert comes_true(lambda: not psutil.pid_exists(server) and not psutil.pid_exists(engine))


SERVED = """
import sys
from fathom.entrypoints.cli.bench.own_server import own_server
with own_server({"model": sys.argv[1], "num_threads": 1, "show_progress": False}):
    pass
"""


def test_its_server_ends_without_a_word(tiny_chat_model: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SERVED, str(tiny_chat_model)], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stdout) == (0, "")
    assert "Fatal" not in done.stderr


def test_without_a_url_it_starts_a_server_and_ends_it(bench: Any, tiny_chat_model: Path, tmp_path: Path) -> None:
    plot = tmp_path / "plot.png"
    others = set(psutil.Process().children(recursive=True))
    flags = ("--model", str(tiny_chat_model), "--num-threads=1", "--max-model-len=64")
    found = bench(*flags, "--num-prompts=2", "--request-rate", "inf", "1000", "--plot", str(plot))
    assert [(row["rate"], row["succeeded"], row["out tokens"]) for row in found["rows"]] == [
        (None, 2, 12),
        (1000.0, 2, 12),
    ]
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert comes_true(lambda: set(psutil.Process().children(recursive=True)) <= others)


# ---------------------------------------------------------------- at another server


def test_no_more_than_so_many_under_way(bench: Any, plain: Any) -> None:
    server = plain(alone=2, company=3, last=11)
    bench("--base-url", server.url, "--num-prompts=9", "--max-concurrency", "3")
    assert server.most_at_once == 3
    assert len(server.bodies) == 11
    assert {body["model"] for body in server.bodies} == {"plain"}
    workload = make_workload(9, 10, 6, vocab_size=VOCAB_SIZE, seed=1)
    assert sorted(body["prompt"] for body in server.bodies[2:]) == sorted(workload.prompts)
    server = plain(alone=2, company=9, last=11)
    bench("--base-url", server.url, "--num-prompts=9")
    assert server.most_at_once == 9


@pytest.mark.parametrize(
    ("options", "prompts", "ignore_eos"),
    [
        ({}, "token ids", True),
        ({"strict": True}, "token ids", False),
        ({"strict": True, "takes_ids": False}, "words", False),
    ],
)
def test_a_server_is_asked_for_no_more_than_it_takes(
    bench: Any, plain: Any, options: dict[str, bool], prompts: str, ignore_eos: bool
) -> None:
    found = bench("--base-url", plain(**options).url, "--num-prompts=4")
    assert (found["engine"]["prompts"], found["engine"]["ignore_eos"]) == (prompts, ignore_eos)
    (row,) = found["rows"]
    assert (row["succeeded"], row["in tokens"], row["out tokens"]) == (4, 36, 24)


def test_failures_are_told_and_counted_apart(bench: Any, plain: Any) -> None:
    found = bench("--base-url", plain(fails_every=3).url, "--num-prompts=10", "--num-warmups=0")
    (row,) = found["rows"]
    assert (row["succeeded"], row["failed"], row["out tokens"]) == (7, 3, 42)
    assert found["notes"][-1] == "3 failed: 500 broken"
    found = bench("--base-url", plain(fails_every=1).url, "--num-prompts=2", status=1)
    assert (found["rows"][0]["succeeded"], found["rows"][0]["failed"], found["details"]) == (0, 2, [])


def test_a_connection_that_was_closed_meanwhile_is_no_failure(bench: Any, plain: Any) -> None:
    server = plain(drops=True)
    (row,) = bench("--base-url", server.url, "--num-prompts=6", "--max-concurrency", "2")["rows"]
    assert (row["succeeded"], row["failed"], len(server.bodies)) == (6, 0, 8)


def test_a_server_that_counts_no_tokens(bench: Any, plain: Any) -> None:
    found = bench("--base-url", plain(counts=False).url, "--num-prompts=2")
    assert (found["rows"][0]["in tokens"], found["rows"][0]["out tokens"]) == (0, 12)
    assert "the server counts no tokens: a chunk is taken for one" in found["notes"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--base-url=127.0.0.1:1",), "fathom: --base-url must begin with http:// or https://"),
        (("--base-url=http://127.0.0.1:1",), "fathom: no answer from http://127.0.0.1:1: "),
        (("--base-url=http://127.0.0.1:1", "--model=x"), "/v1/completions: no answer from http://127.0.0.1:1: "),
        (("--base-url=http://127.0.0.1:1", "--max-num-seqs=4"), "fathom: max_num_seqs is an option of an engine"),
        (("--goodput=tbt:1",), "fathom bench serve: argument --goodput: must be like ttft:200"),
        (("--request-rate=0",), "fathom bench serve: argument --request-rate: must be above 0"),
    ],
    ids=str,
)
def test_a_mistake_is_one_line(capsys: Any, arguments: tuple[str, ...], message: str) -> None:
    try:
        status = main(["bench", "serve", *SHAPE, *arguments])
    except SystemExit as ended:
        status = int(ended.code or 0)
    out, err = capsys.readouterr()
    assert (status > 0, out, err.count("\n")) == (True, "", 1)
    assert message in err


def test_a_model_that_is_not_there(capsys: Any, server: Server) -> None:
    assert main(["bench", "serve", *SHAPE, "--base-url", server.url, "--model=other"]) == 1
    assert "/v1/completions: 404 There is no model 'other'" in capsys.readouterr().err


# ---------------------------------------------------------------- what it is made of


def test_the_pace() -> None:
    assert Pace().start_times(3, 0) == [0.0, 0.0, 0.0]
    for burstiness in (0.25, 1.0, 4.0):
        pace = Pace(rate=50.0, burstiness=burstiness)
        times = pace.start_times(20_000, seed=1)
        assert times == pace.start_times(20_000, seed=1) != pace.start_times(20_000, seed=2)
        gaps = np.diff(times)
        assert times[0] == 0
        assert gaps.mean() == pytest.approx(1 / 50, rel=0.05)
        assert gaps.std() / gaps.mean() == pytest.approx(burstiness**-0.5, rel=0.05)


def test_figures_by_hand() -> None:
    answers = [
        Answer([0.1, 0.2, 0.4], end=0.5, prompt_tokens=7, output_tokens=5),
        Answer([0.3], end=0.3, prompt_tokens=2, output_tokens=1),
        Answer(error="500 broken"),
    ]
    assert rates(2.0, answers, {"ttft": 100.0, "tpot": 100.0}) == {
        "succeeded": 2,
        "failed": 1,
        "seconds": 2.0,
        "in tokens": 9,
        "out tokens": 6,
        "requests/s": 1.0,
        "out tok/s": 3.0,
        "good requests/s": 0.5,
    }
    found = {row["ms"]: (row["mean"], row["most"]) for row in latencies(answers)}
    assert found["ttft"] == pytest.approx((200, 300))
    assert found["tpot"] == pytest.approx((100, 100))
    assert found["itl"] == pytest.approx((150, 200))
    assert found["e2el"] == pytest.approx((400, 500))
    assert meets(answers[1], {"tpot": 0.001, "e2el": 300.0})
    assert not meets(answers[1], {"e2el": 299.0})
    assert failures(answers) == ["1 failed: 500 broken"]


def test_percentiles_are_numpys() -> None:
    values = [5.0, 1.0, 9.0, 2.0, 2.5]
    for percent in (0, 1, 50, 90, 99, 100):
        assert percentile(values, percent) == pytest.approx(np.percentile(values, percent))
    assert percentile([3.0], 99) == 3.0


def test_events_may_be_cut_anywhere() -> None:
    stream = (
        b": a comment\n\n"
        b'data: {"choices": [{"delta": {"role": "assistant", "content": null, "reasoning": "h\xc3\xbc"}}]}\r\n\r\n'
        b'data:{"choices":[{"text":"b","finish_reason":"stop"}],"usage":null}\n\n'
        b'data: {"choices":null,"usage":{"prompt_tokens":1,"completion_tokens":2}}\n\ndata: [DONE]\n\n'
    )
    for cut in range(len(stream)):
        reader = EventReader()
        chunks = [*reader.feed(stream[:cut]), *reader.feed(stream[cut:])]
        pieces = [choice.piece for chunk in chunks for choice in chunk.choices or []]
        assert pieces == ["hü", "b"]
        assert chunks[-1].usage is not None
        assert chunks[-1].usage.completion_tokens == 2
    for broken, message in ((b'data: {"error": {"message": "gone"}}\n', "gone"), (b"data: {\n", "no chunk")):
        with pytest.raises(RequestFailedError, match=message):
            list(EventReader().feed(broken))


def test_plots_need_matplotlib(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert main(["bench", "serve", "--base-url=http://127.0.0.1:1", "--plot=x.png"]) == 1
    assert (
        capsys.readouterr().err == "fathom: --plot needs matplotlib. Install fathom-llm[bench], or leave --plot out.\n"
    )
