//! The memory that a depot in use will need again, judged by its refaults.
//!
//! Memory that was given back and was needed again is a refault. A depot keeps as much present and
//! free as refaulted in any one window (see [`Policy::idle_ms`](super::Policy::idle_ms)) of the
//! last minute: what came back once within a minute is expected to come back. A depot whose memory
//! did not come back keeps none. Linux judges the size of its page cache by refaults as well
//! (`mm/workingset.c`).

use std::collections::VecDeque;

/// The refaults of a depot.
#[derive(Clone, Debug, Default)]
pub(super) struct Needs {
    /// Bytes present when it was last looked at, less what was given back since.
    present: Option<u64>,
    /// Bytes that were given back and did not come back yet.
    absent: u64,
    /// Times at which stretches began, in milliseconds, and the bytes that refaulted in each.
    refaults: VecDeque<(u64, u64)>,
}

impl Needs {
    /// Notes the bytes that are present. Refaults within `stretch_ms` are counted together, those
    /// older than `window_ms` are forgotten. What was
    /// given back and what was never touched are as good for a request, so any growth is a refault,
    /// up to what is absent.
    pub fn note(&mut self, present: u64, now_ms: u64, (stretch_ms, window_ms): (u64, u64)) {
        let grown = present.saturating_sub(self.present.replace(present).unwrap_or(present));
        let refaulted = grown.min(self.absent);
        self.absent -= refaulted;
        match self.refaults.back_mut() {
            Some((at_ms, bytes)) if now_ms.saturating_sub(*at_ms) < stretch_ms => {
                *bytes += refaulted;
            }
            _ if refaulted > 0 => self.refaults.push_back((now_ms, refaulted)),
            _ => {}
        }
        self.refaults.retain(|&(at_ms, _)| now_ms.saturating_sub(at_ms) < window_ms);
    }

    /// Notes that so many bytes are not present any more.
    pub fn given_back(&mut self, bytes: u64) {
        self.absent += bytes;
        if let Some(present) = &mut self.present {
            *present = present.saturating_sub(bytes);
        }
    }

    /// Bytes of free memory to keep present.
    pub fn bytes(&self) -> u64 {
        self.refaults.iter().map(|&(_, bytes)| bytes).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LENGTHS_MS: (u64, u64) = (3000, 60_000);

    #[test]
    fn memory_that_came_back_is_kept_for_a_minute() {
        let mut needs = Needs::default();
        needs.note(100, 0, LENGTHS_MS);
        // It grows for the first time: nothing says that this comes again.
        needs.note(400, 3000, LENGTHS_MS);
        assert_eq!(needs.bytes(), 0);
        needs.given_back(300);
        needs.note(100, 6000, LENGTHS_MS);
        assert_eq!(needs.bytes(), 0);
        // Half of it is needed again, and then some less.
        needs.note(250, 9000, LENGTHS_MS);
        assert_eq!(needs.bytes(), 150);
        needs.note(270, 12_000, LENGTHS_MS);
        assert_eq!(needs.bytes(), 150);
        // The last 130 of the 300, and beyond.
        needs.note(500, 15_000, LENGTHS_MS);
        assert_eq!(needs.bytes(), 150);
        needs.note(500, 68_999, LENGTHS_MS);
        assert_eq!(needs.bytes(), 150);
        needs.note(500, 69_000, LENGTHS_MS);
        assert_eq!(needs.bytes(), 130);
        needs.note(500, 80_000, LENGTHS_MS);
        assert_eq!(needs.bytes(), 0);
    }

    #[test]
    fn without_a_window_nothing_is_kept() {
        let mut needs = Needs::default();
        needs.note(200, 0, (0, 0));
        needs.given_back(100);
        needs.note(200, 1, (0, 0));
        assert_eq!(needs.bytes(), 0);
    }
}
