//! The paths of this package's examples.

use std::path::PathBuf;

/// The file of an example that cargo built beside this test.
pub fn example(file: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let path = test.parent().and_then(|deps| deps.parent()).unwrap().join("examples").join(file);
    assert!(path.exists(), "{path:?} is missing: cargo build -p pagedepot-linux --examples");
    path
}
