//! User mode, just enough to show that a CPU there is quiescent: one page of code that counts until
//! a word tells it to stop.
//!
//! GS stays the kernel's: this code does not change it and cannot read through it. A kernel that
//! runs other people's code swaps it on the way (AMD APM vol. 2, 6.1.2, SWAPGS).

use core::arch::global_asm;
use core::sync::atomic::{AtomicU64, Ordering};

use pagedepot::{Flags, Order, Pfn};
use x86_64::instructions::interrupts;
use x86_64::structures::paging::PageTableFlags as Bits;

use crate::cpu::{CPUS_MAX, Cpu, State};
use crate::descriptor::{KERNEL_CODE, KERNEL_DATA, USER_CODE, USER_DATA};
use crate::interrupt::{Frame, Vector};
use crate::{memory, paging};

/// Addresses of user code and data: the second 512 GiB, which the kernel does not use.
const CODE: usize = 1 << 39;
const DATA: usize = CODE + paging::PAGE_BYTES;

global_asm!(
    ".section .text.user, \"ax\"",
    // Copied to a page of its own. RDI: its counter; RSI: the word that says stop.
    "user_code:",
    "    inc qword ptr [rdi]",
    "    pause",
    "    cmp qword ptr [rsi], 0",
    "    je user_code",
    "    int {exit}",
    "    ud2",
    "user_code_end:",
    // extern "C" fn(counter, stop, code): to user mode, until `user::leave`.
    "user_enter:",
    ".irp register, rbx, rbp, r12, r13, r14, r15",
    "    push \\register",
    ".endr",
    "    mov gs:[8], rsp",
    // What IRETQ takes (AMD APM vol. 3): SS, RSP, RFLAGS with interrupts on, CS, RIP.
    "    push {data}",
    "    push 0",
    "    push 0x202",
    "    push {code}",
    "    push rdx",
    "    iretq",
    "user_return:",
    ".irp register, r15, r14, r13, r12, rbp, rbx",
    "    pop \\register",
    ".endr",
    "    ret",
    exit = const Vector::UserExit as u8,
    data = const USER_DATA,
    code = const USER_CODE,
);

unsafe extern "C" {
    static user_code: u8;
    static user_code_end: u8;
    static user_return: u8;
    fn user_enter(counter: usize, stop: usize, code: usize);
}

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
        let [code, _, directories, directory, table] = pages;
        let (start, end) = (&raw const user_code, &raw const user_code_end);
        let to = core::ptr::with_exposed_provenance_mut::<u8>(memory::address(code));
        // SAFETY: the code lies between the labels; the page is this function's.
        unsafe { start.copy_to_nonoverlapping(to, end.addr() - start.addr()) };
        let user = Bits::PRESENT | Bits::USER_ACCESSIBLE;
        paging::set_entry(table, 0, pages[0], user);
        paging::set_entry(table, 1, pages[1], user | Bits::WRITABLE | Bits::NO_EXECUTE);
        paging::set_entry(directory, 0, table, user | Bits::WRITABLE);
        paging::set_entry(directories, 0, directory, user | Bits::WRITABLE);
        paging::set_entry(paging::root_pfn(), CODE >> 39, directories, user | Bits::WRITABLE);
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
        // SAFETY: the pages are mapped; it returns by `leave`, on the same stack, with interrupts
        // off and this CPU running.
        unsafe { user_enter(counter, DATA, CODE) };
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
        paging::set_entry(paging::root_pfn(), CODE >> 39, Pfn::new(0), Bits::empty());
        crate::flush::flush(&[paging::Span { start: CODE, bytes: 2 * paging::PAGE_BYTES }]);
        for pfn in self.pages {
            memory::depot().free(pfn, Order::BASE).expect("allocated by `new`");
        }
    }
}

/// User mode asked to leave: go on in the kernel where `user_enter` was called.
pub fn leave(cpu: &Cpu, frame: &mut Frame) {
    frame.rip = (&raw const user_return).addr() as u64;
    frame.cs = u64::from(KERNEL_CODE);
    frame.flags = 2; // what is always set; interrupts off
    frame.rsp = cpu.kernel_stack.load(Ordering::Relaxed);
    frame.ss = u64::from(KERNEL_DATA);
}
