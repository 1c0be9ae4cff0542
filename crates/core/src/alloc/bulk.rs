//! Many blocks at once.

use super::allocator::Allocator;
use super::error::{AllocError, FreeError, FreeManyError};
use super::flags::Flags;
use super::pressure::SlowPath;
use crate::cpus::{Change, Cpus};
use crate::frame::pageblock::{PAGEBLOCK_FRAMES, Tag};
use crate::frame::{Order, Pfn, ZoneId};
use crate::pcp::{Caches, Front, caches_batch};
use crate::store::CHUNK_BLOCKS;
use crate::sync::model::bound;
use crate::zone::Reserve;

/// Up to as many blocks go one by one while the front has them: a batch of so few costs more to
/// prepare than it saves. Models have no larger batches.
const FEW_BLOCKS: usize = bound(8, 0);

/// Batches of blocks.
impl<C: Cpus> SlowPath<'_, '_, C> {
    /// Allocates blocks behind the first `got`, which the caller has from a front that has no more.
    #[cold]
    #[inline(never)]
    fn alloc_many(
        &self,
        order: Order,
        flags: Flags,
        out: &mut [Pfn],
        got: usize,
    ) -> Result<usize, AllocError> {
        // A callback, and what is told of misuse, may panic.
        self.hooks().keep_while(order, out, got, |out, got| {
            self.check_usable()?;
            let filled = self.fill(order, flags, out, got);
            self.caches.store.end_call(|| ());
            filled
        })
    }

    /// Fills the list with the blocks that this CPU caches first, a magazine by one sequence. Then
    /// the store gives chunks, which would only pass through the front: a magazine that a refill
    /// filled would leave it at once. A slow request does the rest, and loads or refills the front
    /// for those after it. Of large blocks it comes first, so that a CPU caches what it uses.
    ///
    /// A short list is filled as single requests do, which divide a front's blocks between its
    /// magazines where these are exchanged ([`word`](crate::front::word)). A batch exchanges them
    /// by one sequence, after which the next exchange is as many blocks away as the batch has: a
    /// rhythm of short ones would exchange them in each.
    fn fill(
        &self,
        order: Order,
        flags: Flags,
        out: &mut [Pfn],
        got: &mut usize,
    ) -> Result<usize, AllocError> {
        let (hooks, is_short) = (self.hooks(), out.len() <= FEW_BLOCKS);
        // Whether the store may have a chunk, and whether a slow request comes before it.
        let (mut has_chunk, mut refills) = (out.len() >= CHUNK_BLOCKS, order.is_large());
        while *got < out.len() {
            let popped = if is_short { 0 } else { self.pop_many(order, flags, &mut out[*got..]) };
            *got += popped;
            hooks.on_alloc_many(&out[*got - popped..*got], order, flags)?;
            if popped > 0 && has_chunk {
                // It may have more, where batches go block by block.
                refills |= order.is_large();
                continue;
            }
            while has_chunk && !refills && *got < out.len() {
                let end = out.len().min(*got + CHUNK_BLOCKS);
                let taken = self.take_chunk(order, flags, &mut out[*got..end]);
                *got += taken;
                hooks.on_alloc_many(&out[*got - taken..*got], order, flags)?;
                has_chunk = taken > 0;
            }
            if *got == out.len() {
                break;
            }
            let one = match is_short {
                true => self.alloc(order, flags),
                false => self.alloc_slow(order, flags),
            };
            match one {
                Ok(pfn) => out[*got] = pfn,
                Err(_) if *got > 0 => break,
                Err(error) => return Err(error),
            }
            *got += 1;
            refills = false;
        }
        Ok(*got)
    }

    /// Takes blocks of the zone to try first from this CPU's caches. Returns how many.
    fn pop_many(&self, order: Order, flags: Flags, out: &mut [Pfn]) -> usize {
        let caches = self.caches;
        let Some(order) = order.cached() else { return 0 };
        let Some(here) = caches.here() else { return 0 };
        let Some(zone) = self.caches.first_zone(here, flags) else { return 0 };
        let front = Front { here, zone, order, kind: flags.kind(), avoided: false };
        let popped = ThroughFronts(caches).alloc(&front, out);
        if popped == 0
            && let Some(frame) = self.pop(order, flags)
        {
            out[0] = Pfn::new(frame);
            return 1;
        }
        popped
    }

