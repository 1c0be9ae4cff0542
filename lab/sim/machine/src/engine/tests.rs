use std::cell::RefCell;
use std::rc::Rc;

use super::*;
use crate::atomic::{AtomicU32, AtomicU64, Ordering};
use crate::lock::Mutex;

fn setup(cpus: usize) -> Setup {
    Setup::new(Costs::default(), cpus)
}

fn on_each<'w>(cpus: usize, work: impl Fn(usize) + 'w) -> Vec<(usize, Work<'w>)> {
    let work = Rc::new(work);
    (0..cpus)
        .map(|cpu| {
            let work = Rc::clone(&work);
            (cpu, Box::new(move || work(cpu)) as Work<'w>)
        })
        .collect()
}

/// Two CPUs that pass a line to and fro: a transfer each way.
#[test]
fn a_round_trip_is_two_transfers() {
    for other in [1, 8, 128] {
        let ball = AtomicU64::new(0);
        let end = Cell::new(0);
        let player = |of: u64| {
            let (ball, end) = (&ball, &end);
            Box::new(move || {
                for turn in 0..1000 {
                    while ball.load(Ordering::Acquire) != 2 * turn + of {
                        work(1000);
                    }
                    ball.fetch_add(1, Ordering::Release);
                }
                end.set(now_ps());
            }) as Work<'_>
        };
        let costs = Costs::default();
        run(&setup(256), vec![(0, player(0)), (other, player(1))]);
        let trip = end.get() / 1000;
        // The waiting CPU's load moves the line, and its change then invalidates a copy.
        let least = 2 * costs.transfer(0, other);
        assert!((least..=3 * least).contains(&trip), "{other}: {trip} ps, of {least}");
    }
}

/// A lock that n CPUs want gives each its turn, and a turn costs a transfer.
#[test]
fn a_lock_serves_one_cpu_at_a_time_in_turn() {
    for cpus in [2, 8] {
        let shared = Mutex::new(0u64);
        let turns = RefCell::new(vec![0u64; cpus]);
        let works = on_each(cpus, |cpu| {
            for _ in 0..100 {
                let mut count = shared.lock().unwrap();
                *count += 1;
                turns.borrow_mut()[cpu] = now_ps();
            }
        });
        let done = run(&setup(cpus), works);
        let end = *turns.borrow().iter().max().unwrap();
        assert_eq!(*shared.lock().unwrap(), 100 * cpus as u64);
        let turn = end / (100 * cpus as u64);
        let near = Costs::default().transfer_ps[0];
        assert!((near..3 * near).contains(&turn), "{cpus} CPUs: {turn} ps a turn");
        let waited: u64 = done.waited_ps.iter().sum();
        assert!(waited > end * (cpus as u64 - 1) * 3 / 4, "{cpus} CPUs waited {waited} ps");
        assert!(done.fights[0].site.file().ends_with("tests.rs"), "the caller of `lock`");
    }
}

/// Two CPUs that try again get a lock in runs of a few: the one that waits sees it free sometimes
/// when it looks. While it is held for long and free only for a moment, it never does.
#[test]
fn cpus_that_try_again_share_a_lock_unless_it_is_hardly_free() {
    let run_length = |inside_ps, outside_ps| {
        const TURNS: u32 = 2000;
        let (held, last, changes) = (AtomicU32::new(0), Cell::new(0), Cell::new(0));
        let works = on_each(2, |cpu| {
            for _ in 0..TURNS {
                while held.load(Ordering::Relaxed) != 0
                    || held.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_err()
                {
                    spin();
                }
                changes.set(changes.get() + u32::from(last.replace(cpu) != cpu));
                work(inside_ps);
                held.store(0, Ordering::Release);
                work(outside_ps);
            }
        });
        run(&Setup { queued_locks: false, ..setup(2) }, works);
        2 * TURNS / changes.get()
    };
    let few = run_length(12_000, 12_000);
    assert!((1..=8).contains(&few), "runs of {few}");
    let many = run_length(100_000, 1000);
    assert_eq!(many, 2000, "each in one run");
}

#[test]
fn programs_pay_for_a_look_at_the_clock_and_kernels_make_none() {
    for (queued_locks, cost) in [(false, Costs::default().clock_ps), (true, 0)] {
        let took = Cell::new(0);
        let works = on_each(1, |_| {
            let before = now_ps();
            took.set(read_clock() - before);
        });
        run(&Setup { queued_locks, ..setup(1) }, works);
        assert_eq!(took.get(), cost);
    }
    assert_eq!(read_clock(), 0, "outside of a machine");
}

#[test]
fn a_seed_gives_one_history() {
    let history = |seed, schedule| {
        #[repr(align(128))]
        struct Words([AtomicU64; 4]);
        let words = Box::new(Words([const { AtomicU64::new(0) }; 4]));
        let words = &words.0;
        let log = RefCell::new(Vec::new());
        let works = on_each(16, |cpu| {
            for step in 0..50 {
                let before = words[(cpu + step) % 4].fetch_add(1, Ordering::AcqRel);
                log.borrow_mut().push((cpu, before));
            }
        });
        run(&Setup { seed, schedule, ..setup(16) }, works);
        log.into_inner()
    };
    let pct = Schedule::Pct { changes: 3, steps: 800 };
    for schedule in [Schedule::Earliest, Schedule::Random { stretch: 3 }, pct] {
        assert!(history(7, schedule) == history(7, schedule), "{schedule:?}");
        assert!(history(7, schedule) != history(8, schedule), "{schedule:?}");
    }
}

#[test]
fn a_fence_aborts_the_sequence_that_it_meets() {
    let (word, flag) = (AtomicU64::new(0), AtomicU64::new(0));
    let outcome = Cell::new(None);
    let owner = Box::new(|| {
        begin_sequence();
        let seen = word.load(Ordering::Relaxed);
        flag.store(1, Ordering::Release);
        // Until the fence has passed, seen from within the sequence.
        while flag.load(Ordering::Acquire) != 2 {
            work(10_000);
        }
        outcome.set(Some(word.commit(seen + 1)));
        begin_sequence();
        assert!(word.commit(5), "the next one is not aborted");
    }) as Work<'_>;
    let drainer = Box::new(|| {
        while flag.load(Ordering::Acquire) != 1 {
            work(10_000);
        }
        fence(0);
        flag.store(2, Ordering::Release);
    }) as Work<'_>;
    let done = run(&setup(2), vec![(0, owner), (1, drainer)]);
    assert_eq!((outcome.get(), done.aborts), (Some(false), 1));
    assert_eq!(word.load(Ordering::Relaxed), 5);
}

#[test]
fn a_visitor_preempts_and_the_owner_goes_on() {
    let word = AtomicU64::new(0);
    let ends = Cell::new((0, 0));
    let owner = Box::new(|| {
        for _ in 0..100_000 {
            word.fetch_add(1, Ordering::Relaxed);
        }
        ends.set((now_ps(), ends.get().1));
    }) as Work<'_>;
    let visitor = Box::new(|| {
        on_cpu(0, || {
            assert_eq!(cpu(), Some(0));
            work(30_000_000);
            word.fetch_add(1, Ordering::Relaxed);
            ends.set((ends.get().0, now_ps()));
        });
        assert_eq!(cpu(), Some(1));
    }) as Work<'_>;
    run(&setup(2), vec![(0, owner), (1, visitor)]);
    let alone = 100_000 * Costs::default().rmw_ps;
    let (owner, visitor) = ends.get();
    assert!(visitor >= 30_000_000 && owner > alone + 30_000_000, "{owner} {visitor}");
    assert_eq!(word.load(Ordering::Relaxed), 100_001);
}

/// A visitor waits for a lock that the owner of its CPU gets first.
#[test]
fn an_owner_that_gets_a_lock_runs_though_a_visitor_waits() {
    let lock = Mutex::new(0);
    let owner = Box::new(|| *lock.lock().unwrap() += 1) as Work<'_>;
    let holder = Box::new(|| {
        let _held = lock.lock().unwrap();
        work(50_000_000);
    }) as Work<'_>;
    let visitor = Box::new(|| {
        sleep_until(10_000_000);
        on_cpu(0, || *lock.lock().unwrap() += 1);
    }) as Work<'_>;
    let setup = Setup { start_apart_ps: 1_000_000, ..setup(3) };
    run(&setup, vec![(1, holder), (0, owner), (2, visitor)]);
    assert_eq!(*lock.lock().unwrap(), 2);
}

/// A visitor is preempted with a lock, and its CPU's owner sleeps until the lock was free.
#[test]
fn a_task_that_sleeps_leaves_its_cpu_to_a_visitor() {
    let (lock, passed) = (Mutex::new(()), Cell::new(false));
    let owner = Box::new(|| {
        work(1_000_000);
        while !passed.get() && now_ps() < 1_000_000_000 {
            sleep_until(now_ps() + 1_000_000);
        }
    }) as Work<'_>;
    let visitor = Box::new(|| {
        on_cpu(0, || {
            let _held = lock.lock().unwrap();
            yield_now();
        });
    }) as Work<'_>;
    let other = Box::new(|| {
        sleep_until(10_000_000);
        drop(lock.lock().unwrap());
        passed.set(now_ps() < 1_000_000_000);
    }) as Work<'_>;
    run(&setup(3), vec![(0, owner), (1, visitor), (2, other)]);
    assert!(passed.get());
}

#[test]
fn disturbances_come_as_often_as_asked_for() {
    let handled = Rc::new(Cell::new(0));
    let count = Rc::clone(&handled);
    let disturbances = Disturbances {
        preemptions_per_s: 1000.0,
        preempted_ps: 1_000_000,
        interrupts_per_s: 10_000.0,
    };
    let handler: Handler = Rc::new(move |_| count.set(count.get() + 1));
    let setup = Setup { disturbances, handler: Some(handler), ..setup(4) };
    let words: Vec<AtomicU64> = (0..64).map(|_| AtomicU64::new(0)).collect();
    let done = run(
        &setup,
        on_each(4, |cpu| {
            while now_ps() < 20_000_000_000 {
                words[16 * cpu].store(1, Ordering::Relaxed);
                work(5_000);
            }
        }),
    );
    // 4 CPUs for 20 ms.
    assert!((600..1000).contains(&handled.get()), "{}", handled.get());
    assert!((650..1100).contains(&done.disturbances), "{}", done.disturbances);
}

#[test]
#[should_panic(expected = "wait for each other")]
fn tasks_that_wait_for_each_other_are_found() {
    run(&setup(1), vec![(0, Box::new(|| wait_at(8)))]);
}

#[test]
fn a_panic_of_a_task_reaches_the_caller_and_the_next_machine_runs() {
    let lock = Mutex::new(());
    let works = on_each(4, |cpu| {
        let _held = lock.lock().unwrap();
        assert!(cpu != 2, "as asked");
    });
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run(&setup(4), works)));
    assert!(result.is_err());
    run(&setup(1), vec![(0, Box::new(|| assert_eq!(cpu(), Some(0))))]);
}
