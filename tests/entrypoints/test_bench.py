"""fathom bench: each benchmark on a tiny model. What is asked for is exact; times are only there."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tqdm import tqdm

from fathom import LLM, EngineConfig, LLMEngine
from fathom.entrypoints.cli.bench import BENCHMARKS
from fathom.entrypoints.cli.bench.measure import Bench
from fathom.entrypoints.cli.bench.report import Report, table_lines
from fathom.entrypoints.cli.bench.roofline import Roofline
from fathom.entrypoints.cli.bench.workload import make_workload
from fathom.entrypoints.cli.main import main
from tests.models.tiny import VOCAB_SIZE

FLAGS = ("--no-multiprocess", "--num-threads", "1", "--max-model-len", "128", "--no-show-progress")
FLOAT_BYTES = 4


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FATHOM_LOGGING_LEVEL", "WARNING")


@pytest.fixture
def bench(tiny: Callable[[str], Path], capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """bench("latency", ...): what it prints as JSON."""

    def run(name: str, *arguments: str) -> Any:
        folder = str(tiny("llama-gqa"))
        capsys.readouterr()  # what making it printed
        assert main(["bench", name, *FLAGS, "--model", folder, "--json", *arguments]) == 0
        out, err = capsys.readouterr()
        assert err == ""
        found = json.loads(out)
        assert found["benchmark"] == name
        assert found["engine"]["model"] == folder
        assert found["engine"]["threads"] == 1
        assert set(found["versions"]) == {"fathom", "python", "torch", "processor"}
        return found

    return run


# ---------------------------------------------------------------- workloads


def test_a_workload_is_its_seed() -> None:
    workload = make_workload(2, 4, 3, vocab_size=1000, seed=7, prefix_len=2)
    assert workload.prompts == [[323, 150, 72, 535, 365, 57], [323, 150, 433, 69, 90, 424]]
    assert workload.output_lens == [3, 3]
    assert workload.describe() == {
        "num_prompts": 2,
        "input_len": 4,
        "output_len": 3,
        "random_range_ratio": 0.0,
        "prefix_len": 2,
        "seed": 7,
        "prompt_tokens": 12,
        "output_tokens": 6,
        "shortest_prompt": 6,
        "longest_prompt": 6,
    }
    assert make_workload(2, 4, 3, vocab_size=1000, seed=7, prefix_len=2) == workload
    assert make_workload(2, 4, 3, vocab_size=1000, seed=8, prefix_len=2).prompts != workload.prompts


def test_lengths_vary_within_the_ratio() -> None:
    workload = make_workload(500, 10, 100, vocab_size=50, range_ratio=0.5)
    lengths = {len(prompt) for prompt in workload.prompts}
    assert lengths == set(range(5, 16))
    assert (min(workload.output_lens), max(workload.output_lens)) == (50, 150)
    assert {token for prompt in workload.prompts for token in prompt} == set(range(50))


# ---------------------------------------------------------------- the benchmarks


def test_latency(bench: Any) -> None:
    found = bench("latency", "--input-len", "8", "40", "--output-len", "4", "--num-iters", "2", "--seed", "3")
    assert found["workload"] == {"input_len": [8, 40], "output_len": 4, "seed": 3, "iterations": 2, "dropped": 1}
    assert [(row["input"], row["output"]) for row in found["rows"]] == [(8, 4), (40, 4)]
    for row in found["rows"]:
        assert row["least"] <= row["ms/token"] <= row["most"]
        assert all(value > 0 for value in row.values())
        assert row["tok/s"] == pytest.approx(1000 / row["ms/token"])
        assert row["prompt tok/s"] == pytest.approx(1000 * row["input"] / row["first token ms"])
    assert found["roofline"]["peak_kind"] == "float32"


def test_several_workers(tiny: Callable[[str], Path], capsys: pytest.CaptureFixture[str]) -> None:
    shape = ("--input-len", "8", "--output-len", "4", "--num-iters", "1", "--num-threads", "2", "-pp", "2")
    assert main(["bench", "latency", *FLAGS, "--model", str(tiny("llama-gqa")), "--json", *shape]) == 0
    assert json.loads(capsys.readouterr().out)["engine"]["workers"] == 2


def test_throughput(bench: Any) -> None:
    shape = ("--num-prompts", "5", "--input-len", "10", "--output-len", "6", "--random-range-ratio", "0.5")
    found = bench("throughput", *shape, "--max-concurrency", "1", "3")
    workload = make_workload(5, 10, 6, vocab_size=VOCAB_SIZE, range_ratio=0.5)
    assert found["workload"] == workload.describe()
    assert [row["concurrency"] for row in found["rows"]] == [1, 3]
    for row in found["rows"]:
        assert row["requests/s"] * row["seconds"] == pytest.approx(5)
        assert row["in tok/s"] * row["seconds"] == pytest.approx(workload.num_prompt_tokens)
        assert row["out tok/s"] * row["seconds"] == pytest.approx(workload.num_output_tokens)
        assert row["% of limit"] > 0


def test_prefix(bench: Any) -> None:
    found = bench("prefix", "--num-prompts", "4", "--prefix-len", "48", "--input-len", "5", "--output-len", "3")
    assert found["workload"] == make_workload(4, 5, 3, vocab_size=VOCAB_SIZE, prefix_len=48).describe()
    assert [(row["requests"], row["number"], row["cached tokens"]) for row in found["rows"]] == [
        ("prefix alone", 1, 0),
        ("cached before", 4, 4 * 48),
        ("shared", 4, 3 * 48),
        ("not shared", 4, 0),
    ]
    assert len(found["notes"]) == 2


def test_logprobs(bench: Any) -> None:
    shape = ("--num-prompts", "2", "--input-len", "5", "--output-len", "4")
    found = bench("logprobs", *shape, "--logprobs", "0", "50", "--num-iters", "1")
    assert [row["logprobs"] for row in found["rows"]] == ["none", "0", "50"]
    assert found["rows"][0]["times none"] == 1
    assert found["workload"] == make_workload(2, 5, 4, vocab_size=VOCAB_SIZE).describe() | {"rounds": 1}


def test_startup(bench: Any) -> None:
    found = bench("startup", "--num-iters", "1", "--num-iters-warmup", "0")
    seconds = {row["stage"]: row["seconds"] for row in found["rows"]}
    stages = list(seconds)[:5]
    assert stages == ["python starts", "import fathom", "import the engine's caller", "engine ready", "first token"]
    assert seconds["total"] == pytest.approx(sum(seconds[stage] for stage in stages))
    phases = [seconds[stage] for stage in seconds if stage.startswith("  engine: ")]
    assert 0 < sum(phases) < seconds["engine ready"]


# ---------------------------------------------------------------- what they are made of


class Watched(LLMEngine):
    """Notes how many requests are under way in each step."""

    def step(self) -> Any:
        self.counts = [*getattr(self, "counts", []), self.output_processor.num_unfinished]
        return super().step()


def test_concurrency_is_kept_until_requests_run_out(tiny: Callable[[str], Path]) -> None:
    options = {"multiprocess": False, "num_threads": 1, "max_model_len": 64, "show_progress": False}
    config = EngineConfig.from_options(model=str(tiny("llama-gqa")), **options)
    workload = make_workload(7, 6, 5, vocab_size=VOCAB_SIZE, range_ratio=0.8)
    with Watched(config) as engine:
        run = Bench(engine, tqdm(disable=True)).run(workload, concurrency=3)
    assert [request.num_output for request in run.requests] == workload.output_lens
    assert max(engine.counts) == 3
    assert engine.counts == sorted(engine.counts, reverse=True)  # refilled at once, then draining


def test_what_a_token_reads(tiny: Callable[[str], Path]) -> None:
    for name in ("llama-gqa", "llama-mqa-tied"):  # with a head of its own, and with the embedding's
        options = {"multiprocess": False, "num_threads": 1, "max_model_len": 64, "show_progress": False}
        with LLM(str(tiny(name)), **options) as llm:
            (described,) = llm.collective_rpc("describe")
            model = llm.llm_engine.model_config
            matrices = model.num_layers * (
                model.hidden_size * model.head_dim * 2 * (model.num_heads + model.num_kv_heads)
                + 3 * model.hidden_size * model.intermediate_size
            )
            norms = (2 * model.num_layers + 1) * model.hidden_size
            head = model.hidden_size * model.vocab_size
            assert described["weight_bytes"] == FLOAT_BYTES * (matrices + norms + head)
            kv_elements = 2 * model.num_layers * model.num_kv_heads * model.head_dim
            assert described["kv_bytes_per_position"] == FLOAT_BYTES * kv_elements


def test_the_least_time_by_hand() -> None:
    roofline = Roofline(
        bandwidth=100.0,
        peak=1000.0,
        peak_kind="int8",
        weight_bytes=500,
        layer_operations=200,
        head_operations=100,
        kv_bytes=2,
        attention_operations=1,
        layer_windows=(None, 4),
    )
    assert roofline.step_seconds(10) == (500 + (10 + 4) * 2) / 100
    assert roofline.step_seconds(10, 40) == (500 + 40 * (10 + 4) * 2) / 100
    assert roofline.step_seconds(10, 200) == 200 * (300 + 14) / 1000
    assert roofline.prompt_seconds(8) == (8 * (200 + (2 + 2 + 6 + 4) / 2) + 100) / 1000


def test_the_table() -> None:
    rows = [{"name": "a", "count": 1, "x": 0.123}, {"name": "long", "count": 12345, "x": 1234.5}]
    assert table_lines(rows) == [
        "name   count      x",
        "a          1   0.12",
        "long  12,345  1,234",
    ]
    report = Report("latency", {"seed": 0}, {"model": "m"}, rows, ["a note"])
    assert report.as_text().splitlines()[:3] == ["workload: seed=0", "engine: model=m", ""]
    assert report.as_text().endswith("\n\na note")


# ---------------------------------------------------------------- the command


def test_a_file_beside_the_table(tiny: Callable[[str], Path], tmp_path: Path, capsys: Any) -> None:
    path = tmp_path / "out.json"
    shape = ("--num-prompts", "1", "--input-len", "4", "--output-len", "2", "--max-concurrency", "1")
    assert main(["bench", "throughput", *FLAGS, "--model", str(tiny("llama-gqa")), *shape, "--json", str(path)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("workload: num_prompts=1, input_len=4, output_len=2")
    assert "concurrency  seconds" in out
    assert json.loads(path.read_text())["workload"]["num_prompts"] == 1


def test_help_names_every_benchmark(capsys: Any) -> None:
    with pytest.raises(SystemExit):
        main(["bench", "--help"])
    out = capsys.readouterr().out
    assert all(name in out for name in BENCHMARKS)


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        ((), 2, "fathom bench: the following arguments are required: BENCHMARK"),
        (("fly",), 2, "fathom bench: argument BENCHMARK: invalid choice: 'fly'"),
        (("latency", "--foo"), 2, "fathom bench: unknown argument --foo"),
        (("latency", "--output-len", "1"), 2, "fathom bench latency: argument --output-len: must be at least 2, got 1"),
        (("throughput", "--random-range-ratio", "1"), 2, "fathom bench throughput: argument --random-range-ratio: "),
        (("latency", "--input-len", "99", *FLAGS, "--output-len", "40"), 1, "fathom: the longest request has 139 tok"),
        (("startup", "--model", "nonsense", "--no-show-progress"), 1, "fathom: a start failed: "),
    ],
    ids=str,
)
def test_a_mistake_is_one_line(
    tiny: Callable[[str], Path], capsys: Any, arguments: tuple[str, ...], status: int, message: str
) -> None:
    model = ("--model", str(tiny("llama-gqa"))) if "latency" in arguments and status == 1 else ()
    try:
        found = main(["bench", *arguments, *model])
    except SystemExit as ended:
        found = int(ended.code or 0)
    out, err = capsys.readouterr()
    assert (found, out) == (status, "")
    assert err.startswith(message)
    assert err.count("\n") == 1
