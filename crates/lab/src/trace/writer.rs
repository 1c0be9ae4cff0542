//! Writing a program's own page events as a trace, in the text format of `perf script`, so that its
//! workload can be replayed. Needs nothing but `std`.
//!
//! ```text
//!           server  4711 [003]  12.000345678:             kmem:mm_page_alloc: page=0x1f pfn=0x1f order=0 migratetype=1 gfp_flags=GFP_HIGHUSER_MOVABLE
//!           server  4711 [003]  12.000347012:              kmem:mm_page_free: page=0x1f pfn=0x1f order=0
//! ```

use std::io::{self, Write};
use std::time::Duration;

/// A kernel's task names have no more bytes (`TASK_COMM_LEN` less the terminator). Readers rely on
/// it: a longer name could imitate an event.
const COMM_BYTES_MAX: usize = 15;

/// Who did something, where and when.
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

/// A block of pages: 2^order of them from page frame `pfn` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TracedBlock {
    /// The first frame. Not 0: that is how a failed allocation is written.
    pub pfn: u64,
    /// 2^order frames.
    pub order: u32,
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

    /// A block was allocated; `migratetype` is 0 for unmovable, 1 movable, 2 reclaimable.
    ///
    /// # Errors
    /// Those of the underlying writer.
    pub fn alloc(&mut self, at: &Stamp<'_>, block: TracedBlock, migratetype: u32) -> io::Result<()> {
        self.event(at, "mm_page_alloc", block)?;
        writeln!(self.out, " migratetype={migratetype} gfp_flags={}", gfp_flags(migratetype))
    }

    /// A block of `order` was asked for and there was none.
    ///
    /// # Errors
    /// Those of the underlying writer.
    pub fn alloc_failed(&mut self, at: &Stamp<'_>, order: u32, migratetype: u32) -> io::Result<()> {
        self.alloc(at, TracedBlock { pfn: 0, order }, migratetype)
    }

    /// A block was freed.
    ///
    /// # Errors
    /// Those of the underlying writer.
    pub fn free(&mut self, at: &Stamp<'_>, block: TracedBlock) -> io::Result<()> {
        self.event(at, "mm_page_free", block)?;
        writeln!(self.out)
    }

    /// Blocks were freed by one call, as the kernel writes it: all of them freed, then each named
    /// again as part of the batch.
    ///
    /// # Errors
    /// Those of the underlying writer.
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

/// The flags a kernel would have derived that migratetype from.
fn gfp_flags(migratetype: u32) -> &'static str {
    match migratetype {
        1 => "GFP_HIGHUSER_MOVABLE",
        2 => "GFP_KERNEL|__GFP_RECLAIMABLE",
        _ => "GFP_KERNEL",
    }
}
