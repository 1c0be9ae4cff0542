//! A handler above each call that a request makes of its seams: it makes every request and free
//! that handlers may make, and none of them waits. The calls include those inside of locks.

use std::cell::Cell;
use std::mem::MaybeUninit;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use pagedepot::{AllocError, CpuId, Flags, FrameRange, FreeManyError, Order, PageSize, Pfn};
use pagedepot_vmap::{
    FlushSpans, Host, MapError, Mapper, NullMapper, Options, Protection, PurgeDepth, Span,
    VirtAddr, Vmap, VmapConfig, VmapError,
};

const PAGES: u32 = 4096;
const PAGE: usize = 4096;

type Machine = Vmap<'static, Interrupted, &'static Interrupted>;

/// The machine below the vmap: every call of a seam may be interrupted by the handler.
#[derive(Clone, Copy)]
struct Interrupted(&'static Lines);

struct Lines {
    mapper: NullMapper,
    next_frame: AtomicU32,
    held_frames: AtomicU64,
    /// Whether the thread has a name, as on Linux.
    named: AtomicBool,
}

thread_local! {
    static VMAP: Cell<Option<&'static Machine>> = const { Cell::new(None) };
    /// Calls until the handler comes; `u32::MAX`: never.
    static COUNTDOWN: Cell<u32> = const { Cell::new(u32::MAX) };
    static IS_IN_HANDLER: Cell<bool> = const { Cell::new(false) };
    static WAITED: Cell<u32> = const { Cell::new(0) };
    static SERVED: Cell<u32> = const { Cell::new(0) };
    /// Whether the handler came while a lock had no name of its holder yet, or none any more.
    static IS_UNNAMED: Cell<bool> = const { Cell::new(false) };
    /// The area that the handler lets grow, and nothing else.
    static GROWN: Cell<Option<VirtAddr>> = const { Cell::new(None) };
}

impl Interrupted {
    /// A place at which the handler may come.
    fn step(&self) {
        let left = COUNTDOWN.get();
        if IS_IN_HANDLER.get() || left == u32::MAX {
            return;
        }
        COUNTDOWN.set(left.wrapping_sub(1));
        if left == 0 {
            IS_IN_HANDLER.set(true);
            match GROWN.get() {
                Some(at) => grow_above(VMAP.get().unwrap(), at),
                None => handler(VMAP.get().unwrap(), self.0.named.load(Ordering::Relaxed)),
            }
            IS_IN_HANDLER.set(false);
        }
    }
}

// SAFETY: no number is handed out twice, and nothing is reached through one.
unsafe impl Host for Interrupted {
    fn cpu(&self) -> Option<CpuId> {
        self.step();
        Some(CpuId::new(0))
    }

    fn alloc_block(&self, order: Order, flags: Flags) -> Result<Pfn, AllocError> {
        self.step();
        let is_atomic = flags == Flags::MOVABLE.no_reclaim();
        assert!(!IS_IN_HANDLER.get() || is_atomic, "reclaim in a handler: {flags:?}");
        if order > Order::new(2).unwrap() {
            return Err(AllocError::Exhausted);
        }
        self.0.held_frames.fetch_add(order.frames().into(), Ordering::Relaxed);
        // Apart from the one before: each is mapped by itself.
        Ok(Pfn::new(self.0.next_frame.fetch_add(order.frames() + 1, Ordering::Relaxed)))
    }

    fn alloc_frames(&self, flags: Flags, out: &mut [Pfn]) -> Result<usize, AllocError> {
        out[0] = self.alloc_block(Order::BASE, flags)?;
        Ok(1)
    }

    unsafe fn free_blocks(&self, blocks: &[(Pfn, Order)]) -> Result<(), FreeManyError> {
        self.step();
        let frames: u32 = blocks.iter().map(|(_, order)| order.frames()).sum();
        self.0.held_frames.fetch_sub(frames.into(), Ordering::Relaxed);
        Ok(())
    }

    unsafe fn split_block(&self, _frame: Pfn, _order: Order) -> bool {
        self.step();
        true
    }

    fn wait(&self, _word: &AtomicU32, _seen: u32) {
        panic!("a wait without bounds");
    }

    fn wait_at_most(&self, _word: &AtomicU32, _seen: u32, _limit_ms: u32) {
        WAITED.set(WAITED.get() + 1);
    }

    fn caller(&self) -> Option<NonZeroUsize> {
        // A guard asks with its lock held.
        if !IS_IN_HANDLER.get() {
            IS_UNNAMED.set(true);
            self.step();
            IS_UNNAMED.set(false);
        }
        NonZeroUsize::new(self.0.named.load(Ordering::Relaxed).into())
    }
}

// SAFETY: nothing is ever reached through its addresses.
unsafe impl Mapper for Interrupted {
    fn table_pages(&self) -> u32 {
        64
    }

    fn span(&self) -> Span {
        self.0.mapper.span()
    }

    fn page_size(&self) -> PageSize {
        PageSize::Kib4
    }

    unsafe fn map(&self, _: VirtAddr, _: FrameRange, _: Protection) -> Result<(), MapError> {
        self.step();
        Ok(())
    }

    unsafe fn unmap(&self, _span: Span) -> Result<(), MapError> {
        self.step();
        Ok(())
    }

    fn flush(&self, _spans: FlushSpans<'_>) {
        self.step();
    }

    unsafe fn release_tables(&self, _span: Span) {
        self.step();
    }

    unsafe fn fill(&self, _span: Span, _byte: u8) {
        self.step();
    }

    unsafe fn fill_frames(&self, _frames: FrameRange, _byte: u8) -> Result<(), MapError> {
        self.step();
        Ok(())
    }

    fn read(&self, _frame: Pfn, _offset: usize, _buf: &mut [u8]) -> bool {
        true
    }
}

fn machine() -> (&'static Machine, Interrupted) {
    let lines = Box::leak(Box::new(Lines {
        mapper: NullMapper::new(Span::new(VirtAddr::new(1 << 30), PAGES), PageSize::Kib4),
        next_frame: AtomicU32::new(4),
        held_frames: AtomicU64::new(0),
        named: AtomicBool::new(true),
    }));
    let seams = Interrupted(lines);
    let config = VmapConfig {
        warm_pages_max: Some(20),
        lazy_pages_max: Some(40),
        pool_pages_max: Some(60),
        ..VmapConfig::new(1, 600)
    };
    let bytes = Machine::metadata_bytes(&config, &seams).unwrap();
    let memory = Box::leak(vec![MaybeUninit::uninit(); bytes].into_boxed_slice());
    let host: &Interrupted = Box::leak(Box::new(seams));
    // SAFETY: nothing is reached through the numbers.
    let vmap = unsafe { Vmap::new(&config, memory, seams, host) }.unwrap();
    let vmap = Box::leak(Box::new(vmap));
    VMAP.set(Some(vmap));
    (vmap, seams)
}

/// Makes every request that a handler may make. Each is served, or says that it would wait.
fn handler(vmap: &Machine, named: bool) {
    let options = Options::DEFAULT.no_wait();
    let served = |result: Result<VirtAddr, VmapError>| match result {
        Ok(at) => {
            SERVED.set(SERVED.get() + 1);
            Some(at)
        }
        Err(error) => {
            assert_eq!(error, VmapError::WouldWait);
            None
        }
    };
    let frames = [Pfn::new(1), Pfn::new(3)];
    for pages in [1, 3, 70] {
        if let Some(at) = served(vmap.alloc(pages, options)) {
            vmap.free_atomic(at).unwrap();
        }
        if let Some(mut at) = served(vmap.vmalloc(pages, options.zeroed())) {
            let sizes = [pages + 1, pages + 70, pages + 2, 1, 90];
            for pages in sizes {
                at = served(vmap.vrealloc(at, pages, options)).unwrap_or(at);
                assert!(vmap.find(at.add(PAGE / 2)).is_some());
            }
            vmap.vfree_atomic(at).unwrap();
        }
    }
    if let Some(at) = served(vmap.vmalloc_reserved(2, 20, options)) {
        for pages in [5, 20, 7, 25] {
            served(vmap.vrealloc(at, pages, options)).into_iter().for_each(|same| {
                assert!(same == at || pages == 25);
            });
            if vmap.find(at).is_none_or(|info| info.span.start != at) {
                break;
            }
        }
        let moved = vmap.vfree_atomic(at).is_err();
        assert!(!moved, "it has moved, though nothing lies behind");
    }
    if let Some(at) = served(vmap.vmap(&frames, options)) {
        assert_eq!(vmap.frame_at(at.add(PAGE)), Some(frames[1]));
        assert_eq!(vmap.read_at(at, &mut [0; 16]), 16);
        vmap.vunmap_atomic(at).unwrap();
    }
    if let Some(at) = served(vmap.vm_map_ram(&frames, options)) {
        vmap.vm_unmap_ram_atomic(at, 2).unwrap();
    }
    let fixed = vmap.span().start.add(4000 * PAGE);
    if let Some(at) = served(vmap.alloc_at(fixed, 2, options)) {
        let mapped = vmap.map_frames(at, 0, &frames, options);
        assert!(matches!(mapped, Ok(()) | Err(VmapError::WouldWait)), "{mapped:?}");
        let freed = if mapped.is_ok() { vmap.vunmap_atomic(at) } else { vmap.free_atomic(at) };
        freed.unwrap();
    }
    assert_eq!(WAITED.take(), 0, "a request that may not wait has waited");
    // These may wait, within bounds, but not for what their own thread holds.
    if let Some(at) = served(vmap.vmalloc(45, options)) {
        vmap.vfree(at).unwrap();
    }
    vmap.stats();
    vmap.listing().count();
    let may_wait = !named || IS_UNNAMED.get();
    assert!(WAITED.take() == 0 || may_wait, "a free waits for its own thread");
}

/// Lets an area of 4 pages grow to 15 without a wait.
fn grow_above(vmap: &Machine, at: VirtAddr) {
    let grown = vmap.vrealloc(at, 15, Options::DEFAULT.no_wait());
    let pages = if grown == Ok(at) { 15 } else { 4 };
    assert!([Ok(at), Err(VmapError::WouldWait)].contains(&grown), "{grown:?}");
    SERVED.set(SERVED.get() + u32::from(pages == 4));
    let info = vmap.find(at).unwrap();
    assert_eq!((info.span.pages, info.guard_pages, info.mapped_pages), (pages + 1, 1, pages));
}

/// A request, or a free, that a handler interrupts.
type Below = fn(&Machine);

const BELOW: [(&str, Below); 10] = [
    ("alloc", |vmap| {
        let at = vmap.alloc(7, Options::DEFAULT).unwrap();
        vmap.free(at).unwrap();
    }),
    ("vmalloc", |vmap| {
        let at = vmap.vmalloc(7, Options::DEFAULT).unwrap();
        vmap.vfree(at).unwrap();
    }),
    ("vmalloc, lazy", |vmap| {
        for pages in [50, 60] {
            let at = vmap.vmalloc(pages, Options::DEFAULT).unwrap();
            vmap.vfree(at).unwrap();
        }
    }),
    ("vmap", |vmap| {
        let at = vmap.vmap(&[Pfn::new(5); 3], Options::DEFAULT).unwrap();
        vmap.vunmap(at).unwrap();
    }),
    ("vm_map_ram", |vmap| {
        let at = vmap.vm_map_ram(&[Pfn::new(5); 3], Options::DEFAULT).unwrap();
        vmap.vm_unmap_ram(at, 3).unwrap();
    }),
    ("alloc_at", |vmap| {
        let start = vmap.span().start.add(3000 * PAGE);
        let at = vmap.alloc_at(start, 4, Options::DEFAULT).unwrap();
        vmap.map_frames(at, 1, &[Pfn::new(7)], Options::DEFAULT).unwrap();
        vmap.vunmap(at).unwrap();
    }),
    ("vrealloc", |vmap| {
        let mut at = vmap.vmalloc(5, Options::DEFAULT).unwrap();
        let wall = vmap.alloc(1, Options::DEFAULT).unwrap();
        for pages in [20, 120, 121, 60, 3] {
            at = vmap.vrealloc(at, pages, Options::DEFAULT).unwrap();
        }
        vmap.vfree(at).unwrap();
        vmap.free(wall).unwrap();
    }),
    ("reserved", |vmap| {
        let at = vmap.vmalloc_reserved(0, 100, Options::DEFAULT).unwrap();
        for pages in [20, 90, 30] {
            assert_eq!(vmap.vrealloc(at, pages, Options::DEFAULT), Ok(at));
        }
        vmap.vfree(at).unwrap();
    }),
    ("purge", |vmap| {
        vmap.purge(PurgeDepth::Decay);
        vmap.purge(PurgeDepth::Everything);
    }),
    ("stats", |vmap| {
        vmap.stats();
    }),
];

fn check_all_back(vmap: &Machine, seams: Interrupted) {
    vmap.purge(PurgeDepth::Everything);
    let stats = vmap.stats();
    assert_eq!((stats.free_pages, stats.lazy_pages), (u64::from(PAGES), 0), "{stats:?}");
    assert_eq!(seams.0.held_frames.load(Ordering::Relaxed), 0);
}

#[test]
fn no_request_that_may_not_wait_waits_wherever_it_interrupts() {
    for named in [true, false] {
        let (vmap, seams) = machine();
        seams.0.named.store(named, Ordering::Relaxed);
        for (name, below) in BELOW {
            let mut calls = 0;
            loop {
                // Something to purge, something in the pools, and no area of the size needed.
                vmap.purge(PurgeDepth::Everything);
                for pages in [1, 3, 9, 30] {
                    let at = vmap.vmalloc(pages, Options::DEFAULT).unwrap();
                    vmap.vfree(at).unwrap();
                }
                COUNTDOWN.set(calls);
                below(vmap);
                let has_come = COUNTDOWN.replace(u32::MAX) == u32::MAX;
                if !has_come {
                    break;
                }
                calls += 1;
            }
            assert!(calls > 1, "{name}: {calls} calls");
            check_all_back(vmap, seams);
        }
    }
    assert!(SERVED.get() > 1000, "{}", SERVED.get());
}

#[test]
fn a_request_that_may_not_wait_shrinks_at_once() {
    let (vmap, seams) = machine();
    let no_wait = Options::DEFAULT.no_wait();
    let kept = vmap.vmalloc(10, Options::DEFAULT).unwrap();
    let lazy = vmap.vmalloc(35, Options::DEFAULT).unwrap();
    vmap.vfree(lazy).unwrap();
    // With nothing in the way a request that may not wait shrinks at once, and keeps its guard.
    // The cut goes through a block.
    assert_eq!(vmap.vrealloc(kept, 7, no_wait), Ok(kept));
    let info = vmap.find(kept).unwrap();
    assert_eq!((info.span.pages, info.guard_pages, info.mapped_pages), (8, 1, 7));
    assert_eq!(vmap.vrealloc(kept, 10, no_wait), Ok(kept));
    vmap.vfree(kept).unwrap();
    check_all_back(vmap, seams);
}

/// A purge has the lock without which what was mapped in part cannot be unmapped.
#[test]
fn growth_into_a_table_that_a_purge_gives_back_keeps_its_guard() {
    let (vmap, seams) = machine();
    let window = |from: usize, pages: usize| {
        let start = vmap.span().start.add(from * PAGE);
        Options::DEFAULT.window(start, start.add(pages * PAGE))
    };
    let edge = vmap.mapper().table_pages() as usize;
    let grown = vmap.vmalloc(4, window(edge - 8, 5)).unwrap();
    GROWN.set(Some(grown));
    let mut calls = 0;
    loop {
        let at = vmap.vmalloc(100, window(edge + 50, 200)).unwrap();
        COUNTDOWN.set(calls);
        // It is more than may be lazy, so it is purged at once.
        vmap.vfree(at).unwrap();
        if COUNTDOWN.replace(u32::MAX) != u32::MAX {
            break;
        }
        assert_eq!(vmap.vrealloc(grown, 4, Options::DEFAULT), Ok(grown));
        calls += 1;
    }
    GROWN.set(None);
    assert!(SERVED.get() > 0, "no growth met the purge in {calls} calls");
    vmap.vfree(grown).unwrap();
    check_all_back(vmap, seams);
}
