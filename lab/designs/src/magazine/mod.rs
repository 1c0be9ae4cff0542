//! Magazines that CPUs share, each behind a spinlock: the prototype of 2013.
//!
//! A zone has a few magazines of single frames. A CPU prefers one by its number. An allocation goes
//! round from the preferred one and takes the first that has pages and whose lock is free. If there
//! is none it waits for the first with pages, and if all are empty it refills. A free waits for the
//! preferred one's lock. Callers in interrupt context use the zone lock. Magazine locks are not
//! safe for them, which is why these locks are cheap. Blocks of higher orders go to the store.
//!
//! Batches as in the prototype: refill 384, spill 64 beyond 1024, both cut short after 16 when the
//! lock is contended.
//!
//! From the thread's ideas for later: a process that allocates much gets a magazine of its own
//! ([`ProcessMagazine`]), chained so that drains of all CPUs find it.

mod mag;
mod process;

use std::sync::Arc;

use pagedepot::cpus::{Context, Here};
use pagedepot::{CpuId, Mobility, Mode, Order, Pfn, ZoneId};

use mag::{Batch, Mag, MagGuard, ProcessMags};
use pagedepot_designs::PageCache;
use pagedepot_designs::census::{Census, Fault, agree};
use pagedepot_designs::counters::Counters;
use pagedepot_designs::frames::{Frames, List};
use pagedepot_designs::lock::LockWaits;
use pagedepot_designs::prim::{Mutex, Padded, count, lock_mutex};
use pagedepot_designs::report::{Counts, DrainResult, Scope, Volume};
use pagedepot_designs::setup::SetupError;
use pagedepot_designs::store::Store;
use pagedepot_designs::taking::{CensusWalk, take_census};
use pagedepot_designs::walk::{self, Layer, ZoneRequest};
use pagedepot_designs::zones::Mark;
pub use process::ProcessMagazine;

/// The prototype's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MagazineOptions {
    /// Magazines per zone.
    pub magazines: u32,
    /// Pages from which on a magazine spills.
    pub limit: u32,
    /// Pages of a refill.
    pub refill: u32,
    /// Pages of a spill.
    pub spill: u32,
    /// Pages after which a refill or a spill ends if another thread waits for its lock.
    pub min_batch: u32,
}

impl Default for MagazineOptions {
    fn default() -> Self {
        MagazineOptions { magazines: 2, limit: 1024, refill: 384, spill: 64, min_batch: 16 }
    }
}

/// A few magazines per zone.
pub struct Magazine<S> {
    store: S,
    options: MagazineOptions,
    /// Low bits of a CPU's number that its preference ignores.
    preference_shift: u32,
    /// `[zone][magazine]`.
    magazines: Box<[Padded<Mag>]>,
    chain: Mutex<Vec<Arc<ProcessMags>>>,
    outside: Counters,
}

impl<S: Store> Magazine<S> {
    /// Magazines over this store.
    ///
    /// # Errors
    /// An option is out of range.
    pub fn new(store: S, options: MagazineOptions) -> Result<Self, SetupError> {
        let sane =
            options.magazines > 0 && options.refill > 0 && options.spill > 0 && options.limit > 0;
        if !sane || options.magazines > 1 << 16 || options.limit > 1 << 30 {
            return Err(SetupError::Option(
                "magazines (at most 65536), limit (at most 2^30), refill and spill must be at \
                 least 1",
            ));
        }
        let zones = store.zones().count();
        // The prototype ignores the lowest bit, so that siblings share a magazine. With too few
        // CPUs for that, all would prefer the first one.
        let preference_shift = u32::from(store.zones().cpus() >= 2 * options.magazines);
        Ok(Magazine {
            magazines: Mag::all(zones, options.magazines),
            preference_shift,
            options,
            chain: Mutex::new(Vec::new()),
            outside: Counters::default(),
            store,
        })
    }

    /// The store.
    pub fn store(&self) -> &S {
        &self.store
    }

