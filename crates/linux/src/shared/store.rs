//! The store of a segment, as the allocator of one process sees it.

use std::mem;
use std::sync::Arc;
use std::time::Duration;

use pagedepot::{
    Backing, BackingRanges, BackingRequest, BackingWords, Block, DoubleFree, Pfn, RangeRequest,
    ZoneId,
};
use pagedepot_rseq::current_cpu;

use super::awaited::WaitFlag;
use super::members::{self, HeldSlot, Orphans, Recovery};
use super::owners::{GROUP_FRAMES, Owner, PAGEBLOCK_FRAMES, groups_of};
use super::segment::Segment;
use super::slots::{ASKED, CEILING, SENT, SLOTS, TAKEN};
use crate::depot::state::CommonStore;
use crate::giving_back::balloon::{Cap, Caps};
use crate::giving_back::ceiling::Allowance;
use crate::giving_back::trim::is_taking_here;
use crate::system::fork_mark::ForkMark;
use crate::system::mapping::Mapping;
use crate::system::prim::{self, AtomicU32, AtomicU64, ForkLock, Ordering};

/// Places at which threads begin to search, by CPU.
const HINTS: usize = 64;
/// Groups of a pageblock.
const PAGEBLOCK_GROUPS: usize = (PAGEBLOCK_FRAMES / GROUP_FRAMES) as usize;

/// A place to begin at, alone on its line.
#[repr(align(128))]
struct Hint(AtomicU32);

/// A count, alone on its line.
#[derive(Default)]
#[repr(align(128))]
struct Count(AtomicU64);

/// The store of a process that is in a slot. Dropping it leaves the segment.
pub struct SharedStore {
    segment: Arc<Segment>,
    slot: usize,
    /// The page that has the lock of the slot. `None`: dropped, or the segment has the lock.
    lock_page: Option<Mapping>,
    hints: Box<[Hint]>,
    /// Frames above this one are not in large blocks that are free, as far as this process knows.
    large_hint: Hint,
    /// Pages that came back and were not this process's.
    refused: AtomicU64,
    /// Taken by the one thread that looks for dead processes.
    burying: ForkLock<()>,
    /// Pages of dead processes that this process has freed.
    recovered: AtomicU64,
    /// Pages that this process has taken or claimed, less those that it has freed, and those that
    /// it has sent; not in the segment, because memory is unmapped when both are equal.
    taken: Count,
    sent: Count,
    /// Pages that threads of this process are about to take below its ceiling.
    reserved: AtomicU64,
    /// The most pages that a monitor lets this process have; 0: any number. What the program lets
    /// it have is in the slot.
    container_ceiling: AtomicU64,
    /// Whether requests of this process wait, and its thread is to look for them.
    pub(super) awaited: WaitFlag,
    /// Whether this process has a thread that answers others.
    has_thread: bool,
    /// Milliseconds of the clock from which on a request that waits asks other processes again.
    pub(super) asks_from_ms: AtomicU64,
}

/// Room below the ceiling of a process, for one thread of it. The thread counts what it takes, and
/// drops this afterwards.
pub struct Reservation<'s> {
    store: &'s SharedStore,
    /// Blocks that there is room for.
    pub blocks: u32,
    pages: u64,
}

impl Reservation<'_> {
    /// Gives up the room for all but so many pages.
    pub fn shrink(&mut self, pages: u64) {
        if let Some(rest) = self.pages.checked_sub(pages) {
            // Relaxed: nothing was taken there.
            self.store.reserved.fetch_sub(rest, Ordering::Relaxed);
            self.pages = pages;
        }
    }
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        if self.pages > 0 {
            // Release: pairs with the Acquire of `reserve`; what was taken was counted before.
            self.store.reserved.fetch_sub(self.pages, Ordering::Release);
        }
    }
}

