//! The place where code runs: its CPU, and the context on it.

use crate::frame::CpuId;

/// The kind of code that runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Context {
    /// A thread, a process, a system call.
    Task,
    /// The one interrupt handler that may run above it.
    Interrupt,
}

/// A CPU and a context on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Here {
    /// The CPU.
    pub cpu: CpuId,
    /// The context on that CPU.
    pub context: Context,
}

impl Here {
    /// A thread on `cpu`.
    pub const fn task(cpu: CpuId) -> Self {
        Here { cpu, context: Context::Task }
    }
}
