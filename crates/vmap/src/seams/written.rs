//! The parts of a run of frames that may hold something other than zeroes.

use crate::seams::mapper::Mapper;
use pagedepot::FrameRange;

/// Shortest run of frames about which a mapper is asked whether it holds zeroes. To zero fewer
/// costs less than a question, or not much more.
const ASKED_MIN: u32 = 64;
/// Frames that count as written between two questions, at first.
const STEP_MIN: u32 = 16;

/// Iterator over the parts of a run of frames that a mapper does not [know](Mapper::known_zero) to
/// hold zeroes.
///
/// Each question costs a system call on Linux. So after frames that may be written it passes over
/// the next ones unasked, twice as many each time: a run that is written throughout costs few
/// questions, and one that was written at one place few frames.
#[derive(Debug)]
pub struct WrittenParts<'a, M> {
    mapper: &'a M,
    rest: FrameRange,
    step: u32,
    is_asked: bool,
}

impl<'a, M: Mapper> WrittenParts<'a, M> {
    /// The parts of `frames`, which belong to the caller. A run of fewer than 64 frames is one
    /// part.
    pub fn new(mapper: &'a M, frames: FrameRange) -> Self {
        let is_asked = frames.frames >= ASKED_MIN;
        WrittenParts { mapper, rest: frames, step: STEP_MIN / 2, is_asked }
    }

    fn skip(&mut self, frames: u32) {
        self.rest = FrameRange::new(self.rest.start.add(frames), self.rest.frames - frames);
    }
}

impl<M: Mapper> Iterator for WrittenParts<'_, M> {
    type Item = FrameRange;

    fn next(&mut self) -> Option<FrameRange> {
        let mut frames = self.rest.frames;
        if self.is_asked && frames > 0 {
            let known = self.mapper.known_zero(self.rest).min(frames);
            self.step = if known > 0 { STEP_MIN } else { self.step.saturating_mul(2) };
            self.skip(known);
            frames = self.step.min(self.rest.frames);
        }
        let part = FrameRange::new(self.rest.start, frames);
        self.skip(frames);
        (frames > 0).then_some(part)
    }
}
