//! Is every frame in exactly one place?
//!
//! Needs the allocator for itself, and no memory beyond a few KiB of stack: cached frames are
//! marked in a window of bits, which moves over the zone; a bit that is set already is a frame in
//! two places.

use core::fmt;
use core::iter::{once_with, successors};

use super::allocator::Allocator;
use crate::cpus::{Cpus, Environment};
use crate::frame::pageblock::{PAGEBLOCK_FRAMES, PageblockIndex, SECTION_PAGEBLOCKS, Tag};
use crate::frame::{CpuId, PageSize, Pfn, ZoneId};
use crate::pcp::shelf::Part;
use crate::pcp::{Caches, Pcps};
use crate::store::bits;
use crate::store::hints::Sort;
use crate::store::section::Section;
use crate::sync::prim::Ordering;
use crate::sync::stack::Links;

/// The number of pages in each place. Held by callers: what remains.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Census {
    /// Given to the allocator.
    pub managed_pages: u64,
    /// Free in the store.
    pub free_pages: u64,
    /// Pages in fronts and shelves, and handed over.
    pub cached_pages: u64,
    /// Taken for magazines.
    pub carved_pages: u64,
}

impl Census {
    /// Number of pages that callers must be holding.
    pub fn held_pages(&self) -> u64 {
        self.managed_pages - self.free_pages - self.cached_pages - self.carved_pages
    }
}

/// An inconsistency of the metadata.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// A frame is cached twice, or cached and free in the store.
    Doubled {
        /// The block's first frame.
        pfn: Pfn,
        /// The CPU that caches it.
        cpu: CpuId,
    },
    /// A cached block belongs to another zone than its magazine, or to no memory.
    Misplaced {
        /// The block's first frame.
        pfn: Pfn,
        /// The CPU that caches it.
        cpu: CpuId,
    },
    /// Magazines are missing, or in two places.
    Magazines {
        /// Found in words and stacks.
        found: u64,
        /// Number of magazines that exist.
        exist: u64,
    },
    /// A CPU is charged with other pages than its magazines hold.
    Charge {
        /// The CPU.
        cpu: CpuId,
        /// The zone.
        zone: ZoneId,
        /// Charged pages.
        charged_pages: i64,
        /// Number of pages that its magazines could hold.
        installed_pages: i64,
    },
    /// Pages are in flight though no call runs: a slow path or drainer died on the way.
    InFlight {
        /// The zone.
        zone: ZoneId,
        /// Number of pages.
        pages: u64,
    },
    /// A pageblock with free frames is hidden from searches.
    HiddenPageblock {
        /// First frame of the pageblock; that of its section, where the section's mark is missing.
        pfn: Pfn,
    },
    /// Searches believe of a pageblock that it is avoided, and its tag says otherwise, or the
    /// reverse.
    Avoided {
        /// First frame of the pageblock.
        pfn: Pfn,
    },
    /// A pageblock is reported, and frames of it are in the words of the bitmap.
    Reported {
        /// First frame of the pageblock.
        pfn: Pfn,
    },
    /// A pageblock is entire, and also reported, or frames of it are in the words of the bitmap.
    Entire {
        /// First frame of the pageblock.
        pfn: Pfn,
    },
    /// Another number of pageblocks is reported than was counted.
    ReportedCount {
        /// Number by the counter.
        counted: u64,
        /// Number by the bits.
        found: u64,
    },
    /// Another number of a zone's pageblocks is avoided than was counted.
    AvoidedCount {
        /// The zone.
        zone: ZoneId,
        /// Number by the counter.
        counted: u64,
        /// Number by the tags.
        found: u64,
    },
    /// A pageblock that is wholly free counts as one in which blocks that are not akin are mixed.
    Mixed {
        /// First frame of the pageblock.
        pfn: Pfn,
    },
    /// The counters and the bitmap disagree about a zone's free pages.
    FreeCount {
        /// The zone.
        zone: ZoneId,
        /// Number of pages by the counters.
        counted_pages: u64,
        /// Number of pages by the bitmap.
        free_pages: u64,
    },
    /// Frames that hold magazines are free in the store, or not as many as were counted.
    Carved {
        /// Number of pages by the bits that `free` looks at, without those that are free.
        found_pages: u64,
        /// Number of pages by the zones' counters.
        counted_pages: u64,
    },
    /// More pages were found than the zone has.
    Surplus {
        /// The zone.
        zone: ZoneId,
    },
    /// A stray write changed the words that closed gates lead to, which must stay empty.
    Refusals,
    /// This process is a fork of the one that owns the metadata: there is nothing to check.
    Forked,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Forked => f.write_str("the allocator's metadata is the parent process's"),
            fault => write!(f, "the allocator's metadata is inconsistent: {fault:?}"),
        }
    }
}

