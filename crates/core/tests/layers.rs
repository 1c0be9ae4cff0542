//! Checks the layers of the core. Reads the sources:
//! 1. the rooms of this crate (its folders) form layers: a room uses those below it alone;
//! 2. so do the files of a room: none uses another that uses it;
//! 3. atomics and spinning are reached through `prim`, where a model checker takes their place;
//! 4. a request that refills is followed in few files, those that CONTRIBUTING.md lists;
//! 5. crates depend downwards: the command on trace, designs and linux, the last two on contiguity,
//!    vmap and rseq, these and trace on core, core on nothing; and no crate on the lab.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Rooms from the ground up: a room uses those before it.
const LAYERS: [&str; 11] = [
    "sync",
    "frame",
    "zone",
    "store",
    "front",
    "cpus",
    "evacuation",
    "pcp",
    "reclaim",
    "alloc",
    "seam",
];

fn crates() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Calls `with` for each source file below `directory` that is no test: its path there, and its
/// code without comments.
fn for_each_source(directory: &Path, with: &mut impl FnMut(&str, &str)) {
    fn walk(directory: &Path, root: &Path, with: &mut impl FnMut(&str, &str)) {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            let name = path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
            if name.contains("tests") {
                continue;
            }
            if path.is_dir() {
                walk(&path, root, with);
            } else if name.ends_with(".rs") {
                let text = fs::read_to_string(&path).unwrap();
                let code: Vec<&str> = text
                    .lines()
                    .map(|line| line.split_once("//").map_or(line, |(code, _)| code))
                    .collect();
                with(&name, &code.join("\n"));
            }
        }
    }
    walk(directory, directory, with);
}

fn layer_of(module: &str) -> Option<usize> {
    LAYERS.iter().position(|layer| *layer == module)
}

#[test]
fn modules_use_what_is_below_them() {
    let mut uses = 0;
    for_each_source(&crates().join("core/src"), &mut |file, code| {
        let module = file.split('/').next().unwrap().trim_end_matches(".rs");
        if module == "lib" {
            return;
        }
        let own =
            layer_of(module).unwrap_or_else(|| panic!("{file} is in no layer: add it to LAYERS"));
        for after in code.split("crate::").skip(1) {
            let used = after.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap();
            // Public names of the crate come from below.
            let is_public = used.is_empty() || used.starts_with(|c: char| c.is_uppercase());
            if is_public || ["loom_tests", "shuttle_tests"].contains(&used) {
                continue;
            }
            let below =
                layer_of(used).unwrap_or_else(|| panic!("{file} uses {used}: name its module"));
            assert!(below <= own, "{file} uses {used}, which is above it");
            uses += 1;
        }
    });
    assert!(uses > 100, "the sources are found, and read");
}

/// The other files of a room that a file's code names by `super::`.
fn siblings(code: &str) -> Vec<String> {
    let mut names = Vec::new();
    for after in code.split("super::").skip(1) {
        let name: String = after.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
        names.push(name);
    }
    names
}

/// A room's files name each other by `super::file`, and not through the room's `mod.rs`, which only
/// lists what the room shows to others. Then what they name must not lead back to them.
#[test]
fn files_of_a_room_form_no_circle() {
    for name in ["core/src", "contiguity/src"] {
        assert_no_circle(name);
    }
}

fn assert_no_circle(sources: &str) {
    let mut uses = HashMap::<String, Vec<String>>::new();
    let mut files = Vec::new();
    for_each_source(&crates().join(sources), &mut |file, code| {
        let Some((room, name)) = file.split_once('/') else { return };
        if room == "vmap" || name == "mod.rs" {
            return;
        }
        let code = code.split("#[cfg(all(test").next().unwrap();
        assert!(!code.contains(&format!("crate::{room}::")), "{file}: name files by `super::`");
        files.push(file.to_owned());
        uses.insert(
            file.to_owned(),
            siblings(code).iter().map(|of| format!("{room}/{of}.rs")).collect(),
        );
    });
    for (file, used) in &uses {
        for used in used {
            assert!(files.contains(used), "{file} names {used}, which is no file of its room");
        }
    }
    // Files that use none but those sorted already, until there are no more.
    while let Some(at) =
        files.iter().position(|file| uses[file].iter().all(|of| !files.contains(of)))
    {
        files.swap_remove(at);
    }
    assert!(files.is_empty(), "these files use each other in a circle: {files:?}");
}

