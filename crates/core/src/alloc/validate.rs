//! Is every frame in exactly one place?
//!
//! Needs the allocator for itself, and no memory beyond a few KiB of stack: cached frames are
//! marked in a window of bits, which moves over the zone; a bit that is set already is a frame in
//! two places.

use core::fmt;
use core::ops::ControlFlow;

use super::allocator::Allocator;
use crate::cpus::{Cpus, Environment, Here};
use crate::frame::pageblock::{PAGEBLOCK_FRAMES, SECTION_FRAMES, SECTION_PAGEBLOCKS};
use crate::frame::{CpuId, Pfn, ZoneId};
use crate::front::MagazineIndex;
use crate::front::word::Word;
use crate::pcp::Front;
use crate::store::bits;
use crate::store::summary::Sort;
use crate::sync::prim::Ordering;
use crate::sync::stack::Links;

/// Where all frames are, in pages. Held by callers: what remains.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Census {
    /// Given to the allocator.
    pub managed_pages: u64,
    /// Free in the store.
    pub free_pages: u64,
    /// In fronts and shelves.
    pub cached_pages: u64,
    /// Taken for magazines.
    pub carved_pages: u64,
}

impl Census {
    /// What callers must be holding.
    pub fn held_pages(&self) -> u64 {
        self.managed_pages - self.free_pages - self.cached_pages - self.carved_pages
    }
}

/// What is wrong with the metadata.
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
        /// That exist.
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
        /// What its magazines could hold.
        installed_pages: i64,
    },
    /// Pages are in flight though nobody runs: a slow path or drainer died on the way.
    InFlight {
        /// The zone.
        zone: ZoneId,
        /// How many.
        pages: u64,
    },
    /// A pageblock with free frames is hidden from searches.
    HiddenPageblock {
        /// Its first frame; that of its section, where the section's mark is what is missing.
        pfn: Pfn,
    },
    /// The counters and the bitmap disagree about a zone's free pages.
    FreeCount {
        /// The zone.
        zone: ZoneId,
        /// By the counters.
        counted_pages: u64,
        /// By the bitmap.
        free_pages: u64,
    },
    /// Frames that hold magazines are free in the store, or not as many as were counted.
    Carved {
        /// By the bits that `free` looks at, without those that are free.
        found_pages: u64,
        /// By the zones' counters.
        counted_pages: u64,
    },
    /// More pages were found than the zone has.
    Surplus {
        /// The zone.
        zone: ZoneId,
    },
    /// Somebody wrote where closed gates lead, to words that everybody takes for empty.
    Refusals,
    /// This process is a fork of the one whose metadata they are: there is nothing to check.
    Forked,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Forked => f.write_str("the allocator's pcp are the parent process's"),
            fault => write!(f, "the allocator's pcp are inconsistent: {fault:?}"),
        }
    }
}

impl core::error::Error for Fault {}

