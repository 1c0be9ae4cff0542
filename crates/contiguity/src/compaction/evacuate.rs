//! Emptying one source: isolated pageblocks, whose held blocks a mover moves elsewhere.
//!
//! # Steps
//! 1. *Isolate* the source, as [`remove_memory`](crate::Contiguity::remove_memory) does: nothing
//!    new is allocated there, and what is freed comes to the store.
//! 2. *Drain* the zone's caches, so that no frame of the source is cached.
//! 3. *Survey*: ask the mover about each frame that is not free. If one is pinned or unknown, end
//!    here: no block was moved. A block of two pageblocks may lie in the source with one of them:
//!    then the other one, an *edge* of the source, is isolated, too, until the block has left.
//! 4. *Move*, in batches: allocate destinations, call the mover, settle each move. Then survey
//!    again, a few times at most: blocks may have been freed, or allocated by a search that had
//!    read the tag before it was isolated.
//!
//! # Argument
//! *A source block has one fate.* A move frees `from` only after the mover said `moved`, which by
//! its [contract](super::mover::Mover) makes `from` compaction's alone. Frees by its holder cannot
//! come beside or after that. If the holder's free came first, the move is `gone`, and `from` is
//! the store's, where its bit was set by that free. Compaction then touches only `to`.
//!
//! *A destination has one fate.* It was allocated by the atomic operation of a search, so it is
//! compaction's alone. It becomes the mover's when that says `moved`, and else goes back. [`Batch`]
//! settles both when it is dropped, also while a panic unwinds: each move is in one of the two
//! states at each moment, because the mover changes it by one call.
//!
//! *A block is its first frame and its order.* All of it is isolated when the mover is asked last,
//! before it is named for a move, so that its first frame does not become that of a block of
//! another order meanwhile. (A search that read the tag before isolation may still take frames: the
//! mover compares the order, too.) No frame of it is free when it is named, nor when it is freed
//! after the move: a mover that says otherwise is not believed. Moves that a mover has exchanged
//! for those of another compaction are none of this one's: a [`Batch`] knows what it has named.
//!
//! *Allocations.* Isolation is for progress alone. A search that read the tag before takes frames
//! of the source as if it had come first; its holder is asked for them in the next survey. A
//! destination may lie in a pageblock that another compaction or [`remove_memory`] has isolated a
//! moment later; then that caller finds one more held frame.
//!
//! *Drains.* A drain moves frames from caches to the store, which is where compaction wants them.
//! A frame that is cached when the mover is asked is `Unknown`: it has no holder. The drain of step
//! 2 comes after the isolation, so a front that was filled before is emptied, and frees that come
//! later find the isolated tag and go to the store. A free that had read the tag before may still
//! cache a frame: it is unknown in the survey, which is repeated after one more drain.
//!
//! *Two compactions, and [`remove_memory`].* The compare-and-swap of a tag to its isolated form
//! elects one of them for each pageblock; only that one ends the isolation. The others go on with
//! other pageblocks, or say [`Obstacle::Isolated`](crate::Obstacle). None waits for
//! another one while it has isolated something.
//!
//! *Requests.* The source is announced as in flight from before it is isolated until it is not: a
//! request that finds nothing meanwhile naps and looks again before it fails. One of the mover
//! itself does not nap: it is noted as the caller that has those pages in flight. Free memory
//! outside of the sources of all compactions is compared with the `low` watermark before a source
//! is isolated and before each batch; below it, compaction ends. So a request is kept waiting by
//! one call of the mover at most. What a source will have free in the end counts as hidden from the
//! start, and before the look: of two compactions that look at the same moment at least one sees
//! what the other hides.
//!
//! *It ends.* Each survey and each pass is bounded by the source's frames, and there are at most
//! [`ROUNDS`] of both.
//!
//! [`remove_memory`]: crate::Contiguity::remove_memory

use core::ops::Range;

use pagedepot::cpus::Cpus;
use pagedepot::seam::{
    InFlightGuard, Isolation, PAGEBLOCK_FRAMES, PageblockIndex, PageblockState, PageblockUse,
    ZoneAccess,
};
use pagedepot::sync::model::{Mutant, bound, is_mutant};
use pagedepot::sync::prim::spin_hint;
use pagedepot::{Flags, FrameRange, Mobility, Order, Pfn};

