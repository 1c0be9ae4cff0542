//! A restartable sequence on a per-CPU array: as fast as frames can be had per CPU. It reads the
//! CPU's number, the array's count and a slot, and stores the count; nothing else.
//!
//! The kernel restarts a thread that it interrupted between labels 22 and 23 at label 24, unless
//! the last instruction, the one store that commits, was done (`Documentation/core-api/rseq.rst`).
//! Entering a sequence is one store, of its descriptor's address, into the thread's `struct rseq`;
//! the kernel clears it when it finds the thread elsewhere.

use std::ptr::NonNull;

use super::{Demand, Design, Subject};
use crate::failure::Failure;
use crate::harness::rseq;

/// log2 of the bytes between the arrays of two CPUs: a constant, so that the address is a shift.
/// Address space, of which only what is used becomes memory.
const STRIDE_SHIFT: usize = 24;
/// Bytes before an array's first slot: its count has a line of its own.
const SLOTS_AT: usize = 64;
/// Slots of an array.
const SLOTS_MAX: usize = ((1 << STRIDE_SHIFT) - SLOTS_AT) / size_of::<u32>();

/// See the module.
pub struct FloorRseq {
    arrays: NonNull<u8>,
    bytes: usize,
    capacity: u32,
    /// From the thread pointer to `struct rseq`.
    offset: isize,
}

// SAFETY: slots and counts are touched in sequences of the CPU they belong to only.
unsafe impl Send for FloorRseq {}
// SAFETY: as above.
unsafe impl Sync for FloorRseq {}

impl FloorRseq {
    /// For CPUs that hold at most as many blocks as `demand` says.
    ///
    /// # Errors
    /// Without restartable sequences, without address space, or for more blocks than fit an array.
    pub fn new(demand: &Demand) -> Result<Self, Failure> {
        let offset = rseq::offset().map_err(|why| Failure::Usage(why.to_string()))?;
        let capacity = super::floor_spin::capacity(demand);
        if capacity > SLOTS_MAX {
            return Err(Failure::Run(format!(
                "{capacity} blocks do not fit the floor's array: lower the batch"
            )));
        }
        let arrays = demand.cpus.iter().map(|cpu| cpu.index()).max().unwrap_or(0) + 1;
        let bytes = arrays << STRIDE_SHIFT;
        let floor = FloorRseq { arrays: map(bytes)?, bytes, capacity: capacity as u32, offset };
        for cpu in &demand.cpus {
            // SAFETY: inside the mapping, which nobody else knows yet.
            unsafe {
                let array = floor.arrays.as_ptr().add(cpu.index() << STRIDE_SHIFT);
                array.add(SLOTS_AT).write_bytes(0, capacity * size_of::<u32>());
                array.cast::<u32>().write(floor.capacity / 2);
            }
        }
        Ok(floor)
    }
}

/// Address space that becomes zeroed memory when it is touched.
fn map(bytes: usize) -> Result<NonNull<u8>, Failure> {
    use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
    let (prot, flags) =
        (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::NORESERVE);
    // SAFETY: a new mapping, at an address of the kernel's choice.
    let mapped = unsafe { mmap_anonymous(std::ptr::null_mut(), bytes, prot, flags) };
    let mapped = mapped
        .map_err(|e| Failure::Run(format!("cannot map {bytes} bytes: {e}; raise `ulimit -v`")))?;
    Ok(NonNull::new(mapped.cast()).expect("the kernel never maps address 0"))
}

impl Drop for FloorRseq {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, and no reference into it outlives self. An error would leave the
        // mapping, which does no harm.
        let _ = unsafe { rustix::mm::munmap(self.arrays.as_ptr().cast(), self.bytes) };
    }
}

/// A sequence: the given instructions between entry and commit. `{t}` holds the address of this
/// CPU's array when they begin.
#[cfg(target_arch = "x86_64")]
macro_rules! sequence {
    ($($instruction:literal),* ; $($operands:tt)*) => {
        std::arch::asm!(
            "20:",
            ".pushsection __rseq_cs, \"aw\", @progbits",
            ".balign 32",
            // struct rseq_cs: version, flags, start, bytes to the commit, where to restart.
            "21: .long 0, 0",
            ".quad 22f, 23f - 22f, 24f",
            ".popsection",
            "lea {t}, [rip + 21b]",
            "mov qword ptr fs:[{rseq} + {RSEQ_CS}], {t}",
            "22:",
            "mov {t:e}, dword ptr fs:[{rseq} + {CPU_ID}]",
            "shl {t}, {STRIDE_SHIFT}",
            "add {t}, {arrays}",
            $($instruction,)*
            "23:",
            ".pushsection .text.unlikely, \"ax\", @progbits",
            // glibc's RSEQ_SIG stands before the address to restart at, inside an undefined
            // instruction (ud1), so that disassemblers stay in step.
            ".byte 0x0f, 0xb9, 0x3d",
            ".long 0x53053053",
            "24: jmp 20b",
            ".popsection",
            RSEQ_CS = const rseq::field::RSEQ_CS,
            CPU_ID = const rseq::field::CPU_ID,
            STRIDE_SHIFT = const STRIDE_SHIFT,
            t = out(reg) _,
            $($operands)*
            options(nostack),
        )
    };
}

