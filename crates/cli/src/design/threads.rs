//! The designs that linux-mm threads propose, from `pagedepot-designs`: how each is made over a
//! store. Workloads and replays make them here; they differ in the machine and in the
//! threads that act as CPUs.

use std::sync::Arc;

use pagedepot::CpuId;
use pagedepot_designs::{
    Bitmap, Buddy, BuddyStore, Entry, Grace, Local, LocalDrain, LockMode, Magazine,
    MagazineOptions, NohzConditional, PageCache, PcpBuddy, Policy, Qpw, Rcu, Setup, SetupError,
    Spin, Store, ZoneLock, isolated_cpus,
};
use pagedepot_rseq::CpuSet;

use crate::names::Design;

/// The parameters of a design, besides its store.
#[derive(Clone, Copy, Debug)]
pub struct DesignParameters {
    /// The exclusion among owners.
    pub entry: Entry,
    /// The thread that executes a drain of `local`, `nohz-conditional` and `qpw`.
    pub drain: LocalDrain,
    /// Mainline's policy, of all designs with its lists.
    pub policy: Policy,
    /// Whether `nohz-conditional` takes the machine for one with isolated CPUs.
    pub isolated: bool,
    /// The CPUs whose lock is a spinlock, of `qpw`.
    pub spinning: SpinningCpus,
    /// The way in which `spin`'s owners take their lock.
    pub lock: LockMode,
    /// The way in which `rcu` waits for the users of old lists.
    pub grace: Grace,
    /// Number and sizes of the magazines of `magazine`.
    pub magazine: MagazineOptions,
}

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

/// A thread's design by its type.
pub trait ThreadDesign: PageCache + Send + Sized + 'static {
    /// The design's name.
    const DESIGN: Design;

    /// The store of its free frames.
    type Store: Store;

    /// Makes the design over a store.
    ///
    /// # Errors
    /// When the store does not suit it.
    fn over(store: Self::Store, making: &DesignParameters) -> Result<Self, SetupError>;
}

macro_rules! thread_designs {
    ($bound:ident: $($design:ident: |$store:ident, $making:ident| $made:expr;)*) => {$(
        impl<S: $bound + Send + 'static> ThreadDesign for $design<S> {
            const DESIGN: Design = Design::$design;
            type Store = S;

            fn over($store: S, $making: &DesignParameters) -> Result<Self, SetupError> {
                $made
            }
        }
    )*};
}

thread_designs! {
    BuddyStore:
    PcpBuddy: |store, how| Ok(PcpBuddy::new(store, how.policy));
}

thread_designs! {
    Store:
    ZoneLock: |store, _making| Ok(ZoneLock::new(store));
    Local: |store, how| Ok(Local::new(store, how.entry, how.drain, how.policy));
    NohzConditional: |store, how| {
        Ok(NohzConditional::new(store, how.isolated, how.entry, how.drain, how.policy))
    };
    Qpw: |store, how| {
        Ok(Qpw::new(store, how.spinning.includes(), how.entry, how.drain, how.policy))
    };
    Spin: |store, how| Ok(Spin::new(store, how.lock, how.policy));
    Rcu: |store, how| Ok(Rcu::new(store, how.entry, how.grace, how.policy));
    Magazine: |store, how| Magazine::new(store, how.magazine);
}

/// A store that a machine's zones make.
pub trait FromSetup: Sized {
    /// Makes the store.
    ///
    /// # Errors
    /// What is wrong with the zones.
    fn from_setup(setup: &Setup) -> Result<Self, SetupError>;
}

impl FromSetup for Buddy {
    fn from_setup(setup: &Setup) -> Result<Self, SetupError> {
        Buddy::new(setup)
    }
}

impl FromSetup for Bitmap {
    fn from_setup(setup: &Setup) -> Result<Self, SetupError> {
        Bitmap::new(setup)
    }
}

impl<S: FromSetup> FromSetup for Arc<S> {
    fn from_setup(setup: &Setup) -> Result<Self, SetupError> {
        S::from_setup(setup).map(Arc::new)
    }
}
