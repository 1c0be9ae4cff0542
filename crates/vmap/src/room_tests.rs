//! Each room by itself: the free address space, the nodes, a batch, the page tables, without a
//! vmap.
#![allow(unsafe_code)]

use std::sync::atomic::Ordering;

use pagedepot::cpus::{Environment, WhichCpu};
use pagedepot::sync::prim::{AtomicU8, AtomicU32};
use pagedepot::{CpuId, Order, PageSize, Pfn};

use crate::map::tables::{TableIndex, Tables};
use crate::metadata::area::{Area, AreaIndex, Areas, State, Traits};
use crate::metadata::batch::Batch;
use crate::metadata::directory::Directory;
use crate::metadata::frames::FrameTable;
use crate::metadata::index::SegmentIndex;
use crate::node::{Node, Nodes, Row};
use crate::space::Space;
use crate::space::request::AddressRequest;
use crate::space::transfer::ReturnList;
use crate::units::{ManagedRange, PageRange, VirtAddr, Vpn};
use crate::{NoFrames, VmapError};

const PAGES: u32 = 64;
const RANGE: ManagedRange =
    ManagedRange { base: VirtAddr::new(3 << 12), pages: PAGES, page_size: PageSize::Kib4 };

struct First;

impl Environment for First {}
impl WhichCpu for First {
    fn cpu(&self) -> Option<CpuId> {
        Some(CpuId::new(0))
    }
}

const HOST: NoFrames<First> = NoFrames(First);

/// Descriptors and an index for `PAGES` pages.
struct Metadata {
    areas: Vec<Area>,
    index: Vec<AtomicU32>,
}

impl Metadata {
    fn new(areas: usize) -> Self {
        Metadata {
            areas: (0..=areas).map(|_| Area::new()).collect(),
            index: (0..PAGES).map(|_| AtomicU32::new(0)).collect(),
        }
    }

    fn directory(&self) -> Directory<'_> {
        Directory::new(Areas(&self.areas), SegmentIndex(&self.index), RANGE)
    }
}

fn request(pages: u32) -> AddressRequest {
    let window = PageRange::new(Vpn(0), PAGES);
    AddressRequest { pages, align: 1, window, base_page: RANGE.base_page() }
}

fn index(number: u32) -> AreaIndex {
    AreaIndex::new(number).unwrap()
}

#[test]
fn the_space_gives_the_lowest_fit_and_merges_what_comes_back() {
    let metadata = Metadata::new(8);
    let (directory, space) = (metadata.directory(), Space::new());
    space.lock(&directory, &HOST).open(PAGES);
    let carve = |pages| space.lock(&directory, &HOST).carve(request(pages), 0).unwrap().first;
    let [a, b, c] = [10, 20, 30].map(carve);
    let start = |area| directory.area(area).start().0;
    assert_eq!([a, b, c].map(start), [0, 10, 30]);
    assert_eq!(space.free_pages(), 4);
    space.lock(&directory, &HOST).give_back(b);
    assert_eq!(start(carve(15)), 10);
    let error = space.lock(&directory, &HOST).carve(request(6), 0).err();
    assert_eq!(error, Some(VmapError::NoSpace));
    // They merge with their free neighbours, whose descriptors are spare again.
    let mut returned = ReturnList::default();
    [a, c].into_iter().for_each(|area| returned.add(&directory, area));
    let spare = space.lock(&directory, &HOST).take_back(returned);
    space.spares().put(directory.areas(), spare);
    assert_eq!(space.lock(&directory, &HOST).tree().check(), Some((2, u64::from(PAGES) - 15)));
    assert_eq!(space.spares().used(), 3);
}

#[test]
fn strips_are_cut_into_areas_that_touch() {
    let metadata = Metadata::new(12);
    let (directory, space) = (metadata.directory(), Space::new());
    let areas = directory.areas();
    space.lock(&directory, &HOST).open(PAGES);
    let carved = space.lock(&directory, &HOST).carve(request(5), 7).unwrap();
    assert_eq!(carved.areas, 8);
    let mut supply = space.spares().take(areas, 7);
    let carved = carved.cut(areas, 5, &mut supply);
    space.spares().put(areas, supply);
    let starts: Vec<_> = areas.list(Some(carved.first)).map(|area| areas[area].start().0).collect();
    assert_eq!(starts, (0..8).map(|i| 5 * i).collect::<Vec<_>>());
    assert_eq!(areas[carved.last].end(), Vpn(40));
}

