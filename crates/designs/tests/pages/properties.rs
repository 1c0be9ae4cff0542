//! Every design in lockstep with a naive model, on one thread that acts as any CPU.
//!
//! Properties, after each operation:
//! 1. a block that is handed out is aligned, lies in one zone, and none of its frames is held;
//! 2. free, cached and held pages add up to all pages;
//! 3. a request fails only if the frames that are not held contain no such block, or if a design
//!    whose drains leave pages (to owners, to grace periods) has left some;
//! 4. after freeing everything and draining until nothing is left, all pages are in the store.
//!
//! Every few operations and at the end, `validate`: every frame is in exactly one place.

use crate::common::{self, Entry, interrupt, over_all_designs, task, three_zones};
use pagedepot::cpus::Here;
use pagedepot::{Mobility, Mode, Order, Pfn, ZoneId};
use pagedepot_designs::{PageCache, Scope, Setup};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

const CPUS: u32 = 3;

#[derive(Clone, Debug)]
enum Op {
    Alloc { here: Here, order: Order, mobility: Mobility, blocks: u32 },
    AllocFrom { here: Here, zone: ZoneId, order: Order },
    Free { here: Here, which: prop::sample::Index },
    FreeMany { here: Here, blocks: usize },
    Split { which: prop::sample::Index },
    Drain { scope: Scope, mode: Mode },
    Tick { here: Here },
    Idle { here: Here },
}

fn here() -> impl Strategy<Value = Here> {
    // One CPU beyond those that have caches, and sometimes an interrupt.
    (0..=CPUS, 0..8u8)
        .prop_map(|(cpu, context)| if context == 0 { interrupt(cpu) } else { task(cpu) })
}

fn order() -> impl Strategy<Value = Order> {
    let small = (0u32..4).prop_map(|n| Order::new(n).unwrap());
    let any = (0..Order::COUNT as u32).prop_map(|n| Order::new(n).unwrap());
    prop_oneof![4 => Just(Order::BASE), 4 => small, 1 => any]
}

fn mobility() -> impl Strategy<Value = Mobility> {
    prop::sample::select(Mobility::ALL.as_slice())
}

fn op() -> impl Strategy<Value = Op> {
    let scope =
        (prop::option::of(0..CPUS + 1), prop::option::of(0u32..3)).prop_map(|(cpu, zone)| Scope {
            cpu: cpu.map(pagedepot::CpuId::new),
            zone: zone.map(ZoneId::new),
        });
    let mode = prop_oneof![Just(Mode::Quiet), Just(Mode::Full)];
    let index = any::<prop::sample::Index>;
    prop_oneof![
        12 => (here(), order(), mobility(), 1u32..40).prop_map(|(here, order, mobility, blocks)| {
            Op::Alloc { here, order, mobility, blocks }
        }),
        2 => (here(), prop::sample::select(vec![0u32, 2]), order())
            .prop_map(|(here, zone, order)| Op::AllocFrom { here, zone: ZoneId::new(zone), order }),
        12 => (here(), index()).prop_map(|(here, which)| Op::Free { here, which }),
        4 => (here(), 1usize..120).prop_map(|(here, blocks)| Op::FreeMany { here, blocks }),
        1 => index().prop_map(|which| Op::Split { which }),
        2 => (scope, mode).prop_map(|(scope, mode)| Op::Drain { scope, mode }),
        1 => here().prop_map(|here| Op::Tick { here }),
        1 => here().prop_map(|here| Op::Idle { here }),
    ]
}

/// The model: which frames callers hold.
struct Model {
    held: Vec<(Pfn, Order)>,
    taken: Vec<bool>,
    /// The zone of each frame.
    zone_of: Vec<Option<usize>>,
    held_pages: u64,
    managed_pages: u64,
}

impl Model {
    fn new(setup: &Setup) -> Self {
        let mut zone_of = vec![None; 8192];
        for (zone, config) in setup.zones.iter().enumerate() {
            for range in &config.ranges {
                zone_of[range.start.index()..range.end() as usize].fill(Some(zone));
            }
        }
        let managed_pages = zone_of.iter().flatten().count() as u64;
        Model { held: Vec::new(), taken: vec![false; 8192], zone_of, held_pages: 0, managed_pages }
    }

