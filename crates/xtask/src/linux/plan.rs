//! Which machines boot, and what they run.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::Result;

use super::faults::is_fault;
use super::figures::{DEPOT, STOCK, named};
use crate::boot::{Boot, Said};
use crate::results::Results;
use crate::tools;

/// A kernel, and how much is asked of it.
pub struct Plan<'p> {
    /// The image.
    pub kernel: &'p Path,
    /// Where logs go.
    pub cache: &'p Path,
    /// Boots of each design, and rounds in each.
    pub rounds: u32,
    /// Fewer machines.
    pub quick: bool,
}

/// A machine that is booted once.
pub struct Machine<'p> {
    plan: &'p Plan<'p>,
    how: How,
    cpus: u32,
    design: &'static str,
    scenarios: &'static str,
    nth: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    /// User-mode Linux.
    User,
    /// QEMU, a thread per CPU.
    Guest,
    /// QEMU, where a nanosecond is an instruction.
    Counting,
    /// QEMU, the last CPU isolated.
    Isolating,
}

const TIMES: &str = "times,drains,pft,interfaces,disable,oom,zoneinfo,memfree";
const ONE_CPU: &str = "interfaces,disable,contig,thp,oom,zoneinfo,memfree";
const MANY_CPUS: &str =
    "interfaces,disable,contig,thp,cpu_hotplug,memory_hotplug,oom,zoneinfo,memfree";

impl Plan<'_> {
    /// Times: the designs in turn, so that what else the host does meets both.
    pub fn user(&self) -> Vec<Machine<'_>> {
        let boots = if self.quick { self.rounds.max(2) } else { self.rounds.max(3) };
        (0..boots).flat_map(|nth| self.both(How::User, 2, TIMES, nth)).collect()
    }

    /// Counts, then correctness with few and many CPUs, then an isolated CPU.
    pub fn guests(&self) -> Vec<Machine<'_>> {
        let mut machines = self.both(How::Counting, 1, "instructions", 0);
        let wide: &[u32] = if self.quick { &[4] } else { &[1, 4, 16] };
        for &cpus in wide {
            let scenarios = if cpus == 1 { ONE_CPU } else { MANY_CPUS };
            machines.extend(self.both(How::Guest, cpus, scenarios, 0));
        }
        machines.extend(self.both(How::Isolating, 4, "isolate", 0));
        machines
    }

    fn both(&self, how: How, cpus: u32, scenarios: &'static str, nth: u32) -> Vec<Machine<'_>> {
        let machine = |design| Machine { plan: self, how, cpus, design, scenarios, nth };
        vec![machine(STOCK), machine(DEPOT)]
    }
}

impl Machine<'_> {
    /// For messages and logs.
    pub fn name(&self) -> String {
        let how = match self.how {
            How::User => "user",
            How::Guest => "guest",
            How::Counting => "counting",
            How::Isolating => "isolating",
        };
        format!("{how}-{}cpus-{}-{}", self.cpus, self.design, self.nth)
    }

    /// Boots it, and adds what it says.
    pub fn run(&self, results: &mut Results) -> Result<()> {
        let name = self.name();
        eprintln!("booting {name}: {}", self.scenarios);
        let logs = tools::folder(self.plan.cache.join("consoles"))?;
        let log = logs.join(&name);
        let minutes = 20 + 2 * u64::from(self.cpus) + u64::from(self.plan.rounds) * 10;
        let timeout = Duration::from_secs(60 * minutes);
        let mut command = self.command();
        command.env("TMPDIR", &logs);
        Boot { command, what: &name, is_fault, log: &log, timeout }.run(|said| match said {
            Said::Figure { metric, value, params } => {
                if let Some((design, metric, params)) = named(self.design, &metric, params) {
                    results.add(design, self.cpus, metric, params, value);
                }
            }
            Said::Begin(scenario) => eprintln!("  {scenario}"),
            Said::Check { .. } | Said::Done => {}
        })
    }

    /// What the kernel is told.
    fn words(&self) -> String {
        let switch = if self.design == STOCK { "off" } else { "on" };
        let rounds = if self.how == How::User { 1 } else { self.plan.rounds };
        let mut words = format!(
            "pagedepot={switch} depot_run={} depot_rounds={rounds} panic=-1 rcupdate.rcu_cpu_stall_timeout=300",
            self.scenarios
        );
        match self.how {
            How::User => {}
            // Half of the rest of the memory is added later.
            How::Guest => words += " console=ttyS0 mem=1G depot_reboot",
            How::Counting => words += " console=ttyS0 depot_reboot",
            How::Isolating => {
                let last = self.cpus - 1;
                words += &format!(
                    " console=ttyS0 depot_reboot isolcpus=nohz,domain,managed_irq,{last} \
                     nohz_full={last} rcu_nocbs={last} irqaffinity=0"
                );
            }
        }
        words
    }

    fn command(&self) -> Command {
        let words = self.words();
        if self.how == How::User {
            let mut command = Command::new(self.plan.kernel);
            command.args(["mem=640M", "seccomp=on", "con=null", "con0=null,fd:1", "console=tty0"]);
            command.arg(format!("uml_dir={}", self.plan.cache.join("consoles").display()));
            command.arg(format!("ncpus={}", self.cpus)).args(words.split(' '));
            return command;
        }
        let mut command = Command::new("qemu-system-x86_64");
        let accelerator = match self.how {
            How::Counting => "tcg,thread=single",
            _ => "tcg,thread=multi",
        };
        command
            .args(["-nodefaults", "-no-reboot", "-display", "none", "-serial", "stdio"])
            .args(["-machine", "q35", "-cpu", "max", "-m", "1280"])
            .args(["-accel", accelerator, "-smp", &self.cpus.to_string()])
            .arg("-kernel")
            .arg(self.plan.kernel)
            .args(["-append", &words]);
        if self.how == How::Counting {
            command.args(["-icount", "shift=0"]);
        }
        command
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_designs_boot_in_turn_and_differ_by_one_word() {
        for quick in [false, true] {
            let plan = Plan { kernel: Path::new("k"), cache: Path::new("c"), rounds: 2, quick };
            let machines: Vec<_> = plan.user().into_iter().chain(plan.guests()).collect();
            for pair in machines.chunks(2) {
                let [stock, depot] = pair else { panic!("an odd machine") };
                assert_eq!((stock.design, depot.design), (STOCK, DEPOT));
                assert_eq!(stock.words().replace("=off", "=on"), depot.words());
                assert_ne!(stock.name(), depot.name());
            }
            let wide = machines.iter().any(|machine| machine.cpus == 16);
            assert_eq!(wide, !quick);
        }
    }

    #[test]
    fn only_counting_ties_time_to_instructions() {
        let plan = Plan { kernel: Path::new("k"), cache: Path::new("c"), rounds: 1, quick: false };
        for machine in plan.guests() {
            let command = machine.command();
            let has = command.get_args().any(|word| word == "-icount");
            assert_eq!(has, machine.scenarios == "instructions");
        }
    }
}
