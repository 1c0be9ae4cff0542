//! Comparing designs by measuring them now.

use std::path::PathBuf;

use clap::Args;

use super::document::ResultRow;
use super::table::Comparison;
use super::{Options, columns, written};
use crate::cli;
use crate::design::variant::Variant;
use crate::design::{self, Design};
use crate::failure::Failure;
use crate::harness::samples::ROUNDS_TO_JUDGE;
use crate::report::{Report, counted};
use crate::workloads::clients::{self, Clients};
use crate::workloads::{Settings, Workload};

/// What is measured unless workloads are named: those of the threads' tables that ask an allocator
/// for pages and little else.
const WORKLOADS: [Workload; 2] = [Workload::Pft, Workload::Pagealloc];

/// What is measured unless designs are named: what the kernel does today, as the base, then the
/// others in the order of the threads, and this project's.
const DESIGNS: [Design; 7] = [
    Design::Spin,
    Design::ZoneLock,
    Design::Magazine,
    Design::Local,
    Design::NohzConditional,
    Design::Rcu,
    Design::Depot,
];

/// Options of a comparison that measures.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Without FILE: measuring")]
pub struct Measuring {
    /// Shorter windows, smaller workloads: figures to look at, not to judge by
    #[arg(long, conflicts_with_all = ["files", "threads"])]
    pub quick: bool,
    /// So many clients, one per CPU: numbers separated by commas, or auto, as mmtests would: of
    /// pft from 1 to all CPUs in growing steps, at most 128; of others 1 and, where that says
    /// more, all
    #[arg(long, value_name = "auto|LIST", default_value = "auto", value_parser = Clients::parse)]
    #[arg(conflicts_with_all = ["files", "threads"], allow_hyphen_values = true)]
    pub clients: Clients,
    /// Take so many samples (default: 31, with --quick 11)
    #[arg(long, value_name = "N", value_parser = cli::whole::<{ cli::RUNS_MAX }>)]
    #[arg(conflicts_with_all = ["files", "threads"], allow_negative_numbers = true)]
    pub runs: Option<u32>,
    /// Also write the samples to FILE, to be compared with others later (-: stdout, and the
    /// comparison to stderr)
    #[arg(long, value_name = "FILE", conflicts_with_all = ["files", "threads"])]
    pub json: Option<PathBuf>,
    /// Seed of everything random
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = cli::seed)]
    #[arg(conflicts_with_all = ["files", "threads"], allow_negative_numbers = true)]
    pub seed: u64,
    /// See [`cli::BenchOptions`].
    #[command(flatten)]
    pub more: cli::BenchOptions,
    #[command(flatten)]
    pub variant: Variant,
}

impl Measuring {
    /// Of results that are there nothing can be chosen any more. (clap sees to the other options.)
    ///
    /// # Errors
    /// When something is chosen.
    pub fn refuse_for_files(&self) -> Result<(), Failure> {
        let chosen = if self.more.drains.is_some() {
            "--drains"
        } else if self.more.tune {
            "--tune"
        } else if let Some(unused) = self.variant.unused(&[]) {
            return Err(Failure::Usage(unused));
        } else {
            return Ok(());
        };
        Err(Failure::Usage(format!(
            "{chosen} is for measuring: give it without FILE and --threads"
        )))
    }
}

/// What to measure: understood before anything is measured, so that mistakes cost no time.
#[derive(Debug)]
pub struct Plan {
    workloads: Vec<Workload>,
    /// In the order of the columns; empty: [`DESIGNS`], as far as they can.
    designs: Vec<Design>,
}

impl Plan {
    /// Reads the names that the options give.
    ///
    /// # Errors
    /// When there is no such workload, design or column.
    pub fn new(options: &Options) -> Result<Self, Failure> {
        let mut plan = Plan { workloads: WORKLOADS.to_vec(), designs: Vec::new() };
        if !options.workloads.is_empty() {
            plan.workloads = parsed(&options.workloads, Workload::parse)?;
        }
        plan.designs = parsed(&options.designs, Design::parse)?;
        // With --by, columns have the values of a param in their names.
        if let (Some(base), None) = (&options.base, &options.by) {
            let columns = plan.order();
            if columns.iter().all(|design| design.name() != base) {
                return Err(columns::no_column(base, columns.iter().map(|design| design.name())));
            }
        }
        Ok(plan)
    }

