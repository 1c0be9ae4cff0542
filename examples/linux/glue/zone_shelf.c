// SPDX-License-Identifier: GPL-2.0
/*
 * A zone's shelf: full magazines between the depot's CPUs and zone->lock. pagedepot.c includes
 * this.
 *
 * A magazine that one CPU spills is the next refill of another, so that pages which one thread
 * frees for all others do not pass through the buddy lists. Only a full shelf, or an empty one, is
 * taken to zone->lock, and then for many magazines at once:
 *
 * - a spill gives up to DEPOT_BATCH back. Before the lock is taken, neighbours are merged: what a
 *   process freed in the order of its pages comes as a few large blocks, and the lock is held for
 *   these. It is held for DEPOT_HELD blocks, and one magazine, at most, whatever their size: of
 *   pages that do not merge, eight magazines.
 * - a refill fills a few empty places besides the magazine that it was called for, if the zone has
 *   more than its high watermark. It takes the blocks that __rmqueue() would, in the same order,
 *   but each whole: a block of the lists that is smaller than what is still wanted is not split
 *   under the lock.
 *
 * A place is one byte, empty, busy or full with magazines of one kind. A CPU claims it by a
 * compare-and-exchange, has it for itself with preemption off, and lets it go by a store-release;
 * the next claim acquires. There is nothing to wait for: a place that is busy is passed by. Only
 * the disabler waits, for CPUs that have preemption off.
 *
 * What lies here is none of the zone's free pages, as what CPUs cache is not. Every drain takes it,
 * in batches. Below the high watermark the shelf has DEPOT_FEW places.
 */
#define DEPOT_PLACES		64
/* A place for as many pages of the zone: at most 1/65 of it lies here. */
#define DEPOT_PLACE_SHIFT	12
/* What the largest magazine holds. */
#define DEPOT_MANY		63
/* Magazines by one take of zone->lock: for a spill, and beside its own for a refill. */
#define DEPOT_BATCH		32
#define DEPOT_AHEAD		3
/* Blocks that a spill holds the lock for, once they are merged. */
#define DEPOT_HELD		(7 * DEPOT_MANY)
/* Places below the high watermark. */
#define DEPOT_FEW		8
/* Pages that are worth a place. */
#define DEPOT_WORTH		32

#ifndef NR_PAGE_ORDERS
#define NR_PAGE_ORDERS	MAX_ORDER
#endif

enum { DEPOT_EMPTY, DEPOT_BUSY, DEPOT_KINDS };

struct depot_place {
	u32 begin, end;
	struct depot_block blocks[DEPOT_MANY];
};

struct depot_shelf {
	/* In one line of the cache: searches read all of them. */
	u8 states[DEPOT_PLACES];
	u32 places;
	/* The place at which the next batch begins: the one that was not given back for longest. */
	u32 hand;
	bool closed;
	struct depot_place at[];
};

static u8 depot_kind(u32 order, u32 migratetype)
{
	return DEPOT_KINDS + order * MIGRATE_PCPTYPES + migratetype;
}

/* Preemption is off from here until depot_let_go(). */
static bool depot_claim(struct depot_shelf *shelf, u32 i, u8 state)
{
	return READ_ONCE(shelf->states[i]) == state &&
		cmpxchg(&shelf->states[i], state, DEPOT_BUSY) == state;
}

static void depot_let_go(struct depot_shelf *shelf, u32 i, u8 state)
{
	smp_store_release(&shelf->states[i], state);
}

static bool depot_is_plenty(struct zone *zone)
{
	return zone_page_state(zone, NR_FREE_PAGES) > high_wmark_pages(zone);
}

/* Blocks that are not as a free page is are reported, and given up. */
static bool depot_is_bad(const struct depot_block *block, u32 *doubled, u32 *first)
{
	struct page *page = pfn_to_page(block->pfn);

	if (unlikely(PageBuddy(page))) {
		if (!*doubled)
			*first = block->pfn;
		*doubled += 1 << block->order;
		return true;
	}
#if !DEPOT_SINCE(6, 10)
	return bulkfree_pcp_prepare(page);
#else
	return false;
#endif
}

/*
 * Merges neighbours, as they come: the blocks of a magazine mostly go up or down by one. Returns
 * how many blocks are left. Nothing merges past a pageblock, which has one migratetype.
 */
