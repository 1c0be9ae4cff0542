//! Binding memory to NUMA nodes.

use std::ptr::NonNull;

use pagedepot::NodeId;
use rustix::io::Errno;

use crate::system::sync::OnceValue;
use crate::system::topology::Topology;

/// Binds pages that are not present yet to a node. They come from that node, or the access fails
/// for lack of memory.
pub(crate) fn bind(start: NonNull<u8>, bytes: usize, node: NodeId) -> Result<(), Errno> {
    set_policy(start, bytes, node, libc::MPOL_BIND, 0)
}

/// `MPOL_MF_MOVE` of `linux/mempolicy.h`.
const MOVE: u32 = 1 << 1;

/// Moves pages to a node, and takes later pages from it, as far as the node has room. If the kernel
/// refuses, the memory is only farther away.
pub(crate) fn prefer(start: NonNull<u8>, bytes: usize, node: NodeId) {
    _ = set_policy(start, bytes, node, libc::MPOL_PREFERRED, MOVE);
}

fn set_policy(
    start: NonNull<u8>,
    bytes: usize,
    node: NodeId,
    policy: i32,
    flags: u32,
) -> Result<(), Errno> {
    let mut mask = vec![0u64; node.index() / 64 + 1];
    mask[node.index() / 64] = 1 << (node.get() % 64);
    // The kernel reads one bit less than this count.
    let bits = mask.len() * 64 + 1;
    // SAFETY: sets the policy of our own range. The mask has as many bits as the count says. libc
    // and rustix have no wrapper.
    let result = unsafe {
        libc::syscall(libc::SYS_mbind, start.as_ptr(), bytes, policy, mask.as_ptr(), bits, flags)
    };
    if result == 0 { Ok(()) } else { Err(last_errno()) }
}

/// The error of the last call to the C library.
pub(crate) fn last_errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

/// The machine as it was at the first call.
fn machine() -> &'static Topology {
    static MACHINE: OnceValue<Topology> = OnceValue::new();
    MACHINE.get_or_make(Topology::read)
}

/// The distance between two nodes, as a plain function for [`pagedepot::Config::distance`].
pub(crate) fn distance(from: NodeId, to: NodeId) -> u32 {
    machine().distance(from, to)
}
