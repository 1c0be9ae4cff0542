//! Time: the time-stamp counter, measured once against the interval timer that every PC has.

use core::sync::atomic::{AtomicU64, Ordering};

use x86_64::instructions::port::Port;

/// The interval timer's frequency (Intel 8254 data sheet; every PC since 1981).
const PIT_HZ: u64 = 1_193_182;
const MEASURE_MS: u64 = 20;

static TSC_PER_MS: AtomicU64 = AtomicU64::new(1_000_000);

fn tsc() -> u64 {
    // SAFETY: every x86-64 processor has the instruction, and CR4.TSD is clear.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// Runs the interval timer's channel 2 once, for [`MEASURE_MS`].
fn pit_wait() {
    let count = (PIT_HZ * MEASURE_MS / 1000) as u16;
    let (mut gate, mut command, mut data) =
        (Port::<u8>::new(0x61), Port::<u8>::new(0x43), Port::<u8>::new(0x42));
    // SAFETY: these ports are the timer's; no other code uses it.
    unsafe {
        let speaker_off = gate.read() & !0b11;
        gate.write(speaker_off);
        command.write(0b1011_0000); // channel 2, low then high byte, mode 0: output rises at zero
        data.write(count as u8);
        data.write((count >> 8) as u8);
        gate.write(speaker_off | 1);
        while gate.read() & 1 << 5 == 0 {
            core::hint::spin_loop();
        }
        gate.write(speaker_off);
    }
}

/// Measures the counter. Returns by how much `sample` advanced per millisecond meanwhile.
pub fn measure(sample: impl Fn() -> u64) -> u64 {
    let (tsc_before, sample_before) = (tsc(), sample());
    pit_wait();
    let (ticks, sampled) = (tsc() - tsc_before, sample() - sample_before);
    TSC_PER_MS.store((ticks / MEASURE_MS).max(1), Ordering::Relaxed);
    sampled / MEASURE_MS
}

/// Microseconds since the machine started.
pub fn now_us() -> u64 {
    (u128::from(tsc()) * 1000 / u128::from(TSC_PER_MS.load(Ordering::Relaxed))) as u64
}
