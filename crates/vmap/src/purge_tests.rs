//! Purges under memory pressure, on top of a thread that holds a lock, or beside one that was
//! stopped with it: bounded, and nothing is lost.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::mem::MaybeUninit;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

use crate::lock::NAPS;
use crate::{Host, NullMapper, Options, PurgeDepth, Span, VirtAddr, Vmap, VmapConfig};
use pagedepot::{AllocError, CpuId, Flags, FreeManyError, Order, PageSize, Pfn, ZoneId};
use pagedepot::{Pressure, Reclaim};

const PAGES: u32 = 4096;
const ALL: Pressure =
    Pressure { zone: ZoneId::new(0), wanted_pages: u64::MAX, is_last_resort: true };

/// A host whose frames are mere numbers. Tests set the name of the thread.
struct Numbers {
    next: AtomicU32,
    held: AtomicUsize,
    naps: AtomicU32,
    name: AtomicUsize,
    on_nap: Cell<Option<fn()>>,
}

impl Numbers {
    fn named(name: usize) -> Self {
        Numbers {
            next: AtomicU32::new(2),
            held: AtomicUsize::new(0),
            naps: AtomicU32::new(0),
            name: AtomicUsize::new(name),
            on_nap: Cell::new(None),
        }
    }
}

// SAFETY: one test thread uses `on_nap`.
unsafe impl Sync for Numbers {}

// SAFETY: no number is handed out twice, and nothing is reached through one.
unsafe impl Host for &Numbers {
    fn cpu(&self) -> Option<CpuId> {
        Some(CpuId::new(0))
    }

    fn alloc_block(&self, _order: Order, _flags: Flags) -> Result<Pfn, AllocError> {
        Err(AllocError::Exhausted)
    }

    fn alloc_frames(&self, _flags: Flags, out: &mut [Pfn]) -> Result<usize, AllocError> {
        out[0] = Pfn::new(self.next.fetch_add(2, Ordering::Relaxed));
        self.held.fetch_add(1, Ordering::Relaxed);
        Ok(1)
    }

    unsafe fn free_blocks(&self, blocks: &[(Pfn, Order)]) -> Result<(), FreeManyError> {
        let frames: u32 = blocks.iter().map(|(_, order)| order.frames()).sum();
        self.held.fetch_sub(frames as usize, Ordering::Relaxed);
        Ok(())
    }

    fn wait(&self, _word: &AtomicU32, _seen: u32) {
        panic!("a wait without bounds");
    }

    fn wait_at_most(&self, _word: &AtomicU32, _seen: u32, _limit_ms: u32) {
        self.naps.fetch_add(1, Ordering::Relaxed);
        if let Some(call) = self.on_nap.get() {
            call();
        }
    }

    fn caller(&self) -> Option<NonZeroUsize> {
        NonZeroUsize::new(self.name.load(Ordering::Relaxed))
    }
}

type Metadata<'m> = Vmap<'m, NullMapper, &'m Numbers>;

