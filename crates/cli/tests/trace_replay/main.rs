//! Replays: of the shipped trace, of a collection of larger ones where there is one, and of small
//! ones that have each oddity of real traces once.

mod naive;
mod properties;
#[path = "../../../core/tests/common/skip.rs"]
mod skip;

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use naive::Naive;
use pagedepot::{Mobility, Order};
use pagedepot_cli::tested::{
    Design, FreeHighPages, InitialList, Op, Outcome, Plan, ReplayError, ReplayMachine,
    ReplayResult, Store, Variant, Verify, WatchedTarget, Zoneinfos, replay, run, with_depot,
};
use pagedepot_designs::Volume;
use pagedepot_linux::trace::{Stamp, TraceWriter};
use pagedepot_linux::{Depot, Flags};
use pagedepot_trace::{EventKind, ExpandLimit, TraceError, Zoneinfo};

/// The designs to replay into.
type ReplayInto<'a> = (&'a [Design], &'a Variant);

/// Each design as its thread, or mainline, ended up with it.
const DEFAULT: Variant = Variant {
    store: None,
    lock: None,
    grace: None,
    drained_by: None,
    isolated: None,
    magazines: None,
    free_high: None,
    free_high_rule: None,
    rules: None,
    fixed_high: None,
};

/// Our own design.
const DEPOT: ReplayInto<'static> = (&[Design::Depot], &DEFAULT);
/// Ours and mainline's.
const BOTH: ReplayInto<'static> = (&[Design::Depot, Design::Spin], &DEFAULT);
/// Every design of this command.
const ALL: ReplayInto<'static> = (&[Design::Depot, Design::ZoneLock, Design::Spin], &DEFAULT);

/// The repository's `traces/`.
fn shipped(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("traces").join(name)
}

/// A larger collection of traces, if there is one: the directory in `PAGEDEPOT_TRACES`, or
/// `shared/traces` beside the repository.
fn collection() -> Option<PathBuf> {
    let beside = || PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../shared/traces");
    let path = std::env::var_os("PAGEDEPOT_TRACES").map_or_else(beside, PathBuf::from);
    path.is_dir().then_some(path)
}

fn order(n: u32) -> Order {
    Order::new(n).unwrap()
}

fn plan(text: &str) -> Plan {
    Plan::read(text.as_bytes(), "test", None).unwrap_or_else(|error| panic!("{error}"))
}

/// Runs a plan on the naive allocator and on ours, both watched.
fn run_both(plan: &Plan) -> [Outcome; 2] {
    let mut naive = Naive::new(plan.cpus.len().max(1), plan.zone_pages());
    let naive = run(plan, &mut WatchedTarget::new(&mut naive, Verify::default()))
        .unwrap_or_else(|error| panic!("naive: {error}"));
    let machine = ReplayMachine::for_plan(plan, None);
    let depot =
        with_depot(machine, |depot| run(plan, &mut WatchedTarget::new(depot, Verify::default())))
            .unwrap();
    let depot = depot.unwrap_or_else(|error| panic!("depot: {error}"));
    for outcome in [&naive, &depot] {
        assert!(outcome.balance.holds() && outcome.lost_frames == 0);
        let volume = (outcome.allocated.pages, outcome.freed.pages);
        assert_eq!(volume.0 - volume.1, plan.work.held.pages, "held pages");
        assert_eq!(
            outcome.census.managed_pages,
            outcome.census.free_pages + outcome.census.cached_pages + plan.work.held.pages
        );
    }
    [naive, depot]
}

/// One value of the report's rows.
fn row(report: &ReplayResult, design: &str, metric: &str, cpu: Option<i64>) -> f64 {
    let report = report.to_report(&[]);
    let rows = report.rows();
    let mut found = rows.iter().filter(|row| {
        row.design == design
            && row.metric == metric
            && row.params.get("cpu").copied() == cpu
            && row.workload == "replay"
    });
    let row = found.next().unwrap_or_else(|| panic!("no row {design} {metric} {cpu:?}"));
    assert!(found.next().is_none(), "two rows {design} {metric} {cpu:?}");
    row.samples[0]
}

