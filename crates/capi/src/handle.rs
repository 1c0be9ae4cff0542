//! Making a depot, asking what it is, taking it away.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::io::{self, Write as _};
use std::os::fd::AsRawFd as _;
use std::ptr::{self, NonNull};
use std::time::Duration;

use pagedepot_linux::builder::{CpuSet, Misuse};
use pagedepot_linux::reclaim::PinError;
use pagedepot_linux::shared::SharedDepot;
use pagedepot_linux::{BuildError, Depot, MemoryKind, PageSize, ZoneId};

use crate::error::{set_errno, tell, tell_text};
use crate::poison::{Access, mark};

/// A depot: an allocator and its memory.
#[allow(non_camel_case_types, reason = "its name in C")]
pub struct pagedepot_t {
    pub(crate) depot: Depot,
    /// The handle on its segment, if processes share the depot.
    pub(crate) shared: Option<SharedDepot>,
}

/// Pages come from a memory file, which devices and other processes can map; else they are private.
pub const PAGEDEPOT_MEMFD: c_uint = 1 << 0;
/// Pages come from the administrator's pool of huge pages (vm.nr_hugepages).
pub const PAGEDEPOT_HUGETLB: c_uint = 1 << 1;
/// Asks the system for transparent huge pages.
pub const PAGEDEPOT_THP: c_uint = 1 << 2;
/// A zone per NUMA node, bound to it.
pub const PAGEDEPOT_NUMA: c_uint = 1 << 3;
/// Every page is made present by pagedepot_new().
pub const PAGEDEPOT_POPULATE: c_uint = 1 << 4;
/// A lock per CPU instead of restartable sequences. Drains then take all that a CPU caches without
/// interrupting it.
pub const PAGEDEPOT_PER_CPU_LOCKS: c_uint = 1 << 5;
/// No CPU caches pages.
pub const PAGEDEPOT_NO_CACHES: c_uint = 1 << 6;
/// Every double free and wrong order is found and refused, for a byte per page and some time.
pub const PAGEDEPOT_CHECKED: c_uint = 1 << 7;
/// The depot is never trimmed, because a device keeps its pages.
pub const PAGEDEPOT_PINNED: c_uint = 1 << 8;
/// A double free that is found late is printed, and the program goes on; else it aborts. It aborts
/// all the same when a page that was freed twice would be handed out while it holds metadata.
pub const PAGEDEPOT_MISUSE_PRINTS: c_uint = 1 << 9;

const FLAGS_ALL: c_uint = (PAGEDEPOT_MISUSE_PRINTS << 1) - 1;

/// Options of a depot. Begin with PAGEDEPOT_OPTIONS_INIT, so that what you leave out has its
/// default in later versions, too.
#[allow(non_camel_case_types, reason = "its name in C")]
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct pagedepot_options_t {
    /// sizeof(pagedepot_options_t): which fields there are.
    pub size: usize,
    /// PAGEDEPOT_MEMFD and others, or-ed.
    pub flags: c_uint,
    /// CPUs from 0 on that cache pages. 0: every CPU that may come online.
    pub cpus: c_uint,
    /// Bytes that pagedepot_grow() can reach. 0: the depot does not grow.
    pub grow_to: usize,
    /// Bytes that the depot hands out and keeps resident at most: see pagedepot_set_ceiling(). 0:
    /// all of it.
    pub ceiling: usize,
    /// Bytes of a page: 4096, 16384 or 65536, a multiple of the system's. 0: the smallest of them.
    pub page_bytes: usize,
    /// CPUs that drains do not interrupt, as a list such as "2-3,8". NULL: those that the kernel
    /// was told to keep quiet (nohz_full, isolcpus); "": none.
    pub isolated_cpus: *const c_char,
}

impl Default for pagedepot_options_t {
    fn default() -> Self {
        pagedepot_options_t {
            size: size_of::<Self>(),
            flags: 0,
            cpus: 0,
            grow_to: 0,
            ceiling: 0,
            page_bytes: 0,
            isolated_cpus: ptr::null(),
        }
    }
}

