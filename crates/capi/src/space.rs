//! `vmalloc`: contiguous addresses for pages that lie anywhere in a depot.

use std::ffi::{c_int, c_uint, c_void};
use std::ptr::{self, NonNull};

use pagedepot_linux::Vmalloc;
use pagedepot_linux::raw::Pfn;
use pagedepot_linux::vmalloc::{Options, PurgeDepth, VfreeError, VmapError};

use crate::blocks::{
    PAGEDEPOT_ATOMIC, PAGEDEPOT_NO_RECLAIM, PAGEDEPOT_UNMOVABLE, PAGEDEPOT_ZEROED, flags_of,
};
use crate::error::{Errno as _, is_missing, set_errno, tell};
use crate::handle::{depot_or_text, pagedepot_t};

/// A range of addresses over a depot with PAGEDEPOT_MEMFD.
#[allow(non_camel_case_types, reason = "its name in C")]
pub struct pagedepot_space_t {
    space: Vmalloc,
}

/// Reserves so many bytes of addresses over a depot with PAGEDEPOT_MEMFD; 0: eight times the
/// depot's, at least a GiB. An area that is freed stays mapped for the next request of its size, or
/// is unmapped later: see pagedepot_purge(). Returns NULL with errno and a text in
/// pagedepot_last_error().
///
/// # Safety
/// `handle` is NULL or a live depot, which is deleted after the space.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagedepot_space_new(
    handle: *const pagedepot_t,
    bytes: usize,
) -> *mut pagedepot_space_t {
    let Some(depot) = depot_or_text(handle) else { return ptr::null_mut() };
    let builder = Vmalloc::builder(depot);
    let builder = if bytes > 0 { builder.bytes(bytes) } else { builder };
    match builder.build() {
        Ok(space) => Box::into_raw(Box::new(pagedepot_space_t { space })),
        Err(error) => {
            tell(&error);
            ptr::null_mut()
        }
    }
}

/// Unmaps a space; the pages of areas that were never freed go back to the depot. NULL: nothing.
///
/// # Safety
/// `space` is of pagedepot_space_new() and was not deleted before. No thread is in a call of it,
/// uses an area of it, or will do either.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagedepot_space_delete(space: *mut pagedepot_space_t) {
    if !space.is_null() {
        // SAFETY: by the caller's promise the only pointer to it.
        drop(unsafe { Box::from_raw(space) });
    }
}

/// Allocates bytes at contiguous addresses, rounded up to pages; a guard page follows. flags:
/// PAGEDEPOT_ZEROED and others, or-ed. Returns NULL with errno: ENOMEM (no pages, addresses or
/// mappings), EAGAIN (with PAGEDEPOT_ATOMIC or PAGEDEPOT_NO_RECLAIM: it would have to wait),
/// EINVAL, EPERM (the depot is a parent process's).
///
/// # Safety
/// `space` is NULL or a live space.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagedepot_vmalloc(
    space: *const pagedepot_space_t,
    bytes: usize,
    flags: c_uint,
) -> *mut c_void {
    let Some(space) = live(space) else { return ptr::null_mut() };
    let Some(options) = options(flags) else { return failed(VmapError::BadSize) };
    let Some(pages) = pages(space, bytes) else { return failed(VmapError::BadSize) };
    let page_bytes = space.depot().page_size().bytes();
    match space.vmalloc(pages, options) {
        Ok(start) => {
            if cfg!(feature = "poison") && flags & PAGEDEPOT_ZEROED != 0 {
                // SAFETY: the area is the caller's alone. Not by `Options::zeroed`: that writes to
                // pages at the depot's own addresses, which are marked.
                unsafe { start.as_ptr().write_bytes(0, pages as usize * page_bytes) };
            }
            start.as_ptr().cast()
        }
        Err(error) => failed(error),
    }
}

/// Frees what pagedepot_vmalloc() or pagedepot_vrealloc() returned. Any thread may. NULL: nothing.
/// Returns 0, or -1 with errno: EINVAL when no such area begins there.
///
/// # Safety
/// `space` is NULL or a live space; no thread uses the area any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagedepot_vfree(
    space: *const pagedepot_space_t,
    area: *mut c_void,
) -> c_int {
    // SAFETY: the caller's promise.
    freed(space, area, |space, start| unsafe { space.vfree(start) })
}

