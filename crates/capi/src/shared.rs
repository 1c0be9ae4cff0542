//! Depots in a segment that processes share.

use std::array;
use std::ffi::{CStr, OsStr, c_char, c_int, c_uint, c_void};
use std::mem::ManuallyDrop;
use std::num::NonZeroU64;
use std::os::fd::{AsRawFd as _, BorrowedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::ptr;
use std::slice;

use pagedepot_linux::shared::{Orphans, SegmentError, SentPage, SharedDepot, SharedOptions};
use pagedepot_linux::{Order, Page};

use crate::blocks::{CHUNK, block_of};
use crate::error::{Errno as _, is_missing, set_errno, status, tell, tell_text};
use crate::handle::{NO_HANDLE, pagedepot_t, sized};
use crate::poison::{Access, find_tools, mark};

/// Options of a process in a segment. Begin with PAGEDEPOT_SHARED_INIT.
#[allow(non_camel_case_types, reason = "its name in C")]
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct pagedepot_shared_options_t {
    /// sizeof(pagedepot_shared_options_t): which fields there are.
    pub size: usize,
    /// Bytes to which a new segment can grow. 0: the bytes it begins with.
    pub grow_to: usize,
    /// The most bytes that this process may hold and cache, rounded down to pages, but a page at
    /// least. 0: all. pagedepot_set_ceiling() changes it.
    pub ceiling: usize,
    /// The heir of this process: see pagedepot_inherit(). 0: none.
    pub heir: u64,
    /// The fate of blocks that dead processes have left, when this process joins: as in
    /// pagedepot_recover(). 2 opens a segment in which such processes are in all slots.
    pub orphans: u64,
}

impl Default for pagedepot_shared_options_t {
    fn default() -> Self {
        let size = size_of::<Self>();
        pagedepot_shared_options_t { size, grow_to: 0, ceiling: 0, heir: 0, orphans: 0 }
    }
}

/// The options for a segment of `bytes`, of which 0 is one that is there already.
///
/// # Safety
/// The caller keeps the promise of [`sized`].
unsafe fn read(
    given: *const pagedepot_shared_options_t,
    bytes: usize,
) -> Result<SharedOptions, &'static str> {
    // SAFETY: the caller's promise.
    let given = unsafe { sized(given) }?;
    let orphans = orphans(given.orphans).ok_or("orphans is 0, 1 or 2")?;
    let options = SharedOptions::new(bytes).grow_to(given.grow_to).ceiling(given.ceiling);
    let options = options.orphans(orphans);
    Ok(NonZeroU64::new(given.heir).map_or(options.clone(), |heir| options.heir(heir)))
}

/// The fate of blocks that dead processes have left, by its number in C.
fn orphans(number: u64) -> Option<Orphans> {
    [Orphans::Stay, Orphans::GoBack, Orphans::AllGoBack].get(number as usize).copied()
}

/// A handle of what `make` makes, or NULL with `errno` and a text.
///
/// # Safety
/// The caller keeps the promise of [`sized`].
unsafe fn handle(
    options: *const pagedepot_shared_options_t,
    bytes: usize,
    make: impl FnOnce(&SharedOptions) -> Result<SharedDepot, SegmentError>,
) -> *mut pagedepot_t {
    // SAFETY: the caller's promise.
    let options = match unsafe { read(options, bytes) } {
        Ok(options) => options,
        Err(text) => {
            tell_text(libc::EINVAL, text);
            return ptr::null_mut();
        }
    };
    match make(&options) {
        Ok(shared) => {
            find_tools();
            let depot = shared.depot().clone();
            Box::into_raw(Box::new(pagedepot_t { depot, shared: Some(shared) }))
        }
        Err(error) => {
            tell(&error);
            ptr::null_mut()
        }
    }
}

/// The path in a string.
///
/// # Safety
/// `path` is a string.
unsafe fn path_of<'p>(path: *const c_char) -> &'p OsStr {
    // SAFETY: the caller's promise.
    OsStr::from_bytes(unsafe { CStr::from_ptr(path) }.to_bytes())
}

/// Makes a segment of so many bytes in a new file, which stays when all processes have left. In
/// /dev/shm it is named shared memory. path NULL: a memory file, which lives as long as a process
/// has it open; others get pagedepot_shared_fd() over a socket or by fork. Other processes open or
/// adopt it. All calls of a depot work on it; pagedepot_delete() leaves it.
///
/// Returns NULL with errno and a text in pagedepot_last_error().
///
/// # Safety
/// `path` is NULL or a string; `options` is NULL, or points to as many bytes as its size says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagedepot_create(
    path: *const c_char,
    bytes: usize,
    options: *const pagedepot_shared_options_t,
) -> *mut pagedepot_t {
    // SAFETY: the caller's promise.
    unsafe {
        handle(options, bytes, |options| match path.is_null() {
            true => SharedDepot::create_memfd("pagedepot", options),
            false => SharedDepot::create(path_of(path), options),
        })
    }
}

