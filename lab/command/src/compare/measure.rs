//! Comparing designs by measuring them now.

use super::columns::{self, Column, Origin};
use super::files::{self, ComparisonText};
use super::measuring::MeasurementArgs;
use super::options::CompareOptions;
use super::summary;
use super::table::Comparison;
use super::write::{noted, written};
use crate::design::Lab;
use crate::workloads::{all, pft, touch};
use pagedepot_cli::failure::Failure;
use pagedepot_cli::harness::samples::ROUNDS_TO_JUDGE;
use pagedepot_cli::names::{Design, list};
use pagedepot_cli::report::document::ResultRow;
use pagedepot_cli::report::{Report, counted};
use pagedepot_cli::workloads::clients::{self, Clients};
use pagedepot_cli::workloads::options::MeasureOptions;
use pagedepot_cli::workloads::{Settings, Workload, pagealloc};

/// Workloads that are measured unless others are named: those of the threads' tables that ask an
/// allocator for pages and little else. (`pft` has the page faults, which take far longer than the
/// pages.)
const WORKLOADS: [&Workload; 2] = [&touch::WORKLOAD, &pagealloc::workload::<Lab>()];

/// Workloads with mmtests' numbers of clients.
const WITH_CLIENTS: [&Workload; 2] = [&touch::WORKLOAD, &pft::WORKLOAD];

/// Designs that are measured unless others are named: that of today's kernel, as the base, then the
/// others in the order of the threads, and this project's.
const DESIGNS: [Design; 10] = [
    Design::Spin,
    Design::ZoneLock,
    Design::Magazine,
    Design::ProcessMagazine,
    Design::Local,
    Design::NohzConditional,
    Design::Rcu,
    Design::Qpw,
    Design::PcpBuddy,
    Design::Depot,
];

/// The workloads and designs to measure: checked before anything is measured, so that mistakes cost
/// no time.
#[derive(Debug)]
pub struct Measurement {
    workloads: Vec<&'static Workload>,
    /// Designs in the order of the columns; empty: [`DESIGNS`], as far as they can.
    designs: Vec<Design>,
}

impl Measurement {
    /// Reads the names that the options give.
    ///
    /// # Errors
    /// When there is no such workload, design or column.
    pub fn new(options: &CompareOptions) -> Result<Self, Failure> {
        let mut plan = Measurement { workloads: WORKLOADS.to_vec(), designs: Vec::new() };
        if !options.workloads.is_empty() {
            plan.workloads = parsed(&options.workloads, all::parse)?;
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

    /// The options by which `bench` would measure the same.
    pub fn bench(&self, options: &CompareOptions) -> MeasureOptions {
        let MeasurementArgs { quick, runs, ref json, seed, .. } = options.measuring;
        let (designs, json) = (self.designs.clone(), json.clone());
        let save_baseline = options.measuring.save_baseline.clone();
        MeasureOptions { designs, quick, runs, json, save_baseline, seed, cpus: None }
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
        for workload in &self.workloads {
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
    pub fn compare(
        &self,
        measured: &Report,
        options: &CompareOptions,
    ) -> Result<ComparisonText, Failure> {
        let mut columns = columns::by_design(measured.rows().into_iter().map(ResultRow::from));
        let order = self.order();
        columns.sort_by_key(|column| order.iter().position(|design| design.name() == column.name));
        if let Some(name) = &options.baseline {
            columns = beside_baseline(columns, name)?;
        }
        columns::keep(&mut columns, "metric", &options.metrics, |row| &row.metric)?;
        if let Some(param) = &options.by {
            columns = columns::split(columns, param)?;
        }
        let mut comparison = Comparison::new(&columns, options.base.as_deref(), options.rule)?;
        if columns.len() > 1 {
            // What only one design has, such as its metadata, compares nothing.
            comparison.lines.retain(|line| line.cells.iter().flatten().count() > 1);
        }
        let text = noted(options.format, measured.notes(), written(&comparison, "", options)?);
        let mut warnings = Vec::new();
        let worse = summary::gate(&comparison, options.fail_above, &mut warnings)?;
        Ok(ComparisonText { text, warnings, worse })
    }

    /// The order of the columns.
    fn order(&self) -> &[Design] {
        if self.designs.is_empty() { &DESIGNS } else { &self.designs }
    }

    /// The designs that take part: those asked for, or all that can, and a note about the others.
    fn designs_for(
        &self,
        workload: &Workload,
        settings: &Settings,
        notes: &mut Vec<String>,
    ) -> Result<Vec<Design>, Failure> {
        if !self.designs.is_empty() {
            // The workload itself refuses designs that cannot take part.
            return Ok(self.designs.clone());
        }
        let mut designs: Vec<Design> = DESIGNS.into();
        designs.retain(|design| workload.designs.contains(design));
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
                workload.name,
                list(workload.designs)
            )));
        }
        Ok(designs)
    }
}

/// The columns that were measured, and before each the baseline's of the same design.
fn beside_baseline(measured: Vec<Column>, name: &str) -> Result<Vec<Column>, Failure> {
    let baseline = columns::by_design(files::baseline_file(name)?.document.results);
    let mut columns = Vec::new();
    for column in measured {
        if let Some(base) = baseline.iter().find(|base| base.design == column.design) {
            let name = format!("{name}:{}", base.name);
            columns.push(Column { name, ..base.clone() });
        }
        let origin = Origin { file: 1, ..column.origin };
        columns.push(Column { origin, ..column });
    }
    Ok(columns)
}

fn parsed<T>(names: &[String], parse: fn(&str) -> Result<T, String>) -> Result<Vec<T>, Failure> {
    let one = |name: &String| parse(name).map_err(|why| Failure::Usage(format!("{name}: {why}")));
    names.iter().map(one).collect()
}

/// The numbers of clients, and the reason why there are no more.
fn about_clients(workloads: &[&Workload], settings: &Settings) -> Result<Option<String>, Failure> {
    let cpus = settings.cpus.len();
    let list =
        |clients: &[usize]| clients.iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
    let with_clients = WITH_CLIENTS.iter().map(|workload| workload.name);
    let with_clients = with_clients.filter(|name| workloads.iter().any(|it| it.name == *name));
    let with_clients = with_clients.collect::<Vec<_>>().join(" and ");
    match &settings.clients {
        Clients::Auto if with_clients.is_empty() => Ok(None),
        Clients::Auto => Ok(Some(format!(
            "clients of {with_clients}: {}, as mmtests steps up to {}; its lists end at {}",
            list(&clients::auto(cpus)),
            counted(cpus, "CPU"),
            clients::CLIENTS_MAX
        ))),
        Clients::These(these) if these.iter().any(|&clients| clients > cpus) => {
            Err(Failure::Usage(format!(
                "more clients asked for than the {cpus} CPUs this process may use: give \
                 --clients up to {cpus}"
            )))
        }
        Clients::These(these) => Ok(Some(format!("clients: {}", list(these)))),
    }
}

/// The note that there are few samples, if so.
fn about_samples(settings: &Settings) -> Option<String> {
    let few = (settings.rounds as usize) < ROUNDS_TO_JUDGE;
    few.then(|| {
        format!(
            "{} of each, too few to judge by: take {ROUNDS_TO_JUDGE}, without --quick",
            counted(settings.rounds as usize, "sample")
        )
    })
}
