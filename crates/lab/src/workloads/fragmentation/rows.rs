//! Rows and tables of what all runs found.

use super::NAME;
use super::frames::Contiguity;
use super::seats::{End, METRICS};
use super::shape::Shape;
use crate::harness::Series;
use crate::names::Design;
use crate::report::rows::Metric;
use crate::report::{Report, table};

const REALLOC: Metric = ("realloc_ns", "ns");
const WHOLE: Metric = ("whole_share", "1");
const GIB: Metric = ("gib_ranges", "ranges");
const TAINTED: Metric = ("tainted_share", "1");
const WHOLE_DRAINED: Metric = ("whole_drained_share", "1");
const GIB_DRAINED: Metric = ("gib_drained_ranges", "ranges");

/// What all runs of a design found: by round, and of each round a sample per run and metric.
#[derive(Clone, Debug, Default)]
pub struct Found {
    rounds: Vec<[Vec<f64>; METRICS]>,
    drained: [Vec<f64>; 2],
}

impl Found {
    /// Adds a run.
    pub fn add(&mut self, series: &Series<METRICS>, end: &End) {
        let first = end.first.unwrap_or(Contiguity::UNKNOWN);
        let first = [f64::NAN, first.whole_share, first.gib_ranges, first.tainted_share];
        let rounds = (0..series.samples[0].len())
            .map(|round| std::array::from_fn(|metric| series.samples[metric][round]));
        let run: Vec<[f64; METRICS]> = std::iter::once(first).chain(rounds).collect();
        self.rounds.resize_with(run.len(), Default::default);
        for (samples, figures) in self.rounds.iter_mut().zip(run) {
            samples.iter_mut().zip(figures).for_each(|(samples, figure)| samples.push(figure));
        }
        let drained = end.drained.unwrap_or(Contiguity::UNKNOWN);
        self.drained[0].push(drained.whole_share);
        self.drained[1].push(drained.gib_ranges);
    }

    /// All samples of a round's time, of all rounds.
    fn times(&self) -> Vec<f64> {
        let times = self.rounds.iter().skip(1).flat_map(|round| &round[0]);
        times.copied().filter(|time| time.is_finite()).collect()
    }
}

/// Adds a row per design, metric and round.
pub fn add(report: &mut Report, shape: &Shape, designs: &[Design], found: &[Found]) {
    for (&design, found) in designs.iter().zip(found) {
        for (round, samples) in (0..).zip(&found.rounds) {
            let params = shape.params(round);
            for (metric, samples) in [REALLOC, WHOLE, GIB, TAINTED].into_iter().zip(samples) {
                report.add(NAME, design, metric, (shape.threads, &params), samples);
            }
        }
        let params = shape.params(shape.rounds);
        for (metric, samples) in [WHOLE_DRAINED, GIB_DRAINED].into_iter().zip(&found.drained) {
            report.add(NAME, design, metric, (shape.threads, &params), samples);
        }
    }
}

/// Rounds that the table shows: the first, the last, and some between.
fn shown(rounds: u32) -> Vec<u32> {
    let mut shown: Vec<u32> = [0, 10, 50, 100].map(|percent| rounds * percent / 100).into();
    shown.dedup();
    shown
}

/// The tables.
pub fn show(report: &mut Report, shape: &Shape, designs: &[Design], found: &[Found]) {
    let Shape { free_percent, rounds, runs, threads, .. } = *shape;
    report.say(format!(
        "{NAME}: {} MiB filled by {} frame by frame, {free_percent} % freed at random; per round \
         frames worth\na tenth of those are freed at random and allocated again. Pageblocks \
         wholly free, in percent of all;\nns per free and allocation; median of {}",
        shape.mib(),
        crate::report::counted(threads, "thread"),
        crate::report::counted(runs as usize, "run"),
    ));
    let shown = shown(rounds);
    let headings = shown.iter().map(|round| format!("round {round}"));
    let mut table = table::new(
        ["design".to_owned()]
            .into_iter()
            .chain(headings)
            .chain(["drained", "1 GiB", "tainted", "ns"].map(str::to_owned)),
    );
    let percent =
        |samples: &[f64]| table::median(&samples.iter().map(|s| s * 100.0).collect::<Vec<_>>());
    for (design, found) in designs.iter().zip(found) {
        let wholes = shown.iter().map(|&round| percent(&found.rounds[round as usize][1]));
        let last = &found.rounds[rounds as usize];
        let rest = [
            percent(&found.drained[0]),
            table::median(&last[2]),
            percent(&last[3]),
            table::median(&found.times()),
        ];
        table.add_row([design.name().to_owned()].into_iter().chain(wholes).chain(rest));
    }
    report.say(table::align(table, 1));
}
