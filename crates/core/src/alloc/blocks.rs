//! Single blocks: what a request or a free does when this CPU's front does not serve it.

use super::error::{AllocError, FreeError, Refusal};
use super::flags::Flags;
use super::hooks::{Hooks, Options};
use super::pressure::UnderPressure;
use super::relief::ReliefSlot;
use super::request::{Request, Want};
use super::undo::Undo;
use super::walk::Walk;
use crate::cpus::{Cpus, Environment};
use crate::frame::pageblock::Tag;
use crate::frame::{Class, Mobility, Order, Pfn, ZoneId};
use crate::front::WordOffset;
use crate::pcp::Caches;
use crate::reclaim::LastResort;
use crate::zone::Reserve;

/// Requests and frees of single blocks that a front does not serve.
pub(super) struct Blocks<'a, 'm, C> {
    pub caches: &'a Caches<'m, C>,
    pub options: &'a Options,
    pub last_resort: &'a LastResort<'m>,
    pub relief: &'m ReliefSlot<'m, C>,
}

impl<'a, 'm, C: Cpus> Blocks<'a, 'm, C> {
    pub fn hooks(&self) -> Hooks<'a, 'm, C> {
        Hooks { caches: self.caches, options: self.options }
    }

    pub fn walk(&self) -> Walk<'a, 'm, C> {
        Walk { caches: self.caches }
    }

    pub fn under_pressure(&self) -> UnderPressure<'a, 'm, C> {
        UnderPressure { hooks: self.hooks(), last_resort: self.last_resort, relief: self.relief }
    }

    fn check_usable(&self) -> Result<(), crate::cpus::Unusable> {
        self.caches.cpus.environment().check_usable()
    }

    /// Allocates a block: from the front of the zone to try first, else by the slow path.
    #[inline]
    pub fn alloc(&self, order: Order, flags: Flags) -> Result<Pfn, AllocError> {
        match self.pop(order, flags).map(Pfn::new) {
            Some(pfn) => {
                self.hooks().on_alloc(pfn, order, flags);
                Ok(pfn)
            }
            None => self.alloc_slow(order, flags),
        }
    }

    /// Allocates a block for a simple request whose pop from its front had none.
    #[cold]
    #[inline(never)]
    pub fn alloc_turned(&self, order: Order, flags: Flags) -> Result<Pfn, AllocError> {
        match self.caches.pop_turned(order, flags.mobility()) {
            Some(pfn) => Ok(pfn),
            None => self.alloc_slow(order, flags),
        }
    }

    /// One pop from the front of the zone to try first.
    #[inline]
    pub fn pop(&self, order: Order, flags: Flags) -> Option<u32> {
        let class = Class::of(order)?;
        let zone = self.walk().first_zone(self.caches.here()?, flags)?;
        let word = WordOffset::new(zone, class, flags.mobility());
        self.caches.pop(word)
    }

    /// Allocates a block like [`alloc`](Self::alloc), for a caller that has just tried the front.
    #[cold]
    #[inline(never)]
    pub fn alloc_slow(&self, order: Order, flags: Flags) -> Result<Pfn, AllocError> {
        self.check_usable()?;
        let hooks = self.hooks();
        let relieved =
            self.relief.get().and_then(|relief| relief.before_mixing(&hooks, order, flags));
        let found = match relieved.or_else(|| self.walk().alloc(order, flags, Reserve::AboveLow)) {
            Some(pfn) => Ok(pfn),
            None => {
                let node = self.caches.node_of(self.caches.here());
                self.under_pressure().alloc(Request { want: Want::Block(order), flags, node })
            }
        };
        let pfn = Undo { hooks: &hooks, order }.end_call(found)?;
        hooks.on_alloc(pfn, order, flags);
        Ok(pfn)
    }

    /// Allocates a block by one walk over the zones, down to `min`, or below it for atomic
    /// requests. The next one asks the reporting device again for what it refused this one.
    pub fn attempt(&self, order: Order, flags: Flags) -> Option<Pfn> {
        self.check_usable().ok()?;
        let reserve = if flags.is_atomic() { Reserve::All } else { Reserve::AboveMin };
        let found = self.walk().alloc(order, flags, reserve).ok_or(());
        if found.is_err() {
            self.caches.store.forget_refusals();
        }
        let hooks = self.hooks();
        let pfn = Undo { hooks: &hooks, order }.end_call(found).ok()?;
        hooks.on_alloc(pfn, order, flags);
        Some(pfn)
    }

