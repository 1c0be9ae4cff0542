//! Looking at areas without owning them: reading, finding, listing.

use core::fmt;
use core::panic::Location;

use super::Vmap;
use super::area::{Area, AreaIndex, State};
use super::error::Kind;
use super::seams::{Host, Mapper};
use super::units::{Protection, Run, Span, VirtAddr, Vpn};
use pagedepot::{NodeId, Pfn};

/// NUMA nodes that a listing tells apart.
const LISTED_NODES: usize = 16;

/// Where an area is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AreaState {
    /// In use.
    Busy,
    /// Freed; a purge has to unmap it.
    Lazy,
    /// Freed; ready to be allocated again. Its frames are still mapped if it has any.
    Pooled,
    /// In the hands of a request or a purge at this moment.
    InTransit,
}

/// An area, as it was when it was looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AreaInfo {
    /// Its pages, guard included.
    pub span: Span,
    /// Guard pages at its end.
    pub guard_pages: u32,
    /// Pages mapped.
    pub mapped_pages: u32,
    /// What it is for.
    pub kind: Kind,
    /// Where it is in its life.
    pub state: AreaState,
    /// What its mapping allows.
    pub protection: Protection,
    /// Who allocated it last.
    pub caller: Option<&'static Location<'static>>,
    /// The address-space node (not the NUMA node) that allocated it.
    pub vmap_node: u32,
}

