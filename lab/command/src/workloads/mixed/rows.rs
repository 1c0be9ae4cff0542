//! Rows and the table of what all runs found.

use super::ends::End;
use super::params::published;
use pagedepot_cli::names::Design;
use pagedepot_cli::report::rows::Metric;
use pagedepot_cli::report::{Report, counted, table};
use pagedepot_cli::workloads::shape::Shape;

/// The workload of all rows.
pub const NAME: &str = "mixed";

/// A metric, and where an [`End`] has it.
type Figure = (Metric, fn(&End) -> f64);

const METRICS: [Figure; 14] = [
    (("whole_share", "1"), |end| end.whole_share),
    (("gib_ranges", "ranges"), |end| end.gib_ranges),
    (("tainted_share", "1"), |end| end.tainted_share),
    (("mixed_share", "1"), |end| end.mixed_share),
    (("packed_share", "1"), |end| end.packed_share),
    (("gib_allocated", "ranges"), |end| end.gib_allocated),
    (("gib_ns", "ns"), |end| end.gib_ns),
    (("gib_compacted", "ranges"), |end| end.gib_compacted),
    (("gib_compact_ns", "ns"), |end| end.gib_compact_ns),
    (("moved_pages", "pages"), |end| end.moved_pages),
    (("churn_moved_pages", "pages"), |end| end.churn_moved_pages),
    (("huge_allocated", "blocks"), |end| end.huge_allocated),
    (("huge_ns", "ns"), |end| end.huge_ns),
    (("fallbacks", "blocks"), |end| end.fallbacks),
];
const OP: Metric = ("op_ns", "ns");

/// Samples of all runs of a design.
#[derive(Clone, Debug, Default)]
pub struct DesignSamples {
    /// Samples of each round of each run.
    op_ns: Vec<f64>,
    ends: Vec<End>,
}

impl DesignSamples {
    /// Adds a run.
    pub fn add(&mut self, op_ns: &[f64], end: Option<End>) {
        self.op_ns.extend(op_ns);
        self.ends.extend(end);
    }

    fn samples(&self, of: fn(&End) -> f64) -> Vec<f64> {
        self.ends.iter().map(of).collect()
    }
}

/// Adds a row per design and metric.
pub fn add(report: &mut Report, shape: &Shape, designs: &[Design], found: &[DesignSamples]) {
    let mut params = shape.params(shape.rounds);
    params.insert("surges", shape.surges_percent.into());
    params.insert("moves", i64::from(shape.moves));
    for (&design, found) in designs.iter().zip(found) {
        let place = (shape.threads, &params);
        for (metric, of) in METRICS {
            report.add(NAME, design, metric, place, &found.samples(of));
        }
        report.add(NAME, design, OP, place, &found.op_ns);
    }
}

/// The table.
pub fn show(report: &mut Report, shape: &Shape, designs: &[Design], found: &[DesignSamples]) {
    report.say(format!(
        "{NAME}: {} MiB, {} % free in the end, {}, {}; median of {}\n{}",
        shape.mib(),
        shape.free_percent,
        counted(shape.threads, "thread"),
        counted(shape.rounds as usize, "round"),
        counted(shape.runs as usize, "run"),
        published(shape.surges_percent)
    ));
    let possible = (shape.pages - shape.held_pages()) >> pagedepot_designs::GIB_LOG2;
    report.say(format!(
        "In the end: pageblocks wholly free, tainted, and tainted with movable memory in\n\
         them (both), in % of all; free ranges of 1 GiB (at most {possible}), those had, and\n\
         us for each; blocks of 2 MiB had, and ns for each; ns per operation of the rounds"
    ));
    let headings =
        ["design", "whole", "tainted", "mixed", "GiB", "had", "us", "2 MiB", "ns", "op ns"];
    let mut table = table::new(headings);
    let percent = |end: fn(&End) -> f64, found: &DesignSamples| {
        table::median(&found.samples(end).iter().map(|share| share * 1e2).collect::<Vec<_>>())
    };
    for (design, found) in designs.iter().zip(found) {
        let gib_us: Vec<_> = found.samples(|end| end.gib_ns).iter().map(|ns| ns / 1e3).collect();
        table.add_row([
            design.name().to_owned(),
            percent(|end| end.whole_share, found),
            percent(|end| end.tainted_share, found),
            percent(|end| end.mixed_share, found),
            count(&found.samples(|end| end.gib_ranges)),
            count(&found.samples(|end| end.gib_allocated)),
            finite(&gib_us),
            count(&found.samples(|end| end.huge_allocated)),
            finite(&found.samples(|end| end.huge_ns)),
            table::median(&found.op_ns),
        ]);
    }
    report.say(table::align(table, 1));
    show_compacted(report, designs, found);
}

/// A second table, of the designs that move blocks.
fn show_compacted(report: &mut Report, designs: &[Design], found: &[DesignSamples]) {
    let mut table = table::new(["design", "had", "us", "pages moved", "in the rounds"]);
    for (design, found) in designs.iter().zip(found) {
        let had = found.samples(|end| end.gib_compacted);
        if had.iter().any(|had| had.is_finite()) {
            let us: Vec<_> =
                found.samples(|end| end.gib_compact_ns).iter().map(|ns| ns / 1e3).collect();
            table.add_row([
                design.name().to_owned(),
                count(&had),
                finite(&us),
                count(&found.samples(|end| end.moved_pages)),
                count(&found.samples(|end| end.churn_moved_pages)),
            ]);
        }
    }
    if !table.is_empty() {
        report.say(
            "Where page cache and anonymous memory may be moved: ranges of 1 GiB had, us for\n\
             each without copies, and pages moved for all of them; and pages moved in the\n\
             rounds, so that unmovable blocks need not be mixed among movable ones",
        );
        report.say(table::align(table, 1));
    }
}

/// A cell with the median of those samples that are numbers.
fn finite(samples: &[f64]) -> String {
    let numbers: Vec<_> = samples.iter().copied().filter(|sample| sample.is_finite()).collect();
    table::median(&numbers)
}

/// Formats samples that are whole numbers.
fn count(samples: &[f64]) -> String {
    let numbers: Vec<_> = samples.iter().copied().filter(|sample| sample.is_finite()).collect();
    pagedepot_cli::harness::samples::median(&numbers)
        .map_or_else(|| table::NONE.to_owned(), |median| format!("{median:.0}"))
}
