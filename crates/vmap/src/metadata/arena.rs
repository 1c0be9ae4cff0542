//! Arrays in the caller's memory.
//!
//! This module has unsafe code: it is the only one that makes references out of that memory.
#![allow(unsafe_code)]

use core::marker::PhantomData;
use core::mem::MaybeUninit;

use crate::metadata::area::Area;
use crate::model;
use pagedepot::sync::prim::{AtomicU8, AtomicU32};

/// Alignment of each array: two cache lines, which prefetchers treat as one.
pub const ALIGN: usize = 128;

/// Types whose constructor makes a value of zero bytes.
///
/// # Safety
/// Where [`model::ATOMICS_ARE_INTEGERS`], zero bytes are a valid value of the type.
pub unsafe trait Zero {}
// SAFETY: all fields are integers, or atomics of the same layout; padding may be anything.
unsafe impl Zero for Area {}
// SAFETY: it has the layout of an integer.
unsafe impl Zero for AtomicU32 {}
// SAFETY: as above.
unsafe impl Zero for AtomicU8 {}

/// The caller's memory, cut from the front.
pub struct Arena<'m> {
    next: *mut u8,
    left: usize,
    /// Arrays whose initial value is zero are not touched before their use.
    is_zero: bool,
    memory: PhantomData<&'m mut [u8]>,
}

impl<'m> Arena<'m> {
    /// `is_zero`: every byte of `memory` is 0.
    pub fn new(memory: &'m mut [MaybeUninit<u8>], is_zero: bool) -> Self {
        Arena {
            next: memory.as_mut_ptr().cast(),
            left: memory.len(),
            is_zero: is_zero && model::ATOMICS_ARE_INTEGERS,
            memory: PhantomData,
        }
    }

    /// Cuts off room for `count` values; `None`: too little memory is left.
    fn room<T>(&mut self, count: usize) -> Option<*mut T> {
        const { assert!(align_of::<T>() <= ALIGN) };
        let skip = self.next.align_offset(ALIGN);
        let bytes = count.checked_mul(size_of::<T>())?.checked_add(skip)?;
        self.left = self.left.checked_sub(bytes)?;
        let room = self.next.wrapping_add(skip);
        self.next = self.next.wrapping_add(bytes);
        Some(room.cast())
    }

    /// An array of `count` values that `make` returns.
    pub fn slice<T>(&mut self, count: usize, make: impl Fn() -> T) -> Option<&'m [T]> {
        let room = self.room::<T>(count)?;
        for i in 0..count {
            // SAFETY: `room` has space for `count` values, aligned, in memory that is borrowed
            // mutably for 'm and that no other array has.
            unsafe { room.add(i).write(make()) };
        }
        // SAFETY: the loop has written all `count` values; from here on only this slice accesses
        // them.
        Some(unsafe { core::slice::from_raw_parts(room, count) })
    }

    /// One value.
    pub fn one<T>(&mut self, value: T) -> Option<&'m T> {
        let room = self.room::<T>(1)?;
        // SAFETY: as in `slice`.
        unsafe {
            room.write(value);
            Some(&*room)
        }
    }

    /// An array of `count` values of zero bytes, which `make` returns, too. Writes nothing to
    /// memory that is zero.
    pub fn slice_zero<T: Zero>(&mut self, count: usize, make: impl Fn() -> T) -> Option<&'m [T]> {
        if !self.is_zero {
            return self.slice(count, make);
        }
        let room = self.room::<T>(count)?;
        // SAFETY: as in `slice`; the bytes are zero, which is a valid value of T.
        Some(unsafe { core::slice::from_raw_parts(room, count) })
    }
}
