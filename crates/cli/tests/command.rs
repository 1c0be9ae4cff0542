//! The command as scripts and people use it: errors, exit codes, and the shape of results. Runs are
//! tiny; no figure is looked at.

use std::path::PathBuf;
use std::process::Output;

use assert_cmd::Command;
use serde_json::Value;

/// Runs the command, with standard input at its end.
fn pagedepot(arguments: &[&str]) -> Output {
    Command::cargo_bin("pagedepot").unwrap().args(arguments).env("NO_COLOR", "1").output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// The one line that refuses these arguments.
fn refused(arguments: &[&str]) -> String {
    let output = pagedepot(arguments);
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{arguments:?}: {stderr}");
    assert!(output.stdout.is_empty(), "{arguments:?}: {}", text(&output.stdout));
    assert_eq!(stderr.lines().count(), 1, "{arguments:?}: {stderr}");
    stderr.trim_end().to_owned()
}

/// The results of a run with two windows, or of fewer workloads where there is one CPU.
fn results(workload: &[&str]) -> Value {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("results.json");
    let mut arguments = workload.to_vec();
    arguments.extend(["--quick", "--runs", "2", "--seed", "7", "--json", file.to_str().unwrap()]);
    let output = pagedepot(&arguments);
    assert!(output.status.success(), "{workload:?}: {}", text(&output.stderr));
    assert!(text(&output.stdout).contains('─'), "{workload:?} shows a table");
    serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap()
}

fn has_two_cpus() -> bool {
    std::thread::available_parallelism().unwrap().get() >= 2
}

/// Checks what all documents have in common; the names of metrics, in order.
fn check(document: &Value, command: &str) -> Vec<String> {
    assert_eq!(document["schema"], 1);
    assert_eq!(document["seed"], 7);
    assert_eq!(document["command"], command);
    for field in ["cpu", "kernel", "rustc"] {
        assert!(document["machine"][field].is_string(), "{field}");
    }
    for field in ["cpus", "memory_bytes", "page_bytes"] {
        assert!(document["machine"][field].as_u64().unwrap() > 0, "{field}");
    }
    let mut metrics = Vec::new();
    for row in document["results"].as_array().unwrap() {
        let keys: Vec<_> = row.as_object().unwrap().keys().map(String::as_str).collect();
        let mut expected =
            ["workload", "design", "metric", "unit", "cpus", "params", "median", "samples"];
        expected.sort_unstable();
        assert_eq!(sorted(keys), expected);
        assert!(row["params"].as_object().unwrap().values().all(Value::is_number), "{row}");
        assert!(
            row["median"].is_number() && !row["samples"].as_array().unwrap().is_empty(),
            "{row}"
        );
        let metric = row["metric"].as_str().unwrap().to_owned();
        if !metrics.contains(&metric) {
            metrics.push(metric);
        }
    }
    check_single_cpu_first(document);
    metrics
}

fn sorted(mut names: Vec<&str>) -> Vec<&str> {
    names.sort_unstable();
    names
}

fn check_single_cpu_first(document: &Value) {
    let rows = document["results"].as_array().unwrap();
    for (at, row) in rows.iter().enumerate().filter(|(_, row)| row["cpus"] == 1) {
        let larger = rows[..at]
            .iter()
            .find(|before| before["metric"] == row["metric"] && before["cpus"] != 1);
        assert!(larger.is_none(), "{row} comes after {larger:?}");
    }
}

fn rows<'d>(
    document: &'d Value,
    design: &'d str,
    metric: &'d str,
) -> impl Iterator<Item = &'d Value> {
    let rows = document["results"].as_array().unwrap().iter();
    rows.filter(move |row| row["design"] == design && row["metric"] == metric)
}

