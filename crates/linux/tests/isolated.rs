//! Isolated CPUs: what they cache can be taken back, and no fence ever names them.
//!
//! 1. A request on another CPU gets every page, whatever an isolated CPU cached last and does now.
//! 2. Neither drains, requests, waiting requests nor the end of a depot fence an isolated CPU. A
//!    system call that would ends the process.
//! 3. The same holds for all CPUs where the system refuses fences.
//! 4. Counts say what took place: no fence, no busy CPU.
//! 5. Drains, requests, migrations and handlers beside an owner lose no page.
//! 6. A builder that gives isolated CPUs no lock gives up what they cache, and no more.
//! 7. What waits for a gap in an isolated CPU's work keeps nothing from others meanwhile, nor from
//!    a parent whose signal handler forks then.

mod common;

use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use common::skip::skip;
use common::{
    StopAtEnd, all_back, for_all_cpus, hammer, in_child, mib, order, page_bytes, pin, refuse_with,
    usable_cpus,
};
use pagedepot_linux::builder::{Builder, CpuSet, HighPolicy};
use pagedepot_linux::reclaim::{GiveBackEnd, TrimError};
use pagedepot_linux::stats::Fronts;
use pagedepot_linux::{CpuId, Depot, MemoryKind, Mode, Order, Page, Scope, ZoneId};

/// The CPU of the test, and another one. `None`: this process may use one CPU alone.
fn two_cpus() -> Option<(u32, u32)> {
    let cpus = usable_cpus();
    let found = (cpus[0], cpus[cpus.len() - 1]);
    if found.0 == found.1 {
        skip("needs two CPUs");
        return None;
    }
    Some(found)
}

fn isolating(bytes: usize, cpu: u32) -> Builder {
    Depot::builder(bytes).isolated_cpus([CpuId::new(cpu)].into_iter().collect())
}

/// `MEMBARRIER_CMD_FLAG_CPU` of the kernel: the third argument names one CPU.
const FLAG_CPU: u32 = 1;

/// Ends this process, and each thread that it starts later, when it asks the kernel to fence `cpu`.
fn forbid_fences_of(cpu: u32) {
    use libc::{BPF_ABS, BPF_JEQ, BPF_JMP, BPF_K, BPF_LD, BPF_RET, BPF_W};
    let op =
        |code: u32, k: u32, skip: u8| libc::sock_filter { code: code as u16, jt: 0, jf: skip, k };
    let load = |from| op(BPF_LD | BPF_W | BPF_ABS, from, 0);
    let unless = |is: u32, skip| op(BPF_JMP | BPF_JEQ | BPF_K, is, skip);
    // Of `struct seccomp_data`: the number, and the lower halves of the second argument (flags) and
    // of the third (the CPU).
    let mut filter = [
        load(0),
        unless(libc::SYS_membarrier as u32, 5),
        load(16 + 8),
        unless(FLAG_CPU, 3),
        load(16 + 2 * 8),
        unless(cpu, 1),
        op(BPF_RET | BPF_K, libc::SECCOMP_RET_KILL_PROCESS, 0),
        op(BPF_RET | BPF_K, libc::SECCOMP_RET_ALLOW, 0),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: a filter for this process, of as many instructions as said.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &program), 0);
    }
}

/// Every page that is to be had, in blocks of this order.
fn take_all(depot: &Depot, order: Order) -> Vec<Page> {
    std::iter::from_fn(|| depot.page(order).ok()).collect()
}

/// A thread on `cpu` takes and frees all memory in blocks of each order, and then does nothing
/// while `test` runs on this CPU.
fn beside_a_cpu_that_cached_all(
    depot: &Depot,
    cpu: u32,
    orders: &'static [u32],
    test: impl FnOnce(),
) {
    let (cached, wait) = mpsc::channel();
    let (end, sleep) = mpsc::channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            assert!(pin(cpu));
            for &n in orders {
                let mut all = take_all(depot, order(n));
                while let Some(page) = all.pop() {
                    drop(page);
                }
            }
            cached.send(()).unwrap();
            // Ends when the sender is dropped.
            _ = sleep.recv();
        });
        wait.recv().unwrap();
        test();
        drop(end);
    });
}

