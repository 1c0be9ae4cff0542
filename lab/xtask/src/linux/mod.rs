//! Linux on pagedepot: fetched, hooked, built, booted and measured.
//!
//! | module | what |
//! |---|---|
//! | `needed` | programs of the host |
//! | `sources` | where Linux's sources come from |
//! | `hooks` | our lines, inserted into it |
//! | `tree` | a source tree with hooks, glue and library, and its build |
//! | `project` | what kernbench builds |
//! | `plan` | which machines boot, and what they run |
//! | `faults` | what a kernel at fault says |
//! | `figures` | what machines say, under the names that scripts read |

mod faults;
mod figures;
mod hooks;
mod needed;
mod plan;
mod project;
mod sources;
mod tree;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use clap::{Args, ValueEnum};

use serde_json::json;

use xtask::results::{self, Results};
use xtask::source::{self, Source};
use xtask::tools;

use figures::{DESIGNS, OLD, RIVALS};
use tree::{Kernel, Kind};

/// The source of the machines' only program.
const INIT: [&str; 6] = ["init.c", "kernbench.c", "locks.c", "nodes.c", "streams.c", "vmalloc.c"];

/// Options of `cargo xtask linux`.
#[derive(Debug, Args)]
pub struct Options {
    /// Fewer rounds and machines, for a look
    #[arg(long)]
    quick: bool,
    /// Write the figures to FILE, for `pagedepot-lab compare`
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// One kind of kernel only
    #[arg(long, value_name = "KIND")]
    only: Option<KernelChoice>,
    /// Boot machines of one design only
    #[arg(long, value_name = "DESIGN", value_parser = DESIGNS)]
    design: Option<String>,
    /// Boot machines with so many nodes of memory only: 2 with 4 CPUs, or 8 with 8
    #[arg(long, value_name = "N", value_parser = nodes, conflicts_with = "only")]
    nodes: Option<u32>,
    /// Build the library and the glue's hooks, and no kernel: needs no network
    #[arg(long, conflicts_with_all = ["json", "only", "design", "nodes"])]
    library: bool,
    /// Build the kernels, and boot none
    #[arg(long, conflicts_with = "json")]
    build: bool,
    /// Rounds: boots of each design, rounds in each (default: 3, with --quick 1)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: Option<u32>,
    /// CPUs of user-mode Linux, and clients of page faults at most
    #[arg(long, value_name = "N", default_value_t = 2)]
    #[arg(value_parser = clap::value_parser!(u32).range(2..=8))]
    cpus: u32,
    /// Jobs of the kernels' builds at a time (default: one more than the host's CPUs)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=256))]
    jobs: Option<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum KernelChoice {
    /// User-mode Linux, the newest: times
    User,
    /// 6.1 under QEMU: correctness and counts
    Guest,
    /// 6.1 under QEMU with full preemption: correctness; not part of --quick by itself
    Preempted,
    /// 6.1 under QEMU with 2 and 8 nodes of memory: correctness; not part of --quick by itself
    Numa,
    /// The newest under QEMU with PREEMPT_RT: correctness; not part of --quick by itself
    Realtime,
    /// 5.10 under QEMU as it comes: counts; not part of --quick by itself
    Old,
}

impl KernelChoice {
    const ALL: [KernelChoice; 6] = [
        KernelChoice::User,
        KernelChoice::Guest,
        KernelChoice::Preempted,
        KernelChoice::Numa,
        KernelChoice::Realtime,
        KernelChoice::Old,
    ];

