//! Variants of a design to measure: options of the command, and params of the results.

use clap::{Args, ValueEnum};
use pagedepot::CpuId;
use pagedepot_designs::{
    FreeHighLimit, FreeHighPolicy, FreeHighRule, LockMode, Policy, cache_slice_pages, has_nohz_full,
};

use crate::args;
use crate::names::{Design, joined, list};
use crate::report::rows::Params;

/// The threads that act as a design's CPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acting {
    /// Threads on their CPUs, on the machine of this one.
    OnCpus(CpuId),
    /// One thread, as each CPU in turn: owners execute drains, and nothing depends on this machine.
    Alone,
}

/// Variants of designs. Each option is for the designs it names; what is not given is what the
/// thread, or mainline, ended up with.
#[derive(Clone, Copy, Debug, Default, Args)]
#[command(next_help_heading = "Variants of designs")]
pub struct Variant {
    /// Store behind spin and depot (default: buddy for all designs but depot, which has its
    /// bitmap)
    #[arg(long, value_name = "STORE")]
    pub store: Option<Store>,
    /// The way spin's owners take their lock (default: trylock, as mainline)
    #[arg(long, value_name = "HOW")]
    pub lock: Option<Lock>,
    /// The way rcu learns that the old lists are unused (default: blocking, as the series)
    #[arg(long, value_name = "HOW")]
    pub grace: Option<GracePeriod>,
    /// The thread that executes a drain of local, nohz-conditional and qpw (default: helper)
    #[arg(long, value_name = "THREAD")]
    pub drained_by: Option<DrainedBy>,
    /// Whether nohz-conditional and qpw take all CPUs for isolated (default: nohz-conditional if
    /// the machine has isolated CPUs; qpw those CPUs, or all if it has none)
    #[arg(long, value_name = "SWITCH")]
    pub isolated: Option<Switch>,
    /// Magazines per zone of magazine and process-magazine (default: 2)
    #[arg(
        long,
        value_name = "N",
        value_parser = args::whole::<65536>,
        allow_negative_numbers = true,
    )]
    pub magazines: Option<u32>,
    /// Pages that a CPU may cache which only frees blocks of orders 1 to 3 (default: 0, as
    /// mainline)
    #[arg(long, value_name = "PAGES")]
    pub free_high: Option<FreeHighPages>,
    /// The rule by which a CPU counts as one that only frees (default: as --rules)
    #[arg(long, value_name = "RULE")]
    pub free_high_rule: Option<RulesOf>,
    /// Kernel whose formulas say how much lists refill, hold and spill (default: today)
    #[arg(long, value_name = "KERNEL")]
    pub rules: Option<RulesOf>,
    /// Whether the lists' `high` stays at its minimum (default: yes with --rules 2022)
    #[arg(long, value_name = "SWITCH")]
    pub fixed_high: Option<Switch>,
}

/// An option of this command, without those that are for designs of the lab alone: they are hidden,
/// and refused where they are given.
pub fn here(option: clap::Arg) -> clap::Arg {
    let is_of_the_lab = OPTIONS_OF_THE_LAB.contains(&option.get_id().as_str());
    if is_of_the_lab { option.hide(true) } else { option }
}

const OPTIONS_OF_THE_LAB: [&str; 4] = ["grace", "drained_by", "isolated", "magazines"];

/// Magazines per zone of `magazine`, unless an option says how many.
pub const MAGAZINES: u32 = 2;

/// `--store`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Store {
    Buddy,
    Bitmap,
}

/// `--lock`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Lock {
    Plain,
    Trylock,
}

/// `--grace`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum GracePeriod {
    /// One fence per CPU.
    Membarrier,
    /// Owners say which period they have seen; a later drain collects.
    Qsbr,
    /// The drain waits for one grace period of the kernel's RCU.
    Blocking,
}

/// `--drained-by`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DrainedBy {
    Helper,
    Owner,
}

/// `--isolated` and `--fixed-high`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Switch {
    No,
    Yes,
}

/// `--free-high`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum FreeHighPages {
    #[value(name = "0")]
    Zero,
    Batch,
    #[value(name = "4batch")]
    FourBatches,
    High,
}

impl FreeHighPages {
    /// The value of the option.
    pub const fn name(self) -> &'static str {
        match self {
            FreeHighPages::Zero => "0",
            FreeHighPages::Batch => "batch",
            FreeHighPages::FourBatches => "4batch",
            FreeHighPages::High => "high",
        }
    }
}

/// `--free-high-rule` and `--rules`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum RulesOf {
    #[value(name = "2022")]
    Of2022,
    Today,
}

/// Names of the params that say which variant a row is of. Rows that differ in nothing else are of
/// the same measurement.
pub const PARAMS: [&str; 10] = [
    "store",
    "lock",
    "grace",
    "drained_by",
    "isolated",
    "magazines",
    "free_high",
    "free_high_rule",
    "rules",
    "fixed_high",
];

/// Designs with mainline's policy, and so with each of its rules.
const WITH_RULES: [Design; 6] = [
    Design::Local,
    Design::NohzConditional,
    Design::Spin,
    Design::Qpw,
    Design::PcpBuddy,
    Design::Rcu,
];

