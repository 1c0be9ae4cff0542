//! The common part of `ring-stream` and `netperf`: buffers of order 3 that a sender fills and a
//! receiver on another CPU reads and frees, as the kernel's socket buffers are on one machine.
//!
//! On one machine the thread "netperf -18.0% regression" (2022) saw UDP_STREAM lose 18 % and
//! SCTP_STREAM_MANY gain 13 % by the same change of what a CPU may cache that only frees high
//! orders. So the size of caches alone does not decide; [`reuse`] counts how pages came back.

mod channel;
mod measure;
mod reuse;
mod sockets;
mod stream;

pub use self::measure::{Case, Exchange, Through, policies, report};
pub use self::sockets::IN_FLIGHT;
pub use self::stream::Shape;

/// Messages of netperf's tests, in bytes: 16 KiB of one stream, and the 10 KiB that the thread's
/// test of many associations sent.
pub const UDP_BYTES: u32 = 16 << 10;
pub const SCTP_BYTES: u32 = 10 << 10;

/// Streams of the thread's test of many associations: one for each four CPUs.
pub fn sctp_streams(cpus: usize) -> u32 {
    (cpus as u32 / 4).max(1)
}
