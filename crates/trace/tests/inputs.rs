//! Files of other kernels, and of other options of perf and tracefs; files that were cut, put
//! together, or saved by other programs. Each is read, or refused with its first line and what is
//! wrong with it.

use std::fs;
use std::path::Path;

use pagedepot_trace::{
    Buddyinfo, Clock, Event, EventKind, KernelPfn, Notation, Pagetypeinfo, Summary, TraceError,
    Zoneinfo, read,
};

/// A record's task, process, CPU and time, and its event's kind and notation.
type Read = (String, i32, u16, u64, EventKind, Notation);

fn read_all(bytes: impl AsRef<[u8]>) -> (Summary, Vec<Read>) {
    let mut records = Vec::new();
    let summary = read(bytes.as_ref(), "it", |r| {
        records.push((r.comm.to_owned(), r.pid, r.cpu, r.time_ns, r.event.kind(), r.notation));
    });
    (summary.unwrap_or_else(|error| panic!("{error}")), records)
}

fn refused(bytes: impl AsRef<[u8]>) -> String {
    let error = read(bytes.as_ref(), "it", |_| ()).map(|_| ()).expect_err("no trace").to_string();
    assert!(!error.contains('\n'), "{error}");
    error
}

const USUAL: Notation = Notation { clock: Clock::Seconds, names_cpu: true, has_old_name: false };

#[test]
fn perf_script_without_cpus_or_times_and_with_periods_is_read() {
    let (summary, records) = read_all(include_str!("data/perf-without-cpu.txt"));
    let notation = Notation { names_cpu: false, ..USUAL };
    assert_eq!(
        records[0],
        ("perf".into(), 31967, 0, 4_211_044_301_000, EventKind::PageAlloc, notation)
    );
    assert_eq!((records.len(), summary.without_cpu), (2, 2));

    let (summary, records) = read_all(include_str!("data/perf-with-period.txt"));
    assert_eq!(
        records[1],
        ("perf".into(), 31967, 1, 4_211_044_311_000, EventKind::PageFree, USUAL)
    );
    assert_eq!((summary.without_cpu, summary.without_time), (0, 0));

    let event = "kmem:mm_page_free: page=0x1 pfn=0x1 order=0";
    let text = format!("a b 7 [002] 5.5: {event}\na b 7 [003] {event}\na b 7 {event}\n{event}\n");
    let (summary, records) = read_all(text);
    let headers: Vec<_> = records.iter().map(|r| (r.0.as_str(), r.1, r.2, r.3)).collect();
    let ns = 5_500_000_000;
    assert_eq!(
        headers,
        [("a b", 7, 2, ns), ("a b", 7, 3, ns), ("a b", 7, 0, ns), ("<...>", -1, 0, ns)]
    );
    assert_eq!((summary.without_cpu, summary.without_time, summary.out_of_order), (2, 3, 0));
}

#[test]
fn times_without_a_unit_are_ticks() {
    let (summary, records) = read_all(include_str!("data/trace-clock-tsc.txt"));
    let notation = Notation { clock: Clock::Ticks, ..USUAL };
    assert_eq!(
        records[0],
        ("make".into(), 7, 1, 5_987_737_965_330, EventKind::PageAlloc, notation)
    );
    assert_eq!((records.len(), summary.in_ticks), (3, 3));
}

#[test]
fn latency_format_is_read() {
    let (summary, records) = read_all(include_str!("data/latency-format.txt"));
    assert_eq!(records[0], ("make".into(), 7, 0, 329_348_000, EventKind::PageAlloc, USUAL));
    assert_eq!((records[1].3, records.len()), (329_361_000, 3));
    let skipped = &summary.skipped;
    assert_eq!((skipped.unreadable.count, skipped.unknown.count), (0, 0), "{skipped:?}");
}

#[test]
fn events_within_function_graph_are_read() {
    let (summary, records) = read_all(include_str!("data/function-graph.txt"));
    let notation = Notation { clock: Clock::None, ..USUAL };
    let cpus: Vec<_> = records.iter().map(|r| (r.2, r.4, r.5)).collect();
    let alloc = EventKind::PageAlloc;
    assert_eq!(cpus, [(0, alloc, notation), (3, alloc, notation), (0, alloc, notation)]);
    // Two calls of each, and the switch of tasks above them.
    assert_eq!((summary.functions, summary.skipped.unreadable.count), (7, 0));
    let event = "/* mm_page_free: page=0x1 pfn=0x9 order=0 */";
    let text = format!(" 12.000250 |   1)  make-77  |               |  {event}\n");
    let (_, records) = read_all(text);
    assert_eq!(records[0], ("make".into(), 77, 1, 12_000_250_000, EventKind::PageFree, USUAL));
}

