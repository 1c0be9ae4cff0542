//! A test that cannot check something says so by `skip` of `crates/core/tests/common`. The harness
//! keeps what the print macros say in a test that passes. Examples say it to the tests that run
//! them.

use std::fs;
use std::path::Path;

/// Calls `with` for each source below `directory` that is no example's.
fn for_each_source(directory: &Path, with: &mut impl FnMut(&Path, &str)) {
    for entry in fs::read_dir(directory).unwrap() {
        let entry = entry.unwrap();
        let (path, kind) = (entry.path(), entry.file_type().unwrap());
        let is_examples = path.ends_with("examples") && !directory.ends_with("tests");
        if kind.is_dir() && entry.file_name() != "target" && !is_examples {
            for_each_source(&path, with);
        } else if kind.is_file() && path.extension().is_some_and(|extension| extension == "rs") {
            with(&path, &fs::read_to_string(&path).unwrap());
        }
    }
}

/// The texts of a source that print macros say of something that is skipped.
fn captured(source: &str) -> impl Iterator<Item = &str> {
    let calls = ["print!(", "println!("].into_iter().flat_map(|call| source.split(call).skip(1));
    let texts = calls.filter_map(|after| after.trim_start().strip_prefix('"')?.split('"').next());
    texts.filter(|text| {
        let text = text.to_lowercase();
        text.contains("skipped") || text.contains("nothing to test")
    })
}

#[test]
fn no_skip_is_captured() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let (mut sources, mut faults) = (0, Vec::new());
    for folder in ["crates", "lab", "models"] {
        for_each_source(&root.join(folder), &mut |path, source| {
            sources += 1;
            faults.extend(captured(source).map(|text| format!("{}: {text}", path.display())));
        });
    }
    assert!(sources > 500, "only {sources} sources were found");
    assert!(faults.is_empty(), "call skip() for:\n{}", faults.join("\n"));
}

#[test]
fn captured_skips_are_found() {
    let count = |source| captured(source).count();
    assert_eq!(count("return eprintln!(\n    \"\\nSKIPPED: no {why}\"\n);"), 1);
    assert_eq!(count("println!(\"skipped: {why}\"); print!(\"{why}: nothing to test\")"), 2);
    assert_eq!(count("println!(\"{} pages\", \"skipped\"); skip(\"SKIPPED\");"), 0);
}