    /// What `bench` would be asked for the same.
    pub fn bench(&self, options: &Options) -> cli::Options {
        let Measuring { quick, runs, ref json, seed, .. } = options.measuring;
        let (designs, json) = (self.designs.clone(), json.clone());
        cli::Options { designs, quick, runs, json, seed, cpus: None }
    }

    /// Measures it.
    ///
    /// # Errors
    /// When a design cannot take part.
    pub fn measure(&self, settings: &Settings) -> Result<Report, Failure> {
        let mut measured = Report::default();
        let mut notes = Vec::new();
        notes.extend(about_clients(&self.workloads, settings)?);
        notes.extend(about_samples(settings));
        for &workload in &self.workloads {
            let designs = self.designs_for(workload, settings, &mut notes)?;
            measured.append(workload.run(&Settings { designs, ..settings.clone() })?);
        }
        let mut report = Report::default();
        notes.iter().for_each(|note| report.note(note));
        report.append(measured);
        Ok(report)
    }

    /// Compares what was measured, as text.
    ///
    /// # Errors
    /// When what the options ask of the table is not there.
    pub fn compare(&self, measured: &Report, options: &Options) -> Result<String, Failure> {
        let mut columns = columns::by_design(measured.rows().into_iter().map(ResultRow::from));
        let order = self.order();
        columns.sort_by_key(|column| order.iter().position(|design| design.name() == column.name));
        columns::keep(&mut columns, "metric", &options.metrics, |row| &row.metric)?;
        if let Some(param) = &options.by {
            columns = columns::split(columns, param)?;
        }
        let mut comparison = Comparison::new(&columns, options.base.as_deref(), options.rule)?;
        if columns.len() > 1 {
            // What only one design has, such as its metadata, compares nothing.
            comparison.lines.retain(|line| line.cells.iter().flatten().count() > 1);
        }
        Ok(options.format.noted(measured.notes(), written(&comparison, "", options)?))
    }

    /// The order of the columns.
    fn order(&self) -> &[Design] {
        if self.designs.is_empty() { &DESIGNS } else { &self.designs }
    }

    /// The designs that take part: those asked for, or all that can, and a note about the others.
    fn designs_for(
        &self,
        workload: Workload,
        settings: &Settings,
        notes: &mut Vec<String>,
    ) -> Result<Vec<Design>, Failure> {
        if !self.designs.is_empty() {
            // That one of them cannot is said by the workload.
            return Ok(self.designs.clone());
        }
        let mut designs: Vec<Design> = DESIGNS.into();
        designs.retain(|design| workload.designs().contains(design));
        designs.retain(|&design| match settings.why_not(design) {
            None => true,
            Some(why) => {
                let note = format!("left out: {why}");
                if !notes.contains(&note) {
                    notes.push(note);
                }
                false
            }
        });
        if designs.is_empty() {
            return Err(Failure::Usage(format!(
                "no design of the threads can do {0}; name some of those that can: --design {1}",
                workload.name(),
                design::list(workload.designs())
            )));
        }
        Ok(designs)
    }
}

fn parsed<T>(names: &[String], parse: fn(&str) -> Result<T, String>) -> Result<Vec<T>, Failure> {
    let one = |name: &String| parse(name).map_err(|why| Failure::Usage(format!("{name}: {why}")));
    names.iter().map(one).collect()
}

/// How many clients there will be, and why not more.
fn about_clients(workloads: &[Workload], settings: &Settings) -> Result<Option<String>, Failure> {
    let cpus = settings.cpus.len();
    let list =
        |clients: &[usize]| clients.iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
    match &settings.clients {
        Clients::Auto if !workloads.contains(&Workload::Pft) => Ok(None),
        Clients::Auto => Ok(Some(format!(
            "clients of pft: {}, as mmtests steps up to {}; its lists end at {}",
            list(&clients::auto(cpus)),
            counted(cpus, "CPU"),
            clients::CLIENTS_MAX
        ))),
        Clients::These(these) if these.iter().any(|&clients| clients > cpus) => {
            Err(Failure::Usage(format!(
                "more clients asked for than the {cpus} CPUs this process may use: give --clients up to {cpus}"
            )))
        }
        Clients::These(these) => Ok(Some(format!("clients: {}", list(these)))),
    }
}

/// That there are few samples, if so.
fn about_samples(settings: &Settings) -> Option<String> {
    let few = (settings.rounds as usize) < ROUNDS_TO_JUDGE;
    few.then(|| {
        format!(
            "{} of each, which is few: to judge by, take {ROUNDS_TO_JUDGE} without --quick",
            counted(settings.rounds as usize, "sample")
        )
    })
}
