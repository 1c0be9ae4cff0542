//! A message that one writer replaces while readers read it, over cells that are read and written
//! one by one: a sequence lock.
//!
//! # Invariants
//! 1. The sequence number is odd from before the first cell of a message is written until after the
//!    last. One writer at a time writes.
//! 2. A reader that found the same even number before and after it read has read cells of one
//!    message. If it had read a cell of a later one, the fence behind its cells and the writer's
//!    fence in front of them would make it see the odd number, or a later one.
//!
//! The cells may be bytes of a file, read and written by system calls, which order less than one
//! might think: hence the fences.
//!
//! Explored by `tests/loom/board.rs`.

use crate::prim::{Ordering, fence};

/// Cells that hold a sequence number and a message.
pub(crate) trait Cells {
    /// What cannot be read or written.
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

/// Replaces the message. The caller is the only writer.
pub(crate) fn publish<C: Cells>(cells: &C, message: &C::Message) -> Result<(), C::Error> {
    // A message that was cut short, by an error, left an odd number.
    let sequence = cells.sequence()? & !1;
    cells.set_sequence(sequence.wrapping_add(1))?;
    // Release: pairs with the Acquire fence in `read` (invariant 2).
    fence(Ordering::Release);
    cells.write(message)?;
    // Release: pairs with the first fence of `read`: a reader that sees the even number sees the
    // cells.
    fence(Ordering::Release);
    cells.set_sequence(sequence.wrapping_add(2))
}

/// The message and its number; `None`: it is being written.
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
