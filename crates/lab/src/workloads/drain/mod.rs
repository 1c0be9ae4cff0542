//! `drain`: a CPU takes back what another caches. What does it cost the other, and how long does it
//! take?
//!
//! # Vocabulary
//! * *owner*: the thread on the CPU that is drained; *drainer*: the thread on another.
//! * *group*: 64 of the owner's operations, timed together.
//! * *fill*: what the owner does before a drain, so that all drains find the same; see
//!   [`owner::fill`].
//! * *interrupts*: those that the kernel counts on the owner's CPU; *interruptions*: the times that
//!   the design itself knows to have stopped a CPU, by work run there or a fence asked for.
//! * *idle window*: as long as the others, with nobody draining: what interrupts the owner's CPU
//!   then is not ours, and is taken off.

mod busy;
mod drainable;
mod drains;
mod halted;
mod owner;
mod stopper;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use pagedepot::CpuId;
use pagedepot_rseq::membarrier::Unfenced;

use self::busy::{Busy, INTERRUPTS, IdleWindow, Rate};
pub use self::drainable::DESIGNS;
use self::drainable::{Drainable, Reach, WithDrainable};
use self::halted::{Halted, State};
use self::owner::Work;
use self::stopper::Stopper;
use super::{Effort, Settings, Workload, checked};
use crate::design::Design;
use crate::failure::Failure;
use crate::harness::samples::median;
use crate::harness::{Contender, Pace, Schedule, Series};
use crate::report::rows::{Metric, Params, params};
use crate::report::{Report, table};

const NAME: &str = "drain";

const RATES: [Rate; 5] = [
    Rate::PerSecond(0),
    Rate::PerSecond(100),
    Rate::PerSecond(1_000),
    Rate::PerSecond(10_000),
    Rate::BackToBack,
];

/// By the metrics of [`busy::METRICS`]; first those of an owner that works in pairs, then of one
/// that works in bursts.
const PAIRS: [Metric; busy::METRICS] = [
    ("owner_ns", "ns"),
    ("owner_p50_ns", "ns"),
    ("owner_p99_ns", "ns"),
    ("owner_p999_ns", "ns"),
    ("drain_ns", "ns"),
    ("drained_pages", "pages"),
    ("interrupts", "1"),
    ("interruptions", "1"),
    ("pending_pages", "pages"),
    ("collect_ns", "ns"),
];
const BURSTS: [Metric; busy::METRICS] = [
    ("burst_owner_ns", "ns"),
    ("burst_owner_p50_ns", "ns"),
    ("burst_owner_p99_ns", "ns"),
    ("burst_owner_p999_ns", "ns"),
    ("burst_drain_ns", "ns"),
    ("burst_drained_pages", "pages"),
    ("burst_interrupts", "1"),
    ("burst_interruptions", "1"),
    ("burst_pending_pages", "pages"),
    ("burst_collect_ns", "ns"),
];

/// By the metrics of [`halted::METRICS`].
const IDLE: [Metric; halted::METRICS] = [
    ("idle_drain_ns", "ns"),
    ("idle_drain_longest_ns", "ns"),
    ("idle_drained_pages", "pages"),
    ("idle_interrupts_per_drain", "1"),
    ("idle_pending_pages", "pages"),
];
const STOPPED: [Metric; halted::METRICS] = [
    ("stopped_drain_ns", "ns"),
    ("stopped_drain_longest_ns", "ns"),
    ("stopped_drained_pages", "pages"),
    ("stopped_interrupts_per_drain", "1"),
    ("stopped_pending_pages", "pages"),
];

/// What a contender measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Busyness {
    design: Design,
    work: Work,
    reach: Reach,
    rate: Rate,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Haltedness {
    design: Design,
    state: State,
    reach: Reach,
}

/// All contenders, each with what it measures.
#[derive(Default)]
struct Contenders {
    busy: Vec<(Busyness, Box<dyn Contender<{ busy::METRICS }>>)>,
    halted: Vec<(Haltedness, Box<dyn Contender<{ halted::METRICS }>>)>,
    /// Whom they share.
    subjects: Vec<Box<dyn Shared>>,
}

/// A subject that contenders share, and that is checked when they are gone.
trait Shared {
    fn check(&mut self) -> (Design, Result<(), String>);
}

impl<S: Drainable> Shared for Arc<S> {
    fn check(&mut self) -> (Design, Result<(), String>) {
        (S::DESIGN, Arc::get_mut(self).expect("all contenders are gone").check())
    }
}

/// Adds the contenders of a design.
struct Add<'a> {
    to: &'a mut Contenders,
    owner: CpuId,
    length: Duration,
    stopper: &'static Stopper,
}

