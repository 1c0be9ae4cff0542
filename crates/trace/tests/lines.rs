//! Lines of all formats, whole and broken, and files that are no traces.

use std::io::Read;

use pagedepot_trace::{
    Event, EventKind, ExpandLimit, KernelPfn, Summary, Tally, TraceError, read, read_file,
};

/// A record that owns its name.
#[derive(Debug, PartialEq)]
struct Owned {
    comm: String,
    pid: i32,
    cpu: u16,
    time_ns: u64,
    event: Event,
}

fn read_all(text: impl AsRef<[u8]>) -> Result<(Summary, Vec<Owned>), TraceError> {
    let mut records = Vec::new();
    let summary = read(text.as_ref(), "test", |r| {
        let comm = r.comm.to_owned();
        records.push(Owned { comm, pid: r.pid, cpu: r.cpu, time_ns: r.time_ns, event: r.event });
    })?;
    Ok((summary, records))
}

fn one(line: &str) -> Owned {
    let text = format!("{}\n", line.trim_end_matches('\n'));
    let (summary, mut records) = read_all(text).unwrap_or_else(|e| panic!("{line}: {e}"));
    assert_eq!((summary.lines, records.len()), (1, 1), "{line}");
    records.remove(0)
}

const FREE: Event = Event::PageFree { pfn: KernelPfn(0x20aa8e), order: 0 };

/// Each row: a line, and the name, process, CPU and time it must yield with `FREE`.
const HEADERS: &[(&str, &str, i32, u16, u64)] = &[
    // perf script, also with nanoseconds and with -F pid,tid.
    (
        "            perf 31967 [001]  4211.044301:   kmem:mm_page_free: page=0x20aa8e \
         pfn=0x20aa8e order=0",
        "perf",
        31967,
        1,
        4_211_044_301_000,
    ),
    (
        "perf 31967 [001]  4211.044301123:   kmem:mm_page_free: page=0x20aa8e pfn=0x20aa8e order=0",
        "perf",
        31967,
        1,
        4_211_044_301_123,
    ),
    (
        "perf 31960/31967 [001]  4211.044301:   kmem:mm_page_free: page=0x20aa8e pfn=0x20aa8e \
         order=0",
        "perf",
        31967,
        1,
        4_211_044_301_000,
    ),
    (
        "             :-1    -1 [001]  4211.044301:   kmem:mm_page_free: page=0x20aa8e \
         pfn=0x20aa8e order=0",
        ":-1",
        -1,
        1,
        4_211_044_301_000,
    ),
    (
        "         swapper     0 [000]     0.000001:   kmem:mm_page_free: page=0x20aa8e \
         pfn=0x20aa8e order=0",
        "swapper",
        0,
        0,
        1_000,
    ),
    // Names with blanks, colons, brackets, dashes, and ones that look like headers.
    (
        "  Web Content  1234 [1023] 1.5: kmem:mm_page_free: page=0x1 pfn=0x20aa8e order=0",
        "Web Content",
        1234,
        1023,
        1_500_000_000,
    ),
    (
        " kworker/u4:2-ev 77 [007] 1.5: kmem:mm_page_free: page=0x1 pfn=0x20aa8e order=0",
        "kworker/u4:2-ev",
        77,
        7,
        1_500_000_000,
    ),
    (
        " [x] a: 3 [1] 77 [007] 1.5: kmem:mm_page_free: page=0x1 pfn=0x20aa8e order=0",
        "[x] a: 3 [1]",
        77,
        7,
        1_500_000_000,
    ),
    (
        " 1 [0] 1.0: a: 77 [007] 1.5: kmem:mm_page_free: page=0x1 pfn=0x20aa8e order=0",
        "1 [0] 1.0: a:",
        77,
        7,
        1_500_000_000,
    ),
    // tracefs, with 4 and 5 flags, with thread group ids, unknown and idle tasks.
    (
        "            bash-1977    [003] d..1. 17284.993652: mm_page_free: page=0x1 pfn=0x20aa8e \
         order=0",
        "bash",
        1977,
        3,
        17_284_993_652_000,
    ),
    (
        "            bash-1977    [003] .... 17284.993652: mm_page_free: page=0x1 pfn=0x20aa8e \
         order=0",
        "bash",
        1977,
        3,
        17_284_993_652_000,
    ),
    (
        "            bash-1977    (   1970) [003] dNh2. 17284.993652: mm_page_free: page=0x1 \
         pfn=0x20aa8e order=0",
        "bash",
        1977,
        3,
        17_284_993_652_000,
    ),
    (
        "            bash-1977    (-------) [003] .N..1 17284.993652: mm_page_free: page=0x1 \
         pfn=0x20aa8e order=0",
        "bash",
        1977,
        3,
        17_284_993_652_000,
    ),
    (
        "           <...>-1977    [003] ..... 17284.993652: mm_page_free: page=0x1 pfn=0x20aa8e \
         order=0",
        "<...>",
        1977,
        3,
        17_284_993_652_000,
    ),
    (
        "          <idle>-0       [003] ..s1. 17284.993652: mm_page_free: page=0x1 pfn=0x20aa8e \
         order=0",
        "<idle>",
        0,
        3,
        17_284_993_652_000,
    ),
    (
        "     Web Co-[2] -1977    [003] ..... 17284.993652: mm_page_free: page=0x1 pfn=0x20aa8e \
         order=0",
        "Web Co-[2] ",
        1977,
        3,
        17_284_993_652_000,
    ),
    // trace-cmd report, older and newer.
    (
        "          sleep-1977  [003] 17284.993652: mm_page_free:         page=0x1 pfn=0x20aa8e \
         order=0",
        "sleep",
        1977,
        3,
        17_284_993_652_000,
    ),
    (
        "          sleep-1977  [003] .....  17284.993652: mm_page_free:         page=0x1 \
         pfn=0x20aa8e order=0",
        "sleep",
        1977,
        3,
        17_284_993_652_000,
    ),
    // Windows line end; older kernels' decimal frame numbers.
    (
        "perf 1 [001]  4.5:   kmem:mm_page_free: page=0xffffea0001f2a540 pfn=2140814 order=0\r\n",
        "perf",
        1,
        1,
        4_500_000_000,
    ),
];

