//! Debian's Redis with its extents from a depot: throughput beside plain jemalloc, with drains
//! behind it, and memory given back after a peak.
//!
//! The shared object is `crates/capi/examples/jemalloc/hooks.c`. Each figure is of a server of its
//! own; variants take turns, so that other work on the machine meets all of them. Seconds of CPU
//! per request are steadier than requests per second, which depend on the client, too.

mod server;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use serde_json::json;

use self::server::Server;
use xtask::results::{self, Results};
use xtask::{install, tools};

/// Options of `cargo xtask redis`.
#[derive(Debug, Args)]
pub struct Options {
    /// Write the results to FILE, as `pagedepot-lab compare` reads them
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Use the C library that `cargo xtask install` has put below DIR, instead of building it
    #[arg(long, value_name = "DIR")]
    installed: Option<PathBuf>,
    /// Measure each variant so often
    #[arg(
        long,
        value_name = "N",
        default_value_t = 5,
        value_parser = clap::value_parser!(u32).range(1..=1000),
    )]
    rounds: u32,
    /// Drain every so many milliseconds
    #[arg(
        long,
        value_name = "MS",
        default_value_t = 100,
        value_parser = clap::value_parser!(u32).range(1..=60_000),
    )]
    drain_ms: u32,
    /// Few requests, and little memory: shows that it works
    #[arg(long)]
    quick: bool,
}

/// A way to run the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Variant {
    name: &'static str,
    /// Whether its extents come from a depot, and the drains behind it.
    drain: Option<&'static str>,
}

const PLAIN: Variant = Variant { name: "jemalloc", drain: None };
const DEPOT: Variant = Variant { name: "depot", drain: Some("none") };
const VARIANTS: [Variant; 4] = [
    PLAIN,
    DEPOT,
    Variant { name: "depot-quiet", drain: Some("quiet") },
    Variant { name: "depot-full", drain: Some("full") },
];

/// Tests of `redis-benchmark`.
const TESTS: [&str; 3] = ["set", "get", "lpush"];

/// The amount of work.
struct Amount {
    requests: u32,
    peak_requests: u32,
    rest: Duration,
}

impl Amount {
    fn of(options: &Options) -> Self {
        match options.quick {
            true => {
                Amount { requests: 20_000, peak_requests: 60_000, rest: Duration::from_secs(3) }
            }
            false => {
                Amount { requests: 400_000, peak_requests: 600_000, rest: Duration::from_secs(12) }
            }
        }
    }
}

/// Builds the shared object, measures, and prints what came out.
///
/// # Errors
/// When Redis or a C compiler is missing, something cannot be built, a server ends, or its extents
/// did not come from the depot.
pub fn run(options: &Options) -> Result<()> {
    let json = results::open(options.json.as_deref())?;
    for program in ["redis-server", "redis-benchmark"] {
        tools::output(Command::new(program).arg("--version"))
            .with_context(|| "install Debian's packages redis-server and redis-tools")?;
    }
    let folder = tools::build_folder(&tools::root()?, "redis")?;
    let object = build(options, &folder)?;
    let amount = Amount::of(options);
    let mut results = Results::default();
    for round in 0..options.rounds {
        // A different one first each time.
        for at in 0..VARIANTS.len() {
            let variant = VARIANTS[(at + round as usize) % VARIANTS.len()];
            eprintln!("round {} of {}: {}", round + 1, options.rounds, variant.name);
            throughput(variant, options, (&object, &folder), &amount, &mut results)?;
        }
    }
    let mut rests = Vec::new();
    for variant in [PLAIN, DEPOT] {
        eprintln!("memory: {}", variant.name);
        rests.push((variant, peak(variant, options, (&object, &folder), &amount)?));
    }
    show(&results, &rests);
    add_rests(&mut results, &rests);
    if let Some(file) = json {
        let settings = json!({
            "quick": options.quick, "rounds": options.rounds, "drain_ms": options.drain_ms,
            "redis": tools::output(Command::new("redis-server").arg("--version"))?.trim(),
        });
        results::write(file, &results.document("redis", &settings))?;
    }
    Ok(())
}

