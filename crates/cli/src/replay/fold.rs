//! Folds a trace's CPUs onto fewer: what its workload asks of a smaller machine.
//!
//! Of `n` CPUs, the one at place `i % n` does what the trace's one at place `i` did, in the trace's
//! order, beginning with what either had cached. Nothing is left out, so that a folded replay
//! balances like any other. Only the values of `high` are dropped: they belong to the recorded
//! CPUs.

use std::num::NonZeroU32;

use super::plan::{Op, Plan};

impl Plan {
    /// Folds the CPUs onto the first so many.
    ///
    /// # Errors
    /// The number of CPUs there are, when it is smaller.
    pub fn fold(&mut self, onto: NonZeroU32) -> Result<(), usize> {
        let there = self.cpus.len();
        let onto = u16::try_from(onto.get())
            .ok()
            .filter(|&onto| usize::from(onto) <= there)
            .ok_or(there)?;
        if usize::from(onto) == there {
            return Ok(());
        }
        self.cpus.truncate(onto.into());
        self.ops.iter_mut().filter_map(Op::cpu_mut).for_each(|cpu| *cpu %= onto);
        self.before.cached.iter_mut().for_each(|cached| cached.cpu %= onto);
        self.ticks.retain(|tick| tick.cpu < onto);
        self.ticks_unseen.clear();
        self.highs_seen.clear();
        self.work.remote_frees = self.count_remote_frees();
        Ok(())
    }

    /// Frees on another CPU than the one that allocated, as far as the trace shows both.
    fn count_remote_frees(&self) -> u64 {
        let mut allocated_on = vec![None; self.slots as usize];
        let mut remote = 0;
        let mut free = |cpu_before: &mut Option<u16>, cpu| {
            remote += u64::from(cpu_before.take().is_some_and(|before| before != cpu));
        };
        for op in &self.ops {
            match *op {
                Op::Clock { .. } => {}
                Op::Alloc { cpu, slot, .. } | Op::AllocCache { cpu, slot, .. } => {
                    allocated_on[slot as usize] = Some(cpu);
                }
                Op::Halve { slot, upper, .. } => {
                    allocated_on[upper as usize] = allocated_on[slot as usize]
                }
                Op::Free { cpu, slot, .. } | Op::FreeNested { cpu, slot, .. } => {
                    free(&mut allocated_on[slot as usize], cpu);
                }
                Op::FreeMany { cpu, first, len } => {
                    self.batch(first, len)
                        .iter()
                        .for_each(|&(slot, _)| free(&mut allocated_on[slot as usize], cpu));
                }
            }
        }
        remote
    }
}

impl Op {
    /// The CPU that does it, if it matters.
    fn cpu_mut(&mut self) -> Option<&mut u16> {
        match self {
            Op::Clock { .. } | Op::Halve { .. } => None,
            Op::Alloc { cpu, .. }
            | Op::AllocCache { cpu, .. }
            | Op::Free { cpu, .. }
            | Op::FreeNested { cpu, .. }
            | Op::FreeMany { cpu, .. } => Some(cpu),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::shipped;
    use super::*;

    #[test]
    fn remote_frees_are_counted_as_the_planner_does() {
        let plan = Plan::read(shipped::TRACE, shipped::NAME, None).unwrap();
        assert!(plan.work.remote_frees > 0);
        assert_eq!(plan.count_remote_frees(), plan.work.remote_frees);
    }
}
