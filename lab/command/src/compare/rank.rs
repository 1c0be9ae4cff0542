//! Whether two sets of samples differ, and by how much, without an assumption about how samples
//! are spread: the Mann-Whitney rank test, and a bootstrap interval of the ratio of medians.
//!
//! Samples of a busy machine have a long tail: one interrupted window moves a mean and hides a
//! difference from a t-test, but is a single rank here (Mann and Whitney 1947; Efron 1979).

use statrs::distribution::{ContinuousCDF, Normal};

use pagedepot_cli::harness::samples::median;

/// Resamples of the bootstrap, and the share of them inside the interval.
const RESAMPLES: usize = 2000;
const CONFIDENCE: f64 = 0.95;
/// Fixed: the same files give the same interval.
const SEED: u64 = 0x5EED;

/// The difference of new samples from the base's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RankDifference {
    /// Two-sided: how often samples this different come up when there is no difference.
    pub p: f64,
    /// 95% interval of the median's ratio to the base's, less 1, in percent; `None` where the
    /// base's median is 0.
    pub interval_percent: Option<(f64, f64)>,
    /// Cliff's delta: the share of pairs in which the new sample is larger, less the share in which
    /// it is smaller. From -1 to 1.
    pub delta: f64,
}

impl RankDifference {
    /// `None` with fewer than two samples on either side.
    pub fn of(new: &[f64], base: &[f64]) -> Option<Self> {
        if new.len() < 2 || base.len() < 2 {
            return None;
        }
        let pairs = (new.len() * base.len()) as f64;
        let (u, p) = if is_constant(new) && is_constant(base) {
            // Counts that are the same in every run: no doubt about their difference.
            match new[0].total_cmp(&base[0]) {
                std::cmp::Ordering::Less => (0.0, 0.0),
                std::cmp::Ordering::Equal => (pairs / 2.0, 1.0),
                std::cmp::Ordering::Greater => (pairs, 0.0),
            }
        } else {
            let u = larger_pairs(new, base);
            (u, two_sided(u, new, base))
        };
        let interval_percent = interval_percent(new, base);
        Some(RankDifference { p, interval_percent, delta: 2.0 * u / pairs - 1.0 })
    }
}

/// Most pairs for which p is worked out exactly.
const EXACT_PAIRS: usize = 400;

/// U of the new samples: the pairs in which theirs is the larger one; equal ones count a half.
fn larger_pairs(new: &[f64], base: &[f64]) -> f64 {
    let of =
        |a: &f64| base.iter().map(|b| (f64::from(a > b) + f64::from(a >= b)) / 2.0).sum::<f64>();
    new.iter().map(of).sum()
}

/// Two-sided p of U. Exact for few samples without equal ones; else by the normal approximation,
/// corrected for ties and for continuity. (statrs' `mannwhitneyu` fails the published
/// values below.)
fn two_sided(u: f64, new: &[f64], base: &[f64]) -> f64 {
    let (n, m) = (new.len(), base.len());
    let mut all: Vec<f64> = new.iter().chain(base).copied().collect();
    all.sort_by(f64::total_cmp);
    let ties: Vec<usize> = all.chunk_by(|a, b| a == b).map(<[f64]>::len).collect();
    let larger = u.max((n * m) as f64 - u);
    if ties.len() == all.len() && n * m <= EXACT_PAIRS {
        let ways = ways(n, m);
        let extreme: f64 = ways[larger as usize..].iter().sum();
        return (2.0 * extreme / ways.iter().sum::<f64>()).min(1.0);
    }
    let (pairs, total) = ((n * m) as f64, (n + m) as f64);
    let tied: f64 = ties.iter().map(|&t| (t as f64).powi(3) - t as f64).sum();
    let variance = pairs / 12.0 * (total + 1.0 - tied / (total * (total - 1.0)));
    let z = (larger - pairs / 2.0 - 0.5).max(0.0) / variance.sqrt();
    let normal = Normal::standard();
    (2.0 * normal.sf(z)).min(1.0)
}

/// Number of orders of `n` and `m` samples for each value of U from 0 to `n * m`: the coefficients
/// of the Gaussian binomial, by multiplying with (1 - x^(m+k)) and dividing by (1 - x^k).
fn ways(n: usize, m: usize) -> Vec<f64> {
    let mut ways = vec![0.0; n * m + 1];
    ways[0] = 1.0;
    for k in 1..=n {
        for u in (m + k..=n * m).rev() {
            ways[u] -= ways[u - m - k];
        }
        for u in k..=n * m {
            ways[u] += ways[u - k];
        }
    }
    ways
}

