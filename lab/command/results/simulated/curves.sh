#!/usr/bin/env bash
# Simulates every workload by every design on 1, 2, 4 ... 256 CPUs of the default machine, and
# drains beside touch. Writes a file of results for each workload beside this one, and prints the
# tables. Takes about twenty minutes of a CPU. `pagedepot-lab report FILE...` draws the curves.
#
#     lab/command/results/simulated/curves.sh [PROGRAM]
set -euo pipefail
program=${1:-lab/target/release/pagedepot-lab}
here=$(dirname "$0")

# simulate FILE WORKLOAD WARM-UP MILLISECONDS [OPTION...]
simulate() {
    local file=$1 workload=$2 warm_up=$3 milliseconds=$4
    shift 4
    "$program" simulate "$workload" --warm-up "$warm_up" --milliseconds "$milliseconds" "$@" \
        --json "$here/$file.json"
}
# CPUs begin 2 us apart: no window begins before the last of 256 does.
simulate hot hot 0.6 0.05
simulate pagealloc pagealloc 0.6 0.05
simulate touch touch 4 1
simulate producer-consumer producer-consumer 1 0.2
simulate ring-stream ring-stream 3 1
# Lists have grown by then on 64 CPUs.
simulate mass-exit mass-exit 8 1
simulate purger purger 2 0.5
simulate vmalloc vmalloc 5 0.5
# The window has one drain of the slow ones in it.
simulate touch-100-drains touch 4 8 --drains 100
simulate touch-10000-drains touch 4 2 --drains 10000 --drainers 8
