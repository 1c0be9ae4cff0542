//! Replays of traces and zoneinfos from other kernels and machines. What was read of them and what
//! was not is one line of the output, and an object of the JSON.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;

use pagedepot::{Mobility, Order};
use pagedepot_cli::tested::{Design, Op, Plan, ReplayResult, Variant, Zoneinfos, replay};
use pagedepot_trace::Zoneinfo;
use serde_json::Value;
use std::process::Command;

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/inputs").join(name)
}

fn text_of(name: &str) -> String {
    fs::read_to_string(data(name)).unwrap()
}

fn pagedepot(arguments: &[&str], trace: &Path) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pagedepot"));
    command.args(arguments).arg(trace).env("NO_COLOR", "1").env("COLUMNS", "10000");
    command.output().unwrap()
}

/// The replay's account of its input, as text and as JSON.
fn account(trace: &Path) -> (String, Value) {
    let json = trace.with_file_name("results.json");
    let arguments = ["replay", "--quick", "--json", json.to_str().unwrap()];
    let output = pagedepot(&arguments, trace);
    let (said, why) =
        [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes)).into();
    assert!(output.status.success(), "{why}");
    let lines: Vec<_> = said.lines().filter(|line| line.starts_with("read: ")).collect();
    let [line] = lines[..] else { panic!("one line of what was read:\n{said}") };
    let results: Value = serde_json::from_slice(&fs::read(&json).unwrap()).unwrap();
    (line.to_owned(), results["read"][0].clone())
}

/// The count of one kind in an account.
fn count(account: &Value, what: &str) -> u64 {
    let mut parts = account["parts"].as_array().unwrap().iter();
    parts.find(|part| part["what"] == what).map_or(0, |part| part["count"].as_u64().unwrap())
}

fn plan(text: &str, before: Option<&Zoneinfo>) -> Plan {
    Plan::read(text.as_bytes(), "test", before).unwrap_or_else(|error| panic!("{error}"))
}

fn replayed(plan: &Plan, zoneinfos: &Zoneinfos) -> ReplayResult {
    let designs = [Design::Depot, Design::Spin];
    replay(plan, zoneinfos, (&designs, &Variant::default()), 1, || ()).unwrap()
}

/// The zoneinfo of eight nodes with zones of every kind, of which ten have pages.
fn eight_nodes() -> String {
    let zone = |node: u64, name: &str, start: u64, pages: u64| {
        let pageset = |cpu| {
            format!(
                "    cpu: {cpu}\n              count:    0\n              high:     378\n        \
                 \x20     batch:    63\n"
            )
        };
        let pagesets: String = (0..8).map(pageset).collect();
        let head = format!(
            "Node {node}, zone {name:>8}\n  pages free     {pages}\n        min      100\n        \
             low      200\n        high     300\n        spanned  {pages}\n        present  \
             {pages}\n        managed  {pages}\n        protection: (0, 0, 0, 0, 0)\n"
        );
        if pages == 0 { head } else { format!("{head}{pagesets}  start_pfn:           {start}\n") }
    };
    let node = |node: u64| {
        let low = if node == 0 { (3840, 400_000) } else { (0, 0) };
        let start = (node + 1) << 20;
        [
            zone(node, "DMA", 1, low.0),
            zone(node, "DMA32", 4096, low.1),
            zone(node, "Normal", start, 1_000_000),
            zone(node, "Movable", 0, 0),
            zone(node, "Device", 0, 0),
        ]
        .concat()
    };
    (0..8).map(node).collect()
}

#[test]
fn a_machine_of_eight_nodes_is_replayed() {
    let before = Zoneinfo::parse(&eight_nodes(), "it").unwrap();
    assert_eq!((before.zones.len(), before.zones_without_pages), (10, 30));
    let plan = plan(&text_of("trace-8-nodes.txt"), Some(&before));
    // DMA, DMA32 and the first node's Normal come before those of the others.
    let zones: Vec<u8> = plan
        .ops
        .iter()
        .filter_map(|op| if let Op::Alloc { zone, .. } = op { Some(*zone) } else { None })
        .collect();
    assert_eq!(zones, [2, 3, 4, 5, 6, 7, 8, 9]);
    let replayed = replayed(&plan, &Zoneinfos { before: Some(before), ..Zoneinfos::default() });
    assert!(replayed.replays.iter().all(|replay| replay.outcome.lost_frames == 0));
}

