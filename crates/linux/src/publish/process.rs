//! Tells a process from a later one with the same process id.

use std::fs;

/// Start of a process, in ticks since the machine booted; `None`: there is none.
///
/// From `/proc/PID/stat`, the 22nd field. The second is a name in parentheses, which may contain
/// blanks and parentheses, so counting begins behind the last of those.
pub(super) fn began(pid: u32) -> Option<u64> {
    let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
    let text = String::from_utf8_lossy(&stat);
    let (_, behind) = text.rsplit_once(')')?;
    let mut fields = behind.split_ascii_whitespace();
    let state = fields.next()?;
    // A zombie has ended; a process that is dead (X) is about to vanish.
    if state == "Z" || state == "X" {
        return None;
    }
    // Field 3 was the state.
    fields.nth(22 - 4)?.parse().ok()
}

/// Name of this process.
pub(super) fn name() -> String {
    let name = fs::read("/proc/self/comm").unwrap_or_default();
    String::from_utf8_lossy(&name).trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "reads /proc")]
    fn processes_are_told_apart() {
        let own = began(std::process::id()).unwrap();
        assert_eq!(began(std::process::id()), Some(own));
        assert!(began(1).is_none_or(|first| first <= own));
        // Above the largest number that Linux gives.
        assert_eq!(began(1 << 23), None);
        assert!(!name().is_empty());
    }
}
