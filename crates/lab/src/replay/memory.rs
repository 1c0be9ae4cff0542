//! Memory for a replay: the allocator's metadata, and behind them addresses for all frames.
//!
//! Frames get memory only when they are written to, and nobody does that except the allocator, for
//! magazines beyond those that its metadata include. It finds these by their distance from the
//! others, so the frames lie right behind the metadata.

use std::io;
use std::mem::MaybeUninit;

use pagedepot::LinearMap;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

const FRAME_BYTES: usize = 4096;

/// A mapping; given back when dropped.
pub struct Memory {
    base: *mut MaybeUninit<u8>,
    metadata_bytes: usize,
    bytes: usize,
}

impl Memory {
    /// Memory for metadata of `metadata_bytes`, and addresses for `frames` frames.
    ///
    /// # Errors
    /// When the system does not give out so many addresses.
    pub fn reserve(metadata_bytes: usize, frames: u32) -> io::Result<Self> {
        let metadata_bytes = metadata_bytes.next_multiple_of(FRAME_BYTES);
        let frames_bytes = (frames as usize).checked_mul(FRAME_BYTES);
        let bytes = frames_bytes.and_then(|frames| frames.checked_add(metadata_bytes));
        let bytes = bytes.ok_or(io::ErrorKind::OutOfMemory)?;
        let (prot, flags) =
            (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::NORESERVE);
        // SAFETY: a new mapping, where the kernel likes, replaces nothing.
        let base = unsafe { mmap_anonymous(std::ptr::null_mut(), bytes, prot, flags) }?;
        Ok(Memory { base: base.cast(), metadata_bytes, bytes })
    }

    /// The memory for the metadata, and the frames, of which number 0 is the first.
    pub fn split(&mut self) -> (&mut [MaybeUninit<u8>], LinearMap) {
        let frames = self.base.wrapping_add(self.metadata_bytes).expose_provenance();
        // SAFETY: mapped until `self` is dropped, and borrowed from it until the metadata is given
        // up.
        let metadata = unsafe { std::slice::from_raw_parts_mut(self.base, self.metadata_bytes) };
        // SAFETY: the frames are mapped as long, behind the metadata, and those who get them from
        // the allocator do not use them.
        (metadata, unsafe { LinearMap::new(frames) })
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's, and nobody borrows from it any more. Failure leaves
        // it in place, which does no harm.
        let _ = unsafe { munmap(self.base.cast(), self.bytes) };
    }
}