    /// Takes blocks from the store of the first zone that may give as many, above its `low`.
    fn take_chunk(&self, order: Order, flags: Flags, out: &mut [Pfn]) -> usize {
        let caches = self.caches;
        let here = caches.here();
        // A closed gate leads here, too.
        if let Some(here) = here {
            caches.hand_over(here);
        }
        let pages = u64::from(order.frames()) * out.len() as u64;
        // A slow request asks for relief before it mixes pageblocks.
        let rules = flags.rules(Reserve::AboveLow).unmixed();
        let Some(zone) = caches
            .zones_for(caches.node_of(here), flags)
            .find(|&zone| caches.may_give(zone, pages, rules.reserve))
        else {
            return 0;
        };
        if let Some(here) = here.filter(|_| !order.is_large()) {
            // What a refill does besides: the CPU uses as much. The line comes meanwhile.
            let share = caches.share(here.cpu, zone);
            caches.store.prefetch(&share.wanted(order, rules));
            share.note_activity();
            share.step_hand(here);
            share.raise_high_for_refill(pages);
        }
        let got = caches.direct(here, zone).take_many(order, rules, out);
        // A word's blocks come in descending order; programs like them ascending.
        out[..got].reverse();
        got
    }

    /// Frees blocks of one order; `on_bad` gets the places of those that it cannot free.
    fn free_same(
        &self,
        puts: &mut Puts<'_, '_, C>,
        order: Order,
        blocks: &[Pfn],
        mut on_bad: impl FnMut(usize, FreeError),
    ) {
        let mut done = 0;
        let (mut has_room, mut goes_past) = (true, true);
        while done < blocks.len() {
            if has_room {
                let pushed = ThroughFronts(self.caches).push_run(order, &blocks[done..]);
                done += pushed;
                has_room = pushed > 0;
                continue;
            }
            if goes_past {
                let past = self.free_past_caches(order, &blocks[done..]);
                // Where one look has found too few, another might for each block.
                (done, goes_past) = (done + past, past > 0);
                continue;
            }
            let pfn = blocks[done];
            match self.free_one(puts, pfn, order) {
                Ok(makes_room) => has_room = makes_room,
                Err(error) => on_bad(done, error),
            }
            done += 1;
        }
    }

    /// Frees a chunk at the start of a batch to the store, if the CPU does not cache another
    /// magazine of such blocks. Returns how many blocks: 0 if those in pageblocks of one kind are
    /// fewer than a magazine has.
    fn free_past_caches(&self, order: Order, blocks: &[Pfn]) -> usize {
        let caches = self.caches;
        let (Some(order), Some(here)) = (order.cached(), caches.here()) else { return 0 };
        let (chunk, least) = (&blocks[..blocks.len().min(CHUNK_BLOCKS)], order.rounds() as usize);
        let is_popped_from = |tag: &Tag| tag.has_fronts() && !tag.row().1;
        let tag = caches.store.simple_tag(chunk[0], order);
        let Some(tag) = tag.filter(is_popped_from) else { return 0 };
        // A closed gate leads here, too. A CPU without caches keeps none.
        if chunk.len() < least
            || caches.hand_over(here)
            || caches.has_caches(here.cpu)
                && caches_batch(&caches.share(here.cpu, tag.zone()), order)
        {
            return 0;
        }
        let alike = ThroughFronts(caches).alike(tag, order, chunk);
        if alike < least {
            return 0;
        }
        caches.direct(Some(here), tag.zone()).put_many(order, &chunk[..alike]);
        alike
    }

