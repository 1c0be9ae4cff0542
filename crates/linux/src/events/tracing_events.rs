//! Events of the crate `tracing` on slow paths (feature `tracing`): target `pagedepot`, level
//! `TRACE`, and `WARN` for requests that fail.
//!
//! A subscriber is called in the middle of an allocation or a free, with pages in flight, in signal
//! handlers that allocate too. It must not allocate from the same depot.

use pagedepot::cpus::{Event, Transfer};

/// Tells the subscriber.
#[inline]
pub(crate) fn emit(event: Event) {
    match event {
        Event::Refill(transfer) => emit_transfer("refill", transfer),
        Event::Spill(transfer) => emit_transfer("spill", transfer),
        Event::Drain(transfer) => emit_transfer("drain", transfer),
        Event::Fail { zone, pages } => {
            tracing::warn!(target: "pagedepot", zone = zone.get(), pages, "fail");
        }
        // The core may come to have more.
        _ => {}
    }
}

fn emit_transfer(what: &'static str, Transfer { cpu, zone, order, blocks }: Transfer) {
    let (cpu, zone, order) = (cpu.get(), zone.get(), order.get());
    tracing::trace!(target: "pagedepot", cpu, zone, order, blocks, "{what}");
}
