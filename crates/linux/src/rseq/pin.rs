//! Keeping the shared object that contains the sequences loaded.
//!
//! `dlclose` would unmap descriptors that threads still point to. The object is opened once more
//! with `RTLD_NODELETE`, which holds for the life of the process. The main program is never
//! unloaded, and a static program has no objects.
//!
//! Functions of a depot are inlined into its users. A Rust dynamic library that uses a depot which
//! another object built is not seen from here: the documentation of the crate says that it must
//! stay.

#[cfg(not(target_feature = "crt-static"))]
use core::sync::atomic::{AtomicBool, Ordering};

/// Sees to it that the object with this code stays loaded; `false` when that cannot be had.
#[cfg(not(target_feature = "crt-static"))]
pub(crate) fn stay_loaded() -> bool {
    static IS_PINNED: AtomicBool = AtomicBool::new(false);
    // Relaxed, both: doing it twice is harmless.
    if !IS_PINNED.load(Ordering::Relaxed) {
        IS_PINNED.store(is_program_or_pinned(), Ordering::Relaxed);
    }
    IS_PINNED.load(Ordering::Relaxed)
}

/// A static program stays as long as it runs.
#[cfg(target_feature = "crt-static")]
pub(crate) fn stay_loaded() -> bool {
    true
}

#[cfg(not(target_feature = "crt-static"))]
fn is_program_or_pinned() -> bool {
    // SAFETY: reads the auxiliary vector: where the program's headers are mapped.
    let program = unsafe { libc::getauxval(libc::AT_PHDR) } as usize;
    let this_code = is_program_or_pinned as fn() -> bool as usize;
    match (object_of(this_code), object_of(program)) {
        // Neither is known to the dynamic linker, which then can unload neither.
        (None, _) => true,
        (Some(this), Some(program)) if this.dli_fbase == program.dli_fbase => true,
        (Some(this), _) => {
            let flags = libc::RTLD_NOW | libc::RTLD_NOLOAD | libc::RTLD_NODELETE;
            // SAFETY: the name that the dynamic linker gave; with RTLD_NOLOAD no code is run. The
            // handle is not given back, which would be allowed.
            !unsafe { libc::dlopen(this.dli_fname, flags) }.is_null()
        }
    }
}

/// The object that an address lies in.
#[cfg(not(target_feature = "crt-static"))]
fn object_of(address: usize) -> Option<libc::Dl_info> {
    let mut info = core::mem::MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: any address may be asked for; what was written is plain pointers.
    unsafe {
        let found = libc::dladdr(core::ptr::without_provenance(address), info.as_mut_ptr()) != 0;
        found.then(|| info.assume_init())
    }
}
