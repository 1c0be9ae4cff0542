//! Handovers of a program's threads: one that sleeps is waited for, one that goes on answers, a
//! fork answers nothing, and a deadline fences no isolated CPU.

mod common;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{OnceLock, mpsc};
use std::time::{Duration, Instant};

use common::skip::skip;
use common::{all_back, in_child, mib, pin, usable_cpus};
use pagedepot_linux::builder::CpuSet;
use pagedepot_linux::{CpuId, Depot, Mode, Order, Scope};

const LIMIT_MS: u32 = 60_000;

/// CPUs of the process, before its threads were pinned.
fn cpus() -> &'static [u32] {
    static CPUS: OnceLock<Vec<u32>> = OnceLock::new();
    CPUS.get_or_init(usable_cpus)
}

/// Runs a test on one CPU beside a thread on another one that has cached pages there, and does what
/// it is told. Skipped where there is one CPU, or no sequences: those CPUs are taken at once.
fn with_owner(depot: &Depot, test: impl FnOnce(CpuId, &dyn Fn(fn(&Depot)))) {
    if !depot.fronts().are_sequences() {
        return skip("without sequences CPUs are taken at once");
    }
    let cpus = cpus();
    let (here, cpu) = (cpus[0], cpus[cpus.len() - 1]);
    if here == cpu {
        return skip("a drain takes its own CPU at once, and there is no other");
    }
    assert!(pin(here));
    let (send, receive) = mpsc::channel::<fn(&Depot)>();
    let (done, wait) = mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            assert!(pin(cpu));
            for job in receive {
                job(depot);
                done.send(()).unwrap();
            }
        });
        let run = move |job| {
            send.send(job).unwrap();
            wait.recv().unwrap();
        };
        run(cycle);
        test(CpuId::new(cpu), &run);
    });
    all_back(depot);
}

fn cycle(depot: &Depot) {
    drop((0..300).map(|_| depot.page(Order::BASE).unwrap()).collect::<Vec<_>>());
}

fn depot() -> Depot {
    Depot::builder(64 * mib()).isolated_cpus(CpuSet::new()).build().unwrap()
}

#[test]
fn an_owner_that_goes_on_is_waited_for() {
    let depot = depot();
    with_owner(&depot, |cpu, run| {
        let mut handover = depot.drain_handover(Scope::cpu(cpu), None);
        assert!(!handover.wait(5), "its owner sleeps");
        assert_eq!((handover.drained().pending_cpus, handover.drained().fences), (1, 0));
        let before = handover.drained().taken_pages;
        run(|depot| assert!(depot.cpu_caches().hand_over() && !depot.cpu_caches().hand_over()));
        assert!(handover.wait(LIMIT_MS));
        assert!(handover.drained().taken_pages > before);
        assert_eq!(handover.drained().fences, 0);
        assert_eq!(
            depot.cpu_stats(cpu, depot.zone_ids().next().unwrap()).unwrap().cached_pages(),
            0
        );

        // A waiter that sleeps is woken by the owner.
        run(cycle);
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| depot.drain_handover(Scope::cpu(cpu), None).wait(LIMIT_MS));
            while !waiter.is_finished() {
                run(cycle);
                std::thread::yield_now();
            }
            assert!(waiter.join().unwrap());
        });
        assert_eq!(depot.cpu_caches().handover_counts(cpu).unwrap().escalated, 0);
    });
}

static TOLD: AtomicU64 = AtomicU64::new(0);
static TOLD_OTHER: AtomicBool = AtomicBool::new(false);

#[test]
fn a_program_is_called_back() {
    fn tell(cpu: CpuId) {
        TOLD_OTHER.fetch_or(Some(&cpu.get()) != cpus().last(), Ordering::SeqCst);
        TOLD.fetch_add(1, Ordering::SeqCst);
    }
    let depot =
        Depot::builder(64 * mib()).isolated_cpus(CpuSet::new()).on_handover(tell).build().unwrap();
    with_owner(&depot, |cpu, run| {
        depot.drain(Scope::cpu(cpu), Mode::Handover);
        assert_eq!(TOLD.load(Ordering::SeqCst), 0);
        run(cycle);
        assert_eq!(TOLD.load(Ordering::SeqCst), 1);
        run(cycle);
        assert_eq!(TOLD.load(Ordering::SeqCst), 1, "nothing was asked since");
        let mut handover = depot.drain_handover(Scope::cpu(cpu), Some(0));
        assert!(handover.wait(LIMIT_MS));
        assert_eq!(TOLD.load(Ordering::SeqCst), 2, "fronts that a fence made safe to take count");
        assert!(!TOLD_OTHER.load(Ordering::SeqCst));
    });
}

