//! Statistics of samples.

use statrs::statistics::{Data, OrderStatistics};

/// Fewest windows from which to judge a ratio: with fewer, the quartiles of the ratios are wider
/// than the differences in question.
pub const ROUNDS_TO_JUDGE: usize = 31;

/// The middle sample, or the mean of the two in the middle; `None` without samples.
pub fn median(samples: &[f64]) -> Option<f64> {
    (!samples.is_empty()).then(|| Data::new(samples.to_vec()).median())
}

/// The median of the round-by-round ratios `samples[i] / base[i]`, which a slow moment of the
/// machine changes little. `None` unless each sample has its base.
pub fn median_ratio(samples: &[f64], base: &[f64]) -> Option<f64> {
    if samples.len() != base.len() || base.contains(&0.0) {
        return None;
    }
    let ratios: Vec<f64> = samples.iter().zip(base).map(|(sample, base)| sample / base).collect();
    median(&ratios)
}

/// Lower and upper quartile; `None` without samples.
pub fn quartiles(samples: &[f64]) -> Option<(f64, f64)> {
    let mut data = Data::new(samples.to_vec());
    (!samples.is_empty()).then(|| (data.lower_quartile(), data.upper_quartile()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_by_hand() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[7.0]), Some(7.0));
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 3.0, 2.0]), Some(2.5));
        assert_eq!(median(&[5.0, 5.0, 1000.0, 5.0, 5.0]), Some(5.0));
    }

    #[test]
    fn ratios_are_taken_round_by_round() {
        // The medians are 4 and 2, their ratio 2; but round by round it is 1, 4, 3: median 3.
        assert_eq!(median_ratio(&[2.0, 4.0, 6.0], &[2.0, 1.0, 2.0]), Some(3.0));
        assert_eq!(median_ratio(&[2.0, 4.0], &[1.0]), None);
        assert_eq!(median_ratio(&[2.0], &[0.0]), None);
        assert_eq!(median_ratio(&[], &[]), None);
    }

    #[test]
    fn quartiles_by_hand() {
        assert_eq!(quartiles(&[]), None);
        assert_eq!(quartiles(&[3.0]), Some((3.0, 3.0)));
        // Hyndman and Fan's definition 8: position (n + 1/3) p + 1/3, so 1 + 2/3 and 4 + 1/3 here.
        let (lower, upper) = quartiles(&[1.0, 2.0, 3.0, 4.0, 5.0]).unwrap();
        assert!((lower - (1.0 + 2.0 / 3.0)).abs() < 1e-9, "{lower}");
        assert!((upper - (4.0 + 1.0 / 3.0)).abs() < 1e-9, "{upper}");
    }
}
