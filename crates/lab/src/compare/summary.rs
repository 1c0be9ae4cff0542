//! What a comparison comes to, before its tables: how many figures are better or worse, and the
//! largest differences.

use super::rule::Verdict;
use super::stats::Stat;
use super::table::{Comparison, TableLine};
use crate::report::terminal::{BETTER, WORSE};

/// Largest differences named of each column.
const NAMED: usize = 5;
/// Two medians count as the same when the interval of the change is within this.
const SAME_PERCENT: f64 = 5.0;

/// What can be said of one figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finding {
    Better,
    Worse,
    /// No difference shown, and the interval leaves no room for one of more than 5 %.
    Same,
    /// No difference shown, and room for one.
    Unclear,
    /// Too few samples for any difference to show.
    TooFew,
}

impl Finding {
    /// By our rule; `None` where the figure is neither good nor bad, or has no samples.
    pub fn of(verdict: &Verdict) -> Option<Self> {
        verdict.p?;
        let (low, high) = verdict.interval_percent.unwrap_or((f64::NEG_INFINITY, f64::INFINITY));
        Some(if verdict.star {
            if verdict.effect.unwrap_or(0.0) > 0.0 { Finding::Better } else { Finding::Worse }
        } else if !verdict.is_testable {
            Finding::TooFew
        } else if low > -SAME_PERCENT && high < SAME_PERCENT {
            Finding::Same
        } else {
            Finding::Unclear
        })
    }

    /// In a table.
    pub fn words(self) -> &'static str {
        match self {
            Finding::Better => "▲ better",
            Finding::Worse => "▼ worse",
            Finding::Same => "the same",
            Finding::Unclear => "unclear",
            Finding::TooFew => "too few samples",
        }
    }
}

/// The summary of each column that is compared with another, a line, and its largest differences.
pub fn summary(comparison: &Comparison) -> String {
    let columns = 0..comparison.columns.len();
    columns
        .filter(|&column| comparison.is_compared(column))
        .map(|of| column(comparison, of))
        .collect()
}

fn column(comparison: &Comparison, column: usize) -> String {
    let found: Vec<(&TableLine, Finding)> = comparison
        .lines
        .iter()
        .filter_map(|line| {
            let verdict = line.cells[column].as_ref()?.verdict.as_ref()?;
            Some((line, Finding::of(verdict)?))
        })
        .collect();
    let (name, base) = (&comparison.columns[column], &comparison.columns[comparison.bases[column]]);
    if found.is_empty() {
        return format!("{name} beside {base}: no figure of both has samples to test\n");
    }
    let count = |wanted: Finding| found.iter().filter(|(_, finding)| *finding == wanted).count();
    let of = found.len();
    let figures = if of == 1 { "figure" } else { "figures" };
    let mut text = format!(
        "{name} beside {base}: of {of} {figures} {} better, {} worse, {} the same, {} unclear",
        count(Finding::Better),
        count(Finding::Worse),
        count(Finding::Same),
        count(Finding::Unclear),
    );
    match count(Finding::TooFew) {
        0 => {}
        few => text += &format!(", {few} with too few samples to tell"),
    }
    text.push('\n');
    let mut largest: Vec<(&TableLine, f64)> = found
        .iter()
        .filter(|(_, finding)| matches!(finding, Finding::Better | Finding::Worse))
        .filter_map(|(line, _)| Some((*line, comparison.percent(line, column, Stat::Median)?)))
        .collect();
    largest.sort_by(|a, b| b.1.abs().total_cmp(&a.1.abs()));
    for (line, percent) in largest.iter().take(NAMED) {
        let verdict = line.cells[column].as_ref().and_then(|cell| cell.verdict.as_ref());
        let interval = verdict.and_then(|verdict| verdict.interval_percent);
        let interval = interval
            .map_or_else(String::new, |(low, high)| format!("  (95 %: {low:+.1} .. {high:+.1} %)"));
        let mark = if *percent > 0.0 { BETTER } else { WORSE };
        let (workload, label) = (&line.key.workload, &line.label);
        text += &format!("  {mark} {percent:+.1} %  {workload} {label}{interval}\n");
    }
    text
}

/// Why the comparison fails, if a figure is worse by more than `limit_percent`.
pub fn failure(comparison: &Comparison, limit_percent: f64) -> Option<String> {
    let mut worse: Vec<(f64, String)> = Vec::new();
    for line in &comparison.lines {
        for (column, cell) in line.cells.iter().enumerate() {
            let verdict = cell.as_ref().and_then(|cell| cell.verdict.as_ref());
            let percent = comparison.percent(line, column, Stat::Median);
            if let (Some(verdict), Some(percent)) = (verdict, percent)
                && verdict.star
                && percent < -limit_percent
            {
                let name = &comparison.columns[column];
                worse.push((percent, format!("{name} {} {}", line.key.workload, line.label)));
            }
        }
    }
    let most = worse.iter().min_by(|a, b| a.0.total_cmp(&b.0))?;
    let figures = if worse.len() == 1 { "figure is" } else { "figures are" };
    Some(format!(
        "{} {figures} worse by more than {limit_percent} %; most: {} by {:.1} %",
        worse.len(),
        most.1,
        -most.0
    ))
}
