//! The command as scripts and people use it: errors, exit codes, and the shape of results. Runs are
//! tiny; no figure is looked at.

use std::collections::HashSet;
use std::path::PathBuf;

use serde_json::Value;

use crate::COMMAND;
use crate::scripts::{
    check, check_all, check_params, check_threads, has_two_cpus, pagedepot, refused, results, rows,
    text,
};

/// The designs of the threads.
const THREADS: [&str; 2] = ["zone-lock", "spin"];

#[test]
fn bad_input_gets_one_line_and_exit_code_2() {
    for (arguments, says) in [
        (&["bench", "cold"][..], "hot, pagealloc, producer-consumer, drain"),
        (&["bench", "hot", "--design", "slab"], "depot, floor-tls"),
        (&["bench", "hot", "--design", "kernel"], "cannot do `bench hot`"),
        (&["bench", "drain", "--design", "floor-tls"], "cannot do `bench drain`"),
        (&["bench", "hot", "--runs", "0"], "at least 1"),
        (&["bench", "hot", "--cpus", "100000"], "give --cpus"),
        (&["bench", "hot", "--json", "/no/such/directory/file"], "directory that you may write to"),
        (&["bench", "drain", "--cpus", "1"], "needs two CPUs"),
        (&["bench", "producer-consumer", "--cpus", "1"], "needs two CPUs"),
        (&["bench", "hot", "--lock", "plain", "--design", "depot"], "it is for spin"),
        (&["bench", "hot", "--lock", "ticket"], "plain, trylock"),
        (&["bench", "drain", "--drains", "100"], "rates of its own"),
        (&["bench", "hot", "--tune"], "ring-stream"),
        (
            &["bench", "hot", "--free-percent", "50"],
            "--free-percent is for fragmentation, mixed and stress",
        ),
        (&["soak"], "add --shared"),
        (&["bench", "giveback"], "add --busy"),
        (&["bench", "hot", "--busy"], "--busy is for giveback"),
        (&["bench", "giveback", "--svg", "x.svg"], "--busy"),
        (&["bench", "giveback", "--busy", "--store", "buddy"], "--store changes nothing here"),
        (&["bench", "giveback", "--busy", "--lock", "plain"], "--lock changes nothing here"),
        (&["bench", "shared", "--free-high", "high"], "--free-high changes nothing here"),
        (
            &["bench", "giveback", "--busy", "--svg", "/no/such/directory/x.svg"],
            "give --svg a file in a directory",
        ),
        (&["bench", "giveback", "--busy", "--design", "jemalloc"], "cannot do `bench giveback`"),
        (&["bench", "fragmentation", "--free-percent", "0"], "from 1 to 99"),
        (&["bench", "fragmentation", "--free-percent", "100"], "from 1 to 99"),
        (&["bench", "fragmentation", "--memory-mib", "17"], "a multiple of 4 from 16"),
        (&["bench", "fragmentation", "--memory-mib", "4294967296"], "a multiple of 4 from 16"),
        (&["bench", "fragmentation", "--rounds", "0"], "at least 1"),
        (&["bench"], "WORKLOAD"),
        (&["frobnicate"], "frobnicate"),
        (&["replay"], "TRACE"),
        (&["replay", "/no/such/trace"], "/no/such/trace"),
        (&["replay", "/dev/null"], "empty"),
    ] {
        // Where there is one CPU, the machine is what lacks something.
        let needs_two = arguments.starts_with(&["bench", "drain"]) || says == "needs two CPUs";
        if needs_two && !has_two_cpus() {
            continue;
        }
        let line = refused(arguments);
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
    check_threads(&document, "pair_ns", &THREADS);
    for design in ["depot", "floor-tls", "floor-spin"] {
        let rows: Vec<_> = rows(&document, design, "pair_ns").collect();
        assert_eq!(rows.len(), if has_two_cpus() { 2 } else { 1 }, "{design}");
        assert!(
            rows.iter()
                .all(|row| row["unit"] == "ns" && row["samples"].as_array().unwrap().len() == 2)
        );
    }
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

#[test]
fn variants_are_params_of_their_rows() {
    let cases = [
        ("--store bitmap --lock plain", "spin", "store", 1),
        ("--lock plain", "spin", "lock", 0),
        ("--rules 2022", "spin", "rules", 0),
        ("--free-high 4batch --free-high-rule 2022", "spin", "free_high", 2),
        ("--free-high batch", "depot", "free_high", 1),
        ("--store bitmap", "depot", "store", 1),
        ("--store buddy", "depot", "store", 0),
    ];
    check_all(cases, |(options, design, param, value)| check_params(options, design, param, value));
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
    check_threads(&document, "total_ns", &THREADS);
    check_threads(&document, "random_free_ns", &THREADS);
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
fn producer_consumer_has_frames() {
    if has_two_cpus() {
        let document = results(&["bench", "producer-consumer"]);
        assert_eq!(check(&document, "bench producer-consumer"), ["frame_ns", "batch_frame_ns"]);
        assert_eq!(rows(&document, "depot", "frame_ns").count(), 1);
        let batches: Vec<_> = rows(&document, "depot", "batch_frame_ns").collect();
        assert!(batches.len() == 1 && batches[0]["params"]["batch"] == 64, "{batches:?}");
        check_threads(&document, "frame_ns", &THREADS);
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
    let is_counted = |text: String| text.contains("Function call interrupts");
    if std::fs::read_to_string("/proc/interrupts").is_ok_and(is_counted) {
        assert!(rows(&document, "depot", "interrupts").all(|row| row["params"]["full"].is_u64()));
        assert_eq!(
            rows(&document, "depot", "interrupts").count(),
            rows(&document, "depot", "owner_ns").count()
        );
    }
    check_threads(&document, "interruptions", &THREADS);
    // Only `local` (and `nohz-conditional`, where no CPU is isolated) stops another CPU. Where CPUs
    // are isolated, `qpw` stops those that are not.
    for design in ["depot", "zone-lock", "spin"] {
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
                .filter_map(|row| row["params"]["percent"].as_u64())
                .collect();
            assert_eq!(percents, [0, 25, 50, 75, 100], "{design}, {metric}");
            // Of the depot also by what is held: a row for each percentage of free memory, and one
            // of them is the end.
            let held = |param: &str| {
                let rows = rows(&document, design, metric);
                let found: HashSet<_> = rows.map(|row| row["params"][param].as_u64()).collect();
                found.into_iter().flatten().count()
            };
            let is_depot = design == "depot";
            assert_eq!((held("free_percent") > 10, held("end")), (is_depot, is_depot.into()));
            let count = rows(&document, design, metric).count();
            assert_eq!(count, percents.len() + held("free_percent"), "{design}, {metric}");
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
fn variants_are_params_of_replays() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let event = |second: u32, text: &str| format!(" a 1 [000] {second}.0: kmem:{text} order=0");
    let alloc = event(1, "mm_page_alloc: page=0x9 pfn=9") + " migratetype=1 gfp_flags=X\n";
    std::fs::write(file.path(), alloc + &event(2, "mm_page_free: page=0x9 pfn=9") + "\n").unwrap();
    let trace = file.path().to_str().unwrap();
    let cases = [
        ("spin", "--lock", "plain", "lock", 0),
        ("spin", "--store", "bitmap", "store", 1),
        ("spin", "--rules", "2022", "rules", 0),
        ("depot", "--free-high", "high", "free_high", 3),
        ("depot", "--store", "buddy", "store", 0),
    ];
    check_all(cases, |(design, option, value, param, number)| {
        let document = results(&["replay", trace, "--design", design, option, value]);
        let figures = document["results"].as_array().unwrap();
        let mut ours = figures.iter().filter(|row| row["design"] == design);
        assert!(ours.all(|row| row["params"][param] == number), "{option}: {document}");
        let held: Vec<_> = rows(&document, design, "whole_pageblocks")
            .filter(|row| row["params"]["free_percent"].is_u64())
            .collect();
        assert_eq!(held.is_empty(), design != "depot", "{option}: {document}");
    });
    // Several traces have rows of contiguity alone, and no table.
    let output = pagedepot(&["replay", trace, trace, "--store", "buddy", "--json", "-"]);
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    let mut held = rows(&document, "depot", "whole_pageblocks").peekable();
    assert!(held.peek().is_some() && held.all(|row| row["params"]["store"] == 0), "{document}");
    for (option, value) in [("--lock", "plain"), ("--rules", "2022"), ("--drained-by", "owner")] {
        let line = refused(&["replay", trace, trace, option, value]);
        assert!(line.contains(option), "{line}");
    }
}

#[test]
fn a_zoneinfo_that_was_named_is_a_setting() {
    let shipped = shipped();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("before.txt");
    let beside = shipped.with_file_name("build.zoneinfo.before.txt");
    std::fs::copy(beside, &file).unwrap();
    let arguments = ["replay", shipped.to_str().unwrap(), "--zoneinfo", file.to_str().unwrap()];
    assert_eq!(results(&arguments)["settings"]["zoneinfo"], file.to_str().unwrap());
}

/// A recording of allocations and frees alone says nothing of the kernel's lists.
#[test]
fn events_that_were_not_recorded_are_not_counted() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let event = |second: u32, text: &str| format!(" a 1 [000] {second}.0: kmem:{text} order=0");
    let alloc = event(1, "mm_page_alloc: page=0x9 pfn=9") + " migratetype=1 gfp_flags=X\n";
    let free = event(2, "mm_page_free: page=0x9 pfn=9") + "\n";
    let drain = event(3, "mm_page_pcpu_drain: page=0x9 pfn=9") + " migratetype=1\n";
    for (trace, spills) in [(alloc.clone() + &free, 0), (alloc + &free + &drain, 1)] {
        std::fs::write(file.path(), trace).unwrap();
        let document = results(&["replay", file.path().to_str().unwrap()]);
        assert_eq!(rows(&document, "kernel", "allocs").count(), 1);
        assert_eq!(rows(&document, "kernel", "refilled_blocks").count(), 0);
        assert_eq!(rows(&document, "kernel", "spilled_blocks").count(), spills);
    }
    let output = pagedepot(&["replay", "--quick", file.path().to_str().unwrap()]);
    let said = text(&output.stdout);
    assert!(said.contains("The kernel that was recorded spilled 1;"), "{said}");
    let refilled = said.lines().find(|line| line.starts_with("refilled from the store, blocks"));
    assert!(refilled.unwrap().trim_end().ends_with(" -"), "{said}");
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
    let mut child = Command::new(COMMAND)
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

/// Designs and options of the lab are named as such.
#[test]
fn the_lab_is_named_where_it_is_needed() {
    let line = refused(&["bench", "hot", "--design", "rcu"]);
    assert!(line.contains("lab/Cargo.toml"), "{line}");
    assert!(refused(&["bench", "hot", "--grace", "qsbr"]).contains("it is for rcu"));
    let help = pagedepot(&["help", "bench"]);
    let help = text(&help.stdout);
    assert!(help.contains("--store") && !help.contains("--grace"), "{help}");
}

/// Checks that a busy program's rows have the names that scripts read.
#[test]
fn shared_tells_of_pages_of_one_process_between_two_and_of_a_dead_one() {
    let document = results(&["bench", "shared"]);
    let metrics = check(&document, "bench shared");
    let all = ["pair_ns", "alloc_ns", "free_ns", "frame_ns", "recovered_pages", "recover_ms"];
    for metric in all.iter().filter(|&&metric| metric != "frame_ns" || has_two_cpus()) {
        assert!(metrics.iter().any(|one| one == metric), "{metric}: {metrics:?}");
        assert!(rows(&document, "depot-shared", metric).next().is_some(), "{metric}");
    }
    for design in ["depot", "mutex"] {
        assert_eq!(rows(&document, design, "pair_ns").count(), 1);
        assert_eq!(rows(&document, design, "alloc_ns").count(), 2);
    }
    let page = rustix::param::page_size() as u64;
    for row in rows(&document, "depot-shared", "recovered_pages") {
        // What it cached comes back, too, so more than it had asked for.
        let gib = row["params"]["gib"].as_u64().unwrap();
        assert!(row["median"].as_f64().unwrap() >= ((gib << 30) / page) as f64, "{row}");
    }
    let lost: Vec<_> = rows(&document, "mutex", "recovered_pages").collect();
    assert!(lost.len() == 1 && lost[0]["median"] == 0.0, "{lost:?}");
}

#[test]
fn inspect_shows_a_segment_whose_processes_have_ended() {
    use std::num::NonZeroU64;
    use std::os::unix::fs::FileExt;

    use pagedepot_cli::harness::fork::Child;
    use pagedepot_linux::Order;
    use pagedepot_linux::shared::{SegmentStats, SharedDepot, SharedOptions};
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("pool");
    let hold = || {
        let options = SharedOptions::new(16 << 20).answers(false);
        let depot = SharedDepot::create(&path, &options).unwrap();
        for nth in 0..103 {
            let page = depot.page(Order::BASE).unwrap();
            if nth < 3 {
                let _ = page.into_shared(&depot).unwrap();
            } else {
                std::mem::forget(page);
            }
        }
        let options = SharedOptions::join().answers(false).heir(NonZeroU64::MIN);
        let other = SharedDepot::adopt(depot.file(), &options).unwrap();
        let pages: Vec<_> = (0..20).map(|_| other.page(Order::BASE).unwrap()).collect();
        std::mem::forget((pages, other, depot));
    };
    let mut child = Child::fork(hold).unwrap();
    assert_eq!(child.wait().and_then(|status| status.exit_status()), Some(0));
    let name = path.to_str().unwrap();
    let processes = SegmentStats::read(&path).unwrap().processes;
    let [free, left] = [0, 1].map(|nth| format!("{} pages", processes[nth].held_pages));
    for command in ["inspect", "top"] {
        let output = pagedepot(&[command, name]);
        let stdout = text(&output.stdout);
        assert!(output.status.success(), "{}", text(&output.stderr));
        assert!(stdout.contains(&format!("takes back the {free} held")), "{stdout}");
        assert!(stdout.contains(&format!("{left} wait for a process")), "{stdout}");
        assert!(stdout.contains(" 3 in flight") && stdout.contains(" ended "), "{stdout}");
        assert!(stdout.lines().all(|line| line.chars().count() <= 100), "{stdout}");
    }
    let file = std::fs::OpenOptions::new().read(true).write(true).open(&path).unwrap();
    // A byte of the table of owners that no process writes.
    file.write_all_at(&[200], 20480 + 4000).unwrap();
    let output = pagedepot(&["inspect", name]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("1 page of no process"), "{}", text(&output.stderr));
    file.set_len(1 << 20).unwrap();
    assert!(refused(&["inspect", name]).contains("it was cut"));
    file.write_all_at(&[1; 32], 0).unwrap();
    assert!(refused(&["inspect", name]).contains("is no segment"));
}

#[test]
fn drains_that_were_late_are_told_of() {
    let hot = ["bench", "hot", "--quick", "--runs", "1", "--cpus", "1", "--design", "depot"];
    // Each takes more than a quarter of a nanosecond.
    let output = pagedepot(&[&hot[..], &["--drains", "4000000000"]].concat());
    let stdout = text(&output.stdout);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let told = stdout.contains("--drains: ") && stdout.contains(" due; the others were late");
    assert!(told, "{stdout}");
}

#[test]
fn a_soak_kills_and_counts() {
    let output = pagedepot(&["soak", "--shared", "--kills", "60", "--seed", "7"]);
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{stdout}{stderr}");
    // Four are killed at the end to count all pages.
    assert!(stdout.starts_with("64 kills in "), "{stdout}");
    assert!(stdout.contains("All pages were counted 1 times"), "{stdout}");
    assert!(stdout.lines().all(|line| line.len() <= 100), "{stdout}");
}

/// Checks the rows and the drawing of one design, which are half of the time that both take.
fn check_giveback_of_a_busy_program(design: &str) {
    if pagedepot_rseq::affinity::allowed().is_ok_and(|cpus| cpus.len() < 2) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let drawing = directory.path().join("giveback.svg");
    let arguments = ["bench", "giveback", "--busy", "--cpus", "2", "--design", design, "--svg"];
    let document = results(&[&arguments[..], &[drawing.to_str().unwrap()]].concat());
    check(&document, "bench giveback");
    for metric in ["isolated_interrupts", "releaser_cpu_ms"] {
        assert_eq!(rows(&document, design, metric).count(), 2, "{metric}");
    }
    let shares: Vec<_> = rows(&document, design, "returned_share").collect();
    assert_eq!(shares.len(), 8, "four moments, at rest and when asked");
    assert!(shares.iter().any(|row| row["params"]["after_s"] == 10));
    let owners: Vec<_> = rows(&document, design, "owner_p999_ns").collect();
    let quiet = |quiet: i64| owners.iter().filter(|r| r["params"]["quiet"] == quiet).count();
    assert_eq!((quiet(0), quiet(1)), (4, 4));
    let svg = std::fs::read_to_string(&drawing).unwrap();
    assert!(svg.contains(&format!(">{design}</text>")), "{svg}");
}

#[test]
fn giveback_of_a_busy_depot_has_its_rows() {
    check_giveback_of_a_busy_program("depot");
}

#[test]
fn giveback_of_a_busy_heap_has_its_rows() {
    check_giveback_of_a_busy_program("glibc");
}
