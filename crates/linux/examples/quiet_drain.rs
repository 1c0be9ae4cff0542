//! The promise, on this machine: a thread that allocates and frees without pause, and another that
//! takes back what its CPU caches, a thousand times a second, without stopping it once.
//!
//! `cargo run --release -p pagedepot-linux --example quiet_drain [DRAINS]`
#![forbid(unsafe_code)]

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use pagedepot_linux::{Depot, DrainResult, Mode, Order, Scope};

const DRAINS_DEFAULT: u32 = 2000;
const BURST: usize = 512;

/// Nanoseconds per page of a thread of bursts.
struct Paces(Vec<f64>);

impl Paces {
    fn show(&mut self, what: &str) {
        self.0.sort_unstable_by(f64::total_cmp);
        let at = |quantile: f64| self.0[((self.0.len() - 1) as f64 * quantile) as usize];
        println!("{what}: {:.1} ns a page, in 99 of 100 bursts at most {:.1}", at(0.5), at(0.99));
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let drains = std::env::args().nth(1).map_or(Ok(DRAINS_DEFAULT), |drains| drains.parse())?;
    let depot = Depot::new(256 << 20)?;
    println!("fronts: {:?}", depot.fronts());
    let (mut alone, _) = run(&depot, drains, None);
    alone.show("left alone");
    for mode in [Mode::Quiet, Mode::Full] {
        let (mut drained, sum) = run(&depot, drains, Some(mode));
        drained.show(if mode == Mode::Quiet { "drained quietly" } else { "drained fully" });
        println!(
            "  {drains} drains took {} pages; CPUs stopped by a fence: {}; out of reach at the \
             end: {} pages",
            sum.taken_pages, sum.fences, sum.unreachable_pages
        );
    }
    Ok(())
}

/// Works until `drains` drains are done, or as long without any.
fn run(depot: &Depot, drains: u32, mode: Option<Mode>) -> (Paces, DrainResult) {
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let owner = scope.spawn(|| work(depot, &done));
        let mut sum = DrainResult::default();
        for _ in 0..drains {
            thread::sleep(Duration::from_millis(1));
            if let Some(mode) = mode {
                let drained = depot.drain(Scope::ALL, mode);
                sum.taken_pages += drained.taken_pages;
                sum.fences += drained.fences;
                sum.unreachable_pages = drained.unreachable_pages;
            }
        }
        // Relaxed: it says no more than to stop.
        done.store(true, Ordering::Relaxed);
        (owner.join().expect("the owner ends"), sum)
    })
}

/// Allocates and frees bursts of pages, one at least; returns each burst's time per page.
fn work(depot: &Depot, done: &AtomicBool) -> Paces {
    let mut paces = Vec::new();
    let mut held = Vec::with_capacity(BURST);
    loop {
        let start = Instant::now();
        for _ in 0..BURST {
            held.push(depot.page(Order::BASE).expect("256 MiB are enough"));
        }
        held.clear();
        paces.push(start.elapsed().as_nanos() as f64 / BURST as f64);
        if done.load(Ordering::Relaxed) {
            return Paces(paces);
        }
    }
}
