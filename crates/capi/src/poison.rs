//! The feature `poison`: what no caller holds is out of bounds for AddressSanitizer and valgrind.
//!
//! Both take requests from programs that manage memory of their own. AddressSanitizer has functions
//! in its runtime, which are looked up by name because the runtime may be absent. valgrind
//! recognises a sequence of instructions that has no effect elsewhere
//! (`VALGRIND_DO_CLIENT_REQUEST` in `valgrind.h`).

use std::ffi::c_void;

/// The bytes of a block that is being freed, marked as held by no caller. The free may be refused:
/// then [`refused`](Self::refused) marks them as they were.
#[must_use = "a refused free leaves the block to its caller"]
pub(crate) struct FreeMark {
    #[cfg(feature = "poison")]
    held: Option<(*mut c_void, usize)>,
}

impl FreeMark {
    /// Marks a block before it is freed: afterwards it may be the next caller's. `None`: it cannot
    /// be a block, so nothing is marked.
    #[inline(always)]
    pub fn of(block: Option<(*mut c_void, usize)>) -> Self {
        #[cfg(feature = "poison")]
        {
            let held = block.filter(|&(start, _)| tools::is_held(start));
            if let Some((start, bytes)) = block {
                mark(start, bytes, Access::None);
            }
            FreeMark { held }
        }
        #[cfg(not(feature = "poison"))]
        {
            let _ = block;
            FreeMark {}
        }
    }

    /// The free was refused: a block that a caller holds stays that caller's.
    #[cold]
    pub fn refused(self) {
        #[cfg(feature = "poison")]
        if let Some((start, bytes)) = self.held {
            mark(start, bytes, Access::Defined);
        }
    }
}

/// The access that is allowed to some bytes.
#[derive(Clone, Copy)]
pub(crate) enum Access {
    /// No access: no caller holds the bytes.
    None,
    /// The bytes can be written; valgrind reports reading them before.
    Undefined,
    /// Everything.
    Defined,
}

/// Looks for AddressSanitizer, so that no request does: it may be in a signal handler.
pub(crate) fn find_tools() {
    #[cfg(feature = "poison")]
    tools::AddressSanitizer::get();
}

/// Tells both tools. Without the feature nothing is compiled.
#[inline(always)]
pub(crate) fn mark(start: *mut c_void, bytes: usize, access: Access) {
    #[cfg(feature = "poison")]
    tools::mark(start, bytes, access);
    #[cfg(not(feature = "poison"))]
    let _ = (start, bytes, access);
}

#[cfg(feature = "poison")]
mod tools {
    use std::ffi::{CStr, c_int, c_void};
    use std::mem::transmute;
    use std::sync::OnceLock;

    use super::Access;

    type Range = unsafe extern "C" fn(*const c_void, usize);
    type Query = unsafe extern "C" fn(*const c_void) -> c_int;

    pub(super) struct AddressSanitizer {
        poison: Range,
        unpoison: Range,
        is_poisoned: Query,
    }

    impl AddressSanitizer {
        /// AddressSanitizer's functions, in a program that was compiled with `-fsanitize=address`.
        pub(super) fn get() -> Option<&'static Self> {
            static FOUND: OnceLock<Option<AddressSanitizer>> = OnceLock::new();
            let find = || {
                let [poison, unpoison, is_poisoned] = [
                    symbol(c"__asan_poison_memory_region")?,
                    symbol(c"__asan_unpoison_memory_region")?,
                    symbol(c"__asan_address_is_poisoned")?,
                ];
                // SAFETY: the names are of functions of these types (`asan_interface.h`).
                Some(unsafe {
                    AddressSanitizer {
                        poison: transmute::<*mut c_void, Range>(poison),
                        unpoison: transmute::<*mut c_void, Range>(unpoison),
                        is_poisoned: transmute::<*mut c_void, Query>(is_poisoned),
                    }
                })
            };
            FOUND.get_or_init(find).as_ref()
        }
    }

    fn symbol(name: &CStr) -> Option<*mut c_void> {
        // SAFETY: a string that ends; looks through what is loaded.
        let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
        (!found.is_null()).then_some(found)
    }

    /// Whether a caller may use this byte: unless a tool says otherwise.
    pub(crate) fn is_held(start: *mut c_void) -> bool {
        // SAFETY: looks at what is noted of the address.
        let is_poisoned = |asan: &AddressSanitizer| unsafe { (asan.is_poisoned)(start) != 0 };
        !AddressSanitizer::get().is_some_and(is_poisoned) && is_addressable(start)
    }

    pub(crate) fn mark(start: *mut c_void, bytes: usize, access: Access) {
        if let Some(asan) = AddressSanitizer::get() {
            let tell = if matches!(access, Access::None) { asan.poison } else { asan.unpoison };
            // SAFETY: memory of the depot.
            unsafe { tell(start, bytes) };
        }
        valgrind(access, start, bytes);
    }

    /// `VALGRIND_MAKE_MEM_*` of `memcheck.h`.
    fn valgrind(access: Access, start: *mut c_void, bytes: usize) {
        let request = match access {
            Access::None => 0,
            Access::Undefined => 1,
            Access::Defined => 2,
        };
        memcheck(request, [start.addr() as u64, bytes as u64, 0]);
    }

    /// `VALGRIND_GET_VBITS`, which refuses what is not addressable; outside of valgrind all is.
    fn is_addressable(start: *mut c_void) -> bool {
        const GET_VBITS: u64 = 8;
        const NOT_ADDRESSABLE: u64 = 3;
        let mut bits = 0u8;
        let to = (&raw mut bits).expose_provenance() as u64;
        memcheck(GET_VBITS, [start.addr() as u64, to, 1]) != NOT_ADDRESSABLE
    }

    /// A request of memcheck: 'M' and 'C' in its upper bytes. 0: there is no valgrind.
    #[cfg(target_arch = "x86_64")]
    fn memcheck(request: u64, [first, second, third]: [u64; 3]) -> u64 {
        const MEMCHECK: u64 = (b'M' as u64) << 24 | (b'C' as u64) << 16;
        let arguments = [MEMCHECK + request, first, second, third, 0, 0];
        let result;
        // SAFETY: outside of valgrind four rotations by 128 bits in all, and an exchange of a
        // register with itself: no effect. Inside it reads the arguments, writes rdx, and does what
        // was asked for.
        unsafe {
            std::arch::asm!(
                "rol rdi, 3",
                "rol rdi, 13",
                "rol rdi, 61",
                "rol rdi, 51",
                "xchg rbx, rbx",
                inout("rdx") 0_u64 => result,
                in("rax") arguments.as_ptr(),
                inout("rdi") 0_u64 => _,
                options(nostack),
            );
        }
        result
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn memcheck(_: u64, _: [u64; 3]) -> u64 {
        0
    }
}
