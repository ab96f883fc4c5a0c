#!/usr/bin/env bash
# Runs the tests of a GPU bundle, made by scripts/gpu-bundle.sh.
#
#   ./run.sh --gpus N [--timeout SECONDS] [--only TEST] [-- ARGUMENT...]
#
# Fails if the machine has fewer than N GPUs, or if any test executable fails or takes longer than the limit (default
# 300 s each). What follows `--` goes to the test executables: a filter, --nocapture.
set -uo pipefail
cd "$(dirname "$0")"

usage() {
    sed -n "s/^#   //p" "$(basename "$0")" >&2
    exit 2
}
gpus='' limit=300 only=''
while [[ $# -gt 0 ]]; do
    case $1 in
    --gpus) gpus=${2:-} && shift 2 || usage ;;
    --timeout) limit=${2:-} && shift 2 || usage ;;
    --only) only=${2:-} && shift 2 || usage ;;
    --) shift && break ;;
    *) usage ;;
    esac
done
[[ $gpus =~ ^[0-9]+$ && $limit =~ ^[0-9]+$ ]] || usage

found=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU ')
nvidia-smi -L 2>/dev/null
if [[ $found -lt $gpus ]]; then
    echo "run.sh: found $found GPUs, asked for $gpus" >&2
    exit 1
fi

# Tests must not pass by finding no GPU; and they share the devices, so one at a time unless the caller says otherwise.
export RINGLEADER_REQUIRE_GPU=1 RUST_TEST_THREADS=${RUST_TEST_THREADS:-1}
failed=0 ran=0 summary=''
for test in tests/*; do
    [[ -x $test ]] || continue
    name=$(basename "$test")
    [[ -z $only || $name == "$only" ]] || continue
    printf '\n== %s\n' "$name"
    start=$SECONDS
    log=$(mktemp)
    timeout --kill-after=10 "$limit" "$test" "$@" 2>&1 | tee "$log"
    status=${PIPESTATUS[0]}
    result=$(grep '^test result:' "$log" | tail -1)
    rm -f "$log"
    case $status in
    0) verdict=ok ;;
    124 | 137) verdict="FAILED: no end within $limit s" ;;
    *) verdict="FAILED with exit status $status" ;;
    esac
    [[ $status -eq 0 ]] || failed=$((failed + 1))
    ran=$((ran + 1))
    summary+=$(printf '%-20s %4d s  %s  %s' "$name" $((SECONDS - start)) "$verdict" "${result#test result: }")$'\n'
done

printf '\n== summary: %d of %d test executables pass on %d GPUs\n%s' $((ran - failed)) "$ran" "$found" "$summary"
[[ $ran -gt 0 && $failed -eq 0 ]]
