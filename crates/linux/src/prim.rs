//! The seam for the atomics of what a model checker explores: `std` in production, `loom` under
//! `--cfg loom`. Then this crate is empty, and `tests/loom_pieces.rs` takes in the real modules.

#[cfg(not(loom))]
pub use std::sync::atomic::{AtomicU64, Ordering};

#[cfg(loom)]
pub use loom::sync::atomic::{AtomicU64, Ordering};

use rustix::io::Errno;

/// Words, zero at first; in production untouched parts take no memory.
#[cfg(not(loom))]
pub struct Words(crate::memory::Mapping);

#[cfg(not(loom))]
impl Words {
    pub fn new(count: usize) -> Result<Self, Errno> {
        crate::memory::Mapping::anonymous(count * size_of::<AtomicU64>()).map(Words)
    }

    pub fn get(&self, index: usize) -> &AtomicU64 {
        assert!(index < self.0.bytes() / size_of::<AtomicU64>());
        // SAFETY: inside the mapping, which is aligned to pages, zero at first, and reached as
        // atomic words alone.
        unsafe { &*self.0.start().as_ptr().cast::<AtomicU64>().add(index) }
    }
}

#[cfg(loom)]
pub struct Words(Vec<AtomicU64>);

#[cfg(loom)]
impl Words {
    pub fn new(count: usize) -> Result<Self, Errno> {
        Ok(Words((0..count).map(|_| AtomicU64::new(0)).collect()))
    }

    pub fn get(&self, index: usize) -> &AtomicU64 {
        &self.0[index]
    }
}

/// Whether `Pieces::unmap` looks before it clears, which a model must notice.
#[inline(always)]
pub fn looks_first() -> bool {
    #[cfg(loom)]
    return crate::LOOKS_FIRST.get();
    #[cfg(not(loom))]
    false
}
