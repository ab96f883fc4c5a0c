#!/usr/bin/env bash
# Puts what a machine with GPUs and without Rust needs to test and measure into gpu-bundle/: the stripped tests that
# use GPUs (tests/cuda*.rs), benches, examples, the `ringleader` command, and run.sh, which runs the tests.
#
#   scripts/gpu-bundle.sh [PROFILE]      a cargo profile; default: release
#
# RINGLEADER_CUDA_ARCH (default 90) says for which compute capabilities.
set -euo pipefail
cd "$(dirname "$0")/.."
profile=${1:-release}
export RINGLEADER_CUDA_ARCH=${RINGLEADER_CUDA_ARCH:-90}
limit=$((64 << 20))

shopt -s nullglob
tests=() benches=()
for file in tests/cuda*.rs; do tests+=(--test "$(basename "$file" .rs)"); done
for file in benches/*.rs; do benches+=(--bench "$(basename "$file" .rs)"); done
shopt -u nullglob

messages=$(mktemp)
trap 'rm -f "$messages"' EXIT
# Prints the executables that a cargo command makes.
executables() {
    cargo "$@" --profile "$profile" --message-format=json-render-diagnostics >"$messages"
    if ! grep -q '"cfgs":\[[^]]*ringleader_kernels' "$messages"; then
        echo "gpu-bundle: built without kernels; see the warning above" >&2
        return 1
    fi
    sed -n 's/.*"executable":"\([^"]*\)".*/\1/p' "$messages"
}

rm -rf gpu-bundle
mkdir -p gpu-bundle/tests gpu-bundle/bin
# cargo adds a hash to the names of tests and benches.
install_stripped() {
    local name
    name=$(basename "$1" | sed -E 's/-[0-9a-f]{16}$//')
    strip -o "gpu-bundle/$2/$name" "$1"
}
if [[ ${#tests[@]} -gt 0 ]]; then
    made=$(executables test --no-run "${tests[@]}")
    for file in $made; do
        case $(basename "$file") in
        ringleader) ;; # the command, which cargo builds for integration tests
        *) install_stripped "$file" tests ;;
        esac
    done
fi
made=$(executables build --bins --examples "${benches[@]}")
for file in $made; do install_stripped "$file" bin; done
cp scripts/gpu-run.sh gpu-bundle/run.sh

size=$(du -sb gpu-bundle | cut -f1)
find gpu-bundle -type f -printf '%10s %p\n' | sort -k2
echo "gpu-bundle: $((size >> 10)) KiB for compute capability $RINGLEADER_CUDA_ARCH"
if [[ $size -gt $limit ]]; then
    echo "gpu-bundle: larger than $((limit >> 20)) MiB" >&2
    exit 1
fi
