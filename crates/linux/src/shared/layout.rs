//! The form of a segment: what lies where in the file. All of it follows from two numbers.
//!
//! | part | bytes | what |
//! |---|---|---|
//! | header | 4 KiB | 64-bit words, see [`Header`] |
//! | slots | 47 of 256 bytes | the processes, see `slots.rs` |
//! | hints | 1 bit per 64 frames | groups of frames that are full, see `owners.rs` |
//! | owners | 1 byte per frame | who has it: 256 KiB per GiB of 4 KiB pages |
//! | tokens | 8 bytes per frame: 2 MiB per GiB | of frames that were sent, see `messages.rs` |
//! | frames | | the pages, from a multiple of 2 MiB on |
//!
//! Whatever is zero is free. The frames of a new segment are holes of the file; all in front of
//! them has memory from the start.

use std::ops::Range;

use pagedepot::PageSize;

use super::error::SegmentError;
use super::owners::OwnerTable;
use super::slots::{SLOT_WORDS, SLOTS};

/// "pagedpot", in the order of its bytes in the file.
const MAGIC: u64 = u64::from_le_bytes(*b"pagedpot");
/// Changes with every change of the form, or of what its words mean.
pub const VERSION: u64 = 4;
/// Bytes of the header.
const HEADER_BYTES: usize = 4096;
/// Alignment of the frames in the file.
const FRAMES_ALIGN: usize = 2 << 20;
/// Most frames. Of 4 KiB pages: 4 TiB.
const FRAMES_MAX: u64 = 1 << 30;

/// Words of the header that never change, from word 0 on.
const FIXED_WORDS: usize = 5;
/// The word with the number of frames that have memory.
pub const PRESENT_WORD: usize = 8;
/// The word with a bit for each slot that a process has ever joined.
pub const JOINED_WORD: usize = 9;

/// The words of a header that never change.
pub type Header = [u64; FIXED_WORDS];

/// The sizes of a segment, and where its parts lie in the file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Layout {
    pub page_size: PageSize,
    /// Frames that there can be.
    pub frames: u32,
}

impl Layout {
    /// A segment of so many frames.
    pub fn new(page_size: PageSize, frames: u64) -> Result<Self, SegmentError> {
        let fits = (1..=FRAMES_MAX).contains(&frames);
        if !fits {
            let bytes = frames.saturating_mul(page_size.bytes() as u64);
            return Err(SegmentError::Size { bytes });
        }
        Ok(Layout { page_size, frames: frames as u32 })
    }

    /// The words of its header.
    pub fn header(&self) -> Header {
        let (page_shift, frames) = (u64::from(self.page_size.shift()), u64::from(self.frames));
        let sizes = page_shift << 32 | SLOTS as u64;
        [MAGIC, VERSION, sizes, frames, checksum([MAGIC, VERSION, sizes, frames])]
    }

    /// The layout that a header states, if the file is as long as that says.
    pub fn check(header: Header, file_bytes: u64) -> Result<Self, SegmentError> {
        let [magic, version, sizes, frames, sum] = header;
        if magic != MAGIC {
            return Err(SegmentError::NoSegment);
        }
        if version != VERSION {
            return Err(SegmentError::Version { found: version, known: VERSION });
        }
        let sizes_known = [PageSize::Kib4, PageSize::Kib16, PageSize::Kib64];
        let page_size = sizes_known.into_iter().find(|size| u64::from(size.shift()) == sizes >> 32);
        let is_whole = checksum([magic, version, sizes, frames]) == sum;
        match page_size.map(|page_size| Layout::new(page_size, frames)) {
            Some(Ok(layout)) if is_whole && layout.header() == header => {
                if file_bytes < layout.file_bytes() {
                    let expected = layout.file_bytes();
                    return Err(SegmentError::Short { bytes: file_bytes, expected });
                }
                Ok(layout)
            }
            _ => Err(SegmentError::Damaged { what: "its header" }),
        }
    }

    pub fn slots(&self) -> Range<usize> {
        HEADER_BYTES..HEADER_BYTES + SLOTS * SLOT_WORDS * 8
    }

    pub fn hints(&self) -> Range<usize> {
        let start = self.slots().end.next_multiple_of(4096);
        start..start + OwnerTable::lengths(self.frames).0 * 8
    }

    pub fn owners(&self) -> Range<usize> {
        let start = self.hints().end.next_multiple_of(4096);
        start..start + OwnerTable::lengths(self.frames).1 * 8
    }

    pub fn tokens(&self) -> Range<usize> {
        let start = self.owners().end.next_multiple_of(4096);
        start..start + self.frames as usize * 8
    }

    /// Offset of the first frame in the file.
    pub fn frames_at(&self) -> usize {
        self.tokens().end.next_multiple_of(FRAMES_ALIGN)
    }

    /// Bytes of the frames.
    pub fn frame_bytes(&self) -> usize {
        (self.frames as usize) << self.page_size.shift()
    }

    /// Bytes of the whole file.
    pub fn file_bytes(&self) -> u64 {
        (self.frames_at() + self.frame_bytes()) as u64
    }

    /// Frames of the table that are beyond the last: it has whole groups.
    pub fn padding(&self) -> Range<u32> {
        let end = OwnerTable::lengths(self.frames).1 as u32 * super::owners::WORD_FRAMES;
        self.frames..end
    }
}

/// FNV-1a, by words.
fn checksum(words: [u64; FIXED_WORDS - 1]) -> u64 {
    words.into_iter().fold(0xcbf2_9ce4_8422_2325, |sum, word| {
        (sum ^ word).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(29)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_says_what_it_was_made_of() {
        for frames in [1, 63, 64, 65, 1 << 18, FRAMES_MAX] {
            let layout = Layout::new(PageSize::Kib4, frames).unwrap();
            assert_eq!(Layout::check(layout.header(), layout.file_bytes()), Ok(layout));
            let short = layout.file_bytes() - 1;
            let refused = Layout::check(layout.header(), short).unwrap_err();
            assert!(matches!(refused, SegmentError::Short { .. }));
            assert!(layout.padding().len() < 64);
        }
        assert!(Layout::new(PageSize::Kib4, 0).is_err());
        assert!(Layout::new(PageSize::Kib4, FRAMES_MAX + 1).is_err());
    }

    #[test]
    fn every_flipped_bit_of_a_header_is_seen() {
        let layout = Layout::new(PageSize::Kib4, 1 << 18).unwrap();
        for (word, bit) in (0..FIXED_WORDS).flat_map(|word| (0..64).map(move |bit| (word, bit))) {
            let mut header = layout.header();
            header[word] ^= 1 << bit;
            assert!(Layout::check(header, u64::MAX).is_err(), "word {word}, bit {bit}");
        }
    }
}
