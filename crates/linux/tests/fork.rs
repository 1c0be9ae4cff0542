//! A forked child gets an error, never a page of its parent. Its parent is not affected, nor by a
//! child that a signal handler forks in the middle of a call, and that goes on with the call.

mod common;

use std::ffi::c_void;
use std::ops::DerefMut;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::{self, null_mut};
use std::sync::atomic::{AtomicI32, AtomicPtr, Ordering};
use std::sync::{Mutex, MutexGuard};

use common::{all_back, in_child, mib, page_bytes};
use pagedepot_linux::reclaim::{Compaction, TrimError};
use pagedepot_linux::vmalloc::Options;
use pagedepot_linux::{
    AllocError, CpuId, Depot, Flags, FreeError, MemoryKind, Mode, Order, Page, Scope, Vmalloc,
};

fn child_gets_errors(depot: &Depot, held: Page, order: Order) {
    for _ in 0..1000 {
        assert_eq!(depot.raw().alloc(order, Flags::default()), Err(AllocError::Forked));
        assert_eq!(depot.raw().alloc(order, Flags::default().atomic()), Err(AllocError::Forked));
    }
    let mut many = [held.pfn(); 200];
    assert_eq!(depot.raw().alloc_many(order, Flags::default(), &mut many), Err(AllocError::Forked));
    assert_eq!(depot.raw().alloc_contiguous(3, 1, Flags::default()), Err(AllocError::Forked));
    assert_eq!(depot.raw().alloc_at(held.pfn(), 1, Flags::default()), Err(AllocError::Forked));
    // SAFETY: the call is refused, as is checked.
    assert_eq!(unsafe { depot.raw().free(held.pfn(), order) }, Err(FreeError::Forked));
    let drained = depot.drain(Scope::ALL, Mode::Full);
    assert_eq!((drained.taken_pages, drained.fences), (0, 0));
    assert_eq!(depot.cpu_caches().disable().taken_pages, 0);
    depot.cpu_caches().enable();
    assert_eq!(depot.raw().alloc(order, Flags::default()), Err(AllocError::Forked));
    assert_eq!(depot.trim(), Err(TrimError::Forked));
    assert_eq!(&held[..6], b"parent", "what was there at the fork can be read");
    drop(held);
    let own = Depot::new(16 * mib()).unwrap();
    common::hammer(&own, std::time::Duration::from_millis(100));
}

fn fork_with(depot: &Depot) {
    for n in [0, 3, 4, 9, 10] {
        let order = common::order(n);
        // The caches hold some pages at the fork.
        drop((0..20).map(|_| depot.page(Order::BASE).unwrap()).collect::<Vec<_>>());
        let mut held = depot.page(order).unwrap();
        held[..6].copy_from_slice(b"parent");
        let (pfn, _) = held.into_raw();
        // SAFETY: the page was taken out of its owner above; the child's `Page` frees nothing.
        let held = |depot| unsafe { Page::from_raw(depot, pfn, order) };
        in_child(|| child_gets_errors(depot, held(depot), order));
        let held = held(depot);
        assert_eq!(&held[..6], b"parent");
        drop(held);
        drop(depot.page(order).unwrap());
    }
    all_back(depot);
}

#[test]
fn a_child_of_anonymous_memory() {
    fork_with(&Depot::builder(64 * mib()).build().unwrap());
}

#[test]
fn a_child_of_a_memory_file() {
    fork_with(&Depot::builder(64 * mib()).memory(MemoryKind::Memfd).build().unwrap());
}

#[test]
fn a_child_of_locks() {
    fork_with(&Depot::builder(64 * mib()).per_cpu_locks(true).build().unwrap());
}

#[test]
fn a_child_of_sequences_and_locks() {
    let isolated = common::usable_cpus().into_iter().skip(1).step_by(2).map(CpuId::new).collect();
    fork_with(&Depot::builder(64 * mib()).isolated_cpus(isolated).build().unwrap());
}

#[test]
fn a_child_of_checked() {
    fork_with(&Depot::builder(64 * mib()).checked(true).build().unwrap());
}

