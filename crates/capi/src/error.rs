//! Errors of calls from C: `errno`, and for those that set something up a text.

use std::cell::RefCell;
use std::ffi::{CString, c_char, c_int};
use std::{fmt, io, mem};

use pagedepot_linux::pressure::MonitorError;
use pagedepot_linux::publish::PublishError;
use pagedepot_linux::raw::FreeError;
use pagedepot_linux::reclaim::{CallbackError, CeilingError, PinError, TrimError};
use pagedepot_linux::shared::{ClaimError, SegmentError};
use pagedepot_linux::vmalloc::{VfreeError, VmallocBuildError, VmapError};
use pagedepot_linux::{AllocError, BuildError};

thread_local! {
    static LAST: RefCell<Option<CString>> = const { RefCell::new(None) };
}

/// The value of `errno` for an error.
pub(crate) trait Errno {
    /// The number that C programs find in `errno`.
    fn errno(&self) -> c_int;
}

impl Errno for AllocError {
    fn errno(&self) -> c_int {
        match self {
            AllocError::Exhausted => libc::ENOMEM,
            AllocError::NotAvailable => libc::EBUSY,
            AllocError::Unsupported => libc::ENOTSUP,
            AllocError::Forked => libc::EPERM,
            _ => libc::EINVAL,
        }
    }
}

impl Errno for FreeError {
    fn errno(&self) -> c_int {
        match self {
            FreeError::Forked => libc::EPERM,
            _ => libc::EINVAL,
        }
    }
}

impl Errno for BuildError {
    fn errno(&self) -> c_int {
        match self {
            BuildError::Memory { errno, .. }
            | BuildError::File { errno, .. }
            | BuildError::HugePages { errno, .. }
            | BuildError::TransparentHugePages { errno }
            | BuildError::Populate { errno, .. }
            | BuildError::Numa { errno, .. } => errno.raw_os_error(),
            BuildError::Limit { .. }
            | BuildError::TooManyMappings { .. }
            | BuildError::CannotGrow { .. } => libc::ENOMEM,
            BuildError::Ceiling(error) => error.errno(),
            BuildError::Forked => libc::EPERM,
            BuildError::Reentrant => libc::EDEADLK,
            _ => libc::EINVAL,
        }
    }
}

impl Errno for SegmentError {
    fn errno(&self) -> c_int {
        match self {
            SegmentError::System { errno, .. } => errno.raw_os_error(),
            SegmentError::Build(error) => error.errno(),
            SegmentError::Full | SegmentError::Busy => libc::EBUSY,
            SegmentError::Size { .. } => libc::EINVAL,
            _ => libc::EBADMSG,
        }
    }
}

impl Errno for ClaimError {
    fn errno(&self) -> c_int {
        match self {
            ClaimError::Gone => libc::ENOENT,
            ClaimError::Ceiling => libc::ENOMEM,
            ClaimError::Forked => libc::EPERM,
            _ => libc::EINVAL,
        }
    }
}

impl Errno for TrimError {
    fn errno(&self) -> c_int {
        match self {
            TrimError::Refused { errno, .. } => errno.raw_os_error(),
            TrimError::Pinned => libc::EBUSY,
            TrimError::Forked => libc::EPERM,
            TrimError::Reentrant => libc::EDEADLK,
            _ => libc::EINVAL,
        }
    }
}

impl Errno for PinError {
    fn errno(&self) -> c_int {
        match self {
            PinError::Forked => libc::EPERM,
            PinError::Reentrant => libc::EDEADLK,
            PinError::TooMany => libc::EOVERFLOW,
            _ => libc::EINVAL,
        }
    }
}

impl Errno for CallbackError {
    fn errno(&self) -> c_int {
        match self {
            CallbackError::TooMany(_) => libc::ENOSPC,
            CallbackError::Forked => libc::EPERM,
            CallbackError::Reentrant => libc::EDEADLK,
            _ => libc::EINVAL,
        }
    }
}

impl Errno for CeilingError {
    fn errno(&self) -> c_int {
        match self {
            CeilingError::Held { .. } => libc::ENOMEM,
            CeilingError::Pinned => libc::EBUSY,
            CeilingError::Refused(errno) => errno.raw_os_error(),
            CeilingError::Unsupported | CeilingError::CanGrow => libc::ENOTSUP,
            CeilingError::Forked => libc::EPERM,
            CeilingError::Reentrant => libc::EDEADLK,
            _ => libc::EINVAL,
        }
    }
}