/// A zone that spans memory to be plugged in has no frames of a trace.
#[test]
fn a_zone_without_pages_takes_no_frames_of_others() {
    let text = text_of("movable-spans-none.zoneinfo.txt");
    let other = text.replacen("  present  0", "", 0);
    let last = other.rfind("spanned  262144").unwrap();
    let reference = format!("{}spanned  0{}", &other[..last], &other[last + 15..]);
    let [before, reference] = [&text, &reference].map(|text| Zoneinfo::parse(text, "it").unwrap());
    let event = |n: u32| {
        format!(
            "make-7 [000] d..1. 10.{n:06}: mm_page_alloc: page=0x1 pfn={:#x} order=0 migratetype=1 \
             gfp_flags=GFP_HIGHUSER_MOVABLE\n",
            0x20000 + n
        )
    };
    let trace: String = (0..100).map(event).collect();
    let [plan, expected] = [&before, &reference].map(|before| plan(&trace, Some(before)));
    assert_eq!(plan.ops, expected.ops);
    assert!(matches!(plan.ops[0], Op::Alloc { zone: 1, .. }), "{:?}", plan.ops[0]);
    assert_eq!(plan.work.outside_zones, 0);
}

#[test]
fn frames_outside_all_zones_are_told() {
    let text = eight_nodes();
    let lost = text.find("Node 7, zone   Normal").unwrap();
    let before = Zoneinfo::parse(&text[..lost], "it").unwrap();
    let plan = plan(&text_of("trace-8-nodes.txt"), Some(&before));
    assert_eq!(plan.work.outside_zones, 2);
}

#[test]
fn the_table_of_mixed_pageblocks_is_not_counted() {
    let directory = tempfile::tempdir().unwrap();
    for name in [
        "mixed-blocks.txt",
        "mixed-blocks.buddyinfo.before.txt",
        "mixed-blocks.pagetypeinfo.before.txt",
    ] {
        fs::copy(data(name), directory.path().join(name)).unwrap();
    }
    let zoneinfo = directory.path().join("mixed-blocks.zoneinfo.before.txt");
    fs::write(&zoneinfo, eight_nodes()).unwrap();
    let trace = directory.path().join("mixed-blocks.txt");
    let zoneinfos = Zoneinfos::find(&trace, None, None).unwrap();
    assert_eq!(zoneinfos.looks()[0].tainted_pageblocks, Some(140));
    let (line, json) = account(&trace);
    assert!(line.starts_with("read: 3 lines, 3 of them events; "), "{line}");
    assert!(line.contains("9 zones with pages are not in buddyinfo before"), "{line}");
    assert!(line.contains("zoneinfo before: 10 zones, and 30 without pages left out"), "{line}");
    assert_eq!((count(&json, "zones_without_free"), count(&json, "zones_without_pages")), (9, 30));
}

#[test]
fn blocks_larger_than_ours_are_named() {
    let directory = tempfile::tempdir().unwrap();
    let trace = directory.path().join("order-13.txt");
    fs::copy(data("order-13.txt"), &trace).unwrap();
    let (line, json) = account(&trace);
    assert!(
        line.contains("2 events of blocks above order 10, up to order 13: not replayed"),
        "{line}"
    );
    assert_eq!((json["lines"].as_u64(), json["events"].as_u64()), (Some(4), Some(4)));
    assert_eq!((count(&json, "too_large"), count(&json, "implausible")), (2, 0));
    let impossible = text_of("order-13.txt").replace("order=13", "order=4294967295");
    assert_eq!(plan(&impossible, None).work.implausible, 2);
}

