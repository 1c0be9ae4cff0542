//! 1. When all who changed a zone's count have noted it, the zone is said to be above its drift
//!    mark only if the count is.
//! 2. The same of changes of the mark.
//! 3. Once a caller that brought the count below the mark has noted that, no caller that saw the
//!    count above the mark before says so, though others that did may be about to.

use std::sync::Arc;

use super::{Mutant, explore, explore_mutant};
use crate::sync::prim::{AtomicBool, AtomicI64, Ordering};
use crate::sync::total::DRIFT_MARK;
use crate::zone::delta::DriftMark;

/// Slack between the mark and where the bit is set.
const DRIFT: i64 = 1;

struct Ground {
    count: AtomicI64,
    mark: AtomicI64,
    word: DriftMark,
    /// The count is below the mark for good, and that is noted.
    is_noted: AtomicBool,
}

impl Ground {
    fn new() -> Arc<Self> {
        Arc::new(Ground {
            count: AtomicI64::new(0),
            mark: AtomicI64::new(2),
            word: DriftMark::default(),
            is_noted: AtomicBool::new(false),
        })
    }

    fn level(&self) -> (i64, i64) {
        (self.mark.load(DRIFT_MARK.look()), DRIFT)
    }

    fn add(&self, pages: i64) {
        let count = self.count.fetch_add(pages, DRIFT_MARK.change()) + pages;
        self.word.note(
            count,
            || self.level(),
            || {
                // Acquire: pairs with the Release of the caller that has noted it.
                if self.is_noted.load(Ordering::Acquire) {
                    assert!(!self.word.is_above(), "set after it was cleared for good");
                }
                self.count.load(DRIFT_MARK.look())
            },
        );
    }

    fn raise_mark(&self, to: i64) {
        self.mark.swap(to, DRIFT_MARK.change());
        DRIFT_MARK.fence();
        let count = self.count.load(DRIFT_MARK.look());
        self.word.note(count, || self.level(), || self.count.load(DRIFT_MARK.look()));
    }

    fn check(&self) {
        let (count, mark) = (self.count.load(DRIFT_MARK.look()), self.mark.load(DRIFT_MARK.look()));
        assert!(count >= mark || !self.word.is_above(), "{count} pages are above {mark}");
    }
}

fn spawn(ground: &Arc<Ground>, act: fn(&Ground)) -> loom::thread::JoinHandle<()> {
    let ground = ground.clone();
    loom::thread::spawn(move || act(&ground))
}

/// One CPU adds what another takes.
fn added_and_taken() {
    let ground = Ground::new();
    let adder = spawn(&ground, |ground| ground.add(4));
    ground.add(-3);
    adder.join().unwrap();
    ground.check();
}

#[test]
fn a_count_that_fell_is_not_above() {
    explore(added_and_taken);
}

#[test]
#[should_panic = "are above"]
fn a_count_that_is_looked_at_once() {
    explore_mutant(Mutant::LooksOnce, added_and_taken);
}

#[test]
#[should_panic = "are above"]
fn a_count_without_dekker() {
    explore_mutant(Mutant::UnorderedMark, added_and_taken);
}

#[test]
fn a_mark_that_rose_is_not_passed() {
    explore(|| {
        let ground = Ground::new();
        let adder = spawn(&ground, |ground| ground.add(4));
        let other = spawn(&ground, |ground| ground.add(-1));
        ground.raise_mark(6);
        adder.join().unwrap();
        other.join().unwrap();
        ground.check();
    });
}

/// Two add, and a third takes so much that the count stays below the mark for good.
fn claims_of_two() {
    let ground = Ground::new();
    let adders = [(); 2].map(|()| spawn(&ground, |ground| ground.add(3)));
    // On a thread of its own: a model's first thread is preempted to begin the others.
    let taker = spawn(&ground, |ground| {
        ground.add(-5);
        // Release: pairs with the Acquire of those that add.
        ground.is_noted.store(true, Ordering::Release);
    });
    adders.into_iter().chain([taker]).for_each(|thread| thread.join().unwrap());
    ground.check();
}

#[test]
fn a_claim_is_its_callers_own() {
    explore(claims_of_two);
}

#[test]
#[should_panic = "cleared for good"]
fn claims_without_versions() {
    explore_mutant(Mutant::ClaimsAlike, claims_of_two);
}
