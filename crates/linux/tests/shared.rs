//! Processes that share a segment, and die.

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::ffi::{CStr, CString};
use std::io::Write;
use std::num::NonZeroU64;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::pin::{Pin, pin};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Barrier, Mutex, OnceLock};
use std::task::{Context, Poll, Wake};
use std::thread;
use std::time::{Duration, Instant};

use common::skip::skip;
use common::{Random, for_all_cpus, mib, order, page_bytes, seed};
use pagedepot_linux::reclaim::{Ceiling, CeilingError};
use pagedepot_linux::shared::{ClaimError, Orphans, SegmentStats, SentPage, SharedDepot};
use pagedepot_linux::shared::{SegmentError, SharedOptions};
use pagedepot_linux::vmalloc::Vmalloc;
use pagedepot_linux::{AllocError, Flags, Mode, Order, Page, Pfn, Scope, ZoneId};

/// Counts what each thread allocates by Rust's allocator.
struct Counting;

thread_local! {
    static ALLOCATED: Cell<u32> = const { Cell::new(0) };
}

// SAFETY: as the system's.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATED.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller's.
        unsafe { System.dealloc(block, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

fn segment(bytes: usize) -> SharedDepot {
    SharedDepot::create_memfd("test", &SharedOptions::new(bytes)).unwrap()
}

fn join(depot: &SharedDepot) -> SharedDepot {
    SharedDepot::adopt(depot.file(), &SharedOptions::join()).unwrap()
}

/// A process that is forked, and does not return.
struct Child(libc::pid_t);

impl Child {
    fn new(program: impl FnOnce()) -> Self {
        // SAFETY: the child allocates and makes threads, which glibc allows after a fork; it ends
        // by `_exit`.
        let pid = unsafe { libc::fork() };
        assert!(pid >= 0);
        if pid == 0 {
            let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(program));
            // SAFETY: ends this process.
            unsafe { libc::_exit(i32::from(ended.is_err())) };
        }
        Child(pid)
    }

    fn wait(self) -> i32 {
        let pid = self.0;
        std::mem::forget(self);
        let mut status = 0;
        // SAFETY: a status to write to.
        assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
        status
    }

    fn kill(self) {
        // SAFETY: a child that was not waited for.
        unsafe { libc::kill(self.0, libc::SIGKILL) };
        self.wait();
    }
}

impl Drop for Child {
    /// A test that fails leaves no process.
    fn drop(&mut self) {
        // SAFETY: a child that was not waited for.
        unsafe { libc::kill(self.0, libc::SIGKILL) };
    }
}

/// A pipe: a child tells that it has come so far, and waits to be killed.
struct Pipe([i32; 2]);

impl Pipe {
    fn new() -> Self {
        let mut ends = [0; 2];
        // SAFETY: two descriptors are written.
        assert_eq!(unsafe { libc::pipe(ends.as_mut_ptr()) }, 0);
        Pipe(ends)
    }

    fn tell(&self, bytes: &[u8]) {
        // SAFETY: a buffer of that length.
        let wrote = unsafe { libc::write(self.0[1], bytes.as_ptr().cast(), bytes.len()) };
        assert_eq!(wrote, bytes.len() as isize);
    }

    fn hear<const N: usize>(&self) -> [u8; N] {
        let mut bytes = [0; N];
        // SAFETY: as above.
        let read = unsafe { libc::read(self.0[0], bytes.as_mut_ptr().cast(), N) };
        assert_eq!(read, N as isize);
        bytes
    }

    fn tell_and_sleep(&self) -> ! {
        self.tell(&[1]);
        loop {
            thread::sleep(Duration::from_secs(1));
        }
    }
}

impl Drop for Pipe {
    fn drop(&mut self) {
        // SAFETY: descriptors of this value.
        self.0.iter().for_each(|&end| unsafe { _ = libc::close(end) });
    }
}

/// Waits until something has happened, for a minute at most.
fn wait_until(what: &str, mut has_happened: impl FnMut() -> bool) {
    let until = Instant::now() + Duration::from_secs(60);
    while !has_happened() {
        assert!(Instant::now() < until, "it has not happened: {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// A child that joins the segment behind a descriptor.
fn child_of(fd: BorrowedFd<'_>, program: impl FnOnce(SharedDepot)) -> Child {
    Child::new(|| program(SharedDepot::adopt(fd, &SharedOptions::join()).unwrap()))
}

/// Checks that this process can have every page there is, once all others have ended. A depot of
/// this process that was dropped ends with its thread, which may answer another at that moment.
fn all_back(depot: &SharedDepot) {
    wait_until("all others have ended", || depot.segment_stats().processes.len() == 1);
    depot.drain(Scope::ALL, Mode::Full);
    let stats = depot.segment_stats();
    assert_eq!(stats.lost_pages, 0, "{stats:?}");
    assert_eq!(stats.free_pages, stats.present_pages, "{stats:?}");
    assert_eq!(depot.refused_pages(), 0);
    let pages: Vec<Page> = std::iter::from_fn(|| depot.page(Order::BASE).ok()).collect();
    assert_eq!(pages.len() as u64, stats.present_pages);
    drop(pages);
    depot.drain(Scope::ALL, Mode::Full);
    assert_eq!(depot.segment_stats().free_pages, stats.present_pages);
    assert_eq!(depot.taken_pages(), (0, 0));
    depot.validate().unwrap();
}

#[test]
fn two_members_never_have_the_same_page() {
    let one = segment(4 * mib());
    let two = join(&one);
    assert_ne!(one.slot(), two.slot());
    let mut pages: Vec<(usize, Page)> = Vec::new();
    loop {
        match (one.page(Order::BASE), two.page(Order::BASE)) {
            (Err(_), Err(_)) => break,
            (a, b) => {
                pages.extend(a.ok().map(|page| (1, page)));
                pages.extend(b.ok().map(|page| (2, page)));
            }
        }
    }
    let mut numbers: Vec<_> = pages.iter().map(|(_, page)| page.pfn()).collect();
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), 1024);
    drop(pages);
    drop(two);
    all_back(&one);
}

#[test]
fn what_one_writes_another_reads() {
    let depot = segment(4 * mib());
    let pipe = Pipe::new();
    let mut page = depot.page(order(2)).unwrap();
    page.fill(0x5a);
    let sent = page.into_shared(&depot).unwrap();
    assert_eq!(depot.taken_pages().1, 4);
    let child = child_of(depot.file(), |depot| {
        let page = depot.claim(sent).unwrap();
        assert_eq!(page.len(), 4 * page_bytes());
        assert!(page.iter().all(|&byte| byte == 0x5a));
        assert_eq!(depot.claim(sent).unwrap_err(), ClaimError::Gone);
        let back = page.into_shared(&depot).unwrap();
        pipe.tell(&back.to_bits().to_le_bytes());
    });
    let back = SentPage::from_bits(u128::from_le_bytes(pipe.hear()));
    assert_eq!(child.wait(), 0);
    // The sender has left without a receiver.
    let stats = depot.segment_stats();
    assert_eq!(stats.processes.iter().map(|one| one.sent_pages).sum::<u64>(), 4, "{stats:?}");
    drop(depot.claim(back).unwrap());
    depot.recover(Orphans::Stay);
    all_back(&depot);
}

/// Pages of all orders that are sent together: each message gets its page once, a message that is
/// twice in the list or none at all is refused, and counts are exact.
#[test]
fn many_pages_are_sent_and_claimed_at_once() {
    let depot = segment(16 * mib());
    let receiver = join(&depot);
    let stranger = segment(4 * mib());
    let mut pages: Vec<Page> = depot.alloc_pages(Order::BASE, 150).unwrap().collect();
    pages.extend((0..=10).map(|n| depot.page(order(n)).unwrap()));
    pages.insert(70, stranger.page(Order::BASE).unwrap());
    pages.iter_mut().for_each(|page| page[0] = page.pfn().get() as u8);
    let (count, frames) = (161, 150 + 2047);
    let mut sent = Vec::new();
    let unsent = depot.send_pages(pages, &mut sent);
    assert_eq!((unsent.len(), sent.len()), (1, count));
    assert_eq!(depot.taken_pages().1, frames);

    let wrong = SentPage::from_bits(sent[3].to_bits() ^ 1 << 32);
    let mut list = sent.clone();
    list.insert(4, sent[3]);
    list.insert(2, wrong);
    list.push(SentPage::from_bits(!0));
    // Side by side, and of a slot that is none.
    list.extend([SentPage::from_bits(0xff << 64); 2]);
    let (mut got, mut refused) = (Vec::new(), Vec::new());
    receiver.claim_pages(&list, &mut got, |place, error| refused.push((place, error)));
    let [gone, none] = [ClaimError::Gone, ClaimError::NoPage];
    let nones = [2, 3, 4].map(|behind| (count + behind, none));
    assert_eq!(refused, [[(2, gone), (5, gone)].as_slice(), &nones].concat());
    assert_eq!(got.len(), count);
    assert!(got.iter().all(|page| page[0] == page.pfn().get() as u8));
    assert_eq!(depot.taken_pages().1, 0);
    let mut numbers: Vec<_> = got.iter().map(Page::pfn).collect();
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), count);
    // Those that are below the ceiling, in the order of the list.
    sent.clear();
    assert!(receiver.send_pages(got.drain(..), &mut sent).is_empty());
    refused.clear();
    depot.drain(Scope::ALL, Mode::Full);
    depot.set_ceiling(100 * page_bytes());
    list.clone_from(&sent);
    list.push(SentPage::from_bits(!0));
    depot.claim_pages(&list, &mut got, |place, error| refused.push((place, error)));
    assert_eq!(refused.pop(), Some((count, none)));
    assert_eq!((got.len(), refused.len()), (100, count - 100));
    assert!(refused.iter().all(|(_, error)| *error == ClaimError::Ceiling));
    let rest: Vec<_> = refused.drain(..).map(|(place, _)| sent[place]).collect();
    receiver.claim_pages(&rest, &mut got, |place, error| panic!("{place}: {error}"));
    drop((got, unsent, receiver));
    depot.set_ceiling(0);
    all_back(&depot);
}

