//! Checks the layers inside the command. Reads the sources:
//! 1. a room uses only rooms below it;
//! 2. no file uses another that uses it in turn, directly or through others.

mod sources;

use sources::{assert_no_circles, uses};

/// The rooms, from the ground up. Each uses those before it, and none after it.
const ROOMS: [&str; 15] = [
    "names",
    "args",
    "failure",
    "harness",
    "report",
    "design",
    "conclusion",
    "replay",
    "workloads",
    "soak",
    "inspect",
    "top",
    "cli",
    "commands",
    "lib",
];

fn room(module: &str) -> usize {
    let name = module.split("::").next().unwrap();
    let room = ROOMS.iter().position(|room| *room == name);
    room.unwrap_or_else(|| panic!("{module} is in no room: add it to ROOMS"))
}

#[test]
fn rooms_use_rooms_below_them() {
    for (module, used) in uses(150).iter().filter(|(module, _)| *module != "lib") {
        for other in used {
            let (own, other_room) = (room(module), room(other));
            assert!(other_room <= own, "{module} uses {other}, which is in a room above it");
        }
    }
}

#[test]
fn no_files_use_each_other_in_a_circle() {
    assert_no_circles(uses(150));
}

/// The reader of the sources finds what is there.
#[test]
fn uses_are_found() {
    let uses = uses(150);
    let is_used = |module: &str, other: &str| uses[module].contains(other);
    assert!(is_used("workloads::hot", "workloads::settings"), "super::");
    assert!(is_used("workloads::hot", "design::allocator"), "through a re-export");
    assert!(is_used("workloads::pagealloc", "workloads::pagealloc::fill"), "a child's function");
    assert!(is_used("commands", "cli"), "crate::");
    assert!(!is_used("workloads::settings", "workloads::all"));
}
