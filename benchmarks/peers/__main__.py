"""Fathom beside llama.cpp, OpenVINO GenAI and vLLM: same weights, same prompts, same threads, in turns.

    python -m benchmarks.peers                                   # about 20 minutes, once all are installed
    python -m benchmarks.peers --only decode-1 prefill-512 --pairs 3 --rivals llama.cpp
    python -m benchmarks.peers --level avx2                      # everyone limited to AVX2
    python -m benchmarks.peers --only mixed-64 --rivals vLLM --formats float32 --pairs 2
    python -m benchmarks.peers --docs                            # and put table and plots into docs/

Rivals are installed on demand, outside of the repository. Results are kept as they come: the same command goes on
where it was interrupted, and with nothing left to measure it only prints.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.peers.contender import Contender
from benchmarks.peers.environments import ContenderError
from benchmarks.peers.fathom import Fathom
from benchmarks.peers.levels import LEVELS, NATIVE
from benchmarks.peers.llama_cpp import LlamaCpp
from benchmarks.peers.openvino import OpenVINO
from benchmarks.peers.race import Race
from benchmarks.peers.report import MARKS, markdown, ratio_lines, with_table, write_summary
from benchmarks.peers.results import REPOSITORY, Results, default_run, machine_facts
from benchmarks.peers.vllm import VLLM
from benchmarks.peers.works import WORKS
from fathom.hardware import detect_hardware
from fathom.weights.catalogue import CATALOGUE
from fathom.weights.download import pull

LIMITED: dict[str, Callable[[str], Contender]] = {kind.name: kind for kind in (LlamaCpp, OpenVINO)}
"""Rivals that keep to a level, and race by default."""
RIVALS = [*LIMITED, VLLM.name]


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [work.name for work in WORKS]
    parser.add_argument("--only", nargs="+", choices=names, metavar="WORK", help=f"of {', '.join(names)}")
    parser.add_argument("--rivals", nargs="*", choices=RIVALS, default=list(LIMITED), help="%(choices)s (%(default)s)")
    parser.add_argument("--formats", nargs="+", default=[], help="the rivals' formats, if not all are to be tried")
    parser.add_argument("--level", choices=LEVELS, default=NATIVE, help="instructions of everyone (%(default)s)")
    parser.add_argument("--pairs", type=int, default=5, help="rounds of each work (%(default)s)")
    parser.add_argument("--threads", type=int, default=detect_hardware().cores, help="of everyone (%(default)s)")
    parser.add_argument("--run", type=Path, help="folder of the results (named after day, commit and level)")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no round later than that")
    parser.add_argument("--docs", action="store_true", help="write the table and the plots to docs/")
    options = parser.parse_args()
    if options.level != NATIVE and VLLM.name in options.rivals:
        parser.error(f"{VLLM.name} cannot be limited to {options.level}: leave it out of --rivals")
    options.run = options.run or default_run(options.level)
    return options


def main() -> None:
    options = parse()
    os.environ.setdefault("FATHOM_LOGGING_LEVEL", "WARNING")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the engines are ended too
    results = Results(options.run)
    contenders: list[Contender] = [Fathom(options.level)]
    contenders += [VLLM() if name == VLLM.name else LIMITED[name](options.level) for name in options.rivals]
    works = [work for work in WORKS if options.only is None or work.name in options.only]
    versions = {}
    for contender in contenders:
        print(f"{contender.name}: installing, if need be", flush=True)
        try:
            versions[contender.name] = contender.install()
        except ContenderError as error:
            sys.exit(f"{contender.name}: {error}")
    try:
        results.write_machine(machine_facts(options.level, options.threads, versions))
    except ContenderError as error:
        sys.exit(str(error))
    deadline = time.monotonic() + 60 * options.minutes
    with Race(
        contenders, results, options.threads, lambda name: pull(CATALOGUE[name]), options.formats, deadline
    ) as race:
        for work in works:
            print(work.title, flush=True)
            race.run(work, options.pairs)
    print("", *ratio_lines(results), "", markdown(results), "", sep="\n")
    print(f"all of it: {write_summary(results)}")
    publish(results, options)


def publish(results: Results, options: argparse.Namespace) -> None:
    """Plots, of all that the processor has, and with --docs the page on performance."""
    if options.docs:
        page = REPOSITORY / "docs" / "performance.md"
        page.write_text(with_table(page.read_text(), markdown(results), *MARKS[options.level]))
    if options.level != NATIVE:
        return
    try:
        from benchmarks.peers.plots import draw
    except ImportError as error:
        print(f"no plots: {error}; pip install -e '.[bench]' brings matplotlib")
        return
    print("plots:", *draw(results, REPOSITORY / "docs" / "images" if options.docs else results.folder))


if __name__ == "__main__":
    main()
