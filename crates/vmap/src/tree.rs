//! The tree of free ranges: an AVL tree by address whose nodes know the largest range below them.
//!
//! Nodes are descriptors, links are their numbers, so nothing is allocated and nothing is unsafe.
//! All of it happens under the space's lock; the relaxed atomics are plain accesses to it. Depth is
//! at most 1.44 log2(2^24), 35, which bounds the recursion.
//!
//! Lowest fit with an alignment has no small bound: any number of ranges may be large enough but
//! start at the wrong place. The search passes by what lies between two places, so that large
//! alignments, which have few, are quick. After a number of misfits it gives up the lowest place
//! and takes the lowest range that fits wherever it starts (what `mm/vmalloc.c` always does); only
//! when there is none it looks at all.

use super::area::{Area, AreaIndex, Areas};
use super::units::{Run, Vpn};
use pagedepot::sync::prim::{AtomicU32, Ordering};

/// Ranges that are large enough but misaligned which a search looks at before it gives up.
const MISFITS_MAX: u32 = 64;

/// What is looked for.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    pub pages: u32,
    /// In pages, a power of two.
    pub align: u64,
    /// Where it must lie.
    pub window: Run,
    /// Number of the range's first page, counted from address 0.
    pub base_page: u64,
}

impl Wanted {
    /// All places it may have, the lowest first.
    pub fn places(self) -> impl Iterator<Item = Run> {
        let first = (self.base_page + u64::from(self.window.start.0)).next_multiple_of(self.align);
        let last = u64::from(self.window.end.0) - u64::from(self.pages);
        let place = move |nth: u64| first - self.base_page + nth * self.align;
        (0..)
            .map(place)
            .take_while(move |&at| at <= last)
            .map(move |at| Run::new(Vpn(at as u32), self.pages))
    }

    /// Looks only at places behind `end`, which is not free.
    fn skip_to(&mut self, end: Vpn) {
        let start =
            (self.base_page + u64::from(end.0)).next_multiple_of(self.align) - self.base_page;
        self.window.start = u32::try_from(start).map_or(self.window.end, Vpn);
    }

    /// The lowest place in a free range, if it fits.
    fn place_in(&self, free: Run) -> Option<Vpn> {
        let from = u64::from(free.start.max(self.window.start).0);
        let end = u64::from(free.end.min(self.window.end).0);
        let aligned = (self.base_page + from).checked_add(self.align - 1)? & !(self.align - 1);
        let start = aligned - self.base_page;
        (start + u64::from(self.pages) <= end).then_some(Vpn(start as u32))
    }
}

/// How a search ended.
enum Search {
    Found(AreaIndex, Vpn),
    None,
    GaveUp,
}

/// A tree over some of the descriptors.
pub struct Tree<'a, 'm> {
    pub areas: Areas<'m>,
    pub root: &'a AtomicU32,
}

type Node = Option<AreaIndex>;

fn get(link: &AtomicU32) -> Node {
    AreaIndex::new(link.load(Ordering::Relaxed))
}

fn set(link: &AtomicU32, node: Node) {
    link.store(AreaIndex::number(node), Ordering::Relaxed);
}

impl Tree<'_, '_> {
    fn area(&self, node: AreaIndex) -> &Area {
        &self.areas[node]
    }

    fn root(&self) -> Node {
        get(self.root)
    }

    fn left(&self, node: AreaIndex) -> Node {
        get(&self.area(node).tree.left)
    }

    fn right(&self, node: AreaIndex) -> Node {
        get(&self.area(node).tree.right)
    }

    fn height(&self, node: Node) -> u32 {
        node.map_or(0, |node| self.area(node).tree.height.load(Ordering::Relaxed))
    }

    /// Pages of the largest range at or below a node.
    fn largest_of(&self, node: Node) -> u32 {
        node.map_or(0, |node| self.area(node).tree.largest.load(Ordering::Relaxed))
    }

    /// Pages of the largest free range.
    pub fn largest(&self) -> u32 {
        self.largest_of(self.root())
    }

    /// What a node's parent knows of it.
    fn sums(&self, node: Node) -> (u32, u32) {
        (self.height(node), self.largest_of(node))
    }

    /// Gives a node whose children have their balance a changed child, which had the sums `old`.
    /// Where they are the same nothing changes from here to the root, and nothing is read.
    fn relink(&self, node: AreaIndex, side: &AtomicU32, old: (u32, u32), child: Node) -> AreaIndex {
        set(side, child);
        if self.sums(child) == old { node } else { self.balance(node) }
    }

