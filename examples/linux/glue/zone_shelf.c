// SPDX-License-Identifier: GPL-2.0
/*
 * A zone's shelf: full magazines between the depot's CPUs and zone->lock. pagedepot.c includes
 * this.
 *
 * A magazine that one CPU spills is the next refill of another, so that pages which one thread
 * frees for all others do not pass through the buddy lists. Only a full shelf, or an empty one, is
 * taken to zone->lock, and then for many magazines at once:
 *
 * - a spill gives most of the shelf back. It gathers magazines in a heap, where pages merge with
 *   others of their pageblock: what processes freed in the order of their pages comes as a few
 *   large blocks, and the lock is held for these. It is held for DEPOT_HELD blocks, and one
 *   magazine, at most, whatever their size: of pages that do not merge, eight magazines. Places are
 *   empty again before the lock is asked for, so that others lay their magazines there meanwhile.
 *   What a magazine has that is not worth a place lies in a heap until then.
 * - a refill fills a few empty places besides the magazine that it was called for, if the zone has
 *   more than its high watermark. It takes the blocks that __rmqueue() would, in the same order,
 *   but each whole: a block of the lists that is smaller than what is still wanted is not split
 *   under the lock.
 *
 * A place is one byte, empty, busy or full with magazines of one kind. A CPU claims it by a
 * compare-and-exchange, has it for itself with preemption off, and lets it go by a store-release;
 * the next claim acquires. A heap is taken and left in the same way. A spill or refill waits for
 * neither: it passes by what is busy, and goes to the lock with its own magazine where there is no
 * other way. Drains wait for heaps, and the disabler for places: for CPUs that have preemption off.
 *
 * With PREEMPT_RT zone->lock sleeps, and who has a place or a heap can be preempted by a task that
 * would spin for it for ever. Nothing here is a CPU's, so preemption and migration stay on, and:
 *
 * - a heap has a lock instead of a flag, which sleeps and lends its holder the priority of who
 *   waits for it. Drains wait by it; spills and refills still only try.
 * - the disabler sleeps for a tick before it looks at a busy place again. A place has no lock: no
 *   request and no drain waits for one.
 *
 * What lies here is none of the zone's free pages, as what CPUs cache is not. Every drain takes it,
 * in batches. Below the high watermark the shelf has DEPOT_FEW places for what comes, and once a
 * second all of it goes back (depot_shelf_age()): what lay in the other places did not grow less.
 */
#define DEPOT_PLACES		64
/* A place for as many pages of the zone: at most 1/65 of it lies here. */
#define DEPOT_PLACE_SHIFT	12
/* What the largest magazine holds. */
#define DEPOT_MANY		63
/* Magazines that a refill fills by its take of zone->lock, beside its own. */
#define DEPOT_AHEAD		3
/* Blocks that a spill holds the lock for, once they are merged. */
#define DEPOT_HELD		(7 * DEPOT_MANY)
/* Places below the high watermark. */
#define DEPOT_FEW		8
/* A spill begins when all places but an eighth are full, and leaves a quarter of them full. */
#define DEPOT_SPARE_PART	8
#define DEPOT_LEFT_PART		4
/*
 * Pages that are worth a place. Fewer go to a heap, which keeps less than DEPOT_MANY blocks, and
 * all heaps together less than half of what the places hold.
 */
#define DEPOT_WORTH		32
/* CPUs that give magazines back at a time. A virtual one may be off its processor for long. */
#define DEPOT_HEAPS		4
/* Piles of a heap, and their size: no more than a pageblock. */
#define DEPOT_PILES		64
#define DEPOT_PILE_ORDER	9
#define DEPOT_PILE_PAGES	(1u << DEPOT_PILE_ORDER)

/* Under zone->lock, with which a task of PREEMPT_RT can be preempted. */
#ifdef CONFIG_PREEMPT_RT
#define depot_add_count(of, n)	this_cpu_add(depot_counts.of, n)
#else
#define depot_add_count(of, n)	__this_cpu_add(depot_counts.of, n)
#endif

