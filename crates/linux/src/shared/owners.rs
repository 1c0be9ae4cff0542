//! The table of owners: a byte for each frame, which says who has it. It is the store.
//!
//! | byte | the frame is |
//! |---|---|
//! | 0 | free |
//! | 1..=47 | taken by the process in slot 0..=46: held, cached or in its hands |
//! | 65..=111 | left by that process to its heir, and taken by none yet |
//! | 129..=175 | sent by that process, and claimed by none yet |
//! | 255 | no memory: beyond the end of the segment, or taken out of it |
//!
//! Any other value is torn or hostile. Such a frame is neither free nor anyone's.
//!
//! # Argument
//! A frame changes hands by one compare-and-swap of the word that its byte is in, which may take up
//! to seven others along. There is no moment at which a frame has no owner or two. So a process may
//! die at any instruction: the bytes say which frames it had, whatever its registers, its caches
//! and its program held, and a survivor changes these bytes to 0. Only the process in a slot puts
//! that slot's number into a byte, and only it takes it out again, as long as it lives
//! (`slots.rs`). Therefore a block of several words may be taken word by word: a claim that dies in
//! between has taken frames that its process then owns, and a claim that fails puts them back.
//!
//! # Full groups
//! A group is the eight words of a cache line, 64 frames. A bit for each says that a search found
//! nothing free there. It is a hint that may hide free frames only for a moment, or while a process
//! that has died between two steps is not yet buried:
//! * a search that finds nothing sets the bit and looks again;
//! * a caller that frees frames looks at the bit afterwards and clears it.
//!
//! Each has a sequentially consistent fence in between, so one of them sees what the other has
//! done. A burial, and a request before it fails, look at all groups and clear the bits of those
//! that have free frames: a process may be stopped between the two steps for an hour, or for good.
//! Explored by `tests/loom/owners.rs`.

use std::ops::Range;

use crate::system::prim::{AtomicU64, Mutant, Ordering, fence, is_mutant, look, prefetch_write};

/// Frames of a word.
pub const WORD_FRAMES: u32 = 8;
/// Frames of a pageblock.
pub const PAGEBLOCK_FRAMES: u32 = 512;
/// Words of a group.
const GROUP_WORDS: usize = 8;
/// Frames of a group.
pub const GROUP_FRAMES: u32 = WORD_FRAMES * GROUP_WORDS as u32;
const ONES: u64 = 0x0101_0101_0101_0101;
const HIGHS: u64 = ONES << 7;

/// The value of a frame's byte.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Owner(u8);

impl Owner {
    pub const FREE: Owner = Owner(0);
    pub const ABSENT: Owner = Owner(0xff);

    /// The process in a slot.
    pub const fn slot(slot: usize) -> Self {
        Owner(slot as u8 + 1)
    }

    /// The owner of frames that the process in a slot has sent.
    pub const fn sent(slot: usize) -> Self {
        Owner((slot as u8 + 1) | 0x80)
    }

    /// The place in counts by owner.
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    /// The owner of frames that the process in a slot has left to its heir.
    pub const fn estate(slot: usize) -> Self {
        Owner((slot as u8 + 1) | 0x40)
    }

    /// The slot of the process that has left the frame to its heir.
    pub const fn slot_of_estate(self) -> Option<usize> {
        match self.0 {
            byte @ 65..=111 => Some(byte as usize - 65),
            _ => None,
        }
    }

    /// Whether a process has sent the frame.
    pub const fn is_sent(self) -> bool {
        matches!(self.0, 129..=175)
    }

    const fn repeated(self) -> u64 {
        self.0 as u64 * ONES
    }
}

/// The number of frames of each owner. A burial has several of these on its stack, which may be
/// that of a signal handler.
pub struct OwnerCounts([u32; 256]);

impl OwnerCounts {
    pub fn of(&self, owner: Owner) -> u64 {
        self.0[owner.index()].into()
    }
}

/// Owners of whom a walk looks for frames.
#[derive(Clone)]
pub struct OwnerSet([bool; 256]);

impl OwnerSet {
    pub fn contains(&self, owner: Owner) -> bool {
        self.0[owner.index()]
    }

    pub fn new(owners: impl IntoIterator<Item = Owner>) -> Self {
        let mut set = [false; 256];
        owners.into_iter().for_each(|owner| set[owner.0 as usize] = true);
        OwnerSet(set)
    }
}

/// Bit 7 of each byte of `word` that is 0.
const fn zero_bytes(word: u64) -> u64 {
    !(((word & !HIGHS) + !HIGHS) | word) & HIGHS
}

