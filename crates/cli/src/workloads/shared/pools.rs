//! The designs, as pools of page numbers.
#![allow(unsafe_code, reason = "frees pages by their numbers")]

use pagedepot::{Mode, Order, Pfn, Scope};
use pagedepot_linux::shared::{SharedDepot, SharedOptions};
use pagedepot_linux::{Depot, Flags};

use super::mutex::MutexPool;
use crate::failure::Failure;
use crate::harness::Subject;
use crate::names::Design;

/// The workload of all rows.
pub const NAME: &str = "shared";

/// The failure of a step that the system refused.
pub fn failed(what: &str) -> impl Fn(&dyn std::fmt::Display) -> Failure {
    move |error| Failure::Run(format!("{NAME}: {what}: {error}"))
}

/// Hands out pages by number.
pub trait Pool: Subject {
    /// Takes a page; the bench gives a pool enough of them.
    fn alloc(&self) -> u32;

    /// Frees a page that `alloc` has returned, once.
    fn free(&self, page: u32);
}

/// A private depot, or a depot in a segment. Both execute the same code here.
pub struct DepotPool {
    depot: Depot,
    shared: Option<SharedDepot>,
}

impl DepotPool {
    /// A private depot.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn private(pages: u32) -> Result<Self, Failure> {
        let depot = Depot::builder(pages as usize * rustix::param::page_size()).build();
        let depot = depot.map_err(|error| failed("making a depot")(&error))?;
        Ok(DepotPool { depot, shared: None })
    }

    /// A depot in a new segment.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn shared(pages: u32) -> Result<Self, Failure> {
        let shared = segment(u64::from(pages))?;
        Ok(DepotPool { depot: shared.depot().clone(), shared: Some(shared) })
    }
}

/// A depot in a new segment. This process has no thread that answers others: it forks.
///
/// # Errors
/// When it cannot be made.
pub fn segment(pages: u64) -> Result<SharedDepot, Failure> {
    let options = SharedOptions::new(pages as usize * rustix::param::page_size()).answers(false);
    let made = SharedDepot::create_memfd("pagedepot-bench", &options);
    made.map_err(|error| failed("making a segment")(&error))
}

/// Checks that all pages of a segment whose other processes have ended are free.
///
/// # Errors
/// Says how many are not.
pub fn all_free(shared: &SharedDepot) -> Result<(), String> {
    shared.drain(Scope::ALL, Mode::Full);
    let stats = shared.segment_stats();
    match (stats.present_pages - stats.free_pages, stats.lost_pages) {
        (0, 0) => Ok(()),
        (taken, lost) => Err(format!("{taken} pages are not free, {lost} of them lost")),
    }
}

impl DepotPool {
    /// Takes as many pages as there are places.
    pub fn alloc_many(&self, places: &mut [u128]) {
        let mut pages = [Pfn::new(0); 64];
        let mut places = places.iter_mut();
        while places.len() > 0 {
            let room = &mut pages[..places.len().min(64)];
            let got = self.depot.raw().alloc_many(Order::BASE, Flags::default(), room);
            let got = got.expect("the bench gives it enough memory");
            pages[..got].iter().zip(&mut places).for_each(|(pfn, place)| *place = pfn.get().into());
        }
    }

    /// Frees pages that `alloc_many` has returned, 64 at most, once.
    pub fn free_many(&self, pages: &[u128]) {
        let mut numbers = [Pfn::new(0); 64];
        numbers.iter_mut().zip(pages).for_each(|(pfn, page)| *pfn = Pfn::new(*page as u32));
        // SAFETY: as in `free`.
        let freed = unsafe { self.depot.raw().free_many(Order::BASE, &numbers[..pages.len()]) };
        freed.expect("they were allocated");
    }
}

impl Subject for DepotPool {
    fn design(&self) -> Design {
        if self.shared.is_some() { Design::DepotShared } else { Design::Depot }
    }

    fn check(&mut self) -> Result<(), String> {
        let census = self.depot.validate().map_err(|fault| fault.to_string())?;
        match &self.shared {
            Some(shared) => all_free(shared),
            None if census.held_pages() == 0 => Ok(()),
            None => Err(format!("{} pages are held", census.held_pages())),
        }
    }
}

impl Pool for DepotPool {
    #[inline(always)]
    fn alloc(&self) -> u32 {
        let page = self.depot.raw().alloc(Order::BASE, Flags::default());
        page.expect("the bench gives it enough memory").get()
    }

    #[inline(always)]
    fn free(&self, page: u32) {
        // SAFETY: `alloc` has returned it, and no memory of it is used.
        let freed = unsafe { self.depot.raw().free(Pfn::new(page), Order::BASE) };
        freed.expect("it was allocated");
    }
}

/// The free list behind a mutex, which must be full in the end.
pub struct Mutex {
    pages: u32,
    pool: MutexPool,
}

impl Mutex {
    /// A list of so many pages.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn new(pages: u32) -> Result<Self, Failure> {
        let pool = MutexPool::new(pages).map_err(|error| failed("making a mutex")(&error))?;
        Ok(Mutex { pages, pool })
    }
}

impl Subject for Mutex {
    fn design(&self) -> Design {
        Design::Mutex
    }

    fn check(&mut self) -> Result<(), String> {
        let held = self.pages as usize - self.pool.free_pages();
        if held == 0 { Ok(()) } else { Err(format!("{held} pages are held")) }
    }
}

impl Pool for Mutex {
    #[inline(always)]
    fn alloc(&self) -> u32 {
        self.pool.alloc().expect("the bench gives it enough memory")
    }

    #[inline(always)]
    fn free(&self, page: u32) {
        self.pool.free(page);
    }
}