/// Compares counts of the shipped trace with those of `zgrep -c`.
#[test]
fn the_shipped_trace() {
    let path = shipped("build.perf.txt.zst");
    let zoneinfos = Zoneinfos::find(&path, None, None).unwrap();
    let plan = Plan::load(&path, zoneinfos.before.as_ref(), ExpandLimit::default()).unwrap();
    let counts = |kind| plan.trace.counts.get(kind);
    assert_eq!(plan.trace.lines, 125_000);
    assert_eq!(counts(EventKind::PageAlloc), 46_810);
    assert_eq!(counts(EventKind::PageFree), 19_092);
    assert_eq!(counts(EventKind::PageFreeBatched), 17_497);
    assert_eq!(counts(EventKind::ZoneLocked), 38_910);
    assert_eq!(counts(EventKind::PcpuDrain), 2_688);
    assert_eq!(counts(EventKind::AllocVmapArea), 3);
    assert_eq!(plan.trace.counts.total(), 125_000);
    assert_eq!(plan.cpus, [0, 1]);

    let mut progress = 0;
    let report = replay(&plan, &zoneinfos, DEPOT, 2, || progress += 1).unwrap();
    assert_eq!(progress, 3);
    assert_eq!(row(&report, "depot", "allocs", None), 46_810.0);
    assert_eq!(
        row(&report, "depot", "frees", None) + row(&report, "depot", "unknown_frees", None),
        19_092.0
    );
    assert_eq!(row(&report, "depot", "lost_frames", None), 0.0);
    assert_eq!(row(&report, "kernel", "allocs", None), 46_810.0);
    assert_eq!(row(&report, "kernel", "refilled_blocks", None), 38_910.0);
    assert_eq!(row(&report, "kernel", "spilled_blocks", None), 2_688.0);
    let [replay] = &report.replays[..] else { panic!("one design") };
    assert_eq!(replay.event_ns.len(), 2);
    let cached: f64 =
        [0, 1].map(|cpu| row(&report, "depot", "cached_pages", Some(cpu))).iter().sum();
    assert_eq!(cached, replay.outcome.balance.after as f64);
    assert_eq!(replay.outcome.census.managed_pages, 1_114_112, "as zoneinfo says");
}

/// Counts of a trace by a plain search for the events' names.
fn count_lines(path: &Path) -> BTreeMap<&'static str, u64> {
    let mut counts: BTreeMap<_, _> = EventKind::ALL.map(|kind| (kind.name(), 0)).into();
    let file = std::fs::read(path).unwrap();
    let mut text = String::new();
    let mut decoder = ruzstd::decoding::StreamingDecoder::new(&file[..]).unwrap();
    std::io::Read::read_to_string(&mut decoder, &mut text).unwrap();
    for word in text.split(' ') {
        // As in `kmem:mm_page_free:`.
        let name = word.strip_suffix(':').and_then(|word| Some(word.split_once(':')?.1));
        if let Some(count) = name.and_then(|name| counts.get_mut(name)) {
            *count += 1;
        }
    }
    counts
}

/// Traces that mainline's design is judged by; see `docs/replay-fidelity.md`.
const FAITHFUL: [&str; 3] = ["pft", "kernbench", "udp-stream"];

/// `spin` does what the kernel did, within a tenth, or 500 blocks.
fn check_fidelity(report: &ReplayResult, path: &Path) {
    for (metric, cpu, slack) in [
        ("refilled_blocks", None, 500.0),
        ("spilled_blocks", None, 500.0),
        ("cached_pages", Some(0), 0.0),
        ("cached_pages", Some(1), 0.0),
    ] {
        let spin = row(report, "spin", metric, cpu);
        // These traces were recorded with all events: one that is missing did not happen.
        let kernel = match metric {
            "spilled_blocks" if !report.kernel.has_spills => 0.0,
            _ => row(report, "kernel", metric, cpu),
        };
        let off = (spin - kernel).abs();
        assert!(
            off <= slack || off <= kernel / 10.0,
            "{path:?} {metric} {cpu:?}: {spin} for {kernel}"
        );
    }
}

