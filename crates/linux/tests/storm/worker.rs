//! A thread that allocates, frees, waits and forks, and what it holds.

use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use pagedepot_linux::shared::{Orphans, SharedDepot};
use pagedepot_linux::vmalloc::Options;
use pagedepot_linux::{AllocError, Depot, Flags, Mobility, Order, Page, Pfn, Vmalloc};

use crate::common::meetings::Set;
use crate::common::rng::Rng;
use crate::common::{in_child, order, page_bytes, pin, usable_cpus};
use crate::control::HEIR;
use crate::feature::Feature;
use crate::item::{Item, What};
use crate::world::World;

/// Most items that a worker holds.
const HELD_MAX: usize = 250;
/// Most items in the pool.
const POOLED_MAX: usize = 60;
/// Least time between forks.
const FORK_EACH: Duration = Duration::from_millis(40);
/// Seconds that a child has: far more than it needs, even on a busy machine.
const ALARM_S: u32 = 60;

/// Time after which a request must have got what another member of a segment caches.
const PATIENCE: Duration = Duration::from_secs(20);

/// Two members of a segment, each as its own process would be.
#[derive(Clone)]
pub struct Members {
    pub own: SharedDepot,
    pub peer: SharedDepot,
}

impl Members {
    /// Both members, as the other one sees them.
    pub fn turned(&self) -> Self {
        Members { own: self.peer.clone(), peer: self.own.clone() }
    }

    /// Counts the segment's pages while nothing else runs. Returns those that the peer caches.
    pub fn cached_by_peer(&self) -> u64 {
        self.own.recover(Orphans::GoBack);
        // An heir at its ceiling has left some.
        self.own.inherit(HEIR).for_each(drop);
        self.peer.validate().unwrap().cached_pages
    }
}

/// Items that workers leave behind, until a request runs short.
pub type Pool = Arc<Mutex<Vec<Item>>>;

pub struct Worker {
    pub world: Arc<World>,
    pub depot: Depot,
    pub members: Option<Members>,
    pub space: Option<Vmalloc>,
    pub pool: Pool,
    pub rng: Rng,
    pub owner: u32,
    pub held: Vec<Item>,
    pub last_fork: Option<Instant>,
}

/// Polls a request some times, and gives it up if it has no page by then.
fn poll_a_while(request: impl Future<Output = Result<Page, AllocError>>) -> Option<Page> {
    let mut request = pin!(request);
    let mut context = Context::from_waker(Waker::noop());
    for _ in 0..20 {
        if let Poll::Ready(found) = request.as_mut().poll(&mut context) {
            return found.ok();
        }
        std::thread::yield_now();
    }
    None
}

impl Worker {
    pub fn run(&mut self) {
        while !self.world.is_over() {
            self.step();
        }
    }

    /// Frees the buffers, and the handle of their address space.
    pub fn leave_space(&mut self) {
        let (bufs, held) = std::mem::take(&mut self.held).into_iter().partition(Item::is_buf);
        self.held = held;
        Vec::into_iter(bufs).for_each(Item::free);
        self.space = None;
    }

    /// Drops the handles first, then what is left.
    pub fn end(self) {
        let Worker { world, depot, members, space, pool, held, .. } = self;
        drop((depot, members, space, pool));
        let _now = world.meetings.begin(Feature::Teardown);
        for item in held {
            world.meetings.meet(Feature::Teardown, item.via);
            item.free();
        }
    }

    fn order(&mut self) -> Order {
        order([0, 0, 0, 0, 0, 0, 1, 1, 2, 3, 3, 4, 5, 6, 7, 8, 9, 10][self.rng.index(18)])
    }

    fn flags(&mut self) -> (Flags, Set) {
        let flags = Flags::new(Mobility::ALL[self.rng.index(3)]);
        let (flags, via) = match self.rng.below(20) {
            0 => (flags.atomic(), Feature::NoWait.into()),
            1..4 => (flags.compact(), Feature::Compacting.into()),
            _ => (flags, Set::NONE),
        };
        match self.rng.one_in(8) {
            true => (flags.zeroed(), via.and(Feature::Zeroed)),
            false => (flags, via),
        }
    }

