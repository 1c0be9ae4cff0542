//! Restartable sequences: short pieces of code that the kernel restarts when it takes the CPU away
//! in the middle, so that plain loads and stores exclude everybody else on the CPU.
//!
//! # Registration
//! A thread has one rseq area, and glibc (2.35 and later) registers it. We use that one and write
//! nothing of it but `rseq_cs`: programs that register their own, or use fields outside the ABI,
//! break each other (tcmalloc issues 144 and 292). Where glibc did not register, nothing here is
//! used: see [`Area::find`].
//!
//! # Another architecture
//! is one more file beside `x86_64.rs` with the same functions, and one more line in the selection
//! of `arch` below. Until then it takes the lock front.
//!
//! # Unloading
//! A thread's `rseq_cs` goes on pointing to the descriptor of its last sequence. A shared library
//! that contains sequences must stay mapped: link it with `-z nodelete`.

#[cfg(all(target_arch = "x86_64", target_pointer_width = "64"))]
#[path = "x86_64.rs"]
mod arch;
#[cfg(not(all(target_arch = "x86_64", target_pointer_width = "64")))]
#[path = "none.rs"]
mod arch;

use core::ffi::{CStr, c_void};
use core::num::NonZeroIsize;

pub(crate) use arch::{compare_store, cpu_id, pop, push};

#[cfg(test)]
mod tests;

/// What `pop` returns for "look closer". No frame has this number: ranges end at 2^32 at most, and
/// an allocator's last section is never complete there.
pub(crate) const NO_FRAME: u64 = u64::MAX;

/// Bytes of the area that we use: `cpu_id_start`, `cpu_id`, `rseq_cs`.
const BYTES_USED: u32 = 16;

/// Where glibc keeps each thread's rseq area, relative to the thread pointer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Area {
    /// From the thread pointer, which itself points to glibc's own data, never to the area.
    offset: NonZeroIsize,
}

impl Area {
    /// The registered area, or `None` when there is none: another libc or an old one,
    /// `GLIBC_TUNABLES=glibc.pthread.rseq=0`, a kernel or sandbox without rseq, or an architecture
    /// that has no sequences here.
    ///
    /// Threads that have no registration of their own (made by a bare `clone`) have a negative
    /// `cpu_id`; each sequence looks.
    pub fn find() -> Option<Self> {
        if !arch::HAS_SEQUENCES {
            return None;
        }
        // SAFETY: glibc defines `__rseq_size` as an unsigned int and `__rseq_offset` as a
        // ptrdiff_t (sys/rseq.h), both constant once the program runs.
        let (size, offset) = unsafe {
            (symbol(c"__rseq_size")?.cast::<u32>().read(), symbol(c"__rseq_offset")?.cast::<isize>().read())
        };
        let area = Area { offset: NonZeroIsize::new(offset)? };
        // Size 0: not registered. glibc before 2.40 says 32 for the original 20 bytes, later ones
        // say how much the kernel fills in; we use no more than 16.
        let usable = size >= BYTES_USED && cpu_id(area) < u32::MAX / 2;
        usable.then_some(area)
    }

    /// Bytes from the thread pointer.
    pub fn offset(self) -> isize {
        self.offset.get()
    }
}

/// A symbol of the running program, looked up so that programs also start where it is missing.
fn symbol(name: &CStr) -> Option<*const c_void> {
    // SAFETY: the name is a C string; RTLD_DEFAULT asks for the first match in load order.
    let address = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    (!address.is_null()).then_some(address.cast_const())
}
