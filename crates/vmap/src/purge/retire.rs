//! Taking mappings away from a batch of areas: unmap, flush once, give back page tables, free
//! frames, in this order.
//!
//! # Argument
//! *No other user.* The purger owns every area of the batch (`area.rs`).
//!
//! *Tables.* First every run leaves its tables, and a table that the last page has left is locked
//! (`tables.rs`). Unmapping begins only then. Spans are widened to whole tables where these are
//! locked, holes included, and adjacent spans of the batch are joined. So a mapper that pays per
//! call pays little, and sees whole tables. After the flush the locked tables are given back.
//!
//! *Frames and addresses* are reused only after the flush: it comes before frames are freed and
//! before areas are handed on.
//!
//! *Failures.* If the mapper fails to unmap a span, all areas in it are stuck: their runs enter
//! their tables again, their frames stay, and they return to the lazy lists.
//!
//! If the host panics while it frees frames, the areas behind are stuck, too, and so is the area
//! itself, as an alias: it does not own the frames any more that the host got. All is unmapped
//! already, and the next purge does it once more.
//!
//! *Aliases.* When memory moves, its frames stay mapped at the old place, too, until a purge of
//! that place. Frames may be freed only after all their aliases are gone. An alias is lazy before
//! its owner is published, and is on the same node as its owner. A purge collects a node's pools
//! before its lazy list, and all of that list at once. So a batch that has an owner has its
//! aliases, or an earlier purge has unmapped them. If one alias is stuck, nothing of the batch is
//! freed.
//!
//! One thread purges at a time: a [`Retirement`] needs the guard of the purge lock.
//!
//! This module has unsafe code: it calls the mapper's unsafe methods that unmap.
#![allow(unsafe_code)]

use crate::error::MapError;
use crate::kind::Kind;
use crate::lock::LockGuard;
use crate::map::own::OwnFrames;
use crate::map::tables::TableIndex;
use crate::metadata::area::{Area, AreaIndex};
use crate::metadata::batch::{Batch, MappedRuns};
use crate::model::{Mutant, leaves_out};
use crate::node::counters::Counters;
use crate::seams::flush::FlushSpans;
use crate::seams::host::Host;
use crate::seams::mapper::Mapper;
use crate::state::VmapState;
use crate::undo::Undo;
use crate::units::{PageRange, Vpn};
use pagedepot::sync::count;

/// The result of a [`Retirement`].
#[derive(Clone, Copy, Default)]
pub struct RetireResult {
    /// Frames returned to the page allocator.
    pub frames: u64,
    /// Page tables given back.
    pub tables: u64,
    /// The error of the first span that could not be unmapped.
    pub error: Option<MapError>,
}

/// The right to take mappings away, for the holder of the purge lock.
pub struct Retirement<'a, 'm, M, H: Host> {
    state: &'a VmapState<'m, M, H>,
    counters: &'a Counters,
    _purging: &'a LockGuard<'a, H>,
}

impl<'a, 'm, M: Mapper, H: Host> Retirement<'a, 'm, M, H> {
    pub fn new(state: &'a VmapState<'m, M, H>, purging: &'a LockGuard<'a, H>) -> Self {
        Retirement { state, counters: state.counters(), _purging: purging }
    }

