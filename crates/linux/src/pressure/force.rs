//! Taking the steps.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};

use pagedepot::{Mode, Pressure, Reclaim as _, Scope};
use pagedepot_rseq::CpuSet;

use super::counts::Counters;
use super::policy::{Level, Policy};
use super::sources::Reader;
use super::step::Step;
use crate::depot::handle::Depot;
use crate::reclaim::Reporting;

/// A program's callback: told how many bytes are wanted, it returns how many it freed.
pub(super) struct Callback {
    pub priority: i32,
    pub free: Box<dyn FnMut(u64) -> u64 + Send>,
}

/// Milliseconds for which a handover is waited for beyond its deadline.
const HANDOVER_MS: u32 = 40;
/// Divisor of the held memory that callbacks are asked for where no limit says how much is wanted.
const SHARE: u64 = 16;

/// Everything that steps need.
pub(super) struct Force<'w> {
    pub policy: &'w Policy,
    pub reader: &'w Reader,
    pub callbacks: &'w mut Vec<Callback>,
    pub counters: &'w Counters,
    pub isolated: &'w CpuSet,
}

/// The bytes that a round of steps freed.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Yield {
    /// Bytes that came to the stores.
    pub freed_bytes: u64,
    /// Bytes that went to the system.
    pub given_back_bytes: u64,
    /// Whether there may be more to give back.
    pub is_cut_short: bool,
}

impl Force<'_> {
    /// Takes all steps of a level.
    pub fn round(&mut self, depots: &[Depot], level: Level, over_bytes: u64) -> Yield {
        let mut done = Yield::default();
        for step in Step::ALL.into_iter().filter(|step| step.level() <= level) {
            match step {
                Step::Callbacks => {
                    let wanted = wanted_bytes(depots, over_bytes, done.freed_bytes);
                    done.freed_bytes += self.call_back(wanted);
                }
                Step::KernelReclaim => self.ask_kernel(),
                _ => {
                    for depot in depots {
                        self.take(depot, step, level, &mut done);
                    }
                }
            }
        }
        done
    }

    /// Takes a step of one depot.
    pub fn take(&mut self, depot: &Depot, step: Step, level: Level, done: &mut Yield) {
        if step.gives_back() && level < Level::Critical && runs_on(self.isolated) {
            self.counters.postponed.add(1);
            done.is_cut_short = true;
            return;
        }
        let bytes = match step {
            Step::QuietDrain => in_bytes(depot, depot.drain(Scope::ALL, Mode::Quiet).taken_pages),
            Step::HandoverDrain => in_bytes(depot, self.hand_over(depot)),
            Step::Purge => in_bytes(depot, purge(depot, level)),
            Step::GiveBackWhole => give_back_whole(depot, u64::MAX),
            Step::Trim => match depot.trim() {
                Ok(trimmed) => {
                    done.is_cut_short |= trimmed.cut_short;
                    trimmed.bytes
                }
                // Pinned, or a system that refuses: nothing to repeat.
                Err(_) => 0,
            },
            Step::Callbacks | Step::KernelReclaim => 0,
        };
        self.counters.count(step, bytes);
        if step.gives_back() {
            done.given_back_bytes += bytes;
        } else {
            done.freed_bytes += bytes;
        }
    }

    /// Gives back at most so many whole pageblocks; returns how many bytes.
    pub fn give_surplus(&self, depot: &Depot, pageblocks: u64) -> u64 {
        if runs_on(self.isolated) {
            self.counters.postponed.add(1);
            return 0;
        }
        let bytes = give_back_whole(depot, pageblocks);
        self.counters.count(Step::GiveBackWhole, bytes);
        bytes
    }

    fn hand_over(&self, depot: &Depot) -> u64 {
        let fence_after_ms = self.policy.fence_after_ms;
        let mut handover = depot.drain_handover(Scope::ALL, Some(fence_after_ms));
        handover.wait(fence_after_ms.saturating_add(HANDOVER_MS));
        handover.drained().taken_pages
    }

    /// Calls callbacks until so many bytes are freed; returns how many were.
    pub fn call_back(&mut self, wanted_bytes: u64) -> u64 {
        let mut freed = 0u64;
        let counters = self.counters;
        self.callbacks.retain_mut(|callback| {
            if freed >= wanted_bytes {
                return true;
            }
            // A callback that panics is not called again: what it had under way is unknown.
            let call = || (callback.free)(wanted_bytes - freed);
            match catch_unwind(AssertUnwindSafe(call)) {
                Ok(bytes) => {
                    counters.count(Step::Callbacks, bytes);
                    freed = freed.saturating_add(bytes);
                    true
                }
                Err(_) => {
                    counters.panics.add(1);
                    false
                }
            }
        });
        freed
    }

    fn ask_kernel(&self) {
        let bytes = self.policy.kernel_reclaim_bytes;
        if bytes > 0 && self.reader.ask_kernel(bytes) {
            self.counters.count(Step::KernelReclaim, bytes);
        }
    }
}

