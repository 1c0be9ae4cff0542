//! Purges: taking back what was freed.
//!
//! A purge takes the lazy areas of all nodes, and a part of what is pooled; sorts them by address;
//! unmaps them, flushes once, gives back page tables that are left empty and the frames
//! (`retire.rs`); and then hands the fresh areas to the pools, up to their limits, and the rest
//! to the free address space.
//!
//! A purge may interrupt every CPU that uses the mappings: it belongs to full drains, never to
//! quiet ones.
//!
//! # Under memory pressure
//! A request for frames may come at any moment, in a signal handler above a purge for example, or
//! above code that has the space's lock. So a purge for it waits in bounds ([`Lock::lock_within`]):
//! if it cannot have the purge lock it frees nothing. If it cannot have the space's lock it has
//! freed the frames, and the addresses go back to the lazy lists, with nothing mapped: the next
//! purge hands them on.
//!
//! [`Lock::lock_within`]: super::lock::Lock::lock_within

use super::area::{AreaIndex, Areas, State};
use super::config::PurgeBy;
use super::error::MapError;
use super::lock::Guard;
use super::metadata::Metadata;
use super::node::Node;
use super::pool::{Pool, Pools};
use super::retire::Runs;
use super::seams::{Host, Mapper};
use super::space::Returned;
use super::units::{Range, Run, Span};
use super::{Broken, Vmap, broken, count};
use pagedepot::{Pressure, Reclaim};

/// Areas returned to the free address space in one turn of its lock.
const GIVE_BACK_BATCH: usize = 8;

/// How far a purge goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PurgeDepth {
    /// What is lazy. Afterwards nothing that was freed by [`vunmap`](Vmap::vunmap) or
    /// [`vm_unmap_ram`](Vmap::vm_unmap_ram) before the call is mapped any more (Linux:
    /// `vm_unmap_aliases`).
    Lazy,
    /// What is lazy, and a quarter of what each pool keeps: the regular one.
    Decay,
    /// What is lazy and all that pools keep.
    Everything,
}

/// What a purge did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Purged {
    /// Areas taken from lazy lists and pools.
    pub areas: u64,
    /// Frames returned to the page allocator.
    pub frames: u64,
    /// Page tables given back.
    pub tables: u64,
    /// Areas that could not be unmapped, and stay lazy.
    pub stuck_areas: u64,
    /// The first reason why not.
    pub error: Option<MapError>,
}

/// Areas linked by their links, all the purger's.
#[derive(Clone, Copy)]
pub struct Batch {
    pub first: Option<AreaIndex>,
    pub areas: u64,
}

impl Batch {
    pub const EMPTY: Batch = Batch { first: None, areas: 0 };

    pub fn push(&mut self, areas: Areas<'_>, area: AreaIndex) {
        areas[area].set_next(self.first);
        self.first = Some(area);
        self.areas += 1;
    }

    /// Sorts by address: a merge sort from the bottom up, like the kernel's `list_sort`, whose
    /// place `i` holds a sorted list of 2^i areas or none.
    pub fn sort(&mut self, areas: Areas<'_>) {
        let mut sorted: [Option<AreaIndex>; AreaIndex::BITS as usize + 1] = Default::default();
        let mut rest = self.first;
        while let Some(area) = rest {
            rest = areas[area].next();
            areas[area].set_next(None);
            let mut list = Some(area);
            for place in &mut sorted {
                let Some(other) = place.take() else {
                    *place = list.take();
                    break;
                };
                list = merge(areas, Some(other), list);
            }
        }
        self.first = sorted.into_iter().fold(None, |list, other| merge(areas, other, list));
    }
}

/// Merges two sorted lists.
fn merge(areas: Areas<'_>, a: Option<AreaIndex>, b: Option<AreaIndex>) -> Option<AreaIndex> {
    let (mut a, mut b) = (a, b);
    let (mut first, mut last): (Option<AreaIndex>, Option<AreaIndex>) = (None, None);
    while let (Some(x), Some(y)) = (a, b) {
        let lower = if areas[x].start() <= areas[y].start() { &mut a } else { &mut b };
        let next = lower.and_then(|at| areas[at].next());
        match last {
            Some(last) => areas[last].set_next(*lower),
            None => first = *lower,
        }
        last = *lower;
        *lower = next;
    }
    match last {
        Some(last) => {
            areas[last].set_next(a.or(b));
            first
        }
        None => a.or(b),
    }
}

