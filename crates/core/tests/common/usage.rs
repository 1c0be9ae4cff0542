//! The share of a storm's memory that is in use, and the moments when a request for one page may
//! not fail.

use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering};

/// Percent of the memory below which no request of order 0 may fail.
const SURE_PERCENT: i64 = 60;

pub struct Usage {
    /// Pages given to the allocator.
    managed: AtomicI64,
    /// Pages that requests hold or ask for, or that no request can have.
    used: AtomicI64,
    /// Number of times that the use has grown beyond what requests of order 0 may rely on, or pages
    /// were out of reach.
    times_short: AtomicU64,
    /// Threads that keep pages out of reach, whatever the use is.
    withholding: AtomicU32,
    /// Percent of the memory that workers use.
    goal_percent: AtomicI64,
    /// Requests of order 0 that could not fail.
    sure: AtomicU64,
    failed: AtomicU64,
}

impl Usage {
    pub fn new(managed: u32) -> Self {
        Usage {
            managed: AtomicI64::new(managed.into()),
            used: AtomicI64::new(0),
            times_short: AtomicU64::new(0),
            withholding: AtomicU32::new(0),
            goal_percent: AtomicI64::new(40),
            sure: AtomicU64::new(0),
            failed: AtomicU64::new(0),
        }
    }

    pub fn managed(&self) -> i64 {
        self.managed.load(Ordering::Relaxed)
    }

    pub fn used(&self) -> i64 {
        self.used.load(Ordering::Relaxed)
    }

    /// Requests of order 0 that could not fail, and requests that failed.
    pub fn counts(&self) -> (u64, u64) {
        (self.sure.load(Ordering::Relaxed), self.failed.load(Ordering::Relaxed))
    }

    /// Pages are given to the allocator, or taken away.
    pub fn manage(&self, pages: i64) {
        self.managed.fetch_add(pages, Ordering::Relaxed);
        self.note_use(self.used());
    }

    /// Pages are used from now on, or no more.
    pub fn use_pages(&self, pages: i64) {
        self.note_use(self.used.fetch_add(pages, Ordering::Relaxed) + pages);
    }

    fn note_use(&self, used: i64) {
        if used * 100 >= self.managed() * SURE_PERCENT {
            self.times_short.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The caller puts pages out of reach, until the value is dropped.
    pub fn withhold(&self) -> Withholding<'_> {
        self.withholding.fetch_add(1, Ordering::Relaxed);
        self.times_short.fetch_add(1, Ordering::Relaxed);
        Withholding(self)
    }

    pub fn set_goal(&self, percent: i64) {
        self.goal_percent.store(percent, Ordering::Relaxed);
    }

    /// Whether a worker may ask for more.
    pub fn has_room(&self) -> bool {
        self.used() * 100 < self.managed() * self.goal_percent.load(Ordering::Relaxed)
    }

    /// The value to compare before and after a request of order 0: it may not fail if both are the
    /// same and not `None`.
    fn sure_time(&self) -> Option<u64> {
        let times = self.times_short.load(Ordering::Relaxed);
        let is_short = self.used() * 100 >= self.managed() * SURE_PERCENT;
        (!is_short && self.withholding.load(Ordering::Relaxed) == 0).then_some(times)
    }

    /// Makes a request for one page, by flags that allow it everything.
    ///
    /// # Panics
    /// When it fails, and little of the memory is in use.
    pub fn request_surely<R>(
        &self,
        request: impl FnOnce() -> Option<R>,
        why: impl FnOnce() -> String,
    ) -> Option<R> {
        let before = self.sure_time();
        let found = request();
        if before.is_some() && self.sure_time() == before {
            let used = (self.used(), self.managed());
            assert!(found.is_some(), "failed with {used:?} pages used: {}", why());
            self.sure.fetch_add(1, Ordering::Relaxed);
        }
        found
    }

    /// Counts pages as used while `request` asks for them, and those that it got from then on.
    pub fn while_requested<R>(
        &self,
        pages: u32,
        request: impl FnOnce() -> Option<(R, u32)>,
    ) -> Option<R> {
        self.use_pages(pages.into());
        let found = request();
        let got = found.as_ref().map_or(0, |found| found.1);
        self.use_pages(i64::from(got) - i64::from(pages));
        if got == 0 {
            self.failed.fetch_add(1, Ordering::Relaxed);
        }
        found.map(|found| found.0)
    }
}

/// Pages are out of reach while this lives.
pub struct Withholding<'u>(&'u Usage);

impl Drop for Withholding<'_> {
    fn drop(&mut self) {
        self.0.times_short.fetch_add(1, Ordering::Relaxed);
        self.0.withholding.fetch_sub(1, Ordering::Relaxed);
    }
}
