//! The threads' own tables, shipped with the command so that they are there wherever it is.

use std::path::PathBuf;

use super::columns::NamedDocument;
use pagedepot_cli::failure::Failure;
use pagedepot_cli::report::document::Document;

macro_rules! shipped {
    ($($name:literal),* $(,)?) => {
        &[$(($name, include_str!(concat!("../../results/threads/", $name, ".json")))),*]
    };
}

/// Names and contents, in the order of the threads.
const TABLES: &[(&str, &str)] = shipped![
    "2013-magazine-i7",
    "2022-rcu-epyc-7742",
    "2022-rcu-epyc-7601",
    "2022-rcu-power9",
    "2022-rcu-neoverse-n1",
    "2022-rcu-xeon-e5-2640",
    "2022-rcu-thunderx2",
    "2022-rcu-cortex-a72",
    "2022-netperf-skylake",
    "2022-netperf-icelake",
    "2024-vmap-3970x",
    "2024-vmap-page-tables",
];

/// The names of all tables, separated by commas.
pub fn names() -> impl Iterator<Item = &'static str> {
    TABLES.iter().map(|&(name, _)| name)
}

/// The table called `name`.
///
/// # Errors
/// Lists the names there are.
pub fn load(name: &str) -> Result<NamedDocument, Failure> {
    let text =
        TABLES.iter().find(|table| table.0 == name).map(|table| table.1).ok_or_else(|| {
            let there = names().collect::<Vec<_>>().join(", ");
            Failure::Usage(format!("no thread has a table {name}; there are {there}"))
        })?;
    Ok(NamedDocument { path: PathBuf::from(name), document: Document::parse(text, name)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_file_is_shipped_under_its_name() {
        let directory = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("results/threads");
        let files = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
        let mut files: Vec<String> = files
            .filter(|path| path.extension().is_some_and(|e| e == "json"))
            .map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned())
            .collect();
        files.sort();
        let mut shipped: Vec<&str> = names().collect();
        shipped.sort_unstable();
        assert_eq!(files, shipped);
        for name in names() {
            let table = load(name).unwrap();
            assert!(table.document.source.is_some(), "{name}");
        }
    }

    #[test]
    fn names_that_are_not_there_are_answered_with_those_that_are() {
        let line = load("2022").unwrap_err().to_string();
        assert!(line.contains("2022-rcu-epyc-7742, ") && !line.contains('\n'), "{line}");
    }
}
