//! Purges: taking back what was freed.
//!
//! A purge takes the lazy areas of all nodes and a part of what is pooled, and sorts them by
//! address. It unmaps them, flushes once, and gives back the page tables that are left empty and
//! the frames (`retire.rs`). Then it hands the areas to the pools, up to their limits, and the rest
//! to the free address space.
//!
//! A purge may interrupt every CPU that uses the mappings: it belongs to full drains, never to
//! quiet ones.
//!
//! # Under memory pressure
//! A request for frames may come at any moment: in a signal handler above a purge, for example, or
//! above code that holds the space's lock. So may a free, whose purge is due. So a purge on their
//! behalf waits in bounds ([`Lock::lock_within`]). If it cannot have the purge lock, it frees
//! nothing. If it cannot have the space's lock, it has freed the frames, and returns the addresses
//! to the lazy lists, with nothing mapped: the next purge hands them on.

pub mod retire;

use crate::config::PurgeBy;
use crate::error::MapError;
use crate::lock::{LockGuard, Waits};
use crate::metadata::area::{AreaIndex, State};
use crate::metadata::batch::{Batch, Queue};
use crate::model::{Mutant, leaves_out};
use crate::node::pool::Pool;
use crate::node::{Node, Row};
use crate::purge::retire::Retirement;
use crate::seams::host::Host;
use crate::seams::mapper::Mapper;
use crate::space::spares::Supply;
use crate::space::transfer::{ReturnList, make_area};
use crate::state::VmapState;
use crate::undo::Undo;
use pagedepot::Pressure;
use pagedepot::sync::count;

/// Areas returned to the free address space in one acquisition of its lock.
const GIVE_BACK_BATCH: usize = 8;
/// Largest number of areas taken from a pool: bounds a purge of a pool that other threads fill.
const COLLECTED_MAX: u32 = 1 << 16;

/// The extent of a purge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PurgeDepth {
    /// Takes back lazy areas only. Afterwards nothing is mapped that
    /// [`vunmap`](crate::Vmap::vunmap) or [`vm_unmap_ram`](crate::Vmap::vm_unmap_ram) freed before
    /// the call (Linux: `vm_unmap_aliases`).
    Lazy,
    /// Takes back lazy areas, and a quarter of each pool: the regular purge.
    Decay,
    /// Takes back lazy areas and whole pools.
    Everything,
}

/// The result of a purge.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PurgeResult {
    /// Areas taken from lazy lists and pools.
    pub areas: u64,
    /// Frames returned to the page allocator.
    pub frames: u64,
    /// Page tables given back.
    pub tables: u64,
    /// Areas that could not be unmapped, and stay lazy.
    pub stuck_areas: u64,
    /// The error that kept the first of them from being unmapped.
    pub error: Option<MapError>,
}

