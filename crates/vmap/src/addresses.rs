//! Address space: allocating areas, reserving them, freeing them.
//!
//! The warm paths: an allocation pops an area from a pool (one compare-and-swap) and stores its
//! word. A free finds it by one load of the index, takes it out of the busy state (one
//! compare-and-swap) and pushes it (another one). They touch no tree and take no lock.

use core::panic::Location;

use crate::config::Options;
use crate::error::{MapError, VfreeError, VmapError};
use crate::kind::Kind;
use crate::lock::Waits;
use crate::metadata::area::{AreaIndex, State, Traits, Word};
use crate::node::Node;
use crate::purge::PurgeDepth;
use crate::seams::host::Host;
use crate::seams::mapper::Mapper;
use crate::space::request::AddressRequest;
use crate::space::transfer::Strips;
use crate::state::VmapState;
use crate::units::{PageRange, VirtAddr, Vpn};
use pagedepot::AllocError;
use pagedepot::sync::count;

/// Largest number of places of a request, and of pages of each, that are searched for busy areas
/// before a purge.
const PLACES_MAX: usize = 64;

/// Whether a purge may make the error go away.
fn is_short(error: &VmapError) -> bool {
    use VmapError::{Frames, NoAreas, NoSpace, Occupied};
    matches!(error, NoSpace | NoAreas | Occupied | Frames(AllocError::Exhausted))
}

