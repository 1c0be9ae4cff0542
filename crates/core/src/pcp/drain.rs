//! Taking back what CPUs cache.
//!
//! *Quiet*: takes every shelf, by one atomic operation each, and interrupts no CPU; what is in
//! fronts stays and is counted as unreachable. *Full*: closes the gate of each CPU that is not
//! isolated, fences it once, takes its fronts too; the argument is in `front/gate.rs`.
//!
//! What a quiet drain cannot reach is bounded: per CPU, zone, context, order and mobility in use
//! two magazines of 63, 31, 15, 7 (orders 3 to 6) and 1 blocks (order 9), in pages 126, 124, 120,
//! 112, 224, 448, 896 and 1024; and over all of them by `high`, beyond which a CPU's slow path empties its coldest
//! front, or by the one front in use where that alone is more.

use core::ops::Range;

use super::caches::Caches;
use super::front::Front;
use super::share::Share;
use super::shelf::Chain;
use crate::cpus::{Cpus, Environment};
use crate::frame::pageblock::Tag;
use crate::frame::{Class, CpuId, Mobility, ZoneId};
use crate::front::MagazineIndex;
use crate::front::gate::Closed;
use crate::front::word::Word;
use crate::sync::prim::{Ordering, spin_hint};
use crate::sync::stack::Links;
use crate::sync::{InFlight, count, prefetch_write};

/// How far a drain goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Shelves only; interrupts no CPU.
    Quiet,
    /// Fronts too: one fence per CPU that is not isolated and not quiescent.
    Full,
}

/// Whose caches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scope {
    cpu: Option<CpuId>,
    zone: Option<ZoneId>,
}

impl Scope {
    /// Those of all CPUs in all zones.
    pub const ALL: Scope = Scope { cpu: None, zone: None };

    /// Those of one CPU.
    pub const fn cpu(cpu: CpuId) -> Self {
        Scope { cpu: Some(cpu), zone: None }
    }

    /// Those of one zone.
    pub const fn zone(zone: ZoneId) -> Self {
        Scope { cpu: None, zone: Some(zone) }
    }

    /// The CPUs in it, of so many.
    pub(crate) fn cpus(self, count: u32) -> Range<u32> {
        places(self.cpu.map(CpuId::get), count)
    }

    /// The zones in it, of so many.
    pub(crate) fn zones(self, count: u32) -> Range<u32> {
        places(self.zone.map(ZoneId::get), count)
    }

    /// Restricted to one zone.
    #[must_use]
    pub const fn in_zone(self, zone: ZoneId) -> Self {
        Scope { zone: Some(zone), ..self }
    }
}

/// One place of so many, or all of them.
fn places(one: Option<u32>, count: u32) -> Range<u32> {
    match one {
        Some(one) => one.min(count)..one.saturating_add(1).min(count),
        None => 0..count,
    }
}

/// What a drain did, in pages. Sums over CPUs by `+=`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Drained {
    /// Returned to the store.
    pub taken_pages: u64,
    /// Cached within reach again by the time it ended: the owner goes on meanwhile.
    pub left_pages: u64,
    /// In other callers' hands at the end: refills, spills, other drains.
    pub in_flight_pages: u64,
    /// In fronts that this drain did not take. After a quiet drain an upper bound, every magazine
    /// in a front counted in full; after a full one exact. At most, per CPU, zone, context and
    /// mobility in use, 126 pages by order 0, 124 by order 1, 120 by order 2, 112 by order 3, 224
    /// by order 4, 448 by order 5, 896 by order 6 and 1024 by order 9.
    pub unreachable_pages: u64,
    /// Fences waited for.
    pub fences: u64,
    /// CPUs whose gate another drain held, or that could not be fenced.
    pub busy_cpus: u64,
    /// CPUs left alone because they are isolated.
    pub isolated_cpus: u64,
}

impl core::ops::AddAssign for Drained {
    fn add_assign(&mut self, other: Drained) {
        self.taken_pages += other.taken_pages;
        self.left_pages += other.left_pages;
        self.in_flight_pages += other.in_flight_pages;
        self.unreachable_pages += other.unreachable_pages;
        self.fences += other.fences;
        self.busy_cpus += other.busy_cpus;
        self.isolated_cpus += other.isolated_cpus;
    }
}

/// How often a disabler looks again at a gate that a drainer holds.
const DISABLE_SPINS: u32 = if cfg!(loom) { 2 } else { 1 << 20 };

