//! The memory of all CPUs' caches: where each CPU's gate, words and accounts lie.
#![allow(
    unsafe_code,
    reason = "finds accounts by their offset in a CPU's block, makes magazines of memory"
)]

use core::mem::MaybeUninit;

use super::asks::{Asks, Sleepers};
use super::high::FreeHigh;
use super::shelf::{CarvedFrames, Empties, Magazines, Part, Parts};
use super::state::{Front, Pcp};
use crate::evacuation::ZonePolicy;
use crate::frame::{CpuId, NodeId, Order, ZoneId};
use crate::front::word::Word;
use crate::front::{BlockArray, Context, Here, Magazine, MagazineIndex};
use crate::sync::CachePadded;
use crate::sync::model::IS_LOOM;
use crate::sync::prim::{AtomicU32, AtomicU64, Ordering};
use crate::sync::stack::Links;
use crate::zone::GroupDelta;
use crate::zone::delta::{self, GROUP_CPUS};

/// The state that changes, rarely, and belongs to no CPU. It lies in the metadata, so that a
/// [`Pcps`] itself never changes: a loop that borrows one may keep its fields in registers over all
/// its calls.
#[derive(Default)]
pub struct PcpsState<'m> {
    /// Magazines of the caller's memory that were used so far: the next is one of the others.
    pub fresh_magazines: AtomicU32,
    /// Magazines of memory that the caller added later.
    pub added_magazines: AtomicU32,
    /// Frames that were cut into magazines.
    pub carved: CarvedFrames<'m>,
    /// The number of the last drain that asked.
    pub ask_number: AtomicU64,
    /// Callers that sleep until CPUs have handed over. Apart: each handover of an owner looks
    /// whether there are any.
    pub sleepers: CachePadded<Sleepers>,
}

/// The state of a CPU for all zones.
#[repr(C, align(128))]
pub struct CpuShared {
    pub asks: CachePadded<Asks>,
    pub empties: Empties,
    pub node: NodeId,
    /// Zone to try first, by the level a request states; [`NO_ZONE`]: none will do.
    pub first_zones: [u8; LEVELS],
}

/// Levels a request can state: 0 to 14, and any.
pub const LEVELS: usize = 16;
/// No zone.
pub const NO_ZONE: u8 = u8::MAX;

impl CpuShared {
    pub fn new(node: NodeId, first_zones: [u8; LEVELS]) -> Self {
        CpuShared {
            asks: CachePadded::new(Asks::default()),
            empties: Empties::default(),
            node,
            first_zones,
        }
    }
}

/// Offsets of the parts of a CPU's block, in bytes from its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Places {
    pub shared_at: usize,
    pub pcps_at: usize,
}

/// The caches of all CPUs.
pub struct Pcps<'m> {
    blocks: BlockArray,
    places: Places,
    /// Zones that each CPU has accounts for.
    zones: u32,
    /// Sets of fronts per CPU: 1 (tasks only), or 2 (interrupt handlers have their own).
    contexts: usize,
    pub magazines: Magazines<'m>,
    pub state: &'m PcpsState<'m>,
    pub free_high: FreeHigh,
    /// Policies that avoid pageblocks, by zone; none if no pageblock ever is avoided.
    policies: &'m [CachePadded<ZonePolicy>],
    /// Number of kinds that requests can have: fronts of the others are empty.
    kinds: usize,
}

impl<'m> Pcps<'m> {
    /// # Safety
    /// `blocks` and `places` are those of metadata that lives for 'm: for each CPU there are words
    /// of `contexts` contexts, a [`CpuShared`] and a [`Pcp`] for each of `zones` zones, all
    /// written.
    #[allow(clippy::too_many_arguments, reason = "the parts, each once, by the builder alone")]
    pub unsafe fn new(
        blocks: BlockArray,
        places: Places,
        zones: u32,
        contexts: usize,
        magazines: Magazines<'m>,
        state: &'m PcpsState<'m>,
        free_high: FreeHigh,
        policies: &'m [CachePadded<ZonePolicy>],
        kinds: usize,
    ) -> Self {
        Pcps { blocks, places, zones, contexts, magazines, state, free_high, policies, kinds }
    }

