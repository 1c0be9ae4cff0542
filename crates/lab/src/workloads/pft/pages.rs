//! Allocators as sources of zeroed pages.

use std::ptr::NonNull;
use std::sync::{Mutex, PoisonError};

use pagedepot::{Order, Pfn};

use super::Client;
use crate::design::allocator::{Allocator, WithAllocator};
use crate::design::{self, Demand, Design, Subject};
use crate::failure::Failure;

/// An allocator whose pages are memory.
pub trait Pages: Subject {
    /// A zeroed page; `None` when memory is used up.
    fn zeroed(&self) -> Option<Self::Block>;

    /// Where it is: at least a page of memory that is the caller's until freed.
    fn address(&self, block: Self::Block) -> NonNull<u8>;

    /// Frees many pages at once, if the allocator can.
    fn free_all(&self, blocks: &mut Vec<Self::Block>) {
        blocks.drain(..).for_each(|block| self.free::<0>(block));
    }
}

/// Pages of one allocator, for some clients.
pub struct ClientPages<S: Subject> {
    subject: S,
    /// By client.
    held: Vec<Mutex<Vec<S::Block>>>,
}

impl<S: Pages> Client for ClientPages<S> {
    fn design(&self) -> Design {
        S::DESIGN
    }

    fn enter(&self) {
        self.subject.enter();
    }

    fn leave(&self) {
        self.subject.leave();
    }

    fn run(&self, client: usize, share: u32) -> u64 {
        let mut held = self.held[client].lock().unwrap_or_else(PoisonError::into_inner);
        while held.len() < share as usize {
            let Some(page) = self.subject.zeroed() else { break };
            // SAFETY: the page is this client's.
            unsafe { self.subject.address(page).write_volatile(1) };
            held.push(page);
        }
        let pages = held.len() as u64;
        self.subject.free_all(&mut held);
        pages
    }

    fn drain_all(&self) {
        self.subject.drain_all();
    }

    fn check(&mut self) -> Result<(), String> {
        self.subject.check()
    }
}

/// Makes clients of a subject.
pub struct ToPages {
    /// Pages per client.
    pub share: u32,
    /// How many clients.
    pub clients: usize,
}

impl ToPages {
    fn of<S: Pages + 'static>(self, subject: S) -> Box<dyn Client> {
        let held = (0..self.clients)
            .map(|_| Mutex::new(Vec::with_capacity(self.share as usize)))
            .collect();
        Box::new(ClientPages { subject, held })
    }
}

impl WithAllocator for ToPages {
    type Output = Box<dyn Client>;

    fn with<A: Allocator + 'static>(self, allocator: A) -> Box<dyn Client> {
        self.of(allocator)
    }
}

/// The designs that can, and `kernel`.
pub const DESIGNS: [Design; 12] = [
    Design::Depot,
    Design::ZoneLock,
    Design::Local,
    Design::NohzConditional,
    Design::Spin,
    Design::Rcu,
    Design::Magazine,
    Design::FrameAlloc,
    Design::Mimalloc,
    Design::Jemalloc,
    Design::Snmalloc,
    Design::Kernel,
];

/// Makes clients of `design`.
///
/// # Errors
/// When the design cannot run here, or its memory cannot be had.
pub fn make(design: Design, demand: &Demand, to: ToPages) -> Result<Box<dyn Client>, Failure> {
    match design {
        #[cfg(feature = "peers")]
        Design::FrameAlloc => Ok(to.of(design::frame_alloc::FrameAlloc::new(demand)?)),
        #[cfg(feature = "peers")]
        Design::Mimalloc => Ok(to.of(design::malloc::Mimalloc::new())),
        #[cfg(feature = "peers")]
        Design::Jemalloc => Ok(to.of(design::malloc::Jemalloc::new())),
        #[cfg(feature = "peers")]
        Design::Snmalloc => Ok(to.of(design::malloc::Snmalloc::new())),
        // Just as much memory as clients touch.
        paged => design::make_allocator(paged, demand, demand.frames(), to),
    }
}

impl<A: Allocator> Pages for A {
    fn zeroed(&self) -> Option<Pfn> {
        Allocator::zeroed(self)
    }

    fn address(&self, block: Pfn) -> NonNull<u8> {
        Allocator::address(self, block)
    }

    /// In the batches that a kernel gathers (`struct mmu_gather`) before it frees them.
    fn free_all(&self, blocks: &mut Vec<Pfn>) {
        let mut batch = [(Pfn::new(0), Order::BASE); BATCH_PAGES];
        for pages in blocks.chunks(BATCH_PAGES) {
            for (slot, &page) in batch.iter_mut().zip(pages) {
                slot.0 = page;
            }
            self.free_many(&batch[..pages.len()]);
        }
        blocks.clear();
    }
}

/// Pages freed by one call.
const BATCH_PAGES: usize = 512;

#[cfg(feature = "peers")]
mod peers {
    use super::*;
    use crate::design::PAGE_BYTES;
    use crate::design::frame_alloc::FrameAlloc;
    use crate::design::malloc::{Jemalloc, Memory, Mimalloc, Snmalloc};

    impl Pages for FrameAlloc {
        fn zeroed(&self) -> Option<usize> {
            let block = self.alloc::<0>()?;
            // SAFETY: the frame is a page of the pool, and now this caller's.
            unsafe { self.address(block).write_bytes(0, PAGE_BYTES) };
            Some(block)
        }

        fn address(&self, block: usize) -> NonNull<u8> {
            NonNull::new(std::ptr::with_exposed_provenance_mut(block))
                .expect("a frame's address is not 0")
        }
    }

    macro_rules! malloc_pages {
        ($($name:ty),*) => {$(
            impl Pages for $name {
                fn zeroed(&self) -> Option<Memory> {
                    <$name>::zeroed(self)
                }

                fn address(&self, block: Memory) -> NonNull<u8> {
                    block.address()
                }
            }
        )*};
    }

    malloc_pages!(Mimalloc, Jemalloc, Snmalloc);
}
