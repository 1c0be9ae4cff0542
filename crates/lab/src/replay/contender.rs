//! The designs that a trace can be replayed into.

use std::sync::Arc;

use pagedepot_designs::{
    Bitmap, Buddy, Entry, FreeHigh, Grace, Local, LocalDrain, LockMode, Magazine, MagazineOptions,
    NohzConditional, Policy, Rcu, SetupError, Spin, Store, ZoneLock,
};

use super::depot::{DepotError, Machine, with_depot};
use super::page_cache::{CacheTarget, machine, preload};
use super::plan::Plan;
use super::target::ReplayTarget;
use crate::trace::Zoneinfo;

/// A design, by the name that reports call it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contender {
    ZoneLock,
    Local,
    NohzConditional,
    Spin,
    Rcu,
    Magazine,
    Depot,
}

impl Contender {
    /// All of them.
    pub const ALL: [Contender; 7] = [
        Contender::ZoneLock,
        Contender::Local,
        Contender::NohzConditional,
        Contender::Spin,
        Contender::Rcu,
        Contender::Magazine,
        Contender::Depot,
    ];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Contender::ZoneLock => "zone-lock",
            Contender::Local => "local",
            Contender::NohzConditional => "nohz-conditional",
            Contender::Spin => "spin",
            Contender::Rcu => "rcu",
            Contender::Magazine => "magazine",
            Contender::Depot => "depot",
        }
    }

    /// Whether it does something when a CPU ticks. Our own goes by the clock.
    pub const fn ticks(self) -> bool {
        !matches!(self, Contender::ZoneLock | Contender::Magazine | Contender::Depot)
    }

    /// The design called `name`.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|contender| contender.name() == name)
    }
}

/// What keeps the free frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreKind {
    Buddy,
    Bitmap,
}

/// Variants of designs. The default is what the thread, or mainline, ended up with.
#[derive(Clone, Copy, Debug)]
pub struct Variants {
    /// Of `spin` and of our own; `None`: its own bitmap for ours, a buddy store for the others.
    pub store: Option<StoreKind>,
    /// Of `spin`.
    pub lock: LockMode,
    /// Of all with mainline's policy. Our own has another one.
    pub free_high: FreeHigh,
    /// Of `rcu`.
    pub grace: Grace,
    /// Whether `nohz-conditional` has isolated CPUs.
    pub isolated: bool,
    /// Of `magazine`.
    pub magazine: MagazineOptions,
}

impl Variants {
    /// See the type.
    pub const DEFAULT: Variants = Variants {
        store: None,
        lock: LockMode::TryLock,
        free_high: FreeHigh::MAINLINE,
        grace: Grace::Qsbr,
        isolated: false,
        magazine: MagazineOptions {
            magazines: 2,
            limit: 1024,
            refill: 384,
            spill: 64,
            min_batch: 16,
        },
    };
}

impl Variants {
    /// What keeps the free frames of a design.
    pub fn store_of(&self, contender: Contender) -> StoreKind {
        let default =
            if contender == Contender::Depot { StoreKind::Bitmap } else { StoreKind::Buddy };
        self.store.unwrap_or(default)
    }
}

/// Why there is no allocator for a trace.
#[derive(Debug, thiserror::Error)]
pub enum MakeError {
    #[error(transparent)]
    Depot(#[from] DepotError),
    #[error("cannot make the recorded machine: {0}")]
    Setup(SetupError),
}

impl From<SetupError> for MakeError {
    fn from(error: SetupError) -> Self {
        MakeError::Setup(error)
    }
}

/// What to do with a target, whichever type it has.
pub trait WithTarget {
    /// What comes of it.
    type Output;

    /// Does it.
    fn with(self, target: &mut impl ReplayTarget) -> Self::Output;
}

/// Spinlocks around lists, continuing where the recorded machine was.
///
/// # Errors
/// When the machine is larger than frame numbers reach.
pub fn spin(
    plan: &Plan,
    before: Option<&Zoneinfo>,
    variants: Variants,
) -> Result<CacheTarget<Spin<Arc<Buddy>>>, SetupError> {
    Ok(spin_over(Buddy::new(&machine(plan, before))?, plan, before, variants))
}

fn spin_over<S: Store + Send>(
    store: S,
    plan: &Plan,
    before: Option<&Zoneinfo>,
    variants: Variants,
) -> CacheTarget<Spin<Arc<S>>, S> {
    let store = Arc::new(store);
    let design = Spin::new(Arc::clone(&store), variants.lock, policy(variants));
    preload(&design, plan, before);
    CacheTarget::new(design, store)
}

fn policy(variants: Variants) -> Policy {
    Policy { free_high: variants.free_high, ..Policy::default() }
}

/// Makes a target of the plan's machine and does `with` it what there is to do. All designs but
/// `spin` and our own run over a buddy store; owners execute drains, because one thread acts as
/// every CPU.
///
/// # Errors
/// When the machine is larger than the allocator can manage, or this one can address.
pub fn make<W: WithTarget>(
    contender: Contender,
    plan: &Plan,
    before: Option<&Zoneinfo>,
    variants: Variants,
    with: W,
) -> Result<W::Output, MakeError> {
    let new_store = || Ok::<_, SetupError>(Arc::new(Buddy::new(&machine(plan, before))?));
    let (entry, policy) = (Entry::Pretend, policy(variants));
    let kind = variants.store_of(contender);
    Ok(match contender {
        Contender::Depot => {
            let machine = Machine { store: kind, ..Machine::for_plan(plan, before) };
            with_depot(machine, |depot| with.with(depot))?
        }
        Contender::Spin if kind == StoreKind::Bitmap => {
            let store = Bitmap::new(&machine(plan, before))?;
            with.with(&mut spin_over(store, plan, before, variants))
        }
        Contender::Spin => with.with(&mut spin(plan, before, variants)?),
        Contender::ZoneLock => {
            let store = new_store()?;
            with.with(&mut CacheTarget::new(ZoneLock::new(Arc::clone(&store)), store))
        }
        Contender::Local => {
            let store = new_store()?;
            let design = Local::new(Arc::clone(&store), entry, LocalDrain::Owner, policy);
            with.with(&mut CacheTarget::new(design, store))
        }
        Contender::NohzConditional => {
            let (store, drain) = (new_store()?, LocalDrain::Owner);
            let design =
                NohzConditional::new(Arc::clone(&store), variants.isolated, entry, drain, policy);
            with.with(&mut CacheTarget::new(design, store))
        }
        Contender::Rcu => {
            let store = new_store()?;
            let design = Rcu::new(Arc::clone(&store), entry, variants.grace, policy);
            with.with(&mut CacheTarget::new(design, store))
        }
        Contender::Magazine => {
            let store = new_store()?;
            let design = Magazine::new(Arc::clone(&store), variants.magazine)?;
            with.with(&mut CacheTarget::new(design, store))
        }
    })
}
