//! Settings of workloads: CPUs, samples, effort, designs and their variants.

use std::num::NonZeroU32;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pagedepot::CpuId;

use super::clients::{self, Clients};
use super::options::{FillOptions, MeasureOptions};
use crate::design::pool::SharedPool;
use crate::design::variant::Variant;
use crate::design::{Demand, Lineup};
use crate::failure::Failure;
use crate::harness::samples::ROUNDS_TO_JUDGE;
use crate::harness::{
    Contender, DrainTally, Drains, Pace, Schedule, Series, Subject, cpus, interleave, lock,
};
use crate::names::Design;
use crate::report::{Progress, counted, table};

/// The amount to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effort {
    /// Everything: figures that can be judged.
    Full,
    /// The most important parts of it.
    Short,
    /// The least that shows that it works.
    Quick,
}

/// Settings of a measurement.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The CPUs to use.
    pub cpus: Vec<CpuId>,
    /// Whether the user said how many.
    pub cpus_given: bool,
    /// Numbers of CPUs to measure with.
    pub clients: Clients,
    /// Windows per contender.
    pub rounds: u32,
    /// Whether the user said how many.
    pub rounds_given: bool,
    /// The amount of the workload to run.
    pub effort: Effort,
    /// Seed of random numbers.
    pub seed: u64,
    /// The designs that there are.
    pub lineup: &'static dyn Lineup,
    /// The designs asked for; none: all that can run.
    pub designs: Vec<Design>,
    /// The variants of designs to make.
    pub variant: Variant,
    /// Drains per second forced behind the workload.
    pub drains: Option<NonZeroU32>,
    /// The drains that there were behind the workload so far.
    pub drained: Arc<Mutex<DrainTally>>,
    /// Whether to vary what can be tuned.
    pub tune: bool,
    /// Whether to measure a program that goes on working.
    pub busy: bool,
    /// The file to draw memory over time into.
    pub svg: Option<PathBuf>,
    /// The orders of blocks asked for; none: the workload's own.
    pub orders: Vec<u32>,
    /// The memory to fill, and the way to fill it.
    pub fill: FillOptions,
    /// The place for progress.
    pub progress: Progress,
    /// Memory that the threads' designs share.
    pub memory: SharedPool,
}

/// Share of the drains that were due below which a note says how many there were.
const DRAINED_SHARE: f64 = 0.9;

/// Windows per contender with `--quick`.
const ROUNDS_QUICK: u32 = 11;

impl Settings {
    /// Makes settings from the options, on the first CPUs, as many as they name.
    ///
    /// # Errors
    /// When this process may not use so many CPUs.
    pub fn new(
        lineup: &'static dyn Lineup,
        options: &MeasureOptions,
        effort: Effort,
    ) -> Result<Self, Failure> {
        let rounds = if effort == Effort::Quick { ROUNDS_QUICK } else { ROUNDS_TO_JUDGE as u32 };
        Ok(Settings {
            cpus: first_cpus(options.cpus)?,
            cpus_given: options.cpus.is_some(),
            clients: Clients::Auto,
            rounds: options.runs.unwrap_or(rounds),
            rounds_given: options.runs.is_some(),
            effort,
            seed: options.seed,
            lineup,
            designs: options.designs.clone(),
            variant: Variant::default(),
            drains: None,
            drained: Arc::default(),
            tune: false,
            busy: false,
            svg: None,
            orders: Vec::new(),
            fill: FillOptions::default(),
            progress: Progress::on_stderr(),
            memory: SharedPool::default(),
        })
    }

