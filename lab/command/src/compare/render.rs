//! A comparison as text and as Markdown.

use comfy_table::{CellAlignment, Table, presets};

use super::rule::{RUNS_PERCENT, Rule};
use super::stats::Stat;
use super::summary::{Finding, changed, span, summary};
use super::table::{Comparison, TableLine};
use pagedepot_cli::report::block;
use pagedepot_cli::report::terminal::{BETTER, WORSE, width};

/// The text of a cell without a figure.
const NONE: &str = "-";

/// The medium that a table is written for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Medium {
    Text,
    Markdown,
}

/// Renders the conclusion first, by our rule; then the tables of all workloads, with the statistics
/// asked for, and the meaning of their marks.
pub fn render(comparison: &Comparison, stats: &[Stat], medium: Medium) -> String {
    let mut text = String::new();
    if comparison.rule == Rule::Ours {
        text = summarized(comparison, medium);
    }
    for workload in comparison.workloads() {
        let heading = if medium == Medium::Markdown { "## " } else { "" };
        text += &format!("{heading}{workload}\n{}", blank(medium));
        text += &figures(comparison, workload, stats, medium);
        if comparison.rule == Rule::Ours
            && let Some(differences) = differences(comparison, workload, medium)
        {
            text += &format!("\nDifferences\n{}{differences}", blank(medium));
        }
        text.push('\n');
    }
    match medium {
        Medium::Text => text + &block::wrapped(legend(comparison).trim_end(), width()),
        Medium::Markdown => text + &legend(comparison),
    }
}

fn summarized(comparison: &Comparison, medium: Medium) -> String {
    let lines = summary(comparison);
    if lines.is_empty() {
        return lines;
    }
    match medium {
        Medium::Text => format!("In short\n{}\n", block::wrapped(lines.trim_end(), width())),
        Medium::Markdown => {
            let listed = lines.lines().map(|line| match line.strip_prefix("  ") {
                Some(inner) => format!("  - {inner}\n"),
                None => format!("- {line}\n"),
            });
            format!("{}\n", escaped(listed.collect(), medium))
        }
    }
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
    finished(table, 2, medium)
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
    if comparison.rule == Rule::Ours && stat == Stat::Median {
        return marked(comparison, (line, column), &value);
    }
    let star = comparison.rule != Rule::Ours && stat == Stat::Mean;
    let star = star && cell.verdict.as_ref().is_some_and(|verdict| verdict.star);
    if star { format!("{value} *{percent}*") } else { format!("{value} ({percent})") }
}

/// A median, and how it differs from the base's, with a mark where the difference is shown.
fn marked(comparison: &Comparison, (line, column): (&TableLine, usize), value: &str) -> String {
    let verdict = line.cells[column].as_ref().and_then(|cell| cell.verdict.as_ref());
    let percent = comparison.percent(line, column, Stat::Median);
    let (Some(verdict), Some(percent)) = (verdict, percent) else { return value.to_owned() };
    let star = if verdict.printed { Some(verdict.star) } else { None };
    let mark = match (star, Finding::of(verdict)) {
        (Some(true), _) | (_, Some(Finding::Better | Finding::Worse)) if percent > 0.0 => BETTER,
        (Some(true), _) | (_, Some(Finding::Better | Finding::Worse)) => WORSE,
        _ => ' ',
    };
    format!("{value} {mark} {:>8}", changed(percent))
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
    let headings =
        ["", "design", "n", "median changes by", "95 % interval", "delta", "p", "verdict"];
    table.set_header(headings);
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
                comparison.percent(line, column, Stat::Median).map_or(NONE.into(), changed),
                verdict.interval_percent.map_or(NONE.into(), span),
                verdict.effect.map_or(NONE.into(), |effect| format!("{effect:+.2}")),
                if p < 0.001 { "<0.001".to_owned() } else { format!("{p:.3}") },
                Finding::of(verdict).map_or(NONE, Finding::words).to_owned(),
            ];
            table.add_row(row.map(|text| escaped(text, medium)));
        }
    }
    any.then(|| {
        if medium == Medium::Text {
            block::fitted(&table, width())
        } else {
            finished(table, 2, medium)
        }
    })
}

fn legend(comparison: &Comparison) -> String {
    let mut text = "Percentages: positive is better. ".to_owned();
    text += match comparison.rule {
        Rule::Ours => {
            "Marks: Mann-Whitney's rank test, p < 0.05 after Holm's correction within a metric, \
             and an interval without 0; the same: the interval stays within 5 %; unclear: it does \
             not. Large changes are factors: a time of 3.0 times (▼) is three times as long.\n\
             n: samples of the column and of the base; interval: of the change of the median, by \
             bootstrap; delta: in how many more pairs of samples the new one is the better, of 1.\n"
        }
        Rule::Threads => "Stars: Welch's test, p < 0.10, each comparison for itself.\n",
        Rule::Mmtests => "Stars: means further apart than 1.96 standard deviations of both.\n",
    };
    let verdicts =
        || comparison.lines.iter().flat_map(|l| &l.cells).flatten().flat_map(|c| &c.verdict);
    let runs: Vec<f64> = verdicts().map(|verdict| verdict.runs_percent).collect();
    if let (Rule::Ours, Some(most)) = (comparison.rule, runs.into_iter().reduce(f64::max))
        && most > 0.0
    {
        text += &format!(
            "Between runs: two runs of one program differ, too, by {RUNS_PERCENT} % or what the \
             bounds of both differ by in the same metric (here up to {most:.1} %). A difference \
             has a mark if its interval is beyond that.\n"
        );
    }
    if verdicts().any(|verdict| verdict.printed) {
        text += "Rows without samples show what their source printed, stars included where they \
            are about the same base; percentages are worked out from the figures, which are \
            rounded.\n";
    }
    if verdicts().any(|verdict| !verdict.printed && verdict.p.is_none()) {
        text += "Rows with fewer than two samples on a side are not tested.\n";
    }
    text
}

fn new(medium: Medium, words: usize) -> Table {
    let mut table = pagedepot_cli::report::table::new([""; 0]);
    table.load_preset(if medium == Medium::Text {
        presets::NOTHING
    } else {
        presets::ASCII_MARKDOWN
    });
    debug_assert!(words > 0);
    table
}

/// The table, words to the left and figures to the right, without blanks at the ends of lines. As
/// text it fits the terminal: columns that do not are continued below.
fn finished(mut table: Table, words: usize, medium: Medium) -> String {
    for column in table.column_iter_mut().skip(words) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    if medium == Medium::Text {
        return block::continued(&table, words, width());
    }
    let text = table.to_string();
    text.lines().map(|line| format!("{}\n", line.trim_end())).collect()
}

/// Markdown takes stars for emphasis and bars for columns.
fn escaped(text: String, medium: Medium) -> String {
    if medium == Medium::Markdown { text.replace('*', "\\*").replace('|', "\\|") } else { text }
}
