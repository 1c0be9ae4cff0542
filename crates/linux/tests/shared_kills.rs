//! A tracer kills a process at each instruction of each operation on a segment: no page is lost.
//!
//! A tracer steps a process through the operation, one instruction at a time:
//!
//! 1. A death there is replayed behind each instruction that has changed the head of the segment
//!    (header, slots, hints, owners, tokens): the head is copied to a segment of its own, where the
//!    process holds no lock and maps nothing. Survivors of a death have the contents of the segment
//!    and nothing else, so a survivor of the copy meets what a kill leaves behind. A death behind
//!    an instruction that changed nothing leaves the same as one before it.
//! 2. The process is killed by SIGKILL at every nth instruction, and behind every nth of those that
//!    have changed the head. Before that it is stopped there, and a survivor takes, frees and
//!    drains pages meanwhile, and sends all free ones: a process that is stopped has not died, no
//!    survivor waits for it, and no burial takes back what was sent.
//!
//! After each death a survivor recovers, and counts: every page is free, the count of free pages is
//! exact without a walk, and each page can be had once.
//!
//! Fronts are behind locks, because the kernel aborts a sequence that is stepped through; sequences
//! touch nothing of the segment. `PAGEDEPOT_KILLS` is the number of kills of each operation;
//! `PAGEDEPOT_KILLS=all` kills at every instruction, for hours.

#![cfg(target_arch = "x86_64")]

#[path = "../../core/tests/common/skip.rs"]
mod skip;
#[path = "../../rseq/tests/tracer/mod.rs"]
mod tracer;

use std::collections::HashMap;
use std::fs::File;
use std::mem::forget;
use std::num::NonZeroU64;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use pagedepot_linux::shared::{Orphans, SentPage, SharedDepot, SharedOptions};
use pagedepot_linux::{Flags, Mode, Order, Page, Scope, ZoneId};
use pagedepot_rseq::affinity;
use skip::skip;
use tracer::{Channel, Stop, Tracee};

/// Pages of a test's segment.
const PAGES: usize = 1024;
const BYTES: usize = PAGES * 4096;
/// The heir of the processes that name one.
const HEIR: NonZeroU64 = NonZeroU64::new(7).unwrap();
/// Offsets in a test's segment of the owners and of the messages of its frames.
const OWNERS_AT: u64 = 20 << 10;
const TOKENS_AT: u64 = 24 << 10;
/// Kills of each operation, unless the environment says otherwise.
const KILLS: usize = 20;

fn options() -> SharedOptions {
    SharedOptions::join().per_cpu_locks(true).answers(false)
}

fn segment() -> SharedDepot {
    let options = SharedOptions::new(BYTES).per_cpu_locks(true).answers(false);
    SharedDepot::create_memfd("kills", &options).unwrap()
}

/// Makes a process ready for an operation, which is what it returns.
type Prepare = fn(&SharedDepot, Sent) -> Box<dyn FnOnce()>;

/// Pages that the survivor has sent: one of a single frame, one that fills words, and a run.
type Sent = [SentPage; 5];

fn pages(depot: &SharedDepot, count: usize) -> Vec<Page> {
    (0..count).map(|_| depot.page(Order::BASE).unwrap()).collect()
}

fn order(n: u32) -> Order {
    Order::new(n).unwrap()
}

fn send(depot: &SharedDepot, n: u32) -> SentPage {
    depot.page(order(n)).unwrap().into_shared(depot).unwrap()
}

fn prepared(depot: &SharedDepot) -> Sent {
    // Not at the end of the segment, which shrinks.
    let last = depot.page(order(5)).unwrap();
    let mut run = depot.page(order(2)).unwrap().split(Order::BASE).unwrap();
    let mut sent = vec![send(depot, 0), send(depot, 5)];
    assert!(depot.send_pages(run.by_ref().take(3), &mut sent).is_empty());
    drop((last, run));
    depot.drain(Scope::ALL, Mode::Full);
    sent.try_into().unwrap()
}

