//! Primitives for state that several CPUs share: atomics, stacks, counters, pages in flight.
//!
//! **Exempt from semantic versioning**: names and signatures here change with any version. Crates
//! of this repository depend on exactly this version; embedders take atomics from `core`.
//!
//! | module | what |
//! |---|---|
//! | [`prim`] | the primitives: production's, or a model checker's |
//! | [`model`] | what models change: sizes, and steps that they leave out |
//! | [`total`] | accesses whose sequential consistency an argument needs |
//! | [`stack`] | stacks that any thread may push to and take whole |
//! | `in_flight` | pages on their way between layers, and callers, as words name them |
//! | `late_init` | how a value that is made later is published |
//! | `counts!`, `copied!` | structs of counts, and of references, which `derive` makes no good ones of |
//! | `processor` | values on cache lines of their own, hints to fetch lines, counters, waiting without sleep |

mod in_flight;
pub(crate) mod late_init;
pub mod model;
pub mod prim;
mod processor;
pub mod stack;
pub mod total;

pub use in_flight::{Caller, InFlight, InFlightGuard};
pub use processor::{CachePadded, count, count_here, prefetch_write, spin_while};

/// Declares counts, which can be added up, and after `of` the cells that they are read from.
macro_rules! counts {
    ($(#[$doc:meta])* $counts:ident { $($(#[$about:meta])* $name:ident),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct $counts {
            $($(#[$about])* pub $name: u64,)*
        }

        impl core::ops::AddAssign for $counts {
            fn add_assign(&mut self, other: Self) {
                $(self.$name += other.$name;)*
            }
        }
    };
    (
        $(#[$doc:meta])* $counts:ident of $cells:ident
        { $($(#[$about:meta])* $name:ident),* $(,)? }
    ) => {
        $crate::sync::counts! { $(#[$doc])* $counts { $($(#[$about])* $name),* } }

        impl $counts {
            /// Each count with the name of its field, in the order of the fields.
            pub fn named(&self) -> impl Iterator<Item = (&'static str, u64)> + use<> {
                [$((stringify!($name), self.$name),)*].into_iter()
            }
        }

        #[doc = concat!("The cells behind [`", stringify!($counts), "`]. Relaxed: statistics.")]
        #[derive(Default)]
        #[repr(C)]
        pub struct $cells {
            $(pub $name: $crate::sync::prim::AtomicU64,)*
        }

        #[allow(dead_code, reason = "each type has what any of them needs")]
        impl $cells {
            pub fn add(&self, more: $counts) {
                $(if more.$name > 0 { $crate::sync::count(&self.$name, more.$name); })*
            }

            pub fn read(&self) -> $counts {
                $counts { $($name: self.$name.load($crate::sync::prim::Ordering::Relaxed),)* }
            }
        }
    };
}
pub(crate) use counts;

/// Makes a struct of references copied, whatever its last parameter is: `derive` would ask for that
/// to be `Copy`.
macro_rules! copied {
    ($name:ident<$($lifetime:lifetime,)* _>) => {
        impl<C> Clone for $name<$($lifetime,)* C> {
            fn clone(&self) -> Self {
                *self
            }
        }

        impl<C> Copy for $name<$($lifetime,)* C> {}
    };
}
pub(crate) use copied;