    /// Sums up a node from its children.
    fn refresh(&self, node: AreaIndex) {
        let (left, right) = (self.left(node), self.right(node));
        let height = 1 + self.height(left).max(self.height(right));
        let largest =
            self.area(node).pages().max(self.largest_of(left)).max(self.largest_of(right));
        let tree = &self.area(node).tree;
        tree.height.store(height, Ordering::Relaxed);
        tree.largest.store(largest, Ordering::Relaxed);
    }

    fn rotate_right(&self, node: AreaIndex) -> AreaIndex {
        let Some(up) = self.left(node) else { return node };
        set(&self.area(node).tree.left, self.right(up));
        set(&self.area(up).tree.right, Some(node));
        self.refresh(node);
        self.refresh(up);
        up
    }

    fn rotate_left(&self, node: AreaIndex) -> AreaIndex {
        let Some(up) = self.right(node) else { return node };
        set(&self.area(node).tree.right, self.left(up));
        set(&self.area(up).tree.left, Some(node));
        self.refresh(node);
        self.refresh(up);
        up
    }

    /// Restores the balance of a node whose children have it; returns the subtree's new top.
    fn balance(&self, node: AreaIndex) -> AreaIndex {
        let (left, right) = (self.left(node), self.right(node));
        if let Some(tall) = left.filter(|_| self.height(left) > self.height(right) + 1) {
            if self.height(self.left(tall)) < self.height(self.right(tall)) {
                set(&self.area(node).tree.left, Some(self.rotate_left(tall)));
            }
            return self.rotate_right(node);
        }
        if let Some(tall) = right.filter(|_| self.height(right) > self.height(left) + 1) {
            if self.height(self.right(tall)) < self.height(self.left(tall)) {
                set(&self.area(node).tree.right, Some(self.rotate_right(tall)));
            }
            return self.rotate_left(node);
        }
        self.refresh(node);
        node
    }

    /// Adds a free range that touches no other in the tree.
    pub fn insert(&self, node: AreaIndex) {
        let tree = &self.area(node).tree;
        set(&tree.left, None);
        set(&tree.right, None);
        set(self.root, Some(self.insert_under(self.root(), node)));
    }

    fn insert_under(&self, top: Node, node: AreaIndex) -> AreaIndex {
        let Some(top) = top else {
            self.refresh(node);
            return node;
        };
        let links = &self.area(top).tree;
        let side = if self.area(node).start() < self.area(top).start() {
            &links.left
        } else {
            &links.right
        };
        let old = self.sums(get(side));
        self.relink(top, side, old, Some(self.insert_under(get(side), node)))
    }

    /// Removes a free range.
    pub fn remove(&self, node: AreaIndex) {
        set(self.root, self.remove_under(self.root(), node));
    }

    fn remove_under(&self, top: Node, node: AreaIndex) -> Node {
        let top = top?;
        let links = &self.area(top).tree;
        if top != node {
            let before = self.area(node).start() < self.area(top).start();
            let side = if before { &links.left } else { &links.right };
            let old = self.sums(get(side));
            return Some(self.relink(top, side, old, self.remove_under(get(side), node)));
        }
        match (get(&links.left), get(&links.right)) {
            (None, other) | (other, None) => other,
            (Some(left), Some(right)) => {
                let (rest, first) = self.take_first(right);
                set(&self.area(first).tree.left, Some(left));
                set(&self.area(first).tree.right, rest);
                Some(self.balance(first))
            }
        }
    }

    /// Takes the lowest range off a subtree: what is left, and that range.
    fn take_first(&self, top: AreaIndex) -> (Node, AreaIndex) {
        let Some(left) = self.left(top) else { return (self.right(top), top) };
        let old = self.sums(Some(left));
        let (rest, first) = self.take_first(left);
        (Some(self.relink(top, &self.area(top).tree.left, old, rest)), first)
    }

    /// Moves or resizes a free range that stays between its neighbours.
    pub fn replace(&self, node: AreaIndex, run: Run) {
        self.area(node).place(run);
        self.refresh_path(self.root(), run.start);
    }

    fn refresh_path(&self, top: Node, to: Vpn) {
        let Some(top) = top else { return };
        let start = self.area(top).start();
        if to != start {
            let child = if to < start { self.left(top) } else { self.right(top) };
            let old = self.sums(child);
            self.refresh_path(child, to);
            if self.sums(child) == old {
                return;
            }
        }
        self.refresh(top);
    }

