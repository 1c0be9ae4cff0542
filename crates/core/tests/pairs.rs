//! Every pair of features is crossed by a test: `pairs/table.txt` says by which, or why the two
//! cannot meet. The storm fails where a pair of its own does not meet.

mod common;

use std::path::Path;

use common::pairs::Table;

/// The types whose public calls are features.
const TYPES: [&str; 17] = [
    "Allocator",
    "Builder",
    "Class",
    "Classes",
    "Compaction",
    "Compactor",
    "Contiguity",
    "CpuCaches",
    "Flags",
    "Fronts",
    "Global",
    "Handover",
    "Pageblocks",
    "Refusal",
    "Reporting",
    "Residency",
    "ZoneSettings",
];

#[test]
fn every_pair_of_features_is_crossed_by_a_test() {
    let table = Table::parse(include_str!("pairs/table.txt"));
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    table.check_tests(root);
    let sources = [&root.join("src"), &root.join("../contiguity/src")];
    table.check_calls(&sources.map(|folder| (folder.as_path(), &TYPES[..])));
}