#[test]
fn headers_of_all_formats() {
    for &(line, comm, pid, cpu, time_ns) in HEADERS {
        assert_eq!(
            one(line),
            Owned { comm: comm.to_owned(), pid, cpu, time_ns, event: FREE },
            "{line}"
        );
    }
}

fn event(fields: &str) -> Event {
    one(&format!("a 1 [000] 1.0: {fields}")).event
}

#[test]
fn all_page_events() {
    let pfn = KernelPfn(0x138);
    let alloc = |pfn| Event::PageAlloc {
        pfn,
        order: 3,
        migratetype: 2,
        asks_movable: false,
        is_page_cache: false,
    };
    for (text, expected) in [
        ("pfn=0x138", Some(pfn)),
        ("pfn=312", Some(pfn)),
        ("pfn=0", None),
        ("pfn=0x0", None),
        ("pfn=0xffffffffffffffff", None),
        ("pfn=18446744073709551615", None),
        ("pfn=-1", None),
    ] {
        let line = format!(
            "kmem:mm_page_alloc: page=(nil) {text} order=3 migratetype=2 \
             gfp_flags=GFP_KERNEL|__GFP_ZERO"
        );
        assert_eq!(event(&line), alloc(expected), "{text}");
    }
    assert_eq!(
        event("mm_page_alloc: [FAILED TO PARSE] pfn=312 order=3 gfp_flags=3264 migratetype=2"),
        alloc(Some(pfn)),
        "as trace-cmd prints what it cannot format"
    );
    assert_eq!(
        event("mm_page_free_batched: page=1 pfn=0x138 order=0"),
        Event::PageFreeBatched { pfn, order: 0 }
    );
    let locked = |percpu_refill| Event::ZoneLocked {
        pfn: Some(pfn),
        order: 1,
        migratetype: 0,
        percpu_refill,
    };
    let line =
        "kmem:mm_page_alloc_zone_locked: page=0x138 pfn=0x138 order=1 migratetype=0 percpu_refill=";
    assert_eq!(event(&format!("{line}1")), locked(true));
    assert_eq!(event(&format!("{line}0")), locked(false));
    assert_eq!(
        event("kmem:mm_page_pcpu_drain: page=0x138 pfn=0x138 order=2 migratetype=1"),
        Event::PcpuDrain { pfn, order: 2, migratetype: 1 }
    );
    assert_eq!(
        event(
            "kmem:mm_page_alloc_extfrag: page=0x138 pfn=0x138 alloc_order=1 fallback_order=5 \
             pageblock_order=9 alloc_migratetype=0 fallback_migratetype=1 fragmenting=1 \
             change_ownership=1"
        ),
        Event::ExtFrag {
            pfn,
            alloc_order: 1,
            fallback_order: 5,
            alloc_migratetype: 0,
            fallback_migratetype: 1,
            change_ownership: true
        }
    );
}

