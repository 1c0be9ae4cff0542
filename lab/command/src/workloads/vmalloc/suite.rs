//! The tests of `lib/test_vmalloc.c`: names, order and bodies.

use pagedepot::{Flags, Order, Pfn};
use pagedepot_lab_designs::vmap::VmapDesign;
use pagedepot_vmap::{Host, VirtAddr, VmapError};

use super::options::Parameters;
use pagedepot_cli::design::PAGE_BYTES;

/// A test, by its bit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Test {
    FixSizeAlloc,
    FullFitAlloc,
    LongBusyListAlloc,
    RandomSizeAlloc,
    FixAlignAlloc,
    RandomSizeAlignAlloc,
    AlignShiftAlloc,
    VmMapRam,
    Vrealloc,
    /// A test of something other than vmalloc; not run.
    NotHere,
}

/// All of them: bit `i` of the mask is test `i`.
pub const TESTS: [(&str, Test); 13] = [
    ("fix_size_alloc_test", Test::FixSizeAlloc),
    ("full_fit_alloc_test", Test::FullFitAlloc),
    ("long_busy_list_alloc_test", Test::LongBusyListAlloc),
    ("random_size_alloc_test", Test::RandomSizeAlloc),
    ("fix_align_alloc_test", Test::FixAlignAlloc),
    ("random_size_align_alloc_test", Test::RandomSizeAlignAlloc),
    ("align_shift_alloc_test", Test::AlignShiftAlloc),
    ("pcpu_alloc_test", Test::NotHere),
    ("kvfree_rcu_1_arg_vmalloc_test", Test::NotHere),
    ("kvfree_rcu_2_arg_vmalloc_test", Test::NotHere),
    ("vm_map_ram_test", Test::VmMapRam),
    ("no_block_alloc_test", Test::NotHere),
    ("vrealloc_test", Test::Vrealloc),
];

impl Test {
    /// Whether a failure is what the test expects: no range has every alignment.
    pub const fn expects_failure(self) -> bool {
        matches!(self, Test::AlignShiftAlloc)
    }

    /// Loops in one run of it.
    pub const fn loops(self, parameters: &Parameters) -> u32 {
        match self {
            Test::AlignShiftAlloc => usize::BITS,
            _ => parameters.test_loop_count,
        }
    }
}

/// Areas that a worker holds in `long_busy_list_alloc_test`.
const BUSY: u32 = 15_000;

/// Numbers of areas that the tests hold at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldAreas {
    /// `junk_length` of `full_fit_alloc_test`: twice as many at first.
    pub junk: u32,
    /// Areas that `long_busy_list_alloc_test` holds.
    pub busy: u32,
}

impl HeldAreas {
    /// The kernel's numbers: fls(CPUs) times the pages of 32 MiB, and 15000.
    pub const fn kernel(cpus: u32) -> Self {
        let bits = u32::BITS - cpus.leading_zeros();
        HeldAreas { junk: bits * (32 << 20 >> PAGE_BYTES.trailing_zeros()), busy: BUSY }
    }

    /// Limits the numbers to so many areas.
    pub const fn limited(self, areas: u32) -> Self {
        let junk = if self.junk < areas / 2 { self.junk } else { areas / 2 };
        let busy = if self.busy < areas { self.busy } else { areas };
        HeldAreas { junk, busy }
    }

    /// Most that a worker holds at a time, with these tests.
    pub fn areas(self, mask: u32) -> u32 {
        let of = |test, areas| if runs(mask, test) { areas } else { 0 };
        // And the lists, and what a loop holds.
        of(Test::FullFitAlloc, 2 * self.junk).max(of(Test::LongBusyListAlloc, self.busy)) + 4
    }
}

/// Whether a mask has the bit of a test.
pub fn runs(mask: u32, test: Test) -> bool {
    TESTS.iter().enumerate().any(|(bit, &(_, named))| named == test && mask >> bit & 1 == 1)
}

/// A worker, with all that it uses.
pub struct Worker<'w, D, H> {
    pub design: &'w D,
    pub host: &'w H,
    pub parameters: &'w Parameters,
    pub held: HeldAreas,
    /// Whether there is memory behind the addresses.
    pub is_mapped: bool,
    pub random: fastrand::Rng,
}