impl WithDrainable for Add<'_> {
    type Output = ();

    fn with<S: Drainable + 'static>(mut self, subject: S) {
        let subject = Arc::new(subject);
        for work in [Work::Pairs, Work::Bursts] {
            self.busy(&subject, work, Reach::Quiet, Rate::PerSecond(0));
        }
        // What a full drain cannot reach, it leaves, and so would pass for a cheap one.
        let is_unfenced = Unfenced::find().is_some();
        for &reach in S::REACHES.iter().filter(|&&reach| reach == Reach::Quiet || !is_unfenced) {
            for rate in &RATES[1..] {
                self.busy(&subject, Work::Pairs, reach, *rate);
                if reach == Reach::Quiet {
                    self.busy(&subject, Work::Bursts, reach, *rate);
                }
            }
            for state in [State::Idle, State::Stopped] {
                self.halted(&subject, state, reach);
            }
        }
        self.to.subjects.push(Box::new(subject));
    }
}

impl Add<'_> {
    fn busy<S: Drainable + 'static>(
        &mut self,
        subject: &Arc<S>,
        work: Work,
        reach: Reach,
        rate: Rate,
    ) {
        let (subject, owner, length) = (Arc::clone(subject), self.owner, self.length);
        let (link, held) = (busy::Link::default(), Mutex::default());
        let contender = Busy { subject, work, rate, reach, length, owner, link, held };
        self.to.busy.push((Busyness { design: S::DESIGN, work, reach, rate }, Box::new(contender)));
    }

    fn halted<S: Drainable + 'static>(&mut self, subject: &Arc<S>, state: State, reach: Reach) {
        let (subject, owner, stopper) = (Arc::clone(subject), self.owner, self.stopper);
        let (link, held) = (halted::Link::default(), Mutex::default());
        let contender = Halted { subject, state, reach, owner, stopper, link, held };
        self.to.halted.push((Haltedness { design: S::DESIGN, state, reach }, Box::new(contender)));
    }
}

/// Measures it: the owner on the first CPU, the drainer on the second.
pub fn run(settings: &Settings) -> Result<Report, Failure> {
    if settings.cpus.len() < 2 {
        return Err(Failure::Usage(format!(
            "`bench {NAME}` needs two CPUs: give --cpus 2, or run it where there are two"
        )));
    }
    let length = Duration::from_millis(match settings.effort {
        Effort::Full => 50,
        Effort::Short => 20,
        Effort::Quick => 10,
    });
    let demand = settings.demand(2, owner::HELD_BLOCKS_MAX, 1);
    let mut contenders = Contenders::default();
    for design in settings.designs(Workload::Drain)? {
        let owner = settings.cpus[0];
        let add = Add { to: &mut contenders, owner, length, stopper: Stopper::get()? };
        drainable::make(design, &demand, add)?;
    }
    let mut report = Report::default();
    run_busy(settings, contenders.busy, length, &mut report)?;
    run_halted(settings, contenders.halted, &mut report)?;
    for subject in &mut contenders.subjects {
        let (design, found) = subject.check();
        checked(design, found)?;
    }
    Ok(report)
}

fn run_busy(
    settings: &Settings,
    contenders: Vec<(Busyness, Box<dyn Contender<{ busy::METRICS }>>)>,
    length: Duration,
    report: &mut Report,
) -> Result<(), Failure> {
    let (what, mut contenders): (Vec<_>, Vec<_>) = contenders.into_iter().unzip();
    contenders.push(Box::new(IdleWindow { length, owner: settings.cpus[0] }));
    let schedule = Schedule { pace: Pace::Units(1), ..settings.schedule() };
    let step = format!("{NAME}, of a busy CPU");
    let mut series = settings.interleave(&step, &mut contenders, 2, schedule)?;
    let idle = series.pop().expect("the idle window").samples[INTERRUPTS].clone();
    for one in &mut series {
        let counts = one.samples[INTERRUPTS].iter().zip(&idle).map(|(count, idle)| count - idle);
        one.samples[INTERRUPTS] = counts.collect();
    }
    for (what, one) in what.iter().zip(&series) {
        add_busy(report, *what, one);
    }
    for (work, does) in [
        (Work::Pairs, "allocates and frees a page; before each drain its shelf is filled"),
        (Work::Bursts, "allocates 512 pages, then frees them"),
    ] {
        report.say(format!(
            "{NAME}: the owner {does}; ns per operation, by groups of 64; {} ms windows{}",
            length.as_millis(),
            settings.caveat()
        ));
        let rows: Vec<_> = what.iter().zip(&series).filter(|(what, _)| what.work == work).collect();
        report.say(show_busy(&rows));
    }
    Ok(())
}

