//! Workloads whose pages come back where they did not come from, or all at once: the two that the
//! RFC "mm: page_alloc: pcp buddy allocator" (April 2026) names as causes of contention.

use pagedepot::{Order, Pfn};
use pagedepot_sim_machine as machine;

use crate::designs::here;
use crate::workloads::{CpuWork, PageWorker, Window};

/// Pages that a process holds when it exits: 32 MiB.
const HELD: usize = 8192;
/// Pages that a kernel frees by one call.
const GATHERED: usize = 512;
/// CPUs that have one purger.
pub const PURGER_CPUS: usize = 8;
impl PageWorker<'_> {
    /// A process that allocates, waits for the others, and exits; again and again. A batch that is
    /// allocated and one that is freed count for half of its pages each.
    pub(crate) fn exit(&self, cpu: usize, window: &Window, call: u64) -> CpuWork {
        let mut held = Vec::with_capacity(HELD);
        let (mut exits, mut is_exiting) = (0, false);
        let share = window.repeat(|| {
            if is_exiting {
                machine::work(call);
                self.cache.free_many(here(cpu), &held[held.len() - GATHERED..]);
                held.truncate(held.len() - GATHERED);
                is_exiting = !held.is_empty();
            } else {
                machine::work(GATHERED as u64 * call);
                held.extend((0..GATHERED).map(|_| (self.alloc(cpu, Order::BASE), Order::BASE)));
                if held.len() == HELD {
                    exits += 1;
                    self.exits.wait(self.cpus as u64 * exits, window.end_ps);
                    is_exiting = true;
                }
            }
            GATHERED as u64 / 2
        });
        self.cache.free_many(here(cpu), &held);
        share
    }

    /// The first CPU of each group frees what the others allocate.
    pub(crate) fn purge(&self, cpu: usize, window: &Window, call: u64) -> CpuWork {
        let group = cpu / PURGER_CPUS * PURGER_CPUS;
        if cpu != group {
            return self.produce(&self.rings[cpu], cpu, window, call);
        }
        let rings = &self.rings[group + 1..self.cpus.min(group + PURGER_CPUS)];
        let mut batch = Vec::with_capacity(GATHERED);
        let mut turn = 0;
        let free = |batch: &mut Vec<(Pfn, Order)>| {
            machine::work(call);
            self.cache.free_many(here(cpu), batch);
            batch.clear();
        };
        let mut share = window.repeat(|| {
            let took = rings[turn].take(|number| batch.push((Pfn::new(number), Order::BASE)));
            // The pages of one CPU by one call; the next CPU's when there are no more.
            if !took || batch.len() == GATHERED {
                if !batch.is_empty() {
                    free(&mut batch);
                }
                turn = (turn + 1) % rings.len();
            }
            0
        });
        for ring in rings {
            ring.empty(|number| batch.push((Pfn::new(number), Order::BASE)));
        }
        free(&mut batch);
        // A page counts once, where it is allocated.
        share.ops = 0;
        share
    }
}
