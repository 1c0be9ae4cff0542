//! What the commands do.

use std::ffi::OsString;
use std::io::{self, Write};
use std::path::Path;

use crate::cli::{self, Command, Options, Parsed, SoakOptions, ZoneinfoPaths};
use crate::compare;
use crate::design::pool::SharedPool;
use crate::design::variant::{Isolated, Store, Variant};
use crate::design::{self, Demand, Design};
use crate::failure::Failure;
use crate::harness::{cpus, samples};
use crate::record;
use crate::replay::{self, Contender, Plan, StoreKind, Variants, Zoneinfos, shipped};
use crate::report::json::{self, JsonOutput, More};
use crate::report::machine::Machine;
use crate::report::rows::{Params, Report};
use crate::report::{Progress, lines, printable};
use crate::trace::{ExpandLimit, Zoneinfo};
use crate::workloads::clients::Clients;
use crate::workloads::soak::Soak;
use crate::workloads::{Effort, Settings, Workload};

/// Windows per contender: enough to judge a ratio by.
const ROUNDS: u32 = samples::ROUNDS_TO_JUDGE as u32;
const ROUNDS_QUICK: u32 = 11;
/// Timed runs of a trace.
const REPLAYS: u32 = 5;
const REPLAYS_QUICK: u32 = 1;

/// Does what the arguments say.
///
/// # Errors
/// Why not; the process exits with its code.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> Result<(), Failure> {
    let cli = match cli::parse(arguments)? {
        Parsed::Text(text) => return Ok(write!(io::stdout(), "{text}")?),
        Parsed::Run(cli) => cli,
    };
    match cli.command {
        None => tour(),
        Some(Command::Bench { workload, options, more, variant }) => {
            let effort = if options.quick { Effort::Quick } else { Effort::Full };
            let settings = Settings {
                variant,
                drains: more.drains,
                tune: more.tune,
                ..settings(&options, effort)?
            };
            let command = format!("bench {}", workload.name());
            finish((&command, More::new()), &options, || workload.run(&settings), with_machine)
        }
        Some(Command::Replay { trace, zoneinfo, expand, options, variant }) => {
            let command = format!("replay {}", trace.display());
            finish(
                (&command, More::new()),
                &options,
                || replay_file((&trace, expand.limit()), &zoneinfo, (&options, &variant)),
                with_machine,
            )
        }
        Some(Command::Vmalloc { vmalloc, options }) => {
            let effort = if options.quick { Effort::Quick } else { Effort::Full };
            let settings = settings(&options, effort)?;
            let more = vmalloc.settings(settings.cpus.len(), options.quick);
            finish(
                ("vmalloc", more),
                &options,
                || crate::workloads::vmalloc::run(&vmalloc, &settings),
                with_machine,
            )
        }
        Some(Command::Soak { options }) => soak(options),
        Some(Command::Record(options)) => {
            let recorded = record::record(&options)?;
            match (show(&recorded.text), recorded.exit_code) {
                // A reader that has gone changes nothing of how the command ended.
                (Err(failure), _) if !failure.is_silent() => Err(failure),
                (shown, 0) => shown,
                (_, code) => Err(Failure::Command(code)),
            }
        }
        Some(Command::RecordInside(inside)) => inside.run_alone(),
        Some(Command::Compare(options)) if options.is_to_measure() => compare_designs(&options),
        Some(Command::Compare(options)) => {
            let compared = compare::files(&options)?;
            for warning in &compared.warnings {
                // Nobody may be reading stderr.
                let _ = writeln!(io::stderr(), "warning: {}", printable(warning));
            }
            if options.format.is_for_people() {
                show(&compared.text)
            } else {
                write_out(&compared.text)
            }
        }
    }
}

/// Measures designs and compares them.
fn compare_designs(options: &compare::Options) -> Result<(), Failure> {
    let plan = compare::Plan::new(options)?;
    let bench = plan.bench(options);
    let effort = if bench.quick { Effort::Quick } else { Effort::Full };
    let (clients, more) = (options.measuring.clients.clone(), &options.measuring.more);
    let (variant, settings) = (options.measuring.variant, settings(&bench, effort)?);
    let settings = Settings { clients, variant, drains: more.drains, tune: more.tune, ..settings };
    finish(
        ("compare", More::new()),
        &bench,
        || plan.measure(&settings),
        |machine, measured| {
            let compared = plan.compare(measured, options)?;
            let for_people = options.format.is_for_people();
            Ok(if for_people { format!("{machine}\n\n{compared}") } else { compared })
        },
    )
}

