//! All frames freed in random order, by other CPUs than allocated them, then allocated again: how
//! many there are now.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::alloc::Layout;

use ostd::boot::memory_region::{MemoryRegion, MemoryRegionType};
use ostd::cpu::num_cpus;
use ostd::early_println as println;
use ostd::mm::frame::GlobalFrameAllocator;
use ostd::mm::{PAGE_SIZE, Paddr};
use ostd::sync::SpinLock;

use super::Design;
use super::cpus::{Barrier, on_all};
use super::random::Random;

/// Frames that each CPU holds.
pub struct Held(Box<[SpinLock<Vec<Paddr>>]>);

impl Held {
    /// Makes lists with room for all frames on every CPU: nothing here allocates while frames are
    /// counted.
    pub fn new(cpus: usize) -> Self {
        let pages = usable_memory().map(|region| region.len() / PAGE_SIZE).sum();
        Held((0..cpus).map(|_| SpinLock::new(Vec::with_capacity(pages))).collect())
    }

    /// Lets a CPU work on its frames.
    pub fn with<R>(&self, cpu: usize, work: impl FnOnce(&mut Vec<Paddr>) -> R) -> R {
        // Not under the lock, which turns preemption off.
        let mut frames = core::mem::take(&mut *self.0[cpu].lock());
        let result = work(&mut frames);
        *self.0[cpu].lock() = frames;
        result
    }

    /// Number of frames of all CPUs.
    pub fn total(&self) -> u64 {
        self.0.iter().map(|frames| frames.lock().len() as u64).sum()
    }
}

/// Memory regions that the loader says can be used.
pub fn usable_memory() -> impl Iterator<Item = &'static MemoryRegion> {
    let regions = ostd::boot::boot_info().memory_regions.iter();
    regions.filter(|region| region.typ() == MemoryRegionType::Usable)
}

/// Allocates single frames until there is none.
pub fn fill(frames: &dyn GlobalFrameAllocator, held: &mut Vec<Paddr>) {
    let frame = Layout::from_size_align(PAGE_SIZE, PAGE_SIZE).expect("a page");
    while let Some(addr) = frames.alloc(frame) {
        held.push(addr);
    }
}

/// Frees all in random order.
pub fn scatter(frames: &dyn GlobalFrameAllocator, held: &mut Vec<Paddr>, random: &mut Random) {
    random.shuffle(held);
    for addr in held.drain(..) {
        frames.dealloc(addr, PAGE_SIZE);
    }
}

pub fn run(design: Design) {
    let cpus = num_cpus();
    let (held, barrier) = (Held::new(cpus), Barrier::new(cpus));
    on_all(move |cpu| {
        let mut random = Random::new(1, cpu);
        for metric in ["managed_pages", "refilled_pages"] {
            held.with(cpu, |own| fill(design.frames, own));
            barrier.wait_while(cpu, || println!("= {} {}", metric, held.total()));
            let next = (cpu + 1) % cpus;
            held.with(next, |of_next| scatter(design.frames, of_next, &mut random));
            barrier.wait();
        }
    });
}
