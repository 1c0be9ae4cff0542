#!/usr/bin/env python3
"""Turns the tables of five linux-mm mails into result files that `pagedepot-lab compare` reads.

    convert.py RCU_MAIL VMAP_MAIL NETPERF_MAIL MAGAZINE_MAIL

The mails, as plain text:
  RCU_MAIL       "[PATCH 0/2] mm/page_alloc: Remote per-cpu lists drain support", 8 February 2022
  VMAP_MAIL      "Re: [PATCH v3 00/11] Mitigate a vmap lock contention v3", February 2024
  NETPERF_MAIL   "Re: [mm/page_alloc] f26b3fa046: netperf.Throughput_Mbps -18.0% regression", 29 April 2022
  MAGAZINE_MAIL  the 2013 prototype of magazines in place of per-CPU lists (its cover letter)
The fifth thread, the bug report in answer to RCU_MAIL, has no table of results.

Every figure is copied from a mail; none is computed. A mail prints means, not samples, so rows have
`printed` in place of `samples`: the figures of one column, the percentages beside them as printed, and
whether the mean had a star. Files are written next to this program, one per machine.
"""
import json
import pathlib
import re
import sys

HERE = pathlib.Path(__file__).parent
NUMBER = r"-?\d+(?:\.\d+)?"


def row(workload, design, metric, unit, cpus, params, printed):
    return {"workload": workload, "design": design, "metric": metric, "unit": unit, "cpus": cpus,
            "params": params, "median": None, "samples": [], "printed": printed}


def write(name, source, machine, command, rows):
    assert rows, name
    head = {"schema": 1, "source": source, "machine": machine, "command": command, "seed": None}
    text = json.dumps(head, indent=1)[:-2]  # without the closing brace
    lines = ",\n".join("  " + json.dumps(one) for one in rows)
    (HERE / f"{name}.json").write_text(f'{text},\n "results": [\n{lines}\n ]\n}}\n')
    print(f"{name}: {len(rows)} rows")


def printed(mean, percent=None, star=False, text=None):
    """A figure, its percentage, and how many decimals the mail gave: what rounding hides."""
    figures = {"mean": float(mean)}
    if percent is not None:
        figures["percent"] = {"mean": float(percent)}
    figures["decimals"] = decimals(mean)
    figures["star"] = star
    return figures


def decimals(figure):
    return len(figure.partition(".")[2])


def rcu(mail):
    source = ("Nicolas Saenz Julienne, [PATCH 0/2] mm/page_alloc: Remote per-cpu lists drain support, "
              "linux-mm, 8 February 2022")
    line = re.compile(rf"Amean (system|elapsed)-(\d+) ({NUMBER}) \( ?0\.00%\) ({NUMBER}) "
                      rf"([*(]) ?({NUMBER})%[*)]")
    machines = [("AMD Daytona", "rcu-epyc-7742", 128), ("AMD Speedway", "rcu-epyc-7601", 128),
                ("IBM 9006-22C", "rcu-power9", 128), ("Ampere MtSnow", "rcu-neoverse-n1", 80),
                ("Dell R430", "rcu-xeon-e5-2640", 32), ("HPE Apollo 70", "rcu-thunderx2", 256),
                ("Raspberry Pi 4", "rcu-cortex-a72", 4)]
    for start, name, cpus in machines:
        section = mail[mail.index(f"- {start}"):]
        section = section[2:section.find("\n- ", 2)] if "\n- " in section[2:] else section[2:]
        title = " ".join(section[:section.index("pft timings")].split())
        rows = []
        for metric, clients, base, new, mark, percent in line.findall(section):
            common = (f"{metric}_s", "s", min(int(clients), cpus), {"clients": int(clients)})
            rows.append(row("pft", "vanilla", *common, printed(base)))
            rows.append(row("pft", "rcu", *common, printed(new, percent, mark == "*")))
        write(f"2022-{name}", source, {"cpu": title}, "mmtests pft", rows)


def netperf(mail):
    source = ("Aaron Lu, Re: [mm/page_alloc] f26b3fa046: netperf.Throughput_Mbps -18.0% regression, "
              "linux-mm, 29 April 2022; designs are what nr_pcp_high() returns under free_high")
    designs = ["pcp->high", "0", "pcp->batch", "(pcp->batch << 2)"]
    names = ["high", "0", "batch", "4*batch"]
    heading = next(line for line in mail.splitlines() if line.startswith("machine\\nr_pcp_high() ret:"))
    assert heading.split(": ", 1)[1] == " ".join(designs)
    for start, name in (("skylake desktop", "skylake"), ("icelake 2sockets", "icelake")):
        figures = re.search(rf"^{start}: (\d+) (\d+) (\d+) (\d+)$", mail, re.M).groups()
        rows = [row("netperf-udp-stream", design, "throughput_mbps", "Mb/s", 1, {"threads": 1}, printed(figure))
                for design, figure in zip(names, figures)]
        write(f"2022-netperf-{name}", source, {"cpu": start}, "netperf UDP_STREAM", rows)