    fn step(&mut self) {
        if self.rng.one_in(100) {
            let cpus = usable_cpus();
            pin(cpus[self.rng.index(cpus.len())]);
        }
        let is_full = self.held.len() >= HELD_MAX || !self.world.usage.has_room();
        match self.rng.below(86) {
            _ if is_full && self.rng.one_in(2) => self.free(),
            0..=24 | 33..=35 if !is_full => self.page(),
            25..=32 if !is_full => self.movable(),
            36..=39 if !is_full => self.pages(),
            40..=42 if !is_full => self.pages_at(),
            43..=45 if !is_full => self.bulk(),
            46..=48 if !is_full => self.collection(),
            49..=51 if !is_full => self.buf(),
            52..=53 => self.resize(),
            71..=72 => self.map(),
            80..=81 => self.discard(),
            82..=85 => self.send(),
            54..=57 => self.transform(),
            58..=60 => self.pin(),
            61..=62 => self.pool(),
            63 if self.rng.one_in(4) => self.wait(),
            64 => self.fork(),
            65..=67 => self.free_in_bulk(),
            68..=70 => self.check(),
            _ => self.free(),
        }
    }

    /// Makes a request, and holds what it gets.
    fn request(&mut self, pages: u32, via: Set, request: impl FnOnce(&mut Self) -> Option<What>) {
        let world = self.world.clone();
        let now = world.meetings.begin(via);
        let found = world.usage.while_requested(pages, || Some((request(self)?, pages)));
        drop(now);
        if let Some(what) = found {
            self.held.push(Item::new(what, &world, self.owner, pages, via));
        }
    }

    fn page(&mut self) {
        let (order, (flags, via)) = (self.order(), self.flags());
        let via = via.and(Feature::Owned).and(Feature::of_order(order));
        self.request(order.frames(), via, |this| {
            let depot = &this.depot;
            let request = || depot.page_with(order, flags).ok();
            let may_wait = via.0 & Set::from(Feature::NoWait).0 == 0;
            let page = if may_wait { this.surely(order, request) } else { request() };
            page.map(What::Page)
        });
    }

    /// Makes a request that is allowed everything: one for a page must not fail while little is in
    /// use. Another member of a segment has 50 ms to give back what it caches, in which it may not
    /// run: then the request is made again.
    fn surely<R>(&self, order: Order, request: impl Fn() -> Option<R>) -> Option<R> {
        if order != Order::BASE {
            return request();
        }
        let until = self.members.as_ref().map(|_| Instant::now() + PATIENCE);
        let again = || until.is_some_and(|until| Instant::now() < until).then_some(());
        let patiently = || loop {
            if let Some(found) = request() {
                return Some(found);
            }
            again()?;
        };
        self.world.usage.request_surely(patiently, || self.depot.shortage().to_string())
    }

    fn movable(&mut self) {
        let order = match self.world.unmoved().filter(|_| self.rng.one_in(3)) {
            Some(order) => order,
            None => self.order(),
        };
        let (flags, via) = self.flags();
        let via = via.and(Feature::Movable).and(Feature::of_order(order));
        self.request(order.frames(), via, |this| {
            Some(What::Movable(this.depot.movable(order, flags).ok()?))
        });
    }

    fn pages(&mut self) {
        let (flags, via) = self.flags();
        let count = match self.rng.below(4) {
            0 => self.rng.below(2500) as u32 + 1024,
            1 => 1 << self.rng.below(12),
            _ => self.rng.below(700) as u32 + 1,
        };
        self.request(count, via.and(Feature::Ranges), |this| {
            Some(What::Pages(this.depot.pages(count, flags).ok()?))
        });
    }

    fn pages_at(&mut self) {
        let managed = (self.depot.bytes() / page_bytes()) as u64;
        let (start, count, compacts) = match self.rng.one_in(4) {
            true => (self.rng.below(managed / 512 - 2) as u32 * 512, 1024, true),
            false => {
                let count = self.rng.below(40) as u32 + 1;
                (self.rng.below(managed - 40) as u32, count, false)
            }
        };
        let (flags, via) = match compacts {
            true => (Flags::default().compact(), Feature::Compacting.into()),
            false => self.flags(),
        };
        self.request(count, via.and(Feature::At), |this| {
            this.depot.raw().alloc_at(Pfn::new(start), count, flags).ok()?;
            Some(What::At(Box::new(this.depot.clone()), Pfn::new(start), count))
        });
    }

