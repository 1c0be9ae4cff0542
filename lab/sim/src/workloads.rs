//! The workloads of the CPUs.
//!
//! Each workload is a loop of operations per CPU. Operations that begin in the measured window
//! count.
//!
//! | workload | an operation |
//! |---|---|
//! | `hot` | one page allocated and freed |
//! | `pagealloc` | a page of a batch of 512, allocated, then freed |
//! | `touch` | a page allocated and written, of 2048 that are then freed by one call |
//! | `producer-consumer` | a page allocated on one CPU of a pair and freed on the other |
//! | `ring-stream` | a buffer of 32 KiB filled on one CPU of a pair, read and freed on the other |
//! | `mass-exit` | a page of 8192, allocated, then freed when the processes of all CPUs exit at once |
//! | `purger` | a page allocated on seven CPUs of eight, freed with 511 others by the eighth |
//! | `vmalloc` | a loop of one of test_vmalloc's first three tests, in turn |

use std::cell::Cell;

use pagedepot::{Mobility, Mode, Order, Pfn};
use pagedepot_designs::{PageCache, Scope};
use pagedepot_sim_machine as machine;

use crate::designs::here;
use crate::meeting::Meeting;
use crate::ring::Ring;
use crate::topology::{Topology, ps};

/// Defines the workloads, their order and their names from one list.
macro_rules! workloads {
    ($first:ident = $first_name:literal $(, $workload:ident = $name:literal)*) => {
        /// A workload, see the module.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[allow(missing_docs, reason = "see the module")]
        pub enum Workload {
            $first,
            $($workload,)*
        }

        impl Workload {
            /// Every workload.
            pub const ALL: &[Workload] = &[Workload::$first $(, Workload::$workload)*];

            /// The names of all workloads, separated by commas.
            pub const NAMES: &str = concat!($first_name $(, ", ", $name)*);

            /// The name on the command line and in results.
            pub const fn name(self) -> &'static str {
                match self {
                    Workload::$first => $first_name,
                    $(Workload::$workload => $name,)*
                }
            }
        }
    };
}

workloads! {
    Hot = "hot",
    Pagealloc = "pagealloc",
    Touch = "touch",
    ProducerConsumer = "producer-consumer",
    RingStream = "ring-stream",
    MassExit = "mass-exit",
    Purger = "purger",
    Vmalloc = "vmalloc"
}

impl Workload {
    /// The workload called `name`.
    ///
    /// # Errors
    /// Lists the names there are.
    pub fn parse(name: &str) -> Result<Self, String> {
        let found = Self::ALL.iter().copied().find(|workload| workload.name() == name);
        found.ok_or_else(|| format!("no such workload; there are {}", Self::NAMES))
    }

    /// Whether CPUs work in pairs, so that there must be two of them, or an even number of each
    /// group.
    pub const fn is_in_pairs(self) -> bool {
        matches!(self, Workload::ProducerConsumer | Workload::RingStream | Workload::Purger)
    }
}

const BATCH: usize = 512;
const TOUCHED: usize = 2048;
/// Slots of the ring, as in `bench producer-consumer`.
const RING_SLOTS: usize = 4096;
const RING_AT_ONCE: u64 = 512;
/// Buffers in flight, as in `bench ring-stream`.
const STREAM_IN_FLIGHT: usize = 64;
const STREAM_BYTES: u64 = 16 << 10;
const STREAM_ORDER: Order = Order::new(3).expect("there is order 3");

/// Operations of a CPU, and the time at which they are counted.
pub struct Window {
    /// Operations from here on count.
    pub begin_ps: u64,
    /// The CPU stops here.
    pub end_ps: u64,
}

/// Work of one CPU in the window.
#[derive(Clone, Copy, Debug, Default)]
pub struct CpuWork {
    /// Operations that counted.
    pub ops: u64,
    /// Time in which they were done.
    pub ps: u64,
    /// Part of that time spent waiting for locks.
    pub waited_ps: u64,
}

