//! Lines of a program that hold pages (feature `allocinfo`).

use std::ffi::{CStr, c_char, c_uint, c_void};

use crate::error::set_errno;
use crate::handle::{depot, pagedepot_t};

/// Notes that a line of a program allocated a block, for pagedepot_allocinfo(); returns the block.
/// Programs define PAGEDEPOT_CALL_SITES before they include this header, and call it by the macros
/// at its end. It allocates memory for a line that is new: not for signal handlers. Without call
/// sites in the library (cargo xtask install --prefix DIR --call-sites) it does nothing.
///
/// # Safety
/// `handle` is NULL or a live depot; `block` is NULL or what a function of it has just allocated
/// for this thread; `file` is a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagedepot_note(
    handle: *const pagedepot_t,
    block: *mut c_void,
    file: *const c_char,
    line: c_uint,
) -> *mut c_void {
    // SAFETY: by the caller's promise; one block.
    unsafe { note(handle, &[block], file, line) };
    block
}

/// Notes the line that allocated count blocks, as pagedepot_note() does; returns count.
///
/// # Safety
/// Requires what pagedepot_note() requires; `blocks` has `count` pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagedepot_note_many(
    handle: *const pagedepot_t,
    blocks: *const *mut c_void,
    count: usize,
    file: *const c_char,
    line: c_uint,
) -> usize {
    if count > 0 {
        // SAFETY: by the caller's promise.
        unsafe { note(handle, std::slice::from_raw_parts(blocks, count), file, line) };
    }
    count
}

/// Notes the line of blocks that the library has just allocated.
///
/// # Safety
/// Requires what pagedepot_note() requires.
unsafe fn note(
    handle: *const pagedepot_t,
    blocks: &[*mut c_void],
    file: *const c_char,
    line: c_uint,
) {
    if !cfg!(feature = "allocinfo") || file.is_null() {
        return;
    }
    let Some(depot) = depot(handle) else { return };
    // SAFETY: by the caller's promise.
    let file = unsafe { CStr::from_ptr(file) }.to_string_lossy();
    let raw = depot.raw();
    for block in blocks.iter().filter_map(|block| raw.pfn_of(block.cast())) {
        #[cfg(feature = "allocinfo")]
        raw.attribute(block, pagedepot_linux::allocinfo::ForeignSite::at(&file, line));
        #[cfg(not(feature = "allocinfo"))]
        let _ = (block, &file, line);
    }
}

/// Writes which lines hold how many bytes of a depot, as the kernel's /proc/allocinfo, the most
/// bytes first. At most size bytes are written, with a zero at the end. Returns how many bytes the
/// whole text has without the zero, as snprintf() does; 0 with errno, and nothing is written:
/// ENOTSUP (no call sites in this library: cargo xtask install --prefix DIR --call-sites), EINVAL
/// (handle is NULL).
///
/// # Safety
/// `handle` is NULL or a live depot; `text` has room for `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagedepot_allocinfo(
    handle: *const pagedepot_t,
    text: *mut c_char,
    size: usize,
) -> usize {
    let Some(depot) = depot(handle) else {
        set_errno(libc::EINVAL);
        return 0;
    };
    #[cfg(feature = "allocinfo")]
    {
        let whole = pagedepot_linux::allocinfo::AllocInfo::of(depot).to_string();
        let written = whole.len().min(size.saturating_sub(1));
        if size > 0 {
            // SAFETY: by the caller's promise: `written` bytes and a zero are `size` at most.
            unsafe {
                text.copy_from_nonoverlapping(whole.as_ptr().cast(), written);
                text.add(written).write(0);
            }
        }
        whole.len()
    }
    #[cfg(not(feature = "allocinfo"))]
    {
        let _ = (depot, text, size);
        set_errno(libc::ENOTSUP);
        0
    }
}
