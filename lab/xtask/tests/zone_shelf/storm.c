/*
 * glue/zone_shelf.c by threads: blocks are taken, held, put back whole or in parts, while others
 * drain, close the shelf, and isolate pageblocks. No frame may be in two hands, and none lost.
 */
#include "kernel.h"
#include "../../../../examples/linux/glue/zone_shelf.c"

#define THREADS 6
#define HELD 600

static struct zone zone;
static struct depot depot;
/* Whether a thread has the frame. */
static u8 owned[PAGES];
static int rounds;
static pthread_mutex_t disabling = PTHREAD_MUTEX_INITIALIZER;
/* Set where threads get no real-time class: then all that was tested is what ordinary ones do. */
static bool lacks_privilege;
#define STATUS_UNTESTED	77
#ifdef CONFIG_PREEMPT_RT
/* The CPU of the threads that have priorities. */
static int first_cpu;
#endif

static u32 next(u32 *random)
{
	*random ^= *random << 13;
	*random ^= *random >> 17;
	return *random ^= *random << 5;
}

static void own(const struct depot_block *block, u8 from, u8 to)
{
	for (u32 i = 0; i < 1u << block->order; i++)
		ensure(__atomic_exchange_n(&owned[block->pfn + i], to, __ATOMIC_ACQ_REL) == from);
}

/* Refills that got nothing, and those that got blocks. */
static unsigned long refills[2];

struct held {
	struct depot_block blocks[HELD];
	u32 count, order;
};

static u32 rounds_of(u32 order)
{
	return 63 >> (order > 2 ? 3 : order);
}

/* A refill. */
static void refill(struct held *held, u32 mobility)
{
	u32 got, wanted = rounds_of(held->order) + 1, i;

	if (held->count + wanted > HELD)
		return;
	got = depot_c_take(&zone, held->order, mobility, 0, held->blocks + held->count, wanted);
	ensure(got <= wanted);
	__atomic_fetch_add(&refills[got > 0], 1, __ATOMIC_RELAXED);
	for (i = 0; i < got; i++) {
		/* The library does not read it. */
		held->blocks[held->count + i].order = held->order;
		own(&held->blocks[held->count + i], 0, 1);
	}
	held->count += got;
}

/* A spill of what was taken last; in half of the cases a magazine. */
static void spill(struct held *held, u32 most)
{
	u32 i, n = min(min(held->count, most), 63u), first = 0;

	if (!n)
		return;
	held->count -= n;
	for (i = 0; i < n; i++)
		own(&held->blocks[held->count + i], 1, 0);
	ensure(!depot_c_put(&zone, held->blocks + held->count, n, &first));
}

static void disable(u32 *random)
{
	pthread_mutex_lock(&disabling);
	depot_shelf_close(&zone, &depot, true);
	for (u32 i = next(random) % 20; i > 0; i--) {
		for (u32 place = 0; place < depot.shelf->places; place++)
			ensure(READ_ONCE(depot.shelf->states[place]) < DEPOT_KINDS);
#ifndef __SANITIZE_THREAD__
		for (u32 heap = 0; heap < DEPOT_HEAPS; heap++)
			ensure(!READ_ONCE(depot.shelf->heaps[heap].count));
#endif
		sched_yield();
	}
	depot_shelf_close(&zone, &depot, false);
	pthread_mutex_unlock(&disabling);
}

/* Isolates a pageblock or ends that, and moves its free blocks to the lists of its new type. */
static void isolate(u32 part)
{
	u8 *block = &pageblocks[part];

	pthread_mutex_lock(&zone.lock);
	WRITE_ONCE(*block, *block == MIGRATE_ISOLATE ? part % MIGRATE_PCPTYPES : MIGRATE_ISOLATE);
	for (u32 i = 0; i < 1u << pageblock_order; i++) {
		struct page *page = &pages[(part << pageblock_order) + i];
		int order = page->buddy;

		if (order >= 0) {
			unlist_page(page);
			list_page(&zone, page, order, *block);
		}
	}
	pthread_mutex_unlock(&zone.lock);
}

/*
 * With CONFIG_PREEMPT_RT all threads are on one CPU, half of them in a real-time class, each with a
 * priority of its own. One that spins for what a lower one has never ends. Needs a privilege.
 */
static void prioritize(u32 thread)
{
#ifdef CONFIG_PREEMPT_RT
	struct sched_param param = { .sched_priority = 1 + thread };
	cpu_set_t first;

	CPU_ZERO(&first);
	CPU_SET(first_cpu, &first);
	ensure(!sched_setaffinity(0, sizeof(first), &first));
	if (thread >= THREADS / 2)
		is_realtime = !sched_setscheduler(0, SCHED_FIFO, &param);
	if (thread >= THREADS / 2 && !is_realtime) {
		fprintf(stderr, "no real-time class: %s\n", strerror(errno));
		__atomic_store_n(&lacks_privilege, true, __ATOMIC_RELAXED);
	}
#else
	(void)thread;
#endif
}

