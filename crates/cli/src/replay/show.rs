//! The result of a replay as text.

use std::fmt::{self, Write};

use comfy_table::Table;
use pagedepot::Order;

use super::engine::GROUP_OPS;
use super::look::{Look, POINTS};
use super::plan::KernelCounts;
use super::replayed::{CpuPages, Kernel, Replay, ReplayResult, orders_in_use};
use super::target::ReplayCounts;
use crate::report::Report;
use crate::report::table::{self, NONE};

impl ReplayResult {
    /// Adds the result to a report.
    pub fn show(&self, report: &mut Report) {
        report.say(written(|f| self.write_trace(f)).trim_end());
        report.account(self.trace.account.clone());
        report.say(self.orders_table());
        report.say("");
        report.say(written(|f| self.write_work(f)));
        report.say(self.comparison_table());
        report.say("");
        report.say(self.contiguity_table());
        report.say("");
        let runs = self.replays.first().map_or(0, |replay| replay.event_ns.len());
        report.say(format!(
            "time per event: median of {runs} runs on one thread that acts as each event's CPU; \
             wall clock around groups of {GROUP_OPS} events, parsing not included"
        ));
        for replay in &self.replays {
            report.say(written(|f| self.write_metadata(f, replay)).trim_end());
        }
    }

    fn write_trace(&self, f: &mut String) -> fmt::Result {
        let trace = &self.trace;
        writeln!(
            f,
            "{}: {} lines, {:.3} s on {} CPU{}",
            trace.name,
            trace.lines,
            trace.duration_s,
            trace.cpus_recorded,
            if trace.cpus_recorded == 1 { "" } else { "s" }
        )?;
        if trace.cpus.len() < trace.cpus_recorded {
            let there = trace.cpus.len();
            writeln!(f, "replayed on {there} of them, which did what the others had done, too")?;
        }
        let commands: Vec<_> =
            trace.commands.iter().map(|(comm, n)| format!("{comm} {n}")).collect();
        writeln!(f, "most events from: {}", commands.join(", "))?;
        let events: Vec<_> = trace.events.iter().map(|(name, n)| format!("{name} {n}")).collect();
        writeln!(f, "events: {}", events.join(", "))?;
        for (cpu, ms) in &trace.ticks_fitted {
            let when = if f64::from(*ms) > trace.duration_s * 1e3 {
                "no periodic work".to_owned()
            } else {
                format!("its periodic work from {ms} ms on")
            };
            writeln!(f, "CPU {cpu} did {when}, judging by what its `high` was later")?;
        }
        Ok(())
    }

    fn orders_table(&self) -> Table {
        let mut table = table::new([
            "order",
            "allocs: unmovable",
            "movable",
            "reclaimable",
            "frees: unmovable",
            "movable",
            "reclaimable",
        ]);
        for (order, allocs, frees) in orders_in_use(&self.work.allocs, &self.work.frees) {
            let numbers = allocs.iter().chain(&frees).map(u64::to_string);
            table.add_row([order.to_string()].into_iter().chain(numbers));
        }
        table::align(table, 1)
    }

    fn write_work(&self, f: &mut String) -> fmt::Result {
        let work = &self.work;
        writeln!(
            f,
            "frees: {} in {} batches, {} on another CPU than the allocation",
            work.batched_frees, work.batches, work.remote_frees
        )?;
        writeln!(f, "held at the end: {} blocks, {} pages", work.held.blocks, work.held.pages)?;
        let known = if self.trace.machine_known { work.unknown_frees } else { 0 };
        for (count, what) in [
            (known, "unknown frees, of blocks allocated before the recording: replayed"),
            (
                work.missed_frees,
                "frees missing in the recording: replayed when the frame is allocated again",
            ),
            (work.split_frees, "frees of a part of a block: the block is split"),
            (work.larger_frees, "frees of a larger block than is held: what is held is freed"),
        ] {
            if count > 0 {
                writeln!(f, "{count} {what}")?;
            }
        }
        Ok(())
    }

