//! Where glibc registered this thread's `struct rseq` with the kernel.
//!
//! Since glibc 2.35 every thread has one, at a fixed offset from its thread pointer; nobody else
//! may register another (`rseq(2)`; glibc manual, "Restartable Sequences").

use std::sync::OnceLock;
#[cfg(target_arch = "x86_64")]
use std::sync::atomic::{AtomicIsize, Ordering};

use pagedepot_linux::RseqMissing;
use rustix::io::Errno;
use rustix::thread::{MembarrierCommand, membarrier};

/// Offsets of the fields used, from `struct rseq` in `linux/rseq.h`.
#[cfg(target_arch = "x86_64")]
pub mod field {
    /// `cpu_id`: the CPU this thread runs on.
    pub const CPU_ID: usize = 4;
    /// `rseq_cs`: the sequence this thread is in.
    pub const RSEQ_CS: usize = 8;
}

/// Offset of this process's `struct rseq` from the thread pointer.
///
/// # Errors
/// Why there is none, and what to do.
pub fn offset() -> Result<isize, RseqMissing> {
    match missing() {
        Some(why) => Err(why),
        None => Ok(symbol::<isize>(c"__rseq_offset").unwrap_or_default()),
    }
}

/// Why no sequences can run here, and what to do about it.
pub fn missing() -> Option<RseqMissing> {
    static MISSING: OnceLock<Option<RseqMissing>> = OnceLock::new();
    *MISSING.get_or_init(RseqMissing::find)
}

/// Why sequences cannot be fenced here, and what to do about it; `None` also where there are none.
pub fn unfenced() -> Option<String> {
    if missing().is_some() {
        return None;
    }
    let error = membarrier(MembarrierCommand::RegisterPrivateExpeditedRseq).err()?;
    Some(match error {
        Errno::INVAL => {
            "this kernel's membarrier has no fence for them: use Linux 5.10 or later".to_owned()
        }
        Errno::NOSYS => {
            "the kernel does not know membarrier, or a filter (seccomp) hides it: allow it there"
                .to_owned()
        }
        error => format!(
            "a filter refuses membarrier ({error}): allow it in the sandbox's seccomp profile"
        ),
    })
}

/// The CPU this thread runs on: a hint, stale as soon as it is read.
///
/// Read from `struct rseq` if there is one: a load, where asking the kernel's vDSO takes 10 ns.
#[inline]
pub fn current_cpu() -> usize {
    #[cfg(target_arch = "x86_64")]
    {
        // Relaxed: a constant, once it is known; nothing else depends on it.
        let offset = match OFFSET.load(Ordering::Relaxed) {
            UNKNOWN => find_offset(),
            offset => offset,
        };
        if offset != NONE {
            let cpu: u32;
            // SAFETY: glibc registered `struct rseq` of every thread at this offset.
            unsafe {
                std::arch::asm!(
                    "mov {cpu:e}, dword ptr fs:[{offset} + {CPU_ID}]",
                    CPU_ID = const field::CPU_ID,
                    offset = in(reg) offset,
                    cpu = lateout(reg) cpu,
                    options(nostack, preserves_flags, readonly),
                );
            }
            return cpu as usize;
        }
    }
    rustix::thread::sched_getcpu()
}

#[cfg(target_arch = "x86_64")]
static OFFSET: AtomicIsize = AtomicIsize::new(UNKNOWN);
#[cfg(target_arch = "x86_64")]
const UNKNOWN: isize = isize::MAX;
#[cfg(target_arch = "x86_64")]
const NONE: isize = isize::MIN;

#[cfg(target_arch = "x86_64")]
#[cold]
fn find_offset() -> isize {
    let found = offset().unwrap_or(NONE);
    OFFSET.store(found, Ordering::Relaxed);
    found
}

/// The value of a variable of the C library.
fn symbol<T: Copy>(name: &std::ffi::CStr) -> Option<T> {
    // SAFETY: a constant of this call, and a terminated string.
    let address = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    // SAFETY: if the symbol exists, it is glibc's, an initialised constant of this type.
    (!address.is_null()).then(|| unsafe { address.cast::<T>().read() })
}