#[test]
fn bad_input_gets_one_line_and_exit_code_2() {
    for (arguments, says) in [
        (&["bench", "cold"][..], "hot, pagealloc, touch, pft, producer-consumer, drain"),
        (&["bench", "hot", "--design", "slab"], "depot, floor-tls"),
        (&["bench", "hot", "--design", "kernel"], "cannot do `bench hot`"),
        (&["bench", "drain", "--design", "floor-tls"], "cannot do `bench drain`"),
        (&["bench", "hot", "--runs", "0"], "at least 1"),
        (&["bench", "hot", "--cpus", "100000"], "give --cpus"),
        (&["bench", "hot", "--json", "/no/such/directory/file"], "directory that you may write to"),
        (&["bench", "drain", "--cpus", "1"], "needs two CPUs"),
        (&["bench", "producer-consumer", "--cpus", "1"], "needs two CPUs"),
        (&["bench", "purger", "--cpus", "1"], "needs two CPUs"),
        (&["bench", "hot", "--store", "bitmap", "--design", "rcu"], "depot, spin"),
        (&["bench", "hot", "--lock", "plain", "--design", "depot"], "it is for spin"),
        (&["bench", "hot", "--lock", "ticket"], "plain, trylock"),
        (&["bench", "hot", "--magazines", "0"], "--magazines"),
        (&["bench", "drain", "--drains", "100"], "rates of its own"),
        (&["bench", "pft", "--drains", "100", "--design", "kernel"], "cannot be drained"),
        (&["bench", "pft", "--drains", "0"], "at least 1"),
        (&["bench", "ring-stream", "--cpus", "1"], "needs two CPUs"),
        (&["bench", "netperf", "--cpus", "1"], "needs two CPUs"),
        (&["bench", "process-magazines", "--drains", "100"], "rates of its own"),
        (&["bench", "hot", "--design", "process-magazine"], "cannot do `bench hot`"),
        (&["bench", "hot", "--tune"], "ring-stream"),
        (&["bench", "netperf", "--tune"], "ring-stream"),
        (
            &["bench", "hot", "--free-percent", "50"],
            "--free-percent is for fragmentation and mixed",
        ),
        (&["bench", "fragmentation", "--free-percent", "0"], "from 1 to 99"),
        (&["bench", "fragmentation", "--free-percent", "100"], "from 1 to 99"),
        (&["bench", "fragmentation", "--memory-mib", "17"], "a multiple of 4 from 16"),
        (&["bench", "fragmentation", "--memory-mib", "4294967296"], "a multiple of 4 from 16"),
        (&["bench", "fragmentation", "--rounds", "0"], "at least 1"),
        (&["bench", "fragmentation", "--design", "mimalloc"], "cannot do `bench fragmentation`"),
        (&["bench", "fragmentation", "--tune"], "ring-stream"),
        (&["soak", "--minutes", "0"], "above 0"),
        (&["soak", "--minutes", "-1"], "above 0"),
        (&["soak", "--design", "kernel"], "cannot be soaked"),
        (&["soak", "--design", "depot", "--lock", "plain"], "it is for spin"),
        (&["bench"], "WORKLOAD"),
        (&["frobnicate"], "frobnicate"),
        (&["replay"], "TRACE"),
        (&["replay", "/no/such/trace"], "/no/such/trace"),
        (&["replay", "/dev/null"], "empty"),
    ] {
        let line = refused(arguments);
        // Where there is one CPU, that is what is wrong first.
        let is_alone = arguments == ["bench", "drain", "--design", "floor-tls"] && !has_two_cpus();
        let says = if is_alone { "needs two CPUs" } else { says };
        assert!(line.starts_with("pagedepot: ") && line.contains(says), "{arguments:?}: {line}");
    }
}

#[test]
fn traces_of_the_wrong_kind_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    for (contents, says) in
        [(&b"PERFILE2\0\0\0\0"[..], "perf script"), (b"nothing of the kind\n", "perf record")]
    {
        let file = directory.path().join("trace");
        std::fs::write(&file, contents).unwrap();
        let line = refused(&["replay", file.to_str().unwrap()]);
        assert!(line.contains(says), "{line}");
    }
    let shipped = shipped();
    let line = refused(&["replay", shipped.to_str().unwrap(), "--runs", "0"]);
    assert!(line.contains("at least 1"), "{line}");
    let line = refused(&["replay", shipped.to_str().unwrap(), "--cpus", "3"]);
    assert!(line.contains("recorded on 2: give --cpus 2 or less"), "{line}");
    let line = refused(&["replay", shipped.to_str().unwrap(), "--design", "floor-spin"]);
    assert!(line.contains("there are depot, zone-lock") && line.contains(", kernel"), "{line}");
}

#[cfg(not(feature = "peers"))]
#[test]
fn peers_that_are_not_compiled_in_are_named_as_such() {
    assert!(refused(&["bench", "hot", "--design", "mimalloc"]).contains("--features peers"));
}

/// Each compiled in is measured without being asked for.
#[cfg(feature = "peers")]
#[test]
fn peers_that_are_compiled_in_have_rows() {
    let document = results(&["bench", "hot"]);
    for peer in ["frame-alloc", "mimalloc", "jemalloc", "snmalloc"] {
        let row = rows(&document, peer, "pair_ns").next();
        let median = row.unwrap_or_else(|| panic!("no row of {peer}"))["median"].as_f64().unwrap();
        assert!(median > 0.0, "{peer}: {median}");
    }
    let document = results(&["bench", "giveback"]);
    for peer in ["mimalloc", "jemalloc"] {
        assert_eq!(rows(&document, peer, "given_back_share").count(), 2, "{peer}");
    }
}

