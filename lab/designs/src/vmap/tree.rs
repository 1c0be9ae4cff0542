//! Free address space: ranges by address, each subtree knowing its longest range, so that the
//! lowest range that fits is found in O(log n), as in the kernel's augmented tree.
//!
//! A treap (Seidel & Aragon, 1996): random priorities give its shape, which keeps it balanced
//! without rotations. The kernel has a red-black tree; a search, an insertion and a merge cost the
//! same. As in the kernel, whose `vmap_area` has 72 bytes, each range has a cache line of its own,
//! a search looks at the longest range of a child before it goes there, and a change goes up only
//! as far as it changes what is longest (`augment_tree_propagate_from`).

use super::run::Run;
use pagedepot_designs::prim::{note_step, note_write};

/// A node's place in the arena.
type Link = Option<u32>;

#[derive(Clone, Copy)]
#[repr(align(64))]
struct Node {
    run: Run,
    /// Pages of the longest range in this subtree.
    longest: u32,
    priority: u32,
    left: Link,
    right: Link,
}

/// Free ranges, no two of which touch.
pub struct FreeTree {
    nodes: Vec<Node>,
    spare: Vec<u32>,
    root: Link,
    pages: u64,
    seed: u32,
}

impl FreeTree {
    /// A tree with this range free.
    pub fn new(run: Run) -> Self {
        let mut tree = FreeTree {
            nodes: Vec::new(),
            spare: Vec::new(),
            root: None,
            pages: 0,
            seed: 0x9e37_79b9,
        };
        tree.give_back(run);
        tree
    }

    /// Free pages.
    pub fn pages(&self) -> u64 {
        self.pages
    }

    /// Takes `pages` pages from the lowest range that is long enough for that alignment wherever it
    /// begins. Alignment is counted in pages from the page `base` before the first.
    ///
    /// The kernel searches for aligned requests in the same way (`find_vmap_lowest_match`).
    pub fn take_lowest(&mut self, pages: u32, align: u64, base: u64) -> Option<Run> {
        let wanted = u64::from(pages) + align - 1;
        let found = self.lowest(u32::try_from(wanted).ok()?)?;
        let free = self.nodes[found as usize].run;
        let first = (base + u64::from(free.start)).next_multiple_of(align) - base;
        let taken = Run::new(u32::try_from(first).ok()?, pages);
        debug_assert!(taken.end <= free.end);
        self.carve(free, taken);
        Some(taken)
    }

    /// The lowest range of at least so many pages.
    fn lowest(&self, pages: u32) -> Link {
        let mut at = self.root?;
        note_step(&self.nodes[at as usize]);
        loop {
            let node = &self.nodes[at as usize];
            if self.longest(node.left) >= pages {
                at = node.left?;
            } else if node.run.pages() >= pages {
                return Some(at);
            } else if self.longest(node.right) >= pages {
                at = node.right?;
            } else {
                return None;
            }
        }
    }

    /// Takes a part of a free range.
    fn carve(&mut self, free: Run, taken: Run) {
        self.pages -= u64::from(taken.pages());
        let (before, after) =
            (Run { start: free.start, end: taken.start }, Run { start: taken.end, end: free.end });
        match (before.is_empty(), after.is_empty()) {
            (true, true) => self.remove(free),
            (true, false) => self.replace(free, after),
            (false, true) => self.replace(free, before),
            (false, false) => {
                self.replace(free, before);
                self.insert(after);
            }
        }
    }

    /// Makes a range free, joining it with its neighbours.
    ///
    /// # Panics
    /// When part of it is free already.
    pub fn give_back(&mut self, run: Run) {
        let (before, after) = self.neighbours(run);
        assert!(before.is_none_or(|before| before.end <= run.start), "{run:?} was free already");
        assert!(after.is_none_or(|after| run.end <= after.start), "{run:?} was free already");
        self.pages += u64::from(run.pages());
        let before = before.filter(|before| before.end == run.start);
        let after = after.filter(|after| run.end == after.start);
        match (before, after) {
            (None, None) => self.insert(run),
            (Some(before), None) => self.replace(before, Run { start: before.start, end: run.end }),
            (None, Some(after)) => self.replace(after, Run { start: run.start, end: after.end }),
            (Some(before), Some(after)) => {
                self.remove(after);
                self.replace(before, Run { start: before.start, end: after.end });
            }
        }
    }

