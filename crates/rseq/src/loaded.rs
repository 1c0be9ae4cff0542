//! Keeping the shared object that contains sequences loaded.
//!
//! `dlclose` would unmap descriptors that threads still point to. [`keep_loaded`] opens the object
//! once more with `RTLD_NODELETE`, which holds for the life of the process. The main program is
//! never unloaded, and a static program has no objects.

/// Keeps the shared object that contains the function `code` from being unloaded; `false` when the
/// dynamic linker refuses, in which case the object must run no sequence.
///
/// `code` is a function of the crate whose sequences are to stay, which is in the same object as
/// they are. Where that crate's sequences are inlined into callers in *another* Rust dynamic
/// library, this function cannot know: such a library must be linked with `-z nodelete`.
///
/// Costs two look-ups by the dynamic linker in the main program, and one `dlopen` more elsewhere.
/// Calling it again is harmless.
#[cfg(not(target_feature = "crt-static"))]
pub fn keep_loaded(code: *const ()) -> bool {
    // SAFETY: reads the auxiliary vector: where the program's headers are mapped.
    let program = unsafe { libc::getauxval(libc::AT_PHDR) } as usize;
    match (object_of(code.addr()), object_of(program)) {
        // The dynamic linker knows neither, and so can unload neither.
        (None, _) => true,
        (Some(this), Some(program)) if this.dli_fbase == program.dli_fbase => true,
        (Some(this), _) => {
            let flags = libc::RTLD_NOW | libc::RTLD_NOLOAD | libc::RTLD_NODELETE;
            // SAFETY: the name that the dynamic linker gave; with RTLD_NOLOAD no code is run. The
            // handle is not given back, which is allowed.
            !unsafe { libc::dlopen(this.dli_fname, flags) }.is_null()
        }
    }
}

/// Keeps the shared object that contains the function `code` from being unloaded: a static program
/// stays as long as it runs.
#[cfg(target_feature = "crt-static")]
pub fn keep_loaded(_code: *const ()) -> bool {
    true
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_and_an_object_that_is_loaded_stay() {
        let here = the_program_and_an_object_that_is_loaded_stay as fn();
        assert!(keep_loaded(here as *const ()));
        // The C library: a shared object, unless the program is static.
        assert!(keep_loaded(libc::getpid as *const ()));
        // No object at all.
        assert!(keep_loaded(core::ptr::without_provenance(16)));
    }
}