/// Kills a process that has joined the segment.
fn kill_another(depot: &SharedDepot, hold: impl FnOnce(SharedDepot)) {
    let file = depot.file().try_clone_to_owned().unwrap();
    // SAFETY: the child allocates, which glibc allows after a fork, and ends by a signal.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0);
    if pid == 0 {
        hold(SharedDepot::adopt(&file, &options()).unwrap());
        // SAFETY: ends this process.
        unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
    }
    // SAFETY: the status is not asked for.
    assert_eq!(unsafe { libc::waitpid(pid, std::ptr::null_mut(), 0) }, pid);
}

fn leave_estate(dead: SharedDepot) {
    dead.set_heir(Some(HEIR));
    forget(pages(&dead, 20));
    let _ = send(&dead, 0);
    forget(dead);
}

/// Does the steps of a claim up to the page's first word: the claimer's slot in the message, its
/// owner in the other words of the page.
fn claim_in_part(dead: SharedDepot, sent: SentPage) {
    let (first, order) = (sent.to_bits() as u32 as u64, (sent.to_bits() >> 72) as u32);
    let own = dead.slot() as u8 + 1;
    let file = File::from(dead.file().try_clone_to_owned().unwrap());
    file.write_all_at(&[own], TOKENS_AT + 8 * first + 5).unwrap();
    file.write_all_at(&vec![own; (1 << order) - 8], OWNERS_AT + first + 8).unwrap();
    forget(dead);
}

