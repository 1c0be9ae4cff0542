//! `touch`: clients allocate zeroed pages of mapped memory and touch them until memory is used up,
//! then free them all at once. No page fault is part of it, but for the kernel's own behind the
//! design `kernel`: [`pft`](super::pft) has the faults.

mod pages;

use self::pages::Pages;
use super::paging::{Client, Paging, memories};
use crate::design::dispatch::with_design;
use pagedepot_cli::names::{Design, joined};
use pagedepot_cli::workloads::workload::Workload;

/// The workload `touch`.
pub const WORKLOAD: Workload = Workload::new("touch", DESIGNS, |settings| {
    TOUCH.run(settings, &|design, demand, clients, share| {
        with_design!(any design, demand, |allocator| -> Box<dyn Client> {
            Box::new(Pages::new(allocator, clients, share))
        })
    })
});

/// Designs whose pages are memory, and `kernel`.
const DESIGNS: &[Design] =
    &joined::<14>(&[Design::PAGED, &[Design::FrameAlloc], Design::MALLOCS, &[Design::Kernel]]);

/// 1 GiB of 4 KiB pages, or 64 MiB.
static TOUCH: Paging = Paging {
    workload: &WORKLOAD,
    what: "zeroed pages first touched by clients, then freed at once",
    metrics: [("touch_ns", "ns"), ("touches_per_cpu_s", "1/s"), ("touches_per_s", "1/s")],
    headings: ["touch ns", "touches per CPU second", "touches per second"],
    pages: [1 << 18, 1 << 14],
    room: 1,
    memories,
};
