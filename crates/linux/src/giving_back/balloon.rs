//! The memory that a ceiling keeps from a depot. The balloon of a virtual machine holds pages in
//! the same way (Waldspurger, OSDI 2002).

use std::sync::{Arc, Weak};

use pagedepot::{FrameRange, ZoneId};

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

/// A monitor, among all of the process. Its ceilings end with it.
#[derive(Debug, Default)]
pub(crate) struct MonitorId(Arc<()>);

/// The ceilings that monitors set, in bytes.
#[derive(Default)]
pub(crate) struct MonitorCaps(Vec<(Weak<()>, usize)>);

impl MonitorCaps {
    /// Sets the ceiling of a monitor; `None`: it has none any more.
    pub fn set(&mut self, monitor: &MonitorId, bytes: Option<usize>) {
        let monitor = Arc::downgrade(&monitor.0);
        self.0.retain(|(other, _)| !other.ptr_eq(&monitor) && other.strong_count() > 0);
        self.0.extend(bytes.map(|bytes| (monitor, bytes)));
    }

    /// The lowest ceiling of a monitor that has not ended: one that ends in a callback of the call
    /// that sets a ceiling cannot lift its own.
    pub fn lowest(&self) -> Option<usize> {
        let live = self.0.iter().filter(|(monitor, _)| monitor.strong_count() > 0);
        live.map(|&(_, bytes)| bytes).min()
    }

    /// Whether no monitor has a lower ceiling than this one.
    pub fn is_lowest(&self, monitor: &MonitorId) -> bool {
        let lowest = self.lowest();
        let own = Arc::as_ptr(&monitor.0);
        self.0.iter().any(|(one, bytes)| one.as_ptr() == own && Some(*bytes) == lowest)
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
    Monitor(&'m MonitorId, Option<usize>),
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
            NewCap::Monitor(monitor, bytes) => {
                self.monitors.set(monitor, bytes);
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
        let [first, second] = &[(); 2].map(|()| MonitorId::default());
        let state =
            |caps: &MonitorCaps| (caps.lowest(), [first, second].map(|id| caps.is_lowest(id)));
        assert_eq!(state(&caps), (None, [false, false]));
        caps.set(first, Some(60));
        caps.set(second, Some(40));
        assert_eq!(state(&caps), (Some(40), [false, true]));
        caps.set(first, Some(40));
        assert_eq!(state(&caps), (Some(40), [true, true]));
        caps.set(second, None);
        assert_eq!(state(&caps), (Some(40), [true, false]));
        caps.set(first, None);
        assert_eq!(state(&caps), (None, [false, false]));
        caps.set(&MonitorId::default(), Some(20));
        assert_eq!(state(&caps), (None, [false, false]), "that monitor has ended");
        caps.set(first, Some(50));
        assert_eq!((caps.0.len(), state(&caps)), (1, (Some(50), [true, false])));
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