/// The least p that so many samples can have: of all orders of them, the two extreme ones.
pub fn least_p(new: usize, base: usize) -> f64 {
    let orders: f64 = (1..=new.min(base)).map(|k| (new.max(base) + k) as f64 / k as f64).product();
    (2.0 / orders).min(1.0)
}

fn is_constant(samples: &[f64]) -> bool {
    samples.windows(2).all(|pair| pair[0] == pair[1])
}

/// The percentile bootstrap: both sets are drawn anew from themselves, again and again.
fn interval_percent(new: &[f64], base: &[f64]) -> Option<(f64, f64)> {
    let mut random = fastrand::Rng::with_seed(SEED);
    let mut drawn = |from: &[f64]| {
        let draw: Vec<f64> = from.iter().map(|_| from[random.usize(..from.len())]).collect();
        median(&draw).unwrap_or(f64::NAN)
    };
    let mut percents: Vec<f64> =
        (0..RESAMPLES).map(|_| (drawn(new) / drawn(base) - 1.0) * 100.0).collect();
    percents.sort_by(f64::total_cmp);
    let tail = ((1.0 - CONFIDENCE) / 2.0 * RESAMPLES as f64) as usize;
    let (low, high) = (percents[tail], percents[RESAMPLES - 1 - tail]);
    (low.is_finite() && high.is_finite()).then_some((low, high))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn p(new: &[f64], base: &[f64]) -> f64 {
        RankDifference::of(new, base).unwrap().p
    }

    #[test]
    fn p_is_that_of_published_tables() {
        // Apart without overlap, n = m = 5: 2 of C(10, 5) = 252 orders. The tables' critical U for
        // n = m = 5 at 0.05 two-sided is 2, whose p is 8/252 = 0.0317.
        let base = [1.0, 2.0, 3.0, 4.0, 5.0];
        assert!((p(&[6.0, 7.0, 8.0, 9.0, 10.0], &base) - 2.0 / 252.0).abs() < 1e-9);
        // U = 2: one of the new is below two of the base.
        assert!((p(&[3.5, 6.0, 7.0, 8.0, 9.0], &base) - 8.0 / 252.0).abs() < 1e-9);
        // SciPy's example: males 19 22 16 29 24, females 20 11 17 12: U = 17, p = 0.1111.
        let (male, female) = ([19.0, 22.0, 16.0, 29.0, 24.0], [20.0, 11.0, 17.0, 12.0]);
        assert!((p(&male, &female) - 0.111_111).abs() < 1e-6);
    }

    #[test]
    fn a_tail_hides_no_difference() {
        // A tenth less, but for one window that was interrupted: means say the opposite.
        let base: Vec<f64> = (0..31).map(|n| 10.0 + f64::from(n % 7) * 0.01).collect();
        let mut new: Vec<f64> = base.iter().map(|sample| sample * 0.9).collect();
        new[4] = 1000.0;
        let difference = RankDifference::of(&new, &base).unwrap();
        let (low, high) = difference.interval_percent.unwrap();
        assert!(difference.p < 1e-6 && difference.delta < -0.9, "{difference:?}");
        assert!(low <= -9.9 && high < -9.0 && low >= -11.0, "{low} {high}");
    }

    #[test]
    fn equal_samples_do_not_differ_and_constant_ones_leave_no_doubt() {
        let same = RankDifference::of(&[5.0; 4], &[5.0; 4]).unwrap();
        assert_eq!((same.p, same.delta, same.interval_percent), (1.0, 0.0, Some((0.0, 0.0))));
        let more = RankDifference::of(&[6.0; 4], &[5.0; 4]).unwrap();
        assert_eq!((more.p, more.delta), (0.0, 1.0));
        let mixed = RankDifference::of(&[1.0, 2.0, 3.0, 4.0], &[1.0, 2.0, 3.0, 4.0]).unwrap();
        assert!(mixed.p > 0.9 && mixed.delta == 0.0);
        assert_eq!(RankDifference::of(&[1.0], &[1.0, 2.0]), None);
        assert_eq!(RankDifference::of(&[1.0, 2.0], &[0.0; 3]).unwrap().interval_percent, None);
    }

    #[test]
    fn few_samples_cannot_have_a_small_p() {
        assert!((least_p(3, 3) - 0.1).abs() < 1e-12);
        assert!((least_p(4, 4) - 2.0 / 70.0).abs() < 1e-12);
        assert!((least_p(5, 4) - 2.0 / 126.0).abs() < 1e-12);
        assert_eq!(least_p(1, 0), 1.0);
    }
}
