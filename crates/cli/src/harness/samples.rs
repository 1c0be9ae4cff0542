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

/// The round-by-round ratios `samples[i] / base[i]`. `None` unless each sample has its base.
pub fn ratios(samples: &[f64], base: &[f64]) -> Option<Vec<f64>> {
    if samples.len() != base.len() || base.contains(&0.0) {
        return None;
    }
    Some(samples.iter().zip(base).map(|(sample, base)| sample / base).collect())
}

/// The median of the [`ratios`], which a slow moment of the machine changes little.
pub fn median_ratio(samples: &[f64], base: &[f64]) -> Option<f64> {
    median(&ratios(samples, base)?)
}

/// An interval that has the median of what the samples are of with a probability of 95 %, by the
/// sign test: whatever their distribution. `None` of fewer than six samples.
pub fn median_interval(samples: &[f64]) -> Option<(f64, f64)> {
    let sorted = sorted(samples);
    let n = sorted.len() as f64;
    // The binomial distribution's quantile: 0.98 is 1.96 standard deviations of a fair coin.
    let left_out = ((n + 1.0) / 2.0 - 0.98 * n.sqrt()).floor();
    let low = (left_out >= 1.0).then(|| left_out as usize - 1)?;
    Some((sorted[low], sorted[sorted.len() - 1 - low]))
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

    /// Binomial probabilities of a fair coin: of 6 throws none, 2/64; of 11 at most 1, 24/2048; of
    /// 31 at most 9, 0.03.
    #[test]
    fn intervals_of_the_median_by_hand() {
        let interval = |n: u32| median_interval(&(1..=n).map(f64::from).collect::<Vec<_>>());
        assert_eq!((interval(0), interval(5)), (None, None));
        assert_eq!(interval(6), Some((1.0, 6.0)));
        assert_eq!(interval(11), Some((2.0, 10.0)));
        assert_eq!(interval(31), Some((10.0, 22.0)));
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
