//! One allocation and one free, again and again: what a request costs at least.
//!
//! | pair | pages | with a mapper | what |
//! |---|---|---|---|
//! | address | 5 | | the address part alone |
//! | warm | 16 | linux | freed memory stayed mapped, and is not touched |
//! | cold | 16 | linux | nothing stays mapped; every page is touched, because `mmap`'s pages come with the touch, vmalloc's before |
//! | ram | 16 | either | the caller's frames, mapped for a short time |
//!
//! A purge unmaps what some thousand cold or ram pairs have freed. So a window of such pairs lasts
//! for [`PURGES`] purges. The median of shorter windows has no purge in it, and the time that a
//! design takes to unmap does not count.

use std::hint::black_box;
use std::ptr;
use std::time::{Duration, Instant};

use pagedepot::{Flags, Order, PageSize, Pfn};
use pagedepot_lab_designs::vmap::VmapDesign;
use pagedepot_vmap::{Host, NoFrames, NullMapper, Span, StaleData};

use super::frames::{ADDRESSES_START, Here};
use super::host::CountingHost;
use super::memory::{self, Mmap};
use super::options::{MapperKind, NAME};
use super::suite::HeldAreas;
use crate::design::dispatch::with_vmap;
use crate::design::vmap::VmapDemand;
use pagedepot_cli::failure::Failure;
use pagedepot_cli::harness::{Contender, Pace, Schedule, Seat, Series, Subject, interleave};
use pagedepot_cli::names::Design;
use pagedepot_cli::report::rows::{Metric, Params, params};
use pagedepot_cli::report::{Report, table};
use pagedepot_cli::workloads::settings::{Effort, Settings};

/// Pages of the range: several times what may be lazy.
const RANGE_PAGES: u32 = 1 << 18;
/// Purges in a window of pairs that purges unmap.
const PURGES: u64 = 4;

/// A sort of pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Address,
    Warm,
    /// Warm, and zeroed.
    Zeroed,
    Cold,
    Ram,
}

impl Kind {
    /// The kinds of pairs that can be measured of a design.
    fn of(design: Design, mapper: MapperKind) -> &'static [Kind] {
        match (design, mapper) {
            (Design::Depot, MapperKind::Linux) => {
                &[Kind::Warm, Kind::Zeroed, Kind::Cold, Kind::Ram]
            }
            (Design::Depot | Design::VmapGlobalLock | Design::VmapNodes, MapperKind::None) => {
                &[Kind::Address, Kind::Ram]
            }
            (Design::VmapGlobalLock | Design::VmapNodes, MapperKind::Linux) => {
                &[Kind::Cold, Kind::Ram]
            }
            (Design::RangeAlloc | Design::OffsetAllocator, MapperKind::None) => &[Kind::Address],
            (Design::Mmap, MapperKind::Linux) => &[Kind::Cold],
            _ => &[],
        }
    }

    const fn pages(self) -> u32 {
        if matches!(self, Kind::Address) { 5 } else { 16 }
    }

    const fn label(self) -> &'static str {
        match self {
            Kind::Address => "addresses",
            Kind::Warm => "warm, data kept",
            Kind::Zeroed => "warm, zeroed",
            Kind::Cold => "cold, touched",
            Kind::Ram => "vm_map_ram",
        }
    }

    const fn metric(self) -> Metric {
        match self {
            Kind::Address | Kind::Warm | Kind::Cold => ("pair_ns", "ns"),
            Kind::Zeroed => ("zeroed_pair_ns", "ns"),
            Kind::Ram => ("ram_pair_ns", "ns"),
        }
    }

    fn params(self, mapper: MapperKind, threads: usize) -> Params {
        let (pages, warm) = (self.pages().into(), (self != Kind::Cold && self != Kind::Ram).into());
        let threads = threads as i64;
        params([("pages", pages), ("mapper", mapper.param()), ("warm", warm), ("threads", threads)])
    }

    /// Whether purges unmap what the pairs free.
    const fn is_purged(self) -> bool {
        matches!(self, Kind::Cold | Kind::Ram)
    }

    /// The length of a window with so many seats of `cpus` CPUs.
    fn pace(self, seats: usize, (cpus, effort): (u32, Effort)) -> Pace {
        let guarded = u64::from(self.pages()) + 1;
        if self.is_purged() {
            Pace::Units((PURGES * lazy_pages_max(cpus)).div_ceil(guarded * seats as u64))
        } else {
            Pace::Lasting(window(effort))
        }
    }

    /// Pages of memory behind the mappings: more than may wait for a purge, where frames do. While
    /// a purge runs, as much again may become lazy.
    fn memory_pages(self, cpus: u32) -> u32 {
        if matches!(self, Kind::Cold) { 3 * lazy_pages_max(cpus) as u32 } else { 1 << 12 }
    }

    fn demand(self, cpus: u32) -> VmapDemand {
        let lazy_pages_max = Some(lazy_pages_max(cpus));
        let demand = VmapDemand { lazy_pages_max, ..VmapDemand::new(cpus, 1 << 16) };
        match self {
            Kind::Zeroed => VmapDemand { stale: StaleData::Zero, ..demand },
            Kind::Cold => VmapDemand { warm_pages_max: Some(0), ..demand },
            Kind::Address | Kind::Warm | Kind::Ram => demand,
        }
    }
}

