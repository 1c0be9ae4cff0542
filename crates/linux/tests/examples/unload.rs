//! A shared object that contains a depot can be closed: threads that ran its sequences go on.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, Instant};

use crate::files::example;

const OBJECT: &str = "libshared_object.so";

fn is_mapped() -> bool {
    std::fs::read_to_string("/proc/self/maps").unwrap().contains(OBJECT)
}

/// Interrupts this thread, so that the kernel looks at the descriptor of its last sequence.
fn be_interrupted(times: u32) {
    extern "C" fn nothing(_signal: libc::c_int) {}
    // SAFETY: a handler that does nothing, for a signal that this thread sends itself.
    unsafe {
        libc::signal(libc::SIGUSR1, nothing as extern "C" fn(libc::c_int) as libc::sighandler_t);
        (0..times).for_each(|_| assert_eq!(libc::raise(libc::SIGUSR1), 0));
    }
    std::thread::yield_now();
}

#[test]
fn a_closed_object_stays_where_threads_point_to_it() {
    let path = CString::new(example(OBJECT).as_os_str().as_bytes()).unwrap();
    for _ in 0..3 {
        // SAFETY: the object's one function has this type, and is called while it is open.
        unsafe {
            let object = libc::dlopen(path.as_ptr(), libc::RTLD_NOW);
            assert!(!object.is_null());
            let run = libc::dlsym(object, c"pagedepot_example_run".as_ptr());
            assert!(!run.is_null());
            let run: extern "C" fn() -> i32 = std::mem::transmute(run);
            // Another thread, too: its `rseq_cs` points to a descriptor until the thread ends.
            let other = std::thread::spawn(move || {
                let by_sequences = run();
                move || be_interrupted(by_sequences as u32)
            });
            let by_sequences = run();
            assert!(by_sequences >= 0);
            other.join().unwrap()();
            assert_eq!(libc::dlclose(object), 0);
            // Without sequences no thread points to it.
            assert!(is_mapped() || by_sequences == 0);
        }
        let end = Instant::now() + Duration::from_millis(100);
        while Instant::now() < end {
            be_interrupted(10);
        }
    }
}
