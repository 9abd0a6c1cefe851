"""Fathom beside llama.cpp, OpenVINO GenAI and vLLM: same weights, same prompts, same threads, in turns.

    python -m benchmarks.peers                                   # about half an hour, once all are installed
    python -m benchmarks.peers --only decode-1 prefill-512 --pairs 3 --rivals llama.cpp
    python -m benchmarks.peers --docs                            # and put table and plots into docs/

Rivals are installed on demand, outside of the repository. Results are kept as they come: the same command goes on
where it was interrupted, and with nothing left to measure it only prints.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path

from benchmarks.peers.contender import Contender
from benchmarks.peers.environments import ContenderError
from benchmarks.peers.fathom import Fathom
from benchmarks.peers.llama_cpp import LlamaCpp
from benchmarks.peers.openvino import OpenVINO
from benchmarks.peers.race import Race
from benchmarks.peers.report import markdown, ratio_lines, with_table, write_summary
from benchmarks.peers.results import REPOSITORY, Results, default_run, machine_facts
from benchmarks.peers.vllm import VLLM
from benchmarks.peers.works import WORKS
from fathom.hardware import detect_hardware
from fathom.weights.catalogue import CATALOGUE
from fathom.weights.download import pull

RIVALS: dict[str, type[Contender]] = {kind.name: kind for kind in (LlamaCpp, OpenVINO, VLLM)}
BY_DEFAULT = [LlamaCpp.name, OpenVINO.name]


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [work.name for work in WORKS]
    parser.add_argument("--only", nargs="+", choices=names, metavar="WORK", help=f"of {', '.join(names)}")
    parser.add_argument(
        "--rivals", nargs="*", choices=list(RIVALS), default=BY_DEFAULT, help="%(choices)s (%(default)s)"
    )
    parser.add_argument("--pairs", type=int, default=5, help="rounds of each work (%(default)s)")
    parser.add_argument("--threads", type=int, default=detect_hardware().cores, help="of everyone (%(default)s)")
    parser.add_argument("--run", type=Path, default=default_run(), help="folder of the results (%(default)s)")
    parser.add_argument("--docs", action="store_true", help="write the table and the plots to docs/")
    return parser.parse_args()


def main() -> None:
    options = parse()
    os.environ.setdefault("FATHOM_LOGGING_LEVEL", "WARNING")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the engines are ended too
    results = Results(options.run)
    contenders: list[Contender] = [Fathom(), *(RIVALS[name]() for name in options.rivals)]
    versions = {}
    for contender in contenders:
        print(f"{contender.name}: installing, if need be", flush=True)
        try:
            versions[contender.name] = contender.install()
        except ContenderError as error:
            sys.exit(f"{contender.name}: {error}")
    results.write_machine(machine_facts(options.threads, versions))
    with Race(contenders, results, options.threads, lambda name: pull(CATALOGUE[name])) as race:
        for work in WORKS:
            if options.only is None or work.name in options.only:
                print(work.title, flush=True)
                race.run(work, options.pairs)
    print("", *ratio_lines(results), "", markdown(results), "", sep="\n")
    print(f"all of it: {write_summary(results)}")
    publish(results, options)


def publish(results: Results, options: argparse.Namespace) -> None:
    """Plots, and with --docs the page on performance."""
    try:
        from benchmarks.peers.plots import draw
    except ImportError as error:
        print(f"no plots: {error}; pip install -e '.[bench]' brings matplotlib")
        return
    print("plots:", *draw(results, REPOSITORY / "docs" / "images" if options.docs else results.folder))
    if options.docs:
        page = REPOSITORY / "docs" / "performance.md"
        page.write_text(with_table(page.read_text(), markdown(results)))


if __name__ == "__main__":
    main()
