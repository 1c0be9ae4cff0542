//! Page tables of the window: 512 GiB of virtual addresses that the kernel maps and unmaps.
//!
//! Four levels of tables, as x86-64, AArch64 (4 KiB granule, 48 bits) and RISC-V (Sv48) all have
//! them; `arch::tables` has the form of entries. Leaves are 4 KiB or 2 MiB. Tables come from the
//! page allocator and go back to it when they are empty, after a flush: until then a CPU may still
//! walk through them.

use core::cell::Cell;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use pagedepot::{Flags, Order, Pfn};
use spin::Mutex;

use crate::arch::{tables, tlb};
use crate::cpu::{self, Cpu};
use crate::flush::{flush, lock};
use crate::memory;

/// Bytes of a page.
pub const PAGE_BYTES: usize = 4096;
/// Bytes of a large page: one entry of a page directory.
pub const HUGE_BYTES: usize = 512 * PAGE_BYTES;
/// Bytes that one page directory maps.
pub const REGION_BYTES: usize = 512 * HUGE_BYTES;
/// First address of the window: that of the upper half.
pub const WINDOW: usize = 0xffff_8000_0000_0000;
/// Regions in the window.
pub const REGIONS: usize = 512;

/// The access that a mapping allows besides reading.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Access {
    /// Stores.
    pub may_write: bool,
    /// Fetches of instructions.
    pub may_execute: bool,
    /// User mode's access, in place of the kernel's.
    pub is_user: bool,
}

/// The access to a mapping for data.
pub const READ_WRITE: Access = Access { may_write: true, may_execute: false, is_user: false };
/// The access to the linear map, in which the kernel's code lies, too.
const LINEAR_MAP: Access = Access { may_execute: true, ..READ_WRITE };
/// Flags of page tables: a lock is held, so the request must not wait. It may use the reserve,
/// because other CPUs wait for the lock.
const TABLE: Flags = Flags::UNMOVABLE.zeroed().atomic();

/// A range of virtual addresses, in whole pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Span {
    /// The span's first address.
    pub start: usize,
    /// The length in bytes, whole pages.
    pub bytes: usize,
}

/// One mapping in the tables.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Leaf {
    /// 4 KiB.
    Page,
    /// 2 MiB.
    Huge,
}

impl Leaf {
    /// The order of the block that backs it.
    pub fn order(self) -> Order {
        match self {
            Leaf::Page => Order::BASE,
            Leaf::Huge => Order::PAGEBLOCK,
        }
    }

    /// The length in bytes.
    pub fn bytes(self) -> usize {
        PAGE_BYTES << self.order().get()
    }
}

/// The reason why page tables were not changed, or not completely.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MapError {
    /// A page is mapped there already.
    Occupied,
    /// No page for a table.
    NoTable,
}

/// A table: entries that the processor reads (and marks accessed) while we change them.
#[repr(transparent)]
struct Table([AtomicU64; 512]);

impl Table {
    fn at(pfn: Pfn) -> &'static Table {
        // SAFETY: `pfn` holds a table: its page is the tables' until `flush_and_free_tables`,
        // zeroed when it was allocated, and only accessed as atomics.
        unsafe { &*core::ptr::with_exposed_provenance::<Table>(memory::address(pfn)) }
    }

    fn next(&self, index: usize) -> Option<Pfn> {
        let entry = self.0[index].load(Ordering::Relaxed);
        debug_assert!(!tables::is_large(entry), "a large page where a table is due");
        tables::is_present(entry).then(|| tables::frame_of(entry))
    }

    /// The table below, made if there is none.
    fn next_or_new(&self, index: usize) -> Result<&'static Table, MapError> {
        if tables::is_large(self.0[index].load(Ordering::Relaxed)) {
            return Err(MapError::Occupied);
        }
        if let Some(below) = self.next(index) {
            return Ok(Table::at(below));
        }
        let below = new_table()?;
        // Release: the processor must find a table of zeroes.
        self.0[index].store(tables::to_table(below), Ordering::Release);
        tables::publish();
        Ok(Table::at(below))
    }

    fn is_empty(&self) -> bool {
        self.0.iter().all(|entry| entry.load(Ordering::Relaxed) == 0)
    }
}