/// Kernels before 4.4 number movable 2 and reclaimable 1; what is asked for tells.
#[test]
fn migratetypes_of_older_kernels_are_told_by_the_flags() {
    let event = |pfn: u32, migratetype: u32, flags: &str| {
        format!(
            "a-1 [000] d..1. 1.0: mm_page_alloc: page=0x1 pfn={pfn} order=0 \
             migratetype={migratetype} gfp_flags={flags}\n"
        )
    };
    let text = event(1, 2, "GFP_HIGHUSER_MOVABLE") + &event(2, 1, "GFP_KERNEL|GFP_RECLAIMABLE");
    let mobilities = |text: &str| -> Vec<Mobility> {
        let ops = plan(text, None).ops;
        ops.iter()
            .filter_map(
                |op| if let Op::Alloc { mobility, .. } = op { Some(*mobility) } else { None },
            )
            .collect()
    };
    assert_eq!(mobilities(&text), [Mobility::Movable, Mobility::Reclaimable]);
    let today = event(1, 1, "GFP_HIGHUSER_MOVABLE") + &event(2, 2, "__GFP_RECLAIMABLE");
    assert_eq!(mobilities(&today), [Mobility::Movable, Mobility::Reclaimable]);
    assert!(plan(&text, None).old_migratetypes && !plan(&today, None).old_migratetypes);
}

#[test]
fn all_that_was_not_read_is_one_line() {
    let directory = tempfile::tempdir().unwrap();
    let trace = directory.path().join("it.txt");
    let event = "mm_page_free: page=0x1 pfn=0x9 order=0";
    let alloc = "mm_page_alloc: page=0x1 pfn=0x8 order=0 migratetype=2 gfp_flags=GFP_MOVABLE";
    fs::write(
        &trace,
        format!(
            "make 7 [001] 9.0: kmem:{alloc}\n    ffffffff8129d2a0 f+0x1 (x)\nmake 7 5.0: \
             {event}\nmake 7 [001] {event}\nmake 7 [001] 900: {event}\na 1 [000] 1.0: kmem:kfree: \
             x\na 1 [000] 1.0: mm_page_free: pfn=0x1\nhello\na 1 [000] 1.0: mm_page_free_direct: \
             page=0x1 pfn=1 order=0\nCPU:1 [LOST 17 EVENTS]\n"
        ),
    )
    .unwrap();
    let (line, json) = account(&trace);
    for part in [
        "read: 10 lines, 5 of them events",
        "skipped 1 lines of unknown events, first [line 6: a 1 [000] 1.0: kmem:kfree: x]",
        "skipped 1 lines unfinished, first [line 7: ",
        "skipped 1 lines unreadable, first [line 8: hello]",
        "1 frames or calls of functions: left out",
        "17 events lost by the recorder",
        "1 events name no CPU",
        "1 events tell no time",
        "1 events have times without a unit",
        "1 events have names of kernels before 3.3",
        "time goes back 2 times, most by 4999.999 ms in line 5",
        "are these two recordings in one file?",
        "migratetypes are numbered as before Linux 4.4",
        "4 unknown frees, of blocks allocated before the recording: not replayed",
    ] {
        assert!(line.contains(part), "{part} is not in {line}");
    }
    assert_eq!(json["name"], trace.to_str().unwrap());
    for (what, number) in [("functions", 1), ("lost", 17), ("unfinished", 1), ("unknown_frees", 4)]
    {
        assert_eq!(count(&json, what), number, "{what}");
    }
    fs::write(&trace, format!("make 7 [001] 9.0: kmem:{}\n", alloc.replace("=2", "=1"))).unwrap();
    let (line, json) = account(&trace);
    assert_eq!(line, "read: 1 lines, 1 of them events; nothing was left out");
    assert_eq!(json["parts"].as_array().unwrap().len(), 0);
}

#[test]
fn orders_are_kept() {
    // What `plan` reads of a block of the largest order that designs have.
    let text = "a-1 [000] d..1. 1.0: mm_page_alloc: pfn=1024 order=10 migratetype=1 gfp_flags=X\n";
    assert!(matches!(plan(text, None).ops[0], Op::Alloc { order: Order::MAX, .. }));
}
