//! The store: all free frames of all zones, shared by all CPUs.
//!
//! They are bits in sections of the allocator's own ([`bitmap`]), or lists, trees or whatever else
//! the embedder has behind its [`Backing`]. This is the one place that knows which. The tags of
//! pageblocks are kept here in either case.

mod avoided;
pub mod backing;
mod best_fit;
pub mod bitmap;
pub mod bits;
mod entire;
pub mod hints;
mod misuse;
mod passes;
mod refresh;
mod reported;
mod runs;
mod search;
pub mod section;
pub mod tags;

use core::ops::Range;

use crate::frame::pageblock::{PAGEBLOCK_FRAMES, PageblockIndex, Tag};
use crate::frame::{FrameRange, Kind, Mobility, Order, Pfn, ZoneId};
use crate::sync::model::{IS_LOOM, Mutant, is_mutant};
use crate::sync::prim::AtomicU32;
use backing::{Backing, BackingRequest, BackingWords, Block, RangeRequest};
use bitmap::Bitmap;
use bits::{WORD_FRAMES, WordBlocks};
pub use misuse::{DoubleFree, Misuse, MisuseNote};
pub use passes::{SearchRequest, SearchRules};
use tags::Tags;

/// Blocks that pass between the store and a backing, or a caller, by one call: a magazine and the
/// block for the request that caused it.
pub const CHUNK_BLOCKS: usize = 64;
/// Words that a backing takes back by one call. Most of the blocks that go back together lie in few
/// words.
const CHUNK_WORDS: usize = 16;

/// All free frames of all zones: a bitmap, or a backing.
pub struct Store<'m> {
    pub tags: Tags<'m>,
    /// The bitmap, which with a backing has no sections, or such as hold the bytes of options and
    /// no bits. Callers that want to know what is free ask [`bitmap`](Self::bitmap) for it.
    pub bitmap: Bitmap<'m>,
    pub backing: Option<&'m dyn Backing>,
    /// Here, because what a backing may not hand out is found here.
    pub on_misuse: fn(Misuse),
    /// The note of misuse, in the metadata: a store itself never changes.
    pub noted: &'m MisuseNote,
}

impl<'m> Store<'m> {
    /// Notes frames that were free when they were put here, to be reported when a call ends.
    #[inline]
    pub fn note_doubled(&self, doubled: DoubleFree) {
        if let DoubleFree { first: Some(first), frames: frames @ 1.. } = doubled {
            self.note(Misuse::DoubleFree { first, frames });
        }
    }

    /// Notes misuse, to be reported when a call ends.
    #[cold]
    fn note(&self, misuse: Misuse) {
        self.noted.note(misuse);
        if IS_LOOM {
            // In a model every double free is a fault, and the look at the end of each call would
            // be two executions.
            self.noted.report(self.on_misuse, || ());
        }
    }

    /// Ends a call that may have put frames here: reports misuse that was noted. If that panics,
    /// `undo` takes back what the call has for its caller.
    #[inline]
    pub fn end_call(&self, undo: impl FnMut()) {
        if self.has_noted() {
            self.noted.report(self.on_misuse, undo);
        }
    }

    /// Whether a call is to report misuse before it ends.
    #[inline]
    pub fn has_noted(&self) -> bool {
        !IS_LOOM && self.noted.is_any()
    }

    /// The tag of a block like [`Tags::simple`]. `None` also if it lies in two pageblocks whose
    /// tags differ: they may be of different zones, or one without memory.
    #[inline]
    pub fn simple_tag(&self, pfn: Pfn, order: Order) -> Option<Tag> {
        let tag = self.tags.simple(pfn)?;
        let second = || self.tags.simple(Pfn::new(pfn.get() | PAGEBLOCK_FRAMES));
        (order <= Order::PAGEBLOCK || second() == Some(tag)).then_some(tag)
    }

