//! Records the call that allocated an area.
//!
//! This module has unsafe code: it turns the address of a `Location` back into a reference.
#![allow(unsafe_code)]

use core::panic::Location;

use pagedepot::sync::prim::{AtomicUsize, Ordering};

/// An optional `&'static Location<'static>` that is loaded and stored atomically.
#[repr(transparent)]
pub struct CallerCell(AtomicUsize);

impl CallerCell {
    /// An empty cell; its bytes are zero.
    pub fn new() -> Self {
        CallerCell(AtomicUsize::new(0))
    }

    #[inline]
    pub fn set(&self, caller: &'static Location<'static>) {
        // Release: pairs with the Acquire in `get`, see the argument on readers in `area.rs`. The
        // location itself is constant.
        self.0.store((caller as *const Location<'static>).expose_provenance(), Ordering::Release);
    }

    pub fn get(&self) -> Option<&'static Location<'static>> {
        // Acquire: pairs with the Release in `set`.
        let address = self.0.load(Ordering::Acquire);
        let location = core::ptr::with_exposed_provenance::<Location<'static>>(address);
        // SAFETY: the address is 0, or was stored by `set`, of a reference that is valid for ever.
        unsafe { location.as_ref() }
    }
}
