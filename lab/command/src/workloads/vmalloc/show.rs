//! Results of the suite: lines as in the kernel's log, tables, and rows for scripts.

use super::options::NAME;
use super::passes::SuitePlan;
use super::suite::{TESTS, Test};
use super::workers::{Pass, WorkerResult};
use pagedepot_cli::design::PAGE_BYTES;
use pagedepot_cli::harness::samples;
use pagedepot_cli::names::Design;
use pagedepot_cli::report::rows::{Metric, params};
use pagedepot_cli::report::{Report, table};

/// Adds the results of the suite to a report.
pub fn suite(report: &mut Report, plan: &SuitePlan, passes: &[(Design, Vec<Pass>)]) {
    if passes.is_empty() {
        return;
    }
    for (design, passes) in passes {
        for (nth, pass) in passes.iter().enumerate() {
            report.say(format!("{design}, pass {}", nth + 1));
            pass.workers
                .iter()
                .enumerate()
                .for_each(|(nth, worked)| lines(report, plan, nth, worked));
        }
    }
    report.say(format!(
        "{NAME}: run_test_mask={} nr_threads={} test_loop_count={} test_repeat_count={}",
        plan.parameters.run_test_mask & ((1 << TESTS.len()) - 1),
        plan.parameters.nr_threads,
        plan.parameters.test_loop_count,
        plan.parameters.test_repeat_count,
    ));
    for note in notes(plan, passes) {
        report.say(note);
    }
    report.say(counts_table(passes));
    report.say(loops_table(plan, passes));
    for (design, passes) in passes {
        rows(report, plan, *design, passes);
    }
}

/// The lines of a worker.
fn lines(report: &mut Report, plan: &SuitePlan, worker: usize, worked: &WorkerResult) {
    let repeat = plan.parameters.test_repeat_count;
    let asked =
        TESTS.iter().enumerate().filter(|(nth, _)| plan.parameters.run_test_mask >> nth & 1 == 1);
    for (nth, (name, test)) in asked {
        let Some(runs) = worked.tests[nth] else {
            report.say(format!("Summary: {name} skipped"));
            continue;
        };
        report.say(format!(
            "Summary: {name} passed: {} failed: {} xfailed: {} repeat: {repeat} loops: {} avg: \
             {} usec",
            runs.passed,
            runs.failed,
            runs.xfailed,
            test.loops(&plan.parameters),
            runs.wall.as_micros(),
        ));
    }
    report.say(format!("All test took worker{worker}={} cycles", worked.cycles));
}

/// Notes on differences to the kernel, and on failures.
fn notes(plan: &SuitePlan, passes: &[(Design, Vec<Pass>)]) -> Vec<String> {
    let mut notes = Vec::new();
    let (kernel, here) = (plan.kernel_held, plan.held);
    let mask = plan.parameters.run_test_mask;
    if super::suite::runs(mask, Test::FullFitAlloc) && here.junk < kernel.junk {
        notes.push(format!(
            "full_fit_alloc_test holds 2 x {} areas per worker, where the kernel's holds 2 x {}: \
             more would not fit",
            here.junk, kernel.junk
        ));
    }
    if super::suite::runs(mask, Test::LongBusyListAlloc) && here.busy < kernel.busy {
        notes.push(format!(
            "long_busy_list_alloc_test holds {} areas per worker, where the kernel's holds {}: \
             more would not fit",
            here.busy, kernel.busy
        ));
    }
    for (design, passes) in passes {
        if let Some((failed, Some(error))) =
            passes.iter().map(Pass::failures).find(|failures| failures.0 > 0)
        {
            notes.push(format!("{design}: {failed} runs failed; one of them because {error}"));
        }
    }
    notes
}

