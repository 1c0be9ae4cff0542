//! The allocator's construction, and the time before.

use alloc::boxed::Box;
use core::alloc::Layout;

use ostd::mm::{PAGE_SIZE, Paddr};
use ostd::sync::SpinLock;
use pagedepot::{
    Config, Flags, FrameRange, HighPolicy, Misuse, NodeId, Pfn, Watermarks, ZoneConfig, ZoneId,
};

use crate::{DEPOT, Depot, frames, machine, paddr, refuse};

/// Pieces of memory that can be noted: memory maps have a few.
const RANGES_MAX: usize = 32;
/// Frames of the widest gap that is claimed: what one [`Depot::alloc_at`] takes, 1 GiB.
const GAP_FRAMES_MAX: u32 = 1 << 18;
/// Most pages that a CPU caches: 4 MiB, or an eighth of its share of the memory if that is less.
const HIGH_PAGES_MAX: u64 = 1024;
const NONE: FrameRange = FrameRange::new(Pfn::new(0), 0);

/// Facts that are known before there is an allocator.
#[derive(Clone, Copy)]
struct Boot {
    /// Pieces of free memory, ascending.
    ranges: [FrameRange; RANGES_MAX],
    count: usize,
    /// Frames taken from the end of the largest piece while the allocator is made.
    taken: u32,
    is_building: bool,
}

static BOOT: SpinLock<Boot> =
    SpinLock::new(Boot { ranges: [NONE; RANGES_MAX], count: 0, taken: 0, is_building: false });

impl Boot {
    fn ranges(&self) -> &[FrameRange] {
        &self.ranges[..self.count]
    }

    fn largest(&self) -> FrameRange {
        self.ranges().iter().copied().max_by_key(|range| range.frames).unwrap_or(NONE)
    }

    /// Takes frames from the end of the largest piece.
    fn take(&mut self, layout: Layout) -> Option<Paddr> {
        let range = self.largest();
        let align = frames(layout.align().max(PAGE_SIZE));
        let left = range.frames.checked_sub(self.taken)?.checked_sub(frames(layout.size()))?;
        let start = (range.start.get() + left) / align * align;
        if start < range.start.get() {
            return None;
        }
        self.taken = range.start.get() + range.frames - start;
        Some(paddr(Pfn::new(start)))
    }

    /// The frames that [`take`](Self::take) took, with what alignment left between them.
    fn taken(&self) -> FrameRange {
        let largest = self.largest();
        FrameRange::new(largest.start.add(largest.frames - self.taken), self.taken)
    }
}

/// Notes a piece of free memory. One that comes while the allocator is made from the others is
/// refused.
pub fn add(range: FrameRange) {
    let mut boot = BOOT.lock();
    let count = boot.count;
    if count == RANGES_MAX || boot.is_building {
        drop(boot);
        refuse(
            paddr(range.start),
            bytes(range),
            &"the allocator is being made, or has been told of as many pieces as it notes before",
        );
        return;
    }
    boot.ranges[count] = range;
    boot.count += 1;
    boot.ranges[..=count].sort_unstable_by_key(|range| range.start);
}

/// The first request makes the allocator. Requests meanwhile are of the heap, which has the
/// metadata; they are served from the end of the largest piece.
pub fn alloc(layout: Layout) -> Option<Paddr> {
    let is_first = !core::mem::replace(&mut BOOT.lock().is_building, true);
    if !is_first {
        return BOOT.lock().take(layout);
    }
    build();
    crate::alloc_frames(DEPOT.get()?, layout)
}

/// # Panics
/// When there is no memory for the metadata, 35 KiB per GiB and 10 KiB per CPU: nothing boots so.
fn build() {
    let memory = Memory::of(&BOOT.lock());
    let cpus = ostd::cpu::num_cpus() as u32;
    let zones = [memory.zone()];
    let share = memory.pages() / 8 / u64::from(cpus);
    let config = Config {
        // Each CPU as much as any other: without a linear map there are as many magazines as are
        // made now, and they are made for limits that do not adapt.
        high: HighPolicy::Fixed(share.min(HIGH_PAGES_MAX)),
        on_misuse: Some(on_misuse),
        ..Config::new(cpus, &zones)
    };
    let bytes = Depot::metadata_bytes(&config).expect("a usable memory map");
    let metadata = Box::leak(Box::<[u8]>::new_uninit_slice(bytes));
    let machine = machine::machine(cpus);
    let taken = BOOT.lock().taken();
    let depot = DEPOT
        .init(|| {
            let depot = Depot::new(&config, metadata, machine)?;
            for held in memory.gaps().iter().chain([&taken]).filter(|held| held.frames > 0) {
                // Before any other code can see the allocator: all frames are free.
                depot.alloc_at(held.start, held.frames, Flags::UNMOVABLE).expect("free frames");
            }
            Ok(depot)
        })
        .expect("metadata of the size asked for");
    // What the heap took between the look above and here.
    debug_assert_eq!(BOOT.lock().taken(), taken, "{} CPUs", depot.cpu_count());
}

/// The pieces, joined over the gaps between them.
///
/// OSTD frees frames that it never added: page tables of its early boot, taken before it told what
/// is free. So a gap is memory, too, all of it allocated.
struct Memory {
    joined: [FrameRange; RANGES_MAX],
    count: usize,
    gaps: [FrameRange; RANGES_MAX],
}

impl Memory {
    fn of(boot: &Boot) -> Self {
        let mut memory = Memory { joined: [NONE; RANGES_MAX], count: 0, gaps: [NONE; RANGES_MAX] };
        for (i, &range) in boot.ranges().iter().enumerate() {
            memory.push(i, range);
        }
        memory
    }

    fn push(&mut self, nth: usize, range: FrameRange) {
        if let Some(last) = self.count.checked_sub(1) {
            let before = self.joined[last];
            let end = before.start.add(before.frames);
            let gap = range.start.get() - end.get();
            if gap <= GAP_FRAMES_MAX {
                self.gaps[nth] = FrameRange::new(end, gap);
                self.joined[last].frames += gap + range.frames;
                return;
            }
        }
        self.joined[self.count] = range;
        self.count += 1;
    }

    fn gaps(&self) -> &[FrameRange] {
        &self.gaps
    }

    fn pages(&self) -> u64 {
        let frames = |ranges: &[FrameRange]| -> u64 {
            ranges.iter().map(|range| u64::from(range.frames)).sum()
        };
        frames(&self.joined) - frames(&self.gaps)
    }

    fn zone(&self) -> ZoneConfig<'_> {
        ZoneConfig {
            name: "Normal",
            node: NodeId::new(0),
            level: 2,
            ranges: &self.joined[..self.count],
            // OSTD has no requests that could use a reserve, and nothing to reclaim.
            watermarks: Some(Watermarks { min: 0, low: 0, high: 0 }),
        }
    }
}

/// Memory that comes later: in a gap, or in sections of its own.
pub fn add_late(depot: &'static Depot, range: FrameRange) {
    if depot.free_contiguous(range.start, range.frames).is_ok() {
        return;
    }
    let metadata = Box::leak(Box::<[u8]>::new_uninit_slice(depot.section_bytes(range)));
    if let Err(error) = depot.add_memory(ZoneId::new(0), range, metadata) {
        refuse(paddr(range.start), bytes(range), &error);
    }
}

fn bytes(range: FrameRange) -> usize {
    range.frames as usize * PAGE_SIZE
}

fn on_misuse(misuse: Misuse) {
    ostd::error!("{:?}", misuse);
}