    fn bulk(&mut self) {
        let order = order([0, 0, 1, 3, 4, 9, 10][self.rng.index(7)]);
        let count = self.rng.index(80 >> order.get().min(5)) + 1;
        let (flags, via) = self.flags();
        let via = via.and(Feature::Bulk).and(Feature::Owned).and(Feature::of_order(order));
        let world = self.world.clone();
        let _now = world.meetings.begin(via);
        let got: Option<Vec<Page>> =
            world.usage.while_requested(count as u32 * order.frames(), || {
                let pages = self.depot.alloc_pages_with(order, count, flags).ok()?;
                let pages: Vec<Page> = pages.collect();
                let got = pages.len() as u32 * order.frames();
                Some((pages, got))
            });
        for page in got.into_iter().flatten() {
            let (what, frames) = (What::Page(page), order.frames());
            self.held.push(Item::new(what, &world, self.owner, frames, via));
        }
    }

    fn free_in_bulk(&mut self) {
        let world = self.world.clone();
        let _now = world.meetings.begin(Feature::Bulk);
        let (mut batch, mut all) = (Vec::new(), 0);
        for _ in 0..self.rng.below(10) {
            let Some(item) = self.pick() else { break };
            world.meetings.meet(Feature::Bulk, item.via);
            match item.into_page() {
                Ok((page, pages)) => {
                    batch.push(page);
                    all += i64::from(pages);
                }
                Err(item) => self.held.push(*item),
            }
        }
        self.depot.free_pages(batch);
        world.usage.use_pages(-all);
    }

    #[cfg(feature = "allocator-api2")]
    fn collection(&mut self) {
        let pages = match self.rng.below(3) {
            0 => 1 << self.rng.below(9),
            _ => self.rng.below(300) as u32 + 9,
        };
        self.request(pages, Feature::Collections.into(), |this| {
            let mut all = crate::item::Collection::new_in(this.depot.clone());
            let words = pages as usize * 512;
            all.try_reserve_exact(words).ok()?;
            all.resize(words, 0);
            Some(What::Collection(Box::new(all)))
        });
    }

    #[cfg(not(feature = "allocator-api2"))]
    fn collection(&mut self) {}

    fn buf(&mut self) {
        let pages = self.rng.below(200) as u32 + 1;
        let (options, via) = self.options();
        self.request(pages, via.and(Feature::Vmalloc), |this| {
            let space = this.space.as_ref()?;
            Some(What::Buf(space.buf_with(pages as usize * page_bytes(), options).ok()?))
        });
    }

    /// Options of a call of an address space, and the features that they are.
    fn options(&mut self) -> (Options, Set) {
        match self.rng.one_in(4) {
            true => (Options::DEFAULT.no_wait(), Feature::NoWait.into()),
            false => (Options::DEFAULT, Set::NONE),
        }
    }

    fn resize(&mut self) {
        let pages = self.rng.below(300) as u32 + 1;
        let options = self.options();
        if let Some(item) = self.held.iter_mut().find(|item| item.is_buf()) {
            item.resize(pages, options);
        }
    }

    /// Maps pages that it holds at other addresses, in another order, and reads them there.
    fn map(&mut self) {
        let (options, via) = self.options();
        let (is_short, is_atomic) = (self.rng.one_in(2), self.rng.one_in(2));
        let (world, via) = (&self.world, via.and(Feature::Mapped));
        let Some(space) = &self.space else { return };
        let mut pages: Vec<(&Item, usize, Pfn)> = Vec::new();
        for _ in 0..self.rng.below(6) {
            let Some(item) = (!self.held.is_empty())
                .then(|| &self.held[self.rng.index(self.held.len())])
                .filter(|item| item.fixed_pages().next().is_some())
            else {
                continue;
            };
            world.meetings.meet(via, item.via);
            pages.extend(item.fixed_pages().enumerate().take(16).map(|(at, pfn)| (item, at, pfn)));
        }
        pages.reverse();
        let frames: Vec<Pfn> = pages.iter().map(|page| page.2).collect();
        let _now = world.meetings.begin(via);
        let mapped = match is_short {
            true => space.vm_map_ram(&frames, options),
            false => space.vmap(&frames, options),
        };
        // There may be no pages for the tables, or too many mappings.
        let Ok(start) = mapped else { return };
        for (number, (item, at, _)) in pages.iter().enumerate() {
            // SAFETY: mapped until below; the frames are held, and no thread writes to them.
            let bytes = unsafe {
                std::slice::from_raw_parts(start.as_ptr().add(number * page_bytes()), page_bytes())
            };
            item.check_mapped(bytes, *at);
        }
        let count = frames.len() as u32;
        // SAFETY: used above only.
        let unmapped = unsafe {
            match (is_short, is_atomic) {
                (false, false) => space.vunmap(start),
                (false, true) => space.vunmap_atomic(start),
                (true, false) => space.vm_unmap_ram(start, count),
                (true, true) => space.vm_unmap_ram_atomic(start, count),
            }
        };
        unmapped.unwrap();
    }

