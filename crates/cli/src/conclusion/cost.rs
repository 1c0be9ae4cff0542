//! The cost of one operation, beside the bound and the best rival.

use std::collections::BTreeMap;

use super::figures::{Figures, Params, best_of, is_bound, is_rival, median, ratio, with_unit};
use crate::design::variant::PARAMS;
use crate::names::Design;
use crate::report::better::{Better, better};
use crate::report::document::ResultRow;

/// The words for the figures of a workload.
struct CostWords {
    workload: &'static str,
    metric: &'static str,
    params: Params<'static>,
    /// The text that the figure follows.
    what: &'static str,
}

const SAID: &[CostWords] = &[
    CostWords {
        workload: "hot",
        metric: "pair_ns",
        params: &[],
        what: "A page allocated and freed costs",
    },
    CostWords {
        workload: "pagealloc",
        metric: "total_ns",
        params: &[("order", 0), ("batch", 512)],
        what: "Of 512 pages allocated and then freed, each costs",
    },
    CostWords {
        workload: "producer-consumer",
        metric: "frame_ns",
        params: &[],
        what: "A page allocated on one CPU and freed on another costs",
    },
    CostWords { workload: "touch", metric: "touches_per_s", params: &[], what: "Pages touched:" },
    CostWords { workload: "pft", metric: "fault_ns", params: &[], what: "A page fault costs" },
    CostWords {
        workload: "ring-stream",
        metric: "mib_per_s",
        params: &[("message_bytes", 16 << 10)],
        what: "Data sent:",
    },
    CostWords {
        workload: "netperf",
        metric: "udp_stream_mib_per_s",
        params: &[],
        what: "Data sent by UDP:",
    },
    CostWords {
        workload: "replay-build",
        metric: "elapsed_s",
        params: &[("recorded_speed", 0)],
        what: "The page events of the build take",
    },
    CostWords {
        workload: "process-magazines",
        metric: "op_ns",
        params: &[("drains_per_s", 0)],
        what: "An allocation or a free of a process that allocates much costs",
    },
    CostWords {
        workload: "fragmentation",
        metric: "realloc_ns",
        params: &[],
        what: "A frame freed and another allocated cost",
    },
    CostWords {
        workload: "mixed",
        metric: "op_ns",
        params: &[],
        what: "An allocation or a free of mixed memory costs",
    },
    CostWords {
        workload: "mass-exit",
        metric: "exit_ns",
        params: &[],
        what: "A page freed as all processes exit costs",
    },
    CostWords {
        workload: "purger",
        metric: "page_ns",
        params: &[],
        what: "A page that another thread frees costs",
    },
    CostWords {
        workload: "madvise",
        metric: "touch_ns",
        params: &[("advice", 4)],
        what: "The first write to a page that MADV_DONTNEED gave back costs",
    },
    CostWords {
        workload: "soak",
        metric: "pages",
        params: &[],
        what: "No page was lost or handed out twice. Pages touched in a turn:",
    },
];

/// One sentence about a page on the fewest CPUs, and one about all CPUs at once.
pub fn sentences(figures: &Figures<'_>) -> Vec<String> {
    let said = SAID.iter().find(|said| said.workload == figures.workload);
    let (metric, params) = match (said, figures.first_metric()) {
        (Some(said), _) => (said.metric, said.params),
        (None, Some(metric)) => (metric, &[][..]),
        (None, None) => return Vec::new(),
    };
    let rows = over_rounds(&figures.of(metric, params));
    let rows: Vec<&ResultRow> = rows.iter().collect();
    let Some(subject) = figures.subject(metric, params) else { return Vec::new() };
    let Some(first) = rows.iter().copied().find(|row| row.design == subject) else {
        return Vec::new();
    };
    let what = said.map_or_else(|| named(first), |said| said.what.to_owned());
    let beside: Vec<&ResultRow> = rows.iter().copied().filter(|row| is_like(row, first)).collect();
    let Some(one) = one(first, &beside, &what) else { return Vec::new() };
    // Rows of a workload without words of its own may be of other things, by their params.
    let is_same = |row: &ResultRow| said.is_some() || shape(row) == shape(first);
    let largest = rows.iter().copied().filter(|row| row.design == subject && is_same(row));
    let largest = largest.max_by_key(|row| row.cpus).filter(|row| row.cpus > first.cpus);
    let all = largest.and_then(|largest| {
        let beside = rows.iter().copied().filter(|row| is_like(row, largest));
        all(largest, &beside.collect::<Vec<_>>())
    });
    [Some(one), all].into_iter().flatten().collect()
}

