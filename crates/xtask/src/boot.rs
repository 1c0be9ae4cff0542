//! A booted machine that says what it finds: what it was told, and what it said.
//!
//! Lines of its console that begin with `= ` are figures (`= metric value name=number...`, or
//! `name=word`), checks (`= check name ok`, `= check name failed why`), `= begin scenario`,
//! `= untested what and why`, and `= done` at the end.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::console::MachineProcess;
use crate::results::Param;

/// A figure, or something that must hold.
#[derive(Clone, Debug, PartialEq)]
pub enum ConsoleLine {
    /// A figure with its parameters.
    Figure { metric: String, value: f64, params: BTreeMap<String, Param> },
    /// A check, and why it failed.
    Check { name: String, failed: Option<String> },
    /// A scenario began.
    Begin(String),
    /// A test, or a part of one, was left out, and why.
    Untested(String),
    /// All ended.
    Done,
}

impl ConsoleLine {
    /// Parses a line of the console; `None`: it is one of the kernel's.
    pub fn parse(line: &str) -> Option<Self> {
        let rest = line.trim_end().strip_prefix("= ")?;
        let (first, rest) = rest.split_once(' ').unwrap_or((rest, ""));
        match first {
            "done" => Some(ConsoleLine::Done),
            "begin" => Some(ConsoleLine::Begin(rest.to_owned())),
            "untested" => Some(ConsoleLine::Untested(rest.to_owned())),
            "check" => {
                let (name, verdict) = rest.split_once(' ')?;
                let failed = match verdict.strip_prefix("failed") {
                    Some(why) => Some(why.trim().to_owned()),
                    None if verdict == "ok" => None,
                    None => return None,
                };
                Some(ConsoleLine::Check { name: name.to_owned(), failed })
            }
            metric => {
                let mut words = rest.split_whitespace();
                let value = words.next()?.parse().ok()?;
                let params = words
                    .map(|word| {
                        let (name, value) = word.split_once('=')?;
                        Some((name.to_owned(), Param::parse(value)?))
                    })
                    .collect::<Option<_>>()?;
                Some(ConsoleLine::Figure { metric: metric.to_owned(), value, params })
            }
        }
    }
}

impl fmt::Display for ConsoleLine {
    /// Writes the line that [`parse`](Self::parse) reads.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConsoleLine::Figure { metric, value, params } => {
                write!(f, "= {metric} {value}")?;
                params.iter().try_for_each(|(name, value)| write!(f, " {name}={value}"))
            }
            ConsoleLine::Check { name, failed: None } => write!(f, "= check {name} ok"),
            ConsoleLine::Check { name, failed: Some(why) } => {
                write!(f, "= check {name} failed {why}")
            }
            ConsoleLine::Begin(scenario) => write!(f, "= begin {scenario}"),
            ConsoleLine::Untested(what) => write!(f, "= untested {what}"),
            ConsoleLine::Done => f.write_str("= done"),
        }
    }
}

/// The name of a check that the kernel itself fails, by a line that `Boot::is_fault` knows.
const KERNEL: &str = "kernel";

/// A machine to boot.
pub struct Boot<'b> {
    /// The program that runs it, with all of its arguments but the kernel's.
    pub command: Command,
    /// Name of the machine's program, for messages.
    pub what: &'b str,
    /// Whether a line of the console that is none of these tells of a fault of the kernel.
    pub is_fault: fn(&str) -> bool,
    /// The file that gets a copy of the console.
    pub log: &'b Path,
    /// Longest time between two lines of the console: a machine with much to do, on a slow host,
    /// prints its progress.
    pub timeout: Duration,
}

