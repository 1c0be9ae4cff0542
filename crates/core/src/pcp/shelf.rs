//! Shelves and the other stacks of magazines, whose theory is in [`stack`](crate::sync::stack); and
//! the pool of magazines in the caller's memory.
//!
//! # Index
//! The magazines of a shelf are linked, each link in a line that the shelf's CPU wrote last: a
//! drainer that follows them waits for one line after the other. A [`ShelfIndex`] lists them in one
//! cache line, and the drainer asks for all of them at once (decision 0005). The list is a hint: it
//! may name a magazine that has left.
//!
//! # Pairs
//! Each exchange with a shelf is five locked instructions, of one magazine or of two. A front that
//! has exchanged two is as full, or as empty, as it can be: a program that turns then needs the
//! shelf again at once. So two go only while this run, with these two, has moved fewer magazines
//! than the run before the last turn. Where runs repeat, the last exchange of each is then of one.
//! Where they do not, the run has moved at least three magazines for each exchange that this costs.
//!
//! # Parts
//! A magazine on a shelf is full, and its shelf says of what order. One that comes from a front may
//! hold any number of rounds. A link of such magazines ([`Part`]) says both, so that a chain of
//! them is all that a drainer needs.
//!
//! # Carved frames
//! The frames that the allocator cut into magazines are noted by a bit each. `free` must refuse
//! them, or a magazine in use would be handed out, and zeroed. It finds the tag of their pageblock
//! there, which leads the fast path to words that never take anything (see
//! [`Tag`](crate::frame::pageblock::Tag)); the slow path then looks here, one frame at a time. So
//! the frames beside them are freed a little slower, and all others as if there were no such thing.
//!
//! A magazine's number reaches 512 MiB: there are bits for the frames that lie there, at most 16
//! KiB.

use core::ops::Range;

use crate::frame::{LinearMap, Order, PageSize, Pfn, ZoneId};
use crate::front::{BlockArray, Magazine, MagazineIndex};
use crate::sync::model::IS_LOOM;
use crate::sync::prim::{AtomicU32, AtomicU64, Ordering};
use crate::sync::stack::{self, Links};

/// Bits of an index in a head.
const INDEX_BITS: u32 = 22;
const _: () = assert!(MagazineIndex::BITS <= INDEX_BITS);

/// A CPU's full magazines of one order and mobility: counted, at most 1023.
pub type Shelf = stack::Stack<INDEX_BITS, 10>;
/// Empty magazines: uncounted, and without a limit.
pub type Empties = stack::Stack<INDEX_BITS, 0>;
/// Magazines that an owner handed over, each named with what it holds: uncounted.
pub type HandedStack = stack::Stack<{ Part::BITS }, 0>;
/// Magazines linked by their `next`, owned by the holder.
pub type Chain = stack::Chain<MagazineIndex>;
/// Magazines like [`Chain`], of which the last is known.
pub type PoppedMagazines = stack::PoppedChain<MagazineIndex>;

/// Magazines that are listed; any that lie above them on the shelf are not.
const LENGTH: usize = 15;

/// The list of a shelf, lowest first, and the magazines that it last exchanged with its front.
///
/// | bits | field of `exchanged` |
/// |---|---|
/// | 0 | set: full magazines went to the shelf |
/// | 1..=15 | magazines since the last turn, `COUNT_MAX` at most |
/// | 16..=30 | magazines between the last two turns |
///
/// Relaxed, loads and stores: a policy, whose owner may be interrupted.
#[derive(Default)]
#[repr(C, align(64))]
pub struct ShelfIndex {
    list: [AtomicU32; LENGTH],
    exchanged: AtomicU32,
}

const _: () = assert!(IS_LOOM || size_of::<ShelfIndex>() == 64);

impl ShelfIndex {
    /// Notes that one or two magazines go on top of `below` others.
    pub fn note(&self, below: u32, PoppedMagazines { first, last, count }: PoppedMagazines) {
        for (below, magazine) in [(below, last), (below + count - 1, first)] {
            if let Some(place) = self.list.get(below as usize) {
                // Relaxed: a hint.
                place.store(magazine.get(), Ordering::Relaxed);
            }
        }
    }

