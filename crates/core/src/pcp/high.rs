//! The limit on a CPU's cache: `high`, how it grows, shrinks and is kept.
//!
//! # Another policy
//! What users choose is `HighPolicy` in `zone/watermarks.rs`, which makes the bounds of `high`
//! from it. When `high` moves between them is here: [`High::raise`] and what calls it,
//! [`limit_high`](CpuZone::limit_high), [`decay`](CpuZone::decay). The rule for a CPU that only
//! frees is in `free_high.rs`.
//!
//! # While pageblocks evacuate
//! What CPUs cache keeps pageblocks from becoming whole, and no search finds it. Of memory that is
//! nearly full, most of what is free can lie in caches, while requests of other orders and
//! mobilities break up whole pageblocks, or mix others; watermarks do not see that. So while
//! pageblocks evacuate, which says that whole ones are short, all CPUs together may cache a 32nd of
//! what is free, but each as much as `high_min`. Magazines in fronts are not refused for it: `high`
//! grows for these, and falls when the next one is to be shelved.

use super::caches::CpuZone;
use super::free_high::{self, MovedPages};
use super::state::{Front, SHELVES};
use crate::cpus::{Cpus, Environment};
use crate::frame::Class;
use crate::frame::pageblock::FRONTS;
use crate::front::word::Word;
use crate::sync::model::IS_LOOM;
use crate::sync::prim::{AtomicI64, Ordering};
use crate::zone::CacheLimits;

/// Magazines moved out per slow path to come back under `high`, or of a cold shelf.
const ROOM_STEPS_MAX: u32 = 4;
/// Magazines moved out per decay of a CPU's zone.
const DECAY_MAGAZINES_MAX: u32 = 32;
/// Milliseconds between decays, on the coarse clock (the kernel's vmstat interval).
const DECAY_INTERVAL_MS: u64 = 1000;
/// Pages that a CPU which only frees spills at once, and that a decay may leave above an eighth
/// less: `batch << 5`, the kernel's default scale.
const BATCH_SCALE: u32 = 5;
/// The part of a zone's free pages that its CPUs together cache while pageblocks evacuate.
const EVACUATING_PART: u64 = 32;

/// The `high` of a CPU. No protocol reads it, and to a model each access would be one more place to
/// switch: there much of this is left out.
struct High<'s, 'a, 'm, C>(&'s CpuZone<'a, 'm, C>);

impl<C: Cpus> High<'_, '_, '_, C> {
    fn cell(&self) -> &AtomicI64 {
        &self.0.pcp.accounts.high_pages
    }

    /// The largest `high` now, but for what fronts need.
    fn most(&self, limits: CacheLimits) -> u64 {
        let CpuZone { caches, zone_id, .. } = *self.0;
        if IS_LOOM || !limits.adapts() || self.0.store().tags().evacuating(zone_id) == 0 {
            return limits.high_max;
        }
        let free = caches.free_estimate(zone_id).max(0) as u64;
        let part = free / EVACUATING_PART / u64::from(caches.pcps.cpus());
        part.clamp(limits.high_min, limits.high_max)
    }

    /// Whether it may grow: it adapts, and the zone is above its high watermark.
    fn may_grow(&self, limits: CacheLimits) -> bool {
        limits.adapts() && self.0.caches.is_above_high(self.0.zone_id)
    }

    /// Raises it by a batch or more, so that `pages` more fit under it, if it may grow and `most`
    /// allows as many.
    fn raise(&self, pages: u64, most: u64) -> bool {
        let limits = self.0.zone.limits();
        let needed = self.0.pcp.charged_pages.load(Ordering::Relaxed) + pages as i64;
        let most = most.min(limits.high_max) as i64;
        if needed > most || !self.may_grow(limits) {
            return false;
        }
        let raised = (self.cell().load(Ordering::Relaxed) + limits.batch as i64).max(needed);
        self.cell().store(raised.min(most), Ordering::Relaxed);
        true
    }
}

impl<C: Cpus> CpuZone<'_, '_, C> {
    /// Whether the CPU's magazines are charged with more than `high`.
    pub fn above_high(&self) -> bool {
        let pcp = self.pcp;
        pcp.charged_pages.load(Ordering::Relaxed) > pcp.accounts.high_pages.load(Ordering::Relaxed)
    }

    /// Lowers a `high` above what it may be now, before a magazine is shelved, so that this one and
    /// another are spilled.
    pub fn limit_high(&self) {
        if IS_LOOM {
            return;
        }
        let (high, limits) = (High(self), self.zone.limits());
        let (now, most) = (high.cell().load(Ordering::Relaxed), high.most(limits) as i64);
        if now > most {
            let charged = self.pcp.charged_pages.load(Ordering::Relaxed);
            let lower = now.min(charged - limits.batch as i64).max(most);
            high.cell().store(lower, Ordering::Relaxed);
        }
    }

