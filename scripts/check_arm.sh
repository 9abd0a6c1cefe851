#!/usr/bin/env bash
# The native kernels on 64-bit Arm, checked from an x86-64 machine: Clang compiles them for macOS, GCC builds the module
# for Linux, and an emulator runs tests/kernels with it. Everything lands in build/arm (about 1.5 GB).
#
#     scripts/check_arm.sh [pytest arguments, instead of tests/kernels]
#
# Wants Debian or Ubuntu with python3 of the distribution's own version, and
#     apt-get install qemu-user g++-aarch64-linux-gnu python3-venv
set -euo pipefail
cd "$(dirname "$0")/.."
here=$PWD/build/arm source=$PWD/csrc/cpu
version=$(python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')
mkdir -p "$here"

if [ ! -e "$here/tools/done" ]; then
  python3 -m venv "$here/tools"
  "$here/tools/bin/pip" install -q cmake ninja nanobind ziglang
  touch "$here/tools/done"
fi
export PATH=$here/tools/bin:$PATH

compile_for_macos() { # level, flags
  echo "compiling level $1 for macOS"
  python -m ziglang c++ -target aarch64-macos -std=gnu++20 -O3 -Wall -Wextra -Werror -ffp-contract=fast ${2:-} \
    -DFATHOM_LEVEL="$1" -c "$source/kernels.cpp" -o "$here/kernels_$1.o"
}
compile_for_macos neon
compile_for_macos neondot -mcpu=generic+dotprod
for file in dispatch thread_pool; do
  python -m ziglang c++ -target aarch64-macos -std=gnu++20 -Wall -Wextra -Werror -DFATHOM_HAS_neondot \
    -c "$source/$file.cpp" -o "$here/$file.o"
done

# Debian's Python for Arm and wheels for it, unpacked beside each other; nothing is installed on this machine.
if [ ! -e "$here/root/done" ]; then
  apt=$here/apt
  mkdir -p "$apt/lists/partial" "$apt/archives/partial" "$here/root" "$here/wheels" "$here/site"
  : > "$apt/status"
  options=(-o Dir::State::lists="$apt/lists" -o Dir::State::status="$apt/status" -o Dir::Cache::archives="$apt/archives"
    -o Dir::Cache::pkgcache= -o Dir::Cache::srcpkgcache= -o APT::Architecture=arm64 -o APT::Architectures=arm64)
  apt-get "${options[@]}" update
  apt-get "${options[@]}" install -y --download-only --no-install-recommends python3 python3-dev libgomp1 libstdc++6
  for package in "$apt"/archives/*.deb; do dpkg -x "$package" "$here/root"; done
  # 2.9.1: a later wheel for Arm brings CUDA along.
  pip download -q --no-deps --only-binary=:all: --python-version "$version" --platform manylinux_2_28_aarch64 \
    --platform manylinux_2_27_aarch64 --platform manylinux_2_17_aarch64 --platform manylinux2014_aarch64 \
    -d "$here/wheels" torch==2.9.1 numpy msgspec psutil sympy mpmath networkx filelock fsspec jinja2 markupsafe \
    typing_extensions tokenizers pyzmq setproctitle tqdm pytest pytest-timeout pluggy iniconfig packaging pygments hypothesis sortedcontainers
  for wheel in "$here"/wheels/*.whl; do python -m zipfile -e "$wheel" "$here/site"; done
  touch "$here/root/done"
fi

cmake -S . -B "$here/module" -G Ninja -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 \
  -DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++ -DCMAKE_CXX_FLAGS="-idirafter $here/root/usr/include" \
  -DPython_EXECUTABLE="$here/tools/bin/python" -DPython_INCLUDE_DIR="$here/root/usr/include/python$version" > "$here/cmake.log"
cmake --build "$here/module"

# A copy of the sources with that module in it.
rm -rf "$here/tree"
mkdir "$here/tree"
cp -r fathom tests pyproject.toml "$here/tree"
rm -f "$here"/tree/fathom/_cpu*.so
cp "$here"/module/_cpu*.so "$here/tree/fathom/_cpu.so"
cd "$here/tree"
export PYTHONPATH=$PWD:$here/site PYTHONHOME=$here/root/usr OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1
run() { qemu-aarch64 -cpu "$1" -L "$here/root" "$here/root/usr/bin/python$version" "${@:2}"; }
for processor in cortex-a72 neoverse-n1; do
  echo "levels on $processor: $(cd fathom && run $processor -c 'import _cpu; print(_cpu.levels())')"
done
[ $# -gt 0 ] || set -- tests/kernels
run max -m pytest -p no:cacheprovider --timeout=0 "$@"
