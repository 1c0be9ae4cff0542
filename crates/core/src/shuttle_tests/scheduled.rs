//! Atomics of the standard library, with a point before each access where shuttle may run another
//! thread: `sync::prim` under shuttle.
//!
//! Shuttle's own atomics would order accesses alike (all sequentially consistent), but they are
//! larger than integers and not made of zero bytes: the metadata would have another layout.

use core::sync::atomic;
pub use core::sync::atomic::Ordering;
use core::sync::atomic::Ordering::SeqCst;

/// Lets another thread run. Shuttle has no clock: sleeping is a switch, and no more. (A yield
/// would also tell a PCT scheduler to prefer every other thread.)
fn point() {
    shuttle::thread::sleep(core::time::Duration::ZERO);
}

macro_rules! scheduled {
    ($($name:ident of $value:ty: $($fetch:ident)*;)*) => {$(
        #[doc = concat!(
            "An `", stringify!($name), "` with a scheduling point before each access."
        )]
        #[derive(Debug, Default)]
        #[repr(transparent)]
        pub struct $name(atomic::$name);

        #[allow(dead_code, reason = "each type has what any of them needs")]
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

            pub fn load(&self, _: Ordering) -> $value {
                point();
                self.0.load(SeqCst)
            }

            pub fn store(&self, value: $value, _: Ordering) {
                point();
                self.0.store(value, SeqCst);
            }

            pub fn swap(&self, value: $value, _: Ordering) -> $value {
                point();
                self.0.swap(value, SeqCst)
            }

            pub fn compare_exchange(
                &self,
                old: $value,
                new: $value,
                _: Ordering,
                _: Ordering,
            ) -> Result<$value, $value> {
                point();
                self.0.compare_exchange(old, new, SeqCst, SeqCst)
            }

            pub fn compare_exchange_weak(
                &self,
                old: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                self.compare_exchange(old, new, success, failure)
            }

            pub fn fetch_update(
                &self,
                success: Ordering,
                failure: Ordering,
                mut change: impl FnMut($value) -> Option<$value>,
            ) -> Result<$value, $value> {
                // A load and an exchange, with a point between them.
                let mut old = self.load(failure);
                while let Some(new) = change(old) {
                    match self.compare_exchange(old, new, success, failure) {
                        Ok(old) => return Ok(old),
                        Err(now) => old = now,
                    }
                }
                Err(old)
            }

            $(pub fn $fetch(&self, value: $value, _: Ordering) -> $value {
                point();
                self.0.$fetch(value, SeqCst)
            })*
        }
    )*};
}

scheduled! {
    AtomicBool of bool: fetch_and fetch_or;
    AtomicU8 of u8: fetch_add fetch_sub fetch_and fetch_or fetch_max fetch_min;
    AtomicU32 of u32: fetch_add fetch_sub fetch_and fetch_or fetch_max fetch_min;
    AtomicU64 of u64: fetch_add fetch_sub fetch_and fetch_or fetch_max fetch_min;
    AtomicI64 of i64: fetch_add fetch_sub fetch_and fetch_or fetch_max fetch_min;
    AtomicUsize of usize: fetch_add fetch_sub fetch_and fetch_or fetch_max fetch_min;
}