impl SharedStore {
    /// The store of this process, which has joined.
    pub fn new(segment: Arc<Segment>, (slot, lock_page): HeldSlot, has_thread: bool) -> Self {
        let blocks = (segment.owners().groups() / PAGEBLOCK_GROUPS).max(1);
        // Processes and CPUs begin apart, by a number near the golden section.
        let place = |cpu: usize| (slot * HINTS + cpu) * 2_654_435_769 % blocks * PAGEBLOCK_GROUPS;
        let hint = |cpu| Hint(AtomicU32::new(place(cpu) as u32));
        SharedStore {
            hints: (0..HINTS).map(hint).collect(),
            large_hint: Hint(AtomicU32::new(u32::MAX)),
            segment,
            slot,
            lock_page,
            refused: AtomicU64::new(0),
            burying: ForkLock::new(ForkMark::of_process(), ()),
            recovered: AtomicU64::new(0),
            taken: Count::default(),
            sent: Count::default(),
            reserved: AtomicU64::new(0),
            container_ceiling: AtomicU64::new(0),
            awaited: WaitFlag::default(),
            has_thread,
            asks_from_ms: AtomicU64::new(0),
        }
    }

    pub fn segment(&self) -> &Arc<Segment> {
        &self.segment
    }

    pub fn slot(&self) -> usize {
        self.slot
    }

    pub fn owner(&self) -> Owner {
        Owner::slot(self.slot)
    }

    /// Pages that came back and were not this process's.
    pub fn refused(&self) -> u64 {
        // Relaxed: a count.
        self.refused.load(Ordering::Relaxed)
    }

    /// Takes back the pages of processes that have ended, by one thread at a time. A forked child,
    /// and a handler above this call, take none.
    pub fn recover(&self, orphans: Orphans) -> Recovery {
        self.bury_alone().map_or(Recovery::default(), |_alone| self.bury_dead(orphans))
    }

    /// Takes back the pages of processes that have ended, unless another thread looks for such and
    /// does not end within about `limit`: it may be stopped.
    pub fn recover_within(&self, limit: Duration) {
        if let Ok(Some(_alone)) = self.burying.lock_within(limit) {
            self.bury_dead(Orphans::Stay);
        }
    }

    fn bury_dead(&self, orphans: Orphans) -> Recovery {
        let recovery = members::bury_dead(&self.segment, self.slot, orphans);
        // Relaxed: a count.
        self.recovered.fetch_add(recovery.pages, Ordering::Relaxed);
        recovery
    }

