//! `cpu-unplug`: CPUs stop in turn with full caches. CPU 0 takes these caches while other CPUs go
//! on, and the stopped CPU starts again.

use core::sync::atomic::{AtomicBool, Ordering};

use super::{Held, Options, Random, design};
use crate::call::{self, Call};
use crate::cpu::{self, Cpu};
use crate::{clock, figure, progress, smp};

/// Time that the other CPUs work before and after a CPU stops, in microseconds.
const WORK_US: u64 = 5_000;

pub fn run(options: &Options) {
    let cpus = cpu::count();
    let rounds = if cpus == 1 { 0 } else { options.rounds.unwrap_or(20) };
    let (mut drained_pages, mut fences) = (0, 0);
    for round in 0..rounds {
        let victim = 1 + (round % u64::from(cpus - 1)) as u32;
        let done = AtomicBool::new(false);
        let work = |cpu: pagedepot::CpuId| {
            let (mut held, mut random) =
                (Held::<600>::new(), Random::new(round << 8 | u64::from(cpu.get())));
            while !done.load(Ordering::Acquire) {
                held.churn(&mut random);
            }
            held.empty(0);
        };
        smp::run_on((1..cpus).filter(|&cpu| cpu != victim), &work, || {
            let victim = Cpu::get(pagedepot::CpuId::new(victim));
            let fill = |_| {
                let mut held = Held::<600>::new();
                held.fill(600);
                held.empty(0);
            };
            smp::run_on(core::iter::once(victim.id().get()), &fill, || clock::wait_us(WORK_US));
            smp::stop(victim);
            // A flush that found this CPU still running asks so, and does not wait for the answer.
            call::ask(victim, Call::Flush);
            let cached = design::cached_pages(victim.id());
            let drained = design::retire(victim.id());
            assert!(
                cached > 0 && drained.taken_pages == cached,
                "{} of {cached} pages taken",
                drained.taken_pages
            );
            let left = design::cached_pages(victim.id());
            assert!(left == 0, "{left} pages are still cached by a CPU that is gone");
            drained_pages += drained.taken_pages;
            fences += drained.fences;
            clock::wait_us(WORK_US);
            smp::start(victim);
            design::restore(victim.id());
            smp::run_on(core::iter::once(victim.id().get()), &fill, || {});
            assert!(design::cached_pages(victim.id()) > 0, "a CPU that came back does not cache");
            done.store(true, Ordering::Release);
        });
        progress!("round {} of {rounds}: {} pages drained so far", round + 1, drained_pages);
    }
    assert!(fences == 0, "a CPU that has stopped was fenced");
    figure!("unplugged_cpus", rounds);
    figure!("drained_pages", drained_pages);
}
