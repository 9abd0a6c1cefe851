"""OpenVINO GenAI, from its wheel."""

from __future__ import annotations

from pathlib import Path

from benchmarks.peers.contender import ScriptSession, Session
from benchmarks.peers.environments import cache_dir, pip_install, virtual_environment
from benchmarks.peers.works import Work

PACKAGE, VERSION = "openvino-genai", "2026.4.1.0"


class OpenVINO:
    """Its two pipelines count as two formats: for one request the plain one may be faster."""

    name = "OpenVINO"

    def install(self) -> str:
        python = virtual_environment("openvino")
        installed = cache_dir() / "openvino" / f"installed-{VERSION}"
        if not installed.exists():
            pip_install(python, [f"{PACKAGE}=={VERSION}"], cache_dir() / "openvino-install.log")
            installed.touch()
        return VERSION

    def formats(self, work: Work) -> list[str]:
        return ["batching", "plain"] if work.task.concurrency == 1 else ["batching"]

    def open(self, model: Path, format_name: str, threads: int, log: Path) -> Session:
        arguments = [str(model), str(threads), format_name]
        python = virtual_environment("openvino")
        return ScriptSession(python, "run_openvino.py", arguments, log)
