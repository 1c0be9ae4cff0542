//! A message that one writer replaces while readers read it, over cells that are read and written
//! one by one: a sequence lock.
//!
//! # Invariants
//! 1. The sequence number is odd from before a message is made until after its last cell is
//!    written. One writer at a time writes.
//! 2. A reader that found the same even number before and after it read has read cells of one
//!    message. If it had read a cell of a later one, the fence behind its cells and the writer's
//!    fence in front of them would make it see the odd number, or a later one.
//! 3. A message with a higher number than [`begun`] returned shows what the caller did before that.
//!    The caller's fence is in front of its look at the number, the writer's behind the odd number.
//!    If the caller did not see that one, its fence came first, and the writer sees what it did.
//!
//! The cells may be bytes of a file, read and written by system calls, which order less than one
//! might think: hence the fences.
//!
//! Explored by `tests/loom/board.rs`.

use crate::system::prim::{Ordering, fence};

/// Cells that hold a sequence number and a message.
pub(crate) trait Cells {
    /// The error of a read or write.
    type Error;
    /// A message.
    type Message;

    /// The sequence number.
    fn sequence(&self) -> Result<u64, Self::Error>;

    /// Sets the sequence number.
    fn set_sequence(&self, to: u64) -> Result<(), Self::Error>;

    /// Reads a message, which may be of several moments.
    fn read(&self) -> Result<Self::Message, Self::Error>;

    /// Writes a message.
    fn write(&self, message: &Self::Message) -> Result<(), Self::Error>;
}

/// Replaces the message by one that is made now. The caller is the only writer.
pub(crate) fn publish<C: Cells>(
    cells: &C,
    make: impl FnOnce() -> Result<C::Message, C::Error>,
) -> Result<(), C::Error> {
    // A message that was cut short, by an error, left an odd number.
    let odd = cells.sequence()?.wrapping_add(1) | 1;
    cells.set_sequence(odd)?;
    // Release: pairs with the Acquire fence in `read` (invariant 2). SeqCst: with that in `begun`
    // (invariant 3).
    fence(Ordering::SeqCst);
    cells.write(&make()?)?;
    // Release: pairs with the first fence of `read`: a reader that sees the even number sees the
    // cells.
    fence(Ordering::Release);
    cells.set_sequence(odd.wrapping_add(1))
}

/// The number of the last message that was begun. What the caller has done is in all later ones.
pub(crate) fn begun<C: Cells>(cells: &C) -> Result<u64, C::Error> {
    // SeqCst: pairs with that in `publish`.
    fence(Ordering::SeqCst);
    Ok(cells.sequence()?.wrapping_add(1) & !1)
}

/// The message and its number; `None`: one is being made or written.
pub(crate) fn read<C: Cells>(cells: &C) -> Result<Option<(u64, C::Message)>, C::Error> {
    let before = cells.sequence()?;
    if before & 1 == 1 {
        return Ok(None);
    }
    // Acquire: pairs with the second Release fence in `publish`.
    fence(Ordering::Acquire);
    let message = cells.read();
    // Acquire: pairs with the first Release fence in `publish`.
    fence(Ordering::Acquire);
    if cells.sequence()? != before {
        return Ok(None);
    }
    Ok(Some((before, message?)))
}
