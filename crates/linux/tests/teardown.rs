//! The last handle and the last page: who unmaps, how often, and that nothing uses a depot after.

mod common;

use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier, Mutex, MutexGuard, PoisonError, mpsc};

use common::{Random, in_child, mib, order, page_bytes, usable_cpus};
use pagedepot_linux::reclaim::{Move, Mover, Occupant};
use pagedepot_linux::{
    AllocError, CpuId, Depot, Flags, MemoryKind, Movable, Order, Page, Pages, Pfn, Vmalloc,
};

/// Tests look at addresses that another test's depot might be given.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether the page at an address is mapped.
fn is_mapped(address: usize) -> bool {
    let mut state = [0u8; 1];
    // SAFETY: looks at the mapping of one page, and writes one byte.
    unsafe { libc::mincore(address as *mut _, 1, state.as_mut_ptr()) == 0 }
}

fn base(depot: &Depot) -> usize {
    depot.raw().base().as_ptr().addr()
}

fn kinds() -> impl Iterator<Item = Depot> {
    let all = [
        Depot::builder(16 * mib()),
        Depot::builder(16 * mib()).per_cpu_locks(true),
        Depot::builder(16 * mib()).isolated_cpus([CpuId::new(1)].into_iter().collect()),
        Depot::builder(16 * mib()).checked(true),
        Depot::builder(16 * mib()).caches(false),
        Depot::builder(16 * mib()).memory(MemoryKind::Memfd),
    ];
    all.into_iter().map(|builder| builder.build().unwrap())
}

#[test]
fn the_last_handle_unmaps_when_no_page_is_out() {
    let _alone = alone();
    for depot in kinds() {
        let base = base(&depot);
        // Some in caches, of several orders, and some carved.
        for n in [0, 1, 3, 4, 9, 10] {
            drop((0..3).map_while(|_| depot.page(order(n)).ok()).collect::<Vec<_>>());
        }
        drop((0..4000).map_while(|_| depot.page(Order::BASE).ok()).collect::<Vec<_>>());
        let other = depot.clone();
        drop(depot);
        assert!(is_mapped(base) && other.page(Order::BASE).is_ok());
        drop(other);
        assert!(!is_mapped(base));
    }
}

#[test]
fn the_last_page_unmaps() {
    let _alone = alone();
    for depot in kinds() {
        let base = base(&depot);
        let mut pages: Vec<Page> = depot.alloc_pages(Order::BASE, 500).unwrap().collect();
        let large = depot.page(order(5)).unwrap();
        let run: Pages = depot.pages(300, Flags::default()).unwrap();
        let parts = depot.page(order(3)).unwrap().split(order(1)).unwrap();
        pages.iter_mut().for_each(|page| page.fill(7));
        drop(depot);
        // A block is split, and parts are taken, without a handle.
        let mut parts = parts.chain(large.split(order(2)).unwrap());
        assert_eq!(parts.next().unwrap().len(), 2 * page_bytes());
        drop(parts);
        drop(run);
        let last = pages.pop().unwrap();
        assert!(pages.iter().all(|page| page.iter().all(|&byte| byte == 7)));
        std::thread::spawn(move || drop(pages)).join().unwrap();
        assert!(is_mapped(base) && last.iter().all(|&byte| byte == 7));
        drop(last);
        assert!(!is_mapped(base));
    }
}

#[test]
fn a_forgotten_page_keeps_the_memory_until_it_is_told_otherwise() {
    let _alone = alone();
    let depot = Depot::new(mib()).unwrap();
    let base = base(&depot);
    std::mem::forget(depot.page(Order::BASE).unwrap());
    let other = depot.clone();
    // SAFETY: refused, as is checked.
    let depot = unsafe { depot.unmap() }.unwrap_err();
    drop(other);
    // SAFETY: nothing uses the page that was forgotten.
    unsafe { depot.unmap() }.unwrap();
    assert!(!is_mapped(base));
}