    /// Makes a magazine for a process that allocates much.
    pub fn process(&self) -> ProcessMagazine<'_, S> {
        let mags = Arc::new(ProcessMags(Mag::all(self.store.zones().count(), 1)));
        lock_mutex(&self.chain).push(Arc::clone(&mags));
        ProcessMagazine { shared: self, mags }
    }

    fn frames(&self) -> &Frames {
        self.store.zones().frames()
    }

    #[inline]
    fn of_zone(&self, zone: ZoneId) -> &[Padded<Mag>] {
        let each = self.options.magazines as usize;
        &self.magazines[zone.index() * each..][..each]
    }

    #[inline]
    fn preference(&self, cpu: CpuId) -> usize {
        (cpu.index() >> self.preference_shift) % self.options.magazines as usize
    }

    #[inline]
    fn preferred(&self, cpu: CpuId, zone: ZoneId) -> &Mag {
        &self.of_zone(zone)[self.preference(cpu)]
    }

    /// A zone's magazines, beginning with the preferred one.
    #[inline]
    fn round(&self, cpu: CpuId, zone: ZoneId) -> impl Iterator<Item = &Mag> {
        let (before, from) = self.of_zone(zone).split_at(self.preference(cpu));
        from.iter().chain(before).map(|mag| &mag.0)
    }

    /// Locks a magazine that has pages.
    #[inline]
    fn lock_filled(&self, cpu: CpuId, zone: ZoneId) -> Option<MagGuard<'_>> {
        // Racy looks; they are repeated under the lock.
        let filled = || self.round(cpu, zone).filter(|mag| mag.pages.look() > 0);
        filled().find_map(Mag::try_lock).or_else(|| filled().next().map(Mag::lock))
    }

    /// Locks the first magazine that is free, or waits for the preferred one.
    fn lock_any(&self, cpu: CpuId, zone: ZoneId) -> MagGuard<'_> {
        self.round(cpu, zone)
            .find_map(Mag::try_lock)
            .unwrap_or_else(|| self.preferred(cpu, zone).lock())
    }

    /// Takes a batch from the store, and counts it in `mag`'s counters.
    fn fetch(
        &self,
        here: Here,
        zone: ZoneId,
        mobility: Mobility,
        mark: Mark,
        mag: &Mag,
    ) -> Option<Batch> {
        let metadata = self.store.zones().zone(zone);
        if !metadata.may_take(self.store.free_pages(zone), Order::BASE, mark) {
            return None;
        }
        let frames = self.frames();
        let mut batch = Batch { list: List::new(), pages: 0 };
        self.store.take(here, zone, Order::BASE, mobility, self.options.refill, |pfn| {
            batch.list.push_back(frames, frames.slot(pfn));
            batch.pages += 1;
            batch.pages <= self.options.min_batch || !self.store.is_contended(zone)
        });
        count(&mag.counters.refills, 1);
        let pages = u64::from(batch.pages);
        mag.counters.refilled.add(Volume { blocks: pages, pages });
        (batch.pages > 0).then_some(batch)
    }

    /// Spills from a magazine above its limit. Cold pages are taken under its lock, and given to
    /// the store after the lock is dropped. One call that frees many pages may exceed the limit by
    /// far.
    fn trim(&self, here: Here, zone: ZoneId, held: MagGuard<'_>, last: Mobility) {
        let mag = held.mag;
        let Some(over) = mag.pages.get().checked_sub(self.options.limit) else { return };
        let pages = over.max(self.options.spill);
        let batch = held.take_coldest(self.frames(), last, pages, self.options.min_batch);
        drop(held);
        let frames = self.frames();
        mag.counters.spilled.add(self.store.give(here, zone, batch.blocks(frames)));
        self.store.zones().zone(zone).note_freed(self.store.free_pages(zone));
    }

    fn empty(&self, here: Here, zone: ZoneId, mag: &Mag) -> u64 {
        if mag.pages.look() == 0 {
            return 0;
        }
        let held = mag.lock();
        let all = held.mag.pages.get();
        let batch = held.take_coldest(self.frames(), Mobility::Reclaimable, all, u32::MAX);
        drop(held);
        let volume = self.store.give(here, zone, batch.blocks(self.frames()));
        mag.counters.drained.add(volume);
        volume.pages
    }

    fn drain_by(&self, here: Here, scope: Scope) -> DrainResult {
        count(&self.outside.drains, 1);
        let mut done = DrainResult::default();
        for zone in scope.zones(self.store.zones()) {
            for (at, mag) in self.of_zone(zone).iter().enumerate() {
                if scope.cpu.is_none_or(|cpu| self.preference(cpu) == at) {
                    done.taken_pages += self.empty(here, zone, mag);
                    done.left_pages += u64::from(mag.pages.look());
                }
            }
            if scope.cpu.is_none() {
                for process in lock_mutex(&self.chain).iter() {
                    let mag = &process.0[zone.index()];
                    done.taken_pages += self.empty(here, zone, mag);
                    done.left_pages += u64::from(mag.pages.look());
                }
            }
        }
        done
    }

    /// Whether this request may use magazines: single frames, outside interrupt context.
    #[inline]
    fn uses_magazines(here: Here, order: Order) -> bool {
        order == Order::BASE && here.context == Context::Task
    }

    fn take_cached(&self, here: Here, zone: ZoneId, mobility: Mobility, mark: Mark) -> Option<Pfn> {
        let frames = self.frames();
        if let Some(held) = self.lock_filled(here.cpu, zone)
            && let Some(pfn) = held.pop(frames, mobility)
        {
            return Some(pfn);
        }
        let batch = self.fetch(here, zone, mobility, mark, self.preferred(here.cpu, zone))?;
        let held = self.lock_any(here.cpu, zone);
        held.splice(frames, batch, mobility);
        held.pop(frames, mobility)
    }

    fn all_mags<R>(&self, mut visit: impl FnMut(ZoneId, &Mag) -> Result<(), R>) -> Result<(), R> {
        for zone in self.store.zones().ids() {
            self.of_zone(zone).iter().try_for_each(|mag| visit(zone, mag))?;
            for process in lock_mutex(&self.chain).iter() {
                visit(zone, &process.0[zone.index()])?;
            }
        }
        Ok(())
    }

    fn check(&self, taking: &mut CensusWalk<'_>) -> Result<(), Fault> {
        let frames = self.frames();
        self.all_mags(|zone, mag| {
            let mut pages = 0;
            for list in &mag.lists {
                for slot in list.iter(frames, u32::MAX as usize) {
                    taking.cached_block(zone, frames.pfn(slot), Order::BASE)?;
                    pages += 1;
                }
            }
            agree("pages of a magazine", u64::from(mag.pages.get()), pages)
        })
    }
}

