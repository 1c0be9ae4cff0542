//! Threads that allocate, write an owner's mark into each page, and check it before they free.
#![allow(dead_code)] // Each test file uses its part.

#[path = "../../../core/tests/common/marks.rs"]
pub mod marks;
#[path = "../../../core/tests/common/meetings.rs"]
pub mod meetings;
#[path = "../../../core/tests/common/pairs.rs"]
pub mod pairs;
#[path = "../../../core/tests/common/rng.rs"]
pub mod rng;
#[path = "../../../core/tests/common/skip.rs"]
pub mod skip;
#[path = "../../../core/tests/common/usage.rs"]
pub mod usage;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use pagedepot_linux::builder::{Topology, default_page_size};
use pagedepot_linux::{AllocError, CpuId, Depot, Mode, Order, Page, Scope, ZoneId};

/// A small generator (xorshift64*), so that a run can be repeated from the seed it printed.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Random(seed.max(1))
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }
}

/// A seed from the clock. It is printed, and the harness shows it when the test fails.
pub fn seed() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let seed = std::env::var("SEED")
        .ok()
        .and_then(|seed| seed.parse().ok())
        .unwrap_or(now.as_nanos() as u64);
    println!("SEED={seed}");
    seed
}

pub fn order(n: u32) -> Order {
    Order::new(n).unwrap()
}

/// Bytes of a page of a depot whose builder names no size: the system's page.
pub fn page_bytes() -> usize {
    default_page_size().bytes()
}

/// Bytes of 256 pages: a MiB where a page has 4 KiB. Depots here are as many pages whatever a page
/// is, so that orders, pageblocks of 512 pages and counts are the same everywhere.
pub fn mib() -> usize {
    256 * page_bytes()
}

/// Pages by which depots grow.
pub const UNIT_PAGES: u32 = 1 << 18;

/// Bytes by which depots grow: a GiB where a page has 4 KiB.
pub fn unit() -> usize {
    UNIT_PAGES as usize * page_bytes()
}

/// Bytes of a depot each of whose CPUs may cache as much as one of two CPUs that have `bytes`: a
/// CPU may cache an eighth of its part of the pages, and nothing if that is less than a magazine.
pub fn for_all_cpus(bytes: usize) -> usize {
    bytes / 2 * Topology::read().cpu_count().max(2) as usize
}

/// The smallest page that a depot may have, of which each carries a mark.
const MARKED_BYTES: usize = 4096;

/// Duration of a soak: `PAGEDEPOT_SOAK_SECONDS`, otherwise `short`.
pub fn soak(short: Duration) -> Duration {
    match std::env::var("PAGEDEPOT_SOAK_SECONDS") {
        Ok(seconds) => Duration::from_secs(
            seconds
                .parse()
                .expect("PAGEDEPOT_SOAK_SECONDS is a whole number of seconds, as in 600"),
        ),
        Err(_) => short,
    }
}

/// Runs this thread on one CPU; `false` when it may not.
pub fn pin(cpu: u32) -> bool {
    // SAFETY: a plain array of bits, set for the calling thread.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu as usize, &mut set);
        libc::sched_setaffinity(0, size_of_val(&set), &set) == 0
    }
}

/// Makes a system call fail, as a sandbox does; from here on, and in programs that replace this
/// one. Allocates nothing.
///
/// # Errors
/// Where filters cannot be installed.
pub fn refuse_with(call: libc::c_long, errno: i32) -> std::io::Result<()> {
    refuse_from(call, 0, 0, errno)
}

