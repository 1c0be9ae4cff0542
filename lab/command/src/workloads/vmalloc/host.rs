//! The host under every design: takes frames from another host, parks waiters, and measures the
//! time that waiting costs.

use std::cell::Cell;

use pagedepot::{AllocError, CpuId, Flags, FreeManyError, NodeId, Order, Pfn};
use pagedepot_vmap::Host;
use rustix::thread::futex;

use pagedepot_cli::harness::clock::on_cpu_ns;

thread_local! {
    static WAIT: Cell<Wait> = const { Cell::new(Wait { began_ns: 0, total_ns: 0 }) };
}

#[derive(Clone, Copy)]
struct Wait {
    began_ns: u64,
    total_ns: u64,
}

/// Nanoseconds on a CPU in lock acquisitions that found the lock taken: spinning, parking, waking
/// up, and one look at the clock. Asleep is not on the CPU.
pub fn contended_ns() -> u64 {
    WAIT.get().total_ns
}

/// A host that measures waiting; frames come from the host inside.
pub struct CountingHost<H>(pub H);

// SAFETY: frames are the inner host's, in a process that does not fork.
unsafe impl<H: Host> Host for CountingHost<H> {
    #[inline]
    fn cpu(&self) -> Option<CpuId> {
        Some(pagedepot_rseq::current_cpu())
    }

    fn alloc_block(&self, order: Order, flags: Flags) -> Result<Pfn, AllocError> {
        self.0.alloc_block(order, flags)
    }

    fn alloc_frames(&self, flags: Flags, out: &mut [Pfn]) -> Result<usize, AllocError> {
        self.0.alloc_frames(flags, out)
    }

    unsafe fn free_blocks(&self, blocks: &[(Pfn, Order)]) -> Result<(), FreeManyError> {
        // SAFETY: the caller's promise.
        unsafe { self.0.free_blocks(blocks) }
    }

    unsafe fn split_block(&self, frame: Pfn, order: Order) -> bool {
        // SAFETY: the caller's promise.
        unsafe { self.0.split_block(frame, order) }
    }

    fn add_quarantined(&self, frame: Pfn, pages: i64) {
        self.0.add_quarantined(frame, pages);
    }

    fn node_of(&self, frame: Pfn) -> NodeId {
        self.0.node_of(frame)
    }

    fn wait(&self, word: &std::sync::atomic::AtomicU32, seen: u32) {
        // The caller looks again, whatever ended the wait.
        let _ = futex::wait(word, futex::Flags::PRIVATE, seen, None);
    }

    fn wake_one(&self, word: &std::sync::atomic::AtomicU32) {
        let _ = futex::wake(word, futex::Flags::PRIVATE, 1);
    }

    fn wake_all(&self, word: &std::sync::atomic::AtomicU32) {
        let _ = futex::wake(word, futex::Flags::PRIVATE, i32::MAX as u32);
    }

    fn contention_begins(&self) {
        WAIT.set(Wait { began_ns: on_cpu_ns(), ..WAIT.get() });
    }

    fn contention_ends(&self) {
        let Wait { began_ns, total_ns } = WAIT.get();
        WAIT.set(Wait { began_ns, total_ns: total_ns + (on_cpu_ns() - began_ns) });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicI32, Ordering};

    use pagedepot_vmap::{Lock, NoFrames};
    use rustix::thread::gettid;

    use super::super::frames::Here;
    use super::*;

    fn is_asleep(thread: i32) -> bool {
        let status =
            std::fs::read_to_string(format!("/proc/self/task/{thread}/stat")).unwrap_or_default();
        status.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('S'))
    }

    #[test]
    fn waiters_park_and_their_time_is_counted() {
        let (lock, host, waiting) = (Lock::new(), CountingHost(NoFrames(Here)), AtomicI32::new(0));
        drop(lock.lock(&host));
        assert_eq!(contended_ns(), 0);
        std::thread::scope(|scope| {
            let held = lock.lock(&host);
            let waiter = scope.spawn(|| {
                waiting.store(gettid().as_raw_nonzero().get(), Ordering::Relaxed);
                drop(lock.lock(&host));
                contended_ns()
            });
            while !is_asleep(waiting.load(Ordering::Relaxed)) {
                std::thread::yield_now();
            }
            drop(held);
            assert!(waiter.join().expect("it only waited") > 0);
        });
        assert_eq!(contended_ns(), 0);
    }
}
