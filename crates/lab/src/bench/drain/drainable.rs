//! Designs whose caches another CPU can take back.

use pagedepot::{CpuId, Mode};

use crate::design::depot::DepotSubject;
use crate::design::floor_spin::FloorSpin;
use crate::design::{Demand, Design, Subject};
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

    /// Takes back what `cpu` caches; pages taken, if the design tells.
    fn drain(&self, cpu: CpuId, reach: Reach) -> Option<u64>;
}

/// What to do with one, whichever type it has.
pub trait WithDrainable {
    /// What comes of it.
    type Output;

    /// Does it.
    fn with<S: Drainable + 'static>(self, subject: S) -> Self::Output;
}

/// Designs with a drain.
pub const DESIGNS: [Design; 3] = [Design::Depot, Design::FloorSpin, Design::FrameAlloc];

/// Makes the subject for `design`, and does `with` it what there is to do.
///
/// # Errors
/// When the design cannot run here, or its memory cannot be had.
pub fn make<W: WithDrainable>(design: Design, demand: &Demand, with: W) -> Result<W::Output, Failure> {
    match design {
        Design::Depot => Ok(with.with(DepotSubject::new(demand)?)),
        Design::FloorSpin => Ok(with.with(FloorSpin::new(demand))),
        #[cfg(feature = "peers")]
        Design::FrameAlloc => Ok(with.with(crate::design::frame_alloc::FrameAlloc::new(demand)?)),
        other => Err(Failure::Usage(format!("design {other} has no drain"))),
    }
}

impl Drainable for DepotSubject {
    const REACHES: &'static [Reach] = &[Reach::Quiet, Reach::Full];

    #[inline]
    fn drain(&self, cpu: CpuId, reach: Reach) -> Option<u64> {
        let mode = if reach == Reach::Full { Mode::Full } else { Mode::Quiet };
        Some(DepotSubject::drain(self, cpu, mode))
    }
}

impl Drainable for FloorSpin {
    const REACHES: &'static [Reach] = &[Reach::Quiet];

    fn drain(&self, cpu: CpuId, _reach: Reach) -> Option<u64> {
        Some(self.take(cpu))
    }
}

#[cfg(feature = "peers")]
impl Drainable for crate::design::frame_alloc::FrameAlloc {
    const REACHES: &'static [Reach] = &[Reach::Quiet];

    fn drain(&self, _cpu: CpuId, _reach: Reach) -> Option<u64> {
        self.flush();
        None
    }
}