/// The table of regions; it always exists.
static REGION_TABLE: AtomicU64 = AtomicU64::new(0);
/// One for each region: held while its directory and page tables are changed.
static LOCKS: [Mutex<()>; REGIONS] = [const { Mutex::new(()) }; REGIONS];
/// Tables taken out and not yet freed, linked through their first entries; the second ones have an
/// address that was translated through them. Both are addresses with bit 0 clear, so that a CPU
/// that still walks such a table finds nothing present.
static PENDING: Mutex<u64> = Mutex::new(0);
/// Tables to split large pages into: a span that is unmapped may begin in one and end in another,
/// and unmapping must not need memory. Filled after flushes, and where large pages are mapped.
static SPARES: Mutex<[Option<Pfn>; 2]> = Mutex::new([None; 2]);
/// Tables in use, pending or spare.
static TABLES: AtomicUsize = AtomicUsize::new(0);
static TABLES_PEAK: AtomicUsize = AtomicUsize::new(0);

unsafe extern "C" {
    /// The root table, which all CPUs use that are not offline (`boot.s`).
    static boot_root: Table;
}

fn root() -> &'static Table {
    // SAFETY: a table of `boot.s`, for ever, and accessed as atomics.
    unsafe { &boot_root }
}

fn new_table() -> Result<Pfn, MapError> {
    let table = memory::depot().alloc(Order::BASE, TABLE).map_err(|_| MapError::NoTable)?;
    count_tables(1);
    Ok(table)
}

fn count_tables(tables: isize) {
    let now = TABLES.fetch_add(tables as usize, Ordering::Relaxed).wrapping_add(tables as usize);
    TABLES_PEAK.fetch_max(now, Ordering::Relaxed);
}

/// Bytes of the window's page tables: now, and the most there have been.
pub fn table_bytes() -> (usize, usize) {
    (TABLES.load(Ordering::Relaxed) * PAGE_BYTES, TABLES_PEAK.load(Ordering::Relaxed) * PAGE_BYTES)
}

/// Makes the window's first table and the spare ones, for good.
pub fn init() {
    tables::check();
    fill_spares().expect("memory for spare tables");
    const SLOT: usize = WINDOW >> 39 & 511;
    root().next_or_new(SLOT).expect("memory for the window's first table");
    let table = root().next(SLOT).expect("made just now");
    REGION_TABLE.store(u64::from(table.get()), Ordering::Release);
}

/// Maps physical memory above what the boot page tables map, up to `end`, at its own address, by
/// large pages. For the boot CPU.
pub fn extend_linear_map(end: Pfn) {
    // Memory of the upper zone may not be mapped so far: that is what zone levels are for.
    let reachable = TABLE.at_most_level(memory::DMA32_LEVEL);
    let make = |table: &Table, index: usize| {
        if table.next(index).is_none() {
            let below =
                memory::depot().alloc(Order::BASE, reachable).expect("memory for the linear map");
            table.0[index].store(tables::to_table(below), Ordering::Release);
        }
        Table::at(table.next(index).expect("made just now"))
    };
    for address in (tables::BOOT_MAPPED..memory::address(end)).step_by(HUGE_BYTES) {
        assert!(address < 512 * REGION_BYTES, "more than 512 GiB of memory");
        let directory = make(Table::at(root().next(0).expect("made at boot")), address >> 30);
        let block = Pfn::new((address / PAGE_BYTES) as u32);
        directory.0[address >> 21 & 511]
            .store(tables::to_leaf(block, Leaf::Huge, LINEAR_MAP), Ordering::Release);
    }
    tables::publish();
}

/// The root table's frame.
pub fn root_pfn() -> Pfn {
    Pfn::new(((&raw const *root()).addr() / PAGE_BYTES) as u32)
}

/// Writes an entry of a table that the caller owns, or of a part of the root that no other code
/// uses.
pub fn set_entry(table: Pfn, index: usize, entry: u64) {
    Table::at(table).0[index].store(entry, Ordering::Release);
}

fn region_table() -> &'static Table {
    Table::at(Pfn::new(REGION_TABLE.load(Ordering::Acquire) as u32))
}