/* Of requests that may take pages below the min watermark. */
#define DEPOT_RESERVES		(ALLOC_NO_WATERMARKS | ALLOC_RESERVES)

#ifndef NR_PAGE_ORDERS
#define NR_PAGE_ORDERS	MAX_ORDER
#endif

enum { DEPOT_EMPTY, DEPOT_BUSY, DEPOT_KINDS };

struct depot_place {
	u32 begin, end;
	struct depot_block blocks[DEPOT_MANY];
};

/* Pages that came back and were free already. */
struct depot_doubled { u32 first, pages; };

/* Pages of one part of the zone, a bit each, and by how many blocks they can go back. */
struct depot_pile {
	u32 part, blocks;
	unsigned long pages[DEPOT_PILE_PAGES / BITS_PER_LONG];
};

/* What one CPU gathers to give it back by one take of the lock. */
struct depot_heap {
	/* Whether a CPU, or a task, has it: the rest is its own then. */
#ifdef CONFIG_PREEMPT_RT
	spinlock_t lock;
#else
	u8 taken;
#endif
	/* Blocks, those of them that are in no pile, and the pages of all. */
	u32 count, loose_count, pages;
	struct depot_doubled doubled;
	struct depot_pile piles[DEPOT_PILES];
	struct depot_block loose[DEPOT_HELD + DEPOT_MANY];
};

struct depot_shelf {
	/* In one line of the cache: searches read all of them. */
	union {
		u8 states[DEPOT_PLACES];
		u64 eight_states[DEPOT_PLACES / 8];
	};
	u32 places;
	/* The place at which the next spill begins: the one that was not given back for longest. */
	u32 hand;
	bool closed;
	struct depot_heap heaps[DEPOT_HEAPS];
	struct depot_place at[];
};

static void depot_note_doubled(struct depot_doubled *doubled, const struct depot_block *block)
{
	if (!doubled->pages)
		doubled->first = block->pfn;
	doubled->pages += 1 << block->order;
}

static u8 depot_kind(u32 order, u32 migratetype)
{
	return DEPOT_KINDS + order * MIGRATE_PCPTYPES + migratetype;
}

/*
 * From here to depot_end_hold() a CPU may have places and heaps: with preemption off, as others may
 * wait for it.
 */
static void depot_begin_hold(void)
{
#ifndef CONFIG_PREEMPT_RT
	preempt_disable();
#endif
}

static void depot_end_hold(void)
{
#ifndef CONFIG_PREEMPT_RT
	preempt_enable();
#endif
}

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
static __always_inline bool depot_is_bad(const struct depot_block *block,
					 struct depot_doubled *doubled)
{
	struct page *page = pfn_to_page(block->pfn);

	if (unlikely(PageBuddy(page))) {
		depot_note_doubled(doubled, block);
		return true;
	}
#if !DEPOT_SINCE(6, 10)
	return bulkfree_pcp_prepare(page);
#else
	return false;
#endif
}

/* Adds a run to blocks, by aligned ones that are as large as can be. Returns how many there are. */
static u32 depot_put_run(struct depot_block *blocks, u32 count, u32 pfn, u32 end)
{
	while (pfn < end) {
		u32 order = min_t(u32, __ffs(pfn | DEPOT_PILE_PAGES), ilog2(end - pfn));

		blocks[count++] = (struct depot_block){ pfn, order };
		pfn += 1u << order;
	}
	return count;
}

/*
 * Merges neighbours, as they come: the blocks of a magazine have one order, and mostly go up or
 * down by one. Returns how many blocks are left: a run takes no more room than what it is made of.
 */