def magazine(mail):
    source = ("the magazine prototype in place of per-CPU lists, cover letter, linux-mm, 2013; profiling "
              "was running; the unit of pagealloc's times is not given; 8 CPUs because pft had up to 8 clients")
    machine = {"cpu": "a single socket i7 with 16G RAM"}
    pair = rf"({NUMBER}) \( ?0\.00%\) ({NUMBER}) \( ?({NUMBER})%\)"
    rows = []
    for metric in ("User", "System", "Elapsed", "CPU"):
        unit = ("cpu_percent", "%") if metric == "CPU" else (f"{metric.lower()}_s", "s")
        both = [{"percent": {}}, {"percent": {}}]
        for figure, base, new, percent in re.findall(rf"{metric} (min|mean|stddev|max|range) {pair}", mail):
            both[0][figure], both[1][figure] = float(base), float(new)
            both[0]["decimals"] = both[1]["decimals"] = decimals(base)
            both[1]["percent"][figure] = float(percent)
        for design, figures in zip(("vanilla", "magazine"), both):
            rows.append(row("kernbench", design, *unit, 8, {}, figures | {"star": False}))
    for order, metric, batch, base, new, percent in re.findall(
            rf"order-(\d+) (alloc|free|total)-(\d+) {pair}", mail):
        common = (metric, "not given", 1, {"order": int(order), "batch": int(batch)})
        rows.append(row("pagealloc", "vanilla", *common, printed(base)))
        rows.append(row("pagealloc", "magazine", *common, printed(new, percent)))
    for metric, clients, base, new, percent in re.findall(rf"Faults/(cpu|sec) (\d+) {pair}", mail):
        name = {"cpu": "faults_per_cpu_s", "sec": "faults_per_s"}[metric]
        common = (name, "1/s", int(clients), {"clients": int(clients)})
        rows.append(row("pft", "vanilla", *common, printed(base)))
        rows.append(row("pft", "magazine", *common, printed(new, percent)))
    write("2013-magazine-i7", source, machine, "mmtests kernbench, pagealloc, pft", rows)


def vmap(mail):
    source = ("Uladzislau Rezki, Re: [PATCH v3 00/11] Mitigate a vmap lock contention v3, linux-mm, "
              "February 2024")
    times = re.findall(r"real\s+(\d+)m([\d.]+)s\n> user\s+(\d+)m([\d.]+)s\n> sys\s+(\d+)m([\d.]+)s", mail)
    spins = re.findall(r">\s+[\d.]+%\s+([\d.]+)%  \[kernel\]\s+\[k\] native_queued_spin_lock_slowpath", mail)
    assert len(times) == 2 and len(spins) == 2
    rows = []
    for design, one, spin in zip(("vanilla", "vmap-nodes"), times, spins):
        common = (64, {"run_test_mask": 7, "threads": 64})
        # Minutes and seconds, in seconds: the one place where a figure is put in another unit.
        seconds = round(60 * int(one[0]) + float(one[1]), 3)
        rows.append(row("test_vmalloc", design, "elapsed_s", "s", *common, printed(f"{seconds:.3f}")))
        rows.append(row("test_vmalloc", design, "spinning_percent", "%", *common, printed(spin)))
    write("2024-vmap-3970x", source, {"cpu": "AMD Ryzen Threadripper 3970X 32-Core Processor"},
          "test_vmalloc.sh run_test_mask=7 nr_threads=64", rows)
    tests = re.split(r"\n\d\) sudo ", mail)[1:]
    rows = []
    for test in tests:
        threads = int(re.search(r"nr_threads=(\d+)", test).group(1))
        calls = re.search(r"(\d+) include/linux/mm\.h:\d+ module:memory func:pagetable_alloc", test).group(1)
        rows.append(row("test_vmalloc", "vmap-nodes", "pagetable_pages", "pages", 64,
                        {"run_test_mask": 127, "threads": threads}, printed(calls)))
    write("2024-vmap-page-tables", source, {"cpu": "quemu x86_64 system, 64 CPUs, 64G of memory"},
          "test_vmalloc.sh run_test_mask=127", rows)


def main():
    if len(sys.argv) != 5:
        sys.exit(__doc__.split("\n\n")[1].strip())
    mails = [pathlib.Path(path).read_text() for path in sys.argv[1:]]
    for convert, mail in zip((rcu, vmap, netperf, magazine), mails):
        convert(mail)


if __name__ == "__main__":
    main()
