//! Every design with real owners. Threads pinned to their CPUs allocate and free, also each other's
//! blocks, while other threads drain. Each frame that is held carries its owner's mark, so the test
//! finds a frame handed out twice at once, and a lost frame at the end.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use crate::common::{Entry, Rng, allowed_cpus, over_all_designs, pin, task};
use pagedepot::cpus::Here;
use pagedepot::{CacheLimits, CpuId, Mobility, Mode, Order, Pfn, ZoneId};
use pagedepot_designs::{Counts, PageCache, Scope, Setup};
use pagedepot_rseq::membarrier;

const FRAMES: u32 = 1 << 14;
const STEPS: u32 = 40_000;

/// The state that all threads share.
struct Ground<D> {
    design: D,
    /// The holder of each frame; 0: none.
    marks: Vec<AtomicU32>,
    /// Blocks that other threads are to free.
    passed: Mutex<Vec<(Pfn, Order)>>,
    done: AtomicBool,
}

impl<D: PageCache> Ground<D> {
    fn new(design: D) -> Self {
        let marks = (0..FRAMES).map(|_| AtomicU32::new(0)).collect();
        Ground { design, marks, passed: Mutex::new(Vec::new()), done: AtomicBool::new(false) }
    }

    fn mark(&self, pfn: Pfn, order: Order, from: u32, to: u32) {
        for at in 0..order.frames() {
            let before = self.marks[pfn.add(at).index()].swap(to, Ordering::Relaxed);
            assert_eq!(before, from, "frame {} of order {order}", pfn.add(at));
        }
    }

    fn owner(&self, me: u32, cpu: u32) {
        pin(cpu);
        let (here, mut rng) = (task(cpu), Rng(u64::from(me)));
        let mut held = Vec::new();
        for step in 0..STEPS {
            match rng.below(16) {
                0..7 => held.extend(self.take(here, me, &mut rng)),
                7..13 if !held.is_empty() => {
                    let at = rng.below(held.len() as u64) as usize;
                    self.give(here, me, held.swap_remove(at));
                }
                13 => self.pass(here, me, &mut held),
                14 => self.give_many(here, me, &mut held, rng.below(64) as usize),
                _ if step % 64 == 0 => self.design.tick(here),
                _ => {}
            }
        }
        self.give_many(here, me, &mut held, usize::MAX);
        self.design.idle(here);
    }

    fn take(&self, here: Here, me: u32, rng: &mut Rng) -> Option<(Pfn, Order)> {
        let order = match rng.below(32) {
            0 => Order::PAGEBLOCK,
            n @ 1..8 => Order::new(n as u32 % 4).unwrap(),
            _ => Order::BASE,
        };
        let mobility = Mobility::ALL[rng.below(3) as usize];
        let pfn = self.design.alloc(here, order, mobility)?;
        self.mark(pfn, order, 0, me);
        Some((pfn, order))
    }

    fn give(&self, here: Here, me: u32, (pfn, order): (Pfn, Order)) {
        self.mark(pfn, order, me, 0);
        self.design.free(here, pfn, order);
    }

    fn give_many(&self, here: Here, me: u32, held: &mut Vec<(Pfn, Order)>, blocks: usize) {
        let batch = held.split_off(held.len().saturating_sub(blocks));
        batch.iter().for_each(|&(pfn, order)| self.mark(pfn, order, me, 0));
        self.design.free_many(here, &batch);
    }

    /// Passes half of the held blocks to other threads, and frees what other threads passed.
    fn pass(&self, here: Here, me: u32, held: &mut Vec<(Pfn, Order)>) {
        let mine = held.split_off(held.len() / 2);
        mine.iter().for_each(|&(pfn, order)| self.mark(pfn, order, me, u32::MAX));
        let theirs = std::mem::replace(&mut *self.passed.lock().unwrap(), mine);
        for (pfn, order) in theirs {
            self.mark(pfn, order, u32::MAX, 0);
            self.design.free(here, pfn, order);
        }
    }

    fn drainer(&self, cpus: &[u32]) {
        for round in 0.. {
            if self.done.load(Ordering::Relaxed) {
                break;
            }
            let cpu = Some(CpuId::new(cpus[round % cpus.len()]));
            let scope = match round % 4 {
                0 => Scope::ALL,
                1 => Scope { cpu, zone: None },
                2 => Scope::zone(ZoneId::new(0)),
                _ => Scope { cpu, zone: Some(ZoneId::new(0)) },
            };
            let mode = if round % 3 == 0 { Mode::Full } else { Mode::Quiet };
            self.design.drain(scope, mode);
            thread::sleep(Duration::from_micros(300));
        }
    }

