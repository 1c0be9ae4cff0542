//! The operations of a run. Numbers are reduced to what exists when an operation is applied, so
//! that any operation can be dropped from a failing run and the others keep their meaning.

use pagedepot::{Class, Flags, Mobility, Mode, Order};
use proptest::prelude::*;

use crate::common::order;

/// Flags, in a form that the model can read, too.
#[derive(Clone, Copy, Debug)]
pub struct Wish {
    pub mobility: Mobility,
    /// A class that the world may keep apart.
    pub class: Class,
    pub is_zeroed: bool,
    pub is_atomic: bool,
    pub no_reclaim: bool,
    pub this_node: bool,
    pub level: Option<u8>,
}

impl Wish {
    pub fn flags(self) -> Flags {
        let mut flags = Flags::new(self.mobility).class(self.class);
        if self.is_zeroed {
            flags = flags.zeroed();
        }
        if self.is_atomic {
            flags = flags.atomic();
        }
        if self.no_reclaim {
            flags = flags.no_reclaim();
        }
        if self.this_node {
            flags = flags.this_node();
        }
        match self.level {
            Some(level) => flags.at_most_level(level),
            None => flags,
        }
    }

    pub fn may_reclaim(self) -> bool {
        !self.is_atomic && !self.no_reclaim
    }
}

/// Mistakes of a caller that `checked` finds at once.
#[derive(Clone, Copy, Debug)]
pub enum Wrong {
    FreeTwice,
    FreeWithOrder(Order),
    FreeInside(u32),
    FreeUnallocated(u32),
    SplitFreed,
    SplitLarger,
    FreeRangeTwice,
}

#[derive(Clone, Debug)]
pub enum Op {
    /// Allocates up to `count` blocks, one by one.
    Alloc {
        order: Order,
        count: u16,
        wish: Wish,
    },
    /// Frees `count` held blocks, one by one, a stride apart.
    Free {
        from: u16,
        stride: u8,
        count: u16,
    },
    AllocMany {
        order: Order,
        count: u16,
        wish: Wish,
    },
    FreeMany {
        from: u16,
        stride: u8,
        count: u16,
    },
    AllocContiguous {
        frames: u32,
        align_shift: u8,
        wish: Wish,
    },
    AllocAt {
        at: u32,
        frames: u32,
        wish: Wish,
    },
    /// Frees a part of a range, in 256ths from either end.
    FreeContiguous {
        which: u16,
        skip: u8,
        keep: u8,
    },
    /// Makes the frames of a range blocks of order 0.
    Scatter {
        which: u16,
    },
    Split {
        which: u16,
        to: Order,
    },
    Drain {
        cpu: Option<u8>,
        zone: Option<u8>,
        mode: Mode,
    },
    DisableCaches,
    EnableCaches,
    RetireCpu(u8),
    RestoreCpu(u8),
    Decay {
        later_ms: u16,
    },
    SetLimits {
        zone: u8,
        batch: u16,
        high_min: u16,
        more: u16,
    },
    SetWatermarks {
        zone: u8,
        min: u16,
    },
    AddMemory {
        zone: u8,
        at: u32,
        frames: u32,
        is_held: bool,
    },
    /// Whole pageblocks from the one where a range begins, or somewhere behind it.
    RemoveMemory {
        which: u16,
        skip: u8,
        pageblocks: u8,
        other_zone: bool,
    },
    RunOn {
        cpu: u8,
        in_interrupt: bool,
        nowhere: bool,
    },
    Misuse(Wrong, u16),
}

fn any_order() -> impl Strategy<Value = Order> {
    // Mostly cached orders, sometimes the others.
    prop_oneof![6 => Just(0u32), 2 => 1u32..=3, 2 => 4u32..=8, 2 => Just(9), 1 => Just(10)]
        .prop_map(order)
}

prop_compose! {
    fn wish()(
        mobility in prop_oneof![
            3 => Just(Mobility::Movable),
            1 => Just(Mobility::Unmovable),
            1 => Just(Mobility::Reclaimable),
        ],
        class in prop_oneof![
            2 => Just(Class::UNKNOWN),
            1 => Just(Class::PAGE_CACHE),
            1 => (0u8..14).prop_map(Class::tenant),
        ],
        is_zeroed in prop::bool::weighted(0.1),
        is_atomic in prop::bool::weighted(0.1),
        no_reclaim in prop::bool::weighted(0.1),
        this_node in prop::bool::weighted(0.1),
        level in prop::option::weighted(0.2, 0u8..=16),
    ) -> Wish {
        Wish { mobility, class, is_zeroed, is_atomic, no_reclaim, this_node, level }
    }
}

