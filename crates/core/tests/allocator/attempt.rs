//! Requests that only try, and single sequences under a guard of the caller:
//!
//! 1. `try_alloc` gets every frame there is, and then fails without a drain, a fence or a callback.
//! 2. `Fronts::pop` gives what the front has, `Fronts::push` takes what it has room for; neither
//!    goes on to the shelf or the store, and no page is lost.
//!    `pop_next` and `push_next` go on to the shelf, by one magazine, and not to the store.
//! 3. `Fronts::pop_many` gives what as many pops would, in their order, by one magazine at most.
//! 4. Both contexts have fronts of their own.
//! 5. A closed gate stops all.
//! 6. `free_as` caches for the mobility that it is told.
//! 7. What sequences in another language do by address is what `pop` and `push` do.
//! 8. `alloc_fast` and `free_fast` are one sequence each: they neither refill nor spill.

use std::mem::MaybeUninit;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use crate::common::rng::Rng;
use crate::common::{Single, metadata, open_zone, range, single};
use pagedepot::cpus::implement::{GATES_AT, POP_STEP, PUSH_STEP};
use pagedepot::cpus::{Context, Environment, FenceError, Guard, Here, PinnedCpus, Processor};
use pagedepot::{
    Allocator, Config, Counts, CpuId, Evacuation, Flags, FrameRange, FreeError, FrontHandle,
    HighPolicy, Mobility, Mode, Order, Pfn, Scope, Watermarks, ZoneConfig, ZoneId,
};

const RANGES: [FrameRange; 1] = [range(512, 4096)];
const CPU: CpuId = CpuId::new(0);

