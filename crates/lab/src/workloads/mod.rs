//! The workloads.

pub mod clients;
mod drain;
mod hot;
mod kernbench;
mod pagealloc;
mod pft;
mod producer_consumer;
pub mod soak;
mod streams;
pub mod vmalloc;

use std::num::NonZeroU32;
use std::time::Duration;

use pagedepot::CpuId;
use pagedepot_rseq::RseqMissing;
use pagedepot_rseq::membarrier::Unfenced;

use self::clients::Clients;
use crate::design::pool::SharedPool;
use crate::design::variant::Variant;
use crate::design::{self, Demand, Design};
use crate::failure::Failure;
use crate::harness::samples::ROUNDS_TO_JUDGE;
use crate::harness::{Contender, Drains, Pace, Schedule, Series, cpus, interleave};
use crate::report::{Progress, Report, counted};

/// A workload of `bench`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Workload {
    /// One block allocated and freed, again and again.
    Hot,
    /// Batches of all sizes and orders, and filling memory.
    Pagealloc,
    /// First-touching zeroed pages until memory is used up.
    Pft,
    /// Allocated on one CPU, freed on another.
    ProducerConsumer,
    /// Taking back what a CPU caches.
    Drain,
    /// Buffers filled on one CPU, read and freed on another.
    UdpStream,
    /// Many such streams.
    SctpMany,
    /// The recorded build, by a thread per recorded CPU.
    Kernbench,
}

impl Workload {
    /// All of them.
    pub const ALL: [Workload; 8] = [
        Workload::Hot,
        Workload::Pagealloc,
        Workload::Pft,
        Workload::ProducerConsumer,
        Workload::Drain,
        Workload::UdpStream,
        Workload::SctpMany,
        Workload::Kernbench,
    ];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Workload::Hot => "hot",
            Workload::Pagealloc => "pagealloc",
            Workload::Pft => "pft",
            Workload::ProducerConsumer => "producer-consumer",
            Workload::Drain => "drain",
            Workload::UdpStream => "udp-stream",
            Workload::SctpMany => "sctp-many",
            Workload::Kernbench => "kernbench",
        }
    }

    /// The workload called `name`.
    ///
    /// # Errors
    /// Lists the names there are.
    pub fn parse(name: &str) -> Result<Self, String> {
        let names = || Self::ALL.map(Self::name).join(", ");
        Self::ALL
            .into_iter()
            .find(|workload| workload.name() == name)
            .ok_or_else(|| format!("no such workload; there are {}", names()))
    }

    /// The designs that can do it.
    pub const fn designs(self) -> &'static [Design] {
        match self {
            Workload::Hot => &hot::DESIGNS,
            Workload::Pagealloc | Workload::ProducerConsumer => &Design::ALLOCATORS,
            Workload::Pft => &pft::DESIGNS,
            Workload::Drain => &drain::DESIGNS,
            Workload::UdpStream | Workload::SctpMany | Workload::Kernbench => &Design::PAGED,
        }
    }

    /// Measures it.
    ///
    /// # Errors
    /// When a design cannot take part, or the machine lacks what it needs.
    pub fn run(self, settings: &Settings) -> Result<Report, Failure> {
        if self == Workload::Drain && settings.drains.is_some() {
            let what = "--drains is for other workloads: `bench drain` has rates of its own";
            return Err(Failure::Usage(what.to_owned()));
        }
        if settings.tune && !matches!(self, Workload::UdpStream | Workload::SctpMany) {
            return Err(Failure::Usage(format!(
                "--tune is for udp-stream and sctp-many, not for {}",
                self.name()
            )));
        }
        cpus::check_seats(&settings.cpus)?;
        let mut report = match self {
            Workload::Hot => hot::run(settings),
            Workload::Pagealloc => pagealloc::run(settings),
            Workload::Pft => pft::run(settings),
            Workload::ProducerConsumer => producer_consumer::run(settings),
            Workload::Drain => drain::run(settings),
            Workload::UdpStream | Workload::SctpMany => streams::run(settings, self),
            Workload::Kernbench => kernbench::run(settings),
        }?;
        report.tag(|design| {
            let design = Design::parse(design).expect("rows are of designs");
            let mut params = settings.variant.params(design);
            params.extend(settings.drains.map(|per_s| ("drains_per_s", per_s.get().into())));
            params
        });
        if let Some(why) = RseqMissing::find() {
            report.note(format!(
                "no restartable sequences: {why}; without, the depot takes a lock per CPU, and {} cannot run",
                design::list(&Design::WITH_RSEQ)
            ));
        }
        if let Some(why) = Unfenced::find() {
            report.note(format!(
                "sequences cannot be fenced: {why}; without, full drains of the depot leave the front of each CPU and are not measured, and {} cannot run",
                design::list(&Design::WITH_FENCES)
            ));
        }
        Ok(report)
    }
}

/// How much to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effort {
    /// Everything, to judge by.
    Full,
    /// The most important parts of it.
    Short,
    /// To see that it works.
    Quick,
}

