//! A mapper and a host on paper. They record what is mapped where, what is unmapped but not
//! flushed, which frames are out, and their contents. An assertion checks every clause of their
//! contracts.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use pagedepot::{AllocError, CpuId, Flags, FrameRange, FreeManyError, Order, PageSize, Pfn};
use pagedepot_vmap::{FlushSpans, Host, MapError, Mapper, Protection, Span, VirtAddr};

pub const PAGE: usize = 4096;
/// The range begins in the middle of a table.
pub const START: usize = 0x4000_0000 + 3 * PAGE;
pub const TABLE_PAGES: u32 = 16;
/// Frames from here on are the callers'.
pub const CALLERS: u32 = 1 << 20;

thread_local!(static CPU: Cell<u32> = const { Cell::new(0) });

/// The calling thread acts as this CPU.
pub fn run_on(cpu: u32) {
    CPU.set(cpu);
}

pub struct Paper {
    pages: u32,
    frames: u32,
    state: Mutex<State>,
    /// Whether nothing is stale once `unmap` returns.
    unmap_flushes: bool,
    /// Calls of `map` and `unmap` until one fails; 0: none will.
    pub fail_map_in: AtomicU64,
    pub fail_unmap_in: AtomicU64,
}

#[derive(Default)]
struct State {
    mapped: BTreeMap<usize, Pfn>,
    /// Unmapped, and not yet flushed.
    stale: BTreeMap<usize, Pfn>,
    free: BTreeSet<u32>,
    contents: BTreeMap<Pfn, u64>,
    flushed_pages: u64,
}

impl Paper {
    pub fn new(pages: u32, frames: u32) -> Self {
        let state = State { free: (0..frames).collect(), ..State::default() };
        let [fail_map_in, fail_unmap_in] = [0, 0].map(AtomicU64::new);
        Paper {
            pages,
            frames,
            state: Mutex::new(state),
            unmap_flushes: false,
            fail_map_in,
            fail_unmap_in,
        }
    }

    /// Makes `unmap` leave nothing stale.
    pub fn flushing(self) -> Self {
        Paper { unmap_flushes: true, ..self }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn frame_at(&self, addr: VirtAddr) -> Option<Pfn> {
        self.state().mapped.get(&(addr.get() / PAGE)).copied()
    }

    /// Writes a stamp through the mapping.
    pub fn write(&self, addr: VirtAddr, stamp: u64) {
        let frame = self.frame_at(addr).expect("it is mapped");
        self.state().contents.insert(frame, stamp);
    }

    /// Reads a stamp through the mapping.
    pub fn read_at(&self, addr: VirtAddr) -> u64 {
        let frame = self.frame_at(addr).expect("it is mapped");
        self.contents(frame)
    }

    pub fn contents(&self, frame: Pfn) -> u64 {
        self.state().contents.get(&frame).copied().unwrap_or_default()
    }

    pub fn copy(&self, from: VirtAddr, to: VirtAddr, pages: u32) {
        (0..pages as usize)
            .for_each(|i| self.write(to.add(i * PAGE), self.read_at(from.add(i * PAGE))));
    }

    pub fn frames_out(&self) -> u32 {
        self.frames - self.state().free.len() as u32
    }

    pub fn mapped_pages(&self) -> usize {
        self.state().mapped.len()
    }

    pub fn flushed_pages(&self) -> u64 {
        self.state().flushed_pages
    }
}

fn fails(countdown: &AtomicU64) -> bool {
    countdown.load(Ordering::Relaxed) > 0 && countdown.fetch_sub(1, Ordering::Relaxed) == 1
}

fn pages_of(span: Span) -> std::ops::Range<usize> {
    let first = span.start.get() / PAGE;
    first..first + span.pages as usize
}

// SAFETY: nothing is reached through its addresses.
unsafe impl Mapper for &Paper {
    fn table_pages(&self) -> u32 {
        TABLE_PAGES
    }

    fn span(&self) -> Span {
        Span::new(VirtAddr::new(START), self.pages)
    }

    fn page_size(&self) -> PageSize {
        PageSize::Kib4
    }