    /// The words and gates.
    #[inline]
    pub fn blocks(&self) -> &BlockArray {
        &self.blocks
    }

    /// Magazines of memory that the caller added since construction.
    pub fn added_magazines(&self) -> u32 {
        // Relaxed: a report, and for checks at rest.
        self.state.added_magazines.load(Ordering::Relaxed)
    }

    /// Makes magazines of memory and puts them among the empties of all CPUs in turn. Returns how
    /// many; `None`: the memory lies where magazines have no numbers.
    pub fn add_magazines(&self, memory: &'m mut [MaybeUninit<u8>]) -> Option<u32> {
        let first = memory.as_mut_ptr().cast::<Magazine>();
        let skip = first.cast::<u8>().align_offset(size_of::<Magazine>());
        let count = memory.len().saturating_sub(skip) / size_of::<Magazine>();
        // To loom zeroes are no atomics.
        if count == 0 || IS_LOOM {
            return Some(0);
        }
        let first = first.wrapping_byte_add(skip);
        let base = self.blocks().base().addr();
        let number = first.addr().checked_sub(base)? / size_of::<Magazine>();
        if number.checked_add(count)? > 1 << MagazineIndex::BITS {
            return None;
        }
        first.expose_provenance();
        // SAFETY: so much memory was given for 'm, of which this call is the only user, aligned for
        // a magazine; those are arrays of integers, for which zeroes will do.
        unsafe { first.write_bytes(0, count) };
        self.state.added_magazines.fetch_add(count as u32, Ordering::Relaxed);
        let indices = (number..number + count).filter_map(|at| MagazineIndex::new(at as u32));
        for (index, cpu) in indices.zip(self.all_cpus().cycle()) {
            let pushed = self.shared(cpu).empties.push(self.blocks(), index);
            debug_assert!(pushed.is_ok(), "a stack of empties has no limit");
        }
        Some(count as u32)
    }

    /// Whether pageblocks are ever avoided, so that there are fronts for their frames.
    #[inline]
    pub fn avoids(&self) -> bool {
        !self.policies.is_empty()
    }