/// Makes it a held area of a node, without a guard.
fn hold(area: &Area, node: u32, run: PageRange) {
    area.place(run);
    area.set_traits(Traits::new(node, 0, Default::default()));
    area.set_word(area.word().plain(State::Held));
}

#[test]
fn nodes_keep_no_more_than_their_budget() {
    let metadata = Metadata::new(20);
    let areas = Areas(&metadata.areas);
    let cells = [Node::new(), Node::new()];
    let nodes = Nodes::new(&cells, 12, 0, 0);
    (1..=20).for_each(|number| hold(&areas[index(number)], 1, PageRange::new(Vpn(3 * number), 3)));
    let kept = (1..=20).filter(|&number| nodes.keep(areas, index(number))).count();
    // Half of the budget is left for other sizes; the first area is always kept.
    assert!((1..=4).contains(&kept), "{kept}");
    assert_eq!(nodes.of_cpu(Some(CpuId::new(3))).0, 1);
    let pool = cells[1].cold().of(3).unwrap();
    assert_eq!((pool.count(), cells[0].cold().of(3).unwrap().count()), (kept as u32, 0));
    // Another node's request borrows it; it stays the node's.
    let borrowed = nodes.borrow(areas, 0, 3).unwrap();
    assert_eq!(areas[borrowed].traits().node(), 1);
    assert_eq!(nodes.push_lazy(areas, borrowed), 3);
    assert_eq!((nodes.lazy_pages(), areas[borrowed].word().state()), (3, State::Lazy));
}

#[test]
fn a_row_of_purged_areas_enters_its_pool_as_a_whole_or_not() {
    let metadata = Metadata::new(6);
    let areas = Areas(&metadata.areas);
    let cells = [Node::new(), Node::new()];
    let nodes = Nodes::new(&cells, 1000, 0, 0);
    for (number, node, pages) in [(1, 1, 3), (2, 1, 3), (3, 1, 3), (4, 0, 3), (5, 1, 4), (6, 1, 3)]
    {
        hold(&areas[index(number)], node, PageRange::new(Vpn(4 * number), pages));
    }
    areas[index(6)].set_word(areas[index(6)].word().retiring());
    assert!(Row::new(areas, index(6)).is_none(), "it retires");
    let mut row = Row::new(areas, index(1)).unwrap();
    let fits = [2, 3, 4, 5, 6].map(|number| row.append(areas, index(number)));
    assert_eq!((fits, row.count), ([true, true, false, false, false], 3));
    // The pool's limit rises by one area.
    assert!(!nodes.refill(areas, &row));
    let linked: Vec<_> = areas.list(Some(row.first)).collect();
    assert_eq!(linked, [1, 2, 3].map(index), "they are linked as before");
    let pool = cells[1].cold().of(3).unwrap();
    while !nodes.refill(areas, &row) {
        assert!(pool.limit() < 3);
    }
    assert_eq!((pool.count(), cells[0].cold().of(3).unwrap().count()), (3, 0));
    assert_eq!(cells[1].counters().refilled_areas.load(Ordering::Relaxed), 3);
    let popped = [(); 3].map(|()| pool.pop(areas, |_| true).unwrap());
    assert_eq!(popped, [1, 2, 3].map(index), "the lowest first");
    assert!(popped.iter().all(|&area| areas[area].word().state() == State::Pooled));
}

#[test]
fn a_batch_is_sorted_by_address() {
    let metadata = Metadata::new(50);
    let areas = Areas(&metadata.areas);
    // Without order; as they are; the other way round.
    for factor in [17, 1, 52] {
        let mut batch = Batch::EMPTY;
        for number in 1..=50 {
            areas[index(number)].place(PageRange::new(Vpn(number * factor % 53), 1));
            batch.push(areas, index(number));
        }
        batch.sort(areas);
        assert_eq!((batch.len(), batch.iter(areas).count()), (50, 50));
        assert!(batch.iter(areas).is_sorted_by_key(|area| area.start()));
    }
}

