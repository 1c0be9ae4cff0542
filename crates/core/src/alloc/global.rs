//! An allocator in a `static`, made once the machine is known.

use core::fmt;

use super::allocator::Allocator;
use super::config::ConfigError;
use super::error::{AllocError, FreeError};
use super::flags::Flags;
use crate::cpus::Cpus;
use crate::frame::{Order, Pfn};
use crate::sync::late_init::{LateInit, NotMade};

/// A place for an [`Allocator`] in a `static`: empty at first, for kernels that have no other place
/// before they have memory.
///
/// Until [`init`](Self::init) has returned `Ok` on some CPU, [`get`](Self::get) returns `None` and
/// requests fail with `NotInitialized`, from interrupt handlers too. Nothing waits: not the
/// requests, and not a second `init`.
///
/// # Cost
/// Each call loads one word, which is never written again and lies beside the allocator's own
/// fields, and branches on it; the branch is always predicted. The load acquires: it is a plain
/// load on x86-64, and `ldar` or `ldapr` on AArch64. A loop saves even that by calling
/// [`get`](Self::get) once.
///
/// # Example
/// ```
/// use pagedepot::cpus::{CpuLock, Environment, LockedCpus, WhichCpu};
/// use pagedepot::{
///     AllocError, Allocator, Config, CpuId, Flags, FrameRange, Global, NodeId, Order, Pfn,
///     ZoneConfig,
/// };
///
/// struct First;
/// impl Environment for First {}
/// impl WhichCpu for First {
///     fn cpu(&self) -> Option<CpuId> { Some(CpuId::new(0)) }
/// }
///
/// static LOCKS: [CpuLock; 1] = [const { CpuLock::new() }; 1];
/// static DEPOT: Global<LockedCpus<'static, First>> = Global::new();
///
/// assert_eq!(DEPOT.alloc(Order::BASE, Flags::default()), Err(AllocError::NotInitialized));
///
/// let ranges = [FrameRange::new(Pfn::new(0x100), 1 << 15)];
/// let zones = [ZoneConfig {
///     name: "Normal", node: NodeId::new(0), level: 2, ranges: &ranges, watermarks: None,
/// }];
/// let config = Config::new(1, &zones);
/// let bytes = Allocator::<LockedCpus<'_, First>>::metadata_bytes(&config)?;
/// let metadata = Box::leak(Box::new_uninit_slice(bytes));
/// DEPOT.init(|| Allocator::new(&config, metadata, LockedCpus::new(&LOCKS, First)))?;
///
/// let pfn = DEPOT.alloc(Order::BASE, Flags::default())?;
/// DEPOT.free(pfn, Order::BASE)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Global<C: 'static>(LateInit<Allocator<'static, C>>);

/// The reason why [`Global::init`] made no allocator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum InitError {
    /// There is one already; it stays as it is.
    AlreadyInitialized,
    /// Another call is making one: on another CPU, or below this handler on the same one.
    InProgress,
    /// The allocator could not be made. The place is empty again.
    Config(ConfigError),
}

impl fmt::Display for InitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            InitError::AlreadyInitialized => {
                f.write_str("this Global has an allocator already: add memory to it instead")
            }
            InitError::InProgress => {
                f.write_str("another call is making the allocator: use `get` until it returns one")
            }
            InitError::Config(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for InitError {}

impl From<ConfigError> for InitError {
    fn from(error: ConfigError) -> Self {
        InitError::Config(error)
    }
}

impl<C: 'static> Global<C> {
    /// A place without an allocator.
    #[cfg(not(loom))]
    pub const fn new() -> Self {
        Global(LateInit::new())
    }

    /// Makes a place without an allocator; loom's atomics are not made at compile time.
    #[cfg(loom)]
    pub fn new() -> Self {
        Global(LateInit::new())
    }

    /// Makes the allocator by `make`, which calls [`Allocator::new`] or a
    /// [`Builder`](crate::Builder), and publishes it to all CPUs. `make` runs at most once at a
    /// time, and never again after it has succeeded; where this returns another error than
    /// [`InitError::Config`] it is not called.
    ///
    /// # Errors
    /// [`InitError`]. After an error of `make`, or a panic in it, `init` may be called again.
    pub fn init(
        &self,
        make: impl FnOnce() -> Result<Allocator<'static, C>, ConfigError>,
    ) -> Result<&Allocator<'static, C>, InitError> {
        self.0.init(make).map_err(|why| match why {
            NotMade::Ready => InitError::AlreadyInitialized,
            NotMade::Busy => InitError::InProgress,
            NotMade::Failed(error) => InitError::Config(error),
        })
    }

    /// The allocator, once it is made: all its methods are reached through this.
    #[inline]
    pub fn get(&self) -> Option<&Allocator<'static, C>> {
        self.0.get()
    }
}

impl<C: Cpus + 'static> Global<C> {
    /// [`Allocator::alloc`].
    ///
    /// # Errors
    /// [`AllocError::NotInitialized`], and those of [`Allocator::alloc`].
    #[inline]
    pub fn alloc(&self, order: Order, flags: Flags) -> Result<Pfn, AllocError> {
        self.get().ok_or(AllocError::NotInitialized)?.alloc(order, flags)
    }

    /// [`Allocator::free`].
    ///
    /// # Errors
    /// [`FreeError::NotInitialized`], and those of [`Allocator::free`].
    #[inline]
    pub fn free(&self, pfn: Pfn, order: Order) -> Result<(), FreeError> {
        self.get().ok_or(FreeError::NotInitialized)?.free(pfn, order)
    }

    /// [`Allocator::alloc_contiguous`].
    ///
    /// # Errors
    /// [`AllocError::NotInitialized`], and those of [`Allocator::alloc_contiguous`].
    pub fn alloc_contiguous(
        &self,
        frames: u32,
        align: u32,
        flags: Flags,
    ) -> Result<Pfn, AllocError> {
        self.get().ok_or(AllocError::NotInitialized)?.alloc_contiguous(frames, align, flags)
    }

    /// [`Allocator::free_contiguous`].
    ///
    /// # Errors
    /// [`FreeError::NotInitialized`], and those of [`Allocator::free_contiguous`].
    pub fn free_contiguous(&self, start: Pfn, frames: u32) -> Result<(), FreeError> {
        self.get().ok_or(FreeError::NotInitialized)?.free_contiguous(start, frames)
    }
}

impl<C: 'static> Default for Global<C> {
    fn default() -> Self {
        Self::new()
    }
}

impl<C: Cpus + 'static> fmt::Debug for Global<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = if self.get().is_some() { "initialized" } else { "not initialized" };
        f.debug_tuple("Global").field(&format_args!("{state}")).finish()
    }
}
