// SPDX-License-Identifier: GPL-2.0
/*
 * Linux's per-CPU page lists by the library pagedepot. mm/page_alloc.c includes this behind
 * rmqueue_bulk(), in whose place and that of free_pcppages_bulk() depot_c_take() and depot_c_put()
 * of zone_shelf.c are. The hooks in hooks.txt call what is static here.
 */
#include <linux/context_tracking.h>
#include <linux/delay.h>
#include <linux/memblock.h>
#include <linux/sched/clock.h>
#include <linux/sched/isolation.h>
#include <linux/sched/rt.h>
#include <linux/stop_machine.h>
#include <linux/version.h>
#include <linux/vmalloc.h>
#include <linux/workqueue.h>
#include <asm/irq_regs.h>

/* Defined further down. */
static inline void zone_statistics(struct zone *preferred_zone, struct zone *z, long nr_account);
static void drain_pages_zone(unsigned int cpu, struct zone *zone);

/* 6.6 gave pcp->high a range, and moved the accounting of free pages into __rmqueue(). */
#define DEPOT_SINCE(major, minor) (LINUX_VERSION_CODE >= KERNEL_VERSION(major, minor, 0))

#if defined(CONFIG_PREEMPT_RT) && !DEPOT_SINCE(7, 2)
#error "PREEMPT_RT has been booted with Linux 7.2 only"
#endif

/*
 * The flags of what may come from anywhere, such as a program of BPF at a probe: in the middle of a
 * sequence of this CPU, in a task, and so not to its fronts. A kernel that has other names for them
 * does not compile.
 */
#if defined(ALLOC_NOLOCK)
#define DEPOT_ALLOC_NOLOCK	ALLOC_NOLOCK
#elif DEPOT_SINCE(6, 15)
#define DEPOT_ALLOC_NOLOCK	ALLOC_TRYLOCK
#else
#define DEPOT_ALLOC_NOLOCK	0
#endif
#if defined(FPI_NOLOCK)
#define DEPOT_FPI_NOLOCK	FPI_NOLOCK
#elif DEPOT_SINCE(6, 15)
#define DEPOT_FPI_NOLOCK	FPI_TRYLOCK
#else
#define DEPOT_FPI_NOLOCK	0
#endif

DEFINE_STATIC_KEY_FALSE(pagedepot_on);
DEFINE_PER_CPU(struct depot_counts, depot_counts);
struct depot_drained depot_sum;
struct depot_ticks depot_ticks;

/* As in __drain_all_pages(): who names no zone does not wait for another drain. */
static bool depot_lock_drains(struct zone *only)
{
	if (mutex_trylock(&pcpu_drain_mutex))
		return true;
	if (!only)
		return false;
	mutex_lock(&pcpu_drain_mutex);
	return true;
}

#ifdef DEPOT_RIVALS
#include "pagedepot_rivals.c"
#else
#define depot_rival	0
static bool depot_parse_rival(const char *str) { return false; }
static bool depot_drain_rival(struct zone *only) { return false; }
static bool depot_drain_rival_cpu(unsigned int cpu, struct zone *zone) { return false; }
static void depot_setup_rival(struct zone *zone) { }
static void depot_rival_limits(struct zone *zone, unsigned long high_min, unsigned long high_max,
			       unsigned long batch) { }
static unsigned long depot_rival_count(struct zone *zone, int cpu) { return 0; }
#endif

unsigned long depot_rival_pages(struct zone *zone, int cpu)
{
	return depot_rival_count(zone, cpu);
}

/*
 * depot_front() of each context, order and migratetype. Callers are behind pcp_allowed_order():
 * orders to 3, and that of huge pages, which are the orders that have fronts.
 */
static_assert(PAGE_ALLOC_COSTLY_ORDER == 3);
#define DEPOT_ORDERS	11
/* Powers of two: places are found by shifts. */
static u32 depot_fronts[2][16][4] __read_mostly;
/* Depots have metadata of what lies below, a multiple of the largest block; 0 before the first. */
static u32 depot_end_pfn __read_mostly;
/* At most: numbers of frames have 32 bits. */
#define DEPOT_END_PFN_MAX	((1ul << 32) - (1ul << (DEPOT_ORDERS - 1)))

/* Whether a block is of memory that was added beyond all metadata: it is never cached. */
static __always_inline bool depot_is_beyond(unsigned long pfn)
{
	return IS_ENABLED(CONFIG_MEMORY_HOTPLUG) && unlikely(pfn >= depot_end_pfn);
}

/*
 * CPUs that have caches: from page_alloc_cpu_online(), before they run, to page_alloc_cpu_dead(),
 * when they run no more. Any other runs no code, and is as quiescent as an idle one
 * (depot_c_is_quiescent()): its caches are closed and drained without a fence or a grace period.
 *
 * The argument is that of an idle CPU which is about to run. A drainer closes the gate and then,
 * behind a full barrier, looks here. A CPU comes here before its gates are opened and it is
 * started, and both have full barriers. If the drainer does not find it, all code of that CPU finds
 * the gate closed, or what the drainer left behind it. To open a gate that a drainer has is left to
 * the drainer, once it has emptied the fronts. A CPU that is gone has left all sections without
 * preemption: takedown_cpu() has waited for that.
 *
 * This changes with pcp_batch_high_lock, and under cpus_write_lock():
 * - zone_pcp_disable() holds the first until zone_pcp_enable(), so a CPU that comes or goes in
 *   between waits, before it runs, or when it is dead. Who enables gives caches to all that are
 *   here; a CPU that waited to come then gets those of all zones.
 * - A zone gets its depot at boot, by the only CPU, or in online_pages(), under cpus_read_lock().
 *   From then on its caches follow, also while it has no memory, but for those of a node that is
 *   offline: they follow when the node is back (depot_follow_all()).
 */