    /// The free ranges on either side of where `run` begins.
    fn neighbours(&self, run: Run) -> (Option<Run>, Option<Run>) {
        let (mut before, mut after) = (None, None);
        let mut at = self.root;
        while let Some(node) = at.map(|at| &self.nodes[at as usize]) {
            note_step(node);
            if node.run.start <= run.start {
                before = Some(node.run);
                at = node.right;
            } else {
                after = Some(node.run);
                at = node.left;
            }
        }
        (before, after)
    }

    fn insert(&mut self, run: Run) {
        // Marsaglia's xorshift: priorities need only be unlike the addresses.
        self.seed ^= self.seed << 13;
        self.seed ^= self.seed >> 17;
        self.seed ^= self.seed << 5;
        let node = Node { run, longest: run.pages(), priority: self.seed, left: None, right: None };
        let new = match self.spare.pop() {
            Some(spare) => {
                self.nodes[spare as usize] = node;
                spare
            }
            None => {
                self.nodes.push(node);
                self.nodes.len() as u32 - 1
            }
        };
        note_write(&self.nodes[new as usize]);
        let root = self.root;
        self.root = Some(self.insert_below(root, new).0);
    }

    /// Inserts a node into a subtree. Returns its new root, and whether its longest range is
    /// another one now.
    fn insert_below(&mut self, root: Link, new: u32) -> (u32, bool) {
        let node = self.nodes[new as usize];
        let Some(at) = root else { return (new, true) };
        if self.nodes[at as usize].priority < node.priority {
            let halves = self.split(root, node.run.start);
            (self.nodes[new as usize].left, self.nodes[new as usize].right) = halves;
            self.update(new);
            return (new, true);
        }
        let is_left = node.run.start < self.nodes[at as usize].run.start;
        let (child, is_changed) = self.insert_below(self.child(at, is_left), new);
        self.set_child(at, is_left, Some(child));
        (at, is_changed && self.update(at))
    }

    /// Two subtrees: what begins before `page`, and the rest.
    fn split(&mut self, root: Link, page: u32) -> (Link, Link) {
        let Some(at) = root else { return (None, None) };
        let is_low = self.nodes[at as usize].run.start < page;
        let (low, high) = self.split(self.child(at, !is_low), page);
        self.set_child(at, !is_low, if is_low { low } else { high });
        self.update(at);
        if is_low { (Some(at), high) } else { (low, Some(at)) }
    }

    /// One subtree of two, all of the first before all of the second.
    fn join(&mut self, low: Link, high: Link) -> Link {
        let (Some(a), Some(b)) = (low, high) else { return low.or(high) };
        let is_low = self.nodes[a as usize].priority >= self.nodes[b as usize].priority;
        let (top, child) = if is_low {
            (a, self.join(self.child(a, false), high))
        } else {
            (b, self.join(low, self.child(b, true)))
        };
        self.set_child(top, !is_low, child);
        self.update(top);
        Some(top)
    }

    fn remove(&mut self, run: Run) {
        let root = self.root;
        self.root = self.remove_below(root, run).0;
    }

    /// Removes a range from a subtree. Returns its new root, and whether its longest range is
    /// another one now.
    fn remove_below(&mut self, root: Link, run: Run) -> (Link, bool) {
        let at = root.expect("the range is in the tree");
        let node = self.nodes[at as usize];
        if node.run == run {
            self.spare.push(at);
            return (self.join(node.left, node.right), true);
        }
        let is_left = run.start < node.run.start;
        let (child, is_changed) = self.remove_below(self.child(at, is_left), run);
        self.set_child(at, is_left, child);
        (root, is_changed && self.update(at))
    }

    /// Changes a range to one between the same neighbours.
    fn replace(&mut self, old: Run, new: Run) {
        let root = self.root;
        self.replace_below(root, old, new);
    }

    /// Replaces a range like [`replace`](Self::replace), in a subtree. Returns whether its longest
    /// range is another one now.
    fn replace_below(&mut self, root: Link, old: Run, new: Run) -> bool {
        let at = root.expect("the range is in the tree");
        let node = &mut self.nodes[at as usize];
        if node.run == old {
            note_write(node);
            node.run = new;
            return self.update(at);
        }
        let child = if old.start < node.run.start { node.left } else { node.right };
        self.replace_below(child, old, new) && self.update(at)
    }

