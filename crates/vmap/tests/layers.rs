//! Checks the layers of this crate. Reads the sources:
//! 1. a file uses only files above it in [`ORDER`], so no files use each other;
//! 2. so do the methods of the state, which several files have a part of;
//! 3. atomics and spinning come from `pagedepot::sync::prim`, where a model checker replaces them;
//! 4. only `model.rs` asks whether the code runs in a model;
//! 5. unsafe code is where `lib.rs` says.

use std::fs;
use std::path::Path;

/// All modules, from the ground up: each uses only those before it.
#[rustfmt::skip]
const ORDER: &[&str] = &[
    "model", "units", "kind", "error", "io_error",
    "metadata::caller", "metadata::area", "metadata::index", "metadata::frames",
    "metadata::directory", "metadata::batch", "metadata::arena", "metadata",
    "config",
    "seams::flush", "seams::mapper", "seams::written", "seams::host", "seams::null", "seams",
    "lock",
    "undo",
    "node::counters", "node::lazy", "node::pool", "node::large", "node",
    "space::request", "space::spares", "space::transfer", "space::boundary", "space::tree",
    "space",
    "map::tables", "map::own", "map",
    "state",
    "purge::retire", "purge",
    "addresses", "memory", "resize",
    "view", "stats", "validate",
    "layout",
    "vmap",
];

/// Modules with unsafe code; those below `seams` are its own.
const UNSAFE: [&str; 6] =
    ["metadata::arena", "metadata::caller", "seams", "map", "map::own", "purge::retire"];

/// Calls `check` for each source file that is no test, with its module's path and its code without
/// comments.
fn for_each_module(check: &mut impl FnMut(&str, &str)) {
    fn walk(directory: &Path, root: &Path, check: &mut impl FnMut(&str, &str)) {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            let name = path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
            if name.contains("tests") || name == "closed.rs" {
                continue;
            }
            if path.is_dir() {
                walk(&path, root, check);
                continue;
            }
            let module = name.trim_end_matches(".rs").trim_end_matches("/mod").replace('/', "::");
            let text = fs::read_to_string(&path).unwrap();
            let lines =
                text.lines().map(|line| line.split_once("//").map_or(line, |(code, _)| code));
            check(&module, &lines.collect::<Vec<_>>().join("\n"));
        }
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    walk(&root, &root, check);
}

fn place(module: &str) -> Option<usize> {
    ORDER.iter().position(|&other| other == module)
}

/// The module that a path names: `node::pool::Pool` is in `node::pool`, `node::Nodes` in `node`.
fn module_of(path: &str) -> &str {
    let ends = path.match_indices("::").map(|(end, _)| end).chain([path.len()]);
    let names = ends.map(|end| &path[..end]);
    names.filter(|name| place(name).is_some()).last().unwrap_or(path)
}

#[test]
fn modules_use_what_is_before_them() {
    let mut uses = 0;
    for_each_module(&mut |module, code| {
        if module == "lib" {
            return;
        }
        let own = place(module).unwrap_or_else(|| panic!("{module} is not in the order: add it"));
        let code = code.replace("pub(crate)", "");
        assert!(
            module == "model" || !code.contains("super::"),
            "{module} names modules by `super::`: name them by `crate::`"
        );
        for after in code.split("crate::").skip(1) {
            let is_path = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
            let path = after.split(|c| !is_path(c)).next().unwrap().trim_end_matches("::");
            let used = module_of(path);
            let below =
                place(used).unwrap_or_else(|| panic!("{module} uses {path}: name its module"));
            assert!(below < own, "{module} uses {used}, which is not before it");
            uses += 1;
        }
    });
    assert!(uses > 100, "the sources are found, and read");
}

/// Names of the methods that a file gives to `VmapState`.
fn methods_of_the_state(code: &str) -> Vec<String> {
    let mut names = Vec::new();
    let mut is_inside = false;
    for line in code.lines() {
        if line.starts_with("impl") {
            is_inside = line.contains("> VmapState<");
        } else if line.starts_with('}') {
            is_inside = false;
        }
        let method = line.strip_prefix("    ").filter(|line| is_inside && !line.starts_with(' '));
        if let Some((_, after)) = method.and_then(|line| line.split_once("fn ")) {
            names.push(after.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect());
        }
    }
    names
}

/// A request may purge, and a purge makes no request: the methods of one struct in several files
/// are in order, as the files are.
#[test]
fn methods_of_the_state_call_those_before_them() {
    let mut files = Vec::new();
    for_each_module(&mut |module, code| {
        files.push((place(module), module.to_owned(), code.to_owned()));
    });
    files.sort();
    let (mut above, mut calls) = (Vec::<String>::new(), 0);
    for (_, module, code) in files.iter().rev().filter(|file| file.1 != "vmap") {
        let own = methods_of_the_state(code);
        if own.is_empty() {
            continue;
        }
        for method in &above {
            assert!(
                !code.contains(&format!("self.{method}(")),
                "{module} calls {method}, which is in a file after it"
            );
        }
        calls += own.iter().filter(|own| code.contains(&format!("self.{own}("))).count();
        above.extend(own);
    }
    assert!(above.len() > 50 && calls > 20, "the sources are found, and read");
}

#[test]
fn only_one_module_asks_for_a_model() {
    for_each_module(&mut |module, code| {
        for word in ["sync::atomic", "spin_loop", "loom::", "shuttle::"] {
            assert!(!code.contains(word), "{module} names {word}: use `pagedepot::sync::prim`");
        }
        if !["lib", "model"].contains(&module) {
            for word in ["loom", "shuttle"] {
                assert!(!code.contains(word), "{module} asks for {word}: `model` is for that");
            }
        }
    });
}

#[test]
fn unsafe_code_is_where_it_is_said_to_be() {
    let mut found = Vec::new();
    for_each_module(&mut |module, code| {
        if code.contains("#![allow(unsafe_code)]") {
            found.push(module.to_owned());
        }
        let is_said = UNSAFE.contains(&module) || module.starts_with("seams::");
        // `vmap` declares an unsafe constructor, and calls nothing unsafe.
        let unsafes = code.matches("unsafe ").count();
        let allowed = if module == "vmap" { 1 } else { 0 };
        assert!(is_said || unsafes == allowed, "{module} has unsafe code and does not say so");
        assert_eq!(module == "lib", code.contains("#![deny(unsafe_code)]"), "{module}");
    });
    found.sort();
    let mut expected = UNSAFE;
    expected.sort();
    assert_eq!(found, expected);
}
