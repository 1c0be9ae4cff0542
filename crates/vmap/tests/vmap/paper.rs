//! A simulated mapper and host: page-table entries, translations that stay stale until a flush,
//! tables, and the contents of frames. They panic at once where a machine would fail later: an
//! address reused before its flush, a frame freed while it is reachable, a table given back that
//! maps something.

use std::cell::Cell;
use std::collections::{BTreeSet, HashMap};
use std::mem::MaybeUninit;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use pagedepot::cpus::{CpuLock, Environment, LockedCpus, WhichCpu};
use pagedepot::{
    AllocError, Allocator, Config, CpuId, Flags, FrameRange, FreeManyError, NodeId, Order,
    PageSize, Pfn, ZoneConfig,
};
use pagedepot_vmap::{
    FlushSpans, Host, MapError, Mapper, Protection, Span, VirtAddr, Vmap, VmapConfig,
};

pub const PAGE: usize = 4096;
/// Pages per table: small, so that few pages make many tables.
pub const TABLE: u32 = 64;

thread_local!(static CPU: Cell<u32> = const { Cell::new(0) });

/// The CPU that this thread says it is on.
pub struct ByThread;

impl ByThread {
    pub fn run_on(cpu: u32) {
        CPU.set(cpu);
    }
}

impl WhichCpu for ByThread {
    fn cpu(&self) -> Option<CpuId> {
        Some(CpuId::new(CPU.get()))
    }
}

impl Environment for ByThread {}

pub type Depot = Allocator<'static, LockedCpus<'static, ByThread>>;
pub type Paged = Vmap<'static, &'static Paper, PaperHost>;

#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    frame: Option<Pfn>,
    writable: bool,
    /// Unmapped, but translations may linger.
    stale: Option<Pfn>,
}

#[derive(Default)]
struct State {
    entries: Vec<Entry>,
    tables: Vec<bool>,
    /// Number of pages that reach a frame, stale ones included.
    reach: HashMap<u32, u32>,
    /// Each frame's contents: eight bytes, repeated.
    contents: HashMap<u32, u64>,
    flushed_pages: u64,
    flushes: u64,
    /// Pages lost to another mapping when a call failed.
    lost: BTreeSet<usize>,
}

/// The mapper.
pub struct Paper {
    span: Span,
    state: Mutex<State>,
    /// Calls of `map` and `unmap` so far, the first that fails, and how many do.
    calls: AtomicU64,
    fails_at: AtomicU64,
    failures: AtomicU64,
    /// Number of questions to the mapper about zero pages.
    pub questions: AtomicU64,
    loses: AtomicBool,
}

impl Paper {
    pub fn new(span: Span) -> Self {
        let state = State {
            entries: vec![Entry::default(); span.pages as usize],
            tables: vec![false; span.pages as usize / TABLE as usize + 2],
            ..State::default()
        };
        Paper {
            span,
            state: Mutex::new(state),
            calls: AtomicU64::new(0),
            fails_at: AtomicU64::new(u64::MAX),
            failures: AtomicU64::new(1),
            questions: AtomicU64::new(0),
            loses: AtomicBool::new(false),
        }
    }

    /// The nth call of `map` or `unmap` from now on fails (0: the next), after doing half.
    pub fn fail_at(&self, n: u64) {
        self.fail_from(n, 1);
    }

    /// Has several calls in a row fail like [`fail_at`](Self::fail_at)'s one.
    pub fn fail_from(&self, n: u64, failures: u64) {
        self.failures.store(failures, Ordering::Relaxed);
        self.fails_at
            .store(self.calls.load(Ordering::Relaxed).saturating_add(n), Ordering::Relaxed);
    }

    /// Fails like [`fail_at`](Self::fail_at), but the pages that the call names are unmapped then,
    /// and every third of them is lost.
    pub fn lose_at(&self, n: u64) {
        self.loses.store(true, Ordering::Relaxed);
        self.fail_at(n);
    }

