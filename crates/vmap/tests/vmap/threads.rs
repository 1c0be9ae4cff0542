//! Concurrent threads. Each writes stamps through its mappings and reads them back through the
//! frames, while others read, list and purge everything.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use pagedepot_vmap::{Options, PurgeDepth, StaleData, VirtAddr, VmapConfig, VmapError};

use crate::paper::{ByThread, PAGE, Paged, check_all_back, own_frames, paged};

/// A small generator: no dependency on what the crates under test use.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u32) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % u64::from(n)) as u32
    }
}

fn rounds() -> u32 {
    std::env::var("PAGEDEPOT_SOAK_SECONDS").map_or(3_000, |_| 300_000)
}

enum Held {
    Memory(VirtAddr, u32),
    Area(VirtAddr),
    Mapped(VirtAddr),
    Ram(VirtAddr, u32),
}

/// One thread's work; stamps are its own, so that any overlap shows.
fn work(vmap: &Paged, number: u32, rounds: u32) {
    let mut random = Random(0x9e37_79b9_7f4a_7c15 ^ u64::from(number + 1) << 32);
    let stamp =
        |addr: VirtAddr, page: usize| u64::from(number) << 56 | (addr.get() + page * PAGE) as u64;
    let check = |addr: VirtAddr, pages: u32| {
        for page in 0..pages as usize {
            let at = addr.add(page * PAGE);
            assert_eq!(vmap.mapper().read(at), stamp(addr, page), "through the mapping");
            let frame = vmap.frame_at(at).unwrap();
            assert_eq!(vmap.mapper().contents(frame), stamp(addr, page), "through the frame");
        }
    };
    let frames = own_frames(number * 1000, 40);
    let mut held: Vec<Held> = Vec::new();
    for _ in 0..rounds {
        ByThread::run_on(random.below(3));
        if held.len() < 12 && random.below(2) == 0 {
            let pages = 1 + random.below(20);
            let new = match random.below(8) {
                0..4 => vmap.vmalloc(pages, Options::DEFAULT).map(|addr| {
                    (0..pages as usize).for_each(|page| {
                        vmap.mapper().write(addr.add(page * PAGE), stamp(addr, page));
                    });
                    Held::Memory(addr, pages)
                }),
                4..6 => vmap.alloc(pages, Options::DEFAULT).map(Held::Area),
                6 => vmap.vmap(&frames[..pages as usize], Options::DEFAULT).map(Held::Mapped),
                _ => vmap
                    .vm_map_ram(&frames[..pages as usize], Options::DEFAULT)
                    .map(|addr| Held::Ram(addr, pages)),
            };
            held.extend(new.ok());
        } else if !held.is_empty() {
            match held.swap_remove(random.below(held.len() as u32) as usize) {
                Held::Memory(addr, pages) => {
                    check(addr, pages);
                    vmap.vfree(addr).unwrap();
                }
                Held::Area(addr) => vmap.free(addr).unwrap(),
                Held::Mapped(addr) => vmap.vunmap(addr).unwrap(),
                Held::Ram(addr, pages) => vmap.vm_unmap_ram(addr, pages).unwrap(),
            }
        }
    }
    for held in held {
        match held {
            Held::Memory(addr, pages) => {
                check(addr, pages);
                vmap.vfree(addr).unwrap();
            }
            Held::Area(addr) => vmap.free(addr).unwrap(),
            Held::Mapped(addr) => vmap.vunmap(addr).unwrap(),
            Held::Ram(addr, pages) => vmap.vm_unmap_ram(addr, pages).unwrap(),
        }
    }
}

fn stress(config: &VmapConfig, threads: u32) {
    let mut vmap = paged(8000, 3000, config);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|number| {
                let vmap = &vmap;
                scope.spawn(move || work(vmap, number, rounds()))
            })
            .collect();
        scope.spawn(|| {
            let mut turn = 0;
            while !done.load(Ordering::Relaxed) {
                turn += 1;
                vmap.purge([PurgeDepth::Lazy, PurgeDepth::Decay, PurgeDepth::Everything][turn % 3]);
                assert!(vmap.areas().is_sorted_by(|a, b| a.span.start < b.span.start));
                std::thread::yield_now();
            }
        });
        let results: Vec<_> = workers.into_iter().map(|worker| worker.join()).collect();
        done.store(true, Ordering::Relaxed);
        results.into_iter().for_each(|result| result.unwrap());
    });
    vmap.validate().unwrap();
    check_all_back(&mut vmap);
}

#[test]
fn threads_with_warm_areas() {
    stress(&VmapConfig::new(2, 4000), 4);
}

