//! Threads write a stamp through the mapping and read it through the frames, and the reverse, while
//! areas move from thread to thread.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use pagedepot_linux::vmalloc::{Options, PurgeDepth, StaleData, VmapError};
use pagedepot_linux::{AllocError, Vmalloc, VmallocBuf};

use crate::common::{Random, mib, page_bytes, seed};
use crate::{all_back, depot};

/// The time that a slow machine, an emulated one, has for its first purge.
const LONGER: Duration = Duration::from_secs(60);

/// Writes a page's stamp at its start through the mapping, and at its end through the frame.
fn stamp(space: &Vmalloc, buf: &mut VmallocBuf, owner: u64) {
    for page in 0..buf.pages() as usize {
        let mark = (owner << 32 | page as u64).to_ne_bytes();
        buf[page * page_bytes()..][..8].copy_from_slice(&mark);
        let frame = space.pfn_of(&raw const buf[page * page_bytes()]).unwrap();
        // SAFETY: the frame is the buffer's own, and the buffer is borrowed for writing.
        unsafe {
            space.depot().raw().address(frame).add(page_bytes() - 8).cast::<[u8; 8]>().write(mark)
        };
    }
}

/// Checks both stamps: each is read by the other way.
fn check(space: &Vmalloc, buf: &VmallocBuf, owner: u64, pages: usize) {
    for page in 0..pages {
        let mark = (owner << 32 | page as u64).to_ne_bytes();
        assert_eq!(
            buf[(page + 1) * page_bytes() - 8..][..8],
            mark,
            "page {page} of {owner}, by mapping"
        );
        let frame = space.pfn_of(&raw const buf[page * page_bytes()]).unwrap();
        // SAFETY: the frame is the buffer's own.
        let seen = unsafe { space.depot().raw().address(frame).cast::<[u8; 8]>().read() };
        assert_eq!(seen, mark, "page {page} of {owner}, by frame");
        let mut read = [0; 8];
        assert_eq!(space.read_at(&raw const buf[page * page_bytes()], &mut read), 8);
        assert_eq!(read, mark, "page {page} of {owner}, by read_at");
    }
}

/// A stamped buffer and its owner.
type Held<'v> = (VmallocBuf, u64);

fn work<'v>(
    space: &'v Vmalloc,
    exchange: &Mutex<Vec<Held<'v>>>,
    thread: u64,
    seed: u64,
    end: Instant,
) {
    let mut random = Random::new(seed ^ thread.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let mut held: Vec<Held<'v>> = Vec::new();
    let mut owner = thread << 20;
    let has_purged = || space.stats().counts.purges > 0;
    while Instant::now() < end || !has_purged() && Instant::now() < end + LONGER {
        let what = random.below(16);
        if what < 7 && held.len() < 20 {
            let pages = [1, 1, 3, 16, 16, 65, 300][random.below(7) as usize];
            match space.buf(pages * page_bytes()) {
                Ok(mut buf) => {
                    owner += 1;
                    stamp(space, &mut buf, owner);
                    held.push((buf, owner));
                }
                Err(VmapError::Frames(AllocError::Exhausted)) => held.clear(),
                Err(error) => panic!("{error}"),
            }
        }
        if held.is_empty() {
            continue;
        }
        let at = random.below(held.len() as u64) as usize;
        let (buf, owner) = &mut held[at];
        check(space, buf, *owner, buf.pages() as usize);
        match what {
            7 => {
                let (before, after) = (buf.pages(), 1 + random.below(80) as u32);
                if buf.resize(after as usize * page_bytes()).is_ok() {
                    check(space, buf, *owner, before.min(after) as usize);
                    stamp(space, buf, *owner);
                }
            }
            8 => {
                let mut exchange = exchange.lock().unwrap();
                exchange.push(held.swap_remove(at));
                let other = random.below(exchange.len() as u64) as usize;
                held.push(exchange.swap_remove(other));
            }
            9 if random.below(20) == 0 => {
                space.purge(PurgeDepth::Decay);
            }
            10.. => drop(held.swap_remove(at)),
            _ => {}
        }
    }
}

fn hammer(space: Vmalloc, time: Duration) {
    let (seed, end) = (seed(), Instant::now() + time);
    let exchange = Mutex::default();
    std::thread::scope(|scope| {
        let (space, exchange) = (&space, &exchange);
        (1..=4).for_each(|thread| {
            scope.spawn(move || work(space, exchange, thread, seed, end));
        });
    });
    drop(exchange);
    assert!(space.stats().pool_hits > 0 && space.stats().counts.purges > 0);
    assert_eq!(space.stats().counts.misfreed_frames, 0);
    all_back(space);
}

#[test]
fn stamps_through_mapping_and_frames() {
    let space = Vmalloc::builder(&depot(64 * mib())).warm_bytes(mib()).lazy_bytes(2 * mib());
    hammer(space.build().unwrap(), Duration::from_secs(2));
}

#[test]
fn stamps_with_stale_data_and_little_of_everything() {
    let depot = depot(8 * mib());
    let space = Vmalloc::builder(&depot)
        .bytes(32 * mib())
        .areas_max(200)
        .stale(StaleData::Poison(0xee))
        .mappings_max(3000)
        .build()
        .unwrap();
    drop(depot);
    hammer(space, Duration::from_secs(1));
}

#[test]
fn requests_that_may_not_wait() {
    let builder = Vmalloc::builder(&depot(64 * mib())).warm_bytes(32 * mib());
    let space = builder.lazy_bytes(mib()).build().unwrap();
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                for n in 0..3000 {
                    match space.vmalloc(1 + n % 40, Options::DEFAULT.no_wait()) {
                        // SAFETY: just allocated, and used no more.
                        Ok(start) => unsafe {
                            start.write(1);
                            space.vfree_atomic(start).unwrap();
                        },
                        Err(error) => {
                            assert!(
                                matches!(error, VmapError::WouldWait | VmapError::NoSpace),
                                "{error}"
                            );
                        }
                    }
                }
            });
        }
    });
    all_back(space);
}