/// Designs that limit what a CPU which only frees may cache.
pub const WITH_POLICY: [Design; 7] = joined(&[&WITH_RULES, &[Design::Depot]]);

impl Variant {
    /// The options given, and the designs that each is for.
    fn given(&self) -> impl Iterator<Item = (&'static str, &'static [Design])> {
        use Design::{Local, Magazine, NohzConditional, ProcessMagazine, Qpw, Rcu, Spin};
        let options: [(bool, &str, &'static [Design]); 10] = [
            (self.store.is_some(), "--store", Design::PAGED),
            (self.lock.is_some(), "--lock", &[Spin]),
            (self.grace.is_some(), "--grace", &[Rcu]),
            (self.drained_by.is_some(), "--drained-by", &[Local, NohzConditional, Qpw]),
            (self.isolated.is_some(), "--isolated", &[NohzConditional, Qpw]),
            (self.magazines.is_some(), "--magazines", &[Magazine, ProcessMagazine]),
            (self.free_high.is_some(), "--free-high", &WITH_POLICY),
            (self.free_high_rule.is_some(), "--free-high-rule", &WITH_RULES),
            (self.rules.is_some(), "--rules", &WITH_RULES),
            (self.fixed_high.is_some(), "--fixed-high", &WITH_RULES),
        ];
        options.into_iter().filter(|option| option.0).map(|(_, name, designs)| (name, designs))
    }

    /// An option that the user gave.
    pub fn option(&self) -> Option<&'static str> {
        self.given().next().map(|(name, _)| name)
    }

    /// The reason why these options make no sense for these designs.
    pub fn unused(&self, designs: &[Design]) -> Option<String> {
        let (option, its) =
            self.given().find(|(_, its)| !designs.iter().any(|design| its.contains(design)))?;
        Some(format!("{option} changes none of the designs measured; it is for {}", list(its)))
    }

    /// The reason why a design cannot be had in this variant, with a remedy.
    pub fn refuses(&self, design: Design) -> Option<String> {
        match (self.store?, design) {
            (Store::Bitmap, other)
                if Design::PAGED.contains(&other) && !OVER_BITMAP.contains(&other) =>
            {
                Some(format!(
                    "design {other} runs over the buddy store only; over the bitmap store there \
                     are {}",
                    list(&OVER_BITMAP)
                ))
            }
            _ => None,
        }
    }

    /// The store of a design that has one.
    pub fn store_of(&self, design: Design) -> Store {
        let is_ours = matches!(design, Design::Depot | Design::DepotUncached | Design::DepotStill);
        self.store.unwrap_or(if is_ours { Store::Bitmap } else { Store::Buddy })
    }

    /// The way in which `spin`'s owners take their lock.
    pub fn lock_mode(&self) -> LockMode {
        if self.lock == Some(Lock::Plain) { LockMode::Plain } else { LockMode::TryLock }
    }

    /// The way in which `rcu` waits for the users of old lists.
    pub fn grace_period(&self) -> GracePeriod {
        self.grace.unwrap_or(GracePeriod::Blocking)
    }

    /// The thread that executes a drain of designs whose owners take no lock.
    pub fn drained_by(&self) -> DrainedBy {
        self.drained_by.unwrap_or(DrainedBy::Helper)
    }

    /// Whether `nohz-conditional` takes this machine for one with isolated CPUs.
    pub fn is_isolated(&self) -> bool {
        self.isolated.map_or_else(has_nohz_full, |isolated| isolated == Switch::Yes)
    }

    /// Magazines per zone of `magazine`.
    pub fn magazines(&self) -> u32 {
        self.magazines.unwrap_or(MAGAZINES)
    }

    /// The policy for refills, limits and spills of lists.
    pub fn policy(&self, acting: Acting) -> Policy {
        let base = match self.rules {
            Some(RulesOf::Of2022) => Policy::of_2022(self.free_high_limit()),
            None | Some(RulesOf::Today) => Policy::default(),
        };
        let fixed_high = self.fixed_high.map_or(base.fixed_high, |fixed| fixed == Switch::Yes);
        let slice = match acting {
            Acting::OnCpus(cpu) => cache_slice_pages(cpu),
            Acting::Alone => None,
        };
        let cache_slice_pages = slice.unwrap_or(base.cache_slice_pages);
        Policy { free_high: self.free_high(), fixed_high, cache_slice_pages, ..base }
    }

    /// The policy for a CPU that only frees high orders.
    pub fn free_high(&self) -> FreeHighPolicy {
        let rule = match self.free_high_rule.or(self.rules) {
            Some(RulesOf::Of2022) => FreeHighRule::FreeFactor,
            None | Some(RulesOf::Today) => FreeHighRule::FreeCount,
        };
        FreeHighPolicy { rule, limit: self.free_high_limit() }
    }

    /// The limit for a CPU that only frees: all that the rule of the depot leaves open.
    pub fn free_high_limit(&self) -> FreeHighLimit {
        match self.free_high {
            None | Some(FreeHighPages::Zero) => FreeHighLimit::Zero,
            Some(FreeHighPages::Batch) => FreeHighLimit::Batch,
            Some(FreeHighPages::FourBatches) => FreeHighLimit::FourBatches,
            Some(FreeHighPages::High) => FreeHighLimit::High,
        }
    }