fn soak(given: SoakOptions) -> Result<(), Failure> {
    let SoakOptions { minutes: time, drains: drains_per_s, designs, cpus, json, seed, variant } =
        given;
    let options = Options { cpus, json, seed, ..Options::default() };
    let refuses = |design: &Design| design.unavailable().or_else(|| variant.refuses(*design));
    let designs = if designs.is_empty() {
        Design::PAGED.into_iter().filter(|design| refuses(design).is_none()).collect()
    } else {
        designs
    };
    let cannot = |design: &&Design| !Design::PAGED.contains(design);
    if let Some(design) = designs.iter().find(cannot) {
        let there = design::list(&Design::PAGED);
        return Err(Failure::Usage(format!("design {design} cannot be soaked; there are {there}")));
    }
    if let Some(why) = designs.iter().find_map(refuses).or_else(|| variant.unused(&designs)) {
        return Err(Failure::Usage(why));
    }
    let demand = Demand { cpus: wanted_cpus(&options)?, variant, ..Demand::default() };
    let soak = Soak { designs, demand, time, drains_per_s, seed };
    let more = More::from([("minutes", (soak.time.as_secs_f64() / 60.0).into())]);
    finish(("soak", more), &options, || soak.run(), with_machine)
}

/// Without a command: the shipped trace, then what matters most, in about a minute.
fn tour() -> Result<(), Failure> {
    let settings = settings(&Options::default(), Effort::Short)?;
    show(&format!("{}\n\n", Machine::here(settings.cpus.len())))?;
    let zoneinfo = Zoneinfo::parse(shipped::ZONEINFO, "the shipped zoneinfo")
        .map_err(|e| Failure::Run(e.to_string()))?;
    let plan = Plan::read(shipped::TRACE, shipped::NAME, Some(&zoneinfo))
        .map_err(|e| Failure::Run(e.to_string()))?;
    let zoneinfos = Zoneinfos { before: Some(zoneinfo), after: None };
    show(replay_plan(&plan, &zoneinfos, (&Options::default(), &Variant::default()))?.text())?;
    if let Err(why) = cpus::check_seats(&settings.cpus) {
        return show(&format!("\nbenches are left out: {why}\n"));
    }
    for workload in [Workload::Hot, Workload::Pagealloc, Workload::Drain] {
        if workload == Workload::Drain && settings.cpus.len() < 2 {
            show("\ndrain: left out, because it needs two CPUs\n")?;
            continue;
        }
        show(&format!("\n{}", workload.run(&settings)?.text()))?;
    }
    Ok(())
}

/// Text for people.
fn show(text: &str) -> Result<(), Failure> {
    write_out(&lines(text))
}

/// Text for programs, as it is.
fn write_out(text: &str) -> Result<(), Failure> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(text.as_bytes())?;
    Ok(stdout.flush()?)
}

/// A report's own tables, for people.
fn with_machine(machine: &Machine, report: &Report) -> Result<String, Failure> {
    Ok(format!("{machine}\n\n{}", report.text()))
}

/// Measures, and puts the results where the options say: the samples first, so that neither a
/// reader who has gone nor a table that cannot be made loses them.
fn finish(
    (command, more): (&str, More),
    options: &Options,
    measure: impl FnOnce() -> Result<Report, Failure>,
    text: impl FnOnce(&Machine, &Report) -> Result<String, Failure>,
) -> Result<(), Failure> {
    let json = options.json.as_deref().map(JsonOutput::open).transpose()?;
    let machine = Machine::here(cpus::usable()?.len());
    let report = measure()?;
    let is_stdout_for_scripts = matches!(json, Some(JsonOutput::Stdout));
    let settings = json::Settings { quick: options.quick, more };
    let written = json
        .map_or(Ok(()), |json| json.write(&machine, command, (options.seed, settings), &report));
    let shown = text(&machine, &report).and_then(|text| {
        if is_stdout_for_scripts {
            // Nobody need be reading this.
            let _ = io::stderr().lock().write_all(lines(&text).as_bytes());
            return Ok(());
        }
        show(&text)
    });
    written.and(shown)
}

fn settings(options: &Options, effort: Effort) -> Result<Settings, Failure> {
    let rounds = if effort == Effort::Quick { ROUNDS_QUICK } else { ROUNDS };
    Ok(Settings {
        cpus: wanted_cpus(options)?,
        cpus_given: options.cpus.is_some(),
        clients: Clients::Auto,
        rounds: options.runs.unwrap_or(rounds),
        effort,
        seed: options.seed,
        designs: options.designs.clone(),
        variant: Variant::default(),
        drains: None,
        tune: false,
        progress: Progress::on_stderr(),
        memory: SharedPool::default(),
    })
}