static u32 depot_merge(struct depot_block *blocks, u32 count, struct depot_doubled *doubled)
{
	u32 i, merged = 0, begin = 0, end = 0, pages = count ? 1u << blocks[0].order : 0;

	for (i = 0; i < count; i++) {
		u32 pfn = blocks[i].pfn;

		if (depot_is_bad(&blocks[i], doubled))
			continue;
		if (pfn == end) {
			end += pages;
		} else if (pfn + pages == begin) {
			begin = pfn;
		} else {
			merged = depot_put_run(blocks, merged, begin, end);
			begin = pfn;
			end = pfn + pages;
		}
	}
	return depot_put_run(blocks, merged, begin, end);
}

/* Whether all pages of an aligned block are in a pile. */
static bool depot_pile_has(const struct depot_pile *pile, u32 at, u32 order)
{
	u32 pages = 1u << order, word = at / BITS_PER_LONG, end = (at + pages) / BITS_PER_LONG;

	if (pages < BITS_PER_LONG) {
		unsigned long mask = ((1ul << pages) - 1) << at % BITS_PER_LONG;

		return (pile->pages[word] & mask) == mask;
	}
	for (; word < end; word++)
		if (~pile->pages[word])
			return false;
	return true;
}

/*
 * Adds a block to the pile of its part of the zone, where it merges with what lies there. If the
 * place of that pile has one of another part, it stays as it is.
 */
static void depot_heap_add(struct depot_heap *heap, struct depot_block block)
{
	u32 part = block.pfn >> DEPOT_PILE_ORDER, at = block.pfn % DEPOT_PILE_PAGES;
	struct depot_pile *pile = &heap->piles[part % DEPOT_PILES];
	u32 order = block.order;

	heap->count++;
	heap->pages += 1u << order;
	if (pile->blocks && pile->part != part) {
		heap->loose[heap->loose_count++] = block;
		return;
	}
	if (unlikely(find_next_bit(pile->pages, at + (1u << order), at) < at + (1u << order))) {
		heap->count--;
		heap->pages -= 1u << order;
		depot_note_doubled(&heap->doubled, &block);
		return;
	}
	pile->part = part;
	pile->blocks++;
	bitmap_set(pile->pages, at, 1u << order);
	while (order < DEPOT_PILE_ORDER && depot_pile_has(pile, at ^ (1u << order), order)) {
		at &= ~(1u << order);
		order++;
		pile->blocks--;
		heap->count--;
	}
}

/* To the buddy lists; zone->lock is held. */
static void depot_put_locked(struct zone *zone, u32 pfn, u32 order)
{
	struct page *page = pfn_to_page(pfn);
	int mt = get_pfnblock_migratetype(page, pfn);

	__free_one_page(page, pfn, zone, order, mt, FPI_NONE);
	trace_mm_page_pcpu_drain(page, order, mt);
	depot_add_count(spilled, 1 << order);
	depot_add_count(spilled_blocks, 1);
}

/* A pile by blocks, each as large as can be; zone->lock is held. */
static void depot_put_pile(struct zone *zone, struct depot_pile *pile)
{
	u32 at = 0, end, order;

	while ((at = find_next_bit(pile->pages, DEPOT_PILE_PAGES, at)) < DEPOT_PILE_PAGES) {
		end = find_next_zero_bit(pile->pages, DEPOT_PILE_PAGES, at);
		for (; at < end; at += 1u << order) {
			order = min_t(u32, at ? __ffs(at) : DEPOT_PILE_ORDER, ilog2(end - at));
			depot_put_locked(zone, (pile->part << DEPOT_PILE_ORDER) + at, order);
		}
	}
	pile->blocks = 0;
	bitmap_zero(pile->pages, DEPOT_PILE_PAGES);
}

/* Whether a place is full, by looks at eight places each: most drains find none. */
static bool depot_any_full(const struct depot_shelf *shelf)
{
	u32 i;

	BUILD_BUG_ON(DEPOT_EMPTY != 0 || DEPOT_BUSY != 1 || DEPOT_KINDS != 2);
	for (i = 0; i < ARRAY_SIZE(shelf->eight_states); i++)
		if (READ_ONCE(shelf->eight_states[i]) & 0xfefefefefefefefeull)
			return true;
	return false;
}

