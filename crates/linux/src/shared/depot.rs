//! A depot over a segment.

use std::fmt;
use std::num::NonZeroU64;
use std::ops::{Deref, Range};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use pagedepot::{DrainResult, Mode, PageSize, Scope};
use rustix::fs::FallocateFlags;

use super::error::SegmentError;
use super::layout::Layout;
use super::members::{self, Orphans, Recovery};
use super::owners::{Owner, OwnerCounts, PAGEBLOCK_FRAMES};
use super::process::{has_ended, has_exited};
use super::segment::{Segment, in_new_file};
use super::shortage::{OnShortage, answer};
use super::slots::{CEILING, HEIR, Identity, SLOTS, SlotWord, Stage};
use super::store::SharedStore;
use crate::builder::{CpuSet, default_page_size};
use crate::depot::builder::{Builder, Common};
use crate::depot::handle::Depot;
use crate::error::CallbackError;
use crate::memory::region::FilePart;
use crate::system::prim::{Ordering, fence};

/// Options of a segment, and of a process in it.
#[derive(Clone, Debug)]
#[must_use = "options do nothing by themselves"]
pub struct SharedOptions {
    bytes: usize,
    bytes_max: usize,
    ceiling: usize,
    heir: u64,
    orphans: Orphans,
    locks: bool,
    answers: bool,
    isolated: Option<CpuSet>,
}

impl SharedOptions {
    /// A segment of `bytes`, rounded up to whole pages of [`default_page_size`].
    pub fn new(bytes: usize) -> Self {
        SharedOptions {
            bytes,
            bytes_max: bytes,
            ceiling: 0,
            heir: 0,
            orphans: Orphans::Stay,
            locks: false,
            answers: true,
            isolated: None,
        }
    }

    /// Options for a process that opens a segment, whose size is known.
    pub fn join() -> Self {
        Self::new(0)
    }

    /// The size to which [`SharedDepot::grow`] can bring the segment. Default: the size it begins
    /// with. Nine bytes for each page, of memory or of a disk, are allocated when the segment is
    /// made.
    pub fn grow_to(mut self, bytes: usize) -> Self {
        self.bytes_max = bytes;
        self
    }

    /// The most bytes that this process may take, cached ones included, rounded down to whole
    /// pages, but one page at least. Default, and 0: all.
    pub fn ceiling(mut self, bytes: usize) -> Self {
        self.ceiling = bytes;
        self
    }

    /// The name of the heir of this process: see [`SharedDepot::set_heir`]. Default: none.
    pub fn heir(mut self, heir: NonZeroU64) -> Self {
        self.heir = heir.get();
        self
    }

    /// The fate of pages that dead processes have left behind, when this process joins. Default:
    /// they stay. Each such process keeps a slot: with [`Orphans::AllGoBack`] a segment can be
    /// opened in which all slots are so.
    pub fn orphans(mut self, orphans: Orphans) -> Self {
        self.orphans = orphans;
        self
    }

    /// Puts the fronts of all CPUs behind locks, as [`Builder::per_cpu_locks`] does. Default: no.
    pub fn per_cpu_locks(mut self, yes: bool) -> Self {
        self.locks = yes;
        self
    }

    /// The CPUs that this process's drains do not interrupt, as [`Builder::isolated_cpus`] names
    /// them: what they cache comes back when a thread there hands it over, or by locks. Default:
    /// those that the kernel keeps undisturbed.
    pub fn isolated_cpus(mut self, cpus: CpuSet) -> Self {
        self.isolated = Some(cpus);
        self
    }

    /// Whether a thread of this process gives back what it caches when another process
    /// [asks](SharedDepot::drain_all), and what it can do without
    /// ([`SharedDepot::on_shortage`]). Default: yes. Without it, requests of this process that
    /// wait look for pages again and again, and each request of another process that runs short
    /// waits 50 ms in vain for an answer.
    pub fn answers(mut self, yes: bool) -> Self {
        self.answers = yes;
        self
    }
}