    /// Whether this kind of kernel can be booted with a design.
    fn has(self, design: &str) -> bool {
        match self {
            KernelChoice::User => design != OLD,
            KernelChoice::Guest
            | KernelChoice::Preempted
            | KernelChoice::Numa
            | KernelChoice::Realtime => design != OLD && !RIVALS.contains(&design),
            KernelChoice::Old => design == OLD,
        }
    }
}

/// A number of nodes that machines have.
fn nodes(word: &str) -> Result<u32> {
    let nodes = word.parse()?;
    ensure!(plan::NODES.contains(&nodes), "machines have 2 or 8 nodes");
    Ok(nodes)
}

/// The kinds of kernels that are booted.
fn wanted(options: &Options) -> Result<Vec<KernelChoice>> {
    let design = options.design.as_deref();
    let has = |kind: KernelChoice| design.is_none_or(|design| kind.has(design));
    let all: Vec<_> = KernelChoice::ALL.into_iter().filter(|kind| has(*kind)).collect();
    if let Some(kind) = options.only.or(options.nodes.map(|_| KernelChoice::Numa)) {
        let others: Vec<_> = all.iter().map(|kind| format!("--only {}", name(*kind))).collect();
        ensure!(
            has(kind),
            "the kernels of --only {} have no {}: give {}",
            name(kind),
            design.unwrap_or_default(),
            others.join(" or ")
        );
        return Ok(vec![kind]);
    }
    let is_usual = |kind: KernelChoice| match kind {
        KernelChoice::User | KernelChoice::Guest => true,
        KernelChoice::Preempted | KernelChoice::Numa | KernelChoice::Realtime => !options.quick,
        KernelChoice::Old => !options.quick || design.is_some(),
    };
    Ok(all.into_iter().filter(|kind| is_usual(*kind)).collect())
}

/// Name of the kind on the command line.
fn name(kind: KernelChoice) -> String {
    kind.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}

/// Fetches, builds, boots and measures.
pub fn run(options: &Options) -> Result<()> {
    let root = &tools::root()?;
    let cache = tools::build_folder(root, "linux")?;
    let log = cache.join("log");
    let json = results::open(options.json.as_deref())?;
    if options.library {
        needed::check_library()?;
        let library = tree::library(root, &cache, &log)?;
        println!("{}", library.display());
        return Ok(());
    }
    let wanted = wanted(options)?;
    let is_guest = |kind: &KernelChoice| *kind != KernelChoice::User;
    needed::check_installed(wanted.iter().any(is_guest))?;
    eprintln!("building examples/linux");
    let library = tree::library(root, &cache, &log)?;
    let files = init(root, &cache, &log)?;
    let plugin = match wanted.iter().any(is_guest) {
        true => Some(plugin(root, &cache, &log)?),
        false => None,
    };
    eprintln!("reading the archive's lists");
    let archive = sources::archive(&cache, wanted.contains(&KernelChoice::Old))?;
    let mut results = Results::default();
    let mut kernels = BTreeMap::new();
    let jobs = options.jobs.map_or_else(
        || 1 + std::thread::available_parallelism().map_or(1, usize::from),
        |jobs| jobs as usize,
    );
    let mut failed = Vec::new();
    for kind in wanted {
        let guest = "linux-source-6.1".to_owned();
        let (package, built) = match kind {
            KernelChoice::User => (sources::newest(&archive)?, Kind::User),
            KernelChoice::Guest => (guest, Kind::Guest),
            KernelChoice::Preempted => (guest, Kind::Preempted),
            KernelChoice::Numa => (guest, Kind::Numa),
            KernelChoice::Realtime => (sources::newest(&archive)?, Kind::Realtime),
            KernelChoice::Old => ("linux-source-5.10".to_owned(), Kind::Old),
        };
        let source = source::source(&archive, &cache, &package)?;
        let kernel = build(root, &cache, (&source, built), (&library, &files), jobs)?;
        kernels.insert(built.name(), source.version.clone());
        if options.build {
            println!("{}", kernel.image.display());
            continue;
        }
        let project = project::copy(root, &cache, &source)?;
        let rounds = options.rounds.unwrap_or(if options.quick { 1 } else { 3 });
        let plan = plan::Plan {
            kernel: &kernel,
            cache: &cache,
            plugin: plugin.as_deref(),
            project: &project,
            rounds,
            quick: options.quick,
            user_cpus: options.cpus,
            design: options.design.as_deref(),
        };
        let machines = match built {
            Kind::User => plan.user(),
            Kind::Guest => plan.guests(),
            Kind::Preempted => plan.preempted(),
            Kind::Numa => plan.numa(options.nodes),
            Kind::Realtime => plan.realtime(),
            Kind::Old => plan.old(),
        };
        for machine in machines {
            // What fails is told at the end, and the others are booted nevertheless.
            if let Err(error) = machine.run(&mut results) {
                eprintln!("{error:#}");
                failed.push(machine.name());
            }
        }
    }
    if options.build {
        return Ok(());
    }
    print!("{}", results.table(&DESIGNS));
    if let Some(file) = json {
        let settings = json!({ "quick": options.quick, "kernels": kernels });
        results::write(file, &results.document("linux", &settings))?;
    }
    ensure!(failed.is_empty(), "these failed, see above: {}", failed.join(", "));
    Ok(())
}

fn build(
    root: &Path,
    cache: &Path,
    (source, kind): (&Source, Kind),
    (library, files): (&Path, &Path),
    jobs: usize,
) -> Result<Kernel> {
    let lines = tree::hook(root, source, library, kind == Kind::User)?;
    eprintln!("building Linux {} with {lines} lines of ours in it", source.version);
    tree::build(root, cache, source, kind, files, jobs)
}

/// Compiles the plugin of QEMU that counts instructions.
fn plugin(root: &Path, cache: &Path, log: &Path) -> Result<PathBuf> {
    let plugin = cache.join("count.so");
    let mut gcc = Command::new("gcc");
    gcc.args(["-O2", "-Wall", "-shared", "-fPIC", "-fvisibility=hidden", "-o"]).arg(&plugin);
    tools::run(gcc.arg(root.join("examples/linux/plugin/count.c")), log)?;
    Ok(plugin)
}

/// Compiles the machines' only program, and lists the files they begin with.
fn init(root: &Path, cache: &Path, log: &Path) -> Result<PathBuf> {
    let program = cache.join("init");
    let sources = INIT.map(|name| root.join("examples/linux/init").join(name));
    let mut gcc = Command::new("gcc");
    gcc.args(["-O2", "-Wall", "-static", "-o"]).arg(&program).args(sources);
    tools::run(&mut gcc, log).context(
        "examples/linux/init does not build: a static program needs the C library's archive \
         (libc6-dev)",
    )?;
    let list = cache.join("files");
    let text = format!(
        "dir /dev 755 0 0\nnod /dev/console 600 0 0 c 5 1\nnod /dev/kmsg 600 0 0 c 1 11\n\
         dir /proc 755 0 0\ndir /sys 755 0 0\nfile /init {} 755 0 0\n",
        program.display()
    );
    tools::write_if_changed(&list, text.as_bytes())?;
    Ok(list)
}

#[cfg(test)]
mod tests {
    use clap::FromArgMatches;

