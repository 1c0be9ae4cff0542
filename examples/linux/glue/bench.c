// SPDX-License-Identifier: GPL-2.0
/*
 * What cannot be asked of the page allocator from user space: a command is written to
 * /proc/pagedepot, and its figures are read from there, a line "name value" each. Times are the
 * least of the rounds, in picoseconds per page block. The same code runs with the depot and with
 * Linux's lists.
 */
#include <linux/cpu.h>
#include <linux/delay.h>
#include <linux/gfp.h>
#include <linux/hrtimer.h>
#include <linux/interrupt.h>
#include <linux/kthread.h>
#include <linux/mm.h>
#include <linux/proc_fs.h>
#include <linux/seq_file.h>
#include <linux/sort.h>
#include <linux/stop_machine.h>
#include <linux/uaccess.h>
#include <linux/version.h>
#include <linux/vmstat.h>
#include <linux/workqueue.h>
#include <linux/cma.h>
#include <linux/dma-map-ops.h>

#include "internal.h"
#include "pagedepot.h"

#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 0, 0)
/* pagedepot.c has these in later kernels. */
DEFINE_STATIC_KEY_FALSE(pagedepot_on);
DEFINE_PER_CPU(struct depot_counts, depot_counts);
struct depot_drained depot_sum;
struct depot_ticks depot_ticks;
unsigned long depot_graces;
void depot_ask_all(void) { }
u64 depot_c_now_ms(void) { return 0; }
#endif

#define HELD_MAX 4096
static struct page *held[HELD_MAX];

/* The figures of the last command. */
static char answer[2048];
static size_t answered;
static DEFINE_MUTEX(bench_lock);

static __printf(1, 2) void say(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	answered += vscnprintf(answer + answered, sizeof(answer) - answered, format, args);
	va_end(args);
}

/*
 * Each page of a block gets the address of what holds the block. Whoever has the same page writes
 * another one, and one of them finds that.
 */
static void mark(struct page *const *holder, int order)
{
	int i;

	for (i = 0; *holder && i < 1 << order; i++)
		WRITE_ONCE(*(struct page *const **)page_address(*holder + i), holder);
}

/* Pages of a block that somebody else wrote to since. */
static int foreign_pages(struct page *const *holder, int order)
{
	int i, foreign = 0;

	for (i = 0; *holder && i < 1 << order; i++)
		foreign += READ_ONCE(*(struct page *const **)page_address(*holder + i)) != holder;
	return foreign;
}

/* Marks all that is held, then looks. */
static int foreign_held(int count, int order)
{
	int i, foreign = 0;

	for (i = 0; i < count; i++)
		mark(&held[i], order);
	for (i = 0; i < count; i++)
		foreign += foreign_pages(&held[i], order);
	return foreign;
}

static u64 per(u64 ns, u64 many)
{
	return div64_u64(ns * 1000, many);
}

static u64 pair_round(gfp_t gfp, int order, int n)
{
	u64 start = ktime_get_ns();
	int i;

	for (i = 0; i < n; i++) {
		struct page *page = alloc_pages(gfp, order);

		if (page)
			__free_pages(page, order);
	}
	return ktime_get_ns() - start;
}

/* Windows are short: of many, some are not interrupted, whatever else the host does. */
#define WINDOW_BLOCKS	2048

static void pair(int order, int rounds)
{
	u64 best = U64_MAX;

	for (; rounds > 0; rounds--) {
		best = min(best, pair_round(GFP_KERNEL, order, WINDOW_BLOCKS));
		cond_resched();
	}
	say("pair_ps %llu\n", per(best, WINDOW_BLOCKS));
}

static int compare_ns(const void *a, const void *b)
{
	return *(const u32 *)a < *(const u32 *)b ? -1 : *(const u32 *)a > *(const u32 *)b;
}

/*
 * @movable 0, 1: as the kernel's own pages, as user pages. 2 more: contents are looked at, and
 * times say nothing.
 */
