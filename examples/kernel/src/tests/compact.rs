//! `compact`: pages that are mapped and read by all CPUs are moved together, by their page tables,
//! so that pageblocks become whole.
//!
//! The first word of each page says where it is mapped: the reverse map that compaction asks. The
//! page tables confirm it. Writes to a batch are forbidden and its translations flushed; the pages
//! are copied and their entries changed; and the translations are flushed again, before the old
//! frames are given up. Pages can be read all the time.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use pagedepot::{CpuId, Flags, Order, Pfn};
use pagedepot_contiguity::{CompactResult, Compaction, Contiguity, Move, Mover, Occupant};

use super::{Options, design, mark_word};
use crate::flush::flush;
use crate::paging::{self, Leaf, PAGE_BYTES, Span, WINDOW};
use crate::{cpu, fault, figure, memory, progress, smp};

/// Pages that are mapped.
const PAGES: usize = 4096;
/// Frames that are allocated between two of them, and freed before the compaction.
const BETWEEN: usize = 3;
/// Mark in the first word of each page, beside the page's number.
const MARK: u64 = 0xc0_4ac7 << 40;
/// The most moves at once.
const BATCH: usize = 16;

fn address_of(page: usize) -> usize {
    WINDOW + page * PAGE_BYTES
}

fn word_of(page: usize) -> &'static AtomicU64 {
    // SAFETY: the address is in an area: touching it gives it a page. No code forms another kind of
    // reference to it.
    unsafe { &*core::ptr::with_exposed_provenance::<AtomicU64>(address_of(page)) }
}

/// The page that a frame holds, as its first word says and the page tables confirm.
fn page_in(frame: Pfn) -> Option<usize> {
    let page = mark_word(frame).load(Ordering::Relaxed).wrapping_sub(MARK) as usize;
    (page < PAGES && paging::translate(address_of(page)) == Some(frame)).then_some(page)
}

/// Moves pages by their page tables.
struct ByPageTables;

impl Mover for ByPageTables {
    fn occupant(&self, frame: Pfn) -> Occupant {
        match page_in(frame) {
            Some(_) => Occupant::Movable { first: frame, order: Order::BASE },
            None => Occupant::Unknown,
        }
    }

    fn move_blocks(&self, moves: &mut [Move]) {
        let mut spans = [Span { start: 0, bytes: 0 }; BATCH];
        let mut moved = 0;
        for this in &*moves {
            let Some(page) = page_in(this.from()) else { continue };
            assert!(paging::set_writable(address_of(page), this.from(), false), "only this maps");
            spans[moved] = Span { start: address_of(page), bytes: PAGE_BYTES };
            moved += 1;
        }
        // One interrupt per CPU for all of them. Afterwards no CPU writes to an old frame.
        flush(&spans[..moved], |_| false);
        for this in &*moves {
            let Some(page) = page_in(this.from()) else { continue };
            let source = core::ptr::with_exposed_provenance::<u8>(memory::address(this.from()));
            let target = core::ptr::with_exposed_provenance_mut::<u8>(memory::address(this.to()));
            // SAFETY: both are frames of RAM, mapped there; all CPUs only read the source, and the
            // target was allocated for this move.
            unsafe { target.copy_from_nonoverlapping(source, PAGE_BYTES) };
            assert!(paging::remap(address_of(page), this.from(), this.to()), "only this maps");
        }
        // Afterwards no CPU reads an old frame.
        flush(&spans[..moved], |_| false);
        for this in moves {
            match page_in(this.to()) {
                Some(page) => {
                    // A CPU that still takes the page for read-only would fault, but none writes.
                    paging::set_writable(address_of(page), this.to(), true);
                    this.moved();
                }
                None => this.gone(),
            }
        }
    }
}

/// Touches all pages, with other frames in between, which are free afterwards.
fn scatter() {
    let mut newest = 0u64;
    for page in 0..PAGES {
        word_of(page).store(MARK + page as u64, Ordering::Relaxed);
        for _ in 0..BETWEEN {
            let between = design::alloc(Order::BASE, Flags::MOVABLE).expect("memory enough");
            // Not one of the pages; the list of these frames goes through their first words.
            mark_word(between).store(newest, Ordering::Relaxed);
            newest = u64::from(between.get());
        }
    }
    while newest != 0 {
        let between = Pfn::new(newest as u32);
        newest = mark_word(between).swap(0, Ordering::Relaxed);
        design::free(between, Order::BASE);
    }
}

fn check(page: usize) {
    let found = word_of(page).load(Ordering::Relaxed);
    assert!(found == MARK + page as u64, "page {page} has {found:#x} in it");
}

pub fn run(options: &Options) {
    let rounds = options.rounds.unwrap_or(3);
    let mut sum = CompactResult::default();
    for round in 1..=rounds {
        fault::set_area(0, Some(Leaf::Page));
        scatter();
        design::drain_all();
        let done = AtomicBool::new(false);
        let reads = AtomicU64::new(0);
        let read = |cpu: CpuId| {
            let mut page = cpu.index() * 977 % PAGES;
            while !done.load(Ordering::Acquire) {
                check(page);
                page = (page + 1) % PAGES;
                reads.fetch_add(1, Ordering::Relaxed);
            }
        };
        smp::run_on(1..cpu::count(), &read, || {
            for zone in memory::depot().zone_ids() {
                let compacted = memory::depot().compact(zone, Compaction::all(), &ByPageTables);
                sum += compacted.expect("the zones exist, and have a store of their own");
            }
            done.store(true, Ordering::Release);
        });
        smp::run_everywhere(&|_| (0..PAGES).for_each(check));
        paging::release(Span { start: WINDOW, bytes: PAGES * PAGE_BYTES });
        fault::set_area(0, None);
        progress!("round {round} of {rounds}: {} pages moved", sum.moved_pages);
        figure!("reads", reads.into_inner());
    }
    assert!(sum.emptied_pageblocks > 0, "nothing was emptied: {sum:?}");
    figure!("rounds", rounds);
    figure!("moved_pages", sum.moved_pages);
    figure!("emptied_pageblocks", sum.emptied_pageblocks);
    figure!("unknown_frames", sum.unknown_frames);
}