/// Opens the segment in a file, and takes back what processes had that have died. Returns NULL with
/// errno and a text.
///
/// # Safety
/// `path` is a string; `options` is NULL, or points to as many bytes as its size says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagedepot_open(
    path: *const c_char,
    options: *const pagedepot_shared_options_t,
) -> *mut pagedepot_t {
    if path.is_null() {
        tell_text(libc::EINVAL, "the path is NULL");
        return ptr::null_mut();
    }
    // SAFETY: the caller's promise.
    unsafe { handle(options, 0, |options| SharedDepot::open(path_of(path), options)) }
}

/// Opens the segment behind a descriptor, which came over a socket or was inherited, and stays the
/// caller's. Returns NULL with errno and a text.
///
/// # Safety
/// `options` is NULL, or points to as many bytes as its size says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagedepot_adopt(
    fd: c_int,
    options: *const pagedepot_shared_options_t,
) -> *mut pagedepot_t {
    if fd < 0 {
        tell_text(libc::EBADF, "a negative number is no descriptor");
        return ptr::null_mut();
    }
    // SAFETY: the caller's promise; a number that is no descriptor leads to an error.
    unsafe {
        let file = BorrowedFd::borrow_raw(fd);
        handle(options, 0, |options| SharedDepot::adopt(file, options))
    }
}

/// The depot of a handle, if processes share it; `None`, with errno.
fn shared<'d>(handle: *const pagedepot_t) -> Option<&'d SharedDepot> {
    found(handle).map_err(|(number, _)| set_errno(number)).ok()
}

/// The depot of a handle, or why processes share none: `errno` and a text.
fn found<'d>(handle: *const pagedepot_t) -> Result<&'d SharedDepot, (c_int, &'static str)> {
    // SAFETY: every function that is called with a handle asks for a live one, or NULL.
    let handle = unsafe { handle.as_ref() }.ok_or((libc::EINVAL, NO_HANDLE))?;
    handle.shared.as_ref().ok_or((libc::ENOTSUP, "processes do not share this depot"))
}

/// The file of the segment, to send to another process. The depot closes it. Returns -1 with errno:
/// ENOTSUP when processes do not share the depot.
///
/// # Safety
/// `handle` is NULL or a live depot.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagedepot_shared_fd(handle: *const pagedepot_t) -> c_int {
    shared(handle).map_or(-1, |depot| depot.file().as_raw_fd())
}

/// A page on its way to another process: a message that the program carries by whatever it has.
#[allow(non_camel_case_types, reason = "its name in C")]
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct pagedepot_sent_t {
    /// The message, which has no meaning for the program.
    pub words: [u64; 2],
}

impl From<SentPage> for pagedepot_sent_t {
    fn from(page: SentPage) -> Self {
        let bits = page.to_bits();
        pagedepot_sent_t { words: [bits as u64, (bits >> 64) as u64] }
    }
}

impl From<pagedepot_sent_t> for SentPage {
    fn from(sent: pagedepot_sent_t) -> Self {
        let [low, high] = sent.words.map(u128::from);
        SentPage::from_bits(low | high << 64)
    }
}

/// Sends a block with its contents to the process that claims it, which may be the sender itself.
/// Returns 0, or -1 with errno: the block is the caller's still.
///
/// # Safety
/// `handle` is NULL or a live depot; the block is the caller's, of this order, and no thread uses
/// it any more. `sent` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagedepot_send(
    handle: *const pagedepot_t,
    block: *mut c_void,
    order: c_uint,
    sent: *mut pagedepot_sent_t,
) -> c_int {
    let Some(depot) = shared(handle) else { return -1 };
    // SAFETY: the caller's promise: the block is given up, unless the page comes back.
    let page = unsafe { page_at(depot, block, order) };
    let Some(page) = page.filter(|_| !sent.is_null()) else {
        set_errno(libc::EINVAL);
        return -1;
    };
    let bytes = page.len();
    match ManuallyDrop::into_inner(page).into_shared(depot) {
        Ok(message) => {
            mark(block, bytes, Access::None);
            // SAFETY: the caller's promise.
            unsafe { *sent = message.into() };
            0
        }
        Err(page) => {
            let _ = page.into_raw();
            set_errno(libc::EPERM);
            -1
        }
    }
}

