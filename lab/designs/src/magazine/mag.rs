//! One magazine: single frames by mobility, behind a lock.

use pagedepot::{Mobility, Order, Pfn};

use pagedepot_designs::counters::Counters;
use pagedepot_designs::frames::{Frames, List};
use pagedepot_designs::lock::{SpinGuard, SpinLock};
use pagedepot_designs::prim::{Padded, PlainU32, count};

/// The magazines of a process, one per zone.
pub struct ProcessMags(pub Box<[Padded<Mag>]>);

pub struct Mag {
    pub lock: SpinLock,
    pub pages: PlainU32,
    pub lists: [List; Mobility::COUNT],
    pub counters: Counters,
}

/// A magazine's lock, held.
pub struct MagGuard<'m> {
    pub mag: &'m Mag,
    _guard: SpinGuard<'m>,
}

/// Frames in flight, in no list.
pub struct Batch {
    pub list: List,
    pub pages: u32,
}

impl Mag {
    pub fn new() -> Self {
        Mag {
            lock: SpinLock::new(),
            pages: PlainU32::new(0),
            lists: std::array::from_fn(|_| List::new()),
            counters: Counters::default(),
        }
    }

    pub fn all(zones: usize, each: u32) -> Box<[Padded<Mag>]> {
        (0..zones * each as usize).map(|_| Padded(Mag::new())).collect()
    }

    #[inline]
    pub fn lock(&self) -> MagGuard<'_> {
        MagGuard { _guard: self.lock.lock(), mag: self }
    }

    #[inline]
    pub fn try_lock(&self) -> Option<MagGuard<'_>> {
        match self.lock.try_lock() {
            Some(guard) => Some(MagGuard { _guard: guard, mag: self }),
            None => {
                count(&self.counters.lock_misses, 1);
                None
            }
        }
    }
}

impl MagGuard<'_> {
    #[inline]
    pub fn pop(&self, frames: &Frames, mobility: Mobility) -> Option<Pfn> {
        let slot = self.mag.lists[mobility.index()].pop_front(frames)?;
        self.mag.pages.sub(1);
        Some(frames.pfn(slot))
    }

    #[inline]
    pub fn push(&self, frames: &Frames, pfn: Pfn, mobility: Mobility) {
        self.mag.lists[mobility.index()].push_front(frames, frames.slot(pfn));
        self.mag.pages.add(1);
    }

    pub fn splice(&self, frames: &Frames, batch: Batch, mobility: Mobility) {
        self.mag.pages.add(batch.pages);
        self.mag.lists[mobility.index()].splice_front(frames, &batch.list);
    }

    /// Takes the coldest frames, round-robin over mobilities after `last`. A list gives one frame,
    /// and one more for each empty list passed, so that fuller lists give more; the only list with
    /// pages gives a longer run. Ends early once `min` are taken and another thread waits for the
    /// lock.
    pub fn take_coldest(&self, frames: &Frames, last: Mobility, pages: u32, min: u32) -> Batch {
        let batch = Batch { list: List::new(), pages: 0 };
        let (mut at, mut run) = (last.index(), 0);
        let wanted = pages.min(self.mag.pages.get());
        let mut batch = batch;
        while batch.pages < wanted {
            at = (at + 1) % Mobility::COUNT;
            run += 1;
            if self.mag.lists[at].is_empty() {
                continue;
            }
            if run >= Mobility::COUNT {
                run = min.max(1) as usize;
            }
            while run > 0 && batch.pages < wanted {
                let Some(slot) = self.mag.lists[at].pop_back(frames) else { break };
                self.mag.pages.sub(1);
                batch.list.push_back(frames, slot);
                batch.pages += 1;
                run -= 1;
            }
            run = 0;
            if batch.pages > min && self.mag.lock.is_contended() {
                break;
            }
        }
        batch
    }
}

impl Batch {
    pub fn blocks<'b>(&'b self, frames: &'b Frames) -> impl Iterator<Item = (Pfn, Order)> + 'b {
        std::iter::from_fn(|| self.list.pop_front(frames))
            .map(|slot| (frames.pfn(slot), Order::BASE))
    }
}
