//! Calls in programs of other languages, for bindings: Rust has no location for them.
//!
//! A word of the table of sites holds the address of a `Location`, or of a [`ForeignSite`]. Foreign
//! sites are in lists and never freed, so no address is ever both, and a reader tells them apart by
//! looking for the address in the lists. Nothing takes a lock, for which a forked child might wait.

use std::fmt;
use std::iter::successors;

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
    /// The site of its list that was registered next.
    next: NextSite,
}

type NextSite = OnceValue<ForeignSite>;

/// Lists of sites, by their line modulo the number of lists.
static LISTS: [NextSite; 256] = [const { OnceValue::new() }; 256];

impl ForeignSite {
    /// The site at a line of a file: one for each line. Takes no lock, but allocates memory, so a
    /// signal handler must not call it.
    pub fn at(file: &str, line: u32) -> &'static Self {
        let mut place = &LISTS[line as usize % LISTS.len()];
        loop {
            match place.get() {
                Some(site) if site.line == line && site.file == file => return site,
                Some(site) => place = &site.next,
                // If another thread is faster, its site is the next one to look at.
                None => {
                    let next = OnceValue::new();
                    let _ = place.set(ForeignSite { file: file.to_owned(), line, next });
                }
            }
        }
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
        let sites = |list: &'static NextSite| successors(list.get(), |site| site.next.get());
        LISTS.iter().flat_map(sites).find(|site| site.address() == address)
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
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::{ptr, thread};

    use super::*;

    /// Children of a process whose other thread registers sites.
    #[test]
    #[cfg_attr(miri, ignore = "forks")]
    fn a_child_finds_and_registers_sites() {
        let sites = [1, 2].map(|line| ForeignSite::at("a.c", line));
        let is_found = |site: &'static ForeignSite| {
            ForeignSite::with_address(site.address()).is_some_and(|found| ptr::eq(found, site))
        };
        let ends = AtomicBool::new(false);
        thread::scope(|scope| {
            let ends = &ends;
            scope.spawn(|| {
                let lines = (0..20_000).cycle().take_while(|_| !ends.load(Ordering::Relaxed));
                lines.for_each(|line| _ = ForeignSite::at("b.c", line));
            });
            let does_child = || {
                // SAFETY: the child looks sites up, registers one and ends.
                let pid = unsafe { libc::fork() };
                if pid == 0 {
                    // SAFETY: ends this child when it waits for a lock; else it ends itself.
                    unsafe { libc::alarm(60) };
                    let known =
                        sites.into_iter().all(is_found) && is_found(ForeignSite::at("c.c", 3));
                    // SAFETY: as above.
                    unsafe { libc::_exit(i32::from(!known)) };
                }
                let mut status = 0;
                // SAFETY: waits for our child.
                assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
                status == 0
            };
            let do_well = (0..200).all(|_| does_child());
            ends.store(true, Ordering::Relaxed);
            assert!(do_well);
        });
    }

    #[test]
    fn threads_share_the_site_of_a_line() {
        let at = |line| ForeignSite::at("d.c", line).address();
        let of_all = || (0..1000).map(at).collect::<Vec<_>>();
        let [one, other] = thread::scope(|scope| {
            [scope.spawn(of_all), scope.spawn(of_all)].map(|thread| thread.join().unwrap())
        });
        assert_eq!(one, other);
        assert!(ForeignSite::at("e.c", 7).address() != one[7]);
    }
}
