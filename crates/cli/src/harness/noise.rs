//! Disturbances of a measurement: time that a hypervisor gave to others, other programs on the same
//! CPUs, a clock rate that steps, and CPUs that are far apart. Looked at before a run and during
//! it, between windows, so that a figure comes with how far to trust it.

use std::fs;
use std::hint::black_box;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use pagedepot::CpuId;
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use super::round_trip::{self, RoundTrip};
use super::{clock, lock, samples};

/// Time for which the machine is looked at before a run.
const BEFORE: Duration = Duration::from_millis(200);
/// Time between two looks at the clock rate during a run.
const BETWEEN_LOOKS: Duration = Duration::from_millis(50);
/// Dependent operations whose time tells the clock rate: some 10 us of them.
const CHAIN_OPS: u32 = 10_000;
/// Times that the chain is run per look. The fastest counts: the others were interrupted.
const CHAINS: u32 = 3;

/// Shares from which on a warning is due, in percent.
const STOLEN_PERCENT: f64 = 1.0;
const OTHERS_PERCENT: f64 = 5.0;
/// A slow tenth of the looks this much below the middle one means that the clock rate steps.
const SLOWER_PERCENT: f64 = 8.0;
/// The farthest pair of CPUs, as a multiple of the nearest.
const FAR: f64 = 2.0;

/// Shares of the time of all CPUs of the run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Shares {
    /// Given to other guests by the hypervisor while a CPU had work, in percent.
    pub stolen_percent: f64,
    /// Used by other programs, in percent.
    pub others_percent: f64,
}

/// The disturbances of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Noise {
    /// Shares in the moment before the run; `None` where the kernel does not tell.
    pub before: Option<Shares>,
    /// Shares during the run.
    pub during: Option<Shares>,
    /// Percent by which the slowest tenth of looks at the clock rate was below the middle one.
    pub slower_percent: Option<f64>,
    /// Round trips from the first CPU to others.
    pub round_trips: Vec<RoundTrip>,
}

impl Noise {
    /// One line about the machine while it was measured.
    pub fn summary(&self) -> String {
        let shares = |when: &str, shares: Option<Shares>| {
            shares.map(|Shares { stolen_percent, others_percent }| {
                format!("{when} {stolen_percent:.1} % stolen, {others_percent:.1} % used by others")
            })
        };
        let trips = self.nearest().zip(self.farthest()).map(|(near, far)| {
            if near == far {
                format!(
                    "a line's round trip takes {:.0} ns (CPUs {}, {})",
                    near.ns, near.from, near.to
                )
            } else {
                format!("a line's round trip takes {:.0} to {:.0} ns", near.ns, far.ns)
            }
        });
        let speed =
            self.slower_percent.map(|percent| format!("clock rate steady within {percent:.0} %"));
        let parts = [
            shares("time of its CPUs before the run", self.before),
            shares("during it", self.during),
        ];
        let parts: Vec<String> = parts.into_iter().chain([speed, trips]).flatten().collect();
        if parts.is_empty() { String::new() } else { format!("Machine: {}.", parts.join("; ")) }
    }

    /// Reasons to trust figures less, a line each.
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        let of = |part: fn(&Shares) -> f64| {
            let both = [self.before, self.during].into_iter().flatten();
            both.map(|shares| part(&shares)).fold(0.0, f64::max)
        };
        let (stolen, others) = (of(|it| it.stolen_percent), of(|it| it.others_percent));
        if stolen >= STOLEN_PERCENT {
            warnings.push(format!("other guests stole {stolen:.1} % of the CPUs' time"));
        }
        if others >= OTHERS_PERCENT {
            warnings.push(format!(
                "other programs used {others:.1} % of the CPUs: trust ratios more than figures"
            ));
        }
        if let Some(percent) = self.slower_percent.filter(|&percent| percent >= SLOWER_PERCENT) {
            warnings.push(format!(
                "the clock rate of the CPU stepped: a tenth of the time it was {percent:.0} % \
                 below its middle"
            ));
        }
        if let Some((near, far)) = self.nearest().zip(self.farthest())
            && far.ns > FAR * near.ns
        {
            warnings.push(format!(
                "CPUs {} and {} are far apart: a line's round trip takes {:.0} ns, between {} and \
                 {} {:.0} ns; confine the run to near ones (taskset -c)",
                far.from, far.to, far.ns, near.from, near.to, near.ns
            ));
        }
        warnings
    }

    fn nearest(&self) -> Option<RoundTrip> {
        self.round_trips.iter().copied().min_by(|a, b| a.ns.total_cmp(&b.ns))
    }

    fn farthest(&self) -> Option<RoundTrip> {
        self.round_trips.iter().copied().max_by(|a, b| a.ns.total_cmp(&b.ns))
    }
}

