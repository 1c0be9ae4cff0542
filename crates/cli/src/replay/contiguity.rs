//! The contiguity of a replay's memory, by the frames that are held: what a drain would make of it.
//!
//! # Vocabulary
//! * *whole*: of a pageblock, that no holder has a frame of it. Cached frames count as free.
//! * *tainted*: of a pageblock, that a holder has a frame of it which cannot be moved.
//! * *moment*: the state of memory after an operation.
//!
//! # Theory
//! The recorded machine has far more memory than most traces use, and in plenty any placement
//! looks good. So this run has a machine of its own, of which the traces at their peak leave a
//! fifth at least. Nothing is held at first: frees of blocks from before a recording are left out,
//! as LLFree's `replay` does, whose measures these are. Several traces run one after the other in
//! the same memory. What one holds at its end stays held.
//!
//! Free memory falls and rises many times. A moment is known by how much was free, in percent, and
//! of those with the same number the last one counts: after programs have exited.
//!
//! The page cache stays when programs exit. It is asked for as reclaimable memory, which has
//! pageblocks of its own, and taints none.

use std::collections::HashSet;

use pagedepot::{FreeHigh, Mobility, Order, Pfn};

use super::depot::{DepotError, ReplayMachine, with_depot};
use super::engine::play_on;
use super::outcome::ReplayError;
use super::plan::{Op, Plan};
use super::target::ReplayTarget;
use super::watched::{WatchedTarget, Watcher};
use crate::design::variant::{Store, Variant};

const PAGEBLOCK_FRAMES: u32 = Order::PAGEBLOCK.frames();

/// Milliseconds between two traces.
const PAUSE_MS: u64 = 1000;

/// Points of the curves over a run.
const POINTS: usize = 100;

/// The state of memory after an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// Percent of the frames that no holder had.
    pub free_percent: u32,
    /// Pageblocks of which no frame was held.
    pub whole: u64,
    /// Pageblocks of which a frame was held that cannot be moved.
    pub tainted: u64,
}

/// The contiguity of memory over a run of some plans.
#[derive(Clone, Debug, PartialEq)]
pub struct Contiguity {
    /// Number of CPUs.
    pub cpus: usize,
    /// Pageblocks of the memory.
    pub pageblocks: u64,
    /// The last moment of each percentage of free memory.
    pub moments: Vec<Moment>,
    /// The last moment of all.
    pub end: Moment,
    /// Moments at equal distances: operations done before, in percent of all.
    pub curve: Vec<(f64, Moment)>,
}

/// Pages of the memory for these plans: the smallest power of two of which they leave a fifth at
/// their peak, and at least 64 MiB.
fn pages(plans: &[&Plan]) -> u64 {
    let (mut held, mut peak) = (0, 0);
    for plan in plans {
        peak = peak.max(held + plan.work.held_pages_peak);
        held += plan.work.held.pages;
    }
    (peak * 5 / 4).max(1 << 14).next_power_of_two()
}

/// Replays plans one after the other into one depot of a variant.
///
/// # Errors
/// When the depot cannot be made, or runs out of pages.
pub fn replay_in_a_row(
    plans: &[&Plan],
    variant: &Variant,
) -> Result<Result<Contiguity, ReplayError>, DepotError> {
    let cpus = plans.iter().map(|plan| plan.cpus.len()).max().unwrap_or(0).max(1);
    let pages = pages(plans);
    let machine = ReplayMachine {
        cpus: cpus as u32,
        pages,
        watermarks: None,
        store: Store::Bitmap,
        free_high: FreeHigh::MAINLINE,
    };
    with_depot(machine.in_variant(variant), |depot| {
        depot.keep_cache_apart();
        watch(plans, cpus, &mut WatchedTarget::new(depot, Holders::of(pages)))
    })
}

fn watch<T: ReplayTarget>(
    plans: &[&Plan],
    cpus: usize,
    watched: &mut WatchedTarget<'_, T, Holders>,
) -> Result<Contiguity, ReplayError> {
    let ops: usize = plans.iter().map(|plan| plan.ops.len()).sum();
    let mut last = [None; 101];
    let mut curve = Vec::with_capacity(POINTS + 1);
    let (mut before, mut begins_ms) = (0, 0);
    for plan in plans {
        play_on(plan, begins_ms, watched, |watched, nth| {
            let (moment, done) = (watched.watch.moment(), before + nth);
            last[moment.free_percent as usize] = Some(moment);
            if done * POINTS / ops != (done - 1) * POINTS / ops {
                curve.push((done as f64 * 100.0 / ops as f64, moment));
            }
        })?;
        before += plan.ops.len();
        begins_ms += u64::from(plan.end_ms) + PAUSE_MS;
    }
    let moments = last.into_iter().flatten().collect();
    let holders = &watched.watch;
    let pageblocks = holders.held.len() as u64;
    Ok(Contiguity { cpus, pageblocks, moments, end: holders.moment(), curve })
}

/// Counts of what is held of each pageblock.
struct Holders {
    /// Held frames of each pageblock.
    held: Vec<u32>,
    /// Held frames of each pageblock that cannot be moved.
    unmovable: Vec<u32>,
    /// The held blocks that cannot be moved.
    unmovable_blocks: HashSet<u32>,
    held_pages: u64,
    whole: u64,
    tainted: u64,
}

impl Holders {
    fn of(pages: u64) -> Self {
        let pageblocks = (pages / u64::from(PAGEBLOCK_FRAMES)) as usize;
        Holders {
            held: vec![0; pageblocks],
            unmovable: vec![0; pageblocks],
            unmovable_blocks: HashSet::new(),
            held_pages: 0,
            whole: pageblocks as u64,
            tainted: 0,
        }
    }

