//! Properties of reading and writing traces:
//! 1. reading never panics and accounts for every line, whatever the bytes;
//! 2. what the writer writes, the reader reads back, whatever the name of the task;
//! 3. a broken line costs only itself.

use std::time::Duration;

use pagedepot::{Mobility, Order};
use pagedepot_linux::trace::{Stamp, TraceWriter, TracedBlock};
use pagedepot_trace::{Event, KernelPfn, read};
use proptest::prelude::*;

/// A line as a program may write it.
#[derive(Clone, Debug)]
enum Written {
    Alloc(TracedBlock, u32),
    Failed(u32, u32),
    Free(TracedBlock),
    FreeMany(Vec<TracedBlock>),
}

fn block() -> impl Strategy<Value = TracedBlock> {
    (1..1_u64 << 40, 0..=10_u32).prop_map(|(pfn, order)| TracedBlock { pfn, order })
}

fn written() -> impl Strategy<Value = Written> {
    prop_oneof![
        (block(), 0..3_u32).prop_map(|(block, migratetype)| Written::Alloc(block, migratetype)),
        (0..=10_u32, 0..3_u32).prop_map(|(order, migratetype)| Written::Failed(order, migratetype)),
        block().prop_map(Written::Free),
        prop::collection::vec(block(), 0..4).prop_map(Written::FreeMany),
    ]
}

/// The kernel counts them as we do.
fn mobility(migratetype: u32) -> Mobility {
    Mobility::from_index(migratetype as usize).unwrap()
}

type Event4 = (String, u32, u32, Duration, Written);

fn stamped() -> impl Strategy<Value = Event4> {
    // Names made of what a parser may trip over, and any others.
    let comm = prop_oneof![
        r"[a-z0-9 :\[\]().=-]{0,20}",
        r" ?[0-9]{1,2} \[[0-9]\] [0-9]\.[0-9]: [a-z]:",
        any::<String>()
    ];
    (comm, 0..1_u32 << 31, 0..8192_u32, (0..1_u64 << 33, 0..1_000_000_000_u32), written()).prop_map(
        |(comm, pid, cpu, (secs, nanos), written)| {
            (comm, pid, cpu, Duration::new(secs, nanos), written)
        },
    )
}

/// The events that reading must yield.
fn expected(written: &Written) -> Vec<Event> {
    let free =
        |block: &TracedBlock| Event::PageFree { pfn: KernelPfn(block.pfn), order: block.order };
    let batched = |block: &TracedBlock| Event::PageFreeBatched {
        pfn: KernelPfn(block.pfn),
        order: block.order,
    };
    match written {
        &Written::Alloc(TracedBlock { pfn, order }, migratetype) => {
            vec![Event::PageAlloc {
                pfn: Some(KernelPfn(pfn)),
                order,
                migratetype,
                asks_movable: migratetype == 1,
                is_page_cache: false,
            }]
        }
        &Written::Failed(order, migratetype) => vec![Event::PageAlloc {
            pfn: None,
            order,
            migratetype,
            asks_movable: migratetype == 1,
            is_page_cache: false,
        }],
        Written::Free(block) => vec![free(block)],
        Written::FreeMany(blocks) => {
            blocks.iter().map(free).chain(blocks.iter().map(batched)).collect()
        }
    }
}

fn write_all(events: &[Event4]) -> String {
    let mut writer = TraceWriter::new(Vec::new());
    for (comm, pid, cpu, time, written) in events {
        let at = Stamp { comm, pid: *pid, cpu: *cpu, time: *time };
        match written {
            &Written::Alloc(block, migratetype) => writer.alloc(&at, block, mobility(migratetype)),
            &Written::Failed(order, migratetype) => {
                writer.alloc_failed(&at, Order::new(order).unwrap(), mobility(migratetype))
            }
            &Written::Free(block) => writer.free(&at, block),
            Written::FreeMany(blocks) => writer.free_many(&at, blocks),
        }
        .unwrap();
    }
    String::from_utf8(writer.finish().unwrap()).unwrap()
}

