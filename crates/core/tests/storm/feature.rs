//! The features that the storms cross. Their names are those of the table of pairs.

use pagedepot::{Evacuation, Order};

crate::features! {
    Order0 "order 0",
    Orders1To3 "orders 1 to 3",
    Orders4To8 "orders 4 to 8",
    Orders9And10 "orders 9 and 10",
    Ranges "contiguous ranges",
    At "frames at an address",
    Bulk "bulk",
    Split "split",
    Zeroed "zeroed pages",
    NoWait "atomic requests",
    Compaction "compaction",
    Mover "requests that compact",
    Pins "pins",
    Removal "removal",
    Adding "adding",
    Isolation "isolation of pageblocks",
    Drain "drains",
    Handover "handover",
    Retire "retired CPUs",
    Disable "disabled caches",
    Decay "decay",
    Limits "cache limits",
    Absent "absent memory",
    Reporting "reporting",
    Refusing "a device that refuses",
    EvacuationOff "evacuation off",
    EvacuationGoal "evacuation to a goal",
    EvacuationAdaptive "adaptive evacuation",
    Classes "classes",
    Reclaim "reclaim callbacks",
    IsolatedCpus "isolated CPUs",
    Checked "checked mode",
    Thinning "thinning",
    Carving "carving",
    Grouped "grouped counts",
    Backing "a backing",
}

/// Declares an enumeration of deeds.
macro_rules! deeds {
    ($($(#[$doc:meta])* $deed:ident,)*) => {
        /// Deeds that a storm must have done by its end, besides pairs of features.
        #[derive(Clone, Copy, Debug)]
        pub enum Deed { $($(#[$doc])* $deed,)* }

        impl Deed {
            pub const ALL: &'static [Deed] = &[$(Deed::$deed,)*];
        }
    };
}

deeds! {
    /// A request's mover has moved a block.
    MovedForRequest,
    /// Blocks were moved for a request that would have failed.
    MadeRoom,
    /// A mover was asked about a block that is pinned.
    AskedOfPinned,
    /// Memory was removed.
    Removed,
    /// Pageblocks were given another mobility.
    Reassigned,
    /// The device has refused to bring a pageblock back.
    Refused,
    /// Evacuation was switched off where pageblocks evacuated.
    SwitchedOff,
    /// A drain has left the fronts of an isolated CPU alone.
    LeftAlone,
    /// A callback has freed a block.
    Reclaimed,
}