/// Methods of a type, over all its `impl` blocks but those of traits.
fn methods(methods: &mut HashMap<String, usize>, code: &str) {
    let mut of = None;
    for line in code.lines() {
        if let Some(head) = line.strip_prefix("impl") {
            let head =
                head.split_once("> ").filter(|_| head.starts_with('<')).map_or(head, |h| h.1);
            let name: String = head.trim().chars().take_while(|c| c.is_alphanumeric()).collect();
            of = (!head.contains(" for ")).then_some(name);
        } else if line.starts_with('}') {
            of = None;
        }
        let is_method = line.strip_prefix("    ").is_some_and(|line| {
            !line.starts_with(' ') && line.contains("fn ") && line.contains('(')
        });
        if let Some(of) = of.as_ref().filter(|_| is_method) {
            *methods.entry(of.clone()).or_default() += 1;
        }
    }
}

/// A type is what one reader can know: the allocator's public calls, and little more. What they do
/// is in structs of their own.
#[test]
fn no_type_has_more_methods_than_the_allocator_has_calls() {
    let mut counts = HashMap::new();
    for_each_source(&crates().join("core/src"), &mut |_, code| methods(&mut counts, code));
    let (largest, count) = counts.iter().max_by_key(|(_, count)| **count).unwrap();
    assert!(counts["Allocator"] > 40, "the sources are found, and read");
    for (name, count, most) in [("Allocator", counts["Allocator"], 59), (largest, *count, 69)] {
        assert!(
            count <= most,
            "{name} has {count} methods: give the new ones a struct of their own"
        );
    }
}

/// The files that CONTRIBUTING.md lists for a request that refills.
fn files_of_a_refill() -> Vec<PathBuf> {
    let text = fs::read_to_string(crates().join("../CONTRIBUTING.md")).unwrap();
    let (_, list) = text.split_once("To follow a request that refills").expect("the list's title");
    let table = list.split("\n\n").nth(1).expect("a table below it");
    let names = table.split('`').skip(1).step_by(2);
    // A name without a folder is of the folder before it.
    let mut folder = "";
    names
        .map(|name| {
            let (named, file) = name.split_once('/').unwrap_or((folder, name));
            folder = named;
            crates().join("core/src").join(named).join(file)
        })
        .collect()
}

/// A reader who follows a page through the allocator should not have to read all of it.
#[test]
fn a_request_that_refills_is_followed_in_few_files() {
    const FILES_MAX: usize = 14;
    const LINES_MAX: usize = 3500;
    let files = files_of_a_refill();
    let lines_of = |file: &PathBuf| {
        let text = fs::read_to_string(file).unwrap_or_else(|_| panic!("no file {file:?}"));
        text.split("#[cfg(all(test").next().unwrap().lines().count()
    };
    let lines: usize = files.iter().map(lines_of).sum();
    assert!((8..=FILES_MAX).contains(&files.len()), "{} files: {files:?}", files.len());
    assert!(
        (2000..=LINES_MAX).contains(&lines),
        "{lines} lines: give what a refill does not need a file of its own"
    );
}

