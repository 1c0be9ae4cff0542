//! The end of a depot's memory: it is unmapped after its last handle and its last page have gone.
//!
//! Pages own their depot without a reference count of their own, so that a page costs no atomic
//! operation. A page that is freed goes to its CPU's front by the same sequence as a raw one; only
//! a free that goes past the front, once per magazine, touches a word that threads share.
//!
//! # Vocabulary
//! * *handle*: a `Depot`, which clones share.
//! * *outstanding page*: one that a `Page`, `Pages` or a caller's number holds.
//! * *store free*: a free past the front. It uses the allocator after the page has left its
//!   caller: counters, shelves, the report of misuse.
//! * *admitted free*: a store free that began while there were handles. It works in the store.
//! * *late free*: one that began afterwards. Nothing will allocate again, so it leaves the store
//!   alone and only counts its pages.
//! * *closer*: the thread that drops the last handle.
//!
//! # The word
//! | bits | field |
//! |---|---|
//! | 0..=23 | admitted frees that have not ended, and the closer until it has closed the gates |
//! | 24..=62 | pages that late frees have counted |
//! | 63 | closed: the last handle has gone. Never cleared |
//!
//! # Invariants
//! 1. A thread reaches the depot only while it has a handle, holds an outstanding page, or is
//!    counted in bits 0..=23.
//! 2. The closer sets *closed* and counts itself, by one operation. Then it closes all gates and
//!    fences all CPUs. A push that committed before has its page in a front, and the closer takes
//!    that front back to the store; a push that did not commit finds its gate closed and becomes a
//!    store free. A push touches nothing of the depot after its commit (`Allocator::free_fast`).
//! 3. Once the word is closed, bits 0..=23 only fall. When they reach 0, every push has ended (2)
//!    and every admitted free has ended: what they freed is in the store, and the store never
//!    changes again, because late frees leave it alone. So the thread that takes them to 0 knows
//!    exactly how many pages are outstanding: those that the store has neither free nor carved.
//!    It publishes that number, `absent_pages`, before it leaves.
//! 4. A late free counts its pages by its last access to the depot. The thread whose operation on
//!    the word makes late pages equal to `absent_pages`, with bits 0..=23 at 0, is the only one
//!    left (1), and unmaps. Exactly one operation can do so: late pages only grow.
//!
//! # What waits
//! The closer waits for no page and no free: whichever of the threads above is the last one unmaps.
//! It waits for the fences of the CPUs. Of CPUs behind a lock it waits for threads that hold that
//! lock: some tens of instructions, unless the thread is stopped there.
//!
//! # CPUs that cannot be fenced
//! Without `membarrier` a sequence may commit some time after its gate was closed. Its page is
//! outstanding until then, so nothing is unmapped below it. Afterwards the page is in a front,
//! where no late free counts it. So with [`Gates::Unfenced`] the pages in fronts are added to the
//! late ones before the comparison; fronts only grow then, so what was read is at most too small.
//! If the very last free of all is such a sequence, the comparison is never made again, and the
//! memory stays mapped. Behind a lock a page in a front does not prove that its thread has dropped
//! the lock, which lies in the depot's memory: there a failed fence keeps the memory
//! mapped for good ([`Gates::Held`]).
//!
//! # Signal handlers, forks, misuse
//! * A handler may free a page at any moment: both kinds of store free are loops of
//!   compare-and-exchange, which no other thread can hold up. One that frees the very last page of
//!   a depot without handles unmaps it, which also frees memory of the heap: do not let it come to
//!   that, keep a handle.
//! * A forked child has a copy of this word and of all handles. Its frees end before they come here
//!   and its handles close nothing: the mapping stays until the child ends.
//! * A page that is forgotten (`mem::forget`, a number that is never freed) stays outstanding, so
//!   the memory stays mapped, as with any forgotten reference count.
//! * A page that is freed twice, in breach of a contract, may make `absent_pages` too small or the
//!   late pages too many. `Builder::checked` refuses that before it comes here, while there are
//!   handles.
//!
//! Explored by `tests/loom/teardown.rs`; `tests/teardown.rs` runs it under load.

use std::ptr::NonNull;

use crate::system::prim::{AtomicU32, AtomicU64, Ordering};

/// One admitted free.
const FREE: u64 = 1;
const FREES: u64 = (1 << 24) - 1;
const LATE_SHIFT: u32 = 24;
const CLOSED: u64 = 1 << 63;

/// The extent to which the closer closed the gates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Gates {
    /// A lock of a CPU is held by a thread that has stopped, or the closer panicked: the memory
    /// stays mapped.
    Held = 0,
    /// Sequences may still commit.
    Unfenced = 1,
    /// All fronts are empty and stay so.
    Fenced = 2,
}

/// The calls of this protocol to the depot.
pub(crate) trait TeardownHost {
    /// The depot's word and what belongs to it.
    fn teardown(&self) -> &Teardown;

    /// Closes all gates for good and takes back what CPUs cache.
    fn close_gates(&self) -> Gates;

    /// Pages that the store has neither free nor carved.
    fn absent_pages(&self) -> u64;

    /// Pages in fronts.
    fn front_pages(&self) -> u64;

    /// Unmaps the depot and everything in it.
    ///
    /// # Safety
    /// Called once; this is the last use.
    unsafe fn unmap(this: NonNull<Self>);
}

/// The word, and the values that decide about unmapping.
pub(crate) struct Teardown {
    word: AtomicU64,
    /// Written by the thread that takes the admitted frees of a closed word to 0.
    absent_pages: AtomicU64,
    /// A [`Gates`], written by the closer before it leaves.
    gates: AtomicU32,
}

