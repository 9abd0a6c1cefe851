from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from fathom.errors import ConfigError
from fathom.worker.sample.interface import LogitsProcessor
from fathom.worker.sample.loading import load_logits_processors
from fathom.worker.sample.logit_bias import LogitBias

SCRIPT = """
from fathom.worker.sample.logit_bias import LogitBias

class Mine(LogitBias):
    limit = 7

    class Nested(LogitBias):
        pass

    def read_a_global(self):
        return OTHER

OTHER = 42
number = 3

if __name__ == "__main__":
    raise SystemExit("the guarded part ran")
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "my_script.py"
    path.write_text(SCRIPT)
    return path


@pytest.mark.parametrize(
    "name", ["fathom.worker.sample.logit_bias:LogitBias", "fathom.worker.sample.logit_bias.LogitBias"]
)
def test_by_module(name: str) -> None:
    assert list(load_logits_processors([name])) == [LogitBias]


def test_a_class_named_twice_is_loaded_once() -> None:
    names = ["fathom.worker.sample.logit_bias:LogitBias", "fathom.worker.sample.logit_bias.LogitBias"]
    assert list(load_logits_processors(names)) == [LogitBias]


def test_a_class_of_the_main_script(script: Path) -> None:
    (mine,) = load_logits_processors([f"file:{script}:Mine"])
    assert mine.__name__ == "Mine"
    assert mine.limit == 7  # type: ignore[attr-defined]
    assert mine.__module__ == "__mp_main__"
    assert mine.read_a_global(None) == 42  # type: ignore[attr-defined]


def test_a_script_that_multiprocessing_has_run_is_not_run_again(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = type(sys)("__mp_main__")
    module.__file__ = str(script)
    module.Mine = LogitBias  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "__mp_main__", module)
    assert list(load_logits_processors([f"file:{script}:Mine"])) == [LogitBias]


def test_a_nested_class(script: Path) -> None:
    assert next(iter(load_logits_processors([f"file:{script}:Mine.Nested"]))).__qualname__ == "Mine.Nested"
    with pytest.raises(ConfigError, match="no subclass"):
        load_logits_processors([f"file:{script}:Mine.Absent"])


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("no_such_module:X", "could not be imported"),
        ("fathom.worker.sample.logit_bias:Absent", "has no Absent"),
        ("fathom.worker.sample.rows:RowStates", "no subclass"),
        ("fathom.kernels.slices:_MAX_ENTRIES", "no subclass"),
        ("justaword", "module:Class"),
        (":X", "module:Class"),
        ("file:/no/such/script.py:X", "could not be imported"),
    ],
)
def test_bad_names(name: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint) as caught:
        load_logits_processors([name])
    assert repr(name) in str(caught.value)
    assert caught.value.parameter == "logits_processors"


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A distribution with two entry points, as pip would lay it on sys.path."""
    (tmp_path / "acme_plugin.py").write_text(
        "from fathom.worker.sample.logit_bias import LogitBias\nclass A(LogitBias): pass\nclass B(LogitBias): pass\n"
    )
    info = tmp_path / "acme-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[fathom.logits_processors]\na = acme_plugin:A\nb = acme_plugin:B\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "acme_plugin", raising=False)
    return "acme_plugin"


def names(classes: Iterable[type[LogitsProcessor]]) -> list[str]:
    return [found.__name__ for found in classes]


def test_entry_points_come_first_and_need_no_name(installed: str) -> None:
    assert names(load_logits_processors(["fathom.worker.sample.logit_bias:LogitBias"])) == ["A", "B", "LogitBias"]


def test_fathom_plugins_limits_entry_points(installed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FATHOM_PLUGINS", "b,other")
    assert names(load_logits_processors([])) == ["B"]
    monkeypatch.setenv("FATHOM_PLUGINS", "")
    assert list(load_logits_processors([])) == []
    assert names(load_logits_processors([f"{installed}:A"])) == ["A"]


def test_what_requests_may_call_them(installed: str, script: Path) -> None:
    options = ["fathom.worker.sample.logit_bias.LogitBias", f"file:{script}:Mine.Nested", f"{installed}:A"]
    loaded = {kind.__name__: known_as for kind, known_as in load_logits_processors(options).items()}
    assert {"LogitBias", "fathom.worker.sample.logit_bias:LogitBias", options[0]} == loaded["LogitBias"]
    assert {"a", "A", f"{installed}:A"} == loaded["A"]
    assert {"b", "B", f"{installed}:B"} == loaded["B"]
    assert "Mine.Nested" in loaded["Nested"]
