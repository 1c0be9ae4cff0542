//! The state that all threads of a storm share besides the allocator.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use pagedepot::{FrameRange, Order, Pfn};

use crate::arena::Arena;
use crate::common::marks::Marks;
use crate::common::meetings::{LastUses, Meetings, Set};
use crate::common::range;
use crate::common::usage::Usage;
use crate::feature::{Deed, Feature};

pub const SECTION: u32 = 1 << 18;
pub const PAGEBLOCK: u32 = 512;
/// The first frame of all.
pub const FIRST: u32 = SECTION - 24 * PAGEBLOCK;
/// Frames from the first one on that have marks.
pub const FRAMES: u32 = 24 * PAGEBLOCK + SECTION + 8 * PAGEBLOCK;

pub const LOW: [FrameRange; 1] = [range(FIRST, 4 * PAGEBLOCK)];
/// Begins at an odd pageblock, and has the last one of a section and the first one of the next.
pub const NORMAL: [FrameRange; 2] =
    [range(SECTION - 15 * PAGEBLOCK, 32 * PAGEBLOCK), range(SECTION + 18 * PAGEBLOCK + 100, 700)];
pub const REMOTE: [FrameRange; 1] = [range(SECTION + 24 * PAGEBLOCK, 24 * PAGEBLOCK)];
/// Memory in a section of its own, which is added during the run.
pub const LATE: FrameRange = range(2 * SECTION + 100, 3000);

/// The holder of pageblocks that were removed, of those that a device looks at.
pub const REMOVER: u32 = 1000;
pub const DEVICE: u32 = 1001;

/// A stretch of frames that came by one call, or a part of it.
#[derive(Clone, Copy)]
pub struct Stretch {
    pub start: Pfn,
    pub frames: u32,
    /// `None`: a contiguous range.
    pub order: Option<Order>,
    pub owner: u32,
    /// Identifies the contents, which a part keeps: a number, and how many frames come before it.
    pub serial: u32,
    pub offset: u32,
    /// The features that brought it here.
    pub via: Set,
}

impl Stretch {
    fn value(&self, frame: u32) -> u64 {
        u64::from(self.serial) << 32 | u64::from(self.offset + frame)
    }

    pub fn contains(&self, pfn: Pfn) -> bool {
        pfn.get().wrapping_sub(self.start.get()) < self.frames
    }
}

/// The requests of the workers at present.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// All kinds.
    Wild,
    /// Single frames, so that pageblocks evacuate.
    Calm,
    /// Half of them are for more unmovable blocks than pageblocks without movable ones have room
    /// for.
    Surge,
}

/// A block that compaction may move, while it is held.
#[derive(Default)]
pub struct Slot {
    pub block: Option<Stretch>,
    pub pins: u32,
}

pub struct World<'w> {
    pub marks: Marks,
    pub arena: &'w Arena,
    pub meetings: Meetings,
    pub stop: AtomicBool,
    last: LastUses,
    /// Slot of the movable block that holds a frame, and 1, by frame; 0: none.
    slot_at: Vec<AtomicU32>,
    slots: Vec<Mutex<Slot>>,
    spare_slots: Mutex<Vec<u32>>,
    serials: AtomicU32,
    pub usage: Usage,
    phase: AtomicU32,
    deeds: [AtomicU64; Deed::ALL.len()],
    /// Moves, by order.
    pub moved: [AtomicU64; 11],
}

impl<'w> World<'w> {
    pub fn new(arena: &'w Arena, managed: u32) -> Self {
        const SLOTS: u32 = 8192;
        World {
            marks: Marks::new(FIRST, FRAMES),
            arena,
            meetings: Meetings::new(),
            stop: AtomicBool::new(false),
            last: LastUses::new(FIRST, FRAMES),
            slot_at: (0..FRAMES).map(|_| AtomicU32::new(0)).collect(),
            slots: (0..SLOTS).map(|_| Mutex::default()).collect(),
            spare_slots: Mutex::new((0..SLOTS).collect()),
            serials: AtomicU32::new(1),
            usage: Usage::new(managed),
            phase: AtomicU32::new(Phase::Wild as u32),
            deeds: [const { AtomicU64::new(0) }; Deed::ALL.len()],
            moved: [const { AtomicU64::new(0) }; 11],
        }
    }

