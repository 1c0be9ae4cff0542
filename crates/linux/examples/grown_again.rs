//! A buffer that grows, is dropped, and grows again: how much memory that takes, and how long,
//! beside a `Vec`.
//!
//! `cargo run --release -p pagedepot-linux --example grown_again [MIB] [DEPOT_MIB] [ROUNDS]`

use std::cell::RefCell;
use std::error::Error;
use std::mem::MaybeUninit;
use std::time::{Duration, Instant};

use pagedepot_linux::builder::default_page_size;
use pagedepot_linux::{Depot, MemoryKind, Vmalloc};

/// Bytes of the buffer before it grows for the first time.
const FIRST: usize = 1 << 20;

/// Times of a growth, and of a write to each page.
#[derive(Clone, Copy, Default)]
struct Took {
    growing: Duration,
    touching: Duration,
}

/// Grows a buffer by halves to `bytes`, and writes to each page once.
fn grow(
    bytes: usize,
    mut grow: impl FnMut(usize) -> Result<(), Box<dyn Error>>,
    mut touch: impl FnMut(usize),
) -> Result<Took, Box<dyn Error>> {
    let page = default_page_size().bytes();
    let (mut took, mut size, mut old) = (Took::default(), FIRST.min(bytes), 0);
    loop {
        let start = Instant::now();
        grow(size)?;
        let grown = Instant::now();
        (old..size).step_by(page).for_each(&mut touch);
        took.growing += grown - start;
        took.touching += grown.elapsed();
        if size == bytes {
            return Ok(took);
        }
        (old, size) = (size, (size * 3 / 2).next_multiple_of(page).min(bytes));
    }
}

fn grow_buffer(space: &Vmalloc, bytes: usize) -> Result<Took, Box<dyn Error>> {
    let buffer = RefCell::new(space.empty());
    grow(bytes, |size| Ok(buffer.borrow_mut().grow(size)?), |at| buffer.borrow_mut()[at] = 1)
}

fn grow_vec(bytes: usize) -> Result<Took, Box<dyn Error>> {
    let vec = RefCell::new(Vec::<MaybeUninit<u8>>::new());
    grow(
        bytes,
        |size| {
            let mut vec = vec.borrow_mut();
            let more = size - vec.len();
            vec.try_reserve_exact(more)?;
            // SAFETY: there is room for so many, which need not be initialized. The system zeroes
            // each page when it is touched.
            unsafe { vec.set_len(size) };
            Ok(())
        },
        |at| _ = vec.borrow_mut()[at].write(1),
    )
}

fn main() -> Result<(), Box<dyn Error>> {
    let arg = |n: usize, default: usize| {
        std::env::args().nth(n).map_or(Ok(default), |argument| argument.parse())
    };
    let (mib, depot_mib, rounds) = (arg(1, 32)?, arg(2, 64)?, arg(3, 3)?);
    let depot = Depot::builder(depot_mib << 20).memory(MemoryKind::Memfd).build()?;
    let space = Vmalloc::new(&depot)?;
    println!("{mib} MiB, grown by halves, each page written once, in a depot of {depot_mib} MiB:");
    println!("{:>10} {:>6} {:>9} {:>9}", "", "round", "grown ms", "touched ms");
    let row = |name: &str, round: usize, took: Took| {
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        println!("{name:>10} {round:>6} {:>9.1} {:>9.1}", ms(took.growing), ms(took.touching));
    };
    for round in 1..=rounds {
        row("Vmalloc", round, grow_buffer(&space, mib << 20)?);
        row("Vec", round, grow_vec(mib << 20)?);
    }
    let counts = depot.residency();
    space.shrink();
    let trimmed = depot.trim()?;
    println!(
        "The depot kept {} MiB resident: {} pageblocks of 512 pages were touched, each once.",
        trimmed.bytes >> 20,
        counts.first_touches
    );
    assert_eq!(counts.refaults, 0, "nothing was given back in between");

    row("Vmalloc", rounds + 1, grow_buffer(&space, mib << 20)?);
    println!("After a trim {} pageblocks were needed again.", depot.residency().refaults);
    Ok(())
}
