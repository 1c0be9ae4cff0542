//! A check that every page is in exactly one place.
//!
//! It needs the vmap for itself: no request or purge may be under way.

use core::fmt;

use crate::kind::Kind;
use crate::metadata::area::{Area, AreaIndex, State};
use crate::node::large::LargePools;
use crate::node::pool::Pool;
use crate::seams::host::Host;
use crate::seams::mapper::Mapper;
use crate::state::VmapState;
use crate::units::{PageRange, VirtAddr, Vpn};

/// The number of pages in each place; the result of [`Vmap::validate`](crate::Vmap::validate).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct VmapCensus {
    /// Pages that no area covers.
    pub free_pages: u64,
    /// Pages in busy areas, with guards.
    pub busy_pages: u64,
    /// Pages in lazy areas.
    pub lazy_pages: u64,
    /// Pages in pooled areas.
    pub pooled_pages: u64,
    /// Pages that the mapper has lost, and that no request gets again.
    pub lost_pages: u64,
    /// Busy areas.
    pub busy_areas: u64,
    /// Lazy areas.
    pub lazy_areas: u64,
    /// Pooled areas.
    pub pooled_areas: u64,
    /// Runs of lost pages.
    pub lost_areas: u64,
    /// Pages at which a frame is mapped.
    pub mapped_pages: u64,
    /// Frames that areas own.
    pub own_frames: u64,
}

/// A contradiction in the metadata.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum VmapFault {
    /// A page is neither free nor in an area.
    Lost {
        /// The page's address.
        at: VirtAddr,
    },
    /// The tree of free ranges has a wrong order, balance or sum.
    Tree,
    /// The tree has more or fewer free pages than the counter.
    FreeCount {
        /// Pages in the tree.
        found_pages: u64,
        /// Pages counted.
        counted_pages: u64,
    },
    /// An area is neither busy, lazy nor pooled, though no request is under way.
    InTransit {
        /// Address of the area.
        at: VirtAddr,
    },
    /// The index leads from a page of an area to another area.
    Index {
        /// The page's address.
        at: VirtAddr,
    },
    /// More or fewer areas are pooled or lazy than the pools and lists have.
    Lists {
        /// Number of areas in these states.
        by_state: u64,
        /// Number of areas in pools and lists.
        listed: u64,
    },
    /// A pooled or lazy area is in the wrong pool or list.
    Misplaced {
        /// Address of the area.
        at: VirtAddr,
    },
    /// An area has more or fewer pages mapped than it counts, or its guard is mapped.
    Mapped {
        /// Address of the area.
        at: VirtAddr,
    },
    /// A frame is mapped where no area is.
    Stray {
        /// The page's address.
        at: VirtAddr,
    },
    /// A table counts more or fewer pages than are mapped through it.
    Table {
        /// The first address it maps.
        at: VirtAddr,
        /// Counted.
        counted_pages: u32,
        /// Mapped.
        mapped_pages: u32,
    },
    /// More or fewer tables are populated than the counter says.
    Tables {
        /// Found.
        found: u64,
        /// Counted.
        counted: u64,
    },
    /// The lazy lists have more or fewer pages than their counters.
    LazyCount {
        /// Pages in lists.
        found_pages: u64,
        /// Counted.
        counted_pages: u64,
    },
    /// The limits of a node's pools and their charge disagree, or the charge exceeds the budget.
    Charge {
        /// Sum of limits in pages.
        limits_pages: u64,
        /// Pages charged.
        charged_pages: u64,
    },
    /// More or fewer descriptors are in use than the counter says.
    Descriptors {
        /// Number of areas and free ranges.
        found: u64,
        /// Number counted.
        counted: u64,
    },
    /// This process is a fork of the one that the metadata belongs to. Nothing was checked.
    Forked,
}

impl fmt::Display for VmapFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            VmapFault::Forked => {
                f.write_str("the metadata of the address space belongs to the parent process")
            }
            fault => write!(f, "the metadata of the address space is wrong: {fault:?}"),
        }
    }
}

