//! Which frame is mapped at which page, and whose it is.
//!
//! | entry | meaning |
//! |---|---|
//! | frame 0 | nothing mapped, and nothing about to be |
//! | frame n + 1 | frame n |
//! | order 0..=10 | the first frame of a block of that order that the area owns |
//! | order [`PART`] | a further frame of such a block |
//! | order [`BORROWED`] | somebody else's frame: not freed with the area |
//!
//! Entries belong to the owner of their area, or to its user while it is busy. Frames are also read
//! by those who own nothing; see the argument on readers in [`area`](super::area).

use super::units::{Run, Vpn};
use super::{Broken, broken};
use pagedepot::sync::prim::{AtomicU8, AtomicU32, Ordering};
use pagedepot::{Order, Pfn};

const PART: u8 = 0x40;
const BORROWED: u8 = 0x80;

/// Frame numbers and orders, one of each per page.
#[derive(Clone, Copy)]
pub struct FrameTable<'m> {
    pub frames: &'m [AtomicU32],
    pub orders: &'m [AtomicU8],
}

/// Frames with consecutive numbers at consecutive pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameRun {
    pub pages: Run,
    pub first: Pfn,
}

impl FrameTable<'_> {
    /// The frame at a page.
    pub fn get(&self, page: Vpn) -> Option<Pfn> {
        // Acquire: pairs with the Release in `set` and `clear`. Readers without ownership look at
        // the area's word again: who got an entry of its next life finds that the last one
        // is over, and the second look cannot come before this load.
        let order = if broken(Broken::EarlyLook) { Ordering::Relaxed } else { Ordering::Acquire };
        self.frames[page.index()].load(order).checked_sub(1).map(Pfn::new)
    }

    pub fn is_mapped(&self, page: Vpn) -> bool {
        self.frames[page.index()].load(Ordering::Relaxed) != 0
    }

    fn set(&self, page: Vpn, frame: Pfn, order: u8) {
        // Release: pairs with the Acquire in `get`; the store to the area's word that left its last
        // state comes before.
        self.frames[page.index()].store(frame.get() + 1, Ordering::Release);
        self.orders[page.index()].store(order, Ordering::Relaxed);
    }

    /// Enters a block that the area owns.
    pub fn put_block(&self, page: Vpn, frame: Pfn, order: Order) {
        self.set(page, frame, order.get() as u8);
        (1..order.frames()).for_each(|i| self.set(page.add(i), frame.add(i), PART));
    }

    /// Enters somebody else's frame.
    pub fn lend(&self, page: Vpn, frame: Pfn) {
        self.set(page, frame, BORROWED);
    }

    /// Enters at `to` what is at `from`, as the area's own there and borrowed here.
    pub fn hand_over(&self, from: Run, to: Vpn) {
        for (i, page) in (0..).zip(from.iter()) {
            let order = self.orders[page.index()].swap(BORROWED, Ordering::Relaxed);
            self.orders[to.add(i).index()].store(order, Ordering::Relaxed);
        }
    }

    /// Nothing is mapped there.
    pub fn clear(&self, run: Run) {
        // Release: as in `set`.
        run.iter().for_each(|page| self.frames[page.index()].store(0, Ordering::Release));
    }

    /// The block that the area owns from this page on.
    pub fn block_at(&self, page: Vpn) -> Option<(Pfn, Order)> {
        let order = self.orders[page.index()].load(Ordering::Relaxed);
        Some((self.get(page)?, Order::new(u32::from(order))?))
    }

    /// Makes single frames of the block entered at `page`.
    pub fn split_block(&self, page: Vpn, order: Order) {
        (0..order.frames())
            .for_each(|i| self.orders[page.add(i).index()].store(0, Ordering::Relaxed));
    }

    /// The first page of the block that the area owns at `page` and that began before it.
    pub fn block_start(&self, page: Vpn) -> Vpn {
        let is_part = |page: Vpn| self.orders[page.index()].load(Ordering::Relaxed) == PART;
        (0..=page.0).rev().map(Vpn).find(|&page| !is_part(page)).unwrap_or(page)
    }

    /// Blocks that the area owns in `run`.
    pub fn own_blocks(&self, run: Run) -> impl Iterator<Item = (Pfn, Order)> {
        run.iter().filter_map(|page| self.block_at(page))
    }

    /// Runs of consecutive frames in `run`.
    pub fn frame_runs(self, run: Run) -> impl Iterator<Item = FrameRun> {
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
            Some(FrameRun { pages: Run { start, end: at }, first })
        })
    }
}