    /// Frees a block that no run has taken. `true`: the front may have room for those after it.
    fn free_one(
        &self,
        puts: &mut Puts<'_, '_, C>,
        pfn: Pfn,
        order: Order,
    ) -> Result<bool, FreeError> {
        let tag = self.hooks().check_free(pfn, order)?;
        if let Some(order) = order.cached()
            && (self.push_untried(pfn, order, tag) || self.free_below_high(pfn, order, tag))
        {
            return Ok(true);
        }
        puts.add(pfn, order, tag.zone());
        Ok(false)
    }

    /// Frees a block by the slow path while the CPU caches less than `high`.
    fn free_below_high(&self, pfn: Pfn, order: Order, tag: Tag) -> bool {
        let caches = self.caches;
        let Some(here) = caches.here() else { return false };
        // A block that was free already is gone, too, and noted.
        caches.has_caches(here.cpu)
            && !caches.pcps.pcp(here.cpu, tag.zone()).is_above_high()
            && matches!(self.free_slowly(pfn, order, tag), Ok(()) | Err(FreeError::NotAllocated))
    }

    fn free_many_of(&self, order: Order, blocks: &[Pfn]) -> Result<(), FreeManyError> {
        self.free_by(blocks.len(), |puts, bad| {
            self.free_same(puts, order, blocks, |at, error| note_bad(bad, at, error));
        })
    }

    fn free_by(
        &self,
        length: usize,
        free: impl FnOnce(&mut Puts<'_, '_, C>, &mut Option<FreeManyError>),
    ) -> Result<(), FreeManyError> {
        let caches = self.caches;
        if let Err(why) = self.check_usable() {
            return Err(FreeManyError { first: 0, error: why.into(), failed: length });
        }
        let mut bad = None;
        let mut puts = Puts { caches, run: None };
        free(&mut puts, &mut bad);
        puts.flush();
        caches.store.end_call(|| ());
        bad.map_or(Ok(()), Err)
    }
}

/// Batches between a caller and the fronts of its CPU: a front's two magazines by one sequence.
struct ThroughFronts<'a, 'm, C>(&'a Caches<'m, C>);

impl<C: Cpus> ThroughFronts<'_, '_, C> {
    /// Allocates blocks from a front that is popped from, and from its shelf. Returns how many:
    /// fewer than `out` has room for if the slow path has more to do.
    fn alloc(&self, front: &Front, out: &mut [Pfn]) -> usize {
        let mut got = 0;
        loop {
            got += self.take(front, &mut out[got..]);
            if got == out.len() {
                return got;
            }
            let Some(pfn) = self.0.pop_turned_from(front) else { return got };
            out[got] = pfn;
            got += 1;
        }
    }

    /// Takes blocks that the front has by one sequence: as many as `out` has room for, and as the
    /// front's two magazines have. Returns how many; 0 also where batches go block by block.
    fn take(&self, front: &Front, out: &mut [Pfn]) -> usize {
        let word = self.0.read_front(front);
        let batch = word.and_then(|word| word.batch::<false>(out.len(), front.order.rounds()));
        let taken = batch.filter(|batch| {
            let change = Change::Take { at: front.offset(), batch, out };
            self.0.cpus.commit(self.0.pcps.blocks(), front.here, change)
        });
        taken.map_or(0, |batch| batch.count())
    }

    /// Frees the first blocks into the fronts. Returns how many: fewer if the slow path has more
    /// to do.
    fn free(&self, order: Order, blocks: &[Pfn]) -> usize {
        let mut done = 0;
        while done < blocks.len() {
            match self.push_run(order, &blocks[done..]) {
                0 if self.0.push_turned(blocks[done], order) => done += 1,
                0 => break,
                pushed => done += pushed,
            }
        }
        done
    }