/// How to measure.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The CPUs to use, first one first.
    pub cpus: Vec<CpuId>,
    /// Whether the user said how many.
    pub cpus_given: bool,
    /// How many of them at a time.
    pub clients: Clients,
    /// Windows per contender.
    pub rounds: u32,
    /// How much.
    pub effort: Effort,
    /// Of everything random.
    pub seed: u64,
    /// The designs asked for; none: all that can run.
    pub designs: Vec<Design>,
    /// Which variants of them.
    pub variant: Variant,
    /// Drains per second forced behind the workload.
    pub drains: Option<NonZeroU32>,
    /// Vary what can be tuned.
    pub tune: bool,
    /// Tells how far it is.
    pub progress: Progress,
    /// For the threads' designs.
    pub memory: SharedPool,
}

impl Settings {
    /// The designs to measure: those asked for, or all of `offered` that can run here.
    ///
    /// # Errors
    /// When one asked for cannot take part.
    fn designs(&self, workload: Workload) -> Result<Vec<Design>, Failure> {
        let offered = workload.designs();
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
                    let (name, offered) = (workload.name(), design::list(offered));
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

    /// Why a design cannot run here as asked for.
    pub fn why_not(&self, design: Design) -> Option<String> {
        let undrained = self.drains.is_some() && !Design::PAGED.contains(&design);
        let undrained = undrained.then(|| {
            format!(
                "design {design} cannot be drained; with --drains there are {}",
                design::list(&Design::PAGED)
            )
        });
        design.unavailable().or_else(|| self.variant.refuses(design)).or(undrained)
    }

    /// What a workload on the first `cpus` CPUs asks of designs.
    fn demand(&self, cpus: usize, blocks_per_cpu: u32, frames_per_block: u32) -> Demand {
        let (variant, memory) = (self.variant, self.memory.clone());
        Demand {
            blocks_per_cpu,
            frames_per_block,
            cpus: self.cpus[..cpus].to_vec(),
            variant,
            memory,
        }
    }

    /// How long a window lasts.
    fn window(&self) -> Duration {
        Duration::from_millis(if self.effort == Effort::Quick { 2 } else { 10 })
    }

    /// As many windows as asked for, of the usual length.
    fn schedule(&self) -> Schedule {
        Schedule { rounds: self.rounds, pace: Pace::Lasting(self.window()), drains: None }
    }

    /// The CPU counts to measure with: those asked for, or one, and all in use.
    fn cpu_counts(&self) -> Vec<usize> {
        match &self.clients {
            Clients::Auto => {
                [1, self.cpus.len()].into_iter().take(self.cpus.len().min(2)).collect()
            }
            Clients::These(these) => these.clone(),
        }
    }

    /// Measures the contenders in turn on the first `cpus` CPUs.
    fn interleave<const M: usize>(
        &self,
        what: &str,
        contenders: &mut [Box<dyn Contender<M>>],
        cpus: usize,
        schedule: Schedule,
    ) -> Result<Vec<Series<M>>, Failure> {
        self.interleave_on(what, contenders, &self.cpus[..cpus], schedule)
    }

    /// The same with a seat on each of these CPUs, which may come up more than once.
    fn interleave_on<const M: usize>(
        &self,
        what: &str,
        contenders: &mut [Box<dyn Contender<M>>],
        seats: &[CpuId],
        schedule: Schedule,
    ) -> Result<Vec<Series<M>>, Failure> {
        let refs: Vec<_> = contenders.iter().map(AsRef::as_ref).collect();
        let ticks = contenders.len() as u64 * (u64::from(schedule.rounds) + 1);
        let step = self.progress.step(what, ticks);
        // A CPU without a seat, if there is one.
        let drainer =
            self.cpus.iter().find(|cpu| !seats.contains(cpu)).or(self.cpus.last()).copied();
        let drains = self.drains.zip(drainer).map(|(per_s, cpu)| Drains { per_s, cpu });
        let schedule = Schedule { drains, ..schedule };
        let series = interleave(&refs, seats, schedule, &|| step.tick());
        drop(step);
        for contender in contenders {
            checked(contender.design(), contender.check())?;
        }
        Ok(series)
    }

    /// What a table's reader should know besides: drains behind it, ratios of too few windows.
    fn caveat(&self) -> String {
        let drains = self.drains.map(|per_s| format!("; {per_s} drains of all CPUs per second"));
        let few = (self.rounds as usize) < ROUNDS_TO_JUDGE;
        let few = few.then(|| {
            let windows = counted(self.rounds as usize, "window");
            format!("; too few to judge ratios by: {windows} (--runs {ROUNDS_TO_JUDGE})")
        });
        drains.unwrap_or_default() + &few.unwrap_or_default()
    }
}

/// What a design's metadata said when everything was freed.
fn checked(design: Design, found: Result<(), String>) -> Result<(), Failure> {
    found.map_err(|fault| Failure::Run(format!("{design}: {fault}: please report it")))
}

/// One metric's samples of a design, if it took part.
fn samples_of<const M: usize>(
    series: &[Series<M>],
    design: Design,
    metric: usize,
) -> Option<&[f64]> {
    series
        .iter()
        .find(|series| series.design == design)
        .map(|series| series.samples[metric].as_slice())
}
