//! `pft`: clients first-touch zeroed pages until memory is used up, then exit, which frees them all
//! at once (as mmtests' benchmark of that name, whose kernel counterpart is the design `kernel`).

mod client;
mod kernel;
mod pages;
mod sweep;

use std::sync::Arc;
use std::time::Instant;

use self::client::Client;
use self::kernel::KernelFaults;
use self::pages::Pages;
use self::sweep::Sweep;
use super::clients;
use super::settings::{Effort, Settings, samples_of};
use super::workload::Workload;
use crate::design::dispatch::with_design;
use crate::design::{Demand, PAGE_BYTES};
use crate::failure::Failure;
use crate::harness::clock::on_cpu_ns;
use crate::harness::{Contender, Pace, Schedule, Seat, Series};
use crate::names::{Design, joined};
use crate::report::machine::available_bytes;
use crate::report::rows::{Metric, params};
use crate::report::{Report, counted, table};

const NAME: &str = "pft";

/// See the module.
pub const WORKLOAD: Workload = Workload {
    name: NAME,
    designs: DESIGNS,
    tunes: false,
    orders: false,
    drains: false,
    fills: false,
    measure: run,
};

/// Designs whose pages are memory, and `kernel`.
const DESIGNS: &[Design] =
    &joined::<12>(&[Design::PAGED, &[Design::FrameAlloc], Design::MALLOCS, &[Design::Kernel]]);

const PER_CPU: Metric = ("faults_per_cpu_s", "1/s");
const PER_S: Metric = ("faults_per_s", "1/s");
const ELAPSED: Metric = ("elapsed_s", "s");
const SYSTEM: Metric = ("system_s", "s");

/// Pages in all: 1 GiB of 4 KiB pages, or 64 MiB in a short run.
const PAGES: u32 = 1 << 18;
const PAGES_QUICK: u32 = 1 << 14;

/// Clients on a seat each. Samples: pages, elapsed, CPU and system seconds, which `combine` turns
/// into the metrics.
struct ClientSeats {
    client: Box<dyn Client>,
    share: u32,
    sweep: Arc<Sweep>,
}

impl Contender<4> for ClientSeats {
    fn design(&self) -> Design {
        self.client.design()
    }

    fn enter(&self) {
        self.client.enter();
    }

    fn leave(&self) {
        self.client.leave();
    }

    fn drain_all(&self) {
        self.client.drain_all();
    }

    fn check(&mut self) -> Result<(), String> {
        self.client.check()
    }

    /// Designs that share memory would find in the cache what the one before them has touched.
    fn prepare(&self) {
        self.sweep.run();
    }

    fn window(&self, seat: Seat, _units: u64) -> [f64; 4] {
        let (cpu_ns, system) = (on_cpu_ns(), system_seconds());
        let start = Instant::now();
        let pages = self.client.run(seat.index, self.share);
        let elapsed = start.elapsed().as_secs_f64();
        [pages as f64, elapsed, (on_cpu_ns() - cpu_ns) as f64 / 1e9, system_seconds() - system]
    }

    fn combine(&self, seats: &[[f64; 4]]) -> [f64; 4] {
        let sum = |of: usize| seats.iter().map(|seat| seat[of]).sum::<f64>();
        let pages = sum(0);
        let elapsed = seats.iter().map(|seat| seat[1]).fold(0.0, f64::max);
        [pages / sum(2), pages / elapsed, elapsed, sum(3)]
    }
}

/// Seconds that this thread has spent in the kernel, in whole ticks on many kernels.
fn system_seconds() -> f64 {
    // SAFETY: a plain structure, for which zeroes will do.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the structure is this function's.
    let failed = unsafe { libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage) };
    debug_assert_eq!(failed, 0);
    usage.ru_stime.tv_sec as f64 + usage.ru_stime.tv_usec as f64 / 1e6
}

/// Measures the numbers of clients that mmtests would.
fn run(settings: &Settings) -> Result<Report, Failure> {
    let mut report = Report::default();
    let designs = settings.designs(NAME, DESIGNS)?;
    let wanted = if settings.effort == Effort::Quick { PAGES_QUICK } else { PAGES };
    let pages = fitting_pages(&mut report, wanted, memories(&designs));
    let sweep = Arc::new(Sweep::new());
    let mut by_clients = Vec::new();
    for clients in steps(settings, &mut report) {
        let mut contenders = designs
            .iter()
            .map(|&design| make(settings, design, (pages, clients), &sweep))
            .collect::<Result<Vec<_>, _>>()?;
        let schedule = Schedule { pace: Pace::Units(1), ..settings.schedule() };
        let what = format!("{NAME}, {} on {}", counted(clients, "client"), counted(clients, "CPU"));
        let series = settings.interleave(&what, &mut contenders, clients, schedule)?;
        for one in &series {
            for (metric, samples) in [PER_CPU, PER_S, ELAPSED, SYSTEM].into_iter().zip(&one.samples)
            {
                report.add(
                    NAME,
                    one.design,
                    metric,
                    (clients, &params([("clients", clients as i64)])),
                    samples,
                );
            }
        }
        by_clients.push((clients, series));
    }
    let mib = (pages as usize * PAGE_BYTES) >> 20;
    report.say(format!(
        "{NAME}: {mib} MiB of zeroed pages first touched by clients, then freed at once{}",
        settings.caveat()
    ));
    report.say(show(&by_clients));
    Ok(report)
}

