//! The command in a real terminal: 80 by 24 and 120 by 40. What is looked at is what a person would
//! see: nothing is wider than the terminal, and colours come with marks.

use std::io::Read;
use std::num::NonZero;
use std::time::{Duration, Instant};

use portable_pty::{CommandBuilder, PtySize, native_pty_system};

/// The screen and what scrolled off it, line by line, with the raw bytes.
struct Seen {
    lines: Vec<String>,
    raw: String,
    exit_code: u32,
}

/// Runs the command in a terminal of this size.
fn run(arguments: &[&str], (rows, cols): (u16, u16), variables: &[(&str, &str)]) -> Seen {
    let size = PtySize { rows, cols, pixel_width: 0, pixel_height: 0 };
    let pair = native_pty_system().openpty(size).unwrap();
    let mut command = CommandBuilder::new(assert_cmd::cargo::cargo_bin("pagedepot"));
    command.args(arguments);
    command.env("TERM", "xterm");
    command.env_remove("NO_COLOR");
    variables.iter().for_each(|(name, value)| command.env(name, value));
    let mut child = pair.slave.spawn_command(command).unwrap();
    drop(pair.slave);
    let mut reader = pair.master.try_clone_reader().unwrap();
    let mut bytes = Vec::new();
    // The end of a terminal is an error of reading (EIO).
    let mut part = [0; 4096];
    while let Ok(n @ 1..) = reader.read(&mut part) {
        bytes.extend_from_slice(&part[..n]);
    }
    let exit_code = child.wait().unwrap().exit_code();
    // Far more rows than the terminal has, so that nothing scrolls off; its own columns.
    let mut parser =
        vt100::Parser::new(NonZero::new(2000).unwrap(), NonZero::new(cols).unwrap(), 0);
    parser.process(&bytes);
    let screen = parser.screen();
    // A row that wraps was wider than the terminal.
    let wraps = (0..2000).filter(|&row| screen.row_wrapped(row)).count();
    let lines: Vec<String> = screen.rows(0, cols).map(|line| line.trim_end().to_owned()).collect();
    assert_eq!(wraps, 0, "{arguments:?} is wider than {cols}:\n{}", lines.join("\n").trim_end());
    Seen { lines, raw: String::from_utf8(bytes).unwrap(), exit_code }
}

impl Seen {
    fn text(&self) -> String {
        self.lines.join("\n").trim_end().to_owned()
    }
}

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
            &["help", "bench"],
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
fn workloads_fit_and_conclude() {
    for size in SIZES {
        for workload in ["hot", "drain"] {
            if workload == "drain" && std::thread::available_parallelism().unwrap().get() < 2 {
                continue;
            }
            let arguments = ["bench", workload, "--quick", "--runs", "2"];
            let seen = run(&arguments, size, &[]);
            let text = seen.text();
            assert!(text.contains("In short\n- "), "{text}");
            assert!(text.contains("floor-spin*") && text.contains("not an allocator"), "{text}");
        }
    }
}

#[test]
fn errors_fit() {
    let directory = tempfile::tempdir().unwrap();
    let [before, _] = saved(&directory);
    for size in SIZES {
        for (arguments, hint) in [
            (&["bench", "cold"][..], "there are hot"),
            (&["compare", &before, "--save-baseline", "a"], "cannot be used"),
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

/// Ctrl-C is a byte that the terminal turns into a signal.
#[test]
fn ctrl_c_writes_what_is_measured() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("part.json");
    let size = PtySize { rows: 24, cols: 80, pixel_width: 0, pixel_height: 0 };
    let pair = native_pty_system().openpty(size).unwrap();
    let mut command = CommandBuilder::new(assert_cmd::cargo::cargo_bin("pagedepot"));
    command.args(["bench", "hot", "--design", "floor-tls", "--cpus", "1", "--runs", "100000"]);
    command.args(["--json", file.to_str().unwrap()]);
    let mut child = pair.slave.spawn_command(command).unwrap();
    drop(pair.slave);
    let mut reader = pair.master.try_clone_reader().unwrap();
    let output = std::thread::spawn(move || {
        let (mut bytes, mut part) = (Vec::new(), [0; 4096]);
        while let Ok(n @ 1..) = reader.read(&mut part) {
            bytes.extend_from_slice(&part[..n]);
        }
        String::from_utf8_lossy(&bytes).into_owned()
    });
    // 100000 windows of 10 ms take a quarter of an hour; some of them are done by then.
    std::thread::sleep(Duration::from_secs(3));
    let mut writer = pair.master.take_writer().unwrap();
    std::io::Write::write_all(&mut writer, b"\x03").unwrap();
    let asked = Instant::now();
    let status = child.wait().unwrap();
    assert!(asked.elapsed() < Duration::from_secs(60));
    let output = output.join().unwrap();
    assert!(output.contains("stopping:") && output.contains("stopped by signal 2"), "{output}");
    assert_eq!(status.exit_code(), 130, "{output}");
    let document: serde_json::Value =
        serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    assert_eq!(document["stopped"], true);
    let samples = document["results"][0]["samples"].as_array().unwrap().len();
    assert!((1..100_000).contains(&samples), "{samples}");
}