    /// The designs to measure of those that the workload called `name` offers: those asked for, or
    /// all that can run here.
    ///
    /// # Errors
    /// When one asked for cannot take part.
    pub fn designs(&self, name: &str, offered: &[Design]) -> Result<Vec<Design>, Failure> {
        let designs: Vec<Design> = if self.designs.is_empty() {
            let suits = |design: &Design| match self.effort {
                // Peers take longer than all others together, and the tour is to take a minute.
                Effort::Short => !design.touches_pages() && !design.is_of_a_thread(),
                Effort::Full | Effort::Quick => true,
            };
            let offered = offered.iter().copied().filter(suits);
            offered.filter(|&design| self.why_not(design).is_none()).collect()
        } else {
            for &design in &self.designs {
                if !offered.contains(&design) {
                    let offered = self.lineup.list(offered);
                    return Err(Failure::Usage(format!(
                        "design {design} cannot do `bench {name}`; there are {offered}"
                    )));
                }
                if let Some(why) = self.why_not(design) {
                    return Err(Failure::Usage(why));
                }
            }
            offered.iter().copied().filter(|design| self.designs.contains(design)).collect()
        };
        match self.variant.unused(&designs) {
            Some(why) => Err(Failure::Usage(why)),
            None => Ok(designs),
        }
    }

    /// The reason why a design cannot run here as asked for.
    pub fn why_not(&self, design: Design) -> Option<String> {
        let undrained = self.drains.is_some() && !Design::PAGED.contains(&design);
        let undrained = undrained.then(|| {
            format!(
                "design {design} cannot be drained; with --drains there are {}",
                self.lineup.list(Design::PAGED)
            )
        });
        self.lineup.unavailable(design).or_else(|| self.variant.refuses(design)).or(undrained)
    }

    /// The demand on designs of a workload on the first `cpus` CPUs.
    pub fn demand(&self, cpus: usize, blocks_per_cpu: u32, frames_per_block: u32) -> Demand {
        let (variant, memory) = (self.variant, self.memory.clone());
        Demand {
            blocks_per_cpu,
            frames_per_block,
            cpus: self.cpus[..cpus].to_vec(),
            memory_pages: None,
            fills_memory: false,
            isolated: None,
            variant,
            memory,
        }
    }

    /// Length of a window.
    pub fn window(&self) -> Duration {
        Duration::from_millis(if self.effort == Effort::Quick { 2 } else { 10 })
    }

    /// A schedule of as many windows as asked for, of the usual length.
    pub fn schedule(&self) -> Schedule {
        Schedule { rounds: self.rounds, pace: Pace::Lasting(self.window()), drains: None }
    }

    /// # Errors
    /// When the workload of this name cannot have two CPUs.
    pub fn need_two_cpus(&self, name: &str) -> Result<(), Failure> {
        if self.cpus.len() >= 2 {
            return Ok(());
        }
        let needs = format!("`bench {name}` needs two CPUs");
        Err(if self.cpus_given && cpus::usable()?.len() >= 2 {
            Failure::Usage(format!("{needs}: give --cpus 2 or more"))
        } else {
            Failure::Run(format!("{needs}, and this process may use one: run it where it has two"))
        })
    }

    /// The CPU counts to measure with: those asked for, or 1, 2, 4 ... and all in use. The short
    /// form has the first and the last of them.
    pub fn cpu_counts(&self) -> Vec<usize> {
        let all = self.cpus.len();
        match &self.clients {
            Clients::Auto if self.effort == Effort::Short => {
                [1, all].into_iter().take(all.min(2)).collect()
            }
            Clients::Auto => clients::doubling(all),
            Clients::These(these) => these.clone(),
        }
    }

    /// Measures the contenders in turn on the first `cpus` CPUs.
    pub fn interleave<const M: usize>(
        &self,
        what: &str,
        contenders: &mut [Box<dyn Contender<M>>],
        cpus: usize,
        schedule: Schedule,
    ) -> Result<Vec<Series<M>>, Failure> {
        self.interleave_on(what, contenders, &self.cpus[..cpus], schedule)
    }