    pub fn is_lost(&self, addr: VirtAddr) -> bool {
        self.state.lock().unwrap().lost.contains(&self.page(addr))
    }

    fn lose(&self, state: &mut State, pages: std::ops::Range<usize>) {
        for page in pages {
            if let Some(frame) = state.entries[page].frame.take() {
                state.entries[page].stale = Some(frame);
            }
            if page % 3 == 1 {
                state.lost.insert(page);
            }
        }
    }

    pub fn never_fail(&self) {
        self.fails_at.store(u64::MAX, Ordering::Relaxed);
    }

    /// Whether the call that was to fail has happened.
    pub fn has_failed(&self) -> bool {
        self.calls.load(Ordering::Relaxed) > self.fails_at.load(Ordering::Relaxed)
    }

    fn fails(&self) -> bool {
        let call = self.calls.fetch_add(1, Ordering::Relaxed);
        let first = self.fails_at.load(Ordering::Relaxed);
        call >= first && call - first < self.failures.load(Ordering::Relaxed)
    }

    fn page(&self, addr: VirtAddr) -> usize {
        assert!(
            addr >= self.span.start && addr < self.span.end(PageSize::Kib4),
            "{addr} is out of range"
        );
        (addr.get() - self.span.start.get()) / PAGE
    }

    fn pages(&self, span: Span) -> std::ops::Range<usize> {
        let first = self.page(span.start);
        assert!(first + span.pages as usize <= self.span.pages as usize);
        first..first + span.pages as usize
    }

    fn table(&self, page: usize) -> usize {
        (self.span.start.get() / PAGE % TABLE as usize + page) / TABLE as usize
    }

    /// Writes through the mapping, as the user of an area would.
    pub fn write(&self, addr: VirtAddr, stamp: u64) {
        let mut state = self.state.lock().unwrap();
        let entry = state.entries[self.page(addr)];
        assert!(entry.writable, "fault: {addr} is not writable");
        state.contents.insert(entry.frame.expect("fault: not mapped").get(), stamp);
    }

    /// Reads through the mapping.
    pub fn read(&self, addr: VirtAddr) -> u64 {
        let state = self.state.lock().unwrap();
        let frame = state.entries[self.page(addr)].frame.expect("fault: not mapped");
        state.contents.get(&frame.get()).copied().unwrap_or(0)
    }

    pub fn is_mapped(&self, addr: VirtAddr) -> bool {
        self.state.lock().unwrap().entries[self.page(addr)].frame.is_some()
    }

    pub fn frame_at(&self, addr: VirtAddr) -> Option<Pfn> {
        self.state.lock().unwrap().entries[self.page(addr)].frame
    }

    pub fn contents(&self, frame: Pfn) -> u64 {
        self.state.lock().unwrap().contents.get(&frame.get()).copied().unwrap_or(0)
    }

    pub fn set_contents(&self, frame: Pfn, stamp: u64) {
        self.state.lock().unwrap().contents.insert(frame.get(), stamp);
    }

    /// Calls of `map` and `unmap` so far.
    pub fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    pub fn mapped_pages(&self) -> usize {
        self.state.lock().unwrap().entries.iter().filter(|entry| entry.frame.is_some()).count()
    }

    pub fn tables(&self) -> u64 {
        self.state.lock().unwrap().tables.iter().filter(|&&populated| populated).count() as u64
    }

    /// Pages in the spans of all flushes, and how many flushes there were.
    pub fn flushed(&self) -> (u64, u64) {
        let state = self.state.lock().unwrap();
        (state.flushed_pages, state.flushes)
    }

    /// Whether a frame can still be reached.
    fn is_reachable(&self, frame: u32) -> bool {
        self.state.lock().unwrap().reach.get(&frame).is_some_and(|&pages| pages > 0)
    }
}

