//! The calls that designs make to the simulated machine: see `host.rs` for a real one.

use pagedepot::CpuId;

/// Moves this task to a CPU, which makes that CPU's own task wait, runs `work`, and moves back.
/// `None`: there is no such CPU.
pub fn on_cpu<R>(cpu: CpuId, work: impl FnOnce() -> R) -> Option<R> {
    pagedepot_sim_machine::on_cpu(cpu.index(), work)
}

/// Whether the machine has isolated CPUs: none.
pub fn has_nohz_full() -> bool {
    false
}

/// Pages of the last-level cache that each CPU has for itself: 4 MiB.
pub fn cache_slice_pages(_: CpuId) -> Option<u64> {
    Some(1024)
}
