//! The gate of a CPU: open, or closed by the one drainer whose ticket it shows.
//!
//! # States
//! | value | meaning | who leaves it, to what |
//! |---|---|---|
//! | 0 | wiped: this process is a fork | nobody |
//! | 1 | open | any drainer, by compare-and-swap, to its ticket or to disabled |
//! | 2 | disabled: the CPU has no caches until further notice | `enable`, to open |
//! | >= 4 | a drainer's ticket | that drainer alone, to open or disabled |
//!
//! # Argument: a full drain neither loses a frame nor hands one out twice
//! 1. One drainer at a time: the compare-and-swap from open elects it, and only the holder of the
//!    ticket writes the gate afterwards. (Exchange-and-retry on the front word itself was tried
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
use crate::prim::{AtomicU64, Ordering};

/// A gate that stays closed.
pub const GATE_DISABLED: u64 = 2;
/// The first ticket.
const FIRST_TICKET: u64 = 4;

/// Hands out tickets, each once.
pub struct Tickets(AtomicU64);

impl Tickets {
    pub fn new() -> Self {
        Tickets(AtomicU64::new(FIRST_TICKET))
    }
}

/// A gate that this value's holder closed; reopened when dropped.
pub struct Closed<'b> {
    gate: &'b AtomicU64,
    reopen_as: u64,
}

impl<'b> Closed<'b> {
    /// Closes the gate of `cpu`; `None` when somebody else has.
    pub fn close(blocks: &'b BlockArray, cpu: CpuId, tickets: &Tickets) -> Option<Self> {
        let ticket = tickets.0.fetch_add(1, Ordering::Relaxed);
        let gate = blocks.gate(cpu);
        // A disabled gate may be drained too: what a slow path left on the way is still there.
        [GATE_OPEN, GATE_DISABLED].into_iter().find_map(|state| {
            // SeqCst: ordered before the fence and before the shelf's take-all, against an owner
            // that pushes to its shelf and then looks at the gate.
            gate.compare_exchange(state, ticket, Ordering::SeqCst, Ordering::Relaxed)
                .ok()
                .map(|state| Closed { gate, reopen_as: state })
        })
    }

    /// Leaves the gate disabled rather than open.
    pub fn keep_disabled(&mut self) {
        self.reopen_as = GATE_DISABLED;
    }
}

impl Drop for Closed<'_> {
    fn drop(&mut self) {
        // Release: pairs with the Acquire of the gate in every sequence (see 3.). SeqCst because
        // a disabler looks at the shelves afterwards, see `Stack::push_chain`.
        self.gate.store(self.reopen_as, Ordering::SeqCst);
    }
}

/// Opens a disabled gate. `false`: it is not disabled (open, or in a drainer's hands).
pub fn enable(blocks: &BlockArray, cpu: CpuId) -> bool {
    blocks.gate(cpu).compare_exchange(GATE_DISABLED, GATE_OPEN, Ordering::SeqCst, Ordering::Relaxed).is_ok()
}
