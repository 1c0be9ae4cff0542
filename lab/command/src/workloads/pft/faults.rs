//! A design that serves page faults.

use std::cell::RefCell;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use pagedepot::Pfn;

use super::homes::{Homes, PAGE_TABLE_REACH_BYTES};
use super::signal::{Server, served};
use super::uffd::Userfaultfd;
use crate::workloads::paging::{Client, ClientResult};
use pagedepot_cli::design::pool::Pool;
use pagedepot_cli::design::{Allocator, PAGE_BYTES};
use pagedepot_cli::failure::Failure;
use pagedepot_cli::harness::{Subject, lock};

/// Faults of some clients, served from one allocator.
pub struct Faults<A: Allocator<Block = Pfn>> {
    allocator: A,
    homes: Arc<Homes>,
    uffd: Arc<Userfaultfd>,
    /// Places by client.
    places: Vec<Mutex<Place>>,
}

/// The range that a client touches.
struct Place {
    /// Addresses, whose pages are missing between two runs.
    range: Pool,
    /// The frames that the pages are from, in the order of the addresses.
    frames: Vec<Pfn>,
}

impl<A: Allocator<Block = Pfn>> Faults<A> {
    /// Addresses for so many clients, with a share each, over an allocator whose frames all have
    /// homes.
    ///
    /// # Errors
    /// Without address space, or when the kernel refuses to watch it.
    pub fn new(
        allocator: A,
        homes: Arc<Homes>,
        uffd: &Arc<Userfaultfd>,
        (clients, share): (usize, u32),
    ) -> Result<Self, Failure> {
        let place = || {
            // Two clients do not share a page table.
            let range = Pool::new(share as usize * PAGE_BYTES, PAGE_TABLE_REACH_BYTES)?;
            range.use_base_pages();
            uffd.watch(range.at(0), share as usize)?;
            Ok(Mutex::new(Place { range, frames: Vec::with_capacity(share as usize) }))
        };
        let places = (0..clients).map(|_| place()).collect::<Result<_, Failure>>()?;
        Ok(Faults { allocator, homes, uffd: Arc::clone(uffd), places })
    }

    /// Moves all pages home, and frees their frames.
    fn give_back(&self, place: &mut Place) {
        for (page, &frame) in place.frames.iter().enumerate() {
            let from = place.range.at(page * PAGE_BYTES);
            let home = self.homes.of(self.allocator.frame(frame));
            // SAFETY: the client has no reference into the page, and the frame is held for it.
            if let Err(errno) = unsafe { self.uffd.move_page(from, home) } {
                panic!("{}: page {page} cannot move back to {frame}: {errno}", A::DESIGN);
            }
        }
        self.allocator.free_pages(&mut place.frames);
    }
}

/// Serves the faults of one client during a run.
struct OfClient<'f, A> {
    allocator: &'f A,
    homes: &'f Homes,
    uffd: &'f Userfaultfd,
    range: &'f Pool,
    /// Pages of the range.
    share: u32,
    /// Frames of the client, with room for its share, so that the handler does not allocate memory.
    frames: RefCell<&'f mut Vec<Pfn>>,
}

impl<A: Allocator<Block = Pfn>> Server for OfClient<'_, A> {
    #[inline]
    fn serve(&self, address: usize) -> bool {
        let mut frames = self.frames.borrow_mut();
        if frames.len() == self.share as usize {
            return false;
        }
        // Clients touch their pages in order.
        let to = self.range.at(frames.len() * PAGE_BYTES);
        if address & !(PAGE_BYTES - 1) != to.addr().get() {
            return false;
        }
        let Some(frame) = self.allocator.alloc::<0>() else {
            panic!("{} ran out of pages with half of them free: it lost some", A::DESIGN)
        };
        let home = self.homes.of(self.allocator.frame(frame));
        // SAFETY: the frame and so its home are ours since a moment ago, and the client waits for
        // the page.
        let moved = unsafe {
            home.write_bytes(0, PAGE_BYTES);
            self.uffd.move_page(home, to)
        };
        if let Err(errno) = moved {
            panic!("{}: {frame} cannot become a page: {errno}", A::DESIGN);
        }
        frames.push(frame);
        true
    }
}

impl<A: Allocator<Block = Pfn>> Client for Faults<A> {
    fn subject(&self) -> &dyn Subject {
        &self.allocator
    }

    fn owned_subject(&mut self) -> Option<&mut dyn Subject> {
        Some(&mut self.allocator)
    }

    fn run(&self, client: usize, share: u32) -> ClientResult {
        let mut place = lock(&self.places[client]);
        let start = Instant::now();
        let Place { range, frames } = &mut *place;
        let range = &*range;
        let (allocator, homes, uffd) = (&self.allocator, &*self.homes, &*self.uffd);
        let frames = RefCell::new(frames);
        let server = OfClient { allocator, homes, uffd, range, share, frames };
        served(&server, || {
            for page in 0..share as usize {
                // SAFETY: inside the range, which is this client's.
                unsafe { range.at(page * PAGE_BYTES).write_volatile(1) };
            }
        });
        let had = ClientResult { pages: place.frames.len() as u64, touching: start.elapsed() };
        self.give_back(&mut place);
        had
    }
}

#[cfg(test)]
mod tests {
    use super::super::signal::Handler;
    use super::*;
    use crate::skip::skip;
    use pagedepot_cli::design::Demand;
    use pagedepot_cli::design::depot::DepotAllocator;
    use pagedepot_cli::harness::cpus;

    const SHARE: u32 = 300;

    const PAGES: u64 = 4096;

    /// Faults of one client of a depot; `None` where the kernel or a sandbox has none.
    fn faults() -> Option<Faults<DepotAllocator>> {
        let uffd = Userfaultfd::open().map(Arc::new);
        let uffd = uffd.inspect_err(|why| skip(why)).ok()?;
        let cpu = cpus::usable().unwrap()[0];
        cpus::pin(cpu);
        let demand = Demand { cpus: vec![cpu], memory_pages: Some(PAGES), ..Demand::default() };
        let allocator = <DepotAllocator>::new(&demand).unwrap();
        let homes = Arc::new(Homes::new(PAGES, &uffd).unwrap());
        Some(Faults::new(allocator, homes, &uffd, (1, SHARE)).unwrap())
    }

    #[test]
    fn pages_are_zeroed_and_come_back_as_the_client_left_them() {
        let Some(mut faults) = faults() else { return };
        let _handler = Handler::install();
        for _ in 0..2 {
            for frame in 0..PAGES {
                // SAFETY: no client has pages, so all homes are there.
                unsafe { faults.homes.of(frame).write_bytes(0xFF, PAGE_BYTES) };
            }
            assert_eq!(faults.run(0, SHARE).pages, u64::from(SHARE));
            let (mut served, mut untouched) = (0, 0);
            for frame in 0..PAGES {
                // SAFETY: as above; nothing writes meanwhile.
                let page = unsafe { faults.homes.of(frame).cast::<[u8; PAGE_BYTES]>().as_ref() };
                // A client writes 1 into the first byte.
                served += u32::from(page[0] == 1 && page[1..].iter().all(|&byte| byte == 0));
                untouched += u32::from(page.iter().all(|&byte| byte == 0xFF));
            }
            assert_eq!((served, untouched), (SHARE, PAGES as u32 - SHARE));
        }
        Allocator::check(&mut faults.allocator).unwrap();
    }
}