/// Every page of a depot that a CPU cached completely is to be had on another CPU, and none of the
/// counts says that it took a fence. Frames that were carved into magazines are no pages.
fn every_page_is_had(depot: &Depot, cpu: u32, orders: &'static [u32]) {
    let zone = depot.zone_ids().next().unwrap();
    for wanted in [Order::BASE, Order::PAGEBLOCK, Order::MAX] {
        beside_a_cpu_that_cached_all(depot, cpu, orders, || {
            let had = take_all(depot, wanted).len();
            let (all, carved) =
                ((depot.bytes() / page_bytes()) >> wanted.get(), carved_pages(depot, zone));
            let shortage = depot.shortage();
            assert!(had + carved >= all, "{had} of {all}, {orders:?}, {wanted:?}: {shortage}");
        });
    }
    for mode in [Mode::Full, Mode::Handover] {
        beside_a_cpu_that_cached_all(depot, cpu, orders, || {
            let stats = depot.cpu_stats(CpuId::new(cpu), zone).unwrap();
            assert!(stats.cached_pages() > 0, "{mode:?} {orders:?}: {stats:?}");
            let drained = depot.drain(Scope::cpu(CpuId::new(cpu)), mode);
            assert!(drained.taken_pages > 0, "{mode:?}: {drained:?}");
            let left = (drained.unreachable_pages, drained.pending_pages, drained.left_pages);
            assert_eq!(left, (0, 0, 0), "{mode:?}: {drained:?}");
            let counts = (drained.fences, drained.busy_cpus, drained.isolated_cpus);
            assert_eq!(counts, (0, 0, 0), "{mode:?}: {drained:?}");
        });
    }
    all_back(depot);
}

fn carved_pages(depot: &Depot, zone: ZoneId) -> usize {
    depot.zone_stats(zone).unwrap().carved_pages as usize
}

const ONE: &[u32] = &[0];
const SIX: &[u32] = &[0, 1, 2, 3, 9, 10];
/// Enough for a magazine of order 9, however many CPUs share a depot.
const HIGH: HighPolicy = HighPolicy::Fixed(8192);

#[test]
fn another_cpu_gets_every_page_that_an_isolated_one_cached() {
    let Some((here, isolated)) = two_cpus() else { return };
    in_child(|| {
        assert!(pin(here));
        let depot = isolating(64 * mib(), isolated).build().unwrap();
        if depot.fronts().are_sequences() {
            let Fronts::SequencesAndLocks { locks: 1, sequences } = depot.fronts() else {
                panic!("{:?}", depot.fronts());
            };
            let text = format!("restartable sequences on {sequences} CPUs, locks on 1");
            assert_eq!(depot.fronts().to_string(), text);
        }
        let large = isolating(512 * mib(), isolated).high(HIGH).build().unwrap();
        forbid_fences_of(isolated);
        every_page_is_had(&depot, isolated, ONE);
        every_page_is_had(&large, isolated, SIX);
    });
}

#[test]
fn a_request_that_waits_fences_no_isolated_cpu() {
    let Some((here, isolated)) = two_cpus() else { return };
    in_child(|| {
        assert!(pin(here));
        let depot = isolating(4 * mib(), isolated).build().unwrap();
        forbid_fences_of(isolated);
        beside_a_cpu_that_cached_all(&depot, isolated, ONE, || {
            let mut all = take_all(&depot, Order::BASE);
            assert!(depot.page_timeout(Order::BASE, Duration::from_millis(20)).is_err());
            std::thread::scope(|scope| {
                let waiter = scope.spawn(|| {
                    assert!(pin(isolated));
                    depot.page_timeout(Order::BASE, Duration::from_secs(60)).map(drop)
                });
                while !waiter.is_finished() {
                    std::thread::sleep(Duration::from_millis(1));
                    _ = all.pop();
                }
                waiter.join().unwrap().unwrap();
            });
        });
        all_back(&depot);
        // The end of a depot closes all gates.
        drop(depot.page(Order::BASE).unwrap());
        drop(depot);
    });
}

#[test]
fn where_fences_are_refused_every_page_is_had() {
    let Some((here, other)) = two_cpus() else { return };
    for errno in [libc::EPERM, libc::ENOSYS] {
        in_child(|| {
            assert!(pin(here));
            refuse_with(libc::SYS_membarrier, errno).unwrap();
            let depot = Depot::new(64 * mib()).unwrap();
            assert!(!depot.fronts().are_sequences());
            every_page_is_had(&depot, other, ONE);
            let large = Depot::builder(512 * mib()).high(HIGH).build().unwrap();
            every_page_is_had(&large, other, SIX);
        });
    }
}

