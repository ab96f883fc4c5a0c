#!/usr/bin/env bash
# Compares all_reduce of f32 on CPU ranks with Open MPI on this machine, one after the other for each number of ranks.
# usage: scripts/compare-mpi.sh [LARGEST_BYTES [RANKS...]]
# Needs Open MPI (Debian and Ubuntu: apt-get install openmpi-bin libopenmpi-dev).
set -euo pipefail
cd "$(dirname "$0")/.."
largest=${1:-268435456}
shift || true
ranks=("$@")
[ ${#ranks[@]} -gt 0 ] || ranks=(2 4)
command -v mpicc >/dev/null || { echo "mpicc not found: install openmpi-bin and libopenmpi-dev" >&2; exit 1; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mpicc -O3 -o "$folder/mpi_allreduce" scripts/mpi_allreduce.c
cargo build --release --quiet --example cpu_latency
ours=${CARGO_TARGET_DIR:-target}/release/examples/cpu_latency
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
for n in "${ranks[@]}"; do
    mpirun -np "$n" --oversubscribe "$folder/mpi_allreduce" "$largest" >"$folder/mpi" 2>"$folder/err" ||
        { cat "$folder/err" >&2; exit 1; }
    "$ours" "$n" "$largest" >"$folder/ours"
    echo "all_reduce f32 sum, $n ranks, $(nproc) processors: median microseconds"
    echo "       bytes     Open MPI   ringleader      faster"
    paste "$folder/mpi" "$folder/ours" | awk '{ printf "%12d %12.2f %12.2f %10.2fx\n", $1, $2, $4, $2 / $4 }'
done