static struct cpumask depot_cpus;
unsigned long depot_graces;

/*
 * PREEMPT_RT. Softirqs are threads and zone->lock sleeps, so what allocates and frees is a task
 * that can be preempted. It pops and pushes with preemption off, as any task does; softirqs have
 * no fronts of their own. What may take zone->lock is refused to code that cannot be preempted
 * (depot_may_lock()): it goes on to Linux's own lists, and to the report that these would make.
 * Hard interrupts get nothing; a tick above user mode hands over, without a lock (depot_tick()).
 */

/* Where this is; preemption is off. */
struct depot_here {
	unsigned int cpu;
	/* What of preempt_count() says so; 0 in a task. */
	unsigned long handlers;
};

static __always_inline struct depot_here depot_here(void)
{
	struct depot_here here;

#ifdef CONFIG_UML
	/* This is a function there, and current_thread_info() would call it again. */
	here.cpu = uml_curr_cpu();
	here.handlers = READ_ONCE(task_thread_info(cpu_tasks[here.cpu])->preempt_count);
#else
	here.cpu = smp_processor_id();
	here.handlers = preempt_count();
#endif
	here.handlers &= HARDIRQ_MASK | NMI_MASK |
		(IS_ENABLED(CONFIG_PREEMPT_RT) ? 0 : SOFTIRQ_OFFSET);
	return here;
}

/*
 * The sequences of pagedepot::Fronts, inline: see pagedepot::cpus::implement. Zones have no depot
 * where the library has others (depot_has_sequences()).
 */
#define DEPOT_GATES_AT	128
#define DEPOT_POP_STEP	0xff7ffffffffffffcull
#define DEPOT_PUSH_STEP	0xff80000000000004ull

/*
 * The word of a front, if this CPU's gate is open; else NULL. One register holds its address: a pop
 * loads the word that the push before it stored, and Intel's processors forward that in no time
 * where the address has no index register.
 */
static __always_inline u64 *depot_word(char *base, unsigned int cpu, u32 front)
{
	const s64 *gate = (s64 *)(base + DEPOT_GATES_AT) + cpu;
	s64 block = smp_load_acquire(gate);
	char *word = base + block + (front >> 16);

	OPTIMIZER_HIDE_VAR(word);
	return likely(block > 0) ? (u64 *)word : NULL;
}

/* A block from a front of this CPU, or DEPOT_NONE; preemption is off. */
static __always_inline u32 depot_pop(struct depot *depot, unsigned int cpu, u32 front)
{
	char *base = depot->base;
	u64 now, next, *word = depot_word(base, cpu, front);

	if (likely(word)) {
		now = READ_ONCE(*word);
		next = now + DEPOT_POP_STEP;
		/* It has blocks, and may give one before its operations are counted. */
		if (likely((u8)now && next < now)) {
			u32 pfn = READ_ONCE(*(u32 *)(base + (u32)now - sizeof(u32)));

			smp_store_release(word, next);
			return pfn;
		}
	}
	return depot_pop_next(depot, cpu, front >> 16);
}

/* A block to a front of this CPU, which held it. False: it still does. */
static __always_inline bool depot_push(struct depot *depot, unsigned int cpu, u32 front, u32 pfn)
{
	char *base = depot->base;
	u64 now, next, *word = depot_word(base, cpu, front);

	if (likely(word)) {
		now = READ_ONCE(*word);
		next = now + DEPOT_PUSH_STEP;
		if (likely((u8)now < (u8)front && next < now)) {
			WRITE_ONCE(*(u32 *)(base + (u32)now), pfn);
			smp_store_release(word, next);
			return true;
		}
	}
	return depot_push_next(depot, cpu, front, pfn);
}

/* Counts pages that came or went here. */
static __always_inline void depot_count(struct depot_here here, enum vm_event_item item,
					unsigned int order)
{
#if defined(CONFIG_UML) && defined(CONFIG_VM_EVENT_COUNTERS)
	/* As above: by the CPU that is known already. */
	per_cpu(vm_event_states, here.cpu).event[item] += 1 << order;
#else
	__count_vm_events(item, 1 << order);
#endif
}

static __always_inline enum vm_event_item depot_alloc_event(enum zone_type zid)
{
	return PGALLOC_NORMAL - ZONE_NORMAL + zid;
}

/*
 * Whether handlers' fronts may be used: in a softirq or interrupt above a task, but not above these
 * nor in an NMI. A softirq that runs in ksoftirqd, or at the end of an interrupt, is a softirq
 * above a task.
 */
static bool depot_above_task(struct depot_here here)
{
	if (IS_ENABLED(CONFIG_PREEMPT_RT))
		return false;
	return here.handlers == SOFTIRQ_OFFSET || here.handlers == HARDIRQ_OFFSET;
}

/* Whether no guard can be held below this: by a task of this CPU, or a handler under this one. */
static bool depot_is_alone(struct depot_here here)
{
	struct pt_regs *regs;

	if (!here.handlers)
		return true;
	/* NULL but in interrupts. */
	regs = in_hardirq() ? get_irq_regs() : NULL;
	return regs && user_mode(regs);
}

