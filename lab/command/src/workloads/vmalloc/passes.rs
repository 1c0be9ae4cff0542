//! Passes of the suite over a design: how many areas, and over which mapper and host.

use std::fs;

use pagedepot::PageSize;
use pagedepot_lab_designs::vmap::VmapDesign;
use pagedepot_vmap::{Host, Mapper, NullMapper, Span};

use super::frames::{self, ADDRESSES_START};
use super::host::CountingHost;
use super::memory;
use super::options::{MapperKind, Parameters, VmallocOptions};
use super::suite::HeldAreas;
use super::workers::{self, Pass, WorkOrder};
use crate::design::dispatch::with_vmap;
use crate::design::vmap::VmapDemand;
use pagedepot_cli::failure::Failure;
use pagedepot_cli::harness::stop;
use pagedepot_cli::names::Design;
use pagedepot_cli::workloads::settings::Settings;

/// Areas that all workers hold at a time, at most, where nothing is mapped: half a gigabyte of
/// metadata.
const AREAS_MAX: u64 = 1 << 22;

/// A run of the suite: how, and over how much.
pub struct SuitePlan {
    pub parameters: Parameters,
    mapper: MapperKind,
    pub cpus: u32,
    /// Areas that the tests hold in the kernel.
    pub kernel_held: HeldAreas,
    /// Areas that the tests hold here.
    pub held: HeldAreas,
    seed: u64,
}

impl SuitePlan {
    /// A plan that fits the machine.
    ///
    /// # Errors
    /// When there is room for too few areas.
    pub fn new(
        options: &VmallocOptions,
        parameters: &Parameters,
        settings: &Settings,
    ) -> Result<Self, Failure> {
        let (cpus, parameters) = (settings.cpus.len() as u32, *parameters);
        let areas_max = match options.mapper {
            MapperKind::None => AREAS_MAX,
            MapperKind::Linux => mapped_areas_max()?,
        };
        let kernel_held = HeldAreas::kernel(cpus);
        let held = kernel_held.limited((areas_max / u64::from(parameters.nr_threads)) as u32);
        if held.busy == 0 || held.junk == 0 {
            let workers = parameters.nr_threads;
            return Err(Failure::Usage(format!(
                "{workers} workers may hold less than two areas each: give --nr-threads {} or less",
                areas_max / 2
            )));
        }
        Ok(SuitePlan {
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

    /// Runs the suite so many times over one design; `tick` is called after each pass.
    ///
    /// # Errors
    /// When memory or threads cannot be had, or the design lost track of an area.
    pub fn run(&self, design: Design, passes: u32, tick: impl Fn()) -> Result<Vec<Pass>, Failure> {
        // Held ones, what a loop allocates, and what waits for a purge; each with a guard.
        let lazy = self.cpus.ilog2() + 1;
        let pages = 2 * self.areas() + 1024 * self.parameters.nr_threads.max(4) + (lazy << 15);
        let demand = VmapDemand::new(self.cpus, (4 * self.areas() + (1 << 17)).min((1 << 24) - 1));
        let suite = Passes { plan: self, design, demand, passes, tick: &tick };
        match self.mapper {
            MapperKind::None => {
                frames::with_numbers(self.cpus, pages.next_multiple_of(1 << 15), |numbers| {
                    let span =
                        Span::new(ADDRESSES_START, (8 * u64::from(pages)).min(1 << 28) as u32);
                    // SAFETY: nothing is mapped, and the numbers are the suite's alone.
                    unsafe {
                        suite.over(NullMapper::new(span, PageSize::Kib4), &CountingHost(numbers))
                    }
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
struct Passes<'r> {
    plan: &'r SuitePlan,
    design: Design,
    demand: VmapDemand,
    passes: u32,
    tick: &'r dyn Fn(),
}

impl Passes<'_> {
    /// # Safety
    /// Requires what [`Vmap::new`](pagedepot_vmap::Vmap::new) requires.
    unsafe fn over<M: Mapper, H: Host>(&self, mapper: M, host: &H) -> Result<Vec<Pass>, Failure> {
        // SAFETY: the caller's promise.
        unsafe {
            with_vmap!(self.design, &self.demand, (mapper, host), |vmap| self.passes(vmap, host))
        }?
    }

    fn passes(&self, mut design: impl VmapDesign, host: &impl Host) -> Result<Vec<Pass>, Failure> {
        let SuitePlan { parameters, held, mapper, seed, .. } = self.plan;
        let is_mapped = *mapper == MapperKind::Linux;
        let one = |pass| {
            let seed = seed.wrapping_add(u64::from(pass) << 32);
            let orders = WorkOrder { parameters, held: *held, is_mapped, seed };
            let pass = workers::pass(&mut design, host, &orders);
            (self.tick)();
            pass
        };
        (0..self.passes).take_while(|&pass| pass == 0 || !stop::is_asked()).map(one).collect()
    }
}
