//! A thread-local vector: as fast as frames can be had without any sharing at all. It knows nothing
//! of CPUs, and only the thread itself can get its frames back.

use std::cell::UnsafeCell;
use std::mem;

use super::allocator::Allocator;
use super::demand::Demand;
use super::floor_spin;
use crate::failure::Failure;
use crate::names::Design;

thread_local! {
    /// The thread's vector, without a destructor, so that access is one load relative to the thread
    /// pointer.
    static FRAMES: UnsafeCell<mem::ManuallyDrop<Vec<u32>>> =
        const { UnsafeCell::new(mem::ManuallyDrop::new(Vec::new())) };
}

/// A thread-local array without limits.
pub struct FloorTls {
    capacity: usize,
}

impl FloorTls {
    #[inline]
    fn with<T>(&self, f: impl FnOnce(&mut Vec<u32>) -> T) -> T {
        // SAFETY: the reference lives for the call of `f` only, and no `f` here calls `with`.
        FRAMES.with(|frames| f(unsafe { &mut *frames.get() }))
    }
}

impl Allocator for FloorTls {
    const DESIGN: Design = Design::FloorTls;
    type Block = u32;

    fn new(demand: &Demand) -> Result<Self, Failure> {
        Ok(FloorTls { capacity: floor_spin::capacity(demand) })
    }

    fn enter(&self) {
        self.with(|frames| floor_spin::fill(frames, self.capacity));
    }

    fn leave(&self) {
        self.with(|frames| drop(mem::take(frames)));
    }

    #[inline]
    fn alloc<const ORDER: u32>(&self) -> Option<u32> {
        self.with(|frames| frames.pop().or_else(|| floor_spin::refill(frames)))
    }

    #[inline]
    fn free<const ORDER: u32>(&self, block: u32) {
        self.with(|frames| {
            if frames.len() == frames.capacity() {
                floor_spin::forget(frames);
            }
            frames.push(block);
        });
    }
}