#[cfg(target_arch = "x86_64")]
impl FloorRseq {
    #[inline]
    fn pop(&self) -> Option<u32> {
        let (left, frame): (u32, u32);
        // SAFETY: the thread is pinned to a CPU of the demand, so `t` points to its array, of which
        // the count never exceeds the capacity. If the count is 0, `frame` stays as it was: it is
        // an undefined number, but not read.
        unsafe {
            sequence!(
                "mov {left:e}, dword ptr [{t}]",
                "sub {left:e}, 1",
                "jb 23f",
                "mov {frame:e}, dword ptr [{t} + 4*{left:r} + {SLOTS_AT}]",
                "mov dword ptr [{t}], {left:e}";
                SLOTS_AT = const SLOTS_AT,
                rseq = in(reg) self.offset,
                arrays = in(reg) self.arrays.as_ptr(),
                left = out(reg) left,
                frame = out(reg) frame,
            );
        }
        (left != u32::MAX).then_some(frame)
    }

    #[inline]
    fn push(&self, frame: u32) -> bool {
        // SAFETY: as in `pop`; the slot is below the capacity.
        unsafe {
            sequence!(
                "mov {count:e}, dword ptr [{t}]",
                "cmp {count:e}, {capacity:e}",
                "jae {full}",
                "mov dword ptr [{t} + 4*{count:r} + {SLOTS_AT}], {frame:e}",
                "inc {count:e}",
                "mov dword ptr [{t}], {count:e}";
                SLOTS_AT = const SLOTS_AT,
                rseq = in(reg) self.offset,
                arrays = in(reg) self.arrays.as_ptr(),
                frame = in(reg) frame,
                capacity = in(reg) self.capacity,
                count = out(reg) _,
                full = label { return false },
            );
        }
        true
    }

    /// Says that this CPU's array holds `count` frames.
    #[cold]
    #[inline(never)]
    fn set_count(&self, count: u32) {
        // SAFETY: as in `pop`.
        unsafe {
            sequence!(
                "mov dword ptr [{t}], {count:e}";
                rseq = in(reg) self.offset,
                arrays = in(reg) self.arrays.as_ptr(),
                count = in(reg) count,
            );
        }
    }
}

/// Never made there: see [`rseq::missing`].
#[cfg(not(target_arch = "x86_64"))]
impl FloorRseq {
    fn pop(&self) -> Option<u32> {
        unreachable!("new failed")
    }

    fn push(&self, _frame: u32) -> bool {
        unreachable!("new failed")
    }

    fn set_count(&self, _count: u32) {}
}

impl Subject for FloorRseq {
    const DESIGN: Design = Design::FloorRseq;
    type Block = u32;

    #[inline]
    fn alloc<const ORDER: u32>(&self) -> Option<u32> {
        match self.pop() {
            Some(frame) => Some(frame),
            None => {
                self.set_count(super::floor_spin::REFILL_FRAMES as u32);
                self.pop()
            }
        }
    }

    #[inline]
    fn free<const ORDER: u32>(&self, block: u32) {
        if !self.push(block) {
            self.set_count(self.capacity - super::floor_spin::REFILL_FRAMES as u32);
            self.push(block);
        }
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use pagedepot::CpuId;

    use super::*;
    use crate::harness::cpus;

    #[test]
    fn frames_come_back_last_in_first_out_and_both_ends_hold() {
        std::thread::spawn(|| {
            let cpu: CpuId = cpus::usable().unwrap()[0];
            cpus::pin(cpu);
            let demand = Demand {
                blocks_per_cpu: 1,
                frames_per_block: 1,
                cpus: vec![cpu],
                ..Default::default()
            };
            let Ok(floor) = FloorRseq::new(&demand) else { return };
            floor.set_count(0);
            assert_eq!(floor.pop(), None);
            for frame in 1..=floor.capacity {
                assert!(floor.push(frame));
            }
            assert!(!floor.push(0));
            for frame in (1..=floor.capacity).rev() {
                assert_eq!(floor.pop(), Some(frame));
            }
            assert_eq!(floor.pop(), None);
        })
        .join()
        .unwrap();
    }
}