impl pagedepot_options_t {
    /// Reads the options that a caller gives, and refuses flags that this version does not know.
    ///
    /// # Safety
    /// The caller keeps the promise of [`sized`].
    unsafe fn read(given: *const Self) -> Result<Self, &'static str> {
        // SAFETY: the caller's promise.
        let options = unsafe { sized(given) }?;
        if options.flags & !FLAGS_ALL != 0 {
            return Err("unknown bits in the options' flags: use the constants PAGEDEPOT_*");
        }
        Ok(options)
    }

    fn has(&self, flag: c_uint) -> bool {
        self.flags & flag != 0
    }

    /// Page size and set of isolated CPUs, read from their fields.
    ///
    /// # Safety
    /// `isolated_cpus` is NULL or a string.
    unsafe fn values(&self) -> Result<(Option<PageSize>, Option<CpuSet>), String> {
        let sizes = [PageSize::Kib4, PageSize::Kib16, PageSize::Kib64];
        let size = sizes.into_iter().find(|size| size.bytes() == self.page_bytes);
        if self.page_bytes > 0 && size.is_none() {
            return Err(format!(
                "pages of {} bytes: there are those of 4096, 16384 and 65536",
                self.page_bytes
            ));
        }
        if self.isolated_cpus.is_null() {
            return Ok((size, None));
        }
        // SAFETY: the caller's promise.
        let list = unsafe { CStr::from_ptr(self.isolated_cpus) }.to_string_lossy();
        let cpus = list.parse::<CpuSet>().map_err(|error| format!("isolated_cpus: {error}"))?;
        Ok((size, Some(cpus)))
    }

    fn build(
        &self,
        bytes: usize,
        page_size: Option<PageSize>,
        isolated: Option<CpuSet>,
    ) -> Result<Depot, BuildError> {
        let misuse = if self.has(PAGEDEPOT_MISUSE_PRINTS) { print } else { print_and_abort };
        let kind =
            if self.has(PAGEDEPOT_MEMFD) { MemoryKind::Memfd } else { MemoryKind::default() };
        // Magazines are cut from free pages, which the tools would report.
        let caches = !self.has(PAGEDEPOT_NO_CACHES) && !cfg!(feature = "poison");
        let mut builder = Depot::builder(bytes)
            .memory(kind)
            .hugetlb(self.has(PAGEDEPOT_HUGETLB))
            .thp(self.has(PAGEDEPOT_THP))
            .numa(self.has(PAGEDEPOT_NUMA))
            .populate(self.has(PAGEDEPOT_POPULATE))
            .per_cpu_locks(self.has(PAGEDEPOT_PER_CPU_LOCKS))
            .caches(caches)
            .checked(self.has(PAGEDEPOT_CHECKED))
            .pinned(self.has(PAGEDEPOT_PINNED))
            .on_misuse(misuse);
        if self.cpus > 0 {
            builder = builder.cpus(self.cpus);
        }
        if self.grow_to > 0 {
            builder = builder.grow_to(self.grow_to);
        }
        if self.ceiling > 0 {
            builder = builder.ceiling(self.ceiling);
        }
        if let Some(size) = page_size {
            builder = builder.page_size(size);
        }
        if let Some(cpus) = isolated {
            builder = builder.isolated_cpus(cpus);
        }
        builder.build()
    }
}

/// A structure of options: all of it but the size is 0 where C's initializer made it.
///
/// # Safety
/// `given` is NULL, or points to as many bytes as its first field says. `T` has the layout of C,
/// begins with its size in bytes, and consists of numbers and pointers.
pub(crate) unsafe fn sized<T: Default + Copy>(given: *const T) -> Result<T, &'static str> {
    if given.is_null() {
        return Ok(T::default());
    }
    // SAFETY: by the caller's promise; the size itself is always there.
    let size = unsafe { *given.cast::<usize>() };
    if size < size_of::<usize>() {
        return Err("the options have no size: begin with the initializer PAGEDEPOT_..._INIT");
    }
    if size > size_of::<T>() {
        return Err("the options are of a newer version than this library: install that");
    }
    let mut options = T::default();
    // SAFETY: as above; the target has room.
    unsafe { ptr::copy_nonoverlapping(given.cast::<u8>(), (&raw mut options).cast(), size) };
    Ok(options)
}

fn print(misuse: Misuse) {
    // Unlike `eprintln`, which panics where there is nobody to read it, and where a disk is full.
    let _ = writeln!(io::stderr(), "pagedepot: {misuse}");
}

fn print_and_abort(misuse: Misuse) {
    print(misuse);
    std::process::abort();
}

