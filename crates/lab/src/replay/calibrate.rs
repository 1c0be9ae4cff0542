//! When CPUs ticked whose ticks the recording does not show.
//!
//! A tick that finds nothing to return leaves no event, but it lowers `high` by an eighth, and the
//! zoneinfo from after the recording tells `high`. So the time of a CPU's first tick is looked for
//! with which mainline's policy ends nearest to that. Nothing else of that file is looked at:
//! what is cached, refilled and spilled remains to be compared.

use pagedepot::{CpuId, ZoneId};

use super::contender::{MakeError, Variants, spin};
use super::engine::play;
use super::plan::Plan;
use super::runner::{Error, Zoneinfos};
use super::ticks::{self, INTERVAL_MS, Tick};

/// Times tried.
const CANDIDATES: u32 = 40;

/// The plan with ticks where they explain the recorded `high` best, if both zoneinfos are there.
///
/// # Errors
/// When the machine cannot be made, or runs out of pages.
pub fn calibrated(plan: &Plan, zoneinfos: &Zoneinfos) -> Result<Plan, Error> {
    let mut plan = plan.clone();
    if zoneinfos.before.is_none() || zoneinfos.after.is_none() || plan.ticks_unseen.is_empty() {
        return Ok(plan);
    }
    let span = plan.end_ms.min(INTERVAL_MS);
    // The last one is behind the end of short recordings: no tick at all.
    let candidates: Vec<u32> = (1..=CANDIDATES).map(|n| span * n / CANDIDATES + 1).collect();
    let mut best = vec![(u64::MAX, 0); plan.cpus.len()];
    for &first_ms in &candidates {
        let all: Vec<_> = plan.ticks_unseen.iter().map(|&cpu| (cpu, first_ms)).collect();
        set_ticks(&mut plan, &all);
        for (best, off) in best.iter_mut().zip(high_off(&plan, zoneinfos)?) {
            *best = (*best).min((off, first_ms));
        }
    }
    let chosen: Vec<_> = plan.ticks_unseen.iter().map(|&cpu| (cpu, best[usize::from(cpu)].1)).collect();
    set_ticks(&mut plan, &chosen);
    plan.ticks_fitted = chosen.iter().map(|&(cpu, ms)| Tick { ms, cpu }).collect();
    Ok(plan)
}

/// Replaces the ticks of these CPUs.
fn set_ticks(plan: &mut Plan, firsts: &[(u16, u32)]) {
    plan.ticks.retain(|tick| firsts.iter().all(|&(cpu, _)| cpu != tick.cpu));
    for &(cpu, first_ms) in firsts {
        plan.ticks.extend(ticks::from(first_ms, plan.end_ms).map(|ms| Tick { ms, cpu }));
    }
    plan.ticks.sort_unstable();
}

/// How far each CPU's `high` is from the kernel's when the plan has run, over all zones.
fn high_off(plan: &Plan, zoneinfos: &Zoneinfos) -> Result<Vec<u64>, Error> {
    let before = zoneinfos.before.as_ref();
    let mut target = spin(plan, before, Variants::DEFAULT).map_err(MakeError::from)?;
    play(plan, &mut target)?;
    let mut off = vec![0; plan.cpus.len()];
    let after = zoneinfos.after.iter().flat_map(|after| &after.zones);
    for (zone, info) in (0..).map(ZoneId::new).zip(after) {
        for pageset in &info.pagesets {
            let Ok(cpu) = plan.cpus.binary_search(&(pageset.cpu as u16)) else { continue };
            let high = target.design().high(CpuId::new(cpu as u32), zone).unwrap_or(0);
            off[cpu] += u64::from(high).abs_diff(pageset.high);
        }
    }
    Ok(off)
}
