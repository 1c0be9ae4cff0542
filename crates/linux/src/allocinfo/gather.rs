//! Adding up what sites hold.

use std::collections::HashMap;
use std::hash::Hash;

use crate::depot::handle::Depot;
use crate::sites::table::{Call, call_at};
use crate::views::VmallocInfo;
use crate::vmalloc::Vmalloc;

use super::{AllocInfo, Site, SiteInfo, SiteKind};

/// Bytes and calls by site.
type Sums<K> = HashMap<K, (u64, u64)>;

fn add<K: Eq + Hash>(sums: &mut Sums<K>, site: K, (bytes, calls): (u64, u64)) {
    let sum = sums.entry(site).or_default();
    *sum = (sum.0 + bytes, sum.1 + calls);
}

/// The site of a call. The compiler may give one call several locations.
fn site(call: Call) -> Site {
    let (file, line, column) = match call {
        Call::Here(at) => (at.file(), at.line(), at.column()),
        Call::Foreign(at) => (at.file(), at.line(), 1),
    };
    Site { file: file.to_owned(), line, column, kind: SiteKind::Pages }
}

impl AllocInfo {
    /// Gathers the memory that the sites hold of a depot's pages. O(pages). Only with the feature
    /// `allocinfo`.
    pub fn of(depot: &Depot) -> Self {
        Self::with_spaces(depot, [])
    }

    /// Gathers the memory that the sites hold of a depot's pages and of areas in address spaces
    /// over it. Only with the feature `allocinfo`.
    pub fn with_spaces<'s>(depot: &Depot, spaces: impl IntoIterator<Item = &'s Vmalloc>) -> Self {
        let shared = depot.shared();
        let page_bytes = shared.page_size().bytes() as u64;
        // By address first, which is quicker to compare than a name.
        let mut by_address = Sums::new();
        for (_, at, pages) in shared.sites().all() {
            let calls = u64::from(pages > 0);
            add(&mut by_address, at, (u64::from(pages.max(1)) * page_bytes, calls));
        }
        let mut sums = Sums::new();
        for (at, sum) in by_address {
            add(&mut sums, site(call_at(at)), sum);
        }
        for space in spaces {
            for area in VmallocInfo::of(space).areas.into_iter().filter(|area| area.is_busy) {
                if let Some((file, line, column)) = area.caller {
                    let site = Site { file, line, column, kind: SiteKind::Areas };
                    add(&mut sums, site, (u64::from(area.mapped_pages) * page_bytes, 1));
                }
            }
        }
        let info = |(site, (bytes, calls))| SiteInfo { site, bytes, calls };
        let mut sites: Vec<_> = sums.into_iter().map(info).collect();
        sites.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.site.cmp(&b.site)));
        AllocInfo { sites }
    }
}
