//! Tests of surroundings that misbehave: full disks, readers that go away, damaged files, names
//! that are not text. Each is answered with one line, and nothing that was measured is lost.

#[path = "../../../crates/cli/tests/support/hostile.rs"]
mod support;

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;

use support::{bomb, pagedepot, refused, results, shipped, stderr, unread};

const COMMAND: &str = env!("CARGO_BIN_EXE_pagedepot-lab");
const TRACES: &str = "../../crates/cli/traces";

#[test]
fn samples_survive_a_comparison_that_cannot_be_made() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let mut command =
        pagedepot(&["compare", "--workload", "hot", "--design", "floor-tls", "--quick"]);
    command
        .args(["--runs", "1", "--clients", "1", "--metric", "nonsense", "--json"])
        .arg(file.path());
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("there are pair_ns"), "{}", stderr(&output));
    assert_eq!(results(file.path())["results"][0]["design"], "floor-tls");
}

#[test]
fn tables_end_quietly_with_their_reader() {
    let output = unread(pagedepot(&["compare", "--threads", "2013-magazine-i7"]));
    assert_eq!((output.status.code(), stderr(&output)), (Some(0), ""));
}

#[test]
fn damaged_and_misplaced_files_get_one_line() {
    let directory = tempfile::tempdir().unwrap();
    let short = directory.path().join("short.zst");
    // Nothing is left of a first block that ends early.
    fs::write(&short, &fs::read(shipped()).unwrap()[..50]).unwrap();
    let mut command = pagedepot(&["vmalloc", "--trace"]);
    command.arg(&short);
    assert!(refused(command).contains("ends early"));
    for (arguments, says) in [
        (&["vmalloc", "--trace"][..], "give the path of a recorded trace"),
        (&["compare"], "give a file that --json FILE wrote"),
    ] {
        let mut command = pagedepot(arguments);
        command.arg(directory.path());
        let line = refused(command);
        assert!(line.contains("directory") && line.contains(says), "{line}");
    }
}

#[test]
fn names_that_are_not_text_get_one_line() {
    let name = OsStr::from_bytes(b"no\xffname");
    for (arguments, says) in [
        (&["compare"][..], "cannot read"),
        (&["compare", "--threads"], "UTF-8"),
        (&["vmalloc", "--trace"], "cannot open"),
    ] {
        let mut command = pagedepot(arguments);
        command.arg(name);
        let output = command.output().unwrap();
        let line = String::from_utf8_lossy(&output.stderr);
        assert_eq!((output.status.code(), line.lines().count()), (Some(2), 1), "{line}");
        assert!(line.contains(says), "{line}");
    }
}

#[test]
fn columns_that_will_not_be_there_are_refused_before_measuring() {
    let line =
        refused(pagedepot(&["compare", "--design", "depot", "--design", "spin", "--base", "rcu"]));
    assert!(line.contains("no column is called rcu; there are depot, spin"), "{line}");
    assert!(
        refused(pagedepot(&["compare", "--base", "slab"])).contains("there are spin, zone-lock")
    );
}

#[test]
fn numbers_too_large_are_told_the_largest() {
    for (arguments, says) in [
        (&["compare", "--runs", "4294967295"][..], "at most 100000"),
        (&["soak", "--minutes", "1e300"], "at most 525600"),
        (&["soak", "--minutes", "inf"], "at most 525600"),
    ] {
        let line = refused(pagedepot(arguments));
        assert!(line.contains(says), "{line}");
    }
}

#[test]
fn designs_that_need_sequences_are_refused_without() {
    let mut command = pagedepot(&["bench", "hot", "--design", "rcu"]);
    command.env("GLIBC_TUNABLES", "glibc.pthread.rseq=0");
    assert!(refused(command).contains("leave it out"));
}