impl<M: Mapper, H: Host> Vmap<'_, M, H> {
    /// The busy area that contains `addr`, guard included.
    pub fn find(&self, addr: VirtAddr) -> Option<AreaInfo> {
        let page = self.range.page_of(addr)?;
        let index = self.metadata.index.candidate(page)?;
        let info = self.look(index)?;
        let contains = info.span.start <= addr && addr < info.span.end(self.range.page_size);
        (contains && info.state == AreaState::Busy).then_some(info)
    }

    /// The frame mapped at `addr` in a busy area (Linux: `vmalloc_to_page`).
    pub fn frame_at(&self, addr: VirtAddr) -> Option<Pfn> {
        let page = self.range.page_of(addr)?;
        let area = &self.metadata.areas[self.metadata.index.candidate(page)?];
        self.busy_page(area, page).filter(|&(word, _)| area.still(word)).map(|(_, frame)| frame)
    }

    /// The word of an area and the frame at `page`, if the area is busy, contains the page, and
    /// has it mapped.
    fn busy_page(&self, area: &Area, page: Vpn) -> Option<(super::area::Word, Pfn)> {
        let word = area.word();
        let body = area.body();
        let inside = word.state() == State::Busy && (body.start..body.end).contains(&page);
        Some((word, self.metadata.frames.get(page).filter(|_| inside)?))
    }

    /// Copies the bytes at `addr` to `buf`, whatever areas or holes lie there (Linux: `vread`).
    /// Holes, guards and areas that vanish meanwhile read as zeroes. Returns how many bytes came
    /// from areas.
    ///
    /// Goes through the frames, not the mapping, and holds nothing: an area may be freed at any
    /// moment. Bytes whose owner writes them meanwhile may be old or new, each by itself. That is
    /// no data race: see [`Mapper::read`].
    pub fn read_at(&self, addr: VirtAddr, buf: &mut [u8]) -> usize {
        let page_bytes = self.range.page_size.bytes();
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

    /// Reads from one page; `false`: there is nothing, or not any more.
    fn read_in_page(&self, addr: VirtAddr, offset: usize, buf: &mut [u8]) -> bool {
        let Some(page) = self.range.page_of(addr) else { return false };
        let Some(index) = self.metadata.index.candidate(page) else { return false };
        let area = &self.metadata.areas[index];
        let Some((word, frame)) = self.busy_page(area, page) else { return false };
        self.mapper.read(frame, offset, buf)
            && area.still_after_reads(word)
            && self.metadata.frames.get(page) == Some(frame)
    }

    /// All areas, busy or not, by address. Each is as it was when the iterator came by: areas that
    /// appear or vanish meanwhile may be missed or seen, none is seen twice. In a forked child
    /// there are none.
    pub fn areas(&self) -> impl Iterator<Item = AreaInfo> {
        let mut at = Vpn(0);
        core::iter::from_fn(move || {
            let (index, end) = self.next_area(at)?;
            at = end;
            Some(index)
        })
    }

    /// The first area that ends after `from`, and where it ends.
    fn next_area(&self, from: Vpn) -> Option<(AreaInfo, Vpn)> {
        self.host.check_usable().ok()?;
        // Under the lock ranges are neither taken nor given back.
        let space = self.lock_space();
        let mut at = from;
        while at.0 < self.range.pages {
            if let Some(free) = space.tree().containing(at) {
                at = self.metadata.areas[free].end();
                continue;
            }
            let index = self.metadata.index.candidate(at);
            if let Some(info) = index.and_then(|index| self.look(index))
                && let Some(start) = self.range.page_of(info.span.start)
                && (from <= start && start <= at && at < start.add(info.span.pages))
            {
                return Some((info, start.add(info.span.pages)));
            }
            // In the hands of one who has just taken it, or is about to give it back.
            at = at.add(1);
        }
        None
    }

    /// An area of which nothing is owned, if it holds still.
    fn look(&self, index: AreaIndex) -> Option<AreaInfo> {
        let area = &self.metadata.areas[index];
        let word = area.word();
        let info = self.describe(area);
        (word.state() != State::Vacant && area.still(word)).then_some(info)
    }

    fn describe(&self, area: &Area) -> AreaInfo {
        let (word, traits, run) = (area.word(), area.traits(), area.run());
        AreaInfo {
            span: self.range.span(run),
            guard_pages: traits.guard(),
            mapped_pages: area.mapped(),
            kind: word.kind(),
            state: match word.state() {
                State::Busy => AreaState::Busy,
                State::Lazy => AreaState::Lazy,
                State::Pooled => AreaState::Pooled,
                State::Held | State::Vacant => AreaState::InTransit,
            },
            protection: traits.protection(),
            caller: area.caller(),
            vmap_node: traits.node() as u32,
        }
    }

    /// How many mapped pages of an area are on each NUMA node; nodes beyond the sixteenth found are
    /// left out.
    pub fn numa_pages(&self, info: &AreaInfo) -> impl Iterator<Item = (NodeId, u32)> + use<M, H> {
        let mut nodes = [(NodeId::new(0), 0); LISTED_NODES];
        if let Some(start) = self.range.page_of(info.span.start) {
            // The fields of `info` are the caller's to change.
            let pages = info.span.pages.min(self.range.pages - start.0);
            for page in Run::new(start, pages).iter() {
                let Some(frame) = self.metadata.frames.get(page) else { continue };
                let node = self.host.node_of(frame);
                let place = nodes.iter_mut().find(|(listed, pages)| *listed == node || *pages == 0);
                if let Some(place) = place {
                    *place = (node, place.1 + 1);
                }
            }
        }
        nodes.into_iter().filter(|&(_, pages)| pages > 0)
    }

    /// A listing of all areas, as `/proc/vmallocinfo` prints it: range, size in bytes with the
    /// guard, caller, pages, what it is for, pages per NUMA node.
    pub fn vmallocinfo(&self) -> impl fmt::Display + '_ {
        Listing(self)
    }

    fn list(&self, info: &AreaInfo, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let page_size = self.range.page_size;
        let (start, end) = (info.span.start.get(), info.span.end(page_size).get());
        write!(f, "{start:#018x}-{end:#018x} {:>8}", info.span.bytes(page_size))?;
        match info.state {
            AreaState::Busy => {}
            AreaState::Lazy => return writeln!(f, " unpurged vm_area"),
            AreaState::Pooled => return writeln!(f, " pooled vm_area pages={}", info.mapped_pages),
            AreaState::InTransit => return writeln!(f, " vm_area in transit"),
        }
        if let Some(caller) = info.caller {
            write!(f, " {}:{}", caller.file(), caller.line())?;
        }
        if info.mapped_pages > 0 {
            write!(f, " pages={}", info.mapped_pages)?;
        }
        write!(f, " {}", info.kind.name())?;
        for (node, pages) in self.numa_pages(info) {
            write!(f, " N{}={pages}", node.get())?;
        }
        writeln!(f)
    }
}

struct Listing<'a, 'm, M, H>(&'a Vmap<'m, M, H>);

impl<M: Mapper, H: Host> fmt::Display for Listing<'_, '_, M, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.areas().try_for_each(|info| self.0.list(&info, f))
    }
}
