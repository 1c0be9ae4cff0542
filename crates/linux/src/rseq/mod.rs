//! Restartable sequences: short pieces of code that the kernel restarts when it takes the CPU away
//! in the middle, so that plain loads and stores exclude everybody else on the CPU.
//!
//! # Registration
//! A thread has one rseq area, and glibc (2.35 and later) registers it. We use that one and write
//! nothing of it but `rseq_cs`: programs that register their own, or use fields outside the ABI,
//! break each other (tcmalloc issues 144 and 292). Where glibc did not register, nothing here is
//! used: see [`Area::find`].
//!
//! A static program (`-C target-feature=+crt-static`) has no dynamic symbols to look up; the linker
//! resolves weak ones instead.
//!
//! # Threads without a registration of their own
//! A thread of a bare `clone` that has thread-local storage of its own has an area that the kernel
//! never wrote: its `cpu_id` is negative, each sequence looks, and the thread uses the store.
//!
//! A child of `vfork`, and of a `clone` that shares memory *and* the thread pointer, is different.
//! It runs with its parent thread's area, whose `cpu_id` is that of the moment of the `vfork`,
//! while the kernel has no registration for the child (`rseq_fork` in `include/linux/rseq.h`). It
//! restarts none of the child's sequences, so one could commit beside another thread's on the same
//! CPU. Nothing here can tell such a child from its parent's thread. It must use nothing of this
//! crate, which is what POSIX says of `vfork` anyway; safe code cannot make one.
//!
//! # Another architecture
//! is one more file beside `x86_64.rs` with the same functions, and one more line in the selection
//! of `arch` below. Until then it takes the lock front.
//!
//! # Unloading
//! A thread's `rseq_cs` goes on pointing to the descriptor of its last sequence, and the kernel
//! kills a thread whose descriptor it cannot read. So a shared object that contains sequences must
//! stay mapped: [`stay_loaded`](pin::stay_loaded) sees to it before the first is run.

#[cfg(all(target_arch = "x86_64", target_pointer_width = "64"))]
#[path = "x86_64.rs"]
mod arch;
#[cfg(not(all(target_arch = "x86_64", target_pointer_width = "64")))]
#[path = "none.rs"]
mod arch;
mod pin;

#[cfg(not(all(target_feature = "crt-static", target_arch = "x86_64", target_env = "gnu")))]
use core::ffi::{CStr, c_void};
use core::num::NonZeroIsize;

pub(crate) use arch::{compare_store, cpu_id, pop, push};
pub use missing::RseqMissing;
pub(crate) use pin::stay_loaded;

mod missing;
#[cfg(test)]
mod tests;

/// What `pop` returns for "look closer". No frame has this number: ranges end at 2^32 at most, and
/// an allocator's last section is never complete there.
pub(crate) const NO_FRAME: u64 = u64::MAX;

/// Bytes of the area that we use: `cpu_id_start`, `cpu_id`, `rseq_cs`.
const BYTES_USED: u32 = 16;

/// The address of a symbol of the program, if it has that.
#[cfg(not(all(target_feature = "crt-static", target_arch = "x86_64", target_env = "gnu")))]
macro_rules! symbol {
    ($name:literal) => {
        symbol(
            CStr::from_bytes_with_nul(concat!($name, "\0").as_bytes()).expect("one 0, at the end"),
        )
    };
}

/// As above, in a static program: the linker writes 0 for a weak symbol that no object defines.
#[cfg(all(target_feature = "crt-static", target_arch = "x86_64", target_env = "gnu"))]
macro_rules! symbol {
    ($name:literal) => {{
        let address: *const core::ffi::c_void;
        // SAFETY: reads what the linker wrote, and changes nothing.
        unsafe {
            core::arch::asm!(
                concat!(".weak ", $name),
                concat!("mov {address}, qword ptr [rip + ", $name, "@GOTPCREL]"),
                address = out(reg) address,
                options(nostack, readonly, preserves_flags),
            );
        }
        (!address.is_null()).then_some(address)
    }};
}

/// Whether the C library is one that registers areas, if it is told to.
fn knows_rseq() -> bool {
    symbol!("__rseq_size").is_some()
}

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
    /// For threads that have no registration of their own, see the module.
    pub fn find() -> Option<Self> {
        if !arch::HAS_SEQUENCES {
            return None;
        }
        let (size, offset) = (symbol!("__rseq_size")?, symbol!("__rseq_offset")?);
        // SAFETY: glibc defines `__rseq_size` as an unsigned int and `__rseq_offset` as a
        // ptrdiff_t (sys/rseq.h), both constant once the program runs.
        let (size, offset) = unsafe { (size.cast::<u32>().read(), offset.cast::<isize>().read()) };
        let area = Area { offset: NonZeroIsize::new(offset)? };
        // Size 0: not registered. glibc before 2.40 says 32 for the original 20 bytes, later ones
        // say how much the kernel fills in; we use no more than 16.
        let usable = size >= BYTES_USED && cpu_id(area) < u32::MAX / 2;
        usable.then_some(area)
    }

    /// Bytes from the thread pointer.
    #[cfg_attr(not(all(target_arch = "x86_64", target_pointer_width = "64")), expect(dead_code))]
    pub fn offset(self) -> isize {
        self.offset.get()
    }
}

/// A symbol of the running program, looked up so that programs also start where it is missing.
#[cfg(not(all(target_feature = "crt-static", target_arch = "x86_64", target_env = "gnu")))]
fn symbol(name: &CStr) -> Option<*const c_void> {
    // SAFETY: the name is a C string; RTLD_DEFAULT asks for the first match in load order.
    let address = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    (!address.is_null()).then_some(address.cast_const())
}
