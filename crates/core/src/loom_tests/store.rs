//! 1. Claims of all widths (a frame, a word, a huge of two words) beside each other: nobody gets what
//!    another has, and what a failing claim gives back is all there.
//! 2. A hint never says "nothing here" for good where something is, or a search would not find it.
//!    Without the fences of Dekker's pattern it does.

use std::sync::Arc;

use super::{Mutant, explore, explore_mutant};
use crate::frame::Order;
use crate::store::bits::WORD_FRAMES;
use crate::store::section::{HUGE_FRAMES, SECTION_FRAMES, Section};

/// A section of which only the first huge is free.
fn section() -> Arc<Section> {
    let mut place = Arc::<Section>::new_uninit();
    let section = Arc::get_mut(&mut place).unwrap();
    // SAFETY: `init` writes all of it.
    let section = unsafe {
        Section::init(section.as_mut_ptr());
        place.assume_init()
    };
    assert_eq!(section.put(0, HUGE_FRAMES), 0);
    section
}

/// Everybody has stopped: `held` frames are not free, and the hints lead to all that are.
fn check(section: &Section, held: u32) {
    let free: u32 = (0..SECTION_FRAMES / HUGE_FRAMES).map(|huge| section.count_free(huge as usize)).sum();
    assert_eq!(free + held, HUGE_FRAMES, "frames were lost, or given twice");
    let (some, whole) = section.hints(0);
    assert!(some & 1 == 1 || free == 0, "frames that no search would find");
    assert!(whole & 1 == 1 || free < HUGE_FRAMES, "a whole huge that no search would find");
}

fn spawn(
    section: &Arc<Section>,
    body: impl FnOnce(&Section) -> u32 + 'static,
) -> loom::thread::JoinHandle<u32> {
    let section = section.clone();
    loom::thread::spawn(move || body(&section))
}

/// Takes one frame, if there is one.
fn take(section: &Section) -> u32 {
    section.take(0, Order::BASE, 1, |_| {})
}

/// Claims so many frames from the first on.
fn claim(section: &Section, frames: u32) -> u32 {
    if section.claim(0, frames) { frames } else { 0 }
}

#[test]
fn frame_word_and_huge() {
    explore(|| {
        let section = section();
        let huge = spawn(&section, |section| claim(section, HUGE_FRAMES));
        let word = spawn(&section, |section| claim(section, WORD_FRAMES));
        let one = take(&section);
        check(&section, one + huge.join().unwrap() + word.join().unwrap());
    });
}

#[test]
fn one_of_two_claims_of_all_succeeds() {
    explore(|| {
        let section = section();
        let other = spawn(&section, |section| claim(section, HUGE_FRAMES));
        let mine = claim(&section, HUGE_FRAMES);
        let theirs = other.join().unwrap();
        assert_eq!(mine + theirs, HUGE_FRAMES);
        check(&section, HUGE_FRAMES);
    });
}

/// One takes the last frame and finds no more, another puts one back.
fn last_frame() {
    let section = section();
    assert!(section.claim(0, HUGE_FRAMES) && section.put(0, 1) == 0);
    let other = spawn(&section, |section| section.put(1, 1));
    let taken = section.take(0, Order::BASE, 2, |_| {});
    assert_eq!(other.join().unwrap(), 0);
    check(&section, HUGE_FRAMES - 2 + taken);
}

#[test]
fn last_frame_taken_while_another_comes_back() {
    explore(last_frame);
}

#[test]
#[should_panic]
fn last_frame_without_the_fences() {
    explore_mutant(Mutant::NoDekker, last_frame);
}

#[test]
fn first_frame_taken_while_the_last_comes_back() {
    explore(|| {
        let section = section();
        assert!(section.claim(0, 1));
        let other = spawn(&section, |section| section.put(0, 1));
        let taken = take(&section);
        assert_eq!(other.join().unwrap(), 0);
        check(&section, taken);
    });
}

/// One takes the last block of a huge, which clears the hint; another puts a frame of a word back
/// that was seen empty.
#[test]
fn last_block_taken_while_a_frame_comes_back() {
    explore(|| {
        let section = section();
        assert!(section.claim(0, WORD_FRAMES));
        let other = spawn(&section, |section| section.put(0, 1));
        let taken = section.take(0, Order::new(6).unwrap(), 1, |_| {});
        assert_eq!((taken, other.join().unwrap()), (1, 0));
        check(&section, HUGE_FRAMES - 1);
    });
}
