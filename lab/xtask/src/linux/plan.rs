//! The machines that boot, and their scenarios.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::faults::is_fault;
use super::figures::{DEPOT, MAGAZINE, OLD, RCU, RIVALS, STOCK, WORK, named};
use super::tree::Kernel;
use xtask::boot::{Boot, ConsoleLine};
use xtask::results::Results;
use xtask::tools;

/// A kernel, and how much is asked of it.
pub struct Plan<'p> {
    /// The image, and its modules.
    pub kernel: &'p Kernel,
    /// Folder of the logs.
    pub cache: &'p Path,
    /// The plugin of QEMU that counts instructions; `None`: no guest boots.
    pub plugin: Option<&'p Path>,
    /// Folder of the project that kernbench builds.
    pub project: &'p Path,
    /// Boots of each design, and rounds in each.
    pub rounds: u32,
    /// Fewer machines.
    pub quick: bool,
    /// CPUs of user-mode Linux.
    pub user_cpus: u32,
    /// The only design that boots; `None`: all.
    pub design: Option<&'p str>,
}

/// A machine that is booted once.
pub struct Machine<'p> {
    plan: &'p Plan<'p>,
    how: BootKind,
    cpus: u32,
    design: &'static str,
    scenarios: &'static str,
    nth: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BootKind {
    /// User-mode Linux.
    User,
    /// User-mode Linux with what the threads measured by: `test_vmalloc.ko`, kernbench.
    Threads,
    /// User-mode Linux with streams over the loopback interface, under a policy for CPUs that only
    /// free.
    Streaming(u32),
    /// QEMU, a thread per CPU.
    Guest,
    /// A guest like [`Guest`](BootKind::Guest), with full preemption.
    Preempted,
    /// A guest like [`Guest`](BootKind::Guest), with as many nodes of memory.
    Numa(u32),
    /// A guest like [`Guest`](BootKind::Guest), with `PREEMPT_RT`.
    Realtime,
    /// QEMU with little memory, and as many rounds as are wanted.
    Enduring,
    /// QEMU, where a nanosecond is an instruction.
    Counting,
    /// QEMU, a thread per CPU: how often `zone->lock` is taken hardly depends on the host. How
    /// often it is found held does.
    Locking,
    /// QEMU, the last CPU isolated.
    Isolating,
    /// A guest like [`Isolating`](BootKind::Isolating), with a plugin that counts a drainer's
    /// instructions.
    CountingDrains,
}

const TIMES: &str = "times,drains,pft,interfaces,disable,oom,zoneinfo,memfree";
const WORK_TIMES: &str = "drains,pft,memfree";
/// Scenarios of the boot that `--quick` adds to a single round: times again, to show how far they
/// differ.
const AGAIN: &str = "times,drains,memfree";
const WORK_AGAIN: &str = "drains,memfree";
const THREADS: &str = "vmalloc,kernbench,memfree";
const STREAMS: &str = "streams,memfree";
/// Policies for CPUs that only free: nothing, a batch, four batches, `high`.
const POLICIES: u32 = 4;
const LOCKS: &str = "locks,memfree";
const COUNTS: &str = "instructions,pft,vmalloc";
const ONE_CPU: &str = "interfaces,modes,disable,contig,thp,oom,zoneinfo,memfree";
const MANY_CPUS: &str =
    "interfaces,modes,disable,contig,thp,cpu_hotplug,memory_hotplug,oom,zoneinfo,memfree";
const NUMA: &str =
    "interfaces,modes,disable,contig,thp,nodes,cpu_hotplug,memory_hotplug,oom,zoneinfo,memfree";
/// Nodes of memory of the machines that have more than one.
pub const NODES: [u32; 2] = [2, 8];
/// Scenarios with `PREEMPT_RT`, for which Linux has no huge pages.
const REALTIME: &str = "interfaces,modes,disable,contig,cpu_hotplug,memory_hotplug,oom,priorities,\
                        zoneinfo,memfree";