static u32 depot_merge(struct depot_block *blocks, u32 count, u32 *doubled, u32 *first)
{
	u32 i, merged = 0;

	for (i = 0; i < count; i++) {
		struct depot_block block = blocks[i];

		if (depot_is_bad(&block, doubled, first))
			continue;
		while (merged && blocks[merged - 1].order == block.order &&
		       block.order < pageblock_order &&
		       (blocks[merged - 1].pfn ^ block.pfn) == 1u << block.order) {
			block.pfn &= ~(1u << block.order);
			block.order++;
			merged--;
		}
		blocks[merged++] = block;
	}
	return merged;
}

/* To the buddy lists; zone->lock is held. */
static void depot_put_locked(struct zone *zone, const struct depot_block *blocks, u32 count)
{
	u32 i;

	for (i = 0; i < count; i++) {
		u32 order = blocks[i].order, pfn = blocks[i].pfn;
		struct page *page = pfn_to_page(pfn);
		int mt = get_pfnblock_migratetype(page, pfn);

		__free_one_page(page, pfn, zone, order, mt, FPI_NONE);
		trace_mm_page_pcpu_drain(page, order, mt);
		__this_cpu_add(depot_counts.spilled, 1 << order);
	}
}

/* Full places that are claimed, and merged, to be given back. */
struct depot_batch {
	u32 claimed[DEPOT_BATCH];
	u32 count, doubled, first;
};

/* Claims full places, from the hand on, until the lock would be held for long enough. */
static void depot_claim_batch(struct depot_shelf *shelf, struct depot_batch *batch)
{
	u32 looks, blocks = 0, i = READ_ONCE(shelf->hand);

	batch->count = batch->doubled = 0;
	for (looks = 0; looks < shelf->places && batch->count < DEPOT_BATCH && blocks < DEPOT_HELD;
	     looks++) {
		struct depot_place *place;
		u8 state;

		i = i < shelf->places ? i : 0;
		place = &shelf->at[i];
		state = READ_ONCE(shelf->states[i]);
		if (state >= DEPOT_KINDS && depot_claim(shelf, i, state)) {
			u32 merged = depot_merge(place->blocks + place->begin, place->end - place->begin,
						 &batch->doubled, &batch->first);

			place->end = place->begin + merged;
			blocks += merged;
			batch->claimed[batch->count++] = i;
		}
		i++;
	}
	WRITE_ONCE(shelf->hand, i);
}

/* Gives a batch back, by one take of the lock; the places stay claimed. */
static void depot_give_back(struct zone *zone, struct depot_shelf *shelf, struct depot_batch *batch)
{
	unsigned long flags;
	u32 i;

	if (!batch->count)
		return;
	depot_note_lock(zone);
	spin_lock_irqsave(&zone->lock, flags);
	for (i = 0; i < batch->count; i++) {
		const struct depot_place *place = &shelf->at[batch->claimed[i]];

		depot_put_locked(zone, place->blocks + place->begin, place->end - place->begin);
	}
	__this_cpu_inc(depot_counts.puts);
	spin_unlock_irqrestore(&zone->lock, flags);
	if (unlikely(batch->doubled))
		depot_c_misuse(batch->first, batch->doubled);
}

/* Takes all that lies here back to the buddy lists; all of it, if nothing may come meanwhile. */
static void depot_shelf_drain(struct zone *zone, struct depot *depot)
{
	struct depot_shelf *shelf = depot->shelf;
	struct depot_batch batch;
	u32 i;

	if (!shelf)
		return;
	do {
		preempt_disable();
		depot_claim_batch(shelf, &batch);
		depot_give_back(zone, shelf, &batch);
		for (i = 0; i < batch.count; i++)
			depot_let_go(shelf, batch.claimed[i], DEPOT_EMPTY);
		preempt_enable();
	} while (batch.count);
}

/*
 * A claim of an empty place comes before its look at `closed`, and the store of that before this
 * look at the place; both have full barriers in between. So a place that is filled after this was
 * claimed before it, and is busy or full here, or its CPU sees that the shelf is closed. A full
 * place may be busy for a refill that leaves a part, and full again: each is looked at until it is
 * empty.
 */
