//! The kernel's own page faults: mapped, touched, unmapped.

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use super::client::Client;
use crate::design::PAGE_BYTES;
use crate::names::Design;

/// See the module.
pub struct KernelFaults;

impl Client for KernelFaults {
    fn design(&self) -> Design {
        Design::Kernel
    }

    fn run(&self, _client: usize, share: u32) -> u64 {
        let bytes = share as usize * PAGE_BYTES;
        let (prot, flags) =
            (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::NORESERVE);
        // SAFETY: a new mapping, at an address of the kernel's choice.
        let start = unsafe { mmap_anonymous(std::ptr::null_mut(), bytes, prot, flags) };
        let start = start.unwrap_or_else(|e| panic!("cannot map {bytes} bytes: {e}")).cast::<u8>();
        // Base pages only. A kernel without huge pages says that it knows no such advice.
        // SAFETY: the mapping is this function's; the advice changes no contents.
        let _ = unsafe { madvise(start.cast(), bytes, Advice::LinuxNoHugepage) };
        for page in 0..share as usize {
            // SAFETY: inside the mapping.
            unsafe { start.add(page * PAGE_BYTES).write_volatile(1) };
        }
        // SAFETY: mapped above, and nothing refers to it any more.
        unsafe { munmap(start.cast(), bytes) }.expect("the mapping exists");
        u64::from(share)
    }
}
