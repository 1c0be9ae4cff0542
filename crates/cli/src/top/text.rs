//! The text that `top` prints once.

use std::fmt::Write as _;

use pagedepot_linux::publish::Snapshot;

use crate::report::printable;

/// Sites that are listed.
const SITES: usize = 10;

/// Two lines of at most 80 columns: which program, and its memory.
pub(super) fn heading(seen: &Snapshot, pid: u32) -> String {
    let pages = |count: fn(&pagedepot_linux::views::Zone) -> u64| {
        let sum = seen.zones.zones.iter().map(count).fold(0, u64::saturating_add);
        mib(sum.saturating_mul(seen.page_bytes))
    };
    let program: String = printable(&seen.program).chars().take(20).collect();
    let ceiling = match seen.ceiling_bytes {
        Some(bytes) if bytes < seen.bytes => format!("ceiling {}, ", mib(bytes)),
        _ => String::new(),
    };
    format!(
        "{program} ({pid}): depot of {}, {} free, {} cached\n\
         {ceiling}metadata {}, {} areas, caches by {}",
        mib(seen.bytes),
        pages(|zone| zone.free_pages),
        pages(|zone| zone.cached_pages),
        mib(seen.metadata_bytes),
        seen.areas_count,
        way(&seen.fronts),
    )
}

/// The way in which threads reach caches, in words.
fn way(fronts: &str) -> String {
    match fronts {
        "Sequences" => "sequences".to_owned(),
        _ if fronts.starts_with("SequencesAndLocks") => "sequences and locks".to_owned(),
        _ if fronts.starts_with("SequencesOnSome") => "sequences on some".to_owned(),
        _ if fronts.starts_with("LocksOnSome") => "locks on some".to_owned(),
        _ if fronts.starts_with("Sequences") => "sequences, no fence".to_owned(),
        _ if fronts.starts_with("Locks") => "locks".to_owned(),
        // Of another version.
        _ => printable(fronts).chars().take(24).collect(),
    }
}

fn mib(bytes: u64) -> String {
    let mib = bytes as f64 / f64::from(1 << 20);
    if mib < 10_240.0 { format!("{mib:.1} MiB") } else { format!("{:.1} GiB", mib / 1024.0) }
}

/// Everything, for files and pipes.
pub(super) fn page(seen: &Snapshot, pid: u32) -> String {
    let mut text = format!("{}\n\n{}\n{}", heading(seen, pid), seen.caches, seen.fragmentation);
    if let Some(info) = &seen.sites {
        // Writing to a string does not fail.
        let _ = writeln!(text, "\n     bytes    calls  call site");
        for info in info.sites.iter().take(SITES) {
            let _ = writeln!(
                text,
                "{:>10} {:>8}  {} [{}]",
                info.bytes,
                info.calls,
                info.site,
                info.site.kind.name()
            );
        }
    }
    // Names come from another program.
    text.lines().map(|line| printable(line) + "\n").collect()
}

#[cfg(test)]
mod tests {
    use pagedepot_linux::Depot;
    use pagedepot_linux::reclaim::Ceiling;

    use super::*;

    #[test]
    fn a_ceiling_is_named() {
        let depot = Depot::new(64 << 20).unwrap();
        assert!(!heading(&Snapshot::of(&depot, &[]), 1).contains("ceiling"));
        Ceiling::of(&depot).set(6 << 20).unwrap();
        let mut seen = Snapshot::of(&depot, &[]);
        seen.fronts = "Sequences".to_owned();
        let text = heading(&seen, 1);
        assert!(text.contains("depot of 64.0 MiB, 6.0 MiB free"), "{text}");
        assert!(text.contains("\nceiling 6.0 MiB, metadata "), "{text}");
        assert!(text.ends_with(", caches by sequences"), "{text}");
        // Large figures fit a narrow terminal.
        (seen.bytes, seen.ceiling_bytes) = (1 << 44, Some(1 << 43));
        seen.metadata_bytes = 1 << 37;
        seen.fronts = "SequencesOnSome { cpus: 1, highest: 2 }".to_owned();
        assert!(heading(&seen, 1).lines().all(|line| line.len() <= 80), "{}", heading(&seen, 1));
    }
}