    /// A refill of so many pages lets the CPU cache as many more, or a batch (`nr_pcp_alloc`).
    pub fn raise_high_for_refill(&self, pages: u64) {
        if IS_LOOM {
            return;
        }
        let (high, limits) = (High(self), self.zone.limits());
        let now = high.cell().load(Ordering::Relaxed);
        if now < limits.high_max as i64 && high.may_grow(limits) {
            let raised = now + limits.batch.max(pages) as i64;
            high.cell().store(raised.min(high.most(limits) as i64).max(now), Ordering::Relaxed);
        }
    }

    /// Raises `high` for frees as if the CPU had refilled, but no further than to a few batches
    /// (`nr_pcp_high`, where `free_count` and so what it asks for is bounded). What a CPU only
    /// frees is no demand.
    pub fn raise_high_for_free(&self) -> bool {
        let (high, limits) = (High(self), self.zone.limits());
        let batches = (limits.batch << BATCH_SCALE) + limits.batch;
        high.raise(0, batches.min(high.most(limits)))
    }

    /// Tells the rule for CPUs that only free what a front moved.
    pub fn note_moved(&self, front: &Front, moved: MovedPages) {
        if free_high::regards(front.class) {
            let zone = self.zone;
            let cell = &self.pcp.accounts.free_counts[front.class as usize];
            // Relaxed, and a store: what an interrupt counts in between is lost, from a number that
            // only policies read.
            let count = cell.load(Ordering::Relaxed);
            cell.store(
                free_high::count(count, moved, zone.limits(), zone.managed()),
                Ordering::Relaxed,
            );
        }
    }

    /// Whether the CPU counts as one that only frees blocks of this class.
    pub fn only_frees(&self, front: &Front) -> bool {
        let count = || {
            let accounts = &self.pcp.accounts;
            accounts.free_counts[front.class as usize].load(Ordering::Relaxed)
        };
        free_high::regards(front.class) && free_high::only_frees(count(), self.zone.limits())
    }

    /// Whether a CPU that only frees has filled a magazine and caches more than it may then, in the
    /// front and its shelf together.
    pub fn exceeds_free_high(&self, front: &Front, word: Word) -> bool {
        let class = front.class;
        if word.rounds() < class.rounds() || front.evacuates || !self.only_frees(front) {
            return false;
        }
        let (pcp, limits) = (self.pcp, self.zone.limits());
        let high = pcp.accounts.high_pages.load(Ordering::Relaxed).max(0) as u64;
        let shelved = pcp.shelf(class, front.mobility).count() * class.rounds();
        let blocks = u64::from(word.frames(class.rounds()) + shelved);
        let pages = blocks * u64::from(class.block_frames());
        pages > self.caches.pcps.free_high().pages(limits.batch, high)
    }

    /// A CPU that caches more than `high` spilled a magazine: if it only frees, the whole shelf
    /// follows; else its coldest front, or magazines of its coldest shelf. So what it used before
    /// makes room for what it uses now.
    pub fn spill_more(&self, front: Front) {
        if self.only_frees(&front) {
            self.spill_at_once(front);
        } else if !self.empty_coldest_front(front, Class::COUNT) {
            // One row: this comes with every magazine that is spilled.
            self.spill_coldest_shelf(front);
        }
    }

    /// Spills magazines of a shelf of another class or mobility that was not used since the last
    /// look, if it is the clock hand's turn (second chance).
    fn spill_coldest_shelf(&self, except: Front) {
        if IS_LOOM {
            // A policy; to a model each access would be one more place to switch.
            return;
        }
        let (pcp, accounts) = (self.pcp, &self.pcp.accounts);
        // Loads and stores: of two that look at once, both may look at the same shelves.
        let mut next = accounts.shelf_hand.load(Ordering::Relaxed) as usize;
        for _ in 0..Class::COUNT {
            let at = if next < SHELVES { next } else { 0 };
            next = at + 1;
            // Most are: nothing else is looked at of those.
            if pcp.is_empty_shelf(at) {
                continue;
            }
            let (class, mobility, shelf) = pcp.shelf_at(at);
            let (seen, version) = (&accounts.shelves_seen[at], shelf.version());
            let is_own = (class, mobility) == (except.class, except.mobility);
            if is_own || seen.load(Ordering::Relaxed) != version {
                seen.store(version, Ordering::Relaxed);
                continue;
            }
            self.spill_shelf(class, mobility, ROOM_STEPS_MAX);
            // Still cold, and the next to be looked at, unless its CPU uses it.
            seen.store(shelf.version(), Ordering::Relaxed);
            next = at;
            break;
        }
        accounts.shelf_hand.store(next as u32, Ordering::Relaxed);
    }

