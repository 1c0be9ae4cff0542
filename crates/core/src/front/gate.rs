//! The gate of a CPU: open, or closed by the one drainer whose ticket it shows.
//!
//! # States
//! Bits 32 and 33 of a closed gate say what follows: 1 for open, 2 for disabled.
//!
//! | state | value | bits 32, 33 | meaning |
//! |---|---|---|---|
//! | wiped | 0 | 0 | this process is a fork |
//! | open | > 0 | | the offset of the CPU's block, or [`OPEN_TO_LOCK`] |
//! | asked | < 0, no ticket | 1 | closed for a handover; a drainer asked and left |
//! | disabled | < 0, no ticket | 2 | the CPU has no caches until it is enabled |
//! | held | < 0, a ticket | 1 or 2 | a drainer, or the owner, works behind it |
//!
//! | from | to | by |
//! |---|---|---|
//! | open | asked | a drainer |
//! | open, asked, disabled | held | a drainer, with its ticket |
//! | asked | held | the owner, with its ticket, in a sequence of its CPU |
//! | held | open or disabled | the holder, as bits 32 and 33 say |
//! | held | asked | a drainer that found the gate asked and could not fence |
//! | disabled | open | `enable` |
//!
//! Each transition is a compare-and-swap. Enabling during a drain changes bits 32 and 33 of the
//! ticket from 2 to 1, so that the drain does not undo it. A CPU has one open value ([`Gate`]),
//! which never changes. A ticket names its holder, the caller in bits 34 to 61. A signal handler
//! above the holder finds its own thread there, and a request of the handler does not sleep until
//! the gate is open ([`is_held_by`]).
//!
//! The upper half of the word has the whole ticket, "asked" and "disabled". The lower half is the
//! offset of an open gate, and 0 in every closed one. So a sequence may load the lower half alone
//! and go where it leads: to the CPU's words, or to words that refuse (see
//! [`block`](super::block)).
//!
//! # Argument: a full drain neither loses a frame nor hands one out twice
//! 1. One drainer at a time: the compare-and-swap from open elects it, and only the holder of the
//!    ticket ends it. (Exchange-and-retry on the front word itself was tried and is unsound with
//!    two drainers, or with an owner that reopens.)
//! 2. After the fence no sequence that read the gate open can commit. Later sequences read it
//!    closed, because each reads the gate inside the sequence, and go to the store. So between the
//!    fence and the reopening the drainer is the only writer of the CPU's words, and what it reads
//!    is final. Sequences that follow the gate without a look at its state find words that are
//!    always zero.
//! 3. It stores empty words, then reopens with Release. A sequence reads the gate with Acquire
//!    before the word: if it finds the gate open again, it finds the empty words too.
//! 4. The drainer returns the frames after the reopening, so the owner does not wait for the store.
//!
//! A drainer that dies between 1 and 3 leaves the gate closed. The CPU goes on from the store, and
//! other drainers are refused at once and report the CPU as busy. No caller waits for another.
//!
//! # Argument: a handover loses and doubles no frame either, without a fence
//! 1. *An asked gate has no holder.* A drainer that asks closes the gate and touches nothing behind
//!    it. One holder takes the gate from there, by compare-and-swap. It needs one of three proofs
//!    that no sequence which read the gate open can still commit.
//! 2. *The owner's proof* is where it runs. It claims the gate by a compare-and-swap that is
//!    itself a sequence of that CPU ([`Change::Gate`](crate::cpus::Change::Gate)). A CPU
//!    runs one sequence at a time. Those that began before have committed, and the owner sees their
//!    stores, or they were aborted and never commit. Later ones read the gate closed. A fence would
//!    find nothing left to wait for. An interrupt handler above a task's sequence has no such
//!    proof, because that sequence goes on afterwards: the handler leaves the gate as it is.
//! 3. *A drainer's proofs* are a quiescent CPU, looked at after its ticket is in the gate, and a
//!    fence. Without either it puts "asked" back.
//! 4. The rest of a handover is steps 2 to 4 of a full drain, with the owner in the drainer's
//!    place: it alone writes the words, and it reopens after it has emptied them. It returns no
//!    frames. It pushes its magazines, with what they hold, on a stack that every drain takes
//!    whole: at most 2 magazines per front, by one operation per zone.
//!
//! What happens in the other cases:
//! * *The owner is suspended in a sequence.* The gate stays asked. The next thread on that CPU
//!   claims it, which aborts the suspended sequence. Where a claim aborts nothing (guards, locks)
//!   it fails until the sequence has ended.
//! * *The owner is suspended between claim and reopening.* As with a drainer that dies: other code
//!   of that CPU goes to the store, other drains find the CPU busy.
//! * *The owner is idle, in user mode or gone.* A drainer that looks again finds the CPU quiescent
//!   and takes the gate, or fences after its deadline. To retire a CPU takes an asked gate as it
//!   takes an open one.
//! * *Two drainers ask.* The gate is asked once, and one handover answers both (see
//!   `pcp/asks.rs`).
//! * *A full drain comes on top.* It takes the asked gate and answers the drains that asked. If it
//!   cannot fence, it leaves the gate asked.
//! * *The caches are disabled on top.* The disabler takes the asked gate, and nothing is left to
//!   hand over. Enabling leaves an asked gate as it is.
//! * *The process forks.* The gate is wiped: the claim fails, and the child's drains see a CPU
//!   without caches.
//! * *The owner is asked again while it hands over.* Its ticket is in the way. The drainer asks
//!   when it looks again.