    fn take(&mut self, pfn: Pfn, order: Order) {
        assert!(pfn.is_aligned(order), "{pfn} for order {order}");
        let frames = pfn.index()..pfn.index() + order.frames() as usize;
        let zone = self.zone_of[pfn.index()];
        assert!(zone.is_some(), "{pfn} is no memory");
        for frame in frames {
            assert_eq!(self.zone_of[frame], zone, "{pfn}, order {order} spans zones");
            assert!(!std::mem::replace(&mut self.taken[frame], true), "frame {frame:#x} twice");
        }
        self.held.push((pfn, order));
        self.held_pages += u64::from(order.frames());
    }

    fn give(&mut self, at: usize) -> (Pfn, Order) {
        let (pfn, order) = self.held.swap_remove(at);
        self.taken[pfn.index()..pfn.index() + order.frames() as usize].fill(false);
        self.held_pages -= u64::from(order.frames());
        (pfn, order)
    }

    /// Whether a block of this order could be made of frames that are not held.
    fn could_have(&self, order: Order) -> bool {
        let frames = order.frames() as usize;
        (0..self.taken.len() / frames).map(|at| at * frames).any(|start| {
            let zone = self.zone_of[start];
            zone.is_some()
                && (start..start + frames)
                    .all(|frame| !self.taken[frame] && self.zone_of[frame] == zone)
        })
    }
}

/// Designs whose drains may leave pages where a request cannot take them.
fn may_leave(name: &str) -> bool {
    matches!(name, "local_owner" | "rcu_qsbr")
}

struct Lockstep<D> {
    name: &'static str,
    design: D,
    model: Model,
}

impl<D: PageCache> Lockstep<D> {
    fn balance(&self) {
        let sum =
            self.design.free_pages() + self.design.cached_pages_total() + self.model.held_pages;
        assert_eq!(sum, self.model.managed_pages, "free + cached + held");
    }

    fn check(&mut self) {
        let census = self.design.validate().unwrap();
        assert_eq!(census.held_pages(), self.model.held_pages);
        assert_eq!(census.cached_pages + census.pending_pages, self.design.cached_pages_total());
        assert_eq!(census.free_pages, self.design.free_pages());
        assert_eq!(census.overhead_pages, 0);
    }

    fn note(&mut self, got: Option<Pfn>, order: Order) -> bool {
        match got {
            Some(pfn) => self.model.take(pfn, order),
            None if may_leave(self.name) && self.design.cached_pages_total() > 0 => {}
            None => {
                assert!(!self.model.could_have(order), "order {order} failed although there is one")
            }
        }
        got.is_some()
    }

    fn step(&mut self, op: &Op) {
        let design = &self.design;
        match *op {
            Op::Alloc { here, order, mobility, blocks } => {
                for _ in 0..blocks >> order.get().min(5) {
                    let got = self.design.alloc(here, order, mobility);
                    if !self.note(got, order) {
                        break;
                    }
                }
            }
            Op::AllocFrom { here, zone, order } => {
                let got = design.alloc_from(here, zone, order, Mobility::Movable);
                self.note(got, order);
            }
            Op::Free { here, which } if !self.model.held.is_empty() => {
                let (pfn, order) = self.model.give(which.index(self.model.held.len()));
                self.design.free(here, pfn, order);
            }
            Op::FreeMany { here, blocks } => {
                let first = self.model.held.len().saturating_sub(blocks);
                let batch: Vec<_> =
                    (first..self.model.held.len()).rev().map(|at| self.model.give(at)).collect();
                self.design.free_many(here, &batch);
            }
            Op::Split { which } if !self.model.held.is_empty() => {
                self.split(which.index(self.model.held.len()))
            }
            Op::Drain { scope, mode } => {
                let before = design.free_pages();
                let done = design.drain(scope, mode);
                assert_eq!(design.free_pages() - before, done.taken_pages);
            }
            Op::Tick { here } => design.tick(here),
            Op::Idle { here } => design.idle(here),
            Op::Free { .. } | Op::Split { .. } => {}
        }
        self.balance();
    }