/// The pages that a panicking iterator has brought are sent, and none is lost.
#[test]
fn pages_are_sent_also_when_their_iterator_panics() {
    let depot = segment(4 * mib());
    let mut sent = Vec::new();
    let pages =
        (0..10).map(|nth| if nth < 9 { depot.page(Order::BASE).unwrap() } else { panic!() });
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let _ = depot.send_pages(pages, &mut sent);
    }));
    assert!(outcome.is_err());
    assert_eq!((sent.len(), depot.taken_pages().1), (9, 9));
    let mut got = Vec::new();
    depot.claim_pages(&sent, &mut got, |place, error| panic!("{place}: {error}"));
    drop(got);
    all_back(&depot);
}

#[test]
fn a_receiver_that_never_comes() {
    let depot = segment(4 * mib());
    let sent = depot.page(Order::BASE).unwrap().into_shared(&depot).unwrap();
    // The sender takes it back, and the message is worth nothing any more.
    drop(depot.claim(sent).unwrap());
    let page = depot.raw().alloc_at(depot_pfn(sent), 1, Flags::default());
    depot.drain(Scope::ALL, Mode::Full);
    let page = page.or_else(|_| depot.raw().alloc_at(depot_pfn(sent), 1, Flags::default()));
    page.unwrap();
    // SAFETY: allocated just now.
    let page = unsafe { Page::from_raw(&depot, depot_pfn(sent), Order::BASE) };
    let again = page.into_shared(&depot).unwrap();
    assert_eq!(depot.claim(sent).unwrap_err(), ClaimError::Gone);
    // A dead sender's are claimed by its survivors, or go back.
    drop(depot.claim(again).unwrap());
    let pipe = Pipe::new();
    let child = child_of(depot.file(), |depot| {
        for _ in 0..2 {
            let sent = depot.page(Order::BASE).unwrap().into_shared(&depot).unwrap();
            pipe.tell(&sent.to_bits().to_le_bytes());
        }
        pipe.tell_and_sleep();
    });
    let first = SentPage::from_bits(u128::from_le_bytes(pipe.hear()));
    let second = SentPage::from_bits(u128::from_le_bytes(pipe.hear()));
    pipe.hear::<1>();
    child.kill();
    depot.recover(Orphans::Stay);
    drop(depot.claim(first).unwrap());
    assert_eq!(depot.recover(Orphans::GoBack).pages, 1);
    assert_eq!(depot.claim(second).unwrap_err(), ClaimError::Gone);
    for bits in [0, !0, 1 << 72, 200 << 64, 0xffff_ffff] {
        assert!(depot.claim(SentPage::from_bits(bits)).is_err());
    }
    all_back(&depot);
}

/// A number that differs from a message's in the slot of its sender is no message, and the page can
/// be claimed as before.
#[test]
fn a_message_of_another_sender_changes_nothing() {
    let depot = segment(4 * mib());
    let other = join(&depot);
    for n in [0, 5] {
        let sent = depot.page(order(n)).unwrap().into_shared(&depot).unwrap();
        for bit in 0..128 {
            let wrong = SentPage::from_bits(sent.to_bits() ^ 1 << bit);
            if wrong != sent {
                assert!(other.claim(wrong).is_err(), "bit {bit}");
            }
        }
        assert_eq!(other.claim(sent).unwrap().order(), order(n));
    }
    drop(other);
    all_back(&depot);
}

fn depot_pfn(sent: SentPage) -> Pfn {
    Pfn::new(sent.to_bits() as u32)
}

#[test]
fn pages_of_a_killed_process_come_back() {
    let depot = segment(64 * mib());
    let pipe = Pipe::new();
    let child = child_of(depot.file(), |depot| {
        let pages: Vec<_> = std::iter::from_fn(|| depot.page(Order::BASE).ok()).collect();
        assert_eq!(pages.len(), 16384);
        pipe.tell_and_sleep();
    });
    pipe.hear::<1>();
    assert_eq!(depot.segment_stats().free_pages, 0);
    child.kill();
    // A request finds it out by itself.
    drop(depot.page(order(9)).unwrap());
    all_back(&depot);
}

#[test]
fn a_stopped_process_keeps_what_it_has() {
    let depot = segment(4 * mib());
    let pipe = Pipe::new();
    let child = child_of(depot.file(), |depot| {
        let _page = depot.page(Order::BASE).unwrap();
        pipe.tell_and_sleep();
    });
    pipe.hear::<1>();
    // SAFETY: a child that was not waited for.
    unsafe { libc::kill(child.0, libc::SIGSTOP) };
    thread::sleep(Duration::from_millis(20));
    assert_eq!(depot.recover(Orphans::GoBack).processes, 0);
    let drained = depot.drain_all(Mode::Full, Duration::from_millis(20));
    assert_eq!((drained.asked, drained.answered), (1, 0));
    assert!(depot.segment_stats().processes.iter().all(|one| one.is_alive));
    child.kill();
    assert_eq!(depot.recover(Orphans::GoBack).processes, 1);
    all_back(&depot);
}

#[test]
fn a_live_process_gives_back_what_it_caches() {
    // Enough for each of sixteen CPUs to cache a magazine.
    let depot = segment(64 * mib());
    let pipe = Pipe::new();
    let child = child_of(depot.file(), |depot| {
        drop(depot.page(Order::BASE).unwrap());
        pipe.tell_and_sleep();
    });
    pipe.hear::<1>();
    assert!(depot.segment_stats().free_pages < 16384);
    let drained = depot.drain_all(Mode::Full, Duration::from_secs(60));
    assert_eq!((drained.asked, drained.answered), (1, 1));
    assert_eq!(depot.segment_stats().free_pages, 16384);
    // A request that runs short asks, too.
    let pages: Vec<_> = std::iter::from_fn(|| depot.page(Order::BASE).ok()).collect();
    assert_eq!(pages.len(), 16384);
    child.kill();
}

#[test]
fn a_forked_child_is_no_member_and_a_program_that_it_executes_is_none_either() {
    const SLEEPS: &str = "PAGEDEPOT_TEST_SLEEPS";
    if std::env::var_os(SLEEPS).is_some() {
        return thread::sleep(Duration::from_secs(60));
    }
    let depot = segment(4 * mib());
    let sent = depot.page(Order::BASE).unwrap().into_shared(&depot).unwrap();
    let [page, other] = [(); 2].map(|()| depot.page(Order::BASE).unwrap());
    let child = Child::new(|| {
        assert!(matches!(depot.page(Order::BASE), Err(AllocError::Forked)));
        assert_eq!(depot.claim(sent).unwrap_err(), ClaimError::Forked);
        assert_eq!(depot.send_pages([page], &mut Vec::new()).len(), 1);
        let mut error = None;
        depot.claim_pages(&[sent], &mut Vec::new(), |_, one| error = Some(one));
        assert_eq!(error, Some(ClaimError::Forked));
        assert!(other.into_shared(&depot).is_err());
        assert_eq!((depot.shrink(0), depot.grow(0)), (4 * mib(), 4 * mib()));
        assert_eq!(depot.grow_by(mib()), 0);
        depot.set_heir(Some(NonZeroU64::MIN));
        depot.set_ceiling(page_bytes());
        depot.recover(Orphans::AllGoBack);
        let own = join(&depot);
        drop(own.page(Order::BASE).unwrap());
    });
    assert_eq!(child.wait(), 0);
    let stats = depot.segment_stats();
    assert_eq!(stats.processes.len(), 1, "it has left");
    assert_eq!((stats.processes[0].heir, stats.processes[0].ceiling_pages), (None, 0));
    assert_eq!(stats.present_pages, (4 * mib() / page_bytes()) as u64);
    let page = depot.claim(sent).unwrap();
    // A member that executes another program keeps its number, and has left all the same.
    let pipe = Pipe::new();
    let child = child_of(depot.file(), |depot| {
        let _pages: Vec<_> = (0..100).map(|_| depot.page(Order::BASE).unwrap()).collect();
        pipe.tell(&[1]);
        let name = "a_forked_child_is_no_member_and_a_program_that_it_executes_is_none_either";
        let mut program = Command::new("/proc/self/exe");
        panic!("{}", program.args(["--exact", name]).env(SLEEPS, "").exec());
    });
    pipe.hear::<1>();
    let mut recovered = depot.recover(Orphans::Stay);
    for _ in 0..1000 {
        if recovered.processes > 0 {
            break;
        }
        thread::sleep(Duration::from_millis(10));
        recovered = depot.recover(Orphans::Stay);
    }
    assert_eq!(recovered.processes, 1);
    child.kill();
    drop(page);
    all_back(&depot);
}

/// The descriptor of a segment, for the program that a test's child executes.
const SEGMENT: &str = "PAGEDEPOT_TEST_SEGMENT";

/// A process that replaces itself, as a server does for an upgrade, keeps its number, and maps the
/// segment again: what the program before had goes back all the same, also while a child lives that
/// this had forked.
#[test]
fn a_program_that_executes_itself_and_joins_again_has_left() {
    if let Ok(number) = std::env::var(SEGMENT) {
        // SAFETY: the program before has left it open.
        let file = unsafe { OwnedFd::from_raw_fd(number.parse().unwrap()) };
        let depot = SharedDepot::adopt(&file, &SharedOptions::join()).unwrap();
        let _page = depot.page(Order::BASE).unwrap();
        loop {
            thread::sleep(Duration::from_secs(1));
        }
    }
    let depot = segment(4 * mib());
    let pipe = Pipe::new();
    let child = child_of(depot.file(), |own| {
        let _pages: Vec<_> = (0..500).map(|_| own.page(Order::BASE).unwrap()).collect();
        std::mem::forget(Child::new(|| {
            // SAFETY: this process ends with the parent.
            unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
            thread::sleep(Duration::from_secs(600));
        }));
        pipe.tell(&[1]);
        let number = own.file().as_raw_fd();
        // SAFETY: a flag of a descriptor.
        assert_eq!(unsafe { libc::fcntl(number, libc::F_SETFD, 0) }, 0);
        let name = "a_program_that_executes_itself_and_joins_again_has_left";
        let mut program = Command::new("/proc/self/exe");
        panic!("{}", program.args(["--exact", name]).env(SEGMENT, number.to_string()).exec());
    });
    pipe.hear::<1>();
    wait_until("the pages of the program before have gone back", || {
        depot.recover(Orphans::Stay);
        depot.segment_stats().free_pages > 1024 - 500
    });
    wait_until("the program has joined", || depot.segment_stats().processes.len() == 2);
    child.kill();
    assert_eq!(depot.recover(Orphans::Stay).processes, 1);
    all_back(&depot);
}

