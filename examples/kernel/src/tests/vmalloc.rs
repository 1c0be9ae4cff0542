//! `vmalloc`: the suite of Linux's `lib/test_vmalloc.c`, its names and bodies, by 64 workers that
//! each run all of it in an order of their own. A CPU runs its share of the workers one after the
//! other. Afterwards a purge gives back what is pooled, and the page tables must go with it.

use core::sync::atomic::{AtomicU64, Ordering};

use pagedepot::{Flags, Order, Pfn};
use pagedepot_vmap::{Options as Place, PurgeDepth, VirtAddr, VmapError};

use super::{Options, Random};
use crate::paging::{self, PAGE_BYTES};
use crate::vmalloc::vmalloc;
use crate::{cpu, figure, memory, progress, smp};

const WORKERS: u64 = 64;
/// Most areas that a worker holds in `long_busy_list_alloc_test`.
const BUSY_MAX: u64 = 15_000;
/// Pages of a mapping in `vm_map_ram_test`.
const RAM_PAGES: usize = 8;

/// The stamps that an area's first and last page carry while it is in use.
fn stamp_words(start: VirtAddr, pages: u32) -> [&'static AtomicU64; 2] {
    // SAFETY: the area is mapped writable and this worker's; no code forms other references to it.
    [0, pages - 1].map(|page| unsafe {
        &*core::ptr::with_exposed_provenance::<AtomicU64>(start.get() + page as usize * PAGE_BYTES)
    })
}

struct Area {
    start: VirtAddr,
    pages: u32,
}

impl Area {
    fn new(pages: u32, place: Place) -> Result<Area, VmapError> {
        let start = vmalloc().vmalloc(pages, place)?;
        let area = Area { start, pages };
        area.stamp();
        Ok(area)
    }

    fn stamp(&self) {
        for word in stamp_words(self.start, self.pages) {
            word.store(!self.start.get() as u64, Ordering::Relaxed);
        }
    }

    fn check(&self) {
        for word in stamp_words(self.start, self.pages) {
            let found = word.load(Ordering::Relaxed);
            assert!(found == !self.start.get() as u64, "{:?} has {found:#x} in it", self.start);
        }
    }

    fn free(self) {
        self.check();
        vmalloc().vfree(self.start).expect("it was allocated");
    }
}

/// One worker.
struct Worker {
    random: Random,
    loops: u64,
    /// Areas that it may hold without using up memory or descriptors.
    areas_max: u64,
}

impl Worker {
    fn below(&mut self, limit: u64) -> u32 {
        self.random.below(limit) as u32
    }

    /// Allocates and frees, `loops` times.
    fn repeat(&mut self, mut next: impl FnMut(&mut Self) -> (u32, Place)) -> Result<(), VmapError> {
        for _ in 0..self.loops {
            let (pages, place) = next(self);
            Area::new(pages, place)?.free();
        }
        Ok(())
    }

    fn fix_size_alloc(&mut self) -> Result<(), VmapError> {
        self.repeat(|_| (1, Place::DEFAULT))
    }

    fn random_size_alloc(&mut self) -> Result<(), VmapError> {
        self.repeat(|worker| (1 + worker.below(100), Place::DEFAULT))
    }

    fn fix_align_alloc(&mut self) -> Result<(), VmapError> {
        self.repeat(|_| (5, Place::DEFAULT.align(8 * PAGE_BYTES)))
    }

    fn random_size_align_alloc(&mut self) -> Result<(), VmapError> {
        self.repeat(|worker| (1 + worker.below(10), Place::DEFAULT.align(1 << worker.below(23))))
    }

    /// Runs a test while it holds areas of one page; frees every second one first, if asked to.
    fn among_others(
        &mut self,
        with_holes: bool,
        work: fn(&mut Self) -> Result<(), VmapError>,
    ) -> Result<(), VmapError> {
        let count = self.areas_max.min(BUSY_MAX) as usize;
        let list_pages = (count * size_of::<usize>()).div_ceil(PAGE_BYTES) as u32;
        let list = vmalloc().vmalloc(list_pages, Place::DEFAULT)?;
        // SAFETY: zeroed memory of this worker's own, large enough, until it is freed below.
        let held = unsafe {
            let start = core::ptr::with_exposed_provenance_mut::<usize>(list.get());
            core::slice::from_raw_parts_mut(start, count)
        };
        let free = |place: &mut usize| match core::mem::take(place) {
            0 => {}
            start => Area { start: VirtAddr::new(start), pages: 1 }.free(),
        };
        let filled = held.iter_mut().try_for_each(|place| {
            Area::new(1, Place::DEFAULT).map(|area| *place = area.start.get())
        });
        if with_holes {
            held.iter_mut().step_by(2).for_each(free);
        }
        let worked = filled.and_then(|()| work(self));
        held.iter_mut().for_each(free);
        vmalloc().vfree(list).expect("it was allocated");
        worked
    }

    fn full_fit_alloc(&mut self) -> Result<(), VmapError> {
        self.among_others(true, Self::fix_size_alloc)
    }

    fn long_busy_list_alloc(&mut self) -> Result<(), VmapError> {
        self.among_others(false, |worker| {
            for _ in 0..worker.loops {
                let pair = (Area::new(100, Place::DEFAULT)?, Area::new(1, Place::DEFAULT)?);
                pair.0.free();
                pair.1.free();
            }
            Ok(())
        })
    }

