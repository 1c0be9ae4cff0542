//! `soak`: does a design ever lose a page, or hand one out twice? First touches as in `pft`, in a
//! loop, with drains forced behind them, for as long as the user likes.
//!
//! Clients on all CPUs take memory until it is used up, write a number of their own into each page,
//! and look whether it is still there before they free it: on their CPU or another, one by one or
//! in batches. A drainer takes back what CPUs cache, by turns all of it or one CPU's, quietly or
//! fully. Designs take turns of some seconds; after each turn their metadata must balance.

mod client;
pub mod options;

use std::num::NonZeroU32;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use pagedepot::{CpuId, Mode, Pfn};

use self::client::{Common, SoakClient};
use crate::design::dispatch::with_design;
use pagedepot_cli::design::{Allocator, Demand};
use pagedepot_cli::failure::Failure;
use pagedepot_cli::harness::{cpus, stop};
use pagedepot_cli::names::Design;
use pagedepot_cli::report::rows::{Metric, params};
use pagedepot_cli::report::{Progress, Report, counted, table};

const NAME: &str = "soak";
const METRICS: [Metric; 5] = [
    ("pages", "pages"),
    ("used_up", "1"),
    ("drains", "1"),
    ("drained_pages", "pages"),
    ("lost_pages", "pages"),
];

/// Pages of each design: few, so that they are used up often.
const PAGES: u64 = 1 << 14;
/// Length of a design's turn, unless the whole soak is shorter.
const TURN: Duration = Duration::from_secs(5);

/// Designs to soak, and the time.
#[derive(Clone, Debug)]
pub struct Soak {
    pub designs: Vec<Design>,
    pub demand: Demand,
    pub time: Duration,
    pub drains_per_s: NonZeroU32,
    pub seed: u64,
}

/// Counts of a design's turn.
#[derive(Clone, Copy, Debug)]
struct TurnTally {
    pages: u64,
    used_up: u64,
    drains: u64,
    drained_pages: u64,
}

impl Soak {
    /// Soaks the designs in turns until time is up.
    ///
    /// # Errors
    /// When a design lost a page, has one twice, or cannot run here.
    pub fn run(&self) -> Result<Report, Failure> {
        cpus::check_seats(&self.demand.cpus)?;
        let turn = TURN.min(self.time / self.designs.len() as u32);
        let turns = self.time.as_secs_f64() / turn.as_secs_f64();
        let step = Progress::on_stderr().task(NAME, turns.ceil() as u64);
        let mut tallies = vec![Vec::new(); self.designs.len()];
        let start = Instant::now();
        let mut nth = 0;
        while !stop::is_asked() && (nth < self.designs.len() || start.elapsed() < self.time) {
            let at = nth % self.designs.len();
            let design = self.designs[at];
            let seed = self.seed.wrapping_add(nth as u64);
            let turn = Turn { soak: self, seed, end: Instant::now() + turn };
            let demand = Demand { memory_pages: Some(PAGES), ..self.demand.clone() };
            let found = with_design!(
                paged design, &demand, |allocator| -> Result<TurnTally, String> {
                    turn.run(allocator)
                }
            )?;
            tallies[at].push(found.map_err(|fault| {
                let seed = self.seed;
                Failure::Run(format!(
                    "{design}, turn {nth}, seed {seed}: {fault}: please report it"
                ))
            })?);
            nth += 1;
            step.tick();
        }
        drop(step);
        Ok(self.report(&tallies))
    }

    /// Rows with a sample for each turn, since designs may have had different numbers of turns, and
    /// a table of sums.
    fn report(&self, tallies: &[Vec<TurnTally>]) -> Report {
        let mut report = Report::default();
        let headings = [
            "design",
            "turns",
            "pages touched",
            "memory used up",
            "drains",
            "pages drained",
            "lost",
        ];
        let mut table = table::new(headings);
        for (&design, turns) in self.designs.iter().zip(tallies) {
            let mut params = params([("drains_per_s", self.drains_per_s.get().into())]);
            params.extend(self.demand.variant.params(design));
            let mut cells = vec![design.name().to_owned(), turns.len().to_string()];
            for (nth, metric) in METRICS.into_iter().enumerate() {
                let counts = || turns.iter().map(|turn| turn.counts()[nth]);
                let samples: Vec<f64> = counts().map(|count| count as f64).collect();
                report.add(NAME, design, metric, (self.demand.cpus.len(), &params), &samples);
                cells.push(counts().sum::<u64>().to_string());
            }
            table.add_row(cells);
        }
        report.say(format!(
            "{NAME}: memory used up by clients on {}, {} drains per second; every page had its \
             owner's number when it was freed, and the metadata balanced after each turn",
            counted(self.demand.cpus.len(), "CPU"),
            self.drains_per_s
        ));
        report.say(table::align(table, 1));
        report
    }
}

impl TurnTally {
    /// Counts in the order of [`METRICS`]. Lost pages end the run.
    fn counts(&self) -> [u64; METRICS.len()] {
        [self.pages, self.used_up, self.drains, self.drained_pages, 0]
    }
}

/// A design's turn.
struct Turn<'s> {
    soak: &'s Soak,
    seed: u64,
    end: Instant,
}