static void batch(int order, int count, int movable, int rounds)
{
	static u32 alloc_ns[1024], free_ns[1024];
	gfp_t gfp = movable & 1 ? GFP_HIGHUSER_MOVABLE : GFP_KERNEL;
	int i, loops, loop, round, failed = 0, foreign = 0;

	count = clamp(count, 1, HELD_MAX);
	rounds = clamp_t(int, rounds, 1, ARRAY_SIZE(alloc_ns));
	loops = max(WINDOW_BLOCKS / count, 1);
	for (round = 0; round < rounds; round++) {
		u64 alloc = 0, all = ktime_get_ns();

		for (loop = 0; loop < loops; loop++) {
			u64 start = ktime_get_ns();

			for (i = 0; i < count; i++)
				held[i] = alloc_pages(gfp, order);
			alloc += ktime_get_ns() - start;
			if (movable & 2)
				foreign += foreign_held(count, order);
			for (i = 0; i < count; i++) {
				if (held[i])
					__free_pages(held[i], order);
				else
					failed++;
			}
		}
		alloc_ns[round] = alloc;
		free_ns[round] = ktime_get_ns() - all - alloc;
		cond_resched();
	}
	sort(alloc_ns, rounds, sizeof(alloc_ns[0]), compare_ns, NULL);
	sort(free_ns, rounds, sizeof(free_ns[0]), compare_ns, NULL);
	say("alloc_ps %llu\nfree_ps %llu\nalloc_median_ps %llu\nfree_median_ps %llu\nfailed %d\n",
	    per(alloc_ns[0], loops * count), per(free_ns[0], loops * count),
	    per(alloc_ns[rounds / 2], loops * count), per(free_ns[rounds / 2], loops * count), failed);
	say("foreign %d\n", foreign);
}

#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 18, 0)
/* Pages that this CPU caches beyond those in its pcp lists, while interrupts are off. */
static u64 cached_here(void)
{
	struct zone *zone;
	u64 cached = 0;

	for_each_populated_zone(zone)
		cached += depot_cpu_pages(zone, smp_processor_id());
	return cached;
}

/* Pages that are allocated and freed as from anywhere: what this CPU caches stays as it is. */
static void nolock(int count)
{
	int i, pages = 0, moved = 0;
	u64 cached;

	count = clamp(count, 1, HELD_MAX);
	local_irq_disable();
	cached = cached_here();
	for (i = 0; i < count; i++) {
		held[i] = alloc_pages_nolock(0, NUMA_NO_NODE, 0);
		pages += !!held[i];
		moved += cached_here() != cached;
	}
	for (i = 0; i < count; i++) {
		if (held[i])
			free_pages_nolock(held[i], 0);
		moved += cached_here() != cached;
	}
	local_irq_enable();
	say("nolock_pages %d\nnolock_moved %d\n", pages, moved);
}
#else
static void nolock(int count) { }
#endif

/* By the interfaces that move many pages at once. */
static void bulk(int count, int rounds)
{
	unsigned long got = 0;
	int i, foreign = 0;

	count = clamp(count, 1, HELD_MAX);
	for (; rounds > 0; rounds--) {
		int n;

		memset(held, 0, count * sizeof(held[0]));
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 14, 0)
		n = alloc_pages_bulk(GFP_KERNEL, count, held);
#elif LINUX_VERSION_CODE >= KERNEL_VERSION(5, 13, 0)
		n = alloc_pages_bulk_array(GFP_KERNEL, count, held);
#else
		n = 0;
#endif
		got += n;
		foreign += foreign_held(n, 0);
		for (i = 0; i < n; i++)
			__free_page(held[i]);
		cond_resched();
	}
	say("bulk_pages %lu\nforeign %d\n", got, foreign);
}

/* Allocated here, freed on another CPU, through a ring. */
static struct page *ring[256];
static unsigned long ring_head, ring_tail;
static bool ring_stop;

