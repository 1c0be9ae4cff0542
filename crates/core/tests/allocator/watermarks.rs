//! Threads that take all the memory there is, again and again: however far above its watermarks a
//! zone begins, requests leave `min` pages. A request that checks while others do may be mistaken
//! by what they are about to take, a magazine each.

use std::sync::Barrier;

use crate::common::threads::{Kernel, run_on};
use crate::common::{open_zone, range};
use pagedepot::cpus::PinnedCpus;
use pagedepot::{
    AllocError, Allocator, Config, Flags, HighPolicy, Mode, Order, Pfn, Scope, Watermarks,
    ZoneConfig, ZoneId,
};

/// The zone begins three times as far up as its drift mark: four CPUs keep 256 pages each, or 40
/// CPUs 64 pages each, and three groups of them 512.
const FRAMES: u32 = 1 << 16;
const THREADS: usize = 4;
const MARKS: Watermarks = Watermarks { min: 3000, low: 4000, high: 5000 };
/// A magazine, and the page that was asked for.
const TAKEN_AT_ONCE: usize = 65;
const ROUNDS: u32 = 20;

/// Allocates until `most` pages are held, or a request fails.
fn fill(depot: &Allocator<'_, PinnedCpus<Kernel>>, held: &mut Vec<Pfn>, most: usize) {
    while held.len() < most {
        match depot.alloc(Order::BASE, Flags::default()) {
            Ok(pfn) => held.push(pfn),
            Err(AllocError::Exhausted) => return,
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn threads_that_fill_a_zone_leave_its_reserve() {
    fill_again_and_again(4, [0, 1, 2, 3]);
}

/// CPUs of two groups, which keep changes of the zone's count to themselves, too.
#[test]
fn groups_of_cpus_that_fill_a_zone_leave_its_reserve() {
    fill_again_and_again(40, [0, 1, 16, 17]);
}

/// Threads on `used`, of a machine with `cpus` CPUs.
fn fill_again_and_again(cpus: u32, used: [u32; THREADS]) {
    let ranges = [range(0, FRAMES)];
    let zones = [ZoneConfig { watermarks: Some(MARKS), ..open_zone("z", &ranges) }];
    let config = Config { high: HighPolicy::Fixed(512), ..Config::new(cpus, &zones) };
    let mut memory = crate::common::metadata(&config);
    let mut depot = Allocator::new(&config, &mut memory, PinnedCpus(Kernel::new(cpus))).unwrap();
    for round in 0..ROUNDS {
        // Every second round the reserve grows while CPUs take from it.
        let more = if round % 2 == 1 { 1000 } else { 0 };
        let Watermarks { min, low, high } = MARKS;
        let together = Barrier::new(THREADS);
        let held: usize = std::thread::scope(|scope| {
            let threads: Vec<_> = used
                .iter()
                .map(|&cpu| {
                    let (depot, together) = (&depot, &together);
                    scope.spawn(move || {
                        run_on(Some(cpu));
                        let mut held = Vec::new();
                        together.wait();
                        if cpu == 0 {
                            let settings = depot.settings(ZoneId::new(0)).unwrap();
                            let marks =
                                Watermarks { min: min + more, low: low + more, high: high + more };
                            assert!(settings.set_watermarks(marks));
                        }
                        fill(depot, &mut held, FRAMES as usize / 2 / THREADS);
                        // The reserve has grown.
                        together.wait();
                        fill(depot, &mut held, usize::MAX);
                        together.wait();
                        for &pfn in &held {
                            depot.free(pfn, Order::BASE).unwrap();
                        }
                        held.len()
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        let most = FRAMES as usize - (min + more) as usize;
        let race = THREADS * TAKEN_AT_ONCE;
        assert!(held <= most + race, "{held} pages held, {most} are above the reserve");
        assert!(held + race >= most, "{held} pages held, of {most}: requests failed too early");
        depot.drain(Scope::ALL, Mode::Full);
        assert_eq!(depot.validate().unwrap().free_pages, u64::from(FRAMES));
    }
}
