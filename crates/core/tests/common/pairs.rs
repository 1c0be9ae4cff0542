//! A table of pairs of features: which test crosses each, or why the two cannot meet.
//!
//! It has four parts, each after a line with its name:
//! * `features`: a name, a colon, and the public calls that belong to it, `Type::call,call`; `+`
//!   continues a line. The line `no feature` has the calls that only read or configure.
//! * `tests`: a key, a file below the crate's folder `tests`, and a function in it.
//! * `reasons`: a number, and why two features cannot meet.
//! * `pairs`: for each feature a line with its name, a colon, and one key for each feature before
//!   it. `S` is the storm, which counts the pairs that meet and fails if one does not.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// The key of the storm.
pub const STORM: &str = "S";
const NO_FEATURE: &str = "no feature";

/// The name at the beginning of a line, and the words after its colon.
type Row<'t> = (&'t str, Vec<&'t str>);

pub struct Table<'t> {
    features: Vec<Row<'t>>,
    tests: BTreeMap<&'t str, (&'t str, &'t str)>,
    reasons: BTreeMap<&'t str, &'t str>,
    pairs: Vec<Row<'t>>,
}

impl<'t> Table<'t> {
    /// # Panics
    /// When the text is no table, or its triangle has a hole.
    pub fn parse(text: &'t str) -> Self {
        let mut table = Table {
            features: Vec::new(),
            tests: BTreeMap::new(),
            reasons: BTreeMap::new(),
            pairs: Vec::new(),
        };
        let mut part = "";
        for line in text.lines().map(str::trim_end).filter(|line| !line.is_empty()) {
            if line.starts_with('#') {
                continue;
            }
            if !line.starts_with(' ') {
                part = line;
                continue;
            }
            let line = line.trim_start();
            match (part, line.strip_prefix('+')) {
                (_, Some(more)) => {
                    let row = table.features.last_mut().expect("a line to continue");
                    row.1.extend(more.split_whitespace());
                }
                ("features", _) => table.features.push(row(line)),
                ("pairs", _) => table.pairs.push(row(line)),
                ("tests", _) => {
                    let words: Vec<&str> = line.split_whitespace().collect();
                    let [key, file, function] = words[..] else { panic!("no test: {line}") };
                    assert!(table.tests.insert(key, (file, function)).is_none(), "{key} twice");
                }
                ("reasons", _) => {
                    let (key, reason) = line.split_once(' ').expect("a key and a reason");
                    assert!(key.parse::<u32>().is_ok() && reason.trim().len() > 20, "{line}");
                    assert!(table.reasons.insert(key, reason).is_none(), "{key} twice");
                }
                _ => panic!("no part of the table: {part}"),
            }
        }
        table.check_triangle();
        table
    }

