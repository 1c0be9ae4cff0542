//! Address spaces over a depot.

#[path = "../common/mod.rs"]
mod common;

mod basics;
mod failing;
mod fork;
mod frames;
mod large;
mod limits;
mod maps;
mod panics;
mod safe;
mod signals;
mod stamps;
mod zeroed;

use std::sync::Arc;

use pagedepot_linux::{Depot, MemoryKind, Order, Page, Vmalloc};

fn depot(bytes: usize) -> Arc<Depot> {
    Arc::new(Depot::builder(bytes).memory(MemoryKind::Memfd).build().unwrap())
}

/// Holds every second page of a depot, so that the rest comes in single frames.
fn scatter(depot: &Depot) -> Vec<Page> {
    let all = std::iter::from_fn(|| depot.page(Order::BASE).ok());
    let (keep, give): (Vec<_>, Vec<_>) = all.partition(|page| page.pfn().get() % 2 == 1);
    drop(give);
    depot.drain(pagedepot_linux::Scope::ALL, pagedepot_linux::Mode::Full);
    keep
}

/// Checks that all addresses are back in the space, and then all pages in the depot.
fn all_back(mut space: Vmalloc) {
    space.shrink();
    let census = space.validate().unwrap();
    assert_eq!(
        (census.busy_areas, census.lazy_areas, census.pooled_areas),
        (0, 0, 0),
        "{census:?}"
    );
    assert_eq!((census.mapped_pages, census.own_frames, space.page_table_bytes()), (0, 0, 0));
    let depot = space.depot().clone();
    drop(space);
    common::all_back(&depot);
}
