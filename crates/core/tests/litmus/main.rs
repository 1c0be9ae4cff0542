//! Litmus tests: each pairing of orderings that the core's arguments name, as the smallest program
//! that needs it.
//!
//! A [`Pairing`] names the accesses, their orderings, and the shape of its program. With these
//! orderings no execution ends as the argument forbids. With any one of them weakened (a mutant)
//! some execution does, or the ordering would not be needed.
//!
//! The sources' own orderings are compared with nothing here, only the names of the two sides: a
//! weaker one in them is for loom's models of the core and for `.ci/steps/tsan` to find.
//!
//! Loom explores all executions (`models/core`), Miri many with its emulation of weak memory
//! (`.ci/steps/miri`), and a processor those that it has: there the mutants are left out, because
//! it need not show them. Loom and Miri let no load see a later store, so that shapes of that kind
//! are not among these: what keeps a slot's load before the commit is in `loom_tests/fronts.rs`.

#[cfg(loom)]
use loom::{sync::Arc, sync::atomic::AtomicU32, sync::atomic::fence, thread};
#[cfg(not(loom))]
use std::{sync::Arc, sync::atomic::AtomicU32, thread};

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::Ordering::{self, AcqRel, Acquire, Relaxed, Release, SeqCst};

/// Programs by what they need of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    /// One writes a value and then a flag; the other sees the flag and then reads the value.
    Publish,
    /// The flag is changed by a read-modify-write, and once more by a third thread, which orders
    /// nothing: who sees that one's change sees the first one's value (a release sequence).
    PublishThrough,
    /// One publishes to a second, which publishes to a third: that one sees the first one's value.
    HandOn,
    /// Each changes its own word, and then looks at the other's: one of them sees the other.
    Dekker,
    /// One announces a move, takes from one place, puts into another, and ends the move. A scan
    /// that finds nothing in either place finds that a move was under way.
    Scan,
}

