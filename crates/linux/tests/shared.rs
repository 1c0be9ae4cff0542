//! Processes that share a segment, and die.

mod common;

use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::time::Duration;

use common::{Random, order, seed};
use pagedepot_linux::shared::{ClaimError, Orphans, SegmentStats, SentPage, SharedDepot};
use pagedepot_linux::shared::{SegmentError, SharedOptions};
use pagedepot_linux::{AllocError, Flags, Mode, Order, Page, Scope};

const MIB: usize = 1 << 20;

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
        let mut status = 0;
        // SAFETY: a status to write to.
        assert_eq!(unsafe { libc::waitpid(self.0, &mut status, 0) }, self.0);
        status
    }

    fn kill(self) {
        // SAFETY: a child that was not waited for.
        unsafe { libc::kill(self.0, libc::SIGKILL) };
        self.wait();
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
            std::thread::sleep(Duration::from_secs(1));
        }
    }
}

impl Drop for Pipe {
    fn drop(&mut self) {
        // SAFETY: descriptors of this value.
        self.0.iter().for_each(|&end| unsafe { _ = libc::close(end) });
    }
}

/// A child that joins the segment behind a descriptor.
fn child_of(fd: BorrowedFd<'_>, program: impl FnOnce(SharedDepot)) -> Child {
    Child::new(|| program(SharedDepot::adopt(fd, &SharedOptions::join()).unwrap()))
}