impl Errno for VmallocBuildError {
    fn errno(&self) -> c_int {
        match self {
            VmallocBuildError::File { errno }
            | VmallocBuildError::Memory { errno, .. }
            | VmallocBuildError::NoWipeOnFork { errno } => errno.raw_os_error(),
            VmallocBuildError::Limit { .. } | VmallocBuildError::TooManyMappings { .. } => {
                libc::ENOMEM
            }
            VmallocBuildError::NoFile => libc::ENOTSUP,
            VmallocBuildError::NoShrinker => libc::ENOSPC,
            VmallocBuildError::Forked => libc::EPERM,
            VmallocBuildError::Reentrant => libc::EDEADLK,
            _ => libc::EINVAL,
        }
    }
}

impl Errno for VmapError {
    fn errno(&self) -> c_int {
        match self {
            VmapError::NoSpace | VmapError::NoAreas | VmapError::Map(_) => libc::ENOMEM,
            VmapError::WouldWait => libc::EAGAIN,
            VmapError::Frames(error) => error.errno(),
            _ => libc::EINVAL,
        }
    }
}

impl Errno for VfreeError {
    fn errno(&self) -> c_int {
        match self {
            VfreeError::Forked => libc::EPERM,
            _ => libc::EINVAL,
        }
    }
}

impl Errno for MonitorError {
    fn errno(&self) -> c_int {
        match self {
            MonitorError::System(error) => number_of(error),
            MonitorError::OnlyIsolated => libc::EBUSY,
            MonitorError::Reentrant => libc::EDEADLK,
            _ => libc::EINVAL,
        }
    }
}

impl Errno for PublishError {
    fn errno(&self) -> c_int {
        match self {
            PublishError::File { error, .. }
            | PublishError::Watch(error)
            | PublishError::Thread(error) => number_of(error),
            PublishError::Forked => libc::EPERM,
            _ => libc::EINVAL,
        }
    }
}

/// The system's number of an error.
fn number_of(error: &io::Error) -> c_int {
    error.raw_os_error().unwrap_or(libc::EIO)
}

/// Sets `errno`.
#[cold]
pub(crate) fn set_errno(number: c_int) {
    // SAFETY: the thread's own.
    unsafe { *libc::__errno_location() = number };
}

/// Sets `errno`, and the text of [`pagedepot_last_error`].
#[cold]
pub(crate) fn tell(error: &(impl Errno + fmt::Display)) {
    tell_text(error.errno(), &error.to_string());
}

/// Sets `errno` and the text of an error of this crate alone: see [`tell`].
#[cold]
pub(crate) fn tell_text(number: c_int, text: &str) {
    // An error's text has no zero; if one had, there would be no text.
    let text = CString::new(text).ok();
    // A thread that ends may have no text any more: by destructors of its own, or of C++'s statics.
    // The text before is dropped when it is not borrowed any more.
    let before = LAST.try_with(|last| Some(mem::replace(&mut *last.try_borrow_mut().ok()?, text)));
    drop(before);
    set_errno(number);
}

/// Whether an array that should have elements is missing; then with `errno`.
pub(crate) fn is_missing<T>(array: *const T, count: usize) -> bool {
    let is_missing = count > 0 && array.is_null();
    if is_missing {
        set_errno(libc::EINVAL);
    }
    is_missing
}

/// 0, or -1 and `errno`.
pub(crate) fn status<E: Errno + fmt::Display>(result: Result<(), E>) -> c_int {
    match result {
        Ok(()) => 0,
        Err(error) => {
            tell(&error);
            -1
        }
    }
}

/// Describes this thread's last failure to make, open, grow, trim, pin or validate a depot, to give
/// back or discard its memory, to wait for a handover, to set its ceiling, to have it call a
/// function, or to make a space, a monitor or published statistics of it, and says what to do about
/// it. The text is valid until the thread's next such failure. NULL: no such call has failed, or
/// the thread is ending: functions of atexit(3) and destructors of C++ find errno alone.
///
/// Calls that allocate and free set errno alone.
#[unsafe(no_mangle)]
pub extern "C" fn pagedepot_last_error() -> *const c_char {
    let text = |last: &RefCell<Option<CString>>| Some(last.try_borrow().ok()?.as_ref()?.as_ptr());
    LAST.try_with(text).ok().flatten().unwrap_or(std::ptr::null())
}