/// Operations: all that changes something that is shared, and two that do not.
const OPERATIONS: [(&str, Prepare); 25] = [
    ("allocate from a front", |depot, _| {
        let depot = depot.clone();
        drop(depot.page(Order::BASE).unwrap());
        Box::new(move || forget(depot.page(Order::BASE).unwrap()))
    }),
    ("free to a front", |depot, _| {
        let page = pages(depot, 1);
        Box::new(move || drop(page))
    }),
    ("refill", |depot, _| {
        let depot = depot.clone();
        Box::new(move || forget(depot.page(Order::BASE).unwrap()))
    }),
    ("spill", |depot, _| {
        // The CPU caches 63 of these, and the others go to the store.
        let held = pages(depot, 80);
        Box::new(move || drop(held))
    }),
    ("quiet drain", |depot, _| {
        let depot = depot.clone();
        drop(pages(&depot, 150));
        Box::new(move || _ = depot.drain(Scope::ALL, Mode::Quiet))
    }),
    ("full drain", |depot, _| {
        let depot = depot.clone();
        drop(pages(&depot, 30));
        Box::new(move || _ = depot.drain(Scope::ALL, Mode::Full))
    }),
    ("handover drain", |depot, _| {
        let depot = depot.clone();
        drop(pages(&depot, 30));
        Box::new(move || _ = depot.drain_handover(Scope::ALL, None).wait(1))
    }),
    ("ask all processes", |depot, _| {
        let depot = depot.clone();
        drop(pages(&depot, 30));
        Box::new(move || _ = depot.drain_all(Mode::Full, Duration::from_millis(1)))
    }),
    ("allocate and free an order that fills words", |depot, _| {
        let depot = depot.clone();
        Box::new(move || drop(depot.page(order(7)).unwrap()))
    }),
    ("take a run and free it", |depot, _| {
        let depot = depot.clone();
        Box::new(move || drop(depot.pages(77, Flags::default()).unwrap()))
    }),
    ("send a page", |depot, _| {
        let (depot, page) = (depot.clone(), depot.page(Order::BASE).unwrap());
        Box::new(move || _ = page.into_shared(&depot).unwrap().to_bits())
    }),
    ("send an order that fills words", |depot, _| {
        let (depot, page) = (depot.clone(), depot.page(order(5)).unwrap());
        Box::new(move || _ = page.into_shared(&depot).unwrap().to_bits())
    }),
    ("send many", |depot, _| {
        let depot = depot.clone();
        let mut pages: Vec<_> = depot.page(order(2)).unwrap().split(Order::BASE).unwrap().collect();
        pages.push(depot.page(order(4)).unwrap());
        Box::new(move || {
            let mut sent = Vec::new();
            assert!(depot.send_pages(pages, &mut sent).is_empty());
            forget(sent);
        })
    }),
    ("claim many", |depot, sent| {
        let (depot, mut all) = (depot.clone(), sent.to_vec());
        assert!(depot.send_pages(pages(&depot, 2), &mut all).is_empty());
        Box::new(move || {
            let mut got = Vec::with_capacity(8);
            depot.claim_pages(&all, &mut got, |place, error| panic!("{place}: {error}"));
            forget(got);
        })
    }),
    ("claim a page", |depot, [page, ..]| {
        let depot = depot.clone();
        Box::new(move || forget(depot.claim(page).unwrap()))
    }),
    ("claim an order that fills words", |depot, [_, large, ..]| {
        let depot = depot.clone();
        Box::new(move || forget(depot.claim(large).unwrap()))
    }),
    ("claim what it has sent itself", |depot, _| {
        let (depot, sent) = (depot.clone(), send(depot, 4));
        Box::new(move || forget(depot.claim(sent).unwrap()))
    }),
    ("trim", |depot, _| {
        let depot = depot.clone();
        depot.page(order(7)).unwrap().fill(1);
        depot.drain(Scope::ALL, Mode::Full);
        Box::new(move || _ = depot.trim())
    }),
    ("shrink and grow", |depot, _| {
        let depot = depot.clone();
        Box::new(move || {
            depot.shrink(BYTES - 3 * 4096);
            depot.grow(BYTES);
        })
    }),
    ("recover another", |depot, _| {
        let depot = depot.clone();
        kill_another(&depot, |dead| {
            forget(pages(&dead, 20));
            let _ = send(&dead, 0);
            forget(dead);
        });
        Box::new(move || _ = depot.recover(Orphans::GoBack))
    }),
    ("recover another that died as it claimed", |depot, [_, large, ..]| {
        let depot = depot.clone();
        kill_another(&depot, |dead| claim_in_part(dead, large));
        Box::new(move || _ = depot.recover(Orphans::Stay))
    }),
    ("recover another that has an heir", |depot, _| {
        let depot = depot.clone();
        kill_another(&depot, leave_estate);
        Box::new(move || _ = depot.recover(Orphans::GoBack))
    }),
    ("inherit", |depot, _| {
        let depot = depot.clone();
        kill_another(&depot, leave_estate);
        Box::new(move || depot.inherit(HEIR).take(12).for_each(forget))
    }),
    ("join where the dead are in all slots", |depot, _| {
        kill_another(depot, |dead| {
            let file = dead.file().try_clone_to_owned().unwrap();
            let others = std::iter::from_fn(|| SharedDepot::adopt(&file, &options()).ok());
            others.for_each(forget);
            forget(pages(&dead, 3));
            let _ = [send(&dead, 0), send(&dead, 4)];
            forget(dead);
        });
        let file = depot.file().try_clone_to_owned().unwrap();
        let options = options().orphans(Orphans::GoBack);
        Box::new(move || drop(SharedDepot::adopt(&file, &options).unwrap()))
    }),
    ("join and leave", |depot, _| {
        let file = depot.file().try_clone_to_owned().unwrap();
        Box::new(move || drop(SharedDepot::adopt(&file, &options()).unwrap()))
    }),
];

/// A process that is ready for an operation: it pauses before it and behind it.
fn start(depot: &SharedDepot, sent: Sent, prepare: Prepare) -> Option<Tracee> {
    let tracee = Tracee::fork(|channel: &'static Channel| {
        let own = SharedDepot::adopt(depot.file(), &options()).unwrap();
        let operation = prepare(&own, sent);
        channel.pause();
        operation();
        channel.pause();
    });
    match tracee {
        Ok(tracee) => Some(tracee),
        Err(error) => {
            skip(format_args!("the system refuses tracers: {error}"));
            None
        }
    }
}

/// The head of a segment, mapped, and a copy of what it was.
struct Head {
    start: *const u8,
    seen: Vec<u8>,
    file_bytes: u64,
}