    fn comparison_table(&self) -> Table {
        let designs = self.replays.iter().map(|replay| replay.design.name());
        let header: Vec<_> = [""].into_iter().chain(designs).chain(["kernel"]).collect();
        let mut table = table::new(header);
        let mut add = |what: String, ours: &dyn Fn(&Replay) -> String, kernel: Option<u64>| {
            let ours = self.replays.iter().map(ours);
            table.add_row([what].into_iter().chain(ours).chain([or_none(kernel)]));
        };
        add("time per event".into(), &|replay| format!("{:.1} ns", replay.event_ns_median()), None);
        add("hits in the CPU's front".into(), &hit_rate, None);
        add(
            "magazines from the CPU's shelf".into(),
            &|replay| replay.outcome.counts.shelf_hits.to_string(),
            None,
        );
        for (what, ours, kernel) in counted(&self.kernel) {
            add(what.into(), &|replay| ours(&replay.outcome.counts).to_string(), kernel);
        }
        add(
            "cached at peak, pages".into(),
            &|replay| replay.outcome.cached_pages_peak.to_string(),
            None,
        );
        for cpu in &self.trace.cpus {
            let row = format!("cached at the end on CPU {cpu}, pages");
            let there = self.kernel.cached_pages.as_deref().unwrap_or_default();
            add(
                row,
                &|replay| or_none(pages_of(&replay.cached_pages, *cpu)),
                pages_of(there, *cpu),
            );
        }
        table::align(table, 1)
    }

    /// Free memory before the trace and after it, and the most and the least whole pageblocks
    /// between.
    fn contiguity_table(&self) -> Table {
        let designs = self.replays.iter().map(|replay| replay.design.name());
        let mut table = table::new(["free memory"].into_iter().chain(designs).chain(["kernel"]));
        let looks: Vec<&[Look]> =
            self.replays.iter().map(|replay| &replay.outcome.looks[..]).collect();
        let mut add = |what: String, percent: u32, cell: &dyn Fn(&Look) -> Option<String>| {
            let all = looks.iter().copied().chain([&self.kernel.looks[..]]);
            let cells = all.map(|looks| {
                let look = looks.iter().find(|look| look.percent == percent);
                look.and_then(cell).unwrap_or_else(|| NONE.to_owned())
            });
            table.add_row([what].into_iter().chain(cells));
        };
        for percent in POINTS {
            add(format!("whole pageblocks at {percent} %"), percent, &|look| {
                Some(look.whole_pageblocks.to_string())
            });
        }
        for percent in [0, 100] {
            add(format!("tainted pageblocks at {percent} %"), percent, &|look| {
                look.tainted_pageblocks.map(|count| count.to_string())
            });
        }
        for order in Order::all().skip(1) {
            add(format!("unusable at the end, order {order}"), 100, &|look| {
                look.unusable.get(order.index()).map(|index| format!("{index:.3}"))
            });
        }
        table::align(table, 1)
    }

    fn write_metadata(&self, f: &mut String, replay: &Replay) -> fmt::Result {
        let (design, outcome) = (replay.design, &replay.outcome);
        writeln!(f, "{design}, balance in pages: {}", outcome.balance)?;
        let census = &outcome.census;
        writeln!(
            f,
            "{design}, frames: {} managed = {} free + {} cached + {} held + {} overhead, {} lost",
            census.managed_pages,
            census.free_pages,
            census.cached_pages,
            outcome.held_pages,
            census.overhead_pages,
            outcome.lost_frames
        )
    }
}

/// The text that `write` writes.
fn written(write: impl FnOnce(&mut String) -> fmt::Result) -> String {
    let mut text = String::new();
    write(&mut text).expect("writing to a string does not fail");
    text
}

/// A count, of a design's and of the kernel's.
type CountRow = (&'static str, fn(&ReplayCounts) -> u64, Option<u64>);

fn counted(kernel: &Kernel) -> [CountRow; 6] {
    let KernelCounts { refilled, direct_allocated, spilled } = kernel.counts;
    let refills = |count: u64| kernel.has_refills.then_some(count);
    let spills = |count: u64| kernel.has_spills.then_some(count);
    [
        ("refilled from the store, blocks", |ours| ours.refilled.blocks, refills(refilled.blocks)),
        ("refilled from the store, pages", |ours| ours.refilled.pages, refills(refilled.pages)),
        ("spilled to the store, blocks", |ours| ours.spilled.blocks, spills(spilled.blocks)),
        ("spilled to the store, pages", |ours| ours.spilled.pages, spills(spilled.pages)),
        (
            "of these past the caches, allocated",
            |ours| ours.direct_allocated.blocks,
            refills(direct_allocated.blocks),
        ),
        ("of these past the caches, freed", |ours| ours.direct_freed.blocks, None),
    ]
}

/// Only our own design counts its hits.
fn hit_rate(replay: &Replay) -> String {
    let (hits, events) = (replay.outcome.counts.hits, replay.outcome.events.max(1));
    if hits == 0 {
        NONE.to_owned()
    } else {
        format!("{:.2} %", 100.0 * hits as f64 / events as f64)
    }
}

fn pages_of(cached: &[CpuPages], cpu: u16) -> Option<u64> {
    cached.iter().find(|cached| cached.cpu == u32::from(cpu)).map(|cached| cached.pages)
}

fn or_none(count: Option<u64>) -> String {
    count.map_or_else(|| NONE.to_owned(), |count| count.to_string())
}