/// The result of [`SharedDepot::drain_all`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct GlobalDrain {
    /// Pages that this process cached.
    pub own: DrainResult,
    /// Processes that had ended, and their pages.
    pub recovered: Recovery,
    /// Other processes that were asked.
    pub asked: u32,
    /// Other processes that have given back what they cached.
    pub answered: u32,
}

/// A depot whose pages are in a segment that other processes use, too. It is a [`Depot`] in all
/// else; see the [module](super).
#[derive(Clone)]
pub struct SharedDepot {
    // Dropped first: it has the store.
    depot: Depot,
    store: Arc<SharedStore>,
    on_shortage: Arc<OnShortage>,
}

impl Deref for SharedDepot {
    type Target = Depot;

    #[inline]
    fn deref(&self) -> &Depot {
        &self.depot
    }
}

impl SharedDepot {
    /// Makes a segment in a new memory file, which lives as long as a process has it open.
    ///
    /// # Errors
    /// [`SegmentError`]; its `Display` says what to do.
    pub fn create_memfd(name: &str, options: &SharedOptions) -> Result<Self, SegmentError> {
        let (layout, present) = sizes(options)?;
        Self::over_new(Segment::create_memfd(name, layout, present)?, options)
    }

    /// Makes a segment in a new file, which stays when all processes have left. One in `/dev/shm`
    /// is named shared memory.
    ///
    /// # Errors
    /// [`SegmentError`]; a file that exists is one. After an error there is no file of this call.
    pub fn create(path: impl AsRef<Path>, options: &SharedOptions) -> Result<Self, SegmentError> {
        let (layout, present) = sizes(options)?;
        in_new_file(path.as_ref(), |file| {
            Self::over_new(Segment::format(file, layout, present)?, options)
        })
    }

    /// A depot over a segment that other processes can open afterwards, and not before: where this
    /// fails, none has joined.
    fn over_new(segment: Segment, options: &SharedOptions) -> Result<Self, SegmentError> {
        let depot = Self::over(segment, options)?;
        depot.store.segment().publish();
        Ok(depot)
    }

    /// Opens the segment in a file, and takes back what processes had that have ended.
    ///
    /// # Errors
    /// [`SegmentError`].
    pub fn open(path: impl AsRef<Path>, options: &SharedOptions) -> Result<Self, SegmentError> {
        Self::over(Segment::open_file(path.as_ref())?, options)
    }

    /// Opens the segment behind a descriptor, as [`open`](Self::open) does; one that came over a
    /// socket or was inherited. The descriptor itself is not kept. A memory file is sealed against
    /// shrinking. If its maker has sealed its seals without that, as another program may, it can be
    /// cut like any other file, and an access behind its end is a SIGBUS.
    ///
    /// # Errors
    /// [`SegmentError`]; a system without `/proc` is one.
    pub fn adopt(fd: impl AsFd, options: &SharedOptions) -> Result<Self, SegmentError> {
        Self::over(Segment::open_fd(fd.as_fd())?, options)
    }

    fn over(segment: Segment, options: &SharedOptions) -> Result<Self, SegmentError> {
        let layout = segment.layout();
        let segment = Arc::new(segment);
        let place = members::join(&segment, options.orphans)?;
        let slot = place.0;
        let store = Arc::new(SharedStore::new(segment.clone(), place, options.answers));
        store.recover(options.orphans);
        store.set_ceiling(options.ceiling);
        // Relaxed: of this process alone.
        segment.slots().word(slot, HEIR).store(options.heir, Ordering::Relaxed);
        let file = segment.clone_file().map_err(SegmentError::system("fcntl"))?;
        let part = FilePart { file, offset: layout.frames_at() as u64 };
        let builder = Builder::new(layout.frame_bytes())
            .page_size(layout.page_size)
            .per_cpu_locks(options.locks)
            // Counted by the store: it may be another process's doing.
            .on_misuse(|_| ());
        let builder = match &options.isolated {
            Some(cpus) => builder.isolated_cpus(cpus.clone()),
            None => builder,
        };
        let depot = builder.build_shared(Common { store: store.clone(), part })?;
        let weak = Arc::downgrade(&store);
        let when_short = move |_| weak.upgrade().map_or(0, |store| store.when_short());
        depot.on_pressure(when_short).expect("a new depot has room for callbacks");
        let on_shortage = Arc::new(OnShortage::new());
        if options.answers {
            answer(segment, &store, depot.downgrade(), on_shortage.clone())?;
        }
        Ok(SharedDepot { depot, store, on_shortage })
    }