/// Calls `test` with something lazy, something pooled and a short-lived mapping, of 60
/// frames in all; afterwards everything must be free.
fn with_freed(test: impl FnOnce(&mut Metadata<'_>, &Numbers)) {
    let host = Numbers::named(1);
    let config = VmapConfig::new(1, 200);
    let mapper = NullMapper::new(Span::new(VirtAddr::new(1 << 30), PAGES), PageSize::Kib4);
    let bytes = Metadata::metadata_bytes(&config, &mapper).unwrap();
    let mut memory = vec![MaybeUninit::uninit(); bytes];
    // SAFETY: nothing is reached through the numbers.
    let mut vmap = unsafe { Vmap::new(&config, &mut memory, mapper, &host) }.unwrap();
    for pages in [1, 4, 10, 15] {
        let areas = [0; 2].map(|_| vmap.vmalloc(pages, Options::DEFAULT).unwrap());
        areas.into_iter().for_each(|area| vmap.vfree(area).unwrap());
    }
    let ram = vmap.vm_map_ram(&[Pfn::new(7)], Options::DEFAULT).unwrap();
    vmap.vm_unmap_ram(ram, 1).unwrap();
    assert_eq!(host.held.load(Ordering::Relaxed), 60);
    test(&mut vmap, &host);
    host.name.store(1, Ordering::Relaxed);
    vmap.validate().unwrap();
    vmap.purge(PurgeDepth::Everything);
    let census = vmap.validate().unwrap();
    assert_eq!((census.free_pages, census.lazy_pages), (u64::from(PAGES), 0));
    assert_eq!(host.held.load(Ordering::Relaxed), 0);
}

fn naps(host: &Numbers) -> u32 {
    host.naps.swap(0, Ordering::Relaxed)
}

#[test]
fn with_all_locks_free_everything_comes_back() {
    with_freed(|vmap, host| {
        assert_eq!((vmap.reclaim(ALL), naps(host)), (60, 0));
        assert_eq!(vmap.validate().unwrap().lazy_pages, 0);
    });
}

/// A signal handler on top of a purge.
#[test]
fn nothing_is_purged_on_top_of_a_purge() {
    with_freed(|vmap, host| {
        let purging = vmap.state().purge_lock().lock(vmap.host());
        assert_eq!((vmap.reclaim(ALL), naps(host)), (0, 0));
        assert_eq!(vmap.reclaim(Pressure { is_last_resort: false, ..ALL }), 0);
        drop(purging);
        assert_eq!((vmap.reclaim(ALL), naps(host)), (60, 0));
    });
}

/// A signal handler on top of code that has the space's lock: frames come back, addresses later.
#[test]
fn frames_come_back_on_top_of_the_space_lock() {
    with_freed(|vmap, host| {
        let space = vmap.state().lock_space();
        assert_eq!((vmap.reclaim(ALL), naps(host)), (60, 0));
        // Once more: what is lazy has no frames.
        assert_eq!((vmap.reclaim(ALL), naps(host)), (0, 0));
        drop(space);
        assert!(vmap.validate().unwrap().lazy_pages > 0);
    });
}

/// Checks bounded waiting beside a thread that was stopped with the lock.
#[test]
fn locks_of_other_threads_are_waited_for_in_bounds() {
    for nameless in [false, true] {
        with_freed(|vmap, host| {
            let purging = vmap.state().purge_lock().lock(vmap.host());
            host.name.store(if nameless { 0 } else { 2 }, Ordering::Relaxed);
            assert_eq!((vmap.reclaim(ALL), naps(host)), (0, NAPS));
            drop(purging);
            let space = vmap.state().lock_space();
            host.name.store(if nameless { 0 } else { 3 }, Ordering::Relaxed);
            assert_eq!((vmap.reclaim(ALL), naps(host)), (60, NAPS));
            drop(space);
        });
    }
}

/// A holder that goes on meanwhile.
#[test]
fn a_lock_that_comes_free_is_taken() {
    static IS_HELD: AtomicBool = AtomicBool::new(false);
    with_freed(|vmap, host| {
        let lock = vmap.state().purge_lock();
        std::thread::scope(|scope| {
            let holder = Numbers::named(2);
            scope.spawn(move || {
                let holder = &holder;
                let _purging = lock.lock(&holder);
                IS_HELD.store(true, Ordering::Release);
                while IS_HELD.load(Ordering::Acquire) {
                    std::thread::yield_now();
                }
            });
            while !IS_HELD.load(Ordering::Acquire) {
                std::thread::yield_now();
            }
            host.on_nap.set(Some(|| {
                IS_HELD.store(false, Ordering::Release);
                std::thread::sleep(std::time::Duration::from_millis(10));
            }));
            assert_eq!(vmap.reclaim(ALL), 60);
        });
        assert!(naps(host) > 0);
    });
}