static void *storm(void *seed)
{
	u32 random = (u32)(uintptr_t)seed * 2654435761u + 1;
	struct held held = { .order = (uintptr_t)seed % 4 };

	prioritize((uintptr_t)seed);
	for (int i = 0; i < rounds; i++) {
		u32 what = next(&random) % 1000;

		if (what < 480) {
			refill(&held, what % MIGRATE_PCPTYPES);
		} else if (what < 960) {
			spill(&held, what % 2 ? rounds_of(held.order) : what % 63 + 1);
		} else if (what < 975) {
			depot_shelf_drain(&zone, &depot);
		} else if (what < 980) {
			depot_shelf_age(&zone, &depot);
		} else if (what < 985) {
			disable(&random);
		} else if (what < 990) {
			isolate(next(&random) % (PAGES >> pageblock_order));
		} else {
			/* Plenty, and too little. */
			WRITE_ONCE(zone.high, what % 2 ? 0 : (long)PAGES);
		}
	}
	while (held.count)
		spill(&held, 63);
	return NULL;
}

/* Frames that are free in the lists, each once. */
static u32 listed(void)
{
	static u8 seen[PAGES];
	u32 count = 0;

	memset(seen, 0, sizeof(seen));
	for (u32 order = 0; order < NR_PAGE_ORDERS; order++)
		for (int mt = 0; mt < MIGRATE_TYPES; mt++) {
			struct list_head *list = &zone.free_area[order].free_list[mt];

			for (struct list_head *at = list->next; at != list; at = at->next)
				for (u32 i = 0; i < 1u << order; i++, count++)
					ensure(!seen[page_to_pfn((struct page *)at) + i]++);
		}
	return count;
}

static struct depot_block many[DEPOT_PLACES * DEPOT_MANY * 2];

/* Refills magazines of single pages from an empty shelf until all of `many` is full. */
static void take_many(void)
{
	for (u32 got = 0; got < ARRAY_SIZE(many);) {
		u32 more = depot_c_take(&zone, 0, MIGRATE_MOVABLE, 0, many + got,
					min((u32)ARRAY_SIZE(many) - got, DEPOT_MANY + 1u));

		ensure(more);
		got += more;
	}
}

static void put_many(u32 begin, u32 end)
{
	u32 first;

	for (u32 put = begin; put < end; put += DEPOT_MANY)
		ensure(!depot_c_put(&zone, many + put, DEPOT_MANY, &first));
}

/* One thread spills what another refills, and a mass of frees goes back in batches. */
static void counts(void)
{
	u32 magazines = ARRAY_SIZE(many) / DEPOT_MANY, places = depot.shelf->places, first;
	struct depot_block magazine[DEPOT_MANY];
	unsigned long locks = depot_counts.locks;

	zone.high = 0;
	take_many();
	ensure((depot_counts.locks - locks) * (1 + DEPOT_AHEAD) <= magazines + DEPOT_AHEAD);
	locks = depot_counts.locks;
	put_many(0, ARRAY_SIZE(many));
	/* All of a shelf but its last places by a take, and of blocks that merged. */
	ensure((depot_counts.locks - locks) * (places / 2) <= magazines);
	ensure(depot_counts.spilled_blocks * 16 < depot_counts.spilled);
	ensure(depot_shelf_pages(&zone) == PAGES - zone.free);
	/* What is there is taken from there. */
	locks = depot_counts.locks;
	for (int i = 0; i < DEPOT_FEW; i++)
		ensure(depot_c_take(&zone, 0, MIGRATE_MOVABLE, 0, magazine, DEPOT_MANY) == DEPOT_MANY &&
		       !depot_c_put(&zone, magazine, DEPOT_MANY, &first));
	ensure(depot_counts.locks == locks);
	depot_shelf_drain(&zone, &depot);
	ensure(zone.free == PAGES);
}

/*
 * Magazines that have no two neighbours go back as few blocks all the same: what merges lies in
 * others. Pages that are in no order at all go back by short takes of the lock.
 */
