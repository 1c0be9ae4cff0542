//! The times of CPUs' ticks where the recording does not show them.
//!
//! A tick that finds nothing to return leaves no event, but it lowers `high` by an eighth. The
//! recording tells `high` of a CPU when it spills, and the zoneinfo from after tells it at the end.
//! So the calibration searches for the time of a CPU's first tick with which mainline's policy
//! comes nearest to these. It looks at nothing else: what is cached, refilled and spilled remains
//! to be compared.

use std::collections::HashMap;
use std::sync::Arc;

use pagedepot::{CpuId, ZoneId};
use pagedepot_designs::{Buddy, Spin, Store};

use super::engine::play;
use super::error::Error;
use super::plan::Plan;
use super::threads::ThreadTarget;
use super::ticks::{self, INTERVAL_MS, Tick};
use super::zoneinfos::Zoneinfos;
use crate::design::Product;
use crate::design::variant::Variant;
use pagedepot_trace::{Zone, Zoneinfo};

/// Number of times tried.
const CANDIDATES: u32 = 40;

/// The plan with ticks where they explain what is known of `high` best, if anything is.
///
/// # Errors
/// When the machine cannot be made, or runs out of pages.
pub fn calibrated(plan: &Plan, zoneinfos: &Zoneinfos) -> Result<Plan, Error> {
    let mut plan = plan.clone();
    let Some(before) = &zoneinfos.before else { return Ok(plan) };
    let after = zoneinfos.after.as_ref();
    let is_told = |cpu| plan.highs_seen.iter().any(|seen| seen.cpu == cpu);
    let unseen: Vec<Tick> = plan.ticks_unseen.clone();
    let unseen: Vec<Tick> =
        unseen.into_iter().filter(|tick| after.is_some() || is_told(tick.cpu)).collect();
    if unseen.is_empty() {
        return Ok(plan);
    }
    let span = plan.end_ms.min(INTERVAL_MS);
    let mut best = vec![(u64::MAX, 0); plan.cpus.len()];
    // The last one is behind the end of short recordings: no tick at all.
    for first_ms in (1..=CANDIDATES).map(|n| span * n / CANDIDATES + 1) {
        set_ticks(&mut plan.ticks, &unseen, plan.end_ms, |_| first_ms);
        for (best, off) in best.iter_mut().zip(high_off(&plan, before, after)?) {
            *best = (*best).min((off, first_ms));
        }
    }
    let first_ms = |cpu: u16| best[usize::from(cpu)].1;
    set_ticks(&mut plan.ticks, &unseen, plan.end_ms, first_ms);
    let fitted = unseen.iter().map(|&Tick { cpu, .. }| Tick { ms: first_ms(cpu), cpu });
    plan.ticks_fitted.extend(fitted);
    Ok(plan)
}

/// Replaces the ticks of these CPUs until the first of each that was seen: one pass for all, since
/// there may be millions of ticks and thousands of CPUs.
fn set_ticks(ticks: &mut Vec<Tick>, unseen: &[Tick], end_ms: u32, first_ms: impl Fn(u16) -> u32) {
    let until_ms: HashMap<u16, u32> = unseen.iter().map(|until| (until.cpu, until.ms)).collect();
    ticks.retain(|tick| until_ms.get(&tick.cpu).is_none_or(|&until_ms| tick.ms >= until_ms));
    for &Tick { ms, cpu } in unseen {
        let last_ms = end_ms.min(ms.saturating_sub(INTERVAL_MS / 2));
        ticks.extend(ticks::from(first_ms(cpu), last_ms).map(|ms| Tick { ms, cpu }));
    }
    ticks.sort_unstable();
}

/// The distance of each CPU's `high` from the kernel's, summed over all that is known of it.
fn high_off(plan: &Plan, before: &Zoneinfo, after: Option<&Zoneinfo>) -> Result<Vec<u64>, Error> {
    let mut off = vec![0; plan.cpus.len()];
    let mut target =
        ThreadTarget::<Spin<Arc<Buddy>>, Product>::new(plan, Some(before), &Variant::default())?;
    let mut seen = plan.highs_seen.iter().peekable();
    play(plan, &mut target, |target, ms| {
        while let Some(seen) = seen.next_if(|seen| seen.ms <= ms) {
            let high = high(target.design(), seen.cpu, ZoneId::new(seen.zone.into()));
            off[usize::from(seen.cpu)] += high.abs_diff(seen.high);
        }
    })?;
    for (zone, info) in (0..).map(ZoneId::new).zip(&before.zones) {
        let same = |other: &&Zone| (other.node, &other.name) == (info.node, &info.name);
        let info = after.and_then(|after| after.zones.iter().find(same));
        for pageset in info.iter().flat_map(|info| &info.pagesets) {
            if let Ok(cpu) = plan.cpus.binary_search(&(pageset.cpu as u16)) {
                off[cpu] += high(target.design(), cpu as u16, zone).abs_diff(pageset.high);
            }
        }
    }
    Ok(off)
}

fn high<S: Store>(design: &Spin<S>, cpu: u16, zone: ZoneId) -> u64 {
    design.high(CpuId::new(cpu.into()), zone).unwrap_or(0).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_replaced_until_the_first_that_was_seen() {
        let of = |ticks: &[(u32, u16)]| -> Vec<Tick> {
            ticks.iter().map(|&(ms, cpu)| Tick { ms, cpu }).collect()
        };
        let seen = [(700, 0), (1700, 0), (2500, 1), (3500, 1), (100, 2)];
        let mut ticks = of(&seen);
        let unseen = of(&[(1700, 0), (u32::MAX, 2)]);
        set_ticks(&mut ticks, &unseen, 3600, |cpu| 300 + u32::from(cpu));
        let fitted = [(300, 0), (302, 2), (1302, 2), (1700, 0), (2302, 2), (2500, 1), (3302, 2)];
        assert_eq!(ticks, of(&[&fitted[..], &[(3500, 1)]].concat()));
    }
}
