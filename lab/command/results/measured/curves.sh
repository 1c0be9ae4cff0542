#!/usr/bin/env bash
# Measures every workload by every design on 1, 2, 4 ... all CPUs of this machine, and simulates the
# same on its topology. Does both ROUNDS times in turn, and writes one file of results for each run
# to FOLDER. Takes three to four minutes a round on 16 CPUs. `pagedepot-lab report FOLDER/*.json`
# draws the curves.
#
#     lab/command/results/measured/curves.sh PROGRAM FOLDER [ROUNDS]
set -euo pipefail
program=$1
folder=$2
rounds=${3:-2}
all=$(nproc)
if ((all < 2)); then
    echo "some workloads need two CPUs, and this process may use one" >&2
    exit 2
fi
counts=()
for ((n = 1; n <= all; n *= 2)); do counts+=("$n"); done
((counts[-1] == all)) || counts+=("$all")
list() { (IFS=,; echo "$*"); }
mkdir -p "$folder"

# bench ROUND WORKLOAD CPUS [OPTION...]
bench() {
    "$program" bench "$2" --quick --cpus "$3" "${@:4}" --json "$folder/$2-$3.$1.json" >/dev/null
}

# simulate ROUND WORKLOAD WARM-UP MILLISECONDS CPUS
simulate() {
    "$program" simulate "$2" --cpus "$5" --topology here --retry-locks --warm-up "$3" \
        --milliseconds "$4" --json "$folder/simulated-$2.$1.json" >/dev/null
}
each=$(list "${counts[@]}")
# Pairs of CPUs, one that allocates and one that frees.
pairs=$(for n in "${counts[@]}"; do ((n % 2)) || echo "$n"; done | paste -sd,)

for ((round = 1; round <= rounds; round++)); do
    for workload in hot pagealloc producer-consumer mass-exit; do
        options=()
        [[ $workload != pagealloc ]] || options=(--order 0)
        bench "$round" "$workload" "$all" "${options[@]}"
    done
    "$program" compare --workload touch --quick --clients "$each" \
        --json "$folder/touch.$round.json" >/dev/null
    # These use all the CPUs that they may.
    for n in "${counts[@]:1}"; do
        bench "$round" ring-stream "$n"
        bench "$round" purger "$n"
    done
    for n in "${counts[@]}"; do
        "$program" vmalloc --nr-threads "$n" --run-test-mask 7 --test-loop-count 1000 \
            --test-repeat-count 1 --json "$folder/vmalloc-$n.$round.json" >/dev/null
    done
    simulate "$round" hot 1 0.2 "$each"
    simulate "$round" pagealloc 1 0.2 "$each"
    simulate "$round" touch 4 1 "$each"
    simulate "$round" producer-consumer 2 0.5 "$pairs"
    simulate "$round" ring-stream 3 1 "$pairs"
    simulate "$round" mass-exit 8 1 "$each"
    simulate "$round" purger 2 0.5 "$pairs"
done