    /// The magazines on a shelf of `count`, highest first.
    pub fn top_down(&self, count: u32) -> impl Iterator<Item = MagazineIndex> {
        let listed = &self.list[..LENGTH.min(count as usize)];
        // Relaxed: a hint.
        listed.iter().rev().filter_map(|place| MagazineIndex::new(place.load(Ordering::Relaxed)))
    }

    /// Notes an exchange, a put of full magazines or not, of as many as this returns: `most` if
    /// more than these went the other way before the last turn than have gone this way since, else
    /// one. See the module.
    pub fn exchange(&self, is_put: bool, most: u32) -> u32 {
        const COUNT_MAX: u32 = (1 << 15) - 1;
        let word = self.exchanged.load(Ordering::Relaxed);
        let counts = (word >> 1 & COUNT_MAX, word >> 16);
        let (count, before) = if word & 1 == is_put.into() { counts } else { (0, counts.0) };
        let moved = if count + most < before { most } else { 1 };
        let count = (count + moved).min(COUNT_MAX);
        self.exchanged.store(before << 16 | count << 1 | u32::from(is_put), Ordering::Relaxed);
        moved
    }
}

/// A magazine with what it holds, as a link.
///
/// | bits | field |
/// |---|---|
/// | 0..=20 | magazine |
/// | 21..=26 | rounds |
/// | 27..=30 | order |
#[derive(Clone, Copy)]
pub struct Part(u32);

const _: () = assert!(Order::CACHED <= 1 << 4);

impl Part {
    /// Bits it has.
    pub const BITS: u32 = 31;

    pub fn new(magazine: MagazineIndex, order: Order, rounds: u32) -> Self {
        Part(magazine.get() | rounds << MagazineIndex::BITS | order.get() << 27)
    }

    pub fn unpack(self) -> (MagazineIndex, Order, u32) {
        let index = MagazineIndex::new(self.0 & ((1 << MagazineIndex::BITS) - 1));
        let order = Order::at_place((self.0 >> 27) as usize);
        (index.expect("a link names a magazine"), order, self.0 >> MagazineIndex::BITS & 0x3f)
    }

    /// Pages in it.
    pub fn pages(self) -> u64 {
        let (_, order, rounds) = self.unpack();
        u64::from(rounds * order.frames())
    }
}

/// Magazines by their parts, linked by their `next`.
pub struct Parts<'b>(pub &'b BlockArray);

impl Links for Parts<'_> {
    type Index = Part;

    fn number(part: Part) -> u32 {
        part.0
    }

    fn index(number: u32) -> Option<Part> {
        (number != 0).then_some(Part(number))
    }

    fn link(&self, part: Part) -> &AtomicU32 {
        &self.0.magazine(part.unpack().0).next
    }
}

/// Magazines of the caller's memory, and where further ones may be carved from.
pub struct Magazines<'m> {
    /// The number of the first.
    first: u32,
    count: u32,
    /// Number of magazines used so far. Relaxed: see [`fresh`](Self::fresh).
    used: &'m AtomicU32,
    /// The mapping of the frames, if they are mapped, and their size.
    pub linear_map: Option<(LinearMap, PageSize)>,
    /// Pages of order 0 in a CPU's part of the magazines. A CPU that caches more may make the
    /// allocator carve further ones; without a mapping none does.
    pub pages_per_cpu: u64,
}

impl<'m> Magazines<'m> {
    pub fn new(
        first: u32,
        count: u32,
        used: &'m AtomicU32,
        linear_map: Option<(LinearMap, PageSize)>,
        cpus: u32,
    ) -> Self {
        let pages = u64::from(count / cpus.max(1) * Order::BASE.magazine_frames());
        let pages_per_cpu = if linear_map.is_some() { pages } else { u64::MAX };
        Magazines { first, count, used, linear_map, pages_per_cpu }
    }

    /// Magazines of the caller's memory that were ever used.
    pub fn used(&self) -> u32 {
        self.used.load(Ordering::Relaxed).min(self.count)
    }

