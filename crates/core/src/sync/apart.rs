//! Values on cache lines of their own.

/// A value on cache lines of its own.
#[repr(C, align(128))]
pub struct Apart<T>(T);

impl<T> Apart<T> {
    pub fn new(value: T) -> Self {
        Apart(value)
    }
}

impl<T> core::ops::Deref for Apart<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}