/// Replays on the recorded machine, and on one that nothing is known of.
#[test]
fn every_design_replays_the_shipped_trace() {
    let path = shipped("build.perf.txt.zst");
    for zoneinfos in [Zoneinfos::find(&path, None, None).unwrap(), Zoneinfos::default()] {
        let plan = Plan::load(&path, zoneinfos.before.as_ref(), ExpandLimit::default()).unwrap();
        let held = plan.before.held_volume().blocks;
        assert_eq!(held, if zoneinfos.before.is_some() { plan.work.unknown_frees } else { 0 });
        let report = replay(&plan, &zoneinfos, ALL, 1, || ()).unwrap();
        assert_eq!(report.replays.len(), 3);
        for replay in &report.replays {
            let outcome = &replay.outcome;
            assert!(outcome.balance.holds() && outcome.lost_frames == 0, "{}", replay.design);
            assert_eq!(outcome.held_pages, plan.work.held.pages, "{}", replay.design);
            let caches = replay.design != Design::ZoneLock;
            assert_eq!(outcome.balance.after > 0, caches, "{}", replay.design);
        }
        let near = |metric| {
            let [spin, kernel] =
                ["spin", "kernel"].map(|design| row(&report, design, metric, None));
            assert!((spin - kernel).abs() <= kernel / 10.0, "{metric}: {spin} for {kernel}");
        };
        if zoneinfos.before.is_some() {
            near("refilled_blocks");
        }
    }
}

/// The machine's pages from before: 100 pages of 3 zones, known from a zoneinfo of a few lines.
fn small_machine() -> Zoneinfo {
    let zone = |name, start, managed, cached: [u32; 2]| {
        let cpu = |cpu: usize| {
            let count = cached[cpu];
            format!(
                "cpu: {cpu}\n count: {count}\n high: 300\n batch: 7\n high_min: 28\n high_max: \
                 600\n"
            )
        };
        format!(
            "Node 0, zone {name}\n pages free {managed}\n min 0\n low 10\n high 20\n spanned \
             {managed}\n managed {managed}\n protection: (0, 0, 0)\n pagesets\n {}{} start_pfn: \
             {start}\n",
            cpu(0),
            cpu(1)
        )
    };
    let zones = [zone("DMA", 0, 4096, [0, 0]), zone("Normal", 4096, 8192, [40, 9])];
    Zoneinfo::parse(&(zones.concat() + "Node 0, zone Movable\n managed 0\n"), "small").unwrap()
}

fn refill(cpu: u32, pfn: u32, migratetype: u32) -> String {
    let fields = "page=0x1 order=0";
    let name = "mm_page_alloc_zone_locked";
    line(
        cpu,
        0,
        &format!("{name}: {fields} pfn={pfn:#x} migratetype={migratetype} percpu_refill=1"),
    )
}

/// A refill of CPU 0, in which an interrupt frees a page; then the page is freed that was asked
/// for.
#[test]
fn a_free_that_interrupts_a_refill_goes_past_the_caches() {
    let text = [refill(0, 5003, 1), free(0, 5000, 0), alloc(0, 5003, 0), free(0, 5003, 0)].concat();
    let machine = small_machine();
    let plan = Plan::read(text.as_bytes(), "test", Some(&machine)).unwrap();
    let zone = 1;
    assert_eq!(plan.ops[0], Op::FreeNested { cpu: 0, zone, order: order(0), slot: 0 });
    let zoneinfos = Zoneinfos { before: Some(machine), ..Zoneinfos::default() };
    let report = replay(&plan, &zoneinfos, ALL, 1, || ()).unwrap();
    for replay in &report.replays {
        let past = u64::from(replay.design == Design::Spin);
        let freed = if replay.design == Design::ZoneLock { 2 } else { past };
        assert_eq!(replay.outcome.counts.direct_freed.blocks, freed, "{}", replay.design);
    }
}

/// CPU 1 only frees blocks of order 2: how many of them it keeps is what the variant says, with the
/// depot as with mainline's design.
#[test]
fn a_cpu_that_only_frees_keeps_what_the_variant_lets_it() {
    let allocs = (0..400).map(|n| alloc(0, 4096 + 4 * n, 2));
    let text: String = allocs.chain((0..400).map(|n| free(1, 4096 + 4 * n, 2))).collect();
    let (plan, zoneinfos) = (plan(&text), Zoneinfos::default());
    let cached = |free_high| {
        let variant = Variant { free_high: Some(free_high), ..DEFAULT };
        let report = replay(&plan, &zoneinfos, (BOTH.0, &variant), 1, || ()).unwrap();
        ["depot", "spin"].map(|design| row(&report, design, "cached_pages", Some(1)))
    };
    let [zero, high] = [FreeHighPages::Zero, FreeHighPages::High].map(cached);
    assert!(zero[0] < high[0] && zero[1] < high[1], "{zero:?} {high:?}");
}

