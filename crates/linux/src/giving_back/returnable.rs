//! Frames whose memory goes back to the system while they are free.

use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::atomic::AtomicBool;

use pagedepot::cpus::Cpus as _;
use pagedepot_rseq::CpuSet;

use crate::giving_back::balloon::Balloon;
use crate::giving_back::trim_state::TrimState;
use crate::memory::frames::MappedFrames;
use crate::memory::region::PAGEBLOCK_PAGES;
use crate::moving::pins::Pins;
use crate::system::fork_mark::ForkMark;
use crate::system::sync::ForkLock;

/// Mapped frames, and the state of giving their memory back: trims, reports and a ceiling, and the
/// pins that these heed.
pub(crate) struct ReturnableFrames {
    // DroppedMemory first: the allocator refers to `trimming`.
    mapped: MappedFrames,
    trimming: Box<TrimState>,
    pins: Box<ForkLock<Pins>>,
    balloon: Box<ForkLock<Balloon>>,
    has_monitor_ceiling: AtomicBool,
    is_pinned: bool,
    has_backing: bool,
}

impl ReturnableFrames {
    /// Frames whose memory is given back, or, with `is_pinned`, never. With `has_backing` their
    /// store is the program's, or a segment. Requests that run short wait for a trim from now on.
    pub fn new(
        mapped: MappedFrames,
        pins: Pins,
        (is_pinned, has_backing): (bool, bool),
        fork_mark: ForkMark<'static>,
    ) -> Self {
        let trimming = Box::<TrimState>::default();
        // SAFETY: boxed, so it stays where it is, and dropped after the allocator.
        let state: &'static TrimState = unsafe { NonNull::from(&*trimming).as_ref() };
        mapped.frames().register_reclaim(state).expect("a new allocator has no callbacks");
        ReturnableFrames {
            mapped,
            trimming,
            pins: Box::new(ForkLock::new(fork_mark, pins)),
            balloon: Box::new(ForkLock::new(fork_mark, Balloon::default())),
            has_monitor_ceiling: AtomicBool::new(false),
            is_pinned,
            has_backing,
        }
    }

    /// The right to trim, and what trims and requests share.
    pub fn trimming(&self) -> &TrimState {
        &self.trimming
    }

    /// The pages that neither trims nor the ceiling take.
    pub fn pins(&self) -> &ForkLock<Pins> {
        &self.pins
    }

    /// The pages that the ceiling keeps from the allocator.
    pub fn balloon(&self) -> &ForkLock<Balloon> {
        &self.balloon
    }

    /// Whether the ceiling in force is a monitor's, or was when a call began that sets one now.
    /// Written under the lock of the balloon, and read by requests that would not wait for it. In a
    /// store that processes share it says nothing.
    pub fn has_monitor_ceiling(&self) -> &AtomicBool {
        &self.has_monitor_ceiling
    }

    /// Bytes of a pageblock (512 pages).
    pub fn pageblock_bytes(&self) -> usize {
        (PAGEBLOCK_PAGES as usize) << self.page_size().shift()
    }

    /// CPUs that nothing is to interrupt.
    pub fn isolated_cpus(&self) -> &CpuSet {
        &self.mapped.frames().cpus().environment().isolated
    }

    /// Whether memory is never given back: [`Builder::pinned`](crate::Builder::pinned).
    pub fn is_pinned(&self) -> bool {
        self.is_pinned
    }

    /// Whether the frames are in a [`Backing`](pagedepot::Backing).
    pub fn has_backing(&self) -> bool {
        self.has_backing
    }
}

impl Deref for ReturnableFrames {
    type Target = MappedFrames;

    #[inline]
    fn deref(&self) -> &MappedFrames {
        &self.mapped
    }
}