/// The page at an address, which is dropped by the caller's will alone. `None`: no block of this
/// order begins there.
///
/// # Safety
/// A block that begins there is the caller's, of this order.
unsafe fn page_at(
    depot: &SharedDepot,
    block: *mut c_void,
    order: c_uint,
) -> Option<ManuallyDrop<Page>> {
    let order = Order::new(order)?;
    let first = block_of(depot.raw(), block, order)?;
    // SAFETY: the caller's promise.
    Some(ManuallyDrop::new(unsafe { Page::from_raw(depot, first, order) }))
}

/// Sends count blocks of one order like pagedepot_send(), 64 at a time, which costs less than
/// single calls. Returns how many were sent, from the front; errno is set if some were not, which
/// are the caller's still.
///
/// # Safety
/// `handle` is NULL or a live depot; `blocks` has `count` blocks of the caller's, of this order,
/// each one once, and no thread uses them any more. `sent` has room for `count` messages.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagedepot_send_many(
    handle: *const pagedepot_t,
    blocks: *const *mut c_void,
    order: c_uint,
    sent: *mut pagedepot_sent_t,
    count: usize,
) -> usize {
    let Some(depot) = shared(handle) else { return 0 };
    if is_missing(blocks, count) || is_missing(sent, count) {
        return 0;
    }
    let mut messages = Vec::with_capacity(CHUNK.min(count));
    let mut done = 0;
    while done < count {
        let wanted = CHUNK.min(count - done);
        // SAFETY: the caller's promise.
        let chunk = unsafe { slice::from_raw_parts(blocks.add(done), wanted) };
        let pages = chunk.iter().map_while(|&block| {
            // SAFETY: the caller's promise.
            unsafe { page_at(depot, block, order) }
        });
        let bytes = depot.page_size().bytes() << order.min(Order::MAX.get());
        messages.clear();
        let unsent = depot.send_pages(pages.map(ManuallyDrop::into_inner), &mut messages);
        let is_refused = !unsent.is_empty();
        unsent.into_iter().for_each(|page| _ = page.into_raw());
        for (nth, message) in messages.iter().enumerate() {
            mark(chunk[nth], bytes, Access::None);
            // SAFETY: the caller's promise.
            unsafe { *sent.add(done + nth) = (*message).into() };
        }
        done += messages.len();
        if messages.len() < wanted {
            set_errno(if is_refused { libc::EPERM } else { libc::EINVAL });
            break;
        }
    }
    done
}

/// Claims a block that a process has sent. order: NULL, or where its order goes. Returns its
/// address, or NULL with errno: ENOENT (another process has claimed it, or it went back), EINVAL
/// (no message of this segment), ENOMEM (the ceiling), EPERM (a forked child is no member).
///
/// # Safety
/// `handle` is NULL or a live depot; `order` is NULL or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagedepot_claim(
    handle: *const pagedepot_t,
    sent: pagedepot_sent_t,
    order: *mut c_uint,
) -> *mut c_void {
    let Some(depot) = shared(handle) else { return ptr::null_mut() };
    match depot.claim(sent.into()) {
        Ok(page) => {
            // SAFETY: the caller's promise.
            if let Some(order) = unsafe { order.as_mut() } {
                *order = page.order().get();
            }
            hand_out(depot, page)
        }
        Err(error) => {
            set_errno(error.errno());
            ptr::null_mut()
        }
    }
}

