//! The one dispatch: from a design's name to its type.
//!
//! Macros, so that the code that uses a type is compiled for each of them, and is checked against
//! what the designs in question offer. The names that they define inside are not hygienic, so they
//! are long.

/// Evaluates `$use` with `$cache` being the type of the thread's design `$design` over the store
/// that `$store` names, held as `$held<Buddy>` or `$held<Bitmap>`; `$else` for other designs.
macro_rules! by_thread_design {
    ($design:expr, $store:expr, $held:ident, type $cache:ident => $use:expr, _ => $else:expr) => {{
        match ($design, $store) {
            ($crate::names::Design::ZoneLock, _) => {
                type $cache = ::pagedepot_designs::ZoneLock<$held<::pagedepot_designs::Buddy>>;
                $use
            }
            ($crate::names::Design::Local, _) => {
                type $cache = ::pagedepot_designs::Local<$held<::pagedepot_designs::Buddy>>;
                $use
            }
            ($crate::names::Design::NohzConditional, _) => {
                type $cache =
                    ::pagedepot_designs::NohzConditional<$held<::pagedepot_designs::Buddy>>;
                $use
            }
            ($crate::names::Design::Spin, $crate::design::variant::Store::Buddy) => {
                type $cache = ::pagedepot_designs::Spin<$held<::pagedepot_designs::Buddy>>;
                $use
            }
            ($crate::names::Design::Spin, $crate::design::variant::Store::Bitmap) => {
                type $cache = ::pagedepot_designs::Spin<$held<::pagedepot_designs::Bitmap>>;
                $use
            }
            ($crate::names::Design::Qpw, _) => {
                type $cache = ::pagedepot_designs::Qpw<$held<::pagedepot_designs::Buddy>>;
                $use
            }
            ($crate::names::Design::PcpBuddy, _) => {
                type $cache = ::pagedepot_designs::PcpBuddy<$held<::pagedepot_designs::Buddy>>;
                $use
            }
            ($crate::names::Design::Rcu, _) => {
                type $cache = ::pagedepot_designs::Rcu<$held<::pagedepot_designs::Buddy>>;
                $use
            }
            ($crate::names::Design::Magazine, _) => {
                type $cache = ::pagedepot_designs::Magazine<$held<::pagedepot_designs::Buddy>>;
                $use
            }
            _ => $else,
        }
    }};
}

/// Evaluates `$use` with `$allocator` being the type that implements
/// [`Allocator`](super::Allocator) for `$design`: of [`Design::BLOCKS`] and `depot-uncached`
/// (`any`) or of [`Design::PAGED`] (`paged`). `$else` for other designs.
macro_rules! by_allocator {
    (any $design:expr, $store:expr, type $allocator:ident => $use:expr, _ => $else:expr) => {{
        match $design {
            $crate::names::Design::FloorTls => {
                type $allocator = $crate::design::floor_tls::FloorTls;
                $use
            }
            $crate::names::Design::FloorRseq => {
                type $allocator = $crate::design::floor_rseq::FloorRseq;
                $use
            }
            $crate::names::Design::FloorSpin => {
                type $allocator = $crate::design::floor_spin::FloorSpin;
                $use
            }
            $crate::names::Design::DepotUncached => {
                type $allocator = $crate::design::depot::DepotAllocator<false>;
                $use
            }
            $crate::names::Design::DepotStill => {
                type $allocator = $crate::design::depot::DepotAllocator<true, false>;
                $use
            }
            #[cfg(feature = "peers")]
            $crate::names::Design::FrameAlloc => {
                type $allocator = $crate::design::frame_alloc::FrameAlloc;
                $use
            }
            #[cfg(feature = "peers")]
            $crate::names::Design::Mimalloc => {
                type $allocator = $crate::design::malloc::Mimalloc;
                $use
            }
            #[cfg(feature = "peers")]
            $crate::names::Design::MimallocPprof => {
                type $allocator = $crate::design::mimalloc_pprof::MimallocPprof;
                $use
            }
            #[cfg(feature = "peers")]
            $crate::names::Design::Jemalloc => {
                type $allocator = $crate::design::malloc::Jemalloc;
                $use
            }
            #[cfg(feature = "peers")]
            $crate::names::Design::Snmalloc => {
                type $allocator = $crate::design::malloc::Snmalloc;
                $use
            }
            design => $crate::design::dispatch::by_allocator!(
                paged design, $store, type $allocator => $use, _ => $else
            ),
        }
    }};
    (paged $design:expr, $store:expr, type $allocator:ident => $use:expr, _ => $else:expr) => {{
        use $crate::design::dispatch::OwnStore;
        match $design {
            $crate::names::Design::Depot => {
                type $allocator = $crate::design::depot::DepotAllocator;
                $use
            }
            design => $crate::design::dispatch::by_thread_design!(
                design, $store, OwnStore, type WithDesignCache => {
                    use $crate::design::page_cache::ProposalAllocator;
                    type $allocator = ProposalAllocator<WithDesignCache>;
                    $use
                }, _ => $else
            ),
        }
    }};
}

