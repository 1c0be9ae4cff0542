//! The memory that a ceiling keeps from a depot. The balloon of a virtual machine holds pages in
//! the same way (Waldspurger, OSDI 2002).

use pagedepot::{FrameRange, ZoneId};

/// Pageblocks that the ceiling took out of the allocator, and that are no memory of it now.
#[derive(Default)]
pub(crate) struct Balloon {
    /// Runs of whole pageblocks, each of one zone.
    runs: Vec<(ZoneId, FrameRange)>,
    pub caps: Caps,
    /// Bytes that were present of what was taken out, since the last
    /// [`take_given_back_bytes`](Self::take_given_back_bytes).
    pub given_back_bytes: u64,
}

/// The ceilings that were asked for, in bytes. The lowest is to be in force.
#[derive(Clone, Copy, Default)]
pub(crate) struct Caps {
    /// Ceiling that the program set.
    pub program: Option<usize>,
    /// Ceiling that a monitor set for the limit of the container.
    pub container: Option<usize>,
}

/// A ceiling in bytes, and the caller that sets it.
#[derive(Clone, Copy)]
pub(crate) enum Cap {
    Program(usize),
    Container(Option<usize>),
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