impl Teardown {
    /// The state of a depot with handles.
    pub fn new() -> Self {
        Teardown {
            word: AtomicU64::new(0),
            absent_pages: AtomicU64::new(0),
            gates: AtomicU32::new(Gates::Held as u32),
        }
    }

    /// Counts a store free that begins. `false`: the last handle has gone, and the free is a late
    /// one.
    fn admit(&self) -> bool {
        let mut word = self.word.load(Ordering::Relaxed);
        while word & CLOSED == 0 {
            debug_assert!(word & FREES < FREES, "more frees at once than threads");
            // Relaxed: what the caller knows of the depot it has from its page.
            match self.word.compare_exchange_weak(
                word,
                word + FREE,
                Ordering::Relaxed,
                Ordering::Relaxed,
            ) {
                Ok(_) => return true,
                Err(now) => word = now,
            }
        }
        false
    }

    /// Whether `late` pages are all that the store lacks. Called with no admitted free left, by a
    /// thread that may still reach the depot.
    fn are_all_back(&self, late: u64, depot: &impl TeardownHost) -> bool {
        // Relaxed, both: the caller has acquired the word that their writers released.
        let absent_pages = self.absent_pages.load(Ordering::Relaxed);
        match self.gates.load(Ordering::Relaxed) {
            gates if gates == Gates::Fenced as u32 => late == absent_pages,
            gates if gates == Gates::Unfenced as u32 => late + depot.front_pages() == absent_pages,
            _ => false,
        }
    }

    /// Ends an admitted free, or the closer. `true`: the caller is the last one and must unmap.
    fn leave(&self, depot: &impl TeardownHost) -> bool {
        // Acquire, here and below: pairs with the Release of the frees that left before, so that
        // what they put into the store is counted. (All changes are read-modify-writes, so each one
        // continues the release sequences of those before it.)
        let mut word = self.word.load(Ordering::Acquire);
        loop {
            let is_last = word & CLOSED != 0 && word & FREES == FREE && {
                // Relaxed: the exchange below publishes it.
                self.absent_pages.store(depot.absent_pages(), Ordering::Relaxed);
                self.are_all_back((word & !CLOSED) >> LATE_SHIFT, depot)
            };
            // Release: pairs with the Acquire of the thread that unmaps, which may be any of those
            // that leave or count later; and publishes `absent_pages`.
            match self.word.compare_exchange_weak(
                word,
                word - FREE,
                Ordering::AcqRel,
                Ordering::Acquire,
            ) {
                Ok(_) => return is_last,
                Err(now) => word = now,
            }
        }
    }

    /// Counts the pages of a late free. `true`: the caller is the last one and must unmap.
    fn count_late(&self, pages: u64, depot: &impl TeardownHost) -> bool {
        // Acquire, here and below: pairs with the Release in `leave`, for `absent_pages`, and with
        // that of other late frees, which used their pages before.
        let mut word = self.word.load(Ordering::Acquire);
        loop {
            let late = ((word & !CLOSED) >> LATE_SHIFT) + pages;
            let is_last = word & FREES == 0 && self.are_all_back(late, depot);
            // Release: what the caller did with its pages comes before the unmapping.
            match self.word.compare_exchange_weak(
                word,
                word + (pages << LATE_SHIFT),
                Ordering::AcqRel,
                Ordering::Acquire,
            ) {
                Ok(_) => return is_last,
                Err(now) => word = now,
            }
        }
    }
}

/// Leaves on drop, so that a panic in a report of misuse keeps no memory mapped.
struct EntryGuard<D: TeardownHost>(NonNull<D>);

impl<D: TeardownHost> Drop for EntryGuard<D> {
    fn drop(&mut self) {
        // SAFETY: counted in the word until `leave` returns (invariant 1); then the last use, if
        // that says so.
        unsafe {
            let depot = self.0.as_ref();
            if depot.teardown().leave(depot) {
                D::unmap(self.0);
            }
        }
    }
}

/// Frees `pages` outstanding pages past the front: by `store_free`, or, when the last handle has
/// gone, by counting them.
///
/// # Safety
/// The caller holds these pages of the depot, and gives them up. It is the process that made the
/// depot, not a forked child.
pub(crate) unsafe fn free<D: TeardownHost>(
    depot: NonNull<D>,
    pages: u64,
    store_free: impl FnOnce(&D),
) {
    // SAFETY: the pages are outstanding, which keeps it mapped; then the admission does.
    let mapped = unsafe { depot.as_ref() };
    if mapped.teardown().admit() {
        let _admitted = EntryGuard(depot);
        store_free(mapped);
    } else if mapped.teardown().count_late(pages, mapped) {
        // SAFETY: the last one, says the word.
        unsafe { D::unmap(depot) };
    }
}

/// Drops the last handle.
///
/// # Safety
/// Called once, with the depot's last handle, by the process that made the depot. From here on only
/// [`free`] is called.
pub(crate) unsafe fn close<D: TeardownHost>(depot: NonNull<D>) {
    // SAFETY: the handle keeps it mapped; then the count in the word does.
    let mapped = unsafe { depot.as_ref() };
    let teardown = mapped.teardown();
    // Relaxed: `leave` acquires and releases; and the handles that went before, their counter.
    teardown.word.fetch_add(CLOSED | FREE, Ordering::Relaxed);
    let _counted = EntryGuard(depot);
    let gates = mapped.close_gates();
    // Relaxed: published when this leaves.
    teardown.gates.store(gates as u32, Ordering::Relaxed);
}
