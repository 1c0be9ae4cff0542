//! A drainer that dies, or never returns, blocks no other caller.

mod common;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Barrier;
use std::sync::atomic::{AtomicU32, Ordering};

use common::threads::{Kernel, run_on};
use common::{open_zone, order, range};
use pagedepot::cpus::PinnedCpus;
use pagedepot::{AllocError, Allocator, Config, CpuId, Flags, HighPolicy, Mode, Order, Pfn, Scope};

type Depot<'m> = Allocator<'m, PinnedCpus<Kernel>>;

/// A call that drains.
type Call = fn(&Depot<'_>);

const FRAMES: u32 = 8192;
const CPUS: u32 = 3;
const CPU: CpuId = CpuId::new(1);

fn with_machine(test: impl FnOnce(Depot<'_>)) {
    let ranges = [range(0, FRAMES)];
    let zones = [open_zone("z", &ranges)];
    let config = Config { high: HighPolicy::Fixed(2048), ..Config::new(CPUS, &zones) };
    let mut memory = vec![std::mem::MaybeUninit::uninit(); Depot::metadata_bytes(&config).unwrap()];
    test(Depot::new(&config, &mut memory, PinnedCpus(Kernel::new(CPUS))).unwrap());
}

/// Fills the front of each CPU with some blocks.
fn warm_up(depot: &Depot<'_>) {
    for cpu in 0..CPUS {
        run_on(Some(cpu));
        let held: Vec<Pfn> =
            (0..200).map(|_| depot.alloc(Order::BASE, Flags::default()).unwrap()).collect();
        held.into_iter().for_each(|pfn| depot.free(pfn, Order::BASE).unwrap());
    }
}

fn check_all_free(mut depot: Depot<'_>) {
    let drained = depot.drain(Scope::ALL, Mode::Full);
    assert_eq!((drained.busy_cpus, drained.unreachable_pages), (0, 0));
    assert_eq!(depot.validate().unwrap().free_pages, u64::from(FRAMES));
}

#[test]
fn a_drainer_that_dies_at_the_fence_leaves_the_gate_as_it_was() {
    with_machine(|mut depot| {
        warm_up(&depot);
        let calls: [(&str, Call); 4] = [
            ("drain", |depot| _ = depot.drain(Scope::ALL, Mode::Full)),
            ("drain one", |depot| _ = depot.drain(Scope::cpu(CPU), Mode::Full)),
            ("disable", |depot| _ = depot.cpu_caches().disable()),
            ("retire", |depot| _ = depot.cpu_caches().retire(CPU)),
        ];
        for (name, call) in calls {
            depot
                .cpus()
                .0
                .on_fence(Some(Box::new(|cpu| assert!(cpu != CPU, "this CPU is cursed"))));
            assert!(catch_unwind(AssertUnwindSafe(|| call(&depot))).is_err(), "{name} was to die");
            depot.cpus().0.on_fence(None);
            depot.cpu_caches().enable();
            // No page was lost, and all CPUs go on.
            assert_eq!(depot.validate().unwrap().held_pages(), 0, "{name}");
            assert!((0..CPUS).all(|cpu| depot.cpu_caches().are_enabled(CpuId::new(cpu))), "{name}");
            warm_up(&depot);
        }
        check_all_free(depot);
    });
}

#[test]
fn a_request_whose_drain_dies_leaves_all_in_order() {
    with_machine(|depot| {
        warm_up(&depot);
        depot.cpus().0.on_fence(Some(Box::new(|_| panic!("no fence today"))));
        run_on(Some(0));
        let mut held = Vec::new();
        let died = catch_unwind(AssertUnwindSafe(|| {
            while let Ok(pfn) = depot.alloc(Order::BASE, Flags::default()) {
                held.push(pfn);
            }
        }));
        assert!(died.is_err());
        assert!(depot.alloc(Order::BASE, Flags::default().no_reclaim()).is_err());
        depot.cpus().0.on_fence(None);
        while let Ok(pfn) = depot.alloc(Order::BASE, Flags::default()) {
            held.push(pfn);
        }
        assert_eq!(held.len() as u32, FRAMES);
        held.into_iter().for_each(|pfn| depot.free(pfn, Order::BASE).unwrap());
        check_all_free(depot);
    });
}

/// One thread hangs in the fence of `CPU` while `meanwhile` runs on another.
fn with_stalled_drainer(depot: &Depot<'_>, drain: Call, meanwhile: impl FnOnce()) {
    let (arrived, leave) =
        (&*Box::leak(Box::new(Barrier::new(2))), &*Box::leak(Box::new(Barrier::new(2))));
    let stalls = AtomicU32::new(1);
    depot.cpus().0.on_fence(Some(Box::new(move |cpu| {
        if cpu == CPU && stalls.swap(0, Ordering::Relaxed) > 0 {
            arrived.wait();
            leave.wait();
        }
    })));
    std::thread::scope(|scope| {
        scope.spawn(|| drain(depot));
        arrived.wait();
        meanwhile();
        leave.wait();
    });
    depot.cpus().0.on_fence(None);
}

#[test]
fn a_drainer_that_hangs_keeps_only_what_is_behind_its_gate() {
    with_machine(|depot| {
        warm_up(&depot);
        with_stalled_drainer(
            &depot,
            |depot| _ = depot.drain(Scope::ALL, Mode::Full),
            || {
                // Its owner goes to the store.
                run_on(Some(CPU.get()));
                let pfn = depot.alloc(Order::BASE, Flags::default()).unwrap();
                depot.free(pfn, Order::BASE).unwrap();
                // Other drains return at once, and report the CPU as busy.
                let drained = depot.drain(Scope::ALL, Mode::Full);
                assert_eq!(drained.busy_cpus, 1);
                assert!(drained.unreachable_pages > 0);
                assert_eq!(depot.drain(Scope::cpu(CPU), Mode::Quiet).busy_cpus, 0);
                // Memory runs out. The request returns an error, and does not wait for the drainer.
                run_on(Some(0));
                let mut held = Vec::new();
                while let Ok(pfn) = depot.alloc(Order::BASE, Flags::default()) {
                    held.push(pfn);
                }
                let shortage = depot.shortage().zones().next().unwrap();
                assert_eq!((shortage.free_pages, shortage.cached_pages), (0, 0));
                assert_eq!(held.len() as u64 + shortage.unreachable_pages, u64::from(FRAMES));
                assert_eq!(
                    depot.alloc_contiguous(5, 1, Flags::default()),
                    Err(AllocError::Exhausted)
                );
                assert_eq!(
                    depot.alloc_at(Pfn::new(7), 1, Flags::default()),
                    Err(AllocError::NotAvailable)
                );
                depot.cpu_caches().decay();
                held.into_iter().for_each(|pfn| depot.free(pfn, Order::BASE).unwrap());
                let pfn = depot.alloc(order(7), Flags::default()).unwrap();
                depot.free(pfn, order(7)).unwrap();
            },
        );
        check_all_free(depot);
    });
}

#[test]
fn caches_that_are_enabled_while_a_drainer_is_at_it_are_enabled() {
    with_machine(|depot| {
        warm_up(&depot);
        depot.cpu_caches().disable();
        // A drain would pass by a CPU without magazines.
        with_stalled_drainer(
            &depot,
            |depot| _ = depot.cpu_caches().retire(CPU),
            || {
                depot.cpu_caches().enable();
                assert!(depot.cpu_caches().are_enabled(CpuId::new(0)));
            },
        );
        assert!((0..CPUS).all(|cpu| depot.cpu_caches().are_enabled(CpuId::new(cpu))));
        depot.cpu_caches().disable();
        with_stalled_drainer(
            &depot,
            |depot| _ = depot.cpu_caches().retire(CPU),
            || assert!(depot.cpu_caches().restore(CPU)),
        );
        assert!(depot.cpu_caches().are_enabled(CPU));
        warm_up(&depot);
        depot.cpu_caches().enable();
        check_all_free(depot);
    });
}

#[test]
fn caches_that_are_disabled_while_a_drainer_is_at_it() {
    with_machine(|depot| {
        warm_up(&depot);
        with_stalled_drainer(
            &depot,
            |depot| _ = depot.drain(Scope::ALL, Mode::Full),
            || {
                // The call does not wait for ever, and reports one busy CPU.
                assert_eq!(depot.cpu_caches().disable().busy_cpus, 1);
                assert!(
                    !depot.cpu_caches().are_enabled(CpuId::new(0))
                        && !depot.cpu_caches().are_enabled(CpuId::new(2))
                );
            },
        );
        // That CPU has caches again. A second call disables it, too.
        assert!(depot.cpu_caches().are_enabled(CPU));
        assert_eq!(depot.cpu_caches().disable().busy_cpus, 0);
        assert!((0..CPUS).all(|cpu| !depot.cpu_caches().are_enabled(CpuId::new(cpu))));
        depot.cpu_caches().enable();
        assert!((0..CPUS).all(|cpu| depot.cpu_caches().are_enabled(CpuId::new(cpu))));
        check_all_free(depot);
    });
}
