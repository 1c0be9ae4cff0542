//! How a line of a trace is written, as far as it changes what the line tells.

/// Whether, and in what unit, a line tells the time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Clock {
    /// In seconds or microseconds.
    #[default]
    Seconds,
    /// As a whole number without a unit, as the trace clocks `x86-tsc` and `counter` print it. The
    /// reader takes one for a nanosecond.
    Ticks,
    /// Not at all. The reader gives such a record the time of the one above it.
    None,
}

/// What a line lacks that most have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Notation {
    /// How the line tells the time.
    pub clock: Clock,
    /// Whether the line names its CPU; the record's CPU is 0 where it does not.
    pub names_cpu: bool,
    /// Whether the event has the name that kernels before 3.3 gave it.
    pub has_old_name: bool,
}

impl Default for Notation {
    /// The notation of `perf script` and tracefs without options.
    fn default() -> Self {
        Notation { clock: Clock::Seconds, names_cpu: true, has_old_name: false }
    }
}
