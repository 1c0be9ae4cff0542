//! Simulations: a seed gives one history, every design does its workloads and loses no page, and
//! what scales is told from what does not. Simulated time is a count: it is the same on any
//! machine.

use std::alloc::{GlobalAlloc, Layout, System};

use pagedepot_sim::simulate::{Simulation, SimulationResult, names, simulate};
use pagedepot_sim::topology::Topology;
use pagedepot_sim::workloads::Workload;
use pagedepot_sim::{Disturbances, Mode};

/// Values begin at lines, so that which of them share one does not depend on earlier simulations.
struct ByLines;

fn aligned(layout: Layout) -> Layout {
    layout.align_to(64).expect("a small alignment")
}

// SAFETY: the system's allocator, with larger alignments.
unsafe impl GlobalAlloc for ByLines {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise; a larger alignment keeps it.
        unsafe { System.alloc(aligned(layout)) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as in `alloc`, with the same layout.
        unsafe { System.dealloc(pointer, aligned(layout)) }
    }
}

#[global_allocator]
static BY_LINES: ByLines = ByLines;

fn short(workload: Workload, design: &str, cpus: u32) -> Simulation {
    Simulation { warm_up_ms: 0.3, window_ms: 0.1, ..Simulation::new(workload, design, cpus) }
}

fn found(simulation: &Simulation) -> SimulationResult {
    simulate(simulation).unwrap_or_else(|fault| panic!("{}: {fault}", simulation.design))
}

#[test]
fn a_seed_gives_one_history() {
    for (workload, design) in
        [(Workload::Pagealloc, "depot"), (Workload::Hot, "spin"), (Workload::Vmalloc, "depot")]
    {
        let disturbances = Disturbances {
            preemptions_per_s: 5000.0,
            preempted_ps: 10_000_000,
            interrupts_per_s: 20_000.0,
        };
        let history = |seed| {
            let found = found(&Simulation { seed, disturbances, ..short(workload, design, 8) });
            (found.events, found.ops_per_s.to_bits(), found.aborts)
        };
        assert_eq!(history(1), history(1), "{design}");
        assert_ne!(history(1), history(2), "{design}");
    }
}

/// Drains, preemptions and interrupts come to every design in every workload; `simulate` checks the
/// design afterwards.
#[test]
fn every_design_does_its_workloads_and_loses_no_page() {
    for &workload in Workload::ALL {
        for design in names(workload) {
            let simulation = Simulation {
                drains_per_s: if workload == Workload::Vmalloc { 0.0 } else { 2000.0 },
                drain_mode: Mode::Full,
                disturbances: Disturbances {
                    preemptions_per_s: 2000.0,
                    preempted_ps: 20_000_000,
                    interrupts_per_s: 10_000.0,
                },
                // `vmalloc` first fills its lists, and drains of `local` take its CPUs away.
                warm_up_ms: 2.0,
                window_ms: 2.0,
                ..short(workload, design, 4)
            };
            let found = found(&simulation);
            assert!(found.ops_per_s > 0.0, "{} {design}", workload.name());
        }
    }
}

#[test]
fn what_is_private_scales_and_one_lock_does_not() {
    let per_cpu = |design, cpus| {
        let found = found(&short(Workload::Hot, design, cpus));
        (found.ops_per_s / f64::from(cpus), found)
    };
    let (depot, _) = per_cpu("depot", 1);
    let (depot_on_32, found) = per_cpu("depot", 32);
    assert!(depot_on_32 > 0.95 * depot, "{depot_on_32} of {depot}");
    assert_eq!(found.lock_wait_share, 0.0);
    let (locked, _) = per_cpu("zone-lock", 1);
    let (locked_on_32, found) = per_cpu("zone-lock", 32);
    assert!(locked_on_32 * 32.0 < 1.1 * locked, "{locked_on_32} of {locked}");
    assert!(found.lock_wait_share > 0.8, "{}", found.lock_wait_share);
    // The line that is fought over is named.
    assert!(found.fights[0].site.file().ends_with(".rs") && found.fights[0].transfers > 100);
}

#[test]
fn waiting_counts_where_waiters_try_again() {
    let crowd = Simulation { queued_locks: false, ..short(Workload::Hot, "zone-lock", 8) };
    let share = found(&crowd).lock_wait_share;
    assert!((0.5..1.0).contains(&share), "{share}");
}

#[test]
fn far_cpus_cost_more() {
    let near = Topology { socket_ns: 25.0, remote_ns: 25.0, ..Topology::default() };
    let ops = |topology: Topology| {
        let cpus = Simulation { topology, ..short(Workload::Hot, "zone-lock", 16) };
        found(&cpus).ops_per_s
    };
    assert!(ops(near) > 1.3 * ops(Topology::default()));
}

#[test]
fn drains_take_place_as_often_as_asked_for() {
    let simulation = Simulation {
        drains_per_s: 10_000.0,
        warm_up_ms: 1.0,
        window_ms: 1.0,
        ..Simulation::new(Workload::Touch, "depot", 8)
    };
    let found = found(&simulation);
    assert!((18..=20).contains(&found.drains), "{}", found.drains);
}

#[test]
fn drainers_keep_a_rate_together() {
    // Full drains of 64 CPUs, which fence each: more than one CPU can do.
    let drained = |drainers| {
        let simulation = Simulation {
            drains_per_s: 20_000.0,
            drain_mode: Mode::Full,
            drainers,
            ..Simulation::new(Workload::Touch, "depot", 64)
        };
        let found = found(&simulation);
        (found.drains, found.drains_per_s.to_bits(), found.events)
    };
    let per_s = |drained: (u64, u64, u64)| f64::from_bits(drained.1);
    let (one, many) = (drained(1), drained(16));
    assert!(one.0 < 20 && per_s(one) < 10_000.0, "{one:?}");
    assert!((37..=40).contains(&many.0), "{many:?}");
    assert!((18_000.0..=22_000.0).contains(&per_s(many)), "{many:?}");
    assert_eq!(many, drained(16), "a seed gives one history");
}
