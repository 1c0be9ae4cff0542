//! The kernel as a source of frames: pages of a mapping that are touched and given back one by one.
//!
//! The pages come from the whole machine, of which only `/proc/buddyinfo` tells what is free. So a
//! pageblock counts as whole again if it is free after a round and was not when the memory was
//! full. Other programs that allocate or free at the same time blur that.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use pagedepot::{Mode, Order};
use rustix::mm::{Advice, madvise};

use super::frames::{Contiguity, Frames};
use crate::design::PAGE_BYTES;
use crate::design::pool::Pool;
use crate::failure::Failure;
use crate::harness::{Subject, lock};
use crate::names::Design;
use crate::report::machine::available_bytes;
use crate::workloads::shape::Shape;
use pagedepot_trace::Buddyinfo;

/// The kernel is left so many times the memory that is filled.
const ROOM: u64 = 2;

/// The reason why the kernel cannot take part, with a remedy.
pub fn why_not(shape: &Shape) -> Option<String> {
    if Buddyinfo::here().is_none() {
        return Some(format!("no row of the kernel: {} cannot be read", Buddyinfo::PATH));
    }
    if rustix::param::page_size() != PAGE_BYTES {
        return Some("no row of the kernel: its pages are not of 4 KiB".to_owned());
    }
    let (needed, available) = (shape.mib() * ROOM, available_bytes().unwrap_or(0) >> 20);
    (needed > available).then(|| {
        format!(
            "no row of the kernel: it needs {needed} MiB of memory available, and there are \
             {available}: give --memory-mib less"
        )
    })
}

/// Frames of the kernel, by page faults.
pub struct KernelFrames {
    pool: Pool,
    /// Pages that have no frame.
    empty: Mutex<Vec<u32>>,
    /// Whole pageblocks of the machine when the memory was full.
    whole_when_full: AtomicU64,
}

impl KernelFrames {
    /// A mapping of the shape's memory.
    ///
    /// # Errors
    /// Without address space.
    pub fn new(shape: &Shape) -> Result<Self, Failure> {
        let bytes = shape.pages as usize * PAGE_BYTES;
        let pool = Pool::new(bytes, PAGE_BYTES)?;
        pool.use_base_pages();
        Ok(KernelFrames {
            pool,
            empty: Mutex::new((0..shape.pages as u32).rev().collect()),
            whole_when_full: AtomicU64::new(0),
        })
    }
}

impl Subject for KernelFrames {
    fn design(&self) -> Design {
        Design::Kernel
    }
}

impl Frames for KernelFrames {
    /// The page's place in the mapping.
    type Block = u32;

    fn alloc(&self) -> Option<u32> {
        let page = lock(&self.empty).pop()?;
        // SAFETY: inside the mapping, and this caller's alone.
        unsafe { self.pool.at(page as usize * PAGE_BYTES).write_volatile(1) };
        Some(page)
    }

    fn free(&self, page: u32) {
        let start = self.pool.at(page as usize * PAGE_BYTES).as_ptr().cast();
        // SAFETY: the page is this caller's, and no reference into it exists.
        unsafe { madvise(start, PAGE_BYTES, Advice::LinuxDontNeed) }
            .expect("the mapping is private and anonymous");
        lock(&self.empty).push(page);
    }

    fn filled(&self) {
        self.whole_when_full.store(whole(), Ordering::Relaxed);
    }

    /// Only root may ask the kernel for it.
    fn drain(&self, _mode: Mode) {}

    fn contiguity(&self, pages: u64, _held: &[&[u32]]) -> Result<Contiguity, String> {
        let pageblocks = pages / u64::from(Order::PAGEBLOCK.frames());
        let again = whole().saturating_sub(self.whole_when_full.load(Ordering::Relaxed));
        Ok(Contiguity {
            whole_share: again.min(pageblocks) as f64 / pageblocks as f64,
            ..Contiguity::UNKNOWN
        })
    }
}

/// Whole pageblocks of the machine.
fn whole() -> u64 {
    Buddyinfo::here().map_or(0, |info| info.whole_pageblocks())
}
