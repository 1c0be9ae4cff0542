//! Is every page in exactly one place?
//!
//! Needs the vmap for itself: no request or purge may be under way.

use core::fmt;

use super::Vmap;
use super::area::{Area, AreaIndex, State};
use super::error::Kind;
use super::seams::{Host, Mapper};
use super::tables::TableIndex;
use super::units::{Run, VirtAddr, Vpn};

/// Where all pages of address space are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct VmapCensus {
    /// Covered by no area.
    pub free_pages: u64,
    /// In busy areas, guards included.
    pub busy_pages: u64,
    /// In lazy areas.
    pub lazy_pages: u64,
    /// In pooled areas.
    pub pooled_pages: u64,
    /// Kept from being used again, because the mapper has lost them.
    pub lost_pages: u64,
    /// Busy areas.
    pub busy_areas: u64,
    /// Lazy areas.
    pub lazy_areas: u64,
    /// Pooled areas.
    pub pooled_areas: u64,
    /// Runs of lost pages.
    pub lost_areas: u64,
    /// Pages that something is mapped at.
    pub mapped_pages: u64,
    /// Frames that areas own.
    pub own_frames: u64,
}

/// What is wrong with the metadata.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum VmapFault {
    /// A page is neither free nor in an area.
    Lost {
        /// The page's address.
        at: VirtAddr,
    },
    /// The tree of free ranges is out of order, out of balance, or its sums are wrong.
    Tree,
    /// The free pages in the tree are not those that were counted.
    FreeCount {
        /// In the tree.
        found_pages: u64,
        /// Counted.
        counted_pages: u64,
    },
    /// An area is in nobody's hands, though no request is under way.
    InTransit {
        /// Its address.
        at: VirtAddr,
    },
    /// The index leads from a page of an area elsewhere.
    Index {
        /// The page's address.
        at: VirtAddr,
    },
    /// More or fewer areas are pooled or lazy than are in pools and lists.
    Lists {
        /// By their state.
        by_state: u64,
        /// In pools and lists.
        listed: u64,
    },
    /// A pooled or lazy area is in a list where it does not belong.
    Misplaced {
        /// Its address.
        at: VirtAddr,
    },
    /// An area has other pages mapped than it counts, or its guard is mapped.
    Mapped {
        /// Its address.
        at: VirtAddr,
    },
    /// Something is mapped where no area is.
    Stray {
        /// The page's address.
        at: VirtAddr,
    },
    /// A table counts other pages than are mapped through it.
    Table {
        /// The first address it maps.
        at: VirtAddr,
        /// Counted.
        counted_pages: u32,
        /// Mapped.
        mapped_pages: u32,
    },
    /// More or fewer tables are populated than were counted.
    Tables {
        /// Found.
        found: u64,
        /// Counted.
        counted: u64,
    },
    /// Lazy pages are miscounted.
    LazyCount {
        /// In lists.
        found_pages: u64,
        /// Counted.
        counted_pages: u64,
    },
    /// A pool's limits and its node's charge disagree, or the charge is above the budget.
    Charge {
        /// Sum of limits.
        limits_pages: u64,
        /// Charged.
        charged_pages: u64,
    },
    /// Descriptors are missing.
    Descriptors {
        /// Areas and free ranges.
        found: u64,
        /// Counted as used.
        counted: u64,
    },
    /// This process is a fork of the one whose metadata they are: there is nothing to check.
    Forked,
}

impl fmt::Display for VmapFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            VmapFault::Forked => {
                f.write_str("the metadata of the address space are the parent process's")
            }
            fault => write!(f, "the metadata of the address space are wrong: {fault:?}"),
        }
    }
}

impl core::error::Error for VmapFault {}