/// Freed pages at which a purge begins, as in the kernel.
fn lazy_pages_max(cpus: u32) -> u64 {
    HeldAreas::kernel(cpus).junk.into()
}

/// Whether the mapper makes any pair of a design possible.
pub fn has_rows(mapper: MapperKind, design: Design) -> bool {
    !Kind::of(design, mapper).is_empty()
}

/// Measures the pairs that the mapper makes possible, on one CPU and on all.
///
/// # Errors
/// When memory cannot be had.
pub fn run(mapper: MapperKind, designs: &[Design], settings: &Settings) -> Result<Report, Failure> {
    let kinds = |&design: &Design| Kind::of(design, mapper).iter().map(move |&kind| (design, kind));
    let mut all: Vec<(Design, Kind)> = designs.iter().flat_map(kinds).collect();
    // A schedule each.
    all.sort_by_key(|(_, kind)| kind.is_purged());
    let mut report = Report::default();
    if all.is_empty() {
        return Ok(report);
    }
    let counts = [1, settings.cpus.len()].into_iter().take(settings.cpus.len().min(2));
    let mut by_cpus = Vec::new();
    for cpus in counts {
        let mut series = Vec::new();
        for all in all.chunk_by(|(_, one), (_, next)| one.is_purged() == next.is_purged()) {
            let made =
                all.iter().map(|&(design, kind)| contender(design, kind, mapper, (cpus, settings)));
            let pace = all[0].1.pace(cpus, (settings.cpus.len() as u32, settings.effort));
            let made = made.collect::<Result<Vec<_>, _>>()?;
            series.extend(measure_at(pace, &made, cpus, settings));
        }
        by_cpus.push((cpus, series));
    }
    for (cpus, series) in &by_cpus {
        for (series, &(design, kind)) in series.iter().zip(&all) {
            let params = kind.params(mapper, *cpus);
            report.add(NAME, design, kind.metric(), (*cpus, &params), &series.samples[0]);
        }
    }
    report.say(format!("{NAME}: one allocation and one free, ns per pair and thread"));
    let rows: Vec<_> =
        all.iter().map(|&(design, kind)| (design, kind.pages(), kind.label())).collect();
    report.say(show(&by_cpus, &rows));
    Ok(report)
}

/// The length of a window of pairs that need no purge.
fn window(effort: Effort) -> Duration {
    Duration::from_millis(if effort == Effort::Quick { 2 } else { 10 })
}

/// Measures contenders in turn, in windows of the same time.
pub fn measure(
    contenders: &[Box<dyn Contender<1>>],
    cpus: usize,
    settings: &Settings,
) -> Vec<Series<1>> {
    measure_at(Pace::Lasting(window(settings.effort)), contenders, cpus, settings)
}

/// Measures contenders in turn, in windows of this length.
fn measure_at(
    pace: Pace,
    contenders: &[Box<dyn Contender<1>>],
    cpus: usize,
    settings: &Settings,
) -> Vec<Series<1>> {
    let schedule = Schedule { rounds: settings.rounds, pace, drains: None };
    let contenders: Vec<_> = contenders.iter().map(AsRef::as_ref).collect();
    let what = format!("{NAME}, pairs, {cpus} thread{}", if cpus == 1 { "" } else { "s" });
    let step =
        settings.progress.task(&what, contenders.len() as u64 * (u64::from(settings.rounds) + 1));
    interleave(&contenders, &settings.cpus[..cpus], schedule, &|| step.tick()).0
}

