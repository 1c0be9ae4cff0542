//! Callbacks and wakers that panic in the middle of a call: buffers stay sound.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Wake, Waker};

use pagedepot_linux::{Depot, Order, Page, Vmalloc, VmallocBuf};

use crate::common::{mib, page_bytes};
use crate::depot;

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
