//! The memory that a ceiling keeps from a depot. The balloon of a virtual machine holds pages in
//! the same way (Waldspurger, OSDI 2002).

use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};

use pagedepot::{FrameRange, ZoneId};

use crate::system::prim::thread_id;

/// Pageblocks that the ceiling took out of the allocator, and that are no memory of it now.
#[derive(Default)]
pub(crate) struct Balloon {
    /// Runs of whole pageblocks, each of one zone.
    runs: Vec<(ZoneId, FrameRange)>,
    pub caps: Caps,
    pub monitors: MonitorCaps,
    /// Bytes that were present of what was taken out, since the last
    /// [`take_given_back_bytes`](Self::take_given_back_bytes).
    pub given_back_bytes: u64,
}

/// The ceilings that were asked for, in bytes. The lowest is to be in force.
#[derive(Clone, Copy, Default)]
pub(crate) struct Caps {
    /// Ceiling that the program set.
    pub program: Option<usize>,
    /// Lowest ceiling that a monitor set for the limit of the container.
    pub container: Option<usize>,
}

/// A monitor, among all of the process. Its ceilings are lifted by the call that sets a ceiling
/// when it ends, or by the next.
#[derive(Debug, Default)]
pub(crate) struct MonitorId(Arc<()>);

/// The ceilings that monitors set.
#[derive(Default)]
pub(crate) struct MonitorCaps(Vec<MonitorCap>);

/// The ceiling of a monitor.
struct MonitorCap {
    monitor: Weak<()>,
    bytes: usize,
    listener: Option<Listener>,
}

/// The thread of a monitor, which answers requests that reach the monitor's ceiling.
#[derive(Clone, Debug)]
pub(crate) struct Listener {
    /// Makes the thread wake up.
    pub wake: Arc<OwnedFd>,
    /// Id of the thread.
    pub thread: u32,
}

impl Listener {
    /// Has the thread wake up and answer.
    pub fn ring(&self) -> bool {
        rustix::io::write(&*self.wake, &1u64.to_ne_bytes()).is_ok()
    }
}

impl MonitorCaps {
    /// Sets the ceiling of a monitor, and the thread that answers requests which reach it, if there
    /// is one. `None`: the monitor has no ceiling any more.
    pub fn set(&mut self, monitor: &MonitorId, bytes: Option<usize>, listener: Option<&Listener>) {
        let (monitor, listener) = (Arc::downgrade(&monitor.0), listener.cloned());
        self.0.retain(|cap| !cap.monitor.ptr_eq(&monitor) && cap.monitor.strong_count() > 0);
        self.0.extend(bytes.map(|bytes| MonitorCap { monitor, bytes, listener }));
    }

    /// The ceilings of monitors that have not ended: one that ends in a callback of the call that
    /// sets a ceiling cannot lift its own.
    fn live(&self) -> impl Iterator<Item = &MonitorCap> {
        self.0.iter().filter(|cap| cap.monitor.strong_count() > 0)
    }

    /// The lowest ceiling of a monitor.
    pub fn lowest(&self) -> Option<usize> {
        self.live().map(|cap| cap.bytes).min()
    }

    /// The thread that answers requests which reach the lowest ceiling of a monitor, if that is
    /// below `others`. The threads of monitors are answered by none: one may hold up its own
    /// answers, and wait for another's.
    pub fn listener(&self, others: usize) -> Option<&Listener> {
        let lowest = self.lowest().filter(|&bytes| bytes < others)?;
        let listeners = || self.live().filter_map(|cap| Some((cap.bytes, cap.listener.as_ref()?)));
        if listeners().any(|(_, listener)| listener.thread == thread_id()) {
            return None;
        }
        let last = listeners().filter(|&(bytes, _)| bytes == lowest).last();
        last.map(|(_, listener)| listener)
    }
}

/// A ceiling in bytes, of the program or of all its monitors together.
#[derive(Clone, Copy)]
pub(crate) enum Cap {
    Program(usize),
    Container(Option<usize>),
}

/// A ceiling in bytes, and the caller that sets it.
#[derive(Clone, Copy)]
pub(crate) enum NewCap<'m> {
    Program(usize),
    Monitor(&'m MonitorId, Option<usize>, Option<&'m Listener>),
}

impl Caps {
    pub fn set(&mut self, cap: Cap) {
        match cap {
            Cap::Program(bytes) => self.program = Some(bytes),
            Cap::Container(bytes) => self.container = bytes,
        }
    }

    /// The bytes that a depot of `bytes` bytes may have.
    pub fn lowest(self, bytes: usize) -> usize {
        [self.program, self.container].into_iter().flatten().fold(bytes, usize::min)
    }
}