#[test]
fn of_a_kernels_work_only_the_caches_upkeep_is_read() {
    let work = |function| {
        format!(
            "kworker/1:1-eve  9097 [001] 14396.060026443: workqueue:workqueue_execute_start: \
             work struct 0xffff888627d275e0: function {function}\n"
        )
    };
    assert_eq!(one(&work("vmstat_update")).event, Event::VmstatUpdate);
    let broken = "a 1 [001] 1.0: workqueue:workqueue_execute_start: work struct 0xff";
    let (summary, records) =
        read_all([&work("vmstat_update"), &work("vmstat_update_2"), broken].concat()).unwrap();
    assert_eq!(records.len(), 1);
    assert_eq!((summary.skipped.unknown.count, summary.skipped.unfinished.count), (1, 1));
}

#[test]
fn samples_that_perf_lost_are_counted() {
    let lost = "find 26362 [000] 14483.917103396: PERF_RECORD_LOST lost 14697\n\
                perf 26351 [001] 14483.917292733: PERF_RECORD_LOST lost 139\n";
    let (summary, records) = read_all(format!("{lost}{}\n", HEADERS[0].0)).unwrap();
    assert_eq!((summary.lost_events, records.len()), (14_836, 1));
}

#[test]
fn all_vmap_events() {
    assert_eq!(
        event(
            "vmalloc:alloc_vmap_area: va_start: 18446683600718118912 size=20480 align=16384 \
             vstart=0xffffc90000000000 vend=0xffffe8ffffffffff failed=0"
        ),
        Event::AllocVmapArea {
            va_start: 18446683600718118912,
            size: 20480,
            align: 16384,
            vstart: 0xffffc90000000000,
            vend: 0xffffe8ffffffffff,
            failed: false
        }
    );
    assert_eq!(
        event(
            "vmalloc:free_vmap_area_noflush: va_start=0xffffc90008d04000 nr_lazy=3585 \
             nr_lazy_max=16384"
        ),
        Event::FreeVmapArea { va_start: 0xffffc90008d04000, nr_lazy: 3585, nr_lazy_max: 16384 }
    );
    assert_eq!(
        event(
            "purge_vmap_area_lazy: start=0xffffc90000d5c000 end=0xffffc9000be11000 num_purged=3279"
        ),
        Event::PurgeVmapAreas {
            start: 0xffffc90000d5c000,
            end: 0xffffc9000be11000,
            num_purged: 3279
        }
    );
}

