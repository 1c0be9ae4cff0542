//! Segments, task-state segment and interrupt stacks of a CPU.
//!
//! AMD APM vol. 2, 4.8 (long-mode descriptors) and 12.2.5 (64-bit TSS).

use core::cell::UnsafeCell;

use x86_64::PrivilegeLevel::Ring3;
use x86_64::VirtAddr;
use x86_64::instructions::segmentation::{CS, DS, ES, SS, Segment};
use x86_64::instructions::tables::load_tss;
use x86_64::structures::gdt::{Descriptor, GlobalDescriptorTable, SegmentSelector};
use x86_64::structures::tss::TaskStateSegment;

/// Selectors, by the order in which `load` appends descriptors. SS and CS of user mode carry the
/// privilege level they ask for.
pub const KERNEL_CODE: u16 = 0x08;
/// Data of the kernel.
pub const KERNEL_DATA: u16 = 0x10;
/// Data of user mode.
pub const USER_DATA: u16 = 0x18 | Ring3 as u16;
/// Code of user mode.
pub const USER_CODE: u16 = 0x20 | Ring3 as u16;

/// Interrupt stacks, by their place in the table (1 is the first).
#[derive(Clone, Copy)]
pub enum InterruptStack {
    /// Stack on which every vector lands for a few instructions; see `interrupt.s`.
    Landing = 1,
    /// Stack of non-maskable interrupts.
    Nmi = 2,
    /// Stack of the double fault.
    DoubleFault = 3,
}

const STACK_BYTES: usize = 16 * 1024;

/// The element type gives a stack its alignment.
type Stack = [u128; STACK_BYTES / 16];

/// One CPU's tables. The CPU writes them when it starts; the processor reads them afterwards.
pub struct Tables {
    segments: UnsafeCell<GlobalDescriptorTable>,
    task: UnsafeCell<TaskStateSegment>,
    stacks: UnsafeCell<[Stack; 3]>,
}

// SAFETY: only the CPU whose tables these are touches them.
unsafe impl Sync for Tables {}

impl Tables {
    /// Empty tables.
    pub const fn new() -> Self {
        Tables {
            segments: UnsafeCell::new(GlobalDescriptorTable::new()),
            task: UnsafeCell::new(TaskStateSegment::new()),
            stacks: UnsafeCell::new([[0; STACK_BYTES / 16]; 3]),
        }
    }

    /// Fills the tables and makes them the running CPU's.
    pub fn load(&'static self) {
        let stacks = self.stacks.get().cast::<Stack>();
        // SAFETY: called by the CPU whose tables these are, with interrupts off, before it uses
        // them; a CPU that starts again has been reset and uses none. The selectors are those of
        // the descriptors appended here.
        unsafe {
            let task = &mut *self.task.get();
            for i in 0..3 {
                task.interrupt_stack_table[i] = VirtAddr::from_ptr(stacks.add(i + 1));
            }
            let segments = &mut *self.segments.get();
            *segments = GlobalDescriptorTable::new();
            let code = segments.append(Descriptor::kernel_code_segment());
            let data = segments.append(Descriptor::kernel_data_segment());
            segments.append(Descriptor::user_data_segment());
            segments.append(Descriptor::user_code_segment());
            let task = segments.append(Descriptor::tss_segment(&*self.task.get()));
            assert!(code.0 == KERNEL_CODE && data.0 == KERNEL_DATA);
            (*self.segments.get()).load();
            CS::set_reg(code);
            SS::set_reg(data);
            DS::set_reg(SegmentSelector::NULL);
            ES::set_reg(SegmentSelector::NULL);
            load_tss(task);
        }
        super::interrupt::load_table();
    }
}