/// The object to preload, over an installed C library.
fn build(options: &Options, folder: &Path) -> Result<PathBuf> {
    let prefix = match &options.installed {
        Some(prefix) => {
            prefix.canonicalize().with_context(|| format!("no {}", prefix.display()))?
        }
        None => {
            let prefix = folder.join("prefix");
            install::run(&install::Options::plain(&prefix))?;
            prefix
        }
    };
    let source = tools::root()?.join("crates/capi/examples/jemalloc/hooks.c");
    let object = folder.join("libpagedepot_jemalloc.so");
    let lib = prefix.join("lib");
    let mut compiler = Command::new("cc");
    compiler.args(["-O2", "-g", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]);
    compiler.arg("-I").arg(prefix.join("include")).arg(&source).arg("-o").arg(&object);
    compiler.arg("-L").arg(&lib).args(["-lpagedepot", "-lpthread", "-ldl"]);
    compiler.arg(format!("-Wl,-rpath,{}", lib.display()));
    tools::run(&mut compiler, &folder.join("cc.log"))?;
    Ok(object)
}

fn start(variant: Variant, options: &Options, (object, folder): (&Path, &Path)) -> Result<Server> {
    let mut command = Command::new("redis-server");
    if let Some(drain) = variant.drain {
        command.env("LD_PRELOAD", object);
        command.env("PAGEDEPOT_JEMALLOC_DRAIN", drain);
        command.env("PAGEDEPOT_JEMALLOC_DRAIN_MS", options.drain_ms.to_string());
    }
    Server::start(command, folder)
}

/// `redis-benchmark`, with its own defaults but for what is given; requests per second by test.
fn benchmark(server: &Server, arguments: &[&str]) -> Result<BTreeMap<String, f64>> {
    let mut command = Command::new("redis-benchmark");
    command.arg("-s").arg(server.socket()).args(["--csv", "-P", "16"]).args(arguments);
    let figures = figures(&tools::output(&mut command)?);
    ensure!(!figures.is_empty(), "redis-benchmark printed no figures");
    Ok(figures)
}

/// `"SET","123.4",...` is a line of figures; the first line names the columns.
fn figures(csv: &str) -> BTreeMap<String, f64> {
    let figure = |line: &str| {
        let mut cells = line.split(',').map(|cell| cell.trim_matches('"'));
        Some((cells.next()?.to_lowercase(), cells.next()?.parse().ok()?))
    };
    csv.lines().filter_map(figure).collect()
}

fn throughput(
    variant: Variant,
    options: &Options,
    files: (&Path, &Path),
    amount: &Amount,
    results: &mut Results,
) -> Result<()> {
    let server = start(variant, options, files)?;
    let requests = amount.requests.to_string();
    let common = ["-d", "256", "-r", "100000"];
    benchmark(&server, &[&["-n", "20000", "-t", "set"], &common[..]].concat())?;
    for test in TESTS {
        let before = server.cpu_ns()?;
        let of = benchmark(&server, &[&["-n", &requests, "-t", test], &common[..]].concat())?;
        let cpu_ns = (server.cpu_ns()? - before) as f64 / f64::from(amount.requests);
        for (name, per_s) in of.into_iter().filter(|(name, _)| name == test) {
            results.add(variant.name, 1, &format!("{name}_requests_per_s"), BTreeMap::new(), per_s);
        }
        results.add(variant.name, 1, &format!("{test}_cpu_ns"), BTreeMap::new(), cpu_ns);
    }
    if variant.drain.is_some() {
        check(&server)?;
    }
    server.stop()
}

/// Fails unless the extents came from the depot.
fn check(server: &Server) -> Result<()> {
    let report = server.report()?;
    let count = |name: &str| report.get(name).copied().unwrap_or(0);
    if count("extents") == 0 || count("held_pages") == 0 {
        bail!("the server took no extents from the depot: {report:?}; {}", server.said());
    }
    Ok(())
}

/// Bytes present, by milliseconds since everything was deleted.
struct Rest {
    /// Bytes before there was any data.
    empty_bytes: u64,
    peak_bytes: u64,
    over_time: Vec<(u64, u64)>,
}

impl Rest {
    /// The share of what the data took that is no longer present.
    fn share(&self, bytes: u64) -> f64 {
        let data = self.peak_bytes.saturating_sub(self.empty_bytes).max(1);
        self.peak_bytes.saturating_sub(bytes) as f64 / data as f64
    }
}