/// CPU 0 cached 40 pages; it takes and returns some, then spills two blocks; a worker's drain is no
/// spill.
#[test]
fn a_spill_tells_what_high_was() {
    let drain = |comm: &str, ms: u32, pfn| {
        let fields = format!("page=0x1 pfn={pfn} order=0 migratetype=1");
        format!("{comm} 7 [000] 0.{ms:03}: kmem:mm_page_pcpu_drain: {fields}\n")
    };
    let text = [
        alloc(0, 5000, 0),
        refill(0, 5008, 1),
        refill(0, 5009, 1),
        free(0, 5016, 3),
        free(0, 5120, 4),
        drain("task", 30, 5008),
        drain("task", 30, 5009),
        drain("kworker/0:1", 90, 5016),
    ];
    let plan = Plan::read(text.concat().as_bytes(), "test", Some(&small_machine())).unwrap();
    let seen: Vec<_> =
        plan.highs_seen.iter().map(|seen| (seen.ms, seen.cpu, seen.zone, seen.high)).collect();
    assert_eq!(seen, [(30, 0, 1, 40 - 1 + 2 + 8)]);
}

#[test]
fn recorded_upkeep_is_what_there_was() {
    let tick = |cpu, ms: u64| {
        let work = "workqueue_execute_start: work struct 0x1: function vmstat_update";
        format!("kworker/{cpu}:1 7 [{cpu:03}] {}.{:03}: workqueue:{work}\n", ms / 1000, ms % 1000)
    };
    let end = line(1, 5000, "mm_page_free: page=0x1 pfn=0x1 order=0");
    // The last one has a time that was damaged.
    let ticks = [tick(1, 300), tick(0, 1500), tick(1, 1290), tick(0, 5_000_000_000)].concat();
    let plan = plan(&[alloc(0, 1, 0), ticks, end].concat());
    let ticks: Vec<_> = plan.ticks.iter().map(|tick| (tick.ms, tick.cpu)).collect();
    assert_eq!(ticks, [(300, 1), (1290, 1), (1500, 0), (u32::MAX, 0)]);
    assert_eq!(plan.ticks_unseen, []);
}

#[test]
fn what_cpus_cached_is_told_by_what_left_them() {
    // Three blocks were on CPU 0's movable list, which is then refilled; one of order 3 was there,
    // too; the rest is on a list that nothing was asked of. All of CPU 1 stays where it was.
    let text = [
        alloc(0, 5000, 0),
        alloc(0, 5001, 0),
        alloc(0, 5002, 0),
        refill(0, 5003, 1),
        refill(0, 5004, 1),
        alloc(0, 5003, 0),
        alloc(0, 6000, 0),
        alloc(0, 5120, 3),
        free(1, 77, 0),
    ];
    let machine = small_machine();
    let plan = Plan::read(text.concat().as_bytes(), "test", Some(&machine)).unwrap();
    let cached = |cpu, order_is, mobility, blocks| InitialList {
        cpu,
        zone: 1,
        order: order(order_is),
        mobility,
        blocks,
    };
    let mut found = plan.before.cached.clone();
    found.sort_by_key(|cached| (cached.cpu, cached.order));
    assert_eq!(
        found,
        [
            cached(0, 0, Mobility::Movable, 3),
            cached(0, 0, Mobility::Unmovable, 29 % 8),
            cached(0, 3, Mobility::Movable, 1 + 29 / 8),
            cached(1, 0, Mobility::Movable, 9),
        ]
    );
}

