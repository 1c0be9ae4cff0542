//! The number of mappings that the address spaces may use.
//!
//! The kernel allows a process `vm.max_map_count` mappings. At the limit it refuses every `mmap`,
//! even one that would remove a mapping. So some mappings are kept in reserve.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use pagedepot_vmap::MapError;

use crate::system::maps;
use crate::system::sync::OnceValue;

/// One in this many mappings is left to the rest of the program and to purges.
const RESERVE_FRACTION: u32 = 8;
/// Mappings kept for purges alone, when the caller sets the limit.
pub(super) const RESERVE_MIN: u32 = 4;
/// The fewest mappings that serve one area: the reservation, a piece, the part behind it, the
/// reserve.
pub(super) const MAPPINGS_MIN: u32 = 3 + RESERVE_MIN;

/// A number of mappings, and how many are in use.
pub(super) struct Budget {
    used: AtomicI64,
    max: u32,
    /// The budget that this one is a part of.
    whole: Option<Arc<Budget>>,
}

impl Budget {
    fn new(max: u32, whole: Option<Arc<Budget>>) -> Arc<Self> {
        Arc::new(Budget { used: AtomicI64::new(0), max, whole })
    }

    /// A budget of at most `max` of the process's mappings.
    pub fn part(max: u32) -> Arc<Self> {
        Self::new(max, Some(Self::of_process()))
    }

    /// The budget that all ranges of this process share: the mappings that the process did not use
    /// when the first range was made, less a reserve.
    pub fn of_process() -> Arc<Self> {
        static SHARED: OnceValue<Arc<Budget>> = OnceValue::new();
        let make = || {
            let limit = maps::system_limit();
            let others = maps::count().unwrap_or(0);
            Budget::new(limit.saturating_sub(others).saturating_sub(limit / RESERVE_FRACTION), None)
        };
        SHARED.get_or_make(make).clone()
    }

    pub fn max(&self) -> u32 {
        self.max
    }

    pub fn used(&self) -> u32 {
        self.used.load(Ordering::Relaxed).clamp(0, i64::from(u32::MAX)) as u32
    }

    /// The limit of which fewer than `needed` mappings are left, if there is one.
    pub fn lack(&self, needed: u32) -> Option<u32> {
        if self.is_short(needed) { Some(self.max) } else { self.whole.as_ref()?.lack(needed) }
    }

    fn is_short(&self, needed: u32) -> bool {
        self.max.saturating_sub(self.used()) < needed
    }

    /// Whether other ranges may have what is missing of `needed` mappings: not if this one has
    /// reached a limit of its own.
    pub fn may_others_have(&self, needed: u32) -> bool {
        self.whole.is_none() || !self.is_short(needed)
    }

    /// Whether three quarters are in use.
    pub fn is_tight(&self) -> bool {
        self.used() > self.max / 4 * 3 || self.whole.as_ref().is_some_and(|whole| whole.is_tight())
    }

    /// Takes `count` mappings, or none.
    pub fn take(&self, count: u32) -> Result<(), MapError> {
        // Relaxed, as everywhere here: a count publishes nothing.
        let used = self.used.fetch_add(i64::from(count), Ordering::Relaxed) + i64::from(count);
        let taken = if used > i64::from(self.max) {
            Err(MapError::TooManyMappings { limit: self.max })
        } else {
            self.whole.as_ref().map_or(Ok(()), |whole| whole.take(count))
        };
        if taken.is_err() {
            self.used.fetch_sub(i64::from(count), Ordering::Relaxed);
        }
        taken
    }

    /// Returns `count` mappings. A negative `count` takes mappings, from the reserve if need be.
    pub fn give(&self, count: i64) {
        self.used.fetch_sub(count, Ordering::Relaxed);
        if let Some(whole) = &self.whole {
            whole.give(count);
        }
    }
}

/// The cause of an ENOMEM: too many mappings in the process, or too little memory.
pub(super) fn why_no_memory() -> MapError {
    // A mapping call may need two more mappings.
    maps::reached_limit(2).map_or(MapError::NoTables, |limit| MapError::TooManyMappings { limit })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A part has mappings left, and the whole has none.
    #[test]
    fn the_limit_that_is_reached_is_named() {
        let whole = Budget::new(10, None);
        let part = Budget::new(100, Some(whole.clone()));
        assert_eq!((part.lack(10), part.lack(11), part.lack(101)), (None, Some(10), Some(100)));
        assert!(part.may_others_have(11) && !part.may_others_have(101));
        whole.give(-10);
        assert_eq!((part.lack(0), part.lack(1)), (None, Some(10)));
        assert_eq!(part.take(1), Err(MapError::TooManyMappings { limit: 10 }));
    }
}