impl core::error::Error for Fault {}

impl<'m, C: Cpus> Allocator<'m, C> {
    /// Checks every structure against every other and counts all frames. For tests and soaks:
    /// O(memory). Exclusive: call it when all other callers have stopped.
    ///
    /// # Errors
    /// The first fault found, [`Fault::Forked`] in a child. Nothing is changed.
    pub fn validate(&mut self) -> Result<Census, Fault> {
        self.validate_at_rest()
    }

    /// Validates like [`validate`](Self::validate) an allocator that is shared. A caller that
    /// allocates, frees or drains meanwhile disturbs the counts, and makes this report faults that
    /// are none; nothing worse.
    ///
    /// # Errors
    /// Fails like [`validate`](Self::validate).
    pub fn validate_at_rest(&self) -> Result<Census, Fault> {
        Validation { caches: &self.caches, page_size: self.options.page_size }.census()
    }
}

/// Checks what a section says of a pageblock with this tag: if it has free frames in its words it
/// has its `some` hint, if they are full its `whole` hint, and it has no block of an order that it
/// is noted to lack; an entire or reported one has no frame in the words; it is avoided if its tag
/// says so, and not mixed if it is whole.
fn check_pageblock(
    section: &Section<'_>,
    pageblock: PageblockIndex,
    tag: Tag,
) -> Result<(), Fault> {
    let (at, pfn) = (pageblock.in_section(), pageblock.first());
    let is = |mask: u64| mask >> (at % 64) & 1 == 1;
    let ((some, whole), free) = (section.hints(at / 64), section.count_in_words(at));
    let is_reported = section.is_reported(at);
    if section.is_entire(at) && (free > 0 || is_reported) {
        return Err(Fault::Entire { pfn });
    }
    let is_full = free == PAGEBLOCK_FRAMES;
    if free > 0 && (!is(some) || is_full && !is(whole) || section.hides_block(at)) {
        return Err(Fault::HiddenPageblock { pfn });
    }
    if is_reported && free > 0 {
        return Err(Fault::Reported { pfn });
    }
    if is(section.avoided(at / 64)) != tag.is_avoided() {
        return Err(Fault::Avoided { pfn });
    }
    let is_mixed = section.is_mixed(at) && section.count_free(at) == PAGEBLOCK_FRAMES;
    if is_mixed { Err(Fault::Mixed { pfn }) } else { Ok(()) }
}

/// The comparisons, of an allocator at rest.
struct Validation<'a, 'm, C> {
    caches: &'a Caches<'m, C>,
    page_size: PageSize,
}

