//! User mode, just enough to show that a CPU there is quiescent: one page of code that counts until
//! a word tells it to stop.

use core::sync::atomic::{AtomicU64, Ordering};

use pagedepot::{Flags, Order, Pfn};

use crate::arch::{interrupts, tables};
use crate::cpu::{CPUS_MAX, Cpu, State};
use crate::paging::{Access, Leaf};
use crate::{arch, memory, paging};

/// Addresses of user code and data: the second 512 GiB, which the kernel does not use.
const CODE: usize = 1 << 39;
const DATA: usize = CODE + paging::PAGE_BYTES;

/// User mode's page of data, as the kernel sees it too.
#[repr(C)]
pub struct Data {
    stop: AtomicU64,
    counters: [AtomicU64; CPUS_MAX],
}

/// A user address space: the code and its data.
pub struct Program {
    pages: [Pfn; 5],
}

impl Program {
    /// Builds the page tables in the root's second entry.
    pub fn new() -> Self {
        let page = || {
            memory::depot()
                .alloc(Order::BASE, Flags::UNMOVABLE.zeroed())
                .expect("memory for user mode")
        };
        let pages: [Pfn; 5] = core::array::from_fn(|_| page());
        let [code, data, directories, directory, table] = pages;
        let to = core::ptr::with_exposed_provenance_mut::<u8>(memory::address(code));
        // SAFETY: the page is this function's.
        unsafe { arch::user::copy_code(to) };
        let user = |may_write| Access { may_write, may_execute: !may_write, is_user: true };
        paging::set_entry(table, 0, tables::to_leaf(code, Leaf::Page, user(false)));
        paging::set_entry(table, 1, tables::to_leaf(data, Leaf::Page, user(true)));
        paging::set_entry(directory, 0, tables::to_table(table));
        paging::set_entry(directories, 0, tables::to_table(directory));
        paging::set_entry(paging::root_pfn(), CODE >> 39, tables::to_table(directories));
        tables::publish();
        Program { pages }
    }

    fn data(&self) -> &Data {
        // SAFETY: a page of this program's own, which all code accesses as atomics.
        unsafe { &*core::ptr::with_exposed_provenance::<Data>(memory::address(self.pages[1])) }
    }

    /// Runs on this CPU until [`stop`](Self::stop).
    pub fn run(&self) {
        let cpu = Cpu::here();
        interrupts::disable();
        memory::depot().cpu_caches().hand_over();
        cpu.set_state(State::Quiescent);
        let counter = DATA + core::mem::offset_of!(Data, counters) + 8 * cpu.id().index();
        // SAFETY: the pages are mapped; a CPU runs one task.
        unsafe { arch::user::run(counter, DATA, CODE) };
        interrupts::enable();
    }

    /// Tells user mode to come back, without an interrupt.
    pub fn stop(&self) {
        self.data().stop.store(1, Ordering::Release);
    }

    /// The number to which the code has counted on a CPU.
    pub fn count(&self, cpu: pagedepot::CpuId) -> u64 {
        self.data().counters[cpu.index()].load(Ordering::Relaxed)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        paging::set_entry(paging::root_pfn(), CODE >> 39, 0);
        let span = paging::Span { start: CODE, bytes: 2 * paging::PAGE_BYTES };
        crate::flush::flush(&[span], |_| true);
        for pfn in self.pages {
            memory::depot().free(pfn, Order::BASE).expect("allocated by `new`");
        }
    }
}
