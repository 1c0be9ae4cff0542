//! Reads a crate's sources: which files use which. For the tests `layers` of the commands, linux
//! and designs.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// Modules by their paths (`design::variant`), each with the code of its file, without comments
/// and tests.
type Modules = BTreeMap<String, String>;

fn read(root: &Path, directory: &Path, modules: &mut Modules) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            read(root, &path, modules);
            continue;
        }
        let relative = path.strip_prefix(root).unwrap().with_extension("");
        let parts: Vec<&str> = relative
            .iter()
            .map(|part| part.to_str().unwrap())
            .filter(|part| *part != "mod")
            .collect();
        if path.extension().is_some_and(|ending| ending == "rs")
            && !["main", "tests", "loom_tests", "closed"].contains(parts.last().unwrap_or(&""))
            && !parts.iter().any(|part| part.ends_with("tests"))
        {
            modules.insert(parts.join("::"), code(&fs::read_to_string(&path).unwrap()));
        }
    }
}

/// The code of a file: no comments, nothing from its unit tests on.
fn code(text: &str) -> String {
    let tests =
        ["\n#[cfg(test)]\nmod tests {", "\n#[cfg(test)]\npub mod tests {", "\n#[cfg(all(test"];
    let end = tests.iter().filter_map(|tests| text.find(tests)).min().unwrap_or(text.len());
    let text = &text[..end];
    let lines = text.lines().map(|line| line.split_once("//").map_or(line, |(code, _)| code));
    lines.collect::<Vec<_>>().join("\n")
}

fn modules() -> Modules {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut modules = Modules::new();
    read(&sources, &sources, &mut modules);
    assert!(modules.len() > 10, "the sources are found");
    modules
}

fn is_in_name(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// All paths that begin at `crate`, `super` or `self` in a file's code, lists in braces unfolded:
/// `super::a::{b, c::D}` is `super::a::b` and `super::a::c::D`.
fn paths(code: &str) -> Vec<String> {
    let mut found = Vec::new();
    for root in ["crate::", "super::", "self::"] {
        for (at, _) in code.match_indices(root) {
            let before = code[..at].chars().next_back();
            // Inside a longer path or name; `$crate` is the same crate.
            if before.is_some_and(|c| is_in_name(c) || c == ':') {
                continue;
            }
            unfold("", &code[at..], &mut found);
        }
    }
    found
}

/// Adds the paths that `text` begins with, behind `prefix`; returns what follows them.
fn unfold<'t>(prefix: &str, text: &'t str, found: &mut Vec<String>) -> &'t str {
    let end = text.find(|c| !is_in_name(c) && c != ':').unwrap_or(text.len());
    let path = format!("{prefix}{}", &text[..end]);
    let Some(mut rest) = text[end..].strip_prefix('{').filter(|_| path.ends_with("::")) else {
        found.push(path.trim_end_matches(':').to_owned());
        return &text[end..];
    };
    loop {
        rest = unfold(&path, rest.trim_start(), found).trim_start();
        rest = match rest.chars().next() {
            Some(',') => rest[1..].trim_start(),
            Some('}') => return &rest[1..],
            // `a as b`, or something that is no path.
            _ => match rest.find([',', '}']) {
                Some(at) => &rest[at..],
                None => return "",
            },
        };
        if let Some(rest) = rest.strip_prefix('}') {
            return rest;
        }
    }
}

/// The module that a path in `module` leads to: the longest one that is a file. A name that a
/// folder's own file re-exports leads on to the file that has it.
fn target(module: &str, path: &str, modules: &Modules) -> Option<String> {
    let mut at: Vec<&str> = module.split("::").filter(|part| !part.is_empty()).collect();
    let mut parts = path.split("::").peekable();
    match parts.peek() {
        Some(&"crate") => at.clear(),
        Some(&"self" | &"super") => {}
        _ => return None,
    }
    while let Some(&root) = parts.peek() {
        match root {
            "crate" | "self" => {}
            "super" => drop(at.pop()),
            _ => break,
        }
        parts.next();
    }
    let mut file = at.join("::");
    for part in parts {
        let next = if file.is_empty() { part.to_owned() } else { format!("{file}::{part}") };
        if modules.contains_key(&next) {
            file = next;
            continue;
        }
        if let Some(code) = modules.get(&file).filter(|_| !file.is_empty())
            && let Some(from) = re_exported(&file, part, code, modules)
        {
            return Some(from);
        }
        break;
    }
    modules.contains_key(&file).then_some(file)
}

/// The module that `file` re-exports `name` from.
fn re_exported(file: &str, name: &str, code: &str, modules: &Modules) -> Option<String> {
    for after in code.split("pub use ").skip(1) {
        let mut found = Vec::new();
        unfold("", after.trim_start(), &mut found);
        if let Some(path) = found.iter().find(|path| path.rsplit("::").next() == Some(name)) {
            let path = match path.split("::").next() {
                Some("crate" | "super" | "self") => path.clone(),
                _ => format!("self::{path}"),
            };
            return target(file, &path, modules);
        }
    }
    None
}

/// The modules that each module uses, its own children's files included where it calls them.
/// `least` says how many uses there are at least.
pub fn uses(least: usize) -> BTreeMap<String, BTreeSet<String>> {
    let modules = modules();
    let mut uses = BTreeMap::new();
    for (module, code) in &modules {
        // What a folder's own file re-exports is used by the file that names it.
        let code: String = code
            .split_inclusive(';')
            .filter(|statement| !statement.trim_start().starts_with("pub use "))
            .collect();
        let mut used: BTreeSet<String> =
            paths(&code).iter().filter_map(|path| target(module, path, &modules)).collect();
        // `child::function(...)` in a folder's own file.
        let children = modules.keys().filter(|other| {
            other.strip_prefix(module.as_str()).is_some_and(|rest| {
                rest.strip_prefix("::").is_some_and(|rest| !rest.contains("::"))
            })
        });
        for child in children {
            let name = child.rsplit("::").next().unwrap();
            let is_called = code.match_indices(&format!("{name}::")).any(|(at, _)| {
                !code[..at].chars().next_back().is_some_and(|c| is_in_name(c) || c == ':')
            });
            if is_called {
                used.insert(child.clone());
            }
        }
        used.remove(module);
        uses.insert(module.clone(), used);
    }
    let all: usize = uses.values().map(BTreeSet::len).sum();
    assert!(all > least, "the sources are read: {all}");
    uses
}

/// Asserts that no file uses another that uses it in turn, directly or through others.
pub fn assert_no_circles(mut uses: BTreeMap<String, BTreeSet<String>>) {
    // Takes away, again and again, files that use none of those left: what stays is in circles,
    // or uses one that is.
    loop {
        let done: Vec<String> = uses
            .iter()
            .filter(|(_, used)| used.iter().all(|other| !uses.contains_key(other)))
            .map(|(module, _)| module.clone())
            .collect();
        if done.is_empty() {
            break;
        }
        done.iter().for_each(|module| drop(uses.remove(module)));
    }
    let left: Vec<String> = uses
        .iter()
        .map(|(module, used)| {
            let others: Vec<&str> =
                used.iter().filter(|other| uses.contains_key(*other)).map(String::as_str).collect();
            format!("{module} uses {}", others.join(", "))
        })
        .collect();
    assert!(left.is_empty(), "circles of files:\n{}", left.join("\n"));
}
