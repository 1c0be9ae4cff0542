//! What `top` shows, once and as text.

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
    let fronts: String = printable(&seen.fronts).chars().take(24).collect();
    format!(
        "{program} ({pid}): depot of {}, {} free, {} cached\n\
         metadata {}, {} areas, CPUs reached by {fronts}",
        mib(seen.bytes),
        pages(|zone| zone.free_pages),
        pages(|zone| zone.cached_pages),
        mib(seen.metadata_bytes),
        seen.areas_count,
    )
}

fn mib(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
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
