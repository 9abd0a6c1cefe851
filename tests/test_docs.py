"""What the docs say is so: their Python runs, their links lead somewhere, and their tables are those of the code.

A block that begins with ```python is run, the blocks of one page one after the other in one namespace; ```python no-run
is for fragments. They run on a tiny model that goes by the default model's name (see stand_in.py).
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import runpy
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from fathom import env, errors
from fathom.entrypoints.cli.main import parse
from fathom.models.registry import ARCHITECTURES
from fathom.quant.ggml_types import GGMLType
from fathom.sampling_params import RequestOutputKind, SamplingParams
from fathom.weights.catalogue import CATALOGUE
from tests.stand_in import write_stand_in

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([*ROOT.glob("docs/*.md"), ROOT / "README.md", ROOT / "CHANGELOG.md"])
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SHELL_BLOCK = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)#\s]+)[^)]*\)")
SOURCE = re.compile(r"(?:[\w.-]+/)*\w+\.py\b")
REPOSITORY_PATH = re.compile(r"`((?:fathom|tests|examples|scripts|benchmarks|docs)/[\w./-]*)`")
HOP = re.compile(r"^ +\d+  (\S+\.py) +(\w+)\.(\w+) ", re.MULTILINE)
FILLED_IN_BY_THE_ENGINE = {"eos_token_ids", "bad_words_token_ids"}


def page(name: str) -> str:
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


def python_blocks(path: Path) -> list[tuple[int, str]]:
    """(line that it begins in, code) of each block that is to be run."""
    text = path.read_text(encoding="utf-8")
    return [(text[: match.start(1)].count("\n"), match[1]) for match in BLOCK.finditer(text)]


@pytest.fixture(scope="module")
def workplace(tiny: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("workplace")
    write_stand_in(tiny("llama-gqa"), folder)
    return folder


@pytest.fixture
def in_workplace(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(workplace)
    monkeypatch.setenv("FATHOM_ENABLE_MULTIPROCESSING", "0")
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.mark.usefixtures("in_workplace")
@pytest.mark.parametrize("path", [path for path in PAGES if python_blocks(path)], ids=lambda path: path.name)
def test_python_blocks_run(path: Path) -> None:
    namespace = {"__name__": path.stem}
    for line, code in python_blocks(path):
        exec(compile("\n" * line + code, str(path), "exec"), namespace)


def test_the_commands_of_fathom_have_the_flags_that_pages_give_them() -> None:
    lines = [line for path in PAGES for block in SHELL_BLOCK.findall(path.read_text()) for line in block.splitlines()]
    commands = [shlex.split(line, comments=True)[1:] for line in lines if line.startswith("fathom ")]
    assert len(commands) > 20
    for command in commands:
        assert parse(command).run is not None


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_links_and_paths_exist(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    links = [link for link in LINK.findall(text) if "://" not in link]
    missing = [link for link in links if not (path.parent / link).exists()]
    missing += [name for name in REPOSITORY_PATH.findall(text) if not (ROOT / name).exists()]
    assert not missing


def test_every_page_is_within_reach_of_the_readme() -> None:
    reached, waiting = set(), [ROOT / "README.md"]
    while waiting:
        path = waiting.pop()
        if path not in reached:
            reached.add(path)
            links = LINK.findall(path.read_text(encoding="utf-8"))
            waiting += [(path.parent / link).resolve() for link in links if link.endswith(".md") and "://" not in link]
    assert {path.name for path in PAGES} <= {path.name for path in reached}


def test_the_architecture_names_files_that_exist_and_every_folder() -> None:
    text = page("architecture.md")
    missing = [name for name in SOURCE.findall(text) if not (ROOT / "fathom" / name).exists()]
    assert not missing
    packages = {path.parent.relative_to(ROOT / "fathom") for path in ROOT.glob("fathom/**/__init__.py")} - {Path()}
    assert not [package for package in packages if f"`{package}/" not in text]


def test_every_hop_of_a_step_is_a_method_of_its_file() -> None:
    hops = HOP.findall(page("architecture.md"))
    assert len(hops) == 11
    for file, class_name, method in hops:
        tree = ast.parse((ROOT / "fathom" / file).read_text(encoding="utf-8"))
        classes = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == class_name]
        methods = {node.name for node in ast.walk(classes[0]) if isinstance(node, ast.FunctionDef)}
        assert method in methods, f"{file} has no {class_name}.{method}"


def test_the_table_of_options_is_fresh() -> None:
    script = runpy.run_path(str(ROOT / "scripts" / "make_option_table.py"))
    text = page("configuration.md")
    assert "`max_num_seqs`" in text
    assert script["with_tables"](text) == text, "run python scripts/make_option_table.py"


@pytest.mark.parametrize("name", ["api.md", "serve.md"])
def test_the_tables_of_the_api_are_fresh(name: str) -> None:
    script = runpy.run_path(str(ROOT / "scripts" / "make_api_tables.py"))
    text = page(name)
    assert script["with_tables"](text, script["PAGES"][name]()) == text, "run python scripts/make_api_tables.py"


def test_the_figures_of_the_readme_are_those_of_performance() -> None:
    script = runpy.run_path(str(ROOT / "scripts" / "make_readme_figures.py"))
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(re.findall(r"^\| .* \| [\d,.]+ \|", readme, re.MULTILINE)) == len(script["SHOWN"])
    assert script["with_figures"](readme, page("performance.md")) == readme, "run python scripts/make_readme_figures.py"


def test_every_sampling_parameter_is_in_the_table_with_its_default() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| `([^`]*)` \|", page("sampling-parameters.md"), re.MULTILINE))
    neutral = SamplingParams()
    for name in set(SamplingParams.__struct_fields__) - FILLED_IN_BY_THE_ENGINE:
        default = getattr(neutral, name)
        assert rows.pop(name) == (default.name if isinstance(default, RequestOutputKind) else repr(default))
    assert not rows


def test_every_environment_variable_is_in_the_table() -> None:
    summaries = [function.__doc__ or "" for function in vars(env).values() if inspect.isfunction(function)]
    variables = [summary.split(":")[0] for summary in summaries if re.match(r"FATHOM_\w+:(?! not for users)", summary)]
    assert len(variables) > 4
    table = re.findall(r"^\| `(\w+)` \|", page("environment-variables.md"), re.MULTILINE)
    assert sorted(table) == sorted(variables)


def test_every_error_has_a_way_out() -> None:
    text = page("troubleshooting.md")
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.FathomError)]
    assert len(kinds) > 10
    assert not [kind.__name__ for kind in kinds if f"`{kind.__name__}`" not in text]


def test_everything_that_runs_is_on_the_page_of_models() -> None:
    text = page("models.md")
    known = [f"`{name}`" for name in (*ARCHITECTURES, *CATALOGUE)] + [member.name for member in GGMLType]
    assert not [name for name in known if not re.search(rf"{re.escape(name)}(?!\w)", text)]


VLLM_IMPORT = re.compile(r"`from (vllm[\w.]*) import ([\w, ]+)`")
OUR_IMPORT = re.compile(r"`from (fathom[\w.]*) import ([\w, .]+)`")


def test_the_imports_of_vllm_s_scripts_have_what_the_page_says_here() -> None:
    names: list[tuple[str, str]] = []
    for row in page("from-vllm.md").splitlines():
        theirs = ", ".join(found[1] for found in VLLM_IMPORT.findall(row))
        for module, ours in OUR_IMPORT.findall(row):
            names += [(module, name) for name in (theirs if ours == "..." else ours).split(", ")]
    assert len(names) >= 17
    for module, name in names:
        assert hasattr(importlib.import_module(module), name), f"from {module} import {name}"