    /// A magazine that was never used.
    pub fn fresh(&self) -> Option<MagazineIndex> {
        if self.used() >= self.count {
            return None;
        }
        // An addition, which no other CPU makes fail: at the start all come here at once. The
        // number passes `count` by one for each CPU that meets the last one here, and then stays.
        // Relaxed: only the number is handed out; the magazine was written before the allocator
        // existed.
        let nth = self.used.fetch_add(1, Ordering::Relaxed);
        if nth >= self.count {
            return None;
        }
        MagazineIndex::new(self.first + spread(nth, self.count))
    }
}

/// The neighbour to use as the `nth` of `count`: multiples of a number near the golden section
/// (Knuth, The Art of Computer Programming 6.4), so that those in use lie apart and in no order. A
/// drainer that reads one shelved magazine after another would else make its prefetchers fetch the
/// next, which may be the one that the owner writes (decision 0005).
pub fn spread(nth: u32, count: u32) -> u32 {
    let golden = (u64::from(count) * 618 / 1000) as u32;
    // A step without a common factor meets each place once; 1 is one.
    let step =
        (1..=golden).rev().find(|&step| greatest_common_divisor(step, count) == 1).unwrap_or(1);
    (u64::from(nth) * u64::from(step) % u64::from(count)) as u32
}

fn greatest_common_divisor(mut a: u32, mut b: u32) -> u32 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

/// The bits; see the module.
#[derive(Default)]
pub struct CarvedFrames<'m> {
    /// Frame numbers that may be carved; none without a linear map.
    first: u32,
    end: u32,
    /// The bits of frames from `first` on.
    bits: &'m [AtomicU64],
    /// Zones of which a first frame was to be carved early: a bit each.
    begun: AtomicU32,
}

impl<'m> CarvedFrames<'m> {
    /// No frame is carved yet. `reach`: the frames whose magazines have numbers, of which the first
    /// have `bits`.
    pub fn new(reach: Range<u32>, bits: &'m [AtomicU64]) -> Self {
        let first = reach.start;
        let end = reach.end.min(first.saturating_add(bits.len() as u32 * u64::BITS));
        CarvedFrames { first, end, bits, begun: AtomicU32::new(0) }
    }

    /// The frames whose magazines have numbers, when these count from `base`.
    pub fn reach(map: LinearMap, page_size: PageSize, base: usize) -> Option<Range<u32>> {
        let page = page_size.bytes();
        let frame_zero = map.address(Pfn::new(0), page_size);
        let first = (base + size_of::<Magazine>()).saturating_sub(frame_zero).div_ceil(page);
        let end =
            (base + (size_of::<Magazine>() << MagazineIndex::BITS)).checked_sub(frame_zero)? / page;
        Some(u32::try_from(first).ok()?..u32::try_from(end).unwrap_or(u32::MAX))
    }

    /// Number of words of bits that are needed where frames end at `frames_end`.
    pub fn words(page_size: PageSize, frames_end: u64) -> usize {
        if IS_LOOM {
            return 0;
        }
        let reach = (size_of::<Magazine>() << MagazineIndex::BITS) >> page_size.shift();
        (frames_end.min(reach as u64) as usize).div_ceil(u64::BITS as usize)
    }

    /// Frames that may be carved.
    pub fn frames(&self) -> Range<u32> {
        self.first..self.end
    }

    fn bit(&self, frame: u32) -> (&AtomicU64, u64) {
        let at = frame - self.first;
        (&self.bits[(at / u64::BITS) as usize], 1 << (at % u64::BITS))
    }

    /// Notes that a first frame of a zone is to be carved early. `false`: it was noted before.
    pub fn begin(&self, zone: ZoneId) -> bool {
        let bit = 1 << zone.get();
        // Relaxed: of the callers that meet here one is to carve.
        self.begun.load(Ordering::Relaxed) & bit == 0
            && self.begun.fetch_or(bit, Ordering::Relaxed) & bit == 0
    }

    /// Notes a frame that the caller owns, within reach.
    pub fn note(&self, pfn: Pfn) {
        let (cell, bit) = self.bit(pfn.get());
        // Relaxed: see `Tags::is_any_near`.
        cell.fetch_or(bit, Ordering::Relaxed);
    }

    /// Takes a note back, of a frame that the caller owns and has not cut.
    pub fn forget(&self, pfn: Pfn) {
        let (cell, bit) = self.bit(pfn.get());
        // Relaxed: as in `note`.
        cell.fetch_and(!bit, Ordering::Relaxed);
    }

