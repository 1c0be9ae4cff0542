//! Restartable sequences on Linux: per-CPU data without atomic instructions.
//!
//! # Vocabulary
//! | word | meaning |
//! |---|---|
//! | sequence | a few instructions that end in one store, the *commit*; the kernel restarts them when the thread loses its CPU before the commit |
//! | abort | what the kernel does to a sequence: the thread continues at the sequence's abort label |
//! | [`Area`] | a thread's `struct rseq`, shared with the kernel: the CPU's number, and the address of the current descriptor |
//! | descriptor | `struct rseq_cs`: where a sequence starts, where it commits, where it aborts to |
//! | registration | telling the kernel where a thread's area is; glibc 2.35 and later do it for every thread |
//! | fence | `membarrier` with a CPU's number: aborts the sequence that runs there ([`membarrier`]) |
//!
//! # What a program does with it
//! 1. [`Area::find`] returns the area, or `None`; [`RseqMissing::find`] then says why and what to
//!    do.
//! 2. [`keep_loaded`] keeps the shared object with the sequences from being unloaded.
//! 3. [`membarrier::register`] allows fences, while the process still has one thread.
//! 4. [`sequence!`] writes a sequence, on x86-64 and AArch64.
//!
//! Each protocol writes its own sequences beside its own argument: the fronts of a depot in
//! `pagedepot-linux`, the local locks of `pagedepot-designs`, the floor of `pagedepot-lab`.
//!
//! # Registration
//! A thread has one area, and glibc registers it. This crate uses that one and writes nothing of it
//! but `rseq_cs`: programs that register their own, or use fields outside the ABI, break each other
//! (tcmalloc issues 144 and 292). Without glibc's registration there is no [`Area`].
//!
//! # What is read and written of an area
//! | field | here | kernels from 6.19 |
//! |---|---|---|
//! | `cpu_id` | read | write it when the CPU changes; in a registration of more than 32 bytes (7.1 and 7.0.10), and with `rseq_debug=1` in every one, they kill a process that wrote it |
//! | `rseq_cs` | written at the start of each sequence, never cleared | clear it when they interrupt the thread elsewhere; with `rseq_debug=1` they check the whole descriptor |
//! | `cpu_id_start`, `node_id`, `mm_cid`, `flags`, `slice_ctrl` | neither read nor written | check them as `cpu_id` |
//!
//! With `rseq_debug=1` the kernel checks of a descriptor that version and flags are 0, that the
//! sequence and the abort label lie in user space, the label outside the sequence and behind the
//! signature, and that no sequence makes a system call. `cargo xtask guest --arch aarch64
//! --newest` runs all tests of sequences on the newest kernel with that word, and with glibc's
//! registration as well as without.
//!
//! Linux for AArch64 from 6.19 to 7.0.13 may restart no sequence at all, whatever interrupts it.
//! Where the release is not known to be sound, [`Area::find`] tries it, with a thread that waits in
//! a sequence until it is fenced, and returns `None` if that one goes on
//! ([`RseqMissing::NotRestarted`]). Where it could not be tried, twice in a row, there is no area
//! either ([`RseqMissing::Untried`]), and the next look tries again.
//!
//! # Threads without a registration of their own
//! A thread for which a registration was refused has an area whose `cpu_id` is negative; a sequence
//! must compare it or index by it in a way that stays harmless.
//!
//! A thread of a bare `clone` that has thread-local storage of its own has an area that the kernel
//! never wrote. glibc keeps it in memory that `_dl_allocate_tls` zeroes, so `cpu_id` may name CPU 0
//! there. Code that makes such a thread, which is unsafe, registers the area, or stores -1 to
//! `cpu_id`, before it runs a sequence. Else what is said of `vfork` below holds for it, too.
//!
//! A child of `vfork`, and of a `clone` that shares memory *and* the thread pointer, is different.
//! It runs with its parent thread's area, whose `cpu_id` is that of the moment of the `vfork`,
//! while the kernel has no registration for the child (`rseq_fork` in `include/linux/rseq.h`). The
//! kernel restarts none of the child's sequences, so one could commit beside another thread's on
//! the same CPU. Nothing here can tell such a child from its parent's thread. It must run no
//! sequence, which is what POSIX says of `vfork` anyway; safe code cannot make one.
//!
//! # Unloading
//! A thread's `rseq_cs` goes on pointing to the descriptor of its last sequence, and the kernel
//! kills a thread whose descriptor it cannot read. So a shared object that contains sequences must
//! stay mapped: call [`keep_loaded`] before the first one runs.
//!
//! # Another architecture
//! It needs one more file beside `x86_64.rs` and `aarch64.rs` with [`Area::cpu_id`]'s load and its
//! own [`sequence!`], one more line in the selection of `arch` below, and the sequences of each
//! crate that has some. Until then [`Area::find`] returns `None` there, as it does on big-endian
//! AArch64.

#[cfg(not(all(target_os = "linux", target_pointer_width = "64")))]
compile_error!(
    "pagedepot-rseq supports 64-bit Linux: restartable sequences on x86-64 and AArch64, and \
     none on other processors. On other systems use the crate `pagedepot` with `cpus::LockedCpus`"
);

pub mod affinity;
#[cfg(all(target_arch = "aarch64", target_endian = "little"))]
#[path = "aarch64.rs"]
mod arch;
#[cfg(target_arch = "x86_64")]
#[path = "x86_64.rs"]
mod arch;
#[cfg(not(any(target_arch = "x86_64", all(target_arch = "aarch64", target_endian = "little"))))]
#[path = "none.rs"]
mod arch;
mod area;
mod cpu_set;
mod loaded;
pub mod membarrier;
mod missing;
#[cfg(all(target_arch = "aarch64", target_endian = "little"))]
mod restarts;
#[cfg(test)]
#[path = "../../core/tests/common/skip.rs"]
mod skip;

pub use area::{Area, current_cpu};
pub use cpu_set::{CpuListError, CpuSet};
pub use loaded::keep_loaded;
pub use missing::RseqMissing;

pub use pagedepot::CpuId;

/// Offsets in `struct rseq` (`linux/rseq.h`) of the fields that sequences use.
pub mod field {
    /// `cpu_id`: the CPU that the thread runs on; negative without a registration.
    pub const CPU_ID: usize = 4;
    /// `rseq_cs`: the address of the descriptor of the thread's last sequence, or 0.
    pub const RSEQ_CS: usize = 8;
}

/// The README's program, as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub struct Readme;