#[test]
fn all_cpus_isolated_are_all_behind_locks() {
    let all: CpuSet = (0..8192).map(CpuId::new).collect();
    let depot = Depot::builder(64 * mib()).isolated_cpus(all.clone()).build().unwrap();
    assert!(!depot.fronts().are_sequences());
    hammer(&depot, Duration::from_millis(200));
    let depot = Depot::builder(64 * mib()).isolated_cpus(all).locked_cpus(CpuSet::new());
    let depot = depot.build().unwrap();
    assert_ne!(depot.fronts(), Fronts::Locks, "the builder leaves all of them out");
}

#[test]
fn owners_drainers_and_requests_beside_an_isolated_cpu() {
    let Some((_, isolated)) = two_cpus() else { return };
    for bytes in [4 * mib(), 64 * mib()] {
        in_child(|| {
            let depot = isolating(bytes, isolated).checked(bytes < 8 * mib()).build().unwrap();
            forbid_fences_of(isolated);
            hammer(&depot, Duration::from_millis(700));
        });
    }
}

/// A thread that is moved between a CPU with a lock and one without, in the middle of everything.
#[test]
fn threads_that_are_moved_between_both_kinds() {
    let Some((here, isolated)) = two_cpus() else { return };
    let depot = isolating(16 * mib(), isolated).build().unwrap();
    std::thread::scope(|scope| {
        // SAFETY: no arguments.
        let own_id = || unsafe { libc::gettid() };
        let (send, receive) = mpsc::channel();
        let workers: Vec<_> = (1..=3)
            .map(|owner| {
                let (depot, send) = (&depot, send.clone());
                scope.spawn(move || {
                    send.send(own_id()).unwrap();
                    let end = Instant::now() + Duration::from_millis(700);
                    common::work(depot, owner, common::seed(), 300, end)
                })
            })
            .collect();
        let ids: Vec<_> = (0..workers.len()).map(|_| receive.recv().unwrap()).collect();
        for turn in 0.. {
            if workers.iter().all(|worker| worker.is_finished()) {
                break;
            }
            for (nth, &id) in ids.iter().enumerate() {
                let cpu = [here, isolated][(turn + nth) % 2];
                // SAFETY: a plain array of bits; a thread that has ended is not found.
                unsafe {
                    let mut set: libc::cpu_set_t = std::mem::zeroed();
                    libc::CPU_SET(cpu as usize, &mut set);
                    libc::sched_setaffinity(id, size_of_val(&set), &set);
                }
            }
            std::thread::yield_now();
        }
        workers.into_iter().for_each(|worker| assert!(worker.join().unwrap() > 0));
    });
    all_back(&depot);
}

/// Checks that pages which such a builder gives up are in the fronts of the isolated CPU, and are
/// reported.
#[test]
fn without_locks_an_isolated_cpu_keeps_what_is_in_its_fronts() {
    let Some((here, isolated)) = two_cpus() else { return };
    in_child(|| {
        assert!(pin(here));
        let depot = isolating(64 * mib(), isolated).locked_cpus(CpuSet::new()).build().unwrap();
        if depot.fronts() != Fronts::Sequences {
            return;
        }
        forbid_fences_of(isolated);
        beside_a_cpu_that_cached_all(&depot, isolated, ONE, || {
            let missing = depot.bytes() / page_bytes() - take_all(&depot, Order::BASE).len();
            assert!((1..=126).contains(&missing), "{missing}");
            let drained = depot.drain(Scope::cpu(CpuId::new(isolated)), Mode::Full);
            assert_eq!((drained.fences, drained.isolated_cpus), (0, 1), "{drained:?}");
            assert_eq!(drained.unreachable_pages, missing as u64);
        });
        drop(take_all(&depot, Order::BASE));
        depot.validate().unwrap();
        // The end would fence it.
        std::mem::forget(depot);
    });
}

/// A count of fences is one of fences that took place.
#[test]
fn refused_fences_are_not_counted() {
    in_child(|| {
        refuse_with(libc::SYS_membarrier, libc::EPERM).unwrap();
        let depot = Depot::builder(for_all_cpus(16 * mib())).locked_cpus(CpuSet::new());
        let depot = depot.build().unwrap();
        if depot.fronts() != Fronts::SequencesWithoutFence {
            return;
        }
        // A thread that moves has pages in the fronts of two CPUs.
        assert!(pin(usable_cpus()[0]));
        drop(depot.page(Order::BASE).unwrap());
        let drained = depot.drain(Scope::ALL, Mode::Full);
        let counts = (drained.fences, drained.busy_cpus, drained.unfenced_cpus);
        assert_eq!(counts, (0, 1, 1), "{drained:?}");
        assert!(drained.unreachable_pages > 0, "{drained:?}");
    });
}

