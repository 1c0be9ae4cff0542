//! All CPUs at the same work.

use alloc::boxed::Box;
use core::sync::atomic::{AtomicUsize, Ordering};

use ostd::cpu::num_cpus;
use ostd::sync::SpinLock;

/// The work of each CPU, which is given its number.
type Work = dyn Fn(usize) + Sync;

/// The work of CPUs other than the first, which OSTD starts with a function that captures nothing.
static WORK: SpinLock<Option<&'static Work>> = SpinLock::new(None);

/// CPUs other than the first that have ended their work.
static ENDED: AtomicUsize = AtomicUsize::new(0);

/// Runs `work` on every CPU, once in a boot: OSTD starts the others once.
pub fn on_all(work: impl Fn(usize) + Sync + 'static) {
    let work: &'static Work = Box::leak(Box::new(work));
    *WORK.lock() = Some(work);
    ostd::boot::smp::register_ap_entry(|| {
        let work = WORK.lock().expect("set before the CPUs start");
        work(u32::from(ostd::cpu::CpuId::current_racy()) as usize);
        // Release: pairs with the Acquire below.
        ENDED.fetch_add(1, Ordering::Release);
        // OSTD would look for tasks, and panics where there are none.
        loop {
            core::hint::spin_loop();
        }
    });
    work(0);
    // Acquire: pairs with the Release above; what the others did is seen here.
    while ENDED.load(Ordering::Acquire) < num_cpus() - 1 {
        core::hint::spin_loop();
    }
}

/// A barrier for all CPUs, usable any number of times.
pub struct Barrier {
    cpus: usize,
    arrived: AtomicUsize,
}

impl Barrier {
    pub fn new(cpus: usize) -> Self {
        Barrier { cpus, arrived: AtomicUsize::new(0) }
    }

    /// Returns when all CPUs have called it as often. What they did before is seen after.
    pub fn wait(&self) {
        // AcqRel: the last to arrive has seen all others' work, and passes it on to those that
        // wait.
        let nth = self.arrived.fetch_add(1, Ordering::AcqRel);
        let all = (nth / self.cpus + 1) * self.cpus;
        // Acquire: pairs with the release of the last to arrive.
        while self.arrived.load(Ordering::Acquire) < all {
            core::hint::spin_loop();
        }
    }

    /// Waits like [`wait`](Self::wait), with `alone` run by the first CPU while the others wait.
    pub fn wait_while(&self, cpu: usize, alone: impl FnOnce()) {
        self.wait();
        if cpu == 0 {
            alone();
        }
        self.wait();
    }
}
