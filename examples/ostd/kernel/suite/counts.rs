//! Instructions of single calls, counted by a machine whose clock counts them (`-icount shift=0`).

use alloc::vec::Vec;
use core::alloc::Layout;
use core::hint::black_box;

use ostd::arch::read_tsc;
use ostd::early_println as println;
use ostd::mm::PAGE_SIZE;

use super::Design;

/// Pairs of a round, and rounds: the timer interrupts some of them, the least has none.
const PAIRS: u64 = 1000;
const ROUNDS: u32 = 20;
/// Frames that are allocated, then freed.
const BATCH: usize = 512;

pub fn run(design: Design) {
    let frame = Layout::from_size_align(PAGE_SIZE, PAGE_SIZE).expect("a page");
    // As OSTD calls it: by a pointer that the compiler does not know.
    let frames = black_box(design.frames);
    let pair = least(|| {
        for _ in 0..PAIRS {
            let addr = frames.alloc(frame).expect("a free frame");
            frames.dealloc(black_box(addr), PAGE_SIZE);
        }
    });
    println!("= pair_instructions {}", ratio(pair, PAIRS));
    let mut held = Vec::with_capacity(BATCH);
    let batch = least(|| {
        for _ in 0..BATCH {
            held.push(frames.alloc(frame).expect("a free frame"));
        }
        for addr in held.drain(..) {
            frames.dealloc(addr, PAGE_SIZE);
        }
    });
    println!("= batch_instructions {} batch={}", ratio(batch, BATCH as u64), BATCH);
}

fn least(mut round: impl FnMut()) -> u64 {
    let count = |_| {
        let begun = read_tsc();
        round();
        read_tsc() - begun
    };
    (0..ROUNDS).map(count).min().expect("rounds")
}

/// Formats a ratio with two decimals, without floating point.
fn ratio(all: u64, each: u64) -> alloc::string::String {
    let hundredths = all * 100 / each;
    alloc::format!("{}.{:02}", hundredths / 100, hundredths % 100)
}
