//! Rows, figures over time and tables.

use super::peak::{Kind, Peak};
use super::phases::Run;
use pagedepot_cli::report::rows::{Metric, Params, Series, params};
use pagedepot_cli::report::{Report, table};
use pagedepot_cli::workloads::Settings;

/// The workload of all rows.
pub const NAME: &str = "giveback";

/// The share of the memory that the program no longer uses, and that is no longer present.
const SHARE: Metric = ("given_back_share", "1");
const PEAK: Metric = ("peak_bytes", "bytes");
const FREED: Metric = ("freed_bytes", "bytes");
const RESIDENT: Metric = ("resident_bytes", "bytes");
const SWITCHES: Metric = ("isolated_switches", "switches");

const MIB: f64 = (1 << 20) as f64;

/// The rows of all runs, and what to show.
pub fn report(settings: &Settings, peak: &Peak, found: &[(Kind, Vec<Run>)]) -> Report {
    let mut report = Report::default();
    let cpus = settings.cpus.len();
    for (kind, runs) in found {
        let figures = |of: &dyn Fn(&Run) -> f64| runs.iter().map(of).collect::<Vec<_>>();
        let mut add = |metric: Metric, more: Params, samples: &[f64]| {
            let mut params =
                params([("memfd", kind.memfd.into()), ("peak_mib", (peak.bytes >> 20) as i64)]);
            params.extend(more);
            report.add(NAME, kind.design, metric, (cpus, &params), samples);
        };
        let asked = |yes: bool| params([("asked", yes.into())]);
        add(SHARE, asked(false), &figures(&|run| run.share(run.rested_bytes)));
        add(SHARE, asked(true), &figures(&|run| run.share(run.purged_bytes)));
        add(RESIDENT, asked(false), &figures(&|run| run.rested_bytes as f64));
        add(RESIDENT, asked(true), &figures(&|run| run.purged_bytes as f64));
        add(PEAK, Params::new(), &figures(&|run| run.peak_bytes as f64));
        add(FREED, Params::new(), &figures(&|run| run.freed_bytes as f64));
        let switches: Vec<f64> =
            runs.iter().filter_map(|run| run.isolated_switches).map(|count| count as f64).collect();
        add(SWITCHES, Params::new(), &switches);
        if let Some(run) = runs.last() {
            let ms = |&(s, bytes): &(f64, f64)| (s * 1000.0, bytes);
            report.add_series(Series {
                workload: NAME.to_owned(),
                design: label(*kind),
                metric: RESIDENT.0.to_owned(),
                over: "ms".to_owned(),
                points: run.over_time.iter().map(ms).collect(),
            });
        }
    }
    if found.iter().any(|(_, runs)| !runs.is_empty()) {
        report.say(format!(
            "{NAME}: {} MiB in use, nine of ten blocks freed, {} s of rest",
            peak.bytes >> 20,
            peak.rest.as_secs_f64(),
        ));
        report.say(shares(found));
        report.say("\nMiB present, by seconds of rest");
        report.say(over_time(found, peak));
    }
    report
}

fn label(kind: Kind) -> String {
    let of = if kind.memfd { "-memfd" } else { "" };
    format!("{}{of}", kind.design.name())
}

fn percent(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}

fn shares(found: &[(Kind, Vec<Run>)]) -> comfy_table::Table {
    let headings =
        ["design", "peak MiB", "freed MiB", "given back", "when asked", "isolated CPU ran"];
    let mut table = table::new(headings);
    for (kind, runs) in found {
        let Some(run) = runs.last() else { continue };
        table.add_row([
            label(*kind),
            table::figure(run.peak_bytes as f64 / MIB),
            table::figure(run.freed_bytes as f64 / MIB),
            percent(run.share(run.rested_bytes)),
            percent(run.share(run.purged_bytes)),
            run.isolated_switches.map_or_else(|| table::NONE.to_owned(), |count| count.to_string()),
        ]);
    }
    table::align(table, 1)
}

/// A line per design, a column per some seconds.
fn over_time(found: &[(Kind, Vec<Run>)], peak: &Peak) -> comfy_table::Table {
    const COLUMNS: usize = 6;
    let moments: Vec<f64> =
        (0..COLUMNS).map(|at| peak.rest.as_secs_f64() * at as f64 / (COLUMNS - 1) as f64).collect();
    let headings = moments.iter().map(|moment| format!("{moment:.1} s"));
    let mut table = table::new(["design".to_owned()].into_iter().chain(headings));
    for (kind, runs) in found {
        let Some(run) = runs.last() else { continue };
        let at = |&moment: &f64| {
            let points = run.over_time.iter();
            let nearest =
                points.min_by(|a, b| (a.0 - moment).abs().total_cmp(&(b.0 - moment).abs()));
            nearest.map_or_else(|| table::NONE.to_owned(), |&(_, bytes)| table::figure(bytes / MIB))
        };
        table.add_row([label(*kind)].into_iter().chain(moments.iter().map(at)));
    }
    table::align(table, 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagedepot_cli::names::Design;

    #[test]
    fn shares_are_of_what_was_freed() {
        let run = Run {
            freed_bytes: 90,
            peak_bytes: 120,
            rested_bytes: 30,
            purged_bytes: 75,
            ..Run::default()
        };
        assert_eq!((run.share(run.rested_bytes), run.share(run.purged_bytes)), (1.0, 0.5));
        let kind = Kind { design: Design::Depot, memfd: true };
        assert_eq!(label(kind), "depot-memfd");
        let table = shares(&[(kind, vec![run])]).to_string();
        assert!(table.contains("100.0 %") && table.contains("50.0 %"), "{table}");
    }
}