impl<M: Mapper, H: Host> VmapState<'_, M, H> {
    /// Takes back what was freed. Waits for a purge that is under way.
    pub fn purge(&self, depth: PurgeDepth) -> PurgeResult {
        self.purge_as(depth, Waits::Long).unwrap_or_default()
    }

    /// Takes back what was freed. `None`: the purge lock did not come free while the caller
    /// `waits`, or this process may not purge.
    fn purge_as(&self, depth: PurgeDepth, waits: Waits) -> Option<PurgeResult> {
        self.host().check_usable().ok()?;
        let purging = self.begin(waits)?;
        Some(self.purge_locked(&purging, depth, waits))
    }

    /// The purge lock, if it comes free while the caller `waits`.
    pub fn begin(&self, waits: Waits) -> Option<LockGuard<'_, H>> {
        self.purge_lock().lock_as(self.host(), waits)
    }

    /// Purges for the page allocator: first what is lazy and a quarter of the pools; then, if that
    /// is too little or the request is about to fail, everything. Returns the number of frames.
    pub fn reclaim(&self, pressure: Pressure) -> u64 {
        let purge = |depth| self.purge_as(depth, Waits::InBounds).map(|purged| purged.frames);
        let mut frames = 0;
        if !pressure.is_last_resort {
            let Some(decayed) = purge(PurgeDepth::Decay) else { return 0 };
            frames += decayed;
        }
        if frames < pressure.wanted_pages {
            frames += purge(PurgeDepth::Everything).unwrap_or(0);
        }
        frames
    }

    /// Takes care of a freed area that its pool had no room for: raises the pool's limit, or makes
    /// the area lazy. If a purge is due and the caller `may_wait`, it runs now.
    #[cold]
    pub fn put_aside(&self, index: AreaIndex, may_wait: bool) {
        let (nodes, areas) = (self.nodes(), self.areas());
        if nodes.keep(areas, index) {
            return;
        }
        let undo = Undo(|| _ = self.make_lazy(index));
        while let Some(evicted) = nodes.evict_for(areas, index) {
            // Before the area is kept: a purge takes a part of what the pools keep.
            if self.make_lazy(evicted) {
                self.purge_if_due(may_wait);
            }
        }
        undo.forget();
        if !nodes.keep(areas, index) && self.make_lazy(index) {
            self.purge_if_due(may_wait);
        }
    }

    /// Leaves a held area to the next purge; returns whether that may be due.
    pub fn make_lazy(&self, index: AreaIndex) -> bool {
        let area = self.area(index);
        let pages = area.pages();
        self.mappings().quarantine(self.host(), area);
        count(&self.nodes().of_area(area).counters().lazy_areas, 1);
        let lazy_pages = self.nodes().push_lazy(self.areas(), index);
        // A look at all nodes is worth it once per quarter of this node's share.
        let nodes = self.nodes().iter().len() as u64;
        let step = (self.lazy_pages_max() / nodes / 4).max(1);
        let is_grown = lazy_pages / step != lazy_pages.wrapping_sub(u64::from(pages)) / step;
        is_grown && lazy_pages >= self.lazy_pages_max() / nodes
    }

    /// Purges if that is due and the caller `may_wait`, or leaves it to a helper. May panic.
    #[cold]
    pub fn purge_if_due(&self, may_wait: bool) {
        let (host, nodes) = (self.host(), self.nodes());
        let lazy_pages = nodes.lazy_pages();
        if lazy_pages < self.lazy_pages_max() || host.check_usable().is_err() {
            return;
        }
        let is_behind = lazy_pages >= 2 * self.lazy_pages_max();
        let wants_helper = self.purge_by() == PurgeBy::Helper;
        if wants_helper || !may_wait {
            host.purge_wanted();
        }
        if !may_wait || wants_helper && !is_behind {
            return;
        }
        // A purge under way serves this thread, too. But where purges fall behind, threads that
        // free wait for them: otherwise the number of lazy pages would have no bound. In bounds:
        // this may be a signal handler above a holder of the lock.
        let waits = if is_behind { Waits::InBounds } else { Waits::Never };
        if let Some(purging) = self.begin(waits)
            && nodes.lazy_pages() >= self.lazy_pages_max()
        {
            self.purge_locked(&purging, PurgeDepth::Decay, Waits::InBounds);
        }
    }

    fn purge_locked(
        &self,
        purging: &LockGuard<'_, H>,
        depth: PurgeDepth,
        waits: Waits,
    ) -> PurgeResult {
        let mut batch = Batch::EMPTY;
        for node in self.nodes().iter() {
            // Pools first: see the argument on aliases in `retire.rs`.
            if depth != PurgeDepth::Lazy && !leaves_out(Mutant::PoolsFirst) {
                self.collect_pools(node, depth, &mut batch);
            }
            self.collect_lazy(node, depth, &mut batch);
            if leaves_out(Mutant::PoolsFirst) {
                self.collect_pools(node, depth, &mut batch);
            }
        }
        let takes_stray_tables = depth == PurgeDepth::Everything;
        if batch.len() == 0 && !takes_stray_tables {
            return PurgeResult::default();
        }
        count(&self.counters().purges, 1);
        batch.sort(self.areas());
        let retirement = Retirement::new(self, purging);
        let undo = Undo(|| _ = self.hand_on(batch, None, Waits::Never));
        let mut retired = retirement.retire(batch);
        undo.forget();
        if takes_stray_tables {
            retired.tables += retirement.release_stray_tables();
        }
        PurgeResult {
            areas: batch.len(),
            frames: retired.frames,
            tables: retired.tables,
            error: retired.error,
            stuck_areas: self.hand_on(batch, None, waits),
        }
    }

    /// Takes the mappings of one held area away, together with all that is lazy. `false`: it could
    /// not be unmapped. The caller holds the purge lock, and `waits` for others.
    pub fn retire_now(&self, purging: &LockGuard<'_, H>, index: AreaIndex, waits: Waits) -> bool {
        let mut batch = Batch::EMPTY;
        for node in self.nodes().iter() {
            self.collect_lazy(node, PurgeDepth::Lazy, &mut batch);
        }
        batch.push(self.areas(), index);
        batch.sort(self.areas());
        let undo = Undo(|| _ = self.hand_on(batch, None, Waits::Never));
        Retirement::new(self, purging).retire(batch);
        undo.forget();
        let is_retired = !self.area(index).is_stuck();
        self.hand_on(batch, Some(index), waits);
        is_retired
    }

    fn collect_lazy(&self, node: &Node, depth: PurgeDepth, batch: &mut Batch) {
        let mut taken_pages = 0;
        let mut rest = node.lazy().take_all();
        while let Some(index) = rest {
            let area = self.area(index);
            rest = area.next();
            taken_pages += u64::from(area.pages());
            let word = area.word();
            let may_refill = depth != PurgeDepth::Everything && !word.is_retiring();
            area.set_word(if may_refill { word.in_state(State::Held) } else { word.retiring() });
            batch.push(self.areas(), index);
        }
        node.lazy().subtract_pages(taken_pages);
    }

    fn collect_pools(&self, node: &Node, depth: PurgeDepth, batch: &mut Batch) {
        for pools in [node.cold(), node.warm()] {
            for (pages, pool) in pools.iter() {
                let taken = self.collect_pool(node, pool, depth, batch);
                pools.lower_limit(pages, taken);
            }
        }
        for (pages, pool) in node.large().iter() {
            let taken = self.collect_pool(node, pool, depth, batch);
            node.large().lower_limit(pages, taken);
        }
    }

    /// Takes areas out of a pool; returns by how many to lower its limit.
    fn collect_pool(&self, node: &Node, pool: &Pool, depth: PurgeDepth, batch: &mut Batch) -> u32 {
        let wanted = match depth {
            PurgeDepth::Everything => u32::MAX,
            // Rounded up, so that areas that no request takes come back in the end.
            _ => pool.count().div_ceil(4),
        };
        let mut taken = 0;
        while taken < wanted.min(COLLECTED_MAX) {
            let Some(index) = pool.pop(self.areas(), |_| true) else { break };
            let area = self.area(index);
            self.mappings().quarantine(self.host(), area);
            area.set_word(area.word().retiring());
            batch.push(self.areas(), index);
            taken += 1;
        }
        if taken > 0 {
            count(&node.counters().decayed_areas, u64::from(taken));
        }
        if depth == PurgeDepth::Everything { pool.limit().max(taken) } else { taken }
    }

    /// Hands on the areas of a batch, but for `except`: stuck ones to the lazy lists, others to the
    /// pools and to the free address space. Returns the number of stuck ones.
    fn hand_on(&self, batch: Batch, except: Option<AreaIndex>, waits: Waits) -> u64 {
        let (areas, nodes) = (self.areas(), self.nodes());
        let mut stuck_areas = 0;
        let (mut row, mut returned): (Option<Row>, _) = (None, Queue::default());
        let mut rest = batch.first();
        while let Some(index) = rest {
            let area = &areas[index];
            rest = area.next();
            if Some(index) == except {
                continue;
            }
            if area.is_stuck() {
                stuck_areas += 1;
                nodes.push_lazy(areas, index);
                continue;
            }
            if row.as_mut().is_some_and(|row| row.append(areas, index)) {
                continue;
            }
            self.refill(row, &mut returned);
            row = Row::new(areas, index);
            if row.is_none() {
                returned.append(areas, index);
            }
        }
        self.refill(row, &mut returned);
        self.give_back_all(returned.first(), waits);
        stuck_areas
    }

    /// Puts areas into their pool, all or as many as it has room for; the rest into `returned`.
    fn refill(&self, row: Option<Row>, returned: &mut Queue) {
        let (areas, nodes) = (self.areas(), self.nodes());
        let Some(row) = row.filter(|row| !nodes.refill(areas, row)) else { return };
        if row.count == 1 {
            returned.append(areas, row.first);
            return;
        }
        let mut rest = Some(row.first);
        while let Some(index) = rest {
            rest = areas[index].next();
            if !Row::new(areas, index).is_some_and(|one| nodes.refill(areas, &one)) {
                returned.append(areas, index);
            }
        }
    }

    /// Returns areas, in ascending order, to the free address space. Tries their pools once more
    /// before: a thread that has emptied one meanwhile then need not come to the space, too. If the
    /// space's lock does not come free while the caller `waits`, the rest becomes lazy.
    pub fn give_back_all(&self, first: Option<AreaIndex>, mut waits: Waits) {
        let mut rest = first;
        while rest.is_some() {
            let mut returned = ReturnList::default();
            for _ in 0..GIVE_BACK_BATCH {
                let Some(index) = rest else { break };
                rest = self.area(index).next();
                let row = Row::new(self.areas(), index);
                if !row.is_some_and(|row| self.nodes().refill(self.areas(), &row)) {
                    returned.add(self.directory(), index);
                }
            }
            // The pools may have had room for all.
            if returned.is_empty() {
                continue;
            }
            let space = self.space();
            let spare = match space.lock_behind(self.directory(), self.host(), waits) {
                Some(space) => space.take_back(returned),
                None => {
                    // One wait is enough.
                    waits = Waits::Never;
                    self.make_lazy_again(returned)
                }
            };
            space.spares().put(self.areas(), spare);
        }
    }

    /// Makes ranges that could not be given back lazy areas, with nothing mapped, which the next
    /// purge treats as any others. Returns the descriptors left over.
    fn make_lazy_again(&self, returned: ReturnList) -> Supply {
        let areas = self.areas();
        let (mut rest, spare) = returned.into_parts();
        while let Some(index) = rest {
            rest = areas[index].next();
            let run = areas[index].run();
            make_area(&areas[index], run);
            areas[index].set_word(areas[index].word().retiring());
            self.directory().index().set(run, index);
            self.nodes().push_lazy(areas, index);
        }
        spare
    }
}