/// The version of the library, such as "0.1.0".
#[unsafe(no_mangle)]
pub extern "C" fn pagedepot_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}

/// Makes a depot of so many bytes, rounded up to pages. Call it before the program has many
/// threads: the first one registers the process with membarrier(2), which takes milliseconds later.
///
/// options: NULL for the defaults; else as many bytes are read as its size says.
///
/// Returns NULL with errno (EINVAL, ENOMEM, ...) and a text in pagedepot_last_error().
///
/// # Safety
/// `options` is NULL, or points to as many bytes as its field `size` says; `isolated_cpus` is NULL
/// or a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagedepot_new(
    bytes: usize,
    options: *const pagedepot_options_t,
) -> *mut pagedepot_t {
    // SAFETY: by the caller's promise.
    let read = unsafe {
        let options = pagedepot_options_t::read(options).map_err(str::to_owned);
        options.and_then(|options| Ok((options, options.values()?)))
    };
    let (options, (page_size, isolated)) = match read {
        Ok(read) => read,
        Err(text) => {
            tell_text(libc::EINVAL, &text);
            return ptr::null_mut();
        }
    };
    match options.build(bytes, page_size, isolated) {
        Ok(depot) => {
            let raw = depot.raw();
            mark(raw.base().as_ptr().cast(), raw.bytes(), Access::None);
            Box::into_raw(Box::new(pagedepot_t { depot, shared: None }))
        }
        Err(error) => {
            tell(&error);
            ptr::null_mut()
        }
    }
}

/// Unmaps a depot with all its memory, pages that were never freed included. NULL: nothing. Leaves
/// the segment of a depot that processes share: pages that this process never freed are free. Waits
/// for a function of pagedepot_on_shortage() that runs, which is not called any more afterwards.
///
/// In a forked child it only frees the handle: the memory is the parent's.
///
/// # Safety
/// `handle` is of pagedepot_new(), pagedepot_create(), pagedepot_open() or pagedepot_adopt(), and
/// was not deleted before. No thread is in a call of it, uses a
/// page of it, or will do either. Callbacks of pagedepot_on_pressure() have returned. Spaces over
/// it were deleted, and monitors stopped.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagedepot_delete(depot: *mut pagedepot_t) {
    if depot.is_null() {
        return;
    }
    // SAFETY: a live handle, until the box below is dropped.
    if let Some(shared) = unsafe { &(*depot).shared } {
        // The action that runs uses the handle, and has ended when this returns. In a child none
        // runs.
        let _ = shared.on_shortage(|| ());
    }
    // SAFETY: by the caller's promise the only pointer to it.
    let pagedepot_t { mut depot, shared } = *unsafe { Box::from_raw(depot) };
    let raw = depot.raw();
    mark(raw.base().as_ptr().cast(), raw.bytes(), Access::Defined);
    drop(shared);
    let tries = if depot.pinned_pages() == Err(PinError::Forked) { 0 } else { UNMAP_TRIES };
    for _ in 0..tries {
        // SAFETY: by the caller's promise.
        match unsafe { depot.unmap() } {
            Ok(()) => return,
            Err(same) => depot = same,
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Milliseconds for which [`pagedepot_delete`] waits for threads of the library, which have a
/// handle while they look at the depot. One that the program holds, with a space, is never dropped.
const UNMAP_TRIES: u32 = 10_000;

/// The depot of a handle; `None`, with errno: NULL.
#[inline(always)]
pub(crate) fn depot<'d>(handle: *const pagedepot_t) -> Option<&'d Depot> {
    // SAFETY: every function that is called with a handle asks for a live one, or NULL.
    match unsafe { handle.as_ref() } {
        Some(handle) => Some(&handle.depot),
        None => {
            set_errno(libc::EINVAL);
            None
        }
    }
}

/// The handle of the segment, if there is a depot that processes share.
fn shared_of<'d>(handle: *const pagedepot_t) -> Option<&'d SharedDepot> {
    // SAFETY: as of `depot`.
    unsafe { handle.as_ref() }?.shared.as_ref()
}

/// The depot of a handle, for calls whose errors have a text; `None`, with both: NULL.
pub(crate) fn depot_or_text<'d>(handle: *const pagedepot_t) -> Option<&'d Depot> {
    let depot = depot(handle);
    if depot.is_none() {
        tell_text(libc::EINVAL, NO_HANDLE);
    }
    depot
}

/// The text of a handle that is NULL.
pub(crate) const NO_HANDLE: &str = "the depot is NULL: an earlier call has failed to make it";

/// Adds memory; see grow_to in the options. Whole multiples of 2^18 pages: of a GiB, where a page
/// has 4 KiB; to a segment that processes share, whole pages. Returns 0, or -1 with errno: ENOMEM
/// beyond grow_to, and nothing is added, unless several callers at once ask for the last of it:
/// then a part may be.
///
/// # Safety
/// `handle` is NULL or a live depot.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagedepot_grow(handle: *const pagedepot_t, bytes: usize) -> c_int {
    let Some(depot) = depot_or_text(handle) else { return -1 };
    if let Some(shared) = shared_of(handle) {
        return grow_segment(shared, bytes);
    }
    // Before another thread can get one of the pages, which would stay marked.
    let poison = |start: NonNull<u8>, bytes| mark(start.as_ptr().cast(), bytes, Access::None);
    match depot.raw().grow_with(ZoneId::new(0), bytes, poison) {
        Ok(_) => 0,
        Err(error) => {
            tell(&error);
            -1
        }
    }
}

/// Adds memory to a segment; see [`pagedepot_grow`].
fn grow_segment(shared: &SharedDepot, bytes: usize) -> c_int {
    if bytes == 0 {
        tell(&BuildError::ZeroGrowth);
        return -1;
    }
    let room = shared.bytes().saturating_sub(shared.present_bytes());
    let wanted = bytes.checked_next_multiple_of(shared.page_size().bytes());
    if wanted.is_some_and(|wanted| wanted <= room && shared.grow_by(wanted) == wanted) {
        return 0;
    }
    if shared.pinned_pages() == Err(PinError::Forked) {
        tell(&BuildError::Forked);
    } else {
        let text = format!("cannot add {bytes} bytes: {room} are left of the segment's grow_to");
        tell_text(libc::ENOMEM, &text);
    }
    -1
}

/// Bytes per page of order 0. 0: the handle is NULL.
///
/// # Safety
/// `handle` is NULL or a live depot.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagedepot_page_size(handle: *const pagedepot_t) -> usize {
    depot(handle).map_or(0, |depot| depot.page_size().bytes())
}

