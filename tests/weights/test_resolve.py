"""Names resolve to local files first; one that resolves nowhere lists what was tried."""

from __future__ import annotations

from pathlib import Path

import pytest

from fathom import env
from fathom.errors import ConfigError, ModelNotFoundError
from fathom.weights.catalogue import CATALOGUE, DEFAULT_MODEL
from fathom.weights.resolve import ResolvedModel, resolve_model


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setenv("FATHOM_CACHE", str(tmp_path / "cache"))


def make_folder(folder: Path, *files: str) -> Path:
    folder.mkdir()
    for file in files:
        (folder / file).touch()
    return folder


@pytest.mark.parametrize("weights", ["model.safetensors", "model.safetensors.index.json"])
def test_a_local_folder(tmp_path: Path, weights: str) -> None:
    folder = make_folder(tmp_path / "tiny", "config.json", weights)
    assert resolve_model(str(folder)) == ResolvedModel(folder, "safetensors", str(folder))


def test_a_local_gguf_file(tmp_path: Path) -> None:
    path = make_folder(tmp_path / "tiny", "m.gguf") / "m.gguf"
    assert resolve_model(str(path)) == ResolvedModel(path, "gguf", str(path))


def test_config_json_is_enough_for_dummy_weights(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "tiny", "config.json")
    assert resolve_model(str(folder), need_weights=False) == ResolvedModel(folder, "safetensors", str(folder))
    with pytest.raises(ModelNotFoundError, match=r"tiny has no model\.safetensors or model\."):
        resolve_model(str(folder))


def test_a_local_folder_comes_before_the_catalogue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_folder(tmp_path / DEFAULT_MODEL, "config.json", "model.safetensors")
    monkeypatch.chdir(tmp_path)
    assert resolve_model(DEFAULT_MODEL) == ResolvedModel(Path(DEFAULT_MODEL), "safetensors", DEFAULT_MODEL)


def test_an_unknown_name_lists_every_step() -> None:
    with pytest.raises(ModelNotFoundError) as caught:
        resolve_model("smollm2-135")
    message = str(caught.value)
    assert "The model 'smollm2-135' was not found." in message
    for reason in (
        "local folder: smollm2-135 is not one",
        "GGUF file: the name does not end in .gguf",
        f"catalogue: holds {', '.join(CATALOGUE)}",
        "Hugging Face: the name is not of the form owner/repository",
        "Did you mean 'smollm2-135m'?",
    ):
        assert reason in message
    assert caught.value.parameter == "model"
    assert caught.value.value == "smollm2-135"


def test_a_repository_that_cannot_be_reached_says_why() -> None:
    with pytest.raises(ModelNotFoundError, match=r"Hugging Face: \w+: .*") as caught:
        resolve_model("nobody/no-such-model")
    assert "'smollm2-135m' works out of the box." in str(caught.value)


def test_a_cached_repository_is_found_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = tmp_path / "hub"
    repository, commit = cache / "models--owner--tiny", "0" * 40
    snapshot = repository / "snapshots" / commit
    snapshot.mkdir(parents=True)
    for file in ("config.json", "model.safetensors"):
        (snapshot / file).touch()
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(cache))
    assert resolve_model("owner/tiny") == ResolvedModel(snapshot, "safetensors", "owner/tiny")
    assert resolve_model("owner/tiny", revision=commit).path == snapshot
    with pytest.raises(ModelNotFoundError):
        resolve_model("owner/tiny", revision="other")


def test_a_revision_leaves_only_the_hub() -> None:
    with pytest.raises(ModelNotFoundError, match="not searched, since revision='v2' was given"):
        resolve_model(DEFAULT_MODEL, revision="v2")


def test_cache_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert env.cache_dir() == tmp_path / "cache"
    monkeypatch.delenv("FATHOM_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert env.cache_dir() == Path("/xdg/fathom")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/someone")
    assert env.cache_dir() == Path("/home/someone/.cache/fathom")


@pytest.mark.parametrize(
    ("variable", "value", "read"),
    [
        ("FATHOM_ENABLE_MULTIPROCESSING", "yes", env.enable_multiprocessing),
        ("FATHOM_ENGINE_READY_TIMEOUT_S", "0", env.engine_ready_timeout),
        ("FATHOM_ENGINE_READY_TIMEOUT_S", "soon", env.engine_ready_timeout),
        ("FATHOM_LOGGING_LEVEL", "LOUD", env.logging_level),
    ],
)
def test_a_wrong_environment_variable_is_named(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, read: object
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(ConfigError, match=f"{variable} must .*, got '{value}'"):
        read()


def test_environment_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CPU_LEVEL", "ENABLE_MULTIPROCESSING", "ENGINE_READY_TIMEOUT_S", "LOGGING_LEVEL", "PLUGINS"):
        monkeypatch.delenv(f"FATHOM_{name}", raising=False)
    assert env.cpu_level() is None
    assert env.enable_multiprocessing() is True
    assert env.engine_ready_timeout() == 600.0
    assert env.logging_level() == "INFO"
    assert env.plugins() is None
    monkeypatch.setenv("FATHOM_PLUGINS", "a, b,")
    assert env.plugins() == ["a", "b"]