    /// Frees the rest, drains until nothing is left, and counts all frames.
    fn settle(mut self, cpus: &[u32]) -> Counts {
        for (pfn, order) in self.passed.into_inner().unwrap() {
            pin(cpus[0]);
            self.design.free(task(cpus[0]), pfn, order);
        }
        for _ in 0..2 {
            self.design.drain(Scope::ALL, Mode::Full);
            for &cpu in cpus {
                pin(cpu);
                self.design.idle(task(cpu));
            }
        }
        self.design.drain(Scope::ALL, Mode::Full);
        let census = self.design.validate().unwrap();
        assert_eq!((census.held_pages(), census.free_pages), (0, u64::from(FRAMES)));
        self.design.counts()
    }
}

fn setup(cpus: &[u32]) -> Setup {
    let mut setup = Setup::single(cpus.iter().max().unwrap() + 1, FRAMES);
    setup.zones[0].limits = Some(CacheLimits { batch: 15, high_min: 60, high_max: 600 });
    setup
}

/// Runs `owners` threads on each CPU, and a drainer.
fn run<D: PageCache + Send + 'static>(
    make: fn(&Setup, Entry) -> D,
    entry: Entry,
    owners: u32,
) -> Counts {
    let cpus = allowed_cpus();
    let ground = Ground::new(make(&setup(&cpus), entry));
    thread::scope(|scope| {
        let drainers =
            [scope.spawn(|| ground.drainer(&cpus)), scope.spawn(|| ground.drainer(&cpus))];
        let owners: Vec<_> = (0..owners)
            .flat_map(|set| cpus.iter().map(move |&cpu| (set, cpu)))
            .map(|(set, cpu)| {
                let ground = &ground;
                scope.spawn(move || ground.owner(1 + cpu * 16 + set, cpu))
            })
            .collect();
        // All threads are joined before a panic is resumed, so that drainers end too.
        let owners: Vec<_> = owners.into_iter().map(|owner| owner.join()).collect();
        ground.done.store(true, Ordering::Relaxed);
        drainers.into_iter().for_each(|drainer| drainer.join().unwrap());
        owners.into_iter().for_each(|owner| owner.unwrap());
    });
    // `settle` pins its thread to one CPU after the other, so it gets a thread of its own.
    thread::spawn(move || ground.settle(&cpus)).join().unwrap()
}

/// Whether drains of this design may interrupt a CPU.
fn may_interrupt(name: &str) -> bool {
    matches!(
        name,
        "local_owner" | "local_helper" | "nohz_local" | "qpw_local" | "qpw_mixed" | "rcu_membarrier"
    )
        // Fences, where the kernel has no grace periods for programs.
        || name == "rcu_blocking" && membarrier::wait_for_grace_period().is_err()
}

fn holds_while_others_drain<D: PageCache + Send + 'static>(
    name: &str,
    make: fn(&Setup, Entry) -> D,
) {
    let counts = run(make, Entry::OnCpu, 1);
    let has_caches = !name.starts_with("zone_lock");
    assert_eq!(counts.drained.pages > 0, has_caches, "{counts:?}");
    // A depot fences the CPUs whose locks are held when a drain looks, which is up to chance here.
    // `common::Watched` checks that it fences those and no others.
    if has_caches && !name.starts_with("depot") {
        assert_eq!(counts.interruptions > 0, may_interrupt(name), "{counts:?}");
    }
    assert_eq!(counts.collected > 0, name.starts_with("rcu"), "{counts:?}");
}

over_all_designs!(holds_while_others_drain);

/// More threads than CPUs: the next one may preempt the owner in the middle of an operation.
fn holds_with_several_threads_per_cpu<D: PageCache + Send + 'static>(
    _: &str,
    make: fn(&Setup, Entry) -> D,
) {
    run(make, Entry::OnCpu, 3);
}

over_all_designs!(holds_with_several_threads_per_cpu);

/// Runs the threads with per-CPU locks, without restartable sequences.
fn holds_with_locked_owners<D: PageCache + Send + 'static>(_: &str, make: fn(&Setup, Entry) -> D) {
    run(make, Entry::Lock, 2);
}

over_all_designs!(holds_with_locked_owners);