/// Bit 7 of each byte of `word` that is `owner`.
const fn bytes_of(word: u64, owner: Owner) -> u64 {
    zero_bytes(word ^ owner.repeated())
}

/// All bits of the bytes that have bit 7 set here.
const fn filled(highs: u64) -> u64 {
    (highs >> 7) * 0xff
}

/// The bits of the bytes of frames `from..to` of a word.
fn byte_mask(from: u32, to: u32) -> u64 {
    let up_to = |frames: u32| if frames >= WORD_FRAMES { !0 } else { (1 << (8 * frames)) - 1 };
    up_to(to) & !up_to(from)
}

/// Bit n for each byte n of a word whose bit 7 is set; the others are clear.
const fn frames_of(highs: u64) -> u64 {
    // Each byte's bit is moved to its place in the highest byte, and no two meet.
    (highs >> 7).wrapping_mul(0x0102_0408_1020_4080) >> 56
}

/// The bits of byte n for each bit n of the lowest eight.
const fn bytes_at(frames: u64) -> u64 {
    let spread = (frames & 0xff).wrapping_mul(ONES) & 0x8040_2010_0804_0201;
    filled((spread + !HIGHS) & HIGHS)
}

/// The first `count` of the bits that are set.
fn lowest(bits: u64, count: u32) -> u64 {
    if bits.count_ones() <= count {
        return bits;
    }
    let mut rest = bits;
    (0..count).for_each(|_| rest &= rest - 1);
    bits & !rest
}

/// The table and the hints over it.
#[derive(Clone, Copy)]
pub struct OwnerTable<'t> {
    words: &'t [AtomicU64],
    full: &'t [AtomicU64],
}

impl<'t> OwnerTable<'t> {
    /// Number of words, of hints and of owners, for `frames` frames.
    pub const fn lengths(frames: u32) -> (usize, usize) {
        let groups = frames.div_ceil(GROUP_FRAMES) as usize;
        (groups.div_ceil(64), groups * GROUP_WORDS)
    }

    /// The table in these words, whole groups.
    pub fn new(full: &'t [AtomicU64], words: &'t [AtomicU64]) -> Self {
        assert!(words.len().is_multiple_of(GROUP_WORDS));
        assert!(full.len() * 64 >= words.len() / GROUP_WORDS);
        OwnerTable { words, full }
    }

    pub fn groups(&self) -> usize {
        self.words.len() / GROUP_WORDS
    }