static int consumer(void *unused)
{
	while (!READ_ONCE(ring_stop) || ring_tail != smp_load_acquire(&ring_head)) {
		unsigned long tail = ring_tail;

		if (tail == smp_load_acquire(&ring_head)) {
			cpu_relax();
			cond_resched();
			continue;
		}
		__free_page(ring[tail % ARRAY_SIZE(ring)]);
		smp_store_release(&ring_tail, tail + 1);
	}
	while (!kthread_should_stop())
		schedule_timeout_interruptible(1);
	return 0;
}

static void remote(int cpu, int windows)
{
	struct task_struct *task;
	u64 best = U64_MAX;

	ring_head = ring_tail = 0;
	ring_stop = false;
	task = kthread_create(consumer, NULL, "consumer");
	if (IS_ERR(task))
		return;
	kthread_bind(task, cpu);
	wake_up_process(task);
	for (; windows > 0; windows--) {
		u64 start = ktime_get_ns();
		int i;

		/* Sixteen times what the ring holds. */
		for (i = 0; i < 2 * WINDOW_BLOCKS; i++) {
			while (ring_head - smp_load_acquire(&ring_tail) == ARRAY_SIZE(ring)) {
				cpu_relax();
				cond_resched();
			}
			ring[ring_head % ARRAY_SIZE(ring)] = alloc_page(GFP_KERNEL | __GFP_NOFAIL);
			smp_store_release(&ring_head, ring_head + 1);
		}
		best = min(best, ktime_get_ns() - start);
	}
	WRITE_ONCE(ring_stop, true);
	kthread_stop(task);
	say("remote_ps %llu\n", per(best, 2 * WINDOW_BLOCKS));
}

/*
 * Drains: 0 as reclaim drains, 1 all of each zone, 2 by asking; the last does nothing with Linux's
 * lists.
 */
static void drain_by(int mode)
{
	struct zone *zone;

	switch (mode) {
	case 0:
		drain_all_pages(NULL);
		break;
	case 1:
		for_each_populated_zone(zone)
			drain_all_pages(zone);
		break;
	default:
		depot_ask_all();
	}
}

/* Pages of any node, or of one. */
static void fill(gfp_t gfp, int node)
{
	static const int pages = 512;
	struct page *page, *list = NULL;
	int i;

	for (i = 0; i < pages; i++) {
		page = alloc_pages_node(node, gfp, 0);
		if (!page)
			break;
		page->private = (unsigned long)list;
		list = page;
	}
	while (list) {
		page = list;
		list = (struct page *)page->private;
		page->private = 0;
		__free_page(page);
	}
}

static void fill_here(struct work_struct *work)
{
	fill(GFP_KERNEL, NUMA_NO_NODE);
}

/* The node that all CPUs fill from. */
static int filled_node;

static void fill_from_node(struct work_struct *work)
{
	gfp_t only = __GFP_THISNODE | __GFP_NORETRY | __GFP_NOWARN;

	fill(GFP_KERNEL | only, filled_node);
	fill(GFP_HIGHUSER_MOVABLE | only, filled_node);
}

/* Free pages of all zones, with what CPUs have not added yet. */
static s64 free_pages_now(void)
{
	struct zone *zone;
	s64 pages = 0;

	for_each_populated_zone(zone)
		pages += zone_page_state_snapshot(zone, NR_FREE_PAGES);
	return pages;
}

/*
 * One drain of all CPUs, of which each has freed 512 pages, so many times. drain_pages: what all of
 * them gave back.
 */
static void drain_once(int mode, int rounds)
{
	u64 best = U64_MAX, sum = 0;
	s64 pages = 0;
	int i;

	for (i = 0; i < rounds; i++) {
		u64 start;

		schedule_on_each_cpu(fill_here);
		/* Until the other CPUs are idle again. */
		schedule_timeout_uninterruptible(1);
		pages -= free_pages_now();
		start = ktime_get_ns();
		drain_by(mode);
		start = ktime_get_ns() - start;
		pages += free_pages_now();
		best = min(best, start);
		sum += start;
	}
	say("drain_ns %llu\ndrain_mean_ns %llu\ndrain_pages %lld\n", best, div64_u64(sum, rounds), pages);
}