fn add_busy(report: &mut Report, what: Busyness, series: &Series<{ busy::METRICS }>) {
    let metrics = if what.work == Work::Pairs { PAIRS } else { BURSTS };
    // Without drains there is nothing to be full or quiet: the same for both.
    let both = [Reach::Quiet, Reach::Full];
    let reaches = if what.rate == Rate::PerSecond(0) { &both[..] } else { &[what.reach] };
    for reach in reaches {
        let params: Params =
            params([("drains_per_s", what.rate.as_param()), ("full", reach.as_param())]);
        for (metric, samples) in metrics.into_iter().zip(&series.samples) {
            report.add(NAME, what.design, metric, (2, &params), samples);
        }
    }
}

fn show_busy(rows: &[(&Busyness, &Series<{ busy::METRICS }>)]) -> comfy_table::Table {
    let mut table = table::new([
        "design",
        "drain",
        "per s",
        "owner ns",
        "change",
        "p50",
        "p99",
        "p99.9",
        "change",
        "drain us",
        "pages",
        "interrupts",
        "counted",
        "pending",
        "collected us",
    ]);
    for (what, series) in rows {
        let undrained = rows
            .iter()
            .find(|(base, _)| base.design == what.design && base.rate == Rate::PerSecond(0));
        let undrained = undrained.filter(|(base, _)| base != what).map(|(_, base)| base);
        let change = |metric: usize| {
            table::change(&series.samples[metric], undrained.map(|b| b.samples[metric].as_slice()))
        };
        let [mean, p50, p99, p999, drain_ns, pages, interrupts, counted, pending, collect_ns] =
            &series.samples;
        let per_s = match what.rate {
            Rate::PerSecond(rate) => rate.to_string(),
            Rate::BackToBack => "back to back".to_owned(),
        };
        table.add_row([
            what.design.name().to_owned(),
            if what.rate == Rate::PerSecond(0) { "none" } else { what.reach.name() }.to_owned(),
            per_s,
            table::median(mean),
            change(0),
            table::median(p50),
            table::median(p99),
            table::median(p999),
            change(3),
            us(drain_ns),
            table::median(pages),
            table::median(interrupts),
            table::median(counted),
            table::median(pending),
            us(collect_ns),
        ]);
    }
    table::align(table, 2)
}

fn us(ns: &[f64]) -> String {
    table::median(&ns.iter().map(|ns| ns / 1e3).collect::<Vec<_>>())
}

fn run_halted(
    settings: &Settings,
    contenders: Vec<(Haltedness, Box<dyn Contender<{ halted::METRICS }>>)>,
    report: &mut Report,
) -> Result<(), Failure> {
    let (what, mut contenders): (Vec<_>, Vec<_>) = contenders.into_iter().unzip();
    let schedule = Schedule { pace: Pace::Units(1), ..settings.schedule() };
    let step = format!("{NAME}, of a CPU at rest");
    let series = settings.interleave(&step, &mut contenders, 2, schedule)?;
    let headings = [
        "design",
        "drain",
        "owner",
        "drain us",
        "quartiles",
        "longest us",
        "pages",
        "interrupts per drain",
        "pending",
    ];
    let mut table = table::new(headings);
    for (what, one) in what.iter().zip(&series) {
        let metrics = if what.state == State::Idle { IDLE } else { STOPPED };
        for (metric, samples) in metrics.into_iter().zip(&one.samples) {
            report.add(
                NAME,
                what.design,
                metric,
                (2, &params([("full", what.reach.as_param())])),
                samples,
            );
        }
        let [ns, longest_ns, pages, interrupts, pending] = &one.samples;
        let quartiles = table::quartiles(&ns.iter().map(|ns| ns / 1e3).collect::<Vec<_>>());
        let longest = longest_ns.iter().copied().fold(f64::NAN, f64::max);
        table.add_row([
            what.design.name().to_owned(),
            what.reach.name().to_owned(),
            if what.state == State::Idle { "asleep" } else { "stopped" }.to_owned(),
            us(ns),
            quartiles,
            if median(&[longest]).is_some_and(f64::is_finite) {
                table::figure(longest / 1e3)
            } else {
                table::NONE.to_owned()
            },
            table::median(pages),
            table::median(interrupts),
            table::median(pending),
        ]);
    }
    report.say(format!(
        "{NAME}: of a CPU with {} full magazines whose owner sleeps, or was stopped in mid-operation (for {} ms at most)",
        owner::FULL_MAGAZINES,
        stopper::STOP_MAX.as_millis()
    ));
    report.say(table::align(table, 3));
    Ok(())
}