    /// Puts the first blocks into this CPU's front by one sequence, as many as it has room for and
    /// as lie in pageblocks of one kind. Returns how many.
    fn push_run(&self, order: Order, blocks: &[Pfn]) -> usize {
        let caches = self.0;
        let (Some(order), Some(&first)) = (order.cached(), blocks.first()) else { return 0 };
        let Some(tag) = caches.store.simple_tag(first, order) else { return 0 };
        let Some(here) = caches.here() else { return 0 };
        let Some(front) = Front::of_tag(here, order, tag) else { return 0 };
        let Some(word) = caches.read_front(&front) else { return 0 };
        let most = blocks.len().min(word.room(order.rounds()) as usize);
        if most == 0 {
            return 0;
        }
        let alike = &blocks[..self.alike(tag, order, &blocks[..most])];
        let batch = word.batch::<true>(alike.len(), order.rounds());
        let put = batch.filter(|batch| {
            let change = Change::Put { at: front.offset(), batch, frames: alike };
            caches.cpus.commit(caches.pcps.blocks(), here, change)
        });
        match put {
            Some(batch) => batch.count(),
            None => {
                (caches.push_simple(first, order) || caches.push_simple_locked(first, order)).into()
            }
        }
    }

    /// The number of blocks at the start of a batch, of which there is one at least, that lie in
    /// pageblocks with this tag, at multiples of their size. Those of the first one have it.
    fn alike(&self, tag: Tag, order: Order, blocks: &[Pfn]) -> usize {
        let first = blocks[0].get();
        // Many batches come from one pageblock. Bits in which any block differs from the first say
        // so, without a look at the tag of each.
        let differing = blocks.iter().fold(0, |bits, pfn| bits | (pfn.get() ^ first));
        let is_aligned = Pfn::new(first | differing).is_aligned(order);
        let store = &self.0.store;
        let are_alike = || order <= Order::PAGEBLOCK && store.tags.are_simple(blocks, tag);
        if is_aligned && (differing < PAGEBLOCK_FRAMES || are_alike()) {
            return blocks.len();
        }
        // No branch asks whether a block lies in the pageblock of the one before: in a random order
        // none could be foretold.
        let has_tag = |pfn| store.simple_tag(pfn, order) == Some(tag);
        blocks.iter().take_while(|&&pfn| pfn.is_aligned(order) & has_tag(pfn)).count()
    }
}

/// Notes a block of a batch that was not freed.
fn note_bad(bad: &mut Option<FreeManyError>, place: usize, error: FreeError) {
    bad.get_or_insert(FreeManyError { first: place, error, failed: 0 }).failed += 1;
}

/// Blocks on their way to the store, of one order and zone at a time.
struct Puts<'p, 'm, C> {
    caches: &'p Caches<'m, C>,
    /// Made with the first block: most batches have none.
    run: Option<Run>,
}

/// Blocks of one order and zone that [`Puts`] has gathered.
struct Run {
    blocks: [Pfn; CHUNK_BLOCKS],
    length: usize,
    kind: (Order, ZoneId),
}

impl<C: Cpus> Puts<'_, '_, C> {
    #[cold]
    fn add(&mut self, pfn: Pfn, order: Order, zone: ZoneId) {
        let kind = (order, zone);
        if self.run.as_ref().is_some_and(|run| run.length == CHUNK_BLOCKS || run.kind != kind) {
            self.flush();
        }
        let new = || Run { blocks: [Pfn::new(0); CHUNK_BLOCKS], length: 0, kind };
        let run = self.run.get_or_insert_with(new);
        run.blocks[run.length] = pfn;
        run.length += 1;
    }

    fn flush(&mut self) {
        if let Some(Run { blocks, length, kind: (order, zone) }) = &self.run {
            self.caches.direct(self.caches.here(), *zone).put_many(*order, &blocks[..*length]);
            self.run = None;
        }
    }
}

