//! Confined processes: not enough addresses, no files, system calls that a sandbox refuses, one
//! CPU. A depot either works as well as it can, or its error says what to do.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use common::skip::skip;
use common::{in_child, mib, page_bytes, unit};
use pagedepot_linux::builder::{CpuSet, Limit};
use pagedepot_linux::stats::Fronts;
use pagedepot_linux::vmalloc::{PurgeDepth, Vmalloc, VmallocBuildError};
use pagedepot_linux::{BuildError, CpuId, Depot, MemoryKind, Mode, Order, Scope, ZoneId};
use rustix::process::{Resource, Rlimit, setrlimit};

const MIB: usize = 1 << 20;

fn limit(resource: Resource, bytes: u64) {
    setrlimit(resource, Rlimit { current: Some(bytes), maximum: Some(bytes) }).unwrap();
}

/// Bytes of addresses in use.
fn address_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').next().unwrap().parse::<u64>().unwrap() * rustix::param::page_size() as u64
}

/// Makes a system call fail with `EPERM`, as a sandbox does. With `argument`, only calls whose
/// third argument is this one fail.
fn refuse(call: libc::c_long, argument: Option<u32>) {
    use libc::{BPF_ABS, BPF_JEQ, BPF_JMP, BPF_K, BPF_LD, BPF_RET, BPF_W};
    let op =
        |code: u32, k: u32, skip: u8| libc::sock_filter { code: code as u16, jt: 0, jf: skip, k };
    // Of `struct seccomp_data`: the number, and the lower half of the third argument.
    let (number, third) = (0, 16 + 2 * 8);
    let load = |from| op(BPF_LD | BPF_W | BPF_ABS, from, 0);
    let unless = |is, skip| op(BPF_JMP | BPF_JEQ | BPF_K, is, skip);
    let refused = op(BPF_RET | BPF_K, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32, 0);
    let allowed = op(BPF_RET | BPF_K, libc::SECCOMP_RET_ALLOW, 0);
    let mut filter = match argument {
        None => vec![load(number), unless(call as u32, 1), refused, allowed],
        Some(is) => {
            vec![load(number), unless(call as u32, 3), load(third), unless(is, 1), refused, allowed]
        }
    };
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: a filter for this process, of as many instructions as said.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &program), 0);
    }
}

#[test]
fn too_few_addresses() {
    in_child(|| {
        // A range of addresses has a page table at least.
        let table = page_bytes() / 8 * page_bytes();
        limit(Resource::As, address_bytes() + (256 * MIB + table) as u64);
        // A build that failed leaves nothing behind, or the addresses would run out.
        for _ in 0..1000 {
            let error = Depot::new(300 * MIB + table).map(|depot| depot.bytes()).unwrap_err();
            let limit = limit_of(error);
            assert!(matches!(limit, Some(Limit::Addresses(_))), "{error:?}");
            assert!(error.to_string().contains("ulimit -v"), "{error}");
        }
        let depot = Arc::new(Depot::builder(64 * MIB).memory(MemoryKind::Memfd).build().unwrap());
        for _ in 0..1000 {
            let error = Vmalloc::builder(&depot).bytes(512 * MIB + table).build().err().unwrap();
            assert!(matches!(error, VmallocBuildError::Limit { .. }), "{error:?}");
            let text = error.to_string();
            assert!(text.contains("ulimit -v") && text.contains("smaller range"), "{text}");
        }
        let space = Vmalloc::builder(&depot).bytes(16 * MIB).build().unwrap();
        space.buf(MIB).unwrap().fill(1);
        drop(space);
        common::all_back(&depot);
    });
}

/// The limit that an error names.
fn limit_of(error: BuildError) -> Option<Limit> {
    match error {
        BuildError::Limit { limit, .. } => Some(limit),
        _ => None,
    }
}

/// A depot that fits below the limit is made, even where addresses to align it by do not fit, and
/// is aligned all the same.
#[test]
fn addresses_for_the_memory_alone() {
    in_child(|| {
        limit(Resource::As, address_bytes() + 360 * MIB as u64);
        for kind in [MemoryKind::Anonymous, MemoryKind::Memfd] {
            let depot = Depot::builder(300 * MIB).memory(kind).build().unwrap();
            assert_eq!(depot.raw().base().as_ptr().addr() % (512 * MIB), 0);
            common::all_back(&depot);
        }
    });
}

/// A file that would be larger than the process may make it ends the process by a signal, and an
/// error comes instead.
#[test]
fn too_large_a_file() {
    in_child(|| {
        limit(Resource::Fsize, 32 * MIB as u64);
        let build = |mib| Depot::builder(mib * MIB).memory(MemoryKind::Memfd).build();
        let error = build(33).map(|depot| depot.bytes()).unwrap_err();
        assert!(matches!(error, BuildError::File { .. }), "{error:?}");
        assert!(error.to_string().contains("ulimit -f"), "{error}");
        common::all_back(&build(32).unwrap());
        common::all_back(&Depot::new(64 * MIB).unwrap());
    });
}

