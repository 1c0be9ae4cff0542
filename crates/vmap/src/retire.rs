//! Taking mappings away from a batch of areas: unmap, flush once, give back page tables, free
//! frames, in this order.
//!
//! # Argument
//! *No other user.* Every area of the batch is the purger's (`area.rs`).
//!
//! *Tables.* First every run leaves its tables; a table left by the last is locked (`tables.rs`).
//! Only then is anything unmapped: spans are widened to whole tables where these are locked, holes
//! included, and neighbours whose pages are all the batch's are joined, so that a mapper that pays
//! per call pays little and sees whole tables. After the flush locked tables are given back.
//!
//! *Frames and addresses* are reused only after the flush: frames are freed then, areas handed on
//! then.
//!
//! *Failures.* A span that the mapper fails to unmap makes all its areas stuck: their runs enter
//! their tables again, their frames stay, and they go back to the lazy lists.
//!
//! *Aliases.* When memory moves, its frames are mapped at the old place, too, until that is purged.
//! Frames may be freed only after all aliases are gone. An alias is lazy from before its owner is
//! published, on the same node as its owner; a purge collects a node's pools before its lazy
//! list, and that list at once; so a batch that has an owner has its aliases, or they were purged
//! before. If one of them is stuck, nothing of the batch is freed.
//!
//! One purger at a time: the caller shows the purge lock's guard.

use super::area::{Area, AreaIndex};
use super::lock::Guard;
use super::metadata::Metadata;
use super::purge::{Batch, FlushSpans, Purged};
use super::seams::{Host, Mapper};
use super::tables::TableIndex;
use super::units::{Run, Vpn};
use super::{Broken, Vmap, broken, count};
use pagedepot::sync::prim::Ordering;

/// What is to be unmapped in a batch: its areas' mapped runs, in ascending order.
#[derive(Clone)]
pub struct Runs<'a> {
    metadata: &'a Metadata<'a>,
    area: Option<AreaIndex>,
    /// Where to go on in that area; `None`: at its start.
    at: Option<Vpn>,
}

impl<'a> Runs<'a> {
    pub fn new(metadata: &'a Metadata<'a>, first: Option<AreaIndex>) -> Self {
        Runs { metadata, area: first, at: None }
    }

    /// The next run of the area from `at` on.
    fn in_area(&self, index: AreaIndex, at: Vpn) -> Option<Run> {
        let area = &self.metadata.areas[index];
        let body = area.body();
        match area.mapped() {
            0 => None,
            all if all == body.pages() => (at == body.start).then_some(body),
            _ => first_run(Run { start: at, end: body.end }, |page| {
                self.metadata.frames.is_mapped(page)
            }),
        }
    }
}

/// The first run of pages in `within` for which `is_due`.
fn first_run(within: Run, is_due: impl Fn(Vpn) -> bool) -> Option<Run> {
    let start = within.iter().find(|&page| is_due(page))?;
    let end =
        Run { start, end: within.end }.iter().find(|&page| !is_due(page)).unwrap_or(within.end);
    Some(Run { start, end })
}

impl Iterator for Runs<'_> {
    type Item = (AreaIndex, Run);

    fn next(&mut self) -> Option<(AreaIndex, Run)> {
        loop {
            let index = self.area?;
            let area = &self.metadata.areas[index];
            if let Some(run) = self.in_area(index, self.at.unwrap_or(area.start())) {
                self.at = Some(run.end);
                return Some((index, run));
            }
            self.area = area.next();
            self.at = None;
        }
    }
}