impl Turn<'_> {
    fn run<A: Allocator<Block = Pfn>>(self, mut allocator: A) -> Result<TurnTally, String> {
        let common = Common::new(self.soak.demand.cpus.len());
        let (drains, drained_pages) = self.threads(&allocator, &common)?;
        for mailbox in common.mailboxes {
            for block in mailbox.into_inner().unwrap_or_else(PoisonError::into_inner) {
                client::check(&allocator, block)?;
                allocator.free_block(block.pfn, block.order);
            }
        }
        allocator.check()?;
        let (pages, used_up) = (common.pages.into_inner(), common.used_up.into_inner());
        if pages == 0 {
            return Err("no request found memory".to_owned());
        }
        Ok(TurnTally { pages, used_up, drains, drained_pages })
    }

    /// Runs clients and the drainer. Returns the number of drains and of pages that they took.
    fn threads<A: Allocator<Block = Pfn>>(
        &self,
        allocator: &A,
        common: &Common,
    ) -> Result<(u64, u64), String> {
        let cpus = &self.soak.demand.cpus;
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            let clients: Vec<_> = (0..)
                .zip(cpus)
                .map(|(index, &cpu)| {
                    let random =
                        fastrand::Rng::with_seed(self.seed.wrapping_mul(31) + index as u64);
                    let client = SoakClient { allocator, common, index, random };
                    scope.spawn(move || client.run(cpu, self.end))
                })
                .collect();
            let drainer = scope.spawn(|| self.drain(allocator, &done));
            let ended: Vec<_> = clients.into_iter().map(thread::ScopedJoinHandle::join).collect();
            // Relaxed: nothing else depends on it.
            done.store(true, Ordering::Relaxed);
            let drained = drainer.join().map_err(|_| "a drain panicked".to_owned());
            for client in ended {
                client.map_err(|_| "a client panicked".to_owned())??;
            }
            drained
        })
    }

    /// Drains from the last CPU, beside its client, until `done`.
    fn drain<A: Allocator<Block = Pfn>>(&self, allocator: &A, done: &AtomicBool) -> (u64, u64) {
        let cpus = &self.soak.demand.cpus;
        cpus::pin(*cpus.last().expect("one CPU at least"));
        let period = Duration::from_secs(1) / self.soak.drains_per_s.get();
        let scopes = || [None].into_iter().chain(cpus.iter().copied().map(Some));
        let kinds: Vec<(Option<CpuId>, Mode)> = scopes()
            .flat_map(|scope| [Mode::Quiet, Mode::Handover, Mode::Full].map(|mode| (scope, mode)))
            .collect();
        let (mut drains, mut pages) = (0, 0);
        loop {
            let (scope, mode) = kinds[drains as usize % kinds.len()];
            pages += allocator.drain(scope, mode).unwrap_or_default().taken_pages;
            drains += 1;
            if done.load(Ordering::Relaxed) {
                return (drains, pages);
            }
            thread::sleep(period);
        }
    }
}

#[cfg(test)]
mod tests {
    use pagedepot::{Mobility, Order};
    use pagedepot_cli::report::document::ResultRow;

    use super::*;

    fn soak(designs: &[Design]) -> Soak {
        Soak {
            designs: designs.to_vec(),
            demand: Demand { cpus: vec![CpuId::new(0)], ..Demand::default() },
            time: Duration::from_millis(1),
            drains_per_s: NonZeroU32::MAX,
            seed: 1,
        }
    }

    #[test]
    fn designs_are_compared_by_turns_and_not_by_their_number() {
        let tally = TurnTally { pages: 700, used_up: 3, drains: 5, drained_pages: 9 };
        let report = soak(&[Design::Depot, Design::Spin]).report(&[vec![tally; 2], vec![tally]]);
        let rows: Vec<ResultRow> = report.rows().into_iter().map(ResultRow::from).collect();
        let said = pagedepot_cli::conclusion::sentences(&rows).concat();
        assert!(said.contains(" 700 pages, 1.0 times as many"), "{said}");
        let pages = report.rows().into_iter().filter(|row| row.metric == "pages");
        assert_eq!(pages.map(|row| row.samples.len()).collect::<Vec<_>>(), [2, 1]);
    }

    /// A design that has no memory.
    struct NoMemory;

    impl Allocator for NoMemory {
        const DESIGN: Design = Design::Spin;
        type Block = Pfn;

        fn new(_demand: &Demand) -> Result<Self, Failure> {
            Ok(NoMemory)
        }

        fn alloc<const ORDER: u32>(&self) -> Option<Pfn> {
            None
        }

        fn free<const ORDER: u32>(&self, block: Pfn) {
            unreachable!("it handed out no {block}");
        }

        fn alloc_block(&self, _order: Order, _mobility: Mobility) -> Option<Pfn> {
            None
        }

        fn free_many(&self, blocks: &[(Pfn, Order)]) {
            assert!(blocks.is_empty(), "it handed out none");
        }
    }

    #[test]
    fn a_design_without_memory_fails() {
        let soak = soak(&[Design::Spin]);
        let turn = Turn { soak: &soak, seed: 1, end: Instant::now() };
        let fault = turn.run(NoMemory).unwrap_err();
        assert!(fault.contains("no request found memory"), "{fault}");
    }
}
