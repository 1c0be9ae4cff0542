//! Measures what it costs a program to be watched: a page allocated and freed again and again,
//! while nothing is published, while no reader looks at it, and while `pagedepot top` looks.
//!
//! `cargo run --release -p pagedepot-linux --example watched --features publish [PAIRS]`
#![forbid(unsafe_code)]

#[cfg(not(feature = "publish"))]
fn main() {
    println!("skipped: built without the feature publish");
}

#[cfg(feature = "publish")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    watched::run(std::env::args().nth(1).map_or(Ok(8_000_000_000), |pairs| pairs.parse())?)
}

#[cfg(feature = "publish")]
mod watched {
    use std::hint::black_box;
    use std::sync::mpsc::{RecvTimeoutError, channel};
    use std::thread;
    use std::time::{Duration, Instant};

    use pagedepot_linux::publish::{Publisher, ReadError, Reader};
    use pagedepot_linux::{Depot, Order};

    /// Time between two looks, as of `pagedepot top`.
    const LOOKS: Duration = Duration::from_secs(1);
    const ANSWER_MAX: Duration = Duration::from_secs(5);
    /// Number of windows, of which the median is printed. The kinds take turns, so that other work
    /// meets all.
    const WINDOWS: u32 = 11;
    const KINDS: [&str; 3] = ["not published", "published", "looked at"];

    pub fn run(pairs: u64) -> Result<(), Box<dyn std::error::Error>> {
        let pairs = (pairs / u64::from(WINDOWS) / KINDS.len() as u64).max(1);
        let depot = Depot::new(64 << 20)?;
        let mut windows = KINDS.map(|_| Vec::new());
        let mut looks = 0;
        for _ in 0..WINDOWS {
            windows[0].push(window(&depot, pairs));
            let published = Publisher::new(&depot).start()?;
            windows[1].push(window(&depot, pairs));
            let mut reader = Reader::open(published.path())?;
            let (stop, stopped) = channel::<()>();
            let looking = thread::spawn(move || {
                let mut looks = 0;
                loop {
                    reader.refresh(ANSWER_MAX)?;
                    looks += 1;
                    match stopped.recv_timeout(LOOKS) {
                        Err(RecvTimeoutError::Timeout) => {}
                        _ => return Ok::<u64, ReadError>(looks),
                    }
                }
            });
            windows[2].push(window(&depot, pairs));
            // What the thread waits for.
            drop(stop);
            looks += looking.join().expect("it does not panic")?;
        }
        for (kind, windows) in KINDS.into_iter().zip(&mut windows) {
            windows.sort_by(f64::total_cmp);
            println!("{kind}: {:.3} ns a pair", windows[windows.len() / 2]);
        }
        println!("looks: {looks}");
        Ok(())
    }

    /// Nanoseconds a pair.
    fn window(depot: &Depot, pairs: u64) -> f64 {
        let begin = Instant::now();
        (0..pairs).for_each(|_| drop(black_box(depot.page(Order::BASE).expect("it is empty"))));
        begin.elapsed().as_secs_f64() * 1e9 / pairs as f64
    }
}
