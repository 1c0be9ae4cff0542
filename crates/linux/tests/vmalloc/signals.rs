//! Requests that may not wait, from a signal handler above a thread that is anywhere in the
//! library.

use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use pagedepot::AllocError;
use pagedepot_linux::vmalloc::{Options, PurgeDepth, VmapError};
use pagedepot_linux::{Vmalloc, VmallocBuf};

use crate::common::{Random, mib, page_bytes, seed};
use crate::{all_back, depot};

static SPACE: AtomicPtr<Vmalloc> = AtomicPtr::new(std::ptr::null_mut());
static SERVED: AtomicU64 = AtomicU64::new(0);
static CALLS: AtomicU64 = AtomicU64::new(0);

/// Requests that may not wait: served, or an error that says so, or that there is no memory.
fn may_fail<T>(result: Result<T, VmapError>) -> Option<T> {
    match result {
        Ok(value) => {
            SERVED.fetch_add(1, Ordering::Relaxed);
            Some(value)
        }
        Err(VmapError::WouldWait | VmapError::Frames(AllocError::Exhausted)) => None,
        Err(VmapError::NoSpace | VmapError::NoAreas) => None,
        Err(error) => panic!("{error:?}"),
    }
}

/// Makes every call that handlers may make.
extern "C" fn handler(_: libc::c_int) {
    // SAFETY: the test keeps it alive until no more signals come.
    let Some(space) = (unsafe { SPACE.load(Ordering::Relaxed).as_ref() }) else { return };
    let options = Options::DEFAULT.no_wait();
    let call = CALLS.fetch_add(1, Ordering::Relaxed);
    for pages in [16, 1 + (call % 50) as u32] {
        let Some(mut start) = may_fail(space.vmalloc(pages, options)) else { continue };
        // SAFETY: just allocated, and used only here; no more after it is freed.
        unsafe {
            start.add((pages as usize - 1) * page_bytes()).write(1);
            for more in [pages + 20, pages, 1] {
                start = may_fail(space.vrealloc(start, more, options)).unwrap_or(start);
                start.write(2);
            }
            let (first, mut read) = (space.pfn_of(start.as_ptr()).unwrap(), [0]);
            assert_eq!(space.read_at(start.as_ptr(), &mut read), 1);
            assert_eq!((read, space.find(start.as_ptr()).is_some()), ([2], true));
            if let Some(alias) = may_fail(space.vmap(&[first, first], options)) {
                assert_eq!(alias.add(page_bytes()).read(), 2);
                space.vunmap_atomic(alias).unwrap();
            }
            if let Some(alias) = may_fail(space.vm_map_ram(&[first], options)) {
                assert_eq!(alias.read(), 2);
                space.vm_unmap_ram_atomic(alias, 1).unwrap();
            }
            space.vfree_atomic(start).unwrap();
        }
    }
    // A buffer that is dropped may run a purge.
    if let Some(mut buf) = may_fail(space.buf_with(3 * page_bytes(), options)) {
        may_fail(buf.grow_with(9 * page_bytes(), options));
        may_fail(buf.resize_with(page_bytes(), options));
        buf[page_bytes() - 1] = 7;
    }
}

/// Makes one of all requests, frees and looks, each of which takes locks, or may purge.
fn work(space: &Vmalloc, bufs: &mut Vec<VmallocBuf>, random: &mut Random) {
    let below = |random: &mut Random, n| random.below(n) as usize;
    match random.below(12) {
        0..4 => bufs.push(space.buf((1 + below(random, 60)) * page_bytes()).unwrap()),
        4..6 if !bufs.is_empty() => {
            let at = below(random, bufs.len() as u64);
            bufs[at].resize((1 + below(random, 90)) * page_bytes()).unwrap();
        }
        6 if !bufs.is_empty() => {
            let frame = space.pfn_of(bufs[0].as_ptr()).unwrap();
            let start = space.vmap(&[frame; 3], Options::DEFAULT).unwrap();
            // SAFETY: not used.
            unsafe { space.vunmap(start) }.unwrap();
            let start = space.vm_map_ram(&[frame; 3], Options::DEFAULT).unwrap();
            // SAFETY: not used.
            unsafe { space.vm_unmap_ram(start, 3) }.unwrap();
        }
        7 => drop(space.buf_with(page_bytes(), Options::DEFAULT.align(64 * page_bytes())).unwrap()),
        8 if random.below(8) == 0 => {
            space.purge(PurgeDepth::Decay);
        }
        9 if random.below(16) == 0 => {
            space.shrink();
        }
        10 if random.below(16) == 0 => assert!(space.areas().count() >= bufs.len()),
        11 => assert!(space.stats().descriptors > 0),
        _ => {}
    }
    if bufs.len() > 30 {
        bufs.swap_remove(below(random, 30));
    }
}

#[test]
fn handlers_make_every_call_above_every_call() {
    let builder = Vmalloc::builder(&depot(64 * mib())).warm_bytes(mib()).lazy_bytes(mib());
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
                std::thread::sleep(Duration::from_micros(50));
            }
        });
        let mut bufs = Vec::new();
        while !sender.is_finished() {
            work(&space, &mut bufs, &mut random);
        }
        sender.join().unwrap();
    });
    // All signals have arrived: signals to this thread come before its next call returns.
    SPACE.store(std::ptr::null_mut(), Ordering::Relaxed);
    assert!(SERVED.load(Ordering::Relaxed) > 100);
    all_back(space);
}
