//! `pft`: page faults allocate pages, small and large, and unmapping frees them, on all CPUs at
//! once. Then one page shared by all CPUs is unmapped again and again: no CPU may still see it.

use core::sync::atomic::{AtomicU64, Ordering};

use pagedepot::{CpuId, Order};

use super::{Barrier, Options, design};
use crate::arch::tlb;
use crate::paging::{self, HUGE_BYTES, Leaf, PAGE_BYTES, REGION_BYTES, Span, WINDOW};
use crate::{cpu, fault, figure, flush, memory, progress, smp};

/// Most pages a CPU touches in a round.
const PAGES_MAX: u64 = 2048;
/// Number of times that the shared page is unmapped, multiplied by the number of CPUs.
const SHOOTDOWNS: u64 = 400;
/// Number of times that it is unmapped while the other CPUs are halted.
const RESTS: u64 = 10;
/// The region of the shared page; those below are the CPUs', two each.
const SHARED: usize = 2 * cpu::CPUS_MAX;

fn start_of(region: usize) -> usize {
    WINDOW + region * REGION_BYTES
}

fn word_at(address: usize) -> &'static AtomicU64 {
    // SAFETY: the address is in an area: touching it gives it a page. No code forms another kind of
    // reference to it.
    unsafe { &*core::ptr::with_exposed_provenance::<AtomicU64>(address) }
}

/// Touches `leaves` pages of a region, each twice, and releases them.
fn touch(region: usize, leaf: Leaf, leaves: usize, tag: u64) {
    let place = |i: usize| word_at(start_of(region) + i * leaf.bytes() + (i * 8) % PAGE_BYTES);
    for i in 0..leaves {
        let found = place(i).swap(tag ^ i as u64, Ordering::Relaxed);
        assert!(found == 0, "page {i} of region {region} came with {found:#x} in it");
    }
    for i in 0..leaves {
        let found = place(i).load(Ordering::Relaxed);
        assert!(found == tag ^ i as u64, "page {i} of region {region} has {found:#x} in it");
    }
    let released = paging::release(Span { start: start_of(region), bytes: leaves * leaf.bytes() });
    assert!(released == leaves, "{released} pages were mapped, {leaves} were touched");
}

/// The page that all CPUs read, and one unmaps.
fn shared() -> (Span, &'static AtomicU64) {
    let page = Span { start: start_of(SHARED), bytes: PAGE_BYTES };
    (page, word_at(page.start))
}

/// Unmaps the shared page, has `look` look for what is left of it, and cleans up. The frame is kept
/// meanwhile, so that it cannot be mapped there again by chance.
fn unmap_and(look: impl FnOnce()) {
    let (page, _) = shared();
    let mut frame = None;
    paging::unmap(page, |pfn, _| frame = Some(pfn)).expect("a small page");
    paging::flush_and_free_tables(&[page]);
    look();
    design::free(frame.expect("the page was mapped"), Order::BASE);
    paging::release(page);
}

fn expect(cpu: CpuId, expected: u64) {
    let found = shared().1.load(Ordering::Relaxed);
    assert!(found == expected, "{cpu:?} reads {found} of a page that has {expected}");
}

/// CPU 0 unmaps the page that all CPUs have just read and will read again, while they run.
fn shoot_down(cpu: CpuId, barrier: &Barrier) {
    for value in 1..=SHOOTDOWNS / u64::from(cpu::count()) {
        if cpu.get() == 0 {
            shared().1.store(value, Ordering::Relaxed);
        }
        barrier.wait();
        expect(cpu, value);
        barrier.wait();
        let look = || {
            barrier.wait();
            expect(cpu, 0);
            barrier.wait();
        };
        if cpu.get() == 0 { unmap_and(look) } else { look() }
    }
}

/// Unmaps the shared page while the other CPUs are halted: they are not interrupted, and catch up
/// when they wake. Every second time its page table goes, too: they could walk through that one, so
/// they are interrupted then.
fn unmap_while_halted() {
    let neighbour = Span { start: shared().0.start + PAGE_BYTES, bytes: PAGE_BYTES };
    for value in 1..=RESTS {
        let frees_table = value.is_multiple_of(2);
        if !frees_table {
            word_at(neighbour.start).store(value, Ordering::Relaxed);
        }
        shared().1.store(value, Ordering::Relaxed);
        smp::run_everywhere(&|cpu| expect(cpu, value));
        smp::await_idle();
        let (_, before) = flush::counts();
        unmap_and(|| {
            let interrupted = flush::counts().1 - before;
            let walkers = if frees_table && !tlb::BROADCASTS { cpu::count() - 1 } else { 0 };
            assert!(interrupted == u64::from(walkers), "{interrupted} of {walkers} interrupted");
            smp::run_everywhere(&|cpu| expect(cpu, 0));
        });
        paging::release(neighbour);
    }
}

pub fn run(options: &Options) {
    let cpus = cpu::count();
    let pages = (memory::free_pages() / 4 / u64::from(cpus)).min(PAGES_MAX) as usize;
    let huge_pages = pages / (HUGE_BYTES / PAGE_BYTES);
    let (table_bytes_start, _) = paging::table_bytes();
    for cpu in 0..cpus as usize {
        fault::set_area(2 * cpu, Some(Leaf::Page));
        fault::set_area(2 * cpu + 1, Some(Leaf::Huge));
    }
    let rounds = options.rounds.unwrap_or(4);
    for round in 1..=rounds {
        smp::run_everywhere(&|cpu| {
            let tag = round << 32 | u64::from(cpu.get()) << 20 | 1 << 63;
            touch(2 * cpu.index(), Leaf::Page, pages, tag);
            touch(2 * cpu.index() + 1, Leaf::Huge, huge_pages, tag);
        });
        progress!("round {round} of {rounds}: {} faults", fault::count());
    }
    fault::set_area(SHARED, Some(Leaf::Page));
    let (flushes, interrupts) = flush::counts();
    let barrier = Barrier::new(cpus);
    smp::run_everywhere(&|cpu| shoot_down(cpu, &barrier));
    unmap_while_halted();
    (0..=SHARED).for_each(|region| fault::set_area(region, None));

    let (table_bytes_end, table_bytes_peak) = paging::table_bytes();
    assert!(table_bytes_end == table_bytes_start, "page tables were left behind");
    figure!("faults", fault::count());
    figure!("shootdowns", flush::counts().0 - flushes);
    figure!("shootdown_interrupts", flush::counts().1 - interrupts);
    figure!("page_table_bytes_start", table_bytes_start);
    figure!("page_table_bytes_peak", table_bytes_peak);
    figure!("page_table_bytes_end", table_bytes_end);
}