/// A program of two threads that hand blocks to each other, recording itself.
#[test]
fn what_a_program_writes_replays() {
    const BLOCKS: u32 = 500;
    let depot = Depot::new(64 << 20).unwrap();
    let trace = Mutex::new(TraceWriter::new(Vec::new()));
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let (depot, trace) = (&depot, &trace);
        scope.spawn(move || {
            for n in 0..BLOCKS {
                let (order, mobility) = (order(n % 4), Mobility::ALL[n as usize % 3]);
                let block = depot.raw().alloc(order, Flags::new(mobility)).unwrap();
                let at = Stamp::here("producer");
                trace.lock().unwrap().alloc(&at, (block, order).into(), mobility).unwrap();
                sender.send((block, order)).unwrap();
            }
        });
        scope.spawn(move || {
            for (block, order) in receiver {
                let at = Stamp::here("consumer: 2");
                trace.lock().unwrap().free(&at, (block, order).into()).unwrap();
                // SAFETY: got from the depot by the producer, which sent it here only.
                unsafe { depot.raw().free(block, order) }.unwrap();
            }
        });
    });
    let text = trace.into_inner().unwrap().finish().unwrap();
    let plan = Plan::read(&text[..], "program", None).unwrap();
    let work = &plan.work;
    assert_eq!((work.allocs.blocks(), work.frees.blocks()), (BLOCKS.into(), BLOCKS.into()));
    assert_eq!((work.unknown_frees, work.missed_frees, work.held), (0, 0, Volume::default()));
    replay(&plan, &Zoneinfos::default(), ALL, 1, || ()).unwrap();
    for store in [Store::Buddy, Store::Bitmap] {
        let over = Variant { store: Some(store), ..DEFAULT };
        let report = replay(&plan, &Zoneinfos::default(), (BOTH.0, &over), 1, || ()).unwrap();
        let report = report.to_report(&[]);
        let rows = report.rows();
        let ours: Vec<_> = rows.iter().filter(|row| row.design != "kernel").collect();
        assert!(
            !ours.is_empty() && ours.iter().all(|row| row.params["store"] == store as i64),
            "{ours:?}"
        );
    }
}

#[test]
fn larger_traces_balance() {
    let Some(directory) = collection() else {
        return skip::skip(
            "no collection of traces; set PAGEDEPOT_TRACES to a directory of *.perf.txt.zst",
        );
    };
    let files = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    std::thread::scope(|scope| {
        for path in files.filter(|path| path.to_string_lossy().ends_with(".perf.txt.zst")) {
            scope.spawn(move || check_balance(&path));
        }
    });
}

/// Checks that a trace is read to the last event, and that every page of its replays is accounted
/// for.
fn check_balance(path: &Path) {
    let zoneinfos = Zoneinfos::find(path, None, None).unwrap();
    assert!(zoneinfos.before.is_some() && zoneinfos.after.is_some(), "{path:?}");
    let plan = Plan::load(path, zoneinfos.before.as_ref(), ExpandLimit::default()).unwrap();
    for (name, count) in count_lines(path) {
        assert_eq!(
            plan.trace.counts.get(EventKind::from_name(name).unwrap()),
            count,
            "{name} in {path:?}"
        );
    }
    assert_eq!(plan.trace.counts.total(), plan.trace.lines, "every line is an event in {path:?}");
    let report = replay(&plan, &zoneinfos, BOTH, 1, || ())
        .unwrap_or_else(|error| panic!("{path:?}: {error}"));
    let frees = row(&report, "depot", "frees", None) + row(&report, "depot", "unknown_frees", None);
    assert_eq!(frees, row(&report, "kernel", "frees", None), "{path:?}");
    if FAITHFUL.iter().any(|name| path.ends_with(format!("{name}.perf.txt.zst"))) {
        check_fidelity(&report, path);
    }
    assert!(row(&report, "kernel", "cached_pages", Some(0)) > 0.0, "{path:?}");
}

/// A line of `perf script` for CPU `cpu` at `ms` milliseconds.
fn line(cpu: u32, ms: u32, fields: &str) -> String {
    format!("task 7 [{cpu:03}] {}.{:03}: kmem:{fields}\n", ms / 1000, ms % 1000)
}

fn alloc(cpu: u32, pfn: u32, order: u32) -> String {
    line(
        cpu,
        0,
        &format!("mm_page_alloc: page=0x1 pfn={pfn:#x} order={order} migratetype=1 gfp_flags=X"),
    )
}

fn free(cpu: u32, pfn: u32, order: u32) -> String {
    line(cpu, 0, &format!("mm_page_free: page=0x1 pfn={pfn:#x} order={order}"))
}

fn batched(cpu: u32, pfn: u32) -> String {
    line(cpu, 0, &format!("mm_page_free_batched: page=0x1 pfn={pfn:#x} order=0"))
}