/// Bytes of memory, free or not. Those of a segment that can grow may lie anywhere in it. 0: the
/// handle is NULL.
///
/// # Safety
/// `handle` is NULL or a live depot.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagedepot_bytes(handle: *const pagedepot_t) -> usize {
    match shared_of(handle) {
        Some(shared) => shared.present_bytes(),
        None => depot(handle).map_or(0, Depot::bytes),
    }
}

/// Returns the address at which the memory begins: registrations with devices need it. NULL: the
/// handle is NULL.
///
/// # Safety
/// `handle` is NULL or a live depot.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagedepot_base(handle: *const pagedepot_t) -> *mut c_void {
    depot(handle).map_or(ptr::null_mut(), |depot| depot.raw().base().as_ptr().cast())
}

/// The file that the pages lie in, for mmap(2) and devices: a page's place in it is its distance
/// from pagedepot_base(). The depot closes it. Returns -1 with errno: ENOTSUP without
/// PAGEDEPOT_MEMFD, and for a depot that processes share: pagedepot_shared_fd() has its file.
///
/// # Safety
/// `handle` is NULL or a live depot, which outlives what is made of the file. Through the file, and
/// mappings of it, the program touches only pages that it holds, and punches holes only into those;
/// it neither allocates in the file, nor seals it, nor changes its length.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagedepot_fd(handle: *const pagedepot_t) -> c_int {
    let Some(depot) = depot(handle) else { return -1 };
    // SAFETY: by the caller's promise.
    match unsafe { depot.raw().fd() } {
        Some(file) => file.as_raw_fd(),
        None => {
            set_errno(libc::ENOTSUP);
            -1
        }
    }
}

/// 1 when the address is in a page of the depot, else 0.
///
/// # Safety
/// `handle` is NULL or a live depot.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagedepot_contains(
    handle: *const pagedepot_t,
    address: *const c_void,
) -> c_int {
    depot(handle).map_or(0, |depot| depot.pfn_of(address.cast()).is_some().into())
}
