//! Allocating and freeing. A block is named by its address.

use std::ffi::{c_int, c_uint, c_void};
use std::ptr;
use std::time::Duration;

use pagedepot_linux::raw::{FreeError, Pfn, RawDepot};
use pagedepot_linux::{AllocError, Flags, Order};

use crate::error::{Errno, is_missing, set_errno};
use crate::handle::{depot, pagedepot_t};
use crate::poison::{Access, FreeMark, mark};

/// The page is zeroed.
pub const PAGEDEPOT_ZEROED: c_uint = 1 << 0;
/// The request may use the last pages, and waits for nothing: for signal handlers.
pub const PAGEDEPOT_ATOMIC: c_uint = 1 << 1;
/// The request fails rather than wait, or call callbacks.
pub const PAGEDEPOT_NO_RECLAIM: c_uint = 1 << 2;
/// The page stays where it is for long: it is kept away from those that come and go.
pub const PAGEDEPOT_UNMOVABLE: c_uint = 1 << 3;

const FLAGS_ALL: c_uint = (PAGEDEPOT_UNMOVABLE << 1) - 1;

/// Blocks between two looks at a list.
pub(crate) const CHUNK: usize = 64;

/// A request of a C program.
#[derive(Clone, Copy)]
struct Request {
    flags: Flags,
    zeroed: bool,
}

/// Flags for a request, but for zeroes.
pub(crate) fn flags_of(flags: c_uint) -> Flags {
    let has = |flag| flags & flag != 0;
    let mut asked = if has(PAGEDEPOT_UNMOVABLE) { Flags::UNMOVABLE } else { Flags::MOVABLE };
    if has(PAGEDEPOT_ATOMIC) {
        asked = asked.atomic();
    }
    if has(PAGEDEPOT_NO_RECLAIM) {
        asked = asked.no_reclaim();
    }
    asked
}

impl Request {
    const PLAIN: Request = Request { flags: Flags::MOVABLE, zeroed: false };

    fn new(flags: c_uint) -> Option<Self> {
        let mut asked = flags_of(flags);
        // With the feature `poison` a page can be written only after it was unmarked.
        let zeroed = flags & PAGEDEPOT_ZEROED != 0;
        if zeroed && cfg!(not(feature = "poison")) {
            asked = asked.zeroed();
        }
        (flags & !FLAGS_ALL == 0).then_some(Request { flags: asked, zeroed })
    }

    /// The address of a block that was allocated, for its new owner.
    #[inline(always)]
    fn hand_out(self, raw: RawDepot<'_>, first: Pfn, bytes: usize) -> *mut c_void {
        let start: *mut c_void = raw.address(first).as_ptr().cast();
        mark(start, bytes, Access::Undefined);
        if self.zeroed && cfg!(feature = "poison") {
            // SAFETY: the block is the caller's alone.
            unsafe { start.cast::<u8>().write_bytes(0, bytes) };
        }
        start
    }
}

fn bytes_of(raw: RawDepot<'_>, order: Order) -> usize {
    raw.page_size().bytes() << order.get()
}

/// The block at an address, which is the block's first byte.
#[inline(always)]
fn block_at(raw: RawDepot<'_>, address: *const c_void) -> Result<Pfn, FreeError> {
    let pfn = raw.pfn_of(address.cast()).ok_or(FreeError::OutOfRange)?;
    let page_bytes = raw.page_size().bytes();
    if address.addr() & (page_bytes - 1) == 0 { Ok(pfn) } else { Err(FreeError::Misaligned) }
}

/// The first page of a block of this order, if one can begin at this address.
pub(crate) fn block_of(raw: RawDepot<'_>, address: *const c_void, order: Order) -> Option<Pfn> {
    let first = block_at(raw, address).ok()?;
    let left = raw.bytes().checked_sub(raw.offset(first))?;
    (first.is_aligned(order) && bytes_of(raw, order) <= left).then_some(first)
}

#[inline(always)]
fn alloc(raw: RawDepot<'_>, order: Order, request: Request) -> *mut c_void {
    match raw.alloc(order, request.flags) {
        Ok(first) => request.hand_out(raw, first, bytes_of(raw, order)),
        Err(error) => fail(error),
    }
}

#[cold]
fn fail(error: AllocError) -> *mut c_void {
    set_errno(error.errno());
    ptr::null_mut()
}