impl Head {
    fn new(depot: &SharedDepot) -> Self {
        // The pages begin at a multiple of 2 MiB. Of what is in front of them, the tokens of 1024
        // frames end here.
        let length = depot.frames_at().min(32 << 10);
        let file = File::from(depot.file().try_clone_to_owned().unwrap());
        let file_bytes = file.metadata().unwrap().len();
        // SAFETY: a new mapping, never unmapped.
        let start = unsafe {
            use std::os::fd::AsRawFd;
            let null = std::ptr::null_mut();
            libc::mmap(null, length, libc::PROT_READ, libc::MAP_SHARED, file.as_raw_fd(), 0)
        };
        assert_ne!(start, libc::MAP_FAILED);
        let mut head = Head { start: start.cast(), seen: vec![0; length], file_bytes };
        head.has_changed();
        head
    }

    /// Whether the head is another than at the last call. The process that writes to it is stopped.
    fn has_changed(&mut self) -> bool {
        let (start, length) = (self.start.cast(), self.seen.len());
        // SAFETY: both have that many bytes.
        let is_same = unsafe { libc::memcmp(start, self.seen.as_ptr().cast(), length) } == 0;
        if !is_same {
            // SAFETY: the same.
            unsafe { self.start.copy_to(self.seen.as_mut_ptr(), length) };
        }
        !is_same
    }

    /// Recovers a copy of the segment, in which all other processes are dead.
    fn recover_copy(&self, sent: Sent, place: &str) {
        // SAFETY: a name; a new descriptor.
        let file = unsafe {
            use std::os::fd::FromRawFd;
            OwnedFd::from_raw_fd(libc::memfd_create(c"copy".as_ptr(), libc::MFD_CLOEXEC))
        };
        let file = File::from(file);
        file.set_len(self.file_bytes).unwrap();
        file.write_all_at(&self.seen, 0).unwrap();
        let survivor = SharedDepot::adopt(&file, &options()).unwrap();
        survivor.recover(Orphans::GoBack);
        check(&survivor, sent, place);
    }
}

/// Checks that no page is lost: all are free that were not taken out of the segment. What the
/// survivor has sent it claims itself first, if the dead process has not.
fn check(depot: &SharedDepot, sent: Sent, place: &str) {
    sent.into_iter().for_each(|sent| drop(depot.claim(sent)));
    depot.inherit(HEIR).for_each(drop);
    depot.drain(Scope::ALL, Mode::Full);
    let stats = depot.segment_stats();
    assert_eq!(stats.lost_pages, 0, "{place}: {stats:?}");
    // What a shrink that was killed has taken out.
    assert!(PAGES as u64 - stats.present_pages <= 3, "{place}: {stats:?}");
    assert_eq!(stats.free_pages, stats.present_pages, "{place}: {stats:?}");
    let counted = depot.zone_stats(ZoneId::new(0)).unwrap().free_pages;
    assert_eq!(counted, stats.free_pages, "{place}: counted without a walk");
    assert_eq!(depot.grow(BYTES), BYTES, "{place}");
    assert_eq!(depot.refused_pages(), 0, "{place}");
}

/// Checks that a survivor can have every page.
fn check_all(depot: &SharedDepot, sent: Sent, place: &str) {
    check(depot, sent, place);
    let mut numbers: Vec<_> = pages(depot, PAGES).iter().map(Page::pfn).collect();
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), PAGES, "{place}");
}

