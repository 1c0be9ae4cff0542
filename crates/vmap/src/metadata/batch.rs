//! A purge's batch of areas, and the runs of mapped pages in it.

use crate::metadata::area::{Area, AreaIndex, Areas};
use crate::metadata::frames::FrameTable;
use crate::units::{PageRange, Vpn};

/// A list of areas that a purger owns.
#[derive(Clone, Copy)]
pub struct Batch {
    first: Option<AreaIndex>,
    areas: u64,
}

impl Batch {
    pub const EMPTY: Batch = Batch { first: None, areas: 0 };

    pub fn first(&self) -> Option<AreaIndex> {
        self.first
    }

    /// Number of areas.
    pub fn len(&self) -> u64 {
        self.areas
    }

    /// Adds an area that the purger owns. It is not stuck: nothing was tried yet.
    pub fn push(&mut self, areas: Areas<'_>, area: AreaIndex) {
        areas[area].set_stuck(false);
        areas[area].set_next(self.first);
        self.first = Some(area);
        self.areas += 1;
    }

    /// The areas, in the list's order.
    pub fn iter<'m>(&self, areas: Areas<'m>) -> impl Iterator<Item = &'m Area> + Clone + use<'m> {
        areas.list(self.first).map(move |index| areas.get(index))
    }

    /// Sorts by address: a merge sort from the bottom up, like the kernel's `list_sort`, of runs
    /// that ascend already, as areas do that were used in the order of their pool. Place `i` holds
    /// a sorted list of 2^i such runs, or none.
    pub fn sort(&mut self, areas: Areas<'_>) {
        let mut sorted: [Option<AreaIndex>; AreaIndex::BITS as usize + 1] = Default::default();
        let mut rest = self.first;
        while let Some(first) = rest {
            rest = cut_run(areas, first);
            let mut list = Some(first);
            for place in &mut sorted {
                let Some(other) = place.take() else {
                    *place = list.take();
                    break;
                };
                list = merge(areas, Some(other), list);
            }
        }
        self.first = sorted.into_iter().fold(None, |list, other| merge(areas, other, list));
    }
}

/// Areas linked in the order in which they were added.
#[derive(Default)]
pub struct Queue {
    ends: Option<(AreaIndex, AreaIndex)>,
}

impl Queue {
    pub fn append(&mut self, areas: Areas<'_>, index: AreaIndex) {
        areas[index].set_next(None);
        let first = match self.ends {
            Some((first, last)) => {
                areas[last].set_next(Some(index));
                first
            }
            None => index,
        };
        self.ends = Some((first, index));
    }

    pub fn first(&self) -> Option<AreaIndex> {
        self.ends.map(|(first, _)| first)
    }
}

/// Ends the list that begins with `first` where it stops to ascend; returns what comes behind.
fn cut_run(areas: Areas<'_>, first: AreaIndex) -> Option<AreaIndex> {
    let mut last = first;
    loop {
        match areas[last].next() {
            Some(next) if areas[last].start() < areas[next].start() => last = next,
            rest => {
                areas[last].set_next(None);
                return rest;
            }
        }
    }
}

/// Merges two sorted lists.
fn merge(areas: Areas<'_>, a: Option<AreaIndex>, b: Option<AreaIndex>) -> Option<AreaIndex> {
    let (mut a, mut b) = (a, b);
    let (mut first, mut last): (Option<AreaIndex>, Option<AreaIndex>) = (None, None);
    while let (Some(x), Some(y)) = (a, b) {
        let lower = if areas[x].start() <= areas[y].start() { &mut a } else { &mut b };
        let next = lower.and_then(|at| areas[at].next());
        match last {
            Some(last) => areas[last].set_next(*lower),
            None => first = *lower,
        }
        last = *lower;
        *lower = next;
    }
    match last {
        Some(last) => {
            areas[last].set_next(a.or(b));
            first
        }
        None => a.or(b),
    }
}

/// Runs of mapped pages in a list of areas, with the area of each, in the list's order.
#[derive(Clone)]
pub struct MappedRuns<'a> {
    areas: Areas<'a>,
    frames: FrameTable<'a>,
    area: Option<AreaIndex>,
    /// The page at which to go on in that area; `None`: its first.
    at: Option<Vpn>,
}

impl<'a> MappedRuns<'a> {
    pub fn new(areas: Areas<'a>, frames: FrameTable<'a>, first: Option<AreaIndex>) -> Self {
        MappedRuns { areas, frames, area: first, at: None }
    }

    /// The next run of the area from `at` on.
    fn in_area(&self, area: &Area, at: Vpn) -> Option<PageRange> {
        let hull = area.mapped_hull();
        match area.mapped() {
            0 => None,
            all if all == hull.pages() => (at == hull.start).then_some(hull),
            _ => first_run(PageRange { start: at, end: hull.end }, |page| {
                self.frames.is_mapped(page)
            }),
        }
    }
}

/// The first run of pages in `within` for which `is_due`.
fn first_run(within: PageRange, is_due: impl Fn(Vpn) -> bool) -> Option<PageRange> {
    let start = within.iter().find(|&page| is_due(page))?;
    let rest = PageRange { start, end: within.end };
    let end = rest.iter().find(|&page| !is_due(page)).unwrap_or(within.end);
    Some(PageRange { start, end })
}

impl Iterator for MappedRuns<'_> {
    type Item = (AreaIndex, PageRange);

    fn next(&mut self) -> Option<(AreaIndex, PageRange)> {
        loop {
            let index = self.area?;
            let area = &self.areas[index];
            if let Some(run) = self.in_area(area, self.at.unwrap_or(area.start())) {
                self.at = Some(run.end);
                return Some((index, run));
            }
            self.area = area.next();
            self.at = None;
        }
    }
}
