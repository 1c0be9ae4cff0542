//! CPUs on which a source of interrupts acts between any two steps.

use std::sync::Arc;

use pagedepot::CpuId;
use pagedepot::cpus::implement::BlockArray;
use pagedepot::cpus::{self, Environment, FenceError, Guard, Here, WhichCpu};

use crate::common::sequences::{Aborted, Machine, Steps};
use crate::source::Source;

/// A kernel: preemption is off in a sequence, interrupts are not.
pub struct Kernel(pub Arc<Source>);

// SAFETY: the sequences of a context end before another of the same context begins: handlers of
// depth 1 run to their end, deeper ones have no sequences, and what runs on other CPUs has other
// words. `fence` refuses where a sequence has been interrupted.
unsafe impl Machine for Kernel {
    const FOLLOWS_GATES: bool = false;
    const CONTEXTS: usize = 2;

    fn here(&self) -> Option<Here> {
        self.0.preemption_point();
        let here = self.0.kernel_here();
        self.0.preemption_point();
        here
    }

    fn run<R>(
        &self,
        blocks: &BlockArray,
        sequence: impl Fn(Steps<'_>) -> Result<R, Aborted>,
    ) -> Option<R> {
        self.0.preemption_point();
        let here = self.0.kernel_here()?;
        self.0.set_sequence(Some(here.cpu.get()));
        let step = || {
            self.0.point();
            Ok(())
        };
        let result = sequence(Steps { blocks, here, step: &step, follows_gates: false });
        self.0.set_sequence(None);
        result.ok()
    }

    fn may_claim(&self, cpu: CpuId) -> bool {
        !self.0.has_interrupted(cpu)
    }

    fn fence(&self, cpu: CpuId) -> Result<(), FenceError> {
        self.0.point();
        if self.0.has_interrupted(cpu) { Err(FenceError::Busy) } else { Ok(()) }
    }
}

impl Environment for Kernel {
    fn now_ms(&self) -> u64 {
        self.0.preemption_point();
        self.0.now_ms()
    }

    fn is_isolated(&self, _cpu: CpuId) -> bool {
        self.0.preemption_point();
        false
    }
}

/// A process with restartable sequences: every interrupt aborts the sequence.
pub struct Restartable(pub Arc<Source>);

// SAFETY: a sequence commits only if nothing has happened since it began, so one that has been
// interrupted never commits.
unsafe impl Machine for Restartable {
    const FOLLOWS_GATES: bool = true;

    fn here(&self) -> Option<Here> {
        self.0.preemption_point();
        let here = Here::task(self.0.cpu());
        self.0.preemption_point();
        Some(here)
    }

    fn run<R>(
        &self,
        blocks: &BlockArray,
        sequence: impl Fn(Steps<'_>) -> Result<R, Aborted>,
    ) -> Option<R> {
        loop {
            self.0.preemption_point();
            let (cpu, begun) = (self.0.cpu(), self.0.interrupts());
            let step = || {
                self.0.preemption_point();
                if self.0.cpu() == cpu && self.0.interrupts() == begun {
                    Ok(())
                } else {
                    Err(Aborted)
                }
            };
            let here = Here::task(cpu);
            if let Ok(result) = sequence(Steps { blocks, here, step: &step, follows_gates: true }) {
                return Some(result);
            }
        }
    }

    fn fence(&self, _cpu: CpuId) -> Result<(), FenceError> {
        self.0.preemption_point();
        Ok(())
    }
}

impl Environment for Restartable {
    fn now_ms(&self) -> u64 {
        self.0.preemption_point();
        self.0.now_ms()
    }

    fn is_isolated(&self, _cpu: CpuId) -> bool {
        self.0.preemption_point();
        false
    }
}

/// A kernel behind [`PinnedCpus`](cpus::PinnedCpus).
pub struct Processor(pub Arc<Source>);

/// Preemption is off while this lives.
pub struct Pin {
    source: Arc<Source>,
    here: Here,
}

// SAFETY: as for `Kernel`; the code stays on its CPU between `pin` and the drop.
unsafe impl Guard for Pin {
    fn here(&self) -> Here {
        self.source.point();
        self.here
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        self.source.point();
        self.source.set_sequence(None);
    }
}

// SAFETY: `fence` refuses while there is a guard.
unsafe impl cpus::Processor for Processor {
    type Guard = Pin;

    fn pin(&self) -> Option<Pin> {
        self.0.preemption_point();
        let here = self.0.kernel_here()?;
        self.0.set_sequence(Some(here.cpu.get()));
        Some(Pin { source: self.0.clone(), here })
    }

    fn fence(&self, cpu: CpuId) -> Result<(), FenceError> {
        self.0.point();
        if self.0.has_interrupted(cpu) { Err(FenceError::Busy) } else { Ok(()) }
    }
}

impl Environment for Processor {
    fn now_ms(&self) -> u64 {
        self.0.preemption_point();
        self.0.now_ms()
    }
}

/// A process with locks; see [`LockedCpus`](cpus::LockedCpus).
pub struct Lock(pub Arc<Source>);

impl WhichCpu for Lock {
    fn cpu(&self) -> Option<CpuId> {
        self.0.preemption_point();
        let cpu = self.0.cpu();
        self.0.preemption_point();
        Some(cpu)
    }
}

impl Environment for Lock {
    fn now_ms(&self) -> u64 {
        self.0.preemption_point();
        self.0.now_ms()
    }
}
