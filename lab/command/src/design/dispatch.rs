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
            (::pagedepot_cli::names::Design::ZoneLock, _) => {
                type $cache = ::pagedepot_designs::ZoneLock<$held<::pagedepot_designs::Buddy>>;
                $use
            }
            (::pagedepot_cli::names::Design::Local, _) => {
                type $cache = ::pagedepot_lab_designs::Local<$held<::pagedepot_designs::Buddy>>;
                $use
            }
            (::pagedepot_cli::names::Design::NohzConditional, _) => {
                type $cache =
                    ::pagedepot_lab_designs::NohzConditional<$held<::pagedepot_designs::Buddy>>;
                $use
            }
            (
                ::pagedepot_cli::names::Design::Spin,
                ::pagedepot_cli::design::variant::Store::Buddy,
            ) => {
                type $cache = ::pagedepot_designs::Spin<$held<::pagedepot_designs::Buddy>>;
                $use
            }
            (
                ::pagedepot_cli::names::Design::Spin,
                ::pagedepot_cli::design::variant::Store::Bitmap,
            ) => {
                type $cache = ::pagedepot_designs::Spin<$held<::pagedepot_designs::Bitmap>>;
                $use
            }
            (::pagedepot_cli::names::Design::Qpw, _) => {
                type $cache = ::pagedepot_lab_designs::Qpw<$held<::pagedepot_designs::Buddy>>;
                $use
            }
            (::pagedepot_cli::names::Design::PcpBuddy, _) => {
                type $cache = ::pagedepot_lab_designs::PcpBuddy<$held<::pagedepot_designs::Buddy>>;
                $use
            }
            (::pagedepot_cli::names::Design::Rcu, _) => {
                type $cache = ::pagedepot_lab_designs::Rcu<$held<::pagedepot_designs::Buddy>>;
                $use
            }
            (::pagedepot_cli::names::Design::Magazine, _) => {
                type $cache = ::pagedepot_lab_designs::Magazine<$held<::pagedepot_designs::Buddy>>;
                $use
            }
            _ => $else,
        }
    }};
}

/// Evaluates `$use` with `$allocator` being the type that implements
/// [`Allocator`](pagedepot_cli::design::Allocator) for `$design`: of `Design::BLOCKS` and
/// `depot-uncached` (`any`) or of `Design::PAGED` (`paged`). `$else` for other designs.
macro_rules! by_allocator {
    (any $design:expr, $store:expr, type $allocator:ident => $use:expr, _ => $else:expr) => {{
        match $design {
            ::pagedepot_cli::names::Design::FloorTls => {
                type $allocator = ::pagedepot_cli::design::floor_tls::FloorTls;
                $use
            }
            ::pagedepot_cli::names::Design::FloorRseq => {
                type $allocator = ::pagedepot_cli::design::floor_rseq::FloorRseq;
                $use
            }
            ::pagedepot_cli::names::Design::FloorSpin => {
                type $allocator = ::pagedepot_cli::design::floor_spin::FloorSpin;
                $use
            }
            ::pagedepot_cli::names::Design::DepotUncached => {
                type $allocator = ::pagedepot_cli::design::depot::DepotAllocator<false>;
                $use
            }
            ::pagedepot_cli::names::Design::DepotStill => {
                type $allocator = ::pagedepot_cli::design::depot::DepotAllocator<true, false>;
                $use
            }
            #[cfg(feature = "peers")]
            ::pagedepot_cli::names::Design::FrameAlloc => {
                type $allocator = $crate::design::frame_alloc::FrameAlloc;
                $use
            }
            #[cfg(feature = "peers")]
            ::pagedepot_cli::names::Design::Mimalloc => {
                type $allocator = $crate::design::malloc::Mimalloc;
                $use
            }
            #[cfg(feature = "peers")]
            ::pagedepot_cli::names::Design::MimallocPprof => {
                type $allocator = $crate::design::mimalloc_pprof::MimallocPprof;
                $use
            }
            #[cfg(feature = "peers")]
            ::pagedepot_cli::names::Design::Jemalloc => {
                type $allocator = $crate::design::malloc::Jemalloc;
                $use
            }
            #[cfg(feature = "tcmalloc")]
            ::pagedepot_cli::names::Design::Tcmalloc => {
                type $allocator = $crate::design::tcmalloc::Tcmalloc;
                $use
            }
            #[cfg(feature = "peers")]
            ::pagedepot_cli::names::Design::Snmalloc => {
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
            ::pagedepot_cli::names::Design::Depot => {
                type $allocator = ::pagedepot_cli::design::depot::DepotAllocator;
                $use
            }
            design => $crate::design::dispatch::by_thread_design!(
                design, $store, OwnStore, type WithDesignCache => {
                    use ::pagedepot_cli::design::page_cache::ProposalAllocator;
                    use $crate::design::dispatch::Lab;
                    type $allocator = ProposalAllocator<WithDesignCache, Lab>;
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
        use ::pagedepot_cli::design::lineup;
        let design: ::pagedepot_cli::names::Design = $design;
        let demand: &::pagedepot_cli::design::Demand = $demand;
        let lab = &$crate::design::dispatch::Lab;
        lineup::possible(lab, design, demand).and_then(|()| {
            $crate::design::dispatch::by_allocator!(
                $kind design, demand.variant.store_of(design),
                type WithDesignAllocator => {
                    <WithDesignAllocator as ::pagedepot_cli::design::Allocator>::new(demand)
                        .map(|$allocator| -> $type { $use })
                },
                _ => Err(lineup::of_another_kind(design))
            )
        })
    }};
}

/// Makes the design of `Design::VMAPS` for a [`VmapDemand`](super::vmap::VmapDemand) over a
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
            ::pagedepot_cli::names::Design::VmapGlobalLock => {
                let $vmap =
                    ::pagedepot_lab_designs::vmap::GlobalLock::new(demand.setup(), mapper, host);
                Ok($use)
            }
            ::pagedepot_cli::names::Design::VmapNodes => {
                let $vmap = ::pagedepot_lab_designs::vmap::Nodes::new(demand.setup(), mapper, host);
                Ok($use)
            }
            _ => $crate::design::vmap::depot(demand, mapper, host).map(|$vmap| $use),
        }
    }};
}

pub(crate) use {by_allocator, by_thread_design, with_design, with_vmap};

/// A store that its design owns, where designs of replays share theirs in an `Arc`.
pub type OwnStore<S> = S;

/// All designs.
#[derive(Clone, Copy, Debug, Default)]
pub struct Lab;