use super::mover::{Move, Mover, Occupant, Outcome};
use super::params::{CompactEnd, CompactResult, Compaction, Target};
use super::survey::{self, Key, KeyRanking};

/// Moves per call of the mover.
const BATCH: usize = bound(16, 1);
/// Batches in a row of which the mover moves none, before a pageblock is thinned no further.
const IN_VAIN_MAX: u32 = 2;
/// Free frames of a pageblock that is thin.
const THIN_FREE: u64 = PAGEBLOCK_FRAMES as u64 / 2;
/// Surveys of a source.
const ROUNDS: u32 = 3;
/// Spins before a survey is repeated, for frames in other callers' hands to arrive.
const ROUND_SPINS: u32 = bound(1000, 1);

/// A source: isolated, hidden, and announced as in flight. These end in this order.
pub(super) struct Source<'e, 'm> {
    isolation: Isolation<'e, 'm>,
    /// The pageblocks before and behind those, each while a block lies in part in the source.
    edges: [Option<Isolation<'e, 'm>>; 2],
    _hidden: InFlightGuard<'e>,
    _moving: InFlightGuard<'e>,
    /// Frames to be emptied.
    range: FrameRange,
}

impl Source<'_, '_> {
    /// The pageblocks that a block has before and behind those of the source.
    fn outside(&self, first: Pfn, order: Order) -> [Range<u32>; 2] {
        let own = self.isolation.pageblocks();
        let block = FrameRange::new(first, order.frames()).pageblocks();
        [block.start..block.end.min(own.start), block.start.max(own.end)..block.end]
    }

    /// Whether all of a block is isolated that lies in the source at least in part.
    fn encloses(&self, first: Pfn, order: Order) -> bool {
        let outside = self.outside(first, order).into_iter().zip(&self.edges);
        outside.into_iter().all(|(outside, edge)| {
            outside.is_empty() || edge.as_ref().is_some_and(|edge| edge.pageblocks() == outside)
        })
    }

    /// Encloses a block like [`encloses`](Self::encloses), and isolates the pageblocks outside.
    fn enclose(&mut self, first: Pfn, order: Order) -> bool {
        let outside = self.outside(first, order);
        for (outside, edge) in outside.into_iter().zip(&mut self.edges) {
            if !outside.is_empty() && edge.is_none() {
                *edge = self.isolation.beside(outside);
            }
        }
        self.encloses(first, order)
    }

    /// Ends the isolation of the edges that a moved block has left.
    fn leave(&mut self, first: Pfn, order: Order) {
        for (outside, edge) in self.outside(first, order).iter().zip(&mut self.edges) {
            if !outside.is_empty() {
                *edge = None;
            }
        }
    }
}

/// The frames that are left in a source.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum SourceRest {
    /// All of the source is free.
    Nothing,
    /// Blocks that stay where they are, or frames on their way.
    Blocks,
    /// Blocks for which there is no room elsewhere.
    Unplaced,
    /// Anything: the compaction has to end.
    Ended(CompactEnd),
}

/// The mover's answers about a source's held frames.
enum Survey {
    AllFree,
    Movable,
    Pinned,
    Unknown,
}

/// One compaction of a zone, on its way from source to source.
pub(super) struct Evacuator<'e, 'm, C: Cpus> {
    pub zone: ZoneAccess<'e, 'm, C>,
    mover: &'e dyn Mover,
    rules: Compaction,
    /// `None`: wherever a search for movable blocks leads.
    destinations: Option<Destinations>,
    /// Free frames of partly used pageblocks, those of the sources to come included.
    pub room_pages: u64,
    /// The reason why the last source was not isolated, if that ends the compaction. None: another
    /// caller has isolated it, or a block of it is pinned.
    pub refusal: Option<CompactEnd>,
    pub done: CompactResult,
}

impl<'e, 'm, C: Cpus> Evacuator<'e, 'm, C> {
    pub fn new(zone: ZoneAccess<'e, 'm, C>, mover: &'e dyn Mover, rules: Compaction) -> Self {
        Evacuator {
            zone,
            mover,
            rules,
            destinations: None,
            room_pages: 0,
            refusal: None,
            done: CompactResult::default(),
        }
    }

