//! The designs of the linux-mm threads, by their types: how each is made over a store. Workloads
//! and replays make them here; they differ in the machine and in the threads that act as CPUs.

use std::sync::Arc;

use pagedepot_designs::{Bitmap, Buddy, PageCache, Setup, SetupError, Spin, Store, ZoneLock};

use super::variant::{Acting, Variant};
use crate::names::Design;

/// A thread's design by its type. `L` is the [`Lineup`](super::lineup::Lineup) that has it.
pub trait ThreadDesign<L>: PageCache + Send + Sized + 'static {
    /// The design's name.
    const DESIGN: Design;

    /// The store of its free frames.
    type Store: Store;

    /// Makes the design over a store.
    ///
    /// # Errors
    /// When the store does not suit it.
    fn over(store: Self::Store, variant: &Variant, acting: Acting) -> Result<Self, SetupError>;
}

impl<S: Store + Send + 'static, L> ThreadDesign<L> for ZoneLock<S> {
    const DESIGN: Design = Design::ZoneLock;
    type Store = S;

    fn over(store: S, _: &Variant, _: Acting) -> Result<Self, SetupError> {
        Ok(ZoneLock::new(store))
    }
}

impl<S: Store + Send + 'static, L> ThreadDesign<L> for Spin<S> {
    const DESIGN: Design = Design::Spin;
    type Store = S;

    fn over(store: S, variant: &Variant, acting: Acting) -> Result<Self, SetupError> {
        Ok(Spin::new(store, variant.lock_mode(), variant.policy(acting)))
    }
}

/// A store that a machine's zones make.
pub trait FromSetup: Sized {
    /// Makes the store.
    ///
    /// # Errors
    /// An error names what is wrong with the zones.
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
