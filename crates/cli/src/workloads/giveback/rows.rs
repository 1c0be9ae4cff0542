//! Rows, figures over time and tables.

use super::program::{MOMENTS_S, Run, Shape};
use crate::harness::interrupts;
use crate::names::Design;
use crate::report::rows::{Metric, Params, Series, params};
use crate::report::{Report, table};
use crate::workloads::settings::Settings;

/// The workload of all rows.
pub const NAME: &str = "giveback";

/// The share of the freed memory that is no longer present.
const RETURNED: Metric = ("returned_share", "1");
const P999: Metric = ("owner_p999_ns", "ns");
const WORST: Metric = ("owner_worst_ns", "ns");
const ISOLATED: Metric = ("isolated_interrupts", "interrupts");
const ISOLATED_QUIET: Metric = ("isolated_interrupts_before_per_s", "1/s");
const CALLS: Metric = ("function_call_interrupts", "interrupts");
const SHOOTDOWNS: Metric = ("tlb_shootdowns", "interrupts");
const RELEASER: Metric = ("releaser_cpu_ms", "ms");
const HUGE: Metric = ("huge_bytes", "bytes");
const FAULTS_AFTER: Metric = ("faults_after", "faults");
const FAULTS: Metric = ("second_peak_faults", "faults");
const SECOND: Metric = ("second_peak_ms", "ms");
const PRESENT: &str = "present_bytes";

const MIB: f64 = (1 << 20) as f64;

/// A row's name for people.
pub fn label(design: Design, asked: bool) -> String {
    format!("{design}{}", if asked { ", asked" } else { "" })
}

/// The rows of all runs, and what to show.
pub fn report(settings: &Settings, shape: Shape, found: &[(Design, bool, Vec<Run>)]) -> Report {
    let mut report = Report::default();
    for (design, asked, runs) in found {
        let mut add = |metric: Metric, more: Params, of: &dyn Fn(&Run) -> Option<f64>| {
            let mut params = params([("busy", 1), ("asked", (*asked).into())]);
            params.extend(more);
            let samples: Vec<f64> = runs.iter().filter_map(of).collect();
            report.add(NAME, *design, metric, (settings.cpus.len(), &params), &samples);
        };
        // The last one is what the program is judged by.
        for (at, &moment) in MOMENTS_S.iter().enumerate().rev() {
            let after = params([("after_s", moment.into())]);
            add(RETURNED, after, &|run| run.returned.get(at).copied());
        }
        for quiet in [true, false] {
            for isolated in [false, true] {
                let latency = move |run: &Run| match (quiet, isolated) {
                    (true, false) => run.quiet,
                    (false, false) => run.after,
                    (true, true) => run.isolated_quiet,
                    (false, true) => run.isolated_after,
                };
                let of = params([("quiet", quiet.into()), ("isolated", isolated.into())]);
                let some = |ns: u64| (ns > 0).then_some(ns as f64);
                add(P999, of.clone(), &|run| some(latency(run).p999_ns));
                add(WORST, of, &|run| some(latency(run).worst_ns));
            }
        }
        add(ISOLATED, Params::new(), &|run| run.isolated_interrupts.map(|count| count as f64));
        add(ISOLATED_QUIET, Params::new(), &|run| run.isolated_interrupts_quiet_per_s);
        let cpus = runs.first().into_iter().flat_map(|run| &run.interrupts);
        for &(cpu, ..) in cpus {
            let of = |run: &Run| run.interrupts.iter().find(|found| found.0 == cpu).copied();
            let param = params([("cpu", cpu.into())]);
            add(CALLS, param.clone(), &|run| of(run)?.1.map(|count| count as f64));
            add(SHOOTDOWNS, param, &|run| of(run)?.2.map(|count| count as f64));
        }
        add(RELEASER, Params::new(), &|run| Some(run.releaser_cpu_ms));
        add(HUGE, Params::new(), &|run| Some(run.huge_bytes as f64));
        add(FAULTS_AFTER, Params::new(), &|run| Some(run.faults_after as f64));
        add(FAULTS, Params::new(), &|run| Some(run.second_peak_faults as f64));
        add(SECOND, Params::new(), &|run| Some(run.second_peak_ms));
        if let Some(run) = runs.last() {
            report.add_series(Series {
                workload: NAME.to_owned(),
                design: label(*design, *asked),
                metric: PRESENT.to_owned(),
                over: "ms".to_owned(),
                points: run.over_time.iter().map(|&(s, bytes)| (s * 1000.0, bytes)).collect(),
            });
        }
    }
    if found.iter().any(|(_, _, runs)| !runs.is_empty()) {
        report.say(format!(
            "{NAME}: a peak of {} MiB passes, and threads go on working. The share that came back \
             after 5 and\n10 s; the slowest operation of a thousand before the peak and after it, \
             and the slowest of all, us;\ninterrupts of the isolated CPU; the CPU time of what \
             gives back; huge pages that are left; page\nfaults until the second peak, and in it",
            shape.peak_bytes >> 20,
        ));
        report.say(shown(found));
        if found.iter().flat_map(|(_, _, runs)| runs).all(|run| run.interrupts.is_empty()) {
            report.note(interrupts::NOT_COUNTED);
        }
    }
    report
}

fn shown(found: &[(Design, bool, Vec<Run>)]) -> comfy_table::Table {
    let headings = [
        "design", "5 s", "10 s", "p99.9", "after", "worst", "irqs", "CPU ms", "huge MiB", "faults",
        "again",
    ];
    let mut table = table::new(headings);
    for (design, asked, runs) in found {
        let median =
            |of: &dyn Fn(&Run) -> f64| table::median(&runs.iter().map(of).collect::<Vec<_>>());
        let percent = |at: usize| {
            let share = |run: &Run| run.returned.get(at).copied().unwrap_or(f64::NAN);
            median(&|run| 100.0 * share(run)) + " %"
        };
        let isolated = |run: &Run| run.isolated_interrupts.map_or(f64::NAN, |count| count as f64);
        table.add_row([
            label(*design, *asked),
            percent(2),
            percent(3),
            median(&|run| run.quiet.p999_ns as f64 / 1000.0),
            median(&|run| run.after.p999_ns as f64 / 1000.0),
            median(&|run| run.after.worst_ns as f64 / 1000.0),
            median(&isolated),
            median(&|run| run.releaser_cpu_ms),
            median(&|run| run.huge_bytes as f64 / MIB),
            median(&|run| run.faults_after as f64),
            median(&|run| run.second_peak_faults as f64),
        ]);
    }
    table::align(table, 1)
}

/// The bytes of a megabyte, for plots.
pub const fn mib() -> f64 {
    MIB
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_has_its_name_and_its_figures() {
        let run = Run { returned: vec![0.0, 0.1, 0.5, 0.97], ..Run::default() };
        let found = [(Design::Depot, true, vec![run])];
        let table = shown(&found).to_string();
        assert!(table.contains("depot, asked") && table.contains("97.0 %"), "{table}");
    }
}