    /// Interleaves contenders with a seat on each of these CPUs, which may come up more than once.
    pub fn interleave_on<const M: usize>(
        &self,
        what: &str,
        contenders: &mut [Box<dyn Contender<M>>],
        seats: &[CpuId],
        schedule: Schedule,
    ) -> Result<Vec<Series<M>>, Failure> {
        let refs: Vec<_> = contenders.iter().map(AsRef::as_ref).collect();
        let ticks = contenders.len() as u64 * (u64::from(schedule.rounds) + 1);
        let step = self.progress.task(what, ticks);
        // A CPU without a seat, if there is one.
        let drainer =
            self.cpus.iter().find(|cpu| !seats.contains(cpu)).or(self.cpus.last()).copied();
        let drains = self.drains.zip(drainer).map(|(per_s, cpu)| Drains { per_s, cpu });
        let schedule = Schedule { drains, ..schedule };
        let (series, drained) = interleave(&refs, seats, schedule, &|| step.tick());
        *lock(&self.drained) += drained;
        drop(step);
        contenders.iter_mut().filter_map(|one| one.owned_subject()).try_for_each(checked)?;
        Ok(series)
    }

    /// The note that a workload had fewer drains than asked for, if so: a late drain does not make
    /// the next one come sooner. Their count begins anew.
    pub fn about_drains(&self) -> Option<String> {
        let DrainTally { done, due } = std::mem::take(&mut *lock(&self.drained));
        let are_few = self.drains.is_some() && (done as f64) < DRAINED_SHARE * due as f64;
        are_few.then(|| format!("--drains: {done} of {due} that were due; the others were late"))
    }

    /// The addition to a table's heading: drains behind the workload, too few windows to judge by.
    pub fn caveat(&self) -> String {
        let drains = self.drains.map(|per_s| format!("; {per_s} drains of all CPUs per second"));
        let few = (self.rounds as usize) < ROUNDS_TO_JUDGE;
        let few = few.then(|| {
            let windows = counted(self.rounds as usize, "window");
            format!("; too few to judge ratios by: {windows} (--runs {ROUNDS_TO_JUDGE})")
        });
        drains.unwrap_or_default() + &few.unwrap_or_default()
    }
}

/// The first of the CPUs that this process may use, as many as `wanted`; all without a wish.
///
/// # Errors
/// When this process may not use so many.
pub fn first_cpus(wanted: Option<NonZeroU32>) -> Result<Vec<CpuId>, Failure> {
    let mut cpus = cpus::usable()?;
    if let Some(wanted) = wanted {
        let (wanted, usable) = (wanted.get() as usize, cpus.len());
        if wanted > usable {
            return Err(Failure::Usage(format!(
                "{wanted} CPUs asked for, and this process may use {usable}: give --cpus \
                 {usable} or less"
            )));
        }
        cpus.truncate(wanted);
    }
    Ok(cpus)
}

/// Checks a subject when everything was freed.
pub fn checked(subject: &mut dyn Subject) -> Result<(), Failure> {
    subject.check().map_err(|fault| broken(subject.design(), &fault))
}

/// The failure of a design whose metadata is wrong.
pub fn broken(design: Design, fault: &str) -> Failure {
    Failure::Run(format!("{design}: {fault}: please report it"))
}

/// One metric's samples of a design, if it took part.
pub fn samples_of<const M: usize>(
    series: &[Series<M>],
    design: Design,
    metric: usize,
) -> Option<&[f64]> {
    series
        .iter()
        .find(|series| series.design == design)
        .map(|series| series.samples[metric].as_slice())
}

/// A table of a metric: by design the median, the quartiles, and the ratio to `reference`.
pub fn show_against(series: &[Series<1>], heading: &str, reference: Design) -> comfy_table::Table {
    let ratio = format!("x {reference}");
    let mut table = table::new(["design", heading, "quartiles", &*ratio]);
    let base = samples_of(series, reference, 0);
    for Series { design, samples: [samples] } in series {
        table.add_row([
            design.name().to_owned(),
            table::median(samples),
            table::quartiles(samples),
            table::ratio(samples, base),
        ]);
    }
    table::align(table, 1)
}
