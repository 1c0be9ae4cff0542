//! The callbacks of a depot, which its allocator calls when pages run short.

use std::sync::Arc;

use pagedepot::{Pressure, Reclaim};

use crate::error::CallbackError;
use crate::giving_back::bell::Bell;
use crate::giving_back::ceiling::Allowance;
use crate::giving_back::returnable::ReturnableFrames;
use crate::giving_back::shrinkers::Shrinkers;
use crate::memory::frames::{Frames, MappedFrames, SharedFrames};
use crate::system::fork_mark::ForkMark;
use crate::system::sync::ForkLock;

/// Callbacks to be dropped.
pub(crate) type KeptCallbacks = Vec<Arc<dyn Reclaim + Send>>;

/// The callbacks that the allocator knows by address. They are dropped after the allocator.
pub(crate) struct Callbacks(ForkLock<Registry>);

struct Registry {
    all: KeptCallbacks,
    shrinkers: Arc<Shrinkers>,
    /// Whether they are among all.
    has_shrinkers: bool,
    /// The bell, which is among all callbacks, too.
    bell: Option<Arc<Bell>>,
}

impl Callbacks {
    /// No callbacks.
    pub fn new(fork_mark: ForkMark<'static>) -> Self {
        let shrinkers = Arc::new(Shrinkers::new(fork_mark));
        let registry = Registry { all: Vec::new(), shrinkers, has_shrinkers: false, bell: None };
        Callbacks(ForkLock::new(fork_mark, registry))
    }

    /// Holds the lock that registering takes.
    #[cfg(test)]
    pub fn lock_for_tests(&self) -> impl Sized + '_ {
        self.0.lock().unwrap()
    }

    /// Registers `reclaim` with the allocator.
    pub fn register(
        &self,
        frames: &Frames,
        reclaim: impl Fn(Pressure) -> u64 + Send + Sync + 'static,
    ) -> Result<(), CallbackError> {
        let callback = Arc::new(Callback(reclaim));
        // Locked around the registration, so that a callback is never registered and not kept. One
        // that is refused is dropped when the lock is free again: it may own a monitor.
        let kept = self.0.lock()?.keep(frames, callback.clone());
        drop(callback);
        kept
    }

    /// Address spaces that give up pages when they run short: one callback for all.
    pub fn shrinkers(&self, mapped: &MappedFrames) -> Result<Arc<Shrinkers>, CallbackError> {
        let mut registry = self.0.lock()?;
        let shrinkers = registry.shrinkers.clone();
        if !std::mem::replace(&mut registry.has_shrinkers, true) {
            let callback = ShrinkersCallback(shrinkers.clone(), SharedFrames::new(mapped));
            let kept = registry.keep(mapped.frames(), Arc::new(callback));
            registry.has_shrinkers = kept.is_ok();
            kept?;
        }
        Ok(shrinkers)
    }

    /// Has requests that find a monitor's ceiling reached ring for the monitor. One callback is for
    /// all monitors.
    pub fn ring_at_ceilings(
        &self,
        returnable: &ReturnableFrames,
        allowance: Option<Arc<dyn Allowance>>,
    ) -> Result<(), CallbackError> {
        let mut registry = self.0.lock()?;
        if registry.bell.is_none() {
            let bell = Arc::new(Bell::new(returnable, allowance));
            registry.keep(returnable.frames(), bell.clone())?;
            registry.bell = Some(bell);
        }
        Ok(())
    }

    /// The bell, if there was ever one.
    pub fn bell(&self) -> Option<Arc<Bell>> {
        self.0.lock().ok()?.bell.clone()
    }

    /// Has address spaces give up what they keep, though no request of the allocator asks for it.
    /// Returns the number of pages. `None`: another thread has the list of them for too long.
    pub fn shrink(&self, mapped: &MappedFrames, is_last_resort: bool) -> Option<u64> {
        let Some(shrinkers) = self.known_shrinkers() else { return Some(0) };
        let _answering = mapped.answering();
        let zone = mapped.frames().zone_ids().next().expect("a depot has a zone");
        shrinkers.shrink(Pressure { zone, wanted_pages: u64::MAX, is_last_resort })
    }

    /// The address spaces, if there were ever any.
    fn known_shrinkers(&self) -> Option<Arc<Shrinkers>> {
        let registry = self.0.lock().ok()?;
        registry.has_shrinkers.then(|| registry.shrinkers.clone())
    }

    /// Takes all callbacks out.
    ///
    /// # Safety
    /// No request runs, now or later.
    pub unsafe fn take(&self) -> KeptCallbacks {
        self.0.lock().map(|mut registry| std::mem::take(&mut registry.all)).unwrap_or_default()
    }
}

impl Registry {
    fn keep(
        &mut self,
        frames: &Frames,
        callback: Arc<dyn Reclaim + Send>,
    ) -> Result<(), CallbackError> {
        // SAFETY: kept below, until no request runs any more: the allocator alone gets this.
        let forever: &'static dyn Reclaim = unsafe { &*Arc::as_ptr(&callback) };
        self.all.reserve(1);
        frames.register_reclaim(forever)?;
        self.all.push(callback);
        Ok(())
    }
}

/// The callback for all address spaces of a depot.
struct ShrinkersCallback(Arc<Shrinkers>, SharedFrames<MappedFrames>);

impl Reclaim for ShrinkersCallback {
    fn reclaim(&self, pressure: Pressure) -> u64 {
        // SAFETY: the allocator of these frames alone calls this, so they are there. They are boxed
        // in the depot's state, and stay where they are.
        let mapped = unsafe { self.1.get() };
        // Dropped when the list is free: a waker may drop an address space.
        let _answering = mapped.answering();
        self.0.shrink(pressure).unwrap_or(0)
    }
}

struct Callback<F>(F);

impl<F: Fn(Pressure) -> u64 + Sync> Reclaim for Callback<F> {
    fn reclaim(&self, pressure: Pressure) -> u64 {
        (self.0)(pressure)
    }
}
