//! Measures a warm pair: address space alone (5 pages), memory (16 pages, nothing mapped, stale
//! data kept), by one thread and by one per CPU. Prints nanoseconds of CPU per pair and thread.
//!
//! `cargo run --release -p pagedepot-vmap --example vmap_pair [thousands of pairs]`

use std::cell::Cell;
use std::hint::black_box;
use std::mem::MaybeUninit;
use std::sync::Barrier;

use pagedepot::cpus::{CpuLock, Environment, LockedCpus, WhichCpu};
use pagedepot::{Allocator, Config, CpuId, FrameRange, NodeId, PageSize, Pfn, ZoneConfig};
use pagedepot_vmap::{NullMapper, Options, Span, StaleData, VirtAddr, Vmap, VmapConfig};

thread_local!(static CPU: Cell<u32> = const { Cell::new(0) });

struct ByThread;

impl WhichCpu for ByThread {
    fn cpu(&self) -> Option<CpuId> {
        Some(CpuId::new(CPU.get()))
    }
}

impl Environment for ByThread {}

type Depot<'m> = Allocator<'m, LockedCpus<'m, ByThread>>;
type Tested<'m> = Vmap<'m, NullMapper, &'m Depot<'m>>;

/// Nanoseconds that this thread has run so far, apart from what it waited for a CPU.
fn on_cpu_ns() -> u64 {
    let text =
        std::fs::read_to_string("/proc/thread-self/schedstat").expect("Linux with schedstat");
    text.split(' ').next().and_then(|ns| ns.parse().ok()).expect("a number comes first")
}

/// Nanoseconds of CPU per call of `pair`, the slowest thread's, best of five.
fn measure(threads: u32, pairs: u64, pair: impl Fn() + Sync) -> f64 {
    let once = || {
        let barrier = Barrier::new(threads as usize);
        let run = |cpu| {
            CPU.set(cpu);
            (0..1000).for_each(|_| pair());
            barrier.wait();
            let start = on_cpu_ns();
            (0..pairs).for_each(|_| pair());
            (on_cpu_ns() - start) as f64 / pairs as f64
        };
        std::thread::scope(|scope| {
            let runs: Vec<_> = (0..threads).map(|cpu| scope.spawn(move || run(cpu))).collect();
            runs.into_iter().map(|run| run.join().unwrap()).fold(0.0, f64::max)
        })
    };
    (0..5).map(|_| once()).fold(f64::MAX, f64::min)
}

fn main() {
    let pairs =
        std::env::args().nth(1).map_or(5000, |n| n.parse().expect("a number of thousands")) * 1000;
    let cpus = std::thread::available_parallelism().map_or(1, |n| n.get() as u32);
    let ranges = [FrameRange::new(Pfn::new(0), 1 << 16)];
    let zones = [ZoneConfig {
        name: "Normal",
        node: NodeId::new(0),
        level: 2,
        ranges: &ranges,
        watermarks: None,
    }];
    let config = Config::new(cpus, &zones);
    let mut metadata = vec![MaybeUninit::uninit(); Depot::metadata_bytes(&config).unwrap()];
    let locks: Vec<_> = (0..cpus).map(|_| CpuLock::new()).collect();
    let depot = Depot::new(&config, &mut metadata, LockedCpus::new(&locks, ByThread)).unwrap();

    let span = Span::new(VirtAddr::new(0x4000_0000), 1 << 18);
    let mapper = NullMapper::new(span, PageSize::Kib4);
    let config = VmapConfig { stale: StaleData::Keep, ..VmapConfig::new(cpus, 10_000) };
    let mut metadata =
        vec![MaybeUninit::uninit(); Tested::metadata_bytes(&config, &mapper).unwrap()];
    // SAFETY: nothing is mapped, and the depot is used by this vmap alone.
    let vmap = unsafe { Tested::new(&config, &mut metadata, mapper, &depot) }.unwrap();

    let area =
        || vmap.free(black_box(vmap.alloc(black_box(5), Options::DEFAULT).unwrap())).unwrap();
    let memory =
        || vmap.vfree(black_box(vmap.vmalloc(black_box(16), Options::DEFAULT).unwrap())).unwrap();
    let frames: Vec<_> = (0..16).map(Pfn::new).collect();
    let ram = || {
        let addr = vmap.vm_map_ram(&frames, Options::DEFAULT).unwrap();
        vmap.vm_unmap_ram(black_box(addr), 16).unwrap();
    };
    for threads in [1, cpus] {
        println!(
            "alloc + free, 5 pages, {threads} threads: {:.1} ns",
            measure(threads, pairs, area)
        );
        println!(
            "vmalloc + vfree, 16 pages, {threads} threads: {:.1} ns",
            measure(threads, pairs, memory)
        );
        println!(
            "vm_map_ram + unmap, 16 pages, {threads} threads: {:.1} ns",
            measure(threads, pairs / 20, ram)
        );
    }
    println!("{:#?}", vmap.stats());
}
