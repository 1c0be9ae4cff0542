//! Looking at areas without owning them: finding, reading, listing.
//!
//! Readers take no lock but for listings. The argument on readers in `metadata/area.rs` says why
//! what they see was there at one moment.

use core::fmt;
use core::panic::Location;

use crate::kind::Kind;
use crate::lock::Waits;
use crate::metadata::area::{Area, State, Word};
use crate::model;
use crate::seams::host::Host;
use crate::seams::mapper::Mapper;
use crate::state::VmapState;
use crate::units::{PageRange, Protection, Span, VirtAddr, Vpn};
use pagedepot::{NodeId, PageSize, Pfn};

/// Largest number of NUMA nodes that a listing distinguishes.
const LISTED_NODES: usize = 16;
/// Number of looks that a listing takes at an area that changes before it goes on without it. That
/// a user frees it and another gets it are three changes.
const LOOKS_MAX: u32 = model::scaled(12, 4);

/// State of an area.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AreaState {
    /// The area is in use.
    Busy,
    /// Freed; a purge has to unmap it.
    Lazy,
    /// Freed; ready to be allocated again. Its frames are still mapped if it has any.
    Pooled,
    /// Held by a request or a purge at this moment.
    InTransit,
}

/// An area, as it was at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AreaInfo {
    /// The area's pages, with the guard.
    pub span: Span,
    /// Guard pages at its end.
    pub guard_pages: u32,
    /// Number of pages mapped.
    pub mapped_pages: u32,
    /// The request that allocated the area.
    pub kind: Kind,
    /// Whether the area is in use, freed, or held by a request or purge.
    pub state: AreaState,
    /// Whether it keeps its addresses when its memory shrinks, and grows into them.
    pub is_reserved: bool,
    /// The accesses that its mapping allows.
    pub protection: Protection,
    /// The call that allocated it last.
    pub caller: Option<&'static Location<'static>>,
    /// The vmap's node, not the NUMA node, that allocated it.
    pub vmap_node: u32,
}

/// An area with what a listing says of it: its `Display` is a line of `/proc/vmallocinfo`.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct ListedArea {
    /// The area.
    pub info: AreaInfo,
    /// The page size of the vmap.
    pub page_size: PageSize,
    /// Mapped pages on each of the first sixteen NUMA nodes found; see [`nodes`](Self::nodes).
    numa_pages: [(NodeId, u32); LISTED_NODES],
}

impl ListedArea {
    /// Mapped pages of a busy area by NUMA node, for up to sixteen nodes.
    pub fn nodes(&self) -> impl Iterator<Item = (NodeId, u32)> {
        self.numa_pages.into_iter().filter(|&(_, pages)| pages > 0)
    }
}

impl fmt::Display for ListedArea {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let info = &self.info;
        let (start, end) = (info.span.start.get(), info.span.end(self.page_size).get());
        write!(f, "{start:#018x}-{end:#018x} {:>8}", info.span.bytes(self.page_size))?;
        match info.state {
            AreaState::Busy => {}
            AreaState::Lazy => return f.write_str(" unpurged vm_area"),
            AreaState::Pooled => return write!(f, " pooled vm_area pages={}", info.mapped_pages),
            AreaState::InTransit => return f.write_str(" vm_area in transit"),
        }
        if let Some(caller) = info.caller {
            write!(f, " {}:{}", caller.file(), caller.line())?;
        }
        if info.mapped_pages > 0 {
            write!(f, " pages={}", info.mapped_pages)?;
        }
        write!(f, " {}", info.kind.name())?;
        self.nodes().try_for_each(|(node, pages)| write!(f, " N{}={pages}", node.get()))
    }
}

/// The areas of a vmap, for a reader.
pub struct View<'a, 'm, M, H> {
    state: &'a VmapState<'m, M, H>,
}

impl<M, H> Clone for View<'_, '_, M, H> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<M, H> Copy for View<'_, '_, M, H> {}

impl<'a, 'm, M: Mapper, H: Host> View<'a, 'm, M, H> {
    pub fn new(state: &'a VmapState<'m, M, H>) -> Self {
        View { state }
    }

    /// The busy area that contains `addr`, with its guard.
    pub fn find(self, addr: VirtAddr) -> Option<AreaInfo> {
        let range = self.state.range();
        let info = self.look(self.state.directory().candidate(range.page_of(addr)?)?)?;
        let contains = info.span.start <= addr && addr < info.span.end(range.page_size);
        (contains && info.state == AreaState::Busy).then_some(info)
    }

    /// The frame mapped at `addr` in a busy area.
    pub fn frame_at(self, addr: VirtAddr) -> Option<Pfn> {
        let page = self.state.range().page_of(addr)?;
        let area = self.state.directory().candidate(page)?;
        self.busy_page(area, page).filter(|&(word, _)| area.still(word)).map(|(_, frame)| frame)
    }

    /// The word of an area and the frame at `page`, if the area is busy, contains the page, and
    /// has it mapped.
    fn busy_page(self, area: &Area, page: Vpn) -> Option<(Word, Pfn)> {
        let word = area.word();
        let is_inside = word.state() == State::Busy && area.body().contains(page);
        Some((word, self.state.mappings().frames().get(page).filter(|_| is_inside)?))
    }