    /// The bits, if it is they that say what is free.
    pub fn bitmap(&self) -> Option<&Bitmap<'m>> {
        self.backing.is_none().then_some(&self.bitmap)
    }

    /// Free pages of a zone as its backing counts them. `None`: the zone counts them itself.
    pub fn backed_free_pages(&self, zone: ZoneId) -> Option<u64> {
        self.backing.map(|backing| backing.free_pages(zone))
    }

    /// Whether `pfn` is free here now.
    pub fn is_free(&self, pfn: Pfn) -> bool {
        match self.backing {
            Some(backing) => backing.is_free(pfn),
            None => self.bitmap.is_free(pfn),
        }
    }

    /// Frames of `zone` that are free now, counted one by one.
    pub fn count_free(&self, zone: ZoneId, span: (u32, u32)) -> u64 {
        match self.backing {
            Some(backing) => backing.count_free(zone),
            None => self.bitmap.count_free(zone, span),
        }
    }

    /// Asks for the line of the bitmap where a search would begin.
    #[inline]
    pub fn prefetch(&self, wanted: &SearchRequest<'_>) {
        // Over a backing there is no section whose line to ask for.
        if self.backing.is_none() {
            self.bitmap.prefetch(wanted);
        }
    }

    /// Takes up to `want` blocks of any order and passes them to `give`. Returns how many: 0 only
    /// when the zone had none. Fewer than wanted may come though it has more, rather than break up
    /// whole pageblocks or go to avoided ones; a caller that must have all asks again for
    /// the rest.
    pub fn take_blocks(
        &self,
        wanted: &SearchRequest<'_>,
        order: Order,
        want: u32,
        give: impl FnMut(WordBlocks),
    ) -> u32 {
        match self.backing {
            Some(backing) => self.take_backed(backing, wanted, order, want, give),
            None => self.bitmap.take_blocks(wanted, order, want, give),
        }
    }

    /// Takes a block that lies where this CPU last found some, by one atomic operation. In all
    /// moments it is either in the store or the caller's, and what leads others to the store's
    /// blocks is never wrong because of it. `None`: there may be some all the same.
    #[inline]
    pub fn take_at_once(&self, wanted: &SearchRequest<'_>, order: Order) -> Option<Pfn> {
        if self.puts_at_once(order) { self.bitmap.take_at_once(wanted, order) } else { None }
    }

    /// Whether [`put_block`](Self::put_block) gives a block of this order back by one atomic
    /// operation.
    #[inline]
    pub fn puts_at_once(&self, order: Order) -> bool {
        let is_one_bit = order.get() <= bits::WORD_ORDER_MAX || order >= Order::PAGEBLOCK;
        self.backing.is_none() && is_one_bit
    }

    /// Gives one block back; returns which of its frames were free already, as far as can be told.
    #[inline]
    pub fn put_block(&self, pfn: Pfn, order: Order) -> DoubleFree {
        if self.puts_at_once(order) {
            self.bitmap.put_at_once(pfn, order)
        } else {
            self.put(pfn, order.frames())
        }
    }

    /// Takes one block of any order.
    pub fn take_block(&self, wanted: &SearchRequest<'_>, order: Order) -> Option<Pfn> {
        let Some(backing) = self.backing else { return self.bitmap.take_block(wanted, order) };
        let mut found = None;
        self.take_backed(backing, wanted, order, 1, |one| found = Some(Pfn::new(one.lowest())));
        found
    }

    /// Takes an unmovable frame, for the allocator itself, from the pageblocks that `frames` lie
    /// in; a backing takes one anywhere. `None`: there is none, or another caller was faster.
    pub fn take_among(&self, zone: ZoneId, frames: &Range<u32>) -> Option<Pfn> {
        if self.backing.is_none() {
            return self.bitmap.take_among(zone, frames);
        }
        let hint = AtomicU32::new(0);
        let rules = SearchRules::any(Kind::UNMOVABLE);
        self.take_block(&SearchRequest { zone, rules, span: (0, 0), hint: &hint }, Order::BASE)
    }

    /// Takes up to `want` blocks from a backing, at most [`CHUNK_BLOCKS`].
    #[inline(never)]
    fn take_backed(
        &self,
        backing: &dyn Backing,
        wanted: &SearchRequest<'_>,
        order: Order,
        want: u32,
        mut give: impl FnMut(WordBlocks),
    ) -> u32 {
        let SearchRequest { zone, rules: SearchRules { kind, bits, .. }, .. } = *wanted;
        let request = BackingRequest { bits, ..BackingRequest::new(zone, order, kind.mobility()) };
        let (mut taken, mut accepted) = (0, None);
        if let Some(words) = words_of(backing, order) {
            let (tag, aligned) = (wanted.tag(), bits::multiples(0, order.frames().into()));
            words.take_words(request, want, &mut |base, starts| {
                let found = WordBlocks::new(base.get(), starts);
                let are_blocks = starts != 0 && starts & !aligned == 0;
                if are_blocks
                    && found.blocks() <= want - taken
                    && self.are_of_zone(base, WORD_FRAMES, WORD_FRAMES, zone)
                {
                    self.label(base, WORD_FRAMES, tag);
                    taken += found.blocks();
                    give(found);
                } else {
                    self.note(Misuse::Backing { first: base, frames: WORD_FRAMES });
                }
            });
            return taken;
        }
        let mut chunk = [Block::NONE; CHUNK_BLOCKS];
        // Only a broken backing returns more than this: the list has no room for more.
        let got = backing.take(request, &mut chunk[..want as usize]).min(want as usize);
        // Magazines are emptied from the top, so the block that the backing named first goes in
        // last. Most blocks lie in the pageblock of the one before, whose tag is known.
        for block in chunk[..got].iter().rev() {
            let (pfn, mobility) = (block.pfn(), block.mobility());
            let like = Some((PageblockIndex::of(pfn), mobility));
            let is_known = accepted == like && order <= Order::PAGEBLOCK && pfn.is_aligned(order);
            let tag = Tag::new(zone, Kind::of(mobility));
            if is_known || self.accept(pfn, order.frames(), order.frames(), tag) {
                accepted = like;
                give(WordBlocks::one(pfn.get()));
                taken += 1;
            }
        }
        taken
    }

    /// Whether `frames` frames that a backing handed out are aligned and all of the zone asked for;
    /// if they are, notes what they serve. Others are noted as misuse, and never handed on: where
    /// they are not memory of the allocator's, a caller would write to something else.
    fn accept(&self, start: Pfn, frames: u32, align: u32, tag: Tag) -> bool {
        let is_accepted = self.are_of_zone(start, frames, align, tag.zone());
        match is_accepted {
            true => self.label(start, frames, tag),
            false => self.note(Misuse::Backing { first: start, frames }),
        }
        is_accepted
    }

    fn are_of_zone(&self, start: Pfn, frames: u32, align: u32, zone: ZoneId) -> bool {
        start.get().is_multiple_of(align) && self.tags.zone_of_range(start, frames) == Some(zone)
    }

    /// Notes what the pageblocks of frames that a backing handed out serve. Others may hold frames
    /// of these pageblocks and free them at the same time: they find the one mobility or the other,
    /// and the zone stays.
    fn label(&self, start: Pfn, frames: u32, tag: Tag) {
        for pageblock in FrameRange::new(start, frames).pageblocks().map(PageblockIndex) {
            if self.tags.of(pageblock) != tag {
                self.tags.set_for_some(pageblock, tag);
            }
        }
    }

    /// Notes what frames at a given address, which the caller has claimed, serve from now on: the
    /// pageblocks that they fill have this tag then, unless they are isolated. Labels of a backing
    /// are its own.
    pub fn note_run(&self, tag: Tag, start: Pfn, frames: u32) {
        if let Some(bitmap) = self.bitmap() {
            bitmap.note_run(tag, start, frames);
        }
    }

    /// Isolates a pageblock like [`Tags::isolate`]; searches hear that it is not avoided.
    ///
    /// # Errors
    /// Fails like [`Tags::isolate`].
    pub fn isolate(&self, pageblock: PageblockIndex, zone: ZoneId) -> Result<(), Tag> {
        let before = self.tags.isolate(pageblock, zone)?;
        self.bitmap.note_change(pageblock, before);
        Ok(())
    }

    /// Gives a pageblock that the caller has isolated another kind, for when that ends. See the
    /// theory in `store/section.rs`.
    pub fn retag_isolated(&self, pageblock: PageblockIndex, kind: Kind) {
        let Some(before) = self.tags.raw(pageblock).of_isolated() else { return };
        let tag = Tag::new(before.zone(), kind);
        self.tags.set(pageblock, tag.isolated());
        self.bitmap.note_mobility(pageblock, before, tag);
    }

    /// Notes that a frame of a pageblock is carved, for good. The carver owns that frame, so no
    /// other caller owns all of the pageblock and retags it. `false`: the pageblock is isolated,
    /// and must not be carved.
    pub fn note_carved(&self, pfn: Pfn, zone: ZoneId) -> bool {
        // Of a carver and a caller that isolates, the second sees the first.
        self.bitmap.change_tag(PageblockIndex::of(pfn), Tag::carved(zone))
    }

    /// Tags an isolated pageblock, all of whose frames the caller owns, as removed from its zone.
    pub fn note_removed(&self, pageblock: PageblockIndex, zone: ZoneId) {
        if let Some(before) = self.tags.raw(pageblock).of_isolated() {
            // What is added here again is movable at first.
            self.bitmap.note_mobility(pageblock, before, Tag::new(zone, Kind::MOVABLE));
        }
        self.tags.set(pageblock, Tag::removed(zone));
    }

    /// Gives many blocks of `order`, all of one zone, back. Returns which frames were free already,
    /// as far as can be told.
    pub fn put_blocks(&self, order: Order, blocks: impl Iterator<Item = Pfn>) -> DoubleFree {
        match self.backing {
            Some(backing) => match words_of(backing, order) {
                Some(words) => self.put_words(words, order, blocks),
                None => self.put_backed(
                    backing,
                    blocks.map(|pfn| Block::new(pfn, order, Mobility::Unmovable)),
                ),
            },
            None => self.bitmap.put_blocks(order, blocks),
        }
    }

    /// Gives blocks to a backing by words, those that follow each other in one word together.
    #[inline(never)]
    fn put_words(
        &self,
        backing: &dyn BackingWords,
        order: Order,
        blocks: impl Iterator<Item = Pfn>,
    ) -> DoubleFree {
        let (mut words, mut length) = ([(Pfn::new(0), 0); CHUNK_WORDS], 0);
        let (mut base, mut mask, mut doubled) = (0, 0, DoubleFree::NONE);
        let mut put = |words: &[(Pfn, u64)]| {
            let Some(&(base, mask)) = words.first() else { return };
            let Some(tag) = self.tags.tag(base) else { return };
            let found = backing.put_words(tag.zone(), words);
            doubled.add(named(found, || Some(base.add(mask.trailing_zeros()))));
        };
        for pfn in blocks {
            let offset = pfn.get() % WORD_FRAMES;
            let (start, bits) = (pfn.get() - offset, bits::block_mask(order) << offset);
            // A frame that is there twice goes back twice, for the backing to tell.
            if start != base || mask & bits != 0 {
                words[length] = (Pfn::new(base), mask);
                length += usize::from(mask != 0);
                if length == CHUNK_WORDS {
                    put(&words);
                    length = 0;
                }
                (base, mask) = (start, 0);
            }
            mask |= bits;
        }
        words[length] = (Pfn::new(base), mask);
        put(&words[..length + usize::from(mask != 0)]);
        doubled
    }

    /// Gives `start..start + frames`, all of one zone, back; returns which of them were free
    /// already, as far as can be told.
    #[inline]
    pub fn put(&self, start: Pfn, frames: u32) -> DoubleFree {
        let Some(backing) = self.backing else { return self.bitmap.put(start, frames) };
        let mut blocks = aligned_blocks(start, frames);
        match (blocks.next(), self.tags.tag(start)) {
            // Most are one block, which needs no list.
            (Some(block), Some(tag)) if block.order().frames() == frames => {
                put_chunk(backing, tag.zone(), &[block])
            }
            _ => self.put_backed(backing, aligned_blocks(start, frames)),
        }
    }

    /// Puts back frames whose memory was given back, like [`put`](Self::put): pageblocks that they
    /// fill are cold. A backing is not told.
    pub fn put_cold(&self, start: Pfn, frames: u32) -> DoubleFree {
        match self.bitmap() {
            Some(bitmap) => bitmap.put_cold(start, frames),
            None => self.put(start, frames),
        }
    }

    // Out of line: beside it the loop over bits would not fit the registers.
    #[inline(never)]
    fn put_backed(
        &self,
        backing: &dyn Backing,
        mut blocks: impl Iterator<Item = Block>,
    ) -> DoubleFree {
        let mut doubled = DoubleFree::NONE;
        loop {
            let mut chunk = [Block::NONE; CHUNK_BLOCKS];
            let mut length = 0;
            for (place, block) in chunk.iter_mut().zip(&mut blocks) {
                *place = block;
                length += 1;
            }
            // Blocks that are given back were checked to be memory on their way in.
            let zone = self.tags.tag(chunk[0].pfn()).filter(|_| length > 0).map(Tag::zone);
            let Some(zone) = zone else { return doubled };
            doubled.add(put_chunk(backing, zone, &chunk[..length]));
        }
    }

    /// Whether [`claim`](Self::claim), and [`take_contiguous`](Self::take_contiguous) for more than
    /// a block, can be had.
    pub fn has_ranges(&self) -> bool {
        self.backing.is_none_or(|backing| backing.ranges().is_some())
    }

    /// Takes `frames` contiguous frames of one zone, the first a multiple of `align` (a power of
    /// two). The bitmap looks for whole pageblocks, of which `frames` is a multiple; a backing for
    /// any run.
    pub fn take_contiguous(
        &self,
        wanted: &SearchRequest<'_>,
        frames: u32,
        align: u32,
    ) -> Option<Pfn> {
        let Some(backing) = self.backing else {
            return self.bitmap.take_contiguous(wanted, frames, align);
        };
        let SearchRequest { zone, rules: SearchRules { kind, bits, .. }, .. } = *wanted;
        let request = RangeRequest { zone, frames, align, mobility: kind.mobility(), bits };
        let start = backing.ranges()?.take_contiguous(request)?;
        self.accept(start, frames, align, wanted.tag()).then_some(start)
    }

    /// Takes any `frames` contiguous frames of one zone, the first a multiple of `align` (a power
    /// of two), if there are such. Only where there are [ranges](Self::has_ranges).
    pub fn take_run(&self, wanted: &SearchRequest<'_>, frames: u32, align: u32) -> Option<Pfn> {
        match self.backing {
            // A backing's own search for ranges is exact.
            Some(_) => self.take_contiguous(wanted, frames, align),
            None => self.bitmap.take_run(wanted, frames, align),
        }
    }

    /// Takes exactly `start..start + frames`, or nothing.
    pub fn claim(&self, zone: ZoneId, start: Pfn, frames: u32) -> bool {
        match self.backing {
            Some(backing) => {
                backing.ranges().is_some_and(|ranges| ranges.claim(zone, start, frames))
            }
            None => self.bitmap.claim(start, frames),
        }
    }

    /// Claims pageblocks for memory of a zone to be added: all, or none. Ascending, so that of
    /// callers whose ranges overlap the one that got furthest goes on.
    ///
    /// # Errors
    /// The first pageblock that has memory, or had some of another zone, and its tag.
    pub fn claim_tags(
        &self,
        pageblocks: Range<u32>,
        zone: ZoneId,
    ) -> Result<(), (PageblockIndex, Tag)> {
        for pageblock in pageblocks.clone().map(PageblockIndex) {
            if let Err(found) = self.tags.claim(pageblock, zone) {
                let end = if is_mutant(Mutant::LeavesTags) { 0 } else { pageblock.0 };
                (pageblocks.start..end)
                    .for_each(|claimed| self.tags.unclaim(PageblockIndex(claimed), zone));
                return Err((pageblock, found));
            }
        }
        Ok(())
    }
}