#[test]
fn unknown_frees_and_failed_allocations_are_counted_only() {
    let plan = plan(
        &[free(0, 5, 0), alloc(0, 0, 3), alloc(0, 5, 0), free(0, 5, 0), free(0, 5, 0)].concat(),
    );
    assert_eq!(
        (plan.work.unknown_frees, plan.work.failed_allocs, plan.work.missed_frees),
        (2, 1, 0)
    );
    assert_eq!((plan.work.allocs.blocks(), plan.work.frees.blocks(), plan.ops.len()), (1, 1, 2));
    run_both(&plan);
}

#[test]
fn migratetypes_become_mobilities() {
    let kinds = [
        Mobility::Unmovable,
        Mobility::Movable,
        Mobility::Reclaimable,
        Mobility::Unmovable,
        Mobility::Movable,
    ];
    for (migratetype, mobility) in kinds.into_iter().enumerate() {
        let fields = format!(
            "mm_page_alloc: page=0x1 pfn=0x8 order=2 migratetype={migratetype} gfp_flags=X"
        );
        let plan = plan(&line(0, 0, &fields));
        assert_eq!(plan.ops, [Op::Alloc { cpu: 0, zone: 0, order: order(2), mobility, slot: 0 }]);
        assert_eq!(plan.work.allocs.0[2][mobility.index()], 1);
    }
}

#[test]
fn cpus_are_counted_and_keep_their_numbers() {
    let plan = plan(&[alloc(200, 1, 0), alloc(3, 2, 0), free(8000, 1, 0)].concat());
    assert_eq!(plan.cpus, [3, 200, 8000]);
    assert_eq!(plan.work.remote_frees, 1);
    assert_eq!(plan.ops[2], Op::Free { cpu: 2, order: order(0), slot: 0 });
    let report = replay(&plan, &Zoneinfos::default(), DEPOT, 1, || ()).unwrap();
    row(&report, "depot", "cached_pages", Some(8000));
    assert_eq!(report.to_report(&[]).rows()[0].cpus, 3);
}

/// Checks that one of two CPUs, at place 0, does what 0 and 2 did.
#[test]
fn cpus_are_folded_onto_fewer() {
    let text = [alloc(200, 1, 0), alloc(3, 2, 0), free(8000, 2, 0), free(8000, 1, 0)].concat();
    let folded = |cpus| {
        let mut plan = plan(&text);
        plan.fold(NonZeroU32::new(cpus).unwrap()).map(|()| plan)
    };
    assert_eq!(folded(4).unwrap_err(), 3);
    assert_eq!(folded(u32::MAX).unwrap_err(), 3);
    assert_eq!(folded(3).unwrap().ops, plan(&text).ops);
    let two = folded(2).unwrap();
    assert_eq!((&two.cpus[..], two.cpus_recorded, two.work.remote_frees), (&[3, 200][..], 3, 1));
    let cpu_of = |op: &Op| match *op {
        Op::Alloc { cpu, .. } | Op::Free { cpu, .. } => cpu,
        _ => panic!("{op:?}"),
    };
    assert_eq!(two.ops.iter().map(cpu_of).collect::<Vec<_>>(), [1, 0, 0, 0]);
    let report = replay(&two, &Zoneinfos::default(), DEPOT, 1, || ()).unwrap();
    assert_eq!(
        (row(&report, "depot", "frees", None), row(&report, "depot", "lost_frames", None)),
        (2.0, 0.0)
    );
    row(&report, "depot", "cached_pages", Some(200));
    let text = report.to_report(&[]).text(100);
    assert!(text.contains("on 3 CPUs\nreplayed on 2 of them"), "{text}");
    let cpus =
        |design| report.to_report(&[]).rows().iter().find(|row| row.design == design).unwrap().cpus;
    assert_eq!((cpus("depot"), cpus("kernel")), (2, 3));
}

/// Everything is done and every page is accounted for, by each design, on one CPU.
#[test]
fn the_shipped_trace_on_one_cpu() {
    let path = shipped("build.perf.txt.zst");
    let zoneinfos = Zoneinfos::find(&path, None, None).unwrap();
    let mut plan = Plan::load(&path, zoneinfos.before.as_ref(), ExpandLimit::default()).unwrap();
    let two: u64 = plan.before.cached.iter().map(|cached| u64::from(cached.blocks)).sum();
    plan.fold(NonZeroU32::MIN).unwrap();
    assert_eq!(plan.work.remote_frees, 0);
    assert!(two > 0 && plan.before.cached.iter().all(|cached| cached.cpu == 0));
    let report = replay(&plan, &zoneinfos, ALL, 1, || ()).unwrap();
    for replay in &report.replays {
        assert!(
            replay.outcome.balance.holds() && replay.outcome.lost_frames == 0,
            "{}",
            replay.design
        );
        assert_eq!(replay.cached_pages.len(), 1, "{}", replay.design);
    }
    assert_eq!(row(&report, "depot", "allocs", None), 46_810.0);
}