impl<D: VmapDesign, H: Host> Worker<'_, D, H> {
    /// Runs a test once.
    ///
    /// # Errors
    /// What an allocation failed with. Everything is freed.
    pub fn run(&mut self, test: Test) -> Result<(), VmapError> {
        match test {
            Test::FixSizeAlloc => self.repeat(|worker| (worker.parameters.nr_pages, 1)),
            Test::FullFitAlloc => self.full_fit_alloc(),
            Test::LongBusyListAlloc => self.long_busy_list_alloc(),
            Test::RandomSizeAlloc => self.repeat(|worker| (worker.random.u32(1..=100), 1)),
            // THREAD_ALIGN << 1 of x86-64.
            Test::FixAlignAlloc => self.repeat(|_| (5, 8 * PAGE_BYTES)),
            Test::RandomSizeAlignAlloc => self.repeat(|worker| {
                let random = worker.random.u8(..);
                (u32::from(random % 10) + 1, 1 << (random % 23))
            }),
            Test::AlignShiftAlloc => {
                (0..usize::BITS).try_for_each(|shift| self.pair(1, 1 << shift))
            }
            Test::VmMapRam => self.vm_map_ram(),
            Test::Vrealloc => {
                (0..self.parameters.test_loop_count).try_for_each(|_| self.vrealloc())
            }
            Test::NotHere => Ok(()),
        }
    }

    fn alloc(&self, pages: u32, align: usize) -> Result<VirtAddr, VmapError> {
        let start = self.design.vmalloc(pages, align)?;
        self.write(start, 1);
        Ok(start)
    }

    fn free(&self, start: VirtAddr) {
        self.design.vfree(start).expect("it was allocated");
    }

    fn write(&self, at: VirtAddr, byte: u8) {
        if self.is_mapped {
            // SAFETY: mapped writable, and this worker's until it frees it.
            unsafe { std::ptr::with_exposed_provenance_mut::<u8>(at.get()).write_volatile(byte) };
        }
    }

    fn read(&self, at: VirtAddr) -> Option<u8> {
        // SAFETY: mapped readable, and this worker's until it frees it.
        self.is_mapped
            .then(|| unsafe { std::ptr::with_exposed_provenance::<u8>(at.get()).read_volatile() })
    }

    fn copy(&self, from: VirtAddr, to: VirtAddr, pages: u32) {
        if self.is_mapped {
            let (from, to) = (
                std::ptr::with_exposed_provenance::<u8>(from.get()),
                std::ptr::with_exposed_provenance_mut::<u8>(to.get()),
            );
            // SAFETY: both are mapped, this worker's, and apart.
            unsafe { from.copy_to_nonoverlapping(to, pages as usize * PAGE_BYTES) };
        }
    }

    fn pair(&self, pages: u32, align: usize) -> Result<(), VmapError> {
        self.free(self.alloc(pages, align)?);
        Ok(())
    }

    fn repeat(&mut self, size: impl Fn(&mut Self) -> (u32, usize)) -> Result<(), VmapError> {
        (0..self.parameters.test_loop_count).try_for_each(|_| {
            let (pages, align) = size(self);
            self.pair(pages, align)
        })
    }

    /// Fills `list` with areas of one page.
    fn hold(&self, list: &mut Vec<VirtAddr>, count: u32) -> Result<(), VmapError> {
        (0..count).try_for_each(|_| {
            list.push(self.alloc(1, 1)?);
            Ok(())
        })
    }

    /// The list of held areas is vmalloc memory, too, in the kernel.
    fn list_pages(count: u32) -> u32 {
        (count as usize * size_of::<usize>()).div_ceil(PAGE_BYTES).max(1) as u32
    }

    fn full_fit_alloc(&mut self) -> Result<(), VmapError> {
        let junk_length = self.held.junk;
        let lists = [(); 2].map(|()| self.alloc(Self::list_pages(junk_length), 1));
        let mut held = Vec::with_capacity(2 * junk_length as usize);
        let result = self.hold(&mut held, 2 * junk_length).and_then(|()| {
            // Every second one.
            let mut nth = 0;
            held.retain(|&start| {
                nth += 1;
                if nth % 2 == 0 {
                    self.free(start);
                }
                nth % 2 == 1
            });
            self.repeat(|_| (1, 1))
        });
        held.into_iter().chain(lists.into_iter().flatten()).for_each(|start| self.free(start));
        result
    }

    fn long_busy_list_alloc(&mut self) -> Result<(), VmapError> {
        let list = self.alloc(Self::list_pages(self.held.busy), 1);
        let mut held = Vec::with_capacity(self.held.busy as usize);
        let result = self.hold(&mut held, self.held.busy).and_then(|()| {
            (0..self.parameters.test_loop_count).try_for_each(|_| {
                let large = self.alloc(100, 1)?;
                let small = self.alloc(1, 1);
                self.free(large);
                small.map(|small| self.free(small))
            })
        });
        held.into_iter().chain(list).for_each(|start| self.free(start));
        result
    }

    fn vm_map_ram(&mut self) -> Result<(), VmapError> {
        let mut frames = vec![Pfn::new(0); self.parameters.nr_pages as usize];
        let mut got = 0;
        let mut result = Ok(());
        while got < frames.len() && result.is_ok() {
            match self.host.alloc_frames(Flags::MOVABLE, &mut frames[got..]) {
                Ok(more) => got += more,
                Err(error) => result = Err(error.into()),
            }
        }
        let result = result.and_then(|()| {
            (0..self.parameters.test_loop_count).try_for_each(|_| {
                let start = self.design.map_ram(&frames)?;
                self.write(start, b'a');
                self.design.unmap_ram(start, frames.len() as u32).expect("it was mapped");
                Ok(())
            })
        });
        // They may be mapped until the next purge, but are not accessed through that.
        let blocks: Vec<_> = frames[..got].iter().map(|&frame| (frame, Order::BASE)).collect();
        // SAFETY: allocated above.
        unsafe { self.host.free_blocks(&blocks) }.expect("they were allocated");
        result
    }

    /// 1 page, 4, 1, a half, 1: the first byte stays.
    fn vrealloc(&mut self) -> Result<(), VmapError> {
        let mut start = self.alloc(1, 1)?;
        self.write(start, b'a');
        let mut pages = 1;
        for new in [4, 1, 1, 1] {
            let copy = |from, to, pages| self.copy(from, to, pages);
            match self.design.vrealloc(start, pages, new, &copy) {
                Ok(moved) => (start, pages) = (moved, new),
                Err(error) => {
                    self.free(start);
                    return Err(error);
                }
            }
            assert!(self.read(start).is_none_or(|byte| byte == b'a'), "{start} lost its contents");
        }
        self.free(start);
        Ok(())
    }
}
