//! Tables for people.

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};

use crate::harness::samples;

/// The text of a cell without a figure.
pub const NONE: &str = "-";

/// A table with these headings.
pub fn new<H: Into<String>>(headings: impl IntoIterator<Item = H>) -> Table {
    let mut table = Table::new();
    table
        .load_preset(presets::UTF8_BORDERS_ONLY)
        .set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(headings.into_iter().map(Into::into));
    table
}

/// Aligns the first `words` columns to the left, and the others, which hold numbers, to the right.
pub fn align(mut table: Table, words: usize) -> Table {
    for column in table.column_iter_mut().skip(words) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

/// A figure with three significant digits.
pub fn figure(value: f64) -> String {
    match value.abs() {
        small if small < 9.995 => format!("{value:.2}"),
        middling if middling < 99.95 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

/// A cell with the median of samples.
pub fn median(samples: &[f64]) -> String {
    samples::median(samples).filter(|m| m.is_finite()).map_or_else(|| NONE.to_owned(), figure)
}

/// A cell with the quartiles of samples.
pub fn quartiles(samples: &[f64]) -> String {
    let quartiles =
        samples::quartiles(samples).filter(|(low, high)| low.is_finite() && high.is_finite());
    quartiles.map_or_else(
        || NONE.to_owned(),
        |(low, high)| format!("{} .. {}", figure(low), figure(high)),
    )
}

/// A cell with the ratio of samples to those of a base.
pub fn ratio(samples: &[f64], base: Option<&[f64]>) -> String {
    let ratio = base
        .and_then(|base| samples::median_ratio(samples, base))
        .filter(|ratio| ratio.is_finite());
    ratio.map_or_else(|| NONE.to_owned(), |ratio| format!("{ratio:.2}"))
}

/// A cell with the difference of samples to those of a base, in percent.
pub fn change(samples: &[f64], base: Option<&[f64]>) -> String {
    let ratio = base
        .and_then(|base| samples::median_ratio(samples, base))
        .filter(|ratio| ratio.is_finite());
    ratio.map_or_else(|| NONE.to_owned(), |ratio| format!("{:+.1} %", (ratio - 1.0) * 100.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_three_digits() {
        let shown: Vec<_> =
            [0.0, 1.234, 9.994, 9.996, 12.34, 99.96, 123.4, -2.0].map(figure).into();
        assert_eq!(shown, ["0.00", "1.23", "9.99", "10.0", "12.3", "100", "123", "-2.00"]);
    }

    #[test]
    fn what_is_missing_shows_as_such() {
        assert_eq!(
            [median(&[]), quartiles(&[]), ratio(&[1.0], None), ratio(&[f64::NAN], Some(&[1.0]))],
            [NONE; 4]
        );
        assert_eq!(ratio(&[3.0, 4.0], Some(&[2.0, 2.0])), "1.75");
        assert_eq!(change(&[3.0, 4.0], Some(&[2.0, 2.0])), "+75.0 %");
        assert_eq!(change(&[3.0], None), NONE);
    }
}