/// Allocates 2^order pages (order 0 to 10), aligned to their size. Returns NULL with errno: ENOMEM
/// (no pages), EINVAL (no such order), EPERM (the depot is a parent process's).
///
/// # Safety
/// `handle` is NULL or a live depot.
#[allow(unused_attributes, reason = "ignored by rustc, which hands it to LLVM as a hint")]
#[inline] // By link-time optimisation: as cheap as from Rust, instead of 0.6 ns more a call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagedepot_alloc(handle: *const pagedepot_t, order: c_uint) -> *mut c_void {
    if order == 0
        // SAFETY: by the caller's promise.
        && let Some(handle) = unsafe { handle.as_ref() }
    {
        // Compiled for itself: the class of any other order is looked up.
        let raw = handle.depot.raw();
        if let Some(first) = raw.alloc_fast(Order::BASE, Request::PLAIN.flags) {
            return Request::PLAIN.hand_out(raw, first, bytes_of(raw, Order::BASE));
        }
    }
    alloc_slowly(handle, order)
}

/// All that is left of [`pagedepot_alloc`], behind one call: the fast path needs no stack.
#[cold]
#[inline(never)]
fn alloc_slowly(handle: *const pagedepot_t, order: c_uint) -> *mut c_void {
    let Some(depot) = depot(handle) else { return ptr::null_mut() };
    match Order::new(order) {
        Some(order) => alloc(depot.raw(), order, Request::PLAIN),
        None => fail(AllocError::BadSize),
    }
}

/// Allocates a block as pagedepot_alloc() does, with PAGEDEPOT_ZEROED and others, or-ed.
///
/// # Safety
/// `handle` is NULL or a live depot.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagedepot_alloc_flags(
    handle: *const pagedepot_t,
    order: c_uint,
    flags: c_uint,
) -> *mut c_void {
    let Some(depot) = depot(handle) else { return ptr::null_mut() };
    match (Order::new(order), Request::new(flags)) {
        (Some(order), Some(request)) => alloc(depot.raw(), order, request),
        _ => fail(AllocError::BadSize),
    }
}

/// Allocates a block as pagedepot_alloc() does, and waits up to timeout_ms milliseconds until
/// others have freed one. While requests wait no CPU caches, so that every free wakes one. Not for
/// signal handlers. While requests wait these must not free either, and request with
/// PAGEDEPOT_ATOMIC or PAGEDEPOT_NO_RECLAIM alone. Returns NULL with errno: ENOMEM when there was
/// none in time, and at once for a block that no zone can ever have.
///
/// # Safety
/// `handle` is NULL or a live depot.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagedepot_alloc_wait(
    handle: *const pagedepot_t,
    order: c_uint,
    timeout_ms: c_uint,
) -> *mut c_void {
    let Some(depot) = depot(handle) else { return ptr::null_mut() };
    let Some(order) = Order::new(order) else { return fail(AllocError::BadSize) };
    match depot.page_timeout(order, Duration::from_millis(timeout_ms.into())) {
        Ok(page) => {
            let (first, order) = page.into_raw();
            Request::PLAIN.hand_out(depot.raw(), first, bytes_of(depot.raw(), order))
        }
        Err(error) => fail(error),
    }
}

/// A block and its order.
#[allow(non_camel_case_types, reason = "its name in C")]
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct pagedepot_block_t {
    /// Address of the block's first byte.
    pub block: *mut c_void,
    /// 2^order pages.
    pub order: c_uint,
}

#[inline(always)]
fn free(raw: RawDepot<'_>, address: *mut c_void, order: Order) -> Result<(), FreeError> {
    let first = block_at(raw, address)?;
    // SAFETY: by the promise of the function that calls.
    freeing(raw, first, order.frames(), order.frames(), || unsafe { raw.free(first, order) })
}

/// Frees `pages` pages by `free`, if they can be aligned so; marks them before, and as they were if
/// `free` refuses.
#[inline(always)]
fn freeing(
    raw: RawDepot<'_>,
    first: Pfn,
    pages: u32,
    align_pages: u32,
    free: impl FnOnce() -> Result<(), FreeError>,
) -> Result<(), FreeError> {
    let bytes = pages as usize * raw.page_size().bytes();
    let is_inside = raw.bytes().checked_sub(raw.offset(first)).is_some_and(|left| bytes <= left);
    let can_be = is_inside && first.get().is_multiple_of(align_pages);
    let marked = FreeMark::of(can_be.then(|| (raw.address(first).as_ptr().cast(), bytes)));
    let freed = free();
    if freed.is_err() {
        marked.refused();
    }
    freed
}

#[inline(always)]
fn freed(result: Result<(), FreeError>) -> c_int {
    match result {
        Ok(()) => 0,
        Err(error) => {
            set_errno(error.errno());
            -1
        }
    }
}

