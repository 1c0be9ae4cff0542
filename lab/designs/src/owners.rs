//! Exclusion among threads that act as one CPU, where remote CPUs stay out: the kernel's local
//! lock.
//!
//! Each CPU has a state word: even is free, odd is held. It grows with every operation, so that a
//! drainer can wait for the operation that is under way, and only for that one.

use pagedepot::CpuId;

use pagedepot_designs::prim::{AtomicU32, AtomicU64, Ordering, Padded, fence};

/// The exclusion among callers of designs with owners.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// One thread at a time acts as all CPUs: replays, model tests. Plain loads and stores. If
    /// several threads did so at once, blocks would be handed out twice.
    Pretend,
    /// Every caller runs on the CPU that it names (a thread pinned there, or code that asks right
    /// before) and enters by a restartable sequence. A caller that is elsewhere goes past the
    /// caches. Without rseq this becomes [`Lock`](Entry::Lock); `entry()` of the design tells.
    OnCpu,
    /// Any thread may act as any CPU: a lock per CPU, and full barriers instead of asymmetric
    /// fences. This costs more than the design itself: not for comparisons.
    Lock,
}

/// The means of an entry on this machine.
#[derive(Clone, Copy)]
enum Means {
    Pretend,
    #[cfg(not(loom))]
    Rseq(crate::rseq::Area),
    Lock {
        /// Whether operations run a full barrier, for drainers that fence them.
        fenced: bool,
    },
}

/// The words of one CPU, on its own line.
pub(crate) struct Owner {
    state: AtomicU32,
    /// Zones that the owner should drain at its next operation, a bit each.
    pub work: AtomicU32,
    /// The grace period that the owner saw last; 0: offline.
    pub period: AtomicU64,
}

/// The local locks of all CPUs.
pub(crate) struct Owners {
    cells: Box<[Padded<Owner>]>,
    means: Means,
}

/// Holds a CPU's local lock.
pub(crate) struct OwnerGuard<'o> {
    pub owner: &'o Owner,
    state: u32,
}

impl Drop for OwnerGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        // Release: pairs with the Acquire in `Owner::state`, where a drainer learns that this
        // operation is over, and with the Acquire of the next owner.
        self.owner.state.store(self.state.wrapping_add(1), Ordering::Release);
    }
}

impl Owner {
    fn new() -> Self {
        Owner { state: AtomicU32::new(0), work: AtomicU32::new(0), period: AtomicU64::new(0) }
    }

    /// The state word; odd while an operation is under way.
    pub fn state(&self) -> u32 {
        // Acquire: pairs with the Release in `OwnerGuard::drop`.
        self.state.load(Ordering::Acquire)
    }
}

impl Owners {
    /// `fenced`: the design's drainers call [`fence_cpu`](Self::fence_cpu) or
    /// [`wait_for_grace_period`](Self::wait_for_grace_period).
    pub fn new(cpus: u32, entry: Entry, fenced: bool) -> Self {
        Owners {
            cells: (0..cpus).map(|_| Padded(Owner::new())).collect(),
            means: Means::of(entry, fenced),
        }
    }

    /// The entry by these means.
    pub fn entry(&self) -> Entry {
        match self.means {
            Means::Pretend => Entry::Pretend,
            #[cfg(not(loom))]
            Means::Rseq(_) => Entry::OnCpu,
            Means::Lock { .. } => Entry::Lock,
        }
    }

    pub fn get(&self, cpu: CpuId) -> Option<&Owner> {
        self.cells.get(cpu.index()).map(|cell| &cell.0)
    }