/// `.ci/steps/peers` builds the library beside the command.
#[cfg(feature = "peers")]
#[test]
fn peers_that_are_libraries_of_their_own_are_loaded() {
    if !has_two_cpus() {
        return;
    }
    let arguments = ["bench", "drain", "--quick", "--design", "mimalloc-pprof"];
    let output = Command::new(env!("CARGO_BIN_EXE_pagedepot"))
        .args(arguments)
        .env("PAGEDEPOT_MIMALLOC_PPROF", "/nowhere/at/all.so")
        .output()
        .unwrap();
    assert!(!output.status.success());
    let error = text(&output.stderr);
    assert!(error.contains("PAGEDEPOT_MIMALLOC_PPROF"), "{error}");
    let document = results(&["bench", "drain", "--design", "mimalloc-pprof"]);
    assert!(rows(&document, "mimalloc-pprof", "drain_ns").count() > 0);
}

#[test]
fn help_and_version_succeed() {
    for argument in ["--help", "--version"] {
        let output = pagedepot(&[argument]);
        assert!(output.status.success() && text(&output.stdout).contains("pagedepot"));
        assert!(output.stderr.is_empty());
    }
}

#[test]
fn hot_has_pairs_on_one_cpu_and_on_all() {
    let document = results(&["bench", "hot"]);
    assert_eq!(check(&document, "bench hot"), ["pair_ns"]);
    check_threads(&document, "pair_ns");
    for design in ["depot", "floor-tls", "floor-spin"] {
        let rows: Vec<_> = rows(&document, design, "pair_ns").collect();
        assert_eq!(rows.len(), if has_two_cpus() { 2 } else { 1 }, "{design}");
        assert!(
            rows.iter()
                .all(|row| row["unit"] == "ns" && row["samples"].as_array().unwrap().len() == 2)
        );
    }
}

/// Checks that a depot gives all back when asked, whatever the time.
#[test]
fn giveback_has_shares_at_rest_and_when_asked() {
    let document = results(&["bench", "giveback"]);
    let metrics = check(&document, "bench giveback");
    assert_eq!(metrics[..2], ["given_back_share", "resident_bytes"]);
    let shares: Vec<_> = rows(&document, "depot", "given_back_share").collect();
    assert_eq!(shares.len(), 4, "anonymous and of a memory file, at rest and when asked");
    for row in shares.iter().filter(|row| row["params"]["asked"] == 1) {
        let share = row["median"].as_f64().unwrap();
        assert!((0.9..1.1).contains(&share), "{row}");
    }
    let series = document["series"].as_array().unwrap();
    assert_eq!(series.len(), 2, "memory present over time");
}

#[test]
fn designs_can_be_chosen() {
    let document = results(&[
        "bench",
        "hot",
        "--design",
        "floor-spin",
        "--design",
        "floor-tls",
        "--cpus",
        "1",
    ]);
    let designs: Vec<_> =
        document["results"].as_array().unwrap().iter().map(|row| row["design"].clone()).collect();
    assert_eq!(designs, ["floor-tls", "floor-spin"]);
}

const PROPOSALS: [&str; 8] =
    ["zone-lock", "local", "nohz-conditional", "spin", "qpw", "pcp-buddy", "rcu", "magazine"];

/// The threads' designs have rows; the command would fail if one of them lost a page.
fn check_threads(document: &Value, metric: &str) {
    for design in PROPOSALS {
        let row = rows(document, design, metric).next();
        assert_eq!(row.expect(design)["params"]["store"], 0, "{design}");
    }
}

#[test]
fn variants_are_params_of_their_rows() {
    for (options, design, param, value) in [
        ("--store bitmap --lock plain", "spin", "store", 1),
        ("--lock plain", "spin", "lock", 0),
        ("--grace membarrier", "rcu", "grace", 0),
        ("--grace blocking", "rcu", "grace", 2),
        ("--rules 2022", "spin", "rules", 0),
        ("--fixed-high yes", "local", "fixed_high", 1),
        ("--drained-by owner", "local", "drained_by", 1),
        ("--isolated yes", "nohz-conditional", "isolated", 1),
        ("--isolated no", "qpw", "isolated", 0),
        ("--rules 2022", "pcp-buddy", "rules", 0),
        ("--magazines 3", "magazine", "magazines", 3),
        ("--free-high 4batch --free-high-rule 2022", "spin", "free_high", 2),
        ("--free-high batch", "depot", "free_high", 1),
        ("--store bitmap", "depot", "store", 1),
        ("--store buddy", "depot", "store", 0),
    ] {
        let arguments = ["bench", "hot", "--cpus", "1", "--design", design];
        let document =
            results(&arguments.into_iter().chain(options.split(' ')).collect::<Vec<_>>());
        let row = rows(&document, design, "pair_ns").next().unwrap();
        assert_eq!(row["params"][param], value, "{options}");
    }
}