/// A process has died, and a child that it forked lives. Neither pages nor the slot wait for it.
#[test]
fn a_forked_child_keeps_nothing_of_its_dead_parent() {
    let depot = segment(4 * mib());
    let pipe = Pipe::new();
    let parent = child_of(depot.file(), |own| {
        let _pages: Vec<_> = (0..100).map(|_| own.page(Order::BASE).unwrap()).collect();
        let child = Child::new(|| thread::sleep(Duration::from_secs(600)));
        pipe.tell(&child.0.to_ne_bytes());
        pipe.tell_and_sleep();
    });
    let child = Child(i32::from_ne_bytes(pipe.hear()));
    parent.kill();
    assert_eq!(depot.recover(Orphans::Stay).processes, 1);
    let next = join(&depot);
    assert_eq!(next.slot(), depot.slot() + 1, "the slot of the dead process is open");
    drop((next, child));
    all_back(&depot);
}

/// A process leaves where the system lets its children have the lock of its slot. The slot is open
/// although one lives.
#[test]
fn a_slot_that_was_left_is_open_where_children_have_its_lock() {
    common::in_child(|| {
        let depot = segment(4 * mib());
        let advice = libc::MADV_DONTFORK as u32;
        if let Err(error) = common::refuse_from(libc::SYS_madvise, 2, advice, libc::EPERM) {
            return skip(format_args!("the system takes no filters (seccomp): {error}"));
        }
        let own = join(&depot);
        let slot = own.slot();
        let _child = Child::new(|| thread::sleep(Duration::from_secs(600)));
        drop(own);
        assert_eq!(join(&depot).slot(), slot);
    });
}

/// The page that has the lock of a process is not mapped in a forked child, which may have another
/// there, and keeps that when it drops its handle.
#[test]
fn a_forked_child_that_drops_a_depot_unmaps_nothing_of_its_own() {
    let depot = SharedDepot::create_memfd("lock-page", &SharedOptions::new(mib())).unwrap();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let is_lock_page = |line: &&str| line.contains(" ---s ") && line.contains("memfd:lock-page");
    let (start, _) = maps.lines().find(is_lock_page).unwrap().split_once('-').unwrap();
    let start = usize::from_str_radix(start, 16).unwrap();
    common::in_child(|| {
        let (access, bytes) = (libc::PROT_READ | libc::PROT_WRITE, page_bytes());
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
        let at = std::ptr::with_exposed_provenance_mut::<u8>(start);
        // SAFETY: replaces nothing. The handle is the child's, which drops it once.
        unsafe {
            assert_eq!(libc::mmap(at.cast(), bytes, access, flags, -1, 0), at.cast());
            drop(std::ptr::read(&depot));
            at.write_volatile(1);
        }
    });
    all_back(&depot);
}

/// Gives this process, a child without threads, mounts of its own. `false`: the system refuses.
fn has_own_mounts() -> bool {
    let (none, private) = (c"none".as_ptr(), libc::MS_REC | libc::MS_PRIVATE);
    // SAFETY: changes what this process and its children see.
    unsafe {
        libc::unshare(libc::CLONE_NEWNS) == 0
            && libc::mount(none, c"/".as_ptr(), none, private, std::ptr::null()) == 0
    }
}

/// Mounts a file system of this kind. `false`: the system refuses.
fn mount(kind: &CStr, target: &Path, options: &str) -> bool {
    let target = CString::new(target.as_os_str().as_encoded_bytes()).unwrap();
    let options = CString::new(options).unwrap();
    // SAFETY: changes what this process and its children see.
    unsafe {
        let kind = kind.as_ptr();
        libc::mount(kind, target.as_ptr(), kind, 0, options.as_ptr().cast()) == 0
    }
}

/// A mapping on an overlay, such as a container's root, refers to a file of the upper layer: that
/// does not keep the lock of a process, which has not ended for all that.
#[test]
fn a_process_on_an_overlay_lives_until_it_dies() {
    let folder = TempPath::new("overlay");
    std::fs::create_dir(&folder.0).unwrap();
    common::in_child(|| {
        let parts = ["lower", "upper", "work", "merged"].map(|name| folder.0.join(name));
        if !has_own_mounts() || !mount(c"tmpfs", &folder.0, "") {
            return skip("the system refuses mounts");
        }
        parts.iter().for_each(|part| std::fs::create_dir(part).unwrap());
        let [lower, upper, work, merged] = &parts;
        let [lower, upper, work] = [lower, upper, work].map(|part| part.display());
        let options = format!("lowerdir={lower},upperdir={upper},workdir={work}");
        if !mount(c"overlay", merged, &options) {
            return skip("the system refuses overlays");
        }
        let path = merged.join("segment");
        let depot = SharedDepot::create(&path, &SharedOptions::new(4 * mib())).unwrap();
        let held: Vec<_> = (0..10).map(|_| depot.page(Order::BASE).unwrap()).collect();
        let open = || SharedDepot::open(&path, &SharedOptions::join()).unwrap();
        let other = Child::new(|| {
            let own = open();
            assert_eq!((own.recovered_pages(), own.recover(Orphans::Stay).processes), (0, 0));
            let stats = own.segment_stats();
            assert!(stats.processes[0].held_pages >= 10, "{stats:?}");
            assert!(stats.processes.iter().all(|one| one.is_alive), "{stats:?}");
        });
        assert_eq!(other.wait(), 0);
        let pipe = Pipe::new();
        let other = Child::new(|| {
            let own = open();
            let _page = own.page(Order::BASE).unwrap();
            // It has the descriptor, too, and is no reason to wait.
            let child = Child::new(|| thread::sleep(Duration::from_secs(600)));
            pipe.tell(&child.0.to_ne_bytes());
            pipe.tell_and_sleep();
        });
        let grandchild = Child(i32::from_ne_bytes(pipe.hear()));
        assert_eq!(depot.recover(Orphans::Stay).processes, 0, "it lives");
        other.kill();
        assert_eq!(depot.recover(Orphans::Stay).processes, 1);
        drop((held, grandchild));
        all_back(&depot);
    });
    std::fs::remove_dir(&folder.0).unwrap();
}

/// The clock by which processes tell their start differs by time namespace. There the lock alone
/// says that a process has ended, whatever children it has.
#[test]
fn a_process_in_another_time_namespace_lives() {
    const CLONE_NEWTIME: i32 = 0x80;
    let depot = segment(4 * mib());
    let pipe = Pipe::new();
    let parent = Child::new(|| {
        // SAFETY: of this process's children.
        let is_apart = unsafe { libc::unshare(CLONE_NEWTIME) } == 0
            && std::fs::write("/proc/self/timens_offsets", "boottime 1000000 0").is_ok();
        if !is_apart {
            return pipe.tell(&[0; 4]);
        }
        let child = child_of(depot.file(), |own| {
            let _page = own.page(Order::BASE).unwrap();
            let child = Child::new(|| thread::sleep(Duration::from_secs(600)));
            pipe.tell(&child.0.to_ne_bytes());
            pipe.tell_and_sleep();
        });
        child.wait();
    });
    let grandchild = i32::from_ne_bytes(pipe.hear());
    if grandchild == 0 {
        parent.wait();
        return skip("this process may not make time namespaces");
    }
    let grandchild = Child(grandchild);
    assert_eq!(depot.recover(Orphans::Stay).processes, 0, "it lives");
    let stats = depot.segment_stats();
    let other = stats.processes.iter().find(|one| one.slot != depot.slot()).unwrap();
    assert!(other.is_alive, "{stats:?}");
    // SAFETY: a child of this process's child, which is waiting for it.
    unsafe { libc::kill(other.pid as i32, libc::SIGKILL) };
    parent.wait();
    assert_eq!(depot.recover(Orphans::Stay).processes, 1);
    drop(grandchild);
    all_back(&depot);
}

/// A process has died, and a child lives that shares its memory, and so has its lock. What has the
/// number of the dead process now, a process group that the child is in, or a thread, is not that
/// process.
#[test]
fn a_dead_parent_has_ended_whatever_has_its_number() {
    for leads_group in [true, false] {
        let namespace = Child::new(|| {
            // In a namespace of their own no other process takes a number meanwhile.
            // SAFETY: later children begin there.
            if unsafe { libc::unshare(libc::CLONE_NEWPID) } != 0 {
                return skip("the system refuses PID namespaces");
            }
            assert_eq!(Child::new(|| end_beside_a_child(leads_group)).wait(), 0);
        });
        assert_eq!(namespace.wait(), 0);
    }
}

/// A child that shares the memory of this process, as one of `vfork` does, and sleeps.
fn sharing_child() -> Child {
    extern "C" fn sleep(_: *mut libc::c_void) -> libc::c_int {
        loop {
            // SAFETY: waits for a signal.
            unsafe { libc::pause() };
        }
    }
    let stack = Box::leak(vec![0_u128; 4096].into_boxed_slice()).as_mut_ptr_range();
    let flags = libc::CLONE_VM | libc::SIGCHLD;
    // SAFETY: a stack of the child's own, on which it does nothing but wait.
    let pid = unsafe { libc::clone(sleep, stack.end.cast(), flags, std::ptr::null_mut()) };
    assert!(pid > 0);
    Child(pid)
}

fn end_beside_a_child(leads_group: bool) {
    let depot = segment(4 * mib());
    let pipe = Pipe::new();
    let parent = Child::new(|| {
        if leads_group {
            // SAFETY: of this process.
            assert_eq!(unsafe { libc::setpgid(0, 0) }, 0);
        }
        let own = join(&depot);
        let _pages: Vec<_> = (0..100).map(|_| own.page(Order::BASE).unwrap()).collect();
        pipe.tell(&sharing_child().0.to_ne_bytes());
        pipe.tell_and_sleep();
    });
    let child = Child(i32::from_ne_bytes(pipe.hear()));
    let number = parent.0;
    parent.kill();
    let last = (number - 1).to_string();
    if !leads_group && std::fs::write("/proc/sys/kernel/ns_last_pid", last).is_ok() {
        let (told, hears) = std::sync::mpsc::channel();
        thread::spawn(move || {
            // SAFETY: returns a number.
            told.send(unsafe { libc::gettid() }).unwrap();
            thread::sleep(Duration::from_secs(600));
        });
        assert_eq!(hears.recv(), Ok(number), "the thread has the number");
    }
    let recovered = depot.recover(Orphans::Stay);
    assert!(recovered.processes == 1 && recovered.pages >= 100, "{recovered:?}");
    // It is no child of this process.
    std::mem::forget(child);
}

