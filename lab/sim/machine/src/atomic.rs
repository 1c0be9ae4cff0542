//! Atomics whose accesses the machine accounts for, of the layout of those of `core`.

use std::sync::atomic;
pub use std::sync::atomic::Ordering;
use std::sync::atomic::Ordering::SeqCst;

use crate::engine::access;
use crate::lines::Access::{Load, Rmw, Store};

macro_rules! simulated {
    ($($name:ident of $value:ty: $($fetch:ident)*;)*) => {$(
        #[doc = concat!("An `", stringify!($name), "` whose accesses cost simulated time.")]
        #[derive(Debug, Default)]
        #[repr(transparent)]
        pub struct $name(atomic::$name);

        #[allow(missing_docs, reason = "as the type of the same name in `core`")]
        impl $name {
            pub const fn new(value: $value) -> Self {
                Self(atomic::$name::new(value))
            }

            pub fn get_mut(&mut self) -> &mut $value {
                self.0.get_mut()
            }

            pub const fn as_ptr(&self) -> *mut $value {
                self.0.as_ptr()
            }

            #[inline]
            fn address(&self) -> usize {
                self.0.as_ptr().addr()
            }

            #[inline]
            #[track_caller]
            pub fn load(&self, _: Ordering) -> $value {
                access(self.address(), Load);
                self.0.load(SeqCst)
            }

            #[inline]
            #[track_caller]
            pub fn store(&self, value: $value, ordering: Ordering) {
                // On x86 a sequentially consistent store is an exchange.
                access(self.address(), if ordering == SeqCst { Rmw } else { Store });
                self.0.store(value, Ordering::Release);
            }

            /// Ends a restartable sequence by a store; `false`: it was aborted, and nothing was
            /// stored.
            #[inline]
            #[track_caller]
            pub fn commit(&self, value: $value) -> bool {
                let is_committed = crate::engine::commit(self.address(), Store);
                if is_committed {
                    self.0.store(value, Ordering::Release);
                }
                is_committed
            }

            /// Commits a store like [`commit`](Self::commit), by a compare-and-swap; `false` also
            /// when the value was not `old`.
            #[inline]
            #[track_caller]
            pub fn commit_exchange(&self, old: $value, new: $value) -> bool {
                crate::engine::commit(self.address(), Rmw)
                    && self.0.compare_exchange(old, new, SeqCst, SeqCst).is_ok()
            }

            #[inline]
            #[track_caller]
            pub fn swap(&self, value: $value, _: Ordering) -> $value {
                access(self.address(), Rmw);
                self.0.swap(value, SeqCst)
            }

            #[inline]
            #[track_caller]
            pub fn compare_exchange(
                &self,
                old: $value,
                new: $value,
                _: Ordering,
                _: Ordering,
            ) -> Result<$value, $value> {
                access(self.address(), Rmw);
                self.0.compare_exchange(old, new, SeqCst, SeqCst)
            }

            #[inline]
            #[track_caller]
            pub fn compare_exchange_weak(
                &self,
                old: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                self.compare_exchange(old, new, success, failure)
            }

            #[track_caller]
            pub fn fetch_update(
                &self,
                success: Ordering,
                failure: Ordering,
                mut change: impl FnMut($value) -> Option<$value>,
            ) -> Result<$value, $value> {
                let mut old = self.load(failure);
                while let Some(new) = change(old) {
                    match self.compare_exchange(old, new, success, failure) {
                        Ok(old) => return Ok(old),
                        Err(now) => old = now,
                    }
                }
                Err(old)
            }

            $(#[inline]
            #[track_caller]
            pub fn $fetch(&self, value: $value, _: Ordering) -> $value {
                access(self.address(), Rmw);
                self.0.$fetch(value, SeqCst)
            })*
        }
    )*};
}

simulated! {
    AtomicBool of bool: fetch_and fetch_or;
    AtomicU8 of u8: fetch_add fetch_sub fetch_and fetch_or fetch_max fetch_min;
    AtomicU32 of u32: fetch_add fetch_sub fetch_and fetch_or fetch_max fetch_min;
    AtomicU64 of u64: fetch_add fetch_sub fetch_and fetch_or fetch_max fetch_min;
    AtomicI64 of i64: fetch_add fetch_sub fetch_and fetch_or fetch_max fetch_min;
    AtomicUsize of usize: fetch_add fetch_sub fetch_and fetch_or fetch_max fetch_min;
}

impl AtomicU32 {
    /// Frees a lock whose word this is: hands it to the first in its queue, or stores 0.
    #[track_caller]
    pub fn unlock(&self) {
        if !crate::engine::hand_over(self.address()) {
            self.0.store(0, Ordering::Release);
        }
    }
}

/// A full barrier.
pub fn fence(_: Ordering) {
    crate::engine::barrier();
}