impl<C: Cpus> Allocator<'_, C> {
    /// Checks every structure against every other and counts all frames. For tests and soaks:
    /// O(memory). Exclusive: call it when everybody else has stopped.
    ///
    /// # Errors
    /// The first fault found, [`Fault::Forked`] in a child. Nothing is changed.
    pub fn validate(&mut self) -> Result<Census, Fault> {
        self.validate_at_rest()
    }

    /// As [`validate`](Self::validate), of an allocator that is shared. A caller that allocates,
    /// frees or drains meanwhile disturbs the counts, and makes this report faults that are none;
    /// nothing worse.
    ///
    /// # Errors
    /// As [`validate`](Self::validate).
    pub fn validate_at_rest(&self) -> Result<Census, Fault> {
        self.cpus.environment().check_usable().map_err(|_| Fault::Forked)?;
        if !self.pcps.blocks().refuses() {
            return Err(Fault::Refusals);
        }
        let mut census = Census::default();
        let mut magazines = 0;
        for zone in self.pcps.all_zones() {
            let free_pages = self.store.count_free(zone, self.zones.get(zone).span());
            let counted_pages = self.free_pages(zone);
            if counted_pages != free_pages {
                return Err(Fault::FreeCount { zone, counted_pages, free_pages });
            }
            self.check_hints(zone)?;
            match self.caches().in_flight_pages(zone) {
                0 => {}
                pages => return Err(Fault::InFlight { zone, pages }),
            }
            let mut cached_pages = 0;
            for cpu in self.pcps.all_cpus() {
                let (pages, installed) = self.check_cached(cpu, zone)?;
                cached_pages += pages;
                magazines += installed;
            }
            self.check_cached_once(zone)?;
            let carved_pages = self.zones.get(zone).carved.load(Ordering::Relaxed);
            let managed_pages = self.zones.get(zone).managed();
            if free_pages + cached_pages + carved_pages > managed_pages {
                return Err(Fault::Surplus { zone });
            }
            census.free_pages += free_pages;
            census.cached_pages += cached_pages;
            census.carved_pages += carved_pages;
            census.managed_pages += managed_pages;
        }
        self.check_magazines(magazines, census.carved_pages)?;
        let counted_pages = census.carved_pages;
        let found_pages =
            self.pcps.carved().all().filter(|&pfn| !self.store.is_free(pfn)).count() as u64;
        if found_pages != counted_pages {
            return Err(Fault::Carved { found_pages, counted_pages });
        }
        Ok(census)
    }

    /// Every pageblock with free frames has its `some` hint, every entirely free one its `whole`
    /// hint, and every section the marks that lead to them.
    fn check_hints(&self, zone: ZoneId) -> Result<(), Fault> {
        let Some(bitmap) = self.store.bitmap() else { return Ok(()) };
        let span = self.zones.get(zone).span();
        for number in span.0 as usize..span.1 as usize {
            let Some(section) = bitmap.section(number) else { continue };
            if Sort::ALL.into_iter().any(|sort| section.hides(sort)) {
                return Err(Fault::HiddenPageblock {
                    pfn: Pfn::new(number as u32 * SECTION_FRAMES),
                });
            }
            for pageblock in 0..SECTION_PAGEBLOCKS {
                let free = section.count_free(pageblock);
                let (some, whole) = section.hints(pageblock / 64);
                let (some, whole) =
                    (some >> (pageblock % 64) & 1 == 1, whole >> (pageblock % 64) & 1 == 1);
                if free > 0 && !some || free == PAGEBLOCK_FRAMES && !whole {
                    let pfn = Pfn::new(
                        (number * SECTION_PAGEBLOCKS + pageblock) as u32 * PAGEBLOCK_FRAMES,
                    );
                    return Err(Fault::HiddenPageblock { pfn });
                }
            }
        }
        Ok(())
    }

    /// Visits every magazine of a CPU in a zone with the number of its rounds. Beside the CPU what
    /// it visits may be stale.
    pub(super) fn visit_magazines<B>(
        &self,
        cpu: CpuId,
        zone: ZoneId,
        mut visit: impl FnMut(Front, MagazineIndex, u32) -> ControlFlow<B>,
    ) -> ControlFlow<B> {
        for (front, offset) in self.pcps.fronts(cpu, zone) {
            let word = Word(self.pcps.blocks().word(front.here, offset).load(Ordering::Acquire));
            if let Some(loaded) = word.loaded() {
                visit(front, loaded, word.rounds())?;
            }
            if let Some((previous, full)) = word.previous() {
                visit(front, previous, if full { front.class.rounds() } else { 0 })?;
            }
        }
        for (class, mobility, shelf) in self.pcps.pcp(cpu, zone).shelves() {
            let front = Front { here: Here::task(cpu), zone, class, mobility };
            let mut at = shelf.peek(self.pcps.blocks());
            for _ in 0..shelf.count() {
                let Some(magazine) = at else { break };
                visit(front, magazine, class.rounds())?;
                at = self.pcps.blocks().next(magazine);
            }
        }
        ControlFlow::Continue(())
    }

    pub(super) fn frames_of(
        &self,
        magazine: MagazineIndex,
        rounds: u32,
    ) -> impl Iterator<Item = Pfn> {
        let slots = &self.pcps.blocks().magazine(magazine).slots[..rounds as usize];
        slots.iter().map(|slot| Pfn::new(slot.load(Ordering::Relaxed)))
    }

    /// All cached blocks of a CPU are memory of the zone and not free in the store; returns pages
    /// and magazines.
    fn check_cached(&self, cpu: CpuId, zone: ZoneId) -> Result<(u64, u64), Fault> {
        let (mut pages, mut magazines, mut installed_pages) = (0, 0, 0);
        let walk = self.visit_magazines(cpu, zone, |front, magazine, rounds| {
            magazines += 1;
            installed_pages += i64::from(front.class.magazine_frames());
            let order = front.class.order();
            for pfn in self.frames_of(magazine, rounds) {
                let its = self.store.tags().zone_of_range(pfn, order.frames());
                if its != Some(zone) || !pfn.is_aligned(order) {
                    return ControlFlow::Break(Fault::Misplaced { pfn, cpu });
                }
                if (0..order.frames()).any(|at| self.store.is_free(pfn.add(at))) {
                    return ControlFlow::Break(Fault::Doubled { pfn, cpu });
                }
                pages += u64::from(order.frames());
            }
            ControlFlow::Continue(())
        });
        if let ControlFlow::Break(fault) = walk {
            return Err(fault);
        }
        let charged_pages = self.pcps.pcp(cpu, zone).charged_pages.load(Ordering::Relaxed);
        if charged_pages != installed_pages {
            return Err(Fault::Charge { cpu, zone, charged_pages, installed_pages });
        }
        Ok((pages, magazines))
    }

    /// No frame is cached twice. O(cached pages), once for each window that has some.
    fn check_cached_once(&self, zone: ZoneId) -> Result<(), Fault> {
        let mut first = Some(0);
        while let Some(start) = first {
            let mut window = Window::new(start);
            for cpu in self.pcps.all_cpus() {
                let walk = self.visit_magazines(cpu, zone, |front, magazine, rounds| {
                    for pfn in self.frames_of(magazine, rounds) {
                        if !window.mark(pfn, front.class.block_frames()) {
                            return ControlFlow::Break(Fault::Doubled { pfn, cpu });
                        }
                    }
                    ControlFlow::Continue(())
                });
                if let ControlFlow::Break(fault) = walk {
                    return Err(fault);
                }
            }
            first = window.next;
        }
        Ok(())
    }

    /// Every magazine is in a word, on a shelf, among the empties, or was never used.
    fn check_magazines(&self, installed: u64, carved_pages: u64) -> Result<(), Fault> {
        let used = u64::from(self.pcps.magazines().used());
        let per_page = (self.page_size.bytes() / size_of::<crate::front::Magazine>()) as u64;
        let exist = used + carved_pages * per_page;
        let mut found = installed;
        let stacks = self.pcps.all_cpus().flat_map(|cpu| {
            let returned =
                self.pcps.all_zones().map(move |zone| &self.pcps.pcp(cpu, zone).returned);
            returned.chain([&self.pcps.shared(cpu).empties])
        });
        for stack in stacks {
            let mut at = stack.peek(self.pcps.blocks());
            while let Some(magazine) = at {
                found += 1;
                if found > exist {
                    break;
                }
                at = self.pcps.blocks().next(magazine);
            }
        }
        if found == exist { Ok(()) } else { Err(Fault::Magazines { found, exist }) }
    }
}

/// A bit for each of some frames, to find those that are there twice.
struct Window {
    /// The first word, counted from frame 0.
    start: u32,
    words: [u64; Window::WORDS as usize],
    /// The first word behind the window that has frames.
    next: Option<u32>,
}

impl Window {
    /// 32768 frames in 4 KiB.
    const WORDS: u32 = 512;

    fn new(start: u32) -> Self {
        Window { start, words: [0; Window::WORDS as usize], next: None }
    }

    /// Marks the frames of a block that lie in the window. `false`: one is marked already.
    fn mark(&mut self, pfn: Pfn, frames: u32) -> bool {
        let end = pfn.get() + frames;
        (pfn.get() / 64..end.div_ceil(64)).all(|word| {
            let from = pfn.get().max(word * 64) - word * 64;
            let mask = bits::range_mask(from, end.min((word + 1) * 64) - word * 64 - from);
            let Some(at) = word.checked_sub(self.start) else { return true };
            let Some(bits) = self.words.get_mut(at as usize) else {
                self.next = Some(self.next.map_or(word, |next| next.min(word)));
                return true;
            };
            let is_new = *bits & mask == 0;
            *bits |= mask;
            is_new
        })
    }
}