/// A row per design and pass.
fn counts_table(passes: &[(Design, Vec<Pass>)]) -> comfy_table::Table {
    let global = passes.iter().find(|(design, _)| *design == Design::VmapGlobalLock);
    let mut table = table::new([
        "design",
        "pass",
        "seconds",
        "x vmap-global-lock",
        "lock wait",
        "pool hits",
        "purges",
        "flushed/needed",
        "tables KiB at start",
        "peak",
        "end",
    ]);
    for (design, passes) in passes {
        for (nth, pass) in passes.iter().enumerate() {
            let base = global.and_then(|(_, global)| global.get(nth));
            let faster = base.map(|base| base.wall.as_secs_f64() / pass.wall.as_secs_f64());
            let needed = pass.grown(|counts| counts.needed_pages) as f64;
            let flushed = pass.grown(|counts| counts.flushed_pages) as f64 / needed;
            let kib = |tables: u64| (tables * (PAGE_BYTES as u64 >> 10)).to_string();
            table.add_row([
                design.name().to_owned(),
                (nth + 1).to_string(),
                table::figure(pass.wall.as_secs_f64()),
                faster.map_or_else(|| table::NONE.to_owned(), table::figure),
                format!("{:.2} %", pass.lock_wait_share() * 100.0),
                format!("{:.1} %", pass.pool_hit_rate() * 100.0),
                pass.grown(|counts| counts.purges).to_string(),
                if flushed.is_finite() { table::figure(flushed) } else { table::NONE.to_owned() },
                kib(pass.before.tables),
                kib(pass.after.tables_max),
                kib(pass.purged.tables),
            ]);
        }
    }
    table::align(table, 1)
}

/// Nanoseconds per loop: a row per test, a column per design.
fn loops_table(plan: &SuitePlan, passes: &[(Design, Vec<Pass>)]) -> comfy_table::Table {
    let names = passes.iter().map(|(design, _)| design.name());
    let mut table = table::new(["ns per loop, median of workers"].into_iter().chain(names));
    for (nth, (name, _)) in TESTS.iter().enumerate() {
        let of = |passes: &[Pass]| -> Vec<f64> {
            passes.iter().flat_map(|pass| pass.loop_ns(nth, &plan.parameters)).collect()
        };
        let columns: Vec<Vec<f64>> = passes.iter().map(|(_, passes)| of(passes)).collect();
        if columns.iter().any(|samples| !samples.is_empty()) {
            let cells = columns.iter().map(|samples| table::median(samples));
            table.add_row([(*name).to_owned()].into_iter().chain(cells));
        }
    }
    table::align(table, 1)
}

/// A figure of a pass.
type Of = fn(&Pass) -> f64;

fn bytes(tables: u64) -> f64 {
    (tables * PAGE_BYTES as u64) as f64
}

fn rows(report: &mut Report, plan: &SuitePlan, design: Design, passes: &[Pass]) {
    let threads = i64::from(plan.parameters.nr_threads);
    let cpus = plan.cpus.min(plan.parameters.nr_threads) as usize;
    for (nth, _) in TESTS.iter().enumerate() {
        // One sample per pass: the worker in the middle.
        let medians =
            passes.iter().map(|pass| samples::median(&pass.loop_ns(nth, &plan.parameters)));
        let medians: Vec<f64> = medians.flatten().collect();
        let params = params([("test", 1 << nth), ("threads", threads)]);
        report.add(NAME, design, ("loop_ns", "ns"), (cpus, &params), &medians);
    }
    let figures: [(Metric, Of); 6] = [
        (("lock_wait_share", "1"), Pass::lock_wait_share),
        (("page_table_bytes_start", "bytes"), |pass| bytes(pass.before.tables)),
        (("page_table_bytes_peak", "bytes"), |pass| bytes(pass.after.tables_max)),
        (("page_table_bytes_end", "bytes"), |pass| bytes(pass.purged.tables)),
        (("flushed_pages", "1"), |pass| pass.grown(|counts| counts.flushed_pages) as f64),
        (("needed_pages", "1"), |pass| pass.grown(|counts| counts.needed_pages) as f64),
    ];
    for (metric, of) in figures {
        let samples: Vec<f64> = passes.iter().map(of).collect();
        report.add(NAME, design, metric, (cpus, &params([("threads", threads)])), &samples);
    }
}