static struct task_struct *drainer;
static int drainer_mode, drainer_rate, drainer_limit;
static unsigned long drains;
/* drains_pages: what the drainer's CPU gave back to the buddy lists meanwhile. */
static u64 drains_ns, drains_pages, drainer_since;

/*
 * Where a plugin of QEMU begins and ends to count the instructions of a drain, and tells their sum
 * (../plugin/count.c). The comments keep them apart.
 */
static noinline __noclone void depot_count_begin(void) { asm volatile("# begin"); }
static noinline __noclone void depot_count_end(void) { asm volatile("# end"); }
static noinline __noclone void depot_count_tell(void) { asm volatile("# tell"); }

static int drain_loop(void *unused)
{
	while (!kthread_should_stop()) {
		u64 pages, start;

		if (drainer_limit && drains >= drainer_limit) {
			schedule_timeout_interruptible(1);
			continue;
		}
		pages = raw_cpu_read(depot_counts.spilled);
		start = ktime_get_ns();
		depot_count_begin();
		drain_by(drainer_mode);
		depot_count_end();
		WRITE_ONCE(drains_ns, drains_ns + ktime_get_ns() - start);
		drains_pages += raw_cpu_read(depot_counts.spilled) - pages;
		WRITE_ONCE(drains, drains + 1);
		if (drainer_rate)
			usleep_range(1000000 / drainer_rate, 1000000 / drainer_rate + 1);
		else
			cond_resched();
	}
	return 0;
}

static void drainer_stop(void)
{
	if (drainer)
		kthread_stop(drainer);
	drainer = NULL;
	depot_count_tell();
	say("drains_pages %llu\n", drains_pages);
	say("drains %lu\ndrains_ns %llu\nper_s %llu\n", drains, drains ? div64_u64(drains_ns, drains) : 0,
	    div64_u64(drains * 1000000000ull, max(ktime_get_ns() - drainer_since, 1ull)));
}

static void drainer_start(int mode, int rate, int cpu, int limit)
{
	if (drainer)
		drainer_stop();
	drainer_mode = mode;
	drainer_rate = rate;
	drainer_limit = limit;
	drains = drains_ns = drains_pages = 0;
	drainer_since = ktime_get_ns();
	drainer = kthread_create(drain_loop, NULL, "drainer");
	if (IS_ERR(drainer)) {
		drainer = NULL;
		return;
	}
	if (cpu >= 0)
		kthread_bind(drainer, cpu);
	wake_up_process(drainer);
}

/*
 * Allocates and frees in interrupts and softirqs, above what runs. With PREEMPT_RT nothing
 * allocates in a hard interrupt, and the softirq is a thread.
 */
static struct hrtimer above_timer;
static struct tasklet_struct above_tasklet;
static bool above_on;
static unsigned long above_irqs, above_softirqs, above_foreign;

static void above(unsigned long *count)
{
	struct page *pages[8];
	int i;

	for (i = 0; i < ARRAY_SIZE(pages); i++)
		pages[i] = alloc_pages(GFP_ATOMIC | __GFP_NOWARN, i & 3);
	for (i = 0; i < ARRAY_SIZE(pages); i++)
		mark(&pages[i], i & 3);
	for (i = 0; i < ARRAY_SIZE(pages); i++) {
		above_foreign += foreign_pages(&pages[i], i & 3);
		if (pages[i])
			__free_pages(pages[i], i & 3);
	}
	(*count)++;
}

static void above_softirq(struct tasklet_struct *unused)
{
	above(&above_softirqs);
}

static enum hrtimer_restart above_irq(struct hrtimer *timer)
{
	if (IS_ENABLED(CONFIG_PREEMPT_RT))
		above_irqs++;
	else
		above(&above_irqs);
	tasklet_schedule(&above_tasklet);
	hrtimer_forward_now(timer, ns_to_ktime(100000));
	return READ_ONCE(above_on) ? HRTIMER_RESTART : HRTIMER_NORESTART;
}

