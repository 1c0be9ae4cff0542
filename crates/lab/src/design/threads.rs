//! The designs that linux-mm threads propose, from `pagedepot-designs`: how each is made over a
//! store. Workloads and replays make them here; they differ in the machine and in the
//! threads that act as CPUs.

use std::sync::Arc;

use pagedepot_designs::{
    Bitmap, Buddy, Entry, Grace, Local, LocalDrain, LockMode, Magazine, MagazineOptions,
    NohzConditional, PageCache, Policy, Rcu, Setup, SetupError, Spin, Store, ZoneLock,
};

use crate::names::Design;

/// What a design is made with, besides its store.
#[derive(Clone, Copy, Debug)]
pub struct Making {
    /// How owners are kept apart from each other.
    pub entry: Entry,
    /// The thread that executes a drain of `local` and `nohz-conditional`.
    pub drain: LocalDrain,
    /// Mainline's policy, of all designs with its lists.
    pub policy: Policy,
    /// Whether `nohz-conditional` takes the machine for one with isolated CPUs.
    pub isolated: bool,
    /// How `spin`'s owners take their lock.
    pub lock: LockMode,
    /// How `rcu` waits for the users of old lists.
    pub grace: Grace,
    /// Number and sizes of the magazines of `magazine`.
    pub magazine: MagazineOptions,
}

/// A thread's design by its type.
pub trait ThreadDesign: PageCache + Send + Sized + 'static {
    /// The design's name.
    const DESIGN: Design;

    /// What keeps its free frames.
    type Store: Store;

    /// Makes the design over a store.
    ///
    /// # Errors
    /// When the store does not suit it.
    fn over(store: Self::Store, making: &Making) -> Result<Self, SetupError>;
}

macro_rules! thread_designs {
    ($($design:ident: |$store:ident, $making:ident| $made:expr;)*) => {$(
        impl<S: Store + Send + 'static> ThreadDesign for $design<S> {
            const DESIGN: Design = Design::$design;
            type Store = S;

            fn over($store: S, $making: &Making) -> Result<Self, SetupError> {
                $made
            }
        }
    )*};
}

thread_designs! {
    ZoneLock: |store, _making| Ok(ZoneLock::new(store));
    Local: |store, how| Ok(Local::new(store, how.entry, how.drain, how.policy));
    NohzConditional: |store, how| {
        Ok(NohzConditional::new(store, how.isolated, how.entry, how.drain, how.policy))
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