#[test]
fn frames_of_call_chains_are_no_unreadable_lines() {
    let (summary, records) = read_all(include_str!("data/callchain.txt"));
    assert_eq!((records.len(), summary.functions, summary.skipped.unreadable.count), (2, 10, 0));
    let text = "a 1 [000] 1.0: mm_page_free: page=0x1 pfn=0x1 order=0\n\
                a 1 [000] ..... 1.0: <stack trace>\n => __free_pages\n => do_exit\n";
    let (summary, _) = read_all(text);
    assert_eq!((summary.functions, summary.skipped.unreadable.count), (2, 0));
}

#[test]
fn events_names_of_older_kernels_are_read() {
    let (summary, records) = read_all(include_str!("data/free-direct.txt"));
    assert_eq!((records.len(), summary.old_names), (5, 4));
    assert_eq!(summary.counts.get(EventKind::PageFree), 4);
    assert_eq!(summary.skipped.unreadable.count, 1, "a heading that lost its `#`");
    let text = "a 1 [000] 1.0: mm_pagevec_free: page=ffffea0 pfn=1155800 order=0 cold=0\n";
    assert_eq!(read_all(text).1[0].4, EventKind::PageFree, "it is the free's only event");
}

#[test]
fn flags_tell_what_is_movable() {
    for (flags, is_movable) in [
        ("GFP_KERNEL", false),
        ("GFP_HIGHUSER_MOVABLE|__GFP_ZERO", true),
        ("GFP_KERNEL|GFP_MOVABLE", true),
        ("__GFP_RECLAIMABLE|__GFP_MOVABLE", true),
        ("GFP_TRANSHUGE_LIGHT|__GFP_NOMEMALLOC", true),
    ] {
        let line = format!(
            "a 1 [000] 1.0: mm_page_alloc: page=0x1 pfn=0x1 order=0 migratetype=2 \
             gfp_flags={flags}\n"
        );
        read(line.as_bytes(), "it", |record| {
            let expected = Event::PageAlloc {
                pfn: Some(KernelPfn(1)),
                order: 0,
                migratetype: 2,
                asks_movable: is_movable,
                is_page_cache: false,
            };
            assert_eq!(record.event, expected, "{flags}");
        })
        .unwrap();
    }
}

fn utf16(text: &str, unit: fn(u16) -> [u8; 2]) -> Vec<u8> {
    text.encode_utf16().flat_map(unit).collect()
}

#[test]
fn utf16_and_byte_order_marks_are_read() {
    let text = include_str!("data/perf-with-period.txt").replace('\n', "\r\n");
    let (_, usual) = read_all(&text);
    let marked = format!("\u{feff}{text}");
    let twice = format!("{marked}{marked}");
    for bytes in [
        marked.clone().into_bytes(),
        utf16(&marked, u16::to_le_bytes),
        utf16(&marked, u16::to_be_bytes),
        utf16(&text, u16::to_le_bytes),
        utf16(&text, u16::to_be_bytes),
    ] {
        let (summary, records) = read_all(&bytes);
        assert_eq!((records, summary.skipped.unreadable.count), (usual.clone(), 0));
        let file = ruzstd::encoding::compress_to_vec(
            &bytes[..],
            ruzstd::encoding::CompressionLevel::Fastest,
        );
        assert_eq!(read_all(&file).1, usual);
    }
    assert_eq!(read_all(twice).1.len(), 2 * usual.len());
    // Half a line end.
    let cut = utf16(&marked, u16::to_le_bytes);
    let (summary, records) = read_all(&cut[..cut.len() - 1]);
    assert_eq!((&records[..], summary.skipped.unfinished.count), (&usual[..usual.len() - 1], 1));
}

