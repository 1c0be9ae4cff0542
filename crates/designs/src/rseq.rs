//! A CPU's lock in user space at the price of plain loads and stores, by a restartable sequence.
//!
//! The kernel's owners switch preemption off. Here, "am I on this CPU, is its lock free, then take
//! it" is one sequence: the kernel restarts it when the thread is preempted, migrated or
//! signalled in the middle, so it is atomic towards everything else that runs on that CPU, without
//! a locked instruction (`tools/testing/selftests/rseq`, percpu lock). Releasing is a plain store.
//!
//! A thread that is preempted while it holds the lock keeps it; others that act as this CPU
//! meanwhile find it held and go past the caches.

use std::sync::atomic::AtomicU32;

/// Where this thread's rseq area lies, relative to the thread pointer: the same for all threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Area(isize);

/// A sequence is tried this often; then the caller goes past the caches. Each retry needs another
/// preemption within a few instructions, or a debugger that steps.
const TRIES: u32 = 3;

/// The area that the C library registered; `None` when there is none: an old library, disabled by
/// `GLIBC_TUNABLES=glibc.pthread.rseq=0`, or an architecture without a sequence here.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
pub(crate) fn area() -> Option<Area> {
    use std::ffi::{CStr, c_char, c_void};

    unsafe extern "C" {
        fn dlsym(handle: *mut c_void, symbol: *const c_char) -> *mut c_void;
    }

    fn symbol<T: Copy>(name: &CStr) -> Option<T> {
        // SAFETY: a lookup by name in the default scope (a null handle).
        let place = unsafe { dlsym(std::ptr::null_mut(), name.as_ptr()) };
        // SAFETY: glibc documents the types of these constants, written before main.
        (!place.is_null()).then(|| unsafe { *place.cast::<T>() })
    }

    // The fields used here end at byte 16. A size of 0 says: not registered.
    let size: u32 = symbol(c"__rseq_size")?;
    (size >= 16).then_some(())?;
    Some(Area(symbol(c"__rseq_offset")?))
}

/// As above.
#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
pub(crate) fn area() -> Option<Area> {
    None
}

/// Makes `state` odd if it is even and this thread runs on `cpu`. `true`: this thread did it.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
#[inline(always)]
pub(crate) fn try_lock(area: Area, state: &AtomicU32, cpu: u32) -> bool {
    for _ in 0..TRIES {
        // SAFETY: `area` came from the C library, so `fs:area` is this thread's registered struct
        // rseq (cpu_id at 4, rseq_cs at 8), and `rseq_cs` points to a descriptor that lives as
        // long as the program. The section reads `state`, a live atomic, and ends in the one
        // store that commits; before it nothing is written. The abort handler is preceded by the
        // signature that glibc registers.
        unsafe {
            std::arch::asm!(
                ".pushsection __rseq_cs, \"aw\"",
                ".balign 32",
                "5:",
                ".long 0, 0",
                ".quad 2f, 3f - 2f, 4f",
                ".popsection",
                "lea {scratch}, [rip + 5b]",
                "mov qword ptr fs:[{area} + 8], {scratch}",
                "2:",
                "cmp dword ptr fs:[{area} + 4], {cpu:e}",
                "jne {miss}",
                "mov {scratch:e}, dword ptr [{state}]",
                "test {scratch:l}, 1",
                "jnz {miss}",
                "inc {scratch:e}",
                "mov dword ptr [{state}], {scratch:e}",
                "3:",
                ".pushsection __rseq_failure, \"ax\"",
                ".byte 0x0f, 0xb9, 0x3d",
                ".long 0x53053053",
                "4:",
                "jmp {abort}",
                ".popsection",
                area = in(reg) area.0,
                cpu = in(reg) cpu,
                state = in(reg) state.as_ptr(),
                scratch = out(reg) _,
                miss = label { return false },
                abort = label { continue },
                options(nostack),
            );
        }
        return true;
    }
    false
}

/// As above: never called, because there is no area.
#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
pub(crate) fn try_lock(area: Area, state: &AtomicU32, cpu: u32) -> bool {
    let _ = (area, state, cpu, TRIES);
    false
}