#[test]
fn skipped_lines_are_counted_and_shown() {
    let text = "\
# tracer: nop
cpus=2

a 1 [000] 1.0: kmem:mm_page_free: page=0x1 pfn=0x1 order=0
a 1 [000] 1.1: sched:sched_switch: prev_comm=a [1] 2.0: x ==> next_comm=b
a 1 [000] 1.2: kmem:mm_page_alloc: page=0x1 pfn=0x1 order=0 migratetype=1
a 1 [000] 1.2: kmem:mm_page_free: page=0x1 pfn=0x
a 1 [000] 1.2: kmem:mm_page_free: page=0x1 pfn=0xyz order=0
        ffffffff8129d2a0 __free_pages+0x0 ([kernel.kallsyms])
CPU:1 [LOST 17 EVENTS]
CPU:0 [5 EVENTS DROPPED]
CPU 3 is empty
a 1 [000] 0.9: kmem:mm_page_free: page=0x1 pfn=0x1 order=0
a 1 [000] 1.3: kmem:mm_p";
    let (summary, records) = read_all(text).unwrap();
    assert_eq!((records.len(), summary.lines), (2, 14));
    assert_eq!((summary.lost_events, summary.out_of_order), (22, 1));
    assert_eq!((summary.first_ns, summary.last_ns), (Some(900_000_000), Some(1_000_000_000)));
    let skipped = &summary.skipped;
    let lines = |tally: &Tally| tally.examples.iter().map(|e| e.line).collect::<Vec<_>>();
    assert_eq!((skipped.unknown.count, lines(&skipped.unknown)), (2, vec![5, 14]));
    assert_eq!((skipped.unfinished.count, lines(&skipped.unfinished)), (2, vec![6, 7]));
    assert_eq!((skipped.unreadable.count, lines(&skipped.unreadable)), (1, vec![8]));
    assert_eq!(summary.functions, 1, "line 9 is a frame of a call chain");
    assert!(skipped.unknown.examples[0].excerpt.starts_with("a 1 [000] 1.1: sched:sched_switch"));
}

#[test]
fn a_line_too_long_is_unreadable_and_the_next_one_is_read() {
    let mut text = b"a 1 [000] 1.0: kmem:mm_page_free: page=0x1 pfn=0x1 order=0 ".to_vec();
    text.resize(1 << 20, b'x');
    text.extend_from_slice(b"\na 1 [000] 1.0: kmem:mm_page_free: page=0x1 pfn=0x1 order=0\n");
    let (summary, records) = read_all(text).unwrap();
    assert_eq!((records.len(), summary.lines, summary.skipped.unreadable.count), (1, 2, 1));
}

#[test]
fn bytes_that_are_no_utf8_do_not_matter() {
    let (_, records) =
        read_all(b"\xff\xfe 1 [000] 1.0: kmem:mm_page_free: page=0x1 pfn=0x1 order=0\n").unwrap();
    assert_eq!(records.len(), 1);
}

/// The message, which must be one line.
fn message(bytes: &[u8]) -> String {
    let message = read_all(bytes).map(|_| ()).expect_err("no trace").to_string();
    assert!(!message.contains('\n'), "{message}");
    message
}

#[test]
fn wrong_files_get_an_error_that_says_what_to_do() {
    assert!(message(b"").contains("is empty; record with `perf record"));
    assert!(message(b"PERFILE2\0\0\0\0\0\0").contains("run `perf script -i test > test.txt`"));
    assert!(message(b"2ELIFREP\0\0\0\0\0\0").contains("run `perf script -i test > test.txt`"));
    assert!(
        message(b"\x17\x08\x44tracing6\0").contains("run `trace-cmd report -i test > test.txt`")
    );
    assert!(message(b"\x1f\x8b\x08\0\0\0").contains("compressed with gzip"));
    assert!(
        message(b"hello\nworld\n")
            .contains("no page allocator or vmalloc event in 2 lines (unreadable: 2)")
    );
    assert!(message(b"a 1 [000] 1.1: sched:sched_switch: x\n").contains("(other events: 1)"));
    assert!(message(b"\x28\xb5\x2f\xfd").contains("ends early"));
    let missing = read_file("/nowhere/at all".as_ref(), ExpandLimit::default(), |_| ())
        .unwrap_err()
        .to_string();
    assert!(missing.contains("cannot open /nowhere/at all"), "{missing}");
    let directory =
        read_file("/".as_ref(), ExpandLimit::default(), |_| ()).unwrap_err().to_string();
    assert!(directory.contains("cannot open /: is a directory; give the path"), "{directory}");
}