/* Whether a handler may pin. */
static bool depot_may_pin(struct depot_here here)
{
	/* In a tick, to hand over; no other code of a hard interrupt gets here. */
	if (IS_ENABLED(CONFIG_PREEMPT_RT))
		return here.handlers == HARDIRQ_OFFSET && depot_is_alone(here);
	return depot_above_task(here);
}

/* Whether this may take zone->lock, where that sleeps. */
static __always_inline bool depot_may_lock(void)
{
	return !IS_ENABLED(CONFIG_PREEMPT_RT) || likely(preemptible());
}

u32 depot_c_pin(void)
{
	struct depot_here here;

	preempt_disable();
	here = depot_here();
	if (here.handlers && !depot_may_pin(here)) {
		preempt_enable();
		return DEPOT_NONE;
	}
	return here.cpu | (here.handlers ? DEPOT_IN_HANDLER : 0) |
		(depot_is_alone(here) ? DEPOT_ALONE : 0);
}

void depot_c_unpin(void)
{
	preempt_enable();
}

/*
 * Where a depot lies: on the node of its zone, or near it where the node has no memory yet, in the
 * linear map, if there are as many pages in a row. As an area of vmalloc it would be one more that
 * each vmalloc() walks past.
 */
static void *__meminit depot_memory(struct zone *zone, size_t bytes)
{
	int node = zone_to_nid(zone);
	void *memory = alloc_pages_exact_nid(node, bytes, GFP_KERNEL | __GFP_ZERO | __GFP_NOWARN);

	return memory ?: vzalloc_node(bytes, node);
}

/* The pages that sizes of a zone's depot follow: memory is spanned before it is managed. */
static unsigned long __meminit depot_zone_pages(struct zone *zone)
{
	return zone_managed_pages(zone) ?: zone->spanned_pages;
}

static void __meminit depot_forget(void *memory, size_t bytes)
{
	if (is_vmalloc_addr(memory))
		vfree(memory);
	else if (memory)
		free_pages_exact(memory, bytes);
}

#include "pagedepot_zone_shelf.c"

u64 depot_c_free_pages(struct zone *zone)
{
	return zone_page_state(zone, NR_FREE_PAGES);
}

/* Heads of free blocks: enough to tell a cached block from a free one. */
bool depot_c_is_free(u32 pfn)
{
	return PageBuddy(pfn_to_page(pfn));
}

static int depot_nothing(void *unused)
{
	return 0;
}

/*
 * The stopper of a CPU is a task: when it runs, no other task of that CPU is in a section without
 * preemption, and no softirq or interrupt above one. A grace period would do as well, but the CPU's
 * gate is closed until it ends.
 */
bool depot_c_fence(u32 cpu)
{
	bool here;

	if (in_interrupt())
		return false;
	here = get_cpu() == cpu;
	put_cpu();
	/*
	 * This task runs there, so there is nothing to wait for, and interrupts may be off: so
	 * swsusp_save() drains, once no other CPU is left.
	 */
	if (here)
		return true;
	if (irqs_disabled())
		return false;
	if (stop_one_cpu(cpu, depot_nothing, NULL)) {
		/* It is on its way up or down. */
		depot_graces++;
		synchronize_rcu();
	}
	return true;
}

/* Offline, or idle, or in user mode under context tracking: of these two, RCU's own test. */
bool depot_c_is_quiescent(u32 cpu)
{
	smp_mb();
	if (!cpumask_test_cpu(cpu, &depot_cpus))
		return true;
#if DEPOT_SINCE(6, 12)
	return !(ct_rcu_watching_cpu_acquire(cpu) & CT_RCU_WATCHING);
#else
	return !(ct_dynticks_cpu_acquire(cpu) & RCU_DYNTICKS_IDX);
#endif
}

/* Whether a task of a real-time class runs there, above which a fence would run a stopper. */
static bool depot_is_realtime(u32 cpu)
{
	bool is_realtime = false;

#ifdef CONFIG_PREEMPT_RT
	rcu_read_lock();
	is_realtime = rt_or_dl_task(cpu_curr_snapshot(cpu));
	rcu_read_unlock();
#endif
	return is_realtime;
}

bool depot_c_is_isolated(u32 cpu)
{
	bool has_no_tick = !housekeeping_cpu(cpu, HK_TYPE_TICK);

	if (cpu == raw_smp_processor_id() || !(has_no_tick || IS_ENABLED(CONFIG_PREEMPT_RT)) ||
	    depot_c_is_quiescent(cpu))
		return false;
	return has_no_tick || depot_is_realtime(cpu);
}

/* By all 64 bits: the lower half of jiffies begins five minutes before its end. */
u64 depot_c_now_ms(void)
{
	return jiffies64_to_msecs(get_jiffies_64());
}

void depot_c_misuse(u32 pfn, u32 frames)
{
	WARN(1, "pagedepot: %u frames came back, the first %#x, that were free already\n", frames, pfn);
}

void depot_c_panic(void)
{
	panic("pagedepot panicked");
}

/* A block from past this CPU's front. The library never sleeps, so preemption may be off. */
static noinline u32 depot_alloc_slow(struct depot *depot, unsigned int order, int migratetype,
				     unsigned int alloc_flags)
{
	/* Towards the reserves, as for empty lists. */
	if (unlikely(alloc_flags & ALLOC_HIGHATOMIC) || !depot_may_lock())
		return DEPOT_NONE;
	return depot_alloc(depot, order, migratetype, alloc_flags);
}