impl<M: Mapper, H: Host> Vmap<'_, M, H> {
    /// Takes the mappings of a sorted batch away. Marks the areas it fails for as stuck.
    pub(super) fn retire(&self, _purging: &Guard<'_, H>, batch: Batch) -> Purged {
        let mut purged = Purged { areas: batch.areas, ..Purged::default() };
        let runs = || Runs::new(&self.metadata, batch.first);
        let needed: u64 = runs().map(|(_, run)| u64::from(run.pages())).sum();
        self.metadata.areas.list(batch.first).for_each(|index| {
            self.metadata.areas[index].stuck.store(0, Ordering::Relaxed);
        });
        if needed > 0 {
            runs().for_each(|(_, run)| self.metadata.tables.leave(run));
            self.unmap_all(batch, &mut purged);
            self.keep_frames_of_stuck_aliases(batch);
            self.flush(batch, needed);
            runs()
                .filter(|&(index, _)| self.is_stuck(index) && !broken(Broken::Reenter))
                .for_each(|(_, run)| self.metadata.tables.reenter(&self.host, run));
            purged.tables = self.release_tables(batch);
        }
        for index in self.metadata.areas.list(batch.first).filter(|&index| !self.is_stuck(index)) {
            purged.frames += self.forget_frames(index);
        }
        purged
    }

    pub(super) fn is_stuck(&self, index: AreaIndex) -> bool {
        self.metadata.areas[index].stuck.load(Ordering::Relaxed) != 0
    }

    /// If an alias is stuck, whatever has frames is.
    fn keep_frames_of_stuck_aliases(&self, batch: Batch) {
        let list =
            || self.metadata.areas.list(batch.first).map(|index| &self.metadata.areas[index]);
        let is_stuck = |area: &Area| area.stuck.load(Ordering::Relaxed) != 0;
        if list().any(|area| is_stuck(area) && area.word().is_alias()) {
            list().for_each(|area| area.stuck.store(1, Ordering::Relaxed));
        }
    }

    /// Unmaps spans as large as can be.
    fn unmap_all(&self, batch: Batch, purged: &mut Purged) {
        // The span so far, and the first area in it.
        let mut span: Option<(Run, AreaIndex)> = None;
        for (index, _) in Runs::new(&self.metadata, batch.first) {
            let run = self.widen(index);
            span = match span {
                Some((joined, first)) if run.start <= joined.end => {
                    Some((Run { start: joined.start, end: joined.end.max(run.end) }, first))
                }
                other => {
                    if let Some((joined, first)) = other {
                        self.unmap_span(joined, first, purged);
                    }
                    Some((run, index))
                }
            };
        }
        if let Some((joined, first)) = span {
            self.unmap_span(joined, first, purged);
        }
    }

    /// What may be unmapped with a run: its area's guard, and the rest of locked tables.
    fn widen(&self, index: AreaIndex) -> Run {
        let area = &self.metadata.areas[index];
        let mut wide = area.run();
        let tables = &self.metadata.tables;
        for page in [wide.start, Vpn(wide.end.0 - 1)] {
            let table = tables.of(page);
            if tables.is_locked(table) {
                let whole = tables.run(table);
                wide = Run { start: wide.start.min(whole.start), end: wide.end.max(whole.end) };
            }
        }
        wide
    }

    fn unmap_span(&self, span: Run, first: AreaIndex, purged: &mut Purged) {
        let counters = &self.node_here().1.counters;
        // SAFETY: the span is in the mapper's range. Its pages are the batch's, or lie in locked
        // tables, through which nothing is mapped; see the module's argument.
        let result = unsafe { self.mapper.unmap(self.range.span(span)) };
        count(&counters.unmapped_spans, 1);
        let Err(error) = result else { return };
        count(&counters.failed_unmaps, 1);
        purged.error.get_or_insert(error);
        for index in self.metadata.areas.list(Some(first)) {
            let area = &self.metadata.areas[index];
            if area.start() >= span.end {
                break;
            }
            area.stuck.store(1, Ordering::Relaxed);
        }
    }

    fn flush(&self, batch: Batch, needed_pages: u64) {
        let spans = FlushSpans::new(&self.metadata, &self.range, batch.first);
        let flushed_pages: u64 = spans.clone().map(|span| u64::from(span.pages)).sum();
        self.mapper.flush(spans);
        let counters = &self.node_here().1.counters;
        count(&counters.flushes, 1);
        count(&counters.flushed_pages, flushed_pages);
        count(&counters.needed_pages, needed_pages);
    }

    /// Gives back the tables that the batch has left locked; returns how many.
    fn release_tables(&self, batch: Batch) -> u64 {
        let tables = &self.metadata.tables;
        let mut released = 0;
        // Locked tables with consecutive numbers: first, and one past the last.
        let mut row: Option<(u32, u32)> = None;
        for (_, run) in Runs::new(&self.metadata, batch.first) {
            for (table, _) in tables.parts(run).filter(|&(table, _)| tables.is_locked(table)) {
                row = match row {
                    Some((first, end)) if table.0 <= end => Some((first, end.max(table.0 + 1))),
                    other => {
                        released += self.release_row(other);
                        Some((table.0, table.0 + 1))
                    }
                };
            }
        }
        released + self.release_row(row)
    }

    fn release_row(&self, row: Option<(u32, u32)>) -> u64 {
        let Some((first, end)) = row else { return 0 };
        let tables = &self.metadata.tables;
        let start = tables.run(TableIndex(first)).start;
        let end_page = tables.run(TableIndex(end - 1)).end;
        // SAFETY: the tables are locked: nothing is mapped through them, and what was has been
        // unmapped and flushed.
        unsafe { self.mapper.release_tables(self.range.span(Run { start, end: end_page })) };
        (first..end).for_each(|table| tables.release(&self.host, TableIndex(table)));
        u64::from(end - first)
    }

    /// Gives back tables that were entered but left without a purge, by requests that would not
    /// wait; returns how many.
    pub(super) fn release_stray_tables(&self, _purging: &Guard<'_, H>) -> u64 {
        let tables = &self.metadata.tables;
        let mut released = 0;
        for table in (0..tables.words.len() as u32).map(TableIndex) {
            if tables.read(table) == (0, true) && tables.try_lock_empty(table) {
                released += self.release_row(Some((table.0, table.0 + 1)));
            }
        }
        released
    }

    /// Nothing is mapped in a retired area any more: clears its entries, frees its own frames.
    fn forget_frames(&self, index: AreaIndex) -> u64 {
        let area = &self.metadata.areas[index];
        if area.mapped() == 0 {
            return 0;
        }
        self.unquarantine(area);
        let frames = self.free_own_frames(area.body());
        self.metadata.frames.clear(area.body());
        area.set_mapped(0);
        count(&self.node_here().1.counters.returned_frames, frames);
        frames
    }
}
