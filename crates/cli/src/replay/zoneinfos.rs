//! The zoneinfos of a recording.

use std::path::{Path, PathBuf};

use pagedepot::Order;

use super::look::Look;
use crate::report::account::Account;
use pagedepot_trace::{Buddyinfo, Pagetypeinfo, TraceError, Zone, Zoneinfo};

/// The kernel's zoneinfo from before and after a recording, and its free blocks.
#[derive(Clone, Debug, Default)]
pub struct Zoneinfos {
    pub before: Option<Zoneinfo>,
    pub after: Option<Zoneinfo>,
    /// Free blocks before and after, and pageblocks by migratetype; recordings of others lack them.
    pub free: [Option<(Buddyinfo, Option<Pagetypeinfo>)>; 2],
}

impl Zoneinfos {
    /// Reads those at the paths given, else those that lie beside the trace.
    ///
    /// # Errors
    /// When one cannot be read, or is no zoneinfo.
    pub fn find(
        trace: &Path,
        before: Option<&Path>,
        after: Option<&Path>,
    ) -> Result<Self, TraceError> {
        if before.is_none() && after.is_none() {
            return Self::beside(trace);
        }
        let read = |path: Option<&Path>| path.map(Zoneinfo::read_file).transpose();
        Ok(Zoneinfos { before: read(before)?, after: read(after)?, ..Self::default() })
    }

    /// Reads those that lie beside a trace: for `NAME.perf.txt.zst` (or `NAME.txt`, `NAME.zst`,
    /// ...) they are called `NAME.zoneinfo.before.txt` and `NAME.zoneinfo.after.txt`.
    ///
    /// # Errors
    /// When one is there but is no zoneinfo.
    pub fn beside(trace: &Path) -> Result<Self, TraceError> {
        let read = |when: &str| {
            let path = beside(trace, "zoneinfo", when);
            if path.is_file() { Zoneinfo::read_file(&path).map(Some) } else { Ok(None) }
        };
        let free = [free_beside(trace, "before")?, free_beside(trace, "after")?];
        Ok(Zoneinfos { before: read("before")?, after: read("after")?, free })
    }

    /// Contiguity of the kernel's free memory, as far as that was saved.
    pub fn looks(&self) -> Vec<Look> {
        let told = [0, 100].into_iter().zip(&self.free);
        told.filter_map(|(percent, free)| {
            let (free, types) = free.as_ref()?;
            Some(Look::of_kernel(percent, free, types.as_ref()))
        })
        .collect()
    }
}

impl Zoneinfos {
    /// Adds what the files lack, and what of them is left out.
    pub fn tell(&self, account: &mut Account) {
        for (when, zoneinfo) in [("before", &self.before), ("after", &self.after)] {
            let Some(zoneinfo) = zoneinfo else { continue };
            let (zones, empty) = (zoneinfo.zones.len(), zoneinfo.zones_without_pages as u64);
            if empty > 0 {
                let text =
                    format!("zoneinfo {when}: {zones} zones, and {empty} without pages left out");
                account.push("zones_without_pages", empty, text);
            }
            if zoneinfo.managed_is_present {
                let text = format!(
                    "zoneinfo {when} is of a kernel before 3.10: present is taken for managed"
                );
                account.push("managed_is_present", zones as u64, text);
            }
        }
        for (when, free) in ["before", "after"].into_iter().zip(&self.free) {
            let Some((free, types)) = free else { continue };
            let zoneinfo = if when == "before" { &self.before } else { &self.after };
            let zones = zoneinfo.iter().flat_map(|zoneinfo| &zoneinfo.zones);
            let is_there = |zone: &&Zone| {
                free.zones.iter().any(|free| (free.node, &free.name) == (zone.node, &zone.name))
            };
            let lacking = zones.filter(|zone| !is_there(zone)).count() as u64;
            let text = format!("zones with pages are not in buddyinfo {when}");
            account.add("zones_without_free", lacking, &text);
            let order = types.as_ref().and_then(|types| types.pageblock_order);
            if let Some(order) = order.filter(|&order| order != Order::PAGEBLOCK.get()) {
                let text = format!(
                    "pageblocks of pagetypeinfo {when} have order {order}, and those of the \
                     designs order {}: they do not compare",
                    Order::PAGEBLOCK.get()
                );
                account.push("pageblock_order", order.into(), text);
            }
        }
    }
}

/// Free blocks that were saved beside a trace. Files that are empty count as missing: the kernel
/// shows some only to root.
///
/// # Errors
/// When a file is there but is not what its name says.
fn free_beside(
    trace: &Path,
    when: &str,
) -> Result<Option<(Buddyinfo, Option<Pagetypeinfo>)>, TraceError> {
    let there = |what: &str| {
        let path = beside(trace, what, when);
        path.metadata().is_ok_and(|file| file.is_file() && file.len() > 0).then_some(path)
    };
    let Some(free) = there("buddyinfo") else { return Ok(None) };
    let types = there("pagetypeinfo").map(|path| Pagetypeinfo::read_file(&path)).transpose()?;
    Ok(Some((Buddyinfo::read_file(&free)?, types)))
}

fn beside(trace: &Path, what: &str, when: &str) -> PathBuf {
    let mut name = trace.file_name().unwrap_or_default().to_string_lossy().into_owned();
    for ending in [".zst", ".txt", ".perf"] {
        if let Some(stem) = name.strip_suffix(ending) {
            name.truncate(stem.len());
        }
    }
    trace.with_file_name(format!("{name}.{what}.{when}.txt"))
}