/// A run that is being watched.
struct Watch {
    cpus: Vec<CpuId>,
    noise: Noise,
    start: Option<Reading>,
    rates: Vec<f64>,
    looked: Instant,
}

/// The run of this process; workloads that run one after another are one run.
static WATCH: Mutex<Option<Watch>> = Mutex::new(None);

/// Looks at the machine, and watches it from now on. Takes about a quarter of a second.
pub fn begin(cpus: &[CpuId]) {
    let before = Reading::now(cpus);
    thread::sleep(BEFORE);
    let before = before.and_then(|before| before.until(&Reading::now(cpus)?));
    let round_trips = round_trip::from_first(cpus);
    let noise = Noise { before, round_trips, ..Noise::default() };
    let watch = Watch {
        cpus: cpus.to_vec(),
        noise,
        start: Reading::now(cpus),
        rates: Vec::new(),
        looked: Instant::now(),
    };
    *lock(&WATCH) = Some(watch);
}

/// Looks at the clock rate of this CPU, if the last look is long enough ago. Call it between
/// windows; it takes some 30 us then.
pub fn look() {
    let Ok(mut watch) = WATCH.try_lock() else { return };
    if let Some(watch) = watch.as_mut()
        && watch.looked.elapsed() >= BETWEEN_LOOKS
    {
        watch.rates.push(rate());
        watch.looked = Instant::now();
    }
}

/// The disturbances of the run since [`begin`]; none without one.
pub fn end() -> Noise {
    let watch = lock(&WATCH).take();
    let Some(Watch { cpus, mut noise, start, rates, .. }) = watch else { return Noise::default() };
    noise.during = start.and_then(|start| start.until(&Reading::now(&cpus)?));
    noise.slower_percent = slower_percent(&rates);
    noise
}

/// Percent by which the lowest tenth is below the median; `None` for fewer than ten looks.
fn slower_percent(rates: &[f64]) -> Option<f64> {
    let mut sorted = rates.to_vec();
    sorted.sort_by(f64::total_cmp);
    let (low, middle) = (*sorted.get(rates.len() / 10)?, samples::median(rates)?);
    (rates.len() >= 10).then(|| (100.0 - low * 100.0 / middle).max(0.0))
}

/// Operations of a chain per nanosecond: a constant number of cycles each, so that it moves with
/// the clock rate and nothing else.
fn rate() -> f64 {
    let times = (0..CHAINS).map(|_| {
        let start = Instant::now();
        let mut product = black_box(3_u64);
        for _ in 0..CHAIN_OPS {
            // Each needs the result of the one before, and the compiler sees none of them through.
            product = black_box(product.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        }
        start.elapsed().as_nanos().max(1) as f64
    });
    f64::from(CHAIN_OPS) / times.fold(f64::INFINITY, f64::min)
}

/// Counters of the kernel, summed over the CPUs of the run, and the time that the run itself used.
#[derive(Clone, Copy, Debug)]
struct Reading {
    at: Instant,
    cpus: usize,
    ticks: Ticks,
    own_s: f64,
}

/// Clock ticks of `/proc/stat`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Ticks {
    busy: u64,
    stolen: u64,
}

impl Reading {
    fn now(cpus: &[CpuId]) -> Option<Self> {
        let ticks = ticks(&fs::read_to_string("/proc/stat").ok()?, cpus)?;
        Some(Reading { at: Instant::now(), cpus: cpus.len(), ticks, own_s: own_s() })
    }

    /// Shares from here until then.
    fn until(&self, then: &Reading) -> Option<Shares> {
        let time_s = then.at.duration_since(self.at).as_secs_f64() * self.cpus as f64;
        let per_s = rustix::param::clock_ticks_per_second() as f64;
        let grown_s = |from: u64, to: u64| to.saturating_sub(from) as f64 / per_s;
        let others_s =
            grown_s(self.ticks.busy, then.ticks.busy) - (then.own_s - self.own_s).max(0.0);
        let percent = |s: f64| (100.0 * s / time_s).clamp(0.0, 100.0);
        (time_s > 0.0).then(|| Shares {
            stolen_percent: percent(grown_s(self.ticks.stolen, then.ticks.stolen)),
            others_percent: percent(others_s),
        })
    }
}

/// Seconds of CPU time that this process used, and the children that it has waited for.
fn own_s() -> f64 {
    process_s() + clock::children_seconds()
}

/// Seconds of CPU time that this process used without its children.
fn process_s() -> f64 {
    let own = clock_gettime(ClockId::ProcessCPUTime);
    own.tv_sec as f64 + own.tv_nsec as f64 / 1e9
}