    /// The depot, without what it shares.
    pub fn depot(&self) -> &Depot {
        &self.depot
    }

    pub(super) fn store(&self) -> &SharedStore {
        &self.store
    }

    /// The segment's file, to send to another process, which [adopts](Self::adopt) it.
    pub fn file(&self) -> BorrowedFd<'_> {
        self.store.segment().file()
    }

    /// Bytes from the start of the [file](Self::file) to the first page.
    pub fn frames_at(&self) -> usize {
        self.store.segment().layout().frames_at()
    }

    /// The slot of this process.
    pub fn slot(&self) -> usize {
        self.store.slot()
    }

    /// Takes back the pages of processes that have ended and did not leave. Requests that run short
    /// do so, and so does [`open`](Self::open).
    ///
    /// `orphans`: whether pages go back, too, that such a process had sent and that were not
    /// claimed.
    ///
    /// While no process changes the segment, the counts of pages are exact after this call. A
    /// forked child takes back nothing.
    pub fn recover(&self, orphans: Orphans) -> Recovery {
        if self.is_forked() {
            return Recovery::default();
        }
        let recovery = self.store.recover(orphans);
        members::recount(self.store.segment());
        recovery
    }

    /// Takes back what all processes cache: this one's by a drain, those of dead processes by
    /// [`recover`](Self::recover), and those of live ones by asking them. Waits `limit` at most: a
    /// process that is stopped does not answer, nor does one without
    /// [a thread for it](SharedOptions::answers).
    pub fn drain_all(&self, mode: Mode, limit: Duration) -> GlobalDrain {
        let own = self.depot.drain(Scope::ALL, mode);
        let recovered = self.recover(Orphans::Stay);
        let (asked, answered) = self.store.ask(limit);
        GlobalDrain { own, recovered, asked, answered }
    }

    /// Calls `give` when another process runs short of pages, or a request of this one
    /// [waits](Depot::page_timeout): it frees pages that this process can do without. Pages
    /// that it frees go to the other process at once, whatever CPU caches them. `give` takes the
    /// place of the one before.
    ///
    /// The other process waits 50 ms for it at most, and then fails its request unless pages have
    /// become free. A thread of this process calls it, also while other threads use the depot. It
    /// must not own a [`SharedDepot`] of the same segment, which would never be left, but may own
    /// pages. It is dropped within a second after the last handle. This call waits for a `give`
    /// that runs: the caller holds no lock that it takes.
    ///
    /// ```
    /// use std::sync::{Arc, Mutex};
    /// use pagedepot_linux::{Order, Page};
    /// use pagedepot_linux::shared::{SharedDepot, SharedOptions};
    ///
    /// let host = SharedDepot::create_memfd("pool", &SharedOptions::new(4 << 20))?;
    /// let guest = SharedDepot::adopt(host.file(), &SharedOptions::join())?;
    /// let withheld: Arc<Mutex<Vec<Page>>> = Arc::default();
    /// let given = withheld.clone();
    /// host.on_shortage(move || given.lock().unwrap().clear())?;
    /// withheld.lock().unwrap().push(host.page(Order::MAX)?); // all there is
    /// assert!(guest.page(Order::BASE).is_ok(), "the host has given it back");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`CallbackError::Forked`] in a forked child; [`CallbackError::Reentrant`] in `give` itself.
    pub fn on_shortage(&self, give: impl FnMut() + Send + 'static) -> Result<(), CallbackError> {
        self.on_shortage.set(give)
    }

    /// Pages of dead processes that this process has freed, since it opened the segment.
    pub fn recovered_pages(&self) -> u64 {
        self.store.recovered()
    }

    /// Pages that came back and were not this process's: freed twice, or another process has
    /// written to the table.
    pub fn refused_pages(&self) -> u64 {
        self.store.refused()
    }

    /// Gives memory to the segment up to `bytes`, at most what it was made for by
    /// [`SharedOptions::grow_to`]. Returns the bytes there are then; more than before, if it had
    /// fewer. May be repeated by any process when the one that did it has died. A forked child
    /// changes nothing.
    pub fn grow(&self, bytes: usize) -> usize {
        if self.is_forked() {
            return self.present_bytes();
        }
        let segment = self.store.segment();
        let layout = segment.layout();
        let frames = (bytes >> layout.page_size.shift()).min(layout.frames as usize) as u32;
        let owners = segment.owners();
        let show = |run| owners.show_range(run);
        owners.change_some(0..frames, Owner::ABSENT, Owner::FREE, show);
        self.count_present()
    }

    /// Adds `bytes` of memory to the segment, rounded up to whole pages, wherever it has none.
    /// Returns the bytes that were added: less where fewer were left of what it was made for by
    /// [`SharedOptions::grow_to`], and none in a forked child. Of several callers at once each adds
    /// what it returns.
    pub fn grow_by(&self, bytes: usize) -> usize {
        if self.is_forked() {
            return 0;
        }
        let segment = self.store.segment();
        let (layout, owners) = (segment.layout(), segment.owners());
        let shift = layout.page_size.shift();
        let most = bytes.div_ceil(1 << shift).min(layout.frames as usize) as u32;
        let added = owners.change_first(0..layout.frames, most, Owner::ABSENT, Owner::FREE);
        self.count_present();
        (added as usize) << shift
    }

    /// Takes memory out of the segment that is free, from its end down to `bytes`, and gives it
    /// back to the system. Returns the bytes that are left: more where pages are in use, or
    /// [pinned](Depot::pin_range) by this process. A forked child changes nothing.
    pub fn shrink(&self, bytes: usize) -> usize {
        // Until the memory is given back: see `pins.rs`.
        let shared = self.depot.shared();
        let pins = shared.pins().lock();
        let Some(pins) = pins.ok().filter(|_| !self.is_forked() && !shared.is_pinned()) else {
            return self.present_bytes();
        };
        let layout = self.store.segment().layout();
        let first = bytes.div_ceil(layout.page_size.bytes()).min(layout.frames as usize) as u32;
        let mut from = first;
        for pin in pins.runs() {
            self.take_out(from..from.max(pin.start as u32));
            from = from.max(pin.end as u32);
        }
        self.take_out(from..layout.frames);
        drop(pins);
        self.count_present()
    }

    /// Takes those of these frames out that are free. Until it is absent, a run is this process's,
    /// so that a death leaves it to survivors.
    ///
    /// A signal handler may fork above this, and its child go on here while the parent hands out
    /// pages of the run. So each step first looks whether this is a child. One that is forked right
    /// after the look takes the free pages of a pageblock, for its parent, until that leaves.
    fn take_out(&self, frames: Range<u32>) {
        let (owners, owner) = (self.store.segment().owners(), self.store.owner());
        let mut at = frames.start;
        while at < frames.end && !self.is_forked() {
            let end = frames.end.min((at / PAGEBLOCK_FRAMES + 1) * PAGEBLOCK_FRAMES);
            owners.change_some(at..end, Owner::FREE, owner, |run| self.make_absent(run));
            at = end;
        }
    }

    /// Gives the memory of frames of this process back to the system, unless this is a child.
    fn make_absent(&self, run: Range<u32>) {
        if self.is_forked() {
            return;
        }
        let segment = self.store.segment();
        let shift = segment.layout().page_size.shift();
        let at = segment.layout().frames_at() as u64 + (u64::from(run.start) << shift);
        let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        // A file system without holes keeps the memory.
        let _ = rustix::fs::fallocate(segment.file(), mode, at, (run.len() as u64) << shift);
        segment.owners().change(run, self.store.owner(), Owner::ABSENT);
    }

    fn count_present(&self) -> usize {
        members::recount(self.store.segment());
        self.present_bytes()
    }

    /// Bytes of memory of the segment, free or not: less than [`bytes`](Depot::bytes) where it can
    /// [grow](Self::grow).
    pub fn present_bytes(&self) -> usize {
        let segment = self.store.segment();
        // Relaxed: a count.
        let present = segment.present().load(Ordering::Relaxed) as usize;
        present << segment.layout().page_size.shift()
    }
}