use super::block::{BlockArray, OPEN_TO_LOCK, is_open};
use crate::frame::CpuId;
use crate::sync::Caller;
use crate::sync::model::{Mutant, is_mutant};
use crate::sync::prim::{AtomicU64, Ordering};
use crate::sync::total::{ASKS, SHELVES};

/// The bit that makes a gate negative.
const CLOSED: u64 = 1 << 63;
/// The bit that tells a drainer's gate from one that is disabled.
const TICKET: u64 = 1 << 62;
/// The first bit of the caller that a ticket names.
const CALLER_SHIFT: u32 = 34;
const _: () = assert!(CALLER_SHIFT + Caller::BITS == TICKET.trailing_zeros());
/// The bits of a closed gate that say what comes after.
const AFTER: u64 = 3 << 32;
pub const OPEN_AFTER: u64 = 1 << 32;
pub const DISABLED_AFTER: u64 = 2 << 32;
/// A gate that stays closed.
pub const GATE_DISABLED: u64 = CLOSED | DISABLED_AFTER;
/// A gate that is closed until its owner has handed over, or a drainer has taken what it leads to.
const GATE_ASKED: u64 = CLOSED | OPEN_AFTER;

/// Whether the CPU of a gate with this value has no caches, but for what a drainer is taking.
#[inline]
pub fn is_disabled(gate: u64) -> bool {
    gate & CLOSED != 0 && gate & AFTER == DISABLED_AFTER
}

/// Whether the CPU of a gate with this value has caches. A drainer may be taking them.
#[inline]
pub fn is_enabled(gate: u64) -> bool {
    is_open(gate) || gate & CLOSED != 0 && gate & AFTER == OPEN_AFTER
}

/// Whether a drainer asked the owner to hand over.
#[inline]
pub fn is_asked(gate: u64) -> bool {
    gate == GATE_ASKED
}

/// The ticket of a caller, without what comes after.
fn ticket(caller: Caller) -> u64 {
    CLOSED | TICKET | caller.bits() << CALLER_SHIFT
}

/// Whether a gate with this value has this caller's ticket. Never so of a caller without a name.
pub fn is_held_by(gate: u64, caller: Caller) -> bool {
    caller.has_name() && gate & !AFTER == ticket(caller)
}