/// The requests for address space.
impl<M: Mapper, H: Host> VmapState<'_, M, H> {
    /// An area of `pages` pages and a guard, held by the caller, with nothing mapped in it, and of
    /// which the mapper has lost nothing.
    #[inline]
    pub fn obtain(&self, pages: u32, options: &Options) -> Result<AreaIndex, VmapError> {
        loop {
            let index = self.obtain_any(pages, options)?;
            if self.mappings().mapper().lost_pages() == 0
                || !self.withdraw_lost(index, options.no_wait)?
            {
                return Ok(index);
            }
        }
    }

    #[inline]
    fn obtain_any(&self, pages: u32, options: &Options) -> Result<AreaIndex, VmapError> {
        if options.window.is_none() && pages != 0 {
            let fits = |top| self.directory().is_aligned(self.area(top).start(), options.align);
            let total = pages.checked_add(u32::from(options.guard));
            let node = |total| self.nodes().of_cpu(self.host().cpu()).1.cold().of(total);
            if let Some(area) = total.and_then(node).and_then(|pool| pool.pop(self.areas(), fits)) {
                return Ok(area);
            }
        }
        self.obtain_slow(pages, options)
    }

    /// An area from the free address space, and more of its size for the pool. If the space's lock
    /// is taken, an area from another node's pool.
    #[cold]
    fn obtain_slow(&self, pages: u32, options: &Options) -> Result<AreaIndex, VmapError> {
        let nodes = self.nodes();
        let (number, node) = nodes.of_cpu(self.host().cpu());
        self.request(pages, options).and_then(|request| {
            // To give back what a pool has no room for takes the lock once more, and so a wait.
            let stock = if self.is_pooled(request) && !options.no_wait {
                node.cold().stock(request.pages, nodes.cold_pages_max())
            } else {
                0
            };
            self.host().check_usable()?;
            let may_help = |error: &VmapError| {
                let is_hopeless = || *error == VmapError::NoSpace && self.is_occupied(request);
                !options.no_wait && is_short(error) && !is_hopeless()
            };
            self.with_purges_if(may_help, || {
                self.carve((number, node), request, stock, options.no_wait)
            })
        })
    }

    /// An area from the free address space, with `stock` more for the pool, or from another node's
    /// pool.
    fn carve(
        &self,
        (number, node): (u32, &Node),
        request: AddressRequest,
        stock: u32,
        no_wait: bool,
    ) -> Result<AreaIndex, VmapError> {
        let (areas, spares) = (self.areas(), self.space().spares());
        let mut supply = spares.take_ahead(areas, stock);
        let carved = match self.lock_space_as(Waits::Never) {
            Some(space) => space.carve(request, supply.count()),
            None => {
                // Return unused descriptors before waiting: another request may need one.
                spares.put(areas, supply);
                let borrowed = if self.is_pooled(request) {
                    self.nodes().borrow(areas, number, request.pages)
                } else {
                    None
                };
                if let Some(area) = borrowed {
                    return Ok(area);
                }
                if no_wait {
                    return Err(VmapError::WouldWait);
                }
                let space = self.lock_space();
                supply = spares.take_ahead(areas, stock);
                space.carve(request, supply.count())
            }
        };
        // Without the lock: most of these descriptors are not in this CPU's cache.
        let carved = carved.map(|strips| strips.cut(areas, request.pages, &mut supply));
        spares.put(areas, supply);
        let carved = carved?;
        self.register((number, node), carved);
        Ok(carved.first)
    }

    /// Enters carved areas in the index. The first one is the caller's, the others go to the node's
    /// pool.
    fn register(&self, (number, node): (u32, &Node), carved: Strips) {
        let areas = self.areas();
        for index in areas.list(Some(carved.first)).take(carved.areas as usize) {
            areas[index].set_traits(Traits::new(number, 0, Default::default()));
            self.directory().index().set(areas[index].run(), index);
        }
        count(&node.counters().carved_areas, 1);
        let stock = areas[carved.first].next().filter(|_| carved.areas > 1);
        let Some(stock) = stock else { return };
        for index in areas.list(Some(stock)) {
            areas[index].set_word(areas[index].word().in_state(State::Pooled));
        }
        let (stocked, pool) = (carved.areas - 1, node.cold().of(areas[stock].pages()));
        if pool.is_some_and(|pool| pool.push_list(areas, stock, carved.last, stocked)) {
            count(&node.counters().stocked_areas, stocked.into());
        } else {
            // Other threads have filled the pool meanwhile.
            self.give_back_all(Some(stock), Waits::Long);
        }
    }

    /// Withdraws the pages of a held area that the mapper has lost, and returns the rest of it to
    /// the free address space. `false`: none is lost, and the caller holds the area still.
    ///
    /// The mapper loses pages where a call failed: in areas that were being mapped or unmapped, and
    /// around them in tables that were unmapped whole, where pages are free or pooled. All such
    /// pages come by here before they are used again.
    #[cold]
    fn withdraw_lost(&self, index: AreaIndex, no_wait: bool) -> Result<bool, VmapError> {
        let area = self.area(index);
        let mut rest = area.run();
        if self.mappings().lost_in(rest).is_none() {
            return Ok(false);
        }
        count(&self.counters().abandoned_areas, 1);
        let Some(space) = self.lock_space_as(Waits::of(no_wait)) else {
            // The next purge returns it to the free address space. A later request finds it there,
            // and comes here.
            area.set_word(area.word().retiring());
            self.nodes().push_lazy(self.areas(), index);
            return Err(VmapError::WouldWait);
        };
        space.give_back(index);
        while let Some(lost) = self.mappings().lost_in(rest) {
            let index = space.carve_at(lost)?;
            let withdrawn = self.area(index);
            withdrawn.set_traits(Traits::new(0, 0, Default::default()));
            self.directory().index().set(lost, index);
            withdrawn.set_word(withdrawn.word().held(Kind::Lost).in_state(State::Busy));
            rest.start = lost.end;
        }
        Ok(true)
    }

    /// Takes exactly the `pages` pages from `start`, and a guard behind them, held by the caller.
    pub fn obtain_at(
        &self,
        start: VirtAddr,
        pages: u32,
        options: &Options,
    ) -> Result<AreaIndex, VmapError> {
        let first = self.range().page_at(start).ok_or(VmapError::BadWindow)?;
        let total = pages
            .checked_add(u32::from(options.guard))
            .filter(|&total| pages > 0 && total <= self.range().pages - first.0)
            .ok_or(VmapError::BadSize)?;
        let run = PageRange::new(first, total);
        let index = self.with_purges(options.no_wait, || {
            let space = self.lock_space_as(Waits::of(options.no_wait));
            space.ok_or(VmapError::WouldWait)?.carve_at(run)
        })?;
        self.register(self.nodes().of_cpu(self.host().cpu()), Strips::one(index));
        let is_lost = self.withdraw_lost(index, options.no_wait)?;
        if is_lost { Err(VmapError::Occupied) } else { Ok(index) }
    }

    /// Whether busy areas lie in all places that a request could have, if these are few, as with
    /// large alignments. Then a purge does not help.
    fn is_occupied(&self, request: AddressRequest) -> bool {
        let directory = self.directory();
        let is_busy = |page: Vpn| {
            directory.candidate(page).is_some_and(|area| {
                let (word, run) = (area.word(), area.run());
                word.state() == State::Busy && run.contains(page) && area.still(word)
            })
        };
        request.places().nth(PLACES_MAX).is_none()
            && request.places().all(|run| run.iter().take(PLACES_MAX).any(is_busy))
    }

    /// Whether any area of its size can serve a request.
    fn is_pooled(&self, request: AddressRequest) -> bool {
        request.align == 1 && request.window.pages() == self.range().pages
    }

    /// The search that a request needs.
    fn request(&self, pages: u32, options: &Options) -> Result<AddressRequest, VmapError> {
        let range = self.range();
        let total =
            pages.checked_add(u32::from(options.guard)).filter(|&total| total <= range.pages);
        let pages = total.filter(|_| pages > 0).ok_or(VmapError::BadSize)?;
        if !options.align.is_power_of_two() {
            return Err(VmapError::BadAlign);
        }
        let window = match options.window {
            None => PageRange::new(Vpn(0), range.pages),
            Some((start, end)) => self.window(start, end).ok_or(VmapError::BadWindow)?,
        };
        let align = (options.align as u64 >> range.page_size.shift()).max(1);
        let base_page = range.base_page();
        // If no place of the window has that alignment, a purge does not help.
        let first = (base_page + u64::from(window.start.0)).next_multiple_of(align) - base_page;
        if first + u64::from(pages) > u64::from(window.end.0) {
            return Err(VmapError::NoSpace);
        }
        Ok(AddressRequest { pages, align, window, base_page })
    }

    /// The pages of `start..end`; `None` unless these are whole pages of the range.
    fn window(&self, start: VirtAddr, end: VirtAddr) -> Option<PageRange> {
        let range = self.range();
        let last = VirtAddr::new(end.get().checked_sub(range.page_size.bytes())?);
        let (first, last) = (range.page_at(start)?, range.page_at(last)?);
        (first <= last).then_some(PageRange { start: first, end: last.add(1) })
    }

    /// Calls `attempt`. While anything is short, purges what is lazy, then everything, and calls it
    /// again.
    pub fn with_purges<T>(
        &self,
        no_wait: bool,
        attempt: impl Fn() -> Result<T, VmapError>,
    ) -> Result<T, VmapError> {
        self.host().check_usable()?;
        self.with_purges_if(|error| !no_wait && is_short(error), attempt)
    }

    /// Calls `attempt` like [`with_purges`](Self::with_purges), and purges while the mapper has too
    /// many mappings (those that are freed and still mapped count), or loses the addresses that
    /// `attempt` obtained. If the mappings are too many still, has others give up theirs, and calls
    /// it once more. Notes the request if it fails.
    pub fn with_mappings<T>(
        &self,
        no_wait: bool,
        attempt: impl Fn() -> Result<T, VmapError>,
    ) -> Result<T, VmapError> {
        use MapError::{Lost, TooManyMappings, TooScattered};
        let is_short = |error: &_| {
            matches!(error, VmapError::Map(TooManyMappings { .. } | TooScattered { .. } | Lost))
        };
        let mut result = self.with_purges_if(|error| !no_wait && is_short(error), &attempt);
        if let Err(VmapError::Map(error @ (TooManyMappings { .. } | TooScattered { .. }))) = result
            && !no_wait
            && self.mappings().mapper().shrink_others(error)
        {
            result = attempt();
        }
        if result.is_err() {
            self.note_failure(no_wait);
        }
        result
    }

    /// Counts a request that failed. What it had mapped is lazy, so a purge may be due. May panic.
    #[cold]
    pub fn note_failure(&self, no_wait: bool) {
        count(&self.counters().failures, 1);
        self.purge_if_due(!no_wait);
    }

    /// Calls `attempt`. While it fails with an error that `is_short`, purges what is lazy, then
    /// everything, and calls it again.
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

    /// Makes a held area busy; returns its address.
    #[inline]
    pub fn publish(
        &self,
        index: AreaIndex,
        kind: Kind,
        options: &Options,
        warm: bool,
        caller: &'static Location<'static>,
    ) -> VirtAddr {
        let word = self.area(index).word().allocated(kind, warm);
        self.publish_as(index, word, options, caller)
    }

    /// Makes a held area busy, with this word of a busy one; returns its address.
    #[inline]
    pub fn publish_as(
        &self,
        index: AreaIndex,
        word: Word,
        options: &Options,
        caller: &'static Location<'static>,
    ) -> VirtAddr {
        let area = self.area(index);
        let node = area.traits().node() as u32;
        // Readers must not find the fields of this user in an area that is still pooled.
        area.set_word(word.held_before());
        area.set_traits(Traits::new(node, options.guard, options.protection));
        area.set_caller(caller);
        area.set_word(word);
        self.range().addr(area.start())
    }

    /// Frees an area of this kind. If a purge is due and the caller `may_wait`, it runs now, and
    /// waits in bounds.
    #[inline]
    pub fn release(&self, start: VirtAddr, kind: Kind, may_wait: bool) -> Result<(), VfreeError> {
        let Some((index, word)) = self.directory().busy_at(start, kind) else {
            return Err(self.why_not_freed(start));
        };
        let area = self.area(index);
        if !area.leave_busy(word, word.in_state(State::Pooled)) {
            return Err(self.why_not_freed(start));
        }
        let node = self.nodes().of_area(area);
        let pools = if word.is_warm() {
            self.mappings().poison(area);
            node.warm()
        } else {
            node.cold()
        };
        if (word.is_warm() || kind == Kind::Address)
            && pools.of(area.pages()).is_some_and(|pool| pool.push(self.areas(), index))
        {
            return Ok(());
        }
        self.put_aside(index, may_wait);
        Ok(())
    }

    /// Gives up a held area after an error or a panic. The next purge unmaps what is mapped in it:
    /// none runs here, because it may panic, but where the failure is
    /// [noted](Self::note_failure).
    #[cold]
    pub fn abandon(&self, index: AreaIndex) {
        let area = self.area(index);
        count(&self.nodes().of_area(area).counters().abandoned_areas, 1);
        if area.mapped() == 0 {
            // For the pool: nothing is mapped.
            area.set_word(area.word().plain(State::Pooled));
        }
        if !self.nodes().keep(self.areas(), index) {
            self.make_lazy(index);
        }
    }

    #[cold]
    fn why_not_freed(&self, start: VirtAddr) -> VfreeError {
        let range = self.range();
        if self.host().check_usable().is_err() {
            return VfreeError::Forked;
        }
        let Some(page) = range.page_of(start) else { return VfreeError::OutOfRange };
        let found = self.directory().index().at(page).map(|index| self.area(index));
        match found {
            Some(area) if area.start() == page && range.page_at(start).is_some() => {
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
