//! The meaning of tables' headings, and the order in which columns give way in a narrow terminal.
//!
//! A heading that is not self-evident has a line here, and the line is printed below the tables
//! that have it.

/// A column, by its heading.
struct Column {
    heading: &'static str,
    /// The rank at which a column gives way, the highest first. Rank 0 stays.
    rank: u8,
    /// Empty where the heading says it all.
    means: &'static str,
}

const fn column(heading: &'static str, rank: u8, means: &'static str) -> Column {
    Column { heading, rank, means }
}

/// Rank of a heading that is not listed.
const RANK_OTHER: u8 = 3;

const COLUMNS: &[Column] = &[
    column("design", 0, ""),
    column("", 0, ""),
    column("order", 0, "log2 of a block's size in pages"),
    column("batch", 0, "blocks allocated before the first of them is freed"),
    column("clients", 0, "threads that touch pages, one per CPU"),
    column("processes", 0, "processes that allocate much, one per CPU"),
    column("speed", 0, "recorded: each event at its time; full: without the time in between"),
    column("exchange", 0, "udp-stream: one stream; sctp-many: one per four CPUs, shorter messages"),
    column("drain", 0, "quiet: shelves; full: fronts too, by a fence; handover: given by owners"),
    column("per s", 0, "drains per second, forced behind the owner's work"),
    column("owner", 1, ""),
    column("owner ns", 1, "one operation (an allocation or a free) of the CPU that is drained"),
    column("drain us", 1, "time of one drain, on the CPU that asks for it"),
    column("pages", 1, ""),
    column("change", 4, "against the same owner without drains"),
    column("against 1 thread", 4, ""),
    column("quartiles", 9, "half of the samples are between these two"),
    column("p50", 7, ""),
    column("p99", 5, "of groups of 64 operations: one in 100 takes longer per operation"),
    column("p99.9", 4, "as p99: one group in 1000"),
    column("interrupts", 3, "received by the drained CPU in a window, less those without drains"),
    column("interrupts per drain", 3, ""),
    column("counted", 8, "times that the design itself stopped the drained CPU, in a window"),
    column("pending", 8, "pages that drains left in fronts"),
    column("collected us", 8, "until the owner's deferred part of a drain is done"),
    column("longest us", 5, ""),
    column("x floor-rseq", 2, "times the cost of floor-rseq in the same round"),
    column("x floor-tls", 2, "times the cost of floor-tls in the same round"),
    column("x depot", 2, "times the time of depot in the same round"),
    column("x vmap-global-lock", 2, "times as fast as vmap-global-lock"),
    column("speed, x kernel", 2, "times as many faults per second as the kernel's own"),
    column("n", 4, ""),
    column("median changes by", 1, ""),
    column("95 % interval", 2, ""),
    column("delta", 8, ""),
    column("p", 6, ""),
    column("verdict", 1, ""),
    column("one page", 1, ""),
    column("of 512 pages", 2, ""),
    column("of 64 blocks of 8", 3, ""),
    column("undrained", 3, "the owner's operation where no CPU drains it"),
    column("stopped us", 3, "a drain while its owner is stopped in mid-operation, 10 ms at most"),
    column("event ns", 1, "time per allocation or free of the recording"),
    column("allocs", 3, ""),
    column("frees", 3, ""),
    column("fill", 1, "allocating page by page"),
    column("random free", 1, "freeing the pages in random order"),
    column("touch ns", 1, "time until a page is there, freeing left out"),
    column("fault ns", 1, "time of a page fault, giving the page back left out"),
    column("touches per CPU second", 6, ""),
    column("faults per CPU second", 6, ""),
    column("elapsed ms", 3, ""),
    column("user ms", 7, ""),
    column("system ms", 5, "time spent in the kernel"),
    column("CPU %", 2, "user and system time per elapsed time"),
    column("op ns", 1, ""),
    column("interrupted", 4, "CPUs that a drain interrupted, on average"),
    column("free high", 4, "the rule for CPUs that mostly free; - is the design's own"),
    column("in flight", 4, "buffers sent and not yet freed"),
    column("reuse KiB", 5, "what is allocated between two uses of the same page"),
    column("p90", 7, ""),
    column("crossed %", 5, "buffers whose pages another CPU used before"),
    column("lock wait", 5, "share of the time spent waiting for locks"),
    column("pool hits", 4, "allocations served from a pool, without the global tree"),
    column("flushed/needed", 6, "TLB entries flushed by each purge, per entry that had to be"),
    column("needed", 6, ""),
    column("tables KiB at start", 7, ""),
    column("peak", 5, "of page tables"),
    column("end", 7, "of page tables, after a purge"),
    column("refilled", 2, ""),
    column("spilled", 2, ""),
];

fn find(heading: &str) -> Option<&'static Column> {
    COLUMNS.iter().find(|column| column.heading == heading)
}

/// The rank at which the column gives way: 0 never, 9 first.
pub fn rank(heading: &str) -> u8 {
    find(heading).map_or(RANK_OTHER, |column| column.rank)
}

/// The meaning of the heading, if it needs to be said.
pub fn means(heading: &str) -> Option<&'static str> {
    find(heading).map(|column| column.means).filter(|means| !means.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_heading_is_listed_once_and_fits_a_line_of_80() {
        for (nth, column) in COLUMNS.iter().enumerate() {
            assert!(COLUMNS[..nth].iter().all(|other| other.heading != column.heading));
            assert!(column.rank <= 9 && column.means.len() <= 72, "{}", column.heading);
        }
    }
}
