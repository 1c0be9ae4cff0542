//! Statistics of samples.

/// Fewest windows from which to judge a ratio: with fewer, the quartiles of the ratios are wider
/// than the differences in question.
pub const ROUNDS_TO_JUDGE: usize = 31;

/// The middle sample, or the mean of the two in the middle; `None` without samples.
pub fn median(samples: &[f64]) -> Option<f64> {
    let sorted = sorted(samples);
    let middle = sorted.len() / 2;
    let upper = *sorted.get(middle)?;
    Some(if sorted.len().is_multiple_of(2) {
        f64::midpoint(sorted[middle - 1], upper)
    } else {
        upper
    })
}

fn sorted(samples: &[f64]) -> Vec<f64> {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted
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

/// Lower and upper quartile; `None` without samples. By definition 8 of Hyndman and Fan ("Sample
/// Quantiles in Statistical Packages", 1996), which does not depend on the samples' distribution.
pub fn quartiles(samples: &[f64]) -> Option<(f64, f64)> {
    let sorted = sorted(samples);
    (!sorted.is_empty()).then(|| (quantile(&sorted, 0.25), quantile(&sorted, 0.75)))
}

/// A quantile of samples in order, of which there is one at least.
fn quantile(sorted: &[f64], share: f64) -> f64 {
    let third = 1.0 / 3.0;
    let place = (sorted.len() as f64 + third) * share + third;
    let last = sorted.len() as f64;
    let (below, above) = (place.floor().clamp(1.0, last), place.ceil().clamp(1.0, last));
    let (low, high) = (sorted[below as usize - 1], sorted[above as usize - 1]);
    low + (place - below).clamp(0.0, 1.0) * (high - low)
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
