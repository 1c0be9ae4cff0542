//! The blocks that the code of all contexts holds; also a mover of them, and a device that they are
//! reported to.

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use pagedepot::{FrameRange, Order, Pfn};
use pagedepot_contiguity::{Move, Mover, Occupant, ReportingDevice};

use crate::source::Source;

pub struct Blocks {
    source: Arc<Source>,
    held: RefCell<Vec<(Pfn, Order)>>,
    frames: Vec<Cell<Frame>>,
    calls: Cell<u64>,
    /// Blocks moved, and pageblocks reported, so far.
    pub moves: Cell<u64>,
    pub reports: Cell<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Frame {
    Free,
    Held,
    /// The device has it.
    Reported,
}

// SAFETY: one thread makes it and uses it.
unsafe impl Sync for Blocks {}

impl Blocks {
    pub fn new(source: Arc<Source>, frames: usize) -> Self {
        let frames = vec![Cell::new(Frame::Free); frames];
        let zero = || Cell::new(0);
        Blocks {
            source,
            held: RefCell::default(),
            frames,
            calls: zero(),
            moves: zero(),
            reports: zero(),
        }
    }

    pub fn len(&self) -> usize {
        self.held.borrow().len()
    }

    pub fn held_pages(&self) -> u64 {
        self.held.borrow().iter().map(|block| u64::from(block.1.frames())).sum()
    }

    fn change(&self, start: Pfn, frames: u32, from: Frame, to: Frame) {
        for frame in &self.frames[start.index()..][..frames as usize] {
            let found = frame.replace(to);
            assert_eq!(found, from, "{start} at depth {}", self.source.depth());
        }
    }

    pub fn hold(&self, pfn: Pfn, order: Order) {
        self.change(pfn, order.frames(), Frame::Free, Frame::Held);
        self.held.borrow_mut().push((pfn, order));
    }

    /// Removes the block that `choose` chooses by a number below theirs, so that handlers no longer
    /// see it.
    pub fn pick(&self, choose: impl FnOnce(u64) -> u64) -> Option<(Pfn, Order)> {
        let mut held = self.held.borrow_mut();
        let length = held.len();
        let (pfn, order) =
            (length > 0).then(|| held.swap_remove(choose(length as u64) as usize))?;
        self.change(pfn, order.frames(), Frame::Held, Frame::Free);
        Some((pfn, order))
    }

    fn is_one_in(&self, n: u64) -> bool {
        self.calls.set(self.calls.get() + 1);
        self.calls.get().is_multiple_of(n)
    }
}

impl Mover for Blocks {
    fn occupant(&self, frame: Pfn) -> Occupant {
        self.source.point();
        let held = self.held.borrow();
        let has_it =
            |(first, order): &&(Pfn, Order)| frame.get().wrapping_sub(first.get()) < order.frames();
        match held.iter().find(has_it) {
            None => Occupant::Unknown,
            Some(_) if self.is_one_in(2000) => Occupant::Pinned,
            Some(&(first, order)) => Occupant::Movable { first, order },
        }
    }

    fn move_blocks(&self, moves: &mut [Move]) {
        for this in moves {
            self.source.point();
            let mut held = self.held.borrow_mut();
            let is_it = |block: &(Pfn, Order)| *block == (this.from(), this.order());
            match held.iter().position(is_it) {
                None => this.gone(),
                Some(_) if self.is_one_in(50) => this.pinned(),
                Some(at) => {
                    let frames = this.order().frames();
                    self.change(this.to(), frames, Frame::Free, Frame::Held);
                    self.change(this.from(), frames, Frame::Held, Frame::Free);
                    held[at].0 = this.to();
                    this.moved();
                    self.moves.set(self.moves.get() + 1);
                }
            }
        }
    }
}

impl ReportingDevice for Blocks {
    fn report(&self, ranges: &[FrameRange]) -> bool {
        self.source.point();
        if self.is_one_in(8) {
            return false;
        }
        ranges.iter().for_each(|range| {
            self.change(range.start, range.frames, Frame::Free, Frame::Reported);
            self.reports.set(self.reports.get() + 1);
        });
        true
    }

    fn needed(&self, pageblock: FrameRange) -> bool {
        self.source.point();
        if self.is_one_in(8) {
            return false;
        }
        self.change(pageblock.start, pageblock.frames, Frame::Reported, Frame::Free);
        true
    }
}
