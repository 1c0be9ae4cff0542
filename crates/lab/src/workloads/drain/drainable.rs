//! Designs whose caches another CPU can take back.

use pagedepot::{CpuId, Mode};
use pagedepot_designs::{Counts, Drained};

use crate::design::allocator::{Allocator, WithAllocator};
use crate::design::floor_spin::FloorSpin;
use crate::design::{self, Demand, Design, Subject};
use crate::failure::Failure;

/// How much a drain takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// What can be had without interrupting anybody.
    Quiet,
    /// Everything.
    Full,
}

impl Reach {
    /// The value of the param `full`.
    pub fn as_param(self) -> i64 {
        i64::from(self == Reach::Full)
    }

    /// For tables.
    pub const fn name(self) -> &'static str {
        match self {
            Reach::Quiet => "quiet",
            Reach::Full => "full",
        }
    }
}

/// A design with a drain.
pub trait Drainable: Subject {
    /// The reaches it knows. A design with a lock has one drain, which takes everything and
    /// interrupts nobody; it counts as quiet.
    const REACHES: &'static [Reach];

    /// Takes back what `cpu` caches; what it did, if the design tells.
    fn drain(&self, cpu: CpuId, reach: Reach) -> Option<Drained>;

    /// What the design did so far, if it counts.
    fn counts(&self) -> Option<Counts> {
        None
    }
}

/// What to do with one, whichever type it has.
pub trait WithDrainable {
    /// What comes of it.
    type Output;

    /// Does it.
    fn with<S: Drainable + 'static>(self, subject: S) -> Self::Output;
}

/// Designs with a drain.
pub const DESIGNS: [Design; 9] = [
    Design::Depot,
    Design::FloorSpin,
    Design::ZoneLock,
    Design::Local,
    Design::NohzConditional,
    Design::Spin,
    Design::Rcu,
    Design::Magazine,
    Design::FrameAlloc,
];

/// Makes the subject for `design`, and does `with` it what there is to do.
///
/// # Errors
/// When the design cannot run here, or its memory cannot be had.
pub fn make<W: WithDrainable>(
    design: Design,
    demand: &Demand,
    with: W,
) -> Result<W::Output, Failure> {
    match design {
        Design::FloorSpin => Ok(with.with(FloorSpin::new(demand))),
        #[cfg(feature = "peers")]
        Design::FrameAlloc => Ok(with.with(design::frame_alloc::FrameAlloc::new(demand)?)),
        paged => design::make_allocator(paged, demand, demand.pages(), ToDrainable(with)),
    }
}

struct ToDrainable<W>(W);

impl<W: WithDrainable> WithAllocator for ToDrainable<W> {
    type Output = W::Output;

    fn with<A: Allocator + 'static>(self, allocator: A) -> W::Output {
        self.0.with(allocator)
    }
}

impl<A: Allocator> Drainable for A {
    const REACHES: &'static [Reach] =
        if A::DRAINS_FULLY { &[Reach::Quiet, Reach::Full] } else { &[Reach::Quiet] };

    #[inline]
    fn drain(&self, cpu: CpuId, reach: Reach) -> Option<Drained> {
        let mode = if reach == Reach::Full { Mode::Full } else { Mode::Quiet };
        Some(Allocator::drain(self, Some(cpu), mode))
    }

    fn counts(&self) -> Option<Counts> {
        Some(Allocator::counts(self))
    }
}

impl Drainable for FloorSpin {
    const REACHES: &'static [Reach] = &[Reach::Quiet];

    fn drain(&self, cpu: CpuId, _reach: Reach) -> Option<Drained> {
        let mut drained = Drained::default();
        drained.taken_pages = self.take(cpu);
        Some(drained)
    }
}

#[cfg(feature = "peers")]
impl Drainable for design::frame_alloc::FrameAlloc {
    const REACHES: &'static [Reach] = &[Reach::Quiet];

    fn drain(&self, _cpu: CpuId, _reach: Reach) -> Option<Drained> {
        self.flush();
        None
    }
}