fn with_depot(test: impl FnOnce(&mut Single<'_>)) {
    with_memory(&RANGES, 512, test);
}

/// A depot of this memory, of which a CPU may cache `high` pages.
fn with_memory(ranges: &[FrameRange; 1], high: u64, test: impl FnOnce(&mut Single<'_>)) {
    let zones = [open_zone("Normal", ranges)];
    let config = Config { high: HighPolicy::Fixed(high), ..Config::new(2, &zones) };
    let mut memory = metadata(&config);
    let mut depot = single(&config, &mut memory);
    test(&mut depot);
    depot.drain(Scope::ALL, Mode::Full);
    assert_eq!(depot.validate().unwrap().free_pages, u64::from(ranges[0].frames));
}

fn cached(depot: &Single<'_>) -> u64 {
    depot.cpu_stats(CPU, ZoneId::new(0)).unwrap().cached_pages()
}

#[test]
fn a_request_that_only_tries_gets_all_and_drains_nothing() {
    with_depot(|depot| {
        let mut held: Vec<Pfn> = Vec::new();
        for order in [Order::BASE, Order::new(3).unwrap(), Order::new(7).unwrap()] {
            let pfn = depot.try_alloc(order, Flags::default()).unwrap();
            depot.free(pfn, order).unwrap();
        }
        // What another CPU caches is out of reach: alloc would drain it.
        depot.cpus().0.run_on(1);
        let elsewhere = depot.alloc(Order::BASE, Flags::UNMOVABLE).unwrap();
        depot.cpus().0.run_on(0);
        while let Some(pfn) = depot.try_alloc(Order::BASE, Flags::default()) {
            held.push(pfn);
        }
        let stats = depot.cpu_stats(CpuId::new(1), ZoneId::new(0)).unwrap();
        assert!(stats.cached_pages() > 0 && held.len() + 1 < 4096);
        // `alloc` does drain.
        held.push(depot.alloc(Order::BASE, Flags::default()).unwrap());
        held.into_iter().chain([elsewhere]).for_each(|pfn| depot.free(pfn, Order::BASE).unwrap());
    });
}

#[test]
fn one_that_only_tries_keeps_what_min_protects() {
    let marks = Watermarks { min: 128, low: 256, high: 512 };
    let zones = [ZoneConfig { watermarks: Some(marks), ..open_zone("Normal", &RANGES) }];
    let config = Config::new(1, &zones);
    let mut memory = metadata(&config);
    let depot = single(&config, &mut memory);
    let mut got = 0;
    while depot.try_alloc(Order::BASE, Flags::default()).is_some() {
        got += 1;
    }
    assert_eq!(depot.free_pages(ZoneId::new(0)) + cached(&depot), 4096 - got);
    assert!(depot.free_pages(ZoneId::new(0)) >= 128);
    assert!(depot.try_alloc(Order::BASE, Flags::default().atomic()).is_some());
}

#[test]
fn sequences_of_the_caller_move_what_the_front_has() {
    // Of order 6 a refill brings a magazine only where a quarter of `high` has room for it; of
    // larger blocks it would be more than this CPU may cache.
    let small = [63, 31, 15, 15, 15, 15].map(|rounds| (rounds, 512));
    for (order, (rounds, high)) in (0..).zip(small.into_iter().chain([(15, 8192)])) {
        with_memory(&[range(512, 1 << 18)], high, |depot| {
            let class = Order::new(order).unwrap();
            let front = depot.fronts().find(Context::Task, class, Mobility::Movable).unwrap();
            // SAFETY: one thread, which acts as this CPU; the blocks are its own.
            unsafe {
                assert_eq!(depot.fronts().pop(CPU, front), None, "nothing is cached");
                let first = depot.alloc(class, Flags::default()).unwrap();
                let mut held = vec![first];
                held.extend(std::iter::from_fn(|| depot.fronts().pop(CPU, front)));
                assert_eq!(
                    held.len(),
                    rounds + 1,
                    "{class:?}: a magazine, and the one that was asked for"
                );
                let pushed =
                    held.iter().filter(|pfn| depot.fronts().push(CPU, front, **pfn)).count();
                assert_eq!(pushed, rounds, "{class:?}");
                for pfn in held.split_off(pushed) {
                    depot.free_as(pfn, class, Mobility::Movable).unwrap();
                }
            }
        });
    }
}

/// Blocks in and out: by sequences, by exchanges where those find nothing, else by the slow path.
struct Exchanging<'d, 'm> {
    depot: &'d Single<'m>,
    front: FrontHandle,
    class: Order,
    exchanges: usize,
    slow: usize,
}

impl Exchanging<'_, '_> {
    fn counts(&self) -> Counts {
        self.depot.cpu_stats(CPU, ZoneId::new(0)).unwrap().counts
    }

    /// Pages that refills and spills have moved.
    fn moved(&self) -> (u64, u64) {
        let counts = self.counts();
        (counts.refilled_pages, counts.spilled_pages)
    }

    fn pop_next(&self) -> Option<Pfn> {
        let for_pops = FrontHandle::for_pops((self.front.to_bits() >> 16) as u16);
        let before = self.moved();
        // SAFETY: one thread, which acts as this CPU.
        let popped = unsafe { self.depot.fronts().pop_next(CPU, for_pops) };
        assert_eq!(self.moved(), before, "an exchange does not reach the store");
        popped
    }

    fn push_next(&self, pfn: Pfn) -> bool {
        let before = self.moved();
        // SAFETY: as above; the block is its own.
        let pushed = unsafe { self.depot.fronts().push_next(CPU, self.front, pfn) };
        assert_eq!(self.moved(), before, "an exchange does not reach the store");
        pushed
    }

    fn alloc(&mut self) -> Pfn {
        // SAFETY: one thread, which acts as this CPU.
        if let Some(pfn) = unsafe { self.depot.fronts().pop(CPU, self.front) } {
            return pfn;
        }
        if let Some(pfn) = self.pop_next() {
            self.exchanges += 1;
            return pfn;
        }
        self.slow += 1;
        self.depot.try_alloc(self.class, Flags::default()).unwrap()
    }

    fn free(&mut self, pfn: Pfn) {
        // SAFETY: one thread, which acts as this CPU; the block is its own.
        if unsafe { self.depot.fronts().push(CPU, self.front, pfn) } {
            return;
        }
        if self.push_next(pfn) {
            self.exchanges += 1;
        } else {
            self.slow += 1;
            self.depot.free_as(pfn, self.class, Mobility::Movable).unwrap();
        }
    }

    /// Allocates so many blocks and frees them; how many exchanges and slow paths that took.
    fn turn(&mut self, blocks: usize) -> (usize, usize) {
        let before = (self.exchanges, self.slow);
        let held: Vec<Pfn> = (0..blocks).map(|_| self.alloc()).collect();
        held.into_iter().for_each(|pfn| self.free(pfn));
        (self.exchanges - before.0, self.slow - before.1)
    }
}

fn exchanging<'d, 'm>(depot: &'d Single<'m>, order: u32, context: Context) -> Exchanging<'d, 'm> {
    let class = Order::new(order).unwrap();
    let front = depot.fronts().find(context, class, Mobility::Movable).unwrap();
    Exchanging { depot, front, class, exchanges: 0, slow: 0 }
}

/// The blocks of a CPU that caches all of 4096 pages.
fn in_steady_turns(config: &Config<'_>, order: u32, steps: bool) {
    let mut memory = metadata(config);
    let depot = single(config, &mut memory);
    let mut blocks = exchanging(&depot, order, Context::Task);
    let count = 4096 >> order;
    blocks.turn(count);
    let before = blocks.counts();
    let (exchanges, slow) = blocks.turn(count);
    // The front's two magazines are changed for others this often.
    let rounds = if order == 0 { 63 } else { 15 };
    assert!(exchanges >= 2 * (count / rounds - 2), "{exchanges} of order {order}");
    // Where pageblocks evacuate, a pop steps the hand, too, once in 1,023 operations.
    let steps_max = if steps { 2 * count / 1023 + 1 } else { 0 };
    assert!(slow <= steps_max, "{slow} of order {order}");
    assert!(slow > 0 || !steps || order > 0);
    let after = blocks.counts();
    assert_eq!((after.refills, after.spills), (before.refills, before.spills));
    assert!(after.shelf_hits > before.shelf_hits);
}

#[test]
fn magazines_are_exchanged_without_the_store() {
    let ranges = [range(512, 1 << 18)];
    let zones = [open_zone("Normal", &ranges)];
    let high = HighPolicy::Fixed(8192);
    for evacuation in [Evacuation::Off, Evacuation::default()] {
        let config = Config { high, evacuation, ..Config::new(2, &zones) };
        for order in [0, 4] {
            in_steady_turns(&config, order, evacuation != Evacuation::Off);
        }
    }
}

#[test]
fn an_exchange_refuses_what_the_slow_path_decides() {
    with_depot(|depot| {
        let mut blocks = exchanging(depot, 0, Context::Task);
        assert_eq!(blocks.pop_next(), None, "the CPU has nothing");
        // 512 pages, the limit, are eight magazines: what goes beyond is spilled by the slow path.
        let held: Vec<Pfn> = (0..2048).map(|_| blocks.alloc()).collect();
        (blocks.exchanges, blocks.slow) = (0, 0);
        for pfn in held {
            blocks.free(pfn);
            assert!(cached(depot) <= 512);
        }
        assert!((6..16).contains(&blocks.exchanges), "{}", blocks.exchanges);
        assert!(blocks.slow > 16, "{}", blocks.slow);
    });
}

#[test]
fn no_exchange_passes_a_gate_that_was_asked() {
    with_depot(|depot| {
        let mut blocks = exchanging(depot, 0, Context::Task);
        blocks.turn(512);
        assert!(blocks.pop_next().map(|pfn| blocks.free(pfn)).is_some(), "the gate is open");
        depot.cpus().0.run_on(1);
        depot.drain(Scope::cpu(CPU), Mode::Handover);
        depot.cpus().0.run_on(0);
        assert!(cached(depot) > 0, "the fronts are still full");
        assert_eq!(blocks.pop_next(), None);
        // The slow path hands over, and opens the gate.
        let pfn = depot.try_alloc(Order::BASE, Flags::default()).unwrap();
        blocks.free(pfn);
        assert!(blocks.pop_next().map(|pfn| blocks.free(pfn)).is_some());
    });
}

#[test]
fn a_full_shelf_takes_no_more_by_exchanges() {
    with_memory(&[range(512, 1 << 18)], 1 << 17, |depot| {
        let mut blocks = exchanging(depot, 0, Context::Task);
        let held: Vec<Pfn> = (0..63 * 1040).map(|_| blocks.alloc()).collect();
        (blocks.exchanges, blocks.slow) = (0, 0);
        held.into_iter().for_each(|pfn| blocks.free(pfn));
        let stats = depot.cpu_stats(CPU, ZoneId::new(0)).unwrap();
        assert_eq!(stats.shelved_pages, 63 * 1023);
        assert!(stats.counts.spills > 0, "the slow path spills");
        assert!(blocks.exchanges > 1000, "{}", blocks.exchanges);
    });
}

/// A CPU whose handler comes while a task asks for the time.
#[derive(Default)]
struct Interrupted {
    handler: Mutex<Option<Box<dyn FnOnce() + Send>>>,
    in_handler: AtomicBool,
}

struct InterruptedGuard(Here);

// SAFETY: there is one thread, and the handler ends before the task goes on.
unsafe impl Guard for InterruptedGuard {
    fn here(&self) -> Here {
        self.0
    }
}

// SAFETY: as above, so no guard exists while it fences.
unsafe impl Processor for Interrupted {
    type Guard = InterruptedGuard;

    fn pin(&self) -> Option<InterruptedGuard> {
        let context = match self.in_handler.load(Ordering::Relaxed) {
            true => Context::Interrupt,
            false => Context::Task,
        };
        Some(InterruptedGuard(Here { cpu: CPU, context }))
    }

    fn fence(&self, _cpu: CpuId) -> Result<(), FenceError> {
        Ok(())
    }
}

impl Environment for Interrupted {
    fn now_ms(&self) -> u64 {
        let handler = self.handler.lock().unwrap().take();
        if let Some(handler) = handler {
            self.in_handler.store(true, Ordering::Relaxed);
            handler();
            self.in_handler.store(false, Ordering::Relaxed);
        }
        0
    }
}

#[test]
fn a_shelf_that_a_handler_fills_meanwhile_loses_nothing() {
    const FRAMES: u32 = 1 << 18;
    let ranges = [range(512, FRAMES)];
    let zones = [open_zone("Normal", &ranges)];
    let config = Config { high: HighPolicy::Fixed(1 << 17), ..Config::new(1, &zones) };
    type Depot = Allocator<'static, PinnedCpus<Interrupted>>;
    let memory = vec![MaybeUninit::uninit(); Depot::metadata_bytes(&config).unwrap()].leak();
    let made = Allocator::new(&config, memory, PinnedCpus(Interrupted::default())).unwrap();
    let depot: &'static Depot = Box::leak(Box::new(made));
    let front = depot.fronts().find(Context::Task, Order::BASE, Mobility::Movable).unwrap();
    let alloc = || depot.alloc(Order::BASE, Flags::default()).unwrap();
    let handlers: Vec<Pfn> = (0..63 * 4).map(|_| alloc()).collect();
    let mut held: Vec<Pfn> = (0..63 * 1040).map(|_| alloc()).collect();
    let shelved = || depot.cpu_stats(CPU, ZoneId::new(0)).unwrap().shelved_pages;
    while let Some(pfn) = held.pop() {
        // SAFETY: one thread, which acts as this CPU; the blocks are its own.
        if unsafe { depot.fronts().push(CPU, front, pfn) } {
            continue;
        }
        let is_last = shelved() == 63 * 1022;
        if is_last {
            let frees = handlers.clone();
            let handler = move || {
                frees.into_iter().for_each(|pfn| depot.free(pfn, Order::BASE).unwrap());
                assert_eq!(shelved(), 63 * 1023, "the handler has filled the shelf");
            };
            *depot.cpus().0.handler.lock().unwrap() = Some(Box::new(handler));
        }
        // SAFETY: as above.
        let pushed = unsafe { depot.fronts().push_next(CPU, front, pfn) };
        if is_last {
            assert!(pushed && depot.cpus().0.handler.lock().unwrap().is_none());
            break;
        }
        if !pushed {
            depot.free_as(pfn, Order::BASE, Mobility::Movable).unwrap();
        }
    }
    let held_pages = held.len() as u64;
    assert_eq!(depot.validate_at_rest().unwrap().held_pages(), held_pages);
    // The magazine that found no place on the shelf is there for a drain that waits for no one.
    assert_eq!(depot.drain(Scope::ALL, Mode::Quiet).taken_pages, 63 * (1023 + 1));
    held.into_iter().for_each(|pfn| depot.free(pfn, Order::BASE).unwrap());
    depot.drain(Scope::ALL, Mode::Full);
    assert_eq!(depot.validate_at_rest().unwrap().free_pages, u64::from(FRAMES));
}

#[test]
fn once_a_step_of_the_clock_the_slow_path_runs() {
    with_memory(&[range(512, 1 << 16)], 8192, |depot| {
        let mut blocks = exchanging(depot, 0, Context::Task);
        blocks.turn(4096);
        let held: Vec<Pfn> = (0..2048).map(|_| blocks.alloc()).collect();
        for (step, chunk) in held.chunks(512).enumerate() {
            depot.cpus().0.set_now_ms(1 + step as u64);
            (blocks.exchanges, blocks.slow) = (0, 0);
            chunk.iter().for_each(|&pfn| blocks.free(pfn));
            assert_eq!(blocks.slow, 1, "then it keeps the clock");
            assert!(blocks.exchanges >= 6, "{}", blocks.exchanges);
        }
    });
}

#[test]
fn cpus_that_only_free_small_blocks_do_so_by_the_slow_path() {
    with_memory(&[range(512, 1 << 16)], 8192, |depot| {
        let mut blocks = exchanging(depot, 1, Context::Task);
        let held: Vec<Pfn> = (0..31 * 8).map(|_| blocks.alloc()).collect();
        blocks.exchanges = 0;
        held.into_iter().for_each(|pfn| blocks.free(pfn));
        // The front's two magazines, and no more.
        assert!(blocks.exchanges <= 1, "{}", blocks.exchanges);
    });
}

#[test]
fn handlers_exchange_with_the_shelf_of_their_cpu() {
    with_memory(&[range(512, 1 << 16)], 8192, |depot| {
        // Too few operations to move the hand, which would be the slow path's.
        exchanging(depot, 0, Context::Task).turn(400);
        let shelved = || depot.cpu_stats(CPU, ZoneId::new(0)).unwrap().shelved_pages;
        let before = shelved();
        let mut handler = exchanging(depot, 0, Context::Interrupt);
        let pfn = handler.alloc();
        assert_eq!((handler.exchanges, handler.slow), (1, 0));
        assert_eq!(shelved(), before - 63);
        handler.free(pfn);
    });
}

#[test]
fn more_sequences_than_there_is_credit_for() {
    with_depot(|depot| {
        let front = depot.fronts().find(Context::Task, Order::BASE, Mobility::Movable).unwrap();
        let for_pops = FrontHandle::for_pops((front.to_bits() >> 16) as u16);
        let mut slow = 0;
        for _ in 0..10_000 {
            // SAFETY: one thread, which acts as this CPU; the blocks are its own.
            unsafe {
                let popped = depot.fronts().pop(CPU, for_pops);
                let pfn = popped.or_else(|| depot.try_alloc(Order::BASE, Flags::default()));
                slow += usize::from(popped.is_none());
                if !depot.fronts().push(CPU, front, pfn.unwrap()) {
                    slow += 1;
                    depot.free_as(pfn.unwrap(), Order::BASE, Mobility::Movable).unwrap();
                }
            }
        }
        assert!((2..100).contains(&slow), "{slow}");
    });
}

/// Pops into room for `room` blocks.
fn pop_many(depot: &Single<'_>, front: FrontHandle, room: usize) -> Vec<Pfn> {
    let mut out = vec![MaybeUninit::uninit(); room];
    // SAFETY: one thread, which acts as this CPU.
    unsafe { depot.fronts().pop_many(CPU, front, &mut out) }.to_vec()
}

#[test]
fn many_are_popped_as_one_by_one() {
    [0, 1, 2, 62, 63, 64, 200].into_iter().for_each(many_are_popped_into);
}

fn many_are_popped_into(room: usize) {
    with_depot(|depot| {
        let front = depot.fronts().find(Context::Task, Order::BASE, Mobility::Movable).unwrap();
        let free = |pfn| depot.free(pfn, Order::BASE).unwrap();
        assert!(pop_many(depot, front, 63).is_empty(), "nothing is cached");
        let first = depot.alloc(Order::BASE, Flags::default()).unwrap();
        // SAFETY: one thread, which acts as this CPU; the blocks are its own.
        let one_by_one: Vec<Pfn> =
            std::iter::from_fn(|| unsafe { depot.fronts().pop(CPU, front) }).collect();
        assert_eq!(one_by_one.len(), 63);
        for &pfn in one_by_one.iter().rev() {
            // SAFETY: as above.
            assert!(unsafe { depot.fronts().push(CPU, front, pfn) });
        }
        let many = pop_many(depot, front, room);
        assert_eq!(many, one_by_one[..room.min(63)], "room for {room}");
        // SAFETY: as above.
        let rest = std::iter::from_fn(|| unsafe { depot.fronts().pop(CPU, front) });
        assert!(rest.eq(one_by_one[many.len()..].iter().copied()), "room for {room}");
        one_by_one.into_iter().chain([first]).for_each(free);
    });
}

#[test]
fn many_are_popped_with_credit_for_each() {
    with_depot(|depot| {
        let front = depot.fronts().find(Context::Task, Order::BASE, Mobility::Movable).unwrap();
        let hits = || depot.cpu_stats(CPU, ZoneId::new(0)).unwrap().counts.hits;
        let (before, mut popped, mut slow) = (hits(), 0, 0);
        while popped < 10_000 {
            let mut held = pop_many(depot, front, 32);
            popped += held.len() as u64;
            if held.len() < 32 {
                slow += 1;
                held.extend(depot.try_alloc(Order::BASE, Flags::default()));
            }
            held.into_iter().for_each(|pfn| depot.free(pfn, Order::BASE).unwrap());
        }
        // Each pop and each push counts as one.
        let counted = hits() - before;
        assert!((2 * popped - 64..=2 * (popped + slow)).contains(&counted), "{counted}");
    });
}

#[test]
fn contexts_have_fronts_of_their_own() {
    with_depot(|depot| {
        let of = |context| depot.fronts().find(context, Order::BASE, Mobility::Unmovable).unwrap();
        let (task, handler) = (of(Context::Task), of(Context::Interrupt));
        assert_ne!(task, handler);
        let pfn = depot.alloc(Order::BASE, Flags::UNMOVABLE).unwrap();
        // SAFETY: one thread, which acts as this CPU; the block is its own.
        unsafe {
            assert_eq!(depot.fronts().pop(CPU, handler), None, "the task's are out of reach");
            assert!(!depot.fronts().push(CPU, handler, pfn), "no magazine is there");
            let other = depot.fronts().pop(CPU, task).unwrap();
            assert!(depot.fronts().push(CPU, task, pfn));
            depot.free_as(other, Order::BASE, Mobility::Unmovable).unwrap();
        }
    });
}

#[test]
fn a_closed_gate_stops_all() {
    with_depot(|depot| {
        let front = depot.fronts().find(Context::Task, Order::BASE, Mobility::Movable).unwrap();
        let pfn = depot.alloc(Order::BASE, Flags::default()).unwrap();
        depot.cpu_caches().disable();
        // SAFETY: one thread, which acts as this CPU; the block is its own.
        unsafe {
            assert_eq!(depot.fronts().pop(CPU, front), None);
            assert!(!depot.fronts().push(CPU, front, pfn));
        }
        assert!(pop_many(depot, front, 63).is_empty());
        depot.free_as(pfn, Order::BASE, Mobility::Movable).unwrap();
        assert_eq!(cached(depot), 0);
        depot.cpu_caches().enable();
    });
}

#[test]
fn there_is_no_front_where_an_allocation_is_more_than_a_pop() {
    with_depot(|depot| {
        let find = |order| depot.fronts().find(Context::Task, order, Mobility::Movable);
        assert!(Order::all().all(|order| find(order).is_some()));
    });
    let zones = [open_zone("Normal", &RANGES)];
    let config = Config { checked: true, ..Config::new(1, &zones) };
    let mut memory = metadata(&config);
    let depot = single(&config, &mut memory);
    assert_eq!(depot.fronts().find(Context::Task, Order::BASE, Mobility::Movable), None);
}

#[test]
fn a_block_is_cached_for_the_mobility_that_is_said() {
    with_depot(|depot| {
        let pfn = depot.alloc(Order::BASE, Flags::MOVABLE).unwrap();
        depot.drain(Scope::ALL, Mode::Full);
        depot.free_as(pfn, Order::BASE, Mobility::Reclaimable).unwrap();
        let front = |mobility| depot.fronts().find(Context::Task, Order::BASE, mobility).unwrap();
        // SAFETY: one thread, which acts as this CPU.
        let popped = unsafe {
            assert_eq!(depot.fronts().pop(CPU, front(Mobility::Movable)), None);
            depot.fronts().pop(CPU, front(Mobility::Reclaimable))
        };
        assert_eq!(popped, Some(pfn));
        depot.free_as(pfn, Order::BASE, Mobility::Movable).unwrap();
        let beyond = depot.free_as(Pfn::new(1 << 30), Order::BASE, Mobility::Movable);
        assert_eq!(beyond, Err(FreeError::OutOfRange));
        let odd = depot.free_as(Pfn::new(513), Order::new(1).unwrap(), Mobility::Movable);
        assert_eq!(odd, Err(FreeError::Misaligned));
    });
}

/// The word of a front, as [sequences in another language](pagedepot::cpus::implement) find it.
/// Orderings, here and below, are those of `cpus/sequence.rs`.
fn word_of<'d>(depot: &'d Single<'_>, front: u32) -> Option<(*mut u8, &'d AtomicU64)> {
    let base = depot.fronts_at();
    // SAFETY: a gate for each CPU, and a word of the CPU behind an open one.
    unsafe {
        let gate = &*base.add(GATES_AT).cast::<AtomicU64>().add(CPU.index());
        let block = gate.load(Ordering::Acquire) as i64;
        (block > 0)
            .then(|| &*base.add(block as usize + (front >> 16) as usize).cast::<AtomicU64>())
            .map(|word| (base, word))
    }
}

/// The slot that a front word shows, less so many bytes.
fn slot_of<'d>(base: *mut u8, word: u64, less: u32) -> &'d AtomicU32 {
    // SAFETY: the word has a magazine, and this is a slot of it.
    unsafe { &*base.add((word as u32 - less) as usize).cast::<AtomicU32>() }
}

fn pop_elsewhere(depot: &Single<'_>, front: u32) -> Option<Pfn> {
    let (base, word) = word_of(depot, front)?;
    let now = word.load(Ordering::Relaxed);
    let next = now.wrapping_add(POP_STEP);
    if now as u8 == 0 || next >= now {
        return None;
    }
    let pfn = slot_of(base, now, 4).load(Ordering::Relaxed);
    word.store(next, Ordering::Release);
    Some(Pfn::new(pfn))
}

fn push_elsewhere(depot: &Single<'_>, front: u32, pfn: Pfn) -> bool {
    let Some((base, word)) = word_of(depot, front) else { return false };
    let now = word.load(Ordering::Relaxed);
    let next = now.wrapping_add(PUSH_STEP);
    if now as u8 >= front as u8 || next >= now {
        return false;
    }
    slot_of(base, now, 0).store(pfn.get(), Ordering::Relaxed);
    word.store(next, Ordering::Release);
    true
}

#[test]
fn sequences_in_another_language_do_what_these_do() {
    with_depot(|depot| {
        let front = depot.fronts().find(Context::Task, Order::BASE, Mobility::Movable).unwrap();
        let bits = front.to_bits();
        assert_eq!(pop_elsewhere(depot, bits), None, "nothing is cached");
        let mut random = Rng::new(1);
        let (mut held, mut slow) = (Vec::new(), 0);
        for _ in 0..20_000 {
            let (elsewhere, allocates) = (random.one_in(2), random.one_in(2));
            if allocates {
                let popped = match elsewhere {
                    true => pop_elsewhere(depot, bits),
                    // SAFETY: one thread, which acts as this CPU.
                    false => unsafe { depot.fronts().pop(CPU, front) },
                };
                slow += usize::from(popped.is_none());
                held.extend(popped.or_else(|| depot.try_alloc(Order::BASE, Flags::MOVABLE)));
            } else if let Some(pfn) = held.pop() {
                let pushed = match elsewhere {
                    true => push_elsewhere(depot, bits, pfn),
                    // SAFETY: as above; the block is its own.
                    false => unsafe { depot.fronts().push(CPU, front, pfn) },
                };
                slow += usize::from(!pushed);
                if !pushed {
                    depot.free_as(pfn, Order::BASE, Mobility::Movable).unwrap();
                }
            }
        }
        assert!((20..2000).contains(&slow), "{slow}");
        depot.cpu_caches().disable();
        assert_eq!(pop_elsewhere(depot, bits), None, "the gate is closed");
        let last = held.pop().unwrap();
        assert!(!push_elsewhere(depot, bits, last), "the gate is closed");
        depot.cpu_caches().enable();
        held.push(last);
        held.into_iter().for_each(|pfn| depot.free(pfn, Order::BASE).unwrap());
    });
}

#[test]
fn handles_survive_as_integers() {
    with_depot(|depot| {
        let front =
            depot.fronts().find(Context::Interrupt, Order::BASE, Mobility::Movable).unwrap();
        assert_eq!(FrontHandle::from_bits(front.to_bits()), front);
    });
}

#[test]
fn fast_paths_move_no_magazine() {
    with_depot(|depot| {
        assert_eq!(depot.alloc_fast(Order::BASE, Flags::MOVABLE), None, "nothing is cached yet");
        let pfn = depot.alloc(Order::BASE, Flags::MOVABLE).unwrap();
        let in_front = cached(depot);
        let mut held: Vec<Pfn> =
            std::iter::from_fn(|| depot.alloc_fast(Order::BASE, Flags::MOVABLE)).collect();
        // What the refill brought, of which `alloc` has taken one.
        assert!((1..=in_front).contains(&(held.len() as u64)), "{}", held.len());
        assert_eq!(depot.alloc_fast(Order::BASE, Flags::MOVABLE.zeroed()), None);
        assert_eq!(depot.alloc_fast(Order::MAX, Flags::MOVABLE), None, "another front");
        held.push(pfn);
        let in_caches = cached(depot);
        let pushed = held.iter().take_while(|&&pfn| depot.free_fast(pfn, Order::BASE)).count();
        assert!(pushed > 0);
        assert_eq!(cached(depot), in_caches + pushed as u64);
        for &pfn in &held[pushed..] {
            depot.free(pfn, Order::BASE).unwrap();
        }
    });
}