/// Makes the allocator of a design for a demand, and evaluates an expression with it:
///
/// ```text
/// with_design!(any design, &demand, |allocator| -> Type { ... })       // of `Design::BLOCKS`
/// with_design!(paged design, &demand, |allocator| -> Type { ... })     // of `Design::PAGED`
/// ```
///
/// The result is an error when the design cannot run here, is of another kind, or cannot be made.
/// `paged` allocators have frame numbers for blocks.
macro_rules! with_design {
    ($kind:ident $design:expr, $demand:expr, |$allocator:pat_param| -> $type:ty $use:block) => {{
        use $crate::design::dispatch;
        let (design, demand): ($crate::names::Design, &$crate::design::Demand) =
            ($design, $demand);
        dispatch::possible(design, demand).and_then(|()| {
            dispatch::by_allocator!(
                $kind design, demand.variant.store_of(design),
                type WithDesignAllocator => {
                    <WithDesignAllocator as $crate::design::Allocator>::new(demand)
                        .map(|$allocator| -> $type { $use })
                },
                _ => Err(dispatch::of_another_kind(design))
            )
        })
    }};
}

/// Makes the design of [`Design::VMAPS`] for a [`VmapDemand`](super::vmap::VmapDemand) over a
/// mapper and a host, and evaluates an expression with it. The result is an error when it cannot
/// be made.
///
/// Must be called in an `unsafe` block, under the conditions of
/// [`Vmap::new`](pagedepot_vmap::Vmap::new).
macro_rules! with_vmap {
    ($design:expr, $demand:expr, ($mapper:expr, $host:expr), |$vmap:pat_param| $use:expr) => {{
        let (demand, mapper, host): (&$crate::design::vmap::VmapDemand, _, _) =
            ($demand, $mapper, $host);
        match $design {
            $crate::names::Design::VmapGlobalLock => {
                let $vmap =
                    ::pagedepot_designs::vmap::GlobalLock::new(demand.setup(), mapper, host);
                Ok($use)
            }
            $crate::names::Design::VmapNodes => {
                let $vmap = ::pagedepot_designs::vmap::Nodes::new(demand.setup(), mapper, host);
                Ok($use)
            }
            _ => $crate::design::vmap::depot(demand, mapper, host).map(|$vmap| $use),
        }
    }};
}

pub(crate) use {by_allocator, by_thread_design, with_design, with_vmap};

use super::available::unavailable;
use super::demand::Demand;
use crate::failure::Failure;
use crate::names::Design;

/// A store that its design owns, where designs of replays share theirs in an `Arc`.
pub type OwnStore<S> = S;

/// Whether a design can be made for a demand.
///
/// # Errors
/// Why not, and what to do.
pub fn possible(design: Design, demand: &Demand) -> Result<(), Failure> {
    match unavailable(design).or_else(|| demand.variant.refuses(design)) {
        Some(why) => Err(Failure::Usage(why)),
        None => Ok(()),
    }
}

/// The error of a workload that is offered to a design that lacks what it needs.
pub fn of_another_kind(design: Design) -> Failure {
    Failure::Usage(format!("design {design} does not allocate what this workload asks for"))
}