static void depot_shelf_close(struct zone *zone, struct depot *depot, bool close)
{
	struct depot_shelf *shelf = depot->shelf;
	u32 i;

	if (!shelf)
		return;
	WRITE_ONCE(shelf->closed, close);
	if (!close)
		return;
	smp_mb();
	for (i = 0; i < shelf->places; i++) {
		u8 state;

		while ((state = READ_ONCE(shelf->states[i])) != DEPOT_EMPTY)
			if (state == DEPOT_BUSY)
				cpu_relax();
			else
				depot_shelf_drain(zone, depot);
	}
}

/* What a block serves that is freed in its pageblock; negative: nothing, it is isolated. */
static int depot_serves(u32 pfn)
{
	int mt = get_pfnblock_migratetype(pfn_to_page(pfn), pfn);

	if (is_migrate_isolate(mt))
		return -1;
	return mt < MIGRATE_PCPTYPES ? mt : MIGRATE_MOVABLE;
}

/* The one kind of all these blocks, or 0. */
static u8 depot_kind_of(const struct depot_block *blocks, u32 count)
{
	u32 i, order = blocks[0].order;
	unsigned long last = ULONG_MAX;
	int kind = -1;

	if (order > PAGE_ALLOC_COSTLY_ORDER || count > DEPOT_MANY || count << order < DEPOT_WORTH)
		return 0;
	for (i = 0; i < count; i++) {
		unsigned long pfn = blocks[i].pfn;

		if (blocks[i].order != order || PageBuddy(pfn_to_page(pfn)))
			return 0;
		/* Most are of one pageblock. */
		if (pfn >> pageblock_order != last) {
			int serves = depot_serves(pfn);

			last = pfn >> pageblock_order;
			if (serves < 0 || (kind >= 0 && serves != kind))
				return 0;
			kind = serves;
		}
	}
	return depot_kind(order, kind);
}

/* An empty place, claimed, or DEPOT_NONE. */
static u32 depot_claim_empty(struct zone *zone, struct depot_shelf *shelf)
{
	u32 i, places = shelf->places;

	if (!depot_is_plenty(zone))
		places = min_t(u32, places, DEPOT_FEW);
	for (i = 0; i < places; i++)
		if (depot_claim(shelf, i, DEPOT_EMPTY))
			return i;
	return DEPOT_NONE;
}

/*
 * Lays a magazine here. Where there is no place, as many as one batch are given back, and it takes
 * one of these. False: it is still the caller's.
 */
static bool depot_shelf_put(struct zone *zone, struct depot_shelf *shelf,
			    const struct depot_block *blocks, u32 count)
{
	struct depot_batch batch = { .count = 0 };
	u32 i, place;
	u8 kind = depot_kind_of(blocks, count);
	bool put;

	if (!kind)
		return false;
	preempt_disable();
	place = depot_claim_empty(zone, shelf);
	if (place == DEPOT_NONE) {
		depot_claim_batch(shelf, &batch);
		depot_give_back(zone, shelf, &batch);
		if (batch.count)
			place = batch.claimed[0];
	}
	/* Behind the claim, which is a full barrier: see depot_shelf_close(). */
	put = place != DEPOT_NONE && !READ_ONCE(shelf->closed);
	if (put) {
		memcpy(shelf->at[place].blocks, blocks, count * sizeof(*blocks));
		shelf->at[place].begin = 0;
		shelf->at[place].end = count;
	}
	if (place != DEPOT_NONE)
		depot_let_go(shelf, place, put ? kind : DEPOT_EMPTY);
	for (i = 1; i < batch.count; i++)
		depot_let_go(shelf, batch.claimed[i], DEPOT_EMPTY);
	preempt_enable();
	return put;
}

/* Takes up to `wanted` blocks of one kind; what is left of a magazine stays. */
static u32 depot_shelf_take(struct depot_shelf *shelf, u32 order, u32 mobility,
			    struct depot_block *out, u32 wanted)
{
	u8 kind = depot_kind(order, mobility);
	u32 i, got = 0;

	preempt_disable();
	for (i = 0; i < shelf->places && got < wanted; i++) {
		struct depot_place *place = &shelf->at[i];
		u32 n, j;

		if (!depot_claim(shelf, i, kind))
			continue;
		n = min(wanted - got, place->end - place->begin);
		for (j = 0; j < n; j++) {
			out[got] = place->blocks[place->begin++];
			out[got++].mobility = mobility;
		}
		depot_let_go(shelf, i, place->begin < place->end ? kind : DEPOT_EMPTY);
	}
	preempt_enable();
	return got;
}