/// Fills a server, deletes everything, and watches it at rest.
fn peak(
    variant: Variant,
    options: &Options,
    files: (&Path, &Path),
    amount: &Amount,
) -> Result<Rest> {
    let server = start(variant, options, files)?;
    let empty_bytes = server.resident_bytes()?;
    let requests = amount.peak_requests.to_string();
    benchmark(&server, &["-n", &requests, "-r", &requests, "-d", "512", "-t", "set"])?;
    let peak_bytes = server.resident_bytes()?;
    if variant.drain.is_some() {
        check(&server)?;
    }
    // Without ASYNC Redis has jemalloc purge its arenas, as no other way to delete does.
    server.ask("FLUSHALL ASYNC")?;
    let (start, mut over_time) = (Instant::now(), Vec::new());
    loop {
        let at = start.elapsed();
        over_time.push((at.as_millis() as u64, server.resident_bytes()?));
        if at >= amount.rest {
            break;
        }
        sleep(Duration::from_millis(500).min(amount.rest - at));
    }
    server.stop()?;
    Ok(Rest { empty_bytes, peak_bytes, over_time })
}

fn add_rests(results: &mut Results, rests: &[(Variant, Rest)]) {
    for (variant, rest) in rests {
        for &(ms, bytes) in &rest.over_time {
            let params = BTreeMap::from([("after_ms".to_owned(), (ms as i64 / 500 * 500).into())]);
            results.add(variant.name, 1, "given_back_share", params, rest.share(bytes));
        }
    }
}

/// A line with a figure of plain jemalloc, and how the others differ.
fn compare(results: &Results, metric: &str, of: impl Fn(&[f64]) -> f64) {
    let value = |variant: Variant| match results.samples(variant.name, metric) {
        [] => f64::NAN,
        samples => of(samples),
    };
    let cells = VARIANTS.map(|variant| match variant == PLAIN {
        true => format!("{:>13.0}", value(PLAIN)),
        false => {
            format!("{:>13}", format!("{:+.1} %", (value(variant) / value(PLAIN) - 1.0) * 100.0))
        }
    });
    println!("{metric:<24}{}", cells.concat());
}

fn show(results: &Results, rests: &[(Variant, Rest)]) {
    // Other work on the machine only adds to what a request costs: the least says most. A rate also
    // has the client in it.
    let least = |samples: &[f64]| samples.iter().copied().fold(f64::INFINITY, f64::min);
    println!("requests per second: medians; CPU time per request: the least");
    println!("{:<24}{:>13}{:>13}{:>13}{:>13}", "", "jemalloc", "depot", "+ quiet", "+ full");
    for test in TESTS {
        let rate = format!("{test}_requests_per_s");
        compare(results, &rate, results::median);
        compare(results, &format!("{test}_cpu_ns"), least);
    }
    println!("\nMiB present after everything was deleted");
    let seconds: Vec<u64> = [0, 1, 2, 4, 8, 12].into();
    let heading: String =
        seconds.iter().map(|second| format!("{:>8}", format!("{second} s"))).collect();
    println!("{:<10}{:>8}{heading}{:>8}", "", "peak", "back");
    for (variant, rest) in rests {
        let mib = |bytes: u64| format!("{:>8.1}", bytes as f64 / f64::from(1 << 20));
        let cells: String = seconds
            .iter()
            .map(|second| {
                let at = rest.over_time.iter().find(|(ms, _)| *ms >= second * 1000);
                at.map_or(format!("{:>8}", "-"), |&(_, bytes)| mib(bytes))
            })
            .collect();
        let last = rest.over_time.last().map_or(0.0, |&(_, bytes)| rest.share(bytes));
        println!("{:<10}{}{cells}{:>6.1} %", variant.name, mib(rest.peak_bytes), last * 100.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_of_a_benchmark() {
        let csv = "\"test\",\"rps\",\"avg_latency_ms\"\n\
            \"SET\",\"250000.00\",\"2.1\"\n\
            \"GET\",\"nan\",\"1\"\n";
        let found = figures(csv);
        assert_eq!(found.get("set"), Some(&250_000.0));
        assert!(!found.contains_key("test"), "{found:?}");
        assert!(figures("").is_empty());
    }

    #[test]
    fn shares_are_of_the_data() {
        let rest = Rest { empty_bytes: 10, peak_bytes: 110, over_time: Vec::new() };
        assert_eq!((rest.share(110), rest.share(60), rest.share(10)), (0.0, 0.5, 1.0));
    }
}
