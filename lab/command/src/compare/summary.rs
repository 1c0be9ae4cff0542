//! The summary of a comparison, before its tables: how many figures are better or worse, and the
//! largest differences.

use super::rule::Verdict;
use super::stats::Stat;
use super::table::{Comparison, TableLine};
use pagedepot_cli::failure::Failure;
use pagedepot_cli::harness::samples::ROUNDS_TO_JUDGE;
use pagedepot_cli::report::counted;
use pagedepot_cli::report::terminal::{BETTER, WORSE};

/// Largest differences named of each column.
const NAMED: usize = 5;
/// Two medians count as the same when the interval of the change is within this.
const SAME_PERCENT: f64 = 5.0;

/// The finding about one figure.
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
    /// The finding by our rule; `None` where the figure is neither good nor bad, or has no samples.
    pub fn of(verdict: &Verdict) -> Option<Self> {
        if verdict.p.is_none() {
            return verdict.is_sampled.then_some(Finding::TooFew);
        }
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

    /// The finding's words in a table.
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

/// A change from which on it is said as a factor: `-2089 %` of a time is no figure that one sees.
const FACTOR_PERCENT: f64 = 200.0;

/// A change in percent, or a large one as a factor: `+12.3 %`, `21.9 times`.
pub fn changed(percent: f64) -> String {
    if percent.abs() < FACTOR_PERCENT {
        // Not -0.0.
        return format!("{:+.1} %", if percent.abs() < 0.005 { 0.0 } else { percent });
    }
    // What is lower the better becomes so many times as much, the other less becomes more.
    format!("{:.1} times", 1.0 + percent.abs() / 100.0)
}

/// An interval of changes.
pub fn span((low, high): (f64, f64)) -> String {
    let is_large = |percent: f64| percent.abs() >= FACTOR_PERCENT;
    match (is_large(low), is_large(high)) {
        (false, false) => format!("{low:+.1} .. {high:+.1} %"),
        (true, true) if (low < 0.0) == (high < 0.0) => {
            let (few, many) = (low.abs().min(high.abs()), low.abs().max(high.abs()));
            format!("{:.1} .. {:.1} times", 1.0 + few / 100.0, 1.0 + many / 100.0)
        }
        _ => format!("{} .. {}", changed(low), changed(high)),
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
        let interval =
            interval.map_or_else(String::new, |interval| format!("  (95 %: {})", span(interval)));
        let mark = if *percent > 0.0 { BETTER } else { WORSE };
        let (workload, label) = (&line.key.workload, &line.label);
        let change = changed(*percent);
        text += &format!("  {mark} {change}  {workload} {label}{interval}\n");
    }
    text
}

/// Judges the comparison for `--fail-above`, if it is given, and warns of figures that cannot be
/// judged.
///
/// # Errors
/// When a figure is worse, or none can be judged: the check would pass whatever was measured.
pub fn gate(
    comparison: &Comparison,
    limit_percent: Option<f64>,
    warnings: &mut Vec<String>,
) -> Result<(), Failure> {
    let Some(limit_percent) = limit_percent else { return Ok(()) };
    let cells = comparison.lines.iter().flat_map(|line| line.cells.iter().flatten());
    let verdicts: Vec<&Verdict> = cells.filter_map(|cell| cell.verdict.as_ref()).collect();
    let can_judge = |verdict: &&&Verdict| verdict.can_judge(comparison.rule);
    if !verdicts.iter().any(|verdict| can_judge(&verdict)) {
        return Err(Failure::Usage(format!(
            "--fail-above has nothing to judge: no figure of both has samples enough; take \
             {ROUNDS_TO_JUDGE} of each"
        )));
    }
    let few = verdicts.iter().filter(|verdict| verdict.is_sampled && !can_judge(verdict)).count();
    if few > 0 {
        let figures = counted(few, "figure");
        warnings.push(format!("{figures} with too few samples for --fail-above to judge by"));
    }
    failure(comparison, limit_percent).map_or(Ok(()), |worse| Err(Failure::Worse(worse)))
}

/// The reason why the comparison fails, if a figure is worse by more than `limit_percent`.
fn failure(comparison: &Comparison, limit_percent: f64) -> Option<String> {
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
    let by = changed(most.0);
    let by = by.strip_prefix('-').unwrap_or(&by);
    Some(format!(
        "{} {figures} worse by more than {limit_percent} %; most: {} by {by}",
        worse.len(),
        most.1
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::columns::{NamedDocument, of_files};
    use crate::compare::rule::Rule;
    use pagedepot_cli::report::document::Document;

    /// Runs of one program each: a design's samples, and those of a bound.
    fn run(path: &str, depot: f64, bound: f64) -> NamedDocument {
        let samples = |ns: f64| -> Vec<f64> {
            (0..31).map(|n| ns * (1.0 + f64::from(n % 7) / 10_000.0)).collect()
        };
        let row = |design: &str, ns: f64| {
            serde_json::json!({
                "workload": "hot", "design": design, "metric": "pair_ns", "unit": "ns",
                "cpus": 1, "samples": samples(ns),
            })
        };
        let rows = [row("depot", depot), row("floor-tls", bound)];
        let text = serde_json::json!({"schema": 1, "results": rows}).to_string();
        NamedDocument { path: path.into(), document: Document::parse(&text, path).unwrap() }
    }

    fn compared(files: &[NamedDocument]) -> (Finding, String) {
        let comparison = Comparison::new(&of_files(files), None, Rule::Ours).unwrap();
        let depot = comparison.columns.iter().position(|name| name == "b:depot");
        let cell = comparison.lines[0].cells[depot.unwrap()].as_ref().unwrap();
        (Finding::of(cell.verdict.as_ref().unwrap()).unwrap(), summary(&comparison))
    }

    #[test]
    fn two_runs_of_one_program_are_the_same() {
        // All samples of the one are below all of the other: p < 0.001, and nothing changed.
        let (finding, _) = compared(&[run("a.json", 2.00, 1.0), run("b.json", 1.98, 1.0)]);
        assert_eq!(finding, Finding::Same);
        let (finding, _) = compared(&[run("a.json", 2.00, 1.0), run("b.json", 1.80, 1.0)]);
        assert_eq!(finding, Finding::Better);
        // The bound, which no change of the depot makes faster, is faster by as much.
        let (finding, _) = compared(&[run("a.json", 2.00, 1.0), run("b.json", 1.80, 0.88)]);
        assert_eq!(finding, Finding::Unclear);
    }

    #[test]
    fn a_check_that_could_not_fail_is_refused() {
        let one = |path: &str, value: f64| {
            let row = serde_json::json!({
                "workload": "simulate hot", "design": "depot", "metric": "ops_per_s",
                "unit": "1/s", "cpus": 1, "samples": [value],
            });
            let text = serde_json::json!({"schema": 1, "results": [row]}).to_string();
            NamedDocument { path: path.into(), document: Document::parse(&text, path).unwrap() }
        };
        let comparison =
            |files: &[NamedDocument]| Comparison::new(&of_files(files), None, Rule::Ours).unwrap();
        let (old, new) = (one("a.json", 10.0), one("b.json", 1.0));
        let alone = comparison(&[old, new]);
        assert!(summary(&alone).contains("of 1 figure 0 better, 0 worse"), "{}", summary(&alone));
        assert!(summary(&alone).contains("1 with too few samples"), "{}", summary(&alone));
        let line = gate(&alone, Some(5.0), &mut Vec::new()).unwrap_err().to_string();
        assert!(line.contains("nothing to judge"), "{line}");
        assert!(gate(&alone, None, &mut Vec::new()).is_ok());
        // Beside others such a figure is warned of.
        let with_one = |path, mut run: NamedDocument, value| {
            run.document.results.extend(one(path, value).document.results);
            run
        };
        let files = [
            with_one("a.json", run("a.json", 2.0, 1.0), 10.0),
            with_one("b.json", run("b.json", 3.0, 1.0), 1.0),
        ];
        let mut warnings = Vec::new();
        let worse = gate(&comparison(&files), Some(5.0), &mut warnings).unwrap_err();
        let Failure::Worse(line) = worse else { panic!("{worse}") };
        assert!(line.starts_with("1 figure is worse"), "{line}");
        assert!(warnings.concat().starts_with("1 figure with too few samples"), "{warnings:?}");
    }

    #[test]
    fn large_changes_are_factors() {
        let (finding, text) = compared(&[run("a.json", 2.0, 1.0), run("b.json", 43.78, 1.0)]);
        assert_eq!(finding, Finding::Worse);
        assert!(text.contains("21.9 times  hot") && !text.contains("-20"), "{text}");
        assert_eq!(
            [12.34, -0.001, -199.9, 900.0].map(changed),
            ["+12.3 %", "+0.0 %", "-199.9 %", "10.0 times"]
        );
    }
}
