//! `giveback --busy`: a peak passes, and the program goes on working. How much of the memory does
//! it give back, what does that cost its threads, and what does it do to an isolated CPU?
//!
//! A thread on each CPU frees a block of its working set and allocates another, a thousand times a
//! second, and sleeps in between. After a while the threads take a peak of memory, hold it for a
//! second and free it. Then nothing happens but time, and after that a second peak. The thread on
//! the last CPU counts as isolated: it takes no part in the peaks, and nothing should interrupt it.
//!
//! Each row is measured in a process of its own: this command runs itself for it ([`CHILD`]). A row
//! that is `asked` is told to give back a second after the peak, by the means that its design has.
//!
//! | file | what |
//! |---|---|
//! | `holder` | the calls of a program to a design |
//! | `program` | the program: its threads and its phases |
//! | `system` | numbers that the system has of the process and of the CPUs |
//! | `rows` | rows, figures over time and tables |
//! | `plot` | the same as a drawing |

pub mod holder;
mod plot;
mod program;
mod rows;
mod system;

use std::process::{Command, Stdio};

use self::holder::{DepotHolder, Glibc, Holder, HolderDemand, MakeHolder};
use self::program::Run;
use super::settings::{Effort, Settings};
use super::workload::Workload;
use crate::failure::Failure;
use crate::harness::stop;
use crate::names::Design;
use crate::report::json::opened;
use crate::report::machine::Machine;
use crate::report::{Report, counted};

/// The variable that tells a process which row it is to measure: `rest` or `asked`.
pub const CHILD: &str = "PAGEDEPOT_GIVEBACK_ROW";

/// The workload with the designs of this command.
pub const fn workload() -> Workload {
    let workload = Workload::new(rows::NAME, DESIGNS, run);
    Workload { drains: true, busy: true, varies: false, ..workload }
}

/// The designs of this command.
const DESIGNS: &[Design] = &[Design::Depot, Design::Glibc];

fn run(settings: &Settings) -> Result<Report, Failure> {
    if !settings.busy {
        return Err(Failure::Usage(
            "`bench giveback` measures programs at work: add --busy; a program at rest is the \
             lab's: `cargo run --release --manifest-path lab/Cargo.toml -- bench giveback`"
                .to_owned(),
        ));
    }
    busy(settings, DESIGNS, make)
}

/// Makes a design of this command.
///
/// # Errors
/// When it cannot be made.
pub fn make(design: Design, demand: &HolderDemand) -> Result<Box<dyn Holder>, Failure> {
    match design {
        Design::Depot => Ok(Box::new(DepotHolder::new(demand)?)),
        Design::Glibc => Ok(Box::new(Glibc)),
        other => unreachable!("{other} is not among the designs that were offered"),
    }
}

/// Measures programs at work.
///
/// # Errors
/// When a row cannot be measured.
pub fn busy(settings: &Settings, offered: &[Design], make: MakeHolder) -> Result<Report, Failure> {
    let shape = match settings.effort {
        Effort::Quick | Effort::Short => program::Shape::QUICK,
        Effort::Full => program::Shape::FULL,
    };
    if let Ok(row) = std::env::var(CHILD) {
        let &[design] = &*settings.designs else {
            return Err(Failure::Usage(format!("{CHILD} is for one --design")));
        };
        let run = program::measure((design, row == "asked"), shape, settings, make)?;
        println!("{}", serde_json::to_string(&run).expect("numbers can be written"));
        // Allocators have threads that do not end.
        std::process::exit(0);
    }
    let rounds = if settings.rounds_given { settings.rounds } else { 1 };
    let designs = chosen(settings, offered)?;
    let svg = settings.svg.as_deref();
    let svg =
        svg.map(|path| opened(path, "give --svg a file in a directory that you may write to"));
    let svg = svg.transpose()?;
    let mut found: Vec<(Design, bool, Vec<Run>)> = designs
        .iter()
        .flat_map(|&design| [(design, false, Vec::new()), (design, true, Vec::new())])
        .collect();
    let step = settings.progress.task(rows::NAME, found.len() as u64 * u64::from(rounds));
    for _ in 0..rounds {
        for (design, asked, runs) in &mut found {
            if stop::is_asked() {
                break;
            }
            runs.push(in_a_process(settings, *design, *asked)?);
            step.tick();
        }
    }
    drop(step);
    let mut report = rows::report(settings, shape, &found);
    if let Some(file) = svg {
        let Machine { cpu, kernel, .. } = Machine::here(settings.cpus.len());
        let cpus = counted(settings.cpus.len(), "CPU");
        report.draw(file, plot::drawing(&format!("{cpu}, {cpus}, Linux {kernel}"), &found));
    }
    let left_out = offered.iter().filter(|_| settings.designs.is_empty());
    left_out.filter_map(|&design| lacks(settings, design)).for_each(|why| report.note(why));
    Ok(report)
}

/// The reason why a design cannot run in a process of its own, with a remedy. Those that this
/// command was built without are listed for each workload.
fn lacks(settings: &Settings, design: Design) -> Option<String> {
    let is_here = settings.lineup.elsewhere(design).is_none();
    // Its process gets the environment that it needs.
    let may_lack = is_here && design != Design::Tcmalloc;
    may_lack.then(|| settings.lineup.unavailable(design)).flatten()
}

/// The designs that were asked for, or all that can run here, each in a process of its own.
fn chosen(settings: &Settings, offered: &[Design]) -> Result<Vec<Design>, Failure> {
    let lacks = |design: &Design| {
        settings.lineup.elsewhere(*design).is_some() || lacks(settings, *design).is_some()
    };
    let refused = settings.designs.iter().find(|design| !offered.contains(design) || lacks(design));
    if refused.is_some() {
        // Says why.
        return settings.designs(rows::NAME, offered);
    }
    let is_meant = |design: &&Design| match &*settings.designs {
        [] => !lacks(design),
        asked => asked.contains(design),
    };
    Ok(offered.iter().filter(is_meant).copied().collect())
}

/// Has a process of this command measure a row.
fn in_a_process(settings: &Settings, design: Design, asked: bool) -> Result<Run, Failure> {
    let failed = |why: String| Failure::Run(format!("{design}: {why}"));
    let program = std::env::current_exe()
        .map_err(|error| failed(format!("cannot find this command's file: {error}")))?;
    let mut command = Command::new(program);
    command.args(["bench", rows::NAME, "--busy", "--design", design.name()]);
    command.args(["--cpus", &settings.cpus.len().to_string()]);
    command.args(["--seed", &settings.seed.to_string()]);
    if settings.effort != Effort::Full {
        command.arg("--quick");
    }
    command.env(CHILD, if asked { "asked" } else { "rest" });
    if design == Design::Tcmalloc {
        // It registers areas for restartable sequences itself.
        command.env("GLIBC_TUNABLES", "glibc.pthread.rseq=0");
    }
    let output = command
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .output()
        .map_err(|error| failed(format!("cannot run a process: {error}")))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text.lines().find(|line| line.starts_with('{'));
    line.and_then(|line| serde_json::from_str(line).ok()).ok_or_else(|| {
        let errors = String::from_utf8_lossy(&output.stderr);
        let last = errors.lines().last().unwrap_or("it wrote nothing").to_owned();
        failed(format!("its process ended with {}: {last}", output.status))
    })
}