    /// Keeps other threads of this process from burying as long as the value lives. `None`: this is
    /// a forked child, or a handler above such a value.
    pub fn bury_alone(&self) -> Option<impl Sized + '_> {
        self.burying.lock().ok()
    }

    /// Pages of dead processes that this process has freed, by whatever thread.
    pub fn recovered(&self) -> u64 {
        // Relaxed: a count.
        self.recovered.load(Ordering::Relaxed)
    }

    /// Counts pages that this process has more or fewer of.
    pub fn count_taken(&self, more: i64) {
        self.segment.slots().add(self.slot, TAKEN, more);
        // Relaxed: a count.
        self.taken.0.fetch_add(more as u64, Ordering::Relaxed);
    }

    /// Counts pages that this process is about to send.
    pub fn count_sent(&self, pages: u32) {
        self.segment.slots().add(self.slot, SENT, pages.into());
        // Relaxed: a count.
        self.sent.0.fetch_add(pages.into(), Ordering::Relaxed);
    }

    fn frames(&self) -> u32 {
        self.segment.layout().frames
    }

    fn page_shift(&self) -> u32 {
        self.segment.layout().page_size.shift()
    }

    /// The most pages that the program, and that a monitor lets this process have; 0: any number.
    fn ceilings(&self) -> [u64; 2] {
        // Relaxed: a limit.
        let container = self.container_ceiling.load(Ordering::Relaxed);
        [self.segment.slots().count(self.slot, CEILING), container]
    }

    /// Pages that processes hold, and those that were sent and not claimed.
    fn taken_by_all(&self) -> u64 {
        let slots = self.segment.slots();
        // Relaxed: see `members::take_slot`.
        let mut joined = self.segment.joined().load(Ordering::Relaxed) & ((1 << SLOTS) - 1);
        let mut taken = 0u64;
        while joined != 0 {
            taken = taken.wrapping_add(slots.taken(joined.trailing_zeros() as usize));
            joined &= joined - 1;
        }
        taken
    }

    /// Sets the most bytes that the program lets this process have; 0: any number.
    pub fn set_ceiling(&self, bytes: usize) {
        self.set_cap(Cap::Program(if bytes == 0 { usize::MAX } else { bytes }));
    }

    /// Room for up to `blocks` blocks of 2^order pages below the ceiling of this process; none in a
    /// forked child.
    #[inline]
    pub fn reserve(&self, blocks: u32, order: u32) -> Reservation<'_> {
        match self.ceilings() {
            _ if self.segment.is_forked() => self.reserve_below(0, blocks, order),
            [0, 0] => Reservation { store: self, blocks, pages: 0 },
            [0, only] | [only, 0] => self.reserve_below(only, blocks, order),
            [program, container] => self.reserve_below(program.min(container), blocks, order),
        }
    }

    fn reserve_below(&self, ceiling: u64, blocks: u32, order: u32) -> Reservation<'_> {
        let slots = self.segment.slots();
        // Relaxed: a look, so that a request for more than there is room for is in no other's way.
        let seen = slots.held(self.slot).saturating_add(self.reserved.load(Ordering::Relaxed));
        let room = ceiling.saturating_sub(seen) >> order;
        let wanted = u64::from(blocks).min(room) << order;
        // Acquire: pairs with the Release of `Reservation::drop`, for the counts of this process.
        let others = self.reserved.fetch_add(wanted, Ordering::Acquire);
        let taken = slots.held(self.slot).saturating_add(others);
        let blocks = (wanted >> order).min(ceiling.saturating_sub(taken) >> order);
        let pages = blocks << order;
        // Relaxed: it counted nothing.
        self.reserved.fetch_sub(wanted - pages, Ordering::Relaxed);
        Reservation { store: self, blocks: blocks as u32, pages }
    }

    /// Whether a block that a search found is in the segment: the table may be damaged.
    fn has(&self, frame: u32, frames: u32) -> bool {
        frame.checked_add(frames).is_some_and(|end| end <= self.frames())
    }

    /// Takes up to `want` blocks below the ceiling of this process. Passes frames, multiples of 64
    /// or the first ones of large blocks, and the bits at which blocks begin from there on. Returns
    /// how many blocks.
    fn take_blocks(&self, order: u32, want: u32, mut give: impl FnMut(u32, u64)) -> u32 {
        let room = self.reserve(want, order);
        if room.blocks == 0 {
            return 0;
        }
        let (owners, owner) = (self.segment.owners(), self.owner());
        let mut got = 0;
        if order <= 3 {
            let hint = &self.hints[current_cpu().index() % HINTS].0;
            // Relaxed, both: a hint.
            let mut at = hint.load(Ordering::Relaxed) as usize;
            owners.take_small(owner, order, room.blocks, &mut at, |first, starts| {
                // Blocks that begin before this bit end in the segment: the table may be damaged.
                let end = (self.frames() + 1).saturating_sub(first + (1 << order));
                let starts = if end < GROUP_FRAMES { starts & ((1 << end) - 1) } else { starts };
                if starts != 0 {
                    got += starts.count_ones();
                    give(first, starts);
                }
            });
            hint.store(at as u32, Ordering::Relaxed);
        } else {
            let hint = &self.large_hint.0;
            // Relaxed, both: a hint.
            let mut below = hint.load(Ordering::Relaxed);
            owners.take_large(owner, order, room.blocks, &mut below, |frame| {
                if self.has(frame, 1 << order) {
                    got += 1;
                    give(frame, 1);
                }
            });
            hint.store(below, Ordering::Relaxed);
        }
        self.count_taken(i64::from(got) << order);
        got
    }

    /// Frees frames of groups, by their bits.
    fn put_groups(&self, groups: impl Iterator<Item = (usize, u64)> + Clone) -> DoubleFree {
        // A block that is not small has 16 frames of a group at least.
        let large = groups.clone().filter(|(_, frames)| frames.count_ones() >= 16);
        if let Some(end) = large.map(|(group, _)| (group as u32 + 1) * GROUP_FRAMES).max() {
            // Relaxed: a hint.
            self.large_hint.0.fetch_max(end, Ordering::Relaxed);
        }
        let mut refused = DoubleFree::default();
        let ours = groups.clone().take_while(|_| !self.segment.is_forked());
        self.segment.owners().put_all(self.owner(), ours, |first, bytes| {
            let nth = bytes.trailing_zeros() / 8;
            refused.first = refused.first.or(Some(Pfn::new(first + nth)));
            refused.frames += bytes.count_ones();
        });
        if self.segment.is_forked() {
            return DoubleFree::default();
        }
        let pages: u32 = groups.map(|(_, frames)| frames.count_ones()).sum();
        self.count_taken(i64::from(refused.frames) - i64::from(pages));
        if refused.frames > 0 {
            // Relaxed: a count.
            self.refused.fetch_add(u64::from(refused.frames), Ordering::Relaxed);
        }
        refused
    }
}

