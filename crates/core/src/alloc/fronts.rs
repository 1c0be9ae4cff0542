//! Calls for kernels that do more themselves: sequences on this CPU's fronts under a guard that the
//! caller holds already, and requests that only try.
#![allow(unsafe_code, reason = "trusts its caller with CPUs and fronts")]

use core::fmt;
use core::mem::MaybeUninit;

use super::allocator::Allocator;
use super::error::{FreeError, Refusal};
use super::flags::Flags;
use super::walk::Want;
use crate::cpus::{Context, Cpus, Here, PinnedCpus, Processor, Unusable, sequence};
use crate::frame::pageblock::{Tag, WORD_BYTES};
use crate::frame::{CpuId, Kind, Mobility, Order, Pfn, ZoneId};
use crate::front::word::ONE_ROUND;
use crate::front::{BlockArray, WordOffset};
use crate::pcp::{Caches, Exchange, Front};
use crate::zone::Reserve;

/// The only zone of an allocator that has fronts with handles.
const ZONE: ZoneId = ZoneId::new(0);
/// First bit of the word's place in a handle.
const WORD_SHIFT: u32 = 16;

/// A front of an allocator's only zone: what its sequences need to know, in 32 bits.
///
/// | bits | what |
/// |---|---|
/// | 0..=7 | bytes of the slots of a full magazine |
/// | 16..=31 | bytes from the start of a CPU's block to the front's word: all that a pop looks at |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrontHandle(u32);

impl FrontHandle {
    /// Returns the handle as an integer, to keep in a table of another language.
    pub const fn to_bits(self) -> u32 {
        self.0
    }

    /// Makes a handle from [`to_bits`](Self::to_bits).
    pub const fn from_bits(bits: u32) -> Self {
        FrontHandle(bits)
    }

    /// A handle for pops alone, of the upper half of [`to_bits`](Self::to_bits).
    #[inline]
    pub const fn for_pops(upper: u16) -> Self {
        FrontHandle((upper as u32) << WORD_SHIFT)
    }

    #[inline]
    fn word(self) -> usize {
        (self.0 >> WORD_SHIFT) as usize
    }

    /// Bytes of a full magazine's slots, in the lowest byte as in a front word: a push compares the
    /// two bytes.
    #[inline]
    fn full_bytes(self) -> u8 {
        self.0 as u8
    }
}

impl<'m, P: Processor> Allocator<'m, PinnedCpus<P>> {
    /// The fronts, for kernels that know where they run: one sequence per block, and no guard of
    /// its own.
    #[inline]
    pub fn fronts(&self) -> Fronts<'_, 'm, P> {
        Fronts { caches: &self.caches, simple_level: self.simple_level }
    }
}

/// The fronts of an allocator, under guards of the caller; see [`Allocator::fronts`].
pub struct Fronts<'a, 'm, P> {
    caches: &'a Caches<'m, PinnedCpus<P>>,
    /// The level of the only zone, as in [`Allocator`].
    simple_level: u8,
}

crate::sync::copied!(Fronts<'_, '_, _>);

impl<P> fmt::Debug for Fronts<'_, '_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fronts").finish_non_exhaustive()
    }
}

