//! The definition of a workload of `bench`.

use std::fmt;

use pagedepot_rseq::RseqMissing;
use pagedepot_rseq::membarrier::FenceMissing;

use super::settings::{Effort, Settings};
use crate::failure::Failure;
use crate::harness::cpus;
use crate::names::{Design, list};
use crate::report::Report;

/// A workload of `bench`. Each folder or file beside this one defines its own; `all` lists them.
pub struct Workload {
    /// The name in the command, tables and results.
    pub name: &'static str,
    /// The designs that can do it.
    pub designs: &'static [Design],
    /// Whether it has something to vary with `--tune`.
    pub tunes: bool,
    /// Whether it measures the orders that `--order` names.
    pub orders: bool,
    /// Whether it drains by itself, so that `--drains` has no meaning.
    pub drains: bool,
    /// Whether it fills memory by the options of [`FillOptions`](super::options::FillOptions).
    pub fills: bool,
    /// Whether it measures programs at work, with `--busy`.
    pub busy: bool,
    /// Whether it measures variants of designs, by
    /// [`Variant`](crate::design::variant::Variant).
    pub varies: bool,
    /// Measures it.
    pub measure: Measure,
}

/// Measures a workload.
pub type Measure = fn(&Settings) -> Result<Report, Failure>;

impl fmt::Debug for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl Workload {
    /// A workload to which no option of [`options`](super::options) belongs, and that does not
    /// drain.
    pub const fn new(name: &'static str, designs: &'static [Design], measure: Measure) -> Self {
        let (tunes, orders, drains, fills) = (false, false, false, false);
        let (busy, varies) = (false, true);
        Workload { name, designs, tunes, orders, drains, fills, busy, varies, measure }
    }

    /// Measures the workload, and adds the variants of designs to its rows.
    ///
    /// # Errors
    /// When a design cannot take part, or the machine lacks what the workload needs.
    pub fn run(&self, settings: &Settings) -> Result<Report, Failure> {
        if self.drains && settings.drains.is_some() {
            let name = self.name;
            return Err(Failure::Usage(format!(
                "--drains is for other workloads: `bench {name}` has rates of its own"
            )));
        }
        if settings.tune && !self.tunes {
            return Err(Failure::Usage(format!(
                "--tune is for ring-stream, not for {}",
                self.name
            )));
        }
        if settings.busy && !self.busy {
            return Err(Failure::Usage(format!("--busy is for giveback, not for {}", self.name)));
        }
        if !settings.orders.is_empty() && !self.orders {
            return Err(Failure::Usage(format!("--order is for pagealloc, not for {}", self.name)));
        }
        if let (false, Some(option)) = (self.fills, settings.fill.given()) {
            let name = self.name;
            return Err(Failure::Usage(format!(
                "{option} is for fragmentation, mixed and stress, not for `bench {name}`"
            )));
        }
        if let (false, Some(option)) = (self.varies, settings.variant.option()) {
            let name = self.name;
            return Err(Failure::Usage(format!(
                "{option} changes nothing here: `bench {name}` has no variants of designs"
            )));
        }
        cpus::check_seats(&settings.cpus)?;
        let mut report = (self.measure)(settings)?;
        report.tag(|design| {
            let design = Design::parse(design).expect("rows are of designs");
            let mut params = settings.variant.params(design);
            params.extend(settings.drains.map(|per_s| ("drains_per_s", per_s.get().into())));
            params
        });
        if let Some(fewer) = settings.about_drains() {
            report.note(fewer);
        }
        if let Some(why) = RseqMissing::find() {
            report.note(format!(
                "no restartable sequences: {why}; without, the depot takes a lock per CPU{}",
                lacking(settings, Design::WITH_RSEQ)
            ));
        }
        if let Some(why) = FenceMissing::find() {
            report.note(format!(
                "sequences cannot be fenced: {why}; without, full drains of the depot leave the \
                 front of each CPU and are not measured{}",
                lacking(settings, Design::WITH_FENCES)
            ));
        }
        if let Some(others) = self.left_out(settings) {
            report.note(others);
        }
        Ok(report)
    }

    /// The designs that another command has, unless the user named designs or wants a short answer.
    fn left_out(&self, settings: &Settings) -> Option<String> {
        if !settings.designs.is_empty() || settings.effort == Effort::Short {
            return None;
        }
        let elsewhere = |design: &Design| settings.lineup.elsewhere(*design);
        let command = self.designs.iter().find_map(elsewhere)?;
        let others: Vec<Design> =
            self.designs.iter().copied().filter(|design| elsewhere(design).is_some()).collect();
        let (name, others) = (self.name, list(&others));
        Some(format!(
            "left out, since this command has not these designs: {others}; `{command} bench \
             {name}` measures them too"
        ))
    }
}

/// The end of a note, on those of these designs that this command has.
fn lacking(settings: &Settings, designs: &[Design]) -> String {
    match settings.lineup.list(designs) {
        none if none.is_empty() => none,
        designs => format!(", and {designs} cannot run"),
    }
}
