"""Fetches what scripts/gpu_check.py imports beside torch, for a machine without a network.

    python scripts/gpu_check_bundle.py --python 3.12

Unpacks wheels of the versions of constraints.txt into build/gpu-check (about 6 MB), where gpu_check.py looks; copy that
folder with the checkout. Some are compiled, for one Python version on x86-64 Linux.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("msgspec", "psutil", "tqdm", "jinja2", "markupsafe", "pyzmq", "setproctitle")
# The oldest system libraries that there are wheels for; pip takes each tag by itself.
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64", "manylinux2010_x86_64")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    parser.add_argument("--python", default=here, help="the other machine's Python version (%(default)s)")
    parser.add_argument("folder", type=Path, nargs="?", default=ROOT / "build" / "gpu-check")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as wheels:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
        command += ["--python-version", options.python, "--implementation", "cp"]
        command += [flag for platform in PLATFORMS for flag in ("--platform", platform)]
        command += ["--constraint", str(ROOT / "constraints.txt"), "--dest", wheels, *PACKAGES]
        subprocess.run(command, check=True)
        options.folder.mkdir(parents=True, exist_ok=True)
        for wheel in sorted(Path(wheels).glob("*.whl")):
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(options.folder)
            print(wheel.name)


if __name__ == "__main__":
    main()
