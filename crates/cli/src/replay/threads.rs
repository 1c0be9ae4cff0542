//! The threads' designs as targets: one thread that acts as every CPU of the trace, on the recorded
//! machine's zones.

use std::marker::PhantomData;
use std::sync::Arc;

use pagedepot::cpus::Here;
use pagedepot::{CacheLimits, CpuId, FrameRange, Mobility, Mode, Order, Pfn, Watermarks, ZoneId};
use pagedepot_designs::{
    Bitmap, Buddy, Census, FreeMap, PageCache, Scope, Setup, SetupError, Spin, Store, ZoneLock,
    ZoneSetup,
};

use super::plan::{InitialBlock, Plan};
use super::target::{ReplayCounts, ReplayTarget, sum};
use crate::design::threads::{FromSetup, ThreadDesign};
use crate::design::variant::{self, Acting, Variant};
use crate::design::{Lineup, Product};
use crate::names::Design;
use pagedepot_trace::{Zone, Zoneinfo};

/// The recorded machine: its zones, with as many frames as were free, cached, or held and freed by
/// the trace; what else was in use is left out, because nothing happens to it. Without a zoneinfo
/// one zone that is large enough, with the kernel's formulas.
///
/// # Errors
/// When frame numbers do not reach to its end.
fn machine(plan: &Plan, before: Option<&Zoneinfo>) -> Result<Setup, SetupError> {
    let cpus = (plan.cpus.len() as u32).max(1);
    let Some(before) = before else {
        let frames = u32::try_from(plan.zone_pages());
        let frames = frames.map_err(|_| SetupError::RangeTooHigh { zone: 0 })?;
        let frames = FrameRange::new(Pfn::new(0), frames);
        return Ok(Setup::new(cpus, vec![ZoneSetup::new("Normal", vec![frames])]));
    };
    let mut held = vec![0; before.zones.len()];
    for known in &plan.before.held {
        held[usize::from(known.zone)] += u64::from(known.order.frames());
    }
    let mut start = 0_u32;
    let zones = before.zones.iter().zip(held).enumerate().map(|(nth, (zone, held))| {
        let too_high = || SetupError::RangeTooHigh { zone: nth };
        let frames = u32::try_from(zone.free + zone.cached() + held).map_err(|_| too_high())?;
        let range = FrameRange::new(Pfn::new(start), frames);
        let end = frames.checked_next_multiple_of(Order::MAX.frames());
        start = end.and_then(|frames| start.checked_add(frames)).ok_or_else(too_high)?;
        Ok(zone_setup(zone, range))
    });
    Ok(Setup::new(cpus, zones.collect::<Result<_, SetupError>>()?))
}

fn zone_setup(zone: &Zone, frames: FrameRange) -> ZoneSetup {
    let limits = zone.pagesets.first().map(|pageset| CacheLimits {
        batch: pageset.batch.max(1),
        high_min: pageset.high_min.unwrap_or(pageset.high),
        high_max: pageset.high_max.unwrap_or(pageset.high),
    });
    ZoneSetup {
        watermarks: Some(Watermarks { min: zone.min, low: zone.low, high: zone.high }),
        limits,
        // Against requests for the highest zone of the node, or for one above it without pages.
        protection: zone.protection.last().copied().unwrap_or(0),
        ..ZoneSetup::new(&zone.name, if frames.frames > 0 { vec![frames] } else { Vec::new() })
    }
}

/// Gives each CPU of `spin` the lists and the `high` that it had on the recorded machine.
fn preload<S: Store>(spin: &Spin<S>, plan: &Plan, before: Option<&Zoneinfo>) {
    for (zone, info) in (0..).map(ZoneId::new).zip(before.iter().flat_map(|before| &before.zones)) {
        for pageset in &info.pagesets {
            if let Ok(cpu) = plan.cpus.binary_search(&(pageset.cpu as u16)) {
                // The limits of the zone hold for it, too.
                let high = u32::try_from(pageset.high).unwrap_or(u32::MAX);
                spin.set_high(CpuId::new(cpu as u32), zone, high);
            }
        }
    }
    for cached in &plan.before.cached {
        let (cpu, zone) = (CpuId::new(cached.cpu.into()), ZoneId::new(cached.zone.into()));
        spin.preload(cpu, zone, cached.order, cached.mobility, cached.blocks);
    }
}

/// The calls of a replay to a design besides [`PageCache`]. `L` is the [`Lineup`] that has it.
pub trait Replays<L>: PageCache {
    /// Begins where the recorded machine was, if the design has lists as the kernel has.
    fn begin(&self, plan: &Plan, before: Option<&Zoneinfo>) {
        let _ = (plan, before);
    }

    /// Does `work` in an interrupt that came while `cpu` moved pages of `zone`. Most designs have
    /// interrupts off then, so that it comes a little later and finds nothing special.
    fn nested(&self, cpu: CpuId, zone: ZoneId, work: impl FnOnce()) {
        let _ = (cpu, zone);
        work();
    }
}

impl<S: Store, L> Replays<L> for Spin<S> {
    fn begin(&self, plan: &Plan, before: Option<&Zoneinfo>) {
        preload(self, plan, before);
    }

    fn nested(&self, cpu: CpuId, zone: ZoneId, work: impl FnOnce()) {
        self.while_locked(cpu, zone, work);
    }
}

impl<S: Store, L> Replays<L> for ZoneLock<S> {}