impl<S: Store> Layer for Magazine<S> {
    type Store = S;

    #[inline]
    fn store(&self) -> &S {
        &self.store
    }

    #[inline]
    fn take_from(&self, here: Here, request: ZoneRequest) -> Option<Pfn> {
        let ZoneRequest { zone, order, mobility, mark } = request;
        if Self::uses_magazines(here, order)
            && let Some(pfn) = self.take_cached(here, zone, mobility, mark)
        {
            return Some(pfn);
        }
        walk::take_direct(self, here, request)
    }

    fn drain_for(&self, here: Here) {
        self.drain_by(here, Scope::ALL);
    }

    fn counters(&self, here: Here, zone: ZoneId) -> &Counters {
        &self.preferred(here.cpu, zone).counters
    }
}

impl<S: Store> PageCache for Magazine<S> {
    fn name(&self) -> &'static str {
        "magazine"
    }

    walk::walks_zones!();

    #[inline]
    fn free(&self, here: Here, pfn: Pfn, order: Order) {
        let (zone, mobility) = self.store.zones().place(pfn, order);
        if !Self::uses_magazines(here, order) {
            return walk::give_direct(self, here, zone, pfn, order);
        }
        let held = self.preferred(here.cpu, zone).lock();
        held.push(self.frames(), pfn, mobility);
        if held.mag.pages.get() >= self.options.limit {
            self.trim(here, zone, held, mobility);
        }
    }

    /// Consecutive single frames of one zone go in under one hold of the preferred lock. What is
    /// then above the limit goes to the zone under one hold of the zone lock.
    fn free_many(&self, here: Here, blocks: &[(Pfn, Order)]) {
        let mut held: Option<(ZoneId, Mobility, MagGuard<'_>)> = None;
        for &(pfn, order) in blocks {
            let (zone, mobility) = self.store.zones().place(pfn, order);
            let uses_magazines = Self::uses_magazines(here, order);
            if let Some((its, last, guard)) =
                held.take_if(|(its, ..)| *its != zone || !uses_magazines)
            {
                self.trim(here, its, guard, last);
            }
            if uses_magazines {
                let guard = match held.take() {
                    Some((_, _, guard)) => guard,
                    None => self.preferred(here.cpu, zone).lock(),
                };
                guard.push(self.frames(), pfn, mobility);
                held = Some((zone, mobility, guard));
            } else {
                walk::give_direct(self, here, zone, pfn, order);
            }
        }
        if let Some((zone, last, guard)) = held {
            self.trim(here, zone, guard, last);
        }
    }

    fn drain(&self, scope: Scope, _mode: Mode) -> DrainResult {
        self.drain_by(Here::task(CpuId::new(0)), scope)
    }

    fn counts(&self) -> Counts {
        let mut sum = Counts::default();
        let mut waits = LockWaits::default();
        let _ = self.all_mags(|_, mag| {
            mag.counters.add_to(&mut sum);
            waits += mag.lock.waits();
            Ok::<(), ()>(())
        });
        self.outside.add_to(&mut sum);
        sum.zone_lock = self.store.lock_waits();
        sum.cache_lock = waits;
        sum
    }

    fn cached_pages(&self, cpu: CpuId) -> u64 {
        let first = self
            .store
            .zones()
            .cpu_ids()
            .find(|&other| self.preference(other) == self.preference(cpu));
        if first != Some(cpu) {
            return 0;
        }
        self.store.zones().ids().map(|zone| u64::from(self.preferred(cpu, zone).pages.look())).sum()
    }

    fn cached_pages_total(&self) -> u64 {
        let mut pages = 0;
        let _ = self.all_mags(|_, mag| {
            pages += u64::from(mag.pages.look());
            Ok::<(), ()>(())
        });
        pages
    }

    fn validate(&mut self) -> Result<Census, Fault> {
        take_census(&self.store, |taking| self.check(taking))
    }
}