/// Makes a system call fail, as [`refuse_with`] does, if an argument of it is `least` or more.
///
/// # Errors
/// Where filters cannot be installed.
pub fn refuse_from(
    call: libc::c_long,
    argument: u32,
    least: u32,
    errno: i32,
) -> std::io::Result<()> {
    use libc::{BPF_ABS, BPF_JEQ, BPF_JGE, BPF_JMP, BPF_K, BPF_LD, BPF_RET, BPF_W};
    let op =
        |code: u32, k: u32, skip: u8| libc::sock_filter { code: code as u16, jt: 0, jf: skip, k };
    let mut filter = [
        // The first field of `struct seccomp_data`: the number.
        op(BPF_LD | BPF_W | BPF_ABS, 0, 0),
        op(BPF_JMP | BPF_JEQ | BPF_K, call as u32, 3),
        // The lower half of an argument.
        op(BPF_LD | BPF_W | BPF_ABS, 16 + 8 * argument, 0),
        op(BPF_JMP | BPF_JGE | BPF_K, least, 1),
        op(BPF_RET | BPF_K, libc::SECCOMP_RET_ERRNO | errno as u32, 0),
        op(BPF_RET | BPF_K, libc::SECCOMP_RET_ALLOW, 0),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: a filter for this process, of as many instructions as said.
    let installed = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &program) == 0
    };
    if installed { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}

/// CPUs that this process may use.
pub fn usable_cpus() -> Vec<u32> {
    // SAFETY: as in `pin`.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        assert_eq!(libc::sched_getaffinity(0, size_of_val(&set), &mut set), 0);
        (0..libc::CPU_SETSIZE as u32).filter(|&cpu| libc::CPU_ISSET(cpu as usize, &set)).collect()
    }
}

/// Bytes of the depot that are present.
pub fn present_bytes(depot: &Depot) -> usize {
    // SAFETY: it only reads a number.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
    let mut states = vec![0u8; depot.bytes() / page];
    // SAFETY: one byte per page of the depot's mapping is written.
    let result = unsafe {
        libc::mincore(depot.raw().base().as_ptr().cast(), depot.bytes(), states.as_mut_ptr())
    };
    assert_eq!(result, 0);
    states.iter().filter(|&&state| state & 1 != 0).count() * page
}

/// Writes `owner`'s mark to every frame of a block.
pub fn mark(page: &mut Page, owner: u64) {
    let mark = (owner << 32 | u64::from(page.pfn().get())).to_ne_bytes();
    for frame in page.chunks_exact_mut(MARKED_BYTES) {
        frame[..8].copy_from_slice(&mark);
        frame[MARKED_BYTES - 8..].copy_from_slice(&mark);
    }
}

/// Fails unless the block is still as [`mark`] left it.
pub fn check(page: &Page, owner: u64) {
    let mark = (owner << 32 | u64::from(page.pfn().get())).to_ne_bytes();
    for frame in page.chunks_exact(MARKED_BYTES) {
        assert!(
            frame[..8] == mark && frame[MARKED_BYTES - 8..] == mark,
            "other code wrote to {page:?} of {owner}"
        );
    }
}

/// A random order as a program might use it: mostly single pages.
fn random_order(random: &mut Random) -> Order {
    order(match random.below(64) {
        0 => 9,
        1 => 4,
        2..8 => 3,
        8..14 => 2,
        14..24 => 1,
        _ => 0,
    })
}

/// Allocates and frees until `end`, holding up to `held_max` blocks. Returns the number of
/// allocations.
pub fn work(depot: &Depot, owner: u64, seed: u64, held_max: usize, end: Instant) -> u64 {
    let mut random = Random::new(seed ^ owner.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let mut held: Vec<Page> = Vec::new();
    let mut got = 0;
    // At least one round: a busy machine may start a thread late.
    while got == 0 || Instant::now() < end {
        for _ in 0..100 {
            if held.len() < held_max && random.below(2) == 0 {
                match depot.page(random_order(&mut random)) {
                    Ok(mut page) => {
                        mark(&mut page, owner);
                        held.push(page);
                        got += 1;
                    }
                    Err(AllocError::Exhausted) => held.clear(),
                    Err(error) => panic!("{error}"),
                }
            } else if !held.is_empty() {
                let page = held.swap_remove(random.below(held.len() as u64) as usize);
                check(&page, owner);
            }
        }
    }
    held.iter().for_each(|page| check(page, owner));
    got
}

/// Stops the threads that watch the flag, also when the test fails.
pub struct StopAtEnd<'s>(pub &'s AtomicBool);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Drains, and now and then disables caches, until `stop`. Returns the pages taken.
pub fn drain(depot: &Depot, seed: u64, stop: &AtomicBool) -> u64 {
    let mut random = Random::new(seed);
    let mut taken = 0;
    while !stop.load(Ordering::Relaxed) {
        let scope = match random.below(3) {
            0 => Scope::ALL,
            cpu => Scope::cpu(CpuId::new(cpu as u32 - 1)),
        };
        let mode = [Mode::Quiet, Mode::Full, Mode::Handover][random.below(3) as usize];
        taken += depot.drain(scope, mode).taken_pages;
        if random.below(50) == 0 {
            taken += depot.cpu_caches().disable().taken_pages;
            depot.cpu_caches().enable();
        }
        if random.below(4) == 0 {
            std::thread::yield_now();
        }
    }
    taken
}