static noinline u32 depot_pop_in_handler(struct depot *depot, struct depot_here here,
					 unsigned int order, unsigned int migratetype)
{
	if (!depot_above_task(here))
		return DEPOT_NONE;
	return depot_pop(depot, here.cpu, depot_fronts[1][order][migratetype]);
}

/* From the front of this CPU in a zone of this kind. */
static __always_inline u32 depot_pop_here(struct depot *depot, enum zone_type zid,
					  unsigned int order, unsigned int migratetype)
{
	struct depot_here here;
	u32 pfn;

	preempt_disable();
	here = depot_here();
	if (likely(!here.handlers))
		pfn = depot_pop(depot, here.cpu, depot_fronts[0][order][migratetype]);
	else
		pfn = depot_pop_in_handler(depot, here, order, migratetype);
	if (likely(pfn != DEPOT_NONE))
		depot_count(here, depot_alloc_event(zid), order);
	preempt_enable();
	return pfn;
}

/* Checks a block as those from a list are. One that is not new is given up, and another taken. */
static __always_inline bool depot_is_new(struct page *page, unsigned int order)
{
#if DEPOT_SINCE(6, 6)
	return likely(!check_new_pages(page, order));
#else
	return likely(!check_new_pcp(page, order));
#endif
}

/* For rmqueue_pcplist(). Counts as it does. */
static __always_inline struct page *depot_rmqueue(struct depot *depot, struct zone *preferred_zone,
						  struct zone *zone, unsigned int order,
						  int migratetype, unsigned int alloc_flags)
{
	enum zone_type zid = zone_idx(zone);
	struct page *page;

	/* The lock of the buddy lists is tried. */
	if (unlikely(alloc_flags & DEPOT_ALLOC_NOLOCK))
		return NULL;
	do {
		u32 pfn = depot_pop_here(depot, zid, order, migratetype);

		if (unlikely(pfn == DEPOT_NONE)) {
			pfn = depot_alloc_slow(depot, order, migratetype, alloc_flags);
			if (pfn == DEPOT_NONE)
				return NULL;
			count_vm_events(depot_alloc_event(zid), 1 << order);
		}
		page = pfn_to_page(pfn);
	} while (!depot_is_new(page, order));
	zone_statistics(preferred_zone, zone, 1);
	return page;
}

/*
 * For the first attempt of a request: a block of the preferred zone from this CPU's front. Those
 * are none of the zone's free pages, so no watermark is asked; kswapd is woken by the request that
 * finds the front empty. NULL: as without this.
 */
static __always_inline struct page *depot_first(gfp_t gfp, unsigned int order,
						unsigned int alloc_flags,
						const struct alloc_context *ac)
{
	const struct zoneref *preferred = ac->preferred_zoneref;
	struct zone *zone = preferred->zone;
	struct depot *depot;
	struct page *page;
	u32 pfn;

	if (unlikely(!zone))
		return NULL;
	depot = zone->depot;
	/* Cpusets and dirty limits may forbid the zone; get_page_from_freelist() asks them. */
	if (unlikely(!depot || order > PAGE_ALLOC_COSTLY_ORDER || ac->spread_dirty_pages ||
		     (alloc_flags & DEPOT_ALLOC_NOLOCK)) || cpusets_enabled())
		return NULL;
#if !DEPOT_SINCE(6, 6)
	if (IS_ENABLED(CONFIG_CMA) && ac->migratetype == MIGRATE_MOVABLE &&
	    !(alloc_flags & ALLOC_CMA))
		return NULL;
#endif
	pfn = depot_pop_here(depot, preferred->zone_idx, order, ac->migratetype);
	if (unlikely(pfn == DEPOT_NONE))
		return NULL;
	page = pfn_to_page(pfn);
	if (!depot_is_new(page, order))
		return NULL;
	zone_statistics(zone, zone, 1);
	/* As prep_new_page() does. One more call of it, and GCC would no longer inline it for stock. */
	post_alloc_hook(page, order, gfp);
	if (order && (gfp & __GFP_COMP))
		prep_compound_page(page, order);
	clear_page_pfmemalloc(page);
	return page;
}

/* Whether a block that is freed passes the caches by. */
static __always_inline bool depot_is_for_lists(unsigned long pfn, fpi_t fpi_flags)
{
	return depot_is_beyond(pfn) || unlikely(fpi_flags & DEPOT_FPI_NOLOCK);
}

/* As free_frozen_page_commit() does: where other nodes serve, direct reclaim may never do it. */
static inline void depot_wake_hopeless(pg_data_t *pgdat)
{
#if DEPOT_SINCE(7, 0)
	if (kswapd_test_hopeless(pgdat) && next_memory_node(pgdat->node_id) < MAX_NUMNODES)
		kswapd_clear_hopeless(pgdat, KSWAPD_CLEAR_HOPELESS_PCP);
#endif
}