static void merges(void)
{
	u32 random = 1, magazines = ARRAY_SIZE(many) / DEPOT_MANY;
	unsigned long blocks, locks, expected;
	struct depot_heap *heap = &depot.shelf->heaps[0];
	struct depot_block dealt[ARRAY_SIZE(many)];

	take_many();
	for (u32 i = 0; i < ARRAY_SIZE(many); i++)
		dealt[i % magazines * DEPOT_MANY + i / magazines] = many[i];
	memcpy(many, dealt, sizeof(many));
	blocks = depot_counts.spilled_blocks;
	put_many(0, ARRAY_SIZE(many) / 2);
	/* As many blocks go back as were counted. */
	ensure(depot_take_heap(heap) && depot_gather(depot.shelf, heap, depot.shelf->places));
	expected = depot_counts.spilled_blocks + heap->count;
	depot_give_back(&zone, heap);
	ensure(depot_counts.spilled_blocks == expected);
	depot_leave_heap(heap);
	depot_shelf_drain(&zone, &depot);
	ensure((depot_counts.spilled_blocks - blocks) * 2 < ARRAY_SIZE(many) / 2);
	for (u32 i = ARRAY_SIZE(many) - 1; i > ARRAY_SIZE(many) / 2; i--) {
		u32 other = ARRAY_SIZE(many) / 2 + next(&random) % (i - ARRAY_SIZE(many) / 2);

		dealt[0] = many[i];
		many[i] = many[other];
		many[other] = dealt[0];
	}
	blocks = depot_counts.spilled_blocks;
	locks = depot_counts.locks;
	put_many(ARRAY_SIZE(many) / 2, ARRAY_SIZE(many));
	depot_shelf_drain(&zone, &depot);
	ensure(depot_counts.spilled_blocks - blocks <=
	       (depot_counts.locks - locks) * (DEPOT_HELD + DEPOT_MANY));
	ensure(zone.free == PAGES);
}

/* Spills of a few pages wait for each other: a take of the lock for a magazine's worth, at most. */
static void few(void)
{
	const u32 each = DEPOT_WORTH / 4, places = depot.shelf->places;
	unsigned long locks;
	u32 first;

	take_many();
	locks = depot_counts.locks;
	for (u32 put = 0; put < ARRAY_SIZE(many); put += each)
		ensure(!depot_c_put(&zone, many + put, each, &first));
	ensure((depot_counts.locks - locks) * DEPOT_MANY <= ARRAY_SIZE(many));
	ensure(depot.shelf->heaps[0].count);
	ensure(depot_shelf_pages(&zone) == PAGES - zone.free);
	/* Blocks that merge are few, however many pages they have. */
	ensure(PAGES - zone.free <= places * DEPOT_WORTH);
	/* Below the high watermark none stays. */
	zone.high = PAGES;
	take_many();
	for (u32 put = 0; put < ARRAY_SIZE(many); put += each)
		ensure(!depot_c_put(&zone, many + put, each, &first));
	ensure(!depot.shelf->heaps[0].count && zone.free == PAGES);
	zone.high = 0;
	depot_shelf_close(&zone, &depot, true);
	ensure(zone.free == PAGES);
	depot_shelf_close(&zone, &depot, false);
}

/* What was laid on the shelf while the zone had plenty does not stay for long when it has not. */
static void ages(void)
{
	u32 laid = depot.shelf->places / 2 * DEPOT_MANY, first;
	struct depot_block magazine[DEPOT_MANY];

	take_many();
	depot_shelf_drain(&zone, &depot);
	put_many(0, laid);
	depot_shelf_age(&zone, &depot);
	ensure(depot_shelf_pages(&zone) == laid);
	zone.high = PAGES;
	/* The first places are emptied, and take what comes now: no spill looks at the others. */
	for (u32 i = 0; i < DEPOT_FEW; i++)
		ensure(depot_c_take(&zone, 0, MIGRATE_MOVABLE, 0, magazine, DEPOT_MANY) == DEPOT_MANY &&
		       !depot_c_put(&zone, magazine, DEPOT_MANY, &first));
	ensure(depot_shelf_pages(&zone) == laid && laid > DEPOT_FEW * DEPOT_MANY);
	depot_shelf_age(&zone, &depot);
	ensure(!depot_shelf_pages(&zone));
	zone.high = 0;
	put_many(laid, ARRAY_SIZE(many));
	depot_shelf_drain(&zone, &depot);
	ensure(zone.free == PAGES);
}

/* Pages that lie in two magazines are told, and free once. */
static void doubles(void)
{
	struct depot_block twice[2 * DEPOT_MANY];
	u32 first = 0;

	ensure(depot_c_take(&zone, 0, MIGRATE_MOVABLE, 0, twice, DEPOT_MANY) == DEPOT_MANY);
	memcpy(twice + DEPOT_MANY, twice, sizeof(twice) / 2);
	for (u32 i = 0; i < 2; i++)
		ensure(!depot_c_put(&zone, twice + i * DEPOT_MANY, DEPOT_MANY, &first));
	depot_shelf_drain(&zone, &depot);
	ensure(misused == DEPOT_MANY && zone.free == PAGES);
	misused = 0;
}

