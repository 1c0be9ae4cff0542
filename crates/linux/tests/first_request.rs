//! The first request of a process may be in a signal handler: it looks for no symbol, because
//! `dlsym` takes locks of the loader and may allocate.
#![cfg(all(
    any(target_arch = "x86_64", target_arch = "aarch64"),
    target_env = "gnu",
    not(target_feature = "crt-static")
))]

use std::ffi::{CStr, c_char, c_void};
use std::mem::transmute;
use std::sync::atomic::{AtomicU64, Ordering};

use pagedepot_linux::Order;
use pagedepot_linux::shared::{SharedDepot, SharedOptions};

/// Symbols of restartable sequences that were looked for.
static LOOKED_FOR: AtomicU64 = AtomicU64::new(0);

/// The function of glibc, found in the form that all versions have, and counted.
///
/// # Safety
/// The promises of glibc's function.
// SAFETY: this program's own calls come here, and go on to glibc's definition.
#[unsafe(no_mangle)]
unsafe extern "C" fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void {
    type Dlsym = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;
    const VERSION: &CStr =
        if cfg!(target_arch = "x86_64") { c"GLIBC_2.2.5" } else { c"GLIBC_2.17" };
    // SAFETY: strings that end.
    unsafe {
        if CStr::from_ptr(name).to_bytes().starts_with(b"__rseq") {
            LOOKED_FOR.fetch_add(1, Ordering::Relaxed);
        }
        let real = libc::dlvsym(libc::RTLD_NEXT, c"dlsym".as_ptr(), VERSION.as_ptr());
        assert!(!real.is_null());
        transmute::<*mut c_void, Dlsym>(real)(handle, name)
    }
}

#[test]
fn a_request_looks_for_no_symbol() {
    let depot = SharedDepot::create_memfd("first", &SharedOptions::new(16 << 20)).unwrap();
    let before = LOOKED_FOR.load(Ordering::Relaxed);
    assert!(before > 0);
    drop(depot.depot().page(Order::BASE).unwrap());
    assert_eq!(LOOKED_FOR.load(Ordering::Relaxed), before);
}