/// Frees a block that pagedepot_alloc() gave for the same order. Any thread may. NULL: nothing.
/// Returns 0, or -1 with errno: EINVAL when it can be no block of this order of this depot.
///
/// # Safety
/// `handle` is NULL or a live depot. The block is the caller's, is freed once, and is not used any
/// more.
#[allow(unused_attributes, reason = "ignored by rustc, which hands it to LLVM as a hint")]
#[inline] // By link-time optimisation: as cheap as from Rust, instead of 0.6 ns more a call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagedepot_free(
    handle: *const pagedepot_t,
    block: *mut c_void,
    order: c_uint,
) -> c_int {
    // Pages are marked before they are freed, and a refusal is known behind the slow path alone.
    if cfg!(not(feature = "poison"))
        && order == 0
        // SAFETY: by the caller's promise.
        && let Some(handle) = unsafe { handle.as_ref() }
        && let raw = handle.depot.raw()
        && let Ok(first) = block_at(raw, block)
        // SAFETY: by the caller's promise.
        && unsafe { raw.free_fast(first, Order::BASE) }
    {
        return 0;
    }
    free_slowly(handle, block, order)
}

/// Frees a block for [`pagedepot_free`] when the fast path has not, as [`alloc_slowly`] allocates.
#[cold]
#[inline(never)]
fn free_slowly(handle: *const pagedepot_t, block: *mut c_void, order: c_uint) -> c_int {
    if block.is_null() {
        return 0;
    }
    let Some(depot) = depot(handle) else { return -1 };
    let order = Order::new(order).ok_or(FreeError::Misaligned);
    freed(order.and_then(|order| free(depot.raw(), block, order)))
}

/// Allocates up to count blocks into blocks[]. Returns how many, from the front; fewer than count
/// with errno.
///
/// # Safety
/// `handle` is NULL or a live depot; `blocks` has room for `count` pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagedepot_alloc_many(
    handle: *const pagedepot_t,
    order: c_uint,
    flags: c_uint,
    blocks: *mut *mut c_void,
    count: usize,
) -> usize {
    let Some(depot) = depot(handle) else { return 0 };
    let raw = depot.raw();
    let (Some(order), Some(request)) = (Order::new(order), Request::new(flags)) else {
        fail(AllocError::BadSize);
        return 0;
    };
    if is_missing(blocks, count) {
        return 0;
    }
    let mut done = 0;
    while done < count {
        let mut chunk = [Pfn::new(0); CHUNK];
        let wanted = (count - done).min(CHUNK);
        let got = match raw.alloc_many(order, request.flags, &mut chunk[..wanted]) {
            Ok(got) => got,
            Err(error) => {
                fail(error);
                break;
            }
        };
        for &first in &chunk[..got] {
            let start = request.hand_out(raw, first, bytes_of(raw, order));
            // SAFETY: done < count.
            unsafe { blocks.add(done).write(start) };
            done += 1;
        }
    }
    done
}

/// Frees count blocks of one order. NULL: nothing. Bad ones are skipped, all others are freed.
/// Returns how many were bad; with errno if there were any.
///
/// # Safety
/// Each block must be one that pagedepot_free() takes; `blocks` has `count` pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagedepot_free_many(
    handle: *const pagedepot_t,
    order: c_uint,
    blocks: *const *mut c_void,
    count: usize,
) -> usize {
    let Some(depot) = depot(handle) else { return count };
    let raw = depot.raw();
    let Some(order) = Order::new(order) else {
        set_errno(libc::EINVAL);
        return count;
    };
    if is_missing(blocks, count) {
        return count;
    }
    let mut bad = 0;
    for from in (0..count).step_by(CHUNK) {
        let (mut chunk, mut length) = ([Pfn::new(0); CHUNK], 0);
        for at in from..count.min(from + CHUNK) {
            // SAFETY: at < count.
            let block = unsafe { *blocks.add(at) };
            if block.is_null() {
                continue;
            }
            let found = block_at(raw, block);
            match found {
                // One by one: which of a batch were refused is not known.
                Ok(_) if cfg!(feature = "poison") => {
                    if let Err(error) = free(raw, block, order) {
                        set_errno(error.errno());
                        bad += 1;
                    }
                }
                Ok(first) => {
                    chunk[length] = first;
                    length += 1;
                }
                Err(error) => {
                    set_errno(error.errno());
                    bad += 1;
                }
            }
        }
        // SAFETY: by the caller's promise.
        if let Err(error) = unsafe { raw.free_many(order, &chunk[..length]) } {
            set_errno(error.error.errno());
            bad += error.failed;
        }
    }
    bad
}