/// The rows, those of a workload's rounds as one: its table has all of them in one figure, too.
fn over_rounds(rows: &[&ResultRow]) -> Vec<ResultRow> {
    let mut merged: Vec<ResultRow> = Vec::new();
    for &row in rows {
        let mut row = row.clone();
        row.params.remove("round");
        let is_same = |other: &&mut ResultRow| {
            (&other.design, other.cpus, &other.params) == (&row.design, row.cpus, &row.params)
        };
        match merged.iter_mut().find(is_same) {
            Some(other) => other.samples.append(&mut row.samples),
            None => merged.push(row),
        }
    }
    merged
}

/// The beginning of a sentence about a figure that has no words: its name and its params.
fn named(row: &ResultRow) -> String {
    let params: Vec<String> =
        shape(row).iter().map(|(name, value)| format!("{name} {value}")).collect();
    let params =
        if params.is_empty() { String::new() } else { format!(" ({})", params.join(", ")) };
    format!("{}: {}{params} is", row.workload, row.metric)
}

/// The params of a row that say what was measured, and not in which variant of a design.
fn shape(row: &ResultRow) -> BTreeMap<String, i64> {
    let mut params = row.params.clone();
    params.retain(|name, _| !PARAMS.contains(&name.as_str()));
    params
}

/// Whether both are the same figure of two designs.
fn is_like(row: &ResultRow, other: &ResultRow) -> bool {
    row.cpus == other.cpus && shape(row) == shape(other)
}

fn rival<'r>(of: &ResultRow, beside: &[&'r ResultRow]) -> Option<&'r ResultRow> {
    best_of(beside.iter().copied().filter(|row| is_rival(row, &of.design)))
}

fn one(of: &ResultRow, beside: &[&ResultRow], what: &str) -> Option<String> {
    let value = median(of)?;
    let mut sentence = format!("{what} {} with {}", with_unit(value, &of.unit), of.design);
    if is_bound(&of.design) {
        return Some(sentence + ", which is a bound, not an allocator.");
    }
    let floor = [Design::FloorRseq, Design::FloorTls]
        .iter()
        .find_map(|floor| beside.iter().find(|row| row.design == floor.name()));
    if better(of) == Better::Lower
        && let Some(floor) = floor
        && let (Some(least), Some(times)) = (median(floor), ratio(of, floor))
    {
        let floor = &floor.design;
        sentence += &if of.workload == "producer-consumer" {
            // The bound makes pages up, and forgets them.
            let ring = with_unit(least, &of.unit);
            format!(", of which the ring between the CPUs costs {ring} ({floor}, a bound)")
        } else if floor == Design::FloorRseq.name() {
            format!(", {times:.1} times a bare restartable sequence ({floor}, a bound)")
        } else {
            format!(", {times:.1} times a thread's own list ({floor}, a bound)")
        };
    }
    if let Some(rival) = rival(of, beside)
        && let (Some(theirs), Some(ratio)) = (median(rival), ratio(rival, of))
        && value != 0.0
    {
        let is_time = matches!(&*of.unit, "ns" | "us" | "ms" | "s");
        let (verb, times) = match better(of) {
            Better::Lower if is_time => ("takes", "times as long"),
            Better::Lower => ("has", "times as much"),
            _ => ("has", "times as many"),
        };
        let theirs_with_unit = with_unit(theirs, &rival.unit);
        sentence += &format!("; {}, the best rival here, {verb} {theirs_with_unit}", rival.design);
        // Shares are fractions already.
        if of.unit != "1" {
            sentence += &format!(", {ratio:.1} {times}");
        }
    }
    Some(sentence + ".")
}

fn all(of: &ResultRow, beside: &[&ResultRow]) -> Option<String> {
    let is_cost = better(of) == Better::Lower;
    let (verb, each) = if is_cost { ("costs", " on each") } else { ("is", "") };
    let mut sentence =
        format!("On {} CPUs at once it {verb} {}{each}", of.cpus, with_unit(median(of)?, &of.unit));
    if let Some(rival) = rival(of, beside)
        && let Some(theirs) = median(rival)
    {
        sentence += &format!("; with {} {}", rival.design, with_unit(theirs, &rival.unit));
    }
    Some(sentence + ".")
}
