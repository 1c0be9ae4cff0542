//! Calls in programs of other languages, for bindings: Rust has no location for them.
//!
//! A word of the table of sites holds the address of a `Location`, or of a [`ForeignSite`]. Foreign
//! sites are registered by their addresses and never freed, so no address is ever both, and a
//! reader tells them apart by looking the address up.

use std::collections::{HashMap, HashSet};
use std::sync::{LazyLock, PoisonError, RwLock};

/// A call that allocates, in the source of a program in another language. It lasts for the life of
/// the process.
///
/// ```
/// use pagedepot_linux::allocinfo::{AllocInfo, ForeignSite};
/// use pagedepot_linux::{Depot, Flags, Order};
///
/// let depot = Depot::new(4 << 20)?;
/// let raw = depot.raw();
/// let block = raw.alloc(Order::BASE, Flags::default())?;
/// raw.attribute(block, ForeignSite::at("ring.c", 31));
/// let site = &AllocInfo::of(&depot).sites[0].site;
/// assert_eq!((site.file.as_str(), site.line), ("ring.c", 31));
/// // SAFETY: nothing uses the block.
/// unsafe { raw.free(block, Order::BASE) }?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct ForeignSite {
    file: String,
    line: u32,
}

#[derive(Default)]
struct SiteTable {
    by_line: HashMap<u32, Vec<&'static ForeignSite>>,
    addresses: HashSet<usize>,
}

static KNOWN: LazyLock<RwLock<SiteTable>> = LazyLock::new(RwLock::default);

impl ForeignSite {
    /// The site at a line of a file: one for each line. Waits for other threads that register a
    /// site, so a signal handler must not call it.
    pub fn at(file: &str, line: u32) -> &'static Self {
        let find = |known: &SiteTable| {
            let mut of_line = known.by_line.get(&line)?.iter();
            of_line.find(|site| site.file == file).copied()
        };
        let known = KNOWN.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(site) = find(&known) {
            return site;
        }
        drop(known);
        let mut known = KNOWN.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(site) = find(&known) {
            return site;
        }
        let site: &'static Self = Box::leak(Box::new(ForeignSite { file: file.to_owned(), line }));
        known.by_line.entry(line).or_default().push(site);
        known.addresses.insert(site.address());
        site
    }

    /// File, as the program's compiler names it.
    pub fn file(&self) -> &str {
        &self.file
    }

    /// Line, from 1 on.
    pub fn line(&self) -> u32 {
        self.line
    }

    pub(crate) fn address(&'static self) -> usize {
        // Exposed for `with_address`.
        (&raw const *self).expose_provenance()
    }

    /// The site at an address, if one is there.
    pub(crate) fn with_address(address: usize) -> Option<&'static Self> {
        let known = KNOWN.read().unwrap_or_else(PoisonError::into_inner);
        known.addresses.contains(&address).then(|| {
            let site = std::ptr::with_exposed_provenance::<Self>(address);
            // SAFETY: `at` registered the address of a site that is never freed.
            unsafe { &*site }
        })
    }
}