/// `zstd` of one line; then two such frames with a skippable one between them.
#[test]
fn zstd_of_several_frames() {
    let line = b"a 1 [000] 1.0: kmem:mm_page_free: page=0x1 pfn=0x1 order=0\n";
    let frame = || {
        ruzstd::encoding::compress_to_vec(&line[..], ruzstd::encoding::CompressionLevel::Fastest)
    };
    let skippable = [0x5a, 0x2a, 0x4d, 0x18, 3, 0, 0, 0, b'a', b'b', b'c'];
    let file = [&frame()[..], &skippable, &frame()].concat();
    let (summary, records) = read_all(&file).unwrap();
    assert_eq!((summary.lines, records.len(), summary.counts.get(EventKind::PageFree)), (2, 2, 2));
    assert!(!summary.is_cut_short);
    assert!(message(&[&frame()[..], b"garbage"].concat()).contains("damaged"));
}

/// Checks that all lines in whole blocks are read wherever a file ends early, and that no event is
/// taken from a part of a line.
#[test]
fn zstd_that_ends_early() {
    let line = |n| format!("a 1 [000] {n}.0: kmem:mm_page_free: page=0x1 pfn=0x{n:x}00 order=0\n");
    let text: String = (1..20_000).map(line).collect();
    let lines: Vec<&str> = text.lines().collect();
    let level = ruzstd::encoding::CompressionLevel::Fastest;
    let file = ruzstd::encoding::compress_to_vec(text.as_bytes(), level);
    let (_, whole) = read_all(&file).unwrap();
    assert_eq!(whole.len(), lines.len());
    let (mut refused, mut partial) = (0, std::collections::BTreeSet::new());
    for length in (0..file.len()).step_by(file.len() / 200).chain(file.len() - 20..file.len()) {
        let Ok((summary, records)) = read_all(&file[..length]) else {
            refused += 1;
            continue;
        };
        assert!(summary.is_cut_short, "{length} bytes of {}", file.len());
        assert_eq!(records, whole[..records.len()], "{length} bytes");
        let unfinished = &summary.skipped.unfinished;
        assert_eq!(summary.lines, records.len() as u64 + unfinished.count);
        if let [example] = &unfinished.examples[..] {
            assert_eq!(example.line, summary.lines);
            assert!(lines[records.len()].starts_with(&example.excerpt), "{example:?}");
        }
        partial.insert(records.len());
    }
    assert!(refused > 0, "nothing is in a part of a first block");
    assert!(partial.len() > 5 && partial.last() == Some(&whole.len()), "{partial:?}");
}

/// A pipe hands out its bytes one by one.
struct Dribble<'a>(&'a [u8]);

impl Read for Dribble<'_> {
    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        let n = buf.len().min(1);
        self.0.read(&mut buf[..n])
    }
}

#[test]
fn short_reads_do_not_matter() {
    let line = b"a 1 [000] 1.0: kmem:mm_page_free: page=0x1 pfn=0x1 order=0\n";
    let frame =
        ruzstd::encoding::compress_to_vec(&line[..], ruzstd::encoding::CompressionLevel::Fastest);
    for file in [&line[..], &frame] {
        assert_eq!(read(Dribble(file), "pipe", |_| ()).unwrap().counts.total(), 1);
    }
}