    pub fn is_over(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Frames were allocated: marks them, and writes their contents.
    pub fn take(
        &self,
        start: Pfn,
        frames: u32,
        order: Option<Order>,
        owner: u32,
        via: Set,
    ) -> Stretch {
        let serial = self.serials.fetch_add(1, Ordering::Relaxed);
        let stretch = Stretch { start, frames, order, owner, serial, offset: 0, via };
        self.marks.take(start, frames, owner);
        if via.0 & Set::from(Feature::Zeroed).0 != 0 {
            for frame in 0..frames {
                let all = frame == 0 || frame + 1 == frames;
                self.arena.check_zeroes(start.add(frame), all);
            }
        }
        (0..frames).for_each(|at| self.arena.write(start.add(at), stretch.value(at)));
        self.note_via(start, frames, via);
        stretch
    }

    /// The features of a use have met those of the last one of the same frames.
    pub fn note_via(&self, start: Pfn, frames: u32, via: Set) {
        self.last.note(&self.meetings, start.get(), frames, via);
    }

    /// Frames are about to be freed: checks their contents, and removes the marks.
    pub fn give_back(&self, stretch: &Stretch) {
        let frames = stretch.frames;
        (0..frames).for_each(|at| self.arena.check(stretch.start.add(at), stretch.value(at)));
        self.marks.give_back(stretch.start, frames, stretch.owner);
    }

    /// Lets compaction move a block from now on; `None`: there is no slot left.
    pub fn enter(&self, block: Stretch) -> Option<u32> {
        let id = lock(&self.spare_slots).pop()?;
        let mut slot = self.slot(id);
        assert!(slot.block.is_none() && slot.pins == 0);
        slot.block = Some(block);
        self.point(&block, id + 1);
        Some(id)
    }

    /// The block of a slot, which compaction moves no more.
    pub fn leave(&self, id: u32) -> Stretch {
        let mut slot = self.slot(id);
        assert_eq!(slot.pins, 0);
        let block = slot.block.take().unwrap();
        self.point(&block, 0);
        drop(slot);
        lock(&self.spare_slots).push(id);
        block
    }

    pub fn slot(&self, id: u32) -> MutexGuard<'_, Slot> {
        lock(&self.slots[id as usize])
    }

    /// The slot of a frame, if a movable block may hold it. Look again under its lock.
    pub fn slot_of(&self, pfn: Pfn) -> Option<MutexGuard<'_, Slot>> {
        let id = self.slot_at.get(pfn.get().wrapping_sub(FIRST) as usize)?;
        // Relaxed: a hint.
        Some(self.slot(id.load(Ordering::Relaxed).checked_sub(1)?))
    }

    fn point(&self, block: &Stretch, to: u32) {
        let at = (block.start.get() - FIRST) as usize;
        let places = &self.slot_at[at..][..block.frames as usize];
        places.iter().for_each(|place| place.store(to, Ordering::Relaxed));
    }

    pub fn phase(&self) -> Phase {
        let phase = self.phase.load(Ordering::Relaxed);
        [Phase::Wild, Phase::Calm, Phase::Surge][phase as usize]
    }

    pub fn set_phase(&self, phase: Phase) {
        self.phase.store(phase as u32, Ordering::Relaxed);
    }

    pub fn note(&self, deed: Deed) {
        self.deeds[deed as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// The number of times that this was done.
    pub fn times(&self, deed: Deed) -> u64 {
        self.deeds[deed as usize].load(Ordering::Relaxed)
    }

    /// Moves the block of a slot to frames that were allocated for it, by what `via` names.
    pub fn relocate(&self, slot: &mut Slot, to: Pfn, via: Set) {
        let block = slot.block.as_mut().unwrap();
        let order = block.order.unwrap();
        let id = self.slot_at[(block.start.get() - FIRST) as usize].load(Ordering::Relaxed);
        self.marks.take(to, block.frames, block.owner);
        (0..block.frames).for_each(|at| self.arena.copy(block.start.add(at), to.add(at)));
        self.point(block, 0);
        self.give_back(block);
        block.start = to;
        block.via = block.via.and(via);
        self.point(block, id);
        self.note_via(to, block.frames, block.via);
        self.moved[order.index()].fetch_add(1, Ordering::Relaxed);
    }
}

/// A storm that fails may leave anything; its threads stop by themselves.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