/// The page that [`fork_in_handler`] makes accessible again; null: no access is to fault.
static CLOSED: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
/// The child that [`fork_in_handler`] has made; 0: none.
static CHILD: AtomicI32 = AtomicI32::new(0);
/// A pipe whose end of file lets the child go on.
static PIPE: [AtomicI32; 2] = [const { AtomicI32::new(-1) }; 2];
/// Held by the test that uses these.
static ONE: Mutex<()> = Mutex::new(());

extern "C" fn fork_in_handler(_: libc::c_int) {
    // SAFETY: system calls alone, and a fork without the C library's work for it, which may not be
    // done in a handler. The child waits, and then goes on in what this handler interrupted.
    unsafe {
        let page = CLOSED.swap(null_mut(), Ordering::Relaxed);
        if page.is_null() {
            libc::signal(libc::SIGSEGV, libc::SIG_DFL);
            return;
        }
        let pid = libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) as i32;
        if pid == 0 {
            libc::close(PIPE[1].load(Ordering::Relaxed));
            libc::alarm(60);
            let mut byte = 0u8;
            libc::read(PIPE[0].load(Ordering::Relaxed), (&raw mut byte).cast(), 1);
        }
        CHILD.store(pid, Ordering::Relaxed);
        libc::mprotect(page, page_bytes(), libc::PROT_READ | libc::PROT_WRITE);
    }
}

/// A child that goes on with a call when this value is dropped.
struct Child(MutexGuard<'static, ()>);

/// Makes a call in which the first access to the page at `page` has a handler fork. The child ends
/// well if the call does, with an error where `fails` says so.
fn fork_at<R, E>(
    page: *mut u8,
    fails: bool,
    call: impl FnOnce() -> Result<R, E>,
) -> (Result<R, E>, Child) {
    let guard = ONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let (parent, mut pipe) = (std::process::id(), [0; 2]);
    CLOSED.store(page.cast(), Ordering::Relaxed);
    // SAFETY: the pipe's two ends are written. The handler calls what handlers may. The page is
    // the call's to access.
    unsafe {
        assert_eq!(libc::pipe(pipe.as_mut_ptr()), 0);
        PIPE.iter().zip(pipe).for_each(|(end, fd)| end.store(fd, Ordering::Relaxed));
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = fork_in_handler as *const () as usize;
        assert_eq!(libc::sigaction(libc::SIGSEGV, &action, null_mut()), 0);
        assert_eq!(libc::mprotect(page.cast(), page_bytes(), libc::PROT_NONE), 0);
    }
    let result = catch_unwind(AssertUnwindSafe(call));
    if std::process::id() != parent {
        let ends_well = result.is_ok_and(|result| !fails || result.is_err());
        // SAFETY: ends the child.
        unsafe { libc::_exit((!ends_well).into()) };
    }
    assert!(CLOSED.load(Ordering::Relaxed).is_null(), "the call does not access the page");
    (result.unwrap(), Child(guard))
}

impl Child {
    /// Lets the child go on to its end.
    fn go_on(self) {
        let mut status = 0;
        // SAFETY: closes the pipe, and waits for our child.
        unsafe {
            libc::close(PIPE[1].load(Ordering::Relaxed));
            let child = CHILD.load(Ordering::Relaxed);
            assert_eq!(libc::waitpid(child, &mut status, 0), child);
            libc::close(PIPE[0].load(Ordering::Relaxed));
        }
        assert_eq!(status, 0, "the child fails");
        drop(self.0);
    }
}

/// Bytes behind the page where the handler forked that are still what the parent wrote.
fn check_behind(bytes: &[u8], forked_at: usize) {
    let changed = bytes[forked_at + page_bytes()..].iter().position(|&byte| byte != 7);
    assert_eq!(changed, None, "the child writes to pages that its parent has written");
}

/// A handler forks where zeroed pages are allocated, which are all that the depot has. The parent
/// writes to them; the child goes on.
fn zeroes<P: DerefMut<Target = [u8]>>(
    pages: usize,
    alloc: impl Fn(&Depot, Flags) -> Result<P, AllocError>,
) {
    for kind in [MemoryKind::Anonymous, MemoryKind::Memfd] {
        let depot = Depot::builder(pages * page_bytes()).memory(kind).build().unwrap();
        let at = 5 * page_bytes();
        let page = depot.raw().base().as_ptr().wrapping_add(at);
        let (taken, child) = fork_at(page, true, || alloc(&depot, Flags::default().zeroed()));
        let mut taken = taken.unwrap();
        assert_eq!(taken.len(), pages * page_bytes());
        taken.fill(7);
        child.go_on();
        check_behind(&taken, at);
        drop(taken);
        all_back(&depot);
    }
}

#[test]
fn a_child_of_a_handler_zeroes_nothing() {
    for order in [4, 9, 10].map(common::order) {
        zeroes(order.frames() as usize, |depot, flags| depot.page_with(order, flags));
    }
    zeroes(300, |depot, flags| depot.pages(300, flags));
}

/// A handler forks where an address space zeroes an area. The parent writes there; the child goes
/// on.
#[test]
fn a_child_of_a_handler_zeroes_no_area() {
    let depot = Depot::builder(16 * mib()).memory(MemoryKind::Memfd).build().unwrap();
    let space = Vmalloc::new(&depot).unwrap();
    let (pages, at) = (16, 5 * page_bytes());
    let bytes = |start: ptr::NonNull<u8>| {
        // SAFETY: an area of so many pages, which this test alone uses.
        unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), pages as usize * page_bytes()) }
    };
    let first = space.vmalloc(pages, Options::DEFAULT).unwrap();
    bytes(first).fill(9);
    // SAFETY: used no more.
    unsafe { space.vfree(first).unwrap() };
    let (start, child) = fork_at(first.as_ptr().wrapping_add(at), false, || {
        space.vmalloc(pages, Options::DEFAULT.zeroed())
    });
    let start = start.unwrap();
    assert_eq!(start, first);
    bytes(start).fill(7);
    child.go_on();
    check_behind(bytes(start), at);
    // SAFETY: used no more.
    unsafe { space.vfree(start).unwrap() };
}