impl core::error::Error for VmapFault {}

/// Compares all metadata with each other. The caller has the vmap for itself.
pub fn validate<M: Mapper, H: Host>(state: &VmapState<'_, M, H>) -> Result<VmapCensus, VmapFault> {
    state.host().check_usable().map_err(|_| VmapFault::Forked)?;
    let mut census = VmapCensus::default();
    let check = Check { state };
    let free_ranges = check.free_ranges(&mut census)?;
    let areas = check.areas(&mut census)?;
    check.lists(&census)?;
    check.charges()?;
    check.tables()?;
    let counted = u64::from(state.space().spares().used());
    if counted != areas + free_ranges {
        return Err(VmapFault::Descriptors { found: areas + free_ranges, counted });
    }
    Ok(census)
}

struct Check<'a, 'm, M, H> {
    state: &'a VmapState<'m, M, H>,
}

impl<M: Mapper, H: Host> Check<'_, '_, M, H> {
    fn addr(&self, page: Vpn) -> VirtAddr {
        self.state.range().addr(page)
    }

    fn is_mapped(&self, page: Vpn) -> bool {
        self.state.mappings().frames().is_mapped(page)
    }

    fn mapped_pages(&self, run: PageRange) -> u32 {
        run.iter().filter(|&page| self.is_mapped(page)).count() as u32
    }

    /// Returns the number of free ranges.
    fn free_ranges(&self, census: &mut VmapCensus) -> Result<u64, VmapFault> {
        let (ranges, pages) = self.state.lock_space().tree().check().ok_or(VmapFault::Tree)?;
        let counted_pages = self.state.space().free_pages();
        census.free_pages = pages;
        if pages != counted_pages {
            return Err(VmapFault::FreeCount { found_pages: pages, counted_pages });
        }
        Ok(ranges)
    }

    /// Walks the range from end to end: free ranges and areas must tile it. Returns the number of
    /// areas.
    fn areas(&self, census: &mut VmapCensus) -> Result<u64, VmapFault> {
        let (state, mut at, mut areas) = (self.state, Vpn(0), 0);
        while at.0 < state.range().pages {
            let free = state.lock_space().tree().containing(at);
            if let Some(free) = free {
                let run = PageRange { start: at, end: state.area(free).end() };
                if let Some(page) = run.iter().find(|&page| self.is_mapped(page)) {
                    return Err(VmapFault::Stray { at: self.addr(page) });
                }
                at = run.end;
                continue;
            }
            let lost = VmapFault::Lost { at: self.addr(at) };
            let index = state.directory().index().at(at).ok_or(lost)?;
            let area = state.area(index);
            if area.start() != at || area.pages() == 0 {
                return Err(lost);
            }
            self.area(index, area, census)?;
            areas += 1;
            at = area.end();
        }
        Ok(areas)
    }

    fn area(
        &self,
        index: AreaIndex,
        area: &Area,
        census: &mut VmapCensus,
    ) -> Result<(), VmapFault> {
        let (run, at) = (area.run(), self.addr(area.start()));
        let segments = self.state.directory().index();
        if let Some(page) = run.iter().find(|&page| segments.candidate(page) != Some(index)) {
            return Err(VmapFault::Index { at: self.addr(page) });
        }
        let (pages, areas) = match area.word().state() {
            State::Busy if area.word().kind() == Kind::Lost => {
                (&mut census.lost_pages, &mut census.lost_areas)
            }
            State::Busy => (&mut census.busy_pages, &mut census.busy_areas),
            State::Lazy => (&mut census.lazy_pages, &mut census.lazy_areas),
            State::Pooled => (&mut census.pooled_pages, &mut census.pooled_areas),
            State::Held | State::Vacant => return Err(VmapFault::InTransit { at }),
        };
        *pages += u64::from(run.pages());
        *areas += 1;
        let mapped_pages = self.mapped_pages(area.body());
        if mapped_pages != area.mapped() || self.mapped_pages(run) != mapped_pages {
            return Err(VmapFault::Mapped { at });
        }
        census.mapped_pages += u64::from(mapped_pages);
        let own_blocks = self.state.mappings().frames().own_blocks(run);
        census.own_frames +=
            own_blocks.map(|(_, (_, order))| u64::from(order.frames())).sum::<u64>();
        Ok(())
    }

