//! `vmalloc`: the suite of the kernel's `lib/test_vmalloc.c` over designs for address space, and
//! what a pair of requests costs.
//!
//! | module | what |
//! |---|---|
//! | `options` | parameters and presets |
//! | `passes`, `suite`, `workers` | runs of the suite, its tests, and the threads that run them |
//! | `host`, `frames`, `memory` | what the designs stand on |
//! | `events`, `replay` | a trace's vmalloc events, replayed over the designs |
//! | `pairs`, `peers` | one allocation and free, again and again |
//! | `buffers` | large buffers, and buffers that grow, beside `mmap` and `Vec` |
//! | `show` | lines as in the kernel's log, tables, rows |

mod buffers;
mod events;
mod frames;
mod host;
mod memory;
pub mod options;
mod pairs;
mod passes;
#[cfg(feature = "peers")]
mod peers;
mod replay;
mod show;
mod suite;
mod workers;

use self::options::{MapperKind, NAME, VmallocOptions};
use self::passes::SuitePlan;
use crate::design::unavailable;
use pagedepot_cli::failure::Failure;
use pagedepot_cli::harness::{cpus, stop};
use pagedepot_cli::names::{Design, list};
use pagedepot_cli::report::Report;
use pagedepot_cli::workloads::settings::{Effort, Settings};

/// Designs that have rows.
const OFFERED: [Design; 7] = [
    Design::Depot,
    Design::VmapGlobalLock,
    Design::VmapNodes,
    Design::Mmap,
    Design::Vec,
    Design::RangeAlloc,
    Design::OffsetAllocator,
];

/// Runs the suite over each design, then the pairs.
///
/// # Errors
/// When a design cannot run here, or the machine lacks what it needs.
pub fn run(options: &VmallocOptions, settings: &Settings) -> Result<Report, Failure> {
    let designs = wanted(settings)?;
    if let Some(&idle) = settings.designs.iter().find(|design| !has_rows(**design, options)) {
        let there =
            OFFERED.into_iter().filter(|&design| has_rows(design, options)).collect::<Vec<_>>();
        let there = list(&there);
        return Err(Failure::Usage(format!(
            "design {idle} measures nothing with these options{}; there are {there}",
            hint(idle, options)
        )));
    }
    if let Some(trace) = &options.trace {
        if settings.cpus_given {
            return Err(Failure::Usage(
                "--cpus is for tests: --trace acts as the CPUs of its events".to_owned(),
            ));
        }
        return replay::run((trace, options.expand.limit()), &designs, settings);
    }
    if !options.suite_only {
        cpus::check_seats(&settings.cpus)?;
    }
    let parameters = options.parameters(settings.cpus.len(), settings.effort == Effort::Quick);
    let mut report = Report::default();
    let mut passes = Vec::new();
    let suite = SuitePlan::new(options, &parameters, settings)?;
    for &design in designs.iter().filter(|design| Design::VMAPS.contains(design)) {
        if stop::is_asked() && !passes.is_empty() {
            break;
        }
        let step =
            settings.progress.task(&format!("{NAME}, suite, {design}"), options.passes.into());
        passes.push((design, suite.run(design, options.passes, || step.tick())?));
    }
    show::suite(&mut report, &suite, &passes);
    if !options.suite_only {
        report.append(pairs::run(options.mapper, &designs, settings)?);
        report.append(buffers::run(options.mapper, &designs, settings)?);
    }
    Ok(report)
}

/// The designs asked for, or all that can run here.
///
/// # Errors
/// When one asked for cannot run.
fn wanted(settings: &Settings) -> Result<Vec<Design>, Failure> {
    if settings.designs.is_empty() {
        return Ok(OFFERED.into_iter().filter(|&design| unavailable(design).is_none()).collect());
    }
    for &design in &settings.designs {
        if !OFFERED.contains(&design) {
            let offered = list(&OFFERED);
            return Err(Failure::Usage(format!(
                "design {design} cannot do `{NAME}`; there are {offered}"
            )));
        }
        if let Some(why) = unavailable(design) {
            return Err(Failure::Usage(why));
        }
    }
    Ok(OFFERED.into_iter().filter(|design| settings.designs.contains(design)).collect())
}

/// A hint about the option that keeps a design from being measured.
fn hint(design: Design, options: &VmallocOptions) -> &'static str {
    match design {
        Design::Mmap | Design::Vec if options.mapper == MapperKind::None => {
            " (it needs --mapper linux)"
        }
        _ if options.suite_only => " (it has pairs only: leave out --suite-only)",
        _ => "",
    }
}

/// Whether these options measure anything of a design.
fn has_rows(design: Design, options: &VmallocOptions) -> bool {
    let pairs_too = options.trace.is_none() && !options.suite_only;
    let has_pairs =
        pairs::has_rows(options.mapper, design) || buffers::has_rows(options.mapper, design);
    Design::VMAPS.contains(&design) || pairs_too && has_pairs
}