/// A thread may have a table of descriptors of its own. Behind their numbers the main thread has
/// another file here.
#[test]
fn a_thread_with_its_own_descriptors_makes_a_segment_in_its_own_file() {
    // SAFETY: a name; a new descriptor.
    let other = unsafe { OwnedFd::from_raw_fd(libc::memfd_create(c"other".as_ptr(), 0)) };
    let other = std::fs::File::from(other);
    other.set_len(16 << 20).unwrap();
    let numbers = [(); 64].map(|()| other.try_clone().unwrap());
    let act = || {
        // SAFETY: of this thread alone, which ends here; its table has no use for these.
        unsafe {
            assert_eq!(libc::unshare(libc::CLONE_FILES), 0);
            numbers.iter().for_each(|file| assert_eq!(libc::close(file.as_raw_fd()), 0));
        }
        let options = SharedOptions::new(mib()).answers(false);
        let one = SharedDepot::create_memfd("test", &options).unwrap();
        let two = SharedDepot::adopt(one.file(), &options).unwrap();
        assert_ne!(one.slot(), two.slot());
    };
    thread::scope(|scope| scope.spawn(act).join().unwrap());
    let mut head = [0xff; 4096];
    other.read_exact_at(&mut head, 0).unwrap();
    assert!(head.iter().all(|&byte| byte == 0));
}

/// A path in a folder for temporary files, removed at the end.
struct TempPath(PathBuf);

impl TempPath {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("pagedepot-{name}-{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        TempPath(path)
    }
}

impl Drop for TempPath {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[test]
fn a_file_that_nobody_has_open_is_opened_again() {
    let path = TempPath::new("again");
    let child = Child::new(|| {
        let options = SharedOptions::new(16 * mib());
        let depot = SharedDepot::create(&path.0, &options).unwrap();
        let mut page = depot.page(Order::BASE).unwrap();
        page.fill(7);
        std::mem::forget(page);
        // SAFETY: ends this process at once.
        unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
    });
    child.wait();
    let stats = SegmentStats::read(&path.0).unwrap();
    assert!(stats.free_pages < 4096 && !stats.processes[0].is_alive, "{stats:?}");
    let depot = SharedDepot::open(&path.0, &SharedOptions::join()).unwrap();
    all_back(&depot);
    assert!(SharedDepot::create(&path.0, &SharedOptions::new(mib())).is_err());
}

#[test]
fn an_heir_takes_what_a_dead_process_had() {
    let heir = NonZeroU64::new(0xcafe).unwrap();
    let depot = segment(4 * mib());
    let pipe = Pipe::new();
    let child = Child::new(|| {
        let options = SharedOptions::join().heir(heir).answers(false);
        let own = SharedDepot::adopt(depot.file(), &options).unwrap();
        let mut pages: Vec<Page> = (0..300).map(|_| own.page(Order::BASE).unwrap()).collect();
        for page in &mut pages {
            let number = page.pfn().get().to_le_bytes();
            page[..4].copy_from_slice(&number);
        }
        let sent = pages.pop().unwrap().into_shared(&own).unwrap();
        pipe.tell(&sent.to_bits().to_le_bytes());
        pipe.tell_and_sleep();
    });
    let sent = SentPage::from_bits(u128::from_le_bytes(pipe.hear()));
    pipe.hear::<1>();
    assert_eq!(depot.inherit(heir).count(), 0, "it lives");
    child.kill();
    assert_eq!(depot.recover(Orphans::GoBack).pages, 1, "what it had sent");
    assert!(depot.claim(sent).is_err());
    let stats = depot.segment_stats();
    let estate = stats.processes.iter().find(|one| one.heir == Some(heir)).unwrap();
    assert!(estate.estate_pages >= 299, "{stats:?}");
    // Two take it together: neither gets a page of the other.
    let other = join(&depot);
    assert_eq!(depot.inherit(NonZeroU64::MIN).count(), 0, "another name");
    let mut mine: Vec<Page> = depot.inherit(heir).take(100).collect();
    assert_eq!(depot.segment_stats().lost_pages, 0);
    let theirs: Vec<Page> = other.inherit(heir).collect();
    assert_eq!(mine.len() + theirs.len(), estate.estate_pages as usize);
    mine.extend(theirs);
    let written = mine.iter().filter(|page| page[..4] == page.pfn().get().to_le_bytes());
    assert!(written.count() >= 299, "contents stay");
    drop(mine);
    drop(other);
    all_back(&depot);
}

/// A child that names an heir is killed with 20 pages.
fn leave_estate(depot: &SharedDepot, heir: NonZeroU64) {
    let pipe = Pipe::new();
    let child = Child::new(|| {
        let options = SharedOptions::join().heir(heir).answers(false);
        let own = SharedDepot::adopt(depot.file(), &options).unwrap();
        let _pages: Vec<Page> = (0..20).map(|_| own.page(Order::BASE).unwrap()).collect();
        pipe.tell_and_sleep();
    });
    pipe.hear::<1>();
    child.kill();
    depot.recover(Orphans::Stay);
}

/// Others have taken the estate that an iterator was made for, and its slot has another since.
#[test]
fn an_heir_takes_nothing_that_was_left_to_another() {
    let [early, late] = [7, 9].map(|name| NonZeroU64::new(name).unwrap());
    let depot = segment(4 * mib());
    leave_estate(&depot, early);
    let old = depot.inherit(early);
    assert!(depot.inherit(early).count() >= 20);
    leave_estate(&depot, late);
    assert_eq!(old.count(), 0);
    assert!(depot.inherit(late).count() >= 20);
    all_back(&depot);
}

#[test]
fn estates_in_all_slots_go_back_to_one_that_opens() {
    let heir = NonZeroU64::MIN;
    let path = TempPath::new("estates");
    let child = Child::new(|| {
        let options = SharedOptions::new(4 * mib()).heir(heir).answers(false);
        let depot = SharedDepot::create(&path.0, &options).unwrap();
        let options = SharedOptions::join().heir(heir).answers(false);
        let all: Vec<_> = (1..47).map(|_| SharedDepot::open(&path.0, &options).unwrap()).collect();
        std::mem::forget(depot.page(Order::BASE).unwrap());
        all.iter().for_each(|one| std::mem::forget(one.page(Order::BASE).unwrap()));
        // SAFETY: ends this process at once.
        unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
    });
    child.wait();
    let full = SharedDepot::open(&path.0, &SharedOptions::join()).unwrap_err();
    assert_eq!(full, SegmentError::Full);
    let options = SharedOptions::join().orphans(Orphans::AllGoBack);
    let depot = SharedDepot::open(&path.0, &options).unwrap();
    depot.recover(Orphans::AllGoBack);
    all_back(&depot);
}

/// A vmalloc over a segment: scattered pages of it, at contiguous addresses.
#[test]
fn a_vmalloc_lies_in_the_segment() {
    let depot = segment(16 * mib());
    let space = Vmalloc::new(&depot).unwrap();
    let mut buf = space.buf(5 * mib()).unwrap();
    assert!(buf.iter().all(|&byte| byte == 0));
    buf.fill(0x77);
    let other = join(&depot);
    assert!(other.page(order(10)).is_ok());
    assert!(buf.iter().all(|&byte| byte == 0x77));
    // The bytes are in the segment's file, and nowhere else.
    let mut found = 0;
    let file = std::fs::File::from(depot.file().try_clone_to_owned().unwrap());
    for page in 0..4096 {
        use std::os::unix::fs::FileExt;
        let mut byte = [0];
        file.read_exact_at(&mut byte, depot.frames_at() as u64 + page_bytes() as u64 * page)
            .unwrap();
        found += usize::from(byte[0] == 0x77);
    }
    assert_eq!(found, 5 * mib() / page_bytes());
    drop((buf, space, other));
    all_back(&depot);
}

#[test]
fn every_slot_is_used_and_used_again() {
    let depot = segment(4 * mib());
    let options = SharedOptions::join().answers(false);
    let adopt = || SharedDepot::adopt(depot.file(), &options);
    let others: Vec<_> = (1..47).map(|_| adopt().unwrap()).collect();
    assert_eq!(adopt().unwrap_err(), SegmentError::Full);
    drop(others);
    // Dead ones in all the slots: the next one buries them.
    let pipe = Pipe::new();
    let child = Child::new(|| {
        let others: Vec<_> = (1..47).map(|_| adopt().unwrap()).collect();
        let _pages: Vec<_> = others.iter().map(|one| one.page(Order::BASE).unwrap()).collect();
        pipe.tell_and_sleep();
    });
    pipe.hear::<1>();
    assert_eq!(adopt().unwrap_err(), SegmentError::Full);
    child.kill();
    drop(adopt().unwrap());
    all_back(&depot);
}

#[test]
fn a_segment_grows_and_shrinks_while_others_use_it() {
    let options = SharedOptions::new(4 * mib()).grow_to(64 * mib());
    let depot = SharedDepot::create_memfd("grows", &options).unwrap();
    let other = join(&depot);
    assert!(other.page(order(10)).is_ok());
    let all = |depot: &SharedDepot| {
        let pages: Vec<_> = std::iter::from_fn(|| depot.page(order(5)).ok()).collect();
        pages.len()
    };
    assert_eq!(all(&depot), 1024 >> 5);
    assert_eq!(other.grow(16 * mib()), 16 * mib());
    assert_eq!(all(&depot), 4096 >> 5);
    depot.drain(Scope::ALL, Mode::Full);
    other.drain(Scope::ALL, Mode::Full);
    assert_eq!(depot.shrink(8 * mib()), 8 * mib());
    assert_eq!(all(&other), 2048 >> 5);
    assert_eq!(depot.grow(usize::MAX), 64 * mib());
    drop(other);
    all_back(&depot);
}

/// Memory is added where a part was taken out before pages in use, and by two callers at once.
#[test]
fn a_segment_grows_by_what_is_asked_for() {
    let options = SharedOptions::new(4 * mib()).grow_to(8 * mib());
    let depot = SharedDepot::create_memfd("grows", &options).unwrap();
    let last = depot.pin_range(Pfn::new((3 * mib() / page_bytes()) as u32), 1).unwrap();
    assert_eq!(depot.shrink(mib()), mib() + page_bytes());
    assert_eq!(depot.grow_by(2 * mib() + 1), 2 * mib() + page_bytes());
    assert_eq!(depot.present_bytes(), 3 * mib() + 2 * page_bytes());
    let added = thread::scope(|scope| {
        let callers = [(); 2].map(|()| scope.spawn(|| depot.grow_by(mib())));
        callers.map(|caller| caller.join().unwrap())
    });
    assert_eq!(added, [mib(); 2]);
    assert_eq!(depot.present_bytes(), 5 * mib() + 2 * page_bytes());
    assert_eq!(depot.grow_by(usize::MAX), 3 * mib() - 2 * page_bytes());
    drop(last);
    all_back(&depot);
}

/// A file's memory is what was written to it, so a sparse segment may be larger than the machine.
#[test]
fn a_segment_may_be_larger_than_memory() {
    let info = rustix::system::sysinfo();
    let all = (info.totalram + info.totalswap) as usize * info.mem_unit as usize;
    let depot = segment(all + (1 << 30));
    assert_eq!(depot.page(Order::BASE).unwrap().len(), depot.raw().page_size().bytes());
}

#[test]
fn a_shrink_leaves_what_is_pinned() {
    let depot = segment(4 * mib());
    let all = 4 * mib() / page_bytes();
    let first = depot.pin_range(Pfn::new(10), 20).unwrap();
    let last = depot.pin_range(Pfn::new(all as u32 - 3), 3).unwrap();
    assert_eq!(depot.shrink(0), 23 * page_bytes());
    drop(first);
    assert_eq!(depot.shrink(0), 3 * page_bytes());
    drop(last);
    assert_eq!((depot.shrink(0), depot.grow(4 * mib())), (0, 4 * mib()));
    all_back(&depot);
}

/// No request fails because another process trims: it waits for the pages that are in its hands.
#[test]
fn requests_wait_for_another_processs_trim() {
    let guest = segment(16 * mib());
    let host = join(&guest);
    let has_ended = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !has_ended.load(Ordering::Relaxed) {
                host.trim().unwrap();
            }
        });
        for _ in 0..300 {
            let large = || guest.page_with(order(9), Flags::default().no_reclaim()).ok();
            let mut all: Vec<Page> = std::iter::from_fn(large).collect();
            all.iter_mut().for_each(|page| page.fill(1));
            drop(all);
            guest.drain(Scope::ALL, Mode::Full);
            for _ in 0..50 {
                assert!(guest.page(Order::BASE).is_ok(), "all pages are free");
                guest.drain(Scope::ALL, Mode::Full);
            }
        }
        has_ended.store(true, Ordering::Relaxed);
    });
}

