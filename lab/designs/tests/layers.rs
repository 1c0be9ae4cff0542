//! No file of this crate uses another that uses it in turn, directly or through others: what a file
//! needs can be read before it.

#[path = "../../../crates/cli/tests/sources/mod.rs"]
mod sources;

use sources::{assert_no_circles, uses};

#[test]
fn no_files_use_each_other_in_a_circle() {
    assert_no_circles(uses(20));
}
