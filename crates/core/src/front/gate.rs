//! The gate of a CPU: open, or closed by the one drainer whose ticket it shows.
//!
//! # States
//! | value | meaning | transitions |
//! |---|---|---|
//! | 0 | wiped: this process is a fork | none |
//! | > 0 | open: the offset of the CPU's block | any drainer, by compare-and-swap, to its ticket |
//! | < 0, no ticket | disabled: the CPU has no caches until further notice | `enable`, to open; any drainer, to its ticket |
//! | < 0, a ticket | a drainer's; its last two bits (32 and 33), 1 or 2, say what comes after | that drainer alone, to open or disabled, as they say |
//!
//! Enabling during a drain changes the last two bits of its ticket from 2 to 1: a drain must not
//! undo it. Every open value of a CPU is the same. Tickets repeat after 2^28 drains. Wrap-around is
//! harmless: a ticket only identifies the drainer when a stuck gate is debugged.
//!
//! All of a ticket, and of "disabled", is in the upper half; the lower half, an offset, is 0 in
//! every closed gate. A sequence may therefore load the lower half only and go where it leads, see
//! [`block`](super::block): to the CPU's words or to words that refuse.
//!
//! # Argument: a full drain neither loses a frame nor hands one out twice
//! 1. One drainer at a time: the compare-and-swap from open elects it, and only the holder of the
//!    ticket ends it. (Exchange-and-retry on the front word itself was tried and is unsound with
//!    two drainers, or with an owner that reopens.)
//! 2. After the fence no sequence that read the gate open can commit; later ones read it closed
//!    (each reads the gate inside the sequence) and go to the store. So between the fence and the
//!    reopening the drainer is the only writer of the CPU's words, and what it reads is final.
//!    Those that follow the gate instead of looking at it find words that are always zero.
//! 3. It stores empty words, then reopens with Release. A sequence reads the gate with Acquire
//!    before the word: if it finds the gate open again, it finds the empty words too.
//! 4. The drainer returns the frames after the reopening, so the owner does not wait for the store.
//!
//! A drainer that dies between 1 and 3 leaves the gate closed: the CPU works on from the store,
//! other drainers are refused at once and report the CPU as busy. No caller waits for another.

use super::block::{BlockArray, is_open};
use crate::frame::CpuId;
use crate::sync::prim::{AtomicU64, Ordering, dekker_fence};

/// The bit that makes a gate negative.
const CLOSED: u64 = 1 << 63;
/// The bit that tells a drainer's gate from one that is disabled.
const TICKET: u64 = 1 << 62;
/// Each ticket is so much more than the one before.
const NEXT_TICKET: u64 = 4 << 32;
/// The bits of a closed gate that say what comes after.
const AFTER: u64 = 3 << 32;
const OPEN_AFTER: u64 = 1 << 32;
const DISABLED_AFTER: u64 = 2 << 32;
/// A gate that stays closed.
pub const GATE_DISABLED: u64 = CLOSED | DISABLED_AFTER;

/// Whether the CPU of a gate with this value has no caches, but for what a drainer is taking.
#[inline]
pub fn is_disabled(gate: u64) -> bool {
    gate & CLOSED != 0 && gate & AFTER == DISABLED_AFTER
}

/// Whether it has caches, though a drainer may be at them.
#[inline]
pub fn is_enabled(gate: u64) -> bool {
    is_open(gate) || gate & CLOSED != 0 && gate & AFTER == OPEN_AFTER
}

/// Hands out tickets.
pub struct Tickets(AtomicU64);

impl Tickets {
    pub fn new() -> Self {
        Tickets(AtomicU64::new(0))
    }
}

/// A gate that this value's holder closed; when dropped it becomes what it was, or what it has been
/// told to be.
pub struct Closed<'b> {
    gate: &'b AtomicU64,
    /// What it shows when it is open.
    open: u64,
}

impl<'b> Closed<'b> {
    /// Closes the gate of `cpu`; `None` when somebody else has.
    pub fn close(blocks: &'b BlockArray, cpu: CpuId, tickets: &Tickets) -> Option<Self> {
        Self::close_as(blocks, cpu, tickets, OPEN_AFTER)
    }

    /// As [`close`](Self::close), and leaves the gate disabled unless somebody enables it.
    pub fn close_for_good(blocks: &'b BlockArray, cpu: CpuId, tickets: &Tickets) -> Option<Self> {
        Self::close_as(blocks, cpu, tickets, DISABLED_AFTER)
    }

    /// Closes it for what comes after if it is open; a disabled gate remains disabled.
    fn close_as(blocks: &'b BlockArray, cpu: CpuId, tickets: &Tickets, after: u64) -> Option<Self> {
        let number = tickets.0.fetch_add(NEXT_TICKET, Ordering::Relaxed) & (TICKET - 1);
        let ticket = CLOSED | TICKET | number;
        let (gate, open) = (blocks.gate(cpu), blocks.open_gate(cpu));
        // A disabled gate may be drained too: what a slow path left on the way is still there.
        [(open, after), (GATE_DISABLED, DISABLED_AFTER)].into_iter().find_map(|(state, after)| {
            let ticket = ticket | after;
            // SeqCst: ordered before the fence and before the shelf's take-all, against an owner
            // that pushes to its shelf and then looks at the gate.
            gate.compare_exchange(state, ticket, Ordering::SeqCst, Ordering::Relaxed)
                .ok()
                .map(|_| Closed { gate, open })
        })
    }
}

