"""Workers as Ray actors answer as one worker does; a lost actor is the engine's end; nothing is left of Ray."""

from __future__ import annotations

import os
import re
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from fathom import LLM, SamplingParams
from fathom.errors import ConfigError, EngineDeadError, ValidationError
from tests.client.processes import Script, comes_true, is_gone, title_of
from tests.executor import ray_plugin

pytest.importorskip("ray", reason="Ray is not installed (pip install 'fathom-llm[ray]')")

PROMPTS = [[3 + (11 * i * (k + 1) + k) % 500 for i in range(5 + 9 * k)] for k in range(7)]
GREEDY = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
LONG = SamplingParams(temperature=0.0, max_tokens=None, ignore_eos=True)  # of the endless model


@pytest.fixture(scope="module")
def ray_folder() -> Iterator[Path]:
    """Where Ray keeps its logs and sockets; its path must be short."""
    with tempfile.TemporaryDirectory(prefix="r", dir="/tmp") as folder:
        yield Path(folder)


@pytest.fixture(scope="module")
def plugin_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where actors look for what is asked of them (ray_plugin.py)."""
    folder = tmp_path_factory.mktemp("plugin")
    ray_plugin.write_plugin(folder)
    return folder


@pytest.fixture(scope="module")
def cluster(ray_folder: Path, plugin_folder: Path) -> Iterator[str]:
    """The address of a Ray of two raylets with a CPU each, both on this machine."""
    settings = {"RAY_TMPDIR": str(ray_folder), "RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}
    settings[ray_plugin.FOLDER_VARIABLE] = str(plugin_folder)
    settings["PYTHONPATH"] = os.pathsep.join([str(plugin_folder), *filter(None, sys.path)])
    with pytest.MonkeyPatch.context() as patch:
        for name, value in settings.items():
            patch.setenv(name, value)
        from ray.cluster_utils import Cluster

        node = {"num_cpus": 1, "object_store_memory": 80 * 2**20, "include_dashboard": False}
        raylets = Cluster(initialize_head=True, head_node_args=node)
        try:
            raylets.add_node(**node)
            yield raylets.address
        finally:
            raylets.shutdown()


def start(model: Path, **options: Any) -> LLM:
    defaults = {"tensor_parallel_size": 2, "num_threads": 2, "max_num_seqs": 16, "max_model_len": 128}
    return LLM(str(model), show_progress=False, **(defaults | options))


def actors_of(raylets: list[psutil.Process]) -> list[psutil.Process]:
    """Processes of RayWorker among the children of raylets."""
    return [child for raylet in raylets for child in raylet.children() if "RayWorker" in title_of(child)]


def test_a_cluster_of_two_raylets(
    cluster: str, plugin_folder: Path, tiny: Callable[[str], Path], endless: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny("llama-gqa")
    with start(model, tensor_parallel_size=1, multiprocess=False) as llm:
        expected = [o.outputs[0].token_ids for o in llm.generate(PROMPTS, GREEDY, use_tqdm=False)]
    monkeypatch.setenv("RAY_ADDRESS", cluster)
    raylets = [child for child in psutil.Process().children() if "raylet" in child.name()]
    assert len(raylets) == 2

    with start(model, distributed_executor_backend="ray", async_scheduling=True) as llm:
        actors = actors_of(raylets)
        assert sorted(actor.ppid() for actor in actors) == sorted(raylet.pid for raylet in raylets)
        assert [o.outputs[0].token_ids for o in llm.generate(PROMPTS, GREEDY, use_tqdm=False)] == expected
        with pytest.raises(ValidationError, match="the worker has no method 'no_such_method'"):
            llm.collective_rpc("no_such_method")
        assert [o.outputs[0].token_ids for o in llm.generate(PROMPTS, GREEDY, use_tqdm=False)] == expected
    assert comes_true(lambda: all(map(is_gone, actors)))

    with start(endless, distributed_executor_backend="ray", max_model_len=None) as llm:  # its CPUs are free again
        actors = actors_of(raylets)
        threading.Timer(0.3, actors[1].kill).start()
        with pytest.raises(EngineDeadError, match=rf"worker rank \d \(pid {actors[1].pid} on .*\) was lost: "):
            llm.generate(PROMPTS, LONG, use_tqdm=False)
        assert comes_true(lambda: all(map(is_gone, actors)))

    with start(model, distributed_executor_backend="ray") as llm:
        actors = actors_of(raylets)
        actors[1].suspend()
        with pytest.raises(EngineDeadError, match=rf"worker rank \d \(pid {actors[1].pid} on .*\) is stopped"):
            llm.generate(PROMPTS, LONG, use_tqdm=False)
        assert comes_true(lambda: all(map(is_gone, actors)))

    # One that hangs where Python can say so; of one whose steps are only launched, as on a GPU, answers come later.
    (plugin_folder / "delayed").touch()
    with start(model, distributed_executor_backend="ray", async_scheduling=True) as llm:
        assert [o.outputs[0].token_ids for o in llm.generate(PROMPTS, GREEDY, use_tqdm=False)] == expected
        with pytest.raises(ValidationError, match="the worker has no method 'no_such_method'"):
            llm.collective_rpc("no_such_method")
        assert [o.outputs[0].token_ids for o in llm.generate(PROMPTS, GREEDY, use_tqdm=False)] == expected
        (plugin_folder / "hang").touch()
        with pytest.raises(
            EngineDeadError, match=r"(?s)worker rank \d \(pid .*hangs: it has done nothing .*with_fault"
        ):
            llm.generate(PROMPTS, LONG, use_tqdm=False)
    (plugin_folder / "delayed").unlink()

    others = psutil.Process().children()
    with start(model, distributed_executor_backend="ray", tensor_parallel_size=1) as llm:
        (engine,) = set(psutil.Process().children()).difference(others)
        (actor,) = actors_of(raylets)
        actor.kill()  # while nothing is asked of it
        assert comes_true(lambda: is_gone(engine))
        with pytest.raises(EngineDeadError, match=rf"worker rank 0 \(pid {actor.pid} on .*\) was lost: "):
            llm.get_stats()
    assert not any(map(is_gone, raylets))

    with pytest.raises(ConfigError, match=r"4 workers in Ray take 4 CPUs of the cluster: it has 2\. Use at most 2"):
        start(model, distributed_executor_backend="ray", pipeline_parallel_size=2, num_threads=4)
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    with pytest.raises(ConfigError, match=r"nobody listens at RAY_ADDRESS=127\.0\.0\.1:1"):
        start(model, distributed_executor_backend="ray", multiprocess=False)


LOCAL = """
    llm = make_llm(distributed_executor_backend="ray")
    say(len(generate(llm)[0]))
    try:
        generate_for_ever(llm)
    except EngineDeadError:
        say("dead")
"""


def test_a_ray_of_its_own_ends_with_the_engine(endless: Path, ray_folder: Path) -> None:
    before = set(os.listdir("/dev/shm"))
    with tempfile.TemporaryDirectory(prefix="t", dir="/tmp") as tmp:
        script = Script(LOCAL, endless, Path(tmp), RAY_TMPDIR=tmp, RAY_ADDRESS="")
        try:
            assert script.line() == "8"
            engine = script.engine()
            of_ray = engine.children(recursive=True)
            titles = " ".join(map(title_of, of_ray))
            assert all(name in titles for name in ("fathom::RayHead", "gcs_server", "raylet", "RayWorker")), titles
            engine.kill()
            assert script.line() == "dead"
            assert comes_true(lambda: all(map(is_gone, of_ray)))
        finally:
            script.kill()
    own = re.compile("plasma|ray|fathom")
    assert comes_true(lambda: not any(map(own.search, set(os.listdir("/dev/shm")) - before)))
