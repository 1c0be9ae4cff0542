//! The mark by which a forked child notices that it is one.

use core::ops::Range;
use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicU8, Ordering};

use pagedepot::PageSize;
use pagedepot::cpus::Unusable;
use rustix::io::Errno;
use rustix::mm::Advice;
use rustix::process::{Pid, getpid};

use crate::system::mapping::Mapping;

/// The mark by which a forked child notices that it is one.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ForkMark<'m> {
    /// 1 in the parent; lies in memory that the kernel wipes in a child. That of a depot lies
    /// together with its gates.
    Wiped(&'m AtomicU8),
    /// The parent's process id, where the kernel cannot wipe. A child that begins a PID namespace
    /// is taken for its parent if that began one, too: both have the number 1.
    Pid(Pid),
}

impl ForkMark<'static> {
    /// The mark of this process, for what belongs to no depot.
    pub fn of_process() -> Self {
        /// The newest mark. In a child that has none of its own yet, it is the parent's: 0 there.
        static MARK: AtomicPtr<AtomicU8> = AtomicPtr::new(ptr::null_mut());
        // Acquire: pairs with the Release below.
        let before = MARK.load(Ordering::Acquire);
        // SAFETY: a mark stays mapped.
        if let Some(mark) = unsafe { before.as_ref() }
            && mark.load(Ordering::Relaxed) != 0
        {
            return ForkMark::Wiped(mark);
        }
        let Ok(page) = wiped_page() else { return Self::by_pid() };
        let mark = page.start().as_ptr().cast::<AtomicU8>();
        // SAFETY: the beginning of a page that nothing else refers to yet.
        unsafe { mark.write(AtomicU8::new(1)) };
        // Release: publishes the 1.
        match MARK.compare_exchange(before, mark, Ordering::Release, Ordering::Acquire) {
            // SAFETY: the page is not unmapped any more.
            Ok(_) => ForkMark::Wiped(unsafe { &*page.into_start().as_ptr().cast::<AtomicU8>() }),
            // SAFETY: of a faster thread of this process; a mark stays mapped.
            Err(other) => ForkMark::Wiped(unsafe { &*other }),
        }
    }
}

/// A page that the kernel wipes in a forked child.
fn wiped_page() -> Result<Mapping, Errno> {
    let page = Mapping::anonymous(size_of::<AtomicU8>())?;
    page.advise(Advice::LinuxWipeOnFork).map(|()| page)
}

impl ForkMark<'_> {
    /// A mark that says "parent" in this process, by its number.
    pub fn by_pid() -> Self {
        ForkMark::Pid(getpid())
    }

    /// Fails in a forked child.
    pub fn check(self) -> Result<(), Unusable> {
        let is_parent = match self {
            // Relaxed: written before the depot existed, and a fork is ordered after that.
            ForkMark::Wiped(mark) => mark.load(Ordering::Relaxed) != 0,
            ForkMark::Pid(pid) => getpid() == pid,
        };
        is_parent.then_some(()).ok_or(Unusable::Forked)
    }

    /// Calls `write` with the parts of `bytes` bytes, a page each, as long as this is no child.
    ///
    /// A signal handler may fork above a write to memory that parent and child share, and the child
    /// go on there when the parent has written something else. So a look comes before each page: a
    /// child that is forked right after it writes one page.
    pub fn by_page(self, bytes: usize, page: PageSize, mut write: impl FnMut(Range<usize>)) {
        let parts = (0..bytes).step_by(page.bytes()).take_while(|_| self.check().is_ok());
        parts.for_each(|start| write(start..bytes.min(start + page.bytes())));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs `child` in a forked process, which ends well if that says so.
    fn does_child(child: impl FnOnce() -> bool) -> bool {
        // SAFETY: the child runs `child` and ends.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            // SAFETY: ends this child.
            unsafe { libc::_exit(i32::from(!child())) };
        }
        let mut status = 0;
        // SAFETY: waits for our child.
        assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
        status == 0
    }

    #[test]
    #[cfg_attr(miri, ignore = "forks")]
    fn each_process_has_a_mark() {
        let first = ForkMark::of_process();
        let is_parent = |mark: ForkMark<'_>| mark.check().is_ok();
        assert!(is_parent(first) && is_parent(ForkMark::of_process()));
        assert!(does_child(|| {
            let own = ForkMark::of_process();
            !is_parent(first)
                && is_parent(own)
                && does_child(|| {
                    !is_parent(own) && !is_parent(first) && is_parent(ForkMark::of_process())
                })
                && is_parent(own)
        }));
        assert!(is_parent(first));
    }
}
