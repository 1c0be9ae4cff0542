//! The lab's command as scripts and people use it: what it has beside the product's. Runs are tiny;
//! no figure is looked at.

#[path = "../../../crates/cli/tests/support/command.rs"]
mod command;
#[path = "../../../crates/core/tests/common/skip.rs"]
mod skip;

#[cfg(feature = "peers")]
use std::process::Command;

use serde_json::Value;

use command::{
    check, check_params, check_threads, has_two_cpus, pagedepot, refused, results, rows, text,
};
use skip::skip;

const COMMAND: &str = env!("CARGO_BIN_EXE_pagedepot-lab");

#[test]
fn bad_input_gets_one_line_and_exit_code_2() {
    for (arguments, says) in [
        (&["bench", "cold"][..], "hot, pagealloc, touch, pft, producer-consumer, drain"),
        (&["bench", "purger", "--cpus", "1"], "needs two CPUs"),
        (&["bench", "hot", "--store", "bitmap", "--design", "rcu"], "depot, spin"),
        (&["bench", "hot", "--magazines", "0"], "--magazines"),
        (&["bench", "giveback", "--store", "buddy"], "--store changes nothing here"),
        (&["bench", "madvise", "--store", "buddy"], "--store changes nothing here"),
        (&["bench", "pft", "--drains", "100", "--design", "kernel"], "cannot be drained"),
        (&["bench", "pft", "--drains", "0"], "at least 1"),
        (&["bench", "ring-stream", "--cpus", "1"], "needs two CPUs"),
        (&["bench", "netperf", "--cpus", "1"], "needs two CPUs"),
        (&["bench", "process-magazines", "--drains", "100"], "rates of its own"),
        (&["bench", "hot", "--design", "process-magazine"], "cannot do `bench hot`"),
        (&["bench", "netperf", "--tune"], "ring-stream"),
        (&["bench", "fragmentation", "--design", "mimalloc"], "cannot do `bench fragmentation`"),
        (&["bench", "fragmentation", "--tune"], "ring-stream"),
        (&["bench", "stress", "--free-percent", "20"], "its threads draw how much is free"),
        (&["soak", "--minutes", "0"], "above 0"),
        (&["soak", "--minutes", "-1"], "above 0"),
        (&["soak", "--design", "kernel"], "cannot be soaked"),
        (&["soak", "--design", "depot", "--lock", "plain"], "it is for spin"),
    ] {
        // Where there is one CPU, the machine is what lacks something.
        if says == "needs two CPUs" && !has_two_cpus() {
            continue;
        }
        let line = refused(arguments);
        assert!(
            line.starts_with("pagedepot-lab: ") && line.contains(says),
            "{arguments:?}: {line}"
        );
    }
}

/// The product's workloads measure the lab's designs, too.
#[test]
fn workloads_of_the_product_have_all_designs() {
    check_threads(&results(&["bench", "hot"]), "pair_ns", &PROPOSALS);
    let document = results(&["bench", "pagealloc", "--order", "0"]);
    check_threads(&document, "total_ns", &PROPOSALS);
    check_threads(&document, "random_free_ns", &PROPOSALS);
    if has_two_cpus() {
        check_threads(&results(&["bench", "producer-consumer"]), "frame_ns", &PROPOSALS);
        check_threads(&results(&["bench", "drain"]), "interruptions", &PROPOSALS);
    }
    let document = results(&["bench", "fragmentation", "--rounds", "1"]);
    check_threads(&document, "realloc_ns", &["qpw", "pcp-buddy"]);
}