    /// Alignments beyond the range are expected to fail.
    fn align_shift_alloc(&mut self) -> Result<(), VmapError> {
        for shift in 0..usize::BITS {
            match Area::new(1, Place::DEFAULT.align(1 << shift)) {
                Ok(area) => area.free(),
                Err(_) if shift > 22 => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Checks that bytes written through the mapping are in the frames.
    fn vm_map_ram(&mut self) -> Result<(), VmapError> {
        let mut frames = [Pfn::new(0); RAM_PAGES];
        let got = memory::depot().alloc_many(Order::BASE, Flags::MOVABLE, &mut frames)?;
        let frames = &frames[..got];
        for _ in 0..self.loops {
            let start = vmalloc().vm_map_ram(frames, Place::DEFAULT)?;
            let area = Area { start, pages: frames.len() as u32 };
            area.stamp();
            let mark = super::mark_word(frames[0]).load(Ordering::Relaxed);
            assert!(mark == !start.get() as u64, "{start:?} does not lead to {:?}", frames[0]);
            vmalloc().vm_unmap_ram(start, area.pages).expect("it was mapped");
        }
        frames
            .iter()
            .for_each(|&pfn| memory::depot().free(pfn, Order::BASE).expect("it was allocated"));
        Ok(())
    }

    /// Grows and shrinks, also from and to a part of a large page; the first page keeps its data.
    fn vrealloc(&mut self) -> Result<(), VmapError> {
        for _ in 0..self.loops.div_ceil(8) {
            let mut area = Area::new(1, Place::DEFAULT)?;
            let stamp = !area.start.get() as u64;
            for pages in [4, 1, 600, 2, 1] {
                area.start = vmalloc().vrealloc(area.start, pages, Place::DEFAULT)?;
                area.pages = pages;
                let [first, last] = stamp_words(area.start, pages);
                let found = first.load(Ordering::Relaxed);
                assert!(found == stamp, "{:?} lost its data: {found:#x}", area.start);
                last.store(stamp, Ordering::Relaxed);
            }
            vmalloc().vfree(area.start).expect("it was allocated");
        }
        Ok(())
    }
}

struct Test {
    name: &'static str,
    body: fn(&mut Worker) -> Result<(), VmapError>,
    passed: AtomicU64,
    failed: AtomicU64,
}

const fn test(name: &'static str, body: fn(&mut Worker) -> Result<(), VmapError>) -> Test {
    Test { name, body, passed: AtomicU64::new(0), failed: AtomicU64::new(0) }
}

static TESTS: [Test; 9] = [
    test("fix_size_alloc_test", Worker::fix_size_alloc),
    test("full_fit_alloc_test", Worker::full_fit_alloc),
    test("long_busy_list_alloc_test", Worker::long_busy_list_alloc),
    test("random_size_alloc_test", Worker::random_size_alloc),
    test("fix_align_alloc_test", Worker::fix_align_alloc),
    test("random_size_align_alloc_test", Worker::random_size_align_alloc),
    test("align_shift_alloc_test", Worker::align_shift_alloc),
    test("vm_map_ram_test", Worker::vm_map_ram),
    test("vrealloc_test", Worker::vrealloc),
];

/// All tests, in an order of the worker's own.
fn run_worker(number: u64, loops: u64, areas_max: u64) {
    let mut worker = Worker { random: Random::new(number), loops, areas_max };
    let mut order: [usize; TESTS.len()] = core::array::from_fn(|i| i);
    for i in (1..order.len()).rev() {
        order.swap(i, worker.random.below(i as u64 + 1) as usize);
    }
    for test in order.map(|i| &TESTS[i]) {
        match (test.body)(&mut worker) {
            Ok(()) => test.passed.fetch_add(1, Ordering::Relaxed),
            Err(_) => test.failed.fetch_add(1, Ordering::Relaxed),
        };
    }
}

pub fn run(options: &Options) {
    let (cpus, loops) = (u64::from(cpu::count()), options.rounds.unwrap_or(20));
    let areas_max = memory::free_pages() / 16 / cpus;
    let (table_bytes_start, _) = paging::table_bytes();
    let next = AtomicU64::new(0);
    smp::run_everywhere(&|_| {
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= WORKERS {
                break;
            }
            run_worker(number, loops, areas_max);
        }
    });
    let before = vmalloc().stats();
    vmalloc().purge(PurgeDepth::Everything);
    smp::await_idle();
    // SAFETY: all workers have ended, and ticks do not use vmalloc.
    unsafe { crate::vmalloc::validate() };

    let mut failed = 0;
    for test in &TESTS {
        let counts = [&test.passed, &test.failed].map(|count| count.load(Ordering::Relaxed));
        progress!(
            "Summary: {} passed: {} failed: {} loops: {loops}",
            test.name,
            counts[0],
            counts[1]
        );
        failed += counts[1];
    }
    let (table_bytes_end, table_bytes_peak) = paging::table_bytes();
    figure!("workers", WORKERS);
    figure!("failed", failed);
    figure!("allocated_areas", before.allocated_areas);
    figure!("pool_hits", before.pool_hits);
    figure!("flushed_pages", before.counts.flushed_pages);
    figure!("needed_pages", before.counts.needed_pages);
    figure!("page_table_bytes_start", table_bytes_start);
    figure!("page_table_bytes_peak", table_bytes_peak);
    figure!("page_table_bytes_end", table_bytes_end);
    assert!(failed == 0, "{failed} tests failed:\n{}", memory::depot().shortage());
    let grown = table_bytes_end.saturating_sub(table_bytes_start);
    assert!(grown * 20 <= table_bytes_peak - table_bytes_start, "page tables were left behind");
}
