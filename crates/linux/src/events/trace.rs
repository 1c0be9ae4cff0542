//! Writing a program's own page events as a trace, so that its workload can be replayed into other
//! designs and on other machines: `pagedepot replay FILE`.
//!
//! The format is the text of `perf script`, one event per line:
//!
//! ```text
//! server 4711 [003] 12.000345678: kmem:mm_page_alloc: page=0x41f pfn=0x41f order=0 ...
//! server 4711 [003] 12.000347012: kmem:mm_page_free: page=0x41f pfn=0x41f order=0
//! ```
//!
//! # Example
//! A program that records what it asks of its depot. Threads share a writer behind a lock; each
//! writes an allocation after it was made, and a free before it is, so that no block has two
//! holders in the trace.
//!
//! ```
//! use std::fs::File;
//! use std::io::BufWriter;
//! use pagedepot_linux::trace::{Stamp, TraceWriter};
//! use pagedepot_linux::{Depot, Mobility, Order};
//!
//! # let directory = std::env::temp_dir();
//! let path = directory.join("server.perf.txt");
//! let mut trace = TraceWriter::new(BufWriter::new(File::create(&path)?));
//! let depot = Depot::new(16 << 20)?;
//! for order in [Order::BASE, Order::PAGEBLOCK] {
//!     let page = depot.page(order)?; // movable, unless flags say otherwise
//!     let block = (page.pfn(), page.order()).into();
//!     trace.alloc(&Stamp::here("server"), block, Mobility::Movable)?;
//!     // ... use it ...
//!     trace.free(&Stamp::here("server"), block)?;
//!     drop(page);
//! }
//! trace.finish()?;
//! // $ pagedepot replay server.perf.txt
//! # assert_eq!(std::fs::read_to_string(&path)?.lines().count(), 4);
//! # std::fs::remove_file(&path)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::io::{self, Write};
use std::time::Duration;

use pagedepot::{Mobility, Order, Pfn};
use rustix::thread::{gettid, sched_getcpu};
use rustix::time::{ClockId, clock_gettime};

/// A kernel's task names have no more bytes (`TASK_COMM_LEN` less the terminator). Readers rely on
/// it: a longer name could imitate an event.
const COMM_BYTES_MAX: usize = 15;

/// The thread, place and time of an event.
#[derive(Clone, Copy, Debug)]
pub struct Stamp<'a> {
    /// The name of the thread or program. Cut to 15 bytes; control characters become `?`.
    pub comm: &'a str,
    /// The thread's id.
    pub pid: u32,
    /// The CPU it runs on.
    pub cpu: u32,
    /// The time since any one moment, the same for all events of the trace.
    pub time: Duration,
}

impl<'a> Stamp<'a> {
    /// The calling thread, the CPU it is on and the time (`CLOCK_MONOTONIC`), for a program or
    /// thread called `comm`.
    pub fn here(comm: &'a str) -> Self {
        let now = clock_gettime(ClockId::Monotonic);
        Stamp {
            comm,
            pid: gettid().as_raw_nonzero().get().unsigned_abs(),
            cpu: sched_getcpu() as u32,
            time: Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec as u32),
        }
    }
}

/// A block of pages: 2^order of them from page frame `pfn` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TracedBlock {
    /// The first frame. Not 0: that is how a failed allocation is written.
    pub pfn: u64,
    /// 2^order frames.
    pub order: u32,
}

/// A depot's block. Its frames are numbered from 0, which stands for a failed allocation in a
/// trace; there they are higher by one block of the largest order.
impl From<(Pfn, Order)> for TracedBlock {
    fn from((pfn, order): (Pfn, Order)) -> Self {
        TracedBlock {
            pfn: u64::from(pfn.get()) + u64::from(Order::MAX.frames()),
            order: order.get(),
        }
    }
}

