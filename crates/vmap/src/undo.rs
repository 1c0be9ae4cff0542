//! Undoing a part of a request that an error or a panic ends.
//!
//! The host's methods that allocate and free frames, and [`Host::purge_wanted`], may run code of
//! the embedder that panics: a reclaim callback, or the report of a frame that was freed twice.
//! Such a panic goes through to the caller of the request. What the request held until then is
//! given back on the way, as after an error, and the rest of a purge's batch is handed on. A second
//! panic on that way aborts.
//!
//! [`Host::purge_wanted`]: crate::Host::purge_wanted

/// Calls the function when it is dropped, unless [`forget`](Self::forget) comes first.
pub struct Undo<F: FnMut()>(pub F);

impl<F: FnMut()> Undo<F> {
    /// Nothing is to be undone.
    pub fn forget(self) {
        core::mem::forget(self);
    }
}

impl<F: FnMut()> Drop for Undo<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}