/// Checks that no event is taken from a part of a line, wherever a plain file ends: what is left of
/// its last number is a number, too.
#[test]
fn a_plain_file_that_ends_early_loses_its_last_line_and_says_so() {
    let line = |n| format!("a 1 [000] {n}.0: mm_page_free: page=0x1 pfn=0x{n:x}00 order=10\n");
    let text: String = (1..10).map(line).collect();
    let (_, whole) = read_all(&text);
    for length in text.find('\n').unwrap() + 1..text.len() {
        let (summary, records) = read_all(&text[..length]);
        let has_end = text[..length].ends_with('\n');
        let lines = text[..length].matches('\n').count();
        assert_eq!(
            (&records[..], summary.lines),
            (&whole[..lines], (lines + usize::from(!has_end)) as u64)
        );
        let skipped = &summary.skipped;
        let others = skipped.unfinished.count + skipped.unreadable.count + skipped.unknown.count;
        assert!(has_end == (others == 0) || text[..length].ends_with("\na"), "{summary:?}");
    }
    let (summary, _) = read_all(text.trim_end());
    let [example] = &summary.skipped.unfinished.examples[..] else { panic!("{summary:?}") };
    assert_eq!(example.line, 9);
    assert!(example.why.contains("without a line end"), "{example:?}");
}

#[test]
fn time_that_goes_back_is_told_with_its_line() {
    let line = |secs: u32| format!("a 1 [000] {secs}.0: mm_page_free: page=0x1 pfn=0x1 order=0\n");
    // Two recordings, one after the other.
    let text: String = [10, 11, 12, 3, 4, 5].into_iter().map(line).collect();
    let (summary, _) = read_all(text);
    let step = summary.step_back.unwrap();
    assert_eq!((summary.out_of_order, step.line, step.ns), (1, 4, 9_000_000_000));
}

#[test]
fn a_trace_without_events_shows_a_line_and_what_is_wrong_with_it() {
    for (text, says) in [
        ("\nhello\n", "line 2 is `hello`: it names no event of the page allocator"),
        (
            "make 7 [99999] 1.0: mm_page_free: page=0x1 pfn=0x1 order=0\n",
            "line 1 is `make 7 [99999] 1.0: mm_page_free: page=0x1 pfn=0x1 order=0`: neither `task \
             pid [cpu] seconds.fraction:` stands before",
        ),
        ("a 1 [000] 1.0: mm_page_free: page=0x1 pfn=0x1\n", "breaks off before the event's last"),
        ("a 1 [000] 1.0: mm_page_free: page=0x1 pfn=1 order=-1\n", "a field is no number"),
        ("a 1 [000] 1.0: mm_page_free: pfn=1 order=99999999999999999999\n", "a field is no number"),
        (
            "a 1 [000] 1.0: kmem:kmalloc: call_site=1 ptr=2 bytes_req=8\n",
            "its event is none of the page allocator's or of vmalloc's",
        ),
        ("Page allocated via order 0, mask 0x0, pid 1, ts 1 ns\n", "it is the table of page_owner"),
        ("12 times, 34 pages:\nPage allocated via order 0\n", "it is the table of page_owner"),
        ("Node 0, zone      DMA\n", "it is /proc/zoneinfo"),
        ("Page block order: 9\n", "it is /proc/pagetypeinfo"),
        (
            "0xffffc90000000000-0xffffc90000005000   20480 irq_init_percpu_irqstack+0x10/0x20 x\n",
            "it is /proc/vmallocinfo",
        ),
        ("55d0c0a00000-55d0c0a02000 r--p 00000000 08:01 1 /bin/cat\n", "it is /proc/PID/maps"),
        ("MemTotal:       16306240 kB\n", "it is /proc/meminfo"),
        ("\x7fELF\x02\x01\x01\0\0", "it is a program"),
        ("PK\x03\x04\x14\0", "compressed with zip"),
        ("a\0\0b", "it is a binary file"),
    ] {
        let error = refused(text);
        assert!(error.contains(says), "{text}: {error}");
    }
}

#[test]
fn zones_without_pages_are_left_out() {
    // A node that is to be filled by hotplug: it spans what has no memory yet.
    let text = "\
Node 0, zone   Normal
  pages free     5
        spanned  10
        present  8
        managed  7
  start_pfn:           4096
Node 0, zone  Movable
  pages free     0
        spanned  262144
        present  0
        managed  0
";
    let info = Zoneinfo::parse(text, "it").unwrap();
    assert_eq!((info.zones.len(), info.zones_without_pages), (1, 1));
    assert_eq!((info.zones[0].frames(), info.managed_is_present), (4096..4106, false));
}