/// Counts what quiet drains leave in fronts, beside an owner that moves magazines.
#[test]
fn no_more_is_out_of_reach_than_fronts_hold() {
    /// Two magazines of order 0, and two that the owner moves at once.
    const UNREACHABLE_MAX: u64 = 4 * 63;
    let Some((here, there)) = two_cpus() else { return };
    let depot = Depot::new(256 * mib()).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            assert!(pin(there));
            while !stop.load(Ordering::Relaxed) {
                drop((0..600).map(|_| depot.page(Order::BASE).unwrap()).collect::<Vec<_>>());
            }
        });
        let _stop = StopAtEnd(&stop);
        assert!(pin(here));
        let end = Instant::now() + Duration::from_millis(500);
        while Instant::now() < end {
            let drained = depot.drain(Scope::cpu(CpuId::new(there)), Mode::Quiet);
            assert!(drained.unreachable_pages <= UNREACHABLE_MAX, "{drained:?}");
        }
    });
    all_back(&depot);
}

#[test]
fn a_fork_beside_an_isolated_cpu() {
    let Some((here, isolated)) = two_cpus() else { return };
    let depot = isolating(16 * mib(), isolated).build().unwrap();
    beside_a_cpu_that_cached_all(&depot, isolated, ONE, || {
        for cpu in [here, isolated] {
            in_child(|| {
                assert!(pin(cpu));
                assert!(depot.page(Order::BASE).is_err());
                assert_eq!(depot.drain(Scope::ALL, Mode::Full).taken_pages, 0);
                assert!(depot.drain_handover(Scope::ALL, Some(0)).poll());
                let own = isolating(16 * mib(), isolated).build().unwrap();
                hammer(&own, Duration::from_millis(50));
            });
        }
        assert_eq!(take_all(&depot, Order::BASE).len(), depot.bytes() / page_bytes());
    });
    all_back(&depot);
}

/// Longer than any test: what waits for it fails.
const LONG: Duration = Duration::from_secs(100);

/// Runs `test` while a thread works on `cpu` without a pause.
fn beside_a_busy_cpu(cpu: u32, test: impl FnOnce()) {
    let (stop, is_there) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            assert!(pin(cpu));
            is_there.store(true, Ordering::Release);
            while !stop.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        });
        let _stop = StopAtEnd(&stop);
        while !is_there.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        test();
    });
}

/// Waits until the store of a depot has `pages` free pages.
fn until_free(depot: &Depot, pages: u64) {
    let end = Instant::now() + LONG;
    while depot.zone_stats(ZoneId::new(0)).unwrap().free_pages != pages {
        assert!(Instant::now() < end, "{:?}", depot.zone_stats(ZoneId::new(0)));
        std::thread::yield_now();
    }
}

#[test]
fn memory_that_is_to_go_back_later_is_there_meanwhile() {
    let Some((here, isolated)) = two_cpus() else { return };
    let depot = isolating(4 * mib(), isolated).build().unwrap();
    assert!(pin(here));
    let held = depot.page(Order::PAGEBLOCK).unwrap();
    depot.page(Order::PAGEBLOCK).unwrap().fill(1);
    depot.drain(Scope::ALL, Mode::Full);
    beside_a_busy_cpu(isolated, || {
        std::thread::scope(|scope| {
            let giving = scope.spawn(|| depot.give_back(u64::MAX, Instant::now() + LONG));
            until_free(&depot, 0);
            drop(depot.pin_range(held.pfn(), 1).unwrap());
            assert!(!giving.is_finished());
            until_free(&depot, 0);
            while !giving.is_finished() {
                drop(depot.page(Order::BASE).unwrap());
                // Runs short, which ends it.
                assert!(depot.page(Order::MAX).is_err());
            }
            assert_eq!(giving.join().unwrap().unwrap().end, GiveBackEnd::LowMemory);
        });
    });
    drop(held);
    all_back(&depot);
}

/// Single pages that could not go back at one moment are found again until the time is up.
#[test]
fn pages_that_did_not_go_back_are_tried_again() {
    let Some((here, isolated)) = two_cpus() else { return };
    let depot = isolating(64 * mib(), isolated).build().unwrap();
    assert!(pin(here));
    let mut pages: Vec<_> = (0..512).map(|_| depot.page(Order::BASE).unwrap()).collect();
    pages.iter_mut().for_each(|page| page.fill(1));
    pages.sort_by_key(|page| page.pfn());
    let held: Vec<_> = pages.into_iter().step_by(2).collect();
    depot.drain(Scope::ALL, Mode::Full);
    beside_a_busy_cpu(isolated, || {
        let end = Instant::now() + Duration::from_secs(1);
        let given = depot.give_back(u64::MAX, end).unwrap();
        assert!(matches!(given.end, GiveBackEnd::Isolated | GiveBackEnd::Deadline), "{given:?}");
        assert_eq!(given.bytes, 0);
    });
    drop(held);
    all_back(&depot);
}

