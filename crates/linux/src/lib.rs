//! pagedepot for Linux programs.
mod cpus;
mod cpuset;
mod rseq;
mod topology;
pub use cpus::{Fronts, LinuxCpus};
pub use cpuset::{CpuListError, CpuSet};
pub use pagedepot::CpuId;
pub use topology::Topology;
