//! The designs that a command is built with, and the one dispatch from a design's name to its type.

use std::fmt::Debug;

use pagedepot_designs::{Bitmap, Buddy, Spin, ZoneLock};
use pagedepot_rseq::RseqMissing;
use pagedepot_rseq::membarrier::FenceMissing;

use super::allocator::Allocator;
use super::demand::Demand;
use super::depot::DepotAllocator;
use super::floor_rseq::FloorRseq;
use super::floor_spin::FloorSpin;
use super::floor_tls::FloorTls;
use super::page_cache::ProposalAllocator;
use super::variant::Store;
use crate::failure::Failure;
use crate::names::{self, Design};

/// The designs of a command: this one's, or those and the lab's.
pub trait Lineup: Debug + Sync {
    /// The command that has `design`, where this one was built without it.
    fn elsewhere(&self, design: Design) -> Option<&'static str>;

    /// The reason why `design` cannot run here, with a remedy.
    fn unavailable(&self, design: Design) -> Option<String> {
        if let Some(command) = self.elsewhere(design) {
            return Some(format!("design {design} is not compiled in: `{command} ...` has it"));
        }
        lacks_sequences(design)
    }

    /// The names of those of these designs that this command has, separated by commas.
    fn list(&self, designs: &[Design]) -> String {
        let is_here = |design: &Design| self.elsewhere(*design).is_none();
        names::list(&designs.iter().copied().filter(is_here).collect::<Vec<_>>())
    }

    /// Makes the allocator of a design that hands out blocks, and hands it on.
    ///
    /// # Errors
    /// When the design cannot run here, is of another kind, or cannot be made.
    fn with_allocator<U: AllocatorUser>(
        &self,
        design: Design,
        demand: &Demand,
        user: U,
    ) -> Result<U::Output, Failure>
    where
        Self: Sized;
}

/// The code that is compiled for each design, and gets its allocator.
pub trait AllocatorUser {
    /// The result of the use.
    type Output;

    /// Uses the allocator.
    fn with<A: Allocator>(self, allocator: A) -> Self::Output;
}

/// The designs of this command: the depot, Linux's lists, a plain buddy allocator, and the bounds.
#[derive(Clone, Copy, Debug, Default)]
pub struct Product;

impl Lineup for Product {
    fn elsewhere(&self, design: Design) -> Option<&'static str> {
        (!Design::OF_PRODUCT.contains(&design))
            .then_some("cargo run --release --manifest-path lab/Cargo.toml --")
    }

    fn with_allocator<U: AllocatorUser>(
        &self,
        design: Design,
        demand: &Demand,
        user: U,
    ) -> Result<U::Output, Failure> {
        possible(self, design, demand)?;
        Ok(match (design, demand.variant.store_of(design)) {
            (Design::FloorTls, _) => user.with(FloorTls::new(demand)?),
            (Design::FloorRseq, _) => user.with(FloorRseq::new(demand)?),
            (Design::FloorSpin, _) => user.with(FloorSpin::new(demand)?),
            (Design::Depot, _) => user.with(<DepotAllocator>::new(demand)?),
            (Design::ZoneLock, _) => {
                user.with(ProposalAllocator::<ZoneLock<Buddy>, Self>::new(demand)?)
            }
            (Design::Spin, Store::Buddy) => {
                user.with(ProposalAllocator::<Spin<Buddy>, Self>::new(demand)?)
            }
            (Design::Spin, Store::Bitmap) => {
                user.with(ProposalAllocator::<Spin<Bitmap>, Self>::new(demand)?)
            }
            _ => return Err(of_another_kind(design)),
        })
    }
}

/// Whether a design can be made for a demand.
///
/// # Errors
/// Why not, and what to do.
pub fn possible(lineup: &dyn Lineup, design: Design, demand: &Demand) -> Result<(), Failure> {
    match lineup.unavailable(design).or_else(|| demand.variant.refuses(design)) {
        Some(why) => Err(Failure::Usage(why)),
        None => Ok(()),
    }
}

/// The error of a workload that is offered to a design that lacks what it needs.
pub fn of_another_kind(design: Design) -> Failure {
    Failure::Usage(format!("design {design} does not allocate what this workload asks for"))
}

/// The reason why this machine has not the restartable sequences, or the fences of them, that
/// `design` needs.
pub fn lacks_sequences(design: Design) -> Option<String> {
    if Design::WITH_RSEQ.contains(&design)
        && let Some(why) = RseqMissing::find()
    {
        return Some(format!(
            "design {design} needs restartable sequences, but {why}; or leave it out"
        ));
    }
    if Design::WITH_FENCES.contains(&design) {
        return FenceMissing::find().map(|why| {
            format!("design {design} needs to fence sequences, but {why}; or leave it out")
        });
    }
    None
}