/// The child that [`fork_in_handler`] has made; 0: none.
static CHILD: AtomicI32 = AtomicI32::new(0);
/// A pipe whose end of file lets the child go on.
static PIPE: [AtomicI32; 2] = [const { AtomicI32::new(-1) }; 2];

extern "C" fn fork_in_handler(_: libc::c_int) {
    // SAFETY: a fork without the C library's work for it, which may not be done in a handler. The
    // child waits, and then goes on in what this handler interrupted.
    unsafe {
        let pid = libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) as i32;
        if pid == 0 {
            libc::close(PIPE[1].load(Ordering::Relaxed));
            // A child that waits for a lock of another thread ends, and the test fails.
            libc::alarm(60);
            let mut byte = 0u8;
            libc::read(PIPE[0].load(Ordering::Relaxed), (&raw mut byte).cast(), 1);
        }
        CHILD.store(pid, Ordering::Release);
    }
}

/// Has a request to give back all memory, with a pageblock taken, fork in a handler. Then hands all
/// pages out, and lets the child go on.
fn hand_out_before_a_child_goes_on(depot: &Depot) {
    depot.drain(Scope::ALL, Mode::Full);
    depot.page(Order::MAX).unwrap().fill(1);
    depot.drain(Scope::ALL, Mode::Full);
    // Longer than a request that ran short keeps memory from being given back.
    std::thread::sleep(Duration::from_millis(30));
    let all = depot.zone_stats(ZoneId::new(0)).unwrap().free_pages;
    let (parent, mut pipe) = (std::process::id(), [0; 2]);
    // SAFETY: the pipe's two ends are written.
    assert_eq!(unsafe { libc::pipe(pipe.as_mut_ptr()) }, 0);
    PIPE.iter().zip(pipe).for_each(|(end, fd)| end.store(fd, Ordering::Relaxed));
    CHILD.store(0, Ordering::Relaxed);
    let (send, receive) = mpsc::channel();
    let mut pages = std::thread::scope(|scope| {
        let giving = scope.spawn(move || {
            // SAFETY: no arguments.
            send.send(unsafe { libc::pthread_self() }).unwrap();
            let result = depot.give_back(u64::MAX, Instant::now() + LONG);
            if std::process::id() != parent {
                // SAFETY: ends the child.
                unsafe { libc::_exit((result != Err(TrimError::Forked)).into()) };
            }
            result
        });
        let thread = receive.recv().unwrap();
        until_free(depot, all - 512);
        // SAFETY: the thread runs until a request runs short.
        assert_eq!(unsafe { libc::pthread_kill(thread, libc::SIGUSR1) }, 0);
        while CHILD.load(Ordering::Acquire) == 0 {
            std::thread::yield_now();
        }
        let pages = take_all(depot, Order::BASE);
        // There is nothing left to give back.
        giving.join().unwrap().unwrap();
        pages
    });
    assert_eq!(pages.len(), 1024);
    pages.iter_mut().for_each(|page| page.fill(7));
    let mut status = 0;
    // SAFETY: closes the pipe, and waits for our child.
    unsafe {
        libc::close(pipe[1]);
        libc::waitpid(CHILD.load(Ordering::Relaxed), &mut status, 0);
        libc::close(pipe[0]);
    }
    assert!(pages.iter().all(|page| page.iter().all(|&byte| byte == 7)));
    assert_eq!(status, 0);
}

/// The child goes on with pages that its parent has handed out meanwhile, and drops no memory.
#[test]
fn a_child_of_a_handler_gives_nothing_back() {
    let Some((here, isolated)) = two_cpus() else { return };
    let depot = isolating(4 * mib(), isolated).memory(MemoryKind::Memfd).build().unwrap();
    assert!(pin(here));
    // SAFETY: the handler calls what handlers may.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = fork_in_handler as *const () as usize;
        action.sa_flags = libc::SA_RESTART;
        assert_eq!(libc::sigaction(libc::SIGUSR1, &action, std::ptr::null_mut()), 0);
    }
    beside_a_busy_cpu(isolated, || {
        // A child that went on where it had seen the busy thread would not find a gap.
        for _ in 0..10 {
            hand_out_before_a_child_goes_on(&depot);
        }
    });
    all_back(&depot);
}
