//! Mappings: which frames are mapped where, through which tables, and what they contain.
//!
//! This module has unsafe code: it calls the unsafe methods of the mapper, those that map and
//! write. `purge/retire.rs` calls those that unmap.
#![allow(unsafe_code)]

pub mod own;
pub mod tables;

use crate::config::{Options, StaleData};
use crate::error::VmapError;
use crate::kind::Kind;
use crate::map::own::OwnFrames;
use crate::map::tables::Tables;
use crate::metadata::area::Area;
use crate::metadata::frames::{FrameRun, FrameTable};
use crate::node::counters::Counters;
use crate::seams::host::Host;
use crate::seams::mapper::Mapper;
use crate::seams::written::WrittenParts;
use crate::units::{ManagedRange, PageRange, Protection, Vpn};
use pagedepot::sync::count;
use pagedepot::{FrameRange, Pfn};

/// The frame at each page, the page tables, and the mapper behind them.
pub struct Mappings<'m, M> {
    mapper: M,
    range: ManagedRange,
    frames: FrameTable<'m>,
    tables: Tables<'m>,
    stale: StaleData,
}

impl<'m, M: Mapper> Mappings<'m, M> {
    pub fn new(
        mapper: M,
        range: ManagedRange,
        frames: FrameTable<'m>,
        tables: Tables<'m>,
        stale: StaleData,
    ) -> Self {
        Mappings { mapper, range, frames, tables, stale }
    }

    #[inline]
    pub fn mapper(&self) -> &M {
        &self.mapper
    }

    pub fn range(&self) -> &ManagedRange {
        &self.range
    }

