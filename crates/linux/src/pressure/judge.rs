//! The level that lasts, from reading to reading.

use super::policy::{Level, Policy};
use super::reading::Reading;

/// Raises the level at once, and lowers it one by one after calm.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Judge {
    level: Level,
    /// Time since which readings have been clearly below the level.
    calm_since_ms: Option<u64>,
}

impl Judge {
    pub fn level(&self) -> Level {
        self.level
    }

    /// The level after another reading.
    pub fn judge(&mut self, policy: &Policy, reading: &Reading, now_ms: u64) -> Level {
        if policy.level(reading, false) > self.level {
            self.level = policy.level(reading, false);
            self.calm_since_ms = None;
        } else if policy.level(reading, true) >= self.level {
            self.calm_since_ms = None;
        } else {
            let since_ms = *self.calm_since_ms.get_or_insert(now_ms);
            if now_ms.saturating_sub(since_ms) >= policy.calm_ms.into() {
                self.level = self.level.below();
                self.calm_since_ms = Some(now_ms);
            }
        }
        self.level
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rises_at_once_and_falls_one_by_one() {
        let policy = Policy::default();
        let mut judge = Judge::default();
        let mut at = |used_percent, now_ms| {
            judge.judge(&policy, &Reading { used_percent, ..Reading::default() }, now_ms)
        };
        assert_eq!(at(50.0, 0), Level::None);
        assert_eq!(at(98.0, 10), Level::Critical);
        // Between the end of the level and its beginning.
        assert_eq!(at(93.0, 10_000), Level::Critical);
        assert_eq!(at(50.0, 20_000), Level::Critical);
        // A single high reading begins the calm anew.
        assert_eq!(at(95.0, 22_000), Level::Critical);
        assert_eq!(at(50.0, 23_000), Level::Critical);
        assert_eq!(at(50.0, 25_999), Level::Critical);
        assert_eq!(at(50.0, 26_000), Level::Medium);
        assert_eq!(at(50.0, 28_999), Level::Medium);
        assert_eq!(at(50.0, 29_000), Level::Low);
        assert_eq!(at(50.0, 32_000), Level::None);
        assert_eq!(at(50.0, 99_000), Level::None);
    }

    /// A reading that swings around a beginning changes the level once.
    #[test]
    fn does_not_swing() {
        let policy = Policy::default();
        let mut judge = Judge::default();
        let mut changes = 0;
        let mut last = Level::None;
        for second in 0..100u64 {
            let used_percent = if second % 2 == 0 { 85.5 } else { 84.5 };
            let reading = Reading { used_percent, ..Reading::default() };
            let level = judge.judge(&policy, &reading, second * 1000);
            changes += u32::from(level != last);
            last = level;
        }
        assert_eq!((changes, last), (1, Level::Low));
    }
}