#[test]
fn workloads_lose_nothing_under_drains() {
    for (workload, metric) in [("touch", "touches_per_s"), ("pagealloc", "total_ns")] {
        // The command fails if the depot loses a page, or its store one, over that as over its own.
        results(&["bench", workload, "--drains", "1000", "--design", "depot", "--store", "buddy"]);
        let document = results(&["bench", workload, "--drains", "1000"]);
        for design in ["depot"].iter().chain(&PROPOSALS) {
            let row = rows(&document, design, metric).next().expect(design);
            assert_eq!(row["params"]["drains_per_s"], 1000, "{row}");
        }
    }
}

#[test]
fn pagealloc_has_batches_fill_and_metadata() {
    let document = results(&["bench", "pagealloc"]);
    let metrics = check(&document, "bench pagealloc");
    let expected = [
        "alloc_ns",
        "free_ns",
        "total_ns",
        "fill_ns",
        "random_free_ns",
        "metadata_bytes_per_gib",
        "init_ns",
    ];
    assert_eq!(metrics, expected);
    check_threads(&document, "total_ns");
    check_threads(&document, "random_free_ns");
    let batch = rows(&document, "depot", "alloc_ns").find(|row| row["params"]["batch"] == 512);
    assert_eq!(batch.unwrap()["params"]["order"], 0);
    for (alloc, total) in
        rows(&document, "depot", "alloc_ns").zip(rows(&document, "depot", "total_ns"))
    {
        // Of two windows the median is the mean, so parts stay parts.
        assert!(alloc["median"].as_f64().unwrap() <= total["median"].as_f64().unwrap() + 1e-9);
    }
    let metadata = rows(&document, "depot", "metadata_bytes_per_gib").next().unwrap();
    assert!((1e4..1e6).contains(&metadata["median"].as_f64().unwrap()), "{metadata}");
}

#[test]
fn mass_exit_tells_frees_from_allocations_and_counts_waits() {
    let document = results(&["bench", "mass-exit"]);
    let metrics = check(&document, "bench mass-exit");
    assert_eq!(metrics, ["exit_ns", "alloc_ns", "lock_wait_share"]);
    check_threads(&document, "exit_ns");
    for row in rows(&document, "spin", "lock_wait_share") {
        // Waits of other CPUs for one lock can overlap, but no seat waits longer than it runs.
        assert!((0.0..=1.0).contains(&row["median"].as_f64().unwrap()), "{row}");
        if row["cpus"] == 1 {
            assert_eq!(row["median"], 0.0, "{row}");
        }
    }
}

#[test]
fn purger_frees_what_others_allocated() {
    if !has_two_cpus() {
        return;
    }
    let document = results(&["bench", "purger"]);
    assert_eq!(check(&document, "bench purger"), ["page_ns"]);
    check_threads(&document, "page_ns");
}

#[test]
fn touch_has_the_kernel_to_compare_with() {
    let document = results(&["bench", "touch"]);
    let metrics = check(&document, "bench touch");
    let times = ["elapsed_s", "user_s", "system_s"];
    assert_eq!(metrics[..3], ["touch_ns", "touches_per_cpu_s", "touches_per_s"]);
    assert_eq!(metrics[3..], times);
    check_threads(&document, "touches_per_s");
    check_clients(&document, "touches_per_s");
}

/// The least number of clients is one, of the depot and of the kernel.
fn check_clients(document: &Value, metric: &str) {
    for design in ["depot", "kernel"] {
        let row = rows(document, design, metric).next().expect(design);
        assert_eq!(row["params"]["clients"], 1, "{design}");
    }
}

/// Whether a workload can run here; says so where the kernel or a sandbox forbids it.
fn can_run(workload: &str) -> bool {
    let output = pagedepot(&["bench", workload, "--design", "depot", "--quick", "--runs", "1"]);
    if output.status.code() == Some(1) {
        eprintln!("SKIPPED: {}", text(&output.stderr));
    }
    output.status.success()
}

