/*
 * The parts of Linux that glue/zone_shelf.c uses, for threads over a small buddy allocator. With
 * CONFIG_PREEMPT_RT they have priorities, and locks lend these.
 */
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef uint8_t u8;
typedef uint16_t u16;
typedef uint32_t u32;
typedef uint64_t u64;

#ifdef CONFIG_PREEMPT_RT
/* Whether threads of lower priority run only while this one sleeps. */
static __thread bool is_realtime;
#endif

/*
 * Between a look and what follows from it, now and then. The end of a sleep preempts a thread of
 * lower priority, wherever that is.
 */
static inline void let_others_run(void)
{
	static __thread unsigned int calls;

	if (++calls % 61)
		return;
#ifdef CONFIG_PREEMPT_RT
	if (is_realtime) {
		usleep(20);
		return;
	}
#endif
	sched_yield();
}

#define unlikely(x)		__builtin_expect(!!(x), 0)
#define READ_ONCE(x)		__atomic_load_n(&(x), __ATOMIC_RELAXED)
#define WRITE_ONCE(x, to)	__atomic_store_n(&(x), to, __ATOMIC_RELAXED)
#define smp_store_release(at, to) (let_others_run(), __atomic_store_n(at, to, __ATOMIC_RELEASE))
#ifdef __SANITIZE_THREAD__
/* ThreadSanitizer knows no fences. */
static u8 fenced;
#define smp_mb()		((void)__atomic_exchange_n(&fenced, 1, __ATOMIC_SEQ_CST))
#else
#define smp_mb()		__atomic_thread_fence(__ATOMIC_SEQ_CST)
#endif
#define cmpxchg(at, old, new) ({ u8 seen = old; let_others_run(); \
	__atomic_compare_exchange_n(at, &seen, new, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST); seen; })
#define cpu_relax()		sched_yield()
#define preempt_disable()
#define preempt_enable()
#define min(a, b)		((a) < (b) ? (a) : (b))
#define max(a, b)		((a) > (b) ? (a) : (b))
#define min_t(t, a, b)		((t)(a) < (t)(b) ? (t)(a) : (t)(b))
#define ilog2(n)		(31 - __builtin_clz(n))
#define __ffs(n)		__builtin_ctzl(n)
#define BITS_PER_LONG		64
#define ARRAY_SIZE(array)	(sizeof(array) / sizeof((array)[0]))
#define BUILD_BUG_ON(when)	_Static_assert(!(when), #when)
#define struct_size(p, array, n) (sizeof(*(p)) + (n) * sizeof((p)->array[0]))
#define IS_ENABLED(option)	0
#define DEPOT_SINCE(major, minor) 1
#define DEPOT_NONE		UINT32_MAX
#define ULONG_MAX		UINT64_MAX
#define __meminit
#define __this_cpu_inc(x)	__atomic_fetch_add(&(x), 1, __ATOMIC_RELAXED)
#define __this_cpu_add(x, n)	__atomic_fetch_add(&(x), n, __ATOMIC_RELAXED)
#define this_cpu_add(x, n)	__this_cpu_add(x, n)

typedef pthread_mutex_t spinlock_t;
#define spin_trylock(at)	(!pthread_mutex_trylock(at))
#define spin_lock(at)		((void)pthread_mutex_lock(at))
#define spin_unlock(at)		(let_others_run(), (void)pthread_mutex_unlock(at))
#define irqs_disabled()		false
#define schedule_timeout_uninterruptible(ticks) usleep(50 * (ticks))

/* A lock that lends its holder the priority of who waits for it. */
static inline void spin_lock_init(spinlock_t *lock)
{
	pthread_mutexattr_t lends;

	pthread_mutexattr_init(&lends);
	pthread_mutexattr_setprotocol(&lends, PTHREAD_PRIO_INHERIT);
	pthread_mutex_init(lock, &lends);
}

static bool test_bit(u32 bit, const unsigned long *bits)
{
	return bits[bit / BITS_PER_LONG] >> bit % BITS_PER_LONG & 1;
}

static u32 find_next_bit(const unsigned long *bits, u32 end, u32 at)
{
	while (at < end && !test_bit(at, bits))
		at++;
	return at;
}

static u32 find_next_zero_bit(const unsigned long *bits, u32 end, u32 at)
{
	while (at < end && test_bit(at, bits))
		at++;
	return at;
}

static void bitmap_set(unsigned long *bits, u32 at, u32 count)
{
	for (; count > 0; count--, at++)
		bits[at / BITS_PER_LONG] |= 1ul << at % BITS_PER_LONG;
}

static void bitmap_zero(unsigned long *bits, u32 count)
{
	memset(bits, 0, count / 8);
}

enum { MIGRATE_UNMOVABLE, MIGRATE_MOVABLE, MIGRATE_RECLAIMABLE, MIGRATE_PCPTYPES,
	MIGRATE_ISOLATE, MIGRATE_TYPES };
enum { PAGE_ALLOC_COSTLY_ORDER = 3, NR_PAGE_ORDERS = 11, pageblock_order = 9 };
#define NR_PAGE_ORDERS NR_PAGE_ORDERS
enum { NR_FREE_PAGES, NR_FREE_CMA_PAGES };
enum rmqueue_mode { RMQUEUE_NORMAL };
enum { ALLOC_NO_WATERMARKS = 0x4, ALLOC_RESERVES = 0x238, ALLOC_CMA = 0x80 };
enum { FPI_NONE = 0, FPI_TO_TAIL = 2 };

struct list_head { struct list_head *next, *prev; };

static bool list_empty(const struct list_head *list)
{
	return list->next == list;
}

