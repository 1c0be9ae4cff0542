//! The blocks and buffers that a worker holds.

use std::sync::Arc;

use pagedepot_linux::reclaim::{PinnedRange, TrimError};
use pagedepot_linux::shared::{ClaimError, SentPage, SharedDepot};
use pagedepot_linux::vmalloc::Options;
use pagedepot_linux::{Depot, Movable, Page, Pages, Pfn, VmallocBuf};

use crate::common::meetings::Set;
use crate::common::page_bytes;
use crate::feature::Feature;
use crate::world::{World, check, check_from, write};

#[cfg(feature = "allocator-api2")]
pub type Collection = allocator_api2::vec::Vec<u64, Depot>;

pub enum What {
    Page(Page),
    Pages(Pages),
    /// Pages at an address, of a depot.
    At(Box<Depot>, Pfn, u32),
    Movable(Movable),
    #[cfg(feature = "allocator-api2")]
    Collection(Box<Collection>),
    Buf(VmallocBuf),
}

/// Memory, with what tells it from all other.
pub struct Item {
    what: What,
    /// Dropped with it, after the memory.
    pub pinned: Option<PinnedRange>,
    world: Arc<World>,
    pub via: Set,
    owner: u32,
    pages: u32,
    serial: u64,
    /// Pages of the same serial before its first one.
    first: usize,
    /// First page of a page or a movable block at its allocation.
    born: Option<Pfn>,
}

impl Item {
    /// Memory that a request has just got, and which counts as used.
    pub fn new(what: What, world: &Arc<World>, owner: u32, pages: u32, via: Set) -> Self {
        let (world, serial) = (world.clone(), world.serial());
        let (pinned, first, born) = (None, 0, None);
        let mut item = Item { what, pinned, world, via, owner, pages, serial, first, born };
        item.born = item.place();
        if let Some(start) = item.fixed() {
            item.world.take(start, pages, owner, via);
        }
        if via.0 & Set::from(Feature::Zeroed).0 != 0 {
            item.with_bytes(|bytes| assert!(bytes.iter().all(|&byte| byte == 0)));
        }
        item.with_bytes_mut(|bytes| write(bytes, serial));
        item
    }

    /// The first page, if the pages stay where they are and have marks.
    fn fixed(&self) -> Option<Pfn> {
        match &self.what {
            What::Page(page) => Some(page.pfn()),
            What::Pages(pages) => Some(pages.start()),
            What::At(_, start, _) => Some(*start),
            _ => None,
        }
    }

    pub fn pages(&self) -> u32 {
        self.pages
    }

    /// Whether to free it frees no memory of the heap.
    pub fn needs_no_heap(&self) -> bool {
        matches!(self.what, What::Page(_)) && self.pinned.is_none()
    }

    pub fn is_buf(&self) -> bool {
        matches!(self.what, What::Buf(_))
    }

    /// The place of a movable page now, or of a fixed one.
    pub fn place(&self) -> Option<Pfn> {
        match &self.what {
            What::Movable(page) => Some(page.pfn()),
            _ => self.fixed(),
        }
    }

    fn with_bytes(&self, with: impl FnOnce(&[u8])) {
        match &self.what {
            What::Page(page) => with(page),
            What::Pages(pages) => with(pages),
            What::At(depot, start, pages) => {
                let start = depot.raw().address(*start).as_ptr();
                // SAFETY: held by this value.
                with(unsafe { std::slice::from_raw_parts(start, *pages as usize * page_bytes()) });
            }
            What::Movable(page) => with(&page.read()),
            #[cfg(feature = "allocator-api2")]
            What::Collection(all) => with(words(all)),
            What::Buf(buf) => with(buf),
        }
    }

    fn with_bytes_mut(&mut self, with: impl FnOnce(&mut [u8])) {
        match &mut self.what {
            What::Page(page) => with(page),
            What::Pages(pages) => with(pages),
            What::At(depot, start, pages) => {
                let start = depot.raw().address(*start).as_ptr();
                // SAFETY: held by this value.
                with(unsafe {
                    std::slice::from_raw_parts_mut(start, *pages as usize * page_bytes())
                });
            }
            What::Movable(page) => with(&mut page.write()),
            #[cfg(feature = "allocator-api2")]
            What::Collection(all) => with(words_mut(all)),
            What::Buf(buf) => with(buf),
        }
    }

    /// Fails unless it is as it was written.
    pub fn check(&self) {
        self.with_bytes(|bytes| check_from(bytes, self.serial, self.first));
    }

    /// Reads it in a forked child, and fails unless it is as it was written. A memory file is
    /// shared with the parent, which may have moved a movable page since.
    pub fn check_in_child(&self) {
        match &self.what {
            What::Movable(_) => self.with_bytes(|bytes| _ = std::hint::black_box(bytes[0])),
            _ => self.check(),
        }
    }

    /// Page numbers of pages that stay where they are while it is held; of others none.
    pub fn fixed_pages(&self) -> impl Iterator<Item = Pfn> {
        let pages = self.pages;
        self.fixed().into_iter().flat_map(move |start| (0..pages).map(move |at| start.add(at)))
    }

    /// Fails unless one of its pages, which is mapped at `bytes` too, is as it was written.
    pub fn check_mapped(&self, bytes: &[u8], page: usize) {
        check_from(bytes, self.serial, self.first + page);
    }