// SAFETY: nothing is reached through its addresses but by `read` and `write` above, which follow
// the entries.
unsafe impl Mapper for &'static Paper {
    fn table_pages(&self) -> u32 {
        TABLE
    }

    fn span(&self) -> Span {
        self.span
    }

    fn page_size(&self) -> PageSize {
        PageSize::Kib4
    }

    unsafe fn map(
        &self,
        at: VirtAddr,
        frames: FrameRange,
        how: Protection,
    ) -> Result<(), MapError> {
        let pages = self.pages(Span::new(at, frames.frames));
        let fails = self.fails();
        let done = if fails { pages.len() / 2 } else { pages.len() };
        let mut state = self.state.lock().unwrap();
        if state.lost.range(pages.clone()).next().is_some() {
            return Err(MapError::Lost);
        }
        if fails && self.loses.load(Ordering::Relaxed) {
            self.lose(&mut state, pages);
            return Err(MapError::NoTables);
        }
        for (i, page) in (0..).zip(pages).take(done) {
            let entry = &mut state.entries[page];
            assert!(entry.frame.is_none(), "page {page} is mapped twice");
            assert!(entry.stale.is_none(), "page {page} is reused before it was flushed");
            let frame = frames.start.add(i);
            *entry = Entry { frame: Some(frame), writable: how.may_write(), stale: None };
            *state.reach.entry(frame.get()).or_default() += 1;
            let table = self.table(page);
            state.tables[table] = true;
        }
        if fails { Err(MapError::NoTables) } else { Ok(()) }
    }

    unsafe fn unmap(&self, span: Span) -> Result<(), MapError> {
        let pages = self.pages(span);
        let fails = self.fails();
        let done = if fails { pages.len() / 2 } else { pages.len() };
        let mut state = self.state.lock().unwrap();
        if fails && self.loses.load(Ordering::Relaxed) {
            self.lose(&mut state, pages);
            return Err(MapError::TooManyMappings { limit: 7 });
        }
        for page in pages.take(done) {
            let entry = &mut state.entries[page];
            if let Some(frame) = entry.frame.take() {
                entry.stale = Some(frame);
            }
        }
        if fails { Err(MapError::TooManyMappings { limit: 7 }) } else { Ok(()) }
    }

    fn flush(&self, spans: FlushSpans<'_>) {
        let mut state = self.state.lock().unwrap();
        state.flushes += 1;
        let mut last = self.span.start;
        for span in spans {
            assert!(span.start >= last, "spans ascend");
            last = span.end(PageSize::Kib4);
            state.flushed_pages += u64::from(span.pages);
            for page in self.pages(span) {
                if let Some(frame) = state.entries[page].stale.take() {
                    *state.reach.get_mut(&frame.get()).unwrap() -= 1;
                }
            }
        }
        let missed = state.entries.iter().position(|entry| entry.stale.is_some());
        assert_eq!(missed, None, "a flush missed a page that was unmapped");
    }

    unsafe fn release_tables(&self, span: Span) {
        assert_eq!(span.start.get() / PAGE % TABLE as usize, 0);
        assert_eq!(span.pages % TABLE, 0);
        let mut state = self.state.lock().unwrap();
        for page in self.pages(span) {
            let entry = state.entries[page];
            assert!(
                entry.frame.is_none() && entry.stale.is_none(),
                "page {page}'s table is in use"
            );
            let table = self.table(page);
            state.tables[table] = false;
        }
    }

    unsafe fn fill(&self, span: Span, byte: u8) {
        let mut state = self.state.lock().unwrap();
        for page in self.pages(span) {
            let entry = state.entries[page];
            assert!(entry.writable, "fault at page {page}");
            let frame = entry.frame.expect("fault: filled page is not mapped");
            state.contents.insert(frame.get(), u64::from_le_bytes([byte; 8]));
        }
    }

    unsafe fn fill_frames(&self, frames: FrameRange, byte: u8) -> Result<(), MapError> {
        if self.fails() {
            return Err(MapError::NoTables);
        }
        let stamp = u64::from_le_bytes([byte; 8]);
        (0..frames.frames).for_each(|i| self.set_contents(frames.start.add(i), stamp));
        Ok(())
    }

    fn known_zero(&self, frames: FrameRange) -> u32 {
        assert!(frames.frames > 0);
        self.questions.fetch_add(1, Ordering::Relaxed);
        let is_zero = |&i: &u32| self.contents(frames.start.add(i)) == 0;
        (0..frames.frames).take_while(is_zero).count() as u32
    }

    fn lost_pages(&self) -> u32 {
        self.state.lock().unwrap().lost.len() as u32
    }

    fn lost_in(&self, span: Span) -> Option<Span> {
        let (pages, state) = (self.pages(span), self.state.lock().unwrap());
        let first = *state.lost.range(pages.clone()).next()?;
        let count = (first..pages.end).take_while(|page| state.lost.contains(page)).count();
        Some(Span::new(self.span.start.add(first * PAGE), count as u32))
    }

    fn read(&self, frame: Pfn, offset: usize, buf: &mut [u8]) -> bool {
        let contents = self.contents(frame).to_le_bytes();
        for (i, byte) in buf.iter_mut().enumerate() {
            *byte = contents[(offset + i) % 8];
        }
        true
    }
}

