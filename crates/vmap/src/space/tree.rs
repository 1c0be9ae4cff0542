//! The tree of free ranges: an AVL tree by address. Each tree node knows the largest range below
//! it.
//!
//! Tree nodes are descriptors and links are their numbers, so the tree allocates nothing and needs
//! no unsafe code. The space's lock protects all of it; the relaxed atomics are plain accesses
//! under it. The depth is at most 1.44 log2(2^24) = 35, which bounds the recursion.
//!
//! A search for the lowest fit with an alignment has no small bound: any number of ranges may be
//! large enough but begin at a misaligned address. The search skips what lies between two aligned
//! places, so large alignments, which have few places, are quick. After [`MISFITS_MAX`] misfits it
//! gives up the lowest place and takes the lowest range that fits wherever the range begins, as
//! `mm/vmalloc.c` always does. If there is none, it searches without a limit.

use crate::metadata::area::{Area, AreaIndex, Areas};
use crate::space::request::AddressRequest;
use crate::units::{PageRange, Vpn};
use pagedepot::sync::prim::{AtomicU32, Ordering};

/// Number of misaligned ranges of sufficient size after which a search gives up the lowest place.
const MISFITS_MAX: u32 = 64;

/// Result of a search.
enum Search {
    Found(AreaIndex, Vpn),
    None,
    GaveUp,
}

/// A tree of some of the descriptors, by the number of its root.
pub struct Tree<'a, 'm> {
    areas: Areas<'m>,
    root: &'a AtomicU32,
}

/// A link to a descriptor.
type Link = Option<AreaIndex>;

fn get(link: &AtomicU32) -> Link {
    AreaIndex::new(link.load(Ordering::Relaxed))
}

fn set(link: &AtomicU32, node: Link) {
    link.store(AreaIndex::number(node), Ordering::Relaxed);
}

impl<'a, 'm> Tree<'a, 'm> {
    pub fn new(areas: Areas<'m>, root: &'a AtomicU32) -> Self {
        Tree { areas, root }
    }

    fn area(&self, node: AreaIndex) -> &Area {
        &self.areas[node]
    }

    fn root(&self) -> Link {
        get(self.root)
    }

    fn left(&self, node: AreaIndex) -> Link {
        get(&self.area(node).tree.left)
    }

    fn right(&self, node: AreaIndex) -> Link {
        get(&self.area(node).tree.right)
    }

    fn height(&self, node: Link) -> u32 {
        node.map_or(0, |node| self.area(node).tree.height.load(Ordering::Relaxed))
    }

    /// Pages of the largest range in a subtree.
    fn largest_of(&self, node: Link) -> u32 {
        node.map_or(0, |node| self.area(node).tree.largest.load(Ordering::Relaxed))
    }

    /// Pages of the largest free range.
    pub fn largest(&self) -> u32 {
        self.largest_of(self.root())
    }

    /// Height and largest range: what a parent's sums depend on.
    fn sums(&self, node: Link) -> (u32, u32) {
        (self.height(node), self.largest_of(node))
    }

    /// Links a balanced node to a changed child, which had the sums `old`. If the child's sums are
    /// still `old`, nothing changes from here to the root, and the node's other child is not read.
    fn relink(&self, node: AreaIndex, side: &AtomicU32, old: (u32, u32), child: Link) -> AreaIndex {
        set(side, child);
        if self.sums(child) == old { node } else { self.balance(node) }
    }

    /// Computes a node's sums from its children.
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

    /// Restores the balance of a node whose children are balanced; returns the new top of the
    /// subtree.
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

    fn insert_under(&self, top: Link, node: AreaIndex) -> AreaIndex {
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

    fn remove_under(&self, top: Link, node: AreaIndex) -> Link {
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

    /// Removes the lowest range of a subtree; returns what is left, and that range.
    fn take_first(&self, top: AreaIndex) -> (Link, AreaIndex) {
        let Some(left) = self.left(top) else { return (self.right(top), top) };
        let old = self.sums(Some(left));
        let (rest, first) = self.take_first(left);
        (Some(self.relink(top, &self.area(top).tree.left, old, rest)), first)
    }

    /// Moves or resizes a free range. It stays between its neighbours.
    pub fn replace(&self, node: AreaIndex, run: PageRange) {
        self.area(node).place(run);
        self.refresh_path(self.root(), run.start);
    }

    fn refresh_path(&self, top: Link, to: Vpn) {
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

    /// The free ranges that end where `run` begins, and that begin where it ends.
    pub fn touching(&self, run: PageRange) -> (Link, Link) {
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
    pub fn at_or_before(&self, page: Vpn) -> Link {
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
    pub fn containing(&self, page: Vpn) -> Link {
        self.at_or_before(page).filter(|&node| page < self.area(node).end())
    }

    /// A free range in which the request fits, and its place there.
    pub fn find(&self, request: AddressRequest) -> Option<(AreaIndex, Vpn)> {
        match self.find_under(self.root(), &mut request.clone(), &mut MISFITS_MAX.clone()) {
            Search::Found(node, start) => return Some((node, start)),
            Search::None => return None,
            Search::GaveUp => {}
        }
        let roomy = u64::from(request.pages) + request.align - 1;
        if let Ok(pages) = u32::try_from(roomy) {
            let mut roomy = AddressRequest { pages, align: 1, ..request };
            let found = self.find_under(self.root(), &mut roomy, &mut u32::MAX.clone());
            if let Search::Found(node, _) = found {
                return request.place_in(self.area(node).run()).map(|start| (node, start));
            }
        }
        match self.find_under(self.root(), &mut request.clone(), &mut u32::MAX.clone()) {
            Search::Found(node, start) => Some((node, start)),
            _ => None,
        }
    }

    fn find_under(&self, top: Link, request: &mut AddressRequest, misfits: &mut u32) -> Search {
        let Some(top) = top.filter(|_| self.largest_of(top) >= request.pages) else {
            return Search::None;
        };
        let run = self.area(top).run();
        if run.start > request.window.start {
            match self.find_under(self.left(top), request, misfits) {
                Search::None => {}
                found => return found,
            }
        }
        if run.pages() >= request.pages
            && run.end > request.window.start
            && run.start < request.window.end
        {
            if let Some(start) = request.place_in(run) {
                return Search::Found(top, start);
            }
            *misfits -= 1;
            if *misfits == 0 {
                return Search::GaveUp;
            }
            // The search skips all ranges before the next place.
            request.skip_to(run.end);
        }
        if run.end < request.window.end {
            return self.find_under(self.right(top), request, misfits);
        }
        Search::None
    }

    /// Checks order, balance and sums. Returns the number of ranges and of their pages; `None`: the
    /// tree is wrong.
    pub fn check(&self) -> Option<(u64, u64)> {
        self.check_under(self.root(), &mut Vpn(0), &mut true)
    }

    fn check_under(&self, top: Link, from: &mut Vpn, may_touch: &mut bool) -> Option<(u64, u64)> {
        let Some(node) = top else { return Some((0, 0)) };
        let (below, below_pages) = self.check_under(self.left(node), from, may_touch)?;
        let run = self.area(node).run();
        // Ranges ascend, and do not touch: two that touch are merged.
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