/// Sums over the lines of these CPUs; `None` without such lines.
fn ticks(stat: &str, cpus: &[CpuId]) -> Option<Ticks> {
    let mut sum: Option<Ticks> = None;
    for cpu in cpus {
        let name = format!("cpu{cpu} ");
        let Some(line) = stat.lines().find_map(|line| line.strip_prefix(&name)) else { continue };
        let fields: Vec<u64> = line.split_whitespace().filter_map(|n| n.parse().ok()).collect();
        // user nice system idle iowait irq softirq steal
        let of = |at: usize| fields.get(at).copied().unwrap_or(0);
        let sum = sum.get_or_insert_default();
        sum.busy += of(0) + of(1) + of(2) + of(5) + of(6);
        sum.stolen += of(7);
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::super::fork::Child;
    use super::*;

    const STAT: &str = "cpu  30 0 3 900 0 0 0 9 0 0
cpu0 10 1 2 300 7 3 4 5 0 0
cpu1 20 0 1 600 0 0 0 4 0 0
intr 1
";

    #[test]
    fn ticks_are_summed_over_the_cpus_in_use() {
        let cpu = CpuId::new;
        assert_eq!(ticks(STAT, &[cpu(0)]), Some(Ticks { busy: 20, stolen: 5 }));
        assert_eq!(ticks(STAT, &[cpu(0), cpu(1)]), Some(Ticks { busy: 41, stolen: 9 }));
        assert_eq!(ticks(STAT, &[cpu(9)]), None);
        assert_eq!(ticks("", &[cpu(0)]), None);
    }

    #[test]
    fn shares_are_of_the_time_of_all_cpus() {
        let at = Instant::now();
        let per_s = rustix::param::clock_ticks_per_second();
        let start = Reading { at, cpus: 2, ticks: Ticks::default(), own_s: 1.0 };
        let ticks = Ticks { busy: 3 * per_s, stolen: per_s };
        // Ten seconds of two CPUs: three busy, of which two our own, and one stolen.
        let end = Reading { at: at + Duration::from_secs(10), ticks, own_s: 3.0, ..start };
        assert_eq!(start.until(&end), Some(Shares { stolen_percent: 5.0, others_percent: 5.0 }));
    }

    #[test]
    fn the_time_of_a_child_that_ended_is_the_runs_own() {
        const CHILD_NS: u64 = 50_000_000;
        let (own, process) = (own_s(), process_s());
        let mut child = Child::fork(|| while clock::on_cpu_ns() < CHILD_NS {}).unwrap();
        assert_eq!(child.wait().and_then(|status| status.exit_status()), Some(0));
        // In this order, so that what other threads use in between does not make it less.
        let (process_after, own_after) = (process_s(), own_s());
        let beside_s = (own_after - process_after) - (own - process);
        assert!(beside_s > 0.9 * CHILD_NS as f64 / 1e9, "{beside_s}");
    }

    #[test]
    fn what_disturbs_is_warned_of_and_what_does_not_is_not() {
        let quiet = Shares { stolen_percent: 0.2, others_percent: 1.0 };
        let near = RoundTrip { from: 0, to: 1, ns: 50.0 };
        let calm = Noise {
            before: Some(quiet),
            during: Some(quiet),
            slower_percent: Some(2.0),
            round_trips: vec![near, RoundTrip { to: 2, ns: 80.0, ..near }],
        };
        assert!(calm.warnings().is_empty(), "{:?}", calm.warnings());
        let busy = Shares { stolen_percent: 3.0, others_percent: 40.0 };
        let noisy = Noise {
            during: Some(busy),
            slower_percent: Some(20.0),
            round_trips: vec![near, RoundTrip { to: 64, ns: 300.0, ..near }],
            ..calm.clone()
        };
        let warnings = noisy.warnings().join("\n");
        for says in ["stole 3.0 %", "used 40.0 %", "20 % below", "0 and 64"] {
            assert!(warnings.contains(says), "{warnings}");
        }
        assert!(calm.summary().contains("50 to 80 ns"), "{}", calm.summary());
        assert_eq!(Noise::default().summary(), "");
    }

    #[test]
    fn the_slow_tenth_counts() {
        let mut rates = vec![1.0; 20];
        assert_eq!(slower_percent(&rates), Some(0.0));
        rates[3] = 0.5;
        assert_eq!(slower_percent(&rates), Some(0.0));
        rates[7] = 0.7;
        rates[9] = 0.75;
        assert_eq!(slower_percent(&rates), Some(25.0));
        assert_eq!(slower_percent(&rates[..9]), None);
    }
}
