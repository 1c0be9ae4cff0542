//! The question that "Mitigate a vmap lock contention" (Rezki, linux-mm 2024) left open: page
//! tables grow with the number of threads, from 350 MiB with 64 to 5.36 GiB with 256. The cause is
//! the purge worker. It is one thread among the busy ones, so the more there are, the later it
//! runs. What they free meanwhile stays lazy, requests take fresh addresses, and the tables of
//! those stay. The cure (Rezki's follow-up: 267, 665 and 1107 MB became 285, 428 and 507 MB) is a
//! worker of high priority and a cap for pools.
//!
//! Threads take turns here, as a scheduler gives them turns, so that the figures are exact. A
//! worker of their priority has one turn after each thread had one; a prompt worker runs as soon as
//! its work is queued.

use pagedepot::Pfn;
use pagedepot_lab_designs::vmap::{Nodes, PurgedBy, VmapDesign, VmapSetup};

use super::paper::{CALLERS, Paper, run_on};

const CPUS: u32 = 4;
/// Areas mapped and unmapped in a turn.
const TURN: u32 = 32;
const ROUNDS: u32 = 12;
/// Freed pages at which a purge is due: about what 5 turns free.
const LAZY_PAGES_MAX: u64 = 3200;

/// Page tables after as many threads have mapped and unmapped areas of 1 to 40 pages.
fn tables(threads: u32, is_prompt: bool, pool_areas_max: Option<u32>) -> u64 {
    let paper = Paper::new(1 << 18, 0);
    let setup = VmapSetup {
        lazy_pages_max: Some(LAZY_PAGES_MAX),
        purged_by: PurgedBy::Worker,
        pool_areas_max,
        ..VmapSetup::new(CPUS)
    };
    // SAFETY: one paper for both, and for this design alone.
    let mut nodes = unsafe { Nodes::new(setup, &paper, &paper) };
    let frames: Vec<Pfn> = (CALLERS..CALLERS + 40).map(Pfn::new).collect();
    let mut random = fastrand::Rng::with_seed(7);
    for _ in 0..ROUNDS {
        for thread in 0..threads {
            run_on(thread % CPUS);
            for _ in 0..TURN {
                let pages = random.u32(1..=40);
                let start = nodes.map_ram(&frames[..pages as usize]).expect("there is room");
                nodes.unmap_ram(start, pages).expect("it was mapped");
                if is_prompt {
                    nodes.work();
                }
            }
        }
        nodes.work();
    }
    let counts = nodes.counts();
    nodes.purge();
    nodes.validate().unwrap();
    counts.tables
}

/// The figures: `cargo test -p pagedepot-lab-designs --test vmap page_tables_grow -- --nocapture`.
#[test]
fn page_tables_grow_while_the_worker_lags_and_do_not_with_a_prompt_one() {
    let threads = [16, 32, 64];
    let lagging = threads.map(|threads| tables(threads, false, None));
    let cured = threads.map(|threads| tables(threads, true, Some(8)));
    println!("threads {threads:?}: tables {lagging:?}, with a prompt worker and a cap {cured:?}");
    for at in 0..2 {
        assert!(lagging[at + 1] * 2 > lagging[at] * 3, "twice the threads: {lagging:?}");
        assert!(cured[at + 1] * 4 < cured[at] * 5, "twice the threads: {cured:?}");
    }
    assert!(cured[2] * 4 < lagging[2], "{cured:?}, {lagging:?}");
}

/// Each half of the cure by itself. The worker is what matters; a cap helps a little beside a
/// worker that lags, because pools then hold less that no request asks for, and nothing beside a
/// prompt one.
#[test]
fn the_prompt_worker_matters_most() {
    let [both, prompt, capped, none] =
        [(true, Some(8)), (true, None), (false, Some(8)), (false, None)]
            .map(|(is_prompt, cap)| tables(32, is_prompt, cap));
    println!("32 threads: both {both}, prompt {prompt}, capped {capped}, none {none}");
    assert!(both <= prompt && 2 * prompt < capped && capped < none);
}