/// Claims count blocks that processes have sent, like pagedepot_claim(), 64 at a time, which costs
/// less than single calls. Puts their addresses into blocks, NULL for each that it did not get, and
/// their orders into orders, if that is not NULL. Returns how many it got; errno is that of the
/// last one that it did not get.
///
/// # Safety
/// `handle` is NULL or a live depot; `sent` has `count` messages, `blocks` room for as many, and
/// `orders` too, or it is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagedepot_claim_many(
    handle: *const pagedepot_t,
    sent: *const pagedepot_sent_t,
    blocks: *mut *mut c_void,
    orders: *mut c_uint,
    count: usize,
) -> usize {
    if is_missing(sent, count) || is_missing(blocks, count) {
        return 0;
    }
    let Some(depot) = shared(handle) else {
        // SAFETY: the caller's promise.
        (0..count).for_each(|nth| unsafe { *blocks.add(nth) = ptr::null_mut() });
        return 0;
    };
    let (mut pages, mut got) = (Vec::with_capacity(CHUNK.min(count)), 0);
    for from in (0..count).step_by(CHUNK) {
        // SAFETY: the caller's promise.
        let chunk = unsafe { slice::from_raw_parts(sent.add(from), CHUNK.min(count - from)) };
        let messages: [SentPage; CHUNK] =
            array::from_fn(|nth| chunk.get(nth).copied().unwrap_or_default().into());
        let mut is_refused = [false; CHUNK];
        depot.claim_pages(&messages[..chunk.len()], &mut pages, |place, error| {
            is_refused[place] = true;
            set_errno(error.errno());
        });
        let mut claimed = pages.drain(..);
        for (nth, _) in chunk.iter().enumerate() {
            let page = if is_refused[nth] { None } else { claimed.next() };
            let order = page.as_ref().map_or(0, |page| page.order().get());
            got += usize::from(page.is_some());
            let block = page.map_or(ptr::null_mut(), |page| hand_out(depot, page));
            // SAFETY: the caller's promise.
            unsafe {
                *blocks.add(from + nth) = block;
                if !orders.is_null() {
                    *orders.add(from + nth) = order;
                }
            }
        }
    }
    got
}

/// The address of a page, for its new owner, who frees it by pagedepot_free().
fn hand_out(depot: &SharedDepot, page: Page) -> *mut c_void {
    let bytes = page.len();
    let (pfn, _) = page.into_raw();
    let start: *mut c_void = depot.raw().address(pfn).as_ptr().cast();
    mark(start, bytes, Access::Defined);
    start
}

/// Takes back the pages of processes that have died, and with orphans not 0 also those that such a
/// process had sent and that were not claimed. With orphans 2 also those that it has left to an
/// heir. Requests that run short do so by themselves, without orphans. Returns the number of pages;
/// 0 with errno for a handle that is none.
///
/// # Safety
/// `handle` is NULL or a live depot.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagedepot_recover(handle: *const pagedepot_t, orphans: c_int) -> u64 {
    let fate = self::orphans(orphans as u64).unwrap_or(Orphans::GoBack);
    shared(handle).map_or(0, |depot| depot.recover(fate).pages)
}

/// Takes up to count pages, with their contents, of processes that have died and had named this
/// heir in their options; free each by pagedepot_free() with order 0. Returns how many it took: 0
/// when there are none, or none that the ceiling allows, and with errno for a handle that is none.
///
/// # Safety
/// `handle` is NULL or a live depot; `pages` has room for count pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagedepot_inherit(
    handle: *const pagedepot_t,
    heir: u64,
    pages: *mut *mut c_void,
    count: usize,
) -> usize {
    if is_missing(pages, count) {
        return 0;
    }
    let (Some(depot), Some(heir)) = (shared(handle), NonZeroU64::new(heir)) else { return 0 };
    let mut taken = 0;
    for page in depot.inherit(heir).take(count) {
        // SAFETY: the caller's promise.
        unsafe { *pages.add(taken) = hand_out(depot, page) };
        taken += 1;
    }
    taken
}

/// Frees what the program can do without, for another process.
#[allow(non_camel_case_types, reason = "its name in C")]
pub type pagedepot_give_t = Option<unsafe extern "C" fn(context: *mut c_void)>;

/// Calls give(context) when another process of the segment runs short of pages, in place of the
/// function before: it frees pages that this process can do without, by pagedepot_free(). The other
/// process waits 50 ms for it at most. This call waits for a function before that runs. Returns 0,
/// or -1 with errno.
///
/// # Safety
/// `handle` is NULL or a live depot. `give` may be called from a thread of the library, with
/// `context`, until the depot is deleted, which it does not do itself; it neither unwinds nor jumps
/// out. The thread that deletes the depot, or calls this again, holds no lock that it takes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagedepot_on_shortage(
    handle: *const pagedepot_t,
    give: pagedepot_give_t,
    context: *mut c_void,
) -> c_int {
    /// The caller's own; by its promise another thread may have it.
    struct Context(*mut c_void);
    // SAFETY: as said.
    unsafe impl Send for Context {}

    let depot = match found(handle) {
        Ok(depot) => depot,
        Err((number, text)) => {
            tell_text(number, text);
            return -1;
        }
    };
    let Some(give) = give else {
        tell_text(libc::EINVAL, "there is no function to call: give is NULL");
        return -1;
    };
    let context = Context(context);
    status(depot.on_shortage(move || {
        let context = &context;
        // SAFETY: by the caller's promise.
        unsafe { give(context.0) }
    }))
}