/// The spans that a flush needs, in ascending order: what was mapped, neighbours joined where that
/// adds at most a tenth.
#[derive(Clone)]
pub struct FlushSpans<'a>(Spans<'a>);

#[derive(Clone)]
enum Spans<'a> {
    Batch { runs: Runs<'a>, range: &'a Range, next: Option<Run> },
    One(Option<Span>),
}

impl<'a> FlushSpans<'a> {
    pub(super) fn new(
        metadata: &'a Metadata<'a>,
        range: &'a Range,
        first: Option<AreaIndex>,
    ) -> Self {
        let mut runs = Runs::new(metadata, first);
        let next = runs.next().map(|(_, run)| run);
        FlushSpans(Spans::Batch { runs, range, next })
    }

    /// Just this one: for those who use a [`Mapper`] without a [`Vmap`].
    pub const fn one(span: Span) -> Self {
        FlushSpans(Spans::One(Some(span)))
    }
}

impl Iterator for FlushSpans<'_> {
    type Item = Span;

    fn next(&mut self) -> Option<Span> {
        let (runs, range, next) = match &mut self.0 {
            Spans::Batch { runs, range, next } => (runs, range, next),
            Spans::One(span) => return span.take(),
        };
        let mut joined = (*next)?;
        let mut needed = joined.pages();
        loop {
            *next = runs.next().map(|(_, run)| run);
            let Some(next) = *next else { break };
            let (all, wanted) = (next.end.since(joined.start), needed + next.pages());
            if (all - wanted) * 10 > wanted {
                break;
            }
            (joined.end, needed) = (next.end, wanted);
        }
        Some(range.span(joined))
    }
}

/// How a purge waits for locks.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Waits {
    /// Until it has them.
    Long,
    /// In bounds, and not for its own thread.
    InBounds,
}