static void handlers(int on)
{
	if (on && !above_on) {
		above_on = true;
		tasklet_setup(&above_tasklet, above_softirq);
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 13, 0)
		hrtimer_setup(&above_timer, above_irq, CLOCK_MONOTONIC, HRTIMER_MODE_REL_HARD);
#else
		hrtimer_init(&above_timer, CLOCK_MONOTONIC, HRTIMER_MODE_REL_HARD);
		above_timer.function = above_irq;
#endif
		hrtimer_start(&above_timer, ns_to_ktime(100000), HRTIMER_MODE_REL_HARD);
	} else if (!on && above_on) {
		above_on = false;
		hrtimer_cancel(&above_timer);
		tasklet_kill(&above_tasklet);
	}
	say("handler_irqs %lu\nhandler_softirqs %lu\nforeign %lu\n", above_irqs, above_softirqs,
	    above_foreign);
}

static u64 cached_in(struct zone *zone)
{
	u64 cached = depot_shelf_pages(zone);
	int cpu;

	for_each_possible_cpu(cpu)
		cached += zone_pcp(zone, cpu)->count + depot_cpu_pages(zone, cpu);
	return cached;
}

#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 0, 0)
/*
 * Pages that stay in the caches of a zone, which are disabled. Linux's lists have a page that is
 * freed until the same hold of their lock gives it back: such pages, seen without that lock, are
 * added to `passing`. With PREEMPT_RT a task that has the lock can be preempted there. What a depot
 * has in passing is no CPU's, and not on its shelf.
 */
static u64 left_in(struct zone *zone, u64 *passing)
{
	u64 seen = cached_in(zone), left = depot_shelf_pages(zone);
	int cpu;

	for_each_possible_cpu(cpu) {
		struct per_cpu_pages *pcp = zone_pcp(zone, cpu);
		unsigned long flags;

		spin_lock_irqsave(&pcp->lock, flags);
		left += pcp->count + depot_cpu_pages(zone, cpu);
		spin_unlock_irqrestore(&pcp->lock, flags);
	}
	*passing += seen > left ? seen - left : 0;
	return left;
}

/* Pages of magazines in the caches of a depot, or in the hands of tasks that were preempted. */
static u64 charged_in(struct zone *zone)
{
	struct depot *depot = zone_depot(zone);
	u64 charged = 0;
	int cpu;

	if (depot)
		for_each_possible_cpu(cpu)
			charged += depot_charged(depot, cpu);
	return charged;
}
#endif

/* Caches disabled, for so long each time: nothing may be cached, nor become so. */
static void disable(int rounds, int ms)
{
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 0, 0)
	u64 left = 0, passing = 0;

	for (; rounds > 0; rounds--) {
		struct zone *zone;

		for_each_populated_zone(zone) {
			zone_pcp_disable(zone);
			left += left_in(zone, &passing) + charged_in(zone);
			fill_here(NULL);
			msleep(ms);
			left += left_in(zone, &passing);
			zone_pcp_enable(zone);
		}
		fill_here(NULL);
		cond_resched();
	}
	say("disabled_left %llu\ndisabled_passing %llu\n", left, passing);
#endif
}

/* CPUs that cache nothing of a zone when they free, over all zones. */
static void uncached(void)
{
	struct zone *zone;
	int cpu, without = 0;

	for_each_node_state(filled_node, N_MEMORY)
		schedule_on_each_cpu(fill_from_node);
	for_each_online_cpu(cpu)
		for_each_populated_zone(zone)
			without += !(zone_pcp(zone, cpu)->count + depot_cpu_pages(zone, cpu));
	say("uncached_cpus %d\n", without);
}

/* Keeps other code of this CPU from allocating; with PREEMPT_RT only that of ordinary tasks. */
static void alone_here(void)
{
#ifdef CONFIG_PREEMPT_RT
	sched_set_fifo(current);
#else
	local_irq_disable();
#endif
}

