//! The command's `compare`, as its users run it: what it prints, and what it says to bad input.

use std::path::{Path, PathBuf};
use std::process::Output;

use serde_json::Value;

const FILE: &str = r#"{"schema":1,"machine":{"cpu":"A","cpus":2},"command":"bench hot","seed":1,
    "settings":{"quick":false},"results":[
    {"workload":"hot","design":"spin","metric":"pair_ns","unit":"ns","cpus":1,
     "samples":[20,21,22,23,24]},
    {"workload":"hot","design":"depot","metric":"pair_ns","unit":"ns","cpus":1,
     "samples":[5,6,7,8,9]}]}"#;

fn compare(arguments: &[&str]) -> Output {
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_pagedepot-lab"));
    command.arg("compare").args(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

fn stdout(arguments: &[&str]) -> String {
    let output = compare(arguments);
    assert!(output.status.success(), "{arguments:?}: {}", text(&output.stderr));
    text(&output.stdout).to_owned()
}

/// The one line, with exit code 2 and nothing on stdout.
fn refused(arguments: &[&str]) -> String {
    let output = compare(arguments);
    let line = text(&output.stderr).to_owned();
    assert_eq!(output.status.code(), Some(2), "{arguments:?}: {line}");
    assert!(output.stdout.is_empty(), "{arguments:?}");
    assert!(line.starts_with("pagedepot-lab: ") && line.trim_end().lines().count() == 1, "{line}");
    line
}

/// A directory with files of these contents.
struct Files(tempfile::TempDir);

impl Files {
    fn new(files: &[(&str, &str)]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        for (name, contents) in files {
            std::fs::write(directory.path().join(name), contents).unwrap();
        }
        Files(directory)
    }

    fn path(&self, name: &str) -> String {
        self.0.path().join(name).to_str().unwrap().to_owned()
    }
}

#[test]
fn what_is_no_result_file_gets_one_line_each() {
    let files = Files::new(&[
        ("trace.txt", "not JSON"),
        ("list.json", "[1, 2]"),
        ("schema.json", r#"{"schema":9,"results":[]}"#),
        ("empty.json", r#"{"schema":1,"results":[]}"#),
        ("rows.json", r#"{"schema":1,"results":[{"workload":"hot"}]}"#),
        ("good.json", FILE),
    ]);
    for (file, says) in [
        ("missing.json", "cannot read"),
        ("trace.txt", "is not a result file"),
        ("list.json", "it has no schema"),
        ("schema.json", "its schema is 9, and 1 is known"),
        ("empty.json", "it has no results"),
        ("rows.json", "design"),
    ] {
        let line = refused(&[&files.path("good.json"), &files.path(file)]);
        assert!(
            line.contains(says) && line.contains(file) && line.contains("--json FILE"),
            "{line}"
        );
    }
}

#[test]
fn unlike_files_are_refused_and_forced() {
    let machine = FILE.replace(r#""cpu":"A""#, r#""cpu":"B""#);
    let quick = FILE.replace("\"quick\":false", "\"quick\":true");
    let files = Files::new(&[("a.json", FILE), ("machine.json", &machine), ("quick.json", &quick)]);
    for (other, says) in
        [("machine.json", "machine cpu is \"A\""), ("quick.json", "settings is {\"quick\":false}")]
    {
        let line = refused(&[&files.path("a.json"), &files.path(other)]);
        assert!(line.contains(says) && line.contains("--force"), "{line}");
        let forced = compare(&[&files.path("a.json"), &files.path(other), "--force"]);
        assert!(forced.status.success());
        assert!(
            text(&forced.stderr).starts_with("warning: ") && text(&forced.stderr).contains(says)
        );
    }
    stdout(&[&files.path("a.json"), &files.path("a.json")]);
}

#[test]
fn what_is_not_there_is_answered_with_what_is() {
    let files = Files::new(&[("a.json", FILE)]);
    let file = files.path("a.json");
    for (arguments, says) in [
        (&["--base", "vanilla"][..], "there are spin, depot"),
        (&["--design", "rcu"], "there are spin, depot"),
        (&["--workload", "pft"], "there are hot"),
        (&["--metric", "alloc_ns"], "there are pair_ns"),
        (&["--design", "spin"], "give another file"),
        (&["--format", "html"], "text, markdown, csv, json"),
        (&["--stat", "mode"], "min, mean"),
    ] {
        let line = refused(&[&[file.as_str()], arguments].concat());
        assert!(line.contains(says), "{arguments:?}: {line}");
    }
    assert!(refused(&["--threads", "lkml"]).contains("2022-rcu-epyc-7742"));
}

#[test]
fn percentages_stars_and_sizes_are_those_of_the_samples() {
    let files = Files::new(&[("a.json", FILE)]);
    let threads = |more: &[&str]| {
        stdout(&[&[files.path("a.json").as_str(), "--rule", "threads"], more].concat())
    };
    let text = threads(&["--stat", "mean", "--stat", "bamean"]);
    // 7 for 22: 68.18% better. The best four of five: 6.5 for 21.5.
    assert!(text.contains("Amean      pair-1  22.00 (   0.00%)  7.00 *  68.18%*"), "{text}");
    assert!(text.contains("BAmean-95  pair-1  21.50 (   0.00%)  6.50 (  69.77%)"), "{text}");
    assert!(!text.contains("Differences"));
    // The other way round it is 214.29% worse.
    assert!(threads(&["--base", "depot"]).contains("22.00 *-214.29%*"));
}

#[test]
fn a_comparison_begins_with_what_it_comes_to() {
    let files = Files::new(&[("a.json", FILE)]);
    let text = stdout(&[&files.path("a.json")]);
    assert!(
        text.starts_with("In short\ndepot beside spin: of 1 figure 1 better, 0 worse"),
        "{text}"
    );
    assert!(text.contains("Differences\n") && text.contains("5/5"), "{text}");
    assert!(text.contains("▲ better") && text.contains("Mann-Whitney"), "{text}");
}

#[test]
fn a_design_is_compared_with_itself_and_the_exit_code_tells() {
    let slower = FILE.replace("5,6,7,8,9", "6.1,7.1,8.1,9.1,10.1");
    let files = Files::new(&[("a.json", FILE), ("b.json", &slower)]);
    let (a, b) = (files.path("a.json"), files.path("b.json"));
    let text = stdout(&[&a, &b]);
    assert!(text.contains("b:spin beside a:spin: of 1 figure 0 better, 0 worse"), "{text}");
    assert!(text.contains("b:depot beside a:depot"), "{text}");
    assert!(!text.contains("beside a:spin: of 2"), "{text}");
    let fails = |arguments: &[&str]| {
        let output = compare(arguments);
        (output.status.code(), text_of(&output.stderr))
    };
    // spin is three times as slow as depot, without doubt; the same file is not.
    let (code, line) = fails(&[&a, "--base", "depot", "--fail-above", "5%"]);
    assert!(code == Some(3) && line.contains("1 figure is worse by more than 5 %"), "{line}");
    assert_eq!(fails(&[&a, &a, "--fail-above", "0"]).0, Some(0));
    assert_eq!(fails(&[&a, "--base", "depot", "--fail-above", "1000"]).0, Some(0));
    assert_eq!(fails(&[&a, "--fail-above", "-1"]).0, Some(2));
    // A check that can judge nothing fails, behind the table.
    let few = Files::new(&[("few.json", &FILE.replace("5,6,7,8,9", "5"))]);
    let output = compare(&[&few.path("few.json"), "--fail-above", "5%"]);
    assert!(output.status.code() == Some(2) && text_of(&output.stdout).starts_with("In short"));
    // A reader that has gone hides no verdict.
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_pagedepot-lab"));
    command.args(["compare", &a, "--base", "depot", "--fail-above", "5%"]).stdout(writer);
    assert_eq!(command.output().unwrap().status.code(), Some(3));
    assert_eq!(fails(&[&a, "--fail-above", "much"]).0, Some(2));
}

fn text_of(bytes: &[u8]) -> String {
    text(bytes).to_owned()
}

#[test]
fn baselines_are_kept_by_name() {
    let directory = tempfile::tempdir().unwrap();
    let run = |arguments: &[&str]| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_pagedepot-lab"));
        command.args(arguments).env("PAGEDEPOT_BASELINES", directory.path()).output().unwrap()
    };
    let hot = ["bench", "hot", "--quick", "--runs", "2", "--cpus", "1", "--design", "floor-tls"];
    let missing = run(&["compare", "--baseline", "main", "x.json"]);
    assert_eq!(missing.status.code(), Some(2));
    assert!(text(&missing.stderr).contains("none is saved yet"), "{}", text(&missing.stderr));
    let saved = run(&[&hot[..], &["--seed", "2", "--save-baseline", "main"]].concat());
    assert!(saved.status.success(), "{}", text(&saved.stderr));
    let file = directory.path().join("main.json");
    let compared = run(&["compare", "--baseline", "main", file.to_str().unwrap()]);
    assert!(compared.status.success(), "{}", text(&compared.stderr));
    // Designs measured now are compared with a run of the same machine, seed and settings.
    let hot = ["compare", "--workload", "hot", "--quick", "--runs", "2", "--design", "floor-tls"];
    let measured = |more: &[&str]| run(&[&hot[..], &["--baseline", "main"], more].concat());
    let unlike = measured(&[]);
    let line = text(&unlike.stderr);
    assert_eq!(unlike.status.code(), Some(2), "{line}");
    assert!(line.contains("seed is 2 in main, and 1 in this run"), "{line}");
    let forced = measured(&["--force"]);
    assert!(forced.status.success() && text(&forced.stderr).contains("seed is 2 in main"));
    let alike = measured(&["--seed", "2"]);
    let line = text(&alike.stderr);
    assert!(alike.status.success() && text(&alike.stdout).contains("main:floor-tls"), "{line}");
    assert!(line.contains("main: 2 samples of a figure are few"), "{line}");
    let missing = run(&["compare", "--baseline", "mian", "x.json"]);
    assert!(text(&missing.stderr).contains("there are main"), "{}", text(&missing.stderr));
    assert_eq!(run(&["bench", "hot", "--save-baseline", "../x"]).status.code(), Some(2));
}

#[test]
fn the_same_figures_in_every_format() {
    let files = Files::new(&[("a.json", FILE)]);
    let of = |format| stdout(&[&files.path("a.json"), "--format", format]);
    let json: Value = serde_json::from_str(&of("json")).unwrap();
    let depot = &json["comparisons"][1];
    assert_eq!((depot["column"].as_str(), depot["n"].as_u64()), (Some("depot"), Some(5)));
    assert_eq!((depot["mean"].as_f64(), depot["star"].as_bool()), (Some(7.0), Some(true)));
    let csv = of("csv");
    assert_eq!(csv.lines().count(), 3);
    assert!(csv.starts_with("workload,metric,unit,label,"), "{csv}");
    assert!(csv.lines().nth(2).unwrap().contains(",Amean,5.0,7.0,"), "{csv}");
    let markdown = of("markdown");
    assert!(
        markdown.starts_with("- depot beside spin") && markdown.contains("## hot\n"),
        "{markdown}"
    );
}

#[test]
fn the_threads_tables_are_there_without_files() {
    let text = stdout(&["--threads", "2022-rcu-epyc-7742", "--rule", "threads"]);
    assert!(text.contains("system-30    147.68 (   0.00%)  145.83 *   1.25%*"), "{text}");
    assert!(text.contains("Nicolas Saenz Julienne"), "{text}");
    // One design, and so no percentages, but figures.
    assert!(stdout(&["--threads", "2024-vmap-page-tables"]).contains("1405072.00"));
    let table = Path::new(env!("CARGO_MANIFEST_DIR")).join("results/threads/2013-magazine-i7.json");
    let by_path = stdout(&[table.to_str().unwrap(), "--workload", "pft", "--rule", "threads"]);
    assert!(
        by_path.contains("faults/cpu-4   819914.93 (   0.00%)   735264.48 ( -10.32%)"),
        "{by_path}"
    );
    assert!(
        refused(&["--threads", "2022-rcu-epyc-7742", "--threads", "2022-rcu-power9"])
            .contains("--force")
    );
}

#[test]
fn a_param_can_be_the_columns() {
    let text =
        stdout(&["--threads", "2024-vmap-page-tables", "--by", "threads", "--rule", "threads"]);
    assert!(text.contains("threads-64") && text.contains("315655.00 (-252.07%)"), "{text}");
    let netperf = ["2022-netperf-skylake", "--base", "high", "--rule", "threads"];
    assert!(stdout(&[&["--threads"], &netperf[..]].concat()).contains("90784.00 (  25.59%)"));
}

#[test]
fn what_bench_writes_compare_reads() {
    let directory = tempfile::tempdir().unwrap();
    let path: PathBuf = directory.path().join("hot.json");
    let file = path.to_str().unwrap();
    let mut bench = std::process::Command::new(env!("CARGO_BIN_EXE_pagedepot-lab"));
    bench.args(["bench", "hot", "--quick", "--runs", "2", "--cpus", "1", "--json", file]);
    assert!(bench.output().unwrap().status.success());
    let document: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    assert_eq!(document["settings"]["quick"].as_bool(), Some(true));
    let text = stdout(&[file, "--base", "floor-spin"]);
    assert!(text.contains("depot") && text.contains("pair-1") && text.contains("2/2"), "{text}");
}

const MEASURE: [&str; 6] = ["--quick", "--runs", "3", "--workload", "hot", "--design"];

#[test]
fn designs_are_measured_in_the_order_asked_for() {
    let of = |arguments: &[&str]| {
        stdout(&[&MEASURE[..], &["floor-spin", "--design", "depot"], arguments].concat())
    };
    let text = of(&["--clients", "1"]);
    assert!(
        text.contains("clients: 1\n") && text.contains("3 samples of each, too few to judge by"),
        "{text}"
    );
    let heading = text.lines().skip_while(|line| *line != "hot").nth(1).unwrap();
    assert_eq!(heading.split_whitespace().collect::<Vec<_>>(), ["floor-spin*", "depot"]);
    assert!(text.contains("Differences\n") && text.contains("3/3"), "{text}");
    assert!(!of(&[]).contains("clients of"));
    let json: Value = serde_json::from_str(&of(&["--format", "json", "--base", "depot"])).unwrap();
    let rows = json["comparisons"].as_array().unwrap();
    assert!(rows.iter().all(|row| row["base"] == "depot" && row["n"] == 3), "{rows:?}");
    assert!(
        ["floor-spin", "depot"].iter().all(|name| rows.iter().any(|row| row["column"] == **name))
    );
}

#[test]
fn what_was_measured_can_be_compared_again() {
    let directory = tempfile::tempdir().unwrap();
    let path: PathBuf = directory.path().join("measured.json");
    let file = path.to_str().unwrap();
    // In a file designs have the order of `bench`.
    let of = |measured: &[&str]| {
        let csv = stdout(&[measured, &["--format", "csv"]].concat());
        let mut lines: Vec<String> = csv.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    let measure =
        [&MEASURE[..], &["floor-spin", "--design", "depot", "--clients", "1", "--json", file]]
            .concat();
    assert_eq!(of(&measure), of(&[file, "--base", "floor-spin"]));
}

#[test]
fn what_cannot_be_measured_is_refused_at_once() {
    for (arguments, says) in [
        (&["--clients", "0"][..], "numbers of at least 1"),
        (&["--clients", "1,,2"], "numbers of at least 1"),
        (&["--clients", "100000"], "give --clients up to"),
        (&["--runs", "0"], "at least 1"),
        (&["--design", "slab"], "no such design; there are"),
        (&["--workload", "cold"], "no such workload; there are"),
        (&["--workload", "hot", "--design", "kernel"], "cannot do"),
        (&["--threads", "2013-magazine-i7", "--quick"], "--quick"),
        (&["--threads", "2013-magazine-i7", "--drains", "100"], "--drains is for measuring"),
        (&["--threads", "2013-magazine-i7", "--lock", "plain"], "--lock"),
        (&["--threads", "2013-magazine-i7", "--order", "3"], "--order is for measuring"),
        (&["--threads", "2013-magazine-i7", "--busy"], "--busy is for measuring"),
        (&["--workload", "hot", "--quick", "--busy"], "--busy is for giveback"),
        (&["--threads", "2013-magazine-i7", "--by", "policy"], "there are batch, clients, order"),
        (&["--json", "/no/such/directory/file"], "directory that you may write to"),
    ] {
        let line = refused(arguments);
        assert!(line.contains(says), "{arguments:?}: {line}");
    }
    let output = compare(&[
        "--workload",
        "hot",
        "--design",
        "depot",
        "--base",
        "spin",
        "--quick",
        "--runs",
        "1",
    ]);
    assert_eq!(output.status.code(), Some(2));
}

/// Checks that workloads which fill memory are compared like the rest, with their own options;
/// contiguity counts upwards.
#[test]
fn contiguity_is_compared() {
    let text = stdout(&[
        "--workload",
        "fragmentation",
        "--workload",
        "mixed",
        "--design",
        "spin",
        "--design",
        "depot",
        "--memory-mib",
        "64",
        "--rounds",
        "2",
        "--quick",
        "--runs",
        "2",
        "--format",
        "json",
    ]);
    let json: Value = serde_json::from_str(&text).unwrap();
    let rows = json["comparisons"].as_array().unwrap();
    for metric in ["whole_share", "realloc_ns", "huge_allocated", "op_ns"] {
        let row = rows.iter().find(|row| row["metric"] == metric && row["column"] == "depot");
        assert_eq!(row.unwrap_or_else(|| panic!("{metric}: {rows:?}"))["base"], "spin");
    }
    let line = refused(&["--workload", "hot", "--memory-mib", "64", "--quick"]);
    assert!(line.contains("--memory-mib is for fragmentation, mixed and stress"), "{line}");
}
