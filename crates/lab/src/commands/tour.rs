//! The command without arguments.

use super::finish::show;
use super::replay::replay_plan;
use crate::design::variant::Variant;
use crate::failure::Failure;
use crate::harness::cpus;
use crate::replay::{Plan, Zoneinfos, shipped};
use crate::report::machine::Machine;
use crate::trace::Zoneinfo;
use crate::workloads::options::MeasureOptions;
use crate::workloads::{Effort, Settings, drain, hot, pagealloc};

/// Replays the shipped trace, then measures the most important workloads, in about a minute.
///
/// # Errors
/// When stdout cannot be written, or a workload fails.
pub fn tour() -> Result<(), Failure> {
    let settings = Settings::new(&MeasureOptions::default(), Effort::Short)?;
    show(&format!("{}\n\n", Machine::here(settings.cpus.len())))?;
    let zoneinfo = Zoneinfo::parse(shipped::ZONEINFO, "the shipped zoneinfo")
        .map_err(|e| Failure::Run(e.to_string()))?;
    let plan = Plan::read(shipped::TRACE, shipped::NAME, Some(&zoneinfo))
        .map_err(|e| Failure::Run(e.to_string()))?;
    let zoneinfos = Zoneinfos { before: Some(zoneinfo), ..Zoneinfos::default() };
    show(
        replay_plan(&plan, &zoneinfos, (&MeasureOptions::default(), &Variant::default()))?.text(),
    )?;
    if let Err(why) = cpus::check_seats(&settings.cpus) {
        return show(&format!("\nbenches are left out: {why}\n"));
    }
    for workload in [&hot::WORKLOAD, &pagealloc::WORKLOAD, &drain::WORKLOAD] {
        if workload.name == drain::WORKLOAD.name && settings.cpus.len() < 2 {
            show("\ndrain: left out, because it needs two CPUs\n")?;
            continue;
        }
        show(&format!("\n{}", workload.run(&settings)?.text()))?;
    }
    Ok(())
}
