//! `pft`: page faults that each design serves. Clients touch pages of a range that has none, until
//! their share is used up, then give all of them back (mmtests' Page Fault Test).
//!
//! # How a fault is served
//! Each frame of a design has one page, its *home*, in memory of this workload's own ([`homes`]).
//! Homes and the clients' ranges are registered with one `userfaultfd`. The thread that touches a
//! missing page gets `SIGBUS` itself (`UFFD_FEATURE_SIGBUS`). Its handler allocates a frame from
//! the design, zeroes the frame's home, and has `UFFDIO_MOVE` put that page where the fault was,
//! without a copy. Then the touch is repeated. When a client is done, each page moves home, and the
//! frames are freed. While a page is away, a touch of the home ends the command.
//!
//! So the design says which frame, and this workload keeps the memory. Pages in the design's memory
//! would have CPUs wait for one page table if their frames are neighbours: see [`homes`].
//!
//! A handler thread would add a wake-up of that thread and one of the client to each fault, and
//! allocate on its own CPU, not on the client's. `UFFDIO_COPY` would have the kernel allocate a
//! second page, and `UFFDIO_CONTINUE` maps only what a file has at the very offset of the fault.
//!
//! Moving costs more than allocating: each move changes two page tables, and flushes the old
//! address on every CPU that runs this process. That is the same for all designs. The design
//! `kernel` has none of it: its faults are the kernel's own.

mod faults;
mod homes;
mod signal;
mod uffd;

use std::cell::RefCell;
use std::sync::Arc;

use self::faults::Faults;
use self::homes::Homes;
use self::signal::Handler;
use self::uffd::Userfaultfd;
use super::paging::{Client, Paging};
use crate::design::dispatch::with_design;
use pagedepot_cli::failure::Failure;
use pagedepot_cli::names::{Design, joined};
use pagedepot_cli::report::Report;
use pagedepot_cli::workloads::settings::Settings;
use pagedepot_cli::workloads::workload::Workload;

/// The workload `pft`.
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
    // The homes.
    memories: |_| 1,
};

fn run(settings: &Settings) -> Result<Report, Failure> {
    let uffd = Arc::new(Userfaultfd::open()?);
    let _handler = Handler::install();
    let shared = RefCell::new(None);
    PFT.run(settings, &|design, demand, clients, share| {
        let homes = homes_for(&mut shared.borrow_mut(), demand.pages(), &uffd)?;
        with_design!(paged design, demand, |allocator| -> Result<Box<dyn Client>, Failure> {
            Ok(Box::new(Faults::new(allocator, homes, &uffd, (clients, share))?))
        })?
    })
}

/// The homes of all designs, which are measured in turn; new ones where these are too few.
fn homes_for(
    shared: &mut Option<Arc<Homes>>,
    frames: u64,
    uffd: &Userfaultfd,
) -> Result<Arc<Homes>, Failure> {
    if let Some(homes) = shared
        && homes.are_enough(frames)
    {
        return Ok(homes.clone());
    }
    // Those before go first: there may be no memory for both.
    *shared = None;
    Ok(shared.insert(Arc::new(Homes::new(frames, uffd)?)).clone())
}