static noinline void depot_free_slow(struct depot *depot, struct zone *zone, struct page *page,
				     unsigned long pfn, unsigned int order, int migratetype,
				     fpi_t fpi_flags)
{
	if (!depot_is_for_lists(pfn, fpi_flags) && depot_may_lock() &&
	    depot_free(depot, pfn, order, migratetype)) {
#if DEPOT_SINCE(6, 7)
		if (test_bit(ZONE_BELOW_HIGH, &zone->flags) &&
		    zone_watermark_ok(zone, 0, high_wmark_pages(zone), ZONE_MOVABLE, 0)) {
			clear_bit(ZONE_BELOW_HIGH, &zone->flags);
			depot_wake_hopeless(zone->zone_pgdat);
		}
#endif
		return;
	}
#if DEPOT_SINCE(6, 10)
	/* It counts the pages itself, as depot_free_page() has. */
	count_vm_events(PGFREE, -(1l << order));
	free_one_page(zone, page, pfn, order, fpi_flags);
#else
	free_one_page(zone, page, pfn, order, get_pcppage_migratetype(page), fpi_flags);
#endif
}

static noinline bool depot_push_in_handler(struct depot *depot, struct depot_here here,
					   unsigned int order, unsigned int migratetype,
					   unsigned long pfn)
{
	return depot_above_task(here) &&
		depot_push(depot, here.cpu, depot_fronts[1][order][migratetype], pfn);
}

/*
 * For frees of prepared pages, with the @migratetype of the lists that they would go to. Counts as
 * the commit to a list does.
 */
static __always_inline bool depot_free_page(struct zone *zone, struct page *page, unsigned long pfn,
					    unsigned int order, int migratetype, fpi_t fpi_flags)
{
	struct depot *depot = zone_depot(zone);
	struct depot_here here;
	bool pushed;

	if (!depot)
		return false;
	preempt_disable();
	here = depot_here();
	depot_count(here, PGFREE, order);
	if (depot_is_for_lists(pfn, fpi_flags))
		pushed = false;
	else if (likely(!here.handlers))
		pushed = depot_push(depot, here.cpu,
				    depot_fronts[0][order][(unsigned int)migratetype], pfn);
	else
		pushed = depot_push_in_handler(depot, here, order, migratetype, pfn);
	preempt_enable();
	if (unlikely(!pushed))
		depot_free_slow(depot, zone, page, pfn, order, migratetype, fpi_flags);
	return true;
}

/* As above, for frees in batches, with a @migratetype of any pageblock that is not isolated. */
static __always_inline bool depot_free_any(struct zone *zone, struct page *page, unsigned long pfn,
					   unsigned int order, int migratetype, fpi_t fpi_flags)
{
	if (zone_depot(zone))
		trace_mm_page_free_batched(page);
	if (unlikely(migratetype >= MIGRATE_PCPTYPES))
		migratetype = MIGRATE_MOVABLE;
	return depot_free_page(zone, page, pfn, order, migratetype, fpi_flags);
}

/*
 * Single pages from this CPU's front, as many as one sequence gets, or one from the CPU's next
 * magazine.
 */
static unsigned long depot_pop_many_here(struct depot *depot, unsigned int migratetype, u32 *pfns,
					 unsigned long wanted)
{
	struct depot_here here;
	unsigned long got = 0;

	preempt_disable();
	here = depot_here();
	if (likely(!here.handlers || depot_above_task(here)))
		got = depot_pop_many(depot, here.cpu,
				     depot_fronts[!!here.handlers][0][migratetype] >> 16,
				     pfns, wanted);
	preempt_enable();
	return got;
}

/* As above; where the front has none, one from past it. */
static unsigned long depot_pages(struct depot *depot, unsigned int migratetype,
				 unsigned int alloc_flags, u32 *pfns, unsigned long wanted)
{
	unsigned long got = depot_pop_many_here(depot, migratetype, pfns, wanted);

	if (got)
		return got;
	pfns[0] = depot_alloc_slow(depot, 0, migratetype, alloc_flags);
	return pfns[0] != DEPOT_NONE;
}

/* Pages to ask for at once: no more than an array has empty places for from here on. */
static int depot_places_left(struct page **array, int from, int nr_pages)
{
	int places = 0;

	if (!array)
		return min(nr_pages - from, DEPOT_MANY);
	for (; from < nr_pages && places < DEPOT_MANY; from++)
		places += !array[from];
	return places;
}

/*
 * For bulk allocation: pages into the empty places of an array, or onto a list, by one call a
 * magazine.
 */
static int depot_alloc_bulk(struct depot *depot, struct zone *zone, struct alloc_context *ac,
			    gfp_t gfp, unsigned int alloc_flags, int nr_pages, struct list_head *list,
			    struct page **array, int *nr_populated)
{
	unsigned long have = 0, next = 0;
	u32 pfns[DEPOT_MANY];
	int nr_account = 0;

	while (*nr_populated < nr_pages) {
		struct page *page;

		if (array && array[*nr_populated]) {
			(*nr_populated)++;
			continue;
		}
		if (next == have) {
			int wanted = depot_places_left(array, *nr_populated, nr_pages);

			have = depot_pages(depot, ac->migratetype, alloc_flags, pfns, wanted);
			next = 0;
			if (unlikely(!have))
				break;
		}
		page = pfn_to_page(pfns[next++]);
		if (!depot_is_new(page, 0))
			continue;
		nr_account++;
		prep_new_page(page, 0, gfp, 0);
#if DEPOT_SINCE(6, 14)
		set_page_refcounted(page);
#endif
		if (list)
			list_add(&page->lru, list);
		else
			array[*nr_populated] = page;
		(*nr_populated)++;
	}
	if (nr_account) {
		__count_zid_vm_events(PGALLOC, zone_idx(zone), nr_account);
		zone_statistics(zonelist_zone(ac->preferred_zoneref), zone, nr_account);
	}
	return nr_account;
}