/// A handler forks where compaction copies a block. The parent writes to it; the child goes on.
/// Where it has memory of its own, it finds its copy of the block whole.
#[test]
fn a_child_of_a_handler_copies_nothing() {
    for kind in [MemoryKind::Anonymous, MemoryKind::Memfd] {
        let depot = Depot::builder(4 * mib()).memory(kind).build().unwrap();
        let order = common::order(3);
        let mut blocks: Vec<_> =
            std::iter::from_fn(|| depot.movable(order, Flags::default()).ok()).collect();
        blocks.sort_by_key(|block| block.pfn());
        // One in the last pageblock, which goes to one before.
        let pageblock = 512 / order.frames() as usize;
        let mut block = blocks.pop().unwrap();
        blocks.truncate(blocks.len() + 1 - pageblock);
        blocks.retain(|block| block.pfn().get() % (2 * order.frames()) == 0);
        depot.drain(Scope::ALL, Mode::Full);
        block.write().fill(5);
        let (from, at) = (block.pfn(), 2 * page_bytes());
        let page = depot.raw().address(from).as_ptr().wrapping_add(at);
        let is_whole = |block: &pagedepot_linux::Movable| {
            block.pfn() != from && block.read().iter().all(|&byte| byte == 5)
        };
        let parent = std::process::id();
        let (compacted, child) = fork_at(page, false, || {
            let compacted = depot.compact(Compaction::all());
            let is_private = kind == MemoryKind::Anonymous && std::process::id() != parent;
            assert!(!is_private || is_whole(&block));
            compacted
        });
        assert!(is_whole(&block), "{compacted:?}");
        block.write().fill(7);
        child.go_on();
        check_behind(&block.read(), at);
        drop((block, blocks));
        all_back(&depot);
    }
}