/// Private memory counts as data, that of a depot and that of its metadata.
#[test]
fn too_little_data() {
    in_child(|| {
        let kind = MemoryKind::Memfd;
        let depot = match Depot::builder(MIB).grow_to(16 * unit()).memory(kind).build() {
            Err(BuildError::Limit { limit: Limit::System(_), .. }) => {
                return skip("the system has less than sixteen units");
            }
            built => built.unwrap(),
        };
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let used = status.lines().find_map(|line| line.strip_prefix("VmData:")).unwrap();
        let used_kib: u64 = used.trim_end_matches("kB").trim().parse().unwrap();
        let most = (used_kib + 128) * 1024;
        limit(Resource::Data, most);
        let refused = |error: BuildError| {
            assert_eq!(limit_of(error), Some(Limit::Data(most)), "{error:?}");
            let text = error.to_string();
            assert!(text.contains("ulimit -d") && text.contains("MemoryKind::Memfd"), "{text}");
        };
        refused(depot.grow(ZoneId::new(0), 15 * unit()).unwrap_err());
        refused(Depot::new(128 * MIB).map(|depot| depot.bytes()).unwrap_err());
    });
}

const MCL_ONFAULT: i32 = 4;

/// A process that locks all that it will map: what is reserved counts for nothing, and what is
/// mapped must fit.
#[test]
fn locked_memory() {
    in_child(|| {
        // SAFETY: ids of this child, which loses the right to lock at will with them.
        let _ = unsafe { libc::setresuid(65_534, 65_534, 65_534) };
        limit(Resource::Memlock, 8 * MIB as u64);
        // SAFETY: this child's own memory, from now on.
        if unsafe { libc::mlockall(libc::MCL_FUTURE | MCL_ONFAULT) } != 0 {
            return skip("no MCL_ONFAULT");
        }
        for kind in [MemoryKind::Anonymous, MemoryKind::Memfd] {
            let depot = Depot::builder(4 * MIB).memory(kind).build().unwrap();
            assert_eq!(depot.raw().base().as_ptr().addr() % (4 * MIB), 0);
            assert!(locked_bytes() >= 4 * MIB as u64, "{} bytes are locked", locked_bytes());
            let pages = 4 * MIB / page_bytes();
            assert_eq!(depot.alloc_pages(Order::BASE, pages).unwrap().len(), pages);
            common::all_back(&depot);
            drop(depot);
            let error = Depot::builder(16 * MIB).memory(kind).build().map(|depot| depot.bytes());
            let error = error.unwrap_err();
            assert_eq!(limit_of(error), Some(Limit::Locked(8 * MIB as u64)), "{error:?}");
            assert!(error.to_string().contains("ulimit -l"), "{error}");
        }
    });
}

/// Bytes that this process has locked.
fn locked_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let kib = status.lines().find_map(|line| line.strip_prefix("VmLck:")).unwrap();
    kib.trim_end_matches("kB").trim().parse::<u64>().unwrap() * 1024
}

/// A process that locks what it has mapped, and nothing that it maps later. What a depot grows into
/// is mapped later.
#[test]
fn memory_that_is_added_is_not_locked() {
    in_child(|| {
        let depot = Depot::builder(unit()).grow_to(2 * unit()).build().unwrap();
        // SAFETY: this child's own memory.
        if unsafe { libc::mlockall(libc::MCL_CURRENT | MCL_ONFAULT) } != 0 {
            return skip("no right to lock as much");
        }
        let before = locked_bytes();
        depot.grow(ZoneId::new(0), unit()).unwrap();
        let after = locked_bytes();
        assert!(after <= before - unit() as u64, "{after} of {before} bytes are locked");
    });
}

/// A range of addresses is larger than what the process may lock. Its addresses count for nothing,
/// from the beginning and after areas were there; so its mappings stay joined.
#[test]
fn locked_memory_and_a_range_of_addresses() {
    in_child(|| {
        let depot = Depot::builder(4 * MIB).memory(MemoryKind::Memfd).build().unwrap();
        // SAFETY: ids of this child, which loses the right to lock at will with them.
        let _ = unsafe { libc::setresuid(65_534, 65_534, 65_534) };
        limit(Resource::Memlock, 8 * MIB as u64);
        // SAFETY: this child's own memory, from now on.
        if unsafe { libc::mlockall(libc::MCL_FUTURE | MCL_ONFAULT) } != 0 {
            return skip("no MCL_ONFAULT");
        }
        let space = Vmalloc::builder(&depot).bytes(256 * MIB).areas_max(1000).build().unwrap();
        let made = locked_bytes();
        assert!(made < 4 * MIB as u64, "{made} bytes are locked");
        for _ in 0..3 {
            let areas: Vec<_> = (0..16).map(|_| space.buf(64 << 10).unwrap()).collect();
            assert!(locked_bytes() >= made + (1 << 20), "areas are memory");
            drop(areas);
            space.purge(PurgeDepth::Everything);
            assert!(locked_bytes() <= made + (64 << 10), "{} and {made}", locked_bytes());
        }
    });
}