    use super::*;

    fn kinds(words: &str) -> Result<Vec<KernelChoice>> {
        let command = Options::augment_args(clap::Command::new("linux"));
        let words = ["linux"].into_iter().chain(words.split_whitespace());
        wanted(&Options::from_arg_matches(&command.try_get_matches_from(words)?)?)
    }

    #[test]
    fn a_design_boots_in_the_kernels_that_have_it() {
        for (words, expected) in [
            ("", &KernelChoice::ALL[..]),
            ("--quick", &[KernelChoice::User, KernelChoice::Guest]),
            (
                "--design linux-depot",
                &[
                    KernelChoice::User,
                    KernelChoice::Guest,
                    KernelChoice::Preempted,
                    KernelChoice::Numa,
                    KernelChoice::Realtime,
                ],
            ),
            ("--design linux-rcu", &[KernelChoice::User]),
            ("--quick --design linux-5.10", &[KernelChoice::Old]),
            ("--quick --only preempted", &[KernelChoice::Preempted]),
            ("--quick --nodes 8", &[KernelChoice::Numa]),
        ] {
            assert_eq!(kinds(words).unwrap(), expected, "{words}");
        }
        for (words, says) in [
            ("--only guest --design linux-rcu", "no linux-rcu: give --only user"),
            ("--only user --design linux-5.10", "no linux-5.10: give --only old"),
            ("--nodes 2 --design linux-rcu", "no linux-rcu: give --only user"),
        ] {
            assert!(kinds(words).unwrap_err().to_string().ends_with(says), "{words}");
        }
    }
}
