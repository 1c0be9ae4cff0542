//! Settings of a depot in use: which CPUs cache, how much, and when pressure begins.

use std::fmt;
use std::ops::Deref;

use pagedepot::{Watermarks, ZoneId};

use crate::cpus::linux::LinuxCpus;
use crate::depot::handle::Depot;
use crate::memory::frames::MappedFrames;

/// The caches of all CPUs; see [`Depot::cpu_caches`].
pub type CpuCaches<'d> = pagedepot::CpuCaches<'d, 'static, LinuxCpus<'static>>;

/// The settings of a zone; see [`Depot::settings`].
pub struct ZoneSettings<'d> {
    settings: pagedepot::ZoneSettings<'d, 'static, LinuxCpus<'static>>,
    mapped: &'d MappedFrames,
}

impl ZoneSettings<'_> {
    /// Changes the watermarks. `false`: they do not ascend, and nothing has changed. A lower `min`
    /// wakes a [request that waits](Depot::page_async).
    pub fn set_watermarks(&self, marks: Watermarks) -> bool {
        let _bringing = self.mapped.bringing();
        self.settings.set_watermarks(marks)
    }
}

impl<'d> Deref for ZoneSettings<'d> {
    type Target = pagedepot::ZoneSettings<'d, 'static, LinuxCpus<'static>>;

    fn deref(&self) -> &Self::Target {
        &self.settings
    }
}

impl fmt::Debug for ZoneSettings<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.settings.fmt(f)
    }
}

impl Depot {
    /// The caches of all CPUs: to take them away and give them back, to let them decay, and to hand
    /// over the fronts that a drain asked for.
    ///
    /// [Retire](pagedepot::CpuCaches::retire) a CPU that went offline or left the program's cpuset.
    /// Threads that still run there use the store. Taking caches away fences each CPU that runs
    /// this process, even if it is isolated. Methods that name a CPU do nothing for one beyond
    /// [`Builder::cpus`](crate::Builder::cpus).
    ///
    /// [`decay`](pagedepot::CpuCaches::decay) is for programs whose threads sleep long: besides it,
    /// only drains shrink the caches of their CPUs. Call it once a second, as the kernel does. When
    /// a CPU has not needed its slow path for three seconds, its shelf empties; its fronts stay.
    ///
    /// ```
    /// use pagedepot_linux::{CpuId, Depot, Order};
    ///
    /// let depot = Depot::new(16 << 20)?;
    /// let (caches, gone) = (depot.cpu_caches(), CpuId::new(0));
    /// let drained = caches.retire(gone);
    /// assert_eq!((drained.unreachable_pages, caches.are_enabled(gone)), (0, false));
    /// assert!(depot.page(Order::BASE).is_ok(), "from the store, if on that CPU");
    /// assert!(caches.restore(gone));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn cpu_caches(&self) -> CpuCaches<'_> {
        self.raw().frames().cpu_caches()
    }

    /// The settings of a zone, to read and to change: watermarks, how many pages each CPU may
    /// cache, and whether sparsely used pageblocks are emptied. `None`: there is no such zone, or
    /// this process is a fork of the one that made the depot.
    ///
    /// Pages above a lower `high` go back little by little, as caches
    /// [decay](pagedepot::CpuCaches::decay); [drain](Self::drain) to get them back at once.
    ///
    /// ```
    /// use pagedepot_linux::builder::{CacheLimits, Evacuation};
    /// use pagedepot_linux::{Depot, ZoneId};
    ///
    /// let depot = Depot::new(16 << 20)?;
    /// let zone = depot.settings(ZoneId::new(0)).expect("the first zone");
    /// zone.set_cache_limits(CacheLimits { batch: 32, high_min: 64, high_max: 256 });
    /// assert_eq!(zone.evacuation(), Evacuation::Adaptive);
    /// assert!(zone.set_evacuation(Evacuation::Off));
    /// # Ok::<(), pagedepot_linux::BuildError>(())
    /// ```
    pub fn settings(&self, zone: ZoneId) -> Option<ZoneSettings<'_>> {
        let settings = self.raw().frames().settings(zone)?;
        Some(ZoneSettings { settings, mapped: self.shared() })
    }
}