    /// The words of a group.
    fn group(&self, group: usize) -> &'t [AtomicU64] {
        &self.words[group * GROUP_WORDS..][..GROUP_WORDS]
    }

    /// Asks for the line of a frame's byte, to write it.
    #[inline]
    pub fn prefetch(&self, frame: u32) {
        if let Some(word) = self.words.get((frame / WORD_FRAMES) as usize) {
            prefetch_write(word);
        }
    }

    /// The owner of a frame; `None`: it is beyond the table.
    #[inline]
    pub fn owner(&self, frame: u32) -> Option<Owner> {
        let word = self.words.get((frame / WORD_FRAMES) as usize)?;
        // Acquire: pairs with the release of whoever gave the frame away.
        let word = look(word);
        Some(Owner((word >> (8 * (frame % WORD_FRAMES))) as u8))
    }

    /// The first group from `from` on, and then from the first on, of which no search has found
    /// that it is full.
    fn next_group(&self, from: usize, seen: usize) -> Option<usize> {
        let groups = self.groups();
        let mut at = from;
        let mut left = groups.checked_sub(seen)?;
        while left > 0 {
            // Relaxed: a hint.
            let open = !self.full[at / 64].load(Ordering::Relaxed) >> (at % 64);
            let room = (64 - at % 64).min(groups - at).min(left);
            let ahead = open.trailing_zeros() as usize;
            if ahead < room {
                return Some(at + ahead);
            }
            left -= room;
            at = if at + room == groups { 0 } else { at + room };
        }
        None
    }

    /// Takes up to `want` blocks of 2^order frames, which fit a word, from `hint` on. Passes the
    /// first frame of each group that it takes some of, and the bits of the first frame of each
    /// block in it. Returns how many blocks it took; `hint` is the group to go on with.
    pub fn take_small(
        &self,
        owner: Owner,
        order: u32,
        want: u32,
        hint: &mut usize,
        mut give: impl FnMut(u32, u64),
    ) -> u32 {
        let (mut taken, mut seen) = (0, 0);
        let mut at = if *hint < self.groups() { *hint } else { 0 };
        while taken < want {
            let Some(group) = self.next_group(at, seen) else { break };
            seen += 1 + if group >= at { group - at } else { group + self.groups() - at };
            let (mut starts, mut has_more) = (0, false);
            for (nth, word) in self.group(group).iter().enumerate() {
                let (found, is_left) = take_in_word(word, owner, order, want - taken);
                starts |= found << (nth as u32 * WORD_FRAMES);
                taken += if found == 0xff { WORD_FRAMES } else { found.count_ones() };
                has_more |= is_left;
                if taken == want {
                    has_more |= nth + 1 < GROUP_WORDS;
                    break;
                }
            }
            at = if group + 1 == self.groups() { 0 } else { group + 1 };
            *hint = if has_more { group } else { at };
            if starts != 0 {
                give(group as u32 * GROUP_FRAMES, starts);
            } else if !has_more {
                self.note_full(group);
            }
        }
        taken
    }

    /// Takes up to `want` aligned blocks of 2^order frames, which fill words, the last ones of the
    /// table first: small blocks come from elsewhere. Begins below frame `hint`, and looks at what
    /// is above it afterwards; `hint` is where to go on.
    pub fn take_large(
        &self,
        owner: Owner,
        order: u32,
        want: u32,
        hint: &mut u32,
        mut give: impl FnMut(u32),
    ) -> u32 {
        let size = 1u32 << order;
        let all = self.words.len() as u32 * WORD_FRAMES / size;
        let begin = (*hint / size).min(all);
        let mut taken = 0;
        for at in (0..begin).rev().chain((begin..all).rev()) {
            if taken == want {
                break;
            }
            let first = at * size;
            // Relaxed: a hint, of the group that the block begins in.
            let group = (first / GROUP_FRAMES) as usize;
            if self.full[group / 64].load(Ordering::Relaxed) >> (group % 64) & 1 == 1 {
                continue;
            }
            if self.claim(owner, first..first + size) {
                give(first);
                taken += 1;
                *hint = first;
            }
        }
        taken
    }

    /// Takes exactly these frames, or none of them.
    pub fn claim(&self, owner: Owner, frames: Range<u32>) -> bool {
        self.change(frames, Owner::FREE, owner)
    }

    /// Gives one frame to another owner, if it is `from`'s. Returns whether it was.
    #[inline(always)]
    fn change_one(&self, frame: u32, from: Owner, to: Owner) -> bool {
        let Some(cell) = self.words.get((frame / WORD_FRAMES) as usize) else { return false };
        let shift = 8 * (frame % WORD_FRAMES);
        // Acquire: as in `take_in_word`.
        let mut now = look(cell);
        while (now >> shift) as u8 == from.0 {
            let new = now ^ u64::from(from.0 ^ to.0) << shift;
            if is_mutant(Mutant::StoresOwners) {
                cell.store(new, Ordering::Release);
                return true;
            }
            // As in `change_in_word`.
            match cell.compare_exchange_weak(now, new, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return true,
                Err(other) => now = other,
            }
        }
        false
    }

    /// Gives all these frames, or none, to another owner. No other caller changes frames of `to`.
    #[inline]
    pub fn change(&self, frames: Range<u32>, from: Owner, to: Owner) -> bool {
        match frames.len() {
            1 => self.change_one(frames.start, from, to),
            _ => self.change_all(frames, from, to),
        }
    }

    fn change_all(&self, frames: Range<u32>, from: Owner, to: Owner) -> bool {
        match in_one_word(&frames) {
            Some((word, mask)) => self.change_in_word(word, mask, from, to) == mask,
            None => self.change_words(frames, from, to),
        }
    }

    fn change_words(&self, frames: Range<u32>, from: Owner, to: Owner) -> bool {
        if !self.is_all(frames.clone(), from) {
            return false;
        }
        let all = pieces(frames);
        for (done, (word, mask)) in all.clone().enumerate() {
            if self.change_in_word(word, mask, from, to) != mask {
                // What this caller has changed is its own until now.
                all.take(done).for_each(|(word, mask)| {
                    self.change_in_word(word, mask, to, from);
                    self.note_free(word);
                });
                return false;
            }
        }
        true
    }

    /// Frees those frames that are `owner`'s, of groups and the bits of frames in them. Tells of
    /// each word the frames that were not, by bit 0 of their bytes.
    pub fn put_all(
        &self,
        owner: Owner,
        groups: impl Iterator<Item = (usize, u64)> + Clone,
        mut tell_refused: impl FnMut(u32, u64),
    ) {
        for (group, frames) in groups.clone() {
            let mut rest = frames;
            while rest != 0 {
                let nth = (rest.trailing_zeros() / WORD_FRAMES) as usize;
                let (word, mask) = (group * GROUP_WORDS + nth, bytes_at(rest >> (8 * nth)));
                rest &= !(0xff << (8 * nth));
                let refused = mask & !self.change_any_in_word(word, mask, owner, Owner::FREE);
                if refused != 0 {
                    tell_refused(word as u32 * WORD_FRAMES, refused & ONES);
                }
            }
        }
        // One fence for all of them, which pairs with that of `note_full`.
        fence(Ordering::SeqCst);
        groups.for_each(|(group, _)| self.clear_full(group));
    }

    /// Changes those frames of one word that are `from`'s, if all of the mask are. Returns the mask
    /// then, and 0 otherwise.
    pub fn change_in_word(&self, word: usize, mask: u64, from: Owner, to: Owner) -> u64 {
        let Some(cell) = self.words.get(word) else { return 0 };
        let mut now = look(cell);
        loop {
            if (now ^ from.repeated()) & mask != 0 {
                return 0;
            }
            let new = now & !mask | to.repeated() & mask;
            // Release: pairs with the Acquire of the frame's next owner. Acquire: as in
            // `take_in_word`.
            match cell.compare_exchange_weak(now, new, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return mask,
                Err(other) => now = other,
            }
        }
    }

    /// Whether all these frames are `owner`'s.
    #[inline]
    pub fn is_all(&self, frames: Range<u32>, owner: Owner) -> bool {
        match frames.len() {
            1 => self.owner(frames.start) == Some(owner),
            _ => self.are_all(frames, owner),
        }
    }

    /// The bytes of one word and a mask that are `owner`'s.
    #[inline]
    pub fn bytes_in_word(&self, word: usize, mask: u64, owner: Owner) -> u64 {
        // Acquire: as in `take_in_word`.
        let now = self.words.get(word).map_or(0, look);
        if (now ^ owner.repeated()) & mask == 0 {
            mask
        } else {
            filled(bytes_of(now, owner)) & mask
        }
    }

    fn are_all(&self, frames: Range<u32>, owner: Owner) -> bool {
        pieces(frames).all(|(word, mask)| {
            // Acquire: as in `take_in_word`.
            let word = self.words.get(word).map(look);
            word.is_some_and(|word| filled(bytes_of(word, owner)) & mask == mask)
        })
    }

    /// Gives those of these frames that are `from`'s to another owner, the first ones last. Returns
    /// how many it gave.
    #[inline]
    pub fn change_those(&self, frames: Range<u32>, from: Owner, to: Owner) -> u32 {
        match frames.len() {
            1 if to != Owner::FREE => self.change_one(frames.start, from, to).into(),
            _ => self.change_each(frames, from, to),
        }
    }

    fn change_each(&self, frames: Range<u32>, from: Owner, to: Owner) -> u32 {
        let change = |(word, mask): (usize, u64)| {
            let changed = self.change_any_in_word(word, mask, from, to);
            if changed != 0 && to == Owner::FREE {
                self.note_free(word);
            }
            if changed == 0xff << mask.trailing_zeros() { 1 } else { changed.count_ones() / 8 }
        };
        match in_one_word(&frames) {
            Some(piece) => change(piece),
            None => pieces(frames).rev().map(change).sum(),
        }
    }

    /// Passes each frame that a process has sent, and its byte, in ascending order.
    pub fn for_each_sent(&self, mut act: impl FnMut(u32, Owner)) {
        for (nth, cell) in self.words.iter().enumerate() {
            // Acquire: pairs with the release of the sender, for the frame's message.
            let word = look(cell);
            if word & HIGHS == 0 || word == !0 {
                continue;
            }
            for (byte, owner) in word.to_le_bytes().map(Owner).into_iter().enumerate() {
                if owner.is_sent() {
                    act(nth as u32 * WORD_FRAMES + byte as u32, owner);
                }
            }
        }
    }

    /// Notes that a search found nothing free in a group, unless there is something now.
    fn note_full(&self, group: usize) {
        let (hint, bit) = (&self.full[group / 64], 1 << (group % 64));
        // Relaxed, all: the fence orders them.
        hint.fetch_or(bit, Ordering::Relaxed);
        // Pairs with the fences of `put_all`, `note_free` and `show_range`.
        fence(Ordering::SeqCst);
        if !is_mutant(Mutant::LooksForFreeEarly) && self.has_free(group) {
            hint.fetch_and(!bit, Ordering::Relaxed);
        }
    }

    fn has_free(&self, group: usize) -> bool {
        // Relaxed: a look.
        self.group(group).iter().any(|word| zero_bytes(word.load(Ordering::Relaxed)) != 0)
    }

    /// Tells searches that a frame of a word has just become free.
    fn note_free(&self, word: usize) {
        // Pairs with that of `note_full`.
        fence(Ordering::SeqCst);
        self.clear_full(word / GROUP_WORDS);
    }

    /// Takes back that a group is full. Comes after a fence.
    fn clear_full(&self, group: usize) {
        let Some(hint) = self.full.get(group / 64) else { return };
        let bit = 1 << (group % 64);
        // Relaxed, both: the fence orders them.
        if hint.load(Ordering::Relaxed) & bit != 0 {
            hint.fetch_and(!bit, Ordering::Relaxed);
        }
    }

    /// Tells searches of all frames that are free and hidden, because a process has stopped between
    /// two steps. Looks at all groups that are marked as full; returns how many were not.
    pub fn show_free(&self) -> u64 {
        let is_full = |group: usize| self.full[group / 64].load_hint() >> (group % 64) & 1 == 1;
        let mut shown = 0;
        for group in (0..self.groups()).filter(|&group| is_full(group)) {
            if self.has_free(group) {
                self.clear_full(group);
                shown += 1;
            }
        }
        shown
    }

    /// Gives all frames of some owners in these groups to another, and shows searches all that is
    /// free. Returns how many frames it gave.
    pub fn give_all(&self, groups: impl Iterator<Item = usize>, of: &OwnerSet, to: Owner) -> u64 {
        let mut given = 0;
        for (group, full) in groups.map(|at| (at, self.full[at / 64].load_hint())) {
            let mut has_free = false;
            for cell in self.group(group) {
                let mut now = look(cell);
                loop {
                    let (found, free) = found_in(now, of);
                    has_free |= free || to == Owner::FREE && found != 0;
                    if found == 0 {
                        break;
                    }
                    let new = now & !found | to.repeated() & found;
                    // As in `change_in_word`.
                    let done =
                        cell.compare_exchange_weak(now, new, Ordering::AcqRel, Ordering::Acquire);
                    match done {
                        Ok(_) => {
                            given += u64::from(found.count_ones() / 8);
                            break;
                        }
                        Err(other) => now = other,
                    }
                }
            }
            if has_free && (full >> (group % 64) & 1 == 1 || to == Owner::FREE) {
                self.note_free(group * GROUP_WORDS);
            }
        }
        given
    }

    /// Number of frames of each owner.
    pub fn count(&self) -> OwnerCounts {
        let mut counts = [0; 256];
        for word in self.words {
            // Relaxed: a look.
            match word.load(Ordering::Relaxed) {
                0 => counts[0] += WORD_FRAMES,
                word => word.to_le_bytes().iter().for_each(|&byte| counts[byte as usize] += 1),
            }
        }
        OwnerCounts(counts)
    }

    /// Number of pageblocks all of whose frames are free.
    pub fn whole_pageblocks(&self) -> u64 {
        // Relaxed: a look.
        let is_free = |word: &AtomicU64| word.load(Ordering::Relaxed) == 0;
        let pageblocks = self.words.chunks_exact((PAGEBLOCK_FRAMES / WORD_FRAMES) as usize);
        pageblocks.filter(|words| words.iter().all(is_free)).count() as u64
    }

    /// Number of free frames, counted one by one.
    pub fn count_free(&self) -> u64 {
        // Relaxed: a look.
        let free = |word: &AtomicU64| zero_bytes(word.load(Ordering::Relaxed)).count_ones();
        self.words.iter().map(|word| u64::from(free(word))).sum()
    }

    /// The first run of `frames` frames that begins at a multiple of `align`, claimed.
    pub fn take_run(&self, owner: Owner, frames: u32, align: u32) -> Option<u32> {
        let end = self.words.len() as u32 * WORD_FRAMES;
        let mut start = 0u32;
        while start.checked_add(frames)? <= end {
            match self.first_taken(start..start + frames) {
                Some(taken) => start = (taken + 1).checked_next_multiple_of(align)?,
                None if self.claim(owner, start..start + frames) => return Some(start),
                // Another caller was faster: look again at what is left of it.
                None => {}
            }
        }
        None
    }

    /// The last frame of a range that is not free.
    fn first_taken(&self, frames: Range<u32>) -> Option<u32> {
        pieces(frames).rev().find_map(|(word, mask)| {
            // Relaxed: a look.
            let now = self.words.get(word).map_or(!0, |word| word.load(Ordering::Relaxed));
            let taken = mask & !filled(zero_bytes(now));
            let nth = taken.checked_ilog2()? / 8;
            Some(word as u32 * WORD_FRAMES + nth)
        })
    }

    /// Gives those frames of a range that are `from`'s to another owner, word by word. Passes each
    /// run of frames that it gave to `tell`, as it ends.
    pub fn change_some(
        &self,
        frames: Range<u32>,
        from: Owner,
        to: Owner,
        mut tell: impl FnMut(Range<u32>),
    ) {
        let mut run = 0..0;
        for (word, mask) in pieces(frames) {
            let mut bytes = self.change_any_in_word(word, mask, from, to);
            while bytes != 0 {
                let low = bytes.trailing_zeros() / 8;
                let high = (bytes >> (8 * low)).trailing_ones() / 8 + low;
                bytes &= !byte_mask(low, high);
                let piece = word as u32 * WORD_FRAMES + low..word as u32 * WORD_FRAMES + high;
                if piece.start == run.end {
                    run.end = piece.end;
                } else if !run.is_empty() {
                    tell(std::mem::replace(&mut run, piece));
                } else {
                    run = piece;
                }
            }
        }
        if !run.is_empty() {
            tell(run);
        }
    }

    /// Gives the first frames of a range that are `from`'s, `most` at most, to another owner, and
    /// shows searches those that are free then. Returns how many it gave.
    pub fn change_first(&self, frames: Range<u32>, most: u32, from: Owner, to: Owner) -> u32 {
        let mut left = most;
        for (word, mask) in pieces(frames) {
            if left == 0 {
                break;
            }
            // Again where another caller was faster.
            loop {
                let now = self.words.get(word).map_or(0, look);
                let first = lowest(bytes_of(now, from) & mask, left);
                if first == 0 {
                    break;
                }
                let changed = self.change_any_in_word(word, filled(first), from, to);
                left -= changed.count_ones() / 8;
                if changed != 0 && to == Owner::FREE {
                    self.note_free(word);
                }
            }
        }
        most - left
    }

    /// Changes those frames of one word and a mask that are `from`'s. Returns their bits.
    pub fn change_any_in_word(&self, word: usize, mask: u64, from: Owner, to: Owner) -> u64 {
        let Some(cell) = self.words.get(word) else { return 0 };
        // Acquire: as in `take_in_word`.
        let mut now = look(cell);
        loop {
            let is_all = (now ^ from.repeated()) & mask == 0;
            let found = if is_all { mask } else { filled(bytes_of(now, from)) & mask };
            if found == 0 {
                return 0;
            }
            let new = now & !found | to.repeated() & found;
            // As in `change_in_word`.
            match cell.compare_exchange_weak(now, new, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return found,
                Err(other) => now = other,
            }
        }
    }

    /// Tells searches that frames of a range have become free by a change of owners.
    pub fn show_range(&self, frames: Range<u32>) {
        // Pairs with that of `note_full`.
        fence(Ordering::SeqCst);
        let groups = frames.start / GROUP_FRAMES..frames.end.div_ceil(GROUP_FRAMES);
        groups.for_each(|group| self.clear_full(group as usize));
    }
}