impl<C: Cpus> Caches<'_, '_, C> {
    /// Drains a CPU's caches of these zones.
    pub fn drain_cpu(self, cpu: CpuId, zones: Range<u32>, mode: Mode) -> Drained {
        let mut done = Drained::default();
        for zone in zones.clone().map(ZoneId::new) {
            done.taken_pages += self.share(cpu, zone).drain_shelves();
        }
        // Without zones there is nothing to take, and no reason to interrupt the CPU.
        if mode == Mode::Full && !zones.is_empty() {
            if self.cpus.environment().is_isolated(cpu) {
                done.isolated_cpus = 1;
            } else if let Some(closed) = Closed::close(self.pcps.blocks(), cpu, self.pcps.tickets())
            {
                self.drain_fronts(closed, cpu, zones.clone(), &mut done);
            } else {
                done.busy_cpus = 1;
            }
        }
        if cfg!(loom) {
            // No protocol reads what follows; to a model each load would be two executions.
            return done;
        }
        for zone in zones.map(ZoneId::new) {
            let pcp = self.pcps.pcp(cpu, zone);
            done.left_pages += pcp.shelved_pages();
            let in_flight_pages = InFlight::in_flight_pages(pcp.in_flight.read());
            done.in_flight_pages += in_flight_pages;
            // A quiet drain does not even read the owner's words: it would take their line away.
            done.unreachable_pages += match mode {
                Mode::Quiet => pcp.unshelved_pages().saturating_sub(in_flight_pages),
                Mode::Full => self.pcps.front_pages(cpu, zone),
            };
        }
        done
    }

    /// Takes the fronts of a CPU whose gate is closed, reopens it, then returns the frames.
    fn drain_fronts(self, closed: Closed<'_>, cpu: CpuId, zones: Range<u32>, done: &mut Drained) {
        if !self.fence_closed(cpu, done) {
            return;
        }
        let mut taken: [_; Tag::ZONES_MAX] = core::array::from_fn(|_| None);
        for zone in zones.clone() {
            let share = self.share(cpu, ZoneId::new(zone));
            // A drain that finds nothing moves nothing: requests that are about to fail drain too.
            let pages = self.pcps.front_pages(cpu, share.zone_id);
            let moving = (pages > 0).then(|| share.pcp.in_flight.begin(pages));
            taken[zone as usize] = Some((moving, share.take_fronts()));
        }
        drop(closed);
        for zone in zones {
            if let Some((moving, parts)) = taken[zone as usize].take() {
                done.taken_pages += self.share(cpu, ZoneId::new(zone)).return_parts(parts);
                drop(moving);
            }
        }
    }

    /// Waits until no sequence can commit on the CPU any more; `false`: that cannot be had.
    fn fence_closed(self, cpu: CpuId, done: &mut Drained) -> bool {
        if self.cpus.is_quiescent(cpu) {
            return true;
        }
        done.fences += 1;
        let fenced = self.cpus.fence(self.pcps.blocks(), cpu).is_ok();
        done.busy_cpus += u64::from(!fenced);
        fenced
    }

    /// Takes a CPU's caches away until they are enabled again.
    pub fn disable_cpu(self, cpu: CpuId, zones: Range<u32>) -> Drained {
        let mut done = Drained::default();
        match self.close_patiently(cpu) {
            Some(closed) => self.drain_fronts(closed, cpu, zones.clone(), &mut done),
            None => done.busy_cpus = 1,
        }
        // After the gate: see `Share::shelve`.
        done += self.drain_cpu(cpu, zones, Mode::Quiet);
        done
    }

    fn close_patiently(&self, cpu: CpuId) -> Option<Closed<'_>> {
        (0..DISABLE_SPINS).find_map(|_| {
            let closed = Closed::close_for_good(self.pcps.blocks(), cpu, self.pcps.tickets());
            if closed.is_none() {
                spin_hint();
            }
            closed
        })
    }
}

impl<C: Cpus> Share<'_, '_, C> {
    /// Takes all shelves of a CPU in a zone back to the store; returns pages.
    pub fn drain_shelves(&self) -> u64 {
        let pcp = self.pcp;
        prefetch_write(&pcp.in_flight);
        Mobility::ALL
            .iter()
            .filter_map(|&mobility| pcp.listed(Class::Order0, mobility))
            .for_each(prefetch_write);
        let mut pages = 0;
        for (class, mobility, shelf) in pcp.shelves() {
            let shelved = shelf.count();
            if shelved == 0 {
                continue;
            }
            if let Some(listed) = pcp.listed(class, mobility) {
                listed
                    .top_down(shelved)
                    .for_each(|magazine| prefetch_write(self.blocks().magazine(magazine)));
            }
            // Announced before they are taken; more may have come meanwhile, then fewer pages are
            // announced than moved, for as long as it takes to announce the others.
            let moving =
                pcp.in_flight.begin(u64::from(shelved) * u64::from(class.magazine_frames()));
            if let Some(chain) = shelf.take_all(self.blocks()) {
                let more = chain.count.saturating_sub(shelved);
                let rest = (more > 0).then(|| {
                    pcp.in_flight.begin(u64::from(more) * u64::from(class.magazine_frames()))
                });
                self.return_chain(self.task_front(class, mobility), chain);
                pages += u64::from(chain.count) * u64::from(class.magazine_frames());
                drop(rest);
            }
            drop(moving);
        }
        pages
    }