/// Runs workers and drainers for `duration`; then every page must be back.
pub fn hammer(depot: &Depot, duration: Duration) {
    let seed = seed();
    let cpus = usable_cpus();
    let end = Instant::now() + duration;
    let (stop, drained) = (AtomicBool::new(false), AtomicU64::new(0));
    let depot_ref = depot;
    std::thread::scope(|scope| {
        let workers: Vec<_> = (1..=4)
            .map(|owner| {
                let cpu = cpus[owner as usize % cpus.len()];
                scope.spawn(move || {
                    // Half of the threads are pinned to a CPU; the scheduler moves the others.
                    if owner % 2 == 0 {
                        pin(cpu);
                    }
                    work(depot_ref, owner, seed, 200, end)
                })
            })
            .collect();
        for drainer in 0..2 {
            let (stop, drained) = (&stop, &drained);
            scope.spawn(move || {
                drained.fetch_add(drain(depot_ref, seed + drainer, stop), Ordering::Relaxed)
            });
        }
        let _stop = StopAtEnd(&stop);
        let got: u64 = workers.into_iter().map(|worker| worker.join().unwrap()).sum();
        assert!(got > 0);
    });
    // Where this process may use none of the CPUs that have caches, or a CPU may not cache as much
    // as a magazine holds, there is nothing to drain.
    let zone = ZoneId::new(0);
    let high_max = depot.settings(zone).map_or(0, |settings| settings.cache_limits().high_max);
    let has_caches = |&cpu: &u32| depot.cpu_stats(CpuId::new(cpu), zone).is_some();
    let caching = cpus.into_iter().find(has_caches).filter(|_| high_max >= 63);
    // On a busy machine the drainers may not have run while pages were cached, or one may have been
    // preempted all the time between disabling and enabling. The scheduler may have kept the
    // threads off the CPUs that have caches.
    std::thread::scope(|scope| {
        scope.spawn(|| {
            assert!(caching.is_none_or(pin));
            drop(depot.page(Order::BASE).unwrap());
        });
    });
    let last = depot.drain(Scope::ALL, Mode::Full).taken_pages;
    assert!(drained.into_inner() + last > 0 || caching.is_none());
    all_back(depot);
}

/// Checks that every page is free or cached, and none out of a full drain's reach.
pub fn all_back(depot: &Depot) {
    depot.drain(Scope::ALL, Mode::Full);
    let census = depot.validate().unwrap();
    assert_eq!(census.held_pages(), 0, "{census:?}");
    assert_eq!(census.managed_pages as usize * depot.page_size().bytes(), depot.bytes());
}

/// Runs `child` in a forked process; fails unless it returns.
pub fn in_child(child: impl FnOnce()) {
    // SAFETY: the child runs `child` and ends. glibc lets a forked child of a program with threads
    // allocate; nothing else here holds locks.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(child));
        // SAFETY: ends the child without running the parent's destructors.
        unsafe { libc::_exit(if result.is_ok() { 0 } else { 1 }) };
    }
    assert!(pid > 0);
    let mut status = 0;
    // SAFETY: waits for our child.
    assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
    assert!(
        libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0,
        "the child failed: {status:#x}"
    );
}
