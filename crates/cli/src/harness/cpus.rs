//! The CPUs that this process may use, and staying on one.

use std::cell::Cell;
use std::io;
use std::sync::Mutex;
use std::thread;

use pagedepot::CpuId;
use pagedepot_rseq::affinity;

use crate::failure::Failure;

/// The CPUs this process may use, ascending.
///
/// # Errors
/// On machines whose CPU numbers do not fit the call, and in sandboxes that refuse it.
pub fn usable() -> Result<Vec<CpuId>, Failure> {
    let allowed = affinity::allowed().map_err(|e| {
        let hint = match e.raw_os_error() {
            Some(libc::EINVAL) => "CPU numbers above 1023 are not supported",
            _ => "allow sched_getaffinity in the sandbox's seccomp profile",
        };
        Failure::Run(format!("cannot ask for the usable CPUs: {e}; {hint}"))
    })?;
    Ok(allowed.iter().collect())
}

/// Checks that this process may have a thread pinned to each of `cpus`, all at a time. A bench
/// without would tell nothing: which CPU caches what is what it is about.
///
/// # Errors
/// Says what is refused, and what to do.
pub fn check_seats(cpus: &[CpuId]) -> Result<(), Failure> {
    // Held by the caller until all threads are there, so that each of them exists beside the
    // others.
    let gate = Mutex::new(());
    thread::scope(|scope| {
        let shut = gate.lock();
        let mut seats = Vec::with_capacity(cpus.len());
        for &cpu in cpus {
            let gate = &gate;
            let seat = move || {
                drop(gate.lock());
                affinity::pin(cpu).map_err(|error| refused(cpu, &error))
            };
            let spawned = thread::Builder::new().spawn_scoped(scope, seat).map_err(|error| {
                Failure::Run(format!(
                    "cannot start {} threads: {error}; raise `ulimit -u` or the container's pids \
                     limit",
                    cpus.len()
                ))
            });
            seats.push(spawned?);
        }
        drop(shut);
        seats.into_iter().try_for_each(|seat| seat.join().expect("a seat only pins itself"))
    })
}

fn refused(cpu: CpuId, error: &io::Error) -> Failure {
    let hint = match error.raw_os_error() {
        Some(libc::EINVAL) => "was it taken offline, or out of this process's cpuset?",
        _ => {
            "allow sched_setaffinity in the sandbox's seccomp profile, or confine the command to \
             one CPU before it starts (taskset -c 0 pagedepot ...)"
        }
    };
    Failure::Run(format!("cannot keep a thread on CPU {cpu}: {error}; {hint}"))
}

/// Keeps the calling thread on `cpu`.
///
/// # Panics
/// When the kernel refuses: the CPU went away since [`check_seats`].
pub fn pin(cpu: CpuId) {
    affinity::pin(cpu)
        .unwrap_or_else(|e| panic!("cannot run on {cpu:?}: {e}; was it taken offline?"));
    PINNED_TO.set(cpu.get());
}

thread_local! {
    static PINNED_TO: Cell<u32> = const { Cell::new(u32::MAX) };
}

/// The CPU that the calling thread was last pinned to; beyond all CPUs if it never was. A load, as
/// a kernel's own look at its CPU's number is.
#[inline]
pub fn pinned_to() -> CpuId {
    CpuId::new(PINNED_TO.get())
}
