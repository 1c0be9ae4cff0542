//! Magazines of the caller's memory, and the order in which neighbours are used.

use crate::frame::{LinearMap, PageSize};
use crate::front::MagazineIndex;
use crate::sync::prim::{AtomicU32, Ordering};

/// Magazines of the caller's memory, and where further ones may be carved from.
pub struct Magazines<'m> {
    /// The number of the first.
    first: u32,
    count: u32,
    /// Number of magazines used so far. Relaxed: see [`fresh`](Self::fresh).
    used: &'m AtomicU32,
    /// The mapping of the frames, if they are mapped, and their size.
    pub linear_map: Option<(LinearMap, PageSize)>,
}

impl<'m> Magazines<'m> {
    pub fn new(
        first: u32,
        count: u32,
        used: &'m AtomicU32,
        linear_map: Option<(LinearMap, PageSize)>,
    ) -> Self {
        Magazines { first, count, used, linear_map }
    }

    /// Magazines of the caller's memory that were ever used.
    pub fn used(&self) -> u32 {
        self.used.load(Ordering::Relaxed).min(self.count)
    }

    /// A magazine that was never used.
    pub fn fresh(&self) -> Option<MagazineIndex> {
        if self.used() == self.count {
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

#[cfg(all(test, not(loom)))]
mod tests {
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
