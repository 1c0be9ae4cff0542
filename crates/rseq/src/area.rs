//! Finds the threads' areas that glibc registered, looked up so that programs also start where
//! glibc registered none.
//!
//! A static program (`-C target-feature=+crt-static`) has no dynamic symbols to look up; the linker
//! resolves weak ones instead.

#[cfg(not(all(
    target_feature = "crt-static",
    target_env = "gnu",
    any(target_arch = "x86_64", target_arch = "aarch64")
)))]
use core::ffi::{CStr, c_void};
use core::num::NonZeroIsize;
use core::sync::atomic::{AtomicIsize, Ordering};

use pagedepot::CpuId;

use crate::arch;

/// Bytes of the area that sequences use: `cpu_id_start`, `cpu_id`, `rseq_cs`.
const BYTES_USED: u32 = 16;

/// The address of a symbol of the program; `None` if no object defines it.
#[cfg(not(all(
    target_feature = "crt-static",
    target_env = "gnu",
    any(target_arch = "x86_64", target_arch = "aarch64")
)))]
macro_rules! symbol {
    ($name:literal) => {
        symbol(
            CStr::from_bytes_with_nul(concat!($name, "\0").as_bytes()).expect("one 0, at the end"),
        )
    };
}

/// Finds the symbol in a static program: the linker writes 0 for a weak symbol that no object
/// defines.
#[cfg(all(
    target_feature = "crt-static",
    target_env = "gnu",
    any(target_arch = "x86_64", target_arch = "aarch64")
))]
macro_rules! symbol {
    ($name:literal) => {{
        let address: *const core::ffi::c_void;
        // SAFETY: reads what the linker wrote, and changes nothing.
        unsafe {
            #[cfg(target_arch = "x86_64")]
            core::arch::asm!(
                concat!(".weak ", $name),
                concat!("mov {address}, qword ptr [rip + ", $name, "@GOTPCREL]"),
                address = out(reg) address,
                options(nostack, readonly, preserves_flags),
            );
            #[cfg(target_arch = "aarch64")]
            core::arch::asm!(
                concat!(".weak ", $name),
                concat!("adrp {address}, :got:", $name),
                concat!("ldr {address}, [{address}, :got_lo12:", $name, "]"),
                address = out(reg) address,
                options(nostack, readonly, preserves_flags),
            );
        }
        (!address.is_null()).then_some(address)
    }};
}

/// Whether the C library is one that registers areas, unless it is told not to.
pub(crate) fn knows_rseq() -> bool {
    symbol!("__rseq_size").is_some()
}

/// The place where glibc keeps each thread's area: one offset from the thread pointer for all
/// threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Area {
    /// Offset of the areas, not 0: the thread pointer itself points to glibc's own data, never to
    /// the area.
    offset: NonZeroIsize,
}

impl Area {
    /// The registered area. `None` when there is none: another libc or an old one,
    /// `GLIBC_TUNABLES=glibc.pthread.rseq=0`, a kernel or sandbox without rseq, a kernel that
    /// restarts no sequence, or an architecture without sequences here.
    /// [`RseqMissing::find`](crate::RseqMissing::find) says which.
    ///
    /// On AArch64 under Linux 6.19 to 7.1, or a release that is not known, the first call tries
    /// whether the kernel restarts sequences, with up to two threads of its own, one after the
    /// other, and two calls of `membarrier` for each. Where that cannot be tried there is no area,
    /// and the next call tries again.
    ///
    /// Other threads may lack a registration of their own all the same: see the
    /// [crate](crate#threads-without-a-registration-of-their-own).
    pub fn find() -> Option<Self> {
        Self::registered().filter(|&area| arch::are_restarted(area) == Some(true))
    }

    /// The registered area, whether or not the kernel restarts sequences.
    pub(crate) fn registered() -> Option<Self> {
        if !arch::HAS_SEQUENCES {
            return None;
        }
        let (size, offset) = (symbol!("__rseq_size")?, symbol!("__rseq_offset")?);
        // SAFETY: glibc defines `__rseq_size` as an unsigned int and `__rseq_offset` as a
        // ptrdiff_t (sys/rseq.h), both constant once the program runs.
        let (size, offset) = unsafe { (size.cast::<u32>().read(), offset.cast::<isize>().read()) };
        let area = Area { offset: NonZeroIsize::new(offset)? };
        // Size 0: not registered. glibc before 2.40 says 32 for the original 20 bytes, later ones
        // say how much the kernel fills in; sequences use no more than 16.
        let usable = size >= BYTES_USED && area.cpu_id() < UNREGISTERED;
        usable.then_some(area)
    }

    /// Bytes from the thread pointer to the area.
    #[inline]
    pub fn offset(self) -> isize {
        self.offset.get()
    }