    pub fn frames(&self) -> &FrameTable<'m> {
        &self.frames
    }

    pub fn tables(&self) -> &Tables<'m> {
        &self.tables
    }

    /// The first run of pages in `run` that the mapper has lost.
    pub fn lost_in(&self, run: PageRange) -> Option<PageRange> {
        if self.mapper.lost_pages() == 0 || run.pages() == 0 {
            return None;
        }
        let lost = self.mapper.lost_in(self.range.span(run))?;
        Some(PageRange::new(self.range.page_of(lost.start)?, lost.pages))
    }

    /// Enters the caller's frames from `page` on, in an area that the caller holds.
    pub fn lend(&self, page: Vpn, frames: &[Pfn]) -> Result<(), VmapError> {
        if frames.contains(&Pfn::new(u32::MAX)) {
            return Err(VmapError::BadFrame);
        }
        for (i, &frame) in (0..).zip(frames) {
            self.frames.lend(page.add(i), frame);
        }
        Ok(())
    }

    /// Maps the frames entered for `run`, a part of an area that the caller holds, and counts them.
    ///
    /// On an error it counts what was mapped, and the piece that failed, which may be mapped in
    /// part. It frees the frames of the rest that the area owns, and clears the rest's entries.
    pub fn map_entered<H: Host>(
        &self,
        (host, counters): (&H, &Counters),
        area: &Area,
        run: PageRange,
        protection: Protection,
        may_wait: bool,
    ) -> Result<(), VmapError> {
        let mut end = run.start;
        let runs = self.frames.frame_runs(run).count() as u32;
        let checked = self.mapper.check_runs(runs).map_err(VmapError::Map);
        // Before the first piece: a request that may not wait for a purge fails with none mapped,
        // since to unmap it would have to wait, too.
        let entered = checked.and_then(|()| match self.tables.enter(host, run, may_wait) {
            true => Ok(()),
            false => Err(VmapError::WouldWait),
        });
        let mut result = entered;
        for piece in self.frames.frame_runs(run) {
            if result.is_err() {
                break;
            }
            end = piece.pages.end;
            result = self.map_piece(piece, protection);
        }
        area.set_mapped(area.mapped() + end.since(run.start));
        area.set_written(false);
        if result.is_err() {
            let rest = PageRange { start: end, end: run.end };
            if entered.is_ok() {
                self.tables.abandon(rest);
            }
            OwnFrames::new(host, &self.frames, counters).take_out(rest);
        }
        result
    }

    fn map_piece(&self, piece: FrameRun, protection: Protection) -> Result<(), VmapError> {
        let frames = FrameRange::new(piece.first, piece.pages.pages());
        // SAFETY: the pages are in the mapper's range, in an area that the caller holds, and
        // entered in their tables, so no purge touches them. They are not mapped: areas leave
        // purges with nothing mapped, and `Memory::map_frames` looks before it enters frames.
        unsafe { self.mapper.map(self.range.addr(piece.pages.start), frames, protection)? };
        Ok(())
    }

    /// Overwrites a warm area that its user has freed, if the configuration says so.
    #[inline]
    pub fn poison(&self, area: &Area) {
        if let StaleData::Poison(byte) = self.stale {
            self.fill(area.body(), byte);
        }
    }

    /// Makes warm memory, which is mapped read-write, look as promised to its next user.
    #[inline]
    pub fn prepare_warm(&self, area: &Area, options: &Options) {
        if self.promises_zeroes(options) {
            self.fill(area.body(), 0);
        }
    }

    /// Makes a large warm area look as promised to its next user.
    pub fn prepare_large(&self, counters: &Counters, area: &Area, options: &Options) {
        let body = area.body();
        if self.promises_zeroes(options) && area.is_written() {
            // The questions would cost a tenth of the zeroing.
            count(&counters.zeroed_pages, body.pages().into());
            self.fill(body, 0);
        } else if self.promises_zeroes(options) {
            area.set_written(self.zero_mapped(counters, body) == body.pages());
        }
    }

    /// Makes memory that was just mapped with the protection of `options` look as promised.
    pub fn prepare_new(
        &self,
        counters: &Counters,
        run: PageRange,
        options: &Options,
    ) -> Result<(), VmapError> {
        let is_due = self.promises_zeroes(options);
        if is_due { self.zero(counters, run, options.protection) } else { Ok(()) }
    }

    /// Zeroes memory that an area owns in `run`, all of it mapped with this protection, but for
    /// what is known to be zero. The caller holds the area.
    pub fn zero(
        &self,
        counters: &Counters,
        run: PageRange,
        protection: Protection,
    ) -> Result<(), VmapError> {
        if protection.may_write() {
            self.zero_mapped(counters, run);
            return Ok(());
        }
        for part in self.frames.frame_runs(run).flat_map(|piece| self.written_parts(piece)) {
            count(&counters.zeroed_pages, part.pages.pages().into());
            let frames = FrameRange::new(part.first, part.pages.pages());
            // SAFETY: the area owns the frames, and the caller holds the area.
            unsafe { self.mapper.fill_frames(frames, 0) }?;
        }
        Ok(())
    }

    /// Zeroes memory that is mapped read-write, as `zero`; returns the number of pages zeroed.
    fn zero_mapped(&self, counters: &Counters, run: PageRange) -> u32 {
        let mut pages = 0;
        for part in self.frames.frame_runs(run).flat_map(|piece| self.written_parts(piece)) {
            pages += part.pages.pages();
            self.fill(part.pages, 0);
        }
        count(&counters.zeroed_pages, pages.into());
        pages
    }

    /// The parts of a run that may hold something other than zeroes.
    fn written_parts(&self, piece: FrameRun) -> impl Iterator<Item = FrameRun> {
        let frames = FrameRange::new(piece.first, piece.pages.pages());
        WrittenParts::new(&self.mapper, frames).map(move |part| {
            let start = piece.pages.start.add(part.start.get() - piece.first.get());
            FrameRun { pages: PageRange::new(start, part.frames), first: part.start }
        })
    }

    #[inline]
    fn promises_zeroes(&self, options: &Options) -> bool {
        self.stale == StaleData::Zero || options.zeroed
    }

    fn fill(&self, run: PageRange, byte: u8) {
        // SAFETY: the caller holds the area, and its pages are mapped read-write: only such areas
        // are warm, and `zero` looks at the protection.
        unsafe { self.mapper.fill(self.range.span(run), byte) };
    }

    /// Tells the host that the frames of an area are freed but still mapped. Those of an alias are
    /// in use elsewhere, but for a few that growth got before it failed.
    pub fn quarantine<H: Host>(&self, host: &H, area: &Area) {
        self.add_quarantined(host, area, i64::from(area.mapped()));
    }

    /// Tells the host that these frames are not mapped any more.
    pub fn unquarantine<H: Host>(&self, host: &H, area: &Area) {
        self.add_quarantined(host, area, -i64::from(area.mapped()));
    }

    fn add_quarantined<H: Host>(&self, host: &H, area: &Area, pages: i64) {
        let word = area.word();
        if word.kind() == Kind::Vmalloc
            && !word.is_alias()
            && pages != 0
            && let Some(frame) = self.frames.get(area.start())
        {
            host.add_quarantined(frame, pages);
        }
    }
}