/// A program's mover owns pages, movable ones too, and goes with the last handle.
#[test]
fn a_mover_goes_with_the_last_handle() {
    struct Owner {
        movable: Mutex<Option<Movable>>,
        _page: Page,
        _alive: Arc<()>,
    }
    impl Mover for Owner {
        fn occupant(&self, _: Pfn) -> Occupant {
            drop(self.movable.lock().unwrap().take());
            Occupant::Unknown
        }

        fn move_blocks(&self, moves: &mut [Move]) {
            moves.iter_mut().for_each(Move::gone);
        }
    }
    let _alone = alone();
    for depot in kinds() {
        let (base, alive) = (base(&depot), Arc::new(()));
        let movable = depot.movable(order(3), Flags::default()).unwrap();
        let page = depot.page(Order::BASE).unwrap();
        let owner =
            Owner { movable: Mutex::new(Some(movable)), _page: page, _alive: alive.clone() };
        // SAFETY: it moves nothing.
        unsafe { depot.raw().register_mover(Arc::new(owner)) }.unwrap();
        drop(depot);
        assert_eq!((Arc::strong_count(&alive), is_mapped(base)), (1, false));
    }
}

/// The pages of a callback, and the callback itself, are not what keeps a depot mapped.
#[test]
fn callbacks_go_with_the_last_handle() {
    let _alone = alone();
    let depot = Depot::new(16 * mib()).unwrap();
    let base = base(&depot);
    let cache: Mutex<Vec<Page>> =
        Mutex::new(depot.alloc_pages(Order::BASE, 100).unwrap().collect());
    let (alive, weak) = (Arc::new(()), depot.downgrade());
    let held = alive.clone();
    depot
        .on_pressure(move |_| {
            let _ = (&held, weak.upgrade());
            cache.lock().unwrap().drain(..).count() as u64
        })
        .unwrap();
    let weak = depot.downgrade();
    assert_eq!(weak.upgrade(), Some(depot.clone()));
    drop(depot);
    assert_eq!((Arc::strong_count(&alive), is_mapped(base)), (1, false));
    assert!(weak.upgrade().is_none());
}

/// Threads drop pages, of all ways to be freed, while the last handle goes; round after round.
#[test]
fn pages_are_dropped_while_the_last_handle_goes() {
    let _alone = alone();
    let seed = common::seed();
    let (cpus, unmapped) = (usable_cpus(), AtomicU64::new(0));
    let rounds = if cfg!(debug_assertions) { 300 } else { 1000 };
    for round in 0..rounds {
        let mut builder = Depot::builder(8 * mib()).per_cpu_locks(round % 4 == 3);
        if round % 4 == 1 {
            builder = builder.isolated_cpus([CpuId::new(1)].into_iter().collect());
        }
        let depot = builder.checked(round % 5 == 4).build().unwrap();
        let (base, threads) = (base(&depot), 3);
        let barrier = Barrier::new(threads + 1);
        let mut random = Random::new(seed + round);
        let hands: Vec<Vec<Page>> = (0..threads)
            .map(|_| {
                let pages = random.below(150) as usize;
                (0..pages).map_while(|_| depot.page(order(random.below(5) as u32)).ok()).collect()
            })
            .collect();
        std::thread::scope(|scope| {
            for (nth, pages) in hands.into_iter().enumerate() {
                let (barrier, cpu) = (&barrier, cpus[nth % cpus.len()]);
                let pause = random.below(200);
                scope.spawn(move || {
                    common::pin(cpu);
                    barrier.wait();
                    (0..pause).for_each(|_| std::hint::spin_loop());
                    for page in pages {
                        assert_eq!(page.len(), page_bytes() << page.order().get());
                        drop(page);
                    }
                });
            }
            barrier.wait();
            (0..random.below(400)).for_each(|_| std::hint::spin_loop());
            drop(depot);
        });
        // All threads have ended: one of them unmapped. (Another mapping may be there by now.)
        unmapped.fetch_add(u64::from(!is_mapped(base)), Ordering::Relaxed);
    }
    assert!(unmapped.into_inner() > rounds * 9 / 10, "of {rounds} depots");
}