    /// Spills a whole shelf, up to `batch << 5` pages (`nr_pcp_free`). If only its top were
    /// spilled, the pages at its bottom, which were freed first, would never be used again.
    pub fn spill_at_once(&self, front: Front) {
        let Front { class, mobility, .. } = front;
        let pages_max = self.zone.limits().batch << BATCH_SCALE;
        let magazines_max = pages_max / u64::from(class.magazine_frames());
        let magazines_max = u32::try_from(magazines_max).unwrap_or(u32::MAX).max(1);
        self.spill_shelf(class, mobility, magazines_max);
    }

    /// Makes room for `pages` more in a front under `high`: raises it, spills shelved magazines,
    /// empties other fronts that are cold, a few steps at most. `false`: there is none.
    pub fn make_room(&self, front: Front, pages: u64) -> bool {
        for _ in 0..ROOM_STEPS_MAX {
            if self.has_room(pages) {
                return true;
            }
            let more = High(self).raise(pages, u64::MAX)
                || self.spill_any_shelf(1) > 0
                || self.empty_coldest_front(front, FRONTS);
            if !more {
                return false;
            }
        }
        self.has_room(pages)
    }

    /// Whether the CPU may be charged with `pages` more as `high` is now.
    pub fn has_room(&self, pages: u64) -> bool {
        let pcp = self.pcp;
        pcp.charged_pages.load(Ordering::Relaxed) + pages as i64
            <= pcp.accounts.high_pages.load(Ordering::Relaxed)
    }

    /// Empties up to `magazines_max` shelved magazines, the largest blocks last.
    pub fn spill_any_shelf(&self, magazines_max: u32) -> u64 {
        let mut pages = 0;
        let mut left = magazines_max;
        for place in 0..SHELVES {
            if left == 0 {
                break;
            }
            // Most are, and a spill announces itself before it finds out.
            if self.pcp.is_empty_shelf(place) {
                continue;
            }
            let (class, mobility, _) = self.pcp.shelf_at(place);
            let moved = self.spill_shelf(class, mobility, left);
            left -= (moved / u64::from(class.magazine_frames())) as u32;
            pages += moved;
        }
        pages
    }

    /// Remembers that the slow path ran, and decays `high` when it is time.
    pub fn note_activity(&self) {
        let now = self.caches.cpus.environment().now_ms();
        if now == 0 {
            return;
        }
        let accounts = &self.pcp.accounts;
        if accounts.active_ms.load(Ordering::Relaxed) != now {
            accounts.active_ms.store(now, Ordering::Relaxed);
        }
        let last = accounts.decayed_ms.load(Ordering::Relaxed);
        if last == 0 || now.saturating_sub(last) >= DECAY_INTERVAL_MS {
            accounts.decayed_ms.store(now, Ordering::Relaxed);
            if last != 0 {
                self.decay();
            }
        }
    }

    /// Lowers `high` towards what is cached, by at most an eighth, and spills the excess
    /// (`decay_pcp_high` in `mm/page_alloc.c`); forgets half of what the CPU allocated. Returns
    /// pages moved to the store.
    fn decay(&self) -> u64 {
        let limits = self.zone.limits();
        let accounts = &self.pcp.accounts;
        let charged = self.pcp.charged_pages.load(Ordering::Relaxed);
        if limits.adapts() {
            let high = accounts.high_pages.load(Ordering::Relaxed);
            let slack = (limits.batch << BATCH_SCALE) as i64;
            let lower = (charged - slack)
                .max(high - high / 8)
                .max(limits.high_min as i64)
                .min(high.max(limits.high_min as i64));
            accounts.high_pages.store(lower, Ordering::Relaxed);
        }
        for cell in &accounts.free_counts {
            let allocated = cell.load(Ordering::Relaxed).min(0);
            cell.fetch_sub(allocated / 2, Ordering::Relaxed);
        }
        // No drain may have come for it.
        let mut pages = self.drain_handed();
        for _ in 0..DECAY_MAGAZINES_MAX {
            if !self.above_high() {
                break;
            }
            match self.spill_any_shelf(1) {
                0 => break,
                moved => pages += moved,
            }
        }
        pages
    }

    /// Decays `high` like [`decay`](Self::decay), and spills more if the CPU has been idle.
    pub fn decay_at(&self, now_ms: u64) -> u64 {
        let idle_before = now_ms.saturating_sub(3 * DECAY_INTERVAL_MS);
        let pages = self.decay();
        // Three ticks idle: a batch more, as the kernel does for remote zones.
        let active = self.pcp.accounts.active_ms.load(Ordering::Relaxed);
        if idle_before > 0 && active < idle_before {
            return pages + self.spill_any_shelf(DECAY_MAGAZINES_MAX);
        }
        pages
    }

    /// Brings `high` into new limits.
    pub fn clamp_high(&self, limits: CacheLimits) {
        let high = &self.pcp.accounts.high_pages;
        let now = high.load(Ordering::Relaxed);
        high.store(now.clamp(limits.high_min as i64, limits.high_max as i64), Ordering::Relaxed);
    }
}