/// The gate of a CPU, with the value that it shows when it is open.
#[derive(Clone, Copy)]
pub struct Gate<'b> {
    pub word: &'b AtomicU64,
    pub open: u64,
}

impl<'b> Gate<'b> {
    /// The gate of `cpu`.
    pub fn of(blocks: &'b BlockArray, cpu: CpuId, is_behind_lock: bool) -> Self {
        let refuses = is_behind_lock && !is_mutant(Mutant::OpensToAll);
        let open = if refuses { OPEN_TO_LOCK } else { blocks.open_gate(cpu) };
        Gate { word: blocks.gate(cpu), open }
    }
}

/// A gate that this value's holder closed. Dropping it reopens or disables the gate, as bits 32 and
/// 33 say then.
pub struct ClosedGate<'b> {
    gate: &'b AtomicU64,
    /// The value to store unless the gate becomes disabled.
    after: u64,
    /// The value before it was closed.
    before: u64,
}

impl<'b> ClosedGate<'b> {
    /// Closes a gate, which afterwards is open, or disabled unless [`enable`] comes in between, as
    /// `after` says; one that is disabled remains so. `None` when it has a holder, or is wiped.
    pub fn close(gate: Gate<'b>, caller: Caller, after: u64) -> Option<Self> {
        let ticket = ticket(caller);
        let Gate { word: gate, open } = gate;
        // A disabled gate may be drained too: a slow path may have left pages behind it.
        let states = [(open, after), (GATE_ASKED, after), (GATE_DISABLED, DISABLED_AFTER)];
        states.into_iter().find_map(|(before, after)| {
            let ticket = ticket | after;
            // SeqCst: ordered before the fence and before the shelf's take-all, against an owner
            // that pushes to its shelf and then looks at the gate.
            gate.compare_exchange(before, ticket, SHELVES.change(), Ordering::Relaxed)
                .ok()
                .map(|_| ClosedGate { gate, after: open, before })
        })
    }

    /// Claims an asked gate for its owner. `claim` changes it from the first value to the second by
    /// a sequence of that CPU; `false`: it could not.
    pub fn claim(
        gate: Gate<'b>,
        caller: Caller,
        claim: impl FnOnce(u64, u64) -> bool,
    ) -> Option<Self> {
        // Made only then: dropping it opens the gate.
        claim(GATE_ASKED, ticket(caller) | OPEN_AFTER).then(|| ClosedGate {
            gate: gate.word,
            after: gate.open,
            before: GATE_ASKED,
        })
    }

    /// Reopens the gate with nothing taken: one that was asked is asked again.
    pub fn give_up(mut self) {
        if is_asked(self.before) {
            self.after = GATE_ASKED;
        }
    }
}

impl Drop for ClosedGate<'_> {
    fn drop(&mut self) {
        let after = |gate| match gate & AFTER {
            OPEN_AFTER => Some(self.after),
            DISABLED_AFTER => Some(GATE_DISABLED),
            // Wiped.
            _ => None,
        };
        // Release: pairs with the Acquire of the gate in every sequence (see 3.). SeqCst because
        // a disabler looks at the shelves afterwards, see `Stack::push_chain`. Only `enable` may
        // change it meanwhile, once. An error is a wiped gate, which stays as it is.
        let _ = self.gate.fetch_update(SHELVES.change(), Ordering::Relaxed, after);
        SHELVES.fence();
    }
}

/// The state in which [`ask`] found a gate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AskOutcome {
    /// The gate is asked, by this caller or by one before.
    Stands,
    /// A drainer or the owner holds it now: ask again.
    Held,
    /// The CPU has no caches.
    Disabled,
}

/// Asks the owner of a gate to hand over.
pub fn ask(gate: Gate<'_>) -> AskOutcome {
    // SeqCst: the drainer has written its number to `asked` before, and an owner that claims the
    // gate reads that number afterwards (see `pcp/asks.rs`).
    match gate.word.compare_exchange(gate.open, GATE_ASKED, ASKS.change(), ASKS.look()) {
        Ok(_) | Err(GATE_ASKED) => AskOutcome::Stands,
        Err(0 | GATE_DISABLED) => AskOutcome::Disabled,
        Err(_) => AskOutcome::Held,
    }
}