static void put_each(const struct depot_block *blocks, u32 count)
{
	u32 first;

	for (u32 i = 0; i < count; i++)
		ensure(!depot_c_put(&zone, blocks + i, 1, &first));
	depot_shelf_drain(&zone, &depot);
	ensure(zone.free == PAGES);
}

/* Of frames that depots have no metadata for none is handed out or lost. All others are. */
static void beyond(u32 order)
{
	u32 got = 0, most, tries = 0;

	depot_end_pfn = ARRAY_SIZE(many) / 2 & -(1u << 10);
	most = depot_end_pfn >> order;
	while (got < most) {
		u32 more = depot_c_take(&zone, order, MIGRATE_MOVABLE, 0, many + got,
					rounds_of(order) + 1);

		for (; more > 0; more--)
			ensure(many[got++].pfn < depot_end_pfn);
		ensure(zone.free + (got << order) + depot_shelf_pages(&zone) == PAGES);
		/* Each that meets one of those beyond moves it to the end of its list. */
		ensure(tries++ < most + (PAGES >> 10));
	}
	put_each(many, got);
	ensure(listed() == PAGES);
	depot_end_pfn = PAGES;
}

/* A request that may use reserves takes one block of these, and what lies on the shelf besides. */
static void reserves(void)
{
	struct depot_block taken[DEPOT_MANY + 1];
	u32 first, got;

	for (u32 flag = 1; flag <= ALLOC_RESERVES; flag <<= 1) {
		bool may = flag & (ALLOC_NO_WATERMARKS | ALLOC_RESERVES);

		got = depot_c_take(&zone, 0, MIGRATE_MOVABLE, flag, taken, DEPOT_MANY + 1);
		ensure(got == (may ? 1 : DEPOT_MANY + 1) && !may == !!depot_shelf_pages(&zone));
		put_each(taken, got);
	}
	got = depot_c_take(&zone, 0, MIGRATE_MOVABLE, 0, taken, DEPOT_MANY);
	depot_shelf_drain(&zone, &depot);
	ensure(!depot_c_put(&zone, taken, got, &first) && depot_shelf_pages(&zone) == got);
	ensure(depot_c_take(&zone, 0, MIGRATE_MOVABLE, ALLOC_NO_WATERMARKS, taken, got) == got);
	put_each(taken, got);
}

int main(int count, char **arguments)
{
	pthread_t threads[THREADS];

	ensure(count == 2);
	rounds = atoi(arguments[1]);
	spin_lock_init(&zone.lock);
#ifdef CONFIG_PREEMPT_RT
	spin_lock_init(&disabling);
	first_cpu = sched_getcpu();
	/* A thread that spins for ever ends the test. */
	alarm(300);
#endif
	for (u32 order = 0; order < NR_PAGE_ORDERS; order++)
		for (int mt = 0; mt < MIGRATE_TYPES; mt++) {
			struct list_head *list = &zone.free_area[order].free_list[mt];

			list->next = list->prev = list;
		}
	for (u32 pfn = 0; pfn < PAGES; pfn++)
		pages[pfn].buddy = -1;
	memset(pageblocks, MIGRATE_MOVABLE, sizeof(pageblocks));
	for (u32 pfn = 0; pfn < PAGES; pfn += 1 << 10)
		list_page(&zone, &pages[pfn], 10, MIGRATE_MOVABLE);
	zone.free = PAGES;
	depot_setup_shelf(&zone, &depot);
	ensure(depot.shelf && depot.shelf->places == PAGES >> DEPOT_PLACE_SHIFT);
	zone.depot = &depot;
	counts();
	merges();
	few();
	ages();
	doubles();
	beyond(0);
	beyond(2);
	reserves();
	/* Magazines of one kind, and of several. */
	for (u32 part = 0; part < PAGES >> pageblock_order; part++)
		pageblocks[part] = part % MIGRATE_PCPTYPES;
	for (uintptr_t i = 0; i < THREADS; i++)
		ensure(!pthread_create(&threads[i], NULL, storm, (void *)i));
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	depot_shelf_drain(&zone, &depot);
	ensure(zone.free == PAGES && listed() == PAGES && !misused);
	ensure(held_most <= DEPOT_HELD + DEPOT_MANY);
	ensure(refills[false] * 100 <= refills[true]);
	printf("%lu takes of the lock for %lu pages\n", depot_counts.locks,
	       depot_counts.refilled + depot_counts.spilled);
	return lacks_privilege ? STATUS_UNTESTED : 0;
}
