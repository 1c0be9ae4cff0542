//! `ring-stream`: buffers of order 3 that a sender fills and a receiver on another CPU reads and
//! frees, handed over through a ring in memory: netperf's UDP_STREAM and SCTP_STREAM_MANY without
//! sockets and their copies, so that nothing hides the allocator. [`netperf`](super::netperf) has
//! the sockets. `--tune` varies the policy, the working set and the number of streams.

use super::streams::{
    Case, Exchange, SCTP_BYTES, Shape, Through, UDP_BYTES, policies, report, sctp_streams,
};
use pagedepot_cli::failure::Failure;
use pagedepot_cli::names::Design;
use pagedepot_cli::report::Report;
use pagedepot_cli::report::rows::Metric;
use pagedepot_cli::workloads::settings::Settings;
use pagedepot_cli::workloads::workload::Workload;

/// The workload `ring-stream`.
pub const WORKLOAD: Workload = Workload { tunes: true, ..Workload::new(NAME, Design::PAGED, run) };

const NAME: &str = "ring-stream";

const METRICS: [Metric; 2] = [("buffers_per_s", "1/s"), ("mib_per_s", "MiB/s")];
static UDP_STREAM: Exchange =
    Exchange { name: "udp-stream", through: Through::Ring, metrics: METRICS };
static SCTP_MANY: Exchange =
    Exchange { name: "sctp-many", through: Through::Ring, metrics: METRICS };

/// Buffers in flight per stream: what a receiver lags behind before its sender waits.
const IN_FLIGHT: u32 = 64;
const TUNED_IN_FLIGHT: [u32; 3] = [16, 64, 256];

/// The exchanges with their shapes.
fn exchanges(cpus: usize) -> [(&'static Exchange, Shape); 2] {
    let shape = |streams, bytes| Shape { streams, in_flight: IN_FLIGHT, bytes };
    [(&UDP_STREAM, shape(1, UDP_BYTES)), (&SCTP_MANY, shape(sctp_streams(cpus), SCTP_BYTES))]
}

fn run(settings: &Settings) -> Result<Report, Failure> {
    settings.need_two_cpus(NAME)?;
    let designs = settings.designs(NAME, WORKLOAD.designs)?;
    let mut cases = Vec::new();
    for (exchange, shape) in exchanges(settings.cpus.len()) {
        let shapes = if settings.tune { shapes_to_tune(shape) } else { vec![shape] };
        for shape in shapes {
            let case = |design, policy| Case { exchange, shape, design, policy };
            for &design in &designs {
                let policies = if settings.tune { policies(settings, design) } else { vec![None] };
                cases.extend(policies.into_iter().map(|policy| case(design, policy)));
            }
        }
    }
    let what = format!(
        "a sender fills {} KiB (sctp-many: {}) of each buffer, a receiver on another CPU reads \
         and frees it",
        UDP_BYTES >> 10,
        SCTP_BYTES >> 10
    );
    report(settings, (NAME, &what), &cases)
}

/// Streams up to one for each CPU: then every CPU sends and receives.
fn shapes_to_tune(shape: Shape) -> Vec<Shape> {
    let streams = [shape.streams, 2 * shape.streams];
    let with = |streams| TUNED_IN_FLIGHT.map(|in_flight| Shape { streams, in_flight, ..shape });
    streams.into_iter().flat_map(with).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quarter_of_the_cpus_are_streams_and_at_least_one() {
        let streams = |cpus| exchanges(cpus).map(|(_, shape)| shape.streams);
        assert_eq!([2, 7, 8, 64].map(streams), [[1, 1], [1, 1], [1, 2], [1, 16]]);
    }

    #[test]
    fn every_ring_that_is_tuned_has_a_size_that_rings_have() {
        for (_, shape) in exchanges(8) {
            let shapes = shapes_to_tune(shape);
            assert!(shapes.iter().all(|shape| shape.in_flight.is_power_of_two()));
            assert_eq!(shapes.len(), 6);
        }
    }
}