/// The region of an address in the window.
pub fn region_of(address: usize) -> usize {
    let region = address.wrapping_sub(WINDOW) / REGION_BYTES;
    assert!(region < REGIONS, "{address:#x} is not in the window");
    region
}

fn fill_spares() -> Result<(), MapError> {
    for spare in lock(&SPARES).iter_mut().filter(|spare| spare.is_none()) {
        *spare = Some(new_table()?);
    }
    Ok(())
}

/// Maps a block at an address.
///
/// # Errors
/// [`MapError`]; nothing but perhaps an empty table has changed then.
pub fn map(address: usize, pfn: Pfn, leaf: Leaf, access: Access) -> Result<(), MapError> {
    assert!(address.is_multiple_of(leaf.bytes()) && pfn.is_aligned(leaf.order()));
    if leaf == Leaf::Huge {
        fill_spares()?;
    }
    let region = region_of(address);
    let _alone = lock(&LOCKS[region]);
    let directory = region_table().next_or_new(region)?;
    let at = address >> 21 & 511;
    let entry = match leaf {
        Leaf::Huge => &directory.0[at],
        Leaf::Page => &directory.next_or_new(at)?.0[address >> 12 & 511],
    };
    if entry.load(Ordering::Relaxed) != 0 {
        return Err(MapError::Occupied);
    }
    // Release: what was written to the block comes first.
    entry.store(tables::to_leaf(pfn, leaf, access), Ordering::Release);
    tables::publish();
    Ok(())
}

/// Whether a table is where a large page would be mapped. It may be empty: see `take_out`.
pub fn has_table(address: usize) -> bool {
    let region = region_of(address);
    let _alone = lock(&LOCKS[region]);
    region_table().next(region).map(Table::at).is_some_and(|directory| {
        let entry = directory.0[address >> 21 & 511].load(Ordering::Relaxed);
        tables::is_present(entry) && !tables::is_large(entry)
    })
}

/// Calls `with` with the entry of a small page, if there is a table for it.
fn with_entry<R>(address: usize, with: impl FnOnce(&AtomicU64) -> R) -> Option<R> {
    let region = region_of(address);
    let _alone = lock(&LOCKS[region]);
    let directory = Table::at(region_table().next(region)?);
    let at = address >> 21 & 511;
    if tables::is_large(directory.0[at].load(Ordering::Relaxed)) {
        return None;
    }
    let table = Table::at(directory.next(at)?);
    Some(with(&table.0[address >> 12 & 511]))
}

/// The entry that maps an address, for a processor whose page faults do not say whether there is
/// one; `None` outside the window, too.
#[cfg(target_arch = "riscv64")]
pub fn leaf(address: usize) -> Option<u64> {
    if address < WINDOW {
        return None;
    }
    let region = region_of(address);
    let _alone = lock(&LOCKS[region]);
    let directory = Table::at(region_table().next(region)?);
    let mut entry = directory.0[address >> 21 & 511].load(Ordering::Relaxed);
    if tables::is_present(entry) && !tables::is_large(entry) {
        let table = Table::at(tables::frame_of(entry));
        entry = table.0[address >> 12 & 511].load(Ordering::Relaxed);
    }
    tables::is_present(entry).then_some(entry)
}

/// The frame that a small page is mapped to.
pub fn translate(address: usize) -> Option<Pfn> {
    let entry = with_entry(address, |entry| entry.load(Ordering::Relaxed))?;
    tables::is_present(entry).then(|| tables::frame_of(entry))
}

/// Allows or forbids writes to a small page, if it is mapped to `frame`. Returns whether it is. If
/// they are forbidden, other CPUs may write until a [`flush`] of the page.
pub fn set_writable(address: usize, frame: Pfn, may_write: bool) -> bool {
    update(address, frame, |entry| tables::with_writes(entry, may_write))
}

/// Maps a small page to another frame with the same contents, if it is mapped to `from`. Returns
/// whether it was. Other CPUs may read `from` until a [`flush`] of the page.
///
/// No CPU may write to the page, nor have a translation by which it could: only then may an entry
/// in use get another frame without being absent in between (Arm ARM, "Using break-before-make when
/// updating translation table entries").
pub fn remap(address: usize, from: Pfn, to: Pfn) -> bool {
    update(address, from, |entry| {
        debug_assert!(tables::with_writes(entry, false) == entry, "the page is writable");
        tables::with_frame(entry, to)
    })
}

