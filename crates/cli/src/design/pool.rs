//! Memory for allocators that manage what they are given.

use std::io;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use crate::failure::Failure;
use crate::harness::lock;

/// A mapping of zeroed pages, backed when first touched.
#[derive(Debug)]
pub struct Pool {
    start: NonNull<u8>,
    bytes: usize,
    mapped: NonNull<u8>,
    mapped_bytes: usize,
}

// SAFETY: the pool itself never accesses the memory; it only computes addresses.
unsafe impl Send for Pool {}
// SAFETY: as above.
unsafe impl Sync for Pool {}

impl Pool {
    /// `bytes` bytes at a multiple of `align`, a power of two.
    ///
    /// # Errors
    /// Without address space.
    pub fn new(bytes: usize, align: usize) -> Result<Self, Failure> {
        Self::reserve(bytes, align)
            .map_err(|e| Failure::Run(format!("cannot map {bytes} bytes: {e}; raise `ulimit -v`")))
    }

    /// Maps memory like [`new`](Self::new), for callers with an error message of their own.
    ///
    /// # Errors
    /// Without address space.
    pub fn reserve(bytes: usize, align: usize) -> io::Result<Self> {
        let mapped_bytes = bytes.checked_add(align).ok_or(io::ErrorKind::OutOfMemory)?;
        let (prot, flags) =
            (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::NORESERVE);
        // SAFETY: a new mapping, at an address of the kernel's choice.
        let mapped = unsafe { mmap_anonymous(std::ptr::null_mut(), mapped_bytes, prot, flags) }?;
        let mapped = NonNull::new(mapped.cast::<u8>()).expect("the kernel never maps address 0");
        // SAFETY: less than `align` further on, inside the mapping.
        let start = unsafe { mapped.add(mapped.align_offset(align)) };
        Ok(Pool { start, bytes, mapped, mapped_bytes })
    }

    /// The address `offset` bytes from the start.
    #[inline]
    pub fn at(&self, offset: usize) -> NonNull<u8> {
        debug_assert!(offset < self.bytes);
        // SAFETY: inside the mapping: allocators hand out only offsets that they manage.
        unsafe { self.start.add(offset) }
    }

    /// Asks the kernel for base pages only. A kernel without huge pages refuses the advice, and has
    /// nothing else.
    pub fn use_base_pages(&self) {
        // SAFETY: the mapping is ours; the advice changes no contents.
        let _ = unsafe {
            madvise(self.mapped.as_ptr().cast(), self.mapped_bytes, Advice::LinuxNoHugepage)
        };
    }

    /// The start's address, exposed: pointers may be made from the number.
    pub fn address(&self) -> usize {
        self.start.as_ptr().expose_provenance()
    }

    /// Size in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

/// One piece of memory for all contenders that are measured in turn and keep their metadata
/// elsewhere. Which physical pages the kernel found changes the time of touching them by more than
/// most designs differ.
#[derive(Clone, Debug, Default)]
pub struct SharedPool(Arc<Mutex<Option<Arc<Pool>>>>);

impl SharedPool {
    /// A mapping of at least `bytes` bytes at a multiple of `align`: the same each time, unless
    /// more is asked for.
    ///
    /// # Errors
    /// Fails like [`Pool::new`].
    pub fn pool(&self, bytes: usize, align: usize) -> Result<Arc<Pool>, Failure> {
        let mut shared = lock(&self.0);
        if let Some(pool) = &*shared
            && pool.bytes >= bytes
            && pool.start.as_ptr().addr().is_multiple_of(align)
        {
            return Ok(pool.clone());
        }
        let pool = Arc::new(Pool::new(bytes, align)?);
        *shared = Some(pool.clone());
        Ok(pool)
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`. An error would leave the mapping, which does no harm.
        let _ = unsafe { munmap(self.mapped.as_ptr().cast(), self.mapped_bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_shared_unless_it_is_too_small() {
        let shared = SharedPool::default();
        let pool = |bytes| shared.clone().pool(bytes, 1 << 20).unwrap().at(0);
        let small = pool(1 << 16);
        assert_eq!(pool(1 << 12), small);
        let large = pool(1 << 24);
        assert_ne!(large, small);
        assert_eq!(pool(1 << 16), large);
        assert!(large.addr().get().is_multiple_of(1 << 20));
    }
}
