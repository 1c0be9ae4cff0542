//! Checks the layers inside this crate. Reads the sources:
//! 1. a folder uses only folders below it;
//! 2. no file uses another that uses it in turn, directly or through others: what a file needs can
//!    be read before it.

#[path = "../../cli/tests/sources/mod.rs"]
mod sources;

use sources::{assert_no_circles, uses};

/// The folders, from the ground up. Each uses those before it, and none after it.
const FOLDERS: [&str; 19] = [
    "system",
    "error",
    "events",
    "sites",
    "cpus",
    "waiting",
    "moving",
    "memory",
    "giving_back",
    "depot",
    "pages",
    "shared",
    "reclaim",
    "pressure",
    "vmalloc",
    "interop",
    "views",
    "allocinfo",
    "publish",
];

fn folder(module: &str) -> usize {
    let name = module.split("::").next().unwrap();
    let folder = FOLDERS.iter().position(|folder| *folder == name);
    folder.unwrap_or_else(|| panic!("{module} is in no folder: add it to FOLDERS"))
}

#[test]
fn folders_use_folders_below_them() {
    for (module, used) in uses(100).iter().filter(|(module, _)| *module != "lib") {
        for other in used.iter().filter(|other| *other != "lib") {
            let (own, other_folder) = (folder(module), folder(other));
            assert!(other_folder <= own, "{module} uses {other}, which is in a folder above it");
        }
    }
}

#[test]
fn no_files_use_each_other_in_a_circle() {
    assert_no_circles(uses(100));
}

/// The reader of the sources finds what is there.
#[test]
fn uses_are_found() {
    let uses = uses(100);
    let is_used = |module: &str, other: &str| uses[module].contains(other);
    assert!(is_used("depot::state", "giving_back::returnable"), "crate::");
    assert!(is_used("pressure::watcher", "pressure::force"), "super::");
    assert!(is_used("pressure::force", "giving_back::reporting"), "through a re-export");
    assert!(!is_used("giving_back::trim", "depot::state"));
}