impl<C: Cpus> Validation<'_, '_, C> {
    fn census(&self) -> Result<Census, Fault> {
        let caches = self.caches;
        caches.cpus.environment().check_usable().map_err(|_| Fault::Forked)?;
        if !caches.pcps.blocks().refuses() {
            return Err(Fault::Refusals);
        }
        let mut census = Census::default();
        let (mut magazines, mut reported) = (0, 0);
        for zone in caches.pcps.all_zones() {
            let free_pages = caches.store.count_free(zone, caches.zones.get(zone).span());
            let counted_pages = caches.free_pages(zone);
            if counted_pages != free_pages {
                return Err(Fault::FreeCount { zone, counted_pages, free_pages });
            }
            reported += self.check_pageblocks(zone)?;
            match caches.in_flight_pages(zone) {
                0 => {}
                pages => return Err(Fault::InFlight { zone, pages }),
            }
            let mut cached_pages = 0;
            for cpu in caches.pcps.all_cpus() {
                let (pages, installed) = self.check_cached(cpu, zone)?;
                cached_pages += pages;
                magazines += installed;
            }
            self.check_cached_once(zone)?;
            let carved_pages = caches.zones.get(zone).carved.load(Ordering::Relaxed);
            let managed_pages = caches.zones.get(zone).managed();
            if free_pages + cached_pages + carved_pages > managed_pages {
                return Err(Fault::Surplus { zone });
            }
            census.free_pages += free_pages;
            census.cached_pages += cached_pages;
            census.carved_pages += carved_pages;
            census.managed_pages += managed_pages;
        }
        self.check_magazines(magazines, census.carved_pages)?;
        let counted = caches.store.bitmap.reports.counts().reported;
        if counted != reported {
            return Err(Fault::ReportedCount { counted, found: reported });
        }
        let counted_pages = census.carved_pages;
        let found_pages =
            caches.pcps.state.carved.all().filter(|&pfn| !caches.store.is_free(pfn)).count() as u64;
        if found_pages != counted_pages {
            return Err(Fault::Carved { found_pages, counted_pages });
        }
        Ok(census)
    }

    /// Checks every pageblock of a zone, that every section has the marks that lead to its
    /// pageblocks, and that as many are avoided as were counted. Returns how many are reported.
    fn check_pageblocks(&self, zone: ZoneId) -> Result<u64, Fault> {
        let Some(bitmap) = self.caches.store.bitmap() else { return Ok(0) };
        let (tags, span) = (bitmap.tags, self.caches.zones.get(zone).span());
        let (mut reported, mut found) = (0, 0);
        for number in span.0 as usize..span.1 as usize {
            let Some(section) = bitmap.section(number) else { continue };
            let first = PageblockIndex((number * SECTION_PAGEBLOCKS) as u32);
            if Sort::ALL.into_iter().any(|sort| section.hides(sort)) {
                return Err(Fault::HiddenPageblock { pfn: first.first() });
            }
            for pageblock in (first.0..first.0 + SECTION_PAGEBLOCKS as u32).map(PageblockIndex) {
                let tag = tags.raw(pageblock);
                check_pageblock(section, pageblock, tag)?;
                reported +=
                    u64::from(tag.serves(zone) && section.is_reported(pageblock.in_section()));
                found += u64::from(tag.is_avoided() && tag.zone() == zone);
            }
        }
        let counted = tags.avoided(zone).into();
        if counted == found {
            Ok(reported)
        } else {
            Err(Fault::AvoidedCount { zone, counted, found })
        }
    }

    /// All cached blocks of a CPU are memory of the zone and not free in the store; returns pages
    /// and magazines.
    fn check_cached(&self, cpu: CpuId, zone: ZoneId) -> Result<(u64, u64), Fault> {
        let (mut pages, mut magazines, mut installed_pages) = (0, 0, 0);
        for (part, is_charged) in self.caches.pcps.cached(cpu, zone) {
            let (_, order, _) = part.unpack();
            magazines += 1;
            if is_charged {
                installed_pages += i64::from(order.magazine_frames());
            }
            for pfn in self.caches.pcps.frames_of(part) {
                let its = self.caches.store.tags.zone_of_range(pfn, order.frames());
                if its != Some(zone) || !pfn.is_aligned(order) {
                    return Err(Fault::Misplaced { pfn, cpu });
                }
                if (0..order.frames()).any(|at| self.caches.store.is_free(pfn.add(at))) {
                    return Err(Fault::Doubled { pfn, cpu });
                }
                pages += u64::from(order.frames());
            }
        }
        let charged_pages = self.caches.pcps.pcp(cpu, zone).charged_pages.load(Ordering::Relaxed);
        if charged_pages != installed_pages {
            return Err(Fault::Charge { cpu, zone, charged_pages, installed_pages });
        }
        Ok((pages, magazines))
    }

