//! `vmalloc`: the suite of the kernel's `lib/test_vmalloc.c` over designs for address space, and
//! what a pair of requests costs.
//!
//! | module | what |
//! |---|---|
//! | `options` | parameters and presets |
//! | `suite`, `workers` | the tests, and who runs them |
//! | `subject`, `host`, `frames` | the designs, and what they stand on |
//! | `replay` | a trace's vmalloc events over the designs |
//! | `pairs`, `peers`, `memory` | one allocation and free, again and again |
//! | `show` | lines as in the kernel's log, tables, rows |

mod frames;
mod host;
mod memory;
mod options;
mod pairs;
#[cfg(feature = "peers")]
mod peers;
mod replay;
mod show;
mod subject;
mod suite;
mod workers;

use std::fs;

use pagedepot::PageSize;
use pagedepot_designs::vmap::VmapDesign;
use pagedepot_vmap::{Host, Mapper, NullMapper, Span, VirtAddr};

pub use options::VmallocOptions;

use crate::design::{self, Design};
use crate::failure::Failure;
use crate::harness::cpus;
use crate::report::Report;
use crate::workloads::{Effort, Settings};
use host::Counting;
use options::{MapperKind, Parameters};
use subject::{Demand, WithVmap};
use suite::Held;
use workers::{Orders, Pass};

/// Name of the workload.
const NAME: &str = "vmalloc";

/// Designs that have rows.
const OFFERED: [Design; 6] = [
    Design::Depot,
    Design::VmapGlobalLock,
    Design::VmapNodes,
    Design::Mmap,
    Design::RangeAlloc,
    Design::OffsetAllocator,
];

/// Where the metadata' range of addresses begins, no more aligned than `mmap` would have it.
/// Nothing is there.
const BOOKS_START: VirtAddr = VirtAddr::new(0x2000_4000_0000);
/// Areas that all workers hold at a time, at most, where nothing is mapped: half a gigabyte of
/// metadata.
const AREAS_MAX: u64 = 1 << 22;

/// Runs the suite over each design, then the pairs.
///
/// # Errors
/// When a design cannot run here, or the machine lacks what it needs.
pub fn run(options: &VmallocOptions, settings: &Settings) -> Result<Report, Failure> {
    let designs = wanted(settings)?;
    if let Some(&idle) = settings.designs.iter().find(|design| !has_rows(**design, options)) {
        let there =
            OFFERED.into_iter().filter(|&design| has_rows(design, options)).collect::<Vec<_>>();
        let there = design::list(&there);
        return Err(Failure::Usage(format!(
            "design {idle} measures nothing with these options{}; there are {there}",
            hint(idle, options)
        )));
    }
    if let Some(trace) = &options.trace {
        return replay::run((trace, options.expand.limit()), &designs, settings);
    }
    if !options.suite_only {
        cpus::check_seats(&settings.cpus)?;
    }
    let parameters = options.parameters(settings.cpus.len(), settings.effort == Effort::Quick);
    let mut report = Report::default();
    let mut passes = Vec::new();
    let plan = Plan::new(options, &parameters, settings)?;
    for &design in designs.iter().filter(|design| subject::DESIGNS.contains(design)) {
        let step =
            settings.progress.step(&format!("{NAME}, suite, {design}"), options.passes.into());
        passes.push((design, plan.run(design, options.passes, || step.tick())?));
    }
    show::suite(&mut report, &plan, &passes);
    if !options.suite_only {
        report.append(pairs::run(options.mapper, &designs, settings)?);
    }
    Ok(report)
}

/// The designs asked for, or all that can run here.
fn wanted(settings: &Settings) -> Result<Vec<Design>, Failure> {
    if settings.designs.is_empty() {
        return Ok(OFFERED.into_iter().filter(|design| design.unavailable().is_none()).collect());
    }
    for design in &settings.designs {
        if !OFFERED.contains(design) {
            let offered = design::list(&OFFERED);
            return Err(Failure::Usage(format!(
                "design {design} cannot do `{NAME}`; there are {offered}"
            )));
        }
        if let Some(why) = design.unavailable() {
            return Err(Failure::Usage(why));
        }
    }
    Ok(OFFERED.into_iter().filter(|design| settings.designs.contains(design)).collect())
}

/// Which option keeps a design from being measured.
fn hint(design: Design, options: &VmallocOptions) -> &'static str {
    match design {
        Design::Mmap if options.mapper == MapperKind::None => " (it needs --mapper linux)",
        _ if options.suite_only => " (it has pairs only: leave out --suite-only)",
        _ => "",
    }
}

/// Whether these options measure anything of a design.
fn has_rows(design: Design, options: &VmallocOptions) -> bool {
    let pairs_too = options.trace.is_none() && !options.suite_only;
    subject::DESIGNS.contains(&design) || pairs_too && pairs::has_rows(options.mapper, design)
}