static void not_alone_here(void)
{
#ifdef CONFIG_PREEMPT_RT
	sched_set_normal(current, 0);
#else
	local_irq_enable();
#endif
}

/*
 * Below all watermarks, a page for a request that may use reserves: an ordinary one after it may
 * not get what it left. Rounds that begin with pages in caches say nothing.
 */
static void reserves(int rounds)
{
	int round, mark, lent = 0, told = 0;

	for (round = 0; round < rounds; round++) {
		struct page *pages[2];
		struct zone *zone;
		u64 cached = 0;

		drain_by(1);
		alone_here();
		for_each_populated_zone(zone) {
			cached += cached_in(zone);
			for (mark = 0; mark < NR_WMARK; mark++)
				zone->_watermark[mark] += zone->present_pages;
		}
		pages[0] = alloc_page(GFP_NOWAIT | __GFP_MEMALLOC | __GFP_NOWARN);
		pages[1] = alloc_page(GFP_NOWAIT | __GFP_NOWARN);
		for_each_populated_zone(zone)
			for (mark = 0; mark < NR_WMARK; mark++)
				zone->_watermark[mark] -= zone->present_pages;
		not_alone_here();
		told += pages[0] && !cached;
		lent += pages[1] && !cached;
		for (mark = 0; mark < ARRAY_SIZE(pages); mark++)
			if (pages[mark])
				__free_page(pages[mark]);
	}
	say("reserve_rounds %d\nlent %d\n", told, lent);
}

/* Of a node: pages that are free, that are cached, and that one CPU caches. */
static void node(int node, int cpu)
{
	s64 free = 0;
	u64 cached = 0, of_cpu = 0;
	struct zone *zone;

	for_each_populated_zone(zone) {
		if (zone_to_nid(zone) != node)
			continue;
		free += zone_page_state_snapshot(zone, NR_FREE_PAGES);
		cached += cached_in(zone);
		of_cpu += zone_pcp(zone, cpu)->count + depot_cpu_pages(zone, cpu);
	}
	say("node_free %lld\nnode_cached %llu\nnode_cpu_cached %llu\n", free, cached, of_cpu);
}

/* A drain of the zones of a node alone. */
static void drain_node(int node)
{
	struct zone *zone;

	for_each_populated_zone(zone)
		if (zone_to_nid(zone) == node)
			drain_all_pages(zone);
}

/* Pages of each node that may come from there alone, one by one, then many at once. */
static void thisnode(int count)
{
	gfp_t gfp = GFP_KERNEL | __GFP_THISNODE | __GFP_NOWARN;
	int i, node, bulk, before, taken = 0, refused = 0, elsewhere = 0, foreign = 0;

	count = clamp(count, 1, HELD_MAX);
	for_each_node_state(node, N_NORMAL_MEMORY)
		for (bulk = 0; bulk < 2; bulk++) {
			before = taken;
			memset(held, 0, count * sizeof(held[0]));
			if (!bulk)
				for (i = 0; i < count; i++)
					held[i] = alloc_pages_node(node, gfp, 0);
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 14, 0)
			else
				alloc_pages_bulk_node(gfp, node, count, held);
#elif LINUX_VERSION_CODE >= KERNEL_VERSION(5, 14, 0)
			else
				alloc_pages_bulk_array_node(gfp, node, count, held);
#endif
			foreign += foreign_held(count, 0);
			for (i = 0; i < count; i++) {
				if (!held[i])
					continue;
				taken++;
				elsewhere += page_to_nid(held[i]) != node;
				__free_page(held[i]);
			}
			refused += taken == before;
		}
	say("taken %d\nrefused %d\nelsewhere %d\nforeign %d\n", taken, refused, elsewhere, foreign);
}