#[test]
fn a_batch_is_freed_once_and_by_one_call() {
    let allocs: String = (1..=6).map(|pfn| alloc(0, pfn, 0)).collect();
    // Frees of two batches, one single in between, one on another CPU, and an unknown one.
    let frees = [
        free(0, 1, 0),
        free(0, 2, 0),
        free(1, 3, 0),
        free(0, 99, 0),
        batched(0, 1),
        batched(0, 99),
        batched(0, 2),
        free(0, 4, 0),
        free(0, 5, 0),
        free(0, 6, 0),
        batched(0, 6),
        batched(0, 5),
    ];
    let plan = plan(&(allocs + &frees.concat()));
    assert_eq!((plan.work.batches, plan.work.batched_frees, plan.work.frees.blocks()), (2, 4, 6));
    assert_eq!(plan.work.unknown_frees, 1);
    let frees: Vec<Op> = plan.ops[6..].to_vec();
    assert_eq!(
        frees,
        [
            Op::FreeMany { cpu: 0, first: 0, len: 2 },
            Op::Free { cpu: 1, order: order(0), slot: 2 },
            Op::Free { cpu: 0, order: order(0), slot: 3 },
            Op::FreeMany { cpu: 0, first: 2, len: 2 },
        ]
    );
    assert_eq!(plan.batch(0, 2), [(0, order(0)), (1, order(0))]);
    let [_, depot] = run_both(&plan);
    assert_eq!((depot.events, depot.freed), (12, Volume { blocks: 6, pages: 6 }));
}

#[test]
fn a_block_freed_in_parts_is_split() {
    // As `split_page` leaves it: single frames; then as the kernel frees tails: 1, 2 and 4 frames.
    let singles = (8..16).map(|pfn| free(0, pfn, 0)).collect::<String>();
    let plan_a = plan(&(alloc(0, 8, 3) + &singles));
    assert_eq!(
        (plan_a.work.split_frees, plan_a.work.frees.blocks(), plan_a.work.held.pages),
        (4, 8, 0)
    );
    run_both(&plan_a);
    let tails = [free(0, 12, 2), free(0, 10, 1), free(0, 9, 0)].concat();
    let plan_b = plan(&(alloc(0, 8, 3) + &tails));
    assert_eq!(plan_b.work.held, Volume { blocks: 1, pages: 1 });
    run_both(&plan_b);
}

#[test]
fn a_block_freed_larger_than_held_frees_what_is_held() {
    let plan = plan(
        &[alloc(0, 8, 0), alloc(0, 10, 1), free(0, 8, 2), free(0, 8, 0), free(0, 10, 1)].concat(),
    );
    assert_eq!((plan.work.larger_frees, plan.work.unknown_frees, plan.work.held.pages), (1, 2, 0));
    let [_, depot] = run_both(&plan);
    assert_eq!(depot.freed, Volume { blocks: 2, pages: 3 });
}

#[test]
fn a_block_allocated_over_held_ones_shows_missed_frees() {
    let plan = plan(
        &[alloc(0, 8, 0), alloc(0, 9, 0), alloc(1, 8, 3), alloc(1, 12, 1), free(0, 12, 1)].concat(),
    );
    assert_eq!((plan.work.missed_frees, plan.work.frees.blocks(), plan.work.held.pages), (3, 1, 0));
    run_both(&plan);
}

#[test]
fn what_cannot_be_is_counted_and_left_out() {
    let far = "mm_page_alloc: page=0x1 pfn=0xfffffffffffffff0 order=0 migratetype=1 gfp_flags=X";
    let plan = plan(
        &[alloc(0, 8, 11), alloc(0, 9, 1), free(0, 1, 3), line(0, 0, far), alloc(0, 1, 0)].concat(),
    );
    assert_eq!((plan.work.implausible, plan.work.too_large, plan.ops.len()), (3, 1, 1));
}