    fn pick(&mut self) -> Option<Item> {
        let length = self.held.len();
        (length > 0).then(|| self.held.swap_remove(self.rng.index(length)))
    }

    fn free(&mut self) {
        if let Some(item) = self.pick() {
            item.free();
        }
    }

    fn discard(&mut self) {
        if !self.held.is_empty() {
            let at = self.rng.index(self.held.len());
            self.held[at].discard();
        }
    }

    fn send(&mut self) {
        let Some(Members { own, peer }) = self.members.clone() else { return };
        if let Some(item) = self.pick() {
            self.held.push(item.send(&own, &peer));
        }
    }

    fn check(&mut self) {
        if !self.held.is_empty() {
            self.held[self.rng.index(self.held.len())].check();
        }
    }

    fn transform(&mut self) {
        let to = order(self.rng.below(10) as u32);
        match self.pick() {
            // A page keeps its pin when it is cut, and loses it here: leave it whole.
            Some(item) if item.pinned.is_none() && item.pages() >> to.get() <= 64 => {
                self.held.extend(item.transform(to));
            }
            item => self.held.extend(item),
        }
    }

    /// Pins an item, or ends the pin of one that has not moved.
    fn pin(&mut self) {
        if self.held.is_empty() {
            return;
        }
        let at = self.rng.index(self.held.len());
        let item = &mut self.held[at];
        let Some(place) = item.place() else { return };
        let _now = self.world.meetings.begin(Feature::Pins);
        self.world.meetings.meet(Feature::Pins, item.via);
        match item.pinned.take() {
            Some(pinned) => assert_eq!(place, pinned.start(), "it was moved while it was pinned"),
            None => {
                let pinned = self.depot.pin_range(place, item.pages()).unwrap();
                // It may have moved before.
                item.pinned = Some(pinned).filter(|_| item.place() == Some(place));
            }
        }
    }

    fn pool(&mut self) {
        let mut pool = self.pool.lock().unwrap();
        match self.rng.one_in(2) {
            true => {
                let item = pool.pop();
                drop(pool);
                self.held.extend(item);
            }
            false if pool.len() < POOLED_MAX => {
                drop(pool);
                let item = self.pick();
                self.pool.lock().unwrap().extend(item);
            }
            false => {}
        }
    }

    fn wait(&mut self) {
        let order = order([0, 0, 3, 9][self.rng.index(4)]);
        let via = Set::from(Feature::Waits).and(Feature::Owned).and(Feature::of_order(order));
        let patience = Duration::from_millis(self.rng.below(3));
        let is_async = self.rng.one_in(3);
        self.request(order.frames(), via, |this| {
            let depot = &this.depot;
            if is_async {
                return poll_a_while(depot.page_async(order)).map(What::Page);
            }
            let request = || match depot.page_timeout(order, patience) {
                Ok(page) => Some(page),
                Err(error) => {
                    assert_eq!(error, AllocError::Exhausted);
                    None
                }
            };
            this.surely(order, request).map(What::Page)
        });
    }

    /// Forks: the child reads and drops all that this thread holds, and gets nothing.
    fn fork(&mut self) {
        let Some(last) = self.last_fork.filter(|last| last.elapsed() > FORK_EACH) else { return };
        _ = last;
        let world = self.world.clone();
        let _now = world.meetings.begin(Feature::Forks);
        for item in &self.held {
            world.meetings.meet(Feature::Forks, item.via);
        }
        in_child(|| {
            // SAFETY: ends this child, in which nothing handles the signal.
            unsafe { libc::alarm(ALARM_S) };
            assert_eq!(self.depot.page(Order::BASE).unwrap_err(), AllocError::Forked);
            assert_eq!(self.depot.pages(600, Flags::default()).unwrap_err(), AllocError::Forked);
            assert!(self.depot.compact(pagedepot_linux::reclaim::Compaction::all()).is_err());
            assert!(self.depot.trim().is_err());
            for item in std::mem::take(&mut self.held) {
                item.check_in_child();
                drop(item);
            }
        });
        self.last_fork = Some(Instant::now());
    }
}
