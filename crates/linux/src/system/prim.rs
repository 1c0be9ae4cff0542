//! The seam for the atomics, clocks and waiting of what a model checker explores: `std` and the
//! kernel in production, `loom` under `--cfg loom`. Then `tests/loom`, which the package
//! `models/linux` compiles, takes in the real modules.

#[cfg(not(loom))]
pub use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

#[cfg(loom)]
pub use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

#[cfg(not(loom))]
pub(crate) use crate::system::sync::{ForkLock, Guard as ForkGuard, LockError, thread_id};
#[cfg(loom)]
pub use loom::sync::MutexGuard as ForkGuard;

pub use pagedepot::sync::prefetch_write;
use rustix::io::Errno;

/// The production crate's [`fork_mark`](crate::system::fork_mark).
#[cfg(not(loom))]
pub(crate) type ForkMark = crate::system::fork_mark::ForkMark<'static>;

/// The mark of a model, which is a child's when the model says so.
#[cfg(loom)]
#[derive(Clone, Copy)]
pub struct ForkMark;

/// A model is a forked child.
#[cfg(loom)]
#[derive(Debug)]
pub struct ForkedChild;

#[cfg(loom)]
impl ForkMark {
    pub fn check(self) -> Result<(), ForkedChild> {
        if crate::IS_CHILD.get() { Err(ForkedChild) } else { Ok(()) }
    }
}

/// A step that a model leaves out, to see that it fails then.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mutant {
    /// Compaction moves the block at a page, whatever its order.
    MovesAnyOrder,
    /// Compaction looks for pins before it takes the place, and not after.
    LooksForPinsEarly,
    /// A new block can be moved before it is in the table.
    OpensEarly,
    /// Taking a slot leaves the tag of the list as it is.
    UntaggedSlots,
    /// The new page is set before its entry.
    SetsPageEarly,
    /// A forked child waits for a copy.
    WaitsInChild,
    /// `Pieces::unmap` looks before it clears.
    LooksFirst,
    /// A search that marks a group of frames as full does not look at it again.
    LooksForFreeEarly,
    /// A thread that is to leave marks runs wakers.
    WakesUnderLocks,
    /// A frame's owner changes by a store of its word.
    StoresOwners,
    /// A claim reads the message's word, and does not put its slot there.
    SharesMessages,
    /// A burier looks at the bytes of a page alone, and not where pages were sent again.
    OverlooksSent,
    /// A burier that takes back what a dead process had sent gets messages of any sender.
    TakesAnyMessage,
    /// A burier that joins in does not put its bit into the slot's word.
    BuriesUnseen,
    /// A burier joins in though its bit is there: another thread of its process buries.
    BuriesTwice,
    /// An heir does not put its bit into the slot's word.
    InheritsUnseen,
    /// A thread takes back that requests wait, and does not look at the queue again.
    EndsUnseen,
    /// A request raises the thread's word as if it had nothing to do with the flag.
    RaisesUnordered,
    /// A monitor answers depots whose requests have not rung for it.
    AnswersUnrung,
}

/// Whether a model leaves this step out. Never in production.
#[inline(always)]
pub fn is_mutant(mutant: Mutant) -> bool {
    #[cfg(loom)]
    return crate::MUTANT.get() == Some(mutant);
    #[cfg(not(loom))]
    {
        let _ = mutant;
        false
    }
}

/// Loads a word that others change, and that the caller may exchange then, with Acquire. A model
/// may make it a change that leaves the value: see `explore_looks` in `tests/loom`. All that change
/// the word do so by exchanges: loom lets such a change come behind a store that it comes before.
#[inline(always)]
pub fn look(word: &AtomicU64) -> u64 {
    #[cfg(loom)]
    if crate::LOOKS_CHANGE.get() {
        return word.fetch_or(0, Ordering::AcqRel);
    }
    word.load(Ordering::Acquire)
}

/// Milliseconds of a clock that costs little. Loom's stands still.
pub fn now_ms() -> u64 {
    if cfg!(loom) {
        return 0;
    }
    let now = rustix::time::clock_gettime(rustix::time::ClockId::MonotonicCoarse);
    now.tv_sec as u64 * 1000 + now.tv_nsec as u64 / 1_000_000
}

/// Sleeps while `word` is `seen`, `limit_ms` milliseconds at most. Woken, out of time, interrupted,
/// or the word has changed: the caller looks again.
#[cfg(not(loom))]
pub fn wait(word: &AtomicU32, seen: u32, limit_ms: u32) {
    use rustix::thread::futex;
    let limit = rustix::time::Timespec {
        tv_sec: i64::from(limit_ms / 1000),
        tv_nsec: i64::from(limit_ms % 1000) * 1_000_000,
    };
    let _ = futex::wait(word, futex::Flags::PRIVATE, seen, Some(&limit));
}

/// Wakes all that [`wait`] on `word`.
#[cfg(not(loom))]
pub fn wake_all(word: &AtomicU32) {
    use rustix::thread::futex;
    let _ = futex::wake(word, futex::Flags::PRIVATE, i32::MAX as u32);
}

