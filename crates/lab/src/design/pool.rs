//! Memory for allocators that manage what they are given.

use std::ptr::NonNull;

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use crate::failure::Failure;

/// A mapping of zeroed pages, backed when first touched.
pub struct Pool {
    start: NonNull<u8>,
    bytes: usize,
    mapped: NonNull<u8>,
    mapped_bytes: usize,
}

// SAFETY: an address range; what is done with it is up to its holder.
unsafe impl Send for Pool {}
// SAFETY: as above.
unsafe impl Sync for Pool {}

impl Pool {
    /// `bytes` bytes at a multiple of `align`, a power of two.
    ///
    /// # Errors
    /// Without address space.
    pub fn new(bytes: usize, align: usize) -> Result<Self, Failure> {
        let mapped_bytes = bytes + align;
        let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::NORESERVE);
        // SAFETY: a new mapping, at an address of the kernel's choice.
        let mapped = unsafe { mmap_anonymous(std::ptr::null_mut(), mapped_bytes, prot, flags) };
        let mapped =
            mapped.map_err(|e| Failure::Run(format!("cannot map {bytes} bytes: {e}; raise `ulimit -v`")))?;
        let mapped = NonNull::new(mapped.cast::<u8>()).expect("the kernel never maps address 0");
        // SAFETY: less than `align` further on, inside the mapping.
        let start = unsafe { mapped.add(mapped.align_offset(align)) };
        Ok(Pool { start, bytes, mapped, mapped_bytes })
    }

    /// The place `offset` bytes on.
    #[inline]
    pub fn at(&self, offset: usize) -> NonNull<u8> {
        debug_assert!(offset < self.bytes);
        // SAFETY: inside the mapping, as allocators that manage it see to.
        unsafe { self.start.add(offset) }
    }

    /// Its address; anybody may make pointers to it from the number.
    #[cfg(feature = "peers")]
    pub fn address(&self) -> usize {
        self.start.as_ptr().expose_provenance()
    }

    /// Its size.
    #[cfg(feature = "peers")]
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`. An error would leave the mapping, which does no harm.
        let _ = unsafe { munmap(self.mapped.as_ptr().cast(), self.mapped_bytes) };
    }
}
