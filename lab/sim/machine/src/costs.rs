//! The cost of accesses, and the distances between CPUs.

/// Most CPUs of a machine: the bits of a set of sharers.
pub const CPUS_MAX: usize = 512;
/// Most stores of a store buffer.
pub const STORES_MAX: usize = 64;

/// Times of a machine, in picoseconds, and how its CPUs are grouped. CPU `n` is in core complex
/// `n / complex_cpus` and on socket `n / socket_cpus`.
#[derive(Clone, Debug, PartialEq)]
pub struct Costs {
    /// CPUs that share a last-level cache.
    pub complex_cpus: u32,
    /// CPUs of a socket.
    pub socket_cpus: u32,
    /// Moving a line from one CPU's cache to another's: in one core complex, on one socket, between
    /// sockets.
    pub transfer_ps: [u64; 3],
    /// Fetching a line that no cache has.
    pub memory_ps: u64,
    /// A load that hits the CPU's own cache, with the instructions around it.
    pub load_ps: u64,
    /// Time of a store, as `load_ps` of a load.
    pub store_ps: u64,
    /// A load or store that hits in a restartable sequence, which is a few instructions of
    /// assembly.
    pub sequence_ps: u64,
    /// A step down a tree to a node that another CPU has not changed, besides `load_ps`: its line
    /// is in the last-level cache at best, because what the CPU did since it was here last has
    /// used up the nearer ones, and each second branch goes where it was not predicted.
    pub tree_step_ps: u64,
    /// A step of a slow path, besides its accesses: branches that were predicted otherwise, and
    /// code that is in no cache.
    pub slow_step_ps: u64,
    /// An atomic read-modify-write on a line that this CPU has for itself; also a full barrier.
    pub rmw_ps: u64,
    /// Reading the clock.
    pub clock_ps: u64,
    /// A turn of a spin loop.
    pub spin_ps: u64,
    /// Time for which a read of a line that others share, too, keeps the next reader waiting.
    pub read_queue_ps: u64,
    /// Whether a load takes a line that another CPU has changed from there, with the right to
    /// change it (AMD), instead of sharing it. If the other then loads it before it is changed
    /// again, both share it. Lines that each CPU in turn reads and changes so move once a turn
    /// (Cox and Fowler; Stenstrom, Brorsson and Sandberg; both ISCA 1993).
    pub is_migratory: bool,
    /// Time that a CPU looks ahead: a store that follows the load that fetched its line within this
    /// was in sight then, and the line was fetched to write.
    pub window_ps: u64,
    /// Stores that may wait for lines while the CPU goes on (its store buffer), at least 1 and at
    /// most [`STORES_MAX`].
    pub store_buffer: u32,
    /// Sending an interrupt to a CPU and waiting for its answer.
    pub fence_ps: u64,
    /// Time that an interrupt takes from the CPU that it interrupts.
    pub interrupt_ps: u64,
    /// Switching a CPU to another task.
    pub switch_ps: u64,
    /// Time by which a CPU may run ahead of the earliest other one by accesses that hit its own
    /// cache. 0: never; slower, and the same but for races shorter than this.
    pub ahead_ps: u64,
}

impl Default for Costs {
    /// Two sockets of 128 cores, in core complexes of 8.
    fn default() -> Self {
        Costs {
            complex_cpus: 8,
            socket_cpus: 128,
            transfer_ps: [25_000, 110_000, 210_000],
            memory_ps: 110_000,
            load_ps: 400,
            store_ps: 400,
            sequence_ps: 200,
            tree_step_ps: 15_000,
            slow_step_ps: 50_000,
            rmw_ps: 6_000,
            clock_ps: 25_000,
            spin_ps: 25_000,
            read_queue_ps: 5_000,
            is_migratory: true,
            window_ps: 16_000,
            store_buffer: 64,
            fence_ps: 1_500_000,
            interrupt_ps: 1_000_000,
            switch_ps: 2_000_000,
            ahead_ps: 100_000,
        }
    }
}

impl Costs {
    /// Moving a line between two CPUs.
    pub fn transfer(&self, from: usize, to: usize) -> u64 {
        self.transfer_ps[self.distance(from, to)]
    }

    /// 0: one core complex; 1: one socket; 2: two sockets.
    pub fn distance(&self, one: usize, other: usize) -> usize {
        if one / self.complex_cpus as usize == other / self.complex_cpus as usize {
            0
        } else if one / self.socket_cpus as usize == other / self.socket_cpus as usize {
            1
        } else {
            2
        }
    }
}