    /// Follows all pools and lists.
    fn lists(&self, census: &VmapCensus) -> Result<(), VmapFault> {
        let (mut listed, mut found_pages) = (0, 0);
        let mut follow = |first: Option<AreaIndex>, belongs: &dyn Fn(&Area) -> bool| {
            for index in self.state.areas().list(first) {
                let area = self.state.area(index);
                listed += 1;
                if area.word().state() == State::Lazy {
                    found_pages += u64::from(area.pages());
                }
                if !belongs(area) {
                    return Err(VmapFault::Misplaced { at: self.addr(area.start()) });
                }
            }
            Ok(())
        };
        for (number, node) in self.state.nodes().iter().enumerate() {
            let cold = node.cold().iter().map(|(pages, pool)| (pages, pool, false));
            let warm = node.warm().iter().chain(node.large().iter());
            for (pages, pool, is_warm) in cold.chain(warm.map(|(pages, pool)| (pages, pool, true)))
            {
                follow(pool.peek(self.state.areas()), &|area| {
                    area.word().state() == State::Pooled
                        && area.word().is_warm() == is_warm
                        && (area.pages() == pages || LargePools::has_size(area.pages()))
                        && area.traits().node() == number
                        && (area.mapped() > 0) == is_warm
                })?;
            }
            follow(node.lazy().peek(), &|area| {
                area.word().state() == State::Lazy && area.traits().node() == number
            })?;
        }
        let by_state = census.pooled_areas + census.lazy_areas;
        if listed != by_state {
            return Err(VmapFault::Lists { by_state, listed });
        }
        let counted_pages = self.state.nodes().lazy_pages();
        if found_pages != counted_pages {
            return Err(VmapFault::LazyCount { found_pages, counted_pages });
        }
        Ok(())
    }

    fn charges(&self) -> Result<(), VmapFault> {
        let nodes = self.state.nodes();
        for node in nodes.iter() {
            let (cold, warm, large) = (node.cold(), node.warm(), node.large());
            check_charge(cold.iter(), cold.charged_pages(), nodes.cold_pages_max())?;
            check_charge(warm.iter(), warm.charged_pages(), nodes.warm_pages_max())?;
            check_charge(large.iter(), large.charged_pages(), nodes.large_pages_max())?;
        }
        Ok(())
    }

    fn tables(&self) -> Result<(), VmapFault> {
        let tables = self.state.mappings().tables();
        let mut found = 0;
        for table in tables.all() {
            let run = tables.run(table);
            let mapped_pages = self.mapped_pages(run);
            let (counted_pages, is_populated) = tables.read(table);
            if mapped_pages != counted_pages
                || tables.is_locked(table)
                || counted_pages > 0 && !is_populated
            {
                let at = self.addr(run.start);
                return Err(VmapFault::Table { at, counted_pages, mapped_pages });
            }
            found += u64::from(is_populated);
        }
        let counted = tables.counts().populated;
        if found != counted {
            return Err(VmapFault::Tables { found, counted });
        }
        Ok(())
    }
}

fn check_charge<'p>(
    pools: impl Iterator<Item = (u32, &'p Pool)>,
    charged_pages: u64,
    budget: u64,
) -> Result<(), VmapFault> {
    let limits_pages = pools.map(|(pages, pool)| u64::from(pool.limit()) * u64::from(pages)).sum();
    if limits_pages != charged_pages || charged_pages > budget {
        return Err(VmapFault::Charge { limits_pages, charged_pages });
    }
    Ok(())
}