impl fmt::Debug for SharedDepot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SharedDepot(slot {}, {:?})", self.slot(), self.depot)
    }
}

/// The layout that options ask for, and the frames that have memory at first.
fn sizes(options: &SharedOptions) -> Result<(Layout, u32), SegmentError> {
    let page_size: PageSize = default_page_size();
    let frames = |bytes: usize| bytes.div_ceil(page_size.bytes()) as u64;
    let layout = Layout::new(page_size, frames(options.bytes.max(options.bytes_max)))?;
    match frames(options.bytes) {
        0 => Err(SegmentError::Size { bytes: 0 }),
        present => Ok((layout, present as u32)),
    }
}

/// A process in a segment, and what it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ProcessStats {
    /// The slot of the process.
    pub slot: usize,
    /// The number of the process in its own namespace; 0 while it joins.
    pub pid: u64,
    /// Whether it is still there, as far as can be known here. A survivor that looks for the dead
    /// at the same moment may make one that ended as it joined or left look alive.
    pub is_alive: bool,
    /// Seconds of the epoch at which it joined.
    pub joined_at: u64,
    /// Pages that it holds or caches.
    pub held_pages: u64,
    /// Pages that the process has sent, and that were not claimed.
    pub sent_pages: u64,
    /// Pages that the process has left to its heir, and that were not taken.
    pub estate_pages: u64,
    /// The name of its heir.
    pub heir: Option<NonZeroU64>,
    /// The most pages that its program lets it have; 0: no limit.
    pub ceiling_pages: u64,
}