/// More addresses than a replay can have would have it look for them for hours.
#[test]
fn traces_that_hold_too_much_are_refused() {
    let head = " a 1 [000] 1.0: vmalloc:";
    let lazy = format!(
        "{head}free_vmap_area_noflush: va_start=0x1000 nr_lazy={} nr_lazy_max=8\n",
        u64::MAX
    );
    let area = |n: u64| {
        format!(
            "{head}alloc_vmap_area: va_start: {} size=4294967296 align=4096 vstart=0x0 vend=0x0 \
             failed=0\n",
            n << 32
        )
    };
    for trace in [lazy, (1..=129).map(area).collect()] {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), trace).unwrap();
        let mut command = pagedepot(&["vmalloc", "--quick", "--runs", "1", "--trace"]);
        command.arg(file.path());
        assert!(refused(command).contains("give a shorter part of it"));
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(
        file.path(),
        format!("{head}free_vmap_area_noflush: va_start=0x1000 nr_lazy=1048576 nr_lazy_max=8\n"),
    )
    .unwrap();
    let mut command = pagedepot(&["vmalloc", "--quick", "--runs", "1", "--trace"]);
    command.arg(file.path());
    assert!(refused(command).contains("begins with 1048576 pages of lazy areas"));
}

/// Names in result files may come from anywhere.
#[test]
fn nothing_in_a_file_moves_the_cursor() {
    // A control sequence, by its one-byte name too; a bell; a mark that turns the text around.
    let evil = "\u{1b}[2J\u{9b}31m\u{7}\u{202e}x";
    let obeyed = |text: &str| text.contains(['\u{1b}', '\u{9b}', '\u{7}', '\u{202e}']);
    let directory = tempfile::tempdir().unwrap();
    let gone = directory.path().join(format!("{evil}-gone"));
    for arguments in [&["compare"][..], &["vmalloc", "--trace"]] {
        let mut command = pagedepot(arguments);
        command.arg(gone.join("x"));
        let line = refused(command);
        assert!(!obeyed(&line) && line.contains("?[2J"), "{line:?}");
    }
    let row = |design: &str, unit: &str| {
        serde_json::json!({
            "workload": "w", "design": design, "metric": "m_ns", "unit": unit, "cpus": 1,
            "samples": [1, 2],
        })
    };
    let document = |design: &str, unit: &str, source: &str| {
        serde_json::json!({
            "schema": 1, "source": source, "machine": {"cpu": source},
            "results": [row(design, unit), row("b", unit)],
        })
    };
    let file = directory.path().join("results.json");
    for (design, unit) in [(evil, "ns"), ("a", evil)] {
        fs::write(&file, document(design, unit, "").to_string()).unwrap();
        let mut command = pagedepot(&["compare"]);
        command.arg(&file);
        let line = refused(command);
        assert!(line.contains("is no name") && !obeyed(&line), "{line:?}");
    }
    let other = directory.path().join("other.json");
    fs::write(&file, document("a", "ns", evil).to_string()).unwrap();
    fs::write(&other, document("a", "ns", "elsewhere").to_string()).unwrap();
    let output = pagedepot(&["compare", "--force"]).arg(&file).arg(&other).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let said = String::from_utf8(output.stdout.clone()).unwrap();
    assert!(said.contains("?[2J") && !obeyed(&said) && !obeyed(stderr(&output)), "{said:?}");
}

/// A small file that expands to a large one does so up to a limit, which can be raised.
#[test]
fn traces_that_expand_too_far_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let small = directory.path().join("small.zst");
    fs::write(&small, bomb().repeat(4)).unwrap();
    for (arguments, says) in [
        (&["vmalloc", "--expand-limit", "3", "--trace"][..], "expand to more than 3 MiB"),
        // To its end, where there is nothing for this replay.
        (&["vmalloc", "--expand-limit", "5", "--trace"], "no alloc_vmap_area"),
        (&["vmalloc", "--trace"], "no alloc_vmap_area"),
    ] {
        let mut command = pagedepot(arguments);
        command.arg(&small);
        let line = refused(command);
        let is_refused = says.starts_with("expand");
        assert!(line.contains(says) && line.contains("--expand-limit MIB") == is_refused, "{line}");
    }
}

/// Devices and pipes without an end, where a file is expected.
#[test]
fn files_without_an_end_are_refused() {
    for (arguments, says) in [
        (&["vmalloc", "--trace", "/dev/zero"][..], "is a binary file; a trace is needed here"),
        (&["compare", "/dev/zero"], "more than 256 MiB"),
        (&["simulate", "hot", "--topology", "/dev/zero"], "more than 256 MiB"),
    ] {
        let line = refused(pagedepot(arguments));
        assert!(line.contains(says), "{arguments:?}: {line}");
    }
}