/// Reads a hint for a walk.
trait Hint {
    fn load_hint(&self) -> u64;
}

impl Hint for AtomicU64 {
    fn load_hint(&self) -> u64 {
        // Relaxed: a burial comes after the death of whoever left it wrong.
        self.load(Ordering::Relaxed)
    }
}

/// The bits of the bytes of some owners in a word, and whether one of its frames is free.
fn found_in(word: u64, of: &OwnerSet) -> (u64, bool) {
    if word == 0 {
        return (0, true);
    }
    let bytes = word.to_le_bytes();
    let found = (0..8).filter(|&nth| of.0[bytes[nth] as usize]);
    (found.map(|nth| 0xff << (8 * nth)).sum(), zero_bytes(word) != 0)
}

/// Takes up to `want` blocks of 2^order free frames of one word, the lowest first. Returns a bit
/// for the first frame of each, and whether frames are still free.
#[inline(always)]
fn take_in_word(cell: &AtomicU64, owner: Owner, order: u32, want: u32) -> (u64, bool) {
    // Acquire: pairs with the release of whoever freed them. Release: what this process does with
    // them comes after its number is in their bytes. It is a SeqCst operation on x86-64 anyhow.
    let swap = |now, new| cell.compare_exchange_weak(now, new, Ordering::AcqRel, Ordering::Acquire);
    let mut now = look(cell);
    if now == 0 && order == 0 && want >= WORD_FRAMES {
        match swap(now, owner.repeated()) {
            Ok(_) => return (0xff, false),
            Err(other) => now = other,
        }
    }
    loop {
        let free = zero_bytes(now);
        let starts = if free == 0 { 0 } else { lowest(aligned_runs(free, order), want) };
        if starts == 0 {
            return (0, free != 0);
        }
        let mask = filled(runs_from(starts, order));
        match swap(now, now | owner.repeated() & mask) {
            Ok(_) => return (frames_of(starts), free & !mask != 0),
            Err(other) => now = other,
        }
    }
}