impl<'a, P: Processor> Fronts<'a, '_, P> {
    #[inline]
    fn blocks(self) -> &'a BlockArray {
        self.caches.pcps.blocks()
    }

    /// The front for blocks of `order` and `mobility` in code of `context`; it is the same for
    /// allocators with as many zones. `None`: the order is not cached, or the allocator has several
    /// zones, or options that make an allocation more than a pop.
    pub fn find(self, context: Context, order: Order, mobility: Mobility) -> Option<FrontHandle> {
        if !Flags::new(mobility).takes_level(self.simple_level) {
            return None;
        }
        let order = order.cached()?;
        let word = WordOffset::new(ZONE, order, Kind::of(mobility));
        let at = word.bytes() + self.blocks().context_bytes(context);
        let full_bytes = order.rounds() * ONE_ROUND as u32;
        u16::try_from(at).ok().map(|at| FrontHandle(u32::from(at) << WORD_SHIFT | full_bytes))
    }

    /// Takes the newest block of a front. `None`: it has none now; call
    /// [`pop_next`](Self::pop_next), or [`try_alloc`](Allocator::try_alloc) or
    /// [`alloc`](Allocator::alloc) without the guard.
    ///
    /// # Safety
    /// The caller holds a guard of the [`Processor`] for `cpu`, below
    /// [`cpu_count`](Allocator::cpu_count), and for the context that [`find`](Self::find) got.
    #[inline]
    pub unsafe fn pop(self, cpu: CpuId, front: FrontHandle) -> Option<Pfn> {
        // SAFETY: the caller's promise.
        unsafe { sequence::pop_at(self.blocks(), cpu, front.word()) }.map(Pfn::new)
    }

    /// Takes the newest blocks of a front by one sequence, and writes them to `out`, the newest
    /// first: as many as there is room for, as the front's magazine holds, and as it has credit
    /// for. None: as for [`pop`](Self::pop). After fewer than there is room for, the front may
    /// have more: it has another magazine, which [`pop_next`](Self::pop_next) may load.
    ///
    /// ```
    /// # use core::mem::MaybeUninit;
    /// # use pagedepot::{CpuId, FrontHandle, Fronts, Pfn, cpus::Processor};
    /// /// # Safety
    /// /// Requires what [`Fronts::pop`] requires.
    /// unsafe fn pop_batch<P: Processor>(
    ///     fronts: Fronts<'_, '_, P>,
    ///     cpu: CpuId,
    ///     front: FrontHandle,
    /// ) -> usize {
    ///     let mut room = [MaybeUninit::uninit(); 63];
    ///     // SAFETY: the caller's promise.
    ///     let batch: &[Pfn] = unsafe { fronts.pop_many(cpu, front, &mut room) };
    ///     batch.len()
    /// }
    /// ```
    ///
    /// # Safety
    /// Requires what [`pop`](Self::pop) requires.
    #[inline]
    pub unsafe fn pop_many(
        self,
        cpu: CpuId,
        front: FrontHandle,
        out: &mut [MaybeUninit<Pfn>],
    ) -> &[Pfn] {
        // SAFETY: the caller's promise; so many have been written.
        unsafe {
            let count = sequence::pop_many_at(self.blocks(), cpu, front.word(), out);
            out[..count].assume_init_ref()
        }
    }

    /// Puts a block into a front. `false`: nothing has changed, and the caller still holds the
    /// block; call [`push_next`](Self::push_next), or [`free_as`](Allocator::free_as) without the
    /// guard.
    ///
    /// # Safety
    /// Requires what [`pop`](Self::pop) requires; the caller holds the block, which came from this
    /// allocator, in the order of the front.
    #[inline]
    pub unsafe fn push(self, cpu: CpuId, front: FrontHandle, pfn: Pfn) -> bool {
        // SAFETY: the caller's promise.
        unsafe {
            sequence::push_at(self.blocks(), cpu, front.word(), front.full_bytes(), pfn.get())
        }
    }

    /// Takes a block for a [`pop`](Self::pop) that found none, under the same guard, from the
    /// next full magazine that the CPU has: the front's other one, or one of its shelf. `None`: it
    /// has none, its gate is closed, or the front needs the slow path for another reason; call
    /// [`try_alloc`](Allocator::try_alloc) or [`alloc`](Allocator::alloc) without the guard.
    ///
    /// It is called once a magazine (63 blocks of order 0), in place of a slow path with guards of
    /// its own. O(1); it neither takes from the store nor gives to it.
    ///
    /// # Safety
    /// Requires what [`pop`](Self::pop) requires.
    #[cold]
    #[inline(never)]
    pub unsafe fn pop_next(self, cpu: CpuId, front: FrontHandle) -> Option<Pfn> {
        Exchange::of(&self.caches.share(cpu, ZONE), &self.front_at(cpu, front))?.pop()
    }

    /// Puts a block that a [`push`](Self::push) refused, under the same guard, into the front's
    /// other magazine, or into an empty one, for which the CPU shelves a full one. `false`: as for
    /// [`pop_next`](Self::pop_next), or the CPU would cache more than `high` or 1,023 magazines, or
    /// the block is of order 1 to 3 and no magazine has room, or it is the first such call since
    /// the clock went on. The caller still holds the block; give it to
    /// [`free_as`](Allocator::free_as) without the guard.
    ///
    /// It is called once a magazine. O(1); it neither takes from the store nor gives to it. It asks
    /// for the time ([`Environment::now_ms`](crate::cpus::Environment::now_ms)).
    ///
    /// # Safety
    /// Requires what [`push`](Self::push) requires.
    #[cold]
    #[inline(never)]
    pub unsafe fn push_next(self, cpu: CpuId, front: FrontHandle, pfn: Pfn) -> bool {
        let share = self.caches.share(cpu, ZONE);
        Exchange::of(&share, &self.front_at(cpu, front)).is_some_and(|exchange| exchange.push(pfn))
    }

    /// The front that a handle names.
    fn front_at(self, cpu: CpuId, front: FrontHandle) -> Front {
        let stride = self.blocks().context_bytes(Context::Interrupt);
        let (context, at) = match front.word().checked_sub(stride) {
            Some(at) => (Context::Interrupt, at),
            None => (Context::Task, front.word()),
        };
        Front::at_place(Here { cpu, context }, ZONE, at / WORD_BYTES)
    }
}