    /// Empties the full magazines of a chain that the caller owns into the store, then gives the
    /// magazines back to the CPU they came from by one operation.
    fn return_chain(&self, front: Front, chain: Chain) {
        let class = front.class;
        let pcp = self.pcp;
        let mut pages = 0;
        let mut last = chain.first;
        let mut at = Some(chain.first);
        while let Some(magazine) = at {
            at = self.blocks().next(magazine);
            if let Some(next) = at {
                prefetch_write(self.blocks().magazine(next));
            }
            pages += self.empty_magazine(class, magazine, class.rounds());
            last = magazine;
        }
        pcp.add_free(self.zone, pages);
        pcp.count_drained(u64::from(chain.count * class.rounds()), class.block_frames());
        self.release_chain(class, chain, last);
    }

    /// Empties all front words of a CPU in a zone; only for the holder of the closed gate, after
    /// the fence. Returns the magazines, linked, each link carrying what the magazine holds.
    fn take_fronts(&self) -> Option<Part> {
        let mut parts = None;
        for (front, offset) in self.caches.pcps.fronts(self.cpu, self.zone_id) {
            let cell = self.blocks().word(front.here, offset);
            // Acquire: pairs with the Release of the sequence that stored it, where the fence did
            // not already order it (a quiescent CPU).
            let word = Word(cell.load(Ordering::Acquire));
            count(&self.pcp.counters.hits, word.operations());
            // Relaxed: published by the Release that reopens the gate.
            cell.store(Word::EMPTY.0, Ordering::Relaxed);
            if let Some(loaded) = word.loaded() {
                parts = Some(self.link_part(loaded, front.class, word.rounds(), parts));
            }
            if let Some((previous, full)) = word.previous() {
                let rounds = if full { front.class.rounds() } else { 0 };
                parts = Some(self.link_part(previous, front.class, rounds, parts));
            }
        }
        parts
    }

    fn link_part(
        &self,
        magazine: MagazineIndex,
        class: Class,
        rounds: u32,
        rest: Option<Part>,
    ) -> Part {
        // Relaxed: the magazine is this drainer's alone.
        self.blocks()
            .magazine(magazine)
            .next
            .store(rest.map_or(0, |part| part.0), Ordering::Relaxed);
        Part::new(magazine, class, rounds)
    }

    /// Returns what `take_fronts` took; the number of pages.
    fn return_parts(&self, mut parts: Option<Part>) -> u64 {
        let pcp = self.pcp;
        let mut pages = 0;
        while let Some(part) = parts {
            let (magazine, class, rounds) = part.unpack();
            parts = Part::from_link(self.blocks().magazine(magazine).next.load(Ordering::Relaxed));
            let grown = self.empty_magazine(class, magazine, rounds);
            pcp.add_free(self.zone, grown);
            self.release_magazine(class, magazine);
            pcp.count_drained(u64::from(rounds), class.block_frames());
            pages += u64::from(rounds * class.block_frames());
        }
        pages
    }
}

/// A magazine taken from a front, in a link.
///
/// | bits | field |
/// |---|---|
/// | 0..=20 | magazine |
/// | 21..=26 | rounds |
/// | 27..=29 | class |
#[derive(Clone, Copy)]
struct Part(u32);

impl Part {
    fn new(magazine: MagazineIndex, class: Class, rounds: u32) -> Self {
        Part(magazine.get() | rounds << MagazineIndex::BITS | (class as u32) << 27)
    }

    fn from_link(link: u32) -> Option<Self> {
        (link != 0).then_some(Part(link))
    }

    fn unpack(self) -> (MagazineIndex, Class, u32) {
        let index = MagazineIndex::new(self.0 & ((1 << MagazineIndex::BITS) - 1));
        let class = Class::ALL[(self.0 >> 27) as usize];
        (index.expect("a link names a magazine"), class, self.0 >> MagazineIndex::BITS & 0x3f)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn every_field_of_a_part_comes_back() {
        let last = (1 << MagazineIndex::BITS) - 1;
        for index in
            [1, 2, last / 2, last - 1, last].map(|index| MagazineIndex::new(index).unwrap())
        {
            for class in Class::ALL {
                for rounds in 0..=63 {
                    let part = Part::new(index, class, rounds);
                    assert_eq!(part.unpack(), (index, class, rounds));
                    assert_eq!(
                        Part::from_link(part.0).map(Part::unpack),
                        Some((index, class, rounds))
                    );
                }
            }
        }
        assert!(Part::from_link(0).is_none());
    }
}
