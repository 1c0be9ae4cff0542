//! Counts of values by size, with three digits: a tenth of a percent.
//!
//! A value of up to 11 bits has a count of its own. A larger one shares its count with those that
//! have the same first 11 bits. Memory is fixed when the histogram is made, because memory that
//! grows is memory given back, and that interrupts other CPUs.

/// First bits of a value that tell counts apart.
const BITS: u32 = 11;

/// Counts of values up to a largest one.
#[derive(Clone, Debug)]
pub struct Histogram {
    counts: Box<[u32]>,
    /// Values larger than this are counted as this.
    limit: u64,
    len: u64,
    max: u64,
}

impl Histogram {
    /// No value yet.
    pub fn new(limit: u64) -> Self {
        let counts = vec![0; place(limit) + 1].into_boxed_slice();
        Histogram { counts, limit, len: 0, max: 0 }
    }

    /// Counts a value.
    #[inline]
    pub fn record(&mut self, value: u64) {
        let value = value.min(self.limit);
        let count = &mut self.counts[place(value)];
        *count = count.saturating_add(1);
        self.len += 1;
        self.max = self.max.max(value);
    }

    /// Values so far.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether there is no value yet.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The largest value, 0 without one.
    pub fn max(&self) -> u64 {
        self.max
    }

    /// The smallest value that this share of all values does not exceed: the largest that shares
    /// its count.
    pub fn quantile(&self, share: f64) -> u64 {
        let wanted = ((share * self.len as f64).ceil() as u64).max(1);
        let mut seen = 0;
        let at = self.counts.iter().position(|&count| {
            seen += u64::from(count);
            seen >= wanted
        });
        at.map_or(self.max, |at| largest_at(at).min(self.max))
    }
}

/// The place of a value's count.
#[inline]
fn place(value: u64) -> usize {
    let shift = (u64::BITS - value.leading_zeros()).saturating_sub(BITS);
    ((u64::from(shift) << (BITS - 1)) + (value >> shift)) as usize
}

/// The largest value whose count is at this place.
fn largest_at(place: usize) -> u64 {
    let (place, half) = (place as u64, 1 << (BITS - 1));
    if place < 2 * half {
        return place;
    }
    let shift = place / half - 1;
    let first = place - shift * half;
    (first << shift) | ((1 << shift) - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_in_order_and_lead_back() {
        let mut last = 0;
        for value in (0..5000).chain((13..40).flat_map(|bits| [(1 << bits) - 1, 1 << bits])) {
            let at = place(value);
            assert!(at == last || at == last + 1 || value > 5000, "{value}: {at} after {last}");
            let largest = largest_at(at);
            assert!(largest >= value && (largest - value) * 1000 <= value, "{value}: {largest}");
            assert_eq!(place(largest), at);
            last = at;
        }
    }

    #[test]
    fn quantiles_by_hand() {
        let mut times = Histogram::new(1 << 20);
        assert!(times.is_empty() && times.max() == 0);
        (1..=1000).for_each(|value| times.record(value));
        assert_eq!([0.001, 0.5, 0.99, 1.0].map(|share| times.quantile(share)), [1, 500, 990, 1000]);
        times.record(u64::MAX);
        assert_eq!((times.len(), times.max()), (1001, 1 << 20));
        assert_eq!(times.quantile(1.0), 1 << 20);
    }
}