/// The first frame of each aligned block of 2^order frames. A frame is bit 7 of its byte.
const fn aligned_runs(free: u64, order: u32) -> u64 {
    match order {
        0 => free,
        1 => free & free >> 8 & 0x0080_0080_0080_0080,
        2 => {
            let pairs = free & free >> 8;
            pairs & pairs >> 16 & 0x0000_0080_0000_0080
        }
        _ => {
            if free == HIGHS {
                0x80
            } else {
                0
            }
        }
    }
}

/// Bit 7 of each byte of the blocks that begin at these.
const fn runs_from(starts: u64, order: u32) -> u64 {
    let mut all = starts;
    let mut step = 0;
    while step < order {
        all |= all << (8 << step);
        step += 1;
    }
    all
}

/// The word that a range of frames lies in, and the bits of its bytes, if it is one.
pub fn in_one_word(frames: &Range<u32>) -> Option<(usize, u64)> {
    let word = frames.start / WORD_FRAMES;
    let (from, count) = (frames.start % WORD_FRAMES, frames.end.saturating_sub(frames.start));
    let is_one = count > 0 && from + count <= WORD_FRAMES;
    is_one.then(|| (word as usize, !0 >> (64 - 8 * count) << (8 * from)))
}

/// The groups that a range of frames, which is not empty, touches, and the bits of its frames in
/// each.
pub fn groups_of(frames: Range<u32>) -> impl Iterator<Item = (usize, u64)> + Clone {
    (frames.start / GROUP_FRAMES..frames.end.div_ceil(GROUP_FRAMES)).map(move |group| {
        let base = group * GROUP_FRAMES;
        let from = frames.start.saturating_sub(base);
        let to = (frames.end - base).min(GROUP_FRAMES);
        (group as usize, !0 >> (GROUP_FRAMES - (to - from)) << from)
    })
}

