//! A shared object with a depot in it, as a plugin would have: a program loads it, calls it and
//! unloads it, and goes on. The test `unload` does so.
//!
//! `cargo build --release -p pagedepot-linux --example shared_object`

use pagedepot_linux::{Depot, Order};

/// Allocates and frees pages in a depot of its own; returns whether it did so by restartable
/// sequences, or -1 for an error.
#[unsafe(no_mangle)]
pub extern "C" fn pagedepot_example_run() -> i32 {
    match run() {
        Ok(by_sequences) => i32::from(by_sequences),
        Err(error) => {
            eprintln!("{error}");
            -1
        }
    }
}

fn run() -> Result<bool, Box<dyn std::error::Error>> {
    let depot = Depot::new(16 << 20)?;
    for _ in 0..100_000 {
        drop(depot.page(Order::BASE)?);
    }
    Ok(depot.fronts().are_sequences())
}
