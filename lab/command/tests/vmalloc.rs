//! `pagedepot-lab vmalloc` as scripts and people use it: lines, rows and counts. No time is looked
//! at.

use std::path::PathBuf;
use std::process::Output;

use serde_json::Value;
use std::process::Command;

fn pagedepot(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_pagedepot-lab"))
        .arg("vmalloc")
        .args(arguments)
        .env("NO_COLOR", "1")
        .output()
        .unwrap()
}

/// Runs the command; returns its output and its results.
fn run(arguments: &str) -> (String, Value) {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("results.json");
    let mut all: Vec<&str> = arguments.split_whitespace().collect();
    all.extend(["--quick", "--runs", "2", "--json", file.to_str().unwrap()]);
    let output = pagedepot(&all);
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{arguments}: {stderr}");
    let document = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    (String::from_utf8(output.stdout).unwrap(), document)
}

fn rows(document: &Value) -> Vec<&Value> {
    let rows = document["results"].as_array().unwrap();
    assert!(rows.iter().all(|row| row["workload"] == "vmalloc"));
    rows.iter().collect()
}

/// Samples of a design's figure: one per pass of the suite.
fn samples(document: &Value, design: &str, metric: &str) -> Vec<f64> {
    let row =
        rows(document).into_iter().find(|row| row["design"] == design && row["metric"] == metric);
    let row = row.unwrap_or_else(|| panic!("{design} has no {metric}"));
    row["samples"].as_array().unwrap().iter().map(|sample| sample.as_f64().unwrap()).collect()
}

const DESIGNS: [&str; 3] = ["depot", "vmap-global-lock", "vmap-nodes"];

#[test]
fn every_test_passes_or_fails_as_expected_or_is_skipped() {
    for mapper in ["none", "linux"] {
        let (text, _) =
            run(&format!("--mapper {mapper} --nr-threads 2 --test-loop-count 20 --suite-only"));
        assert_eq!(text.matches("Summary: ").count(), 3 * 2 * 13, "{text}");
        for (test, came_to) in [
            ("fix_size_alloc_test", "passed: 1 failed: 0 xfailed: 0 repeat: 1 loops: 20 avg: "),
            ("full_fit_alloc_test", "passed: 1 failed: 0 xfailed: 0 repeat: 1 loops: 20 avg: "),
            (
                "long_busy_list_alloc_test",
                "passed: 1 failed: 0 xfailed: 0 repeat: 1 loops: 20 avg: ",
            ),
            ("random_size_alloc_test", "passed: 1 failed: 0 xfailed: 0 repeat: 1 loops: 20 avg: "),
            ("fix_align_alloc_test", "passed: 1 failed: 0 xfailed: 0 repeat: 1 loops: 20 avg: "),
            (
                "random_size_align_alloc_test",
                "passed: 1 failed: 0 xfailed: 0 repeat: 1 loops: 20 avg: ",
            ),
            ("align_shift_alloc_test", "passed: 0 failed: 0 xfailed: 1 repeat: 1 loops: 64 avg: "),
            ("pcpu_alloc_test", "skipped"),
            ("kvfree_rcu_1_arg_vmalloc_test", "skipped"),
            ("kvfree_rcu_2_arg_vmalloc_test", "skipped"),
            ("vm_map_ram_test", "passed: 1 failed: 0 xfailed: 0 repeat: 1 loops: 20 avg: "),
            ("no_block_alloc_test", "skipped"),
            ("vrealloc_test", "passed: 1 failed: 0 xfailed: 0 repeat: 1 loops: 20 avg: "),
        ] {
            let line = format!("Summary: {test} {came_to}");
            assert_eq!(text.matches(&line).count(), 3 * 2, "{mapper}: {line}\n{text}");
        }
        for worker in 0..2 {
            assert_eq!(text.matches(&format!("All test took worker{worker}=")).count(), 3);
        }
    }
}

/// The thread's last question: page tables grow with the workers and are never given back. Each
/// number of workers twice, as there; few loops, and no areas held (`docs/vmalloc.md` has the
/// whole).
#[test]
fn page_tables_of_vmap_nodes_stay_and_ours_come_back() {
    for workers in [64, 128, 256] {
        let (_, document) = run(&format!(
            "--design depot --design vmap-nodes --run-test-mask 113 --nr-threads {workers} \
             --test-loop-count 4 --passes 2 --suite-only"
        ));
        let of = |design, metric| samples(&document, design, &format!("page_table_bytes_{metric}"));
        let [start, peak, end] = ["start", "peak", "end"].map(|metric| of("vmap-nodes", metric));
        assert!(
            start[0] == 0.0 && end[0] > 0.0 && end == peak,
            "{workers}: {start:?} {peak:?} {end:?}"
        );
        assert_eq!(start[1], end[0]);
        let [start, peak, end] = ["start", "peak", "end"].map(|metric| of("depot", metric));
        for pass in 0..2 {
            let (left, grown) = (end[pass] - start[pass], peak[pass] - start[pass]);
            assert!(grown > 0.0 && left <= 0.05 * grown, "{workers}: {start:?} {peak:?} {end:?}");
        }
    }
}

