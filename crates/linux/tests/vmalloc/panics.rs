//! Callbacks, wakers and reports of misuse that panic in the middle of a call: buffers stay sound,
//! and no page is lost.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Wake, Waker};

use pagedepot_linux::{Depot, Order, Page, Vmalloc, VmallocBuf};

use crate::common::{self, mib, page_bytes};
use crate::{all_back, depot, scatter};

/// A callback, or a waker, that panics while it is armed.
#[derive(Default)]
struct Trap(AtomicBool);

impl Trap {
    fn spring(&self) {
        assert!(!self.0.load(Ordering::Relaxed), "the trap");
    }

    /// Calls `act`, which must end in the trap.
    fn catches(&self, act: impl FnOnce()) {
        self.0.store(true, Ordering::Relaxed);
        let caught = catch_unwind(AssertUnwindSafe(act));
        self.0.store(false, Ordering::Relaxed);
        let panic = caught.expect_err("it called nothing");
        assert_eq!(panic.downcast_ref(), Some(&"the trap"));
    }
}

impl Wake for Trap {
    fn wake(self: Arc<Self>) {
        self.spring();
    }
}

/// Requires that all bytes of a buffer are mapped for it, and that it can be used.
fn check(buf: &mut VmallocBuf) {
    for at in (0..buf.len()).step_by(page_bytes()) {
        let pfn = buf.space().pfn_of(buf.as_ptr().wrapping_add(at));
        assert!(pfn.is_some(), "byte {at} of {} is not the buffer's", buf.len());
    }
    buf.fill(7);
    buf.resize(3 * page_bytes()).unwrap();
    buf.fill(8);
}

/// Holds a page of each block of the largest order.
fn hold_no_large_block(depot: &Depot) -> Vec<Page> {
    let mut held: Vec<_> = std::iter::from_fn(|| depot.page(Order::BASE).ok()).collect();
    held.retain(|page| page.pfn().get() % Order::MAX.frames() == 0);
    held
}

#[test]
fn a_buffer_that_has_moved_when_a_purge_is_wanted() {
    let (depot, trap) = (depot(16 * mib()), Arc::<Trap>::default());
    let wanted = trap.clone();
    let space = Vmalloc::builder(&depot)
        .nodes(1)
        .lazy_bytes(page_bytes())
        .on_purge_wanted(move || wanted.spring())
        .build()
        .unwrap();
    let mut buf = space.buf(16 * page_bytes()).unwrap();
    let _wall = space.buf(page_bytes()).unwrap();
    trap.catches(|| buf.grow(256 * page_bytes()).unwrap());
    space.shrink();
    check(&mut buf);
}