    fn split(&mut self, at: usize) {
        let (pfn, order) = self.model.held[at];
        let Some(half) = order.get().checked_sub(1).and_then(Order::new) else { return };
        self.design.split(pfn, order);
        self.model.give(at);
        self.model.take(pfn, half);
        self.model.take(pfn.add(half.frames()), half);
    }

    fn finish(&mut self) {
        self.check();
        while !self.model.held.is_empty() {
            let (pfn, order) = self.model.give(0);
            self.design.free(task(pfn.get() % CPUS), pfn, order);
        }
        // Twice: the second round takes what owners gave back in the first, and what waited for
        // grace periods.
        for _ in 0..2 {
            self.design.drain(Scope::ALL, Mode::Full);
            (0..CPUS).for_each(|cpu| self.design.idle(task(cpu)));
        }
        self.design.drain(Scope::ALL, Mode::Full);
        self.check();
        assert_eq!(self.design.free_pages(), self.model.managed_pages);
    }
}

fn follows_the_model<D: PageCache>(name: &'static str, make: fn(&Setup, Entry) -> D) {
    let setup = three_zones(CPUS);
    let config = Config { cases: 200, failure_persistence: None, ..Config::default() };
    let ops = prop::collection::vec(op(), 1..300);
    TestRunner::new(config)
        .run(&ops, |ops| {
            let mut run =
                Lockstep { name, design: make(&setup, Entry::Pretend), model: Model::new(&setup) };
            for (at, op) in ops.iter().enumerate() {
                run.step(op);
                if at % 40 == 39 {
                    run.check();
                }
            }
            run.finish();
            Ok(())
        })
        .unwrap_or_else(|error| panic!("{error}"));
}

over_all_designs!(follows_the_model);

/// The designs with per-CPU lists and mainline's policy differ only in which code may touch the
/// lists: without drains they hand out the same blocks.
#[test]
fn designs_with_lists_do_the_same_on_one_thread() {
    let setup = three_zones(CPUS);
    let ops = prop::collection::vec(op(), 1..300);
    let config = Config { cases: 200, failure_persistence: None, ..Config::default() };
    let trace = |name, design: Box<dyn PageCache>, ops: &[Op]| {
        let mut run = Boxed { name, design, held: Vec::new(), blocks: Vec::new() };
        ops.iter().for_each(|op| run.step(op));
        (
            run.blocks,
            run.design.free_pages(),
            run.design.counts().refilled,
            run.design.counts().spilled,
        )
    };
    TestRunner::new(config)
        .run(&ops, |ops| {
            let designs = common::with_lists(&setup);
            let mut traces =
                designs.into_iter().map(|(name, design)| (name, trace(name, design, &ops)));
            let (_, first) = traces.next().unwrap();
            for (name, other) in traces {
                prop_assert_eq!(&other, &first, "{} differs", name);
            }
            Ok(())
        })
        .unwrap_or_else(|error| panic!("{error}"));
}

/// A run without model and without drains, recording the blocks.
struct Boxed {
    name: &'static str,
    design: Box<dyn PageCache>,
    held: Vec<(Pfn, Order)>,
    blocks: Vec<Option<Pfn>>,
}

impl Boxed {
    fn step(&mut self, op: &Op) {
        match *op {
            Op::Alloc { here, order, mobility, blocks } => {
                for _ in 0..blocks >> order.get().min(5) {
                    // A request that fails drains all CPUs: the test avoids such requests.
                    if order.get() > 4 || self.design.free_pages() < 1000 {
                        return;
                    }
                    let got = self.design.alloc(here, order, mobility);
                    assert!(got.is_some(), "{}", self.name);
                    self.blocks.push(got);
                    self.held.extend(got.map(|pfn| (pfn, order)));
                }
            }
            Op::Free { here, which } if !self.held.is_empty() => {
                let (pfn, order) = self.held.swap_remove(which.index(self.held.len()));
                self.design.free(here, pfn, order);
            }
            Op::FreeMany { here, blocks } => {
                let batch = self.held.split_off(self.held.len().saturating_sub(blocks));
                self.design.free_many(here, &batch);
            }
            Op::Tick { here } => self.design.tick(here),
            _ => {}
        }
    }
}