    /// Whole pageblocks of the zone.
    pub fn whole_pageblocks(&self) -> u64 {
        survey::usages(self.zone).filter(|usage| usage.is_whole()).count() as u64
    }

    /// Frames of a range that are not free.
    pub fn held_in(&self, range: FrameRange) -> u64 {
        let (mut held, mut count) = (HeldFrames::of(range), 0);
        while let Some(frame) = held.next(self.zone) {
            held.pass(frame, Order::BASE);
            count += 1;
        }
        count
    }

    /// Whether one more source may be looked at, which is counted then.
    pub fn may_look(&mut self) -> bool {
        let may =
            self.done.looks < self.rules.looks_max && self.done.moved_blocks < self.rules.moves_max;
        self.done.looks += u64::from(may);
        self.refusal = (!may).then_some(CompactEnd::Budget);
        may
    }

    /// Whether denser pageblocks have room for what a source holds, as of the last walk. The room
    /// is reserved then.
    pub fn has_room(&mut self, key: Key) -> bool {
        // Sources that follow have higher keys, so its own room is none for them in any case.
        let usage = self.zone.usage(PageblockIndex(key.first));
        let own = usage
            .map_or(0, |usage| survey::room(PageblockUse { held: key.held() as u32, ..usage }));
        let left = self.room_pages.checked_sub(u64::from(own) + key.held());
        self.room_pages = left.unwrap_or(self.room_pages);
        self.refusal = left.is_none().then_some(CompactEnd::NothingLeft);
        left.is_some()
    }

    /// Gives up the room that was reserved for a source that is not emptied.
    pub fn spare_room(&mut self, key: Key) {
        self.room_pages += key.held();
    }

    /// Isolates a source, unless the mover says that a block is pinned; or does not know one of a
    /// pageblock that serves unmovable requests.
    pub fn isolate(&mut self, range: FrameRange, key: Key) -> Option<Source<'e, 'm>> {
        let is_held = key.held() > 0;
        match if is_held { self.survey(range, |_, _| true) } else { Survey::AllFree } {
            Survey::Pinned => self.done.pinned_blocks += 1,
            Survey::Unknown if self.is_by_pageblock() && key.is_unmovable() => {
                self.done.unknown_frames += 1;
            }
            _ => return self.isolate_unasked(range, key.held()),
        }
        None
    }

    /// Whether a range that was not isolated, because memory is low, is free all the same: then it
    /// need not be. What another caller has isolated is that caller's to empty or remove.
    pub fn is_free(&mut self, range: FrameRange) -> bool {
        let is_isolated = |at| self.zone.state(PageblockIndex(at)) == PageblockState::Isolated;
        let is_free = self.refusal == Some(CompactEnd::LowMemory)
            && self.held_in(range) == 0
            && !range.pageblocks().any(is_isolated);
        self.refusal = self.refusal.filter(|_| !is_free);
        is_free
    }

    /// Isolates a range like [`isolate`](Self::isolate), whatever the mover says.
    fn isolate_unasked(&mut self, range: FrameRange, held: u64) -> Option<Source<'e, 'm>> {
        // Its free frames are hidden, and as many as it holds are needed elsewhere.
        let hidden = self.zone.hide(self.free_around(range) + held);
        if !self.zone.has_spare(0) {
            self.refusal = Some(CompactEnd::LowMemory);
            return None;
        }
        let moving = self.zone.announce(range.frames.into());
        let isolation = self.zone.isolate(range).ok()?;
        let edges = [const { None }; 2];
        Some(Source { isolation, edges, _hidden: hidden, _moving: moving, range })
    }

    /// Free frames of the pageblocks that a range touches.
    fn free_around(&self, range: FrameRange) -> u64 {
        let around = range.pageblocks().map(PageblockIndex);
        around.map(|pageblock| u64::from(self.zone.count_free(pageblock))).sum()
    }

    /// Takes back what CPUs cache: what is in a source only after that was isolated.
    pub fn drain(&self) {
        self.zone.drain(self.rules.drain);
    }

