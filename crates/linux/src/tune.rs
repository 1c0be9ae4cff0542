//! What can be changed while the depot is in use: which CPUs cache, how much, and when pressure
//! begins.

use pagedepot::{CacheLimits, CpuId, Drained, Evacuation, Watermarks, ZoneId};

use crate::depot::Depot;

impl Depot {
    /// Takes all caches away until [`enable_caches`](Self::enable_caches): every request goes to
    /// the store, and no page is out of reach. Fences CPUs, isolated ones too.
    pub fn disable_caches(&self) -> Drained {
        self.raw().frames().cpu_caches().disable()
    }

    /// Gives the caches back, also to CPUs that were retired one by one.
    pub fn enable_caches(&self) {
        self.raw().frames().cpu_caches().enable();
    }

    /// Takes the caches of one CPU away until [`restore_cpu`](Self::restore_cpu): it went offline,
    /// or left the program's cpuset. Threads that do run there go to the store meanwhile.
    /// Fences that CPU if it runs this process, though it be isolated. Nothing happens for a
    /// CPU beyond [`Builder::cpus`](crate::Builder::cpus).
    ///
    /// ```
    /// use pagedepot_linux::{CpuId, Depot, Order};
    ///
    /// let depot = Depot::new(16 << 20)?;
    /// let gone = CpuId::new(0);
    /// let drained = depot.retire_cpu(gone);
    /// assert_eq!((drained.unreachable_pages, depot.has_caches(gone)), (0, false));
    /// assert!(depot.page(Order::BASE).is_ok(), "from the store, if on that CPU");
    /// assert!(depot.restore_cpu(gone));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn retire_cpu(&self, cpu: CpuId) -> Drained {
        self.raw().frames().cpu_caches().retire(cpu)
    }

    /// Lets a CPU cache again. `false`: it was not retired, or is beyond
    /// [`Builder::cpus`](crate::Builder::cpus).
    pub fn restore_cpu(&self, cpu: CpuId) -> bool {
        self.raw().frames().cpu_caches().restore(cpu)
    }

    /// Whether a CPU has caches at this moment.
    pub fn has_caches(&self, cpu: CpuId) -> bool {
        self.raw().frames().cpu_caches().are_enabled(cpu)
    }

    /// Decays the caches of all CPUs once: those of a CPU whose threads have gone to sleep shrink
    /// by nothing else but drains. Call it once a second, as the kernel does; three seconds
    /// after a CPU last needed its slow path its shelf empties, its fronts stay. Interrupts
    /// nobody; returns the pages that went back. See
    /// [`CpuCaches::decay`](pagedepot::CpuCaches::decay).
    pub fn decay_caches(&self) -> u64 {
        self.raw().frames().cpu_caches().decay()
    }

    /// The cache limits in force for a zone, and `high` of one CPU in it; all in pages.
    pub fn cache_limits(&self, zone: ZoneId, cpu: CpuId) -> Option<(CacheLimits, u64)> {
        let settings = self.raw().frames().settings(zone)?;
        Some((settings.cache_limits(), settings.high(cpu)?))
    }

    /// Changes how many pages each CPU may cache of a zone, and how many move at once. With
    /// `high_min` and `high_max` the same, `high` is fixed; else it adapts to demand between
    /// them. Takes effect at each CPU's next slow path. What is cached above a lower `high`
    /// goes back little by little ([`decay_caches`](Self::decay_caches)): [drain](Self::drain)
    /// to have it now.
    ///
    /// A `batch` of 0 means 1, a `high_max` below `high_min` means the same. `false`: there is no
    /// such zone.
    pub fn set_cache_limits(&self, zone: ZoneId, limits: CacheLimits) -> bool {
        let settings = self.raw().frames().settings(zone);
        settings.map(|settings| settings.set_cache_limits(limits)).is_some()
    }

    /// Whether sparsely used pageblocks of a zone are emptied; `None`: there is no such zone.
    pub fn evacuation(&self, zone: ZoneId) -> Option<Evacuation> {
        self.raw().frames().settings(zone).map(|settings| settings.evacuation())
    }

    /// Changes whether sparsely used pageblocks of a zone are emptied, as
    /// [`Builder::evacuation`](crate::Builder::evacuation) has it. CPUs follow at their slow paths:
    /// with [`Evacuation::Off`] pageblocks that evacuate serve allocations again as CPUs come by.
    ///
    /// `false`: there is no such zone, or the depot was made with [`Evacuation::Off`] or over a
    /// store of the program's own.
    ///
    /// ```
    /// use pagedepot_linux::builder::Evacuation;
    /// use pagedepot_linux::{Depot, ZoneId};
    ///
    /// let depot = Depot::new(16 << 20)?;
    /// let zone = ZoneId::new(0);
    /// assert_eq!(depot.evacuation(zone), Some(Evacuation::Adaptive));
    /// assert!(depot.set_evacuation(zone, Evacuation::Off));
    /// # Ok::<(), pagedepot_linux::BuildError>(())
    /// ```
    pub fn set_evacuation(&self, zone: ZoneId, policy: Evacuation) -> bool {
        self.raw().frames().settings(zone).is_some_and(|settings| settings.set_evacuation(policy))
    }

    /// Changes a zone's watermarks, in pages;
    /// [`ZoneStats::watermarks`](crate::stats::ZoneStats::watermarks) are those in force. Checked from
    /// the next refill on.
    ///
    /// `false`: there is no such zone, or not `min <= low <= high`; nothing is changed then.
    pub fn set_watermarks(&self, zone: ZoneId, watermarks: Watermarks) -> bool {
        self.raw()
            .frames()
            .settings(zone)
            .is_some_and(|settings| settings.set_watermarks(watermarks))
    }
}