/// A piece of a line, right or wrong.
fn shard() -> impl Strategy<Value = String> {
    prop_oneof![
        Just("kmem:mm_page_alloc: ".to_owned()),
        Just("mm_page_free: pfn=0x1 order=0".to_owned()),
        Just("alloc_vmap_area: va_start: ".to_owned()),
        Just("migratetype=1 gfp_flags=X".to_owned()),
        r"a? ?-?[0-9]{0,9} \[[0-9]{0,6}\] [d.]{0,5} [0-9]{0,22}\.[0-9]{0,12}: ",
        r"(pfn|order|size|failed)=(0x)?[0-9a-f-]{0,20} ",
        r"\[(LOST )?[0-9]{0,22} EVENTS( DROPPED)?\]",
        Just("\n".to_owned()),
        any::<String>(),
    ]
}

proptest! {
    #[test]
    fn any_bytes_are_read_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
        let _ = read(&bytes[..], "bytes", |_| ());
    }

    #[test]
    fn any_zstd_is_read_without_panic(tail in prop::collection::vec(any::<u8>(), 0..500)) {
        let _ = read(&[&[0x28, 0xb5, 0x2f, 0xfd][..], &tail].concat()[..], "bytes", |_| ());
    }

    #[test]
    fn every_line_is_accounted_for(shards in prop::collection::vec(shard(), 0..40)) {
        // One good line, so that there is a trace.
        let text = format!("a 1 [000] 1.0: mm_page_free: pfn=0x1 order=0\n{}", shards.concat());
        let mut records = 0;
        let summary = read(text.as_bytes(), "shards", |_| records += 1).unwrap();
        let skipped = &summary.skipped;
        let lost = skipped.unknown.count + skipped.unfinished.count + skipped.unreadable.count;
        let accounted = records + lost;
        prop_assert!(accounted <= summary.lines);
        prop_assert_eq!(summary.counts.total(), records);
        prop_assert_eq!(summary.lines, text.split_inclusive('\n').count() as u64);
        prop_assert_eq!(summary.commands.values().sum::<u64>(), records);
    }

    #[test]
    fn what_is_written_is_read(events in prop::collection::vec(stamped(), 1..20)) {
        let text = write_all(&events);
        let mut wanted = events
            .iter()
            .flat_map(|event| expected(&event.4).into_iter().map(move |e| (event, e)));
        if wanted.clone().next().is_none() {
            return Ok(());
        }
        let mut failure = None;
        let summary = read(text.as_bytes(), "written", |record| {
            let Some(((comm, pid, cpu, time, _), event)) = wanted.next() else {
                failure = Some(format!("one too many: {record:?}"));
                return;
            };
            let same = (record.pid, record.time_ns) == (*pid as i32, time.as_nanos() as u64)
                && (record.event, u32::from(record.cpu)) == (event, *cpu);
            // Names of usual characters survive, if they are short.
            let is_short = (1..=15).contains(&comm.len());
            let usual = is_short && comm.trim() == comm && !comm.contains(char::is_control);
            if !same || usual && record.comm != comm {
                failure = Some(format!("{comm:?}: {record:?}"));
            }
        }).unwrap();
        prop_assert!(failure.is_none(), "{}\n{text}", failure.unwrap());
        prop_assert!(wanted.next().is_none(), "some are missing:\n{text}");
        prop_assert_eq!(summary.counts.total(), summary.lines);
    }

    #[test]
    fn a_broken_line_costs_only_itself(
        events in prop::collection::vec(stamped(), 2..8),
        at in 0..1000_usize,
    ) {
        let text = write_all(&events);
        let lines: Vec<&str> = text.lines().collect();
        if lines.len() < 2 {
            return Ok(());
        }
        let broken = at % lines.len();
        let mut cut = at % lines[broken].len();
        while !lines[broken].is_char_boundary(cut) {
            cut -= 1;
        }
        let mut pieces = lines.clone();
        pieces[broken] = &lines[broken][..cut];
        let summary = read((pieces.join("\n") + "\n").as_bytes(), "broken", |_| ()).unwrap();
        // Cut inside its last number a line still reads.
        let read = summary.counts.total() as usize;
        prop_assert!(read == lines.len() - 1 || read == lines.len());
    }
}
