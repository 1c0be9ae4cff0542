//! Rules by which a difference earns its star.

use clap::ValueEnum;

use super::rank::{self, RankDifference};
use super::stats::{Figures, Stat};
use super::welch::{self, Difference};
use pagedepot_cli::report::better::Better;
use pagedepot_cli::report::document::ResultRow;

/// Two-sided p below which mmtests, as the threads used it, printed a star.
const THREADS_P: f64 = 0.10;
/// Ours, after correction for the number of comparisons.
const OURS_P: f64 = 0.05;
/// Percent by which the medians of two runs of one program differ, though the samples of each are
/// alike: where its memory lies, and what else the machine does, is new in each run. So ranks tell
/// two runs apart with any confidence, and the difference is none of the program's.
pub const RUNS_PERCENT: f64 = 3.0;
/// Half-width, in standard deviations, of the intervals that mmtests compares since 2024.
const HALF_WIDTH: f64 = 1.96;

/// The rule by which a mean gets a star.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Rule {
    /// Mann-Whitney's rank test, p < 0.05 after Holm's correction for the comparisons of the same
    /// metric, and a bootstrap interval of the medians' change that does not contain 0
    Ours,
    /// Welch's test, p < 0.10, each comparison for itself, as in the threads' tables
    Threads,
    /// Means further apart than 1.96 standard deviations of both, as in mmtests since 2024
    Mmtests,
}

/// The comparison of a row with the base's.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    /// Samples of the base.
    pub base_n: usize,
    /// The rule's p; `None` with fewer than two samples on a side.
    pub p: Option<f64>,
    /// The rule's p after Holm's correction within the metric.
    pub p_holm: Option<f64>,
    /// 95% interval of the change in percent of the base, of medians by our rule, else of
    /// arithmetic means; positive is better.
    pub interval_percent: Option<(f64, f64)>,
    /// Cliff's delta, by our rule; positive is better.
    pub effect: Option<f64>,
    /// Whether the rule finds the difference significant.
    pub star: bool,
    /// Whether the star is not ours: of printed figures, what was printed.
    pub printed: bool,
    /// Whether both have samples, of a metric that has a better direction.
    pub is_sampled: bool,
    /// Whether so many samples could show a difference by our rule.
    pub is_testable: bool,
    /// Percent by which two runs of one program may differ: 0 within a run.
    pub runs_percent: f64,
    /// Whether mmtests' rule of 2024 finds the intervals apart.
    apart: bool,
}

impl Verdict {
    /// Compares a row with the base's. `stars_apply`: whether a star that was printed is about this
    /// base.
    pub fn new(
        row: &ResultRow,
        base: &ResultRow,
        (better, rule): (Better, Rule),
        stars_apply: bool,
    ) -> Self {
        let printed = row.samples.is_empty() && row.printed.is_some();
        let mut verdict = Verdict {
            base_n: base.samples.len(),
            p: None,
            p_holm: None,
            interval_percent: None,
            effect: None,
            star: stars_apply
                && printed
                && row.printed.as_ref().is_some_and(|printed| printed.star),
            printed,
            is_sampled: false,
            is_testable: rank::least_p(row.samples.len(), base.samples.len()) < OURS_P,
            runs_percent: 0.0,
            apart: apart(&row.samples, &base.samples),
        };
        // What the workload gives needs no test.
        let Some(sign) = better.sign() else { return verdict };
        verdict.is_sampled = !row.samples.is_empty() && !base.samples.is_empty();
        if rule == Rule::Ours {
            if let Some(difference) = RankDifference::of(&row.samples, &base.samples) {
                // Counts that never vary need no more samples.
                verdict.is_testable |= difference.p == 0.0;
                verdict.p = Some(difference.p);
                verdict.effect = Some(sign * difference.delta);
                verdict.interval_percent =
                    difference.interval_percent.map(|(low, high)| turned(low, high, better));
            }
        } else if let Some(difference) = Difference::of(&row.samples, &base.samples) {
            verdict.p = Some(difference.p);
            verdict.interval_percent = interval(&difference, &base.samples, sign);
        }
        verdict
    }

    /// Whether the rule can find a difference: there are samples enough, or a star was printed.
    pub fn can_judge(&self, rule: Rule) -> bool {
        self.printed || self.p.is_some() && (rule != Rule::Ours || self.is_testable)
    }

    /// Whether the interval, if there is one, says that there is a change, and a larger one than
    /// two runs of one program show. Ranks can differ where medians do not: a star there would
    /// contradict the interval beside it.
    fn excludes_none(&self) -> bool {
        let most = self.runs_percent;
        self.interval_percent.is_none_or(|(low, high)| low > most || high < -most)
    }
}

/// A change in percent by mmtests' sign: positive is better.
fn turned(low: f64, high: f64, better: Better) -> (f64, f64) {
    let of = |percent: f64| better.percent(100.0 + percent, 100.0).unwrap_or(0.0);
    (of(low).min(of(high)), of(low).max(of(high)))
}

fn apart(new: &[f64], base: &[f64]) -> bool {
    let figures = |samples| Figures::of_samples(samples, Better::Lower);
    let (new, base) = (figures(new), figures(base));
    let means = new.get(Stat::Mean).zip(base.get(Stat::Mean));
    let spreads = new.get(Stat::Stddev).zip(base.get(Stat::Stddev));
    means.zip(spreads).is_some_and(|((a, b), (sa, sb))| (a - b).abs() > HALF_WIDTH * (sa + sb))
}

/// A difference's interval in percent of the base's mean, turned so that positive is better.
fn interval(difference: &Difference, base: &[f64], sign: f64) -> Option<(f64, f64)> {
    let mean = Figures::of_samples(base, Better::Lower).amean?;
    let (a, b) = (sign * difference.low * 100.0 / mean, sign * difference.high * 100.0 / mean);
    (a.is_finite() && b.is_finite()).then_some((a.min(b), a.max(b)))
}

/// Corrects the p of verdicts for their number, and gives stars by the rule.
pub fn judge(mut verdicts: Vec<&mut Verdict>, rule: Rule) {
    let tested: Vec<f64> = verdicts.iter().filter_map(|verdict| verdict.p).collect();
    let mut corrected = welch::holm(&tested).into_iter();
    for verdict in &mut verdicts {
        let Some(p) = verdict.p else { continue };
        verdict.p_holm = corrected.next();
        verdict.star = match rule {
            Rule::Ours => verdict.p_holm.is_some_and(|p| p < OURS_P) && verdict.excludes_none(),
            Rule::Threads => p < THREADS_P,
            Rule::Mmtests => verdict.apart,
        };
    }
}