impl Window {
    /// Repeats an operation, which returns how often it counts, until the window ends.
    pub(crate) fn repeat(&self, mut operation: impl FnMut() -> u64) -> CpuWork {
        let (mut share, mut begun, mut waited) = (CpuWork::default(), 0, 0);
        loop {
            let now = machine::now_ps();
            if begun == 0 && now >= self.begin_ps {
                (begun, waited) = (now, machine::waited_ps());
                share.ops = 0;
            }
            if now >= self.end_ps {
                let (ps, waited_ps) = (now - begun, machine::waited_ps() - waited);
                return CpuWork { ps, waited_ps, ..share };
            }
            share.ops += operation();
        }
    }
}

/// The rings that a workload needs on so many CPUs.
pub fn rings(workload: Workload, cpus: usize) -> Vec<Ring> {
    let (slots, at_once) = match workload {
        Workload::ProducerConsumer => (RING_SLOTS, RING_AT_ONCE),
        Workload::RingStream => (STREAM_IN_FLIGHT, STREAM_IN_FLIGHT as u64 / 4),
        Workload::Purger => (RING_SLOTS, RING_AT_ONCE),
        _ => return Vec::new(),
    };
    // From each CPU to its purger, or between the CPUs of each pair.
    let rings = if workload == Workload::Purger { cpus } else { cpus / 2 };
    (0..rings).map(|_| Ring::new(slots, at_once)).collect()
}

/// A CPU at work on blocks.
pub struct PageWorker<'d> {
    /// The design.
    pub cache: &'d dyn PageCache,
    /// The design's name.
    pub design: &'d str,
    /// The machine.
    pub topology: &'d Topology,
    /// The rings between the CPUs of each pair, or from each CPU to its purger.
    pub rings: &'d [Ring],
    /// CPUs at work.
    pub cpus: usize,
    /// The barrier of the processes that exit at once.
    pub exits: Meeting,
}

