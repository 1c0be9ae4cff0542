//! Statistics of the samples of one row: the figures of an mmtests table.

use statrs::statistics::Statistics;

use pagedepot_cli::harness::samples;
use pagedepot_cli::report::better::Better;
use pagedepot_cli::report::document::TableLine;

/// Share of samples that `BAmean-95` keeps, in percent.
const BEST_PERCENT: usize = 95;

/// A line of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Stat {
    Min,
    /// Arithmetic where lower is better, harmonic where higher is: what a rate's mean must be.
    Mean,
    Stddev,
    Coeffvar,
    Max,
    /// The arithmetic mean of the best 95% of samples.
    Bamean,
    /// The sample in the middle: what our rule is about.
    Median,
}

impl Stat {
    /// The statistics of an mmtests table, in its order.
    pub const MMTESTS: [Stat; 6] =
        [Stat::Min, Stat::Mean, Stat::Stddev, Stat::Coeffvar, Stat::Max, Stat::Bamean];

    /// mmtests' name of it.
    pub fn title(self, better: Better) -> &'static str {
        match self {
            Stat::Min => "Min",
            Stat::Mean if better == Better::Higher => "Hmean",
            Stat::Mean => "Amean",
            Stat::Stddev => "Stddev",
            Stat::Coeffvar => "CoeffVar",
            Stat::Max => "Max",
            Stat::Bamean => "BAmean-95",
            Stat::Median => "Median",
        }
    }

    /// The direction in which it is better: less spread always is.
    pub fn better(self, metric: Better) -> Better {
        match self {
            Stat::Stddev | Stat::Coeffvar => Better::Lower,
            _ => metric,
        }
    }
}

/// The statistics of one row; `None` where there are too few samples, or the source printed none.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Figures {
    /// Samples; 0 where only printed figures are known.
    pub n: usize,
    /// The arithmetic mean, which tests and intervals are about.
    pub amean: Option<f64>,
    min: Option<f64>,
    mean: Option<f64>,
    stddev: Option<f64>,
    max: Option<f64>,
    bamean: Option<f64>,
    median: Option<f64>,
}

impl Figures {
    /// Statistics of samples.
    pub fn of_samples(samples: &[f64], better: Better) -> Self {
        if samples.is_empty() {
            return Figures::default();
        }
        let amean = Some(samples.mean());
        let mean = if better == Better::Higher { harmonic(samples) } else { amean };
        Figures {
            n: samples.len(),
            amean,
            min: Some(Statistics::min(samples)),
            mean,
            // Of a sample, not of a population: divided by n - 1, as mmtests does.
            stddev: (samples.len() > 1).then(|| samples.std_dev()),
            max: Some(Statistics::max(samples)),
            bamean: Some(best_mean(samples, better)),
            median: samples::median(samples),
        }
    }

    /// Statistics that a source printed.
    pub fn of_printed(printed: &TableLine) -> Self {
        let TableLine { min, mean, stddev, max, .. } = *printed;
        Figures { n: 0, amean: None, min, mean, stddev, max, bamean: None, median: None }
    }

    /// The value of a statistic, if it is known.
    pub fn get(&self, stat: Stat) -> Option<f64> {
        match stat {
            Stat::Min => self.min,
            Stat::Mean => self.mean,
            Stat::Stddev => self.stddev,
            Stat::Coeffvar => match (self.stddev, self.amean.or(self.mean)) {
                (Some(stddev), Some(mean)) if mean != 0.0 => Some(stddev * 100.0 / mean),
                _ => None,
            },
            Stat::Max => self.max,
            Stat::Bamean => self.bamean,
            // Printed tables have a mean in its place.
            Stat::Median => self.median.or(self.mean),
        }
    }
}

/// The harmonic mean; there is none when a rate is zero or less.
fn harmonic(samples: &[f64]) -> Option<f64> {
    samples.iter().all(|&sample| sample > 0.0).then(|| samples.harmonic_mean())
}

/// The mean of the best samples: of 31, the best 29.
fn best_mean(samples: &[f64], better: Better) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    if better == Better::Higher {
        sorted.reverse();
    }
    sorted.truncate((sorted.len() * BEST_PERCENT / 100).max(1));
    sorted.as_slice().mean()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(actual: Option<f64>, expected: f64) {
        assert!(
            actual.is_some_and(|a| (a - expected).abs() < 1e-9),
            "{actual:?} is not {expected}"
        );
    }

    #[test]
    fn figures_by_hand() {
        // Mean 40/8 = 5; squares of differences 9+1+1+1+0+0+4+16 = 32, over 7.
        let samples = [2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0];
        let figures = Figures::of_samples(&samples, Better::Lower);
        assert_eq!(figures.n, 8);
        close(figures.get(Stat::Min), 2.0);
        close(figures.get(Stat::Mean), 5.0);
        close(figures.get(Stat::Stddev), (32.0_f64 / 7.0).sqrt());
        close(figures.get(Stat::Coeffvar), (32.0_f64 / 7.0).sqrt() * 20.0);
        close(figures.get(Stat::Max), 9.0);
        // 8 * 0.95 = 7.6: the best seven, so without the 9: 31/7.
        close(figures.get(Stat::Bamean), 31.0 / 7.0);
    }

    #[test]
    fn rates_have_a_harmonic_mean_and_their_best_are_the_highest() {
        // 3 / (1/1 + 1/2 + 1/4) = 12/7. Of three the best two: 2 and 4.
        let figures = Figures::of_samples(&[1.0, 4.0, 2.0], Better::Higher);
        close(figures.get(Stat::Mean), 12.0 / 7.0);
        close(figures.get(Stat::Bamean), 3.0);
        close(figures.amean, 7.0 / 3.0);
        assert_eq!(Figures::of_samples(&[1.0, 0.0], Better::Higher).get(Stat::Mean), None);
    }

    #[test]
    fn one_sample_has_no_spread_and_none_has_no_figure() {
        let one = Figures::of_samples(&[3.0], Better::Lower);
        assert_eq!((one.get(Stat::Mean), one.get(Stat::Stddev)), (Some(3.0), None));
        close(one.get(Stat::Bamean), 3.0);
        let none = Figures::of_samples(&[], Better::Lower);
        assert!(Stat::MMTESTS.iter().all(|&stat| none.get(stat).is_none()));
    }
}
