//! Allocators as sources of zeroed pages.

use std::sync::Mutex;
use std::time::Instant;

use crate::workloads::paging::{Client, ClientResult};
use pagedepot_cli::design::Allocator;
use pagedepot_cli::harness::{Subject, lock};

/// Pages of one allocator, for some clients.
pub struct Pages<A: Allocator> {
    allocator: A,
    /// Blocks by client.
    held: Vec<Mutex<Vec<A::Block>>>,
}

impl<A: Allocator> Pages<A> {
    /// Pages for so many clients, each of which gets a `share` of them.
    pub fn new(allocator: A, clients: usize, share: u32) -> Self {
        let held = || Mutex::new(Vec::with_capacity(share as usize));
        Pages { allocator, held: (0..clients).map(|_| held()).collect() }
    }
}

impl<A: Allocator> Client for Pages<A> {
    fn subject(&self) -> &dyn Subject {
        &self.allocator
    }

    fn owned_subject(&mut self) -> Option<&mut dyn Subject> {
        Some(&mut self.allocator)
    }

    fn run(&self, client: usize, share: u32) -> ClientResult {
        let start = Instant::now();
        let mut held = lock(&self.held[client]);
        while held.len() < share as usize {
            let Some(page) = self.allocator.zeroed() else { break };
            // SAFETY: the page is this client's.
            unsafe { self.allocator.address(page).write_volatile(1) };
            held.push(page);
        }
        let had = ClientResult { pages: held.len() as u64, touching: start.elapsed() };
        self.allocator.free_pages(&mut held);
        had
    }
}