/// The counts: what is out when the handle goes is what late frees count, whatever happened before.
#[test]
fn pages_go_round_between_threads_until_the_end() {
    let _alone = alone();
    let cpus = usable_cpus();
    for depot in kinds() {
        let base = base(&depot);
        std::thread::scope(|scope| {
            let (give, take) = mpsc::sync_channel::<Page>(256);
            let handles = [depot.clone(), depot.clone()];
            for (nth, handle) in handles.into_iter().enumerate() {
                let (give, cpu) = (give.clone(), cpus[nth % cpus.len()]);
                scope.spawn(move || {
                    common::pin(cpu);
                    for n in 0..20_000u32 {
                        match handle.page(order(n % 4)) {
                            Ok(page) => give.send(page).unwrap(),
                            Err(AllocError::Exhausted) => std::thread::yield_now(),
                            Err(error) => panic!("{error}"),
                        }
                    }
                    // The handle goes here; its pages are still on their way.
                });
            }
            drop((give, depot));
            scope.spawn(move || take.into_iter().for_each(drop));
        });
        assert!(!is_mapped(base));
    }
}

#[test]
fn a_childs_drops_do_nothing() {
    let _alone = alone();
    for depot in kinds() {
        let base = base(&depot);
        let (page, run) = (depot.page(Order::BASE).unwrap(), depot.page(order(6)).unwrap());
        let mut values = Some((depot, page, run));
        in_child(|| {
            let (depot, page, run) = values.take().unwrap();
            drop(page);
            drop(depot);
            assert!(is_mapped(base));
            drop(run);
            assert!(is_mapped(base), "a child unmaps nothing");
        });
        let (depot, page, run) = values.take().unwrap();
        // Forked between the last handle and the last page.
        drop(depot);
        let mut rest = Some((page, run));
        in_child(|| {
            drop(rest.take());
            assert!(is_mapped(base), "a child unmaps nothing");
        });
        drop(rest);
        assert!(!is_mapped(base));
    }
}

#[test]
fn buffers_outlive_their_space_and_their_depot() {
    let _alone = alone();
    let depot = Depot::builder(16 * mib()).memory(MemoryKind::Memfd).build().unwrap();
    let base = base(&depot);
    let space = Vmalloc::new(&depot).unwrap();
    let mut buf = space.buf(10 * page_bytes()).unwrap();
    let mut empty = space.empty();
    drop((depot, space));
    buf.fill(3);
    buf.grow(100 * page_bytes()).unwrap();
    empty.grow(1).unwrap();
    let sent = std::thread::spawn(move || {
        assert!(buf[..40_960].iter().all(|&byte| byte == 3));
        empty.len()
    });
    assert_eq!(sent.join().unwrap(), page_bytes());
    assert!(!is_mapped(base));
}

#[test]
fn pages_compare_and_hash_as_bytes() {
    let _alone = alone();
    let depot = Depot::new(mib()).unwrap();
    let page = |byte| {
        let mut page = depot.page(Order::BASE).unwrap();
        page.fill(byte);
        page
    };
    let set: HashSet<Page> = [page(1), page(2), page(1)].into_iter().collect();
    assert_eq!(set.len(), 2);
    assert!(set.contains(&vec![2u8; page_bytes()][..]) && page(1) < page(2));
}

#[test]
fn all_of_it_can_be_stored_and_sent() {
    use std::panic::{RefUnwindSafe, UnwindSafe};
    fn stored<T: Send + Sync + UnwindSafe + RefUnwindSafe + 'static>() {}
    stored::<Depot>();
    stored::<Page>();
    stored::<Pages>();
    stored::<pagedepot_linux::PageBatch>();
    stored::<Vmalloc>();
    stored::<pagedepot_linux::VmallocBuf>();
}
