//! Comparing designs by measuring them now.

use serde_json::Value;

use super::columns::{self, Column, NamedDocument, Origin};
use super::files::{self, ComparisonText};
use super::measuring::MeasurementArgs;
use super::options::CompareOptions;
use super::summary;
use super::table::Comparison;
use super::write::{noted, written};
use crate::design::Lab;
use crate::workloads::{all, pft, touch};
use pagedepot_cli::failure::Failure;
use pagedepot_cli::harness::cpus;
use pagedepot_cli::harness::samples::ROUNDS_TO_JUDGE;
use pagedepot_cli::names::{Design, list};
use pagedepot_cli::report::document::{Document, ResultRow};
use pagedepot_cli::report::json::{ExtraOptions, FileSettings};
use pagedepot_cli::report::machine::Machine;
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
    /// The results of an earlier run to compare with.
    baseline: Option<NamedDocument>,
    /// Differences between that run and this one, and reasons to doubt it.
    warnings: Vec<String>,
}

impl Measurement {
    /// Reads the names that the options give.
    ///
    /// # Errors
    /// When there is no such workload, design, column or baseline, or the baseline is of another
    /// machine, seed or settings.
    pub fn new(options: &CompareOptions) -> Result<Self, Failure> {
        let mut plan = Measurement {
            workloads: WORKLOADS.to_vec(),
            designs: Vec::new(),
            baseline: None,
            warnings: Vec::new(),
        };
        if !options.workloads.is_empty() {
            plan.workloads = parsed(&options.workloads, all::parse)?;
        }
        plan.designs = parsed(&options.designs, Design::parse)?;
        if let Some(name) = &options.baseline {
            let baseline = files::baseline_file(name)?;
            let this_run = this_run(options, &baseline.document.command)?;
            let files = [baseline, this_run];
            plan.warnings = files::warnings(&files, options.force)?;
            let [baseline, _] = files;
            plan.baseline = Some(baseline);
        }
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
        let mut warnings = self.warnings.clone();
        columns.sort_by_key(|column| order.iter().position(|design| design.name() == column.name));
        if let Some(baseline) = &self.baseline {
            columns = beside_baseline(columns, baseline);
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
        let verdict = summary::gate(&comparison, options.fail_above, &mut warnings);
        Ok(ComparisonText { text, warnings, verdict })
    }

    /// The order of the columns. A bound that the baseline has is measured, too: by what it
    /// differs, two runs of one program do.
    fn order(&self) -> Vec<Design> {
        if !self.designs.is_empty() {
            return self.designs.clone();
        }
        let before = self.baseline.iter().flat_map(|baseline| &baseline.document.results);
        let has_bound = before.into_iter().any(|row| row.design == Design::FloorRseq.name());
        DESIGNS.into_iter().chain(has_bound.then_some(Design::FloorRseq)).collect()
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
        let mut designs = self.order();
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
fn beside_baseline(measured: Vec<Column>, baseline: &NamedDocument) -> Vec<Column> {
    let name = baseline.path.display();
    let baseline = columns::by_design(baseline.document.results.iter().cloned());
    let mut columns = Vec::new();
    for column in measured {
        if let Some(base) = baseline.iter().find(|base| base.design == column.design) {
            let name = format!("{name}:{}", base.name);
            columns.push(Column { name, ..base.clone() });
        }
        let origin = Origin { file: 1, ..column.origin };
        columns.push(Column { origin, ..column });
    }
    columns
}

/// This run before it has figures, to see whether a baseline is like it. The baseline's command may
/// be another, `bench` or `compare`, of more or fewer workloads.
fn this_run(options: &CompareOptions, command: &str) -> Result<NamedDocument, Failure> {
    let value = |of: serde_json::Result<Value>| of.expect("names and numbers can be written");
    let machine = Machine::here(cpus::usable()?.len());
    let Value::Object(machine) = value(serde_json::to_value(&machine)) else {
        unreachable!("a machine has fields")
    };
    let MeasurementArgs { quick, seed, .. } = options.measuring;
    let settings = FileSettings { quick, more: ExtraOptions::new() };
    let document = Document {
        machine: machine.into_iter().collect(),
        command: command.to_owned(),
        seed: Some(seed),
        settings: Some(value(serde_json::to_value(settings))),
        ..Document::default()
    };
    Ok(NamedDocument { path: "this run".into(), document })
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