    /// Copies the bytes at `addr` to `buf`, zeroes where no area is. Returns how many bytes came
    /// from areas.
    pub fn read_at(self, addr: VirtAddr, buf: &mut [u8]) -> usize {
        let page_bytes = self.state.range().page_size.bytes();
        let (mut read, mut done) = (0, 0);
        while done < buf.len() {
            let at = addr.get().saturating_add(done);
            let offset = at % page_bytes;
            let length = (page_bytes - offset).min(buf.len() - done);
            let part = &mut buf[done..done + length];
            if self.read_in_page(VirtAddr::new(at), offset, part) {
                read += length;
            } else {
                part.fill(0);
            }
            done += length;
        }
        read
    }

    /// Reads from one page. `false`: nothing is mapped there, or not any more.
    fn read_in_page(self, addr: VirtAddr, offset: usize, buf: &mut [u8]) -> bool {
        let Some(page) = self.state.range().page_of(addr) else { return false };
        let Some(area) = self.state.directory().candidate(page) else { return false };
        let Some((word, frame)) = self.busy_page(area, page) else { return false };
        let mappings = self.state.mappings();
        mappings.mapper().read(frame, offset, buf)
            && area.still_after_reads(word)
            && mappings.frames().get(page) == Some(frame)
    }

    /// All areas, by address.
    pub fn areas(self) -> impl Iterator<Item = AreaInfo> {
        let mut at = Vpn(0);
        core::iter::from_fn(move || {
            let (info, end) = self.next_area(at)?;
            at = end;
            Some(info)
        })
    }

    /// The first area that ends after `from`, and its end.
    fn next_area(self, from: Vpn) -> Option<(AreaInfo, Vpn)> {
        let (state, range) = (self.state, self.state.range());
        state.host().check_usable().ok()?;
        // Under the lock no range is taken or given back. A handler above its holder sees no more.
        let space = state.lock_space_as(Waits::InBounds)?;
        let mut at = from;
        while at.0 < range.pages {
            if let Some(free) = space.tree().containing(at) {
                at = state.area(free).end();
                continue;
            }
            let area = state.directory().candidate(at);
            if let Some(info) = area.and_then(|area| self.look_again(area))
                && let Some(start) = range.page_of(info.span.start)
                && (from <= start && start <= at && at < start.add(info.span.pages))
            {
                return Some((info, start.add(info.span.pages)));
            }
            // A thread has just taken the page from the space, or is about to give it back.
            at = at.add(1);
        }
        None
    }

    /// An area that the caller does not own, for a listing: one that stays may come and go between
    /// a user and a pool.
    fn look_again(self, area: &Area) -> Option<AreaInfo> {
        let is_there = |_: &u32| area.word().state() != State::Vacant;
        (0..LOOKS_MAX).take_while(is_there).find_map(|_| self.look(area))
    }

    /// An area that the caller does not own; `None`: it changed during the look.
    fn look(self, area: &Area) -> Option<AreaInfo> {
        let word = area.word();
        let info = self.describe(area);
        (word.state() != State::Vacant && area.still(word)).then_some(info)
    }

    fn describe(self, area: &Area) -> AreaInfo {
        let (word, traits, run) = (area.word(), area.traits(), area.run());
        AreaInfo {
            span: self.state.range().span(run),
            guard_pages: traits.guard(),
            mapped_pages: area.mapped(),
            kind: word.kind(),
            state: match word.state() {
                State::Busy => AreaState::Busy,
                State::Lazy => AreaState::Lazy,
                State::Pooled => AreaState::Pooled,
                State::Held | State::Vacant => AreaState::InTransit,
            },
            is_reserved: word.is_reserved(),
            protection: traits.protection(),
            caller: area.caller(),
            vmap_node: traits.node() as u32,
        }
    }

    /// All areas by address, with what a listing says of each.
    pub fn listing(self) -> impl Iterator<Item = ListedArea> {
        let page_size = self.state.range().page_size;
        self.areas().map(move |info| ListedArea {
            info,
            page_size,
            numa_pages: if info.state == AreaState::Busy {
                self.numa_pages(&info)
            } else {
                NO_PAGES
            },
        })
    }

    /// Mapped pages of an area on each of the first sixteen NUMA nodes found.
    fn numa_pages(self, info: &AreaInfo) -> [(NodeId, u32); LISTED_NODES] {
        let mut nodes = NO_PAGES;
        let range = self.state.range();
        if let Some(start) = range.page_of(info.span.start) {
            for page in PageRange::new(start, info.span.pages).iter() {
                let Some(frame) = self.state.mappings().frames().get(page) else { continue };
                let node = self.state.host().node_of(frame);
                let entry = nodes.iter_mut().find(|(listed, pages)| *listed == node || *pages == 0);
                if let Some(entry) = entry {
                    *entry = (node, entry.1 + 1);
                }
            }
        }
        nodes
    }
}

/// The pages by node of an area that maps nothing.
const NO_PAGES: [(NodeId, u32); LISTED_NODES] = [(NodeId::new(0), 0); LISTED_NODES];

/// Lists all areas as `/proc/vmallocinfo` does.
impl<M: Mapper, H: Host> fmt::Display for View<'_, '_, M, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.listing().try_for_each(|area| writeln!(f, "{area}"))
    }
}
