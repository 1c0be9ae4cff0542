//! A design that serves page faults.

use std::cell::RefCell;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use pagedepot::Pfn;

use super::signal::{Server, served};
use super::uffd::{Userfaultfd, populate};
use crate::design::pool::Pool;
use crate::design::{Allocator, PAGE_BYTES};
use crate::failure::Failure;
use crate::harness::{Subject, lock};
use crate::workloads::paging::{Client, Had};

/// Faults of some clients, served from one allocator.
pub struct Faults<A: Allocator<Block = Pfn>> {
    allocator: A,
    uffd: Arc<Userfaultfd>,
    /// By client.
    places: Vec<Mutex<Place>>,
}

/// Where a client touches.
struct Place {
    /// Addresses, whose pages are missing between two runs.
    range: Pool,
    /// The frames that the pages are from, in the order of the addresses.
    frames: Vec<Pfn>,
}

impl<A: Allocator<Block = Pfn>> Faults<A> {
    /// Addresses for so many clients, with a share each, over an allocator with so many pages.
    ///
    /// # Errors
    /// Without memory, or when the kernel refuses to watch it.
    pub fn new(
        allocator: A,
        uffd: &Arc<Userfaultfd>,
        pages: u64,
        (clients, share): (usize, u32),
    ) -> Result<Self, Failure> {
        let memory = bytes_from(allocator.address(Pfn::new(0)), pages as usize);
        // What is measured are faults of the clients, not the kernel's first ones of the memory.
        populate(&memory)?;
        uffd.watch(&memory)?;
        let place = || {
            let range = Pool::new(share as usize * PAGE_BYTES, PAGE_BYTES)?;
            range.use_base_pages();
            uffd.watch(&bytes_from(range.at(0), share as usize))?;
            Ok(Mutex::new(Place { range, frames: Vec::with_capacity(share as usize) }))
        };
        let places = (0..clients).map(|_| place()).collect::<Result<_, Failure>>()?;
        Ok(Faults { allocator, uffd: Arc::clone(uffd), places })
    }

    /// Moves all pages back to their frames, and frees these.
    fn give_back(&self, place: &mut Place) {
        for (page, &frame) in place.frames.iter().enumerate() {
            let (from, to) = (place.range.at(page * PAGE_BYTES), self.allocator.address(frame));
            // SAFETY: the client has no reference into the page, and the frame is held for it.
            if let Err(errno) = unsafe { self.uffd.move_page(from, to) } {
                panic!("{}: page {page} cannot move back to {frame}: {errno}", A::DESIGN);
            }
        }
        self.allocator.free_pages(&mut place.frames);
    }
}

fn bytes_from(start: NonNull<u8>, pages: usize) -> Range<usize> {
    let start = start.as_ptr().expose_provenance();
    start..start + pages * PAGE_BYTES
}

/// Serves the faults of one client during a run.
struct OfClient<'f, A> {
    allocator: &'f A,
    uffd: &'f Userfaultfd,
    range: &'f Pool,
    /// Pages of the range.
    share: u32,
    /// With room for the client's share, so that the handler does not allocate memory.
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
        let Some(frame) = self.allocator.zeroed() else {
            panic!("{} ran out of pages with half of them free: it lost some", A::DESIGN)
        };
        // SAFETY: the frame is ours since a moment ago, and the client waits for the page.
        if let Err(errno) = unsafe { self.uffd.move_page(self.allocator.address(frame), to) } {
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

    fn run(&self, client: usize, share: u32) -> Had {
        let mut place = lock(&self.places[client]);
        let start = Instant::now();
        let Place { range, frames } = &mut *place;
        let range = &*range;
        let (allocator, uffd) = (&self.allocator, &*self.uffd);
        let server = OfClient { allocator, uffd, range, share, frames: RefCell::new(frames) };
        served(&server, || {
            for page in 0..share as usize {
                // SAFETY: inside the range, which is this client's.
                unsafe { range.at(page * PAGE_BYTES).write_volatile(1) };
            }
        });
        let had = Had { pages: place.frames.len() as u64, touching: start.elapsed() };
        self.give_back(&mut place);
        had
    }
}

#[cfg(test)]
mod tests {
    use super::super::signal::Handler;
    use super::*;
    use crate::design::Demand;
    use crate::design::depot::DepotAllocator;
    use crate::harness::cpus;

    const SHARE: u32 = 300;

    #[test]
    fn frames_of_the_design_become_the_pages_and_come_back() {
        let uffd = match Userfaultfd::open() {
            Ok(uffd) => Arc::new(uffd),
            Err(why) => return eprintln!("SKIPPED: {why}"),
        };
        let _handler = Handler::install();
        let cpu = cpus::usable().unwrap()[0];
        cpus::pin(cpu);
        let demand = Demand { cpus: vec![cpu], memory_pages: Some(4096), ..Demand::default() };
        let allocator = <DepotAllocator>::new(&demand).unwrap();
        let mut faults = Faults::new(allocator, &uffd, 4096, (1, SHARE)).unwrap();
        for _ in 0..2 {
            assert_eq!(faults.run(0, SHARE).pages, u64::from(SHARE));
        }
        // What the client wrote into its pages is in the frames, of which as many were used.
        let held: Vec<_> = std::iter::from_fn(|| faults.allocator.alloc::<0>()).collect();
        // SAFETY: frames that are held, in memory that is populated.
        let read = |&frame: &Pfn| unsafe { faults.allocator.address(frame).read_volatile() };
        let written = held.iter().map(read).filter(|&byte| byte == 1).count();
        assert!((SHARE as usize..=2 * SHARE as usize).contains(&written), "{written}");
        held.into_iter().for_each(|frame| faults.allocator.free::<0>(frame));
        Allocator::check(&mut faults.allocator).unwrap();
    }
}