    /// The policy for a zone's pageblocks that are to be avoided, if any ever is.
    pub fn policy(&self, zone: ZoneId) -> Option<&'m ZonePolicy> {
        self.policies.get(zone.index()).map(|policy| &**policy)
    }

    /// CPUs that have caches: numbers `0..cpus`.
    #[inline]
    pub fn cpus(&self) -> u32 {
        self.blocks.cpus()
    }

    /// All of them.
    pub fn all_cpus(&self) -> impl Iterator<Item = CpuId> + Clone + use<> {
        (0..self.cpus()).map(CpuId::new)
    }

    /// All zones.
    pub fn all_zones(&self) -> impl Iterator<Item = ZoneId> + use<> {
        (0..self.zones).map(ZoneId::new)
    }

    /// Whether there are such a CPU and zone.
    pub fn has(&self, cpu: CpuId, zone: ZoneId) -> bool {
        cpu.get() < self.cpus() && zone.get() < self.zones
    }

    /// The state of a CPU for a zone.
    ///
    /// # Panics
    /// When there is no such CPU or zone.
    pub fn pcp(&self, cpu: CpuId, zone: ZoneId) -> &Pcp {
        assert!(self.has(cpu, zone));
        let at = self.blocks.block_at(cpu) + self.places.pcps_at + zone.index() * size_of::<Pcp>();
        // SAFETY: in bounds by the assertion; written by the promise of `new`.
        unsafe { &*self.blocks.base().add(at).cast::<Pcp>() }
    }

    /// The delta of the group of a CPU in a zone. It lies with the group's first CPU.
    pub fn group_delta(&self, cpu: CpuId, zone: ZoneId) -> &GroupDelta {
        let first = CpuId::new(cpu.get() / GROUP_CPUS * GROUP_CPUS);
        &self.pcp(first, zone).others.group_delta
    }

    /// Pages that the CPUs and their groups have not added to a zone's count of free pages yet.
    /// O(CPUs).
    pub fn free_deltas(&self, zone: ZoneId) -> i64 {
        let has_groups = self.cpus() > GROUP_CPUS;
        let group = |first| if has_groups { self.group_delta(first, zone).read() } else { 0 };
        let of_group = |first: CpuId| {
            let end = (first.get() + GROUP_CPUS).min(self.cpus());
            let cpus = (first.get()..end).map(CpuId::new);
            delta::sum(
                || group(first),
                || cpus.map(|cpu| self.pcp(cpu, zone).free_delta.read()).sum(),
            )
        };
        self.all_cpus().step_by(GROUP_CPUS as usize).map(of_group).sum()
    }

    /// The state of a CPU for all zones.
    ///
    /// # Panics
    /// When there is no such CPU.
    pub fn shared(&self, cpu: CpuId) -> &CpuShared {
        assert!(cpu.get() < self.cpus());
        let at = self.blocks.block_at(cpu) + self.places.shared_at;
        // SAFETY: as in `pcp`.
        unsafe { &*self.blocks.base().add(at).cast::<CpuShared>() }
    }

    /// The fronts of a CPU in a zone whose words are not empty, with those words, as they lie in
    /// memory. Does not exclude the owner. Most words are empty and cost a load each: a handover
    /// looks at all of them.
    pub fn used_fronts(
        &self,
        cpu: CpuId,
        zone: ZoneId,
    ) -> impl Iterator<Item = (Front, &AtomicU64, Word)> {
        let contexts = [Context::Task, Context::Interrupt].into_iter().take(self.contexts);
        let (used, halves) = (Order::CACHED * self.kinds, 1 + usize::from(self.avoids()));
        contexts.flat_map(move |context| {
            let here = Here { cpu, context };
            let rows = self.blocks.fronts(here, zone).chunks_exact(Front::places(false));
            rows.take(halves).enumerate().flat_map(move |(half, cells)| {
                cells[..used].iter().enumerate().filter_map(move |(at, cell)| {
                    // Acquire: pairs with the Release of the sequence that stored it, where no
                    // fence has ordered it (a quiescent CPU, an owner that moved after its claim).
                    let word = Word(cell.load(Ordering::Acquire));
                    let place = half * Front::places(false) + at;
                    (word != Word::EMPTY).then(|| (Front::at_place(here, zone, place), cell, word))
                })
            })
        })
    }

    /// The magazines of a zone that a CPU handed over and no drain has taken yet. Beside drains it
    /// may be stale.
    pub fn handed(&self, cpu: CpuId, zone: ZoneId) -> impl Iterator<Item = Part> {
        let parts = Parts(self.blocks());
        let first = self.pcp(cpu, zone).handed.peek(&parts);
        // A bound for what is stale.
        core::iter::successors(first, move |&part| parts.next(part)).take(1 << MagazineIndex::BITS)
    }

    /// Pages in it.
    pub fn handed_pages(&self, cpu: CpuId, zone: ZoneId) -> u64 {
        self.handed(cpu, zone).map(Part::pages).sum()
    }

    /// Pages in the fronts of a CPU in a zone, read without excluding the owner.
    pub fn front_pages(&self, cpu: CpuId, zone: ZoneId) -> u64 {
        let pages = |(front, _, word): (Front, _, Word)| {
            u64::from(word.frames(front.order.rounds()) * front.order.frames())
        };
        self.used_fronts(cpu, zone).map(pages).sum()
    }
}
