//! The x axis of plots, which has numbers where points are if these are few and whole: there are no
//! 1.5 CPUs.

use std::ops;

use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, ValueFormatter};
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::Ranged;

use super::chart::short;

/// Most points of a line that the axis follows.
pub const FOLLOWED_MAX: usize = 40;
/// Most numbers.
const NUMBERS_MAX: usize = 20;

/// See the module.
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
            let numbers = range.key_points(NUMBERS_MAX / 2);
            return Axis { range, numbers };
        }
        let apart = (x1 - x0) / NUMBERS_MAX as f64;
        let mut last = f64::NEG_INFINITY;
        numbers.retain(|&x| {
            let fits = x - last >= apart;
            last = if fits { x } else { last };
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
    fn other_places_have_round_numbers() {
        let numbers = numbers(&[0.0, 2.3]);
        assert!(numbers.len() > 2 && numbers.contains(&0.5), "{numbers:?}");
    }
}