const REALTIME_ONE_CPU: &str = "interfaces,modes,disable,contig,oom,priorities,zoneinfo,memfree";
const HIBERNATION: &str = "hibernate,memfree";
/// Words of the command line for every guest of QEMU. Without `no_timer_check` a kernel gives up at
/// boot where a busy host delays the timer's interrupts while it tests them. With `oops=panic` a
/// fault of the kernel ends the machine, and not only the process that ran.
const GUEST_WORDS: &str = "console=ttyS0 depot_reboot no_timer_check oops=panic";
/// CPUs of the machine that counts takes of `zone->lock`, and those with `--quick`: two busy cores
/// of a host emulate few.
const LOCKING_CPUS: u32 = 16;
const LOCKING_CPUS_FEW: u32 = 4;
/// Rounds of each in a machine that has many scenarios.
const ROUNDS_MAX: u32 = 3;

impl Plan<'_> {
    /// Times: the designs in turn, so that what else the host does meets all.
    pub fn user(&self) -> Vec<Machine<'_>> {
        let cpus = self.user_cpus;
        let boots = if self.quick { self.rounds.max(2) } else { self.rounds.max(3) };
        let turn = |nth| {
            let is_extra = self.quick && nth >= self.rounds;
            let (times, work) = if is_extra { (AGAIN, WORK_AGAIN) } else { (TIMES, WORK_TIMES) };
            let mut machines = self.both(BootKind::User, cpus, times, nth);
            machines.extend(self.machine(BootKind::User, cpus, (WORK, work), nth));
            if nth == 0 || !self.quick {
                let rival = |design| self.machine(BootKind::User, cpus, (design, TIMES), nth);
                machines.extend(RIVALS.into_iter().filter_map(rival));
                machines.extend(self.both(BootKind::Threads, cpus, THREADS, nth));
                let streams = |policy| self.both(BootKind::Streaming(policy), cpus, STREAMS, nth);
                machines.extend((0..POLICIES).flat_map(streams));
            }
            machines
        };
        (0..boots).flat_map(turn).collect()
    }

    /// Counts, then correctness with few and many CPUs, then rounds, then an isolated CPU.
    pub fn guests(&self) -> Vec<Machine<'_>> {
        let mut machines = self.both(BootKind::Counting, 1, COUNTS, 0);
        let locking_cpus = if self.quick { LOCKING_CPUS_FEW } else { LOCKING_CPUS };
        machines.extend(self.both(BootKind::Locking, locking_cpus, LOCKS, 0));
        machines.extend(self.correct(BootKind::Guest));
        machines.extend(self.both(BootKind::CountingDrains, 4, "isolate_counts", 0));
        machines.extend(self.both(BootKind::Isolating, 4, "isolate", 0));
        machines.extend(self.machine(BootKind::Isolating, 4, (WORK, "isolate"), 0));
        if self.rounds > ROUNDS_MAX {
            machines.extend(self.both(BootKind::Enduring, 4, "cpu_hotplug,oom,memfree", 0));
        }
        machines
    }

    /// Correctness under full preemption, then an image of the memory.
    pub fn preempted(&self) -> Vec<Machine<'_>> {
        let mut machines = self.correct(BootKind::Preempted);
        machines.extend(self.both(BootKind::Preempted, 4, HIBERNATION, 1));
        machines
    }

    /// Correctness with few and many nodes of memory, or with as many as are asked for.
    pub fn numa(&self, only: Option<u32>) -> Vec<Machine<'_>> {
        let is_usual =
            |&nodes: &u32| only.map_or(!self.quick || nodes == NODES[0], |it| it == nodes);
        let of = |nodes: u32| self.both(BootKind::Numa(nodes), nodes.max(4), NUMA, 0);
        NODES.into_iter().filter(is_usual).flat_map(of).collect()
    }

    /// Correctness under `PREEMPT_RT`, then an image of the memory.
    pub fn realtime(&self) -> Vec<Machine<'_>> {
        let mut machines = self.correct(BootKind::Realtime);
        machines.extend(self.both(BootKind::Realtime, 4, HIBERNATION, 1));
        machines
    }

    /// Counts, and an isolated CPU, of a kernel as it comes.
    pub fn old(&self) -> Vec<Machine<'_>> {
        let counting = self.machine(BootKind::Counting, 1, (OLD, COUNTS), 0);
        let isolating = self.machine(BootKind::Isolating, 4, (OLD, "isolate"), 0);
        counting.into_iter().chain(isolating).collect()
    }

    /// Correctness with few and many CPUs.
    fn correct(&self, how: BootKind) -> Vec<Machine<'_>> {
        let wide: &[u32] = if self.quick { &[4] } else { &[1, 4, 16] };
        let of = |&cpus| {
            let scenarios = match (how, cpus) {
                (BootKind::Realtime, 1) => REALTIME_ONE_CPU,
                (BootKind::Realtime, _) => REALTIME,
                (_, 1) => ONE_CPU,
                _ => MANY_CPUS,
            };
            self.both(how, cpus, scenarios, 0)
        };
        wide.iter().flat_map(of).collect()
    }

    /// Two machines, without and with the depot.
    fn both(
        &self,
        how: BootKind,
        cpus: u32,
        scenarios: &'static str,
        nth: u32,
    ) -> Vec<Machine<'_>> {
        let machine = |design| self.machine(how, cpus, (design, scenarios), nth);
        [STOCK, DEPOT].into_iter().filter_map(machine).collect()
    }

    /// A machine, if its design is wanted.
    fn machine(
        &self,
        how: BootKind,
        cpus: u32,
        (design, scenarios): (&'static str, &'static str),
        nth: u32,
    ) -> Option<Machine<'_>> {
        let is_wanted = self.design.is_none_or(|only| only == design);
        is_wanted.then_some(Machine { plan: self, how, cpus, design, scenarios, nth })
    }
}