/// Dies at each instruction of an operation.
fn at_each_instruction(name: &str, prepare: Prepare) {
    let depot = segment();
    let mut head = Head::new(&depot);
    let sent = prepared(&depot);
    let Some(tracee) = start(&depot, sent, prepare) else { return };
    head.has_changed();
    let (mut places, mut visits, mut changes) = (Vec::new(), HashMap::new(), Vec::new());
    while let Stop::At(address) = tracee.step() {
        let visit = visits.entry(address).and_modify(|visit| *visit += 1).or_insert(1u32);
        places.push(Place { address, visit: *visit });
        if head.has_changed() {
            changes.push(places.len() - 1);
            let place = format!("{name}, a copy behind instruction {}", places.len());
            head.recover_copy(sent, &place);
        }
    }
    drop(tracee);
    depot.recover(Orphans::GoBack);
    check_all(&depot, sent, name);
    let kills = match std::env::var("PAGEDEPOT_KILLS") {
        Ok(text) if text == "all" => places.len(),
        Ok(text) => text.parse().expect("PAGEDEPOT_KILLS is a number, or all"),
        Err(_) => KILLS,
    };
    let stride = |count: usize| (count / kills.max(1)).max(1);
    let some = (0..places.len()).step_by(stride(places.len()));
    let changed = changes.iter().copied().step_by(stride(changes.len()));
    for at in some.chain(changed) {
        let place = &places[at];
        let sent = prepared(&depot);
        let Some(tracee) = start(&depot, sent, prepare) else { return };
        place.run_to(&tracee);
        let place = format!("{name}, killed behind instruction {}", at + 1);
        let beside = stay_alive_beside(&depot, tracee.process(), &place);
        drop(tracee);
        // Before anything is recovered: a message that the dead process had begun to claim is gone.
        sent.into_iter().for_each(|sent| drop(depot.claim(sent)));
        let recovered = depot.recover(Orphans::GoBack);
        assert!(recovered.processes >= 1, "{place}: {recovered:?}");
        for sent in beside {
            drop(depot.claim(sent).unwrap_or_else(|error| panic!("{place}: {sent:?}: {error}")));
        }
        check(&depot, sent, &place);
    }
    let (steps, changes) = (places.len(), changes.len());
    println!("{name}: {steps} instructions, {changes} changes of the segment");
}

/// An instruction of an operation: its address, and how often the process has come there.
struct Place {
    address: u64,
    visit: u32,
}

impl Place {
    /// Runs to the instruction. A process that takes a shorter way is at the operation's end then.
    fn run_to(&self, tracee: &Tracee) {
        for visit in 1..=self.visit {
            if visit > 1 && tracee.step() == Stop::Paused || !tracee.run_to(self.address, 0) {
                return;
            }
        }
    }
}

/// Uses the segment while a process is stopped between two instructions. Returns what it has sent.
fn stay_alive_beside(depot: &SharedDepot, process: u64, place: &str) -> Vec<SentPage> {
    let is_dead = |depot: &SharedDepot| {
        depot.segment_stats().processes.iter().any(|one| one.pid == process && !one.is_alive)
    };
    drop(pages(depot, 40));
    let sent = send(depot, 3);
    drop(depot.claim(sent).unwrap_or_else(|error| panic!("{place}: {error}")));
    depot.recover(Orphans::Stay);
    depot.drain(Scope::ALL, Mode::Full);
    assert!(!is_dead(depot), "{place}");
    // All that is free, and so what the process is about to free or has just freed.
    let free = || depot.page_with(order(3), Flags::default().no_reclaim()).ok();
    std::iter::from_fn(free).map(|page| page.into_shared(depot).unwrap()).collect()
}

/// Dies at each instruction of the operations that the other test has not begun.
fn at_operations(cpu: usize) {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    // A step wakes the process and this one in turn, which takes a third of the time on one CPU.
    let cpus: Vec<_> = affinity::allowed().unwrap().iter().collect();
    affinity::pin(cpus[cpu % cpus.len()]).unwrap();
    let only = std::env::var("PAGEDEPOT_KILLS_OF").unwrap_or_default();
    while let Some((name, prepare)) = OPERATIONS.get(NEXT.fetch_add(1, Ordering::Relaxed)) {
        if name.contains(&only) {
            at_each_instruction(name, *prepare);
        }
    }
}

#[test]
fn a_process_that_dies_at_any_instruction_loses_nothing() {
    at_operations(0);
}

/// The second of two tests has a CPU of its own, if there are two.
#[test]
fn a_process_that_dies_in_the_other_operations_loses_nothing() {
    at_operations(1);
}