/// Files with code for a feature that has a folder, outside of it: what stays are the switch in the
/// configuration, the embedder's settings, and counts. Imports do not count.
#[test]
fn evacuation_has_one_home() {
    const FILES_MAX: usize = 6;
    let (mut home, mut others) = (0, Vec::new());
    for_each_source(&crates().join("core/src"), &mut |file, code| {
        let code = code.split("#[cfg(all(test").next().unwrap();
        let is_use = |line: &str| {
            ["use ", "pub use ", "mod "].iter().any(|word| line.trim_start().starts_with(word))
        };
        let names = |line: &&str| !is_use(line) && line.to_lowercase().contains("evacuat");
        if file.starts_with("evacuation/") {
            home += 1;
        } else if code.lines().any(|line| names(&line)) {
            others.push(file.to_owned());
        }
    });
    assert!(home >= 3, "the sources are found, and read");
    assert!(others.len() <= FILES_MAX, "evacuation is spread over {others:?}");
}

/// The core has at most so many files and lines that are neither blank nor comments, without unit
/// tests: a reader or an auditor has them all before them.
#[test]
fn the_core_does_not_grow() {
    const FILES_MAX: usize = 80;
    const LINES_MAX: usize = 13_631;
    let (mut files, mut lines) = (0, 0);
    for_each_source(&crates().join("core/src"), &mut |_, code| {
        let is_test = |line: &str| line.starts_with("#[cfg(") && line.contains("test");
        let mut depth = None;
        for line in code.lines().filter(|line| !line.trim().is_empty()) {
            // A module of tests goes on to its brace at the margin; one in a file of its own, and
            // anything else that only tests have, ends with its line or its brace.
            depth = match depth {
                None if is_test(line) => Some(()),
                Some(())
                    if line.starts_with('}') || line.ends_with(';') && !line.starts_with(' ') =>
                {
                    None
                }
                Some(()) => Some(()),
                None => {
                    lines += 1;
                    None
                }
            };
        }
        files += 1;
    });
    assert!(lines > 5000, "the sources are found, and read");
    assert!(files <= FILES_MAX, "{files} files: merge those that are read together");
    assert!(lines <= LINES_MAX, "{lines} lines: does the core need them all?");
}

#[test]
fn atomics_come_from_prim() {
    let mut atomics = 0;
    for name in ["core/src", "contiguity/src", "vmap/src", "designs/src", "../lab/designs/src"] {
        for_each_source(&crates().join(name), &mut |file, code| {
            if ["sync/prim.rs", "prim.rs"].contains(&file) {
                return;
            }
            for word in ["sync::atomic", "spin_loop", "loom::", "shuttle::"] {
                assert!(!code.contains(word), "{name}/{file} names {word}: use `prim`");
            }
            atomics += code.matches("Ordering::").count();
        });
    }
    assert!(atomics > 100, "the sources are found, and read");
}

#[test]
fn crates_depend_downwards() {
    const OWN: [&str; 8] = [
        "pagedepot",
        "pagedepot-contiguity",
        "pagedepot-vmap",
        "pagedepot-rseq",
        "pagedepot-linux",
        "pagedepot-designs",
        "pagedepot-trace",
        "pagedepot-cli",
    ];
    let allowed: [(&str, &[&str]); 8] = [
        ("core", &[]),
        ("contiguity", &OWN[..1]),
        ("vmap", &OWN[..1]),
        ("rseq", &OWN[..1]),
        ("linux", &OWN[..4]),
        ("designs", &OWN[..4]),
        ("trace", &OWN[..1]),
        ("cli", &OWN[..7]),
    ];
    for (name, allowed) in allowed {
        let manifest = fs::read_to_string(crates().join(name).join("Cargo.toml")).unwrap();
        let (_, dependencies) = manifest.split_once("\n[dependencies]").unwrap();
        let dependencies = dependencies.split("\n[").next().unwrap();
        let named = dependencies.lines().filter_map(|line| line.split([' ', '.', '=']).next());
        for dependency in named.filter(|dependency| OWN.contains(dependency)) {
            assert!(
                allowed.contains(&dependency),
                "{name} depends on {dependency}, which is not below it"
            );
        }
        let on_lab = manifest.contains("pagedepot-lab") || manifest.contains("/lab/");
        assert!(!on_lab, "{name} depends on the lab");
        if name == "core" {
            assert!(dependencies.trim().is_empty(), "core depends on nothing");
        }
    }
}
