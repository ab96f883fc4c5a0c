#!/usr/bin/env bash
# Compiles every kernel unit to machine code for every architecture and reads the result. Fails if a function spills
# registers or keeps a stack frame, or if a kernel that moves messages has no 128-bit loads and stores of global memory.
#
#   scripts/check-sass.sh [ARCH...]      default: 80 90 100 120
#
# Finds nvcc and the disassembler as build.rs does. NUM_JOBS limits how many compilers run at once.
set -euo pipefail
cd "$(dirname "$0")/.."
architectures=("${@:-}")
[[ -n "${architectures[0]}" ]] || architectures=(80 90 100 120)

find_tool() {
    local folder
    for folder in "${CUDA_HOME:+$CUDA_HOME/bin}" "${CUDA_PATH:+$CUDA_PATH/bin}" "$(dirname "$(command -v "$1" || echo /nowhere/x)")" \
        .nvcc/nvidia/cu13/bin; do
        [[ -n "$folder" && -x "$folder/$1" ]] && { echo "$folder/$1"; return; }
    done
    echo "check-sass: $1 not found (CUDA_HOME, CUDA_PATH, PATH, .nvcc); scripts/install-nvcc.sh fetches it" >&2
    return 1
}
NVCC=$(find_tool nvcc)
CUOBJDUMP=$(find_tool cuobjdump)
# cuobjdump runs nvdisasm.
PATH="$(dirname "$(find_tool nvdisasm)"):$PATH"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export NVCC CUOBJDUMP work PATH

# One unit for one architecture: prints a line that begins with "ok" or, for each fault, "FAIL".
check_one() {
    local source=$1 arch=$2 unit cubin
    unit=$(basename "$source" .cu)
    unit=${unit#unit_}
    cubin="$work/$unit.$arch.cubin"
    if ! "$NVCC" -cubin --options-file kernels/nvcc.flags -gencode="arch=compute_$arch,code=sm_$arch" -Xptxas -v \
        -o "$cubin" "$source" >"$cubin.log" 2>&1 || ! "$CUOBJDUMP" -sass "$cubin" >"$cubin.sass"; then
        echo "FAIL $unit sm_$arch: does not compile"
        cat "$cubin.log"
        return
    fi
    # ptxas says: "Compiling entry function 'NAME' for ...", then for it and each function it calls "Function properties
    # for NAME" and "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads", then "Used 64 registers, ...".
    awk -v where="$unit sm_$arch" '
        FNR == NR && /Compiling entry function/ { split($0, quoted, "\047"); kernels += !((quoted[2]) in entry); entry[quoted[2]] = 1 }
        FNR == NR && /Function properties for/ { name = $NF; if (!(name in stack)) { names[++count] = name } }
        FNR == NR && /bytes stack frame/ { stack[name] = $1; stores[name] = $5; loads[name] = $9 }
        FNR == NR && /Used [0-9]+ registers/ { match($0, /Used [0-9]+/); used = substr($0, RSTART + 5, RLENGTH - 5) + 0
                                               if (used > most) most = used }
        FNR == NR { next }
        /Function :/ { name = $NF }
        # Generic (LD) and global (LDG) forms; modifiers such as .E.NA.STRONG.SYS come between.
        /[ \t]LDG?\.[A-Z0-9.]*128/ { wide_loads[name]++ }
        /[ \t]STG?\.[A-Z0-9.]*128/ { wide_stores[name]++ }
        END {
            if (!kernels) { print "FAIL " where ": ptxas reported no kernel"; exit }
            for (i = 1; i <= count; i++) {
                name = names[i]
                why = ""
                if (stores[name] + loads[name]) why = why "; spills " stores[name] " bytes out, " loads[name] " in"
                if (stack[name] + 0) why = why "; " stack[name] " bytes of stack"
                # The busy kernel only keeps multiprocessors busy beside a collective.
                moves = name in entry && name !~ /^busy/
                if (moves && !wide_loads[name]) why = why "; no 128-bit global load"
                if (moves && !wide_stores[name]) why = why "; no 128-bit global store"
                if (why) { bad = 1; print "FAIL " where " " name ": " substr(why, 3) }
            }
            if (!bad) print "ok " where ": " kernels " kernels, at most " most " registers"
        }' "$cubin.log" "$cubin.sass"
}
export -f check_one

shopt -s nullglob
units=(kernels/unit_*.cu)
shopt -u nullglob
if [[ ${#units[@]} -eq 0 ]]; then
    echo "check-sass: no kernels/unit_*.cu" >&2
    exit 1
fi
for arch in "${architectures[@]}"; do printf '%s\n' "${units[@]/%/ $arch}"; done |
    xargs -P "${NUM_JOBS:-$(nproc)}" -L 1 bash -c 'check_one "$@"' _ | tee "$work/all"
jobs=$((${#units[@]} * ${#architectures[@]}))
passed=$(grep -c '^ok ' "$work/all" || true)
echo "check-sass: $passed of $jobs (unit, architecture) pairs pass"
[[ "$passed" -eq "$jobs" ]]