#[test]
fn only_whole_tables_that_are_left_are_locked() {
    // The range begins three pages into the first table.
    let words: Vec<_> = (0..Tables::count(&RANGE, 16)).map(|_| AtomicU32::new(0)).collect();
    assert_eq!(words.len(), 5);
    let tables = Tables::new(&words, &RANGE, 16);
    let [first, second] = [Vpn(0), Vpn(13)].map(|page| tables.of(page));
    assert_eq!((first, second), (TableIndex(0), TableIndex(1)));
    let run = PageRange { start: Vpn(10), end: Vpn(20) };
    let stays = PageRange { start: Vpn(20), end: Vpn(21) };
    assert!(tables.enter(&HOST, run, false) && tables.enter(&HOST, stays, false));
    assert_eq!([first, second].map(|table| tables.read(table)), [(3, true), (8, true)]);
    assert_eq!(tables.leave([run].into_iter()), 0);
    assert!(!tables.is_locked(first), "mappings outside of the range share it");
    assert!(!tables.is_locked(second), "a page is mapped through it");
    assert_eq!(tables.leave([stays].into_iter()), 1);
    assert!(tables.is_locked(second));
    assert!(!tables.enter(&HOST, stays, false), "nothing is mapped through a locked table");
    tables.release(&HOST, second);
    let counts = tables.counts();
    assert_eq!((counts.populated, counts.populated_max, counts.released), (1, 2, 1));
    assert_eq!(words[1].load(Ordering::Relaxed), 0);
}

#[test]
fn scattered_frames_are_sorted_into_runs_and_blocks_stay_whole() {
    let words: Vec<_> = (0..64).map(|_| AtomicU32::new(0)).collect();
    let orders: Vec<_> = (0..64).map(|_| AtomicU8::new(0)).collect();
    let table = FrameTable { frames: &words, orders: &orders };
    let run = PageRange::new(Vpn(2), 60);
    // Blocks of two frames from above, between them single frames from below.
    let mut at = run.start;
    for nth in 0..20 {
        table.put_block(at, Pfn::new(300 - 3 * nth), Order::new(1).unwrap());
        table.put_block(at.add(2), Pfn::new(302 - 3 * nth), Order::BASE);
        at = at.add(3);
    }
    assert_eq!(table.frame_runs(run).count(), 20);
    table.join_runs(run);
    assert_eq!(table.frame_runs(run).count(), 1);
    assert_eq!(table.get(run.start), Some(Pfn::new(300 - 3 * 19)));
    let blocks: Vec<_> = table.own_blocks(run).map(|(_, block)| block).collect();
    assert_eq!(blocks.len(), 40);
    for (nth, &(frame, order)) in blocks.iter().enumerate() {
        assert_eq!(
            (frame.get(), order.get()),
            (243 + nth as u32 / 2 * 3 + nth as u32 % 2 * 2, 1 - nth as u32 % 2)
        );
    }
    assert_eq!((table.get(Vpn(1)), table.get(Vpn(62))), (None, None));
    // Few long runs stay as they are.
    table.clear(run);
    for (page, frame) in [(2, 500), (34, 100)] {
        table.put_block(Vpn(page), Pfn::new(frame), Order::new(4).unwrap());
    }
    table.join_runs(PageRange::new(Vpn(2), 16));
    assert_eq!(table.get(Vpn(2)), Some(Pfn::new(500)));
}

#[test]
fn a_reader_that_sees_an_area_while_it_is_cut_sees_no_pages_at_worst() {
    let area = Area::new();
    area.set_traits(Traits::new(0, 3, Default::default()));
    for pages in [10, 4, 3, 2, 1, 0] {
        area.place(PageRange::new(Vpn(5), pages));
        assert_eq!(area.body().pages(), pages.saturating_sub(3));
    }
}