/// The contents of a segment.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SegmentStats {
    /// The size of its pages.
    pub page_size: PageSize,
    /// Pages that there can be.
    pub pages_max: u64,
    /// Pages that have memory, counted one by one.
    pub present_pages: u64,
    /// Free pages, counted one by one.
    pub free_pages: u64,
    /// Pageblocks, aligned runs of 512 pages, that are free as a whole.
    pub whole_pageblocks: u64,
    /// Pages of slots that no process is in, and of owners that there cannot be. Not 0: the segment
    /// is damaged.
    pub lost_pages: u64,
    /// The processes, dead ones included.
    pub processes: Vec<ProcessStats>,
}

impl SegmentStats {
    /// Reads the segment in a file, and changes nothing in it. The file is opened for writing, and
    /// a memory file is sealed against shrinking, as by each process that joins.
    ///
    /// # Errors
    /// [`SegmentError`].
    pub fn read(path: impl AsRef<Path>) -> Result<Self, SegmentError> {
        let segment = Segment::open_file(path.as_ref())?;
        Ok(Self::of(&segment, None, &PageCount::take(&segment)))
    }

    /// The contents of a segment, whose pages were counted just now. `own`: the slot of this
    /// process.
    fn of(segment: &Segment, own: Option<usize>, count: &PageCount) -> Self {
        let (layout, slots, counts) = (segment.layout(), segment.slots(), &count.by_owner);
        let process = |slot, stage| {
            // The slot of one that joins still describes the process before.
            let is_joining = stage == Some(Stage::Joining);
            let identity = if is_joining { Identity::default() } else { slots.identity(slot) };
            let is_held = || segment.locks().is_held(slot) == Ok(true);
            let is_there = match stage {
                Some(Stage::Live) => !has_ended(identity, segment.locks(), slot),
                Some(Stage::Joining) => is_held(),
                // One that leaves has its lock to the end.
                Some(Stage::Dead) => is_held() && !has_exited(identity),
                _ => false,
            };
            ProcessStats {
                slot,
                pid: identity.pid,
                is_alive: own == Some(slot) || is_there,
                joined_at: identity.joined_at,
                held_pages: counts.of(Owner::slot(slot)),
                sent_pages: counts.of(Owner::sent(slot)),
                estate_pages: counts.of(Owner::estate(slot)),
                heir: NonZeroU64::new(slots.count(slot, HEIR)),
                ceiling_pages: slots.count(slot, CEILING),
            }
        };
        let pages = |one: &ProcessStats| one.held_pages + one.sent_pages + one.estate_pages;
        let (mut processes, mut given_back) = (Vec::new(), 0);
        for slot in 0..SLOTS {
            let word = slots.look(slot);
            match word.stage() {
                Some(Stage::Empty) if word == count.words[slot] => {}
                // The process in it has left since, or was buried: its pages went back before.
                Some(Stage::Empty) => given_back += pages(&process(slot, word.stage())),
                stage => processes.push(process(slot, stage)),
            }
        }
        let all = u64::from(layout.padding().end);
        let present_pages = all - counts.of(Owner::ABSENT);
        let free_pages = counts.of(Owner::FREE) + given_back;
        let theirs: u64 = processes.iter().map(pages).sum();
        SegmentStats {
            page_size: layout.page_size,
            pages_max: layout.frames.into(),
            present_pages,
            free_pages,
            whole_pageblocks: segment.owners().whole_pageblocks(),
            lost_pages: present_pages - free_pages - theirs,
            processes,
        }
    }
}

