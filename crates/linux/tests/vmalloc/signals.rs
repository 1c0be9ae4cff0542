//! Requests that may not wait, from a signal handler above a thread that is anywhere in the
//! library.

use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use pagedepot_linux::Vmalloc;
use pagedepot_linux::vmalloc::{Options, PurgeDepth};

use crate::common::{Random, seed};
use crate::{MIB, PAGE, all_back, depot};

static SPACE: AtomicPtr<Vmalloc> = AtomicPtr::new(std::ptr::null_mut());
static SERVED: AtomicU64 = AtomicU64::new(0);
static CALLS: AtomicU64 = AtomicU64::new(0);

extern "C" fn handler(_: libc::c_int) {
    // SAFETY: the test keeps it alive until no more signals come.
    let Some(space) = (unsafe { SPACE.load(Ordering::Relaxed).as_ref() }) else { return };
    let call = CALLS.fetch_add(1, Ordering::Relaxed);
    for pages in [16, 1 + (call % 50) as u32] {
        if let Ok(start) = space.vmalloc(pages, Options::DEFAULT.no_wait()) {
            // SAFETY: just allocated; used no more after it is freed.
            unsafe {
                start.add((pages as usize - 1) * PAGE).write(1);
                space.vfree_atomic(start).unwrap();
            }
            SERVED.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[test]
fn handlers_allocate_and_free() {
    let builder = Vmalloc::builder(&depot(64 * MIB)).warm_bytes(MIB).lazy_bytes(MIB);
    let space = builder.build().unwrap();
    SPACE.store((&raw const space).cast_mut(), Ordering::Relaxed);
    // SAFETY: a handler that is safe at any moment, which is what this tests.
    unsafe { libc::signal(libc::SIGUSR2, handler as *const () as libc::sighandler_t) };
    let mut random = Random::new(seed());
    let end = Instant::now() + Duration::from_millis(1500);
    // SAFETY: this thread.
    let target = unsafe { libc::pthread_self() };
    std::thread::scope(|scope| {
        let sender = scope.spawn(move || {
            while Instant::now() < end {
                // SAFETY: the thread lives until this one is joined.
                unsafe { libc::pthread_kill(target, libc::SIGUSR2) };
                std::thread::sleep(Duration::from_micros(20));
            }
        });
        let mut bufs = Vec::new();
        while !sender.is_finished() {
            bufs.push(space.buf((1 + random.below(60) as usize) * PAGE).unwrap());
            if bufs.len() > 30 {
                bufs.swap_remove(random.below(30) as usize);
            }
            if random.below(50) == 0 {
                space.purge(PurgeDepth::Decay);
                bufs.clear();
            }
        }
        sender.join().unwrap();
    });
    // All signals have arrived: signals to this thread come before its next call returns.
    SPACE.store(std::ptr::null_mut(), Ordering::Relaxed);
    assert!(SERVED.load(Ordering::Relaxed) > 100);
    all_back(space);
}