/// Changes the size of an area of pagedepot_vmalloc(). Contents up to the smaller size are kept,
/// and pages are mapped elsewhere, not copied, where it has to move. Sizes are rounded up to pages:
/// with PAGEDEPOT_ZEROED pages behind the old ones are zero, and the rest of the last old page is
/// as it was. Returns the new address, or NULL with errno, as pagedepot_vmalloc(); then the area is
/// as it was.
///
/// # Safety
/// `space` is NULL or a live space; no thread uses the area meanwhile, nor the old address
/// afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagedepot_vrealloc(
    space: *const pagedepot_space_t,
    area: *mut c_void,
    bytes: usize,
    flags: c_uint,
) -> *mut c_void {
    let Some(space) = live(space) else { return ptr::null_mut() };
    let Some(start) = NonNull::new(area.cast::<u8>()) else {
        return failed(VmapError::NotAllocated);
    };
    let Some(options) = options(flags) else { return failed(VmapError::BadSize) };
    let Some(pages) = pages(space, bytes) else { return failed(VmapError::BadSize) };
    let before = space.find(start.as_ptr()).map_or(0, |area| area.mapped_pages);
    // SAFETY: the caller's promise.
    match unsafe { space.vrealloc(start, pages, options) } {
        Ok(start) => {
            if cfg!(feature = "poison") && flags & PAGEDEPOT_ZEROED != 0 {
                let page_bytes = space.depot().page_size().bytes();
                let [old, new] =
                    [before.min(pages), pages].map(|count| count as usize * page_bytes);
                // SAFETY: the area is the caller's alone; see `pagedepot_vmalloc`.
                unsafe { start.as_ptr().add(old).write_bytes(0, new - old) };
            }
            start.as_ptr().cast()
        }
        Err(error) => failed(error),
    }
}

/// Maps count pages of the depot, named by the addresses of their first bytes, once more: one
/// behind the other. They may be in any order, and repeat. Returns NULL with errno.
///
/// # Safety
/// `space` is NULL or a live space; `pages` has `count` pointers. The caller holds the pages until
/// pagedepot_vunmap().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagedepot_vmap(
    space: *const pagedepot_space_t,
    pages: *const *const c_void,
    count: usize,
) -> *mut c_void {
    let Some(space) = live(space) else { return ptr::null_mut() };
    if is_missing(pages, count) {
        return ptr::null_mut();
    }
    let raw = space.depot().raw();
    let page_bytes = raw.page_size().bytes();
    // SAFETY: by the caller's promise.
    let address = |at| unsafe { *pages.add(at) };
    let page = |address: *const c_void| {
        raw.pfn_of(address.cast()).filter(|_| address.addr() & (page_bytes - 1) == 0)
    };
    let frames: Option<Vec<Pfn>> = (0..count).map(|at| page(address(at))).collect();
    match frames.ok_or(VmapError::BadFrame).and_then(|all| space.vmap(&all, Options::DEFAULT)) {
        Ok(start) => start.as_ptr().cast(),
        Err(error) => failed(error),
    }
}

/// Takes back the addresses that pagedepot_vmap() gave. They are unmapped later: until a
/// pagedepot_purge() a stray access still reaches the pages. Returns 0, or -1 with errno.
///
/// # Safety
/// The memory must be of this space, and is not used any more, as for pagedepot_vfree().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagedepot_vunmap(
    space: *const pagedepot_space_t,
    area: *mut c_void,
) -> c_int {
    // SAFETY: the caller's promise.
    freed(space, area, |space, start| unsafe { space.vunmap(start) })
}

/// Unmaps what was freed, that kept for the next requests included. Returns the number of pages
/// that went back to the depot, or -1 with errno.
///
/// # Safety
/// `space` is NULL or a live space.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagedepot_purge(space: *const pagedepot_space_t) -> i64 {
    let Some(space) = live(space) else { return -1 };
    space.purge(PurgeDepth::Everything).frames as i64
}

/// The space of a pointer; `None`, with errno: NULL.
fn live<'s>(space: *const pagedepot_space_t) -> Option<&'s Vmalloc> {
    // SAFETY: every function that is called with a space asks for a live one, or NULL.
    match unsafe { space.as_ref() } {
        Some(space) => Some(&space.space),
        None => {
            set_errno(libc::EINVAL);
            None
        }
    }
}

fn options(flags: c_uint) -> Option<Options> {
    let known = PAGEDEPOT_ZEROED | PAGEDEPOT_ATOMIC | PAGEDEPOT_NO_RECLAIM | PAGEDEPOT_UNMOVABLE;
    if flags & !known != 0 {
        return None;
    }
    let mut options = Options::DEFAULT;
    // Warm areas serve requests without flags of their own.
    if flags & (PAGEDEPOT_ATOMIC | PAGEDEPOT_UNMOVABLE) != 0 {
        options = options.flags(flags_of(flags));
    }
    if flags & (PAGEDEPOT_ATOMIC | PAGEDEPOT_NO_RECLAIM) != 0 {
        options = options.no_wait();
    }
    if flags & PAGEDEPOT_ZEROED != 0 && cfg!(not(feature = "poison")) {
        options = options.zeroed();
    }
    Some(options)
}

fn pages(space: &Vmalloc, bytes: usize) -> Option<u32> {
    u32::try_from(bytes.div_ceil(space.depot().page_size().bytes())).ok()
}

#[cold]
fn failed(error: VmapError) -> *mut c_void {
    set_errno(error.errno());
    ptr::null_mut()
}

fn freed(
    space: *const pagedepot_space_t,
    area: *mut c_void,
    free: impl FnOnce(&Vmalloc, NonNull<u8>) -> Result<(), VfreeError>,
) -> c_int {
    let Some(space) = live(space) else { return -1 };
    let Some(start) = NonNull::new(area.cast::<u8>()) else { return 0 };
    match free(space, start) {
        Ok(()) => 0,
        Err(error) => {
            set_errno(error.errno());
            -1
        }
    }
}
