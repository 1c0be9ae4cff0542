//! The gate of a CPU: open, or closed by the one drainer whose ticket it shows.
//!
//! # States
//! | value | meaning | who leaves it, to what |
//! |---|---|---|
//! | 0 | wiped: this process is a fork | nobody |
//! | 1 | open | any drainer, by compare-and-swap, to its ticket or to disabled |
//! | 2 | disabled: the CPU has no caches until further notice | `enable`, to open |
//! | >= 4 | a drainer's ticket; its last two bits, 1 or 2, say what comes after | that drainer alone, to open or disabled, as they say |
//!
//! Enabling during a drain changes the last two bits of its ticket from 2 to 1: a drain must not
//! undo it.
//!
//! # Argument: a full drain neither loses a frame nor hands one out twice
//! 1. One drainer at a time: the compare-and-swap from open elects it, and only the holder of the
//!    ticket ends it. (Exchange-and-retry on the front word itself was tried
//!    and is unsound with two drainers, or with an owner that reopens.)
//! 2. After the fence no sequence that read the gate open can commit; later ones read it closed
//!    (each reads the gate inside the sequence) and go to the store. So between the fence and the
//!    reopening the drainer is the only writer of the CPU's words, and what it reads is final.
//! 3. It stores empty words, then reopens with Release. A sequence reads the gate with Acquire
//!    before the word: if it finds the gate open again, it finds the empty words too.
//! 4. The frames are returned after the reopening: nobody waits for the store.
//!
//! A drainer that dies between 1 and 3 leaves the gate closed: the CPU works on from the store,
//! other drainers are refused at once and report the CPU as busy. Nobody waits for anybody.

use super::block::{BlockArray, GATE_OPEN};
use crate::frame::CpuId;
use crate::prim::{AtomicU64, Ordering, dekker_fence};

/// A gate that stays closed.
pub const GATE_DISABLED: u64 = 2;
/// The first ticket.
const FIRST_TICKET: u64 = 4;
/// The bits that say what a gate is, or will be when its drainer leaves.
const STATE: u64 = 3;

/// Whether the CPU of a gate with this value has no caches, but for what a drainer is taking.
#[inline]
pub fn is_disabled(gate: u64) -> bool {
    gate & STATE == GATE_DISABLED
}

/// Whether it has caches, though a drainer may be at them.
#[inline]
pub fn is_enabled(gate: u64) -> bool {
    gate & STATE == GATE_OPEN
}

/// Hands out tickets, each once.
pub struct Tickets(AtomicU64);

impl Tickets {
    pub fn new() -> Self {
        Tickets(AtomicU64::new(FIRST_TICKET))
    }
}

/// A gate that this value's holder closed; when dropped it becomes what it was, or what it has been
/// told to be.
pub struct Closed<'b> {
    gate: &'b AtomicU64,
}

impl<'b> Closed<'b> {
    /// Closes the gate of `cpu`; `None` when somebody else has.
    pub fn close(blocks: &'b BlockArray, cpu: CpuId, tickets: &Tickets) -> Option<Self> {
        Self::close_as(blocks, cpu, tickets, |state| state)
    }

    /// As [`close`](Self::close), and leaves the gate disabled unless somebody enables it.
    pub fn close_for_good(blocks: &'b BlockArray, cpu: CpuId, tickets: &Tickets) -> Option<Self> {
        Self::close_as(blocks, cpu, tickets, |_| GATE_DISABLED)
    }

    fn close_as(
        blocks: &'b BlockArray,
        cpu: CpuId,
        tickets: &Tickets,
        then: impl Fn(u64) -> u64,
    ) -> Option<Self> {
        let ticket = tickets.0.fetch_add(FIRST_TICKET, Ordering::Relaxed);
        let gate = blocks.gate(cpu);
        // A disabled gate may be drained too: what a slow path left on the way is still there.
        [GATE_OPEN, GATE_DISABLED].into_iter().find_map(|state| {
            let ticket = ticket | then(state);
            // SeqCst: ordered before the fence and before the shelf's take-all, against an owner
            // that pushes to its shelf and then looks at the gate.
            gate.compare_exchange(state, ticket, Ordering::SeqCst, Ordering::Relaxed)
                .ok()
                .map(|_| Closed { gate })
        })
    }
}

impl Drop for Closed<'_> {
    fn drop(&mut self) {
        // Release: pairs with the Acquire of the gate in every sequence (see 3.). SeqCst because
        // a disabler looks at the shelves afterwards, see `Stack::push_chain`. The ticket goes, the
        // state stays.
        self.gate.fetch_and(STATE, Ordering::SeqCst);
        dekker_fence();
    }
}