    /// The CPU that this thread runs on, or a number above 2^31 when the thread has no registration
    /// of its own. Stale as soon as it is read, except in a sequence.
    #[inline]
    pub fn cpu_id(self) -> u32 {
        arch::cpu_id(self)
    }
}

/// The CPU that this thread runs on: a hint, stale as soon as it is read.
///
/// One load from the thread's area if the program has them, whether or not the kernel restarts
/// sequences. Asking the kernel takes 10 ns where its vDSO answers, and a system call on AArch64. A
/// thread without a registration of its own asks it all the same.
///
/// The first call of a process looks for symbols (`dlsym`), which is not for signal handlers.
#[inline]
pub fn current_cpu() -> CpuId {
    /// The area's offset; 0 if there is none.
    static AREA: AtomicIsize = AtomicIsize::new(UNKNOWN);
    const UNKNOWN: isize = isize::MAX;

    #[cold]
    fn find() -> isize {
        let offset = Area::registered().map_or(0, Area::offset);
        // Relaxed, here and below: every thread finds the same, and nothing else depends on it.
        AREA.store(offset, Ordering::Relaxed);
        offset
    }

    let offset = match AREA.load(Ordering::Relaxed) {
        UNKNOWN => find(),
        offset => offset,
    };
    let cpu = match NonZeroIsize::new(offset) {
        Some(offset) => Area { offset }.cpu_id(),
        None => UNREGISTERED,
    };
    CpuId::new(if cpu < UNREGISTERED { cpu } else { ask_kernel() })
}

/// The numbers from here on are no CPU's: an area's without a registration.
const UNREGISTERED: u32 = 1 << 31;

#[cold]
fn ask_kernel() -> u32 {
    rustix::thread::sched_getcpu() as u32
}

/// A symbol of the running program.
#[cfg(not(all(
    target_feature = "crt-static",
    target_env = "gnu",
    any(target_arch = "x86_64", target_arch = "aarch64")
)))]
fn symbol(name: &CStr) -> Option<*const c_void> {
    // SAFETY: the name is a C string; RTLD_DEFAULT asks for the first match in load order.
    let address = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    (!address.is_null()).then_some(address.cast_const())
}

#[cfg(all(test, any(target_arch = "x86_64", target_arch = "aarch64")))]
pub(crate) mod tests {
    use core::arch::asm;

    use super::*;
    use crate::skip::skip;

    /// Takes back this thread's registration, of whatever length glibc gave it.
    pub fn unregister(area: Area) -> bool {
        /// Flag of the system call that does so, and glibc's signature.
        const UNREGISTER: libc::c_int = 1;
        const SIGNATURE: u32 = if cfg!(target_arch = "x86_64") { 0x5305_3053 } else { 0xd428_bc00 };
        let pointer: usize;
        // SAFETY: reads a register, or the word that has the thread's pointer (psABI).
        unsafe {
            #[cfg(target_arch = "x86_64")]
            asm!("mov {}, qword ptr fs:[0]", out(reg) pointer, options(nostack, readonly));
            #[cfg(target_arch = "aarch64")]
            asm!("mrs {}, tpidr_el0", out(reg) pointer, options(nostack, nomem));
        }
        let at = pointer.wrapping_add_signed(area.offset());
        (32_u32..=256).step_by(4).any(|bytes| {
            // SAFETY: the kernel declines another length than the registered one, and writes to the
            // area alone.
            unsafe { libc::syscall(libc::SYS_rseq, at, bytes, UNREGISTER, SIGNATURE) == 0 }
        })
    }

    #[test]
    fn a_thread_without_a_registration_asks_for_its_cpu() {
        let Some(area) = Area::find() else {
            return skip("no rseq registration");
        };
        std::thread::spawn(move || {
            if !unregister(area) {
                return skip("the registration stays");
            }
            assert!(area.cpu_id() >= UNREGISTERED);
            for cpu in crate::affinity::allowed().unwrap().iter() {
                crate::affinity::pin(cpu).unwrap();
                assert_eq!(current_cpu(), cpu);
            }
        })
        .join()
        .unwrap();
    }

    #[test]
    fn the_area_is_the_same_for_all_threads_and_names_their_cpu() {
        let Some(area) = Area::find() else {
            return skip("no rseq registration");
        };
        std::thread::spawn(move || {
            assert_eq!(Area::find(), Some(area));
            for cpu in crate::affinity::allowed().unwrap().iter() {
                crate::affinity::pin(cpu).unwrap();
                assert_eq!((area.cpu_id(), current_cpu()), (cpu.get(), cpu));
            }
        })
        .join()
        .unwrap();
    }
}
