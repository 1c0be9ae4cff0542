//! `producer-consumer`: pages allocated on one CPU and freed on another, as network buffers are.

use std::time::Instant;

use super::{Settings, Workload, samples_of};
use crate::design::{self, Design, Subject, WithSubject};
use crate::failure::Failure;
use crate::harness::ring::Ring;
use crate::harness::{Contender, Seat};
use crate::report::rows::{Metric, Params};
use crate::report::{Report, table};

const NAME: &str = "producer-consumer";
const FRAME: Metric = ("frame_ns", "ns");

/// Frames under way at most.
const RING_SLOTS: u32 = 4096;
/// Frames that one side moves before it tells the other: what that costs is the ring's, not the
/// allocator's.
const PUBLISHED_AT_ONCE: u32 = 512;

struct Pair<S: Subject> {
    subject: S,
    ring: Ring<S::Block>,
}

impl<S: Subject> Contender<1> for Pair<S> {
    fn design(&self) -> Design {
        S::DESIGN
    }

    fn enter(&self) {
        self.subject.enter();
    }

    fn leave(&self) {
        self.subject.leave();
    }

    fn drain_all(&self) {
        self.subject.drain_all();
    }

    fn check(&mut self) -> Result<(), String> {
        self.subject.check()
    }

    fn window(&self, seat: Seat, units: u64) -> [f64; 1] {
        let start = Instant::now();
        if seat.index == 0 {
            self.ring.produce(units, || design::alloc::<S, 0>(&self.subject));
        } else {
            self.ring.consume(units, |block| self.subject.free::<0>(block));
        }
        [start.elapsed().as_nanos() as f64 / units as f64]
    }

    /// It takes as long as the slower side.
    fn combine(&self, seats: &[[f64; 1]]) -> [f64; 1] {
        [seats.iter().map(|seat| seat[0]).fold(0.0, f64::max)]
    }
}

struct ToContender;

impl WithSubject for ToContender {
    type Output = Box<dyn Contender<1>>;

    fn with<S: Subject + 'static>(self, subject: S) -> Self::Output {
        Box::new(Pair { subject, ring: Ring::new(RING_SLOTS, PUBLISHED_AT_ONCE) })
    }
}

/// Measures it, on the first two CPUs.
pub fn run(settings: &Settings) -> Result<Report, Failure> {
    if settings.cpus.len() < 2 {
        return Err(Failure::Usage(format!(
            "`bench {NAME}` needs two CPUs: give --cpus 2, or run it where there are two"
        )));
    }
    let demand = settings.demand(2, 2 * RING_SLOTS, 1);
    let mut contenders = Vec::new();
    for design in settings.designs(Workload::ProducerConsumer)? {
        contenders.push(design::make(design, &demand, ToContender)?);
    }
    let series = settings.interleave(NAME, &mut contenders, 2, settings.schedule())?;
    let mut report = Report::default();
    let mut table = table::new(["design", "ns per page", "quartiles", "x floor-tls"]);
    for one in &series {
        let samples = &one.samples[0];
        report.add(NAME, one.design, FRAME, (2, &Params::new()), samples);
        let floor = samples_of(&series, Design::FloorTls, 0);
        let cells =
            [table::median(samples), table::quartiles(samples), table::ratio(samples, floor)];
        table.add_row([one.design.name().to_owned()].into_iter().chain(cells));
    }
    report.say(format!(
        "{NAME}: allocated on one CPU, freed on another (floors have no store, so theirs is the cost of the ring){}",
        settings.caveat()
    ));
    report.say(table::align(table, 1));
    Ok(report)
}