    /// Moves all blocks out of a source, to pageblocks whose keys are above `floor`: to denser ones
    /// than a single pageblock with that key.
    pub fn empty(&mut self, source: &mut Source<'e, 'm>, floor: Option<Key>) -> SourceRest {
        self.destinations = Some(Destinations::above(floor));
        for round in 0..ROUNDS {
            if round > 0 {
                (0..ROUND_SPINS).for_each(|_| spin_hint());
            }
            match self.survey(source.range, |first, order| source.enclose(first, order)) {
                Survey::AllFree => return SourceRest::Nothing,
                Survey::Pinned => {
                    self.done.pinned_blocks += 1;
                    return SourceRest::Blocks;
                }
                Survey::Unknown if round + 1 == ROUNDS => {
                    self.done.unknown_frames += 1;
                    return SourceRest::Blocks;
                }
                Survey::Unknown => self.drain(),
                Survey::Movable => {
                    let left = self.move_out(source, false);
                    if left != SourceRest::Nothing {
                        return left;
                    }
                }
            }
        }
        if self.held_in(source.range) == 0 { SourceRest::Nothing } else { SourceRest::Blocks }
    }

    /// Moves what can be moved out of a pageblock, and leaves the rest. If half of it is free then,
    /// and a block of `order`, it serves `mobility` from now on; see [`confine`](super::confine).
    /// Returns what was left of what can be moved; `None`: it does not serve `mobility`. Nothing
    /// moves where that can be seen before.
    ///
    /// One pass, without a drain: what others cache, allocate or free meanwhile stays.
    pub fn thin(
        &mut self,
        pageblock: PageblockIndex,
        mobility: Mobility,
        order: Order,
    ) -> Option<SourceRest> {
        let range = FrameRange::new(pageblock.first(), PAGEBLOCK_FRAMES);
        let is_akin = self.zone.usage(pageblock)?.mobility.is_akin(mobility);
        if !is_akin && !self.may_be_thin(range, order) {
            return None;
        }
        let held = u64::from(PAGEBLOCK_FRAMES) - self.free_around(range);
        let mut source = self.isolate_unasked(range, held)?;
        self.destinations = None;
        let left = self.move_out(&mut source, true);
        let free = self.free_around(range);
        if let SourceRest::Ended(end) = left {
            self.refusal = Some(end);
        }
        let before = source.isolation.mobility(pageblock);
        let is_akin = before.is_some_and(|before| before.is_akin(mobility));
        let has_room = free >= THIN_FREE && self.has_block(range, order);
        let is_thin = is_akin || has_room;
        if is_thin && !is_akin {
            self.zone.reassign(pageblock, Flags::new(mobility));
        }
        if is_thin && left == SourceRest::Nothing {
            self.zone.note_unmixed(pageblock);
        }
        is_thin.then_some(left)
    }

    /// Whether half of a pageblock, and a block of an order, may be free once all has left it that
    /// the mover could move.
    fn may_be_thin(&self, pageblock: FrameRange, order: Order) -> bool {
        let block = u64::from(order.frames());
        let mut held = HeldFrames::of(pageblock);
        // The first block of the order behind all frames that stay so far.
        let (mut begin, mut staying, mut has_block) = (held.next, 0, false);
        while let Some(frame) = held.next(self.zone) {
            if let Ok((first, order)) = self.movable_at(frame) {
                held.pass(first, order);
                continue;
            }
            let at = u64::from(frame.get());
            has_block |= at >= begin + block;
            begin = (at + 1).next_multiple_of(block);
            staying += 1;
            held.pass(frame, Order::BASE);
        }
        has_block |= pageblock.end() >= begin + block;
        has_block && u64::from(PAGEBLOCK_FRAMES) - staying >= THIN_FREE
    }

    /// Whether a block of an order is free in a pageblock.
    fn has_block(&self, pageblock: FrameRange, order: Order) -> bool {
        let starts = (0..pageblock.frames).step_by(order.frames() as usize);
        let mut blocks = starts.map(|at| FrameRange::new(pageblock.start.add(at), order.frames()));
        blocks.any(|block| self.held_in(block) == 0)
    }