/// The designs, besides the depot, that a command can replay into.
pub trait ReplayLineup: Lineup + Default + 'static {
    /// Hands on the type of a design over the store of this kind, or gives `user` back where the
    /// design is none of the threads'.
    fn with_cache<U: CacheUser<Self>>(
        &self,
        design: Design,
        store: variant::Store,
        user: U,
    ) -> Result<U::Output, U>;
}

/// The code that is compiled for each design.
pub trait CacheUser<L> {
    /// The result of the use.
    type Output;

    /// Uses the type.
    fn with<C: ThreadDesign<L, Store: FromSetup + Clone> + Replays<L>>(self) -> Self::Output;
}

impl ReplayLineup for Product {
    fn with_cache<U: CacheUser<Self>>(
        &self,
        design: Design,
        store: variant::Store,
        user: U,
    ) -> Result<U::Output, U> {
        match (design, store) {
            (Design::ZoneLock, _) => Ok(user.with::<ZoneLock<Arc<Buddy>>>()),
            (Design::Spin, variant::Store::Buddy) => Ok(user.with::<Spin<Arc<Buddy>>>()),
            (Design::Spin, variant::Store::Bitmap) => Ok(user.with::<Spin<Arc<Bitmap>>>()),
            _ => Err(user),
        }
    }
}

/// A design and the store under it.
pub struct ThreadTarget<D: ThreadDesign<L>, L> {
    design: D,
    store: D::Store,
    cpus: u32,
    lineup: PhantomData<fn() -> L>,
}

impl<D: ThreadDesign<L, Store: FromSetup + Clone> + Replays<L>, L> ThreadTarget<D, L> {
    /// Makes the design on the plan's machine.
    ///
    /// # Errors
    /// When the machine is larger than frame numbers reach.
    pub fn new(
        plan: &Plan,
        before: Option<&Zoneinfo>,
        variant: &Variant,
    ) -> Result<Self, SetupError> {
        let store = D::Store::from_setup(&machine(plan, before)?)?;
        let design = D::over(store.clone(), variant, Acting::Alone)?;
        design.begin(plan, before);
        let cpus = store.zones().cpus();
        Ok(ThreadTarget { design, store, cpus, lineup: PhantomData })
    }

    /// The design under the target.
    pub fn design(&self) -> &D {
        &self.design
    }
}

/// Always a task: the trace does not tell interrupts apart, either.
fn here(cpu: CpuId) -> Here {
    Here::task(cpu)
}

impl<D: ThreadDesign<L> + Replays<L>, L> ReplayTarget for ThreadTarget<D, L> {
    fn tick(&mut self, cpu: CpuId) {
        self.design.tick(here(cpu));
    }

    /// Takes the blocks from the store directly, past the design.
    fn hold(&mut self, blocks: &[InitialBlock]) -> Option<Vec<Pfn>> {
        let take = |known: &InitialBlock| {
            let (zone, mut found) = (ZoneId::new(known.zone.into()), None);
            self.store.take(here(CpuId::new(0)), zone, known.order, known.mobility, 1, |pfn| {
                found = Some(pfn);
                false
            });
            found
        };
        blocks.iter().map(take).collect()
    }

    #[inline]
    fn alloc(&mut self, cpu: CpuId, zone: ZoneId, order: Order, mobility: Mobility) -> Option<Pfn> {
        self.design.alloc_from(here(cpu), zone, order, mobility)
    }

    #[inline]
    fn free(&mut self, cpu: CpuId, pfn: Pfn, order: Order) {
        self.design.free(here(cpu), pfn, order);
    }

    fn free_nested(&mut self, cpu: CpuId, zone: ZoneId, pfn: Pfn, order: Order) {
        self.design.nested(cpu, zone, || self.design.free(here(cpu), pfn, order));
    }

    fn free_many(&mut self, cpu: CpuId, blocks: &[(Pfn, Order)]) {
        self.design.free_many(here(cpu), blocks);
    }

    fn halve(&mut self, pfn: Pfn, order: Order) {
        self.design.split(pfn, order);
    }

    fn counts(&self) -> ReplayCounts {
        let counts = self.design.counts();
        let (allocated, freed) = (counts.direct_allocated, counts.direct_freed);
        ReplayCounts {
            refilled: sum(counts.refilled, allocated),
            spilled: sum(sum(counts.spilled, counts.drained), freed),
            drained: counts.drained,
            direct_allocated: allocated,
            direct_freed: freed,
            cached_pages: (0..self.cpus)
                .map(|cpu| self.design.cached_pages(CpuId::new(cpu)))
                .collect(),
            ..ReplayCounts::default()
        }
    }

    fn cached_pages_total(&self) -> u64 {
        self.design.cached_pages_total()
    }

    fn free_map(&self) -> Result<FreeMap, String> {
        self.design.free_map().map_err(|fault| fault.to_string())
    }

    fn census(&mut self) -> Result<Census, String> {
        let mut census = self.design.validate().map_err(|fault| fault.to_string())?;
        census.cached_pages += std::mem::take(&mut census.pending_pages);
        Ok(census)
    }

    /// Drains all caches; all owners tick and idle after each drain, because some designs leave
    /// their caches to them.
    fn drain_all(&mut self) {
        for _ in 0..3 {
            self.design.drain(Scope::ALL, Mode::Full);
            for cpu in (0..self.cpus).map(CpuId::new) {
                self.design.tick(here(cpu));
                self.design.idle(here(cpu));
            }
        }
        self.design.drain(Scope::ALL, Mode::Full);
    }
}