/// A buffer that moves, one that shrinks, and one that keeps its addresses, above a waker.
#[test]
fn a_buffer_that_has_changed_when_a_request_is_woken() {
    let changes: [fn(&mut VmallocBuf); 3] = [
        |buf| buf.grow(256 * page_bytes()).unwrap(),
        |buf| buf.resize(5 * page_bytes()).unwrap(),
        |buf| buf.resize(0).unwrap(),
    ];
    for (nth, change) in changes.into_iter().enumerate() {
        let (depot, trap) = (depot(16 * mib()), Arc::<Trap>::default());
        let space = Vmalloc::builder(&depot).nodes(1).build().unwrap();
        let _held = hold_no_large_block(&depot);
        let mut buf = if nth == 2 { space.reserve(mib()).unwrap() } else { space.empty() };
        buf.grow(16 * page_bytes()).unwrap();
        let wall = space.buf(page_bytes()).unwrap();
        {
            let mut waiting = pin!(depot.page_async(Order::MAX));
            let waker = Waker::from(trap.clone());
            assert!(waiting.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
            trap.catches(|| change(&mut buf));
        }
        space.shrink();
        check(&mut buf);
        drop((buf, wall));
    }
}

/// Requests that run short above a callback that panics, some of them for a buffer that grows.
#[test]
fn what_a_request_had_when_a_callback_panics() {
    let (depot, trap) = (depot(16 * mib()), Arc::<Trap>::default());
    let sprung = trap.clone();
    depot
        .on_pressure(move |_| {
            sprung.spring();
            0
        })
        .unwrap();
    let mut space = Vmalloc::builder(&depot).nodes(1).build().unwrap();
    let requests: [fn(&Vmalloc); 4] = [
        |space| drop(space.buf(32 * mib()).unwrap()),
        // In place, and elsewhere.
        |space| space.buf(page_bytes()).unwrap().grow(32 * mib()).unwrap(),
        |space| {
            let (mut buf, _wall) = (space.buf(page_bytes()).unwrap(), space.buf(1).unwrap());
            buf.grow(32 * mib()).unwrap();
        },
        |space| space.reserve(64 * mib()).unwrap().grow(32 * mib()).unwrap(),
    ];
    for request in requests {
        trap.catches(|| request(&space));
        space.shrink();
        let census = space.validate().unwrap();
        assert_eq!((census.lazy_areas, census.pooled_areas), (0, 0), "{census:?}");
        // A buffer whose growth has ended in a panic leaves its page to the address space.
        assert!(census.own_frames <= 3, "{census:?}");
    }
    drop(space);
    common::all_back(&depot);
}

/// A callback that panics when a large area leaves its pool for another.
#[test]
fn what_a_free_had_when_a_callback_panics() {
    let (depot, trap) = (depot(16 * mib()), Arc::<Trap>::default());
    let wanted = trap.clone();
    let space = Vmalloc::builder(&depot)
        .nodes(1)
        .large_bytes(600 * page_bytes())
        .lazy_bytes(page_bytes())
        .on_purge_wanted(move || wanted.spring())
        .build()
        .unwrap();
    let [one, other] = [300, 500].map(|pages| space.buf(pages * page_bytes()).unwrap());
    drop(one);
    trap.catches(|| drop(other));
    all_back(space);
}

/// Pages that a buffer holds are freed, in error, before the buffer is. The purge that finds it
/// panics, and the next one frees the rest.
#[test]
fn what_a_purge_had_when_misuse_is_reported() {
    for drops_space in [false, true] {
        let depot = depot(16 * mib());
        let held = scatter(&depot);
        let builder = Vmalloc::builder(&depot).nodes(1).lazy_bytes(32 * mib());
        let space = builder.warm_bytes(0).large_bytes(0).build().unwrap();
        let bufs: Vec<_> = (1..6).map(|n| space.buf(50 * n * page_bytes()).unwrap()).collect();
        for buf in &bufs[..3] {
            let pfn = space.pfn_of(buf.as_ptr()).unwrap();
            // SAFETY: the buffer's free is wrong, which is what is tested; no code uses the page.
            unsafe { depot.raw().free(pfn, Order::BASE) }.unwrap();
            depot.drain(pagedepot_linux::Scope::ALL, pagedepot_linux::Mode::Full);
        }
        drop(bufs);
        if drops_space {
            assert!(catch_unwind(AssertUnwindSafe(|| drop(space))).is_err());
        } else {
            let mut space = space;
            let mut purges = 0;
            while catch_unwind(AssertUnwindSafe(|| space.shrink())).is_err() {
                purges += 1;
                let census = space.validate().unwrap();
                assert!(census.lazy_areas > 0 && census.own_frames > 0, "{census:?}");
            }
            assert!((1..=3).contains(&purges), "{purges} purges panicked");
            let census = space.validate().unwrap();
            assert_eq!((census.busy_areas, census.lazy_areas, census.own_frames), (0, 0, 0));
            assert_eq!((census.mapped_pages, space.page_table_bytes()), (0, 0));
        }
        drop(held);
        common::all_back(&depot);
    }
}