/* Contiguous ranges: isolation, migration and full drains of a zone. */
static void contig(int pages, int rounds)
{
	int tried = 0, got = 0;

#ifdef CONFIG_CONTIG_ALLOC
	for (; tried < rounds; tried++) {
		struct page *page = alloc_contig_pages(pages, GFP_KERNEL | __GFP_NOWARN, numa_node_id(), NULL);

		if (page) {
			got++;
			free_contig_range(page_to_pfn(page), pages);
		}
		fill_here(NULL);
	}
#endif
	say("tried %d\ngot %d\n", tried, got);
}

static void cma(int pages, int rounds)
{
	int tried = 0, got = 0;

#ifdef CONFIG_DMA_CMA
	struct cma *area = dev_get_cma_area(NULL);

	for (; tried < rounds && area; tried++) {
		struct page *page = cma_alloc(area, pages, 0, true);

		if (page) {
			got++;
			cma_release(area, page, pages);
		}
	}
#endif
	say("tried %d\ngot %d\n", tried, got);
}

/* Page tables of the vmalloc area, the last two levels: what was mapped there leaves them. */
static u64 count_tables(pud_t *pud, unsigned long at, unsigned long end)
{
	u64 tables = 1;
	unsigned long next;
	pmd_t *pmd;

	for (pmd = pmd_offset(pud, at); at < end; pmd++, at = next) {
		next = pmd_addr_end(at, end);
		tables += !pmd_none(*pmd) && !pmd_leaf(*pmd);
	}
	return tables;
}

static void tables(void)
{
	unsigned long at, next;
	u64 tables = 0;

	for (at = VMALLOC_START; at < VMALLOC_END; at = next) {
		pgd_t *pgd = pgd_offset_k(at);
		p4d_t *p4d = pgd_none(*pgd) ? NULL : p4d_offset(pgd, at);
		pud_t *pud = !p4d || p4d_none(*p4d) ? NULL : pud_offset(p4d, at);

		next = pud_addr_end(at, VMALLOC_END);
		if (pud && !pud_none(*pud) && !pud_leaf(*pud))
			tables += count_tables(pud, at, next);
		cond_resched();
	}
	say("table_bytes %llu\n", tables * PAGE_SIZE);
}

static int validate_stopped(void *faults)
{
	struct zone *zone;

	for_each_populated_zone(zone) {
		struct depot *depot = zone_depot(zone);
		u64 cached = 0, counted = 0;
		int cpu;

		if (!depot)
			continue;
		for_each_possible_cpu(cpu)
			counted += depot_cached(depot, cpu);
		if (!depot_validate(depot, &cached))
			*(int *)faults += 1000;
		if (counted != cached)
			*(int *)faults += 1;
	}
	return 0;
}

/*
 * With full preemption the machine may be stopped while a task is inside a slow path, with pages in
 * flight. The task goes on, and its pages arrive; those that are lost do not. So a fault counts if
 * it is still there after a while.
 */
static void validate(void)
{
	int faults, tries = IS_ENABLED(CONFIG_PREEMPTION) ? 20 : 1;

	for (;;) {
		faults = 0;
		stop_machine(validate_stopped, &faults, NULL);
		if (!faults || --tries == 0)
			break;
		schedule_timeout_uninterruptible(HZ / 100);
	}
	say("faults %d\n", faults);
}

static void counts(void)
{
	struct depot_counts sum = {};
	struct zone *zone;
	u64 cached = 0, shelved = 0, movable = 0, movable_shelved = 0;
	int cpu;

	for_each_possible_cpu(cpu) {
		struct depot_counts *of = per_cpu_ptr(&depot_counts, cpu);

		sum.takes += of->takes;
		sum.puts += of->puts;
		sum.refilled += of->refilled;
		sum.spilled += of->spilled;
		sum.spilled_blocks += of->spilled_blocks;
		sum.locks += of->locks;
		sum.contended += of->contended;
	}
	for_each_populated_zone(zone) {
		cached += cached_in(zone);
		shelved += depot_shelf_pages(zone);
		if (zone_idx(zone) == ZONE_MOVABLE) {
			movable += cached_in(zone);
			movable_shelved += depot_shelf_pages(zone);
		}
	}
	say("takes %lu\nputs %lu\nrefilled %lu\nspilled %lu\ncached %llu\n", sum.takes, sum.puts,
	    sum.refilled, sum.spilled, cached);
	say("locks %lu\ncontended %lu\nspilled_blocks %lu\nshelved %llu\n", sum.locks, sum.contended,
	    sum.spilled_blocks, shelved);
	say("drained %llu\nfences %llu\nbusy %llu\nisolated %llu\ngraces %lu\n",
	    depot_sum.taken_pages, depot_sum.fences, depot_sum.busy_cpus, depot_sum.isolated_cpus,
	    depot_graces);
	say("tick_handovers %lu\ntick_ns_max %llu\n", depot_ticks.handovers, depot_ticks.ns_max);
	say("movable_cached %llu\nmovable_shelved %llu\n", movable, movable_shelved);
	say("depot %d\nnow_ms %llu\n", static_key_enabled(&pagedepot_on), depot_c_now_ms());
}

