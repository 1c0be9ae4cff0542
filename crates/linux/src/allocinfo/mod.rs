//! The memory that each call site holds: bytes and calls of pages and areas (feature `allocinfo`),
//! as the kernel's `/proc/allocinfo`.
//!
#![cfg_attr(feature = "allocinfo", doc = "```")]
#![cfg_attr(not(feature = "allocinfo"), doc = "```ignore")]
//! use pagedepot_linux::allocinfo::AllocInfo;
//! use pagedepot_linux::{Depot, Order};
//!
//! let depot = Depot::new(16 << 20)?;
//! let before = AllocInfo::of(&depot);
//! let pages = [depot.page(Order::BASE)?, depot.page(Order::BASE)?];
//! let after = AllocInfo::of(&depot);
//! print!("{after}");
//! let grown = after.since(&before);
//! assert_eq!(grown.len(), 2, "two calls in the program's text are two sites");
//! assert_eq!((grown[0].bytes, grown[0].calls), (4096, 1));
//! # drop(pages);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | form | for |
//! |---|---|
//! | `Display` | people: as the kernel prints it, the most bytes first |
//! | [`AllocInfo::since`] | what grew between two moments |
//! | [`AllocInfo::folded`] | flame graphs: `flamegraph.pl`, `inferno`, speedscope |
//! | `AllocInfo::pprof` (feature `pprof`) | `pprof`, Pyroscope, Parca |
//! | serde (feature `serde`) | programs |
//!
//! # What is counted
//! What is held now, not what was ever allocated: blocks that [`Page`](crate::Page),
//! [`Pages`](crate::Pages), [`Movable`](crate::Movable) and numbers of
//! [`RawDepot`](crate::RawDepot) hold, each where it was allocated first, and areas of a
//! [`Vmalloc`](crate::Vmalloc). Pages behind areas are the areas', and not counted twice. Batches
//! count a call for each block. Contiguous pages that are freed in part count a call as long as the
//! first of them is held. A site is where a function of this crate was called: wrap such a function
//! in one with `#[track_caller]`, and its callers are told apart.
//!
//! Pages that the depot itself uses (magazines, those that a trim has in hand) have no site.
//!
//! # What it costs
//! An allocation and a free store one word each (of contiguous pages: one a page), in memory of
//! eight bytes per page that has been allocated. The example `call_sites`, run with the feature and
//! without, prints the difference; docs/views.md has figures. Without the feature nothing of it is
//! compiled.

mod folded;
#[cfg(feature = "allocinfo")]
mod gather;
#[cfg(feature = "pprof")]
mod pprof;
#[cfg(all(test, feature = "allocinfo"))]
mod tests;

use std::collections::HashMap;
use std::fmt;

#[cfg(feature = "allocinfo")]
pub use crate::sites::foreign::ForeignSite;
pub use folded::FoldedStacks;

/// The memory that each call site holds at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct AllocInfo {
    /// The most bytes first.
    pub sites: Vec<SiteInfo>,
}

/// The memory that a call allocated and that has not been freed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct SiteInfo {
    /// The place of the call.
    pub site: Site,
    /// Bytes of all its blocks or areas. Guard pages are not counted.
    pub bytes: u64,
    /// Blocks or areas.
    pub calls: u64,
}

/// A call that allocates, in the program's source.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Site {
    /// Source file, as it was given to the compiler.
    pub file: String,
    /// Line, from 1 on.
    pub line: u32,
    /// Column, from 1 on.
    pub column: u32,
    /// The kind of memory that it allocates.
    pub kind: SiteKind,
}

/// The kind of memory that a call allocates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum SiteKind {
    /// Blocks of pages.
    Pages,
    /// Areas of an address space.
    Areas,
}

impl SiteKind {
    /// Name of the kind in listings.
    pub fn name(self) -> &'static str {
        match self {
            SiteKind::Pages => "pages",
            SiteKind::Areas => "areas",
        }
    }
}

/// The growth of a site between two moments.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct SiteGrowth {
    /// The place of the call.
    pub site: Site,
    /// Bytes more, or less than 0.
    pub bytes: i64,
    /// Blocks or areas more, or less than 0.
    pub calls: i64,
}

impl AllocInfo {
    /// Bytes of all sites.
    pub fn bytes(&self) -> u64 {
        self.sites.iter().map(|site| site.bytes).sum()
    }

    /// The changes since `earlier`, the largest growth in bytes first. Sites that hold what they
    /// held are left out.
    pub fn since(&self, earlier: &AllocInfo) -> Vec<SiteGrowth> {
        let mut growth: HashMap<&Site, (i64, i64)> = HashMap::new();
        for (info, sign) in [(self, 1), (earlier, -1)] {
            for site in &info.sites {
                let sum = growth.entry(&site.site).or_default();
                sum.0 += sign * site.bytes as i64;
                sum.1 += sign * site.calls as i64;
            }
        }
        let mut changed: Vec<_> = growth
            .into_iter()
            .filter(|&(_, sum)| sum != (0, 0))
            .map(|(site, (bytes, calls))| SiteGrowth { site: site.clone(), bytes, calls })
            .collect();
        changed.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.site.cmp(&b.site)));
        changed
    }
}

impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.file, self.line, self.column)
    }
}

/// Prints like `allocinfo_show` in the kernel's `lib/alloc_tag.c`, with columns for want of
/// functions.
impl fmt::Display for AllocInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "allocinfo - version: 1.0")?;
        writeln!(f, "#     <size>  <calls> <tag info>")?;
        self.sites.iter().try_for_each(|SiteInfo { site, bytes, calls }| {
            writeln!(f, "{bytes:>12} {calls:>8} {site} [{}]", site.kind.name())
        })
    }
}

impl fmt::Display for SiteGrowth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SiteGrowth { site, bytes, calls } = self;
        write!(f, "{bytes:>+12} {calls:>+8} {site} [{}]", site.kind.name())
    }
}