impl<M: Mapper, H: Host> Vmap<'_, M, H> {
    /// Takes back what was freed; waits for a purge that is under way.
    ///
    /// For helpers, memory pressure, and callers who must know that what they unmapped is gone.
    pub fn purge(&self, depth: PurgeDepth) -> Purged {
        if self.host.check_usable().is_err() {
            return Purged::default();
        }
        let purging = self.metadata.purge_lock.lock(&self.host);
        self.purge_locked(&purging, depth, Waits::Long)
    }

    /// As [`purge`](Self::purge), in bounds; `None`: others purge, or this thread does.
    fn purge_within(&self, depth: PurgeDepth) -> Option<Purged> {
        self.host.check_usable().ok()?;
        let purging = self.metadata.purge_lock.lock_within(&self.host)?;
        Some(self.purge_locked(&purging, depth, Waits::InBounds))
    }

    /// Lazy areas have grown by `pages` to `lazy_pages` on a node: purges, or has it done, when
    /// all nodes together have enough.
    pub(super) fn after_lazy(&self, lazy_pages: u64, pages: u32, may_wait: bool) {
        // A look at all nodes is worth it once per quarter of this node's share.
        let nodes = self.metadata.nodes.len() as u64;
        let step = (self.lazy_pages_max / nodes / 4).max(1);
        let grown = lazy_pages / step != lazy_pages.wrapping_sub(u64::from(pages)) / step;
        if grown && lazy_pages >= self.lazy_pages_max / nodes {
            self.purge_if_due(may_wait);
        }
    }

    #[cold]
    fn purge_if_due(&self, may_wait: bool) {
        let lazy = self.lazy_pages();
        if lazy < self.lazy_pages_max {
            return;
        }
        let behind = lazy >= 2 * self.lazy_pages_max;
        let wants_helper = self.purge_by == PurgeBy::Helper;
        if wants_helper || !may_wait {
            self.host.purge_wanted();
        }
        if !may_wait || wants_helper && !behind {
            return;
        }
        // Whoever purges now purges for this one too; but where purges do not keep up, those who
        // free wait, or what is lazy would have no bound.
        if behind {
            let purging = self.metadata.purge_lock.lock(&self.host);
            if self.lazy_pages() >= self.lazy_pages_max {
                self.purge_locked(&purging, PurgeDepth::Decay, Waits::Long);
            }
        } else if let Some(purging) = self.metadata.purge_lock.try_lock(&self.host) {
            self.purge_locked(&purging, PurgeDepth::Decay, Waits::Long);
        }
    }

    /// Pages that wait for a purge.
    pub fn lazy_pages(&self) -> u64 {
        // A node may be below zero for a moment; see `LazyList::add_pages`.
        self.metadata.nodes.iter().map(|node| (node.lazy.pages() as i64).max(0) as u64).sum()
    }

    fn purge_locked(&self, purging: &Guard<'_, H>, depth: PurgeDepth, waits: Waits) -> Purged {
        let mut batch = Batch::EMPTY;
        for node in self.metadata.nodes {
            // Pools first: see the argument on aliases in `retire.rs`.
            if depth != PurgeDepth::Lazy && !broken(Broken::PoolsFirst) {
                self.collect_pools(node, depth, &mut batch);
            }
            self.collect_lazy(node, depth, &mut batch);
            if broken(Broken::PoolsFirst) {
                self.collect_pools(node, depth, &mut batch);
            }
        }
        let stray = depth == PurgeDepth::Everything;
        if batch.areas == 0 && !stray {
            return Purged::default();
        }
        count(&self.node_here().1.counters.purges, 1);
        batch.sort(self.metadata.areas);
        let mut purged = self.retire(purging, batch);
        if stray {
            purged.tables += self.release_stray_tables(purging);
        }
        self.settle(batch, None, &mut purged, waits);
        purged
    }

    /// Takes the mappings of one held area away, together with all that is lazy; `false`: it could
    /// not be unmapped.
    pub(super) fn retire_now(&self, index: AreaIndex) -> bool {
        let purging = self.metadata.purge_lock.lock(&self.host);
        let mut batch = Batch::EMPTY;
        self.metadata
            .nodes
            .iter()
            .for_each(|node| self.collect_lazy(node, PurgeDepth::Lazy, &mut batch));
        batch.push(self.metadata.areas, index);
        batch.sort(self.metadata.areas);
        let mut purged = self.retire(&purging, batch);
        let is_done = !self.is_stuck(index);
        self.settle(batch, Some(index), &mut purged, Waits::Long);
        is_done
    }

    fn collect_lazy(&self, node: &Node, depth: PurgeDepth, batch: &mut Batch) {
        let mut taken = 0;
        let mut rest = node.lazy.take_all();
        while let Some(index) = rest {
            let area = &self.metadata.areas[index];
            rest = area.next();
            taken += i64::from(area.pages());
            let word = area.word();
            let keep = depth != PurgeDepth::Everything && !word.is_retiring();
            area.set_word(if keep { word.in_state(State::Held) } else { word.retiring() });
            batch.push(self.metadata.areas, index);
        }
        node.lazy.add_pages(-taken);
    }

    fn collect_pools(&self, node: &Node, depth: PurgeDepth, batch: &mut Batch) {
        for pools in [&node.cold, &node.warm] {
            for (pages, pool) in pools.iter() {
                let wanted = match depth {
                    PurgeDepth::Everything => u32::MAX,
                    // Rounded up, so that what nobody uses comes back in the end.
                    _ => pool.count().div_ceil(4),
                };
                let taken = self.collect_pool(pool, wanted, batch);
                if taken > 0 {
                    pools.lower_limit(pages, taken);
                    count(&node.counters.decayed_areas, u64::from(taken));
                }
                if depth == PurgeDepth::Everything {
                    pools.lower_limit(pages, pool.limit());
                }
            }
        }
    }

    fn collect_pool(&self, pool: &Pool, wanted: u32, batch: &mut Batch) -> u32 {
        let mut taken = 0;
        // A pool that is filled as fast as it is emptied ends this too.
        while taken < wanted.min(1 << 16) {
            let Some(index) = pool.pop(self.metadata.areas, |_| true) else { break };
            let area = &self.metadata.areas[index];
            self.quarantine(area);
            area.set_word(area.word().retiring());
            batch.push(self.metadata.areas, index);
            taken += 1;
        }
        taken
    }

    /// Hands out what a batch is made of, but for `except`.
    fn settle(&self, batch: Batch, except: Option<AreaIndex>, purged: &mut Purged, waits: Waits) {
        let mut rest = batch.first;
        // What returns to the free address space, linked in the batch's order.
        let (mut first, mut last): (Option<AreaIndex>, Option<AreaIndex>) = (None, None);
        while let Some(index) = rest {
            let area = &self.metadata.areas[index];
            rest = area.next();
            if Some(index) == except {
                continue;
            }
            if self.is_stuck(index) {
                purged.stuck_areas += 1;
                self.push_lazy(index);
                continue;
            } else if self.refill(index) {
                continue;
            }
            match last.replace(index) {
                Some(last) => self.metadata.areas[last].set_next(Some(index)),
                None => first = Some(index),
            }
            area.set_next(None);
        }
        match waits {
            Waits::Long => self.give_back_all(first),
            Waits::InBounds => self.give_back_within(first),
        }
    }

    /// As [`give_back_all`](Self::give_back_all), in bounds: what cannot be given back stays lazy.
    fn give_back_within(&self, first: Option<AreaIndex>) {
        let Metadata { areas, index, .. } = &self.metadata;
        let mut rest = first;
        while rest.is_some() {
            let Some(space) = self.lock_space_within() else { break };
            let mut returned = Returned::default();
            for _ in 0..GIVE_BACK_BATCH {
                let Some(area) = rest else { break };
                rest = areas[area].next();
                returned.add(*areas, *index, area);
            }
            space.take_back(&mut returned);
            drop(space);
            self.metadata.space.spares.put(*areas, returned.into_spare());
        }
        while let Some(index) = rest {
            let area = &areas[index];
            rest = area.next();
            // Nothing is mapped there; to the next purge it is an area like others.
            area.set_word(area.word().plain(State::Held).retiring());
            self.push_lazy(index);
        }
    }

    /// Puts a fresh area into its node's pool, if that has room.
    fn refill(&self, index: AreaIndex) -> bool {
        let area = &self.metadata.areas[index];
        if area.word().is_retiring() {
            return false;
        }
        let node = &self.metadata.nodes[area.traits().node()];
        let pages = area.pages();
        let Some(pool) = node.cold.of(pages) else { return false };
        // Now: once it is pushed it is somebody else's.
        area.set_word(area.word().plain(State::Pooled));
        let push = |pools: &Pools| {
            pool.push(self.metadata.areas, index)
                || pools.raise_limit(pages, self.pool_pages_max)
                    && pool.push(self.metadata.areas, index)
        };
        let pushed = push(&node.cold);
        if pushed {
            count(&node.counters.refilled_areas, 1);
        }
        pushed
    }

    /// Returns areas, in ascending order, to the free address space; but first once more to their
    /// pools: who has emptied them meanwhile needs not come to the space, too.
    pub(super) fn give_back_all(&self, first: Option<AreaIndex>) {
        let Metadata { areas, index, .. } = &self.metadata;
        let mut rest = first;
        while rest.is_some() {
            let mut returned = Returned::default();
            for _ in 0..GIVE_BACK_BATCH {
                let Some(area) = rest else { break };
                rest = areas[area].next();
                if !self.refill(area) {
                    returned.add(*areas, *index, area);
                }
            }
            // The pools may have had room for all.
            if !returned.is_empty() {
                self.lock_space_behind().take_back(&mut returned);
                self.metadata.space.spares.put(*areas, returned.into_spare());
            }
        }
    }
}

/// Under memory pressure pools empty: first what is lazy and a quarter of the pools, then, if that
/// is not enough or a request is about to fail, everything. May be called at any moment, see the
/// module's head.
impl<M: Mapper, H: Host> Reclaim for Vmap<'_, M, H>
where
    M: Sync,
{
    fn reclaim(&self, pressure: Pressure) -> u64 {
        let purge = |depth| self.purge_within(depth).map(|purged| purged.frames);
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
}
