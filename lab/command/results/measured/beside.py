#!/usr/bin/env python3
"""Prints what curves.sh measured beside what it simulated: ns per operation, and their ratio.

    beside.py FOLDER [--medians]

Of the rounds in which the CPUs were as far apart as in most: a host may run two CPUs on one core in
one of them, or far apart in another, and what a line's transfer takes says so. Of these the least,
measured and simulated, because hosts have phases in which all is slower, and some outlast what
`--topology here` measures; or the medians. One operation is of a CPU, of a pair of CPUs in
producer-consumer and ring-stream, of the purger in purger. Rows whose ratio is not from 0.75 to
1.25 have a `!`. A simulated window in which no operation ended has no row. Last, by workload, the
ratio of the design in the middle.
"""
import argparse
import collections
import json
import pathlib
import statistics
import sys

# By workload: the metrics whose sum is the time of an operation, and the params of the row that is
# simulated.
MEASURED = {
    "hot": (["pair_ns"], {}),
    "pagealloc": (["alloc_ns", "free_ns"], {"order": 0, "batch": 512}),
    "touch": (["touch_ns"], {}),
    "producer-consumer": (["frame_ns"], {}),
    "ring-stream": (["buffers_per_s"], {"message_bytes": 10240}),
    "mass-exit": (["alloc_ns", "exit_ns"], {}),
    "purger": (["page_ns"], {}),
}
RATIO_MIN, RATIO_MAX = 0.75, 1.25
# Of what a line's transfer takes in the middle run: other placements of two CPUs differ by twice.
TRANSFER_MIN, TRANSFER_MAX = 0.7, 1.4


def transfer_ns(results):
    """What moving a line took: by the topology, or half of a round trip; None: not known."""
    if topology := results["settings"].get("topology"):
        return topology["complex_ns"]
    trips = [trip["ns"] for trip in results["noise"]["round_trips"]]
    return statistics.median(trips) / 2 if trips else None


def placed_as_most(paths):
    """The files, read, of the runs whose transfers took about what they took in most."""
    files = [json.loads(path.read_text()) for path in paths]
    times = [time for time in map(transfer_ns, files) if time is not None]
    usual = statistics.median(times) if times else 0

    def is_usual(results):
        time = transfer_ns(results)
        return time is None or TRANSFER_MIN * usual <= time <= TRANSFER_MAX * usual

    kept = list(filter(is_usual, files))
    if len(kept) < len(files):
        left_out = len(files) - len(kept)
        print(f"{left_out} of {len(files)} runs left out: a line did not take about {usual:.0f} ns")
    return kept


def rows(results):
    """The workload, design, metric, CPUs, params and median of each row of a file."""
    for row in results["results"]:
        if row["median"] is not None:
            names = [row[key] for key in ("workload", "design", "metric", "cpus", "params")]
            yield *names, row["median"]


def measured(folder, of_rounds):
    """ns by workload, design and CPUs: of each metric that of the rounds, added up."""
    found = collections.defaultdict(lambda: collections.defaultdict(list))
    paths = [path for path in sorted(folder.glob("*.json")) if not is_simulated(path)]
    for results in placed_as_most(paths):
        for workload, design, metric, cpus, params, median in rows(results):
            metrics, wanted = MEASURED.get(workload, ([], {}))
            if metric in metrics and all(params.get(key) == value for key, value in wanted.items()):
                if metric == "buffers_per_s":
                    median = 1e9 * params["streams"] / median
                found[workload, design, cpus][metric].append(median)
    return {key: sum(map(of_rounds, of.values())) for key, of in found.items()}


def simulated(folder, of_rounds):
    """The same, as simulated."""
    found = collections.defaultdict(list)
    paths = [path for path in sorted(folder.glob("*.json")) if is_simulated(path)]
    for results in placed_as_most(paths):
        for workload, design, metric, cpus, _, median in rows(results):
            if metric == "ops_per_s" and median > 0:
                found[workload, design, cpus].append(1e9 / median * workers(workload, cpus))
    return {key: of_rounds(values) for key, values in found.items()}


def is_simulated(path):
    return path.name.startswith("simulated-")


def workers(workload, cpus):
    """How many do such operations at a time. One CPU of eight purges in the simulator."""
    if workload == "purger":
        return max(1, cpus // 8)
    return cpus // 2 if workload in ("producer-consumer", "ring-stream") else cpus


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=pathlib.Path, help="what curves.sh wrote")
    parser.add_argument("--medians", action="store_true", help="medians of the rounds, not least")
    args = parser.parse_args()
    of_rounds = statistics.median if args.medians else min
    beside = measured(args.folder, of_rounds)
    both = [
        (key, value, beside[key])
        for key, value in simulated(args.folder, of_rounds).items()
        if key in beside
    ]
    if not both:
        sys.exit(f"{args.folder}: no row is measured and simulated; curves.sh writes both")
    print(f"{'workload':18} {'design':17} CPUs  simulated  measured  ratio")
    by_workload = collections.defaultdict(list)
    for (workload, design, cpus), one, other in both:
        ratio = one / other
        by_workload[workload, cpus].append(ratio)
        mark = "" if is_within(ratio) else " !"
        print(f"{workload:18} {design:17} {cpus:4} {one:10.1f} {other:9.1f} {ratio:6.2f}{mark}")
    print(f"\n{'workload':18} CPUs  middle  least  most  within 25 %")
    for (workload, cpus), ratios in by_workload.items():
        middle, within = statistics.median(ratios), sum(map(is_within, ratios))
        print(
            f"{workload:18} {cpus:4} {middle:7.2f} {min(ratios):6.2f} {max(ratios):5.2f}"
            f"  {within} of {len(ratios)}"
        )
    within = sum(is_within(ratio) for ratios in by_workload.values() for ratio in ratios)
    print(f"{within} of {len(both)} rows within 25 %")


def is_within(ratio):
    return RATIO_MIN <= ratio <= RATIO_MAX


main()