    /// Whether what was left behind ends the compaction; tells the mover how far it is.
    pub fn end_after(&mut self, left: SourceRest) -> Option<CompactEnd> {
        match left {
            SourceRest::Ended(end) => Some(end),
            // Sources that follow hold more, and have fewer denser ones.
            SourceRest::Unplaced if self.is_by_pageblock() => Some(CompactEnd::NothingLeft),
            _ if self.mover.progress(&self.done).is_break() => Some(CompactEnd::Stopped),
            _ => None,
        }
    }

    fn is_by_pageblock(&self) -> bool {
        matches!(self.rules.target, Target::Pageblocks(_))
    }

    /// The block around a frame that the mover could move, if what it says can be so: it has no
    /// free frame.
    fn movable_at(&self, frame: Pfn) -> Result<(Pfn, Order), Survey> {
        match self.mover.occupant(frame) {
            Occupant::Pinned => Err(Survey::Pinned),
            Occupant::Unknown => Err(Survey::Unknown),
            Occupant::Movable { first, order } => {
                let has_it = frame.get().wrapping_sub(first.get()) < order.frames();
                let range = FrameRange::new(first, order.frames());
                let is_block = has_it && first.is_aligned(order) && self.zone.has(range);
                // Moving a whole pageblock gains none.
                let is_gain = order < Order::PAGEBLOCK || !self.is_by_pageblock();
                match is_block && is_gain {
                    true if self.zone.are_held(range) => Ok((first, order)),
                    true => Err(Survey::Unknown),
                    false => Err(Survey::Pinned),
                }
            }
        }
    }

    /// Asks the mover about each held frame of a range, and `enclose` whether all of its block can
    /// be isolated.
    fn survey(&self, range: FrameRange, mut enclose: impl FnMut(Pfn, Order) -> bool) -> Survey {
        let mut found = Survey::AllFree;
        let mut held = HeldFrames::of(range);
        while let Some(frame) = held.next(self.zone) {
            match self.movable_at(frame) {
                Ok((first, order)) if !enclose(first, order) => return Survey::Pinned,
                Ok((first, order)) => {
                    found = Survey::Movable;
                    held.pass(first, order);
                }
                // It may have been freed between the two looks.
                Err(_) if self.zone.is_free(frame) => held.pass(frame, Order::BASE),
                Err(why) => return why,
            }
        }
        found
    }

    /// One pass over a source in which all held blocks were movable; or over one that `is_thinned`,
    /// which goes on when the mover has left blocks where they were, while half may become free.
    fn move_out(&mut self, source: &mut Source<'e, 'm>, is_thinned: bool) -> SourceRest {
        let mut held = HeldFrames::of(source.range);
        // Frames that the mover has refused to move, and batches in a row of which it moved none.
        let (mut refused, mut in_vain) = (0, 0);
        // The least order of the blocks that were passed because there is no room elsewhere.
        let mut unplaced = None::<Order>;
        loop {
            let mut batch = Batch::new(self.zone);
            let mut left = SourceRest::Nothing;
            while !batch.is_full() {
                let Some(frame) = held.next(self.zone) else { break };
                let movable = self.movable_at(frame).ok();
                let isolated = movable.filter(|&(first, order)| source.encloses(first, order));
                let Some((first, order)) = isolated else {
                    // Freed, or changed hands: the next survey asks again.
                    held.pass(frame, Order::BASE);
                    continue;
                };
                if self.done.moved_blocks + batch.length as u64 >= self.rules.moves_max {
                    left = SourceRest::Ended(CompactEnd::Budget);
                    break;
                }
                // What was moved so far may have been all: only what is left ends the compaction.
                if batch.length == 0 && !self.zone.has_spare(0) {
                    left = SourceRest::Ended(CompactEnd::LowMemory);
                    break;
                }
                let may_fit = unplaced.is_none_or(|unplaced| order < unplaced);
                let Some(to) = may_fit.then(|| self.destination(order)).flatten() else {
                    self.done.unplaced_blocks += 1;
                    if is_thinned && order > Order::BASE {
                        unplaced = Some(unplaced.map_or(order, |least| least.min(order)));
                        held.pass(first, order);
                        continue;
                    }
                    // For larger blocks there may be room for those of other sources.
                    left = if order == Order::BASE {
                        SourceRest::Unplaced
                    } else {
                        SourceRest::Blocks
                    };
                    break;
                };
                batch.push(first, to, order);
                held.pass(first, order);
            }
            let is_last = batch.length == 0 || left != SourceRest::Nothing;
            if batch.length > 0 {
                self.mover.move_blocks(batch.moves());
                let (moved, pinned) = self.settle(&batch, source);
                refused += pinned;
                in_vain = if moved == 0 && pinned > 0 { in_vain + 1 } else { 0 };
            }
            drop(batch);
            let is_enough = !is_thinned || refused > THIN_FREE || in_vain == IN_VAIN_MAX;
            if is_last || refused > 0 && is_enough {
                return match left {
                    SourceRest::Nothing if refused > 0 || unplaced.is_some() => SourceRest::Blocks,
                    left => left,
                };
            }
        }
    }