/// The first CPUs, as many as asked for.
fn wanted_cpus(options: &Options) -> Result<Vec<pagedepot::CpuId>, Failure> {
    let mut cpus = cpus::usable()?;
    if let Some(wanted) = options.cpus {
        let (wanted, usable) = (wanted.get() as usize, cpus.len());
        if wanted > usable {
            return Err(Failure::Usage(format!(
                "{wanted} CPUs asked for, and this process may use {usable}: give --cpus {usable} or less"
            )));
        }
        cpus.truncate(wanted);
    }
    Ok(cpus)
}

fn replay_file(
    (trace, limit): (&Path, ExpandLimit),
    zoneinfo: &ZoneinfoPaths,
    options: (&Options, &Variant),
) -> Result<Report, Failure> {
    let usage = |e: crate::trace::TraceError| Failure::Usage(e.to_string());
    let (before, after) = (zoneinfo.before.as_deref(), zoneinfo.after.as_deref());
    let zoneinfos = Zoneinfos::find(trace, before, after).map_err(usage)?;
    let mut plan = Plan::load(trace, zoneinfos.before.as_ref(), limit).map_err(usage)?;
    let unknown_frees = if zoneinfos.before.is_some() { plan.work.unknown_frees } else { 0 };
    if plan.work.allocs.blocks() + plan.work.frees.blocks() + unknown_frees == 0 {
        return Err(Failure::Usage(format!(
            "{} holds no allocation that succeeded and no free of a known block, so there is nothing to replay; \
             record for longer, or give --zoneinfo",
            plan.name
        )));
    }
    if let Some(wanted) = options.0.cpus {
        plan.fold(wanted).map_err(|there| {
            Failure::Usage(format!(
                "{wanted} CPUs asked for, and {} was recorded on {there}: give --cpus {there} or less",
                plan.name
            ))
        })?;
    }
    replay_plan(&plan, &zoneinfos, options)
}

/// The designs to replay into: our own unless others are asked for. The kernel's own figures are
/// always there.
fn contenders(designs: &[Design]) -> Result<Vec<Contender>, Failure> {
    let mut contenders = Vec::new();
    for design in designs.iter().filter(|&&design| design != Design::Kernel) {
        match Contender::named(design.name()) {
            Some(contender) => contenders.push(contender),
            None => {
                let there: Vec<_> =
                    Contender::ALL.iter().map(|contender| contender.name()).collect();
                let there = there.join(", ");
                return Err(Failure::Usage(format!(
                    "design {design} cannot replay; there are {there}, kernel"
                )));
            }
        }
    }
    Ok(if contenders.is_empty() { vec![Contender::Depot] } else { contenders })
}

fn replay_variants(variant: &Variant, contenders: &[Contender]) -> Result<Variants, Failure> {
    let designs: Vec<_> = contenders.iter().filter_map(|c| Design::parse(c.name()).ok()).collect();
    let refused = if variant.drained_by.is_some() {
        Some("--drained-by is for bench: replays drain nobody".into())
    } else {
        designs
            .iter()
            .find_map(|&design| variant.refuses(design))
            .or_else(|| variant.unused(&designs))
    };
    if let Some(why) = refused {
        return Err(Failure::Usage(why));
    }
    Ok(Variants {
        store: variant.store.map(|store| match store {
            Store::Buddy => StoreKind::Buddy,
            Store::Bitmap => StoreKind::Bitmap,
        }),
        lock: variant.lock_mode(),
        free_high: variant.free_high(),
        grace: variant.grace(),
        isolated: variant.isolated == Some(Isolated::Yes),
        magazine: variant.magazine_options(),
    })
}

fn replay_plan(
    plan: &Plan,
    zoneinfos: &Zoneinfos,
    (options, variant): (&Options, &Variant),
) -> Result<Report, Failure> {
    let contenders = contenders(&options.designs)?;
    let runs = options.runs.unwrap_or(if options.quick { REPLAYS_QUICK } else { REPLAYS });
    let steps = u64::from(runs + 1) * contenders.len() as u64;
    let step = Progress::on_stderr().step(&format!("replaying {}", plan.name), steps);
    let variants = replay_variants(variant, &contenders)?;
    let result =
        replay::replay(plan, zoneinfos, (&contenders, variants), runs as usize, || step.tick());
    drop(step);
    let replayed = result.map_err(|e| {
        if e.is_bad_input() { Failure::Usage(e.to_string()) } else { Failure::Run(e.to_string()) }
    })?;
    let mut report = Report::default();
    report.say(replayed.to_string().trim_end());
    for row in replayed.rows() {
        let design = Design::parse(row.design).map_err(Failure::Run)?;
        let params: Params = row.params;
        if options.designs.is_empty() || options.designs.contains(&design) {
            let place = (row.cpus as usize, &params);
            report.add(row.workload, design, (row.metric, row.unit), place, &row.samples);
        }
    }
    Ok(report)
}