/* Moves up to so many full places to the heap, from the hand on; fewer, if that has enough. */
static u32 depot_gather(struct depot_shelf *shelf, struct depot_heap *heap, u32 most)
{
	u32 looks, gathered = 0, i = READ_ONCE(shelf->hand);

	if (!most || !depot_any_full(shelf))
		return 0;
	for (looks = 0; looks < shelf->places && gathered < most && heap->count < DEPOT_HELD;
	     looks++, i++) {
		struct depot_place *place;
		u32 j, merged;
		u8 state;

		i = i < shelf->places ? i : 0;
		place = &shelf->at[i];
		state = READ_ONCE(shelf->states[i]);
		if (state < DEPOT_KINDS || !depot_claim(shelf, i, state))
			continue;
		merged = depot_merge(place->blocks + place->begin, place->end - place->begin,
				     &heap->doubled);
		for (j = 0; j < merged; j++)
			depot_heap_add(heap, place->blocks[place->begin + j]);
		depot_let_go(shelf, i, DEPOT_EMPTY);
		gathered++;
	}
	WRITE_ONCE(shelf->hand, i);
	return gathered;
}

/* Gives the heap back, by one take of the lock. */
static void depot_give_back(struct zone *zone, struct depot_heap *heap)
{
	struct depot_doubled doubled = heap->doubled;
	unsigned long flags;
	u32 i;

	depot_note_lock(zone);
	spin_lock_irqsave(&zone->lock, flags);
	for (i = 0; i < DEPOT_PILES; i++)
		if (heap->piles[i].blocks)
			depot_put_pile(zone, &heap->piles[i]);
	for (i = 0; i < heap->loose_count; i++)
		depot_put_locked(zone, heap->loose[i].pfn, heap->loose[i].order);
	depot_add_count(puts, 1);
	spin_unlock_irqrestore(&zone->lock, flags);
	heap->count = heap->loose_count = heap->pages = 0;
	heap->doubled = (struct depot_doubled){};
	if (unlikely(doubled.pages))
		depot_c_misuse(doubled.first, doubled.pages);
}

#ifdef CONFIG_PREEMPT_RT
static bool depot_take_heap(struct depot_heap *heap)
{
	return spin_trylock(&heap->lock);
}

static void depot_leave_heap(struct depot_heap *heap)
{
	spin_unlock(&heap->lock);
}

/* False: nothing else runs while an image of the memory is made, and to wait would be in vain. */
static bool depot_wait_for_heap(struct depot_heap *heap)
{
	if (irqs_disabled())
		return depot_take_heap(heap);
	spin_lock(&heap->lock);
	return true;
}

/* Until it is worth to look at a place again. */
static void depot_wait_for_place(void)
{
	schedule_timeout_uninterruptible(1);
}
#else
static bool depot_take_heap(struct depot_heap *heap)
{
	return !READ_ONCE(heap->taken) && cmpxchg(&heap->taken, 0, 1) == 0;
}

static void depot_leave_heap(struct depot_heap *heap)
{
	smp_store_release(&heap->taken, 0);
}

/* Begins a hold, and takes a heap. */
static bool depot_wait_for_heap(struct depot_heap *heap)
{
	for (;;) {
		depot_begin_hold();
		if (depot_take_heap(heap))
			return true;
		depot_end_hold();
		cpu_relax();
	}
}

static void depot_wait_for_place(void)
{
	cpu_relax();
}
#endif

/* Gives up to so many magazines back by a heap of the caller's, and leaves it. */
static u32 depot_spill_by(struct zone *zone, struct depot_shelf *shelf, struct depot_heap *heap,
			  u32 most)
{
	u32 gathered = depot_gather(shelf, heap, most);

	if (gathered || heap->count)
		depot_give_back(zone, heap);
	depot_leave_heap(heap);
	return gathered;
}

