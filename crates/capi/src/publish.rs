//! Showing a running program's depot to `pagedepot top`.

use std::ffi::{CStr, CString, OsStr, c_char};
use std::os::unix::ffi::OsStrExt as _;
use std::ptr;

use pagedepot_linux::publish::{Publication, Publisher};

use crate::error::tell;
use crate::handle::{depot_or_text, pagedepot_t};

/// Statistics that other programs of the same user can read.
#[allow(non_camel_case_types, reason = "its name in C")]
pub struct pagedepot_published_t {
    _published: Publication,
    path: CString,
}

/// Publishes a depot's statistics in a file that only this user can open, for `pagedepot top`: in
/// directory, or where that is NULL in shared memory, where `pagedepot top` finds it by itself. A
/// thread sleeps until a reader opens the file. Returns NULL with errno and a text in
/// pagedepot_last_error().
///
/// # Safety
/// `handle` is NULL or a live depot; `directory` is NULL or a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagedepot_publish(
    handle: *const pagedepot_t,
    directory: *const c_char,
) -> *mut pagedepot_published_t {
    let Some(depot) = depot_or_text(handle) else { return ptr::null_mut() };
    let mut publisher = Publisher::new(depot);
    if !directory.is_null() {
        // SAFETY: by the caller's promise.
        let directory = unsafe { CStr::from_ptr(directory) };
        publisher = publisher.directory(OsStr::from_bytes(directory.to_bytes()));
    }
    match publisher.start() {
        Ok(published) => {
            let path = CString::new(published.path().as_os_str().as_bytes());
            let path = path.expect("a path that was opened has no zero");
            Box::into_raw(Box::new(pagedepot_published_t { _published: published, path }))
        }
        Err(error) => {
            tell(&error);
            ptr::null_mut()
        }
    }
}

/// The path of the file, for `pagedepot top FILE`. NULL: the pointer is NULL.
///
/// # Safety
/// `published` is NULL or of pagedepot_publish(), and not withdrawn.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagedepot_published_path(
    published: *const pagedepot_published_t,
) -> *const c_char {
    // SAFETY: by the caller's promise.
    unsafe { published.as_ref() }.map_or(ptr::null(), |published| published.path.as_ptr())
}

/// Removes the file and ends the thread. NULL: nothing. A forked child only frees the handle.
///
/// # Safety
/// `published` is of pagedepot_publish() and was not withdrawn before.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagedepot_withdraw(published: *mut pagedepot_published_t) {
    if !published.is_null() {
        // SAFETY: by the caller's promise the only pointer to it.
        drop(unsafe { Box::from_raw(published) });
    }
}
