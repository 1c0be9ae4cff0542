//! The designs of the lab that linux-mm threads propose: how each is made over a store, and
//! replayed.

use pagedepot::CpuId;
use pagedepot_cli::design::threads::ThreadDesign;
use pagedepot_cli::design::variant::{Acting, DrainedBy, GracePeriod, Switch, Variant};
use pagedepot_cli::names::Design;
use pagedepot_cli::replay::threads::Replays;
use pagedepot_designs::host::isolated_cpus;
use pagedepot_designs::store::buddy::held::BuddyStore;
use pagedepot_designs::{SetupError, Store};
use pagedepot_lab_designs::{
    Entry, Grace, Local, LocalDrain, Magazine, MagazineOptions, NohzConditional, PcpBuddy, Qpw, Rcu,
};
use pagedepot_rseq::CpuSet;

use super::dispatch::Lab;

/// The CPUs whose lock is a spinlock, of `qpw`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpinningCpus {
    /// No CPU's lock is a spinlock.
    None,
    /// The machine's isolated CPUs or, where it has none, all.
    Isolated,
    /// All.
    All,
}

impl SpinningCpus {
    fn includes(self) -> impl Fn(CpuId) -> bool {
        let isolated = if self == SpinningCpus::Isolated { isolated_cpus() } else { CpuSet::new() };
        move |cpu| match self {
            SpinningCpus::None => false,
            SpinningCpus::Isolated => isolated.is_empty() || isolated.contains(cpu),
            SpinningCpus::All => true,
        }
    }
}

/// A variant, for the threads that act as CPUs.
struct Made<'v>(&'v Variant, Acting);

impl Made<'_> {
    fn entry(&self) -> Entry {
        match self.1 {
            Acting::OnCpus(_) => Entry::OnCpu,
            Acting::Alone => Entry::Pretend,
        }
    }

    fn drain(&self) -> LocalDrain {
        match (self.1, self.0.drained_by()) {
            (Acting::OnCpus(_), DrainedBy::Helper) => LocalDrain::Helper,
            _ => LocalDrain::Owner,
        }
    }

    /// Whether `nohz-conditional` takes the machine for one with isolated CPUs.
    fn is_isolated(&self) -> bool {
        match self.1 {
            Acting::OnCpus(_) => self.0.is_isolated(),
            Acting::Alone => self.0.isolated == Some(Switch::Yes),
        }
    }

    fn spinning(&self) -> SpinningCpus {
        match (self.0.isolated, self.1) {
            (Some(Switch::No), _) => SpinningCpus::None,
            (None, Acting::OnCpus(_)) => SpinningCpus::Isolated,
            _ => SpinningCpus::All,
        }
    }

    fn grace(&self) -> Grace {
        match self.0.grace_period() {
            GracePeriod::Membarrier => Grace::Membarrier,
            GracePeriod::Qsbr => Grace::Qsbr,
            GracePeriod::Blocking => Grace::Blocking,
        }
    }

    fn magazines(&self) -> MagazineOptions {
        MagazineOptions { magazines: self.0.magazines(), ..MagazineOptions::default() }
    }

    fn policy(&self) -> pagedepot_designs::Policy {
        self.0.policy(self.1)
    }
}

macro_rules! thread_designs {
    ($bound:ident: $($design:ident: |$store:ident, $how:ident| $made:expr;)*) => {$(
        impl<S: $bound + Send + 'static> ThreadDesign<Lab> for $design<S> {
            const DESIGN: Design = Design::$design;
            type Store = S;

            fn over($store: S, variant: &Variant, acting: Acting) -> Result<Self, SetupError> {
                let $how = Made(variant, acting);
                $made
            }
        }

        impl<S: $bound + Send + 'static> Replays<Lab> for $design<S> {}
    )*};
}

thread_designs! {
    BuddyStore:
    PcpBuddy: |store, how| Ok(PcpBuddy::new(store, how.policy()));
}

thread_designs! {
    Store:
    Local: |store, how| Ok(Local::new(store, how.entry(), how.drain(), how.policy()));
    NohzConditional: |store, how| {
        let (entry, drain) = (how.entry(), how.drain());
        Ok(NohzConditional::new(store, how.is_isolated(), entry, drain, how.policy()))
    };
    Qpw: |store, how| {
        let spins = how.spinning().includes();
        Ok(Qpw::new(store, spins, how.entry(), how.drain(), how.policy()))
    };
    Rcu: |store, how| Ok(Rcu::new(store, how.entry(), how.grace(), how.policy()));
    Magazine: |store, how| Magazine::new(store, how.magazines());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_number_of_magazines_is_the_designs() {
        let magazines = Made(&Variant::default(), Acting::Alone).magazines().magazines;
        assert_eq!(magazines, MagazineOptions::default().magazines);
    }
}
