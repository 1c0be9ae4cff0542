//! Channels that a stream's buffers go through.

use pagedepot::Pfn;

use pagedepot_cli::failure::Failure;
use pagedepot_cli::harness::ring::Ring;

/// The memory of a buffer, or the part of it that a message fills.
pub type Words = *mut [u64];

/// A channel that takes buffers from a sender to a receiver, in order, each once.
pub trait Channel: Send + Sync + Sized + 'static {
    /// Whether what was written is copied to the receiver, which then needs a buffer of its own.
    const COPIES: bool;

    /// Sends messages: their buffers, numbers, and what was written, where word 0 is the buffer's
    /// and word 1 the message's number. Only one thread at a time.
    fn send(&self, messages: u64, next: impl FnMut() -> (Pfn, u64, Words));

    /// Receives messages: their buffers and numbers. Copies go to `own`, if the channel makes any.
    /// Only one thread at a time.
    fn receive(&self, messages: u64, own: Words, take: impl FnMut(Pfn, u64));
}

/// Buffers that one side moves before it tells the other.
const PUBLISHED_AT_ONCE: u32 = 32;

/// Buffers' numbers through a ring in memory: the receiver reads the buffers themselves.
pub struct Through(Ring<(Pfn, u64)>);

impl Through {
    /// A ring of so many buffers, a power of two.
    ///
    /// # Errors
    /// None.
    pub fn new(in_flight: u32) -> Result<Self, Failure> {
        Ok(Through(Ring::new(in_flight, PUBLISHED_AT_ONCE)))
    }
}

impl Channel for Through {
    const COPIES: bool = false;

    fn send(&self, messages: u64, mut next: impl FnMut() -> (Pfn, u64, Words)) {
        self.0.produce(messages, || {
            let (buffer, number, _) = next();
            (buffer, number)
        });
    }

    fn receive(&self, messages: u64, _own: Words, mut take: impl FnMut(Pfn, u64)) {
        self.0.consume(messages, |(buffer, number)| take(buffer, number));
    }
}
