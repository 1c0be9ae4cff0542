//! The demand of a workload on the designs that it measures.

use pagedepot::CpuId;
use pagedepot_linux::builder::default_page_size;

use super::pool::SharedPool;
use super::variant::Variant;

/// Bytes of a page of designs that are asked for bytes, or have pages of their own.
pub const PAGE_BYTES: usize = 4096;

/// Bytes of a base page of the depots measured: more than [`PAGE_BYTES`] where the system's pages
/// are larger.
pub fn page_bytes() -> usize {
    default_page_size().bytes()
}

/// The memory, CPUs and options that a workload asks of a design.
#[derive(Clone, Debug, Default)]
pub struct Demand {
    /// Most blocks held at once by one CPU.
    pub blocks_per_cpu: u32,
    /// Frames per block.
    pub frames_per_block: u32,
    /// The CPUs in use.
    pub cpus: Vec<CpuId>,
    /// Memory of a whole page allocator, in pages; `None`: enough for the blocks held, see
    /// [`pages`](Self::pages).
    pub memory_pages: Option<u64>,
    /// Whether the workload fills the memory to the last frame, so that no design may have more
    /// than the others.
    pub fills_memory: bool,
    /// The variants of designs to make.
    pub variant: Variant,
    /// A CPU that the designs are to leave alone, if they know isolated CPUs.
    pub isolated: Option<CpuId>,
    /// Memory that all threads' designs share.
    pub memory: SharedPool,
}

impl Demand {
    /// Most frames held at once.
    pub fn frames(&self) -> u64 {
        u64::from(self.blocks_per_cpu) * u64::from(self.frames_per_block) * self.cpus.len() as u64
    }

    /// Pages of a whole page allocator. Unless the workload says how many: twice what is held, and
    /// at least 4 GiB, because how much CPUs may cache depends on it. These are addresses, of which
    /// only what is touched becomes memory.
    pub fn pages(&self) -> u64 {
        self.memory_pages.unwrap_or((2 * self.frames()).max((4 << 30) / page_bytes() as u64))
    }
}