#[test]
fn page_faults_are_served_by_each_design() {
    if !can_run("pft") {
        return;
    }
    let document = results(&["bench", "pft"]);
    let metrics = check(&document, "bench pft");
    let times = ["elapsed_s", "user_s", "system_s"];
    assert_eq!(metrics[..3], ["fault_ns", "faults_per_cpu_s", "faults_per_s"]);
    assert_eq!(metrics[3..], times);
    check_threads(&document, "fault_ns");
    check_clients(&document, "faults_per_s");
    // The command fails if a design loses a page; drains of all CPUs take none that is a client's.
    results(&["bench", "pft", "--drains", "1000", "--design", "depot", "--design", "spin"]);
}

#[test]
fn fragmentation_has_a_row_per_round() {
    let document = results(&[
        "bench",
        "fragmentation",
        "--memory-mib",
        "16",
        "--free-percent",
        "40",
        "--rounds",
        "3",
    ]);
    let metrics = check(&document, "bench fragmentation");
    // The kernel has a row where it shows its free blocks, without all metrics.
    let expected = [
        "whole_share",
        "gib_ranges",
        "tainted_share",
        "realloc_ns",
        "whole_drained_share",
        "gib_drained_ranges",
    ];
    assert_eq!(metrics, expected);
    for design in ["depot", "depot-still", "depot-uncached", "zone-lock", "spin"] {
        let wholes: Vec<_> = rows(&document, design, "whole_share").collect();
        let rounds: Vec<_> = wholes.iter().map(|row| row["params"]["round"].as_u64()).collect();
        assert_eq!(rounds, [0, 1, 2, 3].map(Some), "{design}");
        for row in wholes {
            let (share, params) = (row["median"].as_f64().unwrap(), &row["params"]);
            // No more than what is free can be whole.
            assert!((0.0..=0.4).contains(&share), "{row}");
            assert_eq!((&params["free_percent"], &params["memory_mib"]), (&40.into(), &16.into()));
            assert!(params["threads"].as_u64() >= Some(1), "{row}");
        }
        assert_eq!(rows(&document, design, "realloc_ns").count(), 3, "{design}");
        assert_eq!(rows(&document, design, "gib_ranges").count(), 4, "{design}");
        let drained = rows(&document, design, "whole_drained_share").next().unwrap();
        assert_eq!(drained["samples"].as_array().unwrap().len(), 2, "one for each run: {drained}");
    }
}

#[test]
fn mixed_has_huge_pages_and_taint() {
    let document = results(&["bench", "mixed", "--memory-mib", "64", "--rounds", "2"]);
    check(&document, "bench mixed");
    for design in ["depot", "depot-still", "depot-uncached", "zone-lock", "spin"] {
        let figure = |metric| {
            let row = rows(&document, design, metric).next();
            row.unwrap_or_else(|| panic!("{design} has no {metric}"))["median"].as_f64().unwrap()
        };
        // 11 % of what is held, and so of 70 % of the memory, cannot be moved.
        let (tainted, packed) = (figure("tainted_share"), figure("packed_share"));
        assert!(0.05 < packed && packed <= tainted && tainted <= 1.0, "{design}: {tainted}");
        assert!(figure("mixed_share") <= tainted, "{design}");
        // Whole pageblocks are what huge pages are made of.
        let whole = (figure("whole_share") * 32.0).round();
        // A last drain, of caches that could not be reached before, may complete one or two.
        assert!(figure("huge_allocated") <= whole + 2.0, "{design}: {whole}");
        assert!(figure("op_ns") > 0.0 && figure("gib_ranges") == 0.0, "{design}");
        assert_eq!(rows(&document, design, "op_ns").next().unwrap()["params"]["round"], 2);
    }
    assert_eq!(rows(&document, "depot", "gib_allocated").count(), 1);
    assert_eq!(rows(&document, "spin", "gib_allocated").count(), 0);
    assert_eq!(rows(&document, "depot", "churn_moved_pages").count(), 1);
    assert_eq!(rows(&document, "spin", "churn_moved_pages").count(), 0);
    // 64 MiB have no range of 1 GiB, however much is moved.
    for metric in ["gib_compacted", "moved_pages"] {
        let row = rows(&document, "depot", metric).next().expect("depot moves blocks");
        assert_eq!(row["median"].as_f64(), Some(0.0), "{metric}");
        assert_eq!(rows(&document, "spin", metric).count(), 0);
    }
}

