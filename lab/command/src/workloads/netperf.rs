//! `netperf`: UDP_STREAM, and an exchange like SCTP_STREAM_MANY, over sockets of this machine, with
//! buffers of order 3 from each design. A sender allocates a buffer, fills it and sends what is in
//! it; the receiver reads the message into a buffer of its own, checks it, and frees the sender's
//! buffer on its own CPU. So one CPU only allocates and the other only frees, as the kernel's CPUs
//! do with the pages of socket buffers when netperf runs on one machine.
//!
//! What a CPU may cache that only frees (`--free-high`) is limited to nothing, a batch, 4 batches
//! and `high` in turn, for each design that has such a limit: the thread "netperf -18.0%
//! regression" (2022) found that the first gains on one machine and loses on another.
//! [`ring-stream`](super::ring_stream) is the same without sockets; [`streams`](super::streams)
//! says which sockets.

use super::streams::{
    Case, Exchange, IN_FLIGHT, SCTP_BYTES, Shape, Through, UDP_BYTES, policies, report,
    sctp_streams,
};
use pagedepot_cli::failure::Failure;
use pagedepot_cli::names::Design;
use pagedepot_cli::report::Report;
use pagedepot_cli::workloads::settings::Settings;
use pagedepot_cli::workloads::workload::Workload;

/// The workload `netperf`.
pub const WORKLOAD: Workload = Workload::new(NAME, Design::PAGED, run);

const NAME: &str = "netperf";

static UDP_STREAM: Exchange = Exchange {
    name: "udp-stream",
    through: Through::Udp,
    metrics: [("udp_stream_messages_per_s", "1/s"), ("udp_stream_mib_per_s", "MiB/s")],
};
static SCTP_MANY: Exchange = Exchange {
    name: "sctp-many",
    through: Through::ManySockets,
    metrics: [("sctp_many_messages_per_s", "1/s"), ("sctp_many_mib_per_s", "MiB/s")],
};

fn run(settings: &Settings) -> Result<Report, Failure> {
    settings.need_two_cpus(NAME)?;
    let designs = settings.designs(NAME, WORKLOAD.designs)?;
    let shape = |streams, bytes| Shape { streams, in_flight: IN_FLIGHT, bytes };
    let exchanges = [
        (&UDP_STREAM, shape(1, UDP_BYTES)),
        (&SCTP_MANY, shape(sctp_streams(settings.cpus.len()), SCTP_BYTES)),
    ];
    let mut cases = Vec::new();
    for (exchange, shape) in exchanges {
        for &design in &designs {
            let case = |policy| Case { exchange, shape, design, policy };
            cases.extend(policies(settings, design).into_iter().map(case));
        }
    }
    let what = format!(
        "messages of {} KiB over UDP, and of {} KiB over Unix sockets in place of SCTP, from \
         buffers that the receiver frees",
        UDP_BYTES >> 10,
        SCTP_BYTES >> 10
    );
    report(settings, (NAME, &what), &cases)
}