/// Gives a backing at least one block; where it says that frames were free but not which, the first
/// block is named.
fn put_chunk(backing: &dyn Backing, zone: ZoneId, blocks: &[Block]) -> DoubleFree {
    named(backing.put(zone, blocks), || blocks.first().map(|block| block.pfn()))
}

/// Frees that a backing refused, with the first frame that went back where it has named none.
fn named(found: DoubleFree, first: impl FnOnce() -> Option<Pfn>) -> DoubleFree {
    let DoubleFree { first: named, frames } = found;
    DoubleFree { first: if frames > 0 { named.or_else(first) } else { None }, frames }
}

/// The operations of a backing on words, if it has some and blocks of the order fit into one.
fn words_of(backing: &dyn Backing, order: Order) -> Option<&dyn BackingWords> {
    if order.get() <= bits::WORD_ORDER_MAX { backing.words() } else { None }
}

/// A range as naturally aligned blocks, each as large as can be.
fn aligned_blocks(start: Pfn, frames: u32) -> impl Iterator<Item = Block> {
    let end = u64::from(start.get()) + u64::from(frames);
    let mut at = u64::from(start.get());
    core::iter::from_fn(move || {
        let left = end.checked_sub(at).filter(|&left| left > 0)?;
        let size = at.trailing_zeros().min(left.ilog2()).min(Order::MAX.get());
        let block = Block::new(Pfn::new(at as u32), Order::new(size)?, Mobility::Unmovable);
        at += 1 << size;
        Some(block)
    })
}
