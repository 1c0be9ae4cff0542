//! Taking the steps.

use std::panic::{AssertUnwindSafe, catch_unwind};

use pagedepot::{Mode, Scope};
use pagedepot_rseq::CpuSet;

use super::counts::Counters;
use super::policy::{Level, Policy};
use super::sources::Reader;
use super::step::Step;
use crate::depot::handle::Depot;
use crate::giving_back::gaps::Gaps;
use crate::giving_back::trim::{ALL_RUNS, Bounds, Stop, TrimResult, trim_within};
use crate::reclaim::Reporting;
use crate::system::prim::now_ms;

/// A program's callback: told how many bytes are wanted, it returns how many it freed.
pub(super) struct Callback {
    pub priority: i32,
    pub free: Box<dyn FnMut(u64) -> u64 + Send>,
}

/// Milliseconds for which a handover is waited for beyond its deadline.
const HANDOVER_MS: u32 = 40;
/// Milliseconds for which a gap in the work of isolated CPUs is waited for before a system call.
const GAP_MS: u64 = 500;
/// Pageblocks that are reported between two looks for a gap: 16 MiB of 4 KiB pages.
const PASS_PAGEBLOCKS: u64 = 8;
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
                    // A callback may return any number.
                    done.freed_bytes = done.freed_bytes.saturating_add(self.call_back(wanted));
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
        let patient = level < Level::Critical;
        let bytes = match step {
            Step::QuietDrain => in_bytes(depot, depot.drain(Scope::ALL, Mode::Quiet).taken_pages),
            Step::HandoverDrain => in_bytes(depot, self.hand_over(depot)),
            Step::Purge => in_bytes(depot, purge(depot, level)),
            Step::GiveBackWhole => self.give_back_whole(depot, patient, done),
            Step::Trim => {
                depot.drain(Scope::ALL, Mode::Quiet);
                self.trim(depot, (u64::MAX, patient), done)
            }
            Step::Callbacks | Step::KernelReclaim => 0,
        };
        self.counters.count(step, bytes);
        if step.gives_back() {
            done.given_back_bytes += bytes;
        } else {
            done.freed_bytes += bytes;
        }
    }

    /// Gives back at most so many bytes of what is free, whole pageblocks first.
    pub fn give_surplus(&self, depot: &Depot, bytes_max: u64) -> Yield {
        let mut done = Yield::default();
        done.given_back_bytes = self.trim(depot, (bytes_max, true), &mut done);
        self.counters.count(Step::Trim, done.given_back_bytes);
        done
    }

    /// Trims, in gaps of the isolated CPUs if `patient`; returns how many bytes went back.
    fn trim(&self, depot: &Depot, (bytes_max, patient): (u64, bool), done: &mut Yield) -> u64 {
        let mut gaps = Gaps::of(self.isolated);
        let mut moment = || match !patient || gaps.wait(now_ms() + GAP_MS) {
            true => Ok(true),
            false => Err(Stop::Isolated),
        };
        let bounds = Bounds { bytes_max, runs: &ALL_RUNS, moment: &mut moment };
        let mut trimmed = TrimResult::default();
        // An error: pinned, or a system that refuses, so there is nothing to repeat.
        if let Ok(stop) = trim_within(depot.shared(), bounds, &mut trimmed) {
            done.is_cut_short |= stop.is_some_and(|stop| stop != Stop::Enough);
            self.counters.postponed.add((stop == Some(Stop::Isolated)).into());
        }
        trimmed.bytes
    }

    /// Gives back whole pageblocks; returns how many bytes of them were present.
    fn give_back_whole(&self, depot: &Depot, patient: bool, done: &mut Yield) -> u64 {
        let mut gaps = Gaps::of(self.isolated);
        let mut bytes = 0;
        loop {
            if patient && !gaps.wait(now_ms() + GAP_MS) {
                self.counters.postponed.add(1);
                done.is_cut_short = true;
                return bytes;
            }
            // Pinned: never given back.
            let Ok((pass, present)) = Reporting::of(depot).counted_pass(PASS_PAGEBLOCKS) else {
                return bytes;
            };
            bytes += present;
            if pass.pageblocks < PASS_PAGEBLOCKS {
                return bytes;
            }
        }
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
    let shared = depot.shared();
    shared.callbacks().shrink(shared, level == Level::Critical).unwrap_or(0)
}
