//! Rows and tables of what all runs found.

use super::frames::Contiguity;
use super::seats::{End, METRICS};
use crate::harness::Series;
use crate::names::Design;
use crate::report::rows::Metric;
use crate::report::{Report, counted, table};
use crate::workloads::shape::Shape;

/// The workload of all rows.
pub const NAME: &str = "fragmentation";

const REALLOC: Metric = ("realloc_ns", "ns");
const WHOLE: Metric = ("whole_share", "1");
const GIB: Metric = ("gib_ranges", "ranges");
const TAINTED: Metric = ("tainted_share", "1");
const WHOLE_DRAINED: Metric = ("whole_drained_share", "1");
const GIB_DRAINED: Metric = ("gib_drained_ranges", "ranges");

/// Samples of all runs of a design: by round, and of each round a sample per run and metric.
#[derive(Clone, Debug, Default)]
pub struct DesignSamples {
    rounds: Vec<[Vec<f64>; METRICS]>,
    drained: [Vec<f64>; 2],
}

impl DesignSamples {
    /// Adds a run.
    pub fn add(&mut self, series: &Series<METRICS>, end: &End) {
        let first = end.first.unwrap_or(Contiguity::UNKNOWN);
        let first = [f64::NAN, first.whole_share, first.gib_ranges, first.tainted_share];
        let rounds = (0..series.samples[0].len())
            .map(|round| std::array::from_fn(|metric| series.samples[metric][round]));
        let run: Vec<[f64; METRICS]> = std::iter::once(first).chain(rounds).collect();
        // A run that the user stops has fewer rounds than those before it.
        self.rounds.resize_with(run.len().max(self.rounds.len()), Default::default);
        for (samples, figures) in self.rounds.iter_mut().zip(run) {
            samples.iter_mut().zip(figures).for_each(|(samples, figure)| samples.push(figure));
        }
        let drained = end.drained.unwrap_or(Contiguity::UNKNOWN);
        self.drained[0].push(drained.whole_share);
        self.drained[1].push(drained.gib_ranges);
    }

    /// The samples of a metric after a round; none where the user stopped every run before it.
    fn of_round(&self, round: u32, metric: usize) -> &[f64] {
        self.rounds.get(round as usize).map_or(&[], |metrics| &metrics[metric])
    }

    /// All samples of a round's time, of all rounds.
    fn times(&self) -> Vec<f64> {
        let times = self.rounds.iter().skip(1).flat_map(|round| &round[0]);
        times.copied().filter(|time| time.is_finite()).collect()
    }
}

/// Adds a row per design, metric and round.
pub fn add(report: &mut Report, shape: &Shape, designs: &[Design], found: &[DesignSamples]) {
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

/// The table.
pub fn show(report: &mut Report, shape: &Shape, designs: &[Design], found: &[DesignSamples]) {
    let Shape { free_percent, rounds, runs, threads, .. } = *shape;
    report.say(format!(
        "{NAME}: {} filled {} MiB frame by frame, and freed {free_percent} % at random.\n\
         In each round a tenth of the free frames is reallocated. Wholly free pageblocks,\n\
         in % of all, after rounds 0 to {rounds}, and drained; in the end ranges of 1 GiB and\n\
         tainted pageblocks in %; ns per free and allocation; median of {}",
        counted(threads, "thread"),
        shape.mib(),
        counted(runs as usize, "run"),
    ));
    let shown = shown(rounds);
    let headings = shown.iter().map(u32::to_string);
    let rest = ["drained", "1 GiB", "tainted", "ns"].map(str::to_owned);
    let mut table = table::new(["design".to_owned()].into_iter().chain(headings).chain(rest));
    for (design, found) in designs.iter().zip(found) {
        let wholes = shown.iter().map(|&round| percent(found.of_round(round, 1)));
        let [drained, _] = &found.drained;
        let rest = [
            percent(drained),
            table::median(found.of_round(rounds, 2)),
            percent(found.of_round(rounds, 3)),
            table::median(&found.times()),
        ];
        table.add_row([design.name().to_owned()].into_iter().chain(wholes).chain(rest));
    }
    report.say(table::align(table, 1));
}

/// A cell with the median of fractions, in percent.
fn percent(fractions: &[f64]) -> String {
    table::median(&fractions.iter().map(|fraction| fraction * 100.0).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_shows_each_round_once() {
        assert_eq!(shown(100), [0, 10, 50, 100]);
        assert_eq!(shown(2), [0, 1, 2]);
        assert_eq!(shown(1), [0, 1]);
    }

    #[test]
    fn runs_are_samples_of_the_same_rounds() {
        let run = |at: f64| Series {
            design: Design::Depot,
            samples: [vec![at, 7.0], vec![0.1, 0.2], vec![0.0, 1.0], vec![0.0, 0.0]],
        };
        let first = Contiguity { whole_share: 0.05, gib_ranges: 0.0, tainted_share: f64::NAN };
        let end = End { first: Some(first), drained: Some(first), fault: None };
        let mut found = DesignSamples::default();
        found.add(&run(5.0), &end);
        let whole = run(6.0);
        found.add(&whole, &End { drained: None, ..end.clone() });
        assert_eq!(found.rounds.len(), 3);
        assert_eq!(found.rounds[0][1], [0.05, 0.05]);
        assert_eq!(found.rounds[1][0], [5.0, 6.0]);
        assert_eq!(found.rounds[2][2], [1.0, 1.0]);
        assert_eq!(found.times(), [5.0, 6.0, 7.0, 7.0]);
        assert!(found.drained[0][0] == 0.05 && found.drained[0][1].is_nan());
        // A run that the user stops after its first round.
        let stopped = Series { samples: whole.samples.map(|all| all[..1].to_vec()), ..whole };
        found.add(&stopped, &End { drained: None, ..end });
        assert_eq!(found.of_round(1, 0), [5.0, 6.0, 6.0]);
        assert_eq!(found.of_round(2, 0), [7.0, 7.0]);
        assert!(found.of_round(3, 0).is_empty());
    }
}