/// Checks that this process can have every page there is, once all others have ended.
fn all_back(depot: &SharedDepot) {
    depot.drain(Scope::ALL, Mode::Full);
    let stats = depot.segment_stats();
    assert_eq!(stats.lost_pages, 0, "{stats:?}");
    assert_eq!(stats.free_pages, stats.present_pages, "{stats:?}");
    assert_eq!(stats.processes.len(), 1, "{stats:?}");
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
    let one = segment(4 * MIB);
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
    let depot = segment(4 * MIB);
    let pipe = Pipe::new();
    let mut page = depot.page(order(2)).unwrap();
    page.fill(0x5a);
    let sent = page.into_shared(&depot).unwrap();
    assert_eq!(depot.taken_pages().1, 4);
    let child = child_of(depot.file(), |depot| {
        let page = depot.claim(sent).unwrap();
        assert_eq!(page.len(), 4 * 4096);
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

#[test]
fn a_receiver_that_never_comes() {
    let depot = segment(4 * MIB);
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

fn depot_pfn(sent: SentPage) -> pagedepot_linux::Pfn {
    pagedepot_linux::Pfn::new(sent.to_bits() as u32)
}

#[test]
fn pages_of_a_killed_process_come_back() {
    let depot = segment(64 * MIB);
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
    let depot = segment(4 * MIB);
    let pipe = Pipe::new();
    let child = child_of(depot.file(), |depot| {
        let _page = depot.page(Order::BASE).unwrap();
        pipe.tell_and_sleep();
    });
    pipe.hear::<1>();
    // SAFETY: a child that was not waited for.
    unsafe { libc::kill(child.0, libc::SIGSTOP) };
    std::thread::sleep(Duration::from_millis(20));
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
    let depot = segment(4 * MIB);
    let pipe = Pipe::new();
    let child = child_of(depot.file(), |depot| {
        drop(depot.page(Order::BASE).unwrap());
        pipe.tell_and_sleep();
    });
    pipe.hear::<1>();
    assert!(depot.segment_stats().free_pages < 1024);
    let drained = depot.drain_all(Mode::Full, Duration::from_secs(60));
    assert_eq!((drained.asked, drained.answered), (1, 1));
    assert_eq!(depot.segment_stats().free_pages, 1024);
    // A request that runs short asks, too.
    let pages: Vec<_> = std::iter::from_fn(|| depot.page(Order::BASE).ok()).collect();
    assert_eq!(pages.len(), 1024);
    child.kill();
}

#[test]
fn a_forked_child_is_no_member_and_a_program_that_it_executes_is_none_either() {
    let depot = segment(4 * MIB);
    let sent = depot.page(Order::BASE).unwrap().into_shared(&depot).unwrap();
    let page = depot.page(Order::BASE).unwrap();
    let child = Child::new(|| {
        assert!(matches!(depot.page(Order::BASE), Err(AllocError::Forked)));
        assert_eq!(depot.claim(sent).unwrap_err(), ClaimError::Forked);
        assert!(page.into_shared(&depot).is_err());
        let own = join(&depot);
        drop(own.page(Order::BASE).unwrap());
    });
    assert_eq!(child.wait(), 0);
    assert_eq!(depot.segment_stats().processes.len(), 1, "it has left");
    let page = depot.claim(sent).unwrap();
    // A member that executes another program keeps its number, and has left all the same.
    let pipe = Pipe::new();
    let child = child_of(depot.file(), |depot| {
        let _pages: Vec<_> = (0..100).map(|_| depot.page(Order::BASE).unwrap()).collect();
        pipe.tell(&[1]);
        // SAFETY: texts that end in 0.
        unsafe {
            let nothing = std::ptr::null::<libc::c_char>();
            let (path, name, time) = (c"/bin/sleep", c"sleep", c"60");
            libc::execl(path.as_ptr(), name.as_ptr(), time.as_ptr(), nothing);
        }
    });
    pipe.hear::<1>();
    let mut recovered = depot.recover(Orphans::Stay);
    for _ in 0..1000 {
        if recovered.processes > 0 {
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
        recovered = depot.recover(Orphans::Stay);
    }
    assert_eq!(recovered.processes, 1);
    child.kill();
    drop(page);
    all_back(&depot);
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
        let options = SharedOptions::new(16 * MIB);
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
    assert!(SharedDepot::create(&path.0, &SharedOptions::new(MIB)).is_err());
}

#[test]
fn every_slot_is_used_and_used_again() {
    let depot = segment(4 * MIB);
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
    let options = SharedOptions::new(4 * MIB).grow_to(64 * MIB);
    let depot = SharedDepot::create_memfd("grows", &options).unwrap();
    let other = join(&depot);
    assert!(other.page(order(10)).is_ok());
    let all = |depot: &SharedDepot| {
        let pages: Vec<_> = std::iter::from_fn(|| depot.page(order(5)).ok()).collect();
        pages.len()
    };
    assert_eq!(all(&depot), 1024 >> 5);
    assert_eq!(other.grow(16 * MIB), 16 * MIB);
    assert_eq!(all(&depot), 4096 >> 5);
    depot.drain(Scope::ALL, Mode::Full);
    other.drain(Scope::ALL, Mode::Full);
    assert_eq!(depot.shrink(8 * MIB), 8 * MIB);
    assert_eq!(all(&other), 2048 >> 5);
    assert_eq!(depot.grow(usize::MAX), 64 * MIB);
    drop(other);
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
fn a_ceiling_is_of_one_process() {
    let depot = segment(16 * MIB);
    let options = SharedOptions::join().ceiling(2 * MIB);
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

#[test]
fn a_trim_punches_holes_into_the_segment() {
    let depot = segment(16 * MIB);
    let mut kept = depot.page(Order::BASE).unwrap();
    kept.fill(9);
    depot.page(order(10)).unwrap().fill(1);
    depot.drain(Scope::ALL, Mode::Full);
    let trimmed = depot.trim().unwrap();
    assert!(trimmed.bytes >= 4 << 20, "{trimmed:?}");
    assert!(kept.iter().all(|&byte| byte == 9));
    drop(kept);
    all_back(&depot);
}

/// Random words and flipped bits in the head of a segment: errors, and no page beyond it.
#[test]
fn hostile_segments_are_errors() {
    use std::os::unix::fs::FileExt;
    let mut random = Random::new(seed());
    let rounds = std::env::var("PAGEDEPOT_FUZZ_ROUNDS").ok().and_then(|text| text.parse().ok());
    for _ in 0..rounds.unwrap_or(150u32) {
        let depot = segment(4 * MIB + 4096 * random.below(64) as usize);
        let frames_at = depot.frames_at() as u64;
        let file = std::fs::File::from(depot.file().try_clone_to_owned().unwrap());
        // The header, the slots, the hints, the owners.
        let head = 4096 + 47 * 256 + 8192 + 2048;
        for _ in 0..1 + random.below(200) {
            let at = match random.below(4) {
                0 => random.below(64),
                _ => random.below(head),
            };
            let mut byte = [0];
            file.read_exact_at(&mut byte, at).unwrap();
            byte[0] = match random.below(3) {
                0 => byte[0] ^ 1 << random.below(8),
                1 => 0,
                _ => random.next() as u8,
            };
            file.write_all_at(&byte, at).unwrap();
        }
        let options = SharedOptions::join().answers(false);
        let pages = |depot: &SharedDepot| {
            for n in 0..=10 {
                let pages: Vec<_> = (0..40).map_while(|_| depot.page(order(n)).ok()).collect();
                for page in pages {
                    let end =
                        page.as_ptr().addr() + page.len() - depot.raw().base().as_ptr().addr();
                    assert!(end <= depot.bytes());
                    let _ = page.into_shared(depot).map(|sent| depot.claim(sent).map(drop));
                }
            }
            depot.drain(Scope::ALL, Mode::Full);
            depot.recover(Orphans::GoBack);
            let _ = depot.trim();
        };
        match SharedDepot::adopt(depot.file().as_fd(), &options) {
            Ok(other) => {
                pages(&other);
                let _ = (other.segment_stats(), other.grow(8 * MIB), other.shrink(MIB));
            }
            Err(error) => assert!(!error.to_string().is_empty()),
        }
        pages(&depot);
        assert_eq!(depot.frames_at() as u64, frames_at);
    }
}

/// Processes that allocate, send and free are killed at random; their survivors lose nothing.
#[test]
fn random_kills_lose_nothing() {
    let depot = segment(32 * MIB);
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
                    }
                    _ => held.extend((0..100).map_while(|_| depot.page(Order::BASE).ok())),
                }
            }
        })
    };
    let mut children: Vec<Child> = (0..4).map(|_| storm(random.next())).collect();
    for _ in 0..60 {
        std::thread::sleep(Duration::from_micros(random.below(20_000)));
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