#[test]
fn present_stands_for_managed_before_linux_3_10() {
    let text = include_str!("data/zoneinfo-no-managed.txt");
    let info = Zoneinfo::parse(text, "it").unwrap();
    assert!(info.managed_is_present);
    let zone = &info.zones[0];
    assert_eq!((zone.managed, zone.present, zone.free), (122_472, 122_472, 2318));
    assert_eq!((zone.pagesets[0].count, zone.pagesets[0].high), (171, 186));
    // Two caches per CPU, before 2.6.25.
    let cold = text.replace("    cpu: 0\n", "    cpu: 0 pcp: 0\n").replace(
        "  vm stats threshold",
        "    cpu: 0 pcp: 1\n              count: 9\n              high: 62\n  vm stats threshold",
    );
    let pagesets = &Zoneinfo::parse(&cold, "it").unwrap().zones[0].pagesets;
    assert_eq!((pagesets.len(), pagesets[0].count, pagesets[0].high), (1, 180, 248));
}

/// Each prefix and each suffix of a file with two zones is one of them, both, or refused.
#[test]
fn a_zoneinfo_that_is_a_part_is_refused() {
    let first = include_str!("data/zoneinfo-no-managed.txt")
        .replace("present  122472", "present  122472\n        managed  122000");
    let all = format!("{first}{}", first.replace("Normal", "DMA"));
    let part = |text: &str, zones: usize, is_whole: bool| match Zoneinfo::parse(text, "it") {
        Ok(info) => assert!(is_whole && info.zones.len() == zones, "{text:?}"),
        Err(error) => {
            assert!(!is_whole, "{text:?}: {error}");
            assert!(error.to_string().contains("it is not the text of /proc/zoneinfo: "));
        }
    };
    for to in 0..=all.len() {
        // The line behind `start_pfn` is not needed.
        let (zones, of_zone) = if to <= first.len() { (1, to) } else { (2, to - first.len()) };
        let is_whole = all[..to].trim_end_matches(' ').ends_with('\n')
            && of_zone > first.rfind("start_pfn").unwrap();
        part(&all[..to], zones, is_whole);
    }
    for from in 1..all.len() {
        let rest = &all[from..];
        part(rest, 1, rest.trim_start().starts_with("Node 0, zone   DMA"));
    }
}

#[test]
fn listings_that_are_there_twice_or_lost_lines_are_refused() {
    let once = include_str!("data/zoneinfo-no-managed.txt");
    let of = |text: &str| Zoneinfo::parse(text, "it").unwrap_err().to_string();
    let lines = once.lines().count();
    let error = of(&once.repeat(2));
    assert!(
        error.contains(&format!(
            "line {} lists node 0, zone Normal a second time, after line 1, so it is more than one",
            lines + 1
        )),
        "{error}"
    );
    for (text, says) in [
        (
            once.replacen("Node 0, zone   Normal\n", "", 1),
            "line 1, `pages free     2318`, comes before",
        ),
        (once.replace("present  122472", "spanned  1"), "`spanned` is there a second time"),
        (once.replace("        spanned  124416\n", ""), "lacks `spanned`"),
        (once.replace("cpu: 0", "cpu: 99999999999"), "\"99999999999\" is the number of no CPU"),
        (once.replace("zone   Normal", "zone \u{1b}[2J").repeat(2), "zone ?[2J a second time"),
        (once.replace("Node 0,", "Node x,"), "line 1: \"x,\" is no node"),
        (once.replace("count: 171", "count: -171"), "\"-171\" is not a number of pages"),
        (once.replace("122472", "0"), "none of its 1 zones has pages"),
        (once.trim_end().to_owned(), "its last line, `inactive_ratio:    1`, has no line end"),
    ] {
        let error = of(&text);
        assert!(error.contains(says), "{error}");
    }
    let line = "Node 0, zone   Normal   9880   1489    647\n";
    let other = line.replace("Normal", "DMA");
    assert!(Buddyinfo::parse(&format!("\u{feff}{line}{other}"), "it").is_ok());
    for (text, says) in [
        (line.repeat(2), "line 2 lists node 0, zone Normal a second time, after line 1"),
        (line.trim_end().to_owned(), "has no line end"),
        (
            format!("{line}{}", other.replace("   647", "")),
            "line 2 has 2 orders, and the one above it 3",
        ),
        (
            line[8..].to_owned(),
            "line 1, `zone   Normal   9880   1489    647`, is not one of a zone",
        ),
        (line.replace("9880", "-1"), "is not one of a zone"),
        (line.replace("9880", "17592186044417"), "is not one of a zone"),
    ] {
        let error = Buddyinfo::parse(&text, "it").unwrap_err().to_string();
        assert!(error.contains(says), "{text}: {error}");
    }
}

