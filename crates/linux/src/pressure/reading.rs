//! Numbers from the kernel's files.

/// The readings of all sources at one look.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Reading {
    /// The share of the last ten seconds in which some thread waited for memory, in percent: the
    /// highest of all sources.
    pub stalled_percent: f64,
    /// The working set in percent of the limit, of the fullest cgroup.
    pub used_percent: f64,
    /// Bytes of the working set that would have to go for that cgroup to be relaxed again.
    pub over_bytes: u64,
    /// Times that `memory.high` was exceeded since the last look.
    pub high_events: u64,
    /// Times that the limit was hit since the last look.
    pub max_events: u64,
    /// Times that memory ran out at a limit since the last look.
    pub oom_events: u64,
}

/// Limits from here on are none: cgroup v1 says "no limit" by the largest number of pages.
const NO_LIMIT: u64 = 1 << 60;

/// `some avg10` of a file of PSI.
pub(super) fn stalled_percent(text: &str) -> Option<f64> {
    let some = text.lines().find_map(|line| line.strip_prefix("some "))?;
    let avg10 = some.split_whitespace().find_map(|word| word.strip_prefix("avg10="))?;
    avg10.parse().ok().filter(|percent: &f64| (0.0..=100.0).contains(percent))
}

/// A number of bytes; `max` is none.
pub(super) fn bytes(text: &str) -> Option<u64> {
    text.trim().parse().ok()
}

/// A limit; `None`: there is none.
pub(super) fn limit(text: &str) -> Option<u64> {
    bytes(text).filter(|&bytes| bytes < NO_LIMIT)
}

/// The value of a key in a file of lines `KEY VALUE`.
pub(super) fn value(text: &str, key: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' '));
    line.and_then(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_kernels_write() {
        let psi = "some avg10=12.50 avg60=3.00 avg300=0.10 total=123\n\
            full avg10=1.00 avg60=0 avg300=0 total=1\n";
        assert_eq!(stalled_percent(psi), Some(12.5));
        assert_eq!(limit("max\n"), None);
        assert_eq!(limit("9223372036854771712\n"), None);
        assert_eq!(limit("67108864\n"), Some(64 << 20));
        let stat = "anon 5\nfile 7\ninactive_file 3\nworkingset_refault_file 9\n";
        assert_eq!((value(stat, "file"), value(stat, "inactive_file")), (Some(7), Some(3)));
        assert_eq!(value(stat, "inactive"), None, "a key is a whole word");
    }

    #[test]
    fn what_no_kernel_writes() {
        for text in
            ["", "some", "some avg10=", "some avg10=-1", "some avg10=NaN", "some avg10=1e9", "\0\0"]
        {
            assert_eq!(stalled_percent(text), None, "{text:?}");
        }
        for text in ["", "-1", "99999999999999999999999", "12 34", "0x10"] {
            assert_eq!(bytes(text), None, "{text:?}");
        }
        assert_eq!(value("high", "high"), None);
        assert_eq!(value("high  \n", "high"), None);
    }
}