    fn child(&self, at: u32, is_left: bool) -> Link {
        let node = &self.nodes[at as usize];
        if is_left { node.left } else { node.right }
    }

    fn set_child(&mut self, at: u32, is_left: bool, child: Link) {
        let node = &mut self.nodes[at as usize];
        let link = if is_left { &mut node.left } else { &mut node.right };
        if *link != child {
            *link = child;
            note_write(node);
        }
    }

    fn longest(&self, at: Link) -> u32 {
        let Some(at) = at else { return 0 };
        let node = &self.nodes[at as usize];
        note_step(node);
        node.longest
    }

    /// Finds a subtree's longest range again. Returns whether it is another one now.
    fn update(&mut self, at: u32) -> bool {
        let node = self.nodes[at as usize];
        let longest = node.run.pages().max(self.longest(node.left)).max(self.longest(node.right));
        if longest == node.longest {
            return false;
        }
        note_write(&self.nodes[at as usize]);
        self.nodes[at as usize].longest = longest;
        true
    }

    /// The free ranges, ascending.
    pub fn runs(&self) -> Vec<Run> {
        let mut runs = Vec::new();
        let (mut path, mut at) = (Vec::new(), self.root);
        loop {
            while let Some(down) = at {
                path.push(down);
                at = self.nodes[down as usize].left;
            }
            let Some(next) = path.pop() else { return runs };
            runs.push(self.nodes[next as usize].run);
            at = self.nodes[next as usize].right;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    const PAGES: u32 = 300;
    /// The range does not begin at a multiple of every alignment.
    const BASE: u64 = 5;

    proptest! {
        #[test]
        fn takes_what_a_list_scanned_from_the_bottom_would(
            steps in prop::collection::vec(
                (1..20u32, 0..5u32, any::<usize>(), any::<bool>()),
                1..200,
            )
        ) {
            let mut tree = FreeTree::new(Run::new(0, PAGES));
            let mut naive = vec![true; PAGES as usize];
            let mut held = Vec::new();
            for (pages, shift, which, gives_back) in steps {
                if gives_back && !held.is_empty() {
                    let run: Run = held.swap_remove(which % held.len());
                    tree.give_back(run);
                    naive[run.start as usize..run.end as usize].fill(true);
                } else {
                    let align = 1u64 << shift;
                    let expected = scan(&naive, pages, align);
                    let taken = tree.take_lowest(pages, align, BASE);
                    prop_assert_eq!(taken, expected);
                    if let Some(run) = taken {
                        naive[run.start as usize..run.end as usize].fill(false);
                        held.push(run);
                    }
                }
                let ends = |run: &Run| (run.start, run.end);
                let free: BTreeMap<u32, u32> = ranges(&naive).map(|run| ends(&run)).collect();
                let runs: BTreeMap<u32, u32> = tree.runs().iter().map(ends).collect();
                prop_assert_eq!(&runs, &free);
                prop_assert_eq!(tree.pages(), naive.iter().filter(|&&free| free).count() as u64);
            }
        }
    }

    fn ranges(naive: &[bool]) -> impl Iterator<Item = Run> {
        let mut at = 0;
        std::iter::from_fn(move || {
            let start = at + naive[at..].iter().position(|&free| free)?;
            at = naive[start..]
                .iter()
                .position(|&free| !free)
                .map_or(naive.len(), |len| start + len);
            Some(Run { start: start as u32, end: at as u32 })
        })
    }

    fn scan(naive: &[bool], pages: u32, align: u64) -> Option<Run> {
        let free =
            ranges(naive).find(|free| u64::from(free.pages()) >= u64::from(pages) + align - 1)?;
        let aligned = |start: &u32| (BASE + u64::from(*start)).is_multiple_of(align);
        let start = (free.start..).find(aligned)?;
        Some(Run::new(start, pages))
    }

    #[test]
    #[should_panic(expected = "was free already")]
    fn a_range_given_back_twice_is_noticed() {
        let mut tree = FreeTree::new(Run::new(0, 10));
        let run = tree.take_lowest(4, 1, 0).unwrap();
        tree.give_back(run);
        tree.give_back(run);
    }
}
