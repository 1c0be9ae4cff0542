//! The kernel's own page faults: mapped, touched, unmapped.

use std::time::Instant;

use super::client::{Client, ClientResult};
use pagedepot_cli::design::PAGE_BYTES;
use pagedepot_cli::design::pool::Pool;
use pagedepot_cli::harness::Subject;
use pagedepot_cli::names::Design;

/// Page faults of the kernel.
pub struct KernelFaults;

impl Client for KernelFaults {
    fn subject(&self) -> &dyn Subject {
        &Design::Kernel
    }

    fn run(&self, _client: usize, share: u32) -> ClientResult {
        let start = Instant::now();
        let memory = Pool::new(share as usize * PAGE_BYTES, PAGE_BYTES)
            .unwrap_or_else(|why| panic!("{}: {why}", Design::Kernel));
        memory.use_base_pages();
        for page in 0..share as usize {
            // SAFETY: inside the mapping, which is this function's.
            unsafe { memory.at(page * PAGE_BYTES).write_volatile(1) };
        }
        ClientResult { pages: share.into(), touching: start.elapsed() }
    }
}
