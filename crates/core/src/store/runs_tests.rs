//! The search for runs against a look at every frame.
#![allow(unsafe_code, reason = "makes sections")]

use super::*;
use crate::frame::Mobility;
use crate::frame::pageblock::{SECTION_FRAMES, Tag};
use crate::store::SearchRules;
use crate::store::backing::Reports;
use crate::store::hints::{Group, Summary};
use crate::store::section::Section;
use crate::store::tags::{AvoidCounts, Tags};
use crate::sync::prim::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

const ZONE: ZoneId = ZoneId::new(1);
/// The third has no metadata, and so no memory.
const SECTIONS: usize = 5;
const HOLE: usize = 2;
const FRAMES: u32 = SECTIONS as u32 * SECTION_FRAMES;

/// Everything free: a few pageblocks of another zone, the rest of ours.
struct World {
    tags: Vec<AtomicU32>,
    table: Vec<AtomicUsize>,
    groups: &'static [Group],
    failed: AtomicU64,
    avoid_counts: AvoidCounts,
    reports: Reports<'static>,
    hint: AtomicU32,
}

impl World {
    fn new() -> &'static Self {
        let tag = |pageblock: usize| match pageblock {
            _ if pageblock / SECTION_PAGEBLOCKS == HOLE => Tag::ABSENT,
            40..45 => Tag::new(ZoneId::new(0), Kind::MOVABLE),
            _ => Tag::new(ZONE, Kind::MOVABLE),
        };
        let world: &'static World = Box::leak(Box::new(World {
            tags: (0..SECTIONS * SECTION_PAGEBLOCKS)
                .map(|pageblock| AtomicU32::new(tag(pageblock).0))
                .collect(),
            table: (0..SECTIONS).map(|_| AtomicUsize::new(0)).collect(),
            groups: Box::leak(Box::new([Group::default()])),
            failed: AtomicU64::new(0),
            avoid_counts: AvoidCounts::default(),
            reports: Reports::default(),
            hint: AtomicU32::new(0),
        }));
        for number in (0..SECTIONS).filter(|&number| number != HOLE) {
            let section = Box::leak(Box::<Section<'_>>::new_uninit());
            let marks = Summary::new(world.groups).marks(number);
            // SAFETY: this test's alone; `init` writes every field.
            let section = unsafe {
                Section::init(section.as_mut_ptr(), marks, true);
                section.assume_init_ref()
            };
            assert!(world.bitmap().install(number, section));
        }
        world
    }

    fn bitmap(&'static self) -> Bitmap<'static> {
        Bitmap::new(
            &self.table,
            Tags::new(&self.tags, false, &self.avoid_counts),
            Summary::new(self.groups),
            &self.failed,
            &self.reports,
            true,
        )
    }

    fn wanted(&'static self, mobility: Mobility) -> SearchRequest<'static> {
        SearchRequest {
            zone: ZONE,
            rules: SearchRules::any(Kind::of(mobility)),
            span: (0, SECTIONS as u32),
            hint: &self.hint,
        }
    }

    fn take(&'static self, frames: u32, align: u32) -> Option<u32> {
        self.bitmap().take_run(&self.wanted(Mobility::Movable), frames, align).map(Pfn::get)
    }

    fn is_ours(&'static self, frame: u32) -> bool {
        let tag = Tag(self.tags[(frame / PAGEBLOCK_FRAMES) as usize].load(Ordering::Relaxed));
        tag.is_present() && tag.zone() == ZONE && self.bitmap().is_free(Pfn::new(frame))
    }

    /// Frame by frame.
    fn lowest(&'static self, frames: u32, align: u32) -> Option<u32> {
        let mut start = 0;
        for frame in 0..FRAMES {
            if !self.is_ours(frame) {
                start = frame + 1;
            }
            let first = start.next_multiple_of(align);
            if frame + 1 >= first + frames {
                return Some(first);
            }
        }
        None
    }

    fn free_frames(&'static self) -> u32 {
        (0..FRAMES).filter(|&frame| self.is_ours(frame)).count() as u32
    }
}

fn random(state: &mut u64) -> u32 {
    // Xorshift (Marsaglia 2003).
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    (*state >> 32) as u32
}

#[test]
fn the_lowest_run_of_any_length_and_alignment() {
    let (world, mut state) = (World::new(), 0x9e37_79b9_7f4a_7c15);
    let mut free = world.free_frames();
    let (mut taken, mut refused) = (Vec::new(), 0);
    for round in 0..400 {
        // Single frames in use here and there, so that runs are of all lengths.
        for _ in 0..8 {
            let used = Pfn::new(random(&mut state) % FRAMES);
            if world.is_ours(used.get()) && world.bitmap().claim(used, 1) {
                free -= 1;
            }
        }
        let length_max = [3, 70, 600, 20_000, SECTION_FRAMES][round % 5];
        let frames = random(&mut state) % length_max + 1;
        let align = 1 << (random(&mut state) % [3, 8, 11, 15, 19][round % 5]);
        let expected = world.lowest(frames, align);
        assert_eq!(world.take(frames, align), expected, "{frames} frames at a multiple of {align}");
        match expected {
            Some(start) => {
                free -= frames;
                taken.push((start, frames));
            }
            None => refused += 1,
        }
        if taken.len() > 20 {
            let (start, frames) = taken.swap_remove(random(&mut state) as usize % taken.len());
            assert_eq!(world.bitmap().put(Pfn::new(start), frames).frames, 0);
            free += frames;
        }
    }
    assert!(taken.len() == 20 && refused > 5, "{refused} refused");
    assert_eq!(world.free_frames(), free, "nothing is taken but what was given");
}

#[test]
fn across_sections_and_to_the_last_frame() {
    let world = World::new();
    // All but one frame of the two sections behind the hole.
    let behind = (HOLE as u32 + 1) * SECTION_FRAMES;
    assert_eq!(world.take(SECTION_FRAMES, SECTION_FRAMES), Some(SECTION_FRAMES));
    assert!(world.bitmap().claim(Pfn::new(behind), 1));
    assert_eq!(world.take(2 * SECTION_FRAMES, 1), None);
    assert_eq!(world.take(2 * SECTION_FRAMES - 1, 2), None);
    assert_eq!(world.take(2 * SECTION_FRAMES - 1, 1), Some(behind + 1));
    assert_eq!(
        world.take(SECTION_FRAMES - 40 * PAGEBLOCK_FRAMES, 1),
        None,
        "pageblocks of another zone lie between"
    );
}

#[test]
fn only_whole_huges_change_their_mobility() {
    let world = World::new();
    assert!(world.bitmap().claim(Pfn::new(0), 1));
    let frames = 2 * PAGEBLOCK_FRAMES;
    let found = world.bitmap().take_run(&world.wanted(Mobility::Unmovable), frames, 1);
    assert_eq!(found, Some(Pfn::new(1)));
    let mobilities = [0, 1, 2]
        .map(|pageblock| world.bitmap().tags.of(PageblockIndex(pageblock)).kind().mobility());
    assert_eq!(mobilities, [Mobility::Movable, Mobility::Unmovable, Mobility::Movable]);
}
