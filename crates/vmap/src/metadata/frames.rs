//! Table of the frame that is mapped at each page, and the area that owns it.
//!
//! | entry | meaning |
//! |---|---|
//! | frame 0 | nothing mapped, and nothing about to be |
//! | frame n + 1 | frame n |
//! | order 0..=10 | the first frame of a block of that order that the area owns |
//! | order [`PART`] | a further frame of such a block |
//! | order [`BORROWED`] | a frame that the area does not own: not freed with it |
//!
//! The owner of an area writes its entries; while it is busy, its user does. Readers that own
//! nothing load frames, too: see the argument on readers in [`area`](crate::metadata::area).

use crate::model::{Mutant, leaves_out};
use crate::units::{PageRange, Vpn};
use pagedepot::sync::prim::{AtomicU8, AtomicU32, Ordering};
use pagedepot::{Order, Pfn};

const PART: u8 = 0x40;
const BORROWED: u8 = 0x80;

/// Entries with shorter runs than this on average are sorted.
const SHORT_RUN: usize = 16;

/// Frame numbers and orders, one of each for every page.
#[derive(Clone, Copy)]
pub struct FrameTable<'m> {
    pub frames: &'m [AtomicU32],
    pub orders: &'m [AtomicU8],
}

/// Frames with consecutive numbers at consecutive pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameRun {
    pub pages: PageRange,
    pub first: Pfn,
}

impl FrameTable<'_> {
    /// The frame at a page.
    pub fn get(&self, page: Vpn) -> Option<Pfn> {
        // Acquire: pairs with the Release in `set` and `clear`. A reader without ownership loads
        // the area's word again: if this load got an entry of the area's next generation, the
        // second load of the word sees that generation. It cannot move before this load.
        let order =
            if leaves_out(Mutant::LookOrder) { Ordering::Relaxed } else { Ordering::Acquire };
        self.frames[page.index()].load(order).checked_sub(1).map(Pfn::new)
    }

    pub fn is_mapped(&self, page: Vpn) -> bool {
        self.frames[page.index()].load(Ordering::Relaxed) != 0
    }

    fn set(&self, page: Vpn, frame: Pfn, order: u8) {
        // Release: pairs with the Acquire in `get`. The store to the area's word that left its last
        // state comes first.
        self.frames[page.index()].store(frame.get() + 1, Ordering::Release);
        self.orders[page.index()].store(order, Ordering::Relaxed);
    }

    /// Enters a block that the area owns, at `page` and behind.
    pub fn put_block(&self, page: Vpn, frame: Pfn, order: Order) {
        self.set(page, frame, order.get() as u8);
        (1..order.frames()).for_each(|i| self.set(page.add(i), frame.add(i), PART));
    }

    /// Enters a frame that the area does not own.
    pub fn lend(&self, page: Vpn, frame: Pfn) {
        self.set(page, frame, BORROWED);
    }

    /// Gives up ownership of the frames at these pages, which stay entered.
    pub fn disown(&self, run: PageRange) {
        run.iter().for_each(|page| self.orders[page.index()].store(BORROWED, Ordering::Relaxed));
    }

    /// Moves ownership of the frames at `from` to the same frames at `to`.
    pub fn hand_over(&self, from: PageRange, to: Vpn) {
        for (i, page) in (0..).zip(from.iter()) {
            let order = self.orders[page.index()].swap(BORROWED, Ordering::Relaxed);
            self.orders[to.add(i).index()].store(order, Ordering::Relaxed);
        }
    }

    /// Clears the entries: nothing is mapped there.
    pub fn clear(&self, run: PageRange) {
        // Release: as in `set`.
        run.iter().for_each(|page| self.frames[page.index()].store(0, Ordering::Release));
    }

    /// The block that the area owns and that begins at this page.
    pub fn block_at(&self, page: Vpn) -> Option<(Pfn, Order)> {
        let order = self.orders[page.index()].load(Ordering::Relaxed);
        Some((self.get(page)?, Order::new(u32::from(order))?))
    }

    /// Enters the block at `page` as single frames.
    pub fn split_block(&self, page: Vpn, order: Order) {
        (0..order.frames())
            .for_each(|i| self.orders[page.add(i).index()].store(0, Ordering::Relaxed));
    }

    /// Sorts the entries of `run` by frame number if they make many short runs, so that they make
    /// as few as can be. For entries whose frames differ, of an area that the caller holds.
    ///
    /// The frames of a block stay together, in order: no other frame lies between them.
    pub fn join_runs(&self, run: PageRange) {
        let pages = run.pages() as usize;
        if self.frame_runs(run).count() * SHORT_RUN <= pages {
            return;
        }
        let get = |at: usize| {
            let page = run.start.add(at as u32).index();
            (self.frames[page].load(Ordering::Relaxed), self.orders[page].load(Ordering::Relaxed))
        };
        let set = |at: usize, (frame, order): (u32, u8)| {
            let page = run.start.add(at as u32).index();
            // Release: as in `set`.
            self.frames[page].store(frame, Ordering::Release);
            self.orders[page].store(order, Ordering::Relaxed);
        };
        // Shell's sort, with the gaps of Tokuda (1992): it needs no memory, and little time where
        // the entries ascend already.
        let gaps = core::iter::successors(Some(1_usize), |gap| Some((gap * 9).div_ceil(4)));
        let gaps = gaps.take_while(|&gap| gap < pages);
        for nth in (0..gaps.clone().count()).rev() {
            let gap = gaps.clone().nth(nth).unwrap_or(1);
            for at in gap..pages {
                let (entry, mut to) = (get(at), at);
                while to >= gap && get(to - gap).0 > entry.0 {
                    set(to, get(to - gap));
                    to -= gap;
                }
                set(to, entry);
            }
        }
    }

    /// The first page of the owned block that covers `page`; `page` itself if none began before.
    pub fn block_start(&self, page: Vpn) -> Vpn {
        let is_part = |page: Vpn| self.orders[page.index()].load(Ordering::Relaxed) == PART;
        (0..=page.0).rev().map(Vpn).find(|&page| !is_part(page)).unwrap_or(page)
    }

    /// Blocks that the area owns and that begin in `run`, each with its first page.
    pub fn own_blocks(&self, run: PageRange) -> impl Iterator<Item = (Vpn, (Pfn, Order))> {
        run.iter().filter_map(|page| Some((page, self.block_at(page)?)))
    }

    /// Runs of consecutive frames in `run`.
    pub fn frame_runs(self, run: PageRange) -> impl Iterator<Item = FrameRun> {
        let mut at = run.start;
        core::iter::from_fn(move || {
            let first = (at < run.end).then(|| self.get(at))??;
            let start = at;
            let follows = |page: Vpn| {
                let expected = u64::from(first.get()) + u64::from(page.since(start));
                page < run.end
                    && self.get(page).is_some_and(|frame| u64::from(frame.get()) == expected)
            };
            while follows(at) {
                at = at.add(1);
            }
            Some(FrameRun { pages: PageRange { start, end: at }, first })
        })
    }
}