/// The pages of a segment by owner, and the words of its slots before they were counted.
///
/// A slot that is empty afterwards, with the same word as before, was empty all the while, as each
/// join changes the word: so pages that have it for their owner are no process's.
struct PageCount {
    words: [SlotWord; SLOTS],
    by_owner: OwnerCounts,
}

impl PageCount {
    fn take(segment: &Segment) -> Self {
        let words = std::array::from_fn(|slot| segment.slots().look(slot));
        let by_owner = segment.owners().count();
        // Pairs with the Release by which a process takes a page: whoever counts that page sees the
        // word of the slot as it was then, or later.
        fence(Ordering::Acquire);
        PageCount { words, by_owner }
    }
}

impl SharedDepot {
    /// The contents of the segment. Exact while no process changes it.
    pub fn segment_stats(&self) -> SegmentStats {
        let segment = self.store.segment();
        SegmentStats::of(segment, Some(self.slot()), &PageCount::take(segment))
    }

    /// Pages that this process has taken from the store: those it holds and those it caches; and
    /// those it has sent.
    pub fn taken_pages(&self) -> (u64, u64) {
        let slots = self.store.segment().slots();
        (slots.held(self.slot()), slots.sent(self.slot()))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::mpsc;
    use std::thread;
    use std::time::Instant;

    use pagedepot::Order;

    use super::*;
    use crate::shared::slots::{ANSWERED, ASKED};
    use crate::test_units::in_child;

    /// The thread that answers ends when its process leaves: it does not sleep on.
    #[test]
    fn the_thread_that_answers_ends_with_the_store() {
        let shared = SharedDepot::create_memfd("test", &SharedOptions::new(4 << 20)).unwrap();
        let segment = Arc::downgrade(shared.store.segment());
        // The thread sleeps, or is about to.
        thread::sleep(Duration::from_millis(10));
        drop(shared);
        let until = Instant::now() + Duration::from_secs(60);
        while segment.strong_count() > 0 {
            assert!(Instant::now() < until, "the thread keeps the segment mapped");
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Threads that look for room at the same time do not get it twice.
    #[test]
    fn room_below_a_ceiling_is_given_once() {
        let options = SharedOptions::new(4 << 20).ceiling(256 << 12).answers(false);
        let shared = SharedDepot::create_memfd("test", &options).unwrap();
        let pages = shared.segment_stats().processes[0].ceiling_pages as u32;
        let [one, two, three] = [pages - 7, 4, 1].map(|blocks| shared.store.reserve(blocks, 0));
        assert_eq!((one.blocks, two.blocks, three.blocks), (pages - 7, 4, 1));
        assert_eq!(shared.store.reserve(8, 1).blocks, 1);
        shared.store.count_taken(2);
        drop((two, three));
        assert_eq!(shared.store.reserve(9, 0).blocks, 5);
        shared.store.count_taken(-2);
        drop(one);
        assert_eq!(shared.store.reserve(2 * pages, 0).blocks, pages);
    }

    /// A process leaves after the pages were counted, and before its slot is looked at. Its pages
    /// are free; those of a slot in which no process was are not.
    #[test]
    fn pages_of_a_process_that_leaves_during_a_look_are_not_lost() {
        let options = SharedOptions::new(4 << 20).answers(false);
        let shared = SharedDepot::create_memfd("test", &options).unwrap();
        let other = SharedDepot::adopt(shared.file(), &options).unwrap();
        let (segment, all) = (shared.store.segment(), shared.segment_stats().present_pages);
        let page = other.page(Order::BASE).unwrap();
        let count = PageCount::take(segment);
        drop((page, other));
        let stats = SegmentStats::of(segment, Some(shared.slot()), &count);
        assert_eq!((stats.lost_pages, stats.free_pages, stats.processes.len()), (0, all, 1));
        assert!(segment.owners().change(8..11, Owner::FREE, Owner::slot(1)));
        let stats = shared.segment_stats();
        assert_eq!((stats.lost_pages, stats.free_pages), (3, all - 3));
    }

    #[test]
    fn a_request_from_before_the_thread_that_answers_is_answered() {
        let options = SharedOptions::new(4 << 20).answers(false);
        let shared = SharedDepot::create_memfd("test", &options).unwrap();
        let (segment, slot) = (shared.store.segment().clone(), shared.slot());
        let answered = segment.futex(slot, ANSWERED);
        segment.futex(slot, ASKED).store(1, Ordering::Relaxed);
        let (depot, action) = (shared.depot.downgrade(), shared.on_shortage.clone());
        answer(segment.clone(), &shared.store, depot, action).unwrap();
        let until = Instant::now() + Duration::from_secs(60);
        while answered.load(Ordering::Relaxed) != 1 {
            assert!(Instant::now() < until, "the thread took the request for an old one");
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// A handler forks above a call that takes memory out, and the child goes on there.
    #[test]
    fn a_child_of_a_handler_takes_no_memory_out() {
        let options = SharedOptions::new(4 << 20).answers(false);
        let shared = SharedDepot::create_memfd("test", &options).unwrap();
        let mut page = shared.page(Order::BASE).unwrap();
        page[0] = 7;
        let (first, before) = (page.pfn().get(), shared.segment_stats());
        in_child(|| {
            shared.make_absent(first..first + 1);
            shared.take_out(0..shared.store.segment().layout().frames);
        });
        assert_eq!((page[0], shared.segment_stats()), (7, before));
    }

    /// The thread of a process that joins calls no action for what the process before was asked, or
    /// for the request by which that ended its own thread.
    #[test]
    fn requests_of_a_process_that_left_are_not_its_successors() {
        let options = SharedOptions::new(4 << 20).answers(false);
        let shared = SharedDepot::create_memfd("test", &options).unwrap();
        let join = || SharedDepot::adopt(shared.file(), &options).unwrap();
        let left = join();
        let slot = left.slot();
        assert_eq!(shared.store.ask(Duration::ZERO), (1, 0));
        drop(left);
        let joined = join();
        assert_eq!(joined.slot(), slot);
        let number = |word| shared.store.segment().futex(slot, word).load(Ordering::Relaxed);
        assert_eq!((number(ASKED), number(ANSWERED)), (2, 2));
    }

    /// A thread is stopped as it looks for dead processes. A request of another thread that runs
    /// short fails without it.
    #[test]
    fn a_request_does_not_wait_for_a_thread_that_buries() {
        let options = SharedOptions::new(1 << 20).answers(false);
        let shared = SharedDepot::create_memfd("test", &options).unwrap();
        let pages: Vec<_> = std::iter::from_fn(|| shared.page(Order::BASE).ok()).collect();
        let (tell, hear) = mpsc::channel();
        thread::scope(|scope| {
            let _stopped = shared.store.bury_alone();
            scope.spawn(|| tell.send(shared.page(Order::BASE).is_err()));
            assert_eq!(hear.recv_timeout(Duration::from_secs(60)), Ok(true));
        });
        drop(pages);
    }
}