/// Opens a disabled gate, or has its drainer open it. `false`: it was not disabled.
pub fn enable(blocks: &BlockArray, cpu: CpuId) -> bool {
    let open = |gate| is_disabled(gate).then_some(gate & !STATE | GATE_OPEN);
    // SeqCst: Release pairs with the Acquire in every sequence, and keeps the empty words that the
    // disabler released.
    blocks.gate(cpu).fetch_update(Ordering::SeqCst, Ordering::Relaxed, open).is_ok()
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const CPU: CpuId = CpuId::new(0);

    /// Calls `test` with a gate that shows `state`.
    fn with_gate(state: u64, test: impl FnOnce(&BlockArray, &Tickets)) {
        let mut gate = state;
        let blocks = BlockArray {
            blocks: (&raw mut gate).cast(),
            stride: size_of::<u64>(),
            cpus: 1,
            context_stride: 0,
            magazines: 0,
        };
        test(&blocks, &Tickets::new());
    }

    fn shown(blocks: &BlockArray) -> u64 {
        blocks.gate(CPU).load(Ordering::Relaxed)
    }

    #[test]
    fn a_drainer_leaves_the_state_it_found() {
        for state in [GATE_OPEN, GATE_DISABLED] {
            with_gate(state, |blocks, tickets| {
                for _ in 0..3 {
                    let closed = Closed::close(blocks, CPU, tickets).unwrap();
                    assert!(![GATE_OPEN, GATE_DISABLED].contains(&shown(blocks)));
                    assert_eq!(is_enabled(shown(blocks)), state == GATE_OPEN);
                    assert_eq!(is_disabled(shown(blocks)), state == GATE_DISABLED);
                    assert!(Closed::close(blocks, CPU, tickets).is_none());
                    assert!(Closed::close_for_good(blocks, CPU, tickets).is_none());
                    drop(closed);
                    assert_eq!(shown(blocks), state);
                }
            });
        }
    }

    #[test]
    fn no_two_drainers_have_one_ticket() {
        with_gate(GATE_OPEN, |blocks, tickets| {
            let mut seen = Vec::new();
            for _ in 0..100 {
                let _closed = Closed::close(blocks, CPU, tickets).unwrap();
                assert!(Closed::close(blocks, CPU, tickets).is_none());
                assert!(!seen.contains(&shown(blocks)));
                seen.push(shown(blocks));
            }
        });
    }

    #[test]
    fn disabled_until_enabled() {
        with_gate(GATE_OPEN, |blocks, tickets| {
            assert!(!enable(blocks, CPU));
            drop(Closed::close_for_good(blocks, CPU, tickets).unwrap());
            assert_eq!(shown(blocks), GATE_DISABLED);
            assert!(enable(blocks, CPU) && !enable(blocks, CPU));
            assert_eq!(shown(blocks), GATE_OPEN);
        });
    }

    #[test]
    fn what_is_enabled_in_the_middle_of_a_drain_is_enabled_after_it() {
        with_gate(GATE_DISABLED, |blocks, tickets| {
            let closed = Closed::close(blocks, CPU, tickets).unwrap();
            assert!(enable(blocks, CPU) && !enable(blocks, CPU));
            assert_ne!(shown(blocks), GATE_OPEN);
            drop(closed);
            assert_eq!(shown(blocks), GATE_OPEN);
            let closed = Closed::close_for_good(blocks, CPU, tickets).unwrap();
            assert!(enable(blocks, CPU));
            drop(closed);
            assert_eq!(shown(blocks), GATE_OPEN);
        });
    }

    #[test]
    fn the_gate_of_a_dead_drainer_stays_closed() {
        with_gate(GATE_OPEN, |blocks, tickets| {
            std::mem::forget(Closed::close(blocks, CPU, tickets).unwrap());
            let ticket = shown(blocks);
            assert!(Closed::close(blocks, CPU, tickets).is_none() && !enable(blocks, CPU));
            assert_eq!(shown(blocks), ticket);
        });
    }

    #[test]
    fn a_wiped_gate_is_neither_opened_nor_drained() {
        with_gate(GATE_OPEN, |blocks, tickets| {
            let closed = Closed::close(blocks, CPU, tickets).unwrap();
            blocks.gate(CPU).store(0, Ordering::Relaxed);
            drop(closed);
            assert_eq!(shown(blocks), 0);
            assert!(!enable(blocks, CPU) && Closed::close(blocks, CPU, tickets).is_none());
            assert!(!is_enabled(0));
        });
    }
}
