//! Errors of callers and backings.

use core::fmt;

use crate::frame::Pfn;

/// The treatment of a caller that frees what it does not hold, found after the fact.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Misuse {
    /// Frames that came back to the store were free there already: a block was freed twice, or
    /// with a wrong order. They stay free once. Told by the call that brought them there, or by
    /// another that ends at the same moment, as the last thing it does.
    DoubleFree {
        /// The first of them that was met.
        first: Pfn,
        /// Number of frames.
        frames: u32,
    },
    /// A [`Backing`](crate::Backing) handed out frames that are misaligned or not of the zone asked
    /// for, against its contract. They are not handed on; what else came with them is.
    Backing {
        /// The first of them, as the backing named it.
        first: Pfn,
        /// Number of frames.
        frames: u32,
    },
}

impl fmt::Display for Misuse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Misuse::DoubleFree { first, frames: 1 } => {
                write!(
                    f,
                    "{first} came back that was free already: it was freed twice, or with a wrong \
                     order"
                )
            }
            Misuse::DoubleFree { first, frames } => write!(
                f,
                "{frames} frames came back that were free already, {first} first: they were freed \
                 twice, or with a wrong order"
            ),
            Misuse::Backing { first, frames } => write!(
                f,
                "the backing handed out {frames} frames from {first} on, which are misaligned or \
                 not of the zone asked for"
            ),
        }
    }
}