/// Writes events, in the order of their times, to any [`Write`]; give it a buffered one.
#[derive(Debug)]
pub struct TraceWriter<W> {
    out: W,
}

impl<W: Write> TraceWriter<W> {
    /// A writer to `out`.
    pub fn new(out: W) -> Self {
        TraceWriter { out }
    }

    /// A block was allocated.
    ///
    /// # Errors
    /// Fails like the underlying writer.
    pub fn alloc(
        &mut self,
        at: &Stamp<'_>,
        block: TracedBlock,
        mobility: Mobility,
    ) -> io::Result<()> {
        self.event(at, "mm_page_alloc", block)?;
        let (migratetype, gfp_flags) = request(mobility);
        writeln!(self.out, " migratetype={migratetype} gfp_flags={gfp_flags}")
    }

    /// A block of `order` was asked for and there was none.
    ///
    /// # Errors
    /// Fails like the underlying writer.
    pub fn alloc_failed(
        &mut self,
        at: &Stamp<'_>,
        order: Order,
        mobility: Mobility,
    ) -> io::Result<()> {
        self.alloc(at, TracedBlock { pfn: 0, order: order.get() }, mobility)
    }

    /// A block was freed.
    ///
    /// # Errors
    /// Fails like the underlying writer.
    pub fn free(&mut self, at: &Stamp<'_>, block: TracedBlock) -> io::Result<()> {
        self.event(at, "mm_page_free", block)?;
        writeln!(self.out)
    }

    /// Blocks were freed by one call, as the kernel writes it: all of them freed, then each named
    /// again as part of the batch.
    ///
    /// # Errors
    /// Fails like the underlying writer.
    pub fn free_many(&mut self, at: &Stamp<'_>, blocks: &[TracedBlock]) -> io::Result<()> {
        for &block in blocks {
            self.free(at, block)?;
        }
        for &block in blocks {
            self.event(at, "mm_page_free_batched", block)?;
            writeln!(self.out)?;
        }
        Ok(())
    }

    /// Ends the trace and gives back what it was written to.
    ///
    /// # Errors
    /// When the underlying writer cannot be flushed.
    pub fn finish(mut self) -> io::Result<W> {
        self.out.flush()?;
        Ok(self.out)
    }

    /// The line up to the fields that all events have.
    fn event(&mut self, at: &Stamp<'_>, event: &str, block: TracedBlock) -> io::Result<()> {
        let comm = printable(at.comm);
        let (secs, nanos) = (at.time.as_secs(), at.time.subsec_nanos());
        let TracedBlock { pfn, order } = block;
        write!(self.out, "{comm:>16} {:5} [{:03}] {secs:5}.{nanos:09}: ", at.pid, at.cpu)?;
        // perf pads names to the longest of a recording; aligned lines compress better, too.
        let padding = " ".repeat(22_usize.saturating_sub(event.len()));
        write!(self.out, "{padding}kmem:{event}: page={pfn:#x} pfn={pfn:#x} order={order}")
    }
}

/// A name that a line can hold: cut, no control characters, no blanks at its ends, not empty.
fn printable(comm: &str) -> String {
    let mut name = String::with_capacity(COMM_BYTES_MAX);
    for c in comm.trim().chars().map(|c| if c.is_control() { '?' } else { c }) {
        if name.len() + c.len_utf8() > COMM_BYTES_MAX {
            break;
        }
        name.push(c);
    }
    name.truncate(name.trim_end().len());
    if name.is_empty() { "?".to_owned() } else { name }
}

/// The kernel's number of a mobility, and flags from which it would have derived it.
fn request(mobility: Mobility) -> (u32, &'static str) {
    match mobility {
        Mobility::Unmovable => (0, "GFP_KERNEL"),
        Mobility::Movable => (1, "GFP_HIGHUSER_MOVABLE"),
        Mobility::Reclaimable => (2, "GFP_KERNEL|__GFP_RECLAIMABLE"),
    }
}