fn make(
    settings: &Settings,
    design: Design,
    (pages, clients): (u32, usize),
    sweep: &Arc<Sweep>,
) -> Result<Box<dyn Contender<4>>, Failure> {
    let share = pages / clients as u32;
    let client: Box<dyn Client> = if design == Design::Kernel {
        Box::new(KernelFaults)
    } else {
        let demand = settings.demand(clients, share, 1);
        // Just as much memory as clients touch.
        let demand = Demand { memory_pages: Some(demand.frames()), ..demand };
        with_design!(any design, &demand, |allocator| -> Box<dyn Client> {
            Box::new(Pages::new(allocator, clients, share))
        })?
    };
    Ok(Box::new(ClientSeats { client, share, sweep: sweep.clone() }))
}

/// The numbers of clients asked for, or mmtests', with a note where those end too early.
fn steps(settings: &Settings, report: &mut Report) -> Vec<usize> {
    let cpus = settings.cpus.len();
    match &settings.clients {
        clients::Clients::These(these) => these.clone(),
        clients::Clients::Auto => {
            clients::cap(cpus).inspect(|cap| report.note(format!("{NAME}: {cap}")));
            clients::auto(cpus)
        }
    }
}

/// How many of the designs have memory of their own, the threads' counting as one.
fn memories(designs: &[Design]) -> usize {
    let sharing = designs.iter().filter(|design| design.is_of_a_thread()).count();
    designs.len() - sharing.saturating_sub(1)
}

fn fitting_pages(report: &mut Report, wanted: u32, memories: usize) -> u32 {
    // Each memory keeps the pages that were once touched.
    let room = available_bytes().unwrap_or(u64::MAX) / (memories as u64 + 1) / PAGE_BYTES as u64;
    if room >= u64::from(wanted) {
        return wanted;
    }
    let fitting = (room as u32).max(1024) & !1023;
    report.note(format!(
        "{NAME}: memory is short, so {fitting} pages are touched instead of {wanted}"
    ));
    fitting
}

fn show(by_clients: &[(usize, Vec<Series<4>>)]) -> comfy_table::Table {
    let headings = [
        "clients",
        "design",
        "faults per CPU second",
        "faults per second",
        "elapsed ms",
        "system ms",
        "speed, x kernel",
    ];
    let mut table = table::new(headings);
    for (clients, series) in by_clients {
        for one in series {
            let [per_cpu, per_s, elapsed, system] = &one.samples;
            let ms = |seconds: &[f64]| {
                table::median(&seconds.iter().map(|s| s * 1e3).collect::<Vec<_>>())
            };
            table.add_row([
                clients.to_string(),
                one.design.name().to_owned(),
                table::median(per_cpu),
                table::median(per_s),
                ms(elapsed),
                ms(system),
                table::ratio(per_s, samples_of(series, Design::Kernel, 1)),
            ]);
        }
    }
    table::align(table, 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_are_summed_and_the_last_one_counts() {
        let clients =
            ClientSeats { client: Box::new(KernelFaults), share: 0, sweep: Arc::new(Sweep::new()) };
        // Pages, elapsed, CPU, system.
        let metrics = clients.combine(&[[100.0, 2.0, 2.0, 1.5], [300.0, 4.0, 3.0, 2.0]]);
        assert_eq!(metrics, [400.0 / 5.0, 400.0 / 4.0, 4.0, 3.5]);
    }

    #[test]
    fn the_kernel_gives_as_many_pages_as_asked_for() {
        assert_eq!(KernelFaults.run(0, 33), 33);
    }

    #[test]
    fn designs_that_share_memory_need_it_once() {
        assert_eq!(memories(&[Design::Depot, Design::Local, Design::Rcu, Design::Kernel]), 3);
        assert_eq!(memories(&[Design::Depot]), 1);
    }

    #[test]
    fn cpu_time_grows() {
        let (before_ns, start) = (on_cpu_ns(), Instant::now());
        while start.elapsed().as_millis() < 20 {}
        let grown_ns = u128::from(on_cpu_ns() - before_ns);
        assert!(grown_ns > 0 && grown_ns <= start.elapsed().as_nanos());
        assert!(system_seconds() <= on_cpu_ns() as f64 / 1e9 + 0.1);
    }
}
