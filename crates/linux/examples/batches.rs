//! The cost of a page one by one and 64 in a call: by a thread alone, as an owned page or as a
//! number, and from a thread that allocates to one that frees. Beside them a vector of numbers
//! behind a lock that is taken once for 64, which is all that one thread needs.
//!
//! `cargo run --release -p pagedepot-linux --example batches [PAGES]`

use std::hint::black_box;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::Instant;

use pagedepot_linux::raw::Pfn;
use pagedepot_linux::{AllocError, Depot, Flags, Order, Page};

const PAGES_DEFAULT: usize = 20_000_000;
const BATCH: usize = 64;
/// Number of windows, of which the median is printed. The two kinds take turns, so that other work
/// meets both.
const WINDOWS: usize = 31;
/// Vectors on their way between the threads.
const ON_THE_WAY: usize = 100;

type Pages = Vec<Page>;
type Run = fn(&Depot, Kind, usize) -> Result<(), AllocError>;

#[derive(Clone, Copy)]
enum Kind {
    Single,
    Batch,
}

impl Kind {
    fn alloc(self, depot: &Depot, into: &mut Pages) -> Result<(), AllocError> {
        match self {
            Kind::Single => {
                for _ in 0..BATCH {
                    into.push(depot.page(Order::BASE)?);
                }
            }
            Kind::Batch => {
                depot.alloc_pages_into(Order::BASE, BATCH, into)?;
            }
        }
        Ok(())
    }

    fn free(self, depot: &Depot, pages: &mut Pages) {
        match self {
            Kind::Single => pages.clear(),
            Kind::Batch => depot.free_pages(pages.drain(..)),
        }
    }
}

/// One thread allocates and frees.
fn alone(depot: &Depot, kind: Kind, batches: usize) -> Result<(), AllocError> {
    let mut pages = Vec::with_capacity(BATCH);
    for _ in 0..batches {
        kind.alloc(depot, &mut pages)?;
        kind.free(depot, &mut pages);
    }
    Ok(())
}

/// One thread allocates, another frees; empty vectors come back.
fn across(depot: &Depot, kind: Kind, batches: usize) -> Result<(), AllocError> {
    let (full_in, full_out): (SyncSender<Pages>, Receiver<Pages>) = sync_channel(ON_THE_WAY);
    let (empty_in, empty_out) = sync_channel(ON_THE_WAY);
    for _ in 0..ON_THE_WAY {
        empty_in.send(Vec::with_capacity(BATCH)).expect("the other end is here");
    }
    thread::scope(|scope| {
        scope.spawn(move || {
            for mut pages in full_out {
                kind.free(depot, &mut pages);
                // The last ones find no receiver.
                let _ = empty_in.send(pages);
            }
        });
        // Both ends go with this closure: the thread ends when nothing more comes.
        let (full_in, empty_out) = (full_in, empty_out);
        for _ in 0..batches {
            let mut pages = empty_out.recv().expect("it ends after this thread");
            kind.alloc(depot, &mut pages)?;
            full_in.send(pages).expect("it ends after this thread");
        }
        Ok(())
    })
}

/// One thread allocates and frees numbers.
fn numbers(depot: &Depot, kind: Kind, batches: usize) -> Result<(), AllocError> {
    let (raw, flags) = (depot.raw(), Flags::default());
    let mut blocks = [Pfn::new(0); BATCH];
    for _ in 0..batches {
        let mut got = 0;
        while got < BATCH {
            got += match kind {
                Kind::Batch => raw.alloc_many(Order::BASE, flags, &mut blocks[got..])?,
                Kind::Single => {
                    blocks[got] = raw.alloc(Order::BASE, flags)?;
                    1
                }
            };
        }
        black_box(&blocks);
        // SAFETY: allocated above with this order, freed once, and not used.
        let freed = unsafe {
            match kind {
                Kind::Batch => raw.free_many(Order::BASE, &blocks).is_ok(),
                Kind::Single => blocks.iter().all(|&pfn| raw.free(pfn, Order::BASE).is_ok()),
            }
        };
        assert!(freed, "the blocks were the depot's");
    }
    Ok(())
}

/// One thread takes numbers from a vector behind a lock, and puts them back.
fn vector(_: &Depot, kind: Kind, batches: usize) -> Result<(), AllocError> {
    let list = Mutex::new((0..64 * BATCH).collect::<Vec<_>>());
    let lock = || list.lock().expect("no holder panics");
    let mut numbers = Vec::with_capacity(BATCH);
    for _ in 0..batches {
        match kind {
            Kind::Single => (0..BATCH).for_each(|_| numbers.extend(lock().pop())),
            Kind::Batch => {
                let mut list = lock();
                let first = list.len() - BATCH;
                numbers.extend(list.drain(first..));
            }
        }
        black_box(&numbers);
        match kind {
            Kind::Single => numbers.drain(..).for_each(|number| lock().push(number)),
            Kind::Batch => lock().append(&mut numbers),
        }
    }
    Ok(())
}

/// Medians of both kinds, in nanoseconds a page.
fn measure(depot: &Depot, batches: usize, run: Run) -> Result<[f64; 2], AllocError> {
    let mut windows = [Vec::new(), Vec::new()];
    for _ in 0..WINDOWS {
        for (kind, windows) in [Kind::Single, Kind::Batch].into_iter().zip(&mut windows) {
            let begin = Instant::now();
            run(depot, kind, batches)?;
            windows.push(begin.elapsed().as_secs_f64() * 1e9 / (batches * BATCH) as f64);
        }
    }
    Ok(windows.map(|mut windows| {
        windows.sort_by(f64::total_cmp);
        windows[WINDOWS / 2]
    }))
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let pages = std::env::args().nth(1).map_or(Ok(PAGES_DEFAULT), |pages| pages.parse())?;
    let batches = (pages / BATCH / WINDOWS).max(1);
    let depot = Depot::new(64 << 20)?;
    let kinds: [(&str, Run); 4] = [
        ("pages, by one thread", alone),
        ("numbers, by one thread", numbers),
        ("numbers of a vector behind a lock", vector),
        ("pages, from thread to thread", across),
    ];
    for (what, run) in kinds {
        let [single, batch] = measure(&depot, batches, run)?;
        println!("{what}: {single:.1} ns a page one by one, {batch:.1} ns {BATCH} in a call");
    }
    Ok(())
}