/// Unmovable memory surges by more than is free: only moves keep it apart. One thread, so that the
/// same happens each time.
#[test]
fn mixed_keeps_unmovable_memory_apart_by_moves() {
    let taint = |more: &[&str]| {
        let command = ["bench", "mixed", "--memory-mib", "1024", "--surges", "300"];
        let rest = ["--rounds", "4", "--design", "depot", "--cpus", "1"];
        let document = results(&[&command[..], &rest, more].concat());
        let figure =
            |metric| rows(&document, "depot", metric).next().unwrap()["median"].as_f64().unwrap();
        (figure("tainted_share"), figure("churn_moved_pages"))
    };
    let (apart, moved) = taint(&[]);
    let (mixed, still) = taint(&["--no-moves"]);
    assert!(moved > 0.0 && still == 0.0, "{moved} and {still} pages");
    assert!(apart < 0.5 * mixed, "{apart} beside {mixed}");
}

#[test]
fn producer_consumer_has_frames() {
    if has_two_cpus() {
        let document = results(&["bench", "producer-consumer"]);
        assert_eq!(check(&document, "bench producer-consumer"), ["frame_ns"]);
        assert_eq!(rows(&document, "depot", "frame_ns").count(), 1);
        check_threads(&document, "frame_ns");
    }
}

#[test]
fn drain_has_all_rates_and_kinds() {
    if !has_two_cpus() {
        return;
    }
    let document = results(&["bench", "drain"]);
    let metrics = check(&document, "bench drain");
    for metric in ["owner_ns", "owner_p999_ns", "drain_ns", "drained_pages"] {
        assert!(metrics.iter().any(|name| name == metric), "{metric}");
    }
    // Where the kernel counts them; see `harness/interrupts.rs`.
    if std::fs::read_to_string("/proc/interrupts").is_ok_and(|text| text.contains("CAL:")) {
        assert!(rows(&document, "depot", "interrupts").all(|row| row["params"]["full"].is_u64()));
        assert_eq!(
            rows(&document, "depot", "interrupts").count(),
            rows(&document, "depot", "owner_ns").count()
        );
    }
    check_threads(&document, "interruptions");
    // Only `local` (and `nohz-conditional`, where no CPU is isolated) stops another CPU. Where CPUs
    // are isolated, `qpw` stops those that are not.
    for design in ["depot", "zone-lock", "spin", "pcp-buddy", "rcu", "magazine"] {
        for row in rows(&document, design, "interruptions").filter(|row| row["params"]["full"] == 0)
        {
            assert_eq!(row["median"], 0.0, "{row}");
        }
    }
    let params = |metric| -> Vec<_> {
        rows(&document, "depot", metric)
            .map(|row| {
                (
                    row["params"]["drains_per_s"].as_i64().unwrap(),
                    row["params"]["full"].as_i64().unwrap(),
                )
            })
            .collect()
    };
    let mut expected = vec![(0, 0), (0, 1), (0, 2)];
    expected.extend(
        [0, 1, 2].into_iter().flat_map(|full| [100, 1000, 10_000, -1].map(|rate| (rate, full))),
    );
    assert_eq!(params("owner_ns"), expected);
    assert_eq!(params("drain_ns"), expected[3..]);
    for metric in ["idle_drain_ns", "stopped_drain_ns", "isolated_drain_ns"] {
        assert!(rows(&document, "depot", metric).any(|row| row["params"]["full"] == 2), "{metric}");
    }
    // What each drain finds is filled in before it, whatever the speed of the machine.
    for row in rows(&document, "depot", "drained_pages") {
        assert!(row["median"].as_f64().unwrap() >= 8.0 * 63.0, "{row}");
    }
}

/// Checks the reuse of buffers that one CPU only allocates and the other only frees.
fn check_reuse(document: &Value) {
    for metric in ["reuse_distance_bytes", "reuse_distance_p90_bytes"] {
        assert!(rows(document, "spin", metric).next().is_some(), "{metric}");
    }
    for row in rows(document, "spin", "crossed_percent") {
        let [crossed, streams] = [&row["median"], &row["params"]["streams"]];
        assert_eq!((crossed, streams), (&100.0.into(), &1.into()), "{row}");
    }
}

/// The sizes of messages that there are rows of.
fn message_sizes(document: &Value, metric: &str) -> Vec<u64> {
    let sizes = rows(document, "spin", metric).map(|row| &row["params"]["message_bytes"]);
    let mut sizes: Vec<u64> = sizes.map(|bytes| bytes.as_u64().unwrap()).collect();
    sizes.dedup();
    sizes
}