/// A process may have a `/proc` of other namespaces than its own: there its number, and those of
/// others, are of strangers.
#[test]
fn a_process_lives_whatever_is_mounted_on_proc() {
    let depot = segment(4 * mib());
    let (alive, over) = (Pipe::new(), Pipe::new());
    let namespace = Child::new(|| {
        // SAFETY: later children begin in a namespace of their own.
        if unsafe { libc::unshare(libc::CLONE_NEWPID) } != 0 {
            return skip("the system refuses PID namespaces");
        }
        let victim = Child::new(|| {
            let is_mounted = has_own_mounts() && mount(c"proc", Path::new("/proc"), "");
            let own = is_mounted.then(|| join(&depot));
            let mut page = own.as_ref().map(|own| own.page(Order::BASE).unwrap());
            page.iter_mut().for_each(|page| page.fill(7));
            alive.tell(&[u8::from(is_mounted)]);
            over.hear::<1>();
            assert!(page.iter().all(|page| page.iter().all(|&byte| byte == 7)));
        });
        if alive.hear::<1>() == [0] {
            skip("the system refuses mounts");
        }
        let other = Child::new(|| {
            let own = join(&depot);
            own.recover(Orphans::GoBack);
            let mut all: Vec<Page> = std::iter::from_fn(|| own.page(Order::BASE).ok()).collect();
            all.iter_mut().for_each(|page| page.fill(9));
            assert_eq!(own.recovered_pages(), 0);
        });
        let status = other.wait();
        over.tell(&[1]);
        assert_eq!((status, victim.wait()), (0, 0));
    });
    assert_eq!(namespace.wait(), 0);
}

#[test]
fn a_ceiling_is_of_one_process() {
    let depot = segment(16 * mib());
    let options = SharedOptions::join().ceiling(2 * mib());
    let small = SharedDepot::adopt(depot.file(), &options).unwrap();
    let held: Vec<_> = std::iter::from_fn(|| small.page(Order::BASE).ok()).collect();
    assert_eq!(held.len(), 512);
    let sent = depot.page(Order::BASE).unwrap().into_shared(&depot).unwrap();
    assert_eq!(small.claim(sent).unwrap_err(), ClaimError::Ceiling);
    drop(depot.claim(sent).unwrap());
    assert!(depot.page(order(10)).is_ok());
    drop(held);
    drop(small);
    all_back(&depot);
}

/// A trim puts back what it takes, so it takes more at once than its process may have.
#[test]
fn a_trim_takes_whole_pageblocks_whatever_the_ceiling() {
    let depot = segment(4096 * page_bytes());
    depot.page(order(10)).unwrap().fill(1);
    depot.drain(Scope::ALL, Mode::Full);
    let options = SharedOptions::join().ceiling(256 * page_bytes());
    let small = SharedDepot::adopt(depot.file(), &options).unwrap();
    let trimmed = small.trim().unwrap();
    assert!(trimmed.bytes as usize >= 1024 * page_bytes(), "{trimmed:?}");
    assert!(small.raw().alloc_at(Pfn::new(0), 257, Flags::default()).is_err());
    assert!(small.raw().alloc_at(Pfn::new(0), 256, Flags::default()).is_ok());
    // SAFETY: the pages were allocated above, and nothing refers to them.
    unsafe { small.raw().free_contiguous(Pfn::new(0), 256) }.unwrap();
    drop(small);
    all_back(&depot);
}

/// Pages that a process caches keep it from claiming no others, below its ceiling.
#[test]
fn a_cached_page_does_not_count_when_another_is_claimed() {
    let depot = segment(for_all_cpus(16 * mib()));
    let options = SharedOptions::join().ceiling(32 * page_bytes());
    let small = SharedDepot::adopt(depot.file(), &options).unwrap();
    let send = |order| depot.page(order).unwrap().into_shared(&depot).unwrap();
    let (sent, large) = ([(); 64].map(|()| send(Order::BASE)), send(order(5)));
    let claim = |sent: &[SentPage]| {
        let mut got = Vec::new();
        small.claim_pages(sent, &mut got, |_, error| panic!("{error}"));
        got
    };
    drop(claim(&sent[..32]));
    assert!(small.taken_pages().0 > 0, "some are cached");
    drop(small.claim(large).unwrap());
    let got = claim(&sent[32..]);
    let another = send(Order::BASE);
    assert_eq!(small.claim(another).unwrap_err(), ClaimError::Ceiling);
    drop(got);
    let heir = NonZeroU64::MIN;
    let child = child_of(depot.file(), |own| {
        own.set_heir(Some(heir));
        std::mem::forget(own.page(Order::BASE).unwrap());
        // SAFETY: ends this process at once.
        unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
    });
    child.wait();
    assert!(small.inherit(heir).next().is_some());
    drop((small, depot.claim(another).unwrap()));
    depot.inherit(heir).for_each(drop);
    all_back(&depot);
}

/// The ceiling of any depot takes nothing from the processes of a segment but the one that sets it,
/// and a higher one gives all of it back.
#[test]
fn a_ceiling_takes_no_memory_out_of_a_segment() {
    let depot = segment(8 * mib());
    let other = join(&depot);
    let ceiling = Ceiling::of(&depot);
    assert_eq!((ceiling.bytes(), ceiling.set(4 * mib())), (8 * mib(), Ok(4 * mib())));
    assert_eq!((ceiling.bytes(), Ceiling::of(&other).bytes()), (4 * mib(), 8 * mib()));
    assert!([(); 2].map(|()| other.page(order(10))).iter().all(Result::is_ok));
    other.drain(Scope::ALL, Mode::Full);
    let take = || std::iter::from_fn(|| depot.page(Order::BASE).ok()).collect::<Vec<_>>();
    let mut held = take();
    assert_eq!(held.len(), 1024);
    // What is held stays, and what is cached goes back.
    let reached = 4 * mib();
    assert_eq!(ceiling.set(2 * mib()), Err(CeilingError::Held { bytes: 2 * mib(), reached }));
    assert_eq!(ceiling.bytes(), 2 * mib());
    held.truncate(500);
    assert_eq!((ceiling.set(2 * mib()), depot.taken_pages().0 <= 512), (Ok(2 * mib()), true));
    // A program's cache makes room.
    let cache = Arc::new(Mutex::new(held));
    let given = cache.clone();
    let truncate = move |_| {
        let mut cache = given.lock().unwrap();
        let pages = cache.len().saturating_sub(100);
        cache.truncate(100);
        pages as u64
    };
    depot.on_pressure(truncate).unwrap();
    assert_eq!((ceiling.set(mib()), cache.lock().unwrap().len()), (Ok(mib()), 100));
    cache.lock().unwrap().clear();
    let least = page_bytes();
    assert_eq!(ceiling.set(1), Err(CeilingError::TooLow { bytes: 1, least }));
    assert_eq!(ceiling.set(usize::MAX), Ok(8 * mib()));
    assert_eq!(depot.segment_stats().processes[0].ceiling_pages, 0);
    assert_eq!(take().len(), 2048);
    drop(other);
    all_back(&depot);
}

/// Answers of other processes are no reason to leave out this process's own callbacks.
#[test]
fn requests_ask_their_own_process_beside_others() {
    let depot = segment(4 * mib());
    let other = join(&depot);
    let space = Vmalloc::new(&depot).unwrap();
    drop(space.buf(16 * page_bytes()).unwrap());
    let flags = Flags::default();
    let next = || depot.page_with(Order::BASE, flags.no_reclaim()).ok();
    let mut held: Vec<_> = std::iter::from_fn(next).collect();
    let of_space = depot.page(Order::BASE).expect("the address space keeps pages for later");
    held.push(of_space);
    held.extend(std::iter::from_fn(|| depot.page(Order::BASE).ok()));
    assert_eq!(held.len(), 1024);
    let cache = Arc::new(Mutex::new(held.split_off(1000)));
    let given = cache.clone();
    depot.on_pressure(move |_| given.lock().unwrap().pop().map_or(0, |_| 1)).unwrap();
    for left in (14..24).rev() {
        held.push(depot.page(Order::BASE).expect("the cache has pages"));
        assert_eq!(cache.lock().unwrap().len(), left);
    }
    drop((space, other));
    held.clear();
    cache.lock().unwrap().clear();
    all_back(&depot);
}