/// Checks that the error names the limit where no mapping is left, and that a depot is complete or
/// refused where a few are left.
#[test]
fn too_many_mappings() {
    in_child(|| {
        let whole = Depot::new(MIB).unwrap().fronts();
        let page = rustix::param::page_size();
        let pages = 1 << 18;
        // SAFETY: a mapping of this child's own, and its pages, which nothing uses.
        let protect = |at: usize, how: libc::c_int| unsafe {
            static START: AtomicUsize = AtomicUsize::new(0);
            if START.load(Ordering::Relaxed) == 0 {
                let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
                let start =
                    libc::mmap(std::ptr::null_mut(), pages * page, libc::PROT_NONE, flags, -1, 0);
                START.store(start.expose_provenance(), Ordering::Relaxed);
            }
            let start = START.load(Ordering::Relaxed) + at * page;
            libc::mprotect(std::ptr::with_exposed_provenance_mut(start), page, how) == 0
        };
        let last =
            (1..pages).step_by(2).take_while(|&at| protect(at, libc::PROT_READ)).last().unwrap();
        let mut refused = 0;
        // One page fewer is two mappings more.
        let built = (0..20).any(|less| match Depot::new(MIB) {
            Ok(depot) => {
                assert_eq!(depot.fronts(), whole);
                common::all_back(&depot);
                true
            }
            Err(error) => {
                assert!(matches!(error, BuildError::TooManyMappings { .. }), "{error:?}");
                assert!(error.to_string().contains("vm.max_map_count"), "{error}");
                refused += 1;
                assert!(protect(last - 2 * less, libc::PROT_NONE));
                false
            }
        });
        assert!(built && refused > 0);
    });
}

#[test]
fn no_memory_files() {
    let says_what_to_do = || {
        let error =
            Depot::builder(MIB).memory(MemoryKind::Memfd).build().map(|depot| depot.bytes());
        let error = error.unwrap_err();
        assert!(matches!(error, BuildError::File { bytes: MIB, .. }), "{error:?}");
        let text = error.to_string();
        assert!(text.contains("ulimit -n") && text.contains("MemoryKind::Anonymous"), "{text}");
        common::all_back(&Depot::new(MIB).unwrap());
    };
    in_child(|| {
        limit(Resource::Nofile, 0);
        says_what_to_do();
    });
    in_child(|| {
        refuse(libc::SYS_memfd_create, None);
        says_what_to_do();
    });
}

/// Locks need no fences. A builder that wants sequences all the same keeps fronts out of reach of
/// full drains, which report them.
#[test]
fn no_fences() {
    in_child(|| {
        refuse(libc::SYS_membarrier, None);
        let depot = Depot::builder(64 * mib()).locked_cpus(CpuSet::new()).build().unwrap();
        if depot.fronts().are_sequences() {
            assert_eq!(depot.fronts(), Fronts::SequencesWithoutFence);
            assert!(depot.fronts().to_string().contains("allow membarrier"), "{}", depot.fronts());
            drop(depot.page(Order::BASE).unwrap());
            let drained = depot.drain(Scope::ALL, Mode::Full);
            assert!(drained.busy_cpus > 0 && drained.unreachable_pages > 0, "{drained:?}");
            assert_eq!(depot.validate().unwrap().held_pages(), 0);
        }
        let depot = Depot::new(64 * mib()).unwrap();
        if depot.fronts() != Fronts::LocksWithoutRseq {
            assert_eq!(depot.fronts(), Fronts::LocksWithoutFence);
            assert!(depot.fronts().to_string().contains("allow membarrier"), "{}", depot.fronts());
        }
        common::hammer(&depot, Duration::from_millis(200));
    });
}

