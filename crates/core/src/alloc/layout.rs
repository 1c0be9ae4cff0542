//! Layout of the metadata in the caller's memory, and the part of it that belongs to no zone and
//! no CPU.
#![allow(unsafe_code, reason = "finds the first aligned byte of that memory")]

use core::mem::MaybeUninit;
use core::ptr::NonNull;

use super::config::{Config, ConfigError};
use super::pressure::ReliefSlot;
use crate::cpus::Cpus;
use crate::evacuation::ZonePolicy;
use crate::frame::pageblock::{SECTION_FRAMES, SECTION_PAGEBLOCKS, WORD_BYTES, WORDS_PER_ZONE};
use crate::frame::{Mobility, NodeId, Order};
use crate::front::{CPUS_FOLLOWED_MAX, GATES_ALL, GATES_AT, Magazine, MagazineIndex};
use crate::pcp::{CarvedFrames, CpuShared, Pcp, PcpsState, Places};
use crate::reclaim::LastResort;
use crate::store::MisuseNote;
use crate::store::backing::Reports;
use crate::store::hints::{Group, Summary};
use crate::store::section::Section;
use crate::store::tags::AvoidCounts;
use crate::sync::CachePadded;
use crate::sync::model::IS_LOOM;
use crate::sync::prim::{AtomicU8, AtomicU32, AtomicU64, AtomicUsize};
use crate::zone::{CacheLimits, Watermarks, Zone};

/// Alignment of the parts, at least: two cache lines, which prefetchers treat as one, and a
/// magazine's size, so that those in a carved page lie a whole number of magazines behind the
/// first.
pub const ALIGN: usize = 256;
const _: () = assert!(IS_LOOM || ALIGN.is_multiple_of(size_of::<Magazine>()));

/// Byte offsets of the parts, from an aligned start. Gates, blocks and magazines come last, the
/// magazines behind the others, so that frames mapped right behind the metadata is within reach of
/// a magazine index, which counts from the gates' base.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    pub globals: usize,
    pub zones: usize,
    pub policies: usize,
    pub zonelist_nodes: usize,
    pub zonelists: usize,
    pub tables: usize,
    pub tags: usize,
    /// Offset of the bits of [`CarvedFrames`].
    pub carved: usize,
    pub carved_words: usize,
    pub summary: usize,
    pub sections: usize,
    /// Bytes of one section with what the options add; 0: nothing needs sections.
    pub section_bytes: usize,
    /// The base of a [`BlockArray`](crate::front::BlockArray), with gates.
    pub cpus: usize,
    /// Number of gates.
    pub gates: usize,
    pub blocks: usize,
    pub blocks_stride: usize,
    pub context_stride: usize,
    pub places: Places,
    pub magazines: usize,
    pub magazines_count: usize,
    pub end: usize,
    /// Alignment of each part: [`ALIGN`], or a base page where those of CPUs fill pages.
    pub align: usize,
}

impl Layout {
    pub fn new<C: Cpus>(config: &Config<'_>, is_backed: bool) -> Result<Self, ConfigError> {
        config.check()?;
        Self::compute::<C>(config, is_backed).ok_or(ConfigError::TooLarge)
    }

