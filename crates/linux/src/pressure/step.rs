//! The names of the steps, and from which level on they are taken.

use super::policy::Level;

/// The steps of a [`Monitor`](super::Monitor) against pressure, by growing force; see the
/// [module](super).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Step {
    /// Takes what lies on CPUs' shelves.
    QuietDrain,
    /// Has CPUs hand over their fronts, and fences those that do not, but for isolated ones.
    HandoverDrain,
    /// Has address spaces give up lazy areas and pools.
    Purge,
    /// Calls the program's callbacks.
    Callbacks,
    /// Gives whole free pageblocks back to the system.
    GiveBackWhole,
    /// Gives all free pages back to the system.
    Trim,
    /// Asks the kernel to reclaim from the cgroup.
    KernelReclaim,
}

impl Step {
    /// All steps, in the order in which they are taken.
    pub const ALL: [Step; 7] = [
        Step::QuietDrain,
        Step::HandoverDrain,
        Step::Purge,
        Step::Callbacks,
        Step::GiveBackWhole,
        Step::Trim,
        Step::KernelReclaim,
    ];

    /// The lowest level that takes it.
    pub const fn level(self) -> Level {
        match self {
            Step::QuietDrain | Step::GiveBackWhole => Level::Low,
            Step::HandoverDrain | Step::Purge | Step::Trim => Level::Medium,
            Step::Callbacks | Step::KernelReclaim => Level::Critical,
        }
    }

    /// Whether it is about the system's memory, rather than the depot's store.
    pub(super) fn gives_back(self) -> bool {
        matches!(self, Step::GiveBackWhole | Step::Trim)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_stand_in_order() {
        for (at, step) in Step::ALL.into_iter().enumerate() {
            assert_eq!(step as usize, at);
        }
    }
}
