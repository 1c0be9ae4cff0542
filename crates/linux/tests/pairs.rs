//! Every pair of features is crossed by a test: `pairs/table.txt` says by which, or why the two
//! cannot meet. The storm fails where a pair of its own does not meet.

mod common;

use std::path::Path;

use common::pairs::Table;

/// The types whose public calls are features.
const TYPES: [&str; 24] = [
    "Ceiling",
    "Depot",
    "Monitor",
    "Movable",
    "Page",
    "PageBatch",
    "Pages",
    "PinnedRange",
    "Publication",
    "Publisher",
    "RawDepot",
    "RegisteredIovecs",
    "Reporting",
    "SharedDepot",
    "SharedOptions",
    "TraceWriter",
    "Vmalloc",
    "VmallocBuf",
    "VmallocBuilder",
    "Watcher",
    "WeakDepot",
    "depot::Builder",
    "pressure::Builder",
    "publish::Reader",
];
/// The core's types that a depot hands out.
const CORE_TYPES: [&str; 3] = ["CpuCaches", "Handover", "ZoneSettings"];

const TABLE: &str = include_str!("pairs/table.txt");

fn check(table: &str) {
    let table = Table::parse(table);
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    table.check_tests(root);
    table.check_calls(&[(&root.join("src"), &TYPES), (&root.join("../core/src"), &CORE_TYPES)]);
}

#[test]
fn every_pair_of_features_is_crossed_by_a_test() {
    check(TABLE);
}

/// A call that another type has by the same name has a place of its own.
#[test]
#[should_panic(expected = "[\"SharedDepot::grow\"] belong to no feature")]
fn a_call_without_a_place_is_found() {
    check(&TABLE.replace("SharedDepot::grow,", "SharedDepot::"));
}
