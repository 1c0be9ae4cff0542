//! Differences under a model checker: constants, and parts of protocols that a model leaves out.
//!
//! Production code asks this module, and nothing else, whether it runs in a model.

#[cfg(all(test, loom))]
pub use left_out::{leave_out, leaves_out};

/// `production`, or `model` under loom, where races need few steps.
pub const fn scaled(production: u32, model: u32) -> u32 {
    if cfg!(loom) { model } else { production }
}

/// Whether zero bytes are an atomic with the value 0: loom's atomics are more than integers.
pub const ATOMICS_ARE_INTEGERS: bool = !cfg!(loom);

/// Parts of the protocols that a model may leave out, to show that it would notice.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(not(all(test, loom)), allow(dead_code, reason = "named by models only"))]
pub enum Mutant {
    /// A request that maps waits for tables that a purge is giving back.
    TableLock,
    /// Readers load an area's word a second time.
    SecondLook,
    /// The load of a frame is ordered before the second load of the word.
    LookOrder,
    /// A purge collects a node's pools before its lazy list.
    PoolsFirst,
    /// Runs that could not be unmapped enter their tables again.
    Reenter,
}

/// Whether the model that runs leaves `part` out; never in production.
#[cfg(not(all(test, loom)))]
#[inline(always)]
pub const fn leaves_out(part: Mutant) -> bool {
    let _ = part;
    false
}

#[cfg(all(test, loom))]
mod left_out {
    use super::Mutant;
    use std::cell::Cell;

    // Loom runs all threads of a model on the test's own thread.
    std::thread_local! {
        static LEFT_OUT: Cell<Option<Mutant>> = const { Cell::new(None) };
    }

    /// Leaves a part out of the models that this test runs from here on.
    pub fn leave_out(part: Mutant) {
        LEFT_OUT.set(Some(part));
    }

    /// Whether the model that runs leaves `part` out.
    pub fn leaves_out(part: Mutant) -> bool {
        LEFT_OUT.get() == Some(part)
    }
}
