//! Address space: allocating areas, reserving them, freeing them.
//!
//! The warm paths: an allocation pops an area from a pool (one compare-and-swap) and stores its
//! word; a free finds it by one load, takes it out of busy (one compare-and-swap) and pushes it
//! (one more). They touch no tree and take no lock.

use core::panic::Location;

use super::area::{Area, AreaIndex, State, Traits};
use super::config::Options;
use super::error::{Kind, MapError, VfreeError, VmapError};
use super::node::Node;
use super::purge::PurgeDepth;
use super::seams::{Host, Mapper};
use super::space::Carved;
use super::tree::Wanted;
use super::units::{Run, VirtAddr, Vpn};
use super::{Vmap, count};
use pagedepot::AllocError;

/// Most places of a request, and pages of each, that are looked at before a purge.
const PLACES_MAX: usize = 64;
/// Nodes whose pools are looked into before a request waits for a lock.
const NEAR_NODES: usize = 4;

/// Whether an error may go away when what is freed is taken back.
fn is_short(error: &VmapError) -> bool {
    use VmapError::{Frames, NoAreas, NoSpace, Occupied};
    matches!(error, NoSpace | NoAreas | Occupied | Frames(AllocError::Exhausted))
}

impl<M: Mapper, H: Host> Vmap<'_, M, H> {
    /// Allocates `pages` pages of address space with nothing mapped in them.
    ///
    /// A size that was freed before on this CPU's node costs one atomic operation; others are the
    /// lowest free range that fits, by O(log areas) steps under a lock. A size that is asked for
    /// again and again brings up to 64 more along for the pool, and where the lock is taken a near
    /// node's pool serves first. (With an alignment of more
    /// than a page the lowest is not sought beyond 64 ranges that are large enough but
    /// misaligned.) What fails is tried again after everything freed was taken back.
    ///
    /// # Errors
    /// [`VmapError`].
    #[inline]
    #[track_caller]
    pub fn alloc(&self, pages: u32, options: Options) -> Result<VirtAddr, VmapError> {
        let area = self.obtain(pages, &options)?;
        Ok(self.publish(area, Kind::Address, &options, false, Location::caller()))
    }

    /// Takes exactly the `pages` pages from `start`, without a guard.
    ///
    /// # Errors
    /// [`VmapError::Occupied`] when part of it is busy; freed areas are taken back first.
    #[track_caller]
    pub fn reserve(&self, start: VirtAddr, pages: u32) -> Result<VirtAddr, VmapError> {
        let options = Options::DEFAULT.guard_pages(0);
        let first = self.range.page_at(start).ok_or(VmapError::BadWindow)?;
        if pages == 0 || pages > self.range.pages - first.0 {
            return Err(VmapError::BadSize);
        }
        let run = Run::new(first, pages);
        let area = self.with_purges(false, || self.lock_space().carve_at(run))?;
        self.note_carved(self.node_here(), Carved::one(area));
        if self.withdraw_lost(area, false)? {
            return Err(VmapError::Occupied);
        }
        Ok(self.publish(area, Kind::Address, &options, false, Location::caller()))
    }

    /// Frees what [`alloc`](Self::alloc) or [`reserve`](Self::reserve) returned, if nothing was
    /// mapped in it.
    ///
    /// # Errors
    /// [`VfreeError`]; nothing is changed then. A second free is always found.
    #[inline]
    pub fn free(&self, start: VirtAddr) -> Result<(), VfreeError> {
        self.release(start, Kind::Address, true)
    }

    /// An area of `pages` pages and a guard, held by the caller, with nothing mapped in it and
    /// nothing of it lost.
    #[inline]
    pub(super) fn obtain(&self, pages: u32, options: &Options) -> Result<AreaIndex, VmapError> {
        loop {
            let index = self.obtain_any(pages, options)?;
            if self.mapper.lost_pages() == 0 || !self.withdraw_lost(index, options.no_wait)? {
                return Ok(index);
            }
        }
    }

    #[inline]
    fn obtain_any(&self, pages: u32, options: &Options) -> Result<AreaIndex, VmapError> {
        if options.window.is_none() && pages != 0 && options.align.is_power_of_two() {
            let fits = |top| self.is_aligned(self.metadata.areas[top].start(), options.align);
            let total = pages.checked_add(u32::from(options.guard));
            let pool = total.and_then(|total| self.node_here().1.cold.of(total));
            if let Some(area) = pool.and_then(|pool| pool.pop(self.metadata.areas, fits)) {
                return Ok(area);
            }
        }
        self.obtain_slow(pages, options)
    }

    /// Withdraws what the mapper has lost of a held area, and returns the rest of it to the free
    /// address space; `false`: it has lost nothing there, and the area is the caller's still.
    ///
    /// Pages are lost wherever a mapper's call failed: in areas that were being mapped or unmapped,
    /// and in what lay around those in tables that were unmapped whole, free or pooled. All of that
    /// comes by here before it is used again.
    #[cold]
    fn withdraw_lost(&self, index: AreaIndex, no_wait: bool) -> Result<bool, VmapError> {
        let (area, areas) = (&self.metadata.areas[index], self.metadata.areas);
        let mut rest = area.run();
        if self.lost_in(rest).is_none() {
            return Ok(false);
        }
        let space = if no_wait { self.try_lock_space() } else { Some(self.lock_space()) };
        let Some(space) = space else {
            // The next purge returns it to the free address space, where it will be found again.
            area.set_word(area.word().retiring());
            self.push_lazy(index);
            return Err(VmapError::WouldWait);
        };
        space.give_back(index);
        while let Some(lost) = self.lost_in(rest) {
            let withdrawn = space.carve_at(lost)?;
            areas[withdrawn].set_traits(Traits::new(0, 0, Default::default()));
            self.metadata.index.set(lost, withdrawn);
            areas[withdrawn]
                .set_word(areas[withdrawn].word().held(Kind::Lost).in_state(State::Busy));
            rest.start = lost.end;
        }
        Ok(true)
    }

    /// The first run of pages in `run` that the mapper has lost.
    pub(super) fn lost_in(&self, run: Run) -> Option<Run> {
        if self.mapper.lost_pages() == 0 || run.pages() == 0 {
            return None;
        }
        let lost = self.mapper.lost_in(self.range.span(run))?;
        Some(Run::new(self.range.page_of(lost.start)?, lost.pages))
    }

    /// Whether a page has an alignment; never one that is no power of two and more than a page.
    #[inline]
    pub(super) fn is_aligned(&self, page: Vpn, align: usize) -> bool {
        align <= self.range.page_size.bytes()
            || align.is_power_of_two() && self.range.addr(page).get() & (align - 1) == 0
    }

    /// An area from the free address space, and more of them for the pool; rather than wait for
    /// its lock, one from another node's pool.
    #[cold]
    fn obtain_slow(&self, pages: u32, options: &Options) -> Result<AreaIndex, VmapError> {
        let (number, node) = self.node_here();
        let found = self.wanted(pages, options).and_then(|wanted| {
            // To give back what a pool had no room for takes the lock once more.
            let stock = if self.is_pooled(wanted) && !options.no_wait {
                node.cold.stock(wanted.pages, self.pool_pages_max)
            } else {
                0
            };
            self.host.check_usable()?;
            let may_help = |error: &VmapError| {
                let is_hopeless = || *error == VmapError::NoSpace && self.is_occupied(wanted);
                !options.no_wait && is_short(error) && !is_hopeless()
            };
            self.with_purges_if(may_help, || {
                self.carve((number, node), wanted, stock, options.no_wait)
            })
        });
        if found.is_err() {
            count(&node.counters.failures, 1);
        }
        found
    }

    /// An area from the free address space, with `stock` more for the pool, or from another node's
    /// pool.
    fn carve(
        &self,
        (number, node): (u32, &Node),
        wanted: Wanted,
        stock: u32,
        no_wait: bool,
    ) -> Result<AreaIndex, VmapError> {
        let (areas, spares) = (self.metadata.areas, &self.metadata.space.spares);
        let mut supply = spares.take_ahead(areas, stock);
        let carved = match self.try_lock_space() {
            Some(space) => space.carve(wanted, supply.count()),
            None => {
                // Nobody waits with what others may lack.
                spares.put(areas, supply);
                if let Some(area) = self.pop_elsewhere(number, wanted) {
                    return Ok(area);
                }
                if no_wait {
                    return Err(VmapError::WouldWait);
                }
                let space = self.lock_space();
                supply = spares.take_ahead(areas, stock);
                space.carve(wanted, supply.count())
            }
        };
        // Without the lock: most of these descriptors are cold.
        let carved = carved.map(|rows| rows.cut(areas, wanted.pages, &mut supply));
        spares.put(areas, supply);
        let carved = carved?;
        self.note_carved((number, node), carved);
        Ok(carved.first)
    }

    /// Whether busy areas lie in all the places that a request could have, if those are few, as
    /// with large alignments: then taking back what is freed helps nothing.
    fn is_occupied(&self, wanted: Wanted) -> bool {
        let is_busy = |page| self.find(self.range.addr(page)).is_some();
        wanted.places().nth(PLACES_MAX).is_none()
            && wanted.places().all(|run| run.iter().take(PLACES_MAX).any(is_busy))
    }

    /// Whether any area of its size will do.
    fn is_pooled(&self, wanted: Wanted) -> bool {
        wanted.align == 1 && wanted.window.pages() == self.range.pages
    }

    /// An area from the pool of a node near `number`; it stays that node's.
    fn pop_elsewhere(&self, number: u32, wanted: Wanted) -> Option<AreaIndex> {
        if !self.is_pooled(wanted) {
            return None;
        }
        let nodes = self.metadata.nodes.iter().cycle().skip(number as usize + 1);
        nodes.take(NEAR_NODES.min(self.metadata.nodes.len() - 1)).find_map(|node| {
            let area = node.cold.of(wanted.pages)?.pop(self.metadata.areas, |_| true)?;
            count(&node.counters.borrowed_areas, 1);
            Some(area)
        })
    }

    /// What a request means for the search.
    fn wanted(&self, pages: u32, options: &Options) -> Result<Wanted, VmapError> {
        let total =
            pages.checked_add(u32::from(options.guard)).filter(|&total| total <= self.range.pages);
        let pages = total.filter(|_| pages > 0).ok_or(VmapError::BadSize)?;
        if !options.align.is_power_of_two() {
            return Err(VmapError::BadAlign);
        }
        let shift = self.range.page_size.shift();
        let window = match options.window {
            None => Run::new(Vpn(0), self.range.pages),
            Some((start, end)) => self.window(start, end).ok_or(VmapError::BadWindow)?,
        };
        let align = (options.align as u64 >> shift).max(1);
        let base_page = self.range.base_page();
        // Where no place of the window has that alignment, taking back helps nothing.
        let first = (base_page + u64::from(window.start.0)).next_multiple_of(align) - base_page;
        if first + u64::from(pages) > u64::from(window.end.0) {
            return Err(VmapError::NoSpace);
        }
        Ok(Wanted { pages, align, window, base_page })
    }

    /// The pages of `start..end`, which must be whole pages of the range.
    fn window(&self, start: VirtAddr, end: VirtAddr) -> Option<Run> {
        let last = VirtAddr::new(end.get().checked_sub(self.range.page_size.bytes())?);
        let (first, last) = (self.range.page_at(start)?, self.range.page_at(last)?);
        (first <= last).then_some(Run { start: first, end: last.add(1) })
    }

    /// Tries; if anything is short, takes back what is lazy, and then what is pooled.
    pub(super) fn with_purges<T>(
        &self,
        no_wait: bool,
        attempt: impl Fn() -> Result<T, VmapError>,
    ) -> Result<T, VmapError> {
        self.host.check_usable()?;
        self.with_purges_if(|error| !no_wait && is_short(error), attempt)
    }

    /// As [`with_purges`](Self::with_purges), if the mapper has no mappings left (what is freed but
    /// still mapped counts among them), or lost the addresses while they were being given out.
    pub(super) fn with_mappings<T>(
        &self,
        no_wait: bool,
        attempt: impl Fn() -> Result<T, VmapError>,
    ) -> Result<T, VmapError> {
        let is_short = |error: &_| {
            matches!(error, VmapError::Map(MapError::TooManyMappings { .. } | MapError::Lost))
        };
        self.with_purges_if(|error| !no_wait && is_short(error), attempt)
    }

    fn with_purges_if<T>(
        &self,
        is_short: impl Fn(&VmapError) -> bool,
        attempt: impl Fn() -> Result<T, VmapError>,
    ) -> Result<T, VmapError> {
        let mut result = attempt();
        for depth in [PurgeDepth::Lazy, PurgeDepth::Everything] {
            if result.as_ref().is_err_and(&is_short) {
                self.purge(depth);
                result = attempt();
            }
        }
        result
    }

    /// The first area is the caller's, the others go to the node's pool.
    fn note_carved(&self, (number, node): (u32, &Node), carved: Carved) {
        let areas = self.metadata.areas;
        for index in areas.list(Some(carved.first)).take(carved.areas as usize) {
            areas[index].set_traits(Traits::new(number, 0, Default::default()));
            self.metadata.index.set(areas[index].run(), index);
        }
        count(&node.counters.carved_areas, 1);
        let stock = areas[carved.first].next().filter(|_| carved.areas > 1);
        let Some(stock) = stock else { return };
        for index in areas.list(Some(stock)) {
            areas[index].set_word(areas[index].word().in_state(State::Pooled));
        }
        let (count_stocked, pool) = (carved.areas - 1, node.cold.of(areas[stock].pages()));
        if pool.is_some_and(|pool| pool.push_list(areas, stock, carved.last, count_stocked)) {
            count(&node.counters.stocked_areas, count_stocked.into());
        } else {
            // Others have filled it meanwhile.
            self.give_back_all(Some(stock));
        }
    }

    /// Gives a held area to the caller.
    #[inline]
    pub(super) fn publish(
        &self,
        index: AreaIndex,
        kind: Kind,
        options: &Options,
        warm: bool,
        caller: &'static Location<'static>,
    ) -> VirtAddr {
        let area = &self.metadata.areas[index];
        let node = area.traits().node() as u32;
        area.set_traits(Traits::new(node, options.guard, options.protection));
        area.set_caller(caller);
        area.set_word(area.word().allocated(kind, warm));
        self.range.addr(area.start())
    }

    /// The busy area of this kind that begins at `start`, and its word.
    #[inline]
    pub(super) fn busy_at(
        &self,
        start: VirtAddr,
        kind: Kind,
    ) -> Option<(AreaIndex, super::area::Word)> {
        let page = self.range.page_at(start)?;
        let index = self.metadata.index.at(page)?;
        let area = &self.metadata.areas[index];
        let word = area.word();
        (word.is_busy(kind) && area.start() == page).then_some((index, word))
    }

    /// Frees an area of this kind. Unless it `may_wait`, a purge that is due is left to others.
    #[inline]
    pub(super) fn release(
        &self,
        start: VirtAddr,
        kind: Kind,
        may_wait: bool,
    ) -> Result<(), VfreeError> {
        let Some((index, word)) = self.busy_at(start, kind) else {
            return Err(self.why_not_freed(start));
        };
        let area = &self.metadata.areas[index];
        if !area.leave_busy(word, word.in_state(State::Pooled)) {
            return Err(self.why_not_freed(start));
        }
        let node = &self.metadata.nodes[area.traits().node()];
        let pools = if word.is_warm() {
            self.poison(area);
            &node.warm
        } else {
            &node.cold
        };
        if (word.is_warm() || kind == Kind::Address)
            && pools.of(area.pages()).is_some_and(|pool| pool.push(self.metadata.areas, index))
        {
            return Ok(());
        }
        self.release_slow(index, node, may_wait);
        Ok(())
    }

    /// No pool took it at once: raises a limit, or makes it lazy.
    #[cold]
    pub(super) fn release_slow(&self, index: AreaIndex, node: &Node, may_wait: bool) {
        let area = &self.metadata.areas[index];
        let pages = area.pages();
        let (pools, budget) = match (area.word().is_warm(), area.mapped()) {
            (true, _) => (&node.warm, self.warm_pages_max),
            (false, 0) => (&node.cold, self.pool_pages_max),
            _ => return self.make_lazy(index, may_wait),
        };
        if pools.raise_limit(pages, budget) {
            area.set_word(area.word().in_state(State::Pooled));
            if pools.of(pages).is_some_and(|pool| pool.push(self.metadata.areas, index)) {
                return;
            }
        }
        self.make_lazy(index, may_wait);
    }

    /// Leaves a held area to the next purge, or, if it `may_wait`, to one that begins now.
    pub(super) fn make_lazy(&self, index: AreaIndex, may_wait: bool) {
        let area = &self.metadata.areas[index];
        let (pages, node) = (area.pages(), &self.metadata.nodes[area.traits().node()]);
        self.quarantine(area);
        count(&node.counters.lazy_areas, 1);
        let lazy_pages = self.push_lazy(index);
        self.after_lazy(lazy_pages, pages, may_wait);
    }

    /// Puts a held area among its node's lazy ones; returns their pages. From here on it belongs
    /// to whoever purges.
    pub(super) fn push_lazy(&self, index: AreaIndex) -> u64 {
        let area = &self.metadata.areas[index];
        let (pages, node) = (area.pages(), &self.metadata.nodes[area.traits().node()]);
        area.set_word(area.word().in_state(State::Lazy));
        node.lazy.push(self.metadata.areas, index, pages)
    }

    /// Tells the host of an area's own frames that they are freed but still mapped.
    pub(super) fn quarantine(&self, area: &Area) {
        self.note_quarantined(area, i64::from(area.mapped()));
    }

    /// Tells the host that they are mapped no more.
    pub(super) fn unquarantine(&self, area: &Area) {
        self.note_quarantined(area, -i64::from(area.mapped()));
    }

    fn note_quarantined(&self, area: &Area, pages: i64) {
        if area.word().kind() == Kind::Vmalloc
            && pages != 0
            && let Some(frame) = self.metadata.frames.get(area.start())
        {
            self.host.note_quarantined(frame, pages);
        }
    }

    #[cold]
    pub(super) fn why_not_freed(&self, start: VirtAddr) -> VfreeError {
        if self.host.check_usable().is_err() {
            return VfreeError::Forked;
        }
        let Some(page) = self.range.page_of(start) else { return VfreeError::OutOfRange };
        let found = self.metadata.index.at(page).map(|index| &self.metadata.areas[index]);
        match found {
            Some(area) if area.start() == page && self.range.page_at(start).is_some() => {
                let word = area.word();
                match word.state() {
                    State::Busy => VfreeError::WrongKind(word.kind()),
                    _ => VfreeError::NotAllocated,
                }
            }
            _ => VfreeError::NotAllocated,
        }
    }
}