impl Boot<'_> {
    /// Boots, and passes on what is said. Fails when the kernel or a check does, or when the
    /// machine ends before its program has.
    pub fn run(mut self, mut heard: impl FnMut(ConsoleLine)) -> Result<()> {
        let name = self.command.get_program().display().to_string();
        let spawned =
            self.command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
        let mut running = MachineProcess(spawned.with_context(|| format!("cannot start {name}"))?);
        let lines = running.lines()?;
        let mut console = File::create(self.log)
            .with_context(|| format!("cannot write {}", self.log.display()))?;
        let (mut faults, mut is_done) = (Vec::new(), false);
        let mut said_last = Instant::now();
        let outcome = loop {
            match lines.recv_timeout(self.timeout.saturating_sub(said_last.elapsed())) {
                Ok(line) => {
                    writeln!(console, "{line}")
                        .with_context(|| format!("cannot write {}", self.log.display()))?;
                    let said = ConsoleLine::parse(&line);
                    if said.is_some() {
                        said_last = Instant::now();
                    }
                    match said {
                        Some(ConsoleLine::Done) => is_done = true,
                        Some(said) => {
                            if let ConsoleLine::Check { name, failed: Some(why) } = &said {
                                faults.push(format!("{name}: {why}"));
                            }
                            heard(said);
                        }
                        None if (self.is_fault)(&line) => {
                            faults.push(line.clone());
                            heard(ConsoleLine::Check {
                                name: KERNEL.to_owned(),
                                failed: Some(line),
                            });
                        }
                        None => {}
                    }
                }
                Err(RecvTimeoutError::Disconnected) => break Ok(()),
                Err(RecvTimeoutError::Timeout) => break Err(self.timeout),
            }
        };
        drop(running);
        let (what, log) = (self.what, self.log.display());
        if let Err(timeout) = outcome {
            bail!("{what} said nothing for {} s; its console is in {log}", timeout.as_secs());
        }
        if !faults.is_empty() {
            bail!("{what} failed; its console is in {log}:\n  {}", faults.join("\n  "));
        }
        if !is_done {
            bail!("{what} ended early; its console is in {log}");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_console_are_told_apart() {
        let figure = |metric: &str, value, params: &[(&str, Param)]| ConsoleLine::Figure {
            metric: metric.to_owned(),
            value,
            params: params.iter().map(|(name, of)| ((*name).to_owned(), of.clone())).collect(),
        };
        let check = |name: &str, failed: Option<&str>| ConsoleLine::Check {
            name: name.to_owned(),
            failed: failed.map(str::to_owned),
        };
        for (line, said) in [
            ("= pair_ns 32.500 order=0\r", Some(figure("pair_ns", 32.5, &[("order", 0.into())]))),
            (
                "= zone_lock_takes 7 workload=exit",
                Some(figure("zone_lock_takes", 7.0, &[("workload", "exit".into())])),
            ),
            ("= zone_lock_takes 7 workload=", None),
            ("= cpus 2", Some(figure("cpus", 2.0, &[]))),
            ("= check thp ok", Some(check("thp", None))),
            (
                "= check oom failed 3 of 4 were killed",
                Some(check("oom", Some("3 of 4 were killed"))),
            ),
            ("= check oom maybe", None),
            ("= untested a: b", Some(ConsoleLine::Untested("a: b".to_owned()))),
            ("= begin times", Some(ConsoleLine::Begin("times".to_owned()))),
            ("= done", Some(ConsoleLine::Done)),
            ("= pair_ns", None),
            ("= pair_ns fast", None),
            ("= pair_ns 1 order", None),
            ("[    0.000000] Linux version 7.2", None),
            ("", None),
        ] {
            assert_eq!(ConsoleLine::parse(line), said, "{line}");
            if let Some(said) = said {
                assert_eq!(ConsoleLine::parse(&said.to_string()).as_ref(), Some(&said));
            }
        }
    }

    #[test]
    fn a_machine_that_fails_says_why() {
        let log = std::env::temp_dir().join(format!("pagedepot-boot-{}", std::process::id()));
        let boot = |script: &str, timeout| {
            let mut command = Command::new("sh");
            command.args(["-c", script]);
            let mut heard = Vec::new();
            let boot = Boot {
                command,
                what: "it",
                is_fault: |line| line.contains("BUG:"),
                log: &log,
                timeout: Duration::from_millis(timeout),
            };
            let outcome = boot.run(|said| heard.push(said));
            (outcome.err().map(|error| format!("{error:#}")), heard.len())
        };
        let (error, heard) = boot("echo '= a 1'; echo '= check b ok'; echo '= done'", 10_000);
        assert_eq!((error, heard), (None, 2));
        assert_eq!(std::fs::read_to_string(&log).unwrap(), "= a 1\n= check b ok\n= done\n");
        let slow = "for i in 1 2 3 4; do sleep 0.3; echo \"= a $i\"; done; echo '= done'";
        assert_eq!(boot(slow, 1000), (None, 4), "longer in all than from one to the next");
        for (script, timeout, says) in [
            ("echo '= a 1'", 10_000, "ended early"),
            ("echo 'BUG: x'; echo '= done'", 10_000, "BUG: x"),
            ("echo '= check b failed c'; echo '= done'", 10_000, "b: c"),
            ("sleep 5", 20, "said nothing"),
            ("while :; do echo 'no news'; sleep 0.01; done", 100, "said nothing"),
        ] {
            let error = boot(script, timeout).0.expect(script);
            assert!(error.contains(says), "{error}");
        }
        let _ = std::fs::remove_file(log);
    }

    #[test]
    fn faults_are_heard_and_fail_the_boot() {
        let log = std::env::temp_dir().join(format!("pagedepot-faults-{}", std::process::id()));
        let mut command = Command::new("printf");
        command.arg("= check a ok\nBUG: bad page\n= check b failed why\n= done");
        let (timeout, is_fault) = (Duration::from_secs(60), |line: &str| line.contains("BUG:"));
        let mut failed = Vec::new();
        let boot = Boot { command, what: "it", is_fault, log: &log, timeout };
        let outcome = boot.run(|said| match said {
            ConsoleLine::Check { name, failed: why } => failed.push((name, why.is_some())),
            said => panic!("{said}"),
        });
        std::fs::remove_file(&log).unwrap();
        let of = |name: &str, failed| (name.to_owned(), failed);
        assert_eq!(failed, [of("a", false), of(KERNEL, true), of("b", true)]);
        let error = format!("{:#}", outcome.unwrap_err());
        assert!(error.contains("  BUG: bad page\n  b: why"), "{error}");
    }
}