    /// Begins an operation as `cpu`; `None`: that CPU has no caches, or another operation is under
    /// way as it, or this thread is elsewhere.
    #[inline]
    pub fn try_enter(&self, cpu: CpuId) -> Option<OwnerGuard<'_>> {
        let owner = &self.cells.get(cpu.index())?.0;
        let entered = match self.means {
            Means::Pretend => {
                let state = owner.state.load(Ordering::Relaxed);
                let free = state.is_multiple_of(2);
                if free {
                    owner.state.store(state.wrapping_add(1), Ordering::Relaxed);
                }
                free
            }
            #[cfg(not(loom))]
            Means::Rseq(area) => crate::rseq::try_lock(area, &owner.state, cpu.get()),
            Means::Lock { fenced } => Self::try_lock(owner, fenced),
        };
        // Relaxed: this thread stored the value itself, or no thread did.
        entered.then(|| OwnerGuard { owner, state: owner.state.load(Ordering::Relaxed) })
    }

    fn try_lock(owner: &Owner, fenced: bool) -> bool {
        let state = owner.state.load(Ordering::Relaxed);
        // Acquire: pairs with the Release in `OwnerGuard::drop`.
        let entered = state.is_multiple_of(2)
            && owner
                .state
                .compare_exchange(
                    state,
                    state.wrapping_add(1),
                    Ordering::Acquire,
                    Ordering::Relaxed,
                )
                .is_ok();
        if entered && fenced {
            // Pairs with the fence in `fence_cpu` (Dekker): either the drainer sees this
            // operation, or this operation sees the list pointer that the drainer switched.
            fence(Ordering::SeqCst);
        }
        entered
    }

    /// Makes sure that the caller's next look at the state of `cpu` sees an operation under way, or
    /// that the operation sees what the caller wrote before. Returns whether this interrupts a CPU
    /// that runs this process (with [`Entry::Pretend`]: whether it would).
    ///
    /// # Errors
    /// When the kernel refused.
    pub fn fence_cpu(&self, cpu: CpuId) -> Result<bool, FenceRefused> {
        let _ = cpu;
        fence(Ordering::SeqCst);
        match self.means {
            #[cfg(not(loom))]
            Means::Rseq(_) => crate::rseq::fence(cpu).map(|()| true).map_err(|_| FenceRefused),
            Means::Pretend => Ok(true),
            Means::Lock { .. } => Ok(false),
        }
    }

    /// Fences all CPUs at once, as [`fence_cpu`](Self::fence_cpu) does one, by a grace period of
    /// the kernel's RCU that the caller waits for. It interrupts no CPU.
    ///
    /// # Errors
    /// When the kernel refused.
    pub fn wait_for_grace_period(&self) -> Result<(), FenceRefused> {
        fence(Ordering::SeqCst);
        match self.means {
            #[cfg(not(loom))]
            Means::Rseq(_) => crate::rseq::wait_for_grace_period().map_err(|_| FenceRefused),
            Means::Pretend | Means::Lock { .. } => Ok(()),
        }
    }
}

/// The kernel refused to fence a CPU, or to wait for a grace period.
#[derive(Debug)]
pub(crate) struct FenceRefused;

impl Means {
    fn of(entry: Entry, fenced: bool) -> Self {
        match entry {
            Entry::Pretend => Means::Pretend,
            #[cfg(not(loom))]
            // Where sequences cannot run or cannot be fenced, the lock's full barriers do.
            Entry::OnCpu => crate::rseq::prepare().map_or(Means::Lock { fenced }, Means::Rseq),
            #[cfg(loom)]
            Entry::OnCpu => Means::Lock { fenced },
            Entry::Lock => Means::Lock { fenced },
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::time::{Duration, Instant};

    use pagedepot_rseq::affinity;

    use super::*;
    use pagedepot_designs::prim::PlainU64;

    const ENTRIES: [Entry; 2] = [Entry::OnCpu, Entry::Lock];

    /// The CPUs that this process may use. Tests that need a second one do nothing without it.
    fn cpus() -> Vec<u32> {
        affinity::allowed().unwrap().iter().map(CpuId::get).collect()
    }

    fn pin(cpu: u32) {
        affinity::pin(CpuId::new(cpu)).unwrap();
    }

    #[test]
    fn one_operation_at_a_time() {
        for entry in [Entry::Pretend, Entry::OnCpu, Entry::Lock] {
            let owners = Owners::new(1024, entry, true);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    let cpu = cpus()[0];
                    pin(cpu);
                    let cpu = CpuId::new(cpu);
                    let before = owners.get(cpu).unwrap().state();
                    let held = owners.try_enter(cpu).unwrap();
                    assert!(owners.try_enter(cpu).is_none());
                    assert_eq!(held.owner.state(), before + 1);
                    drop(held);
                    assert_eq!(owners.get(cpu).unwrap().state(), before + 2);
                    assert!(owners.try_enter(cpu).is_some());
                    assert!(owners.try_enter(CpuId::new(1024)).is_none());
                });
            });
        }
    }

    #[test]
    fn who_is_elsewhere_does_not_enter() {
        let owners = Owners::new(1024, Entry::OnCpu, false);
        let (Entry::OnCpu, [here, there, ..]) = (owners.entry(), &cpus()[..]) else { return };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                pin(*here);
                assert!(owners.try_enter(CpuId::new(*there)).is_none());
                assert!(owners.try_enter(CpuId::new(*here)).is_some());
            });
        });
    }

    /// Threads that preempt each other on one CPU count under its lock by plain loads and stores,
    /// and no count is lost.
    #[test]
    fn preempted_owners_keep_others_out() {
        for entry in ENTRIES {
            let owners = Owners::new(1024, entry, true);
            let sum = PlainU64::new(0);
            let cpu = cpus()[0];
            let entered: u64 = std::thread::scope(|scope| {
                let threads: Vec<_> = (0..4)
                    .map(|_| {
                        scope.spawn(|| {
                            pin(cpu);
                            let end = Instant::now() + Duration::from_millis(150);
                            let mut entered = 0;
                            while Instant::now() < end {
                                for _ in 0..1000 {
                                    if let Some(_held) = owners.try_enter(CpuId::new(cpu)) {
                                        sum.add(1);
                                        entered += 1;
                                    }
                                }
                            }
                            entered
                        })
                    })
                    .collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).sum()
            });
            assert_eq!(sum.get(), entered);
        }
    }
}
