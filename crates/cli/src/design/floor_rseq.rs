//! A restartable sequence on a per-CPU array: as fast as frames can be had per CPU. It reads the
//! CPU's number, the array's count and a slot, stores the count, and does nothing else.
//!
//! An aborted sequence tries again at once: see [`pagedepot_rseq::sequence!`] for how the kernel
//! sees it (and `Documentation/core-api/rseq.rst`).

use std::ptr::NonNull;

use pagedepot_rseq::{Area, RseqMissing};

use super::allocator::Allocator;
use super::demand::Demand;
use super::floor_spin;
use crate::failure::Failure;
use crate::names::Design;

/// log2 of the bytes between the arrays of two CPUs: a constant, so that the address is a shift.
/// Address space, of which only what is used becomes memory.
const STRIDE_SHIFT: usize = 24;
/// Bytes before an array's first slot: its count has a line of its own.
const SLOTS_AT: usize = 64;
/// Slots of an array.
const SLOTS_MAX: usize = ((1 << STRIDE_SHIFT) - SLOTS_AT) / size_of::<u32>();

/// A CPU's array behind bare restartable sequences.
pub struct FloorRseq {
    arrays: NonNull<u8>,
    bytes: usize,
    capacity: u32,
    area: Area,
}

// SAFETY: slots and counts are touched in sequences of the CPU they belong to only.
unsafe impl Send for FloorRseq {}
// SAFETY: as above.
unsafe impl Sync for FloorRseq {}

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

/// A sequence that begins with the address of this CPU's array in `{at}`, and tries again when it
/// is aborted.
#[cfg(target_arch = "x86_64")]
macro_rules! array_sequence {
    ($floor:expr; $($instruction:literal),*; $($operands:tt)*) => {
        pagedepot_rseq::sequence!(
            $floor.area;
            body: "mov {at:e}, dword ptr fs:[{area} + {CPU_ID}]",
            "shl {at}, {STRIDE_SHIFT}",
            "add {at}, {arrays}",
            $($instruction),*;
            aborted: "jmp 7b";
            STRIDE_SHIFT = const STRIDE_SHIFT,
            arrays = in(reg) $floor.arrays.as_ptr(),
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
        // SAFETY: the thread is pinned to a CPU of the demand, so `at` points to its array, of
        // which the count never exceeds the capacity. If the count is 0, `frame` stays as it was:
        // it is an undefined number, but not read. A program's code stays loaded.
        unsafe {
            array_sequence!(
                self;
                "mov {left:e}, dword ptr [{at}]",
                "sub {left:e}, 1",
                "jb 3f",
                "mov {frame:e}, dword ptr [{at} + 4*{left:r} + {SLOTS_AT}]",
                "mov dword ptr [{at}], {left:e}";
                SLOTS_AT = const SLOTS_AT,
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
            array_sequence!(
                self;
                "mov {count:e}, dword ptr [{at}]",
                "cmp {count:e}, {capacity:e}",
                "jae {full}",
                "mov dword ptr [{at} + 4*{count:r} + {SLOTS_AT}], {frame:e}",
                "inc {count:e}",
                "mov dword ptr [{at}], {count:e}";
                SLOTS_AT = const SLOTS_AT,
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
            array_sequence!(
                self;
                "mov dword ptr [{at}], {count:e}";
                count = in(reg) count,
            );
        }
    }
}

/// A sequence that begins with the address of the first slot of this CPU's array in `{at}`, and
/// tries again when it is aborted.
#[cfg(target_arch = "aarch64")]
macro_rules! array_sequence {
    ($floor:expr; $($instruction:literal),*; $($operands:tt)*) => {
        pagedepot_rseq::sequence!(
            $floor.area;
            body: "ldr {at:w}, [{area}, {CPU_ID}]",
            "add {at}, {slots}, {at}, lsl {STRIDE_SHIFT}",
            $($instruction),*;
            aborted: "b 7b";
            STRIDE_SHIFT = const STRIDE_SHIFT,
            SLOTS_AT = const SLOTS_AT,
            slots = in(reg) $floor.arrays.as_ptr().wrapping_add(SLOTS_AT),
            $($operands)*
            options(nostack),
        )
    };
}

#[cfg(target_arch = "aarch64")]
impl FloorRseq {
    #[inline]
    fn pop(&self) -> Option<u32> {
        let (left, frame): (u32, u32);
        // SAFETY: as on x86-64.
        unsafe {
            array_sequence!(
                self;
                "ldr {left:w}, [{at}, -{SLOTS_AT}]",
                "subs {left:w}, {left:w}, 1",
                "b.lo 3f",
                "ldr {frame:w}, [{at}, {left:w}, uxtw 2]",
                "str {left:w}, [{at}, -{SLOTS_AT}]";
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
            array_sequence!(
                self;
                "ldr {count:w}, [{at}, -{SLOTS_AT}]",
                "cmp {count:w}, {capacity:w}",
                "b.hs {full}",
                "str {frame:w}, [{at}, {count:w}, uxtw 2]",
                "add {count:w}, {count:w}, 1",
                "str {count:w}, [{at}, -{SLOTS_AT}]";
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
            array_sequence!(
                self;
                "str {count:w}, [{at}, -{SLOTS_AT}]";
                count = in(reg) count,
            );
        }
    }
}

/// Never made there: there is no [`Area`].
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
impl FloorRseq {
    fn pop(&self) -> Option<u32> {
        unreachable!("new failed")
    }

    fn push(&self, _frame: u32) -> bool {
        unreachable!("new failed")
    }

    fn set_count(&self, _count: u32) {}
}

impl Allocator for FloorRseq {
    const DESIGN: Design = Design::FloorRseq;
    type Block = u32;

    /// # Errors
    /// Without restartable sequences, without address space, or for more blocks than fit an array.
    fn new(demand: &Demand) -> Result<Self, Failure> {
        let area = Area::find().ok_or_else(|| {
            let why = RseqMissing::find().map_or_else(String::new, |why| why.to_string());
            Failure::Usage(why)
        })?;
        let capacity = floor_spin::capacity(demand);
        if capacity > SLOTS_MAX {
            return Err(Failure::Run(format!(
                "{capacity} blocks do not fit the floor's array: lower the batch"
            )));
        }
        let arrays = demand.cpus.iter().map(|cpu| cpu.index()).max().unwrap_or(0) + 1;
        let bytes = arrays << STRIDE_SHIFT;
        let floor = FloorRseq { arrays: map(bytes)?, bytes, capacity: capacity as u32, area };
        for cpu in &demand.cpus {
            // SAFETY: inside the mapping, which no other thread knows yet.
            unsafe {
                let array = floor.arrays.as_ptr().add(cpu.index() << STRIDE_SHIFT);
                array.add(SLOTS_AT).write_bytes(0, capacity * size_of::<u32>());
                array.cast::<u32>().write(floor.capacity / 2);
            }
        }
        Ok(floor)
    }

    #[inline]
    fn alloc<const ORDER: u32>(&self) -> Option<u32> {
        match self.pop() {
            Some(frame) => Some(frame),
            None => {
                self.set_count(floor_spin::REFILL_FRAMES as u32);
                self.pop()
            }
        }
    }

    #[inline]
    fn free<const ORDER: u32>(&self, block: u32) {
        if !self.push(block) {
            self.set_count(self.capacity - floor_spin::REFILL_FRAMES as u32);
            self.push(block);
        }
    }
}

#[cfg(all(test, any(target_arch = "x86_64", target_arch = "aarch64")))]
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
