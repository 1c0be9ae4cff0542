//! A device that takes what is free, and refuses now and then to bring it back.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use pagedepot::{FrameRange, Pfn};
use pagedepot_contiguity::ReportingDevice;

use crate::feature::{Deed, Feature};
use crate::world::{DEVICE, FIRST, FRAMES, PAGEBLOCK, World};

pub struct Device<'w> {
    world: &'w World<'w>,
    /// Whether the device has a pageblock, by pageblock.
    taken: Vec<AtomicBool>,
    /// Whether it refuses half of what it is asked for at present.
    pub refuses: AtomicBool,
    calls: AtomicU64,
}

impl<'w> Device<'w> {
    pub fn new(world: &'w World<'w>) -> Self {
        let taken = (0..FRAMES.div_ceil(PAGEBLOCK)).map(|_| AtomicBool::new(false)).collect();
        Device { world, taken, refuses: AtomicBool::new(false), calls: AtomicU64::new(0) }
    }

    fn place(&self, pfn: u32) -> &AtomicBool {
        &self.taken[((pfn - FIRST) / PAGEBLOCK) as usize]
    }

    /// Fails if the device has one of the frames.
    pub fn check(&self, start: Pfn, frames: u32) {
        for at in start.get() / PAGEBLOCK..(start.get() + frames).div_ceil(PAGEBLOCK) {
            let is_taken = self.place(at * PAGEBLOCK).load(Ordering::Relaxed);
            assert!(!is_taken, "{start} was handed out, and the device has it");
        }
    }

    pub fn taken_frames(&self) -> i64 {
        let taken = self.taken.iter().filter(|taken| taken.load(Ordering::Relaxed)).count();
        taken as i64 * i64::from(PAGEBLOCK)
    }

    fn swap(&self, range: FrameRange, taken: bool) {
        for at in (0..range.frames).step_by(PAGEBLOCK as usize) {
            let start = range.start.get() + at;
            let was = self.place(start).swap(taken, Ordering::Relaxed);
            assert_ne!(was, taken, "pageblock of {start} was reported twice, or needed twice");
        }
        let frames = i64::from(range.frames);
        self.world.usage.use_pages(if taken { frames } else { -frames });
    }

    fn is_refused(&self) -> bool {
        let call = self.calls.fetch_add(1, Ordering::Relaxed);
        let refuses = self.refuses.load(Ordering::Relaxed);
        call.is_multiple_of(if refuses { 2 } else { 16 })
    }

    /// Takes a while, in which others go on.
    fn be_slow(&self) {
        std::thread::sleep(Duration::from_micros(100));
    }

    /// A device that refuses takes longer.
    fn refuse(&self) {
        let _now = self.world.meetings.begin(Feature::Refusing);
        std::thread::sleep(Duration::from_millis(2));
        self.world.note(Deed::Refused);
    }

    /// Writes over a range: its contents are lost.
    fn write_over(&self, range: FrameRange) {
        self.world.marks.take(range.start, range.frames, DEVICE);
        for at in 0..range.frames {
            self.world.arena.write(range.start.add(at), u64::MAX);
        }
        self.world.marks.give_back(range.start, range.frames, DEVICE);
        self.world.note_via(range.start, range.frames, Feature::Reporting.into());
    }
}

impl ReportingDevice for Device<'_> {
    fn report(&self, ranges: &[FrameRange]) -> bool {
        if self.is_refused() {
            return false;
        }
        let _now = self.world.meetings.begin(Feature::Reporting);
        self.be_slow();
        for &range in ranges {
            self.write_over(range);
            self.swap(range, true);
        }
        true
    }

    fn needed(&self, pageblock: FrameRange) -> bool {
        if self.is_refused() {
            self.refuse();
            return false;
        }
        let _now = self.world.meetings.begin(Feature::Reporting);
        self.be_slow();
        self.write_over(pageblock);
        self.swap(pageblock, false);
        true
    }
}