/// The host: frames from a depot, with a look at the mapper when they come back.
pub struct PaperHost {
    pub depot: &'static Depot,
    paper: &'static Paper,
    quarantined: std::sync::atomic::AtomicI64,
    /// Requests for frames that still succeed.
    allowance: AtomicU64,
    pub purges_wanted: AtomicU64,
    refuses_splits: AtomicBool,
}

impl PaperHost {
    /// Makes blocks stay whole from now on.
    pub fn refuse_splits(&self, yes: bool) {
        self.refuses_splits.store(yes, Ordering::Relaxed);
    }

    /// The nth request for frames from now on fails, and all after it.
    pub fn fail_frames_at(&self, n: u64) {
        self.allowance.store(n, Ordering::Relaxed);
    }

    pub fn quarantined(&self) -> i64 {
        self.quarantined.load(Ordering::Relaxed)
    }

    fn spend(&self) -> Result<(), AllocError> {
        let spent =
            self.allowance.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1));
        spent.map(drop).map_err(|_| AllocError::Exhausted)
    }
}

// SAFETY: the depot's blocks, which tests leave alone; the frames are paper.
unsafe impl Host for PaperHost {
    fn cpu(&self) -> Option<CpuId> {
        ByThread.cpu()
    }

    fn alloc_block(&self, order: Order, flags: Flags) -> Result<Pfn, AllocError> {
        self.spend()?;
        self.depot.alloc(order, flags)
    }

    fn alloc_frames(&self, flags: Flags, out: &mut [Pfn]) -> Result<usize, AllocError> {
        self.spend()?;
        self.depot.alloc_many(Order::BASE, flags, out)
    }

    unsafe fn free_blocks(&self, blocks: &[(Pfn, Order)]) -> Result<(), FreeManyError> {
        for &(start, order) in blocks {
            let reachable =
                (0..order.frames()).find(|&i| self.paper.is_reachable(start.add(i).get()));
            assert_eq!(
                reachable, None,
                "a frame of block {start} is freed while it can be reached"
            );
        }
        self.depot.free_many(blocks)
    }

    unsafe fn split_block(&self, frame: Pfn, order: Order) -> bool {
        !self.refuses_splits.load(Ordering::Relaxed)
            && self.depot.split(frame, order, Order::BASE).is_ok()
    }

    fn add_quarantined(&self, frame: Pfn, pages: i64) {
        self.quarantined.fetch_add(pages, Ordering::Relaxed);
        self.depot.note_quarantined(frame, pages);
    }

    fn wait(&self, _word: &std::sync::atomic::AtomicU32, _seen: u32) {
        std::thread::yield_now();
    }

    fn purge_wanted(&self) {
        self.purges_wanted.fetch_add(1, Ordering::Relaxed);
    }
}

/// A byte of memory that is not zero.
const DIRT: u8 = 0xa5;

