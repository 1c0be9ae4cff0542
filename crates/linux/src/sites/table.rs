//! The call that allocated each block: a word per page in memory of its own, so that neither the
//! allocator's metadata nor the pages grow. Without the feature `allocinfo` a table has no size,
//! and its calls are empty.
//!
//! | bits of the word of a block's first page, and of each page of a contiguous run | field |
//! |---|---|
//! | 0..=44 | the address of the caller's `Location`, or of a `ForeignSite`, divided by 8 |
//! | 45..=62 | pages of the block; 1: also a run's first page; 0: another page of a run |
//! | 63 | the page is being freed, or was: the word says nothing |
//!
//! A word of 0 says nothing of its page, either.
//!
//! Any part of a run may be freed, by any thread. So each of its pages has a word of its own: two
//! holders would write to one for all of them.
//!
//! # Why words and no counters
//! The kernel counts per site and CPU (`CONFIG_MEM_ALLOC_PROFILING`), and looks the site up in a
//! word per page when a page is freed. Here the words are all there is: an allocation stores its
//! site, a free stores 0, and a reader adds the words up. Each is one store to a line that belongs
//! to the page's holder; the sum costs O(pages), one load each. Calls that have been freed leave no
//! trace.
//!
//! # Invariants
//! 1. Only the holder of a block writes the word of its first page, and compaction that moves the
//!    block, which the holder excludes meanwhile. So no write has to be a read-modify-write.
//! 2. The holder clears the word before it gives the block up: afterwards the word is the next
//!    holder's.
//! 3. A reader sees each word whole, and the words at different moments.
//!
//! A block that is freed past this crate, through
//! [`RawDepot::allocator`](crate::RawDepot::allocator), keeps its word until the page is allocated
//! again.
#![cfg_attr(not(feature = "allocinfo"), allow(unused_variables, reason = "see the module"))]

use pagedepot::{Order, Pfn};
use rustix::io::Errno;

#[cfg(feature = "allocinfo")]
use {
    crate::system::mapping::Mapping,
    crate::system::prim::{AtomicU64, Ordering},
    std::panic::Location,
    std::sync::Arc,
};

/// The table; see the module. Clones share their words.
#[derive(Clone)]
pub(crate) struct SiteTable {
    /// The words of the mapping; as a slice, one load nearer.
    #[cfg(feature = "allocinfo")]
    words: &'static [AtomicU64],
    #[cfg(feature = "allocinfo")]
    _mapping: Arc<Mapping>,
}

/// The word of a block, as it was.
#[derive(Clone, Copy)]
pub(crate) struct SiteWord {
    #[cfg(feature = "allocinfo")]
    word: u64,
}

#[cfg(feature = "allocinfo")]
mod word {
    use std::panic::Location;

    use crate::sites::foreign::ForeignSite;

    /// Bits of a divided address.
    const SITE_BITS: u32 = 45;
    const ALIGN_BITS: u32 = align_of::<Location<'_>>().trailing_zeros();
    const _: () = assert!(ALIGN_BITS == 3 && align_of::<ForeignSite>() == 8);

    /// A call that allocated.
    #[derive(Clone, Copy)]
    pub enum Call {
        Here(&'static Location<'static>),
        Foreign(&'static ForeignSite),
    }

    impl Call {
        #[inline]
        fn address(self) -> usize {
            match self {
                // Exposed for `call_at`.
                Call::Here(site) => (&raw const *site).expose_provenance(),
                Call::Foreign(site) => site.address(),
            }
        }
    }

    /// A word that says nothing, of a page that is being freed: see `SiteTable::take_run`.
    pub const FREED: u64 = 1 << 63;

    /// The word of a block of so many pages.
    #[inline]
    pub fn pack(site: &'static Location<'static>, pages: u32) -> u64 {
        pack_call(Call::Here(site), pages)
    }

    #[inline]
    pub fn pack_call(call: Call, pages: u32) -> u64 {
        // Addresses of a process's memory have 47 bits.
        let address = call.address() as u64 >> ALIGN_BITS;
        address & ((1 << SITE_BITS) - 1) | u64::from(pages) << SITE_BITS
    }

    /// The address of a call's site, and the pages of a word; `None`: it says nothing.
    pub fn unpack(word: u64) -> Option<(usize, u32)> {
        let address = (word & ((1 << SITE_BITS) - 1)) << ALIGN_BITS;
        let is_noted = word != 0 && word & FREED == 0;
        is_noted.then_some((address as usize, (word >> SITE_BITS) as u32))
    }