fn contender(
    design: Design,
    kind: Kind,
    mapper: MapperKind,
    (seats, settings): (usize, &Settings),
) -> Result<Box<dyn Contender<1>>, Failure> {
    #[cfg(feature = "peers")]
    if let Some(peer) = super::peers::addresses(design, kind.pages(), RANGE_PAGES, seats > 1) {
        return Ok(peer);
    }
    if design == Design::Mmap {
        return Ok(Box::new(Mmap { pages: kind.pages() }));
    }
    let demand = kind.demand(settings.cpus.len() as u32);
    match mapper {
        MapperKind::None => {
            let mapper = NullMapper::new(Span::new(ADDRESSES_START, RANGE_PAGES), PageSize::Kib4);
            // Numbers will do.
            let frames =
                (0..seats as u32).map(|seat| block_of(Pfn::new(seat << 10), kind)).collect();
            let host = CountingHost(NoFrames(Here));
            // SAFETY: nothing is mapped, and there are no frames.
            unsafe {
                with_vmap!(design, &demand, (mapper, host), |subject| Pair::boxed(
                    design, subject, kind, frames
                ))
            }
        }
        MapperKind::Linux => {
            let (mapper, host) = memory::ends(kind.memory_pages(demand.cpus), RANGE_PAGES, true)?;
            let frames = frames_for(kind, seats, &host)?;
            // SAFETY: both are over one depot, which this design and its user, the holder of
            // `frames`, have alone.
            unsafe {
                with_vmap!(design, &demand, (mapper, host), |subject| {
                    Pair::boxed(design, subject, kind, frames)
                })
            }
        }
    }
}

/// Frames to map for a short time, for each seat its own; never given back, like their depot.
fn frames_for(kind: Kind, seats: usize, host: &impl Host) -> Result<Vec<Vec<Pfn>>, Failure> {
    let Kind::Ram = kind else { return Ok(Vec::new()) };
    let block = |_| {
        let order = Order::new(kind.pages().ilog2()).expect("a small block");
        let first = host.alloc_block(order, Flags::MOVABLE);
        Ok(block_of(first.map_err(|e| Failure::Run(format!("frames to map: {e}")))?, kind))
    };
    (0..seats).map(block).collect()
}

fn block_of(first: Pfn, kind: Kind) -> Vec<Pfn> {
    (0..kind.pages()).map(|i| first.add(i)).collect()
}

/// A pair of requests to a design.
struct Pair<D> {
    design: Design,
    subject: D,
    kind: Kind,
    frames: Vec<Vec<Pfn>>,
}

impl<D: VmapDesign + 'static> Pair<D> {
    fn boxed(
        design: Design,
        subject: D,
        kind: Kind,
        frames: Vec<Vec<Pfn>>,
    ) -> Box<dyn Contender<1>> {
        Box::new(Pair { design, subject, kind, frames })
    }
}

impl<D: VmapDesign> Contender<1> for Pair<D> {
    fn subject(&self) -> &dyn Subject {
        &self.design
    }

    fn window(&self, seat: Seat, units: u64) -> [f64; 1] {
        let (subject, pages) = (&self.subject, self.kind.pages());
        let start = Instant::now();
        match self.kind {
            Kind::Address => (0..units).for_each(|_| {
                let addr = subject.alloc(black_box(pages), 1).expect("there is room");
                subject.free(black_box(addr)).expect("it was allocated");
            }),
            Kind::Warm | Kind::Zeroed => (0..units).for_each(|_| {
                let addr = subject.vmalloc(black_box(pages), 1).expect("there is memory");
                subject.vfree(black_box(addr)).expect("it was allocated");
            }),
            Kind::Cold => (0..units).for_each(|_| {
                let addr = subject.vmalloc(black_box(pages), 1).expect("there is memory");
                // SAFETY: mapped writable, this many pages, until it is freed below.
                unsafe { memory::touch(ptr::with_exposed_provenance_mut(addr.get()), pages) };
                subject.vfree(addr).expect("it was allocated");
            }),
            Kind::Ram => (0..units).for_each(|_| {
                let addr = subject.map_ram(&self.frames[seat.index]).expect("there is room");
                subject.unmap_ram(black_box(addr), pages).expect("it was mapped");
            }),
        }
        [start.elapsed().as_nanos() as f64 / units as f64]
    }
}

/// A table of the samples of `rows`: the design, the pages of a request, and what it is.
pub fn show(
    by_cpus: &[(usize, Vec<Series<1>>)],
    rows: &[(Design, u32, &'static str)],
) -> comfy_table::Table {
    let columns = by_cpus.iter().flat_map(|&(cpus, _)| {
        let threads = format!("{cpus} thread{}", if cpus == 1 { "" } else { "s" });
        [threads, "quartiles".into()]
    });
    let words = ["design", "pages", "pair"].map(str::to_owned);
    let change = (by_cpus.len() > 1).then(|| "against 1 thread".to_owned());
    let mut table = table::new(words.into_iter().chain(columns).chain(change));
    for (nth, &(design, pages, label)) in rows.iter().enumerate() {
        let samples = |count: usize| by_cpus[count].1[nth].samples[0].as_slice();
        let cells = (0..by_cpus.len())
            .flat_map(|count| [table::median(samples(count)), table::quartiles(samples(count))]);
        let change = (by_cpus.len() > 1).then(|| table::change(samples(1), Some(samples(0))));
        let words = [design.name().to_owned(), pages.to_string(), label.to_owned()];
        table.add_row(words.into_iter().chain(cells).chain(change));
    }
    table::align(table, 3)
}
