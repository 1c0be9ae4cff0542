//! A comparison as text and as Markdown.

use comfy_table::{CellAlignment, Table, presets};

use super::rule::{Rule, Verdict};
use super::stats::Stat;
use super::table::{Comparison, TableLine};

/// The text of a cell without a figure.
const NONE: &str = "-";

/// The medium that a table is written for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Medium {
    Text,
    Markdown,
}

/// The tables of all workloads, with the statistics asked for, and what their stars mean.
pub fn render(comparison: &Comparison, stats: &[Stat], medium: Medium) -> String {
    let mut text = String::new();
    for workload in comparison.workloads() {
        let heading = if medium == Medium::Markdown { "## " } else { "" };
        text += &format!("{heading}{workload}\n{}", blank(medium));
        text += &figures(comparison, workload, stats, medium);
        if comparison.rule == Rule::Ours
            && let Some(differences) = differences(comparison, workload, medium)
        {
            let base = &comparison.columns[comparison.base];
            text += &format!("\nDifferences to {base}\n{}{differences}", blank(medium));
        }
        text.push('\n');
    }
    text + &legend(comparison)
}

fn blank(medium: Medium) -> &'static str {
    if medium == Medium::Markdown { "\n" } else { "" }
}

/// mmtests' table: statistics one after another, each of all rows.
fn figures(comparison: &Comparison, workload: &str, stats: &[Stat], medium: Medium) -> String {
    let mut table = new(medium, 2);
    let headings =
        [String::new(), String::new()].into_iter().chain(comparison.columns.iter().cloned());
    table.set_header(headings.map(|heading| escaped(heading, medium)));
    let lines = || comparison.lines.iter().filter(|line| line.key.workload == workload);
    for &stat in stats {
        for line in lines()
            .filter(|line| line.cells.iter().flatten().any(|c| c.figures.get(stat).is_some()))
        {
            let cells = (0..line.cells.len()).map(|column| cell(comparison, line, column, stat));
            let title = [stat.title(line.better).to_owned(), line.label.clone()];
            table.add_row(title.into_iter().chain(cells).map(|text| escaped(text, medium)));
        }
    }
    finished(table, 2)
}

/// A figure and its percentage: in parentheses, or between stars.
fn cell(comparison: &Comparison, line: &TableLine, column: usize, stat: Stat) -> String {
    let Some(cell) = &line.cells[column] else { return NONE.to_owned() };
    let Some(value) = cell.figures.get(stat) else { return NONE.to_owned() };
    let decimals = decimals(line, stat);
    let value = format!("{value:.decimals$}");
    let percent = match comparison.percent(line, column, stat) {
        Some(percent) => format!("{:7.2}%", without_minus_zero(percent)),
        None => format!("{NONE:>8}"),
    };
    let star = stat == Stat::Mean && cell.verdict.as_ref().is_some_and(|verdict| verdict.star);
    if star { format!("{value} *{percent}*") } else { format!("{value} ({percent})") }
}

/// Prints -0.001 as 0.00.
fn without_minus_zero(percent: f64) -> f64 {
    if percent.abs() < 0.005 { 0.0 } else { percent }
}

/// Two decimals, as mmtests has them, or as many as it takes to show three digits of the smallest.
fn decimals(line: &TableLine, stat: Stat) -> usize {
    let values = line.cells.iter().flatten().filter_map(|cell| cell.figures.get(stat));
    let smallest = values.map(f64::abs).filter(|&value| value > 0.0).fold(f64::INFINITY, f64::min);
    if smallest < 0.1 { (2.0 - smallest.log10().floor()).min(12.0) as usize } else { 2 }
}

/// The verdict of our rule on each difference; `None` when no row has enough samples.
fn differences(comparison: &Comparison, workload: &str, medium: Medium) -> Option<String> {
    let mut table = new(medium, 2);
    table.set_header(["", "", "n", "change", "95% interval", "g", "p", "verdict"]);
    let mut any = false;
    for line in comparison.lines.iter().filter(|line| line.key.workload == workload) {
        for (column, cell) in line.cells.iter().enumerate() {
            let Some((cell, verdict)) =
                cell.as_ref().and_then(|c| c.verdict.as_ref().map(|v| (c, v)))
            else {
                continue;
            };
            let Some(p) = verdict.p_holm else { continue };
            any = true;
            let row = [
                line.label.clone(),
                comparison.columns[column].clone(),
                format!("{}/{}", cell.figures.n, verdict.base_n),
                change(verdict).map_or(NONE.into(), |change| format!("{change:+.2}%")),
                verdict
                    .interval_percent
                    .map_or(NONE.into(), |(low, high)| format!("{low:+.2} .. {high:+.2}%")),
                verdict.effect.map_or(NONE.into(), |effect| format!("{effect:+.2}")),
                if p < 0.001 { "<0.001".to_owned() } else { format!("{p:.3}") },
                words(verdict).to_owned(),
            ];
            table.add_row(row.map(|text| escaped(text, medium)));
        }
    }
    any.then(|| finished(table, 2))
}

/// The difference of arithmetic means in percent: where the interval is about a rate, not that of
/// the harmonic means above.
fn change(verdict: &Verdict) -> Option<f64> {
    verdict.interval_percent.map(|(low, high)| f64::midpoint(low, high))
}

fn words(verdict: &Verdict) -> &'static str {
    match (verdict.star, change(verdict)) {
        (false, _) => "no difference shown",
        (true, Some(change)) if change > 0.0 => "better",
        (true, Some(_)) => "worse",
        (true, None) => "different",
    }
}

fn legend(comparison: &Comparison) -> String {
    let mut text = "Percentages: positive is better. Stars: ".to_owned();
    text += match comparison.rule {
        Rule::Ours => {
            "Welch's test, p < 0.05 after Holm's correction for all comparisons here.\n\
             n: samples of the column and of the base; change and interval: of arithmetic means; \
             g: Hedges' g, the difference in standard deviations.\n"
        }
        Rule::Threads => "Welch's test, p < 0.10, each comparison for itself.\n",
        Rule::Mmtests => "means further apart than 1.96 standard deviations of both.\n",
    };
    let verdicts =
        || comparison.lines.iter().flat_map(|l| &l.cells).flatten().flat_map(|c| &c.verdict);
    if verdicts().any(|verdict| verdict.printed) {
        text += "Rows without samples show what their source printed, stars included where they are about \
                 the same base; percentages are worked out from the figures, which are rounded.\n";
    }
    if verdicts().any(|verdict| !verdict.printed && verdict.p.is_none()) {
        text += "Rows with fewer than two samples on a side are not tested.\n";
    }
    text
}

fn new(medium: Medium, words: usize) -> Table {
    let mut table = crate::report::table::new([""; 0]);
    table.load_preset(if medium == Medium::Text {
        presets::NOTHING
    } else {
        presets::ASCII_MARKDOWN
    });
    debug_assert!(words > 0);
    table
}

/// The table, words to the left and figures to the right, without blanks at the ends of lines.
fn finished(mut table: Table, words: usize) -> String {
    for column in table.column_iter_mut().skip(words) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    let text = table.to_string();
    text.lines().map(|line| format!("{}\n", line.trim_end())).collect()
}

/// Markdown takes stars for emphasis and bars for columns.
fn escaped(text: String, medium: Medium) -> String {
    if medium == Medium::Markdown { text.replace('*', "\\*").replace('|', "\\|") } else { text }
}
