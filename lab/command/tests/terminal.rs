//! The command in a real terminal: 80 by 24 and 120 by 40. What is looked at is what a person would
//! see: nothing is wider than the terminal, and colours come with marks.

#[path = "../../../crates/cli/tests/support/terminal.rs"]
mod support;

use support::run;

const COMMAND: &str = env!("CARGO_BIN_EXE_pagedepot-lab");

const SIZES: [(u16, u16); 2] = [(24, 80), (40, 120)];

/// The figures of a run, saved once: what is shown of them does not change.
const BEFORE: &str = include_str!("data/before.json");
const AFTER: &str = include_str!("data/after.json");

fn saved(directory: &tempfile::TempDir) -> [String; 2] {
    [("before.json", BEFORE), ("after.json", AFTER)].map(|(name, text)| {
        let path = directory.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    })
}

#[test]
fn a_comparison_looks_like_this() {
    let directory = tempfile::tempdir().unwrap();
    let [before, after] = saved(&directory);
    for (rows, cols) in SIZES {
        let seen = run(&["compare", &before, &after], (rows, cols), &[("NO_COLOR", "1")]);
        let folder = directory.path().to_str().unwrap();
        insta::assert_snapshot!(format!("compare_{cols}"), seen.text().replace(folder, "DIR"));
    }
}

#[test]
fn colours_come_with_marks_and_can_be_refused() {
    let directory = tempfile::tempdir().unwrap();
    let [before, after] = saved(&directory);
    let coloured = run(&["compare", &before, &after], (24, 80), &[]);
    assert!(coloured.raw.contains("\x1b[32m▲") && coloured.raw.contains("\x1b[31m▼"));
    for refusal in [("NO_COLOR", "1"), ("TERM", "dumb")] {
        let plain = run(&["compare", &before, &after], (24, 80), &[refusal]);
        assert!(!plain.raw.contains('\x1b'), "{refusal:?}");
        assert_eq!(plain.text(), coloured.text());
    }
}

#[test]
fn help_and_printed_tables_fit() {
    for size in SIZES {
        for arguments in [
            &["--help"][..],
            &["help", "compare"],
            &["compare", "--threads", "2022-rcu-epyc-7742"],
            &["compare", "--threads", "2013-magazine-i7"],
        ] {
            let seen = run(arguments, size, &[]);
            assert_eq!(seen.exit_code, 0, "{arguments:?}: {}", seen.text());
        }
    }
}

#[test]
fn errors_fit() {
    let directory = tempfile::tempdir().unwrap();
    let [before, _] = saved(&directory);
    for size in SIZES {
        for (arguments, hint) in [
            (&["compare", &before, "--save-baseline", "a"][..], "cannot be used"),
            (&["compare", &before, "--threads", "none"], "2022-rcu-epyc-7742"),
        ] {
            let seen = run(arguments, size, &[]);
            assert_eq!(seen.exit_code, 2, "{}", seen.text());
            // Wherever a line ends.
            let words: Vec<_> = seen.text().split_whitespace().map(str::to_owned).collect();
            assert!(words.join(" ").contains(hint), "{}", seen.text());
        }
    }
}