/// A run of the suite: how, and over how much.
struct Plan {
    parameters: Parameters,
    mapper: MapperKind,
    cpus: u32,
    /// As in the kernel, and as here.
    kernel_held: Held,
    held: Held,
    seed: u64,
}

impl Plan {
    fn new(
        options: &VmallocOptions,
        parameters: &Parameters,
        settings: &Settings,
    ) -> Result<Self, Failure> {
        let (cpus, parameters) = (settings.cpus.len() as u32, *parameters);
        let areas_max = match options.mapper {
            MapperKind::None => AREAS_MAX,
            MapperKind::Linux => mapped_areas_max()?,
        };
        let kernel_held = Held::kernel(cpus);
        let held = kernel_held.limited((areas_max / u64::from(parameters.nr_threads)) as u32);
        if held.busy == 0 || held.junk == 0 {
            let workers = parameters.nr_threads;
            return Err(Failure::Usage(format!(
                "{workers} workers may hold less than two areas each: give --nr-threads {} or less",
                areas_max / 2
            )));
        }
        Ok(Plan {
            parameters,
            mapper: options.mapper,
            cpus,
            kernel_held,
            held,
            seed: settings.seed,
        })
    }

    /// Areas that all workers hold at a time.
    fn areas(&self) -> u32 {
        self.held.areas(self.parameters.run_test_mask) * self.parameters.nr_threads
    }

    fn run(&self, design: Design, passes: u32, tick: impl Fn()) -> Result<Vec<Pass>, Failure> {
        // Held ones, what a loop allocates, and what waits for a purge; each with a guard.
        let lazy = self.cpus.ilog2() + 1;
        let pages = 2 * self.areas() + 1024 * self.parameters.nr_threads.max(4) + (lazy << 15);
        let demand = Demand::new(self.cpus, (4 * self.areas() + (1 << 17)).min((1 << 24) - 1));
        let suite = Run { plan: self, design, demand, passes, tick: &tick };
        match self.mapper {
            MapperKind::None => {
                frames::with_numbers(self.cpus, pages.next_multiple_of(1 << 15), |numbers| {
                    let span = Span::new(BOOKS_START, (8 * u64::from(pages)).min(1 << 28) as u32);
                    // SAFETY: nothing is mapped, and the numbers are the suite's alone.
                    unsafe { suite.over(NullMapper::new(span, PageSize::Kib4), &Counting(numbers)) }
                })
            }
            MapperKind::Linux => {
                let (mapper, host) = memory::ends(pages, 8 * pages, false)?;
                // SAFETY: both are over one depot, which is the suite's alone.
                unsafe { suite.over(mapper, &host) }
            }
        }
    }
}

/// Areas that may be mapped at a time: each may need two mappings, itself and the guard, and so may
/// those that wait for a purge.
fn mapped_areas_max() -> Result<u64, Failure> {
    let path = "/proc/sys/vm/max_map_count";
    let text =
        fs::read_to_string(path).map_err(|e| Failure::Run(format!("cannot read {path}: {e}")))?;
    let mappings: u64 = text.trim().parse().map_err(|e| Failure::Run(format!("{path}: {e}")))?;
    Ok(mappings / 8)
}

/// A design's passes of the suite.
struct Run<'r> {
    plan: &'r Plan,
    design: Design,
    demand: Demand,
    passes: u32,
    tick: &'r dyn Fn(),
}

impl Run<'_> {
    /// # Safety
    /// As for [`subject::make`].
    unsafe fn over<M: Mapper, H: Host>(&self, mapper: M, host: &H) -> Result<Vec<Pass>, Failure> {
        // SAFETY: the caller's promise.
        unsafe {
            subject::make(self.design, &self.demand, (mapper, host), Passes { run: self, host })
        }?
    }
}

/// As [`Run`], over whichever design.
struct Passes<'p, H> {
    run: &'p Run<'p>,
    host: &'p H,
}

impl<'d, H: Host> WithVmap<'d> for Passes<'_, H> {
    type Output = Result<Vec<Pass>, Failure>;

    fn with<D: VmapDesign + 'd>(self, mut design: D) -> Self::Output {
        let Plan { parameters, held, mapper, seed, .. } = self.run.plan;
        let is_mapped = *mapper == MapperKind::Linux;
        let one = |pass| {
            let seed = seed.wrapping_add(u64::from(pass) << 32);
            let orders = Orders { parameters, held: *held, is_mapped, seed };
            let pass = workers::pass(&mut design, self.host, &orders);
            (self.run.tick)();
            pass
        };
        (0..self.run.passes).map(one).collect()
    }
}