/// Requests that only try: for kernels that choose the zone, watch the watermarks and reclaim
/// themselves.
impl<C: Cpus> Allocator<'_, C> {
    /// Allocates a block if this CPU's caches have one, or a zone has one at the first look, down
    /// to the `min` watermark, or below it with [`Flags::atomic`].
    ///
    /// Where [`alloc`](Self::alloc) would go on to reclaim, to wait for blocks in flight and to
    /// drain other CPUs, this returns `None`. A caller that has its own ways of making room, as
    /// Linux has, asks this.
    ///
    /// Costs what [`alloc`](Self::alloc) costs past its first sequence, which this leaves to a
    /// caller that pops from its [front](Self::fronts) itself: a look at the shelf, or a refill.
    #[cold]
    #[inline(never)]
    pub fn try_alloc(&self, order: Order, flags: Flags) -> Option<Pfn> {
        let (hooks, flags) = (self.hooks(), self.options.classes.of(flags));
        self.slow().check_usable().ok()?;
        let reserve = if flags.is_atomic() { Reserve::All } else { Reserve::AboveMin };
        let found = self.caches.walk_for_block(order, flags, reserve).ok_or(());
        if found.is_err() {
            // The next request asks the reporting device again for what it refused this one.
            self.caches.store.bitmap.forget_refusals();
        }
        let pfn = hooks.end_call(order.frames(), found).ok()?;
        hooks.on_alloc(pfn, order, flags).ok()
    }

    /// Allocates a block without reclaim, as [`alloc`](Self::alloc) with
    /// [`Flags::no_reclaim`] does, for a caller that sleeps until a block is freed: an error says
    /// whether it may sleep ([`Refusal::is_proven`]), and counts as no failed request.
    ///
    /// Such a caller is to hear of every free. It has the caches of all CPUs
    /// [disabled](crate::CpuCaches::disable), so that every free comes to the store.
    ///
    /// # Errors
    /// [`Refusal`].
    #[cold]
    #[inline(never)]
    pub fn look(&self, order: Order, flags: Flags) -> Result<Pfn, Refusal> {
        let (slow, flags) = (self.slow(), flags.no_reclaim());
        let refusal = |why: Unusable| Refusal { error: why.into(), is_proven: true };
        slow.check_usable().map_err(refusal)?;
        let found = slow.look_below_low(slow.request(Want::Block(order), flags));
        let pfn = self.hooks().end_call(order.frames(), found)?;
        self.hooks().on_alloc(pfn, order, flags).map_err(refusal)
    }

    /// Frees a block as [`free`](Self::free) does, but caches it for requests of `mobility`,
    /// whatever the mobility that its pageblock had when the allocator last saw it: for frames of a
    /// [`Backing`](crate::Backing), whose owner changes the types of pageblocks itself.
    ///
    /// # Errors
    /// Fails like `free`.
    #[cold]
    #[inline(never)]
    pub fn free_as(&self, pfn: Pfn, order: Order, mobility: Mobility) -> Result<(), FreeError> {
        let slow = self.slow();
        let tag = self.hooks().check_free(pfn, order)?;
        // Frames that a caller is removing are not cached.
        match order.cached().filter(|_| !tag.is_isolated()) {
            Some(order) => slow.free_checked(pfn, order, Tag::new(tag.zone(), Kind::of(mobility))),
            None => slow.free_slow(pfn, order, tag),
        }
    }
}