#[test]
fn a_deadline_fences_no_isolated_cpu() {
    let mut isolated = CpuSet::new();
    cpus().iter().for_each(|&cpu| _ = isolated.insert(CpuId::new(cpu)));
    // Without locks.
    let depot = Depot::builder(64 * mib()).isolated_cpus(isolated).locked_cpus(CpuSet::new());
    let depot = depot.build().unwrap();
    with_owner(&depot, |cpu, run| {
        let mut handover = depot.drain_handover(Scope::cpu(cpu), Some(0));
        assert!(!handover.wait(20));
        let drained = handover.drained();
        assert_eq!((drained.pending_cpus, drained.isolated_cpus, drained.fences), (1, 1, 0));
        run(|depot| assert!(depot.cpu_caches().hand_over()));
        assert!(handover.poll());
        assert_eq!(depot.cpu_caches().handover_counts(cpu).unwrap().escalated, 0);
    });
    let depot = self::depot();
    with_owner(&depot, |cpu, _| {
        let mut handover = depot.drain_handover(Scope::cpu(cpu), Some(0));
        assert!(handover.wait(LIMIT_MS), "a CPU that is not isolated is fenced");
        assert_eq!(depot.cpu_caches().handover_counts(cpu).unwrap().escalated, 1);
    });
}

static OPERATIONS: AtomicU64 = AtomicU64::new(0);
static ANSWERED_AT: AtomicU64 = AtomicU64::new(0);

/// Lets the owner stop, also when the drainer fails.
struct Stop;

impl Drop for Stop {
    fn drop(&mut self) {
        OPERATIONS.fetch_add(u64::MAX / 2, Ordering::SeqCst);
    }
}

/// However long a handover takes by the clock, its owner does at most one more operation: what is
/// longer than that is time in which its thread did not run.
#[test]
fn an_owner_answers_within_two_operations() {
    const ASKS: u64 = 300;
    fn tell(_: CpuId) {
        ANSWERED_AT.store(OPERATIONS.load(Ordering::SeqCst), Ordering::SeqCst);
    }
    fn work(depot: &Depot) {
        while OPERATIONS.load(Ordering::SeqCst) < u64::MAX / 2 {
            drop(depot.page(Order::BASE).unwrap());
            // One that allocates and one that frees.
            OPERATIONS.fetch_add(2, Ordering::SeqCst);
        }
    }
    let depot =
        Depot::builder(64 * mib()).isolated_cpus(CpuSet::new()).on_handover(tell).build().unwrap();
    with_owner(&depot, |cpu, run| {
        std::thread::scope(|scope| {
            let drainer = scope.spawn(|| {
                let _stop = Stop;
                assert!(pin(cpus()[0]));
                let (mut stood, mut longest) = (0, Duration::ZERO);
                for _ in 0..ASKS {
                    let mut handover = depot.drain_handover(Scope::cpu(cpu), None);
                    // The owner may still be opening its gate after the answer before: then `wait`
                    // asks again, whenever this thread runs.
                    let stands = handover.drained().busy_cpus == 0;
                    let asked_at = OPERATIONS.load(Ordering::SeqCst);
                    let began = Instant::now();
                    assert!(handover.wait(LIMIT_MS));
                    longest = longest.max(began.elapsed());
                    let answered_at = ANSWERED_AT.load(Ordering::SeqCst);
                    assert!(
                        !stands || answered_at <= asked_at + 2,
                        "{asked_at}, answered at {answered_at}"
                    );
                    stood += u64::from(stands);
                }
                (stood, longest)
            });
            run(work);
            let (stood, longest) = drainer.join().unwrap();
            let counts = depot.cpu_caches().handover_counts(cpu).unwrap();
            println!("{counts:?}, {stood} asks stood at once, the longest took {longest:?}");
            assert!(stood > ASKS / 2, "{stood}");
            assert!(counts.handed > 0 && counts.escalated == 0);
        });
    });
}

/// A child neither answers what its parent was asked, nor waits for it.
#[test]
fn a_fork_with_a_standing_ask() {
    let depot = depot();
    with_owner(&depot, |cpu, run| {
        let mut handover = depot.drain_handover(Scope::cpu(cpu), None);
        assert!(!handover.poll());
        let before = handover.drained().taken_pages;
        in_child(|| {
            assert!(pin(cpu.get()));
            assert!(!depot.cpu_caches().hand_over());
            assert!(depot.page(Order::BASE).is_err());
            assert!(handover.wait(LIMIT_MS), "a child waits for no CPU");
            assert_eq!(handover.drained().taken_pages, before);
            let own = Depot::new(16 * mib()).unwrap();
            cycle(&own);
            assert!(own.drain_handover(Scope::ALL, Some(0)).wait(LIMIT_MS));
        });
        assert!(!handover.poll(), "the child has answered for its parent");
        run(|depot| assert!(depot.cpu_caches().hand_over()));
        assert!(handover.wait(LIMIT_MS));
        assert!(handover.drained().taken_pages > before);
    });
}
