#!/usr/bin/env bash
# Fetches nvcc from PyPI into .nvcc/, where build.rs looks for it. Needs Python 3 with pip (or uv), a host C++
# compiler, and no root. Remove the folder to undo.
set -euo pipefail
cd "$(dirname "$0")/.."

packages=('nvidia-cuda-nvcc==13.0.*' 'nvidia-cuda-runtime==13.0.*' 'nvidia-cuda-crt==13.0.*' 'nvidia-nvvm==13.0.*'
          'nvidia-cuda-cccl==13.0.*')
# The disassemblers read every older format; only scripts/check-sass.sh needs them.
packages+=('nvidia-cuda-cuobjdump==13.*' 'nvidia-cuda-nvdisasm==13.*')

if python3 -m pip --version >/dev/null 2>&1; then
    install=(python3 -m pip install --quiet --disable-pip-version-check)
elif command -v uv >/dev/null; then
    install=(uv pip install --quiet)
else
    echo "install-nvcc: needs Python 3 with pip, or uv (Debian: apt-get install python3-pip)" >&2
    exit 1
fi
rm -rf .nvcc.new
# The wheels depend on each other only; all are named here, so that none comes in another version.
"${install[@]}" --no-deps --target .nvcc.new "${packages[@]}"
rm -rf .nvcc
mv .nvcc.new .nvcc

command -v c++ g++ >/dev/null || echo "install-nvcc: nvcc also needs a host C++ compiler (Debian: apt-get install g++)" >&2
.nvcc/nvidia/cu13/bin/nvcc --version | tail -2
# build.rs cannot watch for a file that does not exist yet: this makes cargo run it again.
touch build.rs