static void depot_note(const struct depot_drained *done)
{
	depot_sum.taken_pages += done->taken_pages;
	depot_sum.left_pages = done->left_pages;
	depot_sum.unreachable_pages = done->unreachable_pages;
	depot_sum.fences += done->fences;
	depot_sum.busy_cpus += done->busy_cpus;
	depot_sum.isolated_cpus += done->isolated_cpus;
}

/* For drain_pages_zone(). */
static bool depot_drain_cpu(unsigned int cpu, struct zone *zone)
{
	struct depot *depot = zone_depot(zone);
	struct depot_drained done;

	if (!depot)
		return depot_drain_rival_cpu(cpu, zone);
	/* A way to the lists that has no hook would hide pages: drains leave the lists alone. */
	WARN_ON_ONCE(per_cpu_ptr(zone->per_cpu_pageset, cpu)->count);
	depot_drain(depot, cpu, DEPOT_FULL, &done);
	depot_shelf_drain(zone, depot);
	depot_note(&done);
	return true;
}

/*
 * Drains all CPUs in a zone. A full drain leaves isolated ones alone, and asks them: returns how
 * many have not answered.
 */
static u64 depot_drain_zone(struct zone *zone, struct depot *depot, enum depot_mode mode)
{
	struct depot_drained done;
	u64 pending = 0;

	/* Or CPUs that were drained refill from it, also with pages that are isolated now. */
	if (mode == DEPOT_FULL)
		depot_shelf_drain(zone, depot);
	depot_drain(depot, DEPOT_NONE, mode, &done);
	depot_note(&done);
	if (mode == DEPOT_FULL && done.isolated_cpus) {
		depot_drain(depot, DEPOT_NONE, DEPOT_HANDOVER, &done);
		depot_note(&done);
		pending = done.pending_cpus;
	}
	depot_shelf_drain(zone, depot);
	return pending;
}

/* Drains all CPUs in a zone, or in all zones (NULL). A zone without a depot has lists. */
static void depot_drain_zones(struct zone *only, enum depot_mode mode)
{
	int cpu, pending_zones = 0;
	struct zone *zone;

	for_each_populated_zone(zone) {
		struct depot *depot = zone_depot(zone);

		if (only && zone != only)
			continue;
		if (depot)
			pending_zones += !!depot_drain_zone(zone, depot, mode);
		else
			for_each_online_cpu(cpu)
				drain_pages_zone(cpu, zone);
	}
	if (!IS_ENABLED(CONFIG_PREEMPT_RT) || !pending_zones)
		return;
	/*
	 * Most real-time tasks are short, and others are in a tick before long, which hands over what
	 * is of one zone. One sleep is for all zones, and no longer where there are many.
	 */
	schedule_timeout_uninterruptible(1 + min(pending_zones, 3));
	depot_drain_zones(only, DEPOT_QUIET);
}

void depot_ask_all(void)
{
	if (static_branch_unlikely(&pagedepot_on))
		depot_drain_zones(NULL, DEPOT_HANDOVER);
}

/* Where a tick is above all tasks: how long the longest one was that handed over. */
static void depot_note_tick(u64 began_ns)
{
	u64 ns = local_clock() - began_ns;

	depot_ticks.handovers++;
	if (ns > depot_ticks.ns_max)
		depot_ticks.ns_max = ns;
}

/*
 * For update_process_times(), in a tick that came above user mode: a task that does not allocate
 * hands over here, of one zone in a tick. In idle, and in user mode without a tick, the drainer
 * takes what it asked for.
 */
void depot_tick(void)
{
	u64 began_ns = IS_ENABLED(CONFIG_PREEMPT_RT) ? local_clock() : 0;
	struct zone *zone;

	if (!static_branch_unlikely(&pagedepot_on))
		return;
	for_each_populated_zone(zone) {
		struct depot *depot = zone_depot(zone);

		if (!depot || !depot_hand_over(depot))
			continue;
		if (IS_ENABLED(CONFIG_PREEMPT_RT))
			depot_note_tick(began_ns);
		return;
	}
}

/*
 * pagedepot=work: the lists are Linux's, and a drain of all CPUs is work that is queued on each CPU
 * that caches something, and waited for, as in kernels before 6.0.
 */
static bool depot_by_work __read_mostly;
static DEFINE_PER_CPU(struct work_struct, depot_works);

static void depot_work(struct work_struct *work)
{
	/* A task of one CPU; with PREEMPT_RT the lists have a lock that sleeps. */
	if (!IS_ENABLED(CONFIG_PREEMPT_RT))
		preempt_disable();
	drain_local_pages(NULL);
	if (!IS_ENABLED(CONFIG_PREEMPT_RT))
		preempt_enable();
}

static bool depot_drain_by_work(struct zone *only, bool force)
{
	/* Under the mutex. */
	static cpumask_t asked;
	struct zone *zone;
	int cpu;

	if (!mm_percpu_wq)
		return false;
	if (!depot_lock_drains(only))
		return true;
	cpumask_clear(&asked);
	for_each_online_cpu(cpu)
		for_each_populated_zone(zone)
			if (force || ((!only || zone == only) &&
				      per_cpu_ptr(zone->per_cpu_pageset, cpu)->count))
				cpumask_set_cpu(cpu, &asked);
	for_each_cpu(cpu, &asked) {
		INIT_WORK(per_cpu_ptr(&depot_works, cpu), depot_work);
		queue_work_on(cpu, mm_percpu_wq, per_cpu_ptr(&depot_works, cpu));
	}
	for_each_cpu(cpu, &asked)
		flush_work(per_cpu_ptr(&depot_works, cpu));
	mutex_unlock(&pcpu_drain_mutex);
	return true;
}