    /// The features, in their order.
    pub fn names(&self) -> Vec<&'t str> {
        self.features.iter().map(|row| row.0).filter(|&name| name != NO_FEATURE).collect()
    }

    /// The numbers of the features in each pair that the storm crosses.
    pub fn of_storm(&self) -> impl Iterator<Item = (usize, usize)> {
        let cells = self.pairs.iter().enumerate().flat_map(|(one, row)| {
            row.1.iter().enumerate().map(move |(other, &key)| (one, other, key))
        });
        cells.filter(|cell| cell.2 == STORM).map(|(one, other, _)| (one, other))
    }

    fn check_triangle(&self) {
        let names = self.names();
        let rows: Vec<&str> = self.pairs.iter().map(|row| row.0).collect();
        assert_eq!(rows, names, "the pairs have a row for each feature, in the same order");
        let mut used = BTreeSet::new();
        for (number, (name, keys)) in self.pairs.iter().enumerate() {
            assert_eq!(keys.len(), number, "{name}: one key for each feature before it");
            for key in keys {
                let is_known = self.tests.contains_key(key) || self.reasons.contains_key(key);
                assert!(is_known, "{name}: {key} is neither a test nor a reason");
                used.insert(*key);
            }
        }
        for key in self.tests.keys().chain(self.reasons.keys()) {
            assert!(used.contains(key), "{key} is used by no pair");
        }
    }

    /// Fails unless every named test is a test of the crate in `root`.
    pub fn check_tests(&self, root: &Path) {
        for (key, (file, function)) in &self.tests {
            let text = fs::read_to_string(root.join("tests").join(file))
                .unwrap_or_else(|error| panic!("{key}: {file}: {error}"));
            let at = text.find(&format!("fn {function}()"));
            let at = at.unwrap_or_else(|| panic!("{key}: {file} has no test {function}"));
            let before = text[..at].trim_end().lines().rev();
            let is_test = before.take_while(|line| !line.is_empty()).any(|line| line == "#[test]");
            assert!(is_test, "{key}: {function} in {file} is no test");
        }
    }

    /// Fails unless every public call of these types belongs to a feature, or to none, by a line of
    /// the table, and every call of the table exists. Reads the sources in each folder for the
    /// types beside it: `Type`, or `module::Type` where two modules have one.
    pub fn check_calls(&self, sources: &[(&Path, &[&str])]) {
        let mut calls = BTreeSet::new();
        for (folder, types) in sources {
            for_each_source(folder, &mut |path, text| {
                let module = path.strip_prefix(folder).unwrap().iter().next().unwrap();
                calls_of(text, module.to_str().unwrap(), types, &mut calls);
            });
        }
        let words = self.features.iter().flat_map(|row| &row.1);
        let listed_calls = words.flat_map(|word| {
            let (of, calls) = word.rsplit_once("::").unwrap_or_else(|| panic!("no type: {word}"));
            calls.split(',').map(move |call| format!("{of}::{call}"))
        });
        let (mut listed, mut unknown) = (BTreeSet::new(), Vec::new());
        for call in listed_calls {
            if !calls.contains(&call) {
                unknown.push(call.clone());
            }
            assert!(!listed.contains(&call), "{call} is listed twice");
            listed.insert(call);
        }
        let missing: Vec<&String> = calls.difference(&listed).collect();
        assert!(
            missing.is_empty() && unknown.is_empty(),
            "{missing:?} belong to no feature: add each to a row of the table, or a row and what \
             crosses it with each other feature. {unknown:?} are no public calls any more"
        );
    }
}

fn row(line: &str) -> Row<'_> {
    let (name, words) = line.split_once(':').unwrap_or_else(|| panic!("no colon: {line}"));
    (name, words.split_whitespace().collect())
}

fn for_each_source(folder: &Path, with: &mut impl FnMut(&Path, &str)) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            for_each_source(&path, with);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            with(&path, &fs::read_to_string(&path).unwrap());
        }
    }
}

/// The public methods in the `impl` blocks of these types, and of these traits, as they stand in a
/// formatted file of `module`.
fn calls_of(text: &str, module: &str, types: &[&str], calls: &mut BTreeSet<String>) {
    let type_of = |word: &str| {
        let is_it = |name: &&str| match name.split_once("::") {
            Some((within, name)) => within == module && name == word,
            None => *name == word,
        };
        types.iter().copied().find(is_it)
    };
    let (mut of_type, mut is_trait) = (None, false);
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if let Some(name) = line.strip_prefix("pub trait ") {
            // The calls of a trait are as public as the trait.
            (of_type, is_trait) = (type_of(name.trim_end_matches(" {")), true);
        } else if line.starts_with("impl") {
            let mut header = line.to_owned();
            while !header.contains('{') {
                header.push_str(lines.next().unwrap_or("{"));
            }
            let of = header.split(" for ").last().unwrap_or_default();
            let of_trait = header.contains(" for ");
            let words = |c: char| !c.is_alphanumeric() && c != '_';
            let found = of.split(words).find_map(type_of);
            (of_type, is_trait) = (found.filter(|_| !of_trait), false);
        } else if line.starts_with('}') {
            of_type = None;
        }
        let Some(of) = of_type else { continue };
        let indent = if is_trait { "    " } else { "    pub " };
        let line = line.strip_prefix(indent).unwrap_or_default();
        let line = line.trim_start_matches("const ").trim_start_matches("unsafe ");
        if let Some(rest) = line.strip_prefix("fn ") {
            let end = rest.find(['(', '<']).unwrap_or(rest.len());
            calls.insert(format!("{of}::{}", &rest[..end]));
        }
    }
}