    /// Counts what came of a batch of a source's blocks. Returns the frames that were moved, and
    /// those that the mover has refused to move.
    fn settle(&mut self, batch: &Batch<'_, 'm, C>, source: &mut Source<'e, 'm>) -> (u64, u64) {
        let (mut moved, mut pinned) = (0, 0);
        for (named, outcome) in batch.outcomes() {
            let frames = u64::from(named.order.frames());
            match outcome {
                Outcome::Moved => {
                    self.done.moved_blocks += 1;
                    moved += frames;
                    source.leave(named.from, named.order);
                }
                Outcome::Gone => self.done.gone_blocks += 1,
                Outcome::Pinned | Outcome::Undecided => {
                    self.done.pinned_blocks += 1;
                    pinned += frames;
                }
            }
        }
        self.done.moved_pages += moved;
        (moved, pinned)
    }

    /// A free block to move to: from the densest pageblock that has one, or for a pageblock that is
    /// thinned from any that serves movable requests. Blocks of whole pageblocks go wherever a
    /// search finds room, which partly used ones do not have.
    fn destination(&mut self, order: Order) -> Option<Pfn> {
        let (zone, is_by_pageblock) = (self.zone, self.is_by_pageblock());
        match &mut self.destinations {
            None => zone.take(order, true),
            Some(_) if order >= Order::PAGEBLOCK => zone.take(order, false),
            Some(destinations) => match destinations.take(zone, order) {
                // Windows that are whole already come first, so none of those elsewhere would do.
                None if !is_by_pageblock => zone.take(order, false),
                found => found,
            },
        }
    }
}

/// The frames of a range that are not free, ascending.
struct HeldFrames {
    next: u64,
    end: u64,
}

impl HeldFrames {
    fn of(range: FrameRange) -> Self {
        HeldFrames { next: u64::from(range.start.get()), end: range.end() }
    }

    /// The next one; the same again until it is [passed](Self::pass).
    fn next<C: Cpus>(&mut self, zone: ZoneAccess<'_, '_, C>) -> Option<Pfn> {
        while self.next < self.end {
            let frame = Pfn::new(self.next as u32);
            if !zone.is_free(frame) {
                return Some(frame);
            }
            self.next += 1;
        }
        None
    }

    /// Goes on behind a block.
    fn pass(&mut self, first: Pfn, order: Order) {
        self.next = self.next.max(u64::from(first.get()) + u64::from(order.frames()));
    }
}

/// A block that was named for a move, and the one that was allocated for it.
#[derive(Clone, Copy)]
struct MovePair {
    from: Pfn,
    to: Pfn,
    order: Order,
}

/// Moves that the mover is about to make. What they are when this is dropped is settled.
struct Batch<'b, 'm, C: Cpus> {
    zone: ZoneAccess<'b, 'm, C>,
    /// The mover may change their order, or exchange them for moves of another batch.
    moves: [Move; BATCH],
    named: [MovePair; BATCH],
    length: usize,
}

impl<'b, 'm, C: Cpus> Batch<'b, 'm, C> {
    fn new(zone: ZoneAccess<'b, 'm, C>) -> Self {
        let none = |_| Move::new(Pfn::new(0), Pfn::new(0), Order::BASE);
        let named = [MovePair { from: Pfn::new(0), to: Pfn::new(0), order: Order::BASE }; BATCH];
        Batch { zone, moves: core::array::from_fn(none), named, length: 0 }
    }

