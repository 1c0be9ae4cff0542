//! The parameters of a run: a design, the size of its peak, and its CPUs.

use std::time::Duration;

use pagedepot::CpuId;
use pagedepot_rseq::affinity;

use pagedepot_cli::failure::Failure;
use pagedepot_cli::names::Design;

/// A contender: a design, and where its memory comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kind {
    pub design: Design,
    /// Whether a depot's memory is a memory file.
    pub memfd: bool,
}

/// The memory that the program uses, and its rest.
#[derive(Clone, Copy, Debug)]
pub struct Peak {
    pub bytes: usize,
    /// Duration of the rest.
    pub rest: Duration,
    /// Time between two looks at what is present.
    pub look: Duration,
    /// Idle time that the depot's monitor takes for a rest.
    pub idle_ms: u32,
    pub seed: u64,
}

impl Peak {
    pub const FULL: Peak = Peak {
        bytes: 256 << 20,
        rest: Duration::from_secs(10),
        look: Duration::from_millis(250),
        // The monitor's default.
        idle_ms: 3000,
        seed: 0,
    };
    pub const QUICK: Peak = Peak {
        bytes: 16 << 20,
        rest: Duration::from_millis(700),
        look: Duration::from_millis(100),
        idle_ms: 200,
        seed: 0,
    };
}

/// The CPUs of the program.
#[derive(Clone, Debug)]
pub struct Cpus {
    pub working: Vec<CpuId>,
    /// One on which nothing should run; `None`: there is one CPU alone.
    pub isolated: Option<CpuId>,
}

impl Cpus {
    /// The last one is isolated. Confines the calling thread to the others.
    pub fn divide(cpus: &[CpuId]) -> Result<Self, Failure> {
        let (working, isolated) = match cpus {
            [working @ .., last] if !working.is_empty() => (working, Some(*last)),
            all => (all, None),
        };
        affinity::confine(&working.iter().copied().collect())
            .map_err(|error| Failure::Run(format!("cannot keep off a CPU: {error}")))?;
        Ok(Cpus { working: working.to_vec(), isolated })
    }
}