impl Balloon {
    /// Notes the ceiling of a monitor, if it sets one. Returns the ceilings to be set: the
    /// program's, if it sets one, and the lowest of all monitors.
    pub fn combine(&mut self, cap: NewCap<'_>) -> impl IntoIterator<Item = Cap> + use<> {
        let program = match cap {
            NewCap::Program(bytes) => Some(Cap::Program(bytes)),
            NewCap::Monitor(monitor, bytes, listener) => {
                self.monitors.set(monitor, bytes, listener);
                None
            }
        };
        program.into_iter().chain([Cap::Container(self.monitors.lowest())])
    }

    pub fn pages(&self) -> u64 {
        self.runs.iter().map(|(_, run)| u64::from(run.frames)).sum()
    }

    /// Runs of whole pageblocks that were taken out.
    pub fn runs(&self) -> impl Iterator<Item = FrameRange> {
        self.runs.iter().map(|&(_, run)| run)
    }

    pub fn push(&mut self, zone: ZoneId, run: FrameRange) {
        self.runs.push((zone, run));
    }

    /// Resets the count of bytes that were given back; returns it.
    pub fn take_given_back_bytes(&mut self) -> u64 {
        std::mem::take(&mut self.given_back_bytes)
    }

    /// Takes a run of at most `pages_max` pages, a multiple of a pageblock's, out again.
    pub fn pop(&mut self, pages_max: u64) -> Option<(ZoneId, FrameRange)> {
        let (zone, last) = self.runs.last_mut()?;
        let frames = u64::from(last.frames).min(pages_max) as u32;
        let part = (*zone, FrameRange::new(last.start, frames));
        if frames == last.frames {
            self.runs.pop();
        } else {
            *last = FrameRange::new(last.start.add(frames), last.frames - frames);
        }
        Some(part)
    }
}

#[cfg(test)]
mod tests {
    use pagedepot::Pfn;

    use super::*;

    #[test]
    fn each_monitor_has_a_ceiling() {
        let mut caps = MonitorCaps::default();
        let [first, second, third] = &[(); 3].map(|()| MonitorId::default());
        let listener = |thread| {
            let wake = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
            Listener { wake: Arc::new(wake), thread }
        };
        // Thread ids are not 0, and smaller than these.
        let [one, two] = [u32::MAX - 1, u32::MAX].map(listener);
        let state = |caps: &MonitorCaps| {
            (caps.lowest(), caps.listener(100).map(|listener| u32::MAX - listener.thread))
        };
        assert_eq!(state(&caps), (None, None));
        caps.set(first, Some(60), Some(&one));
        caps.set(second, Some(40), Some(&two));
        assert_eq!(state(&caps), (Some(40), Some(0)));
        assert!(caps.listener(40).is_none(), "another ceiling is as low");
        caps.set(second, Some(70), Some(&two));
        assert_eq!(state(&caps), (Some(60), Some(1)));
        caps.set(second, Some(60), Some(&two));
        assert_eq!(state(&caps), (Some(60), Some(0)));
        caps.set(third, Some(50), None);
        assert_eq!(state(&caps), (Some(50), None), "its monitor has no thread");
        caps.set(third, None, None);
        caps.set(second, None, None);
        assert_eq!(state(&caps), (Some(60), Some(1)));
        let ended = MonitorId::default();
        caps.set(&ended, Some(20), Some(&two));
        drop(ended);
        assert_eq!(state(&caps), (Some(60), Some(1)), "that monitor has ended");
        caps.set(first, Some(60), Some(&listener(thread_id())));
        assert_eq!(state(&caps), (Some(60), None), "its own thread");
        caps.set(first, None, None);
        assert_eq!((caps.0.len(), state(&caps)), (0, (None, None)));
    }

    #[test]
    fn runs_come_back_in_parts() {
        let mut balloon = Balloon::default();
        balloon.push(ZoneId::new(0), FrameRange::new(Pfn::new(512), 1024));
        balloon.push(ZoneId::new(1), FrameRange::new(Pfn::new(4096), 512));
        assert_eq!(balloon.pages(), 1536);
        let runs: Vec<_> = balloon.runs().map(|run| (run.start.get(), run.end())).collect();
        assert_eq!(runs, [(512, 1536), (4096, 4608)]);
        let second = balloon.pop(4096);
        assert_eq!(second, Some((ZoneId::new(1), FrameRange::new(Pfn::new(4096), 512))));
        let half = balloon.pop(512);
        assert_eq!(half, Some((ZoneId::new(0), FrameRange::new(Pfn::new(512), 512))));
        assert_eq!(balloon.pages(), 512);
        balloon.pop(512);
        assert_eq!((balloon.pop(512), balloon.pages()), (None, 0));
    }
}