impl PageWorker<'_> {
    pub(crate) fn alloc(&self, cpu: usize, order: Order) -> Pfn {
        let Some(pfn) = self.cache.alloc(here(cpu), order, Mobility::Movable) else {
            panic!("{} ran out of memory: it lost some", self.design)
        };
        pfn
    }

    /// Does a workload as a CPU.
    pub fn run(&self, workload: Workload, cpu: usize, window: &Window) -> CpuWork {
        let call = self.topology.call_ps(self.design);
        let share = match workload {
            Workload::Hot => window.repeat(|| {
                machine::work(2 * call);
                self.cache.free(here(cpu), self.alloc(cpu, Order::BASE), Order::BASE);
                1
            }),
            Workload::Pagealloc => {
                let mut held = Vec::with_capacity(BATCH);
                window.repeat(|| {
                    machine::work(2 * BATCH as u64 * call);
                    held.extend((0..BATCH).map(|_| self.alloc(cpu, Order::BASE)));
                    held.drain(..).for_each(|pfn| self.cache.free(here(cpu), pfn, Order::BASE));
                    BATCH as u64
                })
            }
            Workload::Touch => {
                let mut held = Vec::with_capacity(TOUCHED);
                let alone = self.topology.touch_ns;
                let beside = self.topology.touch_beside_ns.unwrap_or(alone);
                let touch = ps(if self.cpus > 1 { beside } else { alone });
                window.repeat(|| {
                    machine::work(touch + call);
                    held.push((self.alloc(cpu, Order::BASE), Order::BASE));
                    if held.len() == TOUCHED {
                        machine::work(call);
                        self.cache.free_many(here(cpu), &held);
                        held.clear();
                    }
                    1
                })
            }
            Workload::ProducerConsumer => self.pass(cpu, window, call),
            Workload::RingStream => self.stream(cpu, window, call),
            Workload::MassExit => self.exit(cpu, window, call),
            Workload::Purger => self.purge(cpu, window, call),
            Workload::Vmalloc => unreachable!("it has no blocks"),
        };
        self.cache.idle(here(cpu));
        share
    }

    /// Allocates pages for the consumer of a ring.
    pub(crate) fn produce(&self, ring: &Ring, cpu: usize, window: &Window, call: u64) -> CpuWork {
        let share = window.repeat(|| {
            let put = ring.put(|| {
                machine::work(call);
                self.alloc(cpu, Order::BASE).get()
            });
            u64::from(put)
        });
        ring.close();
        share
    }

    fn pass(&self, cpu: usize, window: &Window, call: u64) -> CpuWork {
        let ring = &self.rings[cpu / 2];
        if cpu.is_multiple_of(2) {
            return self.produce(ring, cpu, window, call);
        }
        let mut share = window.repeat(|| {
            u64::from(ring.take(|number| {
                machine::work(call);
                self.cache.free(here(cpu), Pfn::new(number), Order::BASE);
            }))
        });
        ring.empty(|number| self.cache.free(here(cpu), Pfn::new(number), Order::BASE));
        // A page counts once, where it is allocated.
        share.ops = 0;
        share
    }

    /// Buffers, whose lines move between the CPUs of a pair, or come from memory once more bytes
    /// than the cache holds were written since the buffer's last use.
    fn stream(&self, cpu: usize, window: &Window, call: u64) -> CpuWork {
        let ring = &self.rings[cpu / 2];
        let lines = STREAM_BYTES / 64;
        let moved = lines * ps(self.topology.stream_line_ns);
        let fetched = lines * ps(self.topology.stream_memory_line_ns);
        if cpu.is_multiple_of(2) {
            let mut last_use = std::collections::HashMap::<u32, u64>::new();
            let reach = u64::from(self.topology.cache_kib) * 1024 / STREAM_BYTES;
            let mut messages = 0;
            let share = window.repeat(|| {
                u64::from(ring.put(|| {
                    machine::work(call);
                    let buffer = self.alloc(cpu, STREAM_ORDER).get();
                    messages += 1;
                    let before = last_use.insert(buffer, messages);
                    let is_cached = before.is_some_and(|before| messages - before <= reach);
                    machine::work(if is_cached { moved } else { fetched });
                    buffer
                }))
            });
            ring.close();
            return share;
        }
        let mut share = window.repeat(|| {
            u64::from(ring.take(|buffer| {
                machine::work(moved + call);
                self.cache.free(here(cpu), Pfn::new(buffer), STREAM_ORDER);
            }))
        });
        ring.empty(|buffer| self.cache.free(here(cpu), Pfn::new(buffer), STREAM_ORDER));
        share.ops = 0;
        share
    }
}

/// Drains of all CPUs, at a rate that all drainers keep together.
pub struct Drains {
    per_s: f64,
    mode: Mode,
    /// Drains that a drainer has begun, or waits to begin.
    begun: Cell<u64>,
    /// Drains that have ended.
    ended: Cell<u64>,
    /// Number of these that ended in the measured window.
    measured: Cell<u64>,
}

impl Drains {
    /// Makes drains, so many in a second; 0: none.
    pub const fn new(per_s: f64, mode: Mode) -> Self {
        let (begun, ended, measured) = (Cell::new(0), Cell::new(0), Cell::new(0));
        Drains { per_s, mode, begun, ended, measured }
    }

    /// Drains all CPUs again and again, from a CPU that does nothing else. Each drainer takes the
    /// next drain that is due, so that the rate is kept as long as one of them waits.
    pub fn run(&self, cache: &dyn PageCache, window: &Window) {
        loop {
            let due = (self.begun.get() as f64 * 1e12 / self.per_s) as u64;
            if due >= window.end_ps || machine::now_ps() >= window.end_ps {
                return;
            }
            self.begun.set(self.begun.get() + 1);
            machine::sleep_until(due);
            cache.drain(Scope::ALL, self.mode);
            self.ended.set(self.ended.get() + 1);
            if (window.begin_ps..window.end_ps).contains(&machine::now_ps()) {
                self.measured.set(self.measured.get() + 1);
            }
        }
    }

    /// Drains that have ended.
    pub fn ended(&self) -> u64 {
        self.ended.get()
    }

    /// Drains in a second of the measured window.
    pub fn reached_per_s(&self, window: &Window) -> f64 {
        self.measured.get() as f64 * 1e12 / (window.end_ps - window.begin_ps) as f64
    }
}
