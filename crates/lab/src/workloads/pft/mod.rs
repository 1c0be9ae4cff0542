//! `pft`: page faults that each design serves. Clients touch pages of a range that has none, until
//! their share is used up, then give all of them back (mmtests' Page Fault Test).
//!
//! # How a fault is served
//! The range and the design's memory are registered with one `userfaultfd`. The thread that
//! touches a missing page gets `SIGBUS` itself (`UFFD_FEATURE_SIGBUS`). Its handler allocates a
//! zeroed page from the design, and `UFFDIO_MOVE` takes the page out of the design's memory and
//! puts it where the fault was: the design's own frame becomes the page, without a copy. Then the
//! touch is repeated. When a client is done, each page moves back to its frame, and the frames are
//! freed. While a frame's page is away, a touch of it through the design's memory ends the command.
//!
//! A handler thread would add a wake-up of that thread and one of the client to each fault, and
//! allocate on its own CPU, not on the client's. `UFFDIO_COPY` would have the kernel allocate a
//! second page, and `UFFDIO_CONTINUE` maps only what a file has at the very offset of the fault.
//!
//! Moving costs more than allocating: each move changes two page tables, and flushes the old
//! address on every CPU that runs this process. That is the same for all designs. The design
//! `kernel` has none of it: its faults are the kernel's own.

mod faults;
mod signal;
mod uffd;

use std::sync::Arc;

use self::faults::Faults;
use self::signal::Handler;
use self::uffd::Userfaultfd;
use super::paging::{Client, Paging};
use super::settings::Settings;
use super::workload::Workload;
use crate::design::dispatch::with_design;
use crate::failure::Failure;
use crate::names::{Design, joined};
use crate::report::Report;

/// See the module.
pub const WORKLOAD: Workload = Workload::new("pft", DESIGNS, run);

/// Designs whose memory is pages of one range, and `kernel`.
const DESIGNS: &[Design] = &joined::<10>(&[Design::PAGED, &[Design::Kernel]]);

/// 128 MiB of 4 KiB pages, or 16 MiB. Twice as much memory, so that the caches of CPUs which fault
/// no more cannot starve those which do.
static PFT: Paging = Paging {
    workload: &WORKLOAD,
    what: "pages that clients fault in, each served from the design, then given back",
    metrics: [("fault_ns", "ns"), ("faults_per_cpu_s", "1/s"), ("faults_per_s", "1/s")],
    headings: ["fault ns", "faults per CPU second", "faults per second"],
    pages: [1 << 15, 1 << 12],
    room: 2,
};

fn run(settings: &Settings) -> Result<Report, Failure> {
    let uffd = Arc::new(Userfaultfd::open()?);
    let _handler = Handler::install();
    PFT.run(settings, &|design, demand, clients, share| {
        with_design!(paged design, demand, |allocator| -> Result<Box<dyn Client>, Failure> {
            let faults = Faults::new(allocator, &uffd, demand.pages(), (clients, share))?;
            Ok(Box::new(faults))
        })?
    })
}