impl Machine<'_> {
    /// Name of the machine in messages and logs.
    pub fn name(&self) -> String {
        let how = match self.how {
            BootKind::User => "user",
            BootKind::Threads => "threads",
            BootKind::Streaming(policy) => &format!("streaming-{policy}"),
            BootKind::Guest => "guest",
            BootKind::Preempted => "preempted",
            BootKind::Numa(nodes) => &format!("numa-{nodes}nodes"),
            BootKind::Realtime => "realtime",
            BootKind::Enduring => "enduring",
            BootKind::Counting => "counting",
            BootKind::Locking => "locking",
            BootKind::Isolating => "isolating",
            BootKind::CountingDrains => "counting-drains",
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
        let sums = logs.join(format!("{name}-sums"));
        if self.how == BootKind::CountingDrains {
            command.arg("-plugin").arg(self.counter(&sums)?);
        }
        let mut drained = Vec::new();
        let mut has_depot = None;
        Boot { command, what: &name, is_fault, log: &log, timeout }.run(|said| match said {
            ConsoleLine::Figure { metric, value, params } if metric == "counted_drain_pages" => {
                drained.push((params, value));
            }
            ConsoleLine::Figure { metric, value, .. } if metric == "depot" => {
                has_depot = Some(value > 0.0);
            }
            ConsoleLine::Figure { metric, value, params } => {
                let counts = self.how == BootKind::Counting;
                if let Some((metric, mut params)) = named(&metric, params, counts) {
                    match self.how {
                        BootKind::Preempted => {
                            params.insert("preempt".to_owned(), 1.into());
                        }
                        BootKind::Realtime => {
                            params.insert("realtime".to_owned(), 1.into());
                        }
                        BootKind::Numa(nodes) => {
                            params.insert("nodes".to_owned(), i64::from(nodes).into());
                        }
                        _ => {}
                    }
                    results.add(self.design, self.cpus, metric, params, value);
                }
            }
            ConsoleLine::Begin(scenario) => eprintln!("  {scenario}"),
            ConsoleLine::Untested(what) => eprintln!("  NOT TESTED: {what}"),
            ConsoleLine::Check { .. } | ConsoleLine::Done => {}
        })?;
        ensure!(
            has_depot == Some(self.design == DEPOT),
            "{name} has booted another design than {}",
            self.design
        );
        if drained.is_empty() {
            return Ok(());
        }
        let sums = fs::read_to_string(&sums).context("the plugin has counted nothing")?;
        ensure!(sums.lines().count() == drained.len(), "the plugin has not counted all drains");
        for (sum, (params, pages)) in sums.lines().zip(drained) {
            ensure!(pages > 0.0, "drains of {name} brought {pages} pages");
            let of_page = sum.parse::<f64>()? / pages;
            results.add(self.design, self.cpus, "isolated_drain_instructions", params, of_page);
        }
        Ok(())
    }

    /// The plugin that counts instructions, and the functions from which and to which it does.
    fn counter(&self, sums: &Path) -> Result<String> {
        let symbols = &self.plan.kernel.symbols;
        let map = fs::read_to_string(symbols)
            .with_context(|| format!("cannot read {}", symbols.display()))?;
        let plugin = self.plan.plugin.context("no plugin was built")?;
        let mut argument = plugin.display().to_string();
        for mark in ["begin", "end", "tell"] {
            let address = address_of(&map, &format!("depot_count_{mark}"))
                .with_context(|| format!("{} has no {mark}", symbols.display()))?;
            argument += &format!(",{mark}={address}");
        }
        Ok(format!("{argument},out={}", sums.display()))
    }

    /// The kernel's command line.
    fn words(&self) -> String {
        let switch = match self.design {
            STOCK | OLD => "off",
            WORK => "work",
            RCU => "rcu",
            MAGAZINE => "magazine",
            _ => "on",
        };
        let rounds = match self.how {
            BootKind::User | BootKind::Threads | BootKind::Streaming(_) => 1,
            BootKind::Enduring => self.plan.rounds,
            _ => self.plan.rounds.min(ROUNDS_MAX),
        };
        let mut words = format!(
            "pagedepot={switch} depot_run={} depot_rounds={rounds} panic=-1 \
             rcupdate.rcu_cpu_stall_timeout=300",
            self.scenarios
        );
        match self.how {
            BootKind::User => {}
            BootKind::Threads => {
                let (builds, threads) = self.few((1, 1), (5, self.cpus));
                words += &format!(
                    " depot_project={} depot_builds={builds} depot_threads={threads} \
                     depot_loops={}",
                    self.plan.project.display(),
                    self.loops()
                );
            }
            BootKind::Streaming(policy) => {
                let windows = self.few(2, 5);
                words += &format!(" pagedepot_policy={policy} depot_windows={windows}");
            }
            // Parts of the rest of the memory are added later. Words without values change nothing.
            BootKind::Guest | BootKind::Preempted | BootKind::Realtime => {
                words += " mem=1G pagedepot pagedepot_policy";
            }
            // `mem=1G` would keep the modules of memory from being found. The type 1 is memory.
            BootKind::Numa(nodes) => {
                words += &format!(" memmap=1280M%1G-1 depot_nodes={nodes}");
            }
            BootKind::Enduring => words += " mem=192M",
            BootKind::Counting => {
                words += &format!(" depot_counts=1 depot_threads=1 depot_loops={}", self.loops());
            }
            BootKind::Locking => {}
            BootKind::Isolating | BootKind::CountingDrains => {
                let last = self.cpus - 1;
                words += &format!(
                    " isolcpus=nohz,domain,managed_irq,{last} nohz_full={last} \
                     rcu_nocbs={last} irqaffinity=0"
                );
            }
        }
        words
    }

    /// A number for `--quick`, and one for a whole run.
    fn few<T>(&self, quick: T, whole: T) -> T {
        if self.plan.quick { quick } else { whole }
    }

    /// Loops of each test of `test_vmalloc.ko`.
    fn loops(&self) -> u32 {
        self.few(100, 500)
    }

    /// The kernel that has the design.
    fn image(&self) -> &Path {
        let Kernel { image, rivals, .. } = self.plan.kernel;
        match rivals {
            Some(rivals) if RIVALS.contains(&self.design) => rivals,
            _ => image,
        }
    }

    /// The processor that QEMU emulates. It counts each step of a `rep` as an instruction, where
    /// processors count one for all: 4096 for a page that is cleared by bytes. So the machine that
    /// counts clears by words, as those without ERMS do.
    fn processor(&self) -> &'static str {
        if self.how == BootKind::Counting { "max,erms=off,fsrm=off" } else { "max" }
    }

    /// The memory that QEMU emulates: where some is added, up to 256 MiB above twice what a kernel
    /// boots with.
    fn memory_mib(&self) -> u32 {
        match self.how {
            BootKind::Guest | BootKind::Preempted | BootKind::Numa(_) | BootKind::Realtime => 2304,
            _ => 1280,
        }
    }

    /// The memory of each node, and its CPUs; then two modules of memory that are the last node's,
    /// above 4 GiB, of which the kernel uses none until a scenario asks. Of eight nodes, the last
    /// one has no other memory at boot.
    fn nodes(&self) -> Vec<String> {
        let BootKind::Numa(nodes) = self.how else { return Vec::new() };
        let (first, others) = if nodes == 2 { (512, 512) } else { (256, 128) };
        let cpus = self.cpus / nodes;
        let mut begin = 0;
        let arguments = (0..nodes).flat_map(|node| {
            let mib = match node {
                0 => first,
                _ if node + 1 == nodes => self.memory_mib() - begin,
                _ => others,
            };
            begin += mib;
            let cpus = format!("{}-{}", node * cpus, (node + 1) * cpus - 1);
            [
                "-object".to_owned(),
                format!("memory-backend-ram,id=m{node},size={mib}M"),
                "-numa".to_owned(),
                format!("node,nodeid={node},cpus={cpus},memdev=m{node}"),
            ]
        });
        let modules = (0..2).flat_map(|module| {
            [
                "-object".to_owned(),
                format!("memory-backend-ram,id=d{module},size=128M"),
                "-device".to_owned(),
                format!("pc-dimm,id=dimm{module},memdev=d{module},node={}", nodes - 1),
            ]
        });
        arguments.chain(modules).collect()
    }

    fn command(&self) -> Command {
        let words = self.words();
        let modules = self.plan.kernel.modules.display();
        if matches!(self.how, BootKind::User | BootKind::Threads | BootKind::Streaming(_)) {
            let mut command = Command::new(self.image());
            command.args(["mem=640M", "seccomp=on", "con=null", "con0=null,fd:1", "console=tty0"]);
            command.arg(format!("uml_dir={}", self.plan.cache.join("consoles").display()));
            command.arg(format!("ncpus={}", self.cpus)).args(words.split(' '));
            if self.how == BootKind::Threads {
                command.arg(format!("initrd={modules}"));
            }
            return command;
        }
        let mut command = Command::new("qemu-system-x86_64");
        let accelerator = match self.how {
            BootKind::Counting => "tcg,thread=single",
            _ => "tcg,thread=multi",
        };
        // CPUs of a socket are on one node.
        let (slots, sockets) = match self.how {
            BootKind::Numa(nodes) => (",slots=2,maxmem=4G", format!(",sockets={nodes}")),
            _ => ("", String::new()),
        };
        command
            .args(["-nodefaults", "-no-reboot", "-display", "none", "-serial", "stdio"])
            .args(["-machine", "q35", "-cpu", self.processor()])
            .args(["-m", &format!("{}M{slots}", self.memory_mib())])
            .args(["-accel", accelerator, "-smp", &format!("{}{sockets}", self.cpus)])
            .args(self.nodes())
            .arg("-kernel")
            .arg(&self.plan.kernel.image)
            .args(["-append", &format!("{words} {GUEST_WORDS}")]);
        if self.how == BootKind::Counting {
            command.args(["-icount", "shift=0", "-initrd"]).arg(&self.plan.kernel.modules);
        }
        command
    }
}

