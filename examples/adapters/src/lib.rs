//! pagedepot behind the interfaces of other kernels' crates. Each file stands alone: copy it.
//!
//! | module | interface | of |
//! |---|---|---|
//! | [`x86`] | `FrameAllocator`, `FrameDeallocator` | the crate `x86_64`, and kernels that use its page tables |
//! | [`arceos`] | `PageAllocator` | `ax-allocator`, ArceOS and its relatives |
//! | [`hermit`] | the methods of `FreeList` | `free-list`, Hermit |
//!
//! Those interfaces take `&mut self`, because they were made for allocators with one lock.
//! pagedepot needs none: each adapter holds a shared reference, so give every CPU a value of its
//! own, and drop the lock.
#![cfg_attr(not(test), no_std)]

pub mod arceos;
pub mod hermit;
#[cfg(target_arch = "x86_64")]
pub mod x86;

use pagedepot::cpus::Cpus;
use pagedepot::{Allocator, Pfn};

/// Pages of all zones: (free or cached, all).
fn pages<C: Cpus>(depot: &Allocator<'_, C>) -> (usize, usize) {
    let zones = depot.zone_ids().filter_map(|zone| depot.zone_stats(zone));
    zones.fold((0, 0), |(free, all), zone| {
        (free + (zone.free_pages + zone.cached_pages) as usize, all + zone.managed_pages as usize)
    })
}

/// The frame at an address; `None` where frames have no numbers, or between two.
fn pfn_at(addr: usize, page_bytes: usize) -> Option<Pfn> {
    addr.is_multiple_of(page_bytes).then(|| Pfn::try_from(addr / page_bytes).ok())?
}

#[cfg(test)]
mod tests {
    use core::mem::MaybeUninit;

    use ax_allocator::{BaseAllocator as _, PageAllocator as _};
    use free_list::PageLayout;
    use pagedepot::cpus::{CpuLock, Environment, LockedCpus, WhichCpu};
    use pagedepot::{Config, CpuId, FrameRange, Mobility, NodeId, Pfn, Watermarks, ZoneConfig};
    use x86_64::structures::paging::{
        FrameAllocator as _, FrameDeallocator as _, PhysFrame, Size2MiB, Size4KiB,
    };

    use super::*;

    struct First;
    impl Environment for First {}
    impl WhichCpu for First {
        fn cpu(&self) -> Option<CpuId> {
            Some(CpuId::new(0))
        }
    }

    const FRAMES: usize = 2048;
    const PAGE: usize = 4096;

    /// Runs `test` on a depot of 2048 frames from 2 MiB, which has all of them again afterwards.
    fn with_depot(test: impl FnOnce(&Allocator<'_, LockedCpus<'_, First>>)) {
        let ranges = [FrameRange::new(Pfn::new(512), FRAMES as u32)];
        let none = Some(Watermarks { min: 0, low: 0, high: 0 });
        let zones = [ZoneConfig {
            name: "Normal",
            node: NodeId::new(0),
            level: 2,
            ranges: &ranges,
            watermarks: none,
        }];
        let config = Config::new(1, &zones);
        let bytes = Allocator::<LockedCpus<'_, First>>::metadata_bytes(&config).unwrap();
        let (mut metadata, locks) = (vec![MaybeUninit::uninit(); bytes], [CpuLock::new()]);
        let depot = Allocator::new(&config, &mut metadata, LockedCpus::new(&locks, First)).unwrap();
        test(&depot);
        assert_eq!(pages(&depot), (FRAMES, FRAMES));
        depot.validate_at_rest().unwrap();
    }

    #[test]
    fn x86_frames_of_each_size() {
        with_depot(|depot| {
            let mut frames = x86::Frames { depot, mobility: Mobility::Unmovable };
            let small: PhysFrame<Size4KiB> = frames.allocate_frame().unwrap();
            let large: Vec<PhysFrame<Size2MiB>> =
                core::iter::from_fn(|| frames.allocate_frame()).collect();
            assert_eq!(large.len(), FRAMES / 512 - 1, "the small one is in the way of one");
            // SAFETY: nothing uses them.
            unsafe {
                frames.deallocate_frame(small);
                large.into_iter().for_each(|frame| frames.deallocate_frame(frame));
            }
        });
    }

    #[test]
    fn arceos_pages() {
        with_depot(|depot| {
            let mut pages = arceos::Pages::new(depot);
            let run = pages.alloc_pages(5, 4 * PAGE).unwrap();
            assert!(run.is_multiple_of(4 * PAGE));
            let base = (512 + 1024) * PAGE;
            assert_eq!(pages.alloc_pages_at(base, 7, PAGE).unwrap(), base);
            assert!(pages.alloc_pages_at(base + PAGE, 1, PAGE).is_err(), "in use");
            assert!(pages.alloc_pages_at(base + 1, 1, PAGE).is_err(), "no page");
            assert_eq!((pages.used_pages(), pages.total_pages()), (12, FRAMES));
            assert_eq!(pages.available_pages(), FRAMES - 12);
            assert!(pages.alloc_pages(FRAMES, PAGE).is_err());
            assert!(pages.alloc_pages(1, 3 * PAGE).is_err(), "no power of two");
            assert!(pages.alloc_pages(1, PAGE + PAGE / 2).is_err(), "no power of two");
            // A gibibyte that has memory: all that is wrong is half of a page.
            let size = 512 * PAGE + PAGE / 2;
            assert!(pages.add_memory((512 + FRAMES) * PAGE, size).is_err(), "no pages");
            assert!(pages.add_memory(512 * PAGE, 512 * PAGE).is_err(), "there already");
            pages.dealloc_pages(base, 7);
            pages.dealloc_pages(run, 5);
        });
    }

    #[test]
    fn hermit_ranges_are_freed_in_parts() {
        with_depot(|depot| {
            let list = hermit::PhysicalPages::new(depot);
            let layout = PageLayout::from_size_align(12 * PAGE, 4 * PAGE).unwrap();
            let range = list.allocate(layout).unwrap();
            assert_eq!(list.free_space(), (FRAMES - 12) * PAGE);
            assert_eq!(list.allocate_at(range), Err(hermit::AllocError), "in use");
            let middle = range.start() + 5 * PAGE;
            let part = |start, end| free_list::PageRange::new(start, end).unwrap();
            // SAFETY: nothing uses them.
            unsafe {
                list.deallocate(part(range.start(), middle)).unwrap();
                list.deallocate(part(middle, range.end())).unwrap();
                let beyond = part((512 + FRAMES) * PAGE, (513 + FRAMES) * PAGE);
                assert_eq!(list.deallocate(beyond), Err(hermit::Refused(beyond)));
            }
        });
    }
}