/// Changes the entry of a small page, if it is mapped to `frame`; returns whether it was.
fn update(address: usize, frame: Pfn, new: impl Fn(u64) -> u64) -> bool {
    let change = |cell: &AtomicU64| {
        let of_frame = |entry| tables::is_present(entry) && tables::frame_of(entry) == frame;
        let new = |entry| of_frame(entry).then(|| new(entry));
        // Release: what was copied comes first. By compare-and-swap: the processor may set bits.
        cell.fetch_update(Ordering::Release, Ordering::Relaxed, new).is_ok()
    };
    with_entry(address, change) == Some(true)
}

/// Replaces a large page by a table of small ones to the same frames.
fn split(cell: &AtomicU64) -> Result<(), MapError> {
    let spare = lock(&SPARES).iter_mut().find_map(Option::take).ok_or(MapError::NoTable)?;
    let whole = cell.load(Ordering::Relaxed);
    for (i, entry) in Table::at(spare).0.iter().enumerate() {
        entry.store(tables::to_part(whole, i), Ordering::Relaxed);
    }
    // Release: the table is filled before it is found. Old and new translations agree until one of
    // the small pages is unmapped; flushing that drops the large one (Intel SDM, "Large Page
    // Size Considerations"; `tables::check` on AArch64).
    cell.store(tables::to_table(spare), Ordering::Release);
    tables::publish();
    Ok(())
}

/// Unmaps what is mapped in `span`, passes each block to `unmapped`, and takes out tables that are
/// empty then. The blocks may be reused only after a [`flush`] of the span. A large page that lies
/// only partly in the span is split.
///
/// # Errors
/// When there is no spare table for a split; part of the span is unmapped then.
pub fn unmap(span: Span, mut unmapped: impl FnMut(Pfn, Leaf)) -> Result<(), MapError> {
    let end = span.start + span.bytes;
    let mut at = span.start;
    while at < end {
        let region = region_of(at);
        let part_end = end.min(WINDOW + (region + 1) * REGION_BYTES);
        unmap_in_region(region, at, part_end, &mut unmapped)?;
        at = part_end;
    }
    Ok(())
}

fn unmap_in_region(
    region: usize,
    start: usize,
    end: usize,
    unmapped: &mut impl FnMut(Pfn, Leaf),
) -> Result<(), MapError> {
    let _alone = lock(&LOCKS[region]);
    let Some(directory) = region_table().next(region).map(Table::at) else { return Ok(()) };
    let mut at = start;
    while at < end {
        let part_end = end.min((at / HUGE_BYTES + 1) * HUGE_BYTES);
        unmap_in_directory(&directory.0[at >> 21 & 511], at, part_end, unmapped)?;
        at = part_end;
    }
    if directory.is_empty() {
        take_out(&region_table().0[region], start);
    }
    Ok(())
}

/// Unmaps what one entry of a directory maps, or the part of it from `start` to `end`.
fn unmap_in_directory(
    cell: &AtomicU64,
    start: usize,
    end: usize,
    unmapped: &mut impl FnMut(Pfn, Leaf),
) -> Result<(), MapError> {
    let entry = cell.load(Ordering::Relaxed);
    if tables::is_large(entry) {
        if end - start == HUGE_BYTES {
            cell.store(0, Ordering::Relaxed);
            unmapped(tables::frame_of(entry), Leaf::Huge);
            return Ok(());
        }
        split(cell)?;
    }
    let entry = cell.load(Ordering::Relaxed);
    if !tables::is_present(entry) {
        return Ok(());
    }
    let table = Table::at(tables::frame_of(entry));
    for page in (start..end).step_by(PAGE_BYTES) {
        let entry = table.0[page >> 12 & 511].swap(0, Ordering::Relaxed);
        if tables::is_present(entry) {
            unmapped(tables::frame_of(entry), Leaf::Page);
        }
    }
    if table.is_empty() {
        take_out(cell, start);
    }
    Ok(())
}

