//! Calls in programs of other languages, for bindings: Rust has no location for them.
//!
//! A word of the table of sites holds the address of a `Location`, or of a [`ForeignSite`]. Foreign
//! sites are in a list and never freed, so no address is ever both, and a reader tells them apart
//! by looking for the address in the list. It takes no lock, which a forked child might wait for.

use std::collections::HashMap;
use std::fmt;
use std::iter::successors;
use std::sync::{LazyLock, PoisonError, RwLock};

use crate::system::sync::OnceValue;

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
pub struct ForeignSite {
    file: String,
    line: u32,
    /// The site that was registered next.
    next: NextSite,
}

type NextSite = OnceValue<&'static ForeignSite>;

#[derive(Default)]
struct SiteTable {
    by_line: HashMap<u32, Vec<&'static ForeignSite>>,
    last: Option<&'static ForeignSite>,
}

static KNOWN: LazyLock<RwLock<SiteTable>> = LazyLock::new(RwLock::default);
static FIRST: NextSite = OnceValue::new();

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
        let site = ForeignSite { file: file.to_owned(), line, next: OnceValue::new() };
        let site: &'static Self = Box::leak(Box::new(site));
        known.by_line.entry(line).or_default().push(site);
        let end = known.last.replace(site).map_or(&FIRST, |last| &last.next);
        let _ = end.set(site);
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
        (&raw const *self).addr()
    }

    /// The site at an address, if one is there. O(sites).
    pub(crate) fn with_address(address: usize) -> Option<&'static Self> {
        let mut sites = successors(FIRST.get().copied(), |site| site.next.get().copied());
        sites.find(|site| site.address() == address)
    }
}

impl fmt::Debug for ForeignSite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ForeignSite")
            .field("file", &self.file)
            .field("line", &self.line)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A child of a process whose other thread was registering a site.
    #[test]
    #[cfg_attr(miri, ignore = "forks")]
    fn a_child_finds_the_sites_of_its_parent() {
        let sites = [1, 2].map(|line| ForeignSite::at("a.c", line));
        let known = KNOWN.write().unwrap();
        // SAFETY: the child looks the sites up and ends.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            let is_found = |site: &'static ForeignSite| {
                ForeignSite::with_address(site.address())
                    .is_some_and(|found| std::ptr::eq(found, site))
            };
            // SAFETY: ends this child when it waits for the lock; else it ends itself.
            unsafe {
                libc::alarm(60);
                libc::_exit(i32::from(!sites.into_iter().all(is_found)));
            }
        }
        drop(known);
        let mut status = 0;
        // SAFETY: waits for our child.
        assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
        assert_eq!(status, 0);
    }
}