    /// Implements [`Allocator::look`](crate::Allocator::look).
    pub fn look(&self, order: Order, flags: Flags) -> Result<Pfn, Refusal> {
        self.check_usable().map_err(|why| Refusal { error: why.into(), is_proven: true })?;
        let node = self.caches.node_of(self.caches.here());
        let request = Request { want: Want::Block(order), flags, node };
        let hooks = self.hooks();
        let found = self.under_pressure().look(request);
        let pfn = Undo { hooks: &hooks, order }.end_call(found)?;
        hooks.on_alloc(pfn, order, flags);
        Ok(pfn)
    }

    /// Frees a block that a push to its front did not take.
    #[cold]
    #[inline(never)]
    pub fn free_turned(&self, pfn: Pfn, order: Order) -> Result<(), FreeError> {
        let caches = self.caches;
        match caches.push_simple_locked(pfn, order) || caches.push_turned(pfn, order) {
            true => Ok(()),
            false => self.free(pfn, order),
        }
    }

    /// Frees a block that [`Caches::push_simple`] did not take.
    #[inline]
    pub fn free(&self, pfn: Pfn, order: Order) -> Result<(), FreeError> {
        let tag = self.hooks().check_free(pfn, order)?;
        match Class::of(order) {
            Some(class) if self.push_untried(pfn, class, tag) => Ok(()),
            Some(class) => self.free_slow(pfn, class, tag),
            None => self.free_direct(pfn, order, tag.zone()),
        }
    }

    /// Frees a block like [`free`](Self::free), but caches it for `mobility`.
    pub fn free_as(&self, pfn: Pfn, order: Order, mobility: Mobility) -> Result<(), FreeError> {
        let tag = self.hooks().check_free(pfn, order)?;
        match Class::of(order) {
            // Frames that a caller is removing are not cached.
            Some(class) if tag.is_isolated() => self.free_slow(pfn, class, tag),
            Some(class) => self.free_checked(pfn, class, Tag::new(tag.zone(), mobility)),
            None => self.free_direct(pfn, order, tag.zone()),
        }
    }

    /// Frees a block like [`free`](Self::free), if it has passed its checks.
    pub fn free_checked(&self, pfn: Pfn, class: Class, tag: Tag) -> Result<(), FreeError> {
        if self.push(pfn, class, tag) { Ok(()) } else { self.free_slow(pfn, class, tag) }
    }

    /// Frees a block if this CPU's front has room.
    pub fn push(&self, pfn: Pfn, class: Class, tag: Tag) -> bool {
        self.caches.push(WordOffset::of_tag(tag, class), class, pfn)
    }

    /// Pushes a block like [`push`](Self::push), which [`Caches::push_simple`] did not take: a
    /// front that it has tried is not tried again.
    #[inline]
    pub fn push_untried(&self, pfn: Pfn, class: Class, tag: Tag) -> bool {
        self.caches.store.simple_tag(pfn).is_none() && self.push(pfn, class, tag)
    }

    /// Frees a block to the store, past the caches.
    fn free_direct(&self, pfn: Pfn, order: Order, zone: ZoneId) -> Result<(), FreeError> {
        self.check_usable()?;
        if self.caches.direct(self.caches.here(), zone).put(pfn, order) == 0 {
            return Ok(());
        }
        self.caches.store.end_call(|| ());
        Err(FreeError::NotAllocated)
    }

    #[cold]
    #[inline(never)]
    fn free_slow(&self, pfn: Pfn, class: Class, tag: Tag) -> Result<(), FreeError> {
        let freed = self.free_slowly(pfn, class, tag);
        self.caches.store.end_call(|| ());
        freed
    }

    /// Frees a block like [`free_slow`](Self::free_slow), in the middle of a call.
    pub fn free_slowly(&self, pfn: Pfn, class: Class, tag: Tag) -> Result<(), FreeError> {
        self.check_usable()?;
        let (here, caches) = (self.caches.here(), self.caches);
        // Frames that a caller is removing go to the store, where that caller takes them.
        if let Some(here) = here.filter(|_| !tag.is_isolated())
            && caches.share(here.cpu, tag.zone()).free(here, pfn, class, tag.row())
        {
            return Ok(());
        }
        match caches.direct(here, tag.zone()).put(pfn, class.order()) {
            0 => Ok(()),
            _ => Err(FreeError::NotAllocated),
        }
    }
}