/* A heap, taken, or NULL: other CPUs have all of them. */
static struct depot_heap *depot_any_heap(struct depot_shelf *shelf)
{
	u32 i;

	for (i = 0; i < DEPOT_HEAPS; i++)
		if (depot_take_heap(&shelf->heaps[i]))
			return &shelf->heaps[i];
	return NULL;
}

/*
 * Takes what lies here back to the buddy lists; all of it, if nothing comes meanwhile. What other
 * CPUs had gathered before is there too: this waits for each heap, and can be preempted as it does.
 */
static void depot_shelf_drain(struct zone *zone, struct depot *depot)
{
	struct depot_shelf *shelf = depot->shelf;
	u32 i, gathered, left = shelf ? shelf->places : 0;

	for (i = 0; shelf && i < DEPOT_HEAPS; i++)
		do {
			if (!depot_wait_for_heap(&shelf->heaps[i]))
				break;
			gathered = depot_spill_by(zone, shelf, &shelf->heaps[i], left);
			depot_end_hold();
			/* Others may lay as many here meanwhile, again and again. */
			left = gathered ? left - gathered : 0;
		} while (left);
}

/* Once a second: a zone that is short of pages has back what it lent here when it had plenty. */
static void depot_shelf_age(struct zone *zone, struct depot *depot)
{
	if (!depot_is_plenty(zone))
		depot_shelf_drain(zone, depot);
}

/* Pages that lie here; racy: those that a CPU has in hand are not counted, or twice. */
unsigned long depot_shelf_pages(struct zone *zone)
{
	struct depot *depot = zone_depot(zone);
	struct depot_shelf *shelf = depot ? depot->shelf : NULL;
	unsigned long pages = 0;
	u32 i;

	for (i = 0; shelf && i < shelf->places; i++) {
		u32 begin = READ_ONCE(shelf->at[i].begin), end = READ_ONCE(shelf->at[i].end);
		u8 state = READ_ONCE(shelf->states[i]);

		if (state >= DEPOT_KINDS && begin < end)
			pages += (end - begin) << (state - DEPOT_KINDS) / MIGRATE_PCPTYPES;
	}
	for (i = 0; shelf && i < DEPOT_HEAPS; i++)
		pages += READ_ONCE(shelf->heaps[i].pages);
	return pages;
}

/*
 * A claim of an empty place comes before its look at `closed`, and the store of that before this
 * look at the place; both have full barriers in between. So a place that is filled after this was
 * claimed before it, and is busy or full here, or its CPU sees that the shelf is closed. A full
 * place may be busy for a refill that leaves a part, and full again: each is looked at until it is
 * empty. What was gathered from it then goes before the drain at the end has that heap.
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
				depot_wait_for_place();
			else
				depot_shelf_drain(zone, depot);
	}
	depot_shelf_drain(zone, depot);
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

	if (order > PAGE_ALLOC_COSTLY_ORDER || count > DEPOT_MANY)
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

/* The first empty place of so many, claimed, or DEPOT_NONE. */
static u32 depot_claim_empty(struct depot_shelf *shelf, u32 places)
{
	u32 i;

	for (i = 0; i < places; i++)
		if (depot_claim(shelf, i, DEPOT_EMPTY))
			return i;
	return DEPOT_NONE;
}

/* Fills a claimed place. False: the shelf is closed. */
static bool depot_fill(struct depot_shelf *shelf, u32 place, u8 kind,
		       const struct depot_block *blocks, u32 count)
{
	/* Behind the claim, which is a full barrier: see depot_shelf_close(). */
	bool open = !READ_ONCE(shelf->closed);

	if (open) {
		memcpy(shelf->at[place].blocks, blocks, count * sizeof(*blocks));
		shelf->at[place].begin = 0;
		shelf->at[place].end = count;
	}
	depot_let_go(shelf, place, open ? kind : DEPOT_EMPTY);
	return open;
}