    /// The variant of `design` that is measured: for each option the place of its value among the
    /// possible ones.
    pub fn params(&self, design: Design) -> Params {
        let mut params = Params::new();
        if Design::PAGED.contains(&design) {
            params.insert("store", self.store_of(design) as i64);
        }
        match design {
            Design::Spin => {
                _ = params.insert("lock", i64::from(self.lock_mode() == LockMode::TryLock))
            }
            Design::Rcu => _ = params.insert("grace", self.grace_period() as i64),
            Design::Magazine => {
                params.insert("magazines", self.magazines().into());
            }
            Design::ProcessMagazine => {
                params.extend(self.magazines.map(|magazines| ("magazines", magazines.into())));
            }
            Design::NohzConditional => _ = params.insert("isolated", i64::from(self.is_isolated())),
            Design::Qpw => {
                params.extend(self.isolated.map(|isolated| ("isolated", isolated as i64)));
            }
            _ => {}
        }
        if matches!(design, Design::Local | Design::NohzConditional | Design::Qpw) {
            params.insert("drained_by", self.drained_by() as i64);
        }
        if WITH_POLICY.contains(&design)
            && let Some(limit) = self.free_high
        {
            params.insert("free_high", limit as i64);
        }
        if WITH_RULES.contains(&design) {
            let given = [("free_high_rule", self.free_high_rule), ("rules", self.rules)];
            params.extend(given.into_iter().filter_map(|(name, of)| Some((name, of? as i64))));
            params.extend(self.fixed_high.map(|fixed| ("fixed_high", fixed as i64)));
        }
        params
    }

    /// The variant of `design` that a replay measures: its one thread executes all drains, and
    /// takes no CPU for isolated unless it is told to.
    pub fn replay_params(&self, design: Design) -> Params {
        let mut params = self.params(design);
        params.remove("drained_by");
        if design == Design::NohzConditional {
            params.insert("isolated", i64::from(self.isolated == Some(Switch::Yes)));
        }
        params
    }
}

/// Designs that run over the bitmap store.
const OVER_BITMAP: [Design; 2] = [Design::Depot, Design::Spin];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn params_number_the_values_of_options() {
        let defaults = Variant::default();
        let of = |variant: &Variant, design| variant.params(design).into_iter().collect::<Vec<_>>();
        assert_eq!(of(&defaults, Design::Spin), [("lock", 1), ("store", 0)]);
        assert_eq!(of(&defaults, Design::Rcu), [("grace", 2), ("store", 0)]);
        assert_eq!(of(&defaults, Design::Depot), [("store", 1)]);
        assert_eq!(of(&defaults, Design::FloorTls), []);
        let other = Variant {
            store: Some(Store::Bitmap),
            lock: Some(Lock::Plain),
            free_high: Some(FreeHighPages::FourBatches),
            ..defaults
        };
        assert_eq!(of(&other, Design::Spin), [("free_high", 2), ("lock", 0), ("store", 1)]);
        let buddy = Variant { store: Some(Store::Buddy), ..defaults };
        assert_eq!(of(&buddy, Design::Depot), [("store", 0)]);
        for params in Design::ALL.iter().map(|&design| other.params(design)) {
            assert!(params.keys().all(|name| PARAMS.contains(name)), "{params:?}");
        }
    }

    #[test]
    fn replays_have_the_params_of_what_they_act_as() {
        let given = Variant { rules: Some(RulesOf::Of2022), ..Variant::default() };
        let of = |design| given.replay_params(design).into_iter().collect::<Vec<_>>();
        assert_eq!(of(Design::Depot), [("store", 1)]);
        assert_eq!(of(Design::Local), [("rules", 0), ("store", 0)]);
        // Whatever CPUs of this machine are isolated.
        assert_eq!(of(Design::NohzConditional), [("isolated", 0), ("rules", 0), ("store", 0)]);
        let isolated = Variant { isolated: Some(Switch::Yes), ..given };
        assert_eq!(isolated.replay_params(Design::NohzConditional)["isolated"], 1);
    }

    #[test]
    fn options_without_effect_are_refused() {
        let plain = Variant { lock: Some(Lock::Plain), ..Variant::default() };
        assert_eq!(plain.unused(&[Design::Depot, Design::Spin]), None);
        let line = plain.unused(&[Design::Depot, Design::Local]).unwrap();
        assert!(line.starts_with("--lock") && line.ends_with("spin"), "{line}");
    }

    #[test]
    fn stores_that_a_design_does_not_have_are_refused() {
        let over = |store| Variant { store: Some(store), ..Variant::default() };
        assert_eq!(over(Store::Buddy).refuses(Design::Depot), None);
        assert!(over(Store::Bitmap).refuses(Design::Rcu).unwrap().contains("depot, spin"));
        assert_eq!(over(Store::Bitmap).refuses(Design::Spin), None);
        assert_eq!(over(Store::Bitmap).refuses(Design::FloorTls), None);
    }
}