/// The address of a symbol in a `System.map`, in hexadecimal.
fn address_of<'m>(map: &'m str, symbol: &str) -> Option<&'m str> {
    map.lines().find_map(|line| {
        let (address, rest) = line.split_once(' ')?;
        (rest.split_once(' ')?.1 == symbol).then_some(address)
    })
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use super::*;

    static KERNEL: LazyLock<Kernel> = LazyLock::new(|| Kernel {
        image: "k".into(),
        rivals: Some("r".into()),
        modules: "m".into(),
        symbols: "s".into(),
    });

    fn plan(rounds: u32, quick: bool, design: Option<&str>) -> Plan<'_> {
        let (cache, project) = (Path::new("c"), Path::new("p"));
        let plugin = Some(Path::new("l"));
        Plan { kernel: &KERNEL, cache, plugin, project, rounds, quick, user_cpus: 2, design }
    }

    fn all<'p>(plan: &'p Plan<'_>) -> impl Iterator<Item = Machine<'p>> {
        let guests = [plan.guests(), plan.preempted(), plan.numa(None), plan.realtime()];
        let kinds = guests.into_iter().chain([plan.user(), plan.old()]);
        kinds.flatten()
    }

    #[test]
    fn designs_boot_in_turn_and_differ_by_one_word() {
        for quick in [false, true] {
            let plan = plan(200, quick, None);
            let machines: Vec<_> = all(&plan).collect();
            let of = |design| machines.iter().filter(move |machine| machine.design == design);
            assert_eq!(of(STOCK).count(), of(DEPOT).count());
            for (stock, depot) in of(STOCK).zip(of(DEPOT)) {
                assert_eq!(stock.words().replace("=off", "=on"), depot.words());
                assert_ne!(stock.name(), depot.name());
            }
            assert!(of(WORK).all(|machine| machine.words().contains("pagedepot=work")));
            let correct = |machine: &&Machine<'_>| machine.how == BootKind::Guest;
            let wide = machines.iter().filter(correct).any(|machine| machine.cpus == 16);
            assert_eq!(wide, !quick);
        }
    }

    #[test]
    fn each_machine_has_a_log_of_its_own() {
        for quick in [false, true] {
            let plan = plan(200, quick, None);
            let machines = all(&plan);
            let mut names: Vec<_> = machines.map(|machine| machine.name()).collect();
            names.sort();
            let count = names.len();
            names.dedup();
            assert_eq!(names.len(), count);
        }
    }

    #[test]
    fn one_design_boots_alone() {
        let plan = plan(1, false, Some(WORK));
        let machines: Vec<_> = all(&plan).collect();
        assert!(!machines.is_empty() && machines.iter().all(|machine| machine.design == WORK));
    }

    #[test]
    fn the_threads_other_designs_boot_a_kernel_of_their_own() {
        let plan = plan(1, true, None);
        let is_rival = |machine: &&Machine<'_>| RIVALS.contains(&machine.design);
        assert_eq!(all(&plan).filter(|machine| is_rival(&machine)).count(), 2);
        for machine in all(&plan) {
            let is_image = machine.command().get_program() == "r";
            assert_eq!(is_image, is_rival(&&machine), "{}", machine.name());
        }
    }

    #[test]
    fn a_machine_that_boots_another_design_fails() {
        use std::os::unix::fs::PermissionsExt as _;

        let cache = std::env::temp_dir().join(format!("pagedepot-design-{}", std::process::id()));
        fs::create_dir_all(&cache).unwrap();
        let image = cache.join("linux");
        fs::write(&image, "#!/bin/sh\necho '= depot 1'\necho '= done'\n").unwrap();
        fs::set_permissions(&image, fs::Permissions::from_mode(0o755)).unwrap();
        let kernel = Kernel { image, rivals: None, ..KERNEL.clone() };
        let plan = Plan { kernel: &kernel, cache: &cache, ..plan(1, true, None) };
        for design in [STOCK, DEPOT] {
            let machine = plan.machine(BootKind::User, 2, (design, TIMES), 0).unwrap();
            let ran = machine.run(&mut Results::default());
            assert_eq!(ran.is_ok(), design == DEPOT, "{design}: {ran:?}");
        }
        fs::remove_dir_all(cache).unwrap();
    }

    #[test]
    fn many_rounds_are_for_a_machine_of_their_own() {
        let (few, many) = (plan(ROUNDS_MAX, true, None), plan(250, true, None));
        assert_eq!(few.guests().len() + 2, many.guests().len());
        for machine in many.guests() {
            let has_all = machine.words().contains("depot_rounds=250");
            assert_eq!(has_all, machine.how == BootKind::Enduring);
        }
    }

    #[test]
    fn symbols_are_found_by_their_whole_names() {
        let map = "ffffffff81000000 T depot_count_begin2\nffffffff81165c10 t depot_count_begin\n";
        assert_eq!(address_of(map, "depot_count_begin"), Some("ffffffff81165c10"));
        assert_eq!(address_of(map, "depot_count"), None);
    }

    /// The memory that a kernel boots with ends where that of a node or of a block does, so that
    /// what is added is one node's.
    #[test]
    fn nodes_have_all_memory_and_cpus() {
        let number = |text: &str, name: &str| -> u32 {
            let (_, rest) = text.split_once(name).unwrap();
            rest[..rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len())].parse().unwrap()
        };
        let plan = plan(1, false, None);
        for nodes in NODES {
            let machines = plan.numa(Some(nodes));
            assert_eq!(machines.len(), 2);
            for machine in machines {
                let arguments = machine.nodes();
                let sizes = arguments.iter().filter(|it| it.contains("id=m"));
                let mib: Vec<_> = sizes.map(|it| number(it, "size=")).collect();
                assert_eq!(mib.len(), nodes as usize);
                assert_eq!(mib.iter().sum::<u32>(), machine.memory_mib());
                assert!(mib.iter().all(|mib| mib % 128 == 0), "{mib:?}");
                assert!(mib[..mib.len() - 1].iter().sum::<u32>() <= 1024);
                let last = arguments.iter().rfind(|it| it.contains("cpus=")).unwrap();
                assert_eq!(number(last, "-"), machine.cpus - 1, "{last}");
                let modules = arguments.iter().filter(|it| it.starts_with("pc-dimm"));
                assert!(modules.map(|it| number(it, "node=")).eq([nodes - 1; 2]));
            }
        }
        for machine in plan.guests() {
            assert_eq!(machine.nodes().len(), 0);
        }
    }

    #[test]
    fn real_time_tasks_run_where_locks_sleep() {
        let plan = plan(1, false, None);
        for machine in all(&plan) {
            let is_realtime = machine.how == BootKind::Realtime;
            let has_all = machine.scenarios.contains("priorities");
            assert_eq!(has_all, is_realtime && machine.scenarios != HIBERNATION);
            assert!(!(is_realtime && machine.scenarios.contains("thp")));
        }
    }

    #[test]
    fn only_counting_ties_time_to_instructions() {
        let plan = plan(1, false, None);
        for machine in plan.guests() {
            let command = machine.command();
            let has = command.get_args().any(|word| word == "-icount");
            assert_eq!(has, machine.scenarios == COUNTS);
        }
    }
}
