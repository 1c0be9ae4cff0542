//! The features that the storms cross. Their names are those of the table of pairs.

use pagedepot_linux::Order;
use pagedepot_linux::builder::Evacuation;

crate::features! {
    Order0 "order 0",
    Orders1To3 "orders 1 to 3",
    Orders4To8 "orders 4 to 8",
    Orders9And10 "orders 9 and 10",
    Owned "owned pages",
    Borrowed "borrowed pages",
    Ranges "contiguous ranges",
    At "pages at an address",
    Bulk "bulk",
    Split "split",
    Zeroed "zeroed pages",
    NoWait "requests that may not wait",
    Movable "movable pages",
    Compaction "compaction",
    Compacting "requests that compact",
    Pins "pins",
    Growing "growing",
    Ceiling "a ceiling",
    Removal "removal",
    Adding "adding",
    Isolation "isolation of pageblocks",
    Drain "drains",
    Handover "handover",
    Retire "retired CPUs",
    Disable "disabled caches",
    Decay "decay",
    Limits "cache limits",
    Trim "trim",
    Reporting "reporting",
    Refusing "a system that refuses",
    EvacuationOff "evacuation off",
    EvacuationGoal "evacuation to a goal",
    EvacuationAdaptive "adaptive evacuation",
    Pressure "pressure callbacks",
    Waits "timed waits",
    Forks "forks",
    Signals "signal handlers",
    Collections "collections",
    Vmalloc "vmalloc",
    Resize "vmalloc that is resized",
    Mapped "mapped pages",
    Teardown "teardown",
    IsolatedCpus "isolated CPUs",
    Checked "checked mode",
    Locks "lock fronts",
}

impl Feature {
    pub fn of_order(order: Order) -> Feature {
        match order.get() {
            0 => Feature::Order0,
            1..=3 => Feature::Orders1To3,
            4..=8 => Feature::Orders4To8,
            _ => Feature::Orders9And10,
        }
    }

    pub fn of_policy(policy: Evacuation) -> Feature {
        match policy {
            Evacuation::Off => Feature::EvacuationOff,
            Evacuation::Goal { .. } => Feature::EvacuationGoal,
            Evacuation::Adaptive => Feature::EvacuationAdaptive,
        }
    }
}