/// Takes an empty table out of the entry that leads to it from `address`, a page's; it is freed
/// after the next flush. While an isolated CPU rests, which no flush reaches, the table stays for
/// later pages there: else such tables could grow in number without end.
fn take_out(cell: &AtomicU64, address: usize) {
    if !tlb::BROADCASTS && cpu::all().any(Cpu::rests_isolated) {
        return;
    }
    let table = tables::frame_of(cell.swap(0, Ordering::Relaxed));
    let mut pending = lock(&PENDING);
    let [next, through, ..] = &Table::at(table).0;
    next.store(*pending, Ordering::Relaxed);
    through.store(address as u64, Ordering::Relaxed);
    *pending = memory::address(table) as u64;
}

/// The table that an entry of the list of pending ones names; its next one; the address that was
/// translated through it.
fn pending_table(pending: u64) -> Option<(Pfn, u64, usize)> {
    let table = (pending != 0).then(|| Pfn::new((pending as usize / PAGE_BYTES) as u32))?;
    let [next, through, ..] = &Table::at(table).0;
    Some((table, next.load(Ordering::Relaxed), through.load(Ordering::Relaxed) as usize))
}

/// Flushes `spans` everywhere, then frees the tables that were taken out before, by any caller.
///
/// A CPU that is isolated and rests is not interrupted for them. It may walk through them as long
/// as it rests, so they wait for a flush that finds no such CPU.
///
/// Entries that lead to a table may be cached apart from those of its pages. They are dropped with
/// these where a flush of any page drops all such entries (x86-64), or a flush is always of
/// everything (RISC-V). On AArch64 a page's flush drops the entries that translate that page,
/// alone. So a table that another caller took out, whose own flush is yet to come, or which was
/// empty so that no flush follows, needs one of an address that was translated through it: one
/// entry leads to the table for all of them. It reaches all CPUs and is complete when `flush` is.
/// The entry itself was cleared before the table got on the list, whose lock orders that before
/// this.
pub fn flush_and_free_tables(spans: &[Span]) {
    if spans.is_empty() {
        return;
    }
    let mut pending = core::mem::take(&mut *lock(&PENDING));
    let mut at = pending;
    while tlb::BROADCASTS
        && let Some((_, next, through)) = pending_table(at)
    {
        tlb::flush_page(through);
        at = next;
    }
    let is_reached = Cell::new(true);
    flush(spans, |resting| {
        let is_isolated = resting.is_isolated();
        is_reached.set(is_reached.get() && !is_isolated);
        pending != 0 && !is_isolated
    });
    if !is_reached.get() {
        put_back(core::mem::take(&mut pending));
    }
    while let Some((table, next, _)) = pending_table(pending) {
        pending = next;
        count_tables(-1);
        memory::depot().free(table, Order::BASE).expect("a table was allocated");
    }
    // If there is no memory for them now, the next mapping of a large page tries again.
    let _ = fill_spares();
}

/// Adds a list of pending tables to those that were taken out meanwhile.
fn put_back(list: u64) {
    let mut pending = lock(&PENDING);
    let mut at = list;
    while let Some((table, next, _)) = pending_table(at) {
        if next == 0 {
            Table::at(table).0[0].store(core::mem::replace(&mut *pending, list), Ordering::Relaxed);
        }
        at = next;
    }
}

/// Unmaps `span`, flushes it, and frees tables and blocks. Returns the number of leaves.
pub fn release(span: Span) -> usize {
    /// A page table's worth at a time.
    const BATCH: usize = 512;
    let mut leaves = 0;
    for start in (span.start..span.start + span.bytes).step_by(HUGE_BYTES) {
        let part = Span { start, bytes: HUGE_BYTES.min(span.start + span.bytes - start) };
        let mut batch = [(Pfn::new(0), Leaf::Page); BATCH];
        let mut count = 0;
        unmap(part, |pfn, leaf| {
            batch[count] = (pfn, leaf);
            count += 1;
        })
        .expect("spare tables: `release` is for whole mappings");
        flush_and_free_tables(if count > 0 { core::slice::from_ref(&part) } else { &[] });
        for &(pfn, leaf) in &batch[..count] {
            memory::depot().free(pfn, leaf.order()).expect("what was mapped was allocated");
        }
        leaves += count;
    }
    leaves
}
