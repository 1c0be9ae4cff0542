//! The command `soak`.

use crate::design::unavailable;
use crate::workloads::soak::Soak;
use crate::workloads::soak::options::SoakOptions;
use pagedepot_cli::commands::finish::{finish, for_people};
use pagedepot_cli::design::Demand;
use pagedepot_cli::failure::Failure;
use pagedepot_cli::names::{Design, list};
use pagedepot_cli::report::json::ExtraOptions;
use pagedepot_cli::workloads::options::MeasureOptions;
use pagedepot_cli::workloads::settings::first_cpus;

/// Soaks the designs that the options ask for, or all that can run here.
///
/// # Errors
/// When a design cannot be soaked, or fails.
pub fn soak(given: SoakOptions) -> Result<(), Failure> {
    let SoakOptions { minutes: time, drains: drains_per_s, designs, cpus, json, seed, variant } =
        given;
    let options = MeasureOptions { cpus, json, seed, ..MeasureOptions::default() };
    let refuses = |design: &Design| unavailable(*design).or_else(|| variant.refuses(*design));
    let designs = if designs.is_empty() {
        Design::PAGED.iter().copied().filter(|design| refuses(design).is_none()).collect()
    } else {
        designs
    };
    let cannot = |design: &&Design| !Design::PAGED.contains(design);
    if let Some(design) = designs.iter().find(cannot) {
        let there = list(Design::PAGED);
        return Err(Failure::Usage(format!("design {design} cannot be soaked; there are {there}")));
    }
    if let Some(why) = designs.iter().find_map(refuses).or_else(|| variant.unused(&designs)) {
        return Err(Failure::Usage(why));
    }
    let demand = Demand { cpus: first_cpus(options.cpus)?, variant, ..Demand::default() };
    let soak = Soak { designs, demand, time, drains_per_s, seed };
    let more = ExtraOptions::from([("minutes", (soak.time.as_secs_f64() / 60.0).into())]);
    finish(("soak", more), &options, || soak.run(), for_people)
}