    fn runs(&self, batch: Batch) -> MappedRuns<'_> {
        MappedRuns::new(self.state.areas(), *self.state.mappings().frames(), batch.first())
    }

    /// Takes the mappings of a sorted batch away. Marks the areas for which that fails as stuck.
    pub fn retire(&self, batch: Batch) -> RetireResult {
        let mut retired = RetireResult::default();
        let tables = self.state.mappings().tables();
        let mut needed_pages = 0;
        let runs = self.runs(batch).map(|(_, run)| run);
        let locked_tables =
            tables.leave(runs.inspect(|run| needed_pages += u64::from(run.pages())));
        if needed_pages > 0 {
            retired.error = self.unmap_all(batch, locked_tables > 0);
            if retired.error.is_some() {
                self.keep_frames_of_stuck_aliases(batch);
            }
            self.flush(batch, needed_pages);
            if retired.error.is_some() && !leaves_out(Mutant::Reenter) {
                self.reenter_tables_of_stuck(batch);
            }
            if locked_tables > 0 {
                retired.tables = self.release_locked_tables(batch);
            }
        }
        let areas = self.state.areas();
        for index in areas.list(batch.first()).filter(|&index| !areas[index].is_stuck()) {
            let undo = Undo(|| self.keep_from(index));
            retired.frames += self.free_frames(&areas[index]);
            undo.forget();
        }
        retired
    }

    /// Makes the areas of a batch from `first` on stuck after a panic, which ended the free of the
    /// frames of `first`. Those no longer count as quarantined, as of an alias.
    #[cold]
    fn keep_from(&self, first: AreaIndex) {
        let (areas, mappings) = (self.state.areas(), self.state.mappings());
        areas[first].set_word(areas[first].word().aliased());
        for index in areas.list(Some(first)).filter(|&index| !areas[index].is_stuck()) {
            areas[index].set_stuck(true);
            MappedRuns::new(areas, *mappings.frames(), Some(index))
                .take_while(|&(of, _)| of == index)
                .for_each(|(_, run)| _ = mappings.tables().enter(self.state.host(), run, true));
        }
    }

    /// If an alias is stuck, all areas are: they may own its frames.
    fn keep_frames_of_stuck_aliases(&self, batch: Batch) {
        let mut areas = batch.iter(self.state.areas());
        if areas.any(|area| area.is_stuck() && area.word().is_alias()) {
            batch.iter(self.state.areas()).for_each(|area| area.set_stuck(true));
        }
    }

    /// Unmaps all runs, in spans as large as possible. Returns the first error.
    fn unmap_all(&self, batch: Batch, has_locked_tables: bool) -> Option<MapError> {
        let mut error = None;
        // The span so far, and the first area in it.
        let mut span: Option<(PageRange, AreaIndex)> = None;
        for (index, _) in self.runs(batch) {
            let area = self.state.area(index);
            // With the guard, so that neighbours join. Reserved pages were never mapped.
            let is_full = area.mapped_hull().end == area.body().end;
            let run = if is_full { area.run() } else { area.mapped_hull() };
            let run = if has_locked_tables { self.widen(run) } else { run };
            span = match span {
                Some((joined, first)) if run.start <= joined.end => {
                    Some((PageRange { start: joined.start, end: joined.end.max(run.end) }, first))
                }
                other => {
                    error = error.or(other.and_then(|(joined, first)| self.unmap(joined, first)));
                    Some((run, index))
                }
            };
        }
        error.or(span.and_then(|(joined, first)| self.unmap(joined, first)))
    }

    /// An area's pages, and the rest of those of its tables that are locked: all may be unmapped.
    fn widen(&self, run: PageRange) -> PageRange {
        let tables = self.state.mappings().tables();
        let mut wide = run;
        for page in [run.start, Vpn(run.end.0 - 1)] {
            let table = tables.of(page);
            if tables.is_locked(table) {
                let whole = tables.run(table);
                wide =
                    PageRange { start: wide.start.min(whole.start), end: wide.end.max(whole.end) };
            }
        }
        wide
    }

    /// Unmaps a span. On an error marks its areas, from `first` on, as stuck.
    fn unmap(&self, span: PageRange, first: AreaIndex) -> Option<MapError> {
        let mappings = self.state.mappings();
        // SAFETY: the span is in the mapper's range. Its pages are in areas of the batch, or in
        // locked tables through which nothing is mapped; see the module's argument.
        let result = unsafe { mappings.mapper().unmap(mappings.range().span(span)) };
        count(&self.counters.unmapped_spans, 1);
        let error = result.err()?;
        count(&self.counters.failed_unmaps, 1);
        for index in self.state.areas().list(Some(first)) {
            let area = self.state.area(index);
            if area.start() >= span.end {
                break;
            }
            area.set_stuck(true);
        }
        Some(error)
    }

    fn flush(&self, batch: Batch, needed_pages: u64) {
        let mappings = self.state.mappings();
        let spans = FlushSpans::new(self.runs(batch), mappings.range());
        let flushed_pages: u64 = spans.clone().map(|span| u64::from(span.pages)).sum();
        mappings.mapper().flush(spans);
        count(&self.counters.flushes, 1);
        count(&self.counters.flushed_pages, flushed_pages);
        count(&self.counters.needed_pages, needed_pages);
    }

    /// Enters again the tables of runs that could not be unmapped.
    fn reenter_tables_of_stuck(&self, batch: Batch) {
        let tables = self.state.mappings().tables();
        self.runs(batch)
            .filter(|&(index, _)| self.state.area(index).is_stuck())
            .for_each(|(_, run)| tables.reenter(self.state.host(), run));
    }

    /// Gives back the tables that the batch has left locked; returns their number.
    fn release_locked_tables(&self, batch: Batch) -> u64 {
        let tables = self.state.mappings().tables();
        let mut released = 0;
        // Locked tables with consecutive numbers: the first, and the one behind the last.
        let mut locked: Option<(u32, u32)> = None;
        let of_batch = tables.parts_of_all(self.runs(batch).map(|(_, run)| run));
        for (table, _) in of_batch.filter(|&(table, _)| tables.is_locked(table)) {
            locked = match locked {
                Some((first, end)) if table.0 == end => Some((first, end + 1)),
                other => {
                    released += self.release_tables(other);
                    Some((table.0, table.0 + 1))
                }
            };
        }
        released + self.release_tables(locked)
    }

    /// Gives back the locked tables `first..end`; returns their number.
    fn release_tables(&self, locked: Option<(u32, u32)>) -> u64 {
        let Some((first, end)) = locked else { return 0 };
        let (mappings, tables) = (self.state.mappings(), self.state.mappings().tables());
        let pages = PageRange {
            start: tables.run(TableIndex(first)).start,
            end: tables.run(TableIndex(end - 1)).end,
        };
        // SAFETY: the tables are locked: nothing is mapped through them, and what was has been
        // unmapped and flushed.
        unsafe { mappings.mapper().release_tables(mappings.range().span(pages)) };
        (first..end).for_each(|table| tables.release(self.state.host(), TableIndex(table)));
        u64::from(end - first)
    }

    /// Gives back tables that a request entered and left without mapping, because it would not
    /// wait; returns their number.
    pub fn release_stray_tables(&self) -> u64 {
        let tables = self.state.mappings().tables();
        let mut released = 0;
        for table in tables.all() {
            if tables.read(table) == (0, true) && tables.try_lock_empty(table) {
                released += self.release_tables(Some((table.0, table.0 + 1)));
            }
        }
        released
    }

    /// Clears the entries of an area in which nothing is mapped any more, and frees the frames that
    /// it owns; returns their number.
    fn free_frames(&self, area: &Area) -> u64 {
        if area.mapped() == 0 {
            return 0;
        }
        let (mappings, host) = (self.state.mappings(), self.state.host());
        mappings.unquarantine(host, area);
        // Areas of other kinds have borrowed their frames. To look for blocks there would fetch
        // lines that the CPU has which freed the area.
        let frames = match area.word().kind() {
            Kind::Vmalloc => {
                OwnFrames::new(host, mappings.frames(), self.counters).free(area.mapped_hull())
            }
            _ => 0,
        };
        mappings.frames().clear(area.mapped_hull());
        area.set_mapped(0);
        count(&self.counters.returned_frames, frames);
        frames
    }
}