/*
 * The first blocks of the smallest block of the zone's own lists that has some, and how many, at
 * most `wanted`: all that successive calls of __rmqueue() would hand out of it. 0: there is none.
 */
static u32 depot_rmqueue_run(struct zone *zone, u32 order, u32 mobility, u32 wanted, u32 *pfn)
{
	struct page *page;
	u32 size;

	for (size = order; size < NR_PAGE_ORDERS; size++)
		if (!list_empty(&zone->free_area[size].free_list[mobility]))
			break;
	if (size >= NR_PAGE_ORDERS)
		return 0;
	size = min_t(u32, size, order + ilog2(wanted));
	page = __rmqueue_smallest(zone, size, mobility);
	if (!page)
		return 0;
	*pfn = page_to_pfn(page);
	return 1u << (size - order);
}

/* One block by Linux's own rules, with fallbacks. */
static struct page *depot_rmqueue_any(struct zone *zone, u32 order, u32 mobility, u32 alloc_flags)
{
#if DEPOT_SINCE(6, 16)
	enum rmqueue_mode mode = RMQUEUE_NORMAL;

	return __rmqueue(zone, order, mobility, alloc_flags, &mode);
#else
	struct page *page = __rmqueue(zone, order, mobility, alloc_flags);

#if !DEPOT_SINCE(6, 10)
	if (page && is_migrate_cma(get_pcppage_migratetype(page)))
		__mod_zone_page_state(zone, NR_FREE_CMA_PAGES, -(1 << order));
#endif
	return page;
#endif
}

/* Whether __rmqueue() would look at CMA's pageblocks first. */
static bool depot_prefers_cma(struct zone *zone, u32 alloc_flags)
{
	return IS_ENABLED(CONFIG_CMA) && (alloc_flags & ALLOC_CMA) &&
		zone_page_state(zone, NR_FREE_CMA_PAGES) > zone_page_state(zone, NR_FREE_PAGES) / 2;
}

/* Takes blocks from the buddy lists; zone->lock is held. `any`: with fallbacks to other lists. */
static u32 depot_take_locked(struct zone *zone, u32 order, u32 mobility, u32 alloc_flags,
			     struct depot_block *out, u32 wanted, bool any)
{
	bool own = !depot_prefers_cma(zone, alloc_flags);
	u32 got = 0;

	while (got < wanted) {
		u32 i, pfn, run = own ? depot_rmqueue_run(zone, order, mobility, wanted - got, &pfn) : 0;

		if (!run && any) {
			struct page *page = depot_rmqueue_any(zone, order, mobility, alloc_flags);

			if (page) {
				pfn = page_to_pfn(page);
				run = 1;
			}
		}
		if (!run)
			break;
		for (i = 0; i < run; i++)
			out[got++] = (struct depot_block){ pfn + (i << order), order, mobility };
	}
	return got;
}

/*
 * Checks blocks that were just taken, and names what they serve: a free would find the type of the
 * pageblock, and they are cached for that. Returns how many are left.
 */
static u32 depot_check_taken(struct depot_block *blocks, u32 count)
{
	unsigned long last = ULONG_MAX;
	u32 i, good = 0;
	int serves = 0;

	for (i = 0; i < count; i++) {
		unsigned long pfn = blocks[i].pfn;

#if !DEPOT_SINCE(6, 6)
		if (unlikely(check_pcp_refill(pfn_to_page(pfn), blocks[i].order)))
			continue;
#endif
		if (pfn >> pageblock_order != last) {
			last = pfn >> pageblock_order;
			serves = depot_serves(pfn);
			if (serves < 0)
				serves = MIGRATE_MOVABLE;
		}
		blocks[good] = blocks[i];
		blocks[good++].mobility = serves;
	}
	return good;
}

/* Claims empty places for a refill that looks ahead, while half of them are left. */
static u32 depot_claim_ahead(struct zone *zone, struct depot_shelf *shelf, u32 *claimed)
{
	u32 i, empty = 0, count = 0;

	if (!shelf || !depot_is_plenty(zone))
		return 0;
	for (i = 0; i < shelf->places; i++)
		empty += READ_ONCE(shelf->states[i]) == DEPOT_EMPTY;
	for (i = 0; i < shelf->places && count < DEPOT_AHEAD && empty * 2 > shelf->places; i++)
		if (depot_claim(shelf, i, DEPOT_EMPTY)) {
			claimed[count++] = i;
			empty--;
		}
	/* Behind the claims, which are full barriers: see depot_shelf_close(). */
	if (count && READ_ONCE(shelf->closed))
		while (count)
			depot_let_go(shelf, claimed[--count], DEPOT_EMPTY);
	return count;
}

