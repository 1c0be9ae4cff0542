//! The common part of `touch` and `pft`: clients that come to have zeroed pages until memory or
//! their share is used up, then give all of them back at once, as processes do that exit (mmtests'
//! Page Fault Test). Beside the designs stands the kernel, whose own faults serve the design
//! `kernel`.

mod client;
mod kernel;
mod seats;
mod sweep;

use std::sync::Arc;

pub use self::client::{Client, ClientResult};
use self::kernel::KernelFaults;
use self::seats::{ClientSeats, METRICS};
use self::sweep::Sweep;
use pagedepot_cli::design::{Demand, PAGE_BYTES};
use pagedepot_cli::failure::Failure;
use pagedepot_cli::harness::{Contender, Pace, Schedule, Series};
use pagedepot_cli::names::Design;
use pagedepot_cli::report::machine::available_bytes;
use pagedepot_cli::report::rows::{Metric, params};
use pagedepot_cli::report::{Report, counted, table};
use pagedepot_cli::workloads::clients::{self, Clients};
use pagedepot_cli::workloads::settings::{Effort, Settings, samples_of};
use pagedepot_cli::workloads::workload::Workload;

/// A workload of clients that come to have pages.
pub struct Paging {
    pub workload: &'static Workload,
    /// The workload in words, for people.
    pub what: &'static str,
    /// Nanoseconds until a page is there, pages per CPU second, pages per second.
    pub metrics: [Metric; 3],
    /// The table's headings for these.
    pub headings: [&'static str; 3],
    /// Pages of all clients: of a full run and of a short one.
    pub pages: [u32; 2],
    /// Memory of a design, in times what clients have.
    pub room: u32,
    /// Number of memories that these designs touch.
    pub memories: fn(&[Design]) -> usize,
}

const TIMES: [Metric; 3] = [("elapsed_s", "s"), ("user_s", "s"), ("system_s", "s")];
/// Index of the metric of pages per second.
const PER_S: usize = 2;

/// Makes a design's clients, so many with such a share each, over memory for them.
pub type Make<'m> = &'m dyn Fn(Design, &Demand, usize, u32) -> Result<Box<dyn Client>, Failure>;

impl Paging {
    /// Measures the numbers of clients that mmtests would. `make` makes the clients of all designs
    /// but the kernel.
    ///
    /// # Errors
    /// When a design cannot take part.
    pub fn run(&self, settings: &Settings, make: Make<'_>) -> Result<Report, Failure> {
        let mut report = Report::default();
        let name = self.workload.name;
        let designs = settings.designs(name, self.workload.designs)?;
        let wanted = self.pages[usize::from(settings.effort == Effort::Quick)];
        let pages = self.fitting_pages(&mut report, wanted, (self.memories)(&designs));
        let sweep = Arc::new(Sweep::new());
        let mut by_clients = Vec::new();
        for clients in steps(name, settings, &mut report) {
            let share = pages / clients as u32;
            let mut contenders = Vec::<Box<dyn Contender<METRICS>>>::new();
            for &design in &designs {
                let client = match design {
                    Design::Kernel => Box::new(KernelFaults),
                    _ => make(design, &self.demand(settings, clients, share), clients, share)?,
                };
                contenders.push(Box::new(ClientSeats { client, share, sweep: sweep.clone() }));
            }
            let schedule = Schedule { pace: Pace::Units(1), ..settings.schedule() };
            let (some, cpus) = (counted(clients, "client"), counted(clients, "CPU"));
            let what = format!("{name}, {some} on {cpus}");
            let series = settings.interleave(&what, &mut contenders, clients, schedule)?;
            series.iter().for_each(|one| self.add_rows(&mut report, clients, one));
            by_clients.push((clients, series));
        }
        let mib = (pages as usize * PAGE_BYTES) >> 20;
        report.say(format!("{name}: {mib} MiB of {}{}", self.what, settings.caveat()));
        report.say(self.show(&by_clients));
        Ok(report)
    }

    /// Just as much memory as clients have, or as many times that as the workload says.
    fn demand(&self, settings: &Settings, clients: usize, share: u32) -> Demand {
        let demand = settings.demand(clients, share, 1);
        Demand { memory_pages: Some(demand.frames() * u64::from(self.room)), ..demand }
    }

    fn fitting_pages(&self, report: &mut Report, wanted: u32, memories: usize) -> u32 {
        // Each memory keeps the pages that were once touched.
        let available = available_bytes().unwrap_or(u64::MAX) / PAGE_BYTES as u64;
        let room = available / (memories as u64 * u64::from(self.room) + 1);
        if room >= u64::from(wanted) {
            return wanted;
        }
        let fitting = (room as u32).max(1024) & !1023;
        report.note(format!(
            "{}: memory is short, so {fitting} pages are touched instead of {wanted}",
            self.workload.name
        ));
        fitting
    }

    fn add_rows(&self, report: &mut Report, clients: usize, series: &Series<METRICS>) {
        let params = params([("clients", clients as i64)]);
        for (metric, samples) in self.metrics.into_iter().chain(TIMES).zip(&series.samples) {
            report.add(self.workload.name, series.design, metric, (clients, &params), samples);
        }
    }

    fn show(&self, by_clients: &[(usize, Vec<Series<METRICS>>)]) -> comfy_table::Table {
        let headings = ["clients", "design"].into_iter().chain(self.headings);
        let times = ["elapsed ms", "user ms", "system ms", "speed, x kernel"];
        let mut table = table::new(headings.chain(times));
        for (clients, series) in by_clients {
            for one in series {
                let [ns, per_cpu, per_s, elapsed, user, system] = &one.samples;
                let ms = |seconds: &[f64]| {
                    table::median(&seconds.iter().map(|s| s * 1e3).collect::<Vec<_>>())
                };
                table.add_row([
                    clients.to_string(),
                    one.design.name().to_owned(),
                    table::median(ns),
                    table::median(per_cpu),
                    table::median(per_s),
                    ms(elapsed),
                    ms(user),
                    ms(system),
                    table::ratio(per_s, samples_of(series, Design::Kernel, PER_S)),
                ]);
            }
        }
        table::align(table, 0)
    }
}

/// The numbers of clients asked for, or mmtests', with a note where those end too early.
fn steps(name: &str, settings: &Settings, report: &mut Report) -> Vec<usize> {
    let cpus = settings.cpus.len();
    match &settings.clients {
        Clients::These(these) => these.clone(),
        Clients::Auto => {
            clients::cap(cpus).inspect(|cap| report.note(format!("{name}: {cap}")));
            clients::auto(cpus)
        }
    }
}

/// Number of the designs that have memory of their own, the threads' counting as one.
pub fn memories(designs: &[Design]) -> usize {
    let sharing = designs.iter().filter(|design| design.is_of_a_thread()).count();
    designs.len() - sharing.saturating_sub(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn designs_that_share_memory_need_it_once() {
        assert_eq!(memories(&[Design::Depot, Design::Local, Design::Rcu, Design::Kernel]), 3);
        assert_eq!(memories(&[Design::Depot]), 1);
    }
}
