//! The command in a real terminal: 80 by 24 and 120 by 40. What is looked at is what a person would
//! see: nothing is wider than the terminal, and colours come with marks.

use std::io::Write as _;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use crate::pty::{Pty, run};
use crate::scripts::{check_all, has_two_cpus};

const SIZES: [(u16, u16); 2] = [(24, 80), (40, 120)];

#[test]
fn help_fits() {
    for size in SIZES {
        for arguments in [&["--help"][..], &["help", "bench"]] {
            let seen = run(arguments, size, &[]);
            assert_eq!(seen.exit_code, 0, "{arguments:?}: {}", seen.text());
        }
    }
}

#[test]
fn workloads_fit_and_conclude() {
    let workloads = SIZES.iter().flat_map(|&size| [("hot", size), ("drain", size)]);
    check_all(workloads, |(workload, size)| {
        if workload == "drain" && !has_two_cpus() {
            return;
        }
        let arguments = ["bench", workload, "--quick", "--runs", "2"];
        let seen = run(&arguments, size, &[]);
        let text = seen.text();
        assert!(text.contains("In short\n- "), "{text}");
        assert!(text.contains("floor-spin*") && text.contains("not an allocator"), "{text}");
    });
}

/// A terminal that obeys no control sequences gets none: lines in place of bars, and no colours.
#[test]
fn dumb_terminals_get_plain_lines() {
    check_all(["dumb", ""], |term| {
        let arguments = ["bench", "hot", "--design", "floor-tls", "--quick", "--runs", "2"];
        let seen = run(&arguments, (24, 80), &[("TERM", term)]);
        assert_eq!(seen.exit_code, 0, "{}", seen.text());
        assert!(seen.text().contains("floor-tls") && !seen.raw.contains('\x1b'), "{}", seen.raw);
    });
}

#[test]
fn errors_fit() {
    for size in SIZES {
        let seen = run(&["bench", "cold"], size, &[]);
        assert_eq!(seen.exit_code, 2, "{}", seen.text());
        // Wherever a line ends.
        let words: Vec<_> = seen.text().split_whitespace().map(str::to_owned).collect();
        assert!(words.join(" ").contains("there are hot"), "{}", seen.text());
    }
}

/// Long, because nothing waits for it unless something is wrong.
const LONG: Duration = Duration::from_secs(60);

/// Runs a command that measures, ends it by Ctrl-C when two rounds are done, and returns what it
/// wrote. Ctrl-C is a byte that the terminal turns into a signal.
fn stopped(arguments: &[&str]) -> serde_json::Value {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("part.json");
    let arguments = [arguments, &["--runs", "100000", "--json", file.to_str().unwrap()]].concat();
    let (terminal, mut child) = Pty::start(&arguments, (24, 80), &[]);
    let mut keys = terminal.keys();
    let (begun, measures) = mpsc::channel();
    let output = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        terminal.read(|part| {
            bytes.extend_from_slice(part);
            // The bar is drawn at the beginning, and at most once for each round.
            if bytes.windows(3).filter(|bytes| bytes == b"\x1b[K").count() > 2 {
                let _ = begun.send(());
            }
        });
        String::from_utf8_lossy(&bytes).into_owned()
    });
    // 100000 windows of 10 ms take a quarter of an hour, 100000 replays hours. Of a command that
    // has ended instead the output says why.
    let measures = measures.recv_timeout(LONG);
    assert_ne!(measures, Err(RecvTimeoutError::Timeout), "no round ends");
    let _ = keys.write_all(b"\x03");
    let asked = Instant::now();
    let status = child.wait().unwrap();
    assert!(asked.elapsed() < LONG);
    let output = output.join().unwrap();
    assert!(output.contains("stopping:") && output.contains("stopped by signal 2"), "{output}");
    assert_eq!(status.code(), Some(130), "{output}");
    let document: serde_json::Value =
        serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    assert_eq!(document["stopped"], true);
    let samples = document["results"][0]["samples"].as_array().unwrap().len();
    assert!((1..100_000).contains(&samples), "{samples}");
    document
}

#[test]
fn ctrl_c_writes_what_is_measured() {
    stopped(&["bench", "hot", "--design", "floor-tls", "--cpus", "1"]);
}

/// Designs behind the one that is being replayed into are not begun, nor is the run that tells of
/// contiguity.
#[test]
fn ctrl_c_ends_a_replay_after_its_round() {
    let trace = concat!(env!("CARGO_MANIFEST_DIR"), "/traces/build.perf.txt.zst");
    let designs = ["--design", "depot", "--design", "zone-lock"];
    let document = stopped(&[&["replay", trace][..], &designs].concat());
    for row in document["results"].as_array().unwrap() {
        assert_eq!(row["design"], "depot", "{row}");
        assert!(row["params"]["free_percent"].is_null(), "{row}");
    }
}
