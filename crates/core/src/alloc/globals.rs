//! The state of an allocator that changes, and belongs to no zone and no CPU.

use super::relief::ReliefSlot;
use crate::pcp::{CarvedFrames, PcpsState};
use crate::reclaim::LastResort;
use crate::store::MisuseNote;
use crate::store::device::Reports;
use crate::store::tags::Evacuations;
use crate::sync::prim::AtomicU64;

/// The state that changes, rarely, and belongs to no zone and no CPU. In the metadata rather than
/// in [`Allocator`], which so never changes: a loop that borrows one may keep its fields in
/// registers over all its calls.
pub(crate) struct Globals<'m, C> {
    pub pcps: PcpsState<'m>,
    pub last_resort: LastResort<'m>,
    /// Claims of the store that were rolled back.
    pub failed_claims: AtomicU64,
    pub noted: MisuseNote,
    pub relief: ReliefSlot<'m, C>,
    pub evacuations: Evacuations,
    pub reports: Reports<'m>,
}

impl<'m, C> Globals<'m, C> {
    pub fn new(carved: CarvedFrames<'m>) -> Self {
        Globals {
            pcps: PcpsState::new(carved),
            last_resort: LastResort::new(),
            failed_claims: AtomicU64::new(0),
            noted: MisuseNote::new(),
            relief: ReliefSlot::new(),
            evacuations: Evacuations::new(),
            reports: Reports::new(),
        }
    }
}