/*
 * Adds the few blocks of a magazine that is not worth a place to a heap. That goes back once it has
 * many blocks or pages, with the next spill that has it, or with a drain; and at once if the zone
 * has not plenty. False: they are still the caller's.
 */
static bool depot_add_few(struct zone *zone, struct depot_shelf *shelf, bool plenty,
			  const struct depot_block *blocks, u32 count)
{
	struct depot_heap *heap = depot_any_heap(shelf);
	u32 pages_max = shelf->places * DEPOT_WORTH / DEPOT_HEAPS;
	bool open;
	u32 i;

	if (!heap)
		return false;
	/* Who closes the shelf has each heap once after this is set. */
	open = !READ_ONCE(shelf->closed);
	for (i = 0; open && i < count; i++)
		if (!depot_is_bad(&blocks[i], &heap->doubled))
			depot_heap_add(heap, blocks[i]);
	if (!plenty || heap->count >= DEPOT_MANY || heap->pages >= pages_max ||
	    unlikely(heap->doubled.pages))
		depot_give_back(zone, heap);
	depot_leave_heap(heap);
	return open;
}

/*
 * Lays a magazine in a place. Who comes to the last places, or finds none, gives most of the others
 * back; the last are for what comes meanwhile. False: it is still the caller's.
 */
static bool depot_lay(struct zone *zone, struct depot_shelf *shelf, u32 places, u8 kind,
		      const struct depot_block *blocks, u32 count)
{
	u32 place = depot_claim_empty(shelf, places);

	if (place == DEPOT_NONE || place >= places - places / DEPOT_SPARE_PART) {
		struct depot_heap *heap = depot_any_heap(shelf);

		if (heap)
			depot_spill_by(zone, shelf, heap, shelf->places - places / DEPOT_LEFT_PART);
		if (place == DEPOT_NONE)
			place = depot_claim_empty(shelf, places);
	}
	return place != DEPOT_NONE && depot_fill(shelf, place, kind, blocks, count);
}

/* Puts the blocks of a magazine here. False: they are still the caller's. */
static bool depot_shelf_put(struct zone *zone, struct depot_shelf *shelf,
			    const struct depot_block *blocks, u32 count)
{
	bool plenty = depot_is_plenty(zone), put;
	u8 kind = depot_kind_of(blocks, count);
	u32 places = shelf->places;

	if (!kind)
		return false;
	if (!plenty)
		places = min_t(u32, places, DEPOT_FEW);
	depot_begin_hold();
	if (count << blocks[0].order >= DEPOT_WORTH)
		put = depot_lay(zone, shelf, places, kind, blocks, count);
	else
		put = depot_add_few(zone, shelf, plenty, blocks, count);
	depot_end_hold();
	return put;
}

/* Takes up to `wanted` blocks of one kind; what is left of a magazine stays. */
static u32 depot_shelf_take(struct depot_shelf *shelf, u32 order, u32 mobility,
			    struct depot_block *out, u32 wanted)
{
	u8 kind = depot_kind(order, mobility);
	u32 i, got = 0;