/// Checks that locks recognise a forked child by its process id: without wiped gates it could use
/// its parent's sequences.
#[test]
fn no_wiping_at_forks() {
    in_child(|| {
        refuse(libc::SYS_madvise, Some(libc::MADV_WIPEONFORK as u32));
        let depot = Depot::new(64 * mib()).unwrap();
        if depot.fronts() != Fronts::LocksWithoutRseq {
            assert_eq!(depot.fronts(), Fronts::LocksWithoutWipe);
        }
        common::hammer(&depot, Duration::from_millis(200));
        in_child(|| assert!(depot.page(Order::BASE).is_err()));
        let file = Arc::new(Depot::builder(MIB).memory(MemoryKind::Memfd).build().unwrap());
        let error = Vmalloc::new(&file).err().unwrap();
        assert!(matches!(error, VmallocBuildError::NoWipeOnFork { .. }), "{error:?}");
    });
}

#[test]
fn no_numa_policy() {
    in_child(|| {
        refuse(libc::SYS_mbind, None);
        if let Err(error) = Depot::builder(64 * MIB).numa(true).build().map(|depot| depot.bytes()) {
            assert!(matches!(error, BuildError::Numa { .. }), "{error:?}");
            assert!(error.to_string().contains("numa(true)"), "{error}");
        }
    });
}

/// CPUs that the process may not use have caches, too: it may be allowed to use them later.
#[test]
fn one_cpu() {
    in_child(|| {
        let cpu = common::usable_cpus()[0];
        assert!(common::pin(cpu));
        let depot = Depot::new(64 * mib()).unwrap();
        drop((0..1000).map(|_| depot.page(Order::BASE).unwrap()).collect::<Vec<_>>());
        let drained = depot.drain(Scope::cpu(CpuId::new(cpu)), Mode::Full);
        assert!(drained.taken_pages > 0, "{drained:?}");
        let others = depot.drain(Scope::ALL, Mode::Full);
        assert_eq!((others.taken_pages, others.unreachable_pages), (0, 0), "{others:?}");
        common::hammer(&depot, Duration::from_millis(200));
    });
}

/// Mounts an empty folder over `/sys`, in a mount namespace of this process's own; `false` when it
/// may not.
fn hide_sysfs() -> bool {
    use std::ptr::null;
    // SAFETY: this child's own namespace; texts that end in 0.
    unsafe {
        libc::unshare(libc::CLONE_NEWNS) == 0
            && libc::mount(null(), c"/".as_ptr(), null(), libc::MS_REC | libc::MS_PRIVATE, null())
                == 0
            && libc::mount(c"none".as_ptr(), c"/sys".as_ptr(), c"tmpfs".as_ptr(), 0, null()) == 0
    }
}

/// Without sysfs the CPUs that a process may use have caches, whatever their numbers.
#[test]
fn one_cpu_and_no_sysfs() {
    in_child(|| {
        let cpu = *common::usable_cpus().last().unwrap();
        assert!(common::pin(cpu));
        if !hide_sysfs() {
            return skip("cannot hide /sys: not root");
        }
        let depot = Depot::new(64 * mib()).unwrap();
        drop(depot.page(Order::BASE).unwrap());
        let stats = depot.cpu_stats(CpuId::new(cpu), ZoneId::new(0));
        assert!(stats.is_some_and(|stats| stats.cached_pages() > 0), "{stats:?}");
        assert!(!depot.fronts().to_string().contains("caches nothing"), "{}", depot.fronts());
    });
}

/// A depot that leaves out a CPU says so.
#[test]
fn a_cpu_without_caches_shows() {
    let highest = *common::usable_cpus().last().unwrap();
    if highest == 0 {
        return skip("there is one CPU");
    }
    for locks in [false, true] {
        let builder = Depot::builder(4 * mib()).per_cpu_locks(locks);
        let whole = builder.clone().build().unwrap().fronts();
        let depot = builder.cpus(highest).build().unwrap();
        let fronts = depot.fronts();
        assert_eq!(fronts.are_sequences(), whole.are_sequences());
        let said = match fronts {
            Fronts::SequencesOnSome { cpus, highest } | Fronts::LocksOnSome { cpus, highest } => {
                (cpus, highest)
            }
            other => panic!("{other}"),
        };
        assert_eq!(said, (highest, highest));
        let advice = format!("give Builder::cpus at least {}", highest + 1);
        assert!(fronts.to_string().ends_with(&advice), "{fronts}");
        common::all_back(&depot);
    }
}

#[test]
fn buffers_of_no_bytes_and_of_too_many() {
    let depot = Arc::new(Depot::builder(4 * mib()).memory(MemoryKind::Memfd).build().unwrap());
    let space = Vmalloc::builder(&depot).bytes(8 * mib()).build().unwrap();
    assert_eq!(space.buf(0).unwrap().len(), 0);
    for bytes in [space.range().1 + 1, 1 << 50, usize::MAX] {
        let error = space.buf(bytes).map(|buf| buf.len()).unwrap_err().to_string();
        assert!(error.contains("between 1 page and"), "{bytes}: {error}");
    }
    assert!(space.buf(1).is_ok());
}