    /// The call whose site is at an address of a word.
    pub fn call_at(address: usize) -> Call {
        if let Some(site) = ForeignSite::with_address(address) {
            return Call::Foreign(site);
        }
        let site = std::ptr::with_exposed_provenance::<Location<'static>>(address);
        // SAFETY: words are packed from references of the two kinds, which are good for ever, and
        // it is not the other kind.
        Call::Here(unsafe { &*site })
    }

    /// The word with the pages of another, and this call.
    pub fn attributed(word: u64, call: Call) -> u64 {
        pack_call(call, (word >> SITE_BITS) as u32)
    }
}

#[cfg(feature = "allocinfo")]
pub(crate) use word::{Call, call_at};

/// A call whose blocks are noted later, where it has returned.
#[derive(Clone, Copy)]
pub(crate) struct CallSite(#[cfg(feature = "allocinfo")] &'static Location<'static>);

impl CallSite {
    /// The call of the function that calls this.
    #[inline(always)]
    #[cfg_attr(feature = "allocinfo", track_caller)]
    pub fn here() -> Self {
        CallSite(
            #[cfg(feature = "allocinfo")]
            Location::caller(),
        )
    }
}

impl SiteTable {
    /// Bytes of address space of a table for so many pages.
    pub fn bytes(pages: u32) -> usize {
        if cfg!(feature = "allocinfo") { pages as usize * size_of::<u64>() } else { 0 }
    }

    /// A table for so many pages. Takes address space; memory where words are written.
    pub fn new(pages: u32) -> Result<Self, Errno> {
        #[cfg(feature = "allocinfo")]
        {
            let mapping = Mapping::anonymous(Self::bytes(pages))?;
            // SAFETY: the mapping is zero, aligned to pages, large enough, reached as atomic words
            // alone, and kept as long as the slice.
            let words = unsafe {
                let first = mapping.start().as_ptr().cast::<AtomicU64>();
                std::slice::from_raw_parts(first, pages as usize)
            };
            Ok(SiteTable { words, _mapping: Arc::new(mapping) })
        }
        #[cfg(not(feature = "allocinfo"))]
        Ok(SiteTable {})
    }

    /// Notes the call that allocated `pages` pages from `pfn` on, for their holder.
    #[inline(always)]
    #[cfg_attr(feature = "allocinfo", track_caller)]
    pub fn note(&self, pfn: Pfn, pages: u32) {
        self.note_call(pfn, pages, CallSite::here());
    }

    /// Notes the call that allocated a contiguous run, for its holder. O(pages).
    #[inline]
    #[cfg_attr(feature = "allocinfo", track_caller)]
    pub fn note_run(&self, start: Pfn, pages: u32) {
        self.note(start, 1);
        #[cfg(feature = "allocinfo")]
        {
            let word = word::pack(Location::caller(), 0);
            (1..pages).for_each(|at| self.set(start.add(at), word));
        }
    }

    /// Notes an earlier call, as [`note`](Self::note) notes the present one.
    #[inline(always)]
    pub fn note_call(&self, pfn: Pfn, pages: u32, site: CallSite) {
        #[cfg(feature = "allocinfo")]
        self.set(pfn, word::pack(site.0, pages));
        #[cfg(not(feature = "allocinfo"))]
        let _ = (pfn, pages, site);
    }

    /// Says nothing of the block from now on, for its holder.
    #[inline(always)]
    pub fn clear(&self, pfn: Pfn) {
        #[cfg(feature = "allocinfo")]
        self.set(pfn, 0);
    }

    /// Clears the site of a block of a batch that is freed. Which blocks of a batch are refused is
    /// not known, so one that was noted with another number of pages, whose order is wrong, keeps
    /// its site. Pages of a contiguous run are blocks of order 0.
    #[inline(always)]
    pub fn clear_of(&self, pfn: Pfn, order: Order) {
        #[cfg(feature = "allocinfo")]
        {
            let noted = word::unpack(self.word(pfn));
            if noted.is_some_and(|(_, pages)| order == Order::BASE || pages == order.frames()) {
                self.set(pfn, 0);
            }
        }
    }

    /// Clears a block's site like [`clear`](Self::clear), for a free that may be refused: see
    /// [`restore`](Self::restore).
    #[inline(always)]
    pub fn take(&self, pfn: Pfn) -> SiteWord {
        SiteWord {
            #[cfg(feature = "allocinfo")]
            word: {
                let word = self.word(pfn);
                self.set(pfn, 0);
                word
            },
        }
    }

    /// Clears the sites of contiguous pages, for a free that may be refused: see
    /// [`restore_run`](Self::restore_run). O(pages).
    #[inline]
    pub fn take_run(&self, start: Pfn, pages: u32) {
        #[cfg(feature = "allocinfo")]
        for pfn in self.run(start, pages) {
            // What an earlier free left is not restored. Words without a note may be others'.
            if let Some(word) = Some(self.word(pfn)).filter(|&word| word != 0) {
                self.set(pfn, word::unpack(word).map_or(0, |_| word | word::FREED));
            }
        }
    }

    /// Notes again what [`take_run`](Self::take_run) cleared.
    #[cold]
    pub fn restore_run(&self, start: Pfn, pages: u32) {
        #[cfg(feature = "allocinfo")]
        for pfn in self.run(start, pages).filter(|&pfn| self.word(pfn) & word::FREED != 0) {
            self.set(pfn, self.word(pfn) & !word::FREED);
        }
    }

    /// The pages of a run that have a word.
    #[cfg(feature = "allocinfo")]
    fn run(&self, start: Pfn, pages: u32) -> impl Iterator<Item = Pfn> {
        let end = start.get().saturating_add(pages).min(self.words.len() as u32);
        (start.get()..end).map(Pfn::new)
    }

    /// Notes what was [taken](Self::take) again.
    #[cold]
    pub fn restore(&self, pfn: Pfn, noted: SiteWord) {
        #[cfg(feature = "allocinfo")]
        self.set(pfn, noted.word);
    }

    /// Notes for each part of a block that was split what was noted of the block, for its holder.
    pub fn split(&self, pfn: Pfn, from: Order, to: Order) {
        #[cfg(feature = "allocinfo")]
        if let Some((site, _)) = word::unpack(self.word(pfn)) {
            let word = word::pack_call(call_at(site), to.frames());
            for at in (0..from.frames()).step_by(to.frames() as usize) {
                self.set(pfn.add(at), word);
            }
        }
    }

    /// Notes of `to` what was noted of `from`, which says nothing any more: for compaction, while
    /// it has both blocks.
    pub fn move_to(&self, from: Pfn, to: Pfn) {
        #[cfg(feature = "allocinfo")]
        {
            self.set(to, self.word(from));
            self.set(from, 0);
        }
    }

    /// Notes a call in another language for a block or a run that is noted, for its holder.
    #[cfg(feature = "allocinfo")]
    pub fn attribute(&self, pfn: Pfn, site: &'static crate::sites::foreign::ForeignSite) {
        let Some((noted, _)) = word::unpack(self.word(pfn)) else { return };
        let set = |pfn| self.set(pfn, word::attributed(self.word(pfn), Call::Foreign(site)));
        set(pfn);
        // The run's other pages. What is left of a run that lay behind it, and was freed in part,
        // would be among them, if the same call had allocated it.
        let is_of_run = |&pfn: &Pfn| word::unpack(self.word(pfn)) == Some((noted, 0));
        (1..).map(|at| pfn.add(at)).take_while(is_of_run).for_each(set);
    }

    /// Every block that is noted: its first page, the address of the call's site (`call_at`), its
    /// pages. A run is a block of one page, and others of 0. O(pages).
    #[cfg(feature = "allocinfo")]
    pub fn all(&self) -> impl Iterator<Item = (Pfn, usize, u32)> {
        (0..).zip(self.words).filter_map(|(pfn, word)| {
            // Relaxed: the site is a constant, and nothing else is read by it.
            let (site, pages) = word::unpack(word.load(Ordering::Relaxed))?;
            Some((Pfn::new(pfn), site, pages))
        })
    }

    #[cfg(feature = "allocinfo")]
    #[inline(always)]
    fn word(&self, pfn: Pfn) -> u64 {
        // Relaxed: the holder's own.
        self.words.get(pfn.index()).map_or(0, |word| word.load(Ordering::Relaxed))
    }

    #[cfg(feature = "allocinfo")]
    #[inline(always)]
    fn set(&self, pfn: Pfn, to: u64) {
        // A number that is no page's is refused by the allocator.
        if let Some(word) = self.words.get(pfn.index()) {
            // Relaxed: see `all`. The next holder's store comes after this one, as its use of the
            // page does.
            word.store(to, Ordering::Relaxed);
        }
    }
}