#[test]
fn the_table_of_pageblocks_ends_where_it_ends() {
    let text = include_str!("data/mixed-blocks.pagetypeinfo.txt");
    let info = Pagetypeinfo::parse(text, "it").unwrap();
    // Without the 11 of the table of mixed pageblocks.
    assert_eq!((info.tainted(), info.pageblock_order), (140, Some(9)));
    let adjacent = text.replace("\n\nNumber of mixed", "\nNumber of mixed");
    assert_eq!(Pagetypeinfo::parse(&adjacent, "it").unwrap(), info, "without a blank line");
    // A table for each node.
    let second = text.replace("Node 0,", "Node 1,").replace("Node    0,", "Node    1,");
    let both = Pagetypeinfo::parse(&format!("{text}{second}"), "it").unwrap();
    assert_eq!(both.tainted(), 280);
}

#[test]
fn small_files_are_read_however_they_were_saved() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("zoneinfo");
    let text = include_str!("data/zoneinfo-no-managed.txt");
    let usual = Zoneinfo::parse(text, "it").unwrap();
    let marked = format!("\u{feff}{}", text.replace('\n', "\r\n"));
    let fastest = ruzstd::encoding::CompressionLevel::Fastest;
    for bytes in [
        marked.clone().into_bytes(),
        utf16(&marked, u16::to_le_bytes),
        utf16(text, u16::to_be_bytes),
        ruzstd::encoding::compress_to_vec(text.as_bytes(), fastest),
    ] {
        fs::write(&path, bytes).unwrap();
        assert_eq!(Zoneinfo::read_file(&path).unwrap(), usual);
    }
    let gzip = b"\x1f\x8b\x08\0\0\0\0\0".to_vec();
    for (bytes, says) in [
        (Vec::new(), "it is empty"),
        (gzip, "it is a compressed file"),
        (b"PERFILE2\0\0".to_vec(), "it is a binary perf.data file"),
        ([text.as_bytes(), b"\0"].concat(), "it is a binary file"),
    ] {
        fs::write(&path, bytes).unwrap();
        for error in [
            Zoneinfo::read_file(&path).map(|_| ()),
            Buddyinfo::read_file(&path).map(|_| ()),
            Pagetypeinfo::read_file(&path).map(|_| ()),
        ] {
            let error = error.unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
    }
    for endless in ["/dev/zero", "/"] {
        let error = Pagetypeinfo::read_file(Path::new(endless)).unwrap_err();
        let is_named = match &error {
            TraceError::NotPagetypeinfo { what, .. } => what.contains("more than 64 MiB"),
            TraceError::Open { source, .. } => source.to_string().contains("directory"),
            _ => false,
        };
        assert!(is_named, "{error}");
    }
}

/// The page cache is movable and not zeroed, and its readahead neither retries nor warns.
#[test]
fn the_page_cache_is_known_by_its_flags() {
    for (flags, expected) in [
        ("GFP_HIGHUSER_MOVABLE|__GFP_WRITE|__GFP_COMP", true),
        ("GFP_NOFS|__GFP_HIGHMEM|__GFP_MOVABLE|__GFP_NOWARN|__GFP_NORETRY|__GFP_COMP", true),
        ("GFP_HIGHUSER_MOVABLE|__GFP_COMP", false),
        ("GFP_HIGHUSER_MOVABLE|__GFP_ZERO|__GFP_WRITE", false),
        ("GFP_HIGHUSER_MOVABLE|__GFP_NORETRY", false),
        ("GFP_NOFS|__GFP_RECLAIMABLE|__GFP_NOWARN|__GFP_NORETRY", false),
        ("GFP_NOWAIT|__GFP_NORETRY|__GFP_NOWARN", false),
    ] {
        let line = format!(
            "a 1 [000] 1.0: mm_page_alloc: page=0x1 pfn=0x1 order=0 migratetype=1 \
             gfp_flags={flags}\n"
        );
        read(line.as_bytes(), "it", |record| {
            let Event::PageAlloc { is_page_cache, .. } = record.event else { panic!("{record:?}") };
            assert_eq!(is_page_cache, expected, "{flags}");
        })
        .unwrap();
    }
}