impl<M: Mapper, H: Host> Vmap<'_, M, H> {
    /// Checks everything against everything.
    ///
    /// # Errors
    /// The first fault found; [`VmapFault::Forked`] in a child.
    pub fn validate(&mut self) -> Result<VmapCensus, VmapFault> {
        self.host.check_usable().map_err(|_| VmapFault::Forked)?;
        let mut census = VmapCensus::default();
        let free_ranges = self.check_free(&mut census)?;
        let areas = self.check_areas(&mut census)?;
        self.check_lists(&census)?;
        self.check_charges()?;
        self.check_tables()?;
        let counted = u64::from(self.metadata.space.spares.used());
        if counted != areas + free_ranges {
            return Err(VmapFault::Descriptors { found: areas + free_ranges, counted });
        }
        Ok(census)
    }

    fn check_free(&self, census: &mut VmapCensus) -> Result<u64, VmapFault> {
        let (ranges, pages) = self.lock_space().tree().check().ok_or(VmapFault::Tree)?;
        let counted_pages = self.metadata.space.free_pages();
        census.free_pages = pages;
        if pages != counted_pages {
            return Err(VmapFault::FreeCount { found_pages: pages, counted_pages });
        }
        Ok(ranges)
    }

    /// Walks the range from end to end: free ranges and areas must tile it.
    fn check_areas(&self, census: &mut VmapCensus) -> Result<u64, VmapFault> {
        let (mut at, mut areas) = (Vpn(0), 0);
        while at.0 < self.range.pages {
            let free = self.lock_space().tree().containing(at);
            if let Some(free) = free {
                let run = Run { start: at, end: self.metadata.areas[free].end() };
                if let Some(page) = run.iter().find(|&page| self.metadata.frames.is_mapped(page)) {
                    return Err(VmapFault::Stray { at: self.range.addr(page) });
                }
                at = run.end;
                continue;
            }
            let lost = VmapFault::Lost { at: self.range.addr(at) };
            let index = self.metadata.index.at(at).ok_or(lost)?;
            let area = &self.metadata.areas[index];
            if area.start() != at || area.pages() == 0 {
                return Err(lost);
            }
            self.check_area(index, area, census)?;
            areas += 1;
            at = area.end();
        }
        Ok(areas)
    }

    fn check_area(
        &self,
        index: AreaIndex,
        area: &Area,
        census: &mut VmapCensus,
    ) -> Result<(), VmapFault> {
        let (run, at) = (area.run(), self.range.addr(area.start()));
        let elsewhere = run.iter().find(|&page| self.metadata.index.candidate(page) != Some(index));
        if let Some(page) = elsewhere {
            return Err(VmapFault::Index { at: self.range.addr(page) });
        }
        let pages = u64::from(run.pages());
        let (sum, number) = match area.word().state() {
            State::Busy if area.word().kind() == Kind::Lost => {
                (&mut census.lost_pages, &mut census.lost_areas)
            }
            State::Busy => (&mut census.busy_pages, &mut census.busy_areas),
            State::Lazy => (&mut census.lazy_pages, &mut census.lazy_areas),
            State::Pooled => (&mut census.pooled_pages, &mut census.pooled_areas),
            State::Held | State::Vacant => return Err(VmapFault::InTransit { at }),
        };
        *sum += pages;
        *number += 1;
        let mapped = |run: Run| {
            run.iter().filter(|&page| self.metadata.frames.is_mapped(page)).count() as u32
        };
        let body = mapped(area.body());
        if body != area.mapped() || mapped(run) != body {
            return Err(VmapFault::Mapped { at });
        }
        census.mapped_pages += u64::from(body);
        census.own_frames += self
            .metadata
            .frames
            .own_blocks(run)
            .map(|(_, order)| u64::from(order.frames()))
            .sum::<u64>();
        Ok(())
    }

    /// Follows all pools and lists.
    fn check_lists(&self, census: &VmapCensus) -> Result<(), VmapFault> {
        let (mut listed, mut lazy_pages) = (0, 0);
        let mut follow = |first: Option<AreaIndex>, belongs: &dyn Fn(&Area) -> bool| {
            for index in self.metadata.areas.list(first) {
                let area = &self.metadata.areas[index];
                listed += 1;
                if area.word().state() == State::Lazy {
                    lazy_pages += u64::from(area.pages());
                }
                if !belongs(area) {
                    return Err(VmapFault::Misplaced { at: self.range.addr(area.start()) });
                }
            }
            Ok(())
        };
        for (number, node) in self.metadata.nodes.iter().enumerate() {
            for (pools, warm) in [(&node.cold, false), (&node.warm, true)] {
                for (pages, pool) in pools.iter() {
                    follow(pool.peek(), &|area| {
                        area.word().state() == State::Pooled
                            && area.word().is_warm() == warm
                            && area.pages() == pages
                            && area.traits().node() == number
                            && (area.mapped() > 0) == warm
                    })?;
                }
            }
            follow(node.lazy.peek(), &|area| {
                area.word().state() == State::Lazy && area.traits().node() == number
            })?;
        }
        let by_state = census.pooled_areas + census.lazy_areas;
        if listed != by_state {
            return Err(VmapFault::Lists { by_state, listed });
        }
        let (found_pages, counted_pages) = (lazy_pages, self.lazy_pages());
        if found_pages != counted_pages {
            return Err(VmapFault::LazyCount { found_pages, counted_pages });
        }
        Ok(())
    }

    fn check_charges(&self) -> Result<(), VmapFault> {
        for node in self.metadata.nodes {
            for (pools, budget) in
                [(&node.cold, self.pool_pages_max), (&node.warm, self.warm_pages_max)]
            {
                let limits_pages = pools
                    .iter()
                    .map(|(pages, pool)| u64::from(pool.limit()) * u64::from(pages))
                    .sum();
                let charged_pages = pools.charged_pages();
                if limits_pages != charged_pages || charged_pages > budget {
                    return Err(VmapFault::Charge { limits_pages, charged_pages });
                }
            }
        }
        Ok(())
    }

    fn check_tables(&self) -> Result<(), VmapFault> {
        let tables = &self.metadata.tables;
        let mut found = 0;
        for table in (0..tables.words.len() as u32).map(TableIndex) {
            let run = tables.run(table);
            let mapped_pages =
                run.iter().filter(|&page| self.metadata.frames.is_mapped(page)).count() as u32;
            let (counted_pages, populated) = tables.read(table);
            let at = self.range.addr(run.start);
            if mapped_pages != counted_pages
                || tables.is_locked(table)
                || counted_pages > 0 && !populated
            {
                return Err(VmapFault::Table { at, counted_pages, mapped_pages });
            }
            found += u64::from(populated);
        }
        let counted = tables.populated.load(pagedepot::sync::prim::Ordering::Relaxed);
        if found != counted {
            return Err(VmapFault::Tables { found, counted });
        }
        Ok(())
    }
}
