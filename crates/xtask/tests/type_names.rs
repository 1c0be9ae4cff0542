//! Types are nouns: what is it? A name that is one participle (`Held`, `Taken`, `Passing`) says
//! what happened to something, or what it does, and a reader who meets it must look it up. Names
//! that only begin with one (`TakenPages`) say it.
//!
//! The rule looks at words, not at grammar: a participle that it misses is still one.

use std::fs;
use std::path::{Path, PathBuf};

/// Participles without a noun that may stay.
const MOST: usize = 8;
/// Participles that do not end like others.
const IRREGULAR: [&str; 24] = [
    "Bound", "Built", "Done", "Drawn", "Found", "Given", "Gone", "Held", "Kept", "Known", "Laid",
    "Left", "Lost", "Made", "Met", "Paid", "Seen", "Sent", "Shown", "Spent", "Taken", "Told",
    "Unmade", "Written",
];
/// Nouns that end like participles.
const NOUNS: [&str; 16] = [
    "Ceiling",
    "Feed",
    "Listing",
    "Mapping",
    "Need",
    "Reading",
    "Reporting",
    "Ring",
    "Seed",
    "Setting",
    "Speed",
    "Spring",
    "String",
    "Timing",
    "Tracing",
    "Tuning",
];

fn for_each_source(directory: &Path, with: &mut impl FnMut(&Path, &str)) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if path.is_dir() && name != "target" && !name.contains("tests") {
            for_each_source(&path, with);
        } else if name.ends_with(".rs") && !name.contains("tests") {
            with(&path, &fs::read_to_string(&path).unwrap());
        }
    }
}

/// The name of the type that a line defines.
fn type_of(line: &str) -> Option<&str> {
    let mut words = line.split_whitespace().skip_while(|word| word.starts_with("pub"));
    let is_type = ["struct", "enum", "union"].contains(&words.next()?);
    let name = is_type.then(|| words.next())??;
    name.split(|c: char| !c.is_alphanumeric()).next()
}

fn is_participle(name: &str) -> bool {
    let is_one_word = name.chars().filter(|c| c.is_uppercase()).count() == 1;
    let ends_like_one = name.ends_with("ed") || name.ends_with("ing");
    is_one_word && !NOUNS.contains(&name) && (ends_like_one || IRREGULAR.contains(&name))
}

#[test]
fn types_are_nouns() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let (mut types, mut found) = (0, Vec::<(String, PathBuf)>::new());
    for_each_source(&crates, &mut |path, text| {
        for line in text.split("#[cfg(all(test").next().unwrap().lines() {
            let Some(name) = type_of(line) else { continue };
            types += 1;
            if is_participle(name) {
                let is_public = line.starts_with("pub struct") || line.starts_with("pub enum");
                let file = path.to_str().unwrap();
                let is_product = ["core", "contiguity", "vmap", "rseq", "linux", "capi"]
                    .iter()
                    .any(|of| file.contains(&format!("/../{of}/")));
                assert!(!(is_public && is_product), "{name} in {file} is public: name the noun");
                found.push((name.to_owned(), path.to_owned()));
            }
        }
    });
    assert!(types > 500, "the sources are found, and read");
    assert!(found.len() <= MOST, "{} participles for types: {found:?}", found.len());
}

#[test]
fn participles_are_told_from_nouns() {
    assert_eq!(type_of("    pub(super) struct Held<'a> {"), Some("Held"));
    assert_eq!(type_of("pub enum Mode {"), Some("Mode"));
    assert_eq!(type_of("let structure = 1;"), None);
    assert!(is_participle("Held") && is_participle("Filled") && is_participle("Passing"));
    assert!(!is_participle("HeldPages") && !is_participle("Seed") && !is_participle("Ring"));
}