/// Frees count blocks of any orders. NULL: nothing. Bad ones are skipped, all others are freed.
/// Returns how many were bad; with errno if there were any.
///
/// # Safety
/// Each block must be one that pagedepot_free() takes; `blocks` has `count` of them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagedepot_free_mixed(
    handle: *const pagedepot_t,
    blocks: *const pagedepot_block_t,
    count: usize,
) -> usize {
    let Some(depot) = depot(handle) else { return count };
    let raw = depot.raw();
    if is_missing(blocks, count) {
        return count;
    }
    let mut bad = 0;
    for from in (0..count).step_by(CHUNK) {
        let (mut chunk, mut length) = ([(Pfn::new(0), Order::BASE); CHUNK], 0);
        for at in from..count.min(from + CHUNK) {
            // SAFETY: at < count.
            let pagedepot_block_t { block, order } = unsafe { *blocks.add(at) };
            if block.is_null() {
                continue;
            }
            let order = Order::new(order).ok_or(FreeError::Misaligned);
            let found = order.and_then(|order| Ok((block_at(raw, block)?, order)));
            let left = found.and_then(|(first, order)| {
                if cfg!(feature = "poison") {
                    return free(raw, block, order);
                }
                chunk[length] = (first, order);
                length += 1;
                Ok(())
            });
            if let Err(error) = left {
                set_errno(error.errno());
                bad += 1;
            }
        }
        // SAFETY: by the caller's promise.
        if let Err(error) = unsafe { raw.free_mixed(&chunk[..length]) } {
            set_errno(error.error.errno());
            bad += error.failed;
        }
    }
    bad
}

/// Allocates any number of contiguous pages up to 2^18, aligned to align_pages (a power of two; 0
/// or 1: to a page), but in memory to no more than 1 GiB. Free them by
/// pagedepot_free_contiguous(). Returns NULL with errno.
///
/// # Safety
/// `handle` is NULL or a live depot.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagedepot_alloc_contiguous(
    handle: *const pagedepot_t,
    pages: u32,
    align_pages: u32,
    flags: c_uint,
) -> *mut c_void {
    let Some(depot) = depot(handle) else { return ptr::null_mut() };
    let raw = depot.raw();
    let Some(request) = Request::new(flags) else { return fail(AllocError::BadSize) };
    match raw.alloc_contiguous(pages, align_pages.max(1), request.flags) {
        Ok(first) => request.hand_out(raw, first, pages as usize * raw.page_size().bytes()),
        Err(error) => fail(error),
    }
}

/// Frees contiguous pages, all or some of those that one call gave. NULL: nothing. Returns 0, or -1
/// with errno.
///
/// # Safety
/// Each page must be one that pagedepot_free() takes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagedepot_free_contiguous(
    handle: *const pagedepot_t,
    start: *mut c_void,
    pages: u32,
) -> c_int {
    if start.is_null() {
        return 0;
    }
    let Some(depot) = depot(handle) else { return -1 };
    let raw = depot.raw();
    freed(block_at(raw, start).and_then(|first| {
        // SAFETY: by the caller's promise.
        freeing(raw, first, pages, 1, || unsafe { raw.free_contiguous(first, pages) })
    }))
}

/// Makes blocks of order to of one block of order from: each is then freed by itself. Returns 0, or
/// -1 with errno.
///
/// # Safety
/// `handle` is NULL or a live depot; the block is the caller's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagedepot_split(
    handle: *const pagedepot_t,
    block: *mut c_void,
    from: c_uint,
    to: c_uint,
) -> c_int {
    let Some(depot) = depot(handle) else { return -1 };
    let raw = depot.raw();
    let (Some(from), Some(to)) = (Order::new(from), Order::new(to)) else {
        set_errno(libc::EINVAL);
        return -1;
    };
    // SAFETY: by the caller's promise.
    freed(block_at(raw, block).and_then(|first| unsafe { raw.split(first, from, to) }))
}

/// The order of the smallest block that holds so many bytes, in pages of the size that depots have
/// on this system: 4 KiB, or the system's page size where that is larger. Returns -1 with errno
/// EINVAL: none does.
#[unsafe(no_mangle)]
pub extern "C" fn pagedepot_order_for(bytes: usize) -> c_int {
    match Order::for_bytes(bytes, pagedepot_linux::builder::default_page_size()) {
        Some(order) => order.get() as c_int,
        None => {
            set_errno(libc::EINVAL);
            -1
        }
    }
}
