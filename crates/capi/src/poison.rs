//! The feature `poison`: what no caller holds is out of bounds for AddressSanitizer and valgrind.
//!
//! Both take requests from programs that manage memory of their own. AddressSanitizer has functions
//! in its runtime, which are looked up by name because the runtime may be absent. valgrind
//! recognises a sequence of instructions that has no effect elsewhere
//! (`VALGRIND_DO_CLIENT_REQUEST` in `valgrind.h`).

use std::ffi::c_void;

/// What may be done with some bytes.
#[derive(Clone, Copy)]
pub(crate) enum Access {
    /// Nothing: no caller holds them.
    None,
    /// They can be written; valgrind reports reading them before.
    Undefined,
    /// Everything.
    Defined,
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
    use std::ffi::{CStr, c_void};
    use std::sync::OnceLock;

    use super::Access;

    type Range = unsafe extern "C" fn(*const c_void, usize);

    struct AddressSanitizer {
        poison: Range,
        unpoison: Range,
    }

    impl AddressSanitizer {
        /// Its functions, in a program that was compiled with `-fsanitize=address`.
        fn get() -> Option<&'static Self> {
            static FOUND: OnceLock<Option<AddressSanitizer>> = OnceLock::new();
            let find = || {
                Some(AddressSanitizer {
                    poison: symbol(c"__asan_poison_memory_region")?,
                    unpoison: symbol(c"__asan_unpoison_memory_region")?,
                })
            };
            FOUND.get_or_init(find).as_ref()
        }
    }

    fn symbol(name: &CStr) -> Option<Range> {
        // SAFETY: a string that ends; looks through what is loaded.
        let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
        // SAFETY: both names are of functions of this type (`asan_interface.h`).
        (!found.is_null()).then(|| unsafe { std::mem::transmute::<*mut c_void, Range>(found) })
    }

    pub(crate) fn mark(start: *mut c_void, bytes: usize, access: Access) {
        if let Some(asan) = AddressSanitizer::get() {
            let tell = if matches!(access, Access::None) { asan.poison } else { asan.unpoison };
            // SAFETY: memory of the depot.
            unsafe { tell(start, bytes) };
        }
        valgrind(access, start, bytes);
    }

    /// `VALGRIND_MAKE_MEM_*` of `memcheck.h`: 'M' and 'C' in the upper bytes.
    #[cfg(target_arch = "x86_64")]
    fn valgrind(access: Access, start: *mut c_void, bytes: usize) {
        const MEMCHECK: u64 = (b'M' as u64) << 24 | (b'C' as u64) << 16;
        let request = MEMCHECK
            + match access {
                Access::None => 0,
                Access::Undefined => 1,
                Access::Defined => 2,
            };
        let arguments = [request, start.addr() as u64, bytes as u64, 0, 0, 0];
        // SAFETY: outside of valgrind four rotations by 128 bits in all, and an exchange of a
        // register with itself: no effect. Inside it reads the arguments and writes rdx.
        unsafe {
            std::arch::asm!(
                "rol rdi, 3",
                "rol rdi, 13",
                "rol rdi, 61",
                "rol rdi, 51",
                "xchg rbx, rbx",
                inout("rdx") 0_u64 => _,
                in("rax") arguments.as_ptr(),
                inout("rdi") 0_u64 => _,
                options(nostack),
            );
        }
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn valgrind(_: Access, _: *mut c_void, _: usize) {}
}
