//! The numbers that decide when to react, and how strongly.

use std::fmt;

use super::reading::Reading;

/// Shortage of memory. The names are those of the kernel's `vmpressure`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// There is enough.
    #[default]
    None,
    /// The kernel begins to reclaim.
    Low,
    /// Threads wait for memory now and then, or little is left below a limit.
    Medium,
    /// A limit is about to be hit.
    Critical,
}

impl Level {
    /// All levels with steps, ascending.
    pub const ALL: [Level; 3] = [Level::Low, Level::Medium, Level::Critical];

    /// The next lower one.
    pub(super) fn below(self) -> Self {
        match self {
            Level::Critical => Level::Medium,
            Level::Medium => Level::Low,
            Level::Low | Level::None => Level::None,
        }
    }
}

/// The levels and times at which a [`Monitor`](super::Monitor) reacts. The defaults suit a program
/// that shares its machine.
///
/// ```
/// use pagedepot_linux::pressure::Policy;
///
/// let policy = Policy { idle_ms: 0, ..Policy::default() }; // keep what rests
/// assert_eq!(policy.used_percent, [85, 92, 97]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Milliseconds between two looks while no source wakes the monitor. Default: 1000.
    pub look_ms: u32,
    /// The share of time in which some thread waited for memory (PSI `some avg10`), in percent,
    /// from which on each level lasts. Default: 1, 10, 40.
    pub stalled_percent: [u32; 3],
    /// The working set of a cgroup in percent of its limit, from which on each level lasts.
    /// Default: 85, 92, 97.
    pub used_percent: [u32; 3],
    /// Percent of a level's beginning by which a reading must fall below it for the level to end.
    /// Default: 5: the level that begins at 85 ends below 80.75.
    pub hysteresis_percent: u32,
    /// Milliseconds for which it must stay there. Default: 3000.
    pub calm_ms: u32,
    /// Least milliseconds between two rounds of steps at a level. Doubles, up to 32 times as long,
    /// with each round that yields nothing. Default: 1000.
    pub round_ms: u32,
    /// Milliseconds after which free memory that was not used is given back without any pressure.
    /// 0: never. Default: 3000.
    pub idle_ms: u32,
    /// Milliseconds for which memory that was given back, and was then needed again, is kept when
    /// it is free again: a depot in use keeps as much present as refaulted in one stretch of
    /// [`idle_ms`](Self::idle_ms) during that time. 0: it keeps none. Default: 60,000.
    pub refault_window_ms: u32,
    /// Milliseconds after which a CPU is fenced that did not hand over its fronts; isolated ones
    /// never are. Default: 10.
    pub fence_after_ms: u32,
    /// Bytes that the kernel is asked to reclaim from the cgroup (v2, `memory.reclaim`) in a round
    /// at [`Level::Critical`]. Default: 0, not at all.
    pub kernel_reclaim_bytes: u64,
    /// The share of a cgroup's limit that the depots' [ceiling](crate::reclaim::Ceiling) leaves
    /// free, in percent, for what the program uses beside them. `None`: no ceiling follows the
    /// limit. Default: 20, so that a depot that is full brings no level about.
    pub margin_percent: Option<u32>,
}

impl Default for Policy {
    fn default() -> Self {
        Policy {
            look_ms: 1000,
            stalled_percent: [1, 10, 40],
            used_percent: [85, 92, 97],
            hysteresis_percent: 5,
            calm_ms: 3000,
            round_ms: 1000,
            idle_ms: 3000,
            refault_window_ms: 60_000,
            fence_after_ms: 10,
            kernel_reclaim_bytes: 0,
            margin_percent: Some(20),
        }
    }
}

impl Policy {
    /// Refuses numbers that contradict each other.
    pub(super) fn check(&self) -> Result<(), PolicyError> {
        if self.look_ms == 0 {
            return Err(PolicyError::NeverRests);
        }
        for percents in [self.stalled_percent, self.used_percent] {
            if percents[0] == 0 || !percents.is_sorted() || percents[2] > 100 {
                return Err(PolicyError::Levels { percents });
            }
        }
        if self.hysteresis_percent > 100 {
            return Err(PolicyError::Hysteresis { percent: self.hysteresis_percent });
        }
        if let Some(percent) = self.margin_percent.filter(|&percent| percent > MARGIN_MAX) {
            return Err(PolicyError::Margin { percent });
        }
        Ok(())
    }