#[test]
fn flushes_name_what_needs_it_and_rows_have_their_params() {
    let (_, document) = run("--run-test-mask 7 --nr-threads 3 --test-loop-count 20");
    for design in DESIGNS {
        let [flushed, needed] =
            ["flushed_pages", "needed_pages"].map(|metric| samples(&document, design, metric)[0]);
        assert!(needed > 0.0 && flushed >= needed, "{design}: {flushed} of {needed}");
        let limit = if design == "depot" { 1.1 * needed } else { f64::MAX };
        assert!(flushed <= limit, "{design}: {flushed} of {needed}");
        let share = samples(&document, design, "lock_wait_share")[0];
        assert!((0.0..=1.0).contains(&share), "{design}: {share}");
    }
    for row in rows(&document) {
        let params: Vec<_> =
            row["params"].as_object().unwrap().keys().map(String::as_str).collect();
        let expected: &[&str] = match row["metric"].as_str().unwrap() {
            "pair_ns" | "ram_pair_ns" => &["mapper", "pages", "threads", "warm"],
            "buffer_ns" | "step_growth_ns" | "half_growth_ns" => &["pages", "threads"],
            "loop_ns" => &["test", "threads"],
            _ => &["threads"],
        };
        assert_eq!(params, expected, "{row}");
    }
    let pairs: Vec<_> =
        rows(&document).into_iter().filter(|row| row["metric"] == "pair_ns").collect();
    let threads: Vec<_> =
        pairs.iter().map(|row| row["params"]["threads"].as_u64().unwrap()).collect();
    assert!(threads.is_sorted() && threads[0] == 1, "{threads:?}");
    assert!(DESIGNS.iter().all(|design| pairs.iter().any(|row| row["design"] == *design)));
}

#[test]
fn memory_has_its_pairs() {
    let (_, document) = run("--mapper linux --run-test-mask 1 --test-loop-count 5");
    let pairs = |design: &str, metric: &str, param: &str| -> Vec<u64> {
        let its = |row: &&Value| {
            row["design"] == design && row["metric"] == metric && row["params"]["threads"] == 1
        };
        rows(&document)
            .into_iter()
            .filter(its)
            .map(|row| row["params"][param].as_u64().unwrap())
            .collect()
    };
    assert_eq!(pairs("depot", "pair_ns", "warm"), [1, 0]);
    assert_eq!(pairs("mmap", "pair_ns", "warm"), [0]);
    assert_eq!(pairs("vmap-nodes", "pair_ns", "mapper"), [1]);
    assert_eq!(pairs("depot", "ram_pair_ns", "warm"), [0]);
    for design in ["depot", "mmap", "vec"] {
        assert_eq!(pairs(design, "buffer_ns", "pages"), [256, 1024, 4096]);
        assert_eq!(
            pairs(design, "step_growth_ns", "pages"),
            pairs(design, "half_growth_ns", "pages")
        );
    }
}

/// The two events of the trace in the tree are a beginning; this one has a purge, too.
#[test]
fn traces_are_replayed_by_every_design() {
    let directory = tempfile::tempdir().unwrap();
    let file: PathBuf = directory.path().join("trace.txt");
    let line = |cpu: u32, event: &str| format!("x 1 [{cpu:03}] 1.000000: vmalloc:{event}\n");
    let alloc = |start: u64| {
        format!(
            "alloc_vmap_area: va_start: {start} size=20480 align=16384 vstart=0x1 \
             vend=0xffffffff failed=0"
        )
    };
    let free = |start: u64| {
        format!("free_vmap_area_noflush: va_start=0x{start:x} nr_lazy=5 nr_lazy_max=16384")
    };
    let text: String = (1..40)
        .flat_map(|i| [line(0, &alloc(i << 20)), line(1, &free(i << 20))])
        .chain([line(0, &free(1 << 40))])
        .collect();
    std::fs::write(&file, text).unwrap();
    let (text, document) = run(&format!("--trace {}", file.display()));
    assert!(text.contains("39 allocations, 40 frees (1 of areas from before it"), "{text}");
    for design in DESIGNS {
        assert_eq!(samples(&document, design, "event_ns").len(), 2);
    }
    let output = pagedepot(&["--trace", file.to_str().unwrap(), "--cpus", "1"]);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(2) && stderr.contains("--cpus is for tests"), "{stderr}");
    std::fs::write(&file, "x 1 [000] 1.000000: kmem:mm_page_free: page=0x1 pfn=0x10 order=0\n")
        .unwrap();
    let output = pagedepot(&["--trace", file.to_str().unwrap()]);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr.contains("no alloc_vmap_area") && stderr.lines().count() == 1, "{stderr}");
}

/// Checks the settings that rows do not have, so that `compare` refuses runs that differ in them.
#[test]
fn results_say_how_they_were_made() {
    let (_, document) =
        run("--suite-only --run-test-mask 1 --design depot --test-loop-count 3 --nr-pages 64");
    let settings = &document["settings"];
    for (name, value) in
        [("test_loop_count", 3), ("nr_pages", 64), ("mapper", 0), ("run_test_mask", 1)]
    {
        assert_eq!(settings[name], value, "{settings}");
    }
    assert_eq!(settings["quick"], true);
}

#[test]
fn bad_arguments_get_one_line_each() {
    for (arguments, says) in [
        ("--preset fast", "smoke, performance, stress"),
        ("--mapper windows", "none, linux"),
        ("--run-test-mask 0", "--run-test-mask"),
        ("--nr-threads 0", "65535"),
        ("--test-loop-count 0", "at least 1"),
        ("--nr-pages 0", "--nr-pages"),
        ("--design spin", "cannot do `vmalloc`"),
        ("--lock plain", "--lock"),
        ("--design mmap", "(it needs --mapper linux); there are depot"),
        ("--design mmap --mapper linux --suite-only", "leave out --suite-only"),
        ("--test-loop-count 99999999999", "at most 4294967295"),
    ] {
        let output = pagedepot(&arguments.split_whitespace().collect::<Vec<_>>());
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments}: {stderr}");
        assert!(stderr.contains(says) && stderr.lines().count() == 1, "{arguments}: {stderr}");
    }
}