#[test]
fn variants_are_params_of_their_rows() {
    for (options, design, param, value) in [
        ("--grace membarrier", "rcu", "grace", 0),
        ("--grace blocking", "rcu", "grace", 2),
        ("--fixed-high yes", "local", "fixed_high", 1),
        ("--drained-by owner", "local", "drained_by", 1),
        ("--isolated yes", "nohz-conditional", "isolated", 1),
        ("--isolated no", "qpw", "isolated", 0),
        ("--rules 2022", "pcp-buddy", "rules", 0),
        ("--magazines 3", "magazine", "magazines", 3),
    ] {
        check_params(options, design, param, value);
    }
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
    let output = Command::new(COMMAND)
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

/// Checks which advice takes pages away, and when.
#[test]
fn madvise_has_rows_of_each_advice() {
    let document = results(&["bench", "madvise"]);
    check(&document, "bench madvise");
    let share = |advice: i32, reclaimed: i64| {
        let mut found = rows(&document, "kernel", "present_share");
        let of = |row: &&Value| {
            row["params"]["advice"] == advice && row["params"]["reclaimed"] == reclaimed
        };
        found.find(of).map(|row| row["median"].as_f64().unwrap())
    };
    assert_eq!(share(libc::MADV_DONTNEED, 0), Some(0.0));
    assert_eq!(share(libc::MADV_NORMAL, 0), Some(1.0));
    // Older kernels lack MADV_PAGEOUT.
    let lazily = share(libc::MADV_FREE, 0).unwrap();
    assert!(share(libc::MADV_FREE, 1).is_none_or(|reclaimed| reclaimed < lazily), "{lazily}");
}

const PROPOSALS: [&str; 8] =
    ["zone-lock", "local", "nohz-conditional", "spin", "qpw", "pcp-buddy", "rcu", "magazine"];

#[test]
fn workloads_lose_nothing_under_drains() {
    let workloads: [(_, _, &[&str]); 2] =
        [("touch", "touches_per_s", &[]), ("pagealloc", "total_ns", &["--order", "0"])];
    for (workload, metric, orders) in workloads {
        // The command fails if the depot loses a page, or its store one, over that as over its own.
        let drained = ["bench", workload, "--drains", "1000"];
        results(&[&drained[..], &["--design", "depot", "--store", "buddy"]].concat());
        let document = results(&[&drained[..], orders].concat());
        for design in ["depot"].iter().chain(&PROPOSALS) {
            let row = rows(&document, design, metric).next().expect(design);
            assert_eq!(row["params"]["drains_per_s"], 1000, "{row}");
        }
    }
}

#[test]
fn mass_exit_tells_frees_from_allocations_and_counts_waits() {
    let document = results(&["bench", "mass-exit"]);
    let metrics = check(&document, "bench mass-exit");
    assert_eq!(metrics, ["exit_ns", "alloc_ns", "lock_wait_share"]);
    check_threads(&document, "exit_ns", &PROPOSALS);
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
    check_threads(&document, "page_ns", &PROPOSALS);
}

#[test]
fn touch_has_the_kernel_to_compare_with() {
    let document = results(&["bench", "touch"]);
    let metrics = check(&document, "bench touch");
    let times = ["elapsed_s", "user_s", "system_s"];
    assert_eq!(metrics[..3], ["touch_ns", "touches_per_cpu_s", "touches_per_s"]);
    assert_eq!(metrics[3..], times);
    check_threads(&document, "touches_per_s", &PROPOSALS);
    check_clients(&document, "touches_per_s");
}

/// The least number of clients is one, of the depot and of the kernel.
fn check_clients(document: &Value, metric: &str) {
    for design in ["depot", "kernel"] {
        let row = rows(document, design, metric).next().expect(design);
        assert_eq!(row["params"]["clients"], 1, "{design}");
    }
}

/// Whether a workload can run here; otherwise the test is skipped, which it says. `needs` is what
/// the kernel or a sandbox may forbid: any other error is the workload's own.
fn can_run(workload: &str, needs: &str) -> bool {
    let output = pagedepot(&["bench", workload, "--design", "depot", "--quick", "--runs", "1"]);
    let said = text(&output.stderr);
    let why = said.lines().last().unwrap_or_default();
    let is_forbidden = why.starts_with("pagedepot-lab: ") && why.contains(needs);
    match output.status.code() {
        Some(0) => true,
        Some(1) if is_forbidden => {
            skip(why);
            false
        }
        _ => panic!("{}: {said}", output.status),
    }
}

#[test]
fn page_faults_are_served_by_each_design() {
    if !can_run("pft", "userfaultfd") {
        return;
    }
    let document = results(&["bench", "pft"]);
    let metrics = check(&document, "bench pft");
    let times = ["elapsed_s", "user_s", "system_s"];
    assert_eq!(metrics[..3], ["fault_ns", "faults_per_cpu_s", "faults_per_s"]);
    assert_eq!(metrics[3..], times);
    check_threads(&document, "fault_ns", &PROPOSALS);
    check_clients(&document, "faults_per_s");
    // The command fails if a design loses a page; drains of all CPUs take none that is a client's.
    results(&["bench", "pft", "--drains", "1000", "--design", "depot", "--design", "spin"]);
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

#[test]
fn stress_tells_how_much_of_what_is_free_is_whole() {
    let document = results(&["bench", "stress", "--memory-mib", "64", "--rounds", "3"]);
    check(&document, "bench stress");
    check_threads(&document, "op_ns", &PROPOSALS);
    for design in ["depot", "depot-still", "depot-uncached", "zone-lock", "spin"] {
        let shares = |metric| {
            let share = |row: &Value| row["median"].as_f64().unwrap();
            rows(&document, design, metric).map(share).collect::<Vec<_>>()
        };
        let (whole, by_held) = (shares("whole_of_free_share"), shares("whole_by_held_share"));
        // Single frames, and blocks of several orders.
        assert_eq!((whole.len(), by_held.len()), (2, 2), "{design}");
        for (whole, by_held) in whole.into_iter().zip(by_held) {
            assert!(0.0 <= whole && whole <= by_held && by_held <= 1.0, "{design}: {whole}");
        }
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
    check_threads(&document, "mib_per_s", &PROPOSALS);
    check_reuse(&document);
    assert_eq!(message_sizes(&document, "mib_per_s"), [16 << 10, 10 << 10]);
}

#[test]
fn sockets_carry_what_each_policy_has() {
    if !has_two_cpus() || !can_run("netperf", "socket") {
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
    // Refills are none if a window before has cached what the build holds at once.
    assert!(
        rows(&document, "spin", "events_per_s").all(|row| row["median"].as_f64().unwrap() > 0.0)
    );
    let build: Vec<_> = rows(&document, "kernel", "cpu_percent").collect();
    match build[..] {
        [] => skip("no build can be recorded here"),
        [row] => assert_eq!(row["params"]["recorded_speed"], 1),
        _ => panic!("{build:?}"),
    }
}

#[test]
fn processes_have_magazines_of_their_own() {
    let document = results(&["bench", "process-magazines"]);
    let metrics = check(&document, "bench process-magazines");
    assert_eq!(metrics, ["op_ns", "drain_ns", "drained_pages", "interruptions"]);
    check_threads(&document, "op_ns", &PROPOSALS);
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