fn wrong() -> impl Strategy<Value = Wrong> {
    prop_oneof![
        Just(Wrong::FreeTwice),
        any_order().prop_map(Wrong::FreeWithOrder),
        (1u32..1024).prop_map(Wrong::FreeInside),
        any::<u32>().prop_map(Wrong::FreeUnallocated),
        Just(Wrong::SplitFreed),
        Just(Wrong::SplitLarger),
        Just(Wrong::FreeRangeTwice),
    ]
}

/// Mostly a few blocks, sometimes enough to fill and empty magazines, shelves, zones.
fn count() -> impl Strategy<Value = u16> {
    prop_oneof![4 => 1u16..4, 4 => 1u16..200, 1 => 1u16..9000]
}

fn mode() -> impl Strategy<Value = Mode> {
    prop_oneof![Just(Mode::Quiet), Just(Mode::Full), Just(Mode::Handover)]
}

pub fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        8 => (any_order(), count(), wish())
            .prop_map(|(order, count, wish)| Op::Alloc { order, count, wish }),
        8 => (any::<u16>(), any::<u8>(), count())
            .prop_map(|(from, stride, count)| Op::Free { from, stride, count }),
        3 => (any_order(), count(), wish())
            .prop_map(|(order, count, wish)| Op::AllocMany { order, count, wish }),
        3 => (any::<u16>(), any::<u8>(), count())
            .prop_map(|(from, stride, count)| Op::FreeMany { from, stride, count }),
        3 => (prop_oneof![0u32..600, 0u32..5000, Just(SECTION_AND_ONE)], 0u8..20, wish()).prop_map(
            |(frames, align_shift, wish)| Op::AllocContiguous { frames, align_shift, wish },
        ),
        2 => (any::<u32>(), prop_oneof![0u32..80, 0u32..3000], wish())
            .prop_map(|(at, frames, wish)| Op::AllocAt { at, frames, wish }),
        3 => any::<(u16, u8, u8)>()
            .prop_map(|(which, skip, keep)| Op::FreeContiguous { which, skip, keep }),
        1 => any::<u16>().prop_map(|which| Op::Scatter { which }),
        2 => (any::<u16>(), any_order()).prop_map(|(which, to)| Op::Split { which, to }),
        4 => (prop::option::of(0u8..6), prop::option::of(0u8..8), mode())
            .prop_map(|(cpu, zone, mode)| Op::Drain { cpu, zone, mode }),
        1 => Just(Op::DisableCaches),
        1 => Just(Op::EnableCaches),
        1 => any::<u8>().prop_map(Op::RetireCpu),
        2 => any::<u8>().prop_map(Op::RestoreCpu),
        2 => any::<u16>().prop_map(|later_ms| Op::Decay { later_ms }),
        1 => any::<(u8, u16, u16, u16)>().prop_map(|(zone, batch, high_min, more)| {
            Op::SetLimits { zone, batch, high_min: high_min / 16, more: more / 16 }
        }),
        1 => (any::<u8>(), 0u16..2000).prop_map(|(zone, min)| Op::SetWatermarks { zone, min }),
        2 => (any::<u8>(), any::<u32>(), 1u32..3000, prop::bool::weighted(0.3), any::<bool>())
            .prop_map(|(zone, at, frames, is_held, is_whole)| {
                let round = |n: u32| if is_whole { n.next_multiple_of(512) } else { n };
                Op::AddMemory { zone, at: round(at / 2), frames: round(frames), is_held }
            }),
        2 => (any::<u16>(), 0u8..8, 1u8..6, prop::bool::weighted(0.1))
            .prop_map(|(which, skip, pageblocks, other_zone)| {
                Op::RemoveMemory { which, skip, pageblocks, other_zone }
            }),
        6 => (any::<u8>(), prop::bool::weighted(0.2), prop::bool::weighted(0.1))
            .prop_map(|(cpu, in_interrupt, nowhere)| Op::RunOn { cpu, in_interrupt, nowhere }),
        3 => (wrong(), any::<u16>()).prop_map(|(wrong, which)| Op::Misuse(wrong, which)),
    ]
}

/// One frame more than a contiguous range may have.
const SECTION_AND_ONE: u32 = (1 << 18) + 1;