    unsafe fn map(
        &self,
        at: VirtAddr,
        frames: FrameRange,
        _how: Protection,
    ) -> Result<(), MapError> {
        let fails = fails(&self.fail_map_in);
        let mut state = self.state();
        for i in 0..frames.frames {
            // Half of it may be mapped when it fails.
            if fails && i >= frames.frames / 2 {
                return Err(MapError::NoTables);
            }
            let (page, frame) = (at.get() / PAGE + i as usize, frames.start.add(i));
            assert!(
                !state.stale.contains_key(&page),
                "page {page:#x} is mapped before it was flushed"
            );
            assert!(state.mapped.insert(page, frame).is_none(), "page {page:#x} is mapped twice");
            assert!(!state.free.contains(&frame.get()), "{frame:?} is free");
        }
        Ok(())
    }

    unsafe fn unmap(&self, span: Span) -> Result<(), MapError> {
        if fails(&self.fail_unmap_in) {
            return Err(MapError::Refused(12));
        }
        let mut state = self.state();
        for page in pages_of(span) {
            if let Some(frame) = state.mapped.remove(&page)
                && !self.unmap_flushes
            {
                state.stale.insert(page, frame);
            }
        }
        Ok(())
    }

    fn flush(&self, spans: FlushSpans<'_>) {
        let mut state = self.state();
        for span in spans {
            state.flushed_pages += u64::from(span.pages);
            state.stale.retain(|page, _| !pages_of(span).contains(page));
        }
        assert!(state.stale.is_empty(), "a flush left out {:?}", state.stale);
    }

    unsafe fn release_tables(&self, span: Span) {
        let state = self.state();
        assert!(pages_of(span).all(|page| !state.mapped.contains_key(&page)), "a table is in use");
    }

    unsafe fn fill(&self, span: Span, byte: u8) {
        let stamp = u64::from_ne_bytes([byte; 8]);
        (0..span.pages as usize).for_each(|i| self.write(span.start.add(i * PAGE), stamp));
    }

    unsafe fn fill_frames(&self, frames: FrameRange, byte: u8) -> Result<(), MapError> {
        let (stamp, mut state) = (u64::from_ne_bytes([byte; 8]), self.state());
        (0..frames.frames).for_each(|i| {
            state.contents.insert(frames.start.add(i), stamp);
        });
        Ok(())
    }

    fn read(&self, _frame: Pfn, _offset: usize, _buf: &mut [u8]) -> bool {
        false
    }
}

// SAFETY: a frame is handed out once until it is freed; frames are paper.
unsafe impl Host for &Paper {
    fn cpu(&self) -> Option<CpuId> {
        Some(CpuId::new(CPU.get()))
    }

    fn alloc_block(&self, order: Order, _flags: Flags) -> Result<Pfn, AllocError> {
        let mut state = self.state();
        let block = |first: u32| first..first + order.frames();
        let first = (0..self.frames / order.frames())
            .map(|i| i * order.frames())
            .find(|&first| block(first).all(|frame| state.free.contains(&frame)))
            .ok_or(AllocError::Exhausted)?;
        block(first).for_each(|frame| assert!(state.free.remove(&frame)));
        Ok(Pfn::new(first))
    }

    fn alloc_frames(&self, _flags: Flags, out: &mut [Pfn]) -> Result<usize, AllocError> {
        let mut state = self.state();
        let got = out
            .iter_mut()
            .map_while(|out| state.free.pop_last().map(|frame| *out = Pfn::new(frame)));
        match got.count() {
            0 => Err(AllocError::Exhausted),
            got => Ok(got),
        }
    }

    unsafe fn free_blocks(&self, blocks: &[(Pfn, Order)]) -> Result<(), FreeManyError> {
        let mut state = self.state();
        for (first, order) in blocks {
            for frame in (0..order.frames()).map(|i| first.add(i)) {
                let is_reachable =
                    state.mapped.values().chain(state.stale.values()).any(|&at| at == frame);
                assert!(!is_reachable, "{frame:?} is freed while it is mapped");
                assert!(state.free.insert(frame.get()), "{frame:?} is freed twice");
            }
        }
        Ok(())
    }

    unsafe fn split_block(&self, _frame: Pfn, _order: Order) -> bool {
        true
    }
}