/// Sleeps like [`wait`], on a word that several processes map.
#[cfg(not(loom))]
pub fn wait_shared(word: &AtomicU32, seen: u32, limit_ms: u32) {
    use rustix::thread::futex;
    let limit = rustix::time::Timespec {
        tv_sec: i64::from(limit_ms / 1000),
        tv_nsec: i64::from(limit_ms % 1000) * 1_000_000,
    };
    let _ = futex::wait(word, futex::Flags::empty(), seen, Some(&limit));
}

/// Wakes all, in whatever process, that [`wait_shared`] on `word`.
#[cfg(not(loom))]
pub fn wake_all_shared(word: &AtomicU32) {
    use rustix::thread::futex;
    let _ = futex::wake(word, futex::Flags::empty(), i32::MAX as u32);
}

#[cfg(loom)]
loom::lazy_static! {
    /// Loom's futex: all sleepers, of whatever word.
    static ref SLEEPERS: (loom::sync::Mutex<()>, loom::sync::Condvar) =
        (loom::sync::Mutex::new(()), loom::sync::Condvar::new());
}

/// Sleeps without a limit, so that loom reports a waiter that is not woken.
#[cfg(loom)]
pub fn wait(word: &AtomicU32, seen: u32, _limit_ms: u32) {
    let guard = SLEEPERS.0.lock().unwrap();
    // Acquire: pairs with the Release of the caller that changed the word and wakes.
    if word.load(Ordering::Acquire) == seen {
        drop(SLEEPERS.1.wait(guard).unwrap());
    }
}

#[cfg(loom)]
pub fn wake_all(_word: &AtomicU32) {
    if !crate::WAKES_NONE.get() {
        let _guard = SLEEPERS.0.lock().unwrap();
        SLEEPERS.1.notify_all();
    }
}

/// The reason why a lock cannot be had.
#[cfg(loom)]
#[derive(Debug)]
#[allow(dead_code, reason = "a model has no signal handlers")]
pub enum LockError {
    Forked,
    Reentrant,
}

/// Loom's lock in the place of a [`ForkLock`](crate::system::sync::ForkLock).
#[cfg(loom)]
pub struct ForkLock<T>(ForkMark, loom::sync::Mutex<T>);

#[cfg(loom)]
impl<T> ForkLock<T> {
    pub fn new(fork_mark: ForkMark, value: T) -> Self {
        ForkLock(fork_mark, loom::sync::Mutex::new(value))
    }

    pub fn lock(&self) -> Result<ForkGuard<'_, T>, LockError> {
        self.0.check().map_err(|ForkedChild| LockError::Forked)?;
        Ok(self.1.lock().unwrap())
    }

    pub fn try_lock(&self) -> Option<ForkGuard<'_, T>> {
        self.1.try_lock().ok()
    }
}

/// Number of times that a thread which waits gives its CPU away before it sleeps: a thread of a
/// real-time class yields to its equals alone.
#[cfg(not(loom))]
const YIELDS_MAX: u32 = 100;

/// Lets other threads run, in a loop that has done so `rounds` times.
pub fn back_off(rounds: u32) {
    #[cfg(not(loom))]
    if rounds < YIELDS_MAX {
        std::thread::yield_now();
    } else {
        std::thread::sleep(std::time::Duration::from_micros(50));
    }
    #[cfg(loom)]
    {
        let _ = rounds;
        loom::thread::yield_now();
    }
}

/// A number for this thread.
#[cfg(loom)]
pub fn thread_id() -> u32 {
    use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
    BuildHasherDefault::<DefaultHasher>::default().hash_one(loom::thread::current().id()) as u32 | 1
}

/// Words, zero at first; in production untouched parts take no memory.
#[cfg(not(loom))]
pub struct Words(crate::system::mapping::Mapping);

#[cfg(not(loom))]
impl Words {
    pub fn new(count: usize) -> Result<Self, Errno> {
        crate::system::mapping::Mapping::anonymous(count * size_of::<AtomicU64>()).map(Words)
    }

    pub fn get(&self, index: usize) -> &AtomicU64 {
        assert!(index < self.0.bytes() / size_of::<AtomicU64>());
        // SAFETY: inside the mapping, which is aligned to pages, zero at first, and reached as
        // atomic words alone.
        unsafe { &*self.0.start().as_ptr().cast::<AtomicU64>().add(index) }
    }
}

#[cfg(loom)]
pub struct Words(Vec<AtomicU64>);

#[cfg(loom)]
impl Words {
    pub fn new(count: usize) -> Result<Self, Errno> {
        Ok(Words((0..count).map(|_| AtomicU64::new(0)).collect()))
    }

    pub fn get(&self, index: usize) -> &AtomicU64 {
        &self.0[index]
    }
}

/// Orders what other threads, and readers in other processes, see of this one.
#[inline(always)]
pub fn fence(order: Ordering) {
    #[cfg(not(loom))]
    std::sync::atomic::fence(order);
    // A model must notice that it is missing.
    #[cfg(loom)]
    if !crate::SKIPS_FENCES.get() {
        loom::sync::atomic::fence(order);
    }
}