/*
 * For __drain_all_pages(). Reclaim wants pages back: quiet, which waits for no CPU's fronts. A
 * caller that names a zone (offlining, contiguous ranges, compaction, memory failure), or insists,
 * wants all: full.
 */
static bool depot_drain_all(struct zone *only, bool force)
{
	if (unlikely(depot_by_work))
		return depot_drain_by_work(only, force);
	if (depot_drain_rival(only))
		return true;
	if (!static_branch_unlikely(&pagedepot_on))
		return false;
	if (!only && !force) {
		depot_drain_zones(NULL, DEPOT_QUIET);
		return true;
	}
	mutex_lock(&pcpu_drain_mutex);
	depot_drain_zones(only, DEPOT_FULL);
	mutex_unlock(&pcpu_drain_mutex);
	return true;
}

/*
 * Before a task is killed for memory, what fronts hold is taken too. All who are out of memory wait
 * for this one, so it waits for no other full drain, nor for a turn of zone_pcp_disable().
 */
static void depot_before_oom(void)
{
	if (!static_branch_unlikely(&pagedepot_on) || !mutex_trylock(&pcpu_drain_mutex))
		return;
	depot_drain_zones(NULL, DEPOT_FULL);
	mutex_unlock(&pcpu_drain_mutex);
}

/* Whether a magazine of a zone is in a cache of a CPU, or in the hands of a task. */
static bool depot_has_charged(struct depot *depot)
{
	int cpu;

	for_each_possible_cpu(cpu)
		if (depot_charged(depot, cpu))
			return true;
	return false;
}

/*
 * Takes the caches of all CPUs away. It waits for tasks that were preempted while they handed over,
 * which open their CPU's gate behind them, and for tasks that were preempted with magazines of the
 * caches in hand: a magazine is charged to a CPU from before it is in a front until its pages are
 * in the zone or on the shelf, or handed over. Two kinds of tasks are not waited for: a drainer
 * that was preempted with what others handed over; and a task that found a gate open and was
 * preempted before it was charged, which takes pages from the zone, uses one and gives the others
 * back.
 *
 * Other drains may run while this sleeps: the gates that it has closed stay closed.
 */
static void depot_close_all(struct depot *depot)
{
	/* With pcp_batch_high_lock. */
	static cpumask_t open;
	struct depot_drained done;
	int cpu;

	cpumask_copy(&open, cpu_possible_mask);
	for (;;) {
		mutex_lock(&pcpu_drain_mutex);
		for_each_cpu(cpu, &open) {
			depot_retire_cpu(depot, cpu, &done);
			depot_note(&done);
			if (!done.busy_cpus)
				cpumask_clear_cpu(cpu, &open);
		}
		mutex_unlock(&pcpu_drain_mutex);
		if (cpumask_empty(&open) && !depot_has_charged(depot))
			return;
		msleep(1);
	}
}

/* For zone_pcp_disable() and zone_pcp_enable(), which exclude each other. */
static void depot_zone_disable(struct zone *zone, bool disable)
{
	struct depot *depot = zone_depot(zone);
	int cpu;

	if (!depot)
		return;
	if (!disable) {
		for_each_cpu(cpu, &depot_cpus)
			depot_restore_cpu(depot, cpu);
		depot_shelf_close(zone, depot, false);
		return;
	}
	depot_close_all(depot);
	depot_shelf_close(zone, depot, true);
}

/* Has the caches of a CPU in a zone follow depot_cpus. */
static void depot_follow(struct depot *depot, unsigned int cpu)
{
	struct depot_drained done;

	if (cpumask_test_cpu(cpu, &depot_cpus)) {
		depot_restore_cpu(depot, cpu);
		return;
	}
	depot_retire_cpu(depot, cpu, &done);
	depot_note(&done);
}

/*
 * For page_alloc_cpu_dead() and page_alloc_cpu_online(), which have the zones' limits follow under
 * the same lock; see depot_cpus. A drain that has the gate of a CPU which is gone ends first.
 */
static void depot_cpu(unsigned int cpu, bool online)
{
	struct zone *zone;

	mutex_lock(&pcp_batch_high_lock);
	mutex_lock(&pcpu_drain_mutex);
	if (online)
		cpumask_set_cpu(cpu, &depot_cpus);
	else
		cpumask_clear_cpu(cpu, &depot_cpus);
	for_each_zone(zone)
		if (zone_depot(zone))
			depot_follow(zone->depot, cpu);
	mutex_unlock(&pcpu_drain_mutex);
	mutex_unlock(&pcp_batch_high_lock);
}

/* For __zone_set_pageset_high_and_batch(). */
static void depot_zone_limits(struct zone *zone, unsigned long high_min, unsigned long high_max,
			      unsigned long batch)
{
	struct depot *depot = zone_depot(zone);

	depot_rival_limits(zone, high_min, high_max, batch);
	/* With 0 the lists are about to be disabled, which has a function of its own. */
	if (depot && high_max)
		depot_set_limits(depot, high_min, high_max, batch);
}

/* Of no CPU, and so never of an isolated one. */
#if DEPOT_SINCE(6, 18)
#define DEPOT_WORKQUEUE system_dfl_wq
#else
#define DEPOT_WORKQUEUE system_unbound_wq
#endif