struct page {
	struct list_head list;
	/* The order of the free block that begins here, or less than 0. */
	int buddy;
};

#define PAGES		(1u << 17)
static struct page pages[PAGES];
static u8 pageblocks[PAGES >> pageblock_order];
static u32 depot_end_pfn = PAGES;

struct depot_block { u32 pfn; u8 order; u8 mobility; u16 unused; };
struct depot_shelf;
struct depot { char *base; struct depot_shelf *shelf; };

struct zone {
	spinlock_t lock;
	struct { struct list_head free_list[MIGRATE_TYPES]; } free_area[NR_PAGE_ORDERS];
	long free, high;
	struct depot *depot;
};

static struct { unsigned long takes, puts, refilled, spilled, spilled_blocks, locks; } depot_counts;

#define zone_depot(zone)	((zone)->depot)
#define pfn_to_page(pfn)	(&pages[pfn])
#define page_to_pfn(page)	((u32)((page) - pages))
#define PageBuddy(page)		(READ_ONCE((page)->buddy) >= 0)
#define depot_is_beyond(pfn)	((pfn) >= depot_end_pfn)
#define get_pfnblock_migratetype(page, pfn) READ_ONCE(pageblocks[(pfn) >> pageblock_order])
#define is_migrate_isolate(mt)	((mt) == MIGRATE_ISOLATE)
/* Between a look at the shelf and a claim. */
#define zone_page_state(zone, item) \
	(let_others_run(), (item) == NR_FREE_PAGES ? READ_ONCE((zone)->free) : 0)
#define high_wmark_pages(zone)	READ_ONCE((zone)->high)
#define depot_zone_pages(zone)	((unsigned long)PAGES)
#define depot_note_lock(zone)	__this_cpu_inc(depot_counts.locks)
/* Blocks that were put by one hold of the lock, and by the longest. */
static u32 held_blocks, held_most;

#define spin_lock_irqsave(at, flags) (flags = 0, pthread_mutex_lock(at), held_blocks = 0)
#define spin_unlock_irqrestore(at, flags) ((void)flags, pthread_mutex_unlock(at))
#define trace_mm_page_pcpu_drain(page, order, mt) ((void)(mt))
#define depot_memory(zone, bytes) calloc(1, bytes)

#define ensure(holds) do { if (!(holds)) { \
	fprintf(stderr, "line %d: %s\n", __LINE__, #holds); abort(); } } while (0)

/* Frames that came back twice, which only one test does, before there are threads. */
static u32 misused;

static void depot_c_misuse(u32 pfn, u32 frames)
{
	fprintf(stderr, "%u frames at %u were free already\n", frames, pfn);
	misused += frames;
}

static void list_page_behind(struct list_head *at, struct page *page, u32 order)
{
	struct list_head *new = &page->list;

	WRITE_ONCE(page->buddy, (int)order);
	new->next = at->next;
	new->prev = at;
	at->next->prev = new;
	at->next = new;
}

static void list_page(struct zone *zone, struct page *page, u32 order, int mt)
{
	list_page_behind(&zone->free_area[order].free_list[mt], page, order);
}

static void unlist_page(struct page *page)
{
	WRITE_ONCE(page->buddy, -1);
	page->list.prev->next = page->list.next;
	page->list.next->prev = page->list.prev;
}

static void __free_one_page(struct page *page, u32 pfn, struct zone *zone, u32 order, int mt,
			    int fpi)
{
	struct list_head *list;

	ensure(pthread_mutex_trylock(&zone->lock));
	held_blocks++;
	held_most = max(held_most, held_blocks);
	ensure(!(pfn & ((1u << order) - 1)) && page == pfn_to_page(pfn));
	/* No frame of it is free, nor part of a free block that begins before it. */
	for (u32 i = 0; i < 1u << order; i++)
		ensure(pages[pfn + i].buddy < 0);
	for (u32 above = order; above < NR_PAGE_ORDERS; above++)
		ensure(pages[pfn & -(1u << above)].buddy < (int)above || !(pfn & ((1u << above) - 1)));
	WRITE_ONCE(zone->free, zone->free + (1l << order));
	while (order < NR_PAGE_ORDERS - 1 && pages[pfn ^ (1u << order)].buddy == (int)order) {
		unlist_page(&pages[pfn ^ (1u << order)]);
		pfn &= ~(1u << order);
		order++;
	}
	list = &zone->free_area[order].free_list[mt];
	list_page_behind(fpi & FPI_TO_TAIL ? list->prev : list, &pages[pfn], order);
}

static struct page *__rmqueue_smallest(struct zone *zone, u32 order, int mt)
{
	ensure(pthread_mutex_trylock(&zone->lock));
	for (u32 size = order; size < NR_PAGE_ORDERS; size++) {
		struct list_head *list = &zone->free_area[size].free_list[mt];
		struct page *page = (struct page *)list->next;

		if (list_empty(list))
			continue;
		unlist_page(page);
		while (size > order) {
			size--;
			list_page(zone, page + (1 << size), size, mt);
		}
		WRITE_ONCE(zone->free, zone->free - (1l << order));
		return page;
	}
	return NULL;
}

/* With a fallback to the other lists. */
static struct page *__rmqueue(struct zone *zone, u32 order, int mt, u32 alloc_flags,
			      enum rmqueue_mode *mode)
{
	(void)alloc_flags, (void)mode;
	for (int i = 0; i < MIGRATE_PCPTYPES; i++) {
		struct page *page = __rmqueue_smallest(zone, order, (mt + i) % MIGRATE_PCPTYPES);

		if (page)
			return page;
	}
	return NULL;
}
