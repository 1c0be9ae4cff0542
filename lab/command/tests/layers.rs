//! Checks the layers inside the lab's command. Reads the sources:
//! 1. a room uses only rooms below it;
//! 2. no file uses another that uses it in turn, directly or through others.

#[path = "../../../crates/cli/tests/sources/mod.rs"]
mod sources;

use sources::{assert_no_circles, uses};

/// The rooms, from the ground up. Each uses those before it, and none after it.
const ROOMS: [&str; 8] =
    ["design", "workloads", "compare", "page", "record", "cli", "commands", "lib"];

fn room(module: &str) -> usize {
    let name = module.split("::").next().unwrap();
    let room = ROOMS.iter().position(|room| *room == name);
    room.unwrap_or_else(|| panic!("{module} is in no room: add it to ROOMS"))
}

#[test]
fn rooms_use_rooms_below_them() {
    for (module, used) in uses(100).iter().filter(|(module, _)| *module != "lib") {
        for other in used {
            let (own, other_room) = (room(module), room(other));
            assert!(other_room <= own, "{module} uses {other}, which is in a room above it");
        }
    }
}

#[test]
fn no_files_use_each_other_in_a_circle() {
    assert_no_circles(uses(100));
}
