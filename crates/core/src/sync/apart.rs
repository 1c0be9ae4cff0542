//! Values on cache lines of their own.

/// A value on cache lines of its own.
#[repr(C, align(128))]
pub struct CachePadded<T>(T);

impl<T> CachePadded<T> {
    pub fn new(value: T) -> Self {
        CachePadded(value)
    }
}

impl<T> core::ops::Deref for CachePadded<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}
