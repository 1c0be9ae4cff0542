//! Notations of a trace's lines, as far as they change the meaning of a line.

/// Whether, and in what unit, a line tells the time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Clock {
    /// Seconds or microseconds.
    #[default]
    Seconds,
    /// A whole number without a unit, as the trace clocks `x86-tsc` and `counter` print it. The
    /// reader takes one for a nanosecond.
    Ticks,
    /// The line has no time. The reader gives such a record the time of the one above it.
    None,
}

/// The parts that most lines have and this one lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Notation {
    /// The unit of the line's time.
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