impl<C: Cpus> Allocator<'_, C> {
    /// Allocates up to `out.len()` blocks of `order`; returns how many, at least 1 unless `out` is
    /// empty. `out` is filled from the front; numbers in the rest of it mean nothing.
    ///
    /// A magazine that this CPU caches is taken by one sequence; an empty front is loaded from the
    /// CPU's shelf. What it has not cached of 64 blocks or more comes from the store in chunks of
    /// 64. Fewer blocks, and large ones, refill the front, as a single request does. If a block is
    /// not to be had, it reclaims as a single request does, and counts as one that failed, also
    /// when it then returns the blocks before.
    ///
    /// # Errors
    /// Fails like [`alloc`](Self::alloc), when not even one block was to be had.
    pub fn alloc_many(
        &self,
        order: Order,
        flags: Flags,
        out: &mut [Pfn],
    ) -> Result<usize, AllocError> {
        let few = if out.len() <= FEW_BLOCKS { out.len() } else { 0 };
        let pop = |place: &mut Pfn| self.alloc_fast(order, flags).map(|pfn| *place = pfn).is_none();
        let mut got = out[..few].iter_mut().position(pop).unwrap_or(few);
        if out.len() > FEW_BLOCKS
            && flags.is_simple(self.simple_level)
            && let (Some(order), Some(here)) = (order.cached(), self.caches.here())
        {
            let (zone, kind) = (ZoneId::new(0), flags.kind());
            let front = Front { here, zone, order, kind, avoided: false };
            got = ThroughFronts(&self.caches).alloc(&front, out);
        }
        match got == out.len() && !self.caches.store.has_noted() {
            true => Ok(got),
            false => self.slow().alloc_many(order, self.options.classes.of(flags), out, got),
        }
    }

    /// Frees a batch of blocks of any orders, mobilities and zones, as when a process exits.
    ///
    /// Blocks go to this CPU's fronts and shelves until these reach `high`, neighbours of one order
    /// and kind of pageblock by one sequence. What is cached then stays so. The others go to the
    /// store in chunks of 64, neighbours of one order by one atomic operation, so a batch in
    /// ascending order costs least. O(batch).
    ///
    /// # Errors
    /// Bad blocks are skipped and counted; all others are freed. A block that only the store finds
    /// to be free already is reported as misuse, and not counted.
    pub fn free_many(&self, batch: &[(Pfn, Order)]) -> Result<(), FreeManyError> {
        let slow = self.slow();
        slow.free_by(batch.len(), |puts, bad| {
            let mut pfns = [Pfn::new(0); CHUNK_BLOCKS];
            let mut place = 0;
            for same in batch.chunk_by(|(_, order), (_, next)| order == next) {
                let order = same[0].1;
                for blocks in same.chunks(CHUNK_BLOCKS) {
                    let pfns = &mut pfns[..blocks.len()];
                    pfns.iter_mut().zip(blocks).for_each(|(to, &(pfn, _))| *to = pfn);
                    slow.free_same(puts, order, pfns, |at, error| note_bad(bad, place + at, error));
                    place += blocks.len();
                }
            }
        })
    }

    /// Frees a batch of blocks of one order, as [`alloc_many`](Self::alloc_many) returns them. As
    /// [`free_many`](Self::free_many), and the front takes a magazine's worth by one sequence.
    ///
    /// # Errors
    /// Fails like [`free_many`](Self::free_many).
    pub fn free_many_of(&self, order: Order, blocks: &[Pfn]) -> Result<(), FreeManyError> {
        match self.free_many_fast(order, blocks) {
            done if done == blocks.len() => Ok(()),
            done => self
                .slow()
                .free_many_of(order, &blocks[done..])
                .map_err(|bad| FreeManyError { first: done + bad.first, ..bad }),
        }
    }

    /// The part of [`free_many_of`](Self::free_many_of) that this CPU's caches take, as
    /// [`free_fast`](Self::free_fast) and [`free_to_front`](Self::free_to_front) do. Returns how
    /// many blocks at the start of the batch they took; the caller still holds the others.
    pub fn free_many_fast(&self, order: Order, blocks: &[Pfn]) -> usize {
        let few = if blocks.len() <= FEW_BLOCKS { blocks } else { &[] };
        let is_refused = |&pfn: &Pfn| !self.free_fast(pfn, order);
        let done = few.iter().position(is_refused).unwrap_or(few.len());
        done + ThroughFronts(&self.caches).free(order, &blocks[done..])
    }
}
