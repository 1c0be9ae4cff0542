//! `producer-consumer`: pages allocated on one CPU and freed on another, as network buffers are.

use std::time::Instant;

use super::settings::{Settings, show_against};
use super::workload::Workload;
use crate::design::dispatch::with_design;
use crate::design::{self, Allocator};
use crate::failure::Failure;
use crate::harness::ring::Ring;
use crate::harness::{Contender, Seat, Subject};
use crate::names::Design;
use crate::report::Report;
use crate::report::rows::{Metric, Params};

const NAME: &str = "producer-consumer";

/// See the module.
pub const WORKLOAD: Workload = Workload::new(NAME, Design::BLOCKS, run);

const FRAME: Metric = ("frame_ns", "ns");

/// Frames under way at most.
const RING_SLOTS: u32 = 4096;
/// Frames that one side moves before it tells the other: what that costs is the ring's, not the
/// allocator's.
const PUBLISHED_AT_ONCE: u32 = 512;

struct Passing<A: Allocator> {
    allocator: A,
    ring: Ring<A::Block>,
}

impl<A: Allocator> Contender<1> for Passing<A> {
    fn subject(&self) -> &dyn Subject {
        &self.allocator
    }

    fn owned_subject(&mut self) -> Option<&mut dyn Subject> {
        Some(&mut self.allocator)
    }

    fn window(&self, seat: Seat, units: u64) -> [f64; 1] {
        let start = Instant::now();
        if seat.index == 0 {
            self.ring.produce(units, || design::alloc::<A, 0>(&self.allocator));
        } else {
            self.ring.consume(units, |block| self.allocator.free::<0>(block));
        }
        [start.elapsed().as_nanos() as f64 / units as f64]
    }

    /// It takes as long as the slower side.
    fn combine(&self, seats: &[[f64; 1]]) -> [f64; 1] {
        [seats.iter().map(|seat| seat[0]).fold(0.0, f64::max)]
    }
}

/// Measures it, on the first two CPUs.
fn run(settings: &Settings) -> Result<Report, Failure> {
    settings.need_two_cpus(NAME)?;
    let demand = settings.demand(2, 2 * RING_SLOTS, 1);
    let mut contenders: Vec<Box<dyn Contender<1>>> = Vec::new();
    for design in settings.designs(NAME, WORKLOAD.designs)? {
        contenders.push(with_design!(any design, &demand, |allocator| -> Box<dyn Contender<1>> {
            let ring = Ring::new(RING_SLOTS, PUBLISHED_AT_ONCE);
            Box::new(Passing { allocator, ring })
        })?);
    }
    let series = settings.interleave(NAME, &mut contenders, 2, settings.schedule())?;
    let mut report = Report::default();
    for one in &series {
        report.add(NAME, one.design, FRAME, (2, &Params::new()), &one.samples[0]);
    }
    report.say(format!(
        "{NAME}: allocated on one CPU, freed on another (floors have no store, so theirs is the \
         cost of the ring){}",
        settings.caveat()
    ));
    report.say(show_against(&series, "ns per page", Design::FloorTls));
    Ok(report)
}