    fn moment(&self) -> Moment {
        let pages = self.held.len() as u64 * u64::from(PAGEBLOCK_FRAMES);
        let free_percent = ((pages - self.held_pages) * 100 / pages) as u32;
        Moment { free_percent, whole: self.whole, tainted: self.tainted }
    }
}

/// The pageblocks of a block, with how many frames of it lie in each.
fn parts(pfn: Pfn, order: Order) -> impl Iterator<Item = (usize, u32)> {
    let (first, frames) = (pfn.index() / PAGEBLOCK_FRAMES as usize, order.frames());
    let count = frames.div_ceil(PAGEBLOCK_FRAMES) as usize;
    (first..first + count).map(move |pageblock| (pageblock, frames.min(PAGEBLOCK_FRAMES)))
}

impl Watcher for Holders {
    fn hand_out(&mut self, pfn: Pfn, order: Order, mobility: Mobility) {
        let is_unmovable = mobility != Mobility::Movable;
        if is_unmovable {
            self.unmovable_blocks.insert(pfn.get());
        }
        for (pageblock, frames) in parts(pfn, order) {
            self.whole -= u64::from(self.held[pageblock] == 0);
            self.held[pageblock] += frames;
            if is_unmovable {
                self.tainted += u64::from(self.unmovable[pageblock] == 0);
                self.unmovable[pageblock] += frames;
            }
        }
        self.held_pages += u64::from(order.frames());
    }

    fn take_back(&mut self, pfn: Pfn, order: Order) {
        let is_unmovable = self.unmovable_blocks.remove(&pfn.get());
        for (pageblock, frames) in parts(pfn, order) {
            self.held[pageblock] -= frames;
            self.whole += u64::from(self.held[pageblock] == 0);
            if is_unmovable {
                self.unmovable[pageblock] -= frames;
                self.tainted -= u64::from(self.unmovable[pageblock] == 0);
            }
        }
        self.held_pages -= u64::from(order.frames());
    }

    fn halve(&mut self, pfn: Pfn, order: Order) {
        if self.unmovable_blocks.contains(&pfn.get()) {
            self.unmovable_blocks.insert(pfn.get() + order.frames() / 2);
        }
    }
}

impl Plan {
    /// Blocks of the page cache that the plan allocates.
    pub fn cache_blocks(&self) -> u64 {
        self.ops.iter().filter(|op| matches!(op, Op::AllocCache { .. })).count() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(text: &str) -> Plan {
        Plan::read(text.as_bytes(), "test", None).unwrap()
    }

    fn in_a_row(plans: &[&Plan]) -> Contiguity {
        replay_in_a_row(plans, &Variant::default()).unwrap().unwrap()
    }

    const MOVABLE: &str = "migratetype=1 gfp_flags=GFP_HIGHUSER_MOVABLE|__GFP_ZERO";
    const CACHE: &str = "migratetype=1 gfp_flags=GFP_NOFS|__GFP_MOVABLE|__GFP_NOWARN|__GFP_NORETRY";
    const UNMOVABLE: &str = "migratetype=0 gfp_flags=GFP_KERNEL";

    /// A program's pages and as many of the page cache, in turn; then the program exits.
    fn build(pages: u64) -> Plan {
        let mut text = String::new();
        for pfn in 1..=pages {
            for (pfn, flags) in [(2 * pfn, MOVABLE), (2 * pfn + 1, CACHE)] {
                text += &format!("a 1 [000] 1.0: mm_page_alloc: pfn={pfn} order=0 {flags}\n");
            }
        }
        for pfn in 1..=pages {
            text += &format!("a 1 [000] 2.0: mm_page_free: pfn={} order=0\n", 2 * pfn);
        }
        plan(&text)
    }

    #[test]
    fn the_page_cache_leaves_what_a_program_had_whole() {
        let plan = build(6000);
        assert_eq!(plan.cache_blocks(), 6000);
        let found = in_a_row(&[&plan]);
        // 12000 pages at the peak; 6000 stay, in 12 pageblocks.
        assert_eq!((found.pageblocks, found.end.whole, found.end.tainted), (32, 20, 0));
        assert_eq!(found.end.free_percent, 63);
        assert_eq!(found.moments.first().unwrap().free_percent, 26);
        assert_eq!(found.moments.last().unwrap().free_percent, 99);
        assert_eq!(found.curve.len(), POINTS);
        // What the first holds stays beside what the second does.
        let found = in_a_row(&[&plan, &plan]);
        assert_eq!((found.pageblocks, found.end.free_percent), (64, 63));
        assert!(found.end.whole >= 38, "{:?}", found.end);
    }

    #[test]
    fn what_cannot_be_moved_taints_until_all_of_it_is_freed() {
        let found = |frees: &[u32]| {
            let mut text = format!("a 1 [000] 1.0: mm_page_alloc: pfn=1024 order=1 {UNMOVABLE}\n");
            for pfn in frees {
                text += &format!("a 1 [000] 2.0: mm_page_free: pfn={pfn} order=0\n");
            }
            in_a_row(&[&plan(&text)]).end
        };
        assert_eq!((found(&[]).tainted, found(&[]).whole), (1, 31));
        assert_eq!((found(&[1025]).tainted, found(&[1025]).whole), (1, 31));
        assert_eq!((found(&[1025, 1024]).tainted, found(&[1024, 1025]).whole), (0, 32));
    }
}