/// Memory above a lower ceiling that is cached, in blocks of any order, is given back.
#[test]
fn a_cached_block_is_not_above_a_ceiling() {
    let depot = SharedDepot::create_memfd("test", &SharedOptions::new(64 * mib())).unwrap();
    for order in (0..=9).map(order) {
        let bytes = page_bytes() << order.get();
        depot.drain(Scope::ALL, Mode::Full);
        let page = |_| depot.page_with(order, Flags::MOVABLE).unwrap();
        let mut held: Vec<_> = (0..4).map(page).collect();
        held.pop();
        assert_eq!(Ceiling::of(&depot).set(3 * bytes), Ok(3 * bytes), "{order:?}");
        assert_eq!(Ceiling::of(&depot).set(usize::MAX), Ok(64 * mib()));
    }
}

/// A ceiling of less than a page is one page: 0 is none.
#[test]
fn a_ceiling_below_a_page_is_a_page() {
    let depot = segment(4 * mib());
    let options = SharedOptions::join().ceiling(page_bytes() - 1);
    let small = SharedDepot::adopt(depot.file(), &options).unwrap();
    let take = || std::iter::from_fn(|| small.page(Order::BASE).ok()).collect::<Vec<_>>();
    assert_eq!(take().len(), 1);
    small.set_ceiling(1);
    assert_eq!(take().len(), 1);
    small.set_ceiling(0);
    assert_eq!(take().len(), 1024);
    drop(small);
    all_back(&depot);
}

/// Threads that run into the ceiling together do not get beyond it.
#[test]
fn a_ceiling_holds_for_all_threads() {
    let depot = segment(16 * mib());
    let small = SharedDepot::adopt(depot.file(), &SharedOptions::join().ceiling(mib())).unwrap();
    let together = Barrier::new(4);
    thread::scope(|scope| {
        for thread in 0..4 {
            let (small, together) = (&small, &together);
            scope.spawn(move || {
                for round in 0..100 {
                    together.wait();
                    let order = order((thread + round) % 3);
                    let held: Vec<_> = std::iter::from_fn(|| small.page(order).ok()).collect();
                    assert!(small.taken_pages().0 <= 256, "{:?}", small.taken_pages());
                    together.wait();
                    drop(held);
                    small.drain(Scope::ALL, Mode::Full);
                }
            });
        }
    });
    drop(small);
    all_back(&depot);
}

#[test]
fn a_request_at_a_ceiling_bothers_no_other_process() {
    let depot = segment(16 * mib());
    let asked = Arc::<AtomicU32>::default();
    let count = asked.clone();
    depot.on_shortage(move || _ = count.fetch_add(1, Ordering::Relaxed)).unwrap();
    let small = SharedDepot::adopt(depot.file(), &SharedOptions::join().ceiling(mib())).unwrap();
    let held: Vec<_> = std::iter::from_fn(|| small.page(Order::BASE).ok()).collect();
    assert_eq!((held.len(), asked.load(Ordering::Relaxed)), (mib() / page_bytes(), 0));
}

/// The count of a segment's pages is right as soon as it has grown, whatever other processes send
/// meanwhile.
#[test]
fn a_segment_that_grows_beside_messages_knows_its_size() {
    let options = SharedOptions::new(4 * mib()).grow_to(64 * mib());
    let depot = SharedDepot::create_memfd("grows", &options).unwrap();
    let other = join(&depot);
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let sent = other.page(Order::BASE).unwrap().into_shared(&other).unwrap();
                drop(other.claim(sent).unwrap());
            }
        });
        let _stop = common::StopAtEnd(&stop);
        for bytes in (4 * mib()..12 * mib()).step_by(page_bytes()) {
            assert_eq!(depot.grow(bytes), bytes);
        }
    });
    drop(other);
    all_back(&depot);
}

#[derive(Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Release);
    }
}

/// Polls a request that has to wait. Then calls `act`, and polls it each time that it is woken,
/// until it is served.
fn served_after<R>(mut request: Pin<&mut impl Future<Output = R>>, act: impl FnOnce()) -> R {
    let woken = Arc::<Woken>::default();
    let waker = woken.clone().into();
    let mut context = Context::from_waker(&waker);
    assert!(request.as_mut().poll(&mut context).is_pending());
    act();
    loop {
        wait_until("the request is woken", || woken.0.swap(false, Ordering::Acquire));
        if let Poll::Ready(got) = request.as_mut().poll(&mut context) {
            return got;
        }
    }
}

/// Frees of another process do not tell a request that waits.
#[test]
fn a_request_that_waits_gets_what_another_process_frees() {
    for answers in [true, false] {
        let options = SharedOptions::new(4 * mib()).answers(answers);
        let depot = SharedDepot::create_memfd("waits", &options).unwrap();
        let (pipe, free) = (Pipe::new(), Pipe::new());
        let child = child_of(depot.file(), |own| {
            let held: Vec<_> = std::iter::from_fn(|| own.page(Order::BASE).ok()).collect();
            pipe.tell(&[1]);
            free.hear::<1>();
            drop(held);
            pipe.tell_and_sleep();
        });
        pipe.hear::<1>();
        let request = pin!(depot.page_async(Order::BASE));
        let page = served_after(request, || free.tell(&[1])).unwrap();
        pipe.hear::<1>();
        // Threads that wait for more than what the other process does not cache.
        let held: Vec<Page> = thread::scope(|scope| {
            let wait = |_| scope.spawn(|| depot.page_timeout(order(5), Duration::from_secs(60)));
            let all: Vec<_> = (0..31).map(wait).collect();
            all.into_iter().map(|thread| thread.join().unwrap().unwrap()).collect()
        });
        drop((page, held));
        child.kill();
        depot.recover(Orphans::Stay);
        all_back(&depot);
    }
}

/// A process that is killed tells no request that waits, and the looks of a waiting request call no
/// callback.
#[test]
fn a_request_that_waits_gets_what_a_killed_process_held() {
    for answers in [true, false] {
        let options = SharedOptions::new(4 * mib()).answers(answers);
        let depot = SharedDepot::create_memfd("waits", &options).unwrap();
        let pipe = Pipe::new();
        let child = child_of(depot.file(), |own| {
            let _held: Vec<_> = std::iter::from_fn(|| own.page(Order::BASE).ok()).collect();
            pipe.tell_and_sleep();
        });
        pipe.hear::<1>();
        drop(served_after(pin!(depot.page_async(Order::BASE)), || child.kill()).unwrap());
        all_back(&depot);
    }
}

/// Pages that dead processes leave may be of no use: the living are asked as well.
#[test]
fn a_request_asks_the_living_where_the_dead_left_too_little() {
    let (own, pipe) = (segment(8 * mib()), Pipe::new());
    let child = child_of(own.file(), |depot| {
        let _held = depot.page(Order::BASE).unwrap();
        pipe.tell_and_sleep();
    });
    pipe.hear::<1>();
    let host = join(&own);
    let take = |depot: &SharedDepot, order| -> Vec<Page> {
        std::iter::from_fn(|| depot.page(order).ok()).collect()
    };
    let withheld = Arc::new(Mutex::new(take(&host, Order::PAGEBLOCK)));
    assert_eq!(withheld.lock().unwrap().len(), 3);
    // The last of these requests has called all callbacks once for low memory.
    let held = take(&own, Order::BASE);
    child.kill();
    let given = withheld.clone();
    host.on_shortage(move || drop(given.lock().unwrap().pop())).unwrap();
    let page = own.page(Order::PAGEBLOCK).unwrap();
    drop((page, held));
    host.on_shortage(|| ()).unwrap();
    drop((withheld, host));
    all_back(&own);
}

/// A file that another process has just made, and not completed.
#[test]
fn a_segment_that_is_not_complete_is_an_error() {
    let path = std::env::temp_dir().join(format!("pagedepot-empty-{}", std::process::id()));
    std::fs::File::create_new(&path).unwrap().set_len(4 << 20).unwrap();
    let error = SharedDepot::open(&path, &SharedOptions::join()).unwrap_err();
    std::fs::remove_file(path).unwrap();
    assert_eq!(error, SegmentError::NoSegment);
    let text = error.to_string();
    assert!(text.contains("try again if its maker is still at it"), "{text}");
}

/// A file that the process may not make so large is an error, and no signal that ends the program.
/// Nothing of it stays.
#[test]
fn a_limit_on_files_is_an_error() {
    let path = std::env::temp_dir().join(format!("pagedepot-limit-{}", std::process::id()));
    common::in_child(|| {
        let limit = libc::rlimit { rlim_cur: 1 << 20, rlim_max: 1 << 20 };
        // SAFETY: a limit of this child.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &limit) }, 0);
        let options = SharedOptions::new(16 * mib());
        let [named, memfd] =
            [SharedDepot::create(&path, &options), SharedDepot::create_memfd("limit", &options)];
        for made in [named, memfd] {
            let error = made.unwrap_err();
            assert!(error.to_string().contains("ulimit -f"), "{error}");
        }
    });
    assert!(!path.exists());
}

/// A segment's pages exceed the addresses that the process may have. Nothing of it stays.
#[test]
fn a_limit_on_addresses_is_an_error() {
    let path = TempPath::new("addresses");
    common::in_child(|| {
        let text = std::fs::read_to_string("/proc/self/statm").unwrap();
        let pages: usize = text.split(' ').next().unwrap().parse().unwrap();
        let bytes = (pages * page_bytes() + (128 << 20)) as u64;
        let limit = libc::rlimit { rlim_cur: bytes, rlim_max: bytes };
        // SAFETY: a limit of this child.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_AS, &limit) }, 0);
        for _ in 0..2 {
            let error = SharedDepot::create(&path.0, &SharedOptions::new(1 << 30)).unwrap_err();
            assert!(matches!(error, SegmentError::Build(_)), "{error}");
            assert!(!path.0.exists());
        }
    });
}

