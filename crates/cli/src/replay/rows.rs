//! The result of a replay as rows of figures.

use super::contiguity::{Contiguity, Moment};
use super::look::Look;
use super::replayed::{CpuPages, Replay, ReplayResult};
use crate::names::Design;
use crate::report::Report;
use crate::report::rows::{BlockMap, Metric, Params, Series};

/// The workload of all rows.
const WORKLOAD: &str = "replay";

impl ReplayResult {
    /// The text and the rows: times have one sample per run; counts are the same in every run and
    /// have one sample. The recorded kernel is the design `kernel`. Rows are of the designs in
    /// `wanted`, or of all if that is empty.
    pub fn to_report(&self, wanted: &[Design]) -> Report {
        let is_wanted = |design| wanted.is_empty() || wanted.contains(&design);
        let mut report = Report::default();
        self.show(&mut report);
        for replay in self.replays.iter().filter(|replay| is_wanted(replay.design)) {
            self.add_design(&mut report, replay);
        }
        if is_wanted(Design::Kernel) {
            self.add_kernel(&mut report);
        }
        report
    }

    fn add_design(&self, report: &mut Report, replay: &Replay) {
        let (design, counts) = (replay.design, &replay.outcome.counts);
        let (cpus, params) = (self.trace.cpus.len(), &replay.params);
        report.add(WORKLOAD, design, ("event_ns", "ns"), (cpus, params), &replay.event_ns);
        for (metric, value) in [
            (("allocs", "blocks"), self.work.allocs.blocks()),
            (("frees", "blocks"), self.work.frees.blocks()),
            (("unknown_frees", "blocks"), self.work.unknown_frees),
            (("refilled_blocks", "blocks"), counts.refilled.blocks),
            (("spilled_blocks", "blocks"), counts.spilled.blocks),
            (("lost_frames", "pages"), replay.outcome.lost_frames.unsigned_abs()),
        ] {
            report.add(WORKLOAD, design, metric, (cpus, params), &[value as f64]);
        }
        add_cached(report, design, (cpus, params), &replay.cached_pages);
        add_looks(report, design, (cpus, params), &replay.outcome.looks);
        let (workload, design) = (WORKLOAD.to_owned(), design.name().to_owned());
        report.add_map(BlockMap {
            workload: workload.clone(),
            design: design.clone(),
            free_percent: replay.story.free_percent.clone(),
        });
        let points = thinned(&replay.story.cached_pages);
        let (metric, over) = ("cached_pages".to_owned(), "ms".to_owned());
        report.add_series(Series { workload, design, metric, over, points });
    }

    fn add_kernel(&self, report: &mut Report) {
        let (kernel, cpus, params) = (&self.kernel, self.trace.cpus_recorded, Params::new());
        for (metric, value, is_known) in [
            ("allocs", kernel.allocs, true),
            ("frees", kernel.frees, true),
            ("refilled_blocks", kernel.counts.refilled.blocks, kernel.has_refills),
            ("spilled_blocks", kernel.counts.spilled.blocks, kernel.has_spills),
        ] {
            if !is_known {
                continue;
            }
            let metric: Metric = (metric, "blocks");
            report.add(WORKLOAD, Design::Kernel, metric, (cpus, &params), &[value as f64]);
        }
        let cached = kernel.cached_pages.as_deref().unwrap_or_default();
        add_cached(report, Design::Kernel, (cpus, &params), cached);
        add_looks(report, Design::Kernel, (cpus, &params), &kernel.looks);
    }
}

/// Adds how contiguous free memory was over the trace.
fn add_looks(
    report: &mut Report,
    design: Design,
    (cpus, params): (usize, &Params),
    looks: &[Look],
) {
    for look in looks {
        let mut params = params.clone();
        params.insert("percent", look.percent.into());
        let mut add = |metric, params: &Params, value: f64| {
            report.add(WORKLOAD, design, metric, (cpus, params), &[value]);
        };
        add(("whole_pageblocks", "pageblocks"), &params, look.whole_pageblocks as f64);
        if let Some(tainted) = look.tainted_pageblocks {
            add(("tainted_pageblocks", "pageblocks"), &params, tainted as f64);
        }
        for (order, &index) in (0..).zip(&look.unusable) {
            params.insert("order", order);
            add(("unusable_index", "1"), &params, index);
        }
    }
}

impl Contiguity {
    /// Adds the measures to a report: a sentence, a row for each percentage of free memory and one
    /// for the end, and curves. The rows have the params of the depot's variant, too.
    pub fn add_to(&self, report: &mut Report, variant: &Params) {
        let (end, mib) = (&self.end, self.pageblocks * 2);
        report.say("");
        report.say(format!(
            "depot in {mib} MiB, page cache apart, cached pages counted as free: at the end {} % \
             free, {} of {} pageblocks whole, {} tainted",
            end.free_percent, end.whole, self.pageblocks, end.tainted
        ));
        let others = self.moments.iter().filter(|moment| moment.free_percent != end.free_percent);
        for moment in others.chain([end]) {
            let mut params = variant.clone();
            params.insert("free_percent", moment.free_percent.into());
            if moment == end {
                params.insert("end", 1);
            }
            for (metric, value) in
                [("whole_pageblocks", moment.whole), ("tainted_pageblocks", moment.tainted)]
            {
                let metric: Metric = (metric, "pageblocks");
                report.add(WORKLOAD, Design::Depot, metric, (self.cpus, &params), &[value as f64]);
            }
        }
        type Value = fn(&Moment) -> u64;
        let values: [(&str, Value); 3] = [
            ("whole_pageblocks", |moment| moment.whole),
            ("tainted_pageblocks", |moment| moment.tainted),
            ("free_percent", |moment| moment.free_percent.into()),
        ];
        for (metric, value) in values {
            let points = self.curve.iter().map(|(at, moment)| (*at, value(moment) as f64));
            report.add_series(Series {
                workload: WORKLOAD.to_owned(),
                design: Design::Depot.name().to_owned(),
                metric: metric.to_owned(),
                over: "percent".to_owned(),
                points: points.collect(),
            });
        }
    }
}

/// Most points of a curve: more than a plot has columns.
const POINTS_MAX: usize = 500;

/// Picks so many of the points, the last among them.
fn thinned(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let step = points.len().div_ceil(POINTS_MAX).max(1);
    points.iter().rev().step_by(step).rev().copied().collect()
}

/// Adds what each CPU cached when the trace ended.
fn add_cached(
    report: &mut Report,
    design: Design,
    (cpus, params): (usize, &Params),
    cached: &[CpuPages],
) {
    for &CpuPages { cpu, pages } in cached {
        let mut params = params.clone();
        params.insert("cpu", i64::from(cpu));
        let metric = ("cached_pages", "pages");
        report.add(WORKLOAD, design, metric, (cpus, &params), &[pages as f64]);
    }
}
