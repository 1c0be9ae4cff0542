use super::cpus::{Rseq, run_on};
use super::depot::{Depot, Setup};
use super::{Mutant, explore, explore_mutant};
use crate::{Mode, Scope};

fn model(drainers: usize, cycles: usize) -> impl Fn() + Send + Sync + 'static {
    move || {
        let depot = Depot::new(&Setup::default(), Rseq::new(2));
        run_on(0);
        let a = depot.alloc().unwrap();
        let others: Vec<_> = (0..drainers)
            .map(|_| {
                let other = depot.clone();
                loom::thread::spawn(move || {
                    run_on(1);
                    other.allocator.drain(Scope::ALL, Mode::Full);
                })
            })
            .collect();
        let mut a = a;
        for _ in 0..cycles {
            let b = depot.alloc().unwrap();
            depot.free(a);
            a = b;
        }
        depot.free(a);
        others.into_iter().for_each(|thread| thread.join().unwrap());
        depot.finish();
    }
}

fn bound() -> usize {
    std::env::var("B").map(|b| b.parse().unwrap()).unwrap_or(2)
}
#[test]
fn d1c1() {
    explore("d1c1", bound(), model(1, 1));
}
#[test]
fn d2c1() {
    explore("d2c1", bound(), model(2, 1));
}
#[test]
fn d2c2() {
    explore("d2c2", bound(), model(2, 2));
}
#[test]
#[should_panic]
fn mutant() {
    explore_mutant(Mutant::NoFence, bound(), model(1, 1));
}
