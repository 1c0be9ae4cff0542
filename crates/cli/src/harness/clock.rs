//! A clock that can be read every hundred nanoseconds.

use std::time::Instant;

use rustix::time::{ClockId, clock_gettime};

/// Reads of the clock that its cost is the mean of.
const COST_READS: usize = 2001;

/// The time-stamp counter; where there is none, nanoseconds.
///
/// Not serializing: a few operations around a read may fall on either side of it, for all
/// contenders alike.
#[inline]
pub fn ticks() -> u64 {
    #[cfg(target_arch = "x86_64")]
    {
        // SAFETY: every x86-64 CPU has the instruction, and Linux lets user programs use it.
        unsafe { std::arch::x86_64::_rdtsc() }
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        use std::sync::OnceLock;
        static START: OnceLock<Instant> = OnceLock::new();
        START.get_or_init(Instant::now).elapsed().as_nanos() as u64
    }
}

/// Nanoseconds that this thread has run on a CPU. What `getrusage` tells moves in whole ticks on
/// many kernels: a tenth of a short window.
pub fn on_cpu_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Seconds that this thread has spent in user mode, and in the kernel; each in whole ticks on many
/// kernels, and their sum exact.
pub fn cpu_seconds() -> [f64; 2] {
    seconds_of(libc::RUSAGE_THREAD)
}

/// Seconds of CPU time of the children that this process has waited for, and of theirs.
pub fn children_seconds() -> f64 {
    seconds_of(libc::RUSAGE_CHILDREN).iter().sum()
}

fn seconds_of(whom: libc::c_int) -> [f64; 2] {
    // SAFETY: a plain structure, for which zeroes will do.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the structure is this function's.
    let failed = unsafe { libc::getrusage(whom, &raw mut usage) };
    debug_assert_eq!(failed, 0);
    [usage.ru_utime, usage.ru_stime].map(|time| time.tv_sec as f64 + time.tv_usec as f64 / 1e6)
}

/// Reads the clock like [`ticks`], but after all that comes before and before all that follows: for
/// pieces of work so short that they would overlap. Costs more.
#[inline]
pub fn ticks_in_order() -> u64 {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::_mm_lfence;
        // SAFETY: every x86-64 CPU has the instruction.
        unsafe { _mm_lfence() };
        let now = ticks();
        // SAFETY: as above.
        unsafe { _mm_lfence() };
        now
    }
    #[cfg(not(target_arch = "x86_64"))]
    ticks()
}

/// The cost of reading, which a difference of reads contains once: the difference of two reads in a
/// row. The mean of those that nothing interrupted: counters may advance in steps larger than the
/// cost.
pub fn read_cost_ticks(read: impl Fn() -> u64) -> f64 {
    let mut costs: Vec<u64> = (0..COST_READS)
        .map(|_| {
            let start = read();
            read() - start
        })
        .collect();
    costs.sort_unstable();
    let undisturbed = &costs[..COST_READS * 9 / 10];
    undisturbed.iter().sum::<u64>() as f64 / undisturbed.len() as f64
}

/// The length of a tick, measured against the system's clock.
pub struct Scale {
    start: (Instant, u64),
}

impl Scale {
    /// Starts measuring.
    pub fn start() -> Self {
        Scale { start: (Instant::now(), ticks()) }
    }

    /// Nanoseconds per tick since then.
    pub fn ns_per_tick(&self) -> f64 {
        let (elapsed, elapsed_ticks) = (self.start.0.elapsed(), ticks() - self.start.1);
        elapsed.as_nanos() as f64 / elapsed_ticks.max(1) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_grows() {
        let (before_ns, start) = (on_cpu_ns(), Instant::now());
        while start.elapsed().as_millis() < 20 {}
        let grown_ns = u128::from(on_cpu_ns() - before_ns);
        assert!(grown_ns > 0 && grown_ns <= start.elapsed().as_nanos());
        assert!(cpu_seconds().iter().sum::<f64>() <= on_cpu_ns() as f64 / 1e9 + 0.1);
    }
}