#[test]
fn streams_tell_how_pages_come_back() {
    if !has_two_cpus() {
        return;
    }
    let document = results(&["bench", "ring-stream"]);
    let metrics = check(&document, "bench ring-stream");
    assert_eq!(metrics[..2], ["buffers_per_s", "mib_per_s"]);
    check_threads(&document, "mib_per_s");
    check_reuse(&document);
    assert_eq!(message_sizes(&document, "mib_per_s"), [16 << 10, 10 << 10]);
}

#[test]
fn sockets_carry_what_each_policy_has() {
    if !has_two_cpus() || !can_run("netperf") {
        return;
    }
    let document = results(&["bench", "netperf", "--design", "depot", "--design", "spin"]);
    check(&document, "bench netperf");
    check_reuse(&document);
    for (metric, bytes) in [("udp_stream_mib_per_s", 16 << 10), ("sctp_many_mib_per_s", 10 << 10)] {
        assert_eq!(message_sizes(&document, metric), [bytes]);
        for design in ["depot", "spin"] {
            let policies: Vec<_> =
                rows(&document, design, metric).map(|row| &row["params"]["policy"]).collect();
            assert_eq!(policies, [0, 1, 2, 3], "{design}");
        }
    }
}

#[test]
fn streams_can_be_tuned() {
    if !has_two_cpus() {
        return;
    }
    let document = results(&["bench", "ring-stream", "--tune", "--design", "spin", "--cpus", "2"]);
    let mut cases: Vec<_> =
        rows(&document, "spin", "mib_per_s").map(|row| &row["params"]).collect();
    let many = cases.len();
    cases.dedup();
    // Policies, buffers in flight, streams, messages.
    assert_eq!((many, cases.len()), (4 * 3 * 2 * 2, 4 * 3 * 2 * 2));
}

#[test]
fn a_build_is_replayed_at_two_speeds() {
    let document = results(&["bench", "replay-build", "--design", "spin", "--design", "kernel"]);
    let expected = [
        "elapsed_s",
        "user_s",
        "system_s",
        "cpu_percent",
        "events_per_s",
        "refilled_blocks",
        "spilled_blocks",
    ];
    assert_eq!(check(&document, "bench replay-build"), expected);
    let speeds: Vec<_> =
        rows(&document, "spin", "elapsed_s").map(|row| &row["params"]["recorded_speed"]).collect();
    assert_eq!(speeds, [1, 0]);
    // What was allocated had to come from somewhere.
    assert!(
        rows(&document, "spin", "refilled_blocks")
            .all(|row| row["median"].as_f64().unwrap() > 1000.0)
    );
    let build: Vec<_> = rows(&document, "kernel", "cpu_percent").collect();
    match build[..] {
        [] => eprintln!("SKIPPED: no build can be recorded here"),
        [row] => assert_eq!(row["params"]["recorded_speed"], 1),
        _ => panic!("{build:?}"),
    }
}

#[test]
fn processes_have_magazines_of_their_own() {
    let document = results(&["bench", "process-magazines"]);
    let metrics = check(&document, "bench process-magazines");
    assert_eq!(metrics, ["op_ns", "drain_ns", "drained_pages", "interruptions"]);
    check_threads(&document, "op_ns");
    let rates: Vec<_> = rows(&document, "process-magazine", "op_ns")
        .filter(|row| row["cpus"] == 1)
        .map(|row| &row["params"]["drains_per_s"])
        .collect();
    assert_eq!(rates, [0, 1000]);
    // Its drains interrupt no CPU.
    assert!(rows(&document, "process-magazine", "interruptions").all(|row| row["median"] == 0.0));
}

/// The short form of what runs for hours: see CONTRIBUTING.md.
#[test]
fn soaked_designs_lose_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("soak.json");
    let json = file.to_str().unwrap();
    let output = pagedepot(&[
        "soak",
        "--minutes",
        "0.05",
        "--drains",
        "1000",
        "--seed",
        "7",
        "--json",
        json,
    ]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let document = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    assert_eq!(
        check(&document, "soak"),
        ["pages", "used_up", "drains", "drained_pages", "lost_pages"]
    );
    for design in ["depot"].iter().chain(&PROPOSALS) {
        for metric in ["pages", "used_up", "drains"] {
            let row = rows(&document, design, metric).next().expect(design);
            assert!(row["median"].as_f64().unwrap() > 0.0, "{row}");
        }
        assert_eq!(rows(&document, design, "lost_pages").next().unwrap()["median"], 0.0);
    }
}