    fn is_full(&self) -> bool {
        self.length == BATCH
    }

    fn push(&mut self, from: Pfn, to: Pfn, order: Order) {
        self.moves[self.length] = Move::new(from, to, order);
        self.named[self.length] = MovePair { from, to, order };
        self.length += 1;
    }

    fn moves(&mut self) -> &mut [Move] {
        &mut self.moves[..self.length]
    }

    /// The named moves, each with the mover's outcome. A move that is not here any more was not
    /// made.
    fn outcomes(&self) -> impl Iterator<Item = (MovePair, Outcome)> {
        let moves = &self.moves[..self.length];
        self.named[..self.length].iter().map(move |&named| {
            let said = moves.iter().find(|said| {
                (said.from(), said.to(), said.order()) == (named.from, named.to, named.order)
            });
            (named, said.map_or(Outcome::Undecided, Move::outcome))
        })
    }
}

impl<C: Cpus> Drop for Batch<'_, '_, C> {
    fn drop(&mut self) {
        for (named, outcome) in self.outcomes() {
            let is_moved = match outcome {
                Outcome::Moved => true,
                Outcome::Gone => is_mutant(Mutant::FreesGone),
                Outcome::Pinned | Outcome::Undecided => false,
            };
            if is_moved {
                self.zone.free(named.from, named.order);
            }
            if outcome != Outcome::Moved && !is_mutant(Mutant::KeepsDestination) {
                self.zone.free(named.to, named.order);
            }
        }
    }
}

/// The destinations of moved blocks: the densest pageblocks that have room.
struct Destinations {
    /// Pageblocks by room, the densest first. Numbers of pageblocks are inverted.
    ranked: KeyRanking,
    /// Keys of pageblocks that may be used are above it.
    floor: Option<Key>,
    /// Walks over all pageblocks found no block of this order, or higher.
    no_order: u8,
}

impl Destinations {
    /// Makes the destinations whose keys are above this one.
    fn above(floor: Option<Key>) -> Self {
        Destinations { ranked: KeyRanking::after(None), floor, no_order: u8::MAX }
    }

    fn take<C: Cpus>(&mut self, zone: ZoneAccess<'_, '_, C>, order: Order) -> Option<Pfn> {
        if order.get() >= u32::from(self.no_order) {
            return None;
        }
        if let Some(found) = self.take_ranked(zone, order) {
            return Some(found);
        }
        self.ranked = KeyRanking::after(None);
        for usage in Self::candidates(self.floor, zone, order) {
            // The other way round: the densest first, and of equals the last, which is the last to
            // be emptied itself.
            let cost = u64::from(survey::room(usage));
            self.ranked.add(Key { cost, first: !usage.pageblock.0 });
        }
        let are_all_ranked = !self.ranked.is_full();
        let mut found = self.take_ranked(zone, order);
        if found.is_none() && !are_all_ranked {
            // The densest have room in small pieces alone. This walk takes from the first of all
            // that has a block of this order, so that a block costs two walks at most.
            found = Self::candidates(self.floor, zone, order)
                .find_map(|usage| zone.take_from(usage.pageblock, order));
        }
        if found.is_none() {
            self.no_order = order.get() as u8;
        }
        found
    }

    /// Takes a block from the densest ranked pageblock that has one, and drops those before it.
    fn take_ranked<C: Cpus>(&mut self, zone: ZoneAccess<'_, '_, C>, order: Order) -> Option<Pfn> {
        while let Some(&key) = self.ranked.keys().first() {
            let found = zone.take_from(PageblockIndex(!key.first), order);
            if found.is_some() {
                return found;
            }
            self.ranked.pop_first();
        }
        None
    }

    /// Pageblocks above the floor that may have a block of an order. O(zone).
    fn candidates<C: Cpus>(
        floor: Option<Key>,
        zone: ZoneAccess<'_, '_, C>,
        order: Order,
    ) -> impl Iterator<Item = PageblockUse> {
        survey::usages(zone).filter(move |&usage| {
            floor.is_none_or(|floor| survey::key(usage) > floor)
                && survey::room(usage) >= order.frames()
                && zone.may_have(usage.pageblock, order)
        })
    }
}