fn in_bytes(depot: &Depot, pages: u64) -> u64 {
    pages << depot.page_size().shift()
}

/// The bytes that callbacks are asked for: those over the limit, or, without one, a share of what
/// is held.
fn wanted_bytes(depots: &[Depot], over_bytes: u64, freed_bytes: u64) -> u64 {
    if over_bytes > 0 {
        return over_bytes.saturating_sub(freed_bytes);
    }
    let held = |depot: &Depot| {
        let zones = depot.zone_ids().filter_map(|zone| depot.zone_stats(zone));
        let pages = zones.map(|zone| {
            zone.managed_pages.saturating_sub(zone.free_pages).saturating_sub(zone.cached_pages)
        });
        in_bytes(depot, pages.sum())
    };
    depots.iter().map(held).sum::<u64>() / SHARE
}

fn purge(depot: &Depot, level: Level) -> u64 {
    let Some(shrinkers) = depot.shared().callbacks().known_shrinkers() else { return 0 };
    let zone = depot.zone_ids().next().expect("a depot has a zone");
    let is_last_resort = level == Level::Critical;
    shrinkers.reclaim(Pressure { zone, wanted_pages: u64::MAX, is_last_resort })
}

/// Gives back whole pageblocks; returns how many bytes of them were present.
fn give_back_whole(depot: &Depot, pageblocks: u64) -> u64 {
    // Pinned: never given back.
    Reporting::of(depot).counted_pass(pageblocks).map_or(0, |(_, bytes)| bytes)
}

/// Whether a thread of this process runs on one of these CPUs now.
fn runs_on(cpus: &CpuSet) -> bool {
    if cpus.is_empty() {
        return false;
    }
    let Ok(threads) = fs::read_dir("/proc/self/task") else { return false };
    threads.filter_map(Result::ok).any(|thread| {
        let stat = fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
        running_on(&stat).is_some_and(|cpu| cpus.contains(pagedepot::CpuId::new(cpu)))
    })
}

/// The CPU of a thread that runs, by its `stat` (proc(5): field 3 is the state, 39 the CPU).
fn running_on(stat: &str) -> Option<u32> {
    // The name may contain anything, parentheses and spaces too.
    let mut fields = stat.rsplit_once(") ")?.1.split(' ');
    let is_running = fields.next()? == "R";
    fields.nth(39 - 4)?.parse().ok().filter(|_| is_running)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cpu_of_a_running_thread() {
        let rest = "1 ".repeat(35);
        let line = |state: &str| format!("7 (a) R 3) {state} {rest}5 0 0\n");
        assert_eq!(running_on(&line("R")), Some(5));
        assert_eq!(running_on(&line("S")), None);
        assert_eq!(running_on("7 (short) R 1 2"), None);
        // This very thread runs.
        let stat = fs::read_to_string("/proc/thread-self/stat").unwrap();
        assert!(running_on(&stat).is_some_and(|cpu| cpu < 4096), "{stat}");
    }
}
