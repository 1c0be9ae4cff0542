use std::sync::Arc;

use super::cpus::{Rseq, run_on};
use super::depot::{Depot, Setup};
use super::explore;
use crate::prim::{AtomicBool, Ordering};
use crate::{CpuId, Mode, Order, Pfn, Pressure, Reclaim, Scope, Watermarks};

fn bound() -> usize {
    std::env::var("B").map(|b| b.parse().unwrap()).unwrap_or(2)
}

fn cpus() -> u32 {
    std::env::var("C").map(|b| b.parse().unwrap()).unwrap_or(2)
}
fn spawn(
    cpu: u32,
    depot: &Arc<Depot<Rseq>>,
    body: impl FnOnce(&Depot<Rseq>) + 'static,
) -> loom::thread::JoinHandle<()> {
    let depot = depot.clone();
    loom::thread::spawn(move || {
        run_on(cpu);
        body(&depot);
    })
}

#[test]
fn f0_freed() {
    explore("f0", bound(), || {
        let depot = Depot::new(&Setup { cpus: cpus(), frames: 1, ..Setup::default() }, Rseq::new(2));
        run_on(0);
        let x = depot.alloc().unwrap();
        let done = Arc::new(AtomicBool::new(false));
        let set = done.clone();
        let t = spawn(0, &depot, move |depot| {
            depot.free(x);
            set.store(true, Ordering::Release);
        });
        run_on(cpus() - 1);
        let freed = done.load(Ordering::Acquire);
        assert!(depot.alloc().is_ok() || !freed);
        t.join().unwrap();
        depot.finish();
    });
}

#[test]
fn f1_drainer() {
    explore("f1", bound(), || {
        let depot = Depot::new(&Setup { cpus: cpus(), frames: 2, ..Setup::default() }, Rseq::new(2));
        run_on(0);
        let x = depot.alloc().unwrap();
        depot.free(x);
        let t = spawn(cpus() - 1, &depot, |depot| {
            depot.allocator.drain(Scope::cpu(CpuId::new(0)), Mode::Full);
        });
        run_on(cpus() - 1);
        depot.alloc().expect("nobody holds a frame");
        t.join().unwrap();
        depot.finish();
    });
}

#[test]
fn f2_shelf_pop() {
    explore("f2", bound(), || {
        let depot = Depot::new(&Setup { cpus: cpus(), frames: 5, ..Setup::default() }, Rseq::new(2));
        run_on(0);
        let all: Vec<_> = (0..5).map(|_| depot.alloc().unwrap()).collect();
        all.into_iter().for_each(|x| depot.free(x));
        let _held: Vec<_> = (0..3).map(|_| depot.alloc().unwrap()).collect();
        assert_eq!(depot.allocator.cpu_stats(CpuId::new(0), crate::ZoneId::new(0)).unwrap().shelved_pages, 2);
        let t = spawn(0, &depot, |depot| {
            depot.alloc().expect("two are free");
        });
        run_on(cpus() - 1);
        depot.alloc().expect("two are free");
        t.join().unwrap();
        depot.finish();
    });
}

#[test]
fn f3_refill() {
    explore("f3", bound(), || {
        let depot = Depot::new(&Setup { cpus: cpus(), frames: 2, ..Setup::default() }, Rseq::new(2));
        run_on(0);
        let x = depot.alloc().unwrap();
        let t = spawn(0, &depot, move |depot| {
            depot.free(x);
            depot.alloc().expect("two are free");
        });
        run_on(cpus() - 1);
        depot.alloc().expect("one is free");
        t.join().unwrap();
        depot.finish();
    });
}