    /// The level that a reading asks for; with `eased`, the one that it lets go on.
    pub(super) fn level(&self, reading: &Reading, eased: bool) -> Level {
        let factor = if eased { 1.0 - f64::from(self.hysteresis_percent) / 100.0 } else { 1.0 };
        let is_there = |at: usize| {
            reading.stalled_percent >= f64::from(self.stalled_percent[at]) * factor
                || reading.used_percent >= f64::from(self.used_percent[at]) * factor
        };
        let by_share =
            (0..3).rev().find(|&at| is_there(at)).map_or(Level::None, |at| Level::ALL[at]);
        let by_event = match reading {
            Reading { oom_events: 1.., .. } => Level::Critical,
            Reading { max_events: 1.., .. } => Level::Medium,
            Reading { high_events: 1.., .. } => Level::Low,
            _ => Level::None,
        };
        by_share.max(by_event)
    }

    /// The share of a limit below which no level lasts.
    pub(super) fn relaxed_share(&self) -> f64 {
        let begin = f64::from(self.used_percent[0]) / 100.0;
        begin * (1.0 - f64::from(self.hysteresis_percent) / 100.0)
    }
}

/// The reason why a [`Policy`] makes no sense.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PolicyError {
    /// `look_ms` is 0.
    NeverRests,
    /// The levels' beginnings are 0, above 100, or do not ascend.
    Levels {
        /// The percents that were given.
        percents: [u32; 3],
    },
    /// `hysteresis_percent` is above 100.
    Hysteresis {
        /// The percent that was given.
        percent: u32,
    },
    /// `margin_percent` leaves the depots next to nothing.
    Margin {
        /// The percent that was given.
        percent: u32,
    },
}

/// The largest margin.
const MARGIN_MAX: u32 = 95;

impl fmt::Display for PolicyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PolicyError::NeverRests => {
                f.write_str("look_ms is 0: at least 1 millisecond between two looks")
            }
            PolicyError::Levels { percents } => write!(
                f,
                "levels that begin at {percents:?} percent: give three that ascend, from 1 to 100"
            ),
            PolicyError::Hysteresis { percent } => {
                write!(f, "hysteresis_percent is {percent}: it goes from 0 to 100")
            }
            PolicyError::Margin { percent } => write!(
                f,
                "margin_percent is {percent}: it goes from 0 to {MARGIN_MAX}; None: no ceiling \
                 follows the limit"
            ),
        }
    }
}

impl std::error::Error for PolicyError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_by_share_and_by_event() {
        let policy = Policy::default();
        let level = |reading: Reading, eased| policy.level(&reading, eased);
        let used = |used_percent| Reading { used_percent, ..Reading::default() };
        assert_eq!(level(used(84.9), false), Level::None);
        assert_eq!(level(used(84.9), true), Level::Low);
        assert_eq!(level(used(80.7), true), Level::None);
        assert_eq!(level(used(97.0), false), Level::Critical);
        let stalled = Reading { stalled_percent: 12.5, ..Reading::default() };
        assert_eq!(level(stalled, false), Level::Medium);
        let event = |reading: Reading| level(reading, false);
        assert_eq!(event(Reading { high_events: 1, ..Reading::default() }), Level::Low);
        assert_eq!(event(Reading { max_events: 3, ..Reading::default() }), Level::Medium);
        assert_eq!(
            event(Reading { oom_events: 1, max_events: 3, ..Reading::default() }),
            Level::Critical
        );
    }

    #[test]
    fn contradictions_are_refused() {
        assert_eq!(Policy::default().check(), Ok(()));
        let check = |policy: Policy| policy.check().unwrap_err().to_string();
        assert!(check(Policy { look_ms: 0, ..Policy::default() }).contains("look_ms"));
        for percents in [[0, 1, 2], [3, 2, 1], [90, 95, 101]] {
            let said = check(Policy { used_percent: percents, ..Policy::default() });
            assert!(said.contains("ascend"), "{said}");
        }
        assert!(check(Policy { hysteresis_percent: 101, ..Policy::default() }).contains("101"));
        assert!(check(Policy { margin_percent: Some(96), ..Policy::default() }).contains("96"));
    }
}