static void depot_decay_all(struct work_struct *work);
/* Not deferrable: it would wait for an idle CPU to wake, while others are busy. */
static DECLARE_DELAYED_WORK(depot_decay_work, depot_decay_all);

/* What the vmstat work of each CPU does for its lists: once a second, idle caches shrink. */
static void depot_decay_all(struct work_struct *work)
{
	struct zone *zone;

	for_each_populated_zone(zone) {
		struct depot *depot = zone_depot(zone);

		if (!depot)
			continue;
		/* It spills to the shelf. */
		depot_decay(depot);
		depot_shelf_age(zone, depot);
	}
	queue_delayed_work(DEPOT_WORKQUEUE, &depot_decay_work, HZ);
}

static int __init depot_start_decay(void)
{
	if (static_key_enabled(&pagedepot_on))
		queue_delayed_work(DEPOT_WORKQUEUE, &depot_decay_work, HZ);
	return 0;
}
late_initcall(depot_start_decay);

/*
 * pagedepot_policy=N: what a CPU may cache that only frees, of orders 1 to 3. 0: nothing, as
 * mainline; 1: a batch; 2: four batches; 3: as much as any. Of lists and depots.
 */
static u32 depot_free_batches __read_mostly;

static int __init depot_parse_policy(char *str)
{
	static const u32 batches[] __initconst = { 0, 1, 4, DEPOT_NONE };
	unsigned int policy;

	if (!str || kstrtouint(str, 10, &policy) || policy >= ARRAY_SIZE(batches))
		return -EINVAL;
	depot_free_batches = batches[policy];
	return 0;
}
early_param("pagedepot_policy", depot_parse_policy);

static bool depot_is_off __read_mostly;

static int __init depot_parse(char *str)
{
	if (!str)
		return -EINVAL;
	depot_by_work = !strcmp(str, "work");
	depot_is_off = depot_by_work || depot_parse_rival(str) || !strcmp(str, "off");
	return depot_is_off || !strcmp(str, "on") ? 0 : -EINVAL;
}
early_param("pagedepot", depot_parse);

/* CPUs came and went without a zone while its node was offline. */
static void __meminit depot_follow_all(struct depot *depot)
{
	int cpu;

	mutex_lock(&pcp_batch_high_lock);
	mutex_lock(&pcpu_drain_mutex);
	for_each_possible_cpu(cpu)
		depot_follow(depot, cpu);
	mutex_unlock(&pcpu_drain_mutex);
	mutex_unlock(&pcp_batch_high_lock);
}

/* For setup_zone_pageset(): before the zone gets its limits. */
static void __meminit depot_setup_zone(struct zone *zone)
{
	/*
	 * Magazines for what pcp->high may reach with all CPUs. Where it is above this, because few
	 * CPUs share a zone or the zone has grown, they spill earlier.
	 */
	u32 high = max_t(unsigned long, depot_zone_pages(zone) / 8 / num_possible_cpus(), 1024);
	unsigned long end_pfn = max_t(unsigned long, max_pfn, max_possible_pfn);
	struct depot *depot;
	size_t bytes;
	void *memory;
	int context, order, mt;

	depot_setup_rival(zone);
	if (depot_is_off)
		return;
	if (zone->depot) {
		depot_follow_all(zone->depot);
		return;
	}
	if (!depot_has_sequences(DEPOT_GATES_AT, DEPOT_POP_STEP, DEPOT_PUSH_STEP)) {
		pr_warn("pagedepot: zone %s keeps its lists: the library has other sequences\n",
			zone->name);
		return;
	}
	if (!depot_end_pfn) {
		/* Room for as much again, at 4 KiB per GiB. Without hotplug nothing may lie beyond. */
		if (IS_ENABLED(CONFIG_MEMORY_HOTPLUG))
			end_pfn = min(2 * end_pfn, DEPOT_END_PFN_MAX);
		if (end_pfn <= DEPOT_END_PFN_MAX)
			depot_end_pfn = round_up(end_pfn, 1ul << (DEPOT_ORDERS - 1));
		cpumask_copy(&depot_cpus, cpu_online_mask);
	}
	bytes = depot_end_pfn ? depot_bytes(nr_cpu_ids, depot_end_pfn, high) : 0;
	memory = bytes ? depot_memory(zone, bytes) : NULL;
	depot = memory ? depot_init(memory, bytes, zone, nr_cpu_ids, depot_end_pfn, high,
				    depot_free_batches) : NULL;
	if (!depot) {
		pr_warn("pagedepot: zone %s keeps its lists: no depot of %zu bytes\n", zone->name, bytes);
		depot_forget(memory, bytes);
		return;
	}
	for (context = 0; context < 2; context++)
		for (order = 0; order < DEPOT_ORDERS; order++)
			for (mt = 0; mt < MIGRATE_PCPTYPES; mt++)
				depot_fronts[context][order][mt] = depot_front(depot, context, order, mt);
	/* Before the zone has been given limits there is nothing for it to cache. */
	depot_set_limits(depot, 0, 0, 1);
	depot_follow_all(depot);
	depot_setup_shelf(zone, depot);
	WRITE_ONCE(zone->depot, depot);
	if (!static_key_enabled(&pagedepot_on))
		static_branch_enable(&pagedepot_on);
	pr_info("pagedepot: zone %s: %zu KiB for %u CPUs\n", zone->name, bytes >> 10, nr_cpu_ids);
}