// SAFETY: 1. blocks are aligned (`take_small`, `take_large`), and `take_blocks` passes those alone
// that lie in the segment, whose frames are the one zone. 2. A frame is taken by a compare-and-swap
// of its byte from free to this process's, which this process changes back when the frame comes
// back (`put_groups`) or is sent, and others after its death: see `owners.rs`. Another process that
// does not keep to that shares the frame with this one, as it shares all of them by its mapping. 3.
// Both are acquire and release. 4. The search wants no more than there is room for.
unsafe impl Backing for SharedStore {
    fn take(&self, request: BackingRequest, out: &mut [Block]) -> usize {
        let (want, mut places) = (out.len() as u32, out.iter_mut());
        let give = |first: u32, starts: u64| {
            let frames = (0..u64::BITS).filter(|bit| starts >> bit & 1 == 1).map(|bit| first + bit);
            for (frame, place) in frames.zip(&mut places) {
                *place = Block::new(Pfn::new(frame), request.order, request.mobility);
            }
        };
        self.take_blocks(request.order.get(), want, give) as usize
    }

    fn put(&self, _: ZoneId, blocks: &[Block]) -> DoubleFree {
        self.put_groups(blocks.iter().flat_map(|one| groups_of(one.pfn().get()..end_of(one))))
    }

    fn words(&self) -> Option<&dyn BackingWords> {
        Some(self)
    }

    fn free_pages(&self, _: ZoneId) -> u64 {
        let taken = self.taken_by_all();
        // Relaxed: a count. A sum of counts that change meanwhile may be a little wrong.
        let present = self.segment.present().load(Ordering::Relaxed);
        match present.wrapping_sub(taken) as i64 {
            free if free < 0 => 0,
            free => (free as u64).min(self.frames().into()),
        }
    }

    fn is_free(&self, pfn: Pfn) -> bool {
        self.segment.owners().owner(pfn.get()) == Some(Owner::FREE)
    }

    fn count_free(&self, _: ZoneId) -> u64 {
        self.segment.owners().count_free().min(self.frames().into())
    }

    fn ranges(&self) -> Option<&dyn BackingRanges> {
        Some(self)
    }
}

// SAFETY: as of `Backing`, whose methods take and put the same way.
unsafe impl BackingWords for SharedStore {
    fn take_words(&self, request: BackingRequest, want: u32, give: &mut dyn FnMut(Pfn, u64)) {
        self.take_blocks(request.order.get(), want, |first, starts| {
            let offset = first % GROUP_FRAMES;
            give(Pfn::new(first - offset), starts << offset);
        });
    }

