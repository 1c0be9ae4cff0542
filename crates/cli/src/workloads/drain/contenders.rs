//! The contenders of `drain`: each design with each way to drain it.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use pagedepot::{CpuId, Mode};
use pagedepot_rseq::membarrier::FenceMissing;

use super::busy::{self, Busy, Rate};
use super::halted::{self, HaltedSubject, State};
use super::owner::OwnerWork;
use super::stopper::Stopper;
use crate::design::{Allocator, AllocatorUser};
use crate::harness::{Contender, Subject};
use crate::names::Design;

const RATES: [Rate; 5] = [
    Rate::PerSecond(0),
    Rate::PerSecond(100),
    Rate::PerSecond(1_000),
    Rate::PerSecond(10_000),
    Rate::BackToBack,
];

/// The measurement of a contender whose owner works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OfBusy {
    pub design: Design,
    pub work: OwnerWork,
    pub mode: Mode,
    pub rate: Rate,
}

/// The measurement of a contender whose owner does not run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OfHalted {
    pub design: Design,
    pub state: State,
    pub mode: Mode,
}

/// All contenders, each with what it measures.
#[derive(Default)]
pub struct Contenders {
    pub busy: Vec<(OfBusy, Box<dyn Contender<{ busy::METRICS }>>)>,
    pub halted: Vec<(OfHalted, Box<dyn Contender<{ halted::METRICS }>>)>,
    /// The allocators that they share.
    pub allocators: Vec<Box<dyn Subject>>,
}

/// Adds the contenders of a design.
pub struct Add<'a> {
    pub to: &'a mut Contenders,
    pub owner: CpuId,
    pub length: Duration,
    pub stopper: &'static Stopper,
}

impl AllocatorUser for Add<'_> {
    type Output = ();

    /// Makes the contenders of a design.
    fn with<A: Allocator>(mut self, allocator: A) {
        let allocator = Arc::new(allocator);
        for work in [OwnerWork::Pairs, OwnerWork::Bursts] {
            self.busy(&allocator, work, Mode::Quiet, Rate::PerSecond(0));
        }
        // What a full drain cannot reach, it leaves, and so would pass for a cheap one.
        let is_unfenced = FenceMissing::find().is_some();
        for &mode in A::DRAINS.iter().filter(|&&mode| mode != Mode::Full || !is_unfenced) {
            for rate in &RATES[1..] {
                self.busy(&allocator, OwnerWork::Pairs, mode, *rate);
                if mode != Mode::Full {
                    self.busy(&allocator, OwnerWork::Bursts, mode, *rate);
                }
            }
            for state in [State::Idle, State::Stopped] {
                self.halted(&allocator, state, mode);
            }
        }
        self.to.allocators.push(Box::new(allocator));
    }
}

impl Add<'_> {
    /// Makes the contenders of a design that was told that the owner's CPU is isolated.
    pub fn isolating<A: Allocator>(&mut self, allocator: A) {
        let allocator = Arc::new(allocator);
        for &mode in A::DRAINS.iter().filter(|&&mode| mode != Mode::Quiet) {
            self.halted(&allocator, State::Isolated, mode);
        }
        self.to.allocators.push(Box::new(allocator));
    }

    fn busy<A: Allocator>(&mut self, allocator: &Arc<A>, work: OwnerWork, mode: Mode, rate: Rate) {
        let (allocator, owner, length) = (Arc::clone(allocator), self.owner, self.length);
        let (link, held) = (busy::BusyLink::default(), Mutex::default());
        let contender = Busy { allocator, work, rate, mode, length, owner, link, held };
        self.to.busy.push((OfBusy { design: A::DESIGN, work, mode, rate }, Box::new(contender)));
    }

    fn halted<A: Allocator>(&mut self, allocator: &Arc<A>, state: State, mode: Mode) {
        let (allocator, owner, stopper) = (Arc::clone(allocator), self.owner, self.stopper);
        let (link, held) = (halted::HaltedLink::default(), Mutex::default());
        let contender = HaltedSubject { allocator, state, mode, owner, stopper, link, held };
        self.to.halted.push((OfHalted { design: A::DESIGN, state, mode }, Box::new(contender)));
    }
}
