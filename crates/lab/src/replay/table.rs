//! The result of a replay as text.

use std::fmt;

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};

use super::engine::GROUP_OPS;
use super::report::{CpuPages, Lines, Report, orders_in_use};

/// A figure that one side does not have.
const NONE: &str = "-";

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write_trace(f)?;
        writeln!(f, "\n{}\n", self.orders_table())?;
        self.write_work(f)?;
        writeln!(f, "\n{}\n", self.comparison_table())?;
        writeln!(
            f,
            "time per event: median of {} runs on one thread that acts as each event's CPU; wall clock around groups of {GROUP_OPS} events, parsing not included",
            self.event_ns.len()
        )?;
        writeln!(f, "balance in pages: {}", self.outcome.balance)?;
        let census = &self.outcome.census;
        writeln!(
            f,
            "frames: {} managed = {} free + {} cached + {} held + {} overhead, {} lost",
            census.managed,
            census.free,
            census.cached,
            self.work.held.pages,
            census.overhead,
            self.outcome.lost_frames
        )
    }
}

impl Report {
    fn write_trace(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let trace = &self.trace;
        writeln!(
            f,
            "{}: {} lines, {:.3} s on {} CPUs",
            trace.name,
            trace.lines,
            trace.duration_s,
            trace.cpus.len()
        )?;
        let commands: Vec<_> = trace.commands.iter().map(|(comm, n)| format!("{comm} {n}")).collect();
        writeln!(f, "most events from: {}", commands.join(", "))?;
        let events: Vec<_> = trace.events.iter().map(|(name, n)| format!("{name} {n}")).collect();
        writeln!(f, "events: {}", events.join(", "))?;
        let sorts = [
            ("of unknown events", &trace.unknown),
            ("unfinished", &trace.unfinished),
            ("unreadable", &trace.unreadable),
        ];
        for (sort, lines) in sorts.into_iter().filter(|(_, lines)| lines.count > 0) {
            write_skipped(f, sort, lines)?;
        }
        if trace.lost_events > 0 {
            writeln!(f, "the recorder dropped {} events: record with larger buffers", trace.lost_events)?;
        }
        if trace.out_of_order > 0 {
            writeln!(
                f,
                "{} events are earlier than the one before them; replayed as they stand",
                trace.out_of_order
            )?;
        }
        Ok(())
    }

    fn orders_table(&self) -> Table {
        let mut table = new_table(&[
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
        align(table)
    }

    fn write_work(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let work = &self.work;
        writeln!(
            f,
            "frees: {} in {} batches, {} on another CPU than the allocation",
            work.batched_frees, work.batches, work.remote_frees
        )?;
        writeln!(f, "held at the end: {} blocks, {} pages", work.held.blocks, work.held.pages)?;
        for (count, what) in [
            (work.unknown_frees, "unknown frees, of blocks allocated before the recording: not replayed"),
            (work.failed_allocs, "allocations that failed in the kernel: not replayed"),
            (work.implausible, "events with an impossible order or frame: not replayed"),
            (work.missed_frees, "frees missing in the recording: replayed when the frame is allocated again"),
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
        let (ours, kernel) = (&self.outcome.counts, &self.kernel.counts);
        let mut table = new_table(&["", "depot", "kernel"]);
        let events = self.outcome.events.max(1) as f64;
        table.add_row(["time per event", &format!("{:.1} ns", self.event_ns_median()), NONE]);
        table.add_row([
            "hits in the CPU's front",
            &format!("{:.2} %", 100.0 * ours.hits as f64 / events),
            NONE,
        ]);
        table.add_row(["magazines from the CPU's shelf", &ours.shelf_hits.to_string(), NONE]);
        for (what, ours, kernel) in [
            ("refilled from the store, blocks", ours.refilled.blocks, Some(kernel.refilled.blocks)),
            ("refilled from the store, pages", ours.refilled.pages, Some(kernel.refilled.pages)),
            ("spilled to the store, blocks", ours.spilled.blocks, Some(kernel.spilled.blocks)),
            ("spilled to the store, pages", ours.spilled.pages, Some(kernel.spilled.pages)),
            (
                "of these past the caches, allocated",
                ours.direct_allocated.blocks,
                Some(kernel.direct_allocated.blocks),
            ),
            ("of these past the caches, freed", ours.direct_freed.blocks, None),
            ("cached at peak, pages", self.outcome.cached_pages_peak, None),
        ] {
            table.add_row([what.to_owned(), ours.to_string(), or_none(kernel)]);
        }
        for &CpuPages { cpu, pages } in &self.cached_pages {
            let there = self.kernel.cached_pages.iter().flatten().find(|there| there.cpu == cpu);
            let row = format!("cached at the end on CPU {cpu}, pages");
            table.add_row([row, pages.to_string(), or_none(there.map(|there| there.pages))]);
        }
        align(table)
    }
}

fn write_skipped(f: &mut fmt::Formatter<'_>, sort: &str, lines: &Lines) -> fmt::Result {
    write!(f, "skipped {} lines {sort}, first", lines.count)?;
    for (line, excerpt) in &lines.examples {
        write!(f, " [line {line}: {excerpt}]")?;
    }
    writeln!(f)
}

fn or_none(count: Option<u64>) -> String {
    count.map_or_else(|| NONE.to_owned(), |count| count.to_string())
}

fn new_table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::UTF8_BORDERS_ONLY).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(header);
    table
}

/// Words to the left, numbers to the right.
fn align(mut table: Table) -> Table {
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}
