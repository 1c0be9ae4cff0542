//! The x axis of plots, which has numbers where points are if these are few and whole: there are no
//! 1.5 CPUs.

use std::ops;

use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, ValueFormatter};
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::Ranged;

/// Most points of a line that the axis follows.
pub const FOLLOWED_MAX: usize = 40;
/// Most numbers, where the axis does not follow the points.
const NUMBERS_MAX: usize = 10;
/// Pixels of the axis, at least, and of a digit below it.
const AXIS_PIXELS: f64 = 400.0;
const DIGIT_PIXELS: f64 = 9.0;

/// An axis of a plot: its range and marks.
pub struct Axis {
    range: RangedCoordf64,
    numbers: Vec<f64>,
}

impl Axis {
    /// An axis from `x0` to `x1` for points at these places.
    pub fn new((x0, x1): (f64, f64), places: impl Iterator<Item = f64>) -> Self {
        let range = RangedCoordf64::from(x0..x1);
        let mut numbers: Vec<f64> = places.collect();
        numbers.sort_by(f64::total_cmp);
        numbers.dedup();
        if numbers.len() > FOLLOWED_MAX || numbers.iter().any(|x| x.fract() != 0.0) {
            let numbers = range.key_points(NUMBERS_MAX);
            return Axis { range, numbers };
        }
        // Half of each label and a digit between them.
        let half = |x: f64| (short(x).len() + 1) as f64 / 2.0 * DIGIT_PIXELS;
        let mut last = None;
        numbers.retain(|&x| {
            let apart = |last: f64| (x - last) / (x1 - x0) * AXIS_PIXELS;
            let fits = last.is_none_or(|last| apart(last) >= half(last) + half(x));
            last = if fits { Some(x) } else { last };
            fits
        });
        Axis { range, numbers }
    }
}

impl Ranged for Axis {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        self.range.map(value, limit)
    }

    fn key_points<Hint: KeyPointHint>(&self, _hint: Hint) -> Vec<f64> {
        self.numbers.clone()
    }

    fn range(&self) -> ops::Range<f64> {
        self.range.range()
    }
}

impl ValueFormatter<f64> for Axis {
    fn format(value: &f64) -> String {
        short(*value)
    }
}

/// `1.2k`, `3M`, `0.05`; of small numbers as many digits as tell two labels apart.
pub fn short(value: f64) -> String {
    let (scaled, unit) = match value.abs() {
        large if large >= 1e9 => (value / 1e9, "G"),
        large if large >= 1e6 => (value / 1e6, "M"),
        large if large >= 1e3 => (value / 1e3, "k"),
        _ => (value, ""),
    };
    let digits = if scaled == 0.0 { 0.0 } else { 2.0 - scaled.abs().log10().floor() };
    let text = format!("{scaled:.*}", digits.clamp(2.0, 9.0) as usize);
    format!("{}{unit}", text.trim_end_matches('0').trim_end_matches('.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(places: &[f64]) -> Vec<f64> {
        let (first, last) = (places[0], places[places.len() - 1]);
        Axis::new((first, last), places.iter().copied()).numbers
    }

    #[test]
    fn whole_places_are_its_numbers_where_there_is_room() {
        assert_eq!(numbers(&[1.0, 2.0]), [1.0, 2.0]);
        assert_eq!(numbers(&[1.0, 2.0, 64.0, 128.0]), [1.0, 64.0, 128.0]);
    }

    #[test]
    fn labels_do_not_overlap() {
        let batches: Vec<f64> = (0..15).map(|n| f64::from(1 << n)).collect();
        assert_eq!(numbers(&batches), [1.0, 2048.0, 4096.0, 8192.0, 16384.0]);
        let many: Vec<f64> = (1..=32).map(|n| f64::from(n * 1000)).collect();
        assert!(numbers(&many).len() <= 12, "{:?}", numbers(&many));
    }

    #[test]
    fn other_places_have_round_numbers() {
        let numbers = numbers(&[0.0, 2.3]);
        assert!(numbers.len() > 2 && numbers.contains(&0.5), "{numbers:?}");
    }

    #[test]
    fn labels_are_short() {
        assert_eq!([0.05, 1.0, 1500.0, 2e6, 3.5e9].map(short), ["0.05", "1", "1.5k", "2M", "3.5G"]);
        assert_eq!([0.0, 0.005, 0.015, 0.0002].map(short), ["0", "0.005", "0.015", "0.0002"]);
    }
}
