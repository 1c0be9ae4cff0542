//! The reuse of pages: counts that do not depend on how fast the machine is.
//!
//! # Theory
//! The *reuse distance* of a use is how many distinct buffers were used since the last use of the
//! same one (Mattson et al., "Evaluation techniques for storage hierarchies", 1970): a cache that
//! holds as many still has it. Counted over a log of uses with a tree of partial sums (Bennett and
//! Kruskal, "LRU stack processing", 1975).

use std::collections::HashMap;

/// A buffer written by a sender.
#[derive(Clone, Copy, Debug)]
pub struct Use {
    /// Time of the use, in ticks.
    pub ticks: u64,
    /// The buffer's number.
    pub buffer: u32,
}

/// Reuse distances of all uses but the first of each buffer, ascending; in buffers.
pub fn distances(mut uses: Vec<Use>) -> Vec<u64> {
    uses.sort_by_key(|one| one.ticks);
    // A one at the last use of each buffer.
    let mut last_uses = Sums::new(uses.len());
    let mut last_use: HashMap<u32, usize> = HashMap::new();
    let mut distances = Vec::new();
    for (now, one) in uses.iter().enumerate() {
        if let Some(before) = last_use.insert(one.buffer, now) {
            distances.push(last_uses.below(now) - last_uses.below(before + 1));
            last_uses.add(before, -1);
        }
        last_uses.add(now, 1);
    }
    distances.sort_unstable();
    distances
}

/// Partial sums that can be changed (Fenwick, 1994).
struct Sums(Vec<i64>);

impl Sums {
    fn new(length: usize) -> Self {
        Sums(vec![0; length + 1])
    }

    fn add(&mut self, at: usize, value: i64) {
        let mut node = at + 1;
        while node < self.0.len() {
            self.0[node] += value;
            node += node & node.wrapping_neg();
        }
    }

    /// The sum of everything before `end`.
    fn below(&self, end: usize) -> u64 {
        let (mut node, mut sum) = (end, 0);
        while node > 0 {
            sum += self.0[node];
            node -= node & node.wrapping_neg();
        }
        sum as u64
    }
}

/// The value below which a share of ascending values lies; `None` without values.
pub fn quantile(ascending: &[u64], share: f64) -> Option<u64> {
    let at = (ascending.len() as f64 * share) as usize;
    ascending.get(at.min(ascending.len().saturating_sub(1))).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uses(buffers: &[u32]) -> Vec<Use> {
        buffers.iter().zip(0..).map(|(&buffer, ticks)| Use { ticks, buffer }).collect()
    }

    #[test]
    fn distances_by_hand() {
        assert_eq!(distances(uses(&[])), [0; 0]);
        assert_eq!(distances(uses(&[1, 2, 3])), [0; 0]);
        // The same at once, then 1 after 2 and 3, then 2 after 3 and 1: each buffer counts once.
        assert_eq!(distances(uses(&[1, 1, 2, 3, 3, 3, 1, 2])), [0, 0, 0, 2, 2]);
        let mut shuffled = uses(&[1, 2, 1]);
        shuffled.swap(0, 2);
        assert_eq!(distances(shuffled), [1]);
    }

    #[test]
    fn distances_as_a_naive_stack_has_them() {
        let mut random = fastrand::Rng::with_seed(7);
        let buffers: Vec<u32> = (0..2000).map(|_| random.u32(0..50)).collect();
        let (mut stack, mut naive): (Vec<u32>, Vec<u64>) = Default::default();
        for &buffer in &buffers {
            if let Some(at) = stack.iter().position(|&other| other == buffer) {
                naive.push(at as u64);
                stack.remove(at);
            }
            stack.insert(0, buffer);
        }
        naive.sort_unstable();
        assert_eq!(distances(uses(&buffers)), naive);
    }

    #[test]
    fn quantiles_by_hand() {
        assert_eq!(quantile(&[], 0.5), None);
        assert_eq!(quantile(&[3], 0.9), Some(3));
        assert_eq!(quantile(&[1, 2, 3, 4, 5, 6, 7, 8, 9, 10], 0.9), Some(10));
        assert_eq!(quantile(&[1, 2, 3, 4], 0.5), Some(3));
    }
}