#[test]
fn replays_have_counts_of_both_sides() {
    let shipped = shipped();
    let trace = shipped.to_str().unwrap();
    let designs = ["depot", "spin", "kernel"];
    let chosen = designs.iter().flat_map(|design| ["--design", design]);
    let document = results(&["replay", trace].into_iter().chain(chosen).collect::<Vec<_>>());
    check(&document, &format!("replay {trace}"));
    for metric in [
        "event_ns",
        "allocs",
        "frees",
        "unknown_frees",
        "refilled_blocks",
        "spilled_blocks",
        "lost_frames",
    ] {
        assert_eq!(rows(&document, "depot", metric).count(), 1, "{metric}");
    }
    assert_eq!(rows(&document, "depot", "lost_frames").next().unwrap()["median"], 0.0);
    assert!(rows(&document, "depot", "cached_pages").all(|row| row["params"]["cpu"].is_u64()));
    assert_eq!(rows(&document, "kernel", "refilled_blocks").count(), 1);
    for design in ["depot", "spin"] {
        for metric in ["whole_pageblocks", "tainted_pageblocks"] {
            let percents: Vec<_> = rows(&document, design, metric)
                .map(|row| row["params"]["percent"].as_u64().unwrap())
                .collect();
            assert_eq!(percents, [0, 25, 50, 75, 100], "{design}, {metric}");
        }
        let unusable: Vec<_> = rows(&document, design, "unusable_index").collect();
        assert_eq!(unusable.len(), 5 * 11, "{design}");
        let of = |row: &Value| row["median"].as_f64().unwrap();
        assert!(unusable.iter().all(|row| (0.0..=1.0).contains(&of(row))), "{design}");
        // Every free page serves requests of order 0.
        let mut singles = unusable.iter().filter(|row| row["params"]["order"] == 0);
        assert!(singles.all(|row| of(row) == 0.0), "{design}");
    }
    assert_eq!(rows(&document, "kernel", "whole_pageblocks").count(), 0, "none was saved");
}

#[test]
fn free_blocks_saved_beside_a_trace_are_the_kernels() {
    let directory = tempfile::tempdir().unwrap();
    let file = |ending: &str| directory.path().join(format!("it.{ending}"));
    std::fs::copy(shipped(), file("perf.txt.zst")).unwrap();
    let before = "Node 0, zone Normal 10 0 0 0 0 0 0 0 0 3 1\n";
    std::fs::write(file("buddyinfo.before.txt"), before).unwrap();
    std::fs::write(file("buddyinfo.after.txt"), before.replace(" 3 1", " 1 1")).unwrap();
    let types = "Number of blocks type Unmovable Movable\nNode 0, zone Normal 7 90\n";
    std::fs::write(file("pagetypeinfo.after.txt"), types).unwrap();
    // What only root may read was copied as an empty file.
    std::fs::write(file("pagetypeinfo.before.txt"), "").unwrap();
    let trace = file("perf.txt.zst");
    let arguments = ["replay", trace.to_str().unwrap(), "--design", "depot", "--design", "kernel"];
    let document = results(&arguments);
    let figures = |metric| -> Vec<_> {
        rows(&document, "kernel", metric)
            .map(|row| (row["params"]["percent"].as_u64(), row["median"].as_f64()))
            .collect()
    };
    assert_eq!(figures("whole_pageblocks"), [(Some(0), Some(5.0)), (Some(100), Some(3.0))]);
    assert_eq!(figures("tainted_pageblocks"), [(Some(100), Some(7.0))]);
    std::fs::write(file("buddyinfo.after.txt"), "Node 0, zone Normal many\n").unwrap();
    let line = refused(&arguments);
    assert!(line.contains("buddyinfo.after.txt") && line.contains("cat /proc/buddyinfo"), "{line}");
}

#[test]
fn json_on_stdout_is_nothing_but_json() {
    let output =
        pagedepot(&["bench", "hot", "--quick", "--runs", "1", "--cpus", "1", "--json", "-"]);
    assert!(output.status.success());
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(document["command"], "bench hot");
    assert!(text(&output.stderr).contains('─'), "tables are on stderr");
}

#[test]
fn a_reader_that_goes_away_is_no_failure() {
    use std::process::{Command, Stdio};
    let mut child = Command::new(assert_cmd::cargo::cargo_bin("pagedepot"))
        .args(["bench", "hot", "--quick", "--runs", "1", "--cpus", "1"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{:?}: {}", output.status, text(&output.stderr));
    assert!(!text(&output.stderr).contains("panicked"));
}

fn shipped() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("traces/build.perf.txt.zst")
}