static ssize_t command(struct file *file, const char __user *buffer, size_t length, loff_t *at)
{
	int numbers[4] = {}, read;
	char text[64] = {}, name[16] = {};

	if (length >= sizeof(text) || copy_from_user(text, buffer, length))
		return -EINVAL;
	read = sscanf(text, "%15s %d %d %d %d", name, &numbers[0], &numbers[1], &numbers[2], &numbers[3]);
	if (read < 1)
		return -EINVAL;
	mutex_lock(&bench_lock);
	answered = 0;
	if (!strcmp(name, "pair"))
		pair(numbers[0], numbers[1]);
	else if (!strcmp(name, "batch"))
		batch(numbers[0], numbers[1], numbers[2], numbers[3]);
	else if (!strcmp(name, "nolock"))
		nolock(numbers[0]);
	else if (!strcmp(name, "bulk"))
		bulk(numbers[0], numbers[1]);
	else if (!strcmp(name, "remote"))
		remote(numbers[0], numbers[1]);
	else if (!strcmp(name, "drain"))
		drain_once(numbers[0], numbers[1]);
	else if (!strcmp(name, "start"))
		drainer_start(numbers[0], numbers[1], numbers[2], numbers[3]);
	else if (!strcmp(name, "drains"))
		say("drains %lu\n", READ_ONCE(drains));
	else if (!strcmp(name, "stop"))
		drainer_stop();
	else if (!strcmp(name, "handlers"))
		handlers(numbers[0]);
	else if (!strcmp(name, "disable"))
		disable(numbers[0], numbers[1]);
	else if (!strcmp(name, "uncached"))
		uncached();
	else if (!strcmp(name, "reserves"))
		reserves(numbers[0]);
	else if (!strcmp(name, "contig"))
		contig(numbers[0], numbers[1]);
	else if (!strcmp(name, "cma"))
		cma(numbers[0], numbers[1]);
	else if (!strcmp(name, "node"))
		node(numbers[0], numbers[1]);
	else if (!strcmp(name, "drain_node"))
		drain_node(numbers[0]);
	else if (!strcmp(name, "thisnode"))
		thisnode(numbers[0]);
	else if (!strcmp(name, "tables"))
		tables();
	else if (!strcmp(name, "validate"))
		validate();
	else if (!strcmp(name, "counts"))
		counts();
	else
		length = -EINVAL;
	mutex_unlock(&bench_lock);
	return length;
}

static int show(struct seq_file *file, void *unused)
{
	mutex_lock(&bench_lock);
	seq_write(file, answer, answered);
	mutex_unlock(&bench_lock);
	return 0;
}

static int open(struct inode *inode, struct file *file)
{
	return single_open(file, show, NULL);
}

static const struct proc_ops bench_ops = {
	.proc_open = open,
	.proc_read = seq_read,
	.proc_lseek = seq_lseek,
	.proc_release = single_release,
	.proc_write = command,
};

static int __init bench_init(void)
{
	proc_create("pagedepot", 0600, NULL, &bench_ops);
	return 0;
}
late_initcall(bench_init);
