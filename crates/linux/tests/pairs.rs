//! Every pair of features is crossed by a test: `pairs/table.txt` says by which, or why the two
//! cannot meet. The storm fails where a pair of its own does not meet.

mod common;

use std::path::Path;

use common::pairs::Table;

/// The types whose public calls are features.
const TYPES: [&str; 15] = [
    "Builder",
    "Ceiling",
    "Depot",
    "Movable",
    "Page",
    "PageBatch",
    "Pages",
    "PinnedRange",
    "RawDepot",
    "RegisteredIovecs",
    "Reporting",
    "SharedDepot",
    "Vmalloc",
    "VmallocBuf",
    "VmallocBuilder",
];

#[test]
fn every_pair_of_features_is_crossed_by_a_test() {
    let table = Table::parse(include_str!("pairs/table.txt"));
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    table.check_tests(root);
    table.check_calls(&[&root.join("src")], &TYPES);
}
