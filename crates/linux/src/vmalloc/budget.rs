//! How many mappings there may be. The kernel allows a process `vm.max_map_count`, refuses every
//! `mmap` beyond, and then also those that would take a mapping away: so some are kept in reserve.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use pagedepot_vmap::MapError;

use crate::maps;
use crate::sync::Shared;

/// This part of the limit is left to the rest of the program, and to purges.
const RESERVE_FRACTION: u32 = 8;
/// A reserve for purges alone, when the caller sets the limit.
pub(super) const RESERVE_MIN: u32 = 4;
/// The reservation, a piece, its end, and the reserve.
pub(super) const MAPPINGS_MIN: u32 = 3 + RESERVE_MIN;

/// Mappings in use, of those allowed.
pub(super) struct Budget {
    used: AtomicI64,
    max: u32,
    /// What this is a part of.
    whole: Option<Arc<Budget>>,
}

impl Budget {
    fn new(max: u32, whole: Option<Arc<Budget>>) -> Arc<Self> {
        Arc::new(Budget { used: AtomicI64::new(0), max, whole })
    }

    /// At most `max` of the process's.
    pub fn part(max: u32) -> Arc<Self> {
        Self::new(max, Some(Self::of_process()))
    }

    /// The one that all ranges of this process share: what the process had not mapped when the
    /// first was made, but for a reserve.
    pub fn of_process() -> Arc<Self> {
        static SHARED: Shared<Arc<Budget>> = Shared::new();
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

    /// Whether three quarters are in use.
    pub fn is_tight(&self) -> bool {
        self.used() > self.max / 4 * 3 || self.whole.as_ref().is_some_and(|whole| whole.is_tight())
    }

    /// Takes `count` mappings.
    pub fn take(&self, count: u32) -> Result<(), MapError> {
        // Relaxed, as all here: a count, which publishes nothing.
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

    /// Gives `count` mappings back; below 0: takes them, from the reserve if need be.
    pub fn give(&self, count: i64) {
        self.used.fetch_sub(count, Ordering::Relaxed);
        if let Some(whole) = &self.whole {
            whole.give(count);
        }
    }
}

/// What "no memory" meant: too many mappings in all the process, or no memory.
pub(super) fn why_no_memory() -> MapError {
    // A mapping may need two more.
    maps::reached_limit(2).map_or(MapError::NoTables, |limit| MapError::TooManyMappings { limit })
}