#[test]
fn threads_with_early_purges_and_no_warm_areas() {
    let config = VmapConfig {
        lazy_pages_max: Some(200),
        warm_pages_max: Some(0),
        stale: StaleData::Keep,
        ..VmapConfig::new(2, 4000)
    };
    stress(&config, 4);
}

#[test]
fn of_all_threads_that_free_an_area_one_succeeds() {
    let mut vmap = paged(1000, 64, &VmapConfig::new(2, 300));
    let freed = AtomicU64::new(0);
    let slot = AtomicU64::new(0);
    let allocated = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for number in 0..3 {
            let (vmap, freed, slot, allocated) = (&vmap, &freed, &slot, &allocated);
            scope.spawn(move || {
                ByThread::run_on(number % 2);
                for round in 0..20_000 {
                    if round % 3 == number {
                        let addr = vmap.alloc(2, Options::DEFAULT).unwrap();
                        allocated.fetch_add(1, Ordering::Relaxed);
                        slot.store(addr.get() as u64, Ordering::Release);
                    }
                    let addr = slot.load(Ordering::Acquire) as usize;
                    if addr != 0 && vmap.free(VirtAddr::new(addr)).is_ok() {
                        freed.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    let census = vmap.validate().unwrap();
    assert_eq!(
        census.busy_areas,
        allocated.load(Ordering::Relaxed) - freed.load(Ordering::Relaxed)
    );
    let left: Vec<_> = vmap.areas().map(|info| info.span.start).collect();
    left.into_iter().for_each(|addr| vmap.free(addr).unwrap_or(()));
    check_all_back(&mut vmap);
}

#[test]
fn readers_never_see_another_areas_data() {
    let mut vmap =
        paged(2000, 600, &VmapConfig { stale: StaleData::Keep, ..VmapConfig::new(2, 300) });
    let done = AtomicBool::new(false);
    // The owner's area always holds its own address, or nothing; readers look while it comes and
    // goes.
    let slot = AtomicU64::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0..5_000u32 {
                let addr = vmap.vmalloc(1 + round % 5, Options::DEFAULT.zeroed()).unwrap();
                vmap.mapper().write(addr, addr.get() as u64);
                slot.store(addr.get() as u64, Ordering::Release);
                if round % 100 == 0 {
                    vmap.purge(PurgeDepth::Everything);
                }
                vmap.mapper().write(addr, 0);
                vmap.vfree(addr).unwrap();
            }
            done.store(true, Ordering::Relaxed);
        });
        scope.spawn(|| {
            ByThread::run_on(1);
            while !done.load(Ordering::Relaxed) {
                let addr = slot.load(Ordering::Acquire) as usize;
                let mut bytes = [0xee; 8];
                vmap.read_at(VirtAddr::new(addr), &mut bytes);
                let seen = u64::from_le_bytes(bytes);
                assert!(seen == 0 || seen == addr as u64, "{seen:#x} at {addr:#x}");
            }
        });
    });
    check_all_back(&mut vmap);
}

/// Each thread requests more than there are descriptors. A request that gets none fails, and in the
/// end all descriptors are back.
#[test]
fn threads_that_run_out_of_descriptors_lose_none() {
    let mut vmap = paged(10_000, 64, &VmapConfig::new(3, 60));
    let short = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for number in 0..4 {
            let (vmap, short) = (&vmap, &short);
            scope.spawn(move || {
                let mut random = Random(0x9e37_79b9_7f4a_7c15 ^ (number + 1) << 32);
                let mut held = Vec::new();
                for _ in 0..rounds() {
                    ByThread::run_on(random.below(3));
                    if random.below(3) > 0 {
                        match vmap.alloc(1 + random.below(3), Options::DEFAULT) {
                            Ok(addr) => held.push(addr),
                            Err(error) => {
                                assert_eq!(error, VmapError::NoAreas);
                                short.fetch_add(1, Ordering::Relaxed);
                            }
                        }
                    } else if !held.is_empty() {
                        let nth = random.below(held.len() as u32) as usize;
                        vmap.free(held.swap_remove(nth)).unwrap();
                    }
                }
                held.into_iter().for_each(|addr| vmap.free(addr).unwrap());
            });
        }
    });
    assert!(short.into_inner() > 0, "that was no shortage");
    check_all_back(&mut vmap);
    // All but the one that describes what is free.
    let areas: Vec<_> = std::iter::from_fn(|| vmap.alloc(3, Options::DEFAULT).ok()).collect();
    assert_eq!(areas.len(), 59);
}