fn leak<T>(value: T) -> &'static T {
    Box::leak(Box::new(value))
}

/// Memory with this byte everywhere.
fn memory(bytes: usize, byte: u8) -> &'static mut [MaybeUninit<u8>] {
    vec![MaybeUninit::new(byte); bytes].leak()
}

/// A depot of `frames` frames, checked, with nothing held back.
pub fn depot(frames: u32, cpus: u32) -> &'static Depot {
    let ranges = leak([FrameRange::new(Pfn::new(0x100), frames)]);
    let zones = leak([ZoneConfig {
        name: "Normal",
        node: NodeId::new(0),
        level: 2,
        ranges,
        watermarks: Some(Default::default()),
    }]);
    let config = Config { checked: true, ..Config::new(cpus, zones) };
    let locks = (0..cpus).map(|_| CpuLock::new()).collect::<Vec<_>>().leak();
    let metadata = memory(Depot::metadata_bytes(&config).unwrap(), DIRT);
    leak(Depot::new(&config, metadata, LockedCpus::new(locks, ByThread)).unwrap())
}

/// Frame numbers that are the caller's, not the depot's.
pub fn own_frames(from: u32, count: u32) -> Vec<Pfn> {
    (from..from + count).map(|n| Pfn::new(0x8000_0000 + n)).collect()
}

/// A vmap of `pages` pages on paper, over a depot of `frames` frames.
pub fn paged_at(base: usize, pages: u32, frames: u32, config: &VmapConfig) -> Paged {
    let paper = leak(Paper::new(Span::new(VirtAddr::new(base), pages)));
    let host = PaperHost {
        depot: depot(frames, config.cpus),
        paper,
        quarantined: 0.into(),
        allowance: AtomicU64::new(u64::MAX),
        purges_wanted: AtomicU64::new(0),
        refuses_splits: AtomicBool::new(false),
    };
    let byte = if config.metadata_is_zero { 0 } else { DIRT };
    let metadata = memory(Paged::metadata_bytes(config, &paper).unwrap(), byte);
    // SAFETY: this paper and this depot are this vmap's alone, and zero is zero.
    unsafe { Paged::new(config, metadata, paper, host) }.unwrap()
}

/// Makes a vmap like [`paged_at`], at an address that is aligned to nothing but a page.
pub fn paged(pages: u32, frames: u32, config: &VmapConfig) -> Paged {
    paged_at(0x12_3456_7000, pages, frames, config)
}

/// Frees everything that is not busy and checks that nothing was leaked: every page free, every
/// frame back, every table given back but those at the edges, nothing mapped.
pub fn check_all_back(vmap: &mut Paged) {
    use pagedepot_vmap::PurgeDepth;
    vmap.mapper().never_fail();
    let purged = vmap.purge(PurgeDepth::Everything);
    assert_eq!((purged.stuck_areas, purged.error), (0, None));
    let census = vmap.validate().unwrap();
    assert_eq!(census.free_pages, u64::from(vmap.span().pages), "{census:?}");
    assert_eq!((census.mapped_pages, census.own_frames), (0, 0));
    assert_eq!(vmap.mapper().mapped_pages(), 0);
    assert!(vmap.stats().tables <= 2, "tables stay: {}", vmap.stats().tables);
    assert!(vmap.mapper().tables() <= 2);
    assert_eq!(vmap.host().quarantined(), 0);
    let counts = vmap.stats().counts;
    assert_eq!(counts.misfreed_frames, 0);
    assert_eq!(vmap.mapper().flushed(), (counts.flushed_pages, counts.flushes));
    assert!(counts.flushed_pages * 10 <= counts.needed_pages * 11, "{counts:?}");
    let depot = vmap.host().depot;
    depot.drain(pagedepot::Scope::ALL, pagedepot::Mode::Full);
    let zone = depot.zone_ids().next().unwrap();
    let stats = depot.zone_stats(zone).unwrap();
    assert_eq!(depot.free_pages(zone), stats.managed_pages - stats.carved_pages);
}
