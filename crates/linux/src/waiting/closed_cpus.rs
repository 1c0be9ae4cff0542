//! The CPUs whose caches were taken away for requests that wait.

use pagedepot::{Allocator, CpuId};

use crate::cpus::linux::LinuxCpus;

/// The CPUs without caches while requests wait.
#[derive(Default)]
pub(crate) struct ClosedCpus {
    cpus: Vec<CpuId>,
    /// CPUs that could not be fenced: sequences that began before may still commit.
    unfenced: Vec<CpuId>,
}

impl ClosedCpus {
    /// Takes the caches of all CPUs away that have any. `false`: of some CPU they could not be.
    pub fn close(&mut self, frames: &Allocator<'_, LinuxCpus<'_>>) -> bool {
        let caches = frames.cpu_caches();
        let mut are_closed = true;
        for cpu in (0..frames.cpu_count()).map(CpuId::new) {
            if !caches.are_enabled(cpu) && !self.unfenced.contains(&cpu) {
                continue;
            }
            // Noted first, for a panic: `open` leaves a CPU alone whose caches were not taken away.
            if !self.cpus.contains(&cpu) {
                self.cpus.push(cpu);
            }
            let is_closed = caches.retire(cpu).busy_cpus == 0;
            are_closed &= is_closed;
            // A gate that another drainer holds is as it was.
            if !caches.are_enabled(cpu) {
                self.unfenced.retain(|&other| other != cpu);
                self.unfenced.extend((!is_closed).then_some(cpu));
            }
        }
        are_closed
    }

    /// Gives them back.
    pub fn open(&mut self, frames: &Allocator<'_, LinuxCpus<'_>>) {
        let caches = frames.cpu_caches();
        self.unfenced.clear();
        self.cpus.drain(..).for_each(|cpu| _ = caches.restore(cpu));
    }
}
