//! The thread that looks.

use std::fmt;
use std::mem::forget;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;

use pagedepot_rseq::{CpuSet, affinity};
use rustix::event::{EventfdFlags, eventfd};

use super::counts::{Counters, MonitorCounts};
use super::error::MonitorError;
use super::force::Callback;
use super::policy::Policy;
use super::sources::Sources;
use super::triggers::{Triggers, WakeReason};
use super::watcher::Watcher;
use crate::depot::handle::Depot;
use crate::giving_back::ceiling;
use crate::system::fork_mark::ForkMark;
use crate::system::prim::now_ms;
use crate::system::threads;

/// The name of the thread, which `top` and debuggers show.
const NAME: &str = "pagedepot-mon";

/// Watches depots from a thread of its own, until it is dropped, or the depots' last handles are.
/// See the [module](super).
///
/// Dropping it waits for the thread, except in a callback that runs on that thread, or while the
/// calling thread sets a [ceiling](crate::reclaim::Ceiling::set). A forked child has no monitor:
/// dropping it there does nothing.
pub struct Monitor {
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
    counters: Arc<Counters>,
    parent: ForkMark<'static>,
}

/// Options of a [`Monitor`].
#[must_use]
pub struct Builder {
    depots: Vec<Depot>,
    policy: Policy,
    sources: Option<Sources>,
    callbacks: Vec<Callback>,
}

impl Builder {
    /// Watches another depot, too.
    pub fn and(mut self, depot: &Depot) -> Self {
        self.depots.push(depot.clone());
        self
    }

    /// Sets the policy. Default: [`Policy::default`].
    pub fn policy(mut self, policy: Policy) -> Self {
        self.policy = policy;
        self
    }

    /// Sets the sources to look at. Default: [`Sources::find`].
    pub fn sources(mut self, sources: Sources) -> Self {
        self.sources = Some(sources);
        self
    }

    /// Calls `free` at [`Level::Critical`](super::Level::Critical), with the number of bytes that
    /// are wanted: it frees what the program can do without, and returns how many bytes. Callbacks
    /// of lower `priority` come first: give the lowest to what is cheapest to make again. The
    /// others are called only while too little was freed.
    ///
    /// It is also called when more is held than the limit of the container allows, and, if the
    /// monitor has a thread, when a request has reached the ceiling that follows that limit. The
    /// request waits meanwhile, a second at most: `free` may wait for a lock that the program holds
    /// while it allocates, but the request then fails.
    ///
    /// It is called by the monitor's thread, or in [`Watcher::look`], and in [`start`](Self::start)
    /// where too much is held already. For requests that run short elsewhere there is
    /// [`Depot::on_pressure`]. One that panics is not called again.
    pub fn on_pressure(
        mut self,
        priority: i32,
        free: impl FnMut(u64) -> u64 + Send + 'static,
    ) -> Self {
        self.callbacks.push(Callback { priority, free: Box::new(free) });
        self
    }

    /// A watcher without a thread.
    ///
    /// # Errors
    /// [`MonitorError::Policy`].
    pub fn watcher(self) -> Result<Watcher, MonitorError> {
        self.policy.check()?;
        let sources = self.sources.unwrap_or_else(Sources::find);
        Ok(Watcher::new(&self.depots, self.policy, sources, self.callbacks))
    }

    /// Starts the thread. It blocks all signals, and keeps off CPUs that the depots take for
    /// isolated.
    ///
    /// # Errors
    /// [`MonitorError`].
    pub fn start(self) -> Result<Monitor, MonitorError> {
        if ceiling::is_being_set_here() {
            return Err(MonitorError::Reentrant);
        }
        let cpus = cpus_for(&self.depots)?;
        let mut watcher = self.watcher()?;
        let counters = watcher.counters.clone();
        let event = || eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map(Arc::new);
        let (stop, rung) = (event()?, event()?);
        let (told, ready) = mpsc::sync_channel(1);
        let stopped = stop.clone();
        let work = move || {
            let result = cpus.map_or(Ok(()), |cpus| affinity::confine(&cpus));
            let is_fit = result.is_ok();
            // The watcher has set ceilings: from now on a request that reaches one is answered.
            if is_fit {
                guarded(&mut watcher, |watcher| watcher.listen(rung.clone()));
            }
            if told.send(result).is_ok() && is_fit {
                run(watcher, &stopped, &rung);
            }
        };
        let thread = threads::spawn(NAME, work)?;
        ready.recv().expect("the thread tells before it ends")?;
        let parent = ForkMark::of_process();
        Ok(Monitor { stop, thread: Some(thread), counters, parent })
    }
}

impl Monitor {
    /// A monitor of a depot, to be started.
    pub fn builder(depot: &Depot) -> Builder {
        Builder {
            depots: vec![depot.clone()],
            policy: Policy::default(),
            sources: None,
            callbacks: Vec::new(),
        }
    }

    /// The monitor's counts so far.
    pub fn counts(&self) -> MonitorCounts {
        self.counters.snapshot()
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        if self.parent.check().is_err() {
            // The thread is the parent's.
            forget(thread);
            return;
        }
        let is_told = rustix::io::write(&*self.stop, &1u64.to_ne_bytes()).is_ok();
        // A callback may have dropped the last handle of what owns this: then the thread is here,
        // or may wait for a ceiling that this one sets.
        if is_told && !threads::is_current(&thread) && !ceiling::is_being_set_here() {
            // Its panic was printed.
            let _ = thread.join();
        }
    }
}

/// The CPUs to confine the thread to; `None`: it may run anywhere.
fn cpus_for(depots: &[Depot]) -> Result<Option<CpuSet>, MonitorError> {
    let isolated = super::watcher::isolated(depots);
    if isolated.is_empty() {
        return Ok(None);
    }
    let others: CpuSet =
        affinity::allowed()?.iter().filter(|&cpu| !isolated.contains(cpu)).collect();
    if others.is_empty() { Err(MonitorError::OnlyIsolated) } else { Ok(Some(others)) }
}

fn run(mut watcher: Watcher, stop: &OwnedFd, rung: &OwnedFd) {
    let mut triggers = Triggers::new(watcher.sources(), &watcher.policy);
    let look_ms = u64::from(watcher.policy.look_ms);
    let mut next_ms = 0;
    loop {
        if now_ms() >= next_ms {
            guarded(&mut watcher, |watcher| _ = watcher.look());
            next_ms = now_ms() + look_ms;
        }
        if watcher.depots().next().is_none() {
            return;
        }
        match triggers.sleep(stop, rung, next_ms.saturating_sub(now_ms()) as u32) {
            WakeReason::Stopped => return,
            WakeReason::Rung => guarded(&mut watcher, Watcher::answer),
            WakeReason::ByKernel => {
                watcher.counters.wakes.add(1);
                next_ms = 0;
            }
            WakeReason::InTime => {}
        }
    }
}

/// Has the watcher act, and counts a panic of a depot's callback: without the thread, the ceilings
/// would be lifted.
fn guarded(watcher: &mut Watcher, act: impl FnOnce(&mut Watcher)) {
    if catch_unwind(AssertUnwindSafe(|| act(watcher))).is_err() {
        watcher.counters.panics.add(1);
    }
}

impl fmt::Debug for Monitor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Monitor").field(&self.counts()).finish()
    }
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("depots", &self.depots)
            .field("policy", &self.policy)
            .field("sources", &self.sources)
            .finish_non_exhaustive()
    }
}