	depot_begin_hold();
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
	depot_end_hold();
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

/*
 * Undoes the take of a block that the library cannot name, to the tail of its list: the next refill
 * meets others first. zone->lock is held.
 */
static void depot_untake_locked(struct zone *zone, u32 pfn, u32 order)
{
	struct page *page = pfn_to_page(pfn);

	__free_one_page(page, pfn, zone, order, get_pfnblock_migratetype(page, pfn), FPI_TO_TAIL);
#if !DEPOT_SINCE(6, 10)
	/* It was added to these. Who takes blocks counts those that are kept. */
	__mod_zone_page_state(zone, NR_FREE_PAGES, -(1l << order));
#endif
}

/*
 * Takes blocks from the buddy lists; zone->lock is held. `any`: with fallbacks to other lists. Ends
 * at a block that depots have no metadata for: a refill that gets none fails, and rmqueue() takes
 * the block of its request itself, from wherever it lies.
 */
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
		if (depot_is_beyond(pfn)) {
			depot_untake_locked(zone, pfn, order + ilog2(run));
			break;
		}
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

/*
 * For the library: blocks of a zone, from its shelf or by zone->lock. A request that may go below
 * the min watermark gets no more than its own block by the lock: what it left in a magazine would
 * go to requests that may not. What lies on the shelf is none of the zone's free pages.
 */
u32 depot_c_take(struct zone *zone, u32 order, u32 mobility, u32 alloc_flags,
		 struct depot_block *out, u32 wanted)
{
	/* As for pcp lists: pages of CMA may lie among the movable ones. */
	bool no_cma = IS_ENABLED(CONFIG_CMA) && mobility == MIGRATE_MOVABLE &&
		!(alloc_flags & ALLOC_CMA);
	/* No depot: the library asks for its own metadata while the zone gets one. */
	struct depot_shelf *shelf = zone->depot ? zone->depot->shelf : NULL;
	u32 i, got, ahead = 0, removed, claimed[DEPOT_AHEAD];
	u32 rounds;
	unsigned long flags;

	if (order > PAGE_ALLOC_COSTLY_ORDER || no_cma)
		shelf = NULL;
	got = shelf ? depot_shelf_take(shelf, order, mobility, out, wanted) : 0;
	if (got)
		return got;
	if (alloc_flags & DEPOT_RESERVES)
		wanted = 1;
	/* Of its largest blocks a magazine holds few, and one is asked for besides. */
	rounds = min_t(u32, wanted - 1, DEPOT_MANY);
	depot_begin_hold();
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
	depot_add_count(takes, 1);
	depot_add_count(refilled, removed << order);
	spin_unlock_irqrestore(&zone->lock, flags);
	got = depot_check_taken(out, got);
	for (i = 0; i < ahead; i++) {
		struct depot_place *place = &shelf->at[claimed[i]];

		place->end = depot_check_taken(place->blocks, place->end);
		depot_let_go(shelf, claimed[i], place->end ? depot_kind(order, mobility) : DEPOT_EMPTY);
	}
	depot_end_hold();
	return got;
}

/* For the library: blocks of a zone, to its shelf or by zone->lock. */
u32 depot_c_put(struct zone *zone, const struct depot_block *blocks, u32 count, u32 *first)
{
	struct depot_shelf *shelf = zone->depot ? zone->depot->shelf : NULL;
	struct depot_doubled doubled = {};
	unsigned long flags;
	u32 i;

	if (shelf && depot_shelf_put(zone, shelf, blocks, count))
		return 0;
	depot_note_lock(zone);
	spin_lock_irqsave(&zone->lock, flags);
	for (i = 0; i < count; i++)
		if (!depot_is_bad(&blocks[i], &doubled))
			depot_put_locked(zone, blocks[i].pfn, blocks[i].order);
	depot_add_count(puts, 1);
	spin_unlock_irqrestore(&zone->lock, flags);
	*first = doubled.first;
	return doubled.pages;
}

/* For a zone that gets a depot. Without memory for it, or in a small zone, there is no shelf. */
static void __meminit depot_setup_shelf(struct zone *zone, struct depot *depot)
{
	u32 places = min_t(unsigned long, depot_zone_pages(zone) >> DEPOT_PLACE_SHIFT, DEPOT_PLACES);
	struct depot_shelf *shelf;

	/* A pile has one migratetype. */
	BUILD_BUG_ON(DEPOT_PILE_ORDER > pageblock_order);
	if (places < 2)
		return;
	shelf = depot_memory(zone, struct_size(shelf, at, places));
	if (!shelf)
		return;
#ifdef CONFIG_PREEMPT_RT
	for (u32 i = 0; i < DEPOT_HEAPS; i++)
		spin_lock_init(&shelf->heaps[i].lock);
#endif
	shelf->places = places;
	depot->shelf = shelf;
}