    /// Whether any of these frames is carved.
    pub fn any(&self, start: Pfn, frames: u32) -> bool {
        let end = u64::from(start.get()) + u64::from(frames);
        // Relaxed: as in `note`.
        (start.get().max(self.first)..end.min(self.end.into()) as u32).any(|frame| {
            let (cell, bit) = self.bit(frame);
            cell.load(Ordering::Relaxed) & bit != 0
        })
    }

    /// All of them.
    pub fn all(&self) -> impl Iterator<Item = Pfn> {
        self.frames().map(Pfn::new).filter(|&pfn| self.any(pfn, 1))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn what_lies_on_a_shelf_is_listed_as_far_as_there_are_places() {
        let magazine = |index| MagazineIndex::new(index).unwrap();
        let listed = ShelfIndex::default();
        let on_shelf_of =
            |count| listed.top_down(count).map(MagazineIndex::get).collect::<Vec<_>>();
        assert!(on_shelf_of(3).is_empty());
        (0..20).for_each(|below| listed.note(below, magazine(100 + below).into()));
        assert_eq!(on_shelf_of(3), [102, 101, 100]);
        assert_eq!(on_shelf_of(20), Vec::from_iter((100..115).rev()));
        // One popped, another pushed.
        listed.note(2, magazine(7).into());
        assert_eq!(on_shelf_of(3), [7, 101, 100]);
        // And two at once: the last of a chain lies lowest.
        listed.note(1, PoppedMagazines { first: magazine(9), last: magazine(8), count: 2 });
        assert_eq!(on_shelf_of(3), [9, 8, 100]);
    }

    /// Checks that pairs go on the way of a run that goes on as the one before the turn did, and
    /// that the last of it moves singly: the next exchange is then a magazine away.
    #[test]
    fn runs_that_are_as_long_as_those_before_exchange_pairs() {
        let listed = ShelfIndex::default();
        let run = |is_put, magazines| {
            let (mut moved, mut each) = (0, Vec::new());
            while moved < magazines {
                each.push(listed.exchange(is_put, 2));
                moved += each.last().unwrap();
            }
            each
        };
        assert_eq!(run(false, 7), [1; 7], "nothing is known of this one");
        assert_eq!(run(true, 7), [2, 2, 2, 1]);
        assert_eq!(run(false, 3), [2, 2]);
        assert_eq!(run(true, 3), [2, 1]);
        assert_eq!(run(false, 2), [2]);
        assert_eq!(run(true, 40_000).len(), 40_000, "a pair would be the whole run");
        let pairs = run(false, 40_000).into_iter().filter(|&moved| moved == 2).count();
        assert_eq!(pairs, (1 << 14) - 1, "the count ends");
        assert_eq!(listed.exchange(true, 1), 1, "there is one alone");
    }
}

#[cfg(all(test, not(loom)))]
mod part_tests {
    use super::*;

    #[test]
    fn every_field_of_a_part_comes_back() {
        let last = (1 << MagazineIndex::BITS) - 1;
        for index in
            [1, 2, last / 2, last - 1, last].map(|index| MagazineIndex::new(index).unwrap())
        {
            for order in Order::all() {
                for rounds in 0..=63 {
                    let part = Part::new(index, order, rounds);
                    assert_eq!(part.unpack(), (index, order, rounds));
                    assert!(part.0 >> Part::BITS == 0);
                    assert_eq!(part.pages(), u64::from(rounds * order.frames()));
                    assert_eq!(
                        Parts::index(part.0).map(Part::unpack),
                        Some((index, order, rounds))
                    );
                }
            }
        }
        assert!(Parts::index(0).is_none());
    }
}

#[cfg(all(test, not(loom)))]
mod pool_tests {
    use super::spread;

    #[test]
    fn magazines_are_spread_over_all_places_once() {
        for count in (1..200).chain([4096, 5040]) {
            let mut places: Vec<u32> = (0..count).map(|nth| spread(nth, count)).collect();
            assert!(
                count < 16 || places.windows(2).all(|pair| pair[0].abs_diff(pair[1]) > 1),
                "{places:?}"
            );
            places.sort_unstable();
            assert_eq!(places, Vec::from_iter(0..count));
        }
    }
}