    fn put_words(&self, _: ZoneId, words: &[(Pfn, u64)]) -> DoubleFree {
        self.put_groups(
            words.iter().map(|(first, frames)| (first.index() / GROUP_FRAMES as usize, *frames)),
        )
    }
}

// SAFETY: as of `Backing`.
unsafe impl BackingRanges for SharedStore {
    fn take_contiguous(&self, request: RangeRequest) -> Option<Pfn> {
        let room = self.reserve(request.frames, 0);
        if room.blocks < request.frames {
            return None;
        }
        let owners = self.segment.owners();
        let start = owners.take_run(self.owner(), request.frames, request.align)?;
        if !self.has(start, request.frames) {
            return None;
        }
        self.count_taken(request.frames.into());
        Some(Pfn::new(start))
    }

    fn claim(&self, _: ZoneId, start: Pfn, frames: u32) -> bool {
        let start = start.get();
        let room = match is_taking_here(start, frames) && !self.segment.is_forked() {
            true => Reservation { store: self, blocks: frames, pages: 0 },
            false => self.reserve(frames, 0),
        };
        let is_mine = self.has(start, frames)
            && room.blocks == frames
            && self.segment.owners().claim(self.owner(), start..start + frames);
        if is_mine {
            self.count_taken(frames.into());
        }
        is_mine
    }
}

/// The first frame after a block.
fn end_of(block: &Block) -> u32 {
    block.pfn().get().saturating_add(block.order().frames())
}

impl Allowance for SharedStore {
    fn caps(&self) -> Caps {
        let bytes = |pages| (pages > 0).then_some((pages as usize) << self.page_shift());
        let [program, container] = self.ceilings().map(bytes);
        Caps { program, container }
    }

    fn set_cap(&self, cap: Cap) {
        let pages = |bytes: usize| match (bytes >> self.page_shift()) as u64 {
            all if all >= self.frames().into() => 0,
            pages => pages.max(1),
        };
        // Relaxed, both: a limit.
        match cap {
            Cap::Program(bytes) => {
                let word = self.segment.slots().word(self.slot, CEILING);
                word.store(pages(bytes), Ordering::Relaxed);
            }
            Cap::Container(bytes) => {
                self.container_ceiling.store(bytes.map_or(0, pages), Ordering::Relaxed);
            }
        }
    }

    fn held_bytes(&self) -> usize {
        (self.segment.slots().held(self.slot) as usize) << self.page_shift()
    }
}

impl CommonStore for SharedStore {
    fn taken_pages(&self) -> u64 {
        // Relaxed: counts.
        let sent = self.sent.0.load(Ordering::Relaxed);
        self.taken.0.load(Ordering::Relaxed).wrapping_sub(sent)
    }

    fn is_room(&self, page: u32) -> bool {
        let owner = self.segment.owners().owner(page);
        owner == Some(Owner::FREE) || owner == Some(self.owner())
    }

    fn note_refused(&self, pages: u32) {
        // Relaxed: a count.
        self.refused.fetch_add(pages.into(), Ordering::Relaxed);
    }

    fn await_others(&self) -> bool {
        if !self.has_thread {
            self.ask_now_and_then();
            return false;
        }
        let asked = self.segment.futex(self.slot, ASKED);
        if self.awaited.begin(asked) {
            prim::wake_all_shared(asked);
        }
        true
    }
}

impl Drop for SharedStore {
    fn drop(&mut self) {
        let page = self.lock_page.take();
        if self.segment.is_forked() {
            // A forked child is in no slot. It may have something else where its parent has the
            // page.
            return mem::forget(page);
        }
        // The thread of this process finds no store, and ends. Relaxed: it reads nothing.
        let asked = self.segment.futex(self.slot, ASKED);
        asked.fetch_add(1, Ordering::Relaxed);
        prim::wake_all_shared(asked);
        members::leave(&self.segment, (self.slot, page));
    }
}