    /// The free ranges that touch `run`, which is not free: before it, and behind it.
    pub fn touching(&self, run: Run) -> (Node, Node) {
        let (mut at, mut before, mut behind) = (self.root(), None, None);
        while let Some(node) = at {
            if self.area(node).start() < run.start {
                before = at;
                at = self.right(node);
            } else {
                behind = at;
                at = self.left(node);
            }
        }
        let before = before.filter(|&node| self.area(node).end() == run.start);
        (before, behind.filter(|&node| self.area(node).start() == run.end))
    }

    /// The free range with the highest start at or before `page`.
    pub fn at_or_before(&self, page: Vpn) -> Node {
        let (mut at, mut best) = (self.root(), None);
        while let Some(node) = at {
            if self.area(node).start() <= page {
                best = at;
                at = self.right(node);
            } else {
                at = self.left(node);
            }
        }
        best
    }

    /// The free range that contains `page`.
    pub fn containing(&self, page: Vpn) -> Node {
        self.at_or_before(page).filter(|&node| page < self.area(node).end())
    }

    /// Where `wanted` fits: a free range, and the place in it.
    pub fn find(&self, wanted: Wanted) -> Option<(AreaIndex, Vpn)> {
        match self.find_under(self.root(), &mut wanted.clone(), &mut MISFITS_MAX.clone()) {
            Search::Found(node, start) => return Some((node, start)),
            Search::None => return None,
            Search::GaveUp => {}
        }
        let roomy = u64::from(wanted.pages) + wanted.align - 1;
        if let Ok(pages) = u32::try_from(roomy) {
            let mut roomy = Wanted { pages, align: 1, ..wanted };
            let found = self.find_under(self.root(), &mut roomy, &mut u32::MAX.clone());
            if let Search::Found(node, _) = found {
                return wanted.place_in(self.area(node).run()).map(|start| (node, start));
            }
        }
        match self.find_under(self.root(), &mut wanted.clone(), &mut u32::MAX.clone()) {
            Search::Found(node, start) => Some((node, start)),
            _ => None,
        }
    }

    fn find_under(&self, top: Node, wanted: &mut Wanted, misfits: &mut u32) -> Search {
        let Some(top) = top.filter(|_| self.largest_of(top) >= wanted.pages) else {
            return Search::None;
        };
        let run = self.area(top).run();
        if run.start > wanted.window.start {
            match self.find_under(self.left(top), wanted, misfits) {
                Search::None => {}
                found => return found,
            }
        }
        if run.pages() >= wanted.pages
            && run.end > wanted.window.start
            && run.start < wanted.window.end
        {
            if let Some(start) = wanted.place_in(run) {
                return Search::Found(top, start);
            }
            *misfits -= 1;
            if *misfits == 0 {
                return Search::GaveUp;
            }
            // Ranges before the next place are passed by, however many.
            wanted.skip_to(run.end);
        }
        if run.end < wanted.window.end {
            return self.find_under(self.right(top), wanted, misfits);
        }
        Search::None
    }

    /// Checks order, balance and sums; returns the number of ranges and of their pages.
    pub fn check(&self) -> Option<(u64, u64)> {
        self.check_under(self.root(), &mut Vpn(0), &mut true)
    }

    fn check_under(&self, top: Node, from: &mut Vpn, may_touch: &mut bool) -> Option<(u64, u64)> {
        let Some(node) = top else { return Some((0, 0)) };
        let (below, below_pages) = self.check_under(self.left(node), from, may_touch)?;
        let run = self.area(node).run();
        // Ranges ascend and do not touch: touching ones are one.
        let apart = run.start > *from || (run.start == *from && *may_touch);
        (*from, *may_touch) = (run.end, false);
        let (above, above_pages) = self.check_under(self.right(node), from, may_touch)?;
        let (left, right) = (self.left(node), self.right(node));
        let height = 1 + self.height(left).max(self.height(right));
        let largest = run.pages().max(self.largest_of(left)).max(self.largest_of(right));
        let sound = apart
            && self.height(left).abs_diff(self.height(right)) <= 1
            && self.height(top) == height
            && self.largest_of(top) == largest;
        sound.then_some((below + above + 1, below_pages + above_pages + u64::from(run.pages())))
    }
}