#[test]
fn the_clock_goes_on_and_never_back() {
    let alloc = |ms, pfn| {
        line(0, ms, &format!("mm_page_alloc: page=0x1 pfn={pfn} order=0 migratetype=0 gfp_flags=X"))
    };
    let plan = plan(&[alloc(5000, 1), alloc(5007, 2), alloc(4000, 3), alloc(9000, 4)].concat());
    let clocks: Vec<_> = plan.ops.iter().filter(|op| matches!(op, Op::Clock { .. })).collect();
    assert_eq!(clocks, [&Op::Clock { ms: 7 }, &Op::Clock { ms: 4000 }]);
    assert_eq!(plan.trace.out_of_order, 1);
    run_both(&plan);
}

#[test]
fn blocks_of_which_no_magazine_fits_go_past_the_caches() {
    let of = |orders: std::ops::RangeInclusive<u32>| {
        let blocks: Vec<_> = orders.clone().map(|n| alloc(0, 1024 * (n + 1), n)).collect();
        let frees: Vec<_> = orders.map(|n| free(1, 1024 * (n + 1), n)).collect();
        let [_, depot] = run_both(&plan(&(blocks.concat() + &frees.concat())));
        [depot.counts.direct_allocated, depot.counts.direct_freed]
    };
    // Of order 10 a magazine is more than a CPU may cache of 256 MiB.
    assert_eq!(of(10..=10), [Volume { blocks: 1, pages: 1024 }; 2]);
    assert!(of(0..=10).iter().all(|direct| direct.pages >= 1024));
}

#[test]
fn traces_without_page_events_have_nothing_to_replay() {
    let text = "a 1 [000] 1.0: vmalloc:purge_vmap_area_lazy: start=0x1 end=0x2 num_purged=3\n";
    let error = Plan::read(text.as_bytes(), "maps.txt", None).unwrap_err();
    assert!(matches!(error, TraceError::NoPageEvent { .. }));
    assert!(error.to_string().starts_with("maps.txt holds no mm_page_alloc"), "{error}");
}

/// The checks themselves are checked: an allocator that loses blocks does not pass.
#[test]
fn lost_frames_are_found() {
    let pairs: String = (1..=40).map(|pfn| alloc(0, pfn, 0) + &free(0, pfn, 0)).collect();
    let plan = plan(&pairs);
    let mut naive = Naive::new(1, 1 << 16);
    naive.leak_every = 10;
    match run(&plan, &mut naive) {
        Err(ReplayError::LostFrames { lost: 4, .. }) => {}
        other => panic!("{other:?}"),
    }
}

#[test]
fn too_few_pages_are_an_error() {
    let allocs: String = (1..=100).map(|pfn| alloc(0, pfn, 0)).collect();
    let error = run(&plan(&allocs), &mut Naive::new(1, 64)).unwrap_err();
    assert!(error.to_string().contains("has the zoneinfo all zones"), "{error}");
}

#[test]
fn the_report_says_it_all() {
    let text = [
        alloc(0, 8, 3),
        free(1, 8, 3),
        free(0, 77, 0),
        line(0, 1, "mm_page_pcpu_drain: page=0x1 pfn=0x1 order=2 migratetype=1"),
        "task 7 [000] 1.0: sched:sched_switch: x\n".to_owned(),
        "task 7 [000] 1.0: kmem:mm_page_free: pfn=\n".to_owned(),
    ]
    .concat();
    let report = replay(&plan(&text), &Zoneinfos::default(), DEPOT, 1, || ()).unwrap();
    let text = report.to_report(&[]).text(200);
    for part in [
        "skipped 1 lines of unknown events, first [line 5: task 7 [000] 1.0: sched:sched_switch: \
         x]",
        "skipped 1 lines unfinished, first [line 6: ",
        "1 unknown frees",
        "0 lost",
        "1 on another CPU than the allocation",
        "time per event",
        " before + ",
    ] {
        assert!(text.contains(part), "{part} is not in\n{text}");
    }
    assert_eq!(row(&report, "kernel", "spilled_blocks", None), 1.0);
    assert_eq!(row(&report, "depot", "unknown_frees", None), 1.0);
    let rows = serde_json::to_string(&report.to_report(&[]).rows()).unwrap();
    assert!(rows.contains("\"metric\":\"event_ns\""));
}
