//! Whether the means of two sets of samples differ, and by how much: Welch's unequal-variances
//! t-test and its interval, for the rule of the threads' tables; and Holm's correction.

use statrs::distribution::{ContinuousCDF, StudentsT};
use statrs::statistics::Statistics;

/// Confidence of the interval.
const CONFIDENCE: f64 = 0.95;

/// The difference of two means, new minus base.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Difference {
    /// Two-sided: how often samples this different come up when there is no difference.
    pub p: f64,
    /// 95% confidence interval, in the metric's unit.
    pub low: f64,
    pub high: f64,
}

impl Difference {
    /// Welch's test with the Welch-Satterthwaite degrees of freedom. `None` with fewer than two
    /// samples on either side.
    pub fn of(new: &[f64], base: &[f64]) -> Option<Self> {
        let (mean_new, error_new) = mean_and_squared_error(new)?;
        let (mean_base, error_base) = mean_and_squared_error(base)?;
        let difference = mean_new - mean_base;
        let error = (error_new + error_base).sqrt();
        if error == 0.0 {
            // Counts that are the same in every run: no doubt about their difference.
            let p = if difference == 0.0 { 1.0 } else { 0.0 };
            return Some(Difference { p, low: difference, high: difference });
        }
        let freedom = (error_new + error_base).powi(2)
            / (error_new.powi(2) / (new.len() - 1) as f64
                + error_base.powi(2) / (base.len() - 1) as f64);
        let t = StudentsT::new(0.0, 1.0, freedom).ok()?;
        // `sf`, not 1 - `cdf`: exact where p is tiny.
        let p = 2.0 * t.sf((difference / error).abs());
        let half = t.inverse_cdf(0.5 + CONFIDENCE / 2.0) * error;
        Some(Difference { p, low: difference - half, high: difference + half })
    }
}

/// A mean and the square of its standard error.
fn mean_and_squared_error(samples: &[f64]) -> Option<(f64, f64)> {
    (samples.len() >= 2).then(|| (samples.mean(), samples.variance() / samples.len() as f64))
}

/// Holm's correction of p values for their number, in the order given.
pub fn holm(ps: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..ps.len()).collect();
    order.sort_by(|&a, &b| ps[a].total_cmp(&ps[b]));
    let mut corrected = vec![0.0; ps.len()];
    let mut largest = 0.0_f64;
    for (rank, &at) in order.iter().enumerate() {
        largest = largest.max(ps[at] * (ps.len() - rank) as f64).min(1.0);
        corrected[at] = largest;
    }
    corrected
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(actual: f64, expected: f64, tolerance: f64) {
        assert!((actual - expected).abs() < tolerance, "{actual} is not {expected}");
    }

    #[test]
    fn equal_spreads_by_hand() {
        // Means 3 and 5, both variances 2.5, n 5: error sqrt(0.5 + 0.5) = 1, t = 2, 8 degrees of
        // freedom. Tables: t(8) at 97.5% is 2.306004; two-sided p of 2 with 8 is 0.0805.
        let difference =
            Difference::of(&[3.0, 4.0, 5.0, 6.0, 7.0], &[1.0, 2.0, 3.0, 4.0, 5.0]).unwrap();
        close(difference.p, 0.0805, 5e-5);
        close(difference.low, 2.0 - 2.306_004, 1e-5);
        close(difference.high, 2.0 + 2.306_004, 1e-5);
    }

    #[test]
    fn unequal_spreads_by_hand() {
        // {0, 2}: mean 1, variance 2, squared error 1. {4, 4, 7}: mean 5, variance 3, squared error
        // 1. Degrees of freedom (1 + 1)^2 / (1/1 + 1/2) = 8/3; t = 4 / sqrt 2.
        let difference = Difference::of(&[4.0, 4.0, 7.0], &[0.0, 2.0]).unwrap();
        let t = StudentsT::new(0.0, 1.0, 8.0 / 3.0).unwrap();
        close(difference.p, 2.0 * (1.0 - t.cdf(8.0_f64.sqrt())), 1e-12);
        // Between the tables' figures for 2 degrees (0.1056) and for 3 (0.0663).
        assert!((0.0663..0.1056).contains(&difference.p), "{}", difference.p);
    }

    #[test]
    fn nothing_is_said_of_single_samples_and_all_of_constant_ones() {
        assert_eq!(Difference::of(&[1.0], &[1.0, 2.0]), None);
        assert_eq!(Difference::of(&[1.0, 2.0], &[]), None);
        let same = Difference::of(&[5.0; 3], &[5.0; 3]).unwrap();
        assert_eq!(same.p, 1.0);
        let other = Difference::of(&[6.0; 3], &[5.0; 3]).unwrap();
        assert_eq!((other.p, other.low, other.high), (0.0, 1.0, 1.0));
    }

    #[test]
    fn holm_by_hand() {
        // Sorted 0.01, 0.02, 0.04: times 3, 2, 1 is 0.03, 0.04, 0.04.
        let corrected = holm(&[0.04, 0.01, 0.02]);
        for (actual, expected) in corrected.into_iter().zip([0.04, 0.03, 0.04]) {
            close(actual, expected, 1e-12);
        }
        assert_eq!(holm(&[0.9, 0.8]), [1.0, 1.0]);
        assert!(holm(&[]).is_empty());
    }
}