    /// No frame is cached twice. O(cached pages), once for each window that has some.
    fn check_cached_once(&self, zone: ZoneId) -> Result<(), Fault> {
        let mut first = Some(0);
        while let Some(start) = first {
            let mut window = Window { start, words: [0; Window::WORDS], next: None };
            for cpu in self.caches.pcps.all_cpus() {
                for (part, _) in self.caches.pcps.cached(cpu, zone) {
                    let (_, order, _) = part.unpack();
                    for pfn in self.caches.pcps.frames_of(part) {
                        if !window.mark(pfn, order.frames()) {
                            return Err(Fault::Doubled { pfn, cpu });
                        }
                    }
                }
            }
            first = window.next;
        }
        Ok(())
    }

    /// Every magazine is in a word, on a shelf, among the empties, or was never used.
    fn check_magazines(&self, installed: u64, carved_pages: u64) -> Result<(), Fault> {
        let pcps = &self.caches.pcps;
        let used = u64::from(pcps.magazines.used());
        let per_page = (self.page_size.bytes() / size_of::<crate::front::Magazine>()) as u64;
        let exist = used + u64::from(pcps.added_magazines()) + carved_pages * per_page;
        let mut found = installed;
        let stacks = pcps.all_cpus().flat_map(|cpu| {
            let returned = pcps.all_zones().map(move |zone| &pcps.pcp(cpu, zone).returned);
            returned.chain([&pcps.shared(cpu).empties])
        });
        for stack in stacks {
            let mut at = stack.peek(pcps.blocks());
            while let Some(magazine) = at {
                found += 1;
                if found > exist {
                    break;
                }
                at = pcps.blocks().next(magazine);
            }
        }
        if found == exist { Ok(()) } else { Err(Fault::Magazines { found, exist }) }
    }
}

/// A bit for each of some frames, to find those that are there twice.
struct Window {
    /// The first word, counted from frame 0.
    start: usize,
    words: [u64; Window::WORDS],
    /// The first word behind the window that has frames.
    next: Option<usize>,
}

impl Window {
    /// 32768 frames in 4 KiB.
    const WORDS: usize = 512;

    /// Marks the frames of a block that lie in the window. `false`: one is marked already.
    fn mark(&mut self, pfn: Pfn, frames: u32) -> bool {
        bits::masks(pfn.get(), pfn.get() + frames).all(|(word, mask)| {
            let Some(at) = word.checked_sub(self.start) else { return true };
            let Some(bits) = self.words.get_mut(at) else {
                self.next = Some(self.next.map_or(word, |next| next.min(word)));
                return true;
            };
            let is_new = *bits & mask == 0;
            *bits |= mask;
            is_new
        })
    }
}

/// Magazines that CPUs cache.
impl Pcps<'_> {
    /// Every magazine of a CPU in a zone that may hold frames, and whether the CPU is charged with
    /// it: in a front or on a shelf, not handed over.
    pub fn cached(&self, cpu: CpuId, zone: ZoneId) -> impl Iterator<Item = (Part, bool)> {
        let blocks = self.blocks();
        let fronts = self.used_fronts(cpu, zone).flat_map(|(front, _, word)| front.parts(word));
        let shelves = self.pcp(cpu, zone).shelves().flat_map(move |(order, _, shelf)| {
            let magazines = successors(shelf.peek(blocks), move |&at| blocks.next(at));
            let full = move |magazine| Part::new(magazine, order, order.rounds());
            magazines.take(shelf.count() as usize).map(full)
        });
        let charged = fronts.chain(shelves).map(|part| (part, true));
        // A look at what was handed over comes last: magazines go there from the others.
        let handed = once_with(move || self.handed(cpu, zone)).flatten();
        charged.chain(handed.map(|part| (part, false)))
    }

    /// The first frames of the blocks in a magazine.
    pub fn frames_of(&self, part: Part) -> impl Iterator<Item = Pfn> {
        let (magazine, _, rounds) = part.unpack();
        let slots = &self.blocks().magazine(magazine).slots[..rounds as usize];
        // Relaxed: `validate` runs alone, and others take what they find for a hint.
        slots.iter().map(|slot| Pfn::new(slot.load(Ordering::Relaxed)))
    }
}