/// Accesses that an argument pairs.
struct Pairing {
    name: &'static str,
    /// Names in the core's sources by which the two sides are found.
    #[cfg_attr(any(loom, miri), allow(dead_code, reason = "read where there are sources"))]
    sides: [&'static str; 2],
    shape: Shape,
    /// The ordering of what comes first in its thread: stores, read-modify-writes.
    change: Ordering,
    /// The ordering of what sees it.
    look: Ordering,
}

const fn pairing(
    name: &'static str,
    sides: [&'static str; 2],
    shape: Shape,
    change: Ordering,
    look: Ordering,
) -> Pairing {
    Pairing { name, sides, shape, change, look }
}

/// All pairings, by protocol.
const PAIRINGS: [Pairing; 21] = [
    // Gates and fronts.
    pairing(
        "a gate reopened, and a sequence",
        ["ClosedGate", "open_word"],
        Shape::Publish,
        Release,
        Acquire,
    ),
    pairing(
        "a commit, and whoever takes fronts without a fence",
        ["push_at", "used_fronts"],
        Shape::Publish,
        Release,
        Acquire,
    ),
    pairing(
        "a front handed over through a stack",
        ["claim_gate", "push_chain"],
        Shape::HandOn,
        Release,
        Acquire,
    ),
    pairing(
        "a gate closed, and shelves",
        ["SHELVES", "disable_cpu"],
        Shape::Dekker,
        SeqCst,
        SeqCst,
    ),
    pairing("an ask, and its answer", ["ASKS", "is_answered"], Shape::Dekker, SeqCst, SeqCst),
    pairing(
        "a CPU's lock, released and taken",
        ["CpuLock", "CpuLockGuard"],
        Shape::Publish,
        Release,
        Acquire,
    ),
    pairing(
        "a magazine charged, and a drain that leaves out a CPU",
        ["charge", "has_magazines"],
        Shape::Publish,
        Release,
        Acquire,
    ),
    // Stacks.
    pairing("a push and a pop", ["push_chain", "take_all"], Shape::Publish, Release, Acquire),
    pairing(
        "a pop below what others have changed",
        ["push_chain", "take_all"],
        Shape::PublishThrough,
        Release,
        Acquire,
    ),
    // Counts.
    pairing("pages in flight, and a scan", ["MOVES", "InFlight"], Shape::Scan, SeqCst, SeqCst),
    pairing(
        "a CPU's delta reported, and read",
        ["report", "free_estimate"],
        Shape::Publish,
        Release,
        Acquire,
    ),
    pairing(
        "the free pages of a zone, and who reads them",
        ["free_estimate", "set_watermarks"],
        Shape::Publish,
        SeqCst,
        Acquire,
    ),
    pairing(
        "the drift mark, and the count",
        ["DRIFT_MARK", "free_estimate"],
        Shape::Dekker,
        SeqCst,
        SeqCst,
    ),
    // The store.
    pairing(
        "frames freed, and their next owner",
        ["put_mask", "take_reported"],
        Shape::Publish,
        SeqCst,
        Acquire,
    ),
    pairing(
        "bits of a word taken one after another",
        ["put_mask", "clear_some"],
        Shape::PublishThrough,
        Release,
        Acquire,
    ),
    pairing(
        "words, and the hints that lead there",
        ["HINTS", "set_some"],
        Shape::Dekker,
        SeqCst,
        SeqCst,
    ),
    pairing(
        "a pageblock put as entire, and its taker",
        ["put_entire", "take_entire"],
        Shape::Publish,
        SeqCst,
        Acquire,
    ),
    pairing(
        "the last reported pageblock woken, and a search that passes it by",
        ["need", "is_any"],
        Shape::Publish,
        Release,
        Acquire,
    ),
    pairing(
        "a section installed, and looked up",
        ["install", "section"],
        Shape::Publish,
        Release,
        Acquire,
    ),
    pairing(
        "a pageblock's tag, changed and read",
        ["settle", "evacuate"],
        Shape::Publish,
        AcqRel,
        Acquire,
    ),
    // The rest.
    pairing(
        "a value made late",
        ["LateInit", "PublishesRelaxed"],
        Shape::Publish,
        Release,
        Acquire,
    ),
];

/// The ordering next weaker than this one, for a mutant.
fn weakened(ordering: Ordering, shape: Shape) -> Ordering {
    match shape {
        // Release and acquire do not make a total order: that is what these would then have.
        Shape::Dekker if ordering == SeqCst => AcqRel,
        _ => Relaxed,
    }
}

/// The part of an ordering that a store may have.
fn of_store(ordering: Ordering) -> Ordering {
    match ordering {
        AcqRel => Release,
        other => other,
    }
}

/// The part of an ordering that a load may have.
fn of_load(ordering: Ordering) -> Ordering {
    match ordering {
        AcqRel => Acquire,
        other => other,
    }
}

/// Loom takes sequentially consistent accesses for weaker ones, and models fences of that ordering:
/// there one stands for two such accesses, as in the core (`sync/total.rs`).
#[cfg(loom)]
fn between(change: Ordering, look: Ordering) {
    if (change, look) == (SeqCst, SeqCst) {
        fence(SeqCst);
    }
}

#[cfg(not(loom))]
fn between(_change: Ordering, _look: Ordering) {}

/// Words that the threads of a program share.
#[derive(Default)]
struct Words([AtomicU32; 4]);

impl Words {
    fn store(&self, word: usize, value: u32, ordering: Ordering) {
        self.0[word].store(value, of_store(ordering));
    }

    fn load(&self, word: usize, ordering: Ordering) -> u32 {
        self.0[word].load(of_load(ordering))
    }

    fn swap(&self, word: usize, value: u32, ordering: Ordering) -> u32 {
        self.0[word].swap(value, ordering)
    }
}

/// Runs a program once; whether it has ended as is forbidden.
fn fails(shape: Shape, change: Ordering, look: Ordering) -> bool {
    let words = Arc::new(Words::default());
    let with = |run: fn(&Words, Ordering, Ordering) -> bool| {
        let words = Arc::clone(&words);
        thread::spawn(move || run(&words, change, look))
    };
    let joined = |threads: Vec<thread::JoinHandle<bool>>| -> Vec<bool> {
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    };
    const VALUE: usize = 0;
    const FLAG: usize = 1;
    const OTHER: usize = 2;
    match shape {
        Shape::Publish => joined(vec![
            with(|words, change, _| {
                words.store(VALUE, 1, Relaxed);
                words.store(FLAG, 1, change);
                false
            }),
            with(|words, _, look| words.load(FLAG, look) == 1 && words.load(VALUE, Relaxed) == 0),
        ])[1],
        Shape::PublishThrough => joined(vec![
            with(|words, change, _| {
                words.store(VALUE, 1, Relaxed);
                words.swap(FLAG, 1, change);
                false
            }),
            with(|words, _, _| {
                // Changes it only once the first has.
                let _ = words.0[FLAG].compare_exchange(1, 2, Relaxed, Relaxed);
                false
            }),
            with(|words, _, look| words.load(FLAG, look) == 2 && words.load(VALUE, Relaxed) == 0),
        ])[2],
        Shape::HandOn => joined(vec![
            with(|words, change, _| {
                words.store(VALUE, 1, Relaxed);
                words.store(FLAG, 1, change);
                false
            }),
            with(|words, change, look| {
                if words.load(FLAG, look) == 1 {
                    words.store(OTHER, 1, change);
                }
                false
            }),
            with(|words, _, look| words.load(OTHER, look) == 1 && words.load(VALUE, Relaxed) == 0),
        ])[2],
        Shape::Dekker => {
            let missed = joined(vec![
                with(|words, change, look| {
                    words.store(FLAG, 1, change);
                    between(change, look);
                    words.load(OTHER, look) == 0
                }),
                with(|words, change, look| {
                    words.store(OTHER, 1, change);
                    between(change, look);
                    words.load(FLAG, look) == 0
                }),
            ]);
            missed[0] && missed[1]
        }
        Shape::Scan => {
            words.store(VALUE, 1, Relaxed);
            let seen = joined(vec![
                with(|words, change, look| {
                    words.swap(FLAG, 1, change);
                    between(change, look);
                    words.swap(VALUE, 0, AcqRel);
                    words.swap(OTHER, 1, AcqRel);
                    words.swap(FLAG, 2, change);
                    false
                }),
                with(|words, change, look| {
                    let before = words.load(FLAG, look);
                    let found = words.load(VALUE, Acquire) + words.load(OTHER, Acquire);
                    between(change, look);
                    let is_quiet = words.load(FLAG, look) == before && before != 1;
                    is_quiet && found == 0
                }),
            ]);
            seen[1]
        }
    }
}

/// Runs a program in many executions: all of them under loom. Whether one has failed.
#[cfg(loom)]
fn ever_fails(shape: Shape, change: Ordering, look: Ordering) -> bool {
    static FAILED: Mutex<bool> = Mutex::new(false);
    *FAILED.lock().unwrap() = false;
    let mut all = loom::model::Builder::new();
    // What the environment bounds is the larger models.
    all.max_duration = None;
    all.check(move || {
        if fails(shape, change, look) {
            *FAILED.lock().unwrap() = true;
        }
    });
    *FAILED.lock().unwrap()
}

/// Runs a program in many executions. Whether one has failed.
#[cfg(not(loom))]
fn ever_fails(shape: Shape, change: Ordering, look: Ordering) -> bool {
    // Miri has four seeds for each.
    let executions = if cfg!(miri) { 25 } else { 200 };
    (0..executions).any(|_| fails(shape, change, look))
}

/// The programs that the pairings need, each once.
fn programs() -> Vec<(&'static Pairing, Shape)> {
    let mut seen = BTreeSet::new();
    let key = |it: &Pairing| format!("{:?} {:?} {:?}", it.shape, it.change, it.look);
    PAIRINGS.iter().filter(|it| seen.insert(key(it))).map(|it| (it, it.shape)).collect()
}

/// One test, because programs under loom come one after another.
#[test]
fn no_pairing_fails_and_each_of_its_mutants_does() {
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock().unwrap();
    for (pairing, shape) in programs() {
        let Pairing { name, change, look, .. } = *pairing;
        assert!(!ever_fails(shape, change, look), "{name}: {shape:?} with {change:?}, {look:?}");
        if cfg!(not(any(loom, miri))) {
            continue;
        }
        for (change, look) in [(weakened(change, shape), look), (change, weakened(look, shape))] {
            assert!(
                ever_fails(shape, change, look),
                "{name}: {shape:?} with {change:?}, {look:?}: no execution shows what this lacks"
            );
        }
    }
}

/// The table names what the sources have.
#[test]
#[cfg(not(any(loom, miri)))]
fn the_table_names_what_is_there() {
    fn read(folder: &std::path::Path, text: &mut String) {
        for entry in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            match entry.is_dir() {
                true => read(&entry, text),
                false => *text += &std::fs::read_to_string(&entry).unwrap(),
            }
        }
    }
    let mut text = String::new();
    read(&std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut text);
    let words: BTreeSet<&str> =
        text.split(|letter: char| !letter.is_alphanumeric() && letter != '_').collect();
    for Pairing { name, sides, .. } in &PAIRINGS {
        for side in sides {
            assert!(words.contains(side), "{name}: no {side}");
        }
    }
}