/* For the library: blocks of a zone, from its shelf or by zone->lock. */
u32 depot_c_take(struct zone *zone, u32 order, u32 mobility, u32 alloc_flags,
		 struct depot_block *out, u32 wanted)
{
	/* As for pcp lists: pages of CMA may lie among the movable ones. */
	bool no_cma = IS_ENABLED(CONFIG_CMA) && mobility == MIGRATE_MOVABLE &&
		!(alloc_flags & ALLOC_CMA);
	/* No depot: the library asks for its own metadata while the zone gets one. */
	struct depot_shelf *shelf = zone->depot ? zone->depot->shelf : NULL;
	u32 i, got, ahead = 0, removed, claimed[DEPOT_AHEAD];
	/* Of its largest blocks a magazine holds few, and one is asked for besides. */
	u32 rounds = min_t(u32, wanted - 1, DEPOT_MANY);
	unsigned long flags;

	if (order > PAGE_ALLOC_COSTLY_ORDER || no_cma)
		shelf = NULL;
	got = shelf ? depot_shelf_take(shelf, order, mobility, out, wanted) : 0;
	if (got)
		return got;
	preempt_disable();
	if (rounds << order >= DEPOT_WORTH)
		ahead = depot_claim_ahead(zone, shelf, claimed);
	depot_note_lock(zone);
	spin_lock_irqsave(&zone->lock, flags);
	got = depot_take_locked(zone, order, mobility, alloc_flags, out, wanted, true);
	removed = got;
	for (i = 0; i < ahead; i++) {
		struct depot_place *place = &shelf->at[claimed[i]];

		place->begin = 0;
		place->end = got < wanted ? 0 :
			depot_take_locked(zone, order, mobility, alloc_flags, place->blocks, rounds, false);
		removed += place->end;
	}
#if !DEPOT_SINCE(6, 10)
	__mod_zone_page_state(zone, NR_FREE_PAGES, -(long)(removed << order));
#endif
	__this_cpu_inc(depot_counts.takes);
	__this_cpu_add(depot_counts.refilled, removed << order);
	spin_unlock_irqrestore(&zone->lock, flags);
	got = depot_check_taken(out, got);
	for (i = 0; i < ahead; i++) {
		struct depot_place *place = &shelf->at[claimed[i]];

		place->end = depot_check_taken(place->blocks, place->end);
		depot_let_go(shelf, claimed[i], place->end ? depot_kind(order, mobility) : DEPOT_EMPTY);
	}
	preempt_enable();
	return got;
}

/* For the library: blocks of a zone, to its shelf or by zone->lock. */
u32 depot_c_put(struct zone *zone, const struct depot_block *blocks, u32 count, u32 *first)
{
	struct depot_shelf *shelf = zone->depot ? zone->depot->shelf : NULL;
	u32 i, doubled = 0;
	unsigned long flags;

	if (shelf && depot_shelf_put(zone, shelf, blocks, count))
		return 0;
	depot_note_lock(zone);
	spin_lock_irqsave(&zone->lock, flags);
	for (i = 0; i < count; i++)
		if (!depot_is_bad(&blocks[i], &doubled, first))
			depot_put_locked(zone, &blocks[i], 1);
	__this_cpu_inc(depot_counts.puts);
	spin_unlock_irqrestore(&zone->lock, flags);
	return doubled;
}

/* For a zone that gets a depot. Without memory for it, or in a small zone, there is no shelf. */
static void __meminit depot_setup_shelf(struct zone *zone, struct depot *depot)
{
	u32 places = min_t(unsigned long, zone_managed_pages(zone) >> DEPOT_PLACE_SHIFT, DEPOT_PLACES);
	struct depot_shelf *shelf;

	if (places < 2)
		return;
	shelf = depot_memory(zone, struct_size(shelf, at, places));
	if (!shelf)
		return;
	shelf->places = places;
	depot->shelf = shelf;
}
