//! The threads' own tables: every percentage that the mails print is worked out again from their
//! columns, and must be within what rounding the columns, and the percentage, to the digits printed
//! allows.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::columns::{self, NamedDocument};
use super::metric;
use super::rule::Rule;
use super::stats::Stat;
use super::table::Comparison;
use super::threads;
use pagedepot_cli::report::better::{Better, better};
use pagedepot_cli::report::document::{Document, ResultRow};
use pagedepot_cli::workloads::clients::auto;

/// Rounding of the percentages: half of the last digit printed.
const PERCENT_ROUNDING: f64 = 0.005;
/// Figures such as 0.0049999 for 0.005.
const FLOATING: f64 = 1e-9;

fn files() -> Vec<PathBuf> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("results/threads");
    let entries = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<_> =
        entries.filter(|path| path.extension().is_some_and(|e| e == "json")).collect();
    files.sort();
    files
}

/// A row as compare reads it, and with what only this test looks at.
fn rows(path: &Path) -> Vec<(ResultRow, Value)> {
    let text = fs::read_to_string(path).unwrap();
    let value: Value = serde_json::from_str(&text).unwrap();
    let raw = value["results"].as_array().unwrap().clone();
    Document::parse(&text, "file").unwrap().results.into_iter().zip(raw).collect()
}

/// The least and most that a percentage can be when both figures are rounded.
fn bounds(better: Better, new: f64, base: f64, half_digit: f64) -> (f64, f64) {
    let at = |by: f64| better.percent(new + by * half_digit, base - by * half_digit).unwrap();
    let (a, b) = (at(-1.0), at(1.0));
    (a.min(b) - PERCENT_ROUNDING - FLOATING, a.max(b) + PERCENT_ROUNDING + FLOATING)
}

/// The percentages in a file that were checked.
fn check(path: &Path) -> usize {
    let mut checked = 0;
    for pair in rows(path).chunks(2) {
        let [(base, raw_base), (new, raw_new)] = pair else { continue };
        let Some(percents) = raw_new["printed"]["percent"].as_object() else { continue };
        assert_eq!((&base.metric, &base.params), (&new.metric, &new.params));
        let half_digit =
            0.5 * 0.1_f64.powi(raw_base["printed"]["decimals"].as_i64().unwrap() as i32);
        for (figure, percent) in percents {
            let of = |raw: &Value| raw["printed"][figure].as_f64().unwrap();
            let spread = matches!(figure.as_str(), "stddev" | "range");
            let way = if spread { Better::Lower } else { better(new) };
            let (low, high) = bounds(way, of(raw_new), of(raw_base), half_digit);
            let percent = percent.as_f64().unwrap();
            let (file, label) = (path.display(), metric::label(new));
            assert!(
                (low..=high).contains(&percent),
                "{file} {label} {figure}: {percent} not in {low}..{high}"
            );
            checked += 1;
        }
    }
    checked
}

#[test]
fn percentages_of_the_threads_follow_from_their_columns() {
    let checked: usize = files().iter().map(|path| check(path)).sum();
    // 122 of the rcu thread's seven machines; of the magazine prototype 20 of kernbench, 45 of
    // pagealloc, 16 of pft.
    assert_eq!(checked, 122 + 20 + 45 + 16);
}

#[test]
fn stars_of_the_threads_are_shown_as_printed() {
    for path in files() {
        let named = NamedDocument { document: Document::load(&path).unwrap(), path: path.clone() };
        let columns = columns::of_files(&[named]);
        if columns.len() < 2 {
            continue;
        }
        let comparison = Comparison::new(&columns, None, Rule::Threads).unwrap();
        let new = &columns[1].rows;
        assert_eq!(comparison.lines.len(), new.len());
        for (line, row) in comparison.lines.iter().zip(new) {
            let cell = line.cells[1].as_ref().unwrap();
            assert_eq!(cell.verdict.as_ref().unwrap().star, row.printed.as_ref().unwrap().star);
            assert_eq!(cell.figures.get(Stat::Mean), row.printed.as_ref().unwrap().mean);
        }
    }
}

#[test]
fn stars_of_a_source_are_about_its_own_base() {
    let names = ["2022-rcu-epyc-7742", "2022-rcu-epyc-7601"];
    let columns = columns::of_files(&names.map(|name| threads::load(name).unwrap()));
    let starred = |base: &str, of: usize| {
        let comparison = Comparison::new(&columns, Some(base), Rule::Threads).unwrap();
        let cells = comparison.lines.iter().map(|line| line.cells[of].as_ref().unwrap());
        cells.filter(|cell| cell.verdict.as_ref().is_some_and(|verdict| verdict.star)).count()
    };
    // All 20 rows of either machine have a star; those of one say nothing about the other's base.
    assert_eq!(
        (starred("2022-rcu-epyc-7742:vanilla", 2), starred("2022-rcu-epyc-7742:vanilla", 3)),
        (20, 0)
    );
    assert_eq!(
        (starred("2022-rcu-epyc-7601:vanilla", 2), starred("2022-rcu-epyc-7601:vanilla", 3)),
        (0, 20)
    );
    assert_eq!(starred("2022-rcu-epyc-7742:rcu", 0), 0);
}