/// The words that a range of frames touches, and the bits of its bytes in each.
fn pieces(frames: Range<u32>) -> impl DoubleEndedIterator<Item = (usize, u64)> + Clone {
    let (first, end) = (frames.start / WORD_FRAMES, frames.end.div_ceil(WORD_FRAMES));
    (first..end).map(move |word| {
        let base = word * WORD_FRAMES;
        let from = frames.start.saturating_sub(base);
        (word as usize, byte_mask(from, frames.end - base))
    })
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::test_units::zeroed_words;

    const ME: Owner = Owner::slot(0);
    const YOU: Owner = Owner::slot(46);

    fn table(frames: u32) -> OwnerTable<'static> {
        let (full, words) = OwnerTable::lengths(frames);
        OwnerTable::new(zeroed_words(full), zeroed_words(words))
    }

    /// Frees frames; returns how many were refused.
    fn put(table: &OwnerTable<'_>, owner: Owner, frames: Range<u32>) -> u32 {
        let mut refused = 0;
        table.put_all(owner, groups_of(frames), |_, bytes| refused += bytes.count_ones());
        refused
    }

    fn take(table: &OwnerTable<'_>, order: u32, want: u32) -> Vec<u32> {
        let mut got = Vec::new();
        let taken = match order {
            0..=3 => table.take_small(ME, order, want, &mut 0, |first, starts| {
                got.extend((0..64).filter(|bit| starts >> bit & 1 == 1).map(|bit| first + bit));
            }),
            _ => table.take_large(ME, order, want, &mut 1024, |frame| got.push(frame)),
        };
        assert_eq!(taken as usize, got.len());
        got
    }

    /// The frames of a range that are another's stay.
    #[test]
    fn a_change_of_some_frames_tells_of_runs() {
        let table = table(256);
        assert!(table.claim(YOU, 70..75) && table.claim(YOU, 100..101));
        let mut runs = Vec::new();
        table.change_some(3..200, Owner::FREE, ME, |run| runs.push(run));
        assert_eq!(runs, [3..70, 75..100, 101..200]);
        assert_eq!(table.owner(70), Some(YOU));
        runs.clear();
        table.change_some(0..256, ME, Owner::ABSENT, |run| runs.push(run));
        assert_eq!(runs, [3..70, 75..100, 101..200]);
        table.change_some(0..3, YOU, ME, |_| panic!("they are free"));
    }

    #[test]
    fn the_first_frames_of_an_owner_change() {
        let table = table(256);
        assert!(table.claim(ME, 5..100) && table.change(10..20, ME, YOU));
        assert_eq!(table.change_first(3..90, 9, ME, YOU), 9);
        assert!(table.is_all(5..24, YOU) && table.is_all(24..100, ME));
        assert_eq!(table.change_first(3..90, 100, ME, Owner::FREE), 66);
        assert!(table.is_all(24..90, Owner::FREE) && table.is_all(90..100, ME));
        assert_eq!(table.change_first(0..256, 0, ME, YOU), 0);
    }

    /// A search for large blocks goes on where the last one ended, and finds what is above it.
    #[test]
    fn large_blocks_are_found_on_both_sides_of_the_hint() {
        let table = table(1024);
        let mut hint = u32::MAX;
        let mut take = |want| {
            let mut got = Vec::new();
            table.take_large(ME, 8, want, &mut hint, |frame| got.push(frame));
            got
        };
        assert_eq!((take(1), take(2)), (vec![768], vec![512, 256]));
        assert_eq!(put(&table, ME, 768..1024), 0);
        assert_eq!(take(5), [0, 768]);
    }

    #[test]
    fn every_order_takes_all_there_is_and_gives_it_back() {
        for order in 0..=9 {
            let table = table(1024);
            let got = take(&table, order, 5000);
            assert_eq!(got.len(), 1024 >> order, "order {order}");
            assert_eq!(table.count_free(), 0);
            assert!(take(&table, order, 1).is_empty());
            for &frame in &got {
                assert_eq!(frame % (1 << order), 0);
                assert_eq!(put(&table, ME, frame..frame + (1 << order)), 0);
            }
            assert_eq!(table.count_free(), 1024);
            assert_eq!(take(&table, order, 5000).len(), 1024 >> order);
        }
    }

    #[test]
    fn small_blocks_come_between_frames_that_are_taken() {
        let table = table(64);
        for frame in [0, 3, 8, 17, 30] {
            assert!(table.claim(YOU, frame..frame + 1));
        }
        assert_eq!(take(&table, 3, 1), [32]);
        assert_eq!(take(&table, 2, 3), [4, 12, 20]);
        assert_eq!(take(&table, 1, 4), [10, 18, 24, 26]);
        assert_eq!(take(&table, 0, 4), [1, 2, 9, 16]);
        assert!(table.claim(ME, 40..49));
        assert!(!table.claim(ME, 48..64));
        assert!(table.claim(ME, 49..64));
    }

    #[test]
    fn only_an_owner_frees() {
        let table = table(64);
        assert!(table.claim(ME, 4..20));
        assert!(table.claim(YOU, 20..24));
        assert_eq!(put(&table, ME, 16..24), 4);
        assert_eq!(put(&table, ME, 16..20), 4);
        assert_eq!(table.owner(20), Some(YOU));
        assert_eq!(put(&table, ME, 60..80), 20);
        assert_eq!(table.owner(64), None);
    }

    #[test]
    fn a_burial_finds_every_frame_and_shows_what_was_hidden() {
        let table = table(640);
        let got = take(&table, 0, 640);
        got.iter().filter(|&&frame| frame % 3 == 0).for_each(|&frame| {
            assert!(table.change(frame..frame + 1, ME, YOU));
        });
        assert!(table.change(1..2, ME, Owner::sent(0)));
        // A process that died after it freed a frame and before it said so.
        table.words[79].fetch_and(!0xff, Ordering::Relaxed);
        assert_eq!(table.give_all(0..10, &OwnerSet::new([YOU]), Owner::FREE), 214);
        assert_eq!(take(&table, 0, 1000).len(), 215);
        let mine = OwnerSet::new([ME, Owner::sent(0)]);
        assert_eq!(table.give_all(0..10, &mine, Owner::FREE), 640);
        assert_eq!(table.count().of(Owner::FREE), 640);
        assert_eq!(table.take_run(ME, 640, 64), Some(0));
    }

    #[test]
    fn a_run_is_found_between_others() {
        let table = table(256);
        assert!(table.claim(YOU, 0..1) && table.claim(YOU, 100..101));
        assert_eq!(table.take_run(ME, 98, 2), Some(2));
        assert_eq!(table.take_run(ME, 128, 64), Some(128));
        assert_eq!(table.take_run(ME, 28, 1), None);
        assert_eq!(table.take_run(ME, 27, 1), Some(101));
        assert_eq!(table.count().of(YOU), 2);
    }
}