/// Opens a disabled gate, or has its drainer open it. `false`: it was not disabled.
pub fn enable(gate: Gate<'_>) -> bool {
    let open = |word| match word {
        GATE_DISABLED => Some(gate.open),
        ticket => is_disabled(ticket).then_some(ticket & !AFTER | OPEN_AFTER),
    };
    // AcqRel: Release pairs with the Acquire in every sequence, and keeps the empty words that the
    // disabler released.
    gate.word.fetch_update(Ordering::AcqRel, Ordering::Relaxed, open).is_ok()
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const OPEN: u64 = 256;

    /// Calls `test` with a gate that shows `state`.
    fn with_gate(state: u64, test: impl FnOnce(Gate<'_>, Caller)) {
        test(Gate { word: &AtomicU64::new(state), open: OPEN }, caller(1));
    }

    fn caller(name: usize) -> Caller {
        Caller::of(core::num::NonZeroUsize::new(name))
    }

    fn shown(gate: Gate<'_>) -> u64 {
        gate.word.load(Ordering::Relaxed)
    }

    #[test]
    fn a_drainer_leaves_the_state_it_found() {
        for state in [OPEN, GATE_DISABLED] {
            with_gate(state, |gate, caller| {
                for _ in 0..3 {
                    let closed = ClosedGate::close(gate, caller, OPEN_AFTER).unwrap();
                    assert!(![OPEN, GATE_DISABLED].contains(&shown(gate)));
                    assert_eq!(is_enabled(shown(gate)), state == OPEN);
                    assert_eq!(is_disabled(shown(gate)), state == GATE_DISABLED);
                    assert!(ClosedGate::close(gate, caller, OPEN_AFTER).is_none());
                    assert!(ClosedGate::close(gate, caller, DISABLED_AFTER).is_none());
                    drop(closed);
                    assert_eq!(shown(gate), state);
                }
            });
        }
    }

    /// Claims a gate like a sequence of its CPU.
    fn claim(gate: Gate<'_>) -> Option<ClosedGate<'_>> {
        ClosedGate::claim(gate, caller(1), |asked, held| {
            gate.word.compare_exchange(asked, held, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        })
    }

    #[test]
    fn an_asked_gate_is_claimed_by_its_owner_once() {
        with_gate(OPEN, |gate, caller| {
            assert!(claim(gate).is_none(), "it is open");
            assert_eq!([(); 2].map(|()| ask(gate)), [AskOutcome::Stands; 2]);
            assert!(is_asked(shown(gate)) && is_enabled(shown(gate)));
            assert!(!is_open(shown(gate)) && shown(gate) as u32 == 0);
            assert!(!enable(gate), "it was not disabled");
            let closed = claim(gate).unwrap();
            assert!(claim(gate).is_none() && ClosedGate::close(gate, caller, OPEN_AFTER).is_none());
            assert_eq!((ask(gate), is_enabled(shown(gate))), (AskOutcome::Held, true));
            drop(closed);
            assert_eq!(shown(gate), OPEN);
        });
    }

    #[test]
    fn a_drainer_takes_an_asked_gate_or_leaves_it_asked() {
        with_gate(OPEN, |gate, caller| {
            ask(gate);
            ClosedGate::close(gate, caller, OPEN_AFTER).unwrap().give_up();
            assert!(is_asked(shown(gate)));
            drop(ClosedGate::close(gate, caller, OPEN_AFTER).unwrap());
            assert_eq!(shown(gate), OPEN);
            ClosedGate::close(gate, caller, OPEN_AFTER).unwrap().give_up();
            assert_eq!(shown(gate), OPEN);
        });
    }

    #[test]
    fn an_asked_gate_that_is_disabled_stays_disabled() {
        with_gate(OPEN, |gate, caller| {
            ask(gate);
            ClosedGate::close(gate, caller, DISABLED_AFTER).unwrap().give_up();
            assert_eq!((shown(gate), ask(gate)), (GATE_DISABLED, AskOutcome::Disabled));
            assert!(claim(gate).is_none() && enable(gate));
            ask(gate);
            drop(ClosedGate::close(gate, caller, DISABLED_AFTER).unwrap());
            assert_eq!(shown(gate), GATE_DISABLED);
        });
    }

    #[test]
    fn a_ticket_names_the_caller_that_holds_the_gate() {
        for state in [OPEN, GATE_ASKED, GATE_DISABLED] {
            with_gate(state, |gate, own| {
                let others = [caller(2), Caller::NONE];
                let is_own = || {
                    assert!(others.iter().all(|&other| !is_held_by(shown(gate), other)));
                    is_held_by(shown(gate), own)
                };
                assert!(!is_own());
                let closed = ClosedGate::close(gate, own, OPEN_AFTER).unwrap();
                assert!(is_own() && shown(gate) as u32 == 0, "leads to words that refuse");
                if state == GATE_DISABLED {
                    assert!(enable(gate) && is_own());
                }
                drop(closed);
                assert!(!is_own());
                drop(ClosedGate::close(gate, Caller::NONE, DISABLED_AFTER));
                assert!(!is_own());
            });
        }
    }

    #[test]
    fn the_ticket_of_an_owner_names_it() {
        with_gate(GATE_ASKED, |gate, own| {
            let closed = claim(gate).unwrap();
            assert!(is_held_by(shown(gate), own) && !is_held_by(shown(gate), caller(2)));
            drop(closed);
            assert_eq!(shown(gate), OPEN);
        });
    }

    #[test]
    fn disabled_until_enabled() {
        with_gate(OPEN, |gate, caller| {
            assert!(!enable(gate));
            drop(ClosedGate::close(gate, caller, DISABLED_AFTER).unwrap());
            assert_eq!(shown(gate), GATE_DISABLED);
            assert!(enable(gate) && !enable(gate));
            assert_eq!(shown(gate), OPEN);
        });
    }

    #[test]
    fn what_is_enabled_in_the_middle_of_a_drain_is_enabled_after_it() {
        with_gate(GATE_DISABLED, |gate, caller| {
            let closed = ClosedGate::close(gate, caller, OPEN_AFTER).unwrap();
            assert!(enable(gate) && !enable(gate));
            assert_ne!(shown(gate), OPEN);
            drop(closed);
            assert_eq!(shown(gate), OPEN);
            let closed = ClosedGate::close(gate, caller, DISABLED_AFTER).unwrap();
            assert!(enable(gate));
            drop(closed);
            assert_eq!(shown(gate), OPEN);
        });
    }

    #[test]
    fn the_gate_of_a_dead_drainer_stays_closed() {
        with_gate(OPEN, |gate, caller| {
            std::mem::forget(ClosedGate::close(gate, caller, OPEN_AFTER).unwrap());
            let ticket = shown(gate);
            assert!(ClosedGate::close(gate, caller, OPEN_AFTER).is_none() && !enable(gate));
            assert_eq!(shown(gate), ticket);
        });
    }

    #[test]
    fn a_wiped_gate_is_neither_opened_nor_drained() {
        with_gate(OPEN, |gate, caller| {
            let closed = ClosedGate::close(gate, caller, OPEN_AFTER).unwrap();
            gate.word.store(0, Ordering::Relaxed);
            drop(closed);
            assert_eq!(shown(gate), 0);
            assert!(!enable(gate) && ClosedGate::close(gate, caller, OPEN_AFTER).is_none());
            assert!(claim(gate).is_none() && ask(gate) == AskOutcome::Disabled);
            assert!(!is_enabled(0));
        });
    }
}