/// The numbers of clients that each machine of the rcu thread was measured with.
#[test]
fn clients_are_those_of_the_threads_tables() {
    for (name, cpus) in [
        ("2022-rcu-cortex-a72", 4),
        ("2022-rcu-xeon-e5-2640", 32),
        ("2022-rcu-neoverse-n1", 80),
        ("2022-rcu-epyc-7742", 128),
        ("2022-rcu-epyc-7601", 128),
        ("2022-rcu-power9", 128),
        ("2022-rcu-thunderx2", 256),
    ] {
        let mut clients: Vec<usize> = Vec::new();
        for row in threads::load(name).unwrap().document.results {
            let n = row.params["clients"] as usize;
            if !clients.contains(&n) {
                clients.push(n);
            }
        }
        assert_eq!(clients, auto(cpus), "{name}");
    }
}

/// Columns with these samples of one metric.
fn columns_of(metric: &str, samples: &[(&str, &[f64])]) -> Vec<columns::Column> {
    let rows = samples.iter().map(|&(design, samples)| ResultRow {
        workload: "hot".into(),
        design: design.into(),
        metric: metric.into(),
        unit: "ns".into(),
        cpus: 1,
        samples: samples.into(),
        ..ResultRow::default()
    });
    columns::by_design(rows)
}

fn stars(metric: &str, samples: &[(&str, &[f64])], rule: Rule) -> Vec<bool> {
    let comparison = Comparison::new(&columns_of(metric, samples), None, rule).unwrap();
    comparison.lines[0].cells[1..]
        .iter()
        .map(|c| c.as_ref().unwrap().verdict.as_ref().unwrap().star)
        .collect()
}

#[test]
fn rules_disagree_where_they_should() {
    // t = 2 with 8 degrees of freedom: p = 0.0805 (see welch.rs).
    let base: &[f64] = &[1.0, 2.0, 3.0, 4.0, 5.0];
    let new: &[f64] = &[3.0, 4.0, 5.0, 6.0, 7.0];
    assert_eq!(stars("pair_ns", &[("a", base), ("b", new)], Rule::Threads), [true]);
    assert_eq!(stars("pair_ns", &[("a", base), ("b", new)], Rule::Ours), [false]);
    assert_eq!(stars("pair_ns", &[("a", base), ("b", new)], Rule::Mmtests), [false]);
    // U = 2: p = 8/252. Alone that is a star of ours; as one of two comparisons, 0.063, it is not.
    let further: &[f64] = &[3.5, 5.5, 6.5, 7.5, 8.5];
    assert_eq!(stars("pair_ns", &[("a", base), ("b", further)], Rule::Ours), [true]);
    assert_eq!(
        stars("pair_ns", &[("a", base), ("b", further), ("c", base)], Rule::Ours),
        [false, false]
    );
    // Two modes, of which one side has one sample more in each: the ranks differ (p = 0.003), and
    // the medians may be anywhere between the modes.
    let modes = |low: f64, lows: usize, high: f64| -> Vec<f64> {
        (0..21).map(|at| if at < lows { low } else { high }).collect()
    };
    let (base, new) = (modes(1.0, 11, 10.0), modes(1.1, 10, 10.1));
    assert_eq!(stars("pair_ns", &[("a", &base), ("b", &new)], Rule::Ours), [false]);
    // Means 10 apart; both standard deviations sqrt 2.5, times 1.96 twice is 6.2.
    let far: &[f64] = &[11.0, 12.0, 13.0, 14.0, 15.0];
    let base: &[f64] = &[1.0, 2.0, 3.0, 4.0, 5.0];
    assert_eq!(stars("pair_ns", &[("a", base), ("b", far)], Rule::Mmtests), [true]);
}

#[test]
fn effects_and_intervals_turn_so_that_positive_is_better() {
    let base: &[f64] = &[10.0, 11.0, 12.0];
    let less: &[f64] = &[5.0, 6.0, 7.0];
    for (metric, sign) in [("pair_ns", 1.0), ("faults_per_s", -1.0)] {
        let comparison =
            Comparison::new(&columns_of(metric, &[("a", base), ("b", less)]), None, Rule::Ours)
                .unwrap();
        let verdict = comparison.lines[0].cells[1].as_ref().unwrap().verdict.clone().unwrap();
        let (low, high) = verdict.interval_percent.unwrap();
        assert!(low < high && sign * low > 0.0 && sign * high > 0.0, "{metric}: {low} {high}");
        assert!(sign * verdict.effect.unwrap() > 0.0);
    }
}

#[test]
fn one_thing_measured_twice_is_refused() {
    let mut columns = columns_of("pair_ns", &[("a", &[1.0]), ("b", &[1.0])]);
    let again = columns[1].rows[0].clone();
    columns[1].rows.push(again);
    let line = Comparison::new(&columns, None, Rule::Ours).unwrap_err().to_string();
    assert!(line.contains("b has hot pair-1 twice"), "{line}");
}
