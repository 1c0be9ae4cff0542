//! The workload on address space: the loops of test_vmalloc's tests 1, 2 and 4
//! (`run_test_mask=7`), among areas that its workers hold.
//!
//! How many they hold decides how deep the kernel's trees are, and a walk down a tree is what its
//! locks are held for. `full_fit_alloc_test` allocates twice as many areas as `lazy_max_pages` has
//! pages, and frees every second one; `long_busy_list_alloc_test` allocates 15,000. Workers take
//! the tests in random order, so a third of them is in each: a CPU holds a third of both here.

use pagedepot_lab_designs::vmap::VmapDesign;
use pagedepot_vmap::VirtAddr;

use crate::cpus::act_as;
use crate::workloads::{CpuWork, Window};

/// Areas that a worker holds in `long_busy_list_alloc_test`.
const BUSY: u32 = 15_000;
/// Pages of 32 MiB.
const LAZY_PAGES: u32 = 8192;
/// Tests, each with as many workers.
const TESTS: u32 = 3;
/// Loops of a CPU before a simulation begins: enough for some purges, so that pools hold what loops
/// take. test_vmalloc makes a million.
const LOOPS_BEFORE: u32 = 300;
/// Areas of a CPU, in use or freed, besides those that it holds.
const LOOSE: u32 = 2000;

/// The areas that each of so many CPUs holds.
#[derive(Clone, Copy, Debug)]
pub struct AreaStock {
    cpus: u32,
    busy: u32,
    /// Number of areas that are freed again, between the busy ones.
    junk: u32,
}

impl AreaStock {
    /// Makes the areas that the kernel's workers hold on so many CPUs; the module says why.
    pub const fn kernel(cpus: u32) -> Self {
        let bits = u32::BITS - cpus.leading_zeros();
        AreaStock { cpus, busy: BUSY / TESTS, junk: bits * LAZY_PAGES / TESTS }
    }

    /// Areas of all CPUs at most.
    pub const fn areas_max(self) -> u32 {
        self.cpus * (self.busy + 2 * self.junk + LOOSE)
    }

    /// Pages of addresses that are enough.
    pub const fn span_pages(self) -> u32 {
        (4 * self.areas_max()).next_power_of_two()
    }

    /// Makes them, and loops some times, before a simulation begins. All CPUs take turns, so that
    /// their addresses alternate as those of workers that run at the same time.
    pub fn make(self, design: &dyn VmapDesign) {
        let for_each_cpu = |work: &mut dyn FnMut()| {
            for cpu in 0..self.cpus {
                act_as(cpu);
                work();
            }
            act_as(0);
        };
        let mut junk = Vec::new();
        for turn in 0..self.junk.max(self.busy) {
            for_each_cpu(&mut || {
                if turn < self.busy {
                    alloc(design, 1);
                }
                if turn < self.junk {
                    alloc(design, 1);
                    junk.push(alloc(design, 1));
                }
            });
        }
        let mut junk = junk.into_iter();
        for _ in 0..self.junk {
            for_each_cpu(&mut || free(design, junk.next().expect("one for each CPU and turn")));
        }
        (0..LOOPS_BEFORE).for_each(|turn| for_each_cpu(&mut || run_loop(design, turn)));
    }
}

fn alloc(design: &dyn VmapDesign, pages: u32) -> VirtAddr {
    match design.vmalloc(pages, 1) {
        Ok(start) => start,
        Err(error) => panic!("vmalloc of {pages} pages: {error}"),
    }
}

fn free(design: &dyn VmapDesign, start: VirtAddr) {
    design.vfree(start).expect("it was allocated");
}

/// A CPU at work.
pub fn run(design: &dyn VmapDesign, window: &Window) -> CpuWork {
    let mut turn = 0;
    window.repeat(|| {
        run_loop(design, turn);
        turn += 1;
        1
    })
}

/// A loop of one of the three tests, in turn.
fn run_loop(design: &dyn VmapDesign, turn: u32) {
    if turn.is_multiple_of(TESTS) {
        let large = alloc(design, 100);
        let small = alloc(design, 1);
        free(design, large);
        free(design, small);
    } else {
        free(design, alloc(design, 1));
    }
}