    /// Gives the memory of a page back to the system, and writes to it anew.
    pub fn discard(&mut self) {
        self.check();
        let What::Page(page) = &mut self.what else { return };
        let via = self.via.and(Feature::Discard).and_if(self.pinned.is_some(), Feature::Pins);
        let _now = self.world.meetings.begin(via);
        match page.discard() {
            Ok(_) => assert!(page.iter().all(|&byte| byte == 0)),
            // Another pin of this depot may be of the same page.
            Err(error) => return assert_eq!(error, TrimError::Pinned),
        }
        assert!(self.pinned.is_none(), "the memory of a pinned page has gone");
        (self.via, self.serial, self.first) = (via, self.world.serial(), 0);
        write(page, self.serial);
    }

    /// Sends a page to another member of the segment, which sends it back by the calls for many.
    pub fn send(self, own: &SharedDepot, peer: &SharedDepot) -> Self {
        let via = self.via.and(Feature::Messages);
        let Item { what: What::Page(page), pinned: None, .. } = self else { return self };
        let world = self.world.clone();
        let _now = world.meetings.begin(via);
        let there = claim(peer, page.into_shared(own).expect("a page of this member"));
        let mut sent = Vec::new();
        assert!(peer.send_pages([there], &mut sent).is_empty(), "a page of the other member");
        let page = claim_by_list(own, &sent);
        Item { what: What::Page(page), via, pinned: None, ..self }
    }

    /// Checks it, and removes its marks: it is about to be freed, or to become something else.
    fn leave(&self) {
        self.check();
        if let What::Movable(page) = &self.what {
            self.world.note_place(page.order(), Some(page.pfn()) != self.born);
        }
        if let Some(start) = self.fixed() {
            self.world.marks.give_back(start, self.pages, self.owner);
        }
    }

    /// Checks and frees it.
    pub fn free(self) {
        let world = self.world.clone();
        let _now = world.meetings.begin(self.via);
        self.leave();
        let Item { what, pinned, pages, .. } = self;
        if let What::At(depot, start, pages) = &what {
            // SAFETY: held, and gone from here.
            unsafe { depot.raw().free_contiguous(*start, *pages) }.unwrap();
        }
        drop(what);
        drop(pinned);
        world.usage.use_pages(-i64::from(pages));
    }

    /// The page, of a free in bulk.
    pub fn into_page(self) -> Result<(Page, u32), Box<Self>> {
        if !matches!(self.what, What::Page(_)) {
            return Err(Box::new(self));
        }
        self.leave();
        match self.what {
            What::Page(page) => Ok((page, self.pages)),
            _ => unreachable!("looked at before"),
        }
    }

    /// A movable page becomes one that stays, and a block becomes parts.
    pub fn transform(self, to: pagedepot_linux::Order) -> Vec<Self> {
        if matches!(&self.what, What::Movable(_)) {
            self.leave();
        }
        let Item { what, pinned, world, via, owner, pages, serial, first, born } = self;
        let again = |what, first, pages, via| Item {
            what,
            pinned: None,
            world: world.clone(),
            via,
            owner,
            pages,
            serial,
            first,
            born,
        };
        match what {
            What::Movable(page) => {
                let via = via.and(Feature::Owned);
                world.meetings.meet(via, via);
                let page = page.into_page();
                world.take(page.pfn(), pages, owner, via);
                vec![Item { pinned, ..again(What::Page(page), first, pages, via) }]
            }
            What::Page(page) if to < page.order() => {
                let via = via.and(Feature::Split).and(Feature::of_order(to));
                let _now = world.meetings.begin(via);
                let parts = page.split(to).unwrap_or_else(|(_, error)| panic!("{error}"));
                let part = |(number, page): (usize, Page)| {
                    let first = first + (number << to.get());
                    again(What::Page(page), first, to.frames(), via)
                };
                parts.enumerate().map(part).collect()
            }
            what => vec![Item { pinned, ..again(what, first, pages, via) }],
        }
    }

    /// Changes the size of a buffer, if it is one.
    pub fn resize(&mut self, pages: u32, (options, via): (Options, Set)) {
        let What::Buf(buf) = &mut self.what else { return };
        let via = self.via.and(Feature::Resize).and(via);
        let _now = self.world.meetings.begin(via);
        let usage = &self.world.usage;
        usage.use_pages(pages.into());
        let kept = pages.min(self.pages) as usize * page_bytes();
        match buf.resize_with(pages as usize * page_bytes(), options) {
            Ok(()) => {
                check(&buf[..kept], self.serial);
                write(buf, self.serial);
                usage.use_pages(-i64::from(self.pages));
                (self.pages, self.via) = (pages, via);
            }
            Err(_) => usage.use_pages(-i64::from(pages)),
        }
    }
}

/// Claims a page. A ceiling that keeps this member from it does not last.
fn claim(to: &SharedDepot, sent: SentPage) -> Page {
    loop {
        match to.claim(sent) {
            Ok(page) => return page,
            Err(error) => assert_eq!(error, ClaimError::Ceiling),
        }
        std::thread::yield_now();
    }
}

/// Claims the page of a list of one message, like `claim`.
fn claim_by_list(to: &SharedDepot, sent: &[SentPage]) -> Page {
    let mut pages = Vec::new();
    while pages.is_empty() {
        to.claim_pages(sent, &mut pages, |_, error| {
            assert_eq!(error, ClaimError::Ceiling);
            std::thread::yield_now();
        });
    }
    pages.remove(0)
}

#[cfg(feature = "allocator-api2")]
fn words(all: &Collection) -> &[u8] {
    // SAFETY: integers, as bytes.
    unsafe { std::slice::from_raw_parts(all.as_ptr().cast(), all.len() * 8) }
}

#[cfg(feature = "allocator-api2")]
fn words_mut(all: &mut Collection) -> &mut [u8] {
    // SAFETY: as above; any bytes are integers.
    unsafe { std::slice::from_raw_parts_mut(all.as_mut_ptr().cast(), all.len() * 8) }
}