/// A file system has no room for the metadata. Nothing of the segment stays.
#[test]
fn a_full_file_system_is_an_error() {
    let folder = std::env::temp_dir().join(format!("pagedepot-full-{}", std::process::id()));
    std::fs::create_dir(&folder).unwrap();
    common::in_child(|| {
        if !has_own_mounts() || !mount(c"tmpfs", &folder, "size=1m") {
            return skip("the system refuses mounts");
        }
        let mut rest = std::fs::File::create(folder.join("rest")).unwrap();
        let mut bytes = 0;
        while let Ok(count @ 1..) = rest.write(&[0; 4096]) {
            bytes += count as u64;
        }
        let (path, options) = (folder.join("segment"), SharedOptions::new(4 * mib()));
        // The first parts of the metadata have room in the second case.
        for room in [0, 24 << 10] {
            rest.set_len(bytes - room).unwrap();
            let error = SharedDepot::create(&path, &options).unwrap_err();
            let SegmentError::System { errno, .. } = error else { panic!("{error}") };
            assert_eq!(errno.raw_os_error(), libc::ENOSPC, "{error}");
            assert!(!path.exists());
        }
        rest.set_len(0).unwrap();
        drop(SharedDepot::create(&path, &options).unwrap().page(Order::BASE).unwrap());
    });
    std::fs::remove_dir(&folder).unwrap();
}

/// A periodic signal interrupts each call that takes longer than its period, and a memory file then
/// gives up what the call has allocated, on many kernels: here each call for a MiB or more.
#[test]
fn a_segment_is_made_beside_a_periodic_signal() {
    let child = Child::new(|| {
        if let Err(error) = common::refuse_from(libc::SYS_fallocate, 3, 1 << 20, libc::EINTR) {
            return skip(format_args!("no filters of system calls: {error}"));
        }
        let options = SharedOptions::new(mib()).grow_to(page_bytes() << 18).answers(false);
        drop(SharedDepot::create_memfd("test", &options).unwrap());
    });
    let mut status = -1;
    wait_until("the segment is made", || {
        // SAFETY: a status to write to.
        (unsafe { libc::waitpid(child.0, &mut status, libc::WNOHANG) }) == child.0
    });
    std::mem::forget(child);
    assert_eq!(status, 0);
}

/// A signal that all threads of the program block waits for the program: no thread of the library
/// takes it, which here would end the process.
#[test]
fn signals_are_left_to_the_program() {
    common::in_child(|| {
        let depot = segment(mib());
        // SAFETY: a set of this function's; signals of this child.
        unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::sigaddset(&mut set, libc::SIGUSR1);
            assert_eq!(libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut()), 0);
            assert_eq!(libc::kill(libc::getpid(), libc::SIGUSR1), 0);
            assert_eq!(libc::sigwaitinfo(&set, std::ptr::null_mut()), libc::SIGUSR1);
        }
        drop(depot);
    });
}

/// A drain without a limit waits for all that answer, and not for a process that is killed.
#[test]
fn a_drain_may_have_no_limit() {
    let depot = segment(4 * mib());
    let other = join(&depot);
    drop(other.page(Order::BASE).unwrap());
    let drained = depot.drain_all(Mode::Full, Duration::MAX);
    assert_eq!((drained.asked, drained.answered), (1, 1));
    let pipe = Pipe::new();
    // Without a thread, which would answer before it is killed.
    let silent = SharedOptions::join().answers(false);
    let child = Child::new(|| {
        let _own = SharedDepot::adopt(depot.file(), &silent).unwrap();
        pipe.tell_and_sleep();
    });
    pipe.hear::<1>();
    let drained = thread::scope(|scope| {
        let drain = scope.spawn(|| depot.drain_all(Mode::Full, Duration::MAX));
        thread::sleep(Duration::from_millis(50));
        child.kill();
        drain.join().unwrap()
    });
    assert_eq!(drained.answered, 1);
    depot.recover(Orphans::Stay);
    drop(other);
    all_back(&depot);
}

struct Panics(AtomicBool);

impl Wake for Panics {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Release);
        panic!("a bug in a runtime");
    }
}