impl Drop for Closed<'_> {
    fn drop(&mut self) {
        let after = |gate| match gate & AFTER {
            OPEN_AFTER => Some(self.open),
            DISABLED_AFTER => Some(GATE_DISABLED),
            // Wiped.
            _ => None,
        };
        // Release: pairs with the Acquire of the gate in every sequence (see 3.). SeqCst because
        // a disabler looks at the shelves afterwards, see `Stack::push_chain`. Only `enable` may
        // change it meanwhile, once. An error is a wiped gate, which stays as it is.
        let _ = self.gate.fetch_update(Ordering::SeqCst, Ordering::Relaxed, after);
        dekker_fence();
    }
}

/// Opens a disabled gate, or has its drainer open it. `false`: it was not disabled.
pub fn enable(blocks: &BlockArray, cpu: CpuId) -> bool {
    let open_gate = blocks.open_gate(cpu);
    let open = |gate| match gate {
        GATE_DISABLED => Some(open_gate),
        ticket => is_disabled(ticket).then_some(ticket & !AFTER | OPEN_AFTER),
    };
    // SeqCst: Release pairs with the Acquire in every sequence, and keeps the empty words that the
    // disabler released.
    blocks.gate(cpu).fetch_update(Ordering::SeqCst, Ordering::Relaxed, open).is_ok()
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::front::GATES_AT;

    const CPU: CpuId = CpuId::new(0);
    const OPEN: u64 = 256;

    /// Calls `test` with a gate that shows `state`.
    fn with_gate(state: u64, test: impl FnOnce(&BlockArray, &Tickets)) {
        let mut memory = [0; GATES_AT / 8 + 1];
        memory[GATES_AT / 8] = state;
        let blocks = BlockArray {
            base: memory.as_mut_ptr().cast(),
            gates_from: 0,
            blocks_at: OPEN as usize,
            stride: 8,
            cpus: 1,
            context_stride: 0,
        };
        test(&blocks, &Tickets::new());
    }

    fn shown(blocks: &BlockArray) -> u64 {
        blocks.gate(CPU).load(Ordering::Relaxed)
    }

    #[test]
    fn a_drainer_leaves_the_state_it_found() {
        for state in [OPEN, GATE_DISABLED] {
            with_gate(state, |blocks, tickets| {
                for _ in 0..3 {
                    let closed = Closed::close(blocks, CPU, tickets).unwrap();
                    assert!(![OPEN, GATE_DISABLED].contains(&shown(blocks)));
                    assert_eq!(is_enabled(shown(blocks)), state == OPEN);
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
        with_gate(OPEN, |blocks, tickets| {
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
    fn a_ticket_is_one_whatever_its_number() {
        for after in [OPEN, GATE_DISABLED] {
            with_gate(after, |blocks, tickets| {
                tickets.0.store(TICKET.wrapping_sub(NEXT_TICKET), Ordering::Relaxed);
                for _ in 0..3 {
                    let _closed = Closed::close_for_good(blocks, CPU, tickets).unwrap();
                    assert_ne!(shown(blocks), GATE_DISABLED);
                    assert_eq!(shown(blocks) as u32, 0, "leads to words that refuse");
                    assert!(Closed::close(blocks, CPU, tickets).is_none());
                }
                assert_eq!(shown(blocks), GATE_DISABLED);
            });
        }
    }

    #[test]
    fn disabled_until_enabled() {
        with_gate(OPEN, |blocks, tickets| {
            assert!(!enable(blocks, CPU));
            drop(Closed::close_for_good(blocks, CPU, tickets).unwrap());
            assert_eq!(shown(blocks), GATE_DISABLED);
            assert!(enable(blocks, CPU) && !enable(blocks, CPU));
            assert_eq!(shown(blocks), OPEN);
        });
    }

    #[test]
    fn what_is_enabled_in_the_middle_of_a_drain_is_enabled_after_it() {
        with_gate(GATE_DISABLED, |blocks, tickets| {
            let closed = Closed::close(blocks, CPU, tickets).unwrap();
            assert!(enable(blocks, CPU) && !enable(blocks, CPU));
            assert_ne!(shown(blocks), OPEN);
            drop(closed);
            assert_eq!(shown(blocks), OPEN);
            let closed = Closed::close_for_good(blocks, CPU, tickets).unwrap();
            assert!(enable(blocks, CPU));
            drop(closed);
            assert_eq!(shown(blocks), OPEN);
        });
    }

    #[test]
    fn the_gate_of_a_dead_drainer_stays_closed() {
        with_gate(OPEN, |blocks, tickets| {
            std::mem::forget(Closed::close(blocks, CPU, tickets).unwrap());
            let ticket = shown(blocks);
            assert!(Closed::close(blocks, CPU, tickets).is_none() && !enable(blocks, CPU));
            assert_eq!(shown(blocks), ticket);
        });
    }

    #[test]
    fn a_wiped_gate_is_neither_opened_nor_drained() {
        with_gate(OPEN, |blocks, tickets| {
            let closed = Closed::close(blocks, CPU, tickets).unwrap();
            blocks.gate(CPU).store(0, Ordering::Relaxed);
            drop(closed);
            assert_eq!(shown(blocks), 0);
            assert!(!enable(blocks, CPU) && Closed::close(blocks, CPU, tickets).is_none());
            assert!(!is_enabled(0));
        });
    }
}
