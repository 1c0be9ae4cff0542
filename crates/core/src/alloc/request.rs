//! A request on its way down the watermarks, for the steps that requests of all kinds take before
//! they fail.

use super::flags::Flags;
use crate::frame::{NodeId, Order, Pfn, ZoneId};
use crate::zone::Reserve;

/// A request.
#[derive(Clone, Copy)]
pub(crate) struct Request {
    pub want: Want,
    pub flags: Flags,
    /// The node of its caller.
    pub node: NodeId,
}

/// Frames that satisfy a request.
#[derive(Clone, Copy)]
pub(crate) enum Want {
    Block(Order),
    /// Any run of so many frames, the first a multiple of `align`.
    Run {
        frames: u32,
        align: u32,
    },
    /// Exactly these frames, all of this zone.
    At {
        zone: ZoneId,
        start: Pfn,
        frames: u32,
    },
}

impl Request {
    pub fn pages(self) -> u64 {
        u64::from(match self.want {
            Want::Block(order) => order.frames(),
            Want::Run { frames, .. } | Want::At { frames, .. } => frames,
        })
    }

    /// The lowest reserve that it may use in the end. Frames at a given address have no substitute
    /// elsewhere.
    pub fn reserve(self) -> Reserve {
        match self.want {
            Want::At { .. } => Reserve::All,
            _ if self.flags.is_atomic() => Reserve::All,
            _ => Reserve::AboveMin,
        }
    }
}