    fn compute<C: Cpus>(config: &Config<'_>, is_backed: bool) -> Option<Self> {
        let (cpus, zones, contexts) = (config.cpus as usize, config.zones.len(), C::CONTEXTS);
        let gates = if C::FOLLOWS_GATES { GATES_ALL as usize } else { cpus };
        let words_per_context = zones * WORDS_PER_ZONE;
        let words = (contexts * words_per_context).checked_mul(WORD_BYTES)?;
        let shared_at = words.next_multiple_of(ALIGN);
        let pcps_at = shared_at + size_of::<CpuShared>();
        let align = if config.cpu_pages { config.page_size.bytes() } else { ALIGN };
        let blocks_stride = (pcps_at + zones * size_of::<Pcp>()).next_multiple_of(align);
        let section_bytes = section_bytes(config, is_backed);
        let magazines_count = magazines_wanted(config)?;
        let zonelist_nodes_count = config.zonelist_nodes().count();
        let carved_words = CarvedFrames::words(config.page_size, config.frames_end());

        let mut end = 0usize;
        let mut part = |bytes: usize| -> Option<usize> {
            let start = end.checked_next_multiple_of(align)?;
            end = start.checked_add(bytes)?;
            Some(start)
        };
        let layout = Layout {
            globals: part(size_of::<Globals<'_, C>>())?,
            zones: part(zones * size_of::<Zone>())?,
            policies: part(zones * size_of::<CachePadded<ZonePolicy>>())?,
            zonelist_nodes: part(zonelist_nodes_count * size_of::<NodeId>())?,
            zonelists: part(zonelist_nodes_count * zones)?,
            tables: part(config.sections_max().checked_mul(size_of::<AtomicUsize>())?)?,
            tags: part(
                config.sections_max().checked_mul(SECTION_PAGEBLOCKS * size_of::<AtomicU32>())?,
            )?,
            carved: part(carved_words * size_of::<AtomicU64>())?,
            carved_words,
            summary: part(Summary::groups(config.sections_max()) * size_of::<Group>())?,
            sections: part(config.sections().count().checked_mul(section_bytes)?)?,
            section_bytes,
            cpus: part(gates.checked_mul(size_of::<AtomicU64>())?.checked_add(GATES_AT)?)?,
            gates,
            blocks: part(cpus.checked_mul(blocks_stride)?)?,
            blocks_stride,
            context_stride: if contexts > 1 { words_per_context * WORD_BYTES } else { 0 },
            places: Places { shared_at, pcps_at },
            // Under loom magazines are not as large as the alignment: one more makes up for it.
            magazines: part(
                (magazines_count + usize::from(IS_LOOM)).checked_mul(size_of::<Magazine>())?,
            )?,
            magazines_count,
            end,
            align,
        };
        let end = layout.first_magazine().checked_add(magazines_count)?;
        let has_numbers = magazines_count == 0 || end <= 1 << MagazineIndex::BITS;
        // A gate that is followed is half a word.
        let has_gates = !C::FOLLOWS_GATES
            || config.cpus <= CPUS_FOLLOWED_MAX && u32::try_from(layout.cpu_bytes()).is_ok();
        (has_numbers && has_gates).then_some(layout)
    }

    /// The index of the first magazine.
    pub fn first_magazine(&self) -> usize {
        (self.magazines - self.cpus).div_ceil(size_of::<Magazine>())
    }

    /// Bytes of all that belongs to CPUs.
    pub fn cpu_bytes(&self) -> usize {
        self.magazines - self.cpus
    }

    /// Bytes the caller must give, alignment included.
    pub fn bytes(&self) -> usize {
        self.end + self.align - 1
    }
}

/// Computes [`Layout::section_bytes`]. With a backing no code uses a section's bits, but the bytes
/// of `checked` are found from where it lies.
fn section_bytes(config: &Config<'_>, is_backed: bool) -> usize {
    if is_backed && !config.checked {
        return 0;
    }
    let per_frame = usize::from(config.checked) * size_of::<AtomicU8>();
    (size_of::<Section<'_>>() + SECTION_FRAMES as usize * per_frame).next_multiple_of(ALIGN)
}

/// Watermarks of a zone of the configuration.
pub fn watermarks(config: &Config<'_>, zone: usize) -> Watermarks {
    let managed = config.managed(zone);
    config.zones[zone].watermarks.unwrap_or_else(|| Watermarks::kernel(managed, config.page_size))
}

/// Cache limits of a zone of the configuration.
pub fn limits(config: &Config<'_>, zone: usize) -> CacheLimits {
    let near = config.cpus_on(config.zones[zone].node);
    let cpus = if near == 0 { u64::from(config.cpus) } else { near };
    CacheLimits::new(
        config.managed(zone),
        watermarks(config, zone).low,
        cpus,
        config.page_size,
        config.high,
    )
}

/// Magazines for every CPU's caches at `high_min`, and two for each front it may use at once.
fn magazines_wanted(config: &Config<'_>) -> Option<usize> {
    if IS_LOOM {
        #[cfg(loom)]
        return Some(crate::loom_tests::magazines());
    }
    if !config.caches {
        return Some(0);
    }
    let round = u64::from(Order::BASE.magazine_frames());
    // Fronts of one mobility in each order; others displace shelved magazines.
    let fronts = 2 * Order::CACHED + Mobility::COUNT;
    let per_cpu: u64 = (0..config.zones.len())
        .filter(|&zone| config.managed(zone) > 0 || config.pfn_limit.is_some())
        .map(|zone| {
            (limits(config, zone).high_min.min(config.managed(zone)) / round) + fronts as u64
        })
        .sum();
    let all = usize::try_from(per_cpu).ok()?.checked_mul(config.cpus as usize)?;
    (all < 1 << MagazineIndex::BITS).then_some(all)
}

/// The caller's memory from its first byte at a multiple of `align`, if `needed` bytes follow.
pub fn aligned(
    memory: &mut [MaybeUninit<u8>],
    needed: usize,
    align: usize,
) -> Result<NonNull<u8>, ConfigError> {
    let given = memory.len();
    let start = memory.as_mut_ptr().cast::<u8>();
    let skip = start.align_offset(align);
    if skip.checked_add(needed).is_none_or(|bytes| bytes > given) {
        return Err(ConfigError::TooLittleMetadata { needed: needed + align - 1, given });
    }
    // SAFETY: skip <= given, so the pointer stays in the slice; it is not null.
    Ok(unsafe { NonNull::new_unchecked(start.add(skip)) })
}

/// The state that changes, rarely, and belongs to no zone and no CPU. In the metadata rather than
/// in [`Allocator`], which so never changes: a loop that borrows one may keep its fields in
/// registers over all its calls.
pub(crate) struct Globals<'m, C> {
    pub pcps: PcpsState<'m>,
    pub last_resort: LastResort<'m>,
    /// Claims of the store that were rolled back.
    pub failed_claims: AtomicU64,
    pub noted: MisuseNote,
    pub relief: ReliefSlot<'m, C>,
    pub avoid_counts: AvoidCounts,
    pub reports: Reports<'m>,
}

impl<'m, C> Globals<'m, C> {
    pub fn new(carved: CarvedFrames<'m>) -> Self {
        Globals {
            pcps: PcpsState { carved, ..PcpsState::default() },
            last_resort: LastResort::default(),
            failed_claims: AtomicU64::new(0),
            noted: MisuseNote::default(),
            relief: ReliefSlot::new(),
            avoid_counts: AvoidCounts::default(),
            reports: Reports::default(),
        }
    }
}
