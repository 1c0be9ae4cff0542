//! A forked child gets errors, and its parent is not affected.

use crate::common::{mib, page_bytes};
use pagedepot_linux::vmalloc::{Options, PurgeDepth, VfreeError, VmapError};
use pagedepot_linux::{AllocError, Vmalloc};

use crate::{all_back, depot};

#[test]
fn a_child_gets_errors() {
    let space = Vmalloc::builder(&depot(64 * mib())).build().unwrap();
    let mut buf = space.buf(3 * page_bytes()).unwrap();
    buf[..6].copy_from_slice(b"parent");
    drop(space.buf(16 * page_bytes()).unwrap());
    // SAFETY: the child runs the code below and ends; no part of it waits for the parent's threads.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let child = std::panic::AssertUnwindSafe(|| in_child(&space, &mut buf));
        let result = std::panic::catch_unwind(child);
        // SAFETY: ends the child without running the parent's destructors.
        unsafe { libc::_exit(if result.is_ok() { 0 } else { 1 }) };
    }
    let mut status = 0;
    // SAFETY: waits for our child.
    assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
    assert!(
        libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0,
        "the child failed: {status:#x}"
    );
    assert_eq!(&buf[..6], b"parent");
    assert!(buf[6..].iter().all(|&byte| byte == 0));
    drop(buf);
    drop(space.buf(16 * page_bytes()).unwrap());
    all_back(space);
}

fn in_child(space: &Vmalloc, buf: &mut pagedepot_linux::VmallocBuf) {
    let forked = VmapError::Frames(AllocError::Forked);
    for pages in [1, 3, 16, 300] {
        assert_eq!(space.vmalloc(pages, Options::DEFAULT), Err(forked));
        assert_eq!(space.vmalloc(pages, Options::DEFAULT.no_wait()), Err(forked));
    }
    assert!(forked.to_string().contains("after fork"));
    let frames = [pagedepot_linux::Pfn::new(0)];
    assert_eq!(space.vmap(&frames, Options::DEFAULT), Err(forked));
    assert_eq!(space.vm_map_ram(&frames, Options::DEFAULT), Err(forked));
    assert_eq!(buf.grow(mib()), Err(forked));
    assert_eq!(space.purge(PurgeDepth::Everything), Default::default());
    let start = std::ptr::NonNull::new(buf.as_mut_ptr()).unwrap();
    // SAFETY: the call is refused, as is checked.
    unsafe {
        assert_eq!(space.vfree(start), Err(VfreeError::Forked));
        assert_eq!(space.vunmap(start), Err(VfreeError::Forked));
        assert_eq!(space.vm_unmap_ram(start, 3), Err(VfreeError::Forked));
    }
    assert_eq!(space.areas().count(), 0);
    assert_eq!(&buf[..6], b"parent", "what was there at the fork can be read");
    // SAFETY: a second owner in another process; its drop has no effect.
    drop(unsafe { pagedepot_linux::VmallocBuf::from_raw(space.clone(), start, 3) });
    let own = Vmalloc::new(&depot(16 * mib())).unwrap();
    own.buf(page_bytes()).unwrap()[0] = 1;
    all_back(own);
}