/// A waker that panics ends neither the thread that gives back what this process caches, nor its
/// looks for requests that wait.
#[test]
fn a_waker_that_panics_keeps_no_pages_from_others() {
    let depot = segment(4 * mib());
    let other = join(&depot);
    let mut held: Vec<_> = std::iter::from_fn(|| other.page(Order::BASE).ok()).collect();
    let panics = Arc::new(Panics(AtomicBool::new(false)));
    let waker = panics.clone().into();
    let mut broken = pin!(depot.page_async(Order::BASE));
    assert!(broken.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    wait_until("the request is woken", || panics.0.load(Ordering::Acquire));
    let drained = other.drain_all(Mode::Quiet, Duration::from_secs(60));
    assert_eq!((drained.asked, drained.answered), (1, 1));
    // Another request, behind the one whose waker is broken.
    let woken = Arc::<Woken>::default();
    let waker = woken.clone().into();
    let mut context = Context::from_waker(&waker);
    let mut request = pin!(depot.page_async(Order::BASE));
    assert!(request.as_mut().poll(&mut context).is_pending());
    held.truncate(1);
    other.drain(Scope::ALL, Mode::Full);
    let is_served = |poll: Poll<Result<Page, AllocError>>| matches!(poll, Poll::Ready(Ok(_)));
    wait_until("the other request is served", || {
        woken.0.swap(false, Ordering::Acquire) && is_served(request.as_mut().poll(&mut context))
    });
}

/// A host takes what a guest does not use, and gives it back when the guest runs short.
#[test]
fn a_host_gives_back_what_a_guest_needs() {
    let host = segment(16 * mib());
    let withheld: Arc<Mutex<Vec<Page>>> = Arc::default();
    let (given, calls) = (withheld.clone(), Arc::<AtomicU32>::default());
    let count = calls.clone();
    host.on_shortage(|| panic!("there is another since")).unwrap();
    let action = move || {
        count.fetch_add(1, Ordering::Relaxed);
        given.lock().unwrap().pop();
    };
    host.on_shortage(action).unwrap();
    let file_bytes = || {
        let stat = rustix::fs::fstat(host.file()).unwrap();
        stat.st_blocks as usize * 512
    };
    let pipe = Pipe::new();
    let (free, stay) = (Pipe::new(), Pipe::new());
    let child = child_of(host.file(), |guest| {
        // All memory is touched, and given up but for one page.
        let mut all: Vec<Page> = (0..4).map(|_| guest.page(Order::MAX).unwrap()).collect();
        all.iter_mut().for_each(|page| page.fill(1));
        drop(all);
        let mut kept = guest.page(Order::BASE).unwrap();
        kept.fill(9);
        guest.drain(Scope::ALL, Mode::Full);
        pipe.tell(&[1]);
        free.hear::<1>();
        let needed: Vec<Page> = (0..2000).map(|_| guest.page(Order::BASE).unwrap()).collect();
        assert!(kept.iter().all(|&byte| byte == 9));
        pipe.tell(&[1]);
        stay.hear::<1>();
        drop(needed);
    });
    pipe.hear::<1>();
    assert!(file_bytes() >= 16 * mib());
    assert_eq!(host.segment_stats().whole_pageblocks, 7);
    let flags = Flags::default().no_reclaim();
    let mut taken: Vec<Page> = (0..7).map(|_| host.page_with(order(9), flags).unwrap()).collect();
    assert!(host.page_with(order(9), flags).is_err());
    assert_eq!(
        taken.iter_mut().map(|page| page.discard().unwrap()).sum::<u64>(),
        14 * mib() as u64
    );
    assert!(file_bytes() <= 3 * mib(), "{}", file_bytes());
    host.drain(Scope::ALL, Mode::Full);
    withheld.lock().unwrap().append(&mut taken);
    free.tell(&[1]);
    pipe.hear::<1>();
    let (calls, left) = (calls.load(Ordering::Relaxed), withheld.lock().unwrap().len());
    assert!(calls >= 3 && left <= 4, "2000 pages are in four pageblocks: {calls} {left}");
    stay.tell(&[1]);
    assert_eq!(child.wait(), 0);
    withheld.lock().unwrap().clear();
    all_back(&host);
}

#[test]
fn a_trim_punches_holes_into_the_segment() {
    let depot = segment(16 * mib());
    let mut kept = depot.page(Order::BASE).unwrap();
    kept.fill(9);
    depot.page(order(10)).unwrap().fill(1);
    depot.drain(Scope::ALL, Mode::Full);
    let trimmed = depot.trim().unwrap();
    assert!(trimmed.bytes >= 4 * mib() as u64, "{trimmed:?}");
    assert!(kept.iter().all(|&byte| byte == 9));
    drop(kept);
    all_back(&depot);
}

/// Random bytes anywhere in a segment's metadata, before it is opened and while it is used: errors,
/// or pages that lie in it. `PAGEDEPOT_FUZZ_ROUNDS` is the number of segments.
#[test]
fn hostile_segments_are_errors() {
    let mut random = Random::new(seed());
    let rounds = std::env::var("PAGEDEPOT_FUZZ_ROUNDS").ok().and_then(|text| text.parse().ok());
    for _ in 0..rounds.unwrap_or(150u32) {
        let options = SharedOptions::new(4 * mib() + page_bytes() * random.below(64) as usize);
        // The last frames of the table, which has whole words, are none of the segment's.
        let bytes_max = 8 * mib() - page_bytes() * random.below(64) as usize;
        let depot = SharedDepot::create_memfd("fuzz", &options.grow_to(bytes_max)).unwrap();
        let frames_at = depot.frames_at() as u64;
        let mut damage = Damage::new(&depot);
        damage.strike(&mut random, 200);
        let options = SharedOptions::join().answers(random.below(8) == 0);
        match SharedDepot::adopt(depot.file(), &options) {
            Ok(other) => use_all(&other, &mut damage, &mut random),
            Err(error) => assert!(!error.to_string().is_empty()),
        }
        use_all(&depot, &mut damage, &mut random);
        assert_eq!(depot.frames_at() as u64, frames_at);
    }
}

/// Checks that a process gets no frame beyond the segment, though the table says that it is free.
#[test]
fn frames_beyond_a_segment_are_not_handed_out() {
    use std::os::unix::fs::FileExt;
    const FRAMES: usize = 1000;
    let depot =
        SharedDepot::create_memfd("beyond", &SharedOptions::new(FRAMES * page_bytes())).unwrap();
    let held: Vec<_> = std::iter::from_fn(|| depot.page(Order::BASE).ok()).collect();
    assert_eq!(held.len(), FRAMES);
    let owners = Damage::new(&depot);
    owners.file.write_all_at(&[0; 24], owners.parts[3].start + FRAMES as u64).unwrap();
    for n in 0..4 {
        assert!(depot.page(order(n)).is_err(), "order {n}");
    }
    drop(held);
}

/// Another process frees pages that this one holds, and gets again. Its movable pages are more than
/// there are pages.
#[test]
fn more_movable_pages_than_there_can_be_are_an_error() {
    const PAGES: usize = 64;
    let options = SharedOptions::new(PAGES * page_bytes()).answers(false);
    let depot = SharedDepot::create_memfd("movable", &options).unwrap();
    let next = || depot.movable(Order::BASE, Flags::default()).ok();
    let held: Vec<_> = std::iter::from_fn(next).collect();
    assert_eq!(held.len(), PAGES);
    let owners = Damage::new(&depot);
    owners.file.write_all_at(&[0; PAGES], owners.parts[3].start).unwrap();
    let (tell, hear) = std::sync::mpsc::channel();
    let own = depot.clone();
    thread::spawn(move || tell.send(own.movable(Order::BASE, Flags::default()).map(drop)));
    let result = hear.recv_timeout(Duration::from_secs(60));
    assert_eq!(result, Ok(Err(AllocError::Exhausted)));
    drop(held);
}

/// A process that writes what it likes to the metadata of a segment.
struct Damage {
    file: std::fs::File,
    /// Bytes in front of the pages that mean something: 47 slots, and what 2048 frames have.
    parts: [std::ops::Range<u64>; 5],
}

impl Damage {
    fn new(depot: &SharedDepot) -> Self {
        let file = std::fs::File::from(depot.file().try_clone_to_owned().unwrap());
        let (hints, owners, tokens) = (16384, 20480, 24576);
        let parts = [0..128, 4096..4096 + 47 * 256, hints..hints + 8, owners..owners + 2048];
        let [header, slots, hints, owners] = parts;
        Damage { file, parts: [header, slots, hints, owners, tokens..tokens + 8 * 2048] }
    }

    /// Changes up to so many bytes.
    fn strike(&mut self, random: &mut Random, most: u64) {
        use std::os::unix::fs::FileExt;
        for _ in 0..1 + random.below(most) {
            // Most bytes are tokens, which matter where pages were sent.
            let part = &self.parts[random.below(5) as usize];
            let at = part.start + random.below(part.end - part.start);
            let mut byte = [0];
            self.file.read_exact_at(&mut byte, at).unwrap();
            byte[0] = match random.below(4) {
                0 => byte[0] ^ 1 << random.below(8),
                1 => 0,
                // A byte of the table that means something.
                2 => [0x80, 0x40, 0][random.below(3) as usize] | random.below(4) as u8,
                _ => random.next() as u8,
            };
            self.file.write_all_at(&byte, at).unwrap();
        }
    }
}

/// Does all that a process does in a segment, which another damages meanwhile.
fn use_all(depot: &SharedDepot, damage: &mut Damage, random: &mut Random) {
    let check = |page: &Page| {
        let start = page.as_ptr().addr() - depot.raw().base().as_ptr().addr();
        assert!(start + page.len() <= depot.bytes());
    };
    let mut sent = Vec::new();
    for n in 0..=10 {
        let mut pages: Vec<_> = (0..40).map_while(|_| depot.page(order(n)).ok()).collect();
        damage.strike(random, 20);
        pages.iter().for_each(check);
        pages.iter_mut().take(3).for_each(|page| page[0] = 1);
        pages.iter_mut().take(1).for_each(|page| _ = page.discard().unwrap());
        let half = pages.split_off(pages.len() / 2);
        if random.below(2) == 0 {
            sent.extend(half.into_iter().filter_map(|page| page.into_shared(depot).ok()));
        } else {
            assert!(depot.send_pages(half, &mut sent).is_empty());
        }
    }
    damage.strike(random, 20);
    let (mut got, half) = (Vec::new(), sent.split_off(sent.len() / 2));
    depot.claim_pages(&half, &mut got, |_, _| ());
    got.iter().for_each(check);
    drop(got);
    for message in &sent {
        let any = u128::from(random.next()) << 40 ^ u128::from(random.next());
        for message in [*message, SentPage::from_bits(message.to_bits() ^ 1 << random.below(80))] {
            let _ = depot.claim(message).map(|page| check(&page));
        }
        assert!(depot.claim(SentPage::from_bits(any)).is_err());
    }
    let _ = depot.pages(77, Flags::default());
    depot.drain_all(Mode::Full, Duration::ZERO);
    damage.strike(random, 20);
    depot.inherit(NonZeroU64::MIN).for_each(|page| check(&page));
    let orphans = [Orphans::Stay, Orphans::GoBack, Orphans::AllGoBack];
    depot.recover(orphans[random.below(3) as usize]);
    let _ = depot.trim();
    let _ = (depot.segment_stats(), depot.taken_pages(), depot.zone_stats(ZoneId::new(0)));
    damage.strike(random, 20);
    assert!(depot.grow(8 * mib()) <= 8 * mib() && depot.shrink(mib()) <= 8 * mib());
    if let Ok(other) = SharedDepot::adopt(depot.file(), &SharedOptions::join().answers(false)) {
        let _ = other.page(Order::BASE).map(|page| page.into_shared(depot));
    }
}

/// Processes that allocate, send and free are killed at random; their survivors lose nothing.
#[test]
fn random_kills_lose_nothing() {
    let depot = segment(32 * mib());
    let mut random = Random::new(seed());
    let storm = |seed: u64| {
        child_of(depot.file(), move |depot| {
            let mut random = Random::new(seed);
            let mut held: Vec<Page> = Vec::new();
            loop {
                match random.below(8) {
                    0 => {
                        depot.drain(Scope::ALL, Mode::Full);
                    }
                    1 => {
                        depot.recover(Orphans::GoBack);
                    }
                    2 => held.clear(),
                    3 => held.extend(depot.page(order(random.below(10) as u32)).ok()),
                    4 => {
                        let sent = held.pop().map(|page| page.into_shared(&depot).unwrap());
                        held.extend(sent.and_then(|sent| depot.claim(sent).ok()));
                        let (first, mut sent) = (held.len() / 2, Vec::new());
                        assert!(depot.send_pages(held.drain(first..), &mut sent).is_empty());
                        depot.claim_pages(&sent, &mut held, |_, _| ());
                    }
                    _ => held.extend((0..100).map_while(|_| depot.page(Order::BASE).ok())),
                }
            }
        })
    };
    let mut children: Vec<Child> = (0..4).map(|_| storm(random.next())).collect();
    for _ in 0..60 {
        thread::sleep(Duration::from_micros(random.below(20_000)));
        let at = random.below(4) as usize;
        children.swap_remove(at).kill();
        children.push(storm(random.next()));
        if random.below(2) == 0 {
            depot.recover(Orphans::GoBack);
        }
        drop(depot.page(Order::BASE));
    }
    children.into_iter().for_each(Child::kill);
    depot.recover(Orphans::GoBack);
    all_back(&depot);
}

/// A signal handler may interrupt the C library's `malloc`, or `fork`, which has its locks.
#[test]
fn a_request_that_runs_short_allocates_no_memory_of_the_c_library() {
    let depot = segment(4 * mib());
    let other = join(&depot);
    let heir = NonZeroU64::new(7).unwrap();
    for heir in [Some(heir), None] {
        let child = Child::new(|| {
            let own = join(&depot);
            own.set_heir(heir);
            std::mem::forget((0..100).map(|_| own.page(Order::BASE).unwrap()).collect::<Vec<_>>());
            // SAFETY: ends this process, which does not leave.
            unsafe { libc::_exit(0) };
        });
        assert_eq!(child.wait(), 0);
    }
    let mut held = Vec::with_capacity(4 * mib() / page_bytes());
    let before = ALLOCATED.with(Cell::get);
    // SAFETY: points to a variable of this thread, as below.
    unsafe { *libc::__errno_location() = libc::EDOM };
    while let Ok(page) = depot.page(Order::BASE) {
        held.push(page);
    }
    assert_eq!(ALLOCATED.with(Cell::get), before);
    // SAFETY: as above.
    assert_eq!(unsafe { *libc::__errno_location() }, libc::EDOM);
    assert!(depot.recovered_pages() >= 100);
    drop((held, other));
    assert!(depot.inherit(heir).count() >= 100);
}

/// A request in a signal handler takes back what a dead process had, on a stack of the size that
/// `how-to-share.md` names.
#[test]
fn a_request_in_a_signal_handler_needs_32_kib_of_stack() {
    static DEPOT: OnceLock<SharedDepot> = OnceLock::new();
    extern "C" fn request(_: libc::c_int) {
        _ = DEPOT.get().map(|depot| depot.page(Order::BASE).map(std::mem::forget));
    }
    let depot = DEPOT.get_or_init(|| segment(4 * mib()));
    for heir in [NonZeroU64::new(7), None] {
        let child = child_of(depot.file(), |own| {
            own.set_heir(heir);
            std::mem::forget((0..100).map(|_| own.page(Order::BASE).unwrap()).collect::<Vec<_>>());
            // SAFETY: ends this process, which does not leave.
            unsafe { libc::_exit(0) };
        });
        assert_eq!(child.wait(), 0);
    }
    let mut stack = vec![0xa5_u8; 256 << 10];
    let bytes = stack.len();
    let own = libc::stack_t { ss_sp: stack.as_mut_ptr().cast(), ss_flags: 0, ss_size: bytes };
    // SAFETY: plain structures; the handler's stack is there until the one before is back.
    unsafe {
        let (mut before, mut action): (libc::stack_t, libc::sigaction) = std::mem::zeroed();
        action.sa_sigaction = request as *const () as usize;
        action.sa_flags = libc::SA_ONSTACK;
        assert_eq!(libc::sigaction(libc::SIGUSR1, &action, std::ptr::null_mut()), 0);
        assert_eq!(libc::sigaltstack(&own, &mut before), 0);
        for _ in 0..4 * mib() / page_bytes() {
            assert_eq!(libc::raise(libc::SIGUSR1), 0);
        }
        assert_eq!(libc::sigaltstack(&before, std::ptr::null_mut()), 0);
    }
    assert!(depot.recovered_pages() >= 100);
    let used = bytes - stack.iter().position(|&byte| byte != 0xa5).unwrap();
    assert!(used <= 32 << 10, "{used} bytes");
}
