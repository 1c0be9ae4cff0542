/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Linux's per-CPU page lists by the library pagedepot: what C and Rust know of each other, and what
 * hooks in files other than mm/page_alloc.c call. The functions of Rust are documented in
 * src/depot.rs.
 */
#ifndef _MM_PAGEDEPOT_H
#define _MM_PAGEDEPOT_H

#include <linux/jump_label.h>
#include <linux/mmzone.h>
#include <linux/percpu.h>
#include <linux/types.h>
#include <linux/version.h>

/*
 * The depot of a zone begins with the address that fronts are found from and what C put beside it;
 * the rest is Rust's.
 */
struct depot { char *base; struct depot_shelf *shelf; };

/* No block; no place where the caches may be used; all CPUs. */
#define DEPOT_NONE	U32_MAX

/* Where code runs: the CPU, whether it is a handler, and no other code may hold a guard. */
#define DEPOT_IN_HANDLER	(1u << 31)
#define DEPOT_ALONE		(1u << 30)

/* How to drain. */
enum depot_mode { DEPOT_QUIET, DEPOT_FULL, DEPOT_HANDOVER };

struct depot_block { u32 pfn; u8 order; u8 mobility; u16 unused; };

struct depot_drained {
	u64 taken_pages, left_pages, unreachable_pages, fences, busy_cpus, isolated_cpus,
	    pending_cpus;
};

/* Rust, src/depot.rs. */
size_t depot_bytes(u32 cpus, u32 end_pfn, u32 high);
struct depot *depot_init(void *memory, size_t bytes, struct zone *zone, u32 cpus, u32 end_pfn,
			 u32 high, u32 free_batches);
u32 depot_front(struct depot *depot, bool in_handler, u32 order, u32 migratetype);
bool depot_has_sequences(u32 gates_at, u64 pop_step, u64 push_step);
u32 depot_pop_next(struct depot *depot, unsigned long cpu, unsigned long front);
unsigned long depot_pop_many(struct depot *depot, unsigned long cpu, unsigned long front, u32 *out,
			     unsigned long wanted);
bool depot_push_next(struct depot *depot, unsigned long cpu, unsigned long front, u32 pfn);
u32 depot_alloc(struct depot *depot, u32 order, u32 migratetype, u32 alloc_flags);
bool depot_free(struct depot *depot, u32 pfn, u32 order, u32 migratetype);
void depot_drain(struct depot *depot, u32 cpu, u32 mode, struct depot_drained *done);
bool depot_hand_over(struct depot *depot);
void depot_retire_cpu(struct depot *depot, u32 cpu, struct depot_drained *done);
void depot_restore_cpu(struct depot *depot, u32 cpu);
void depot_set_limits(struct depot *depot, u32 high_min, u32 high_max, u32 batch);
u64 depot_decay(struct depot *depot);
u64 depot_cached(struct depot *depot, u32 cpu);
u64 depot_charged(struct depot *depot, u32 cpu);
u64 depot_high(struct depot *depot, u32 cpu);
bool depot_validate(struct depot *depot, u64 *cached_pages);

/* C, pagedepot.c; Rust calls these. */
u32 depot_c_take(struct zone *zone, u32 order, u32 mobility, u32 alloc_flags,
		 struct depot_block *out, u32 wanted);
u32 depot_c_put(struct zone *zone, const struct depot_block *blocks, u32 count, u32 *first);
u64 depot_c_free_pages(struct zone *zone);
bool depot_c_is_free(u32 pfn);
u32 depot_c_pin(void);
void depot_c_unpin(void);
bool depot_c_fence(u32 cpu);
bool depot_c_is_quiescent(u32 cpu);
bool depot_c_is_isolated(u32 cpu);
u64 depot_c_now_ms(void);
void depot_c_misuse(u32 pfn, u32 frames);
void depot_c_panic(void);

/*
 * What the zone's lock was taken for by refills and spills, then all takes of it, and those that
 * found it held. Both designs count, but for spilled_blocks, which stock has not.
 */
struct depot_counts {
	unsigned long takes, puts, refilled, spilled, spilled_blocks, locks, contended;
};
DECLARE_PER_CPU(struct depot_counts, depot_counts);

/* Directly before the zone's lock is taken, anywhere. */
static inline void depot_note_lock(struct zone *zone)
{
	raw_cpu_inc(depot_counts.locks);
	if (unlikely(spin_is_locked(&zone->lock)))
		raw_cpu_inc(depot_counts.contended);
}

/* Asks the CPUs of all zones to hand over what they cache; nothing with pagedepot=off. */
void depot_ask_all(void);

/* Sums over all drains, and the grace periods that they waited for; racy, for /proc/pagedepot. */
extern struct depot_drained depot_sum;
/* With PREEMPT_RT: ticks that handed over. */
struct depot_ticks { unsigned long handovers; u64 ns_max; };
extern struct depot_ticks depot_ticks;
extern unsigned long depot_graces;

DECLARE_STATIC_KEY_FALSE(pagedepot_on);

#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 0, 0)
/* Kernels before 6.0 are measured as they are: no zone has a depot. */
static inline struct depot *zone_depot(struct zone *zone) { return NULL; }
static inline unsigned long depot_cpu_pages(struct zone *zone, int cpu) { return 0; }
static inline unsigned long depot_shelf_pages(struct zone *zone) { return 0; }
static inline struct per_cpu_pages *zone_pcp(struct zone *zone, int cpu)
{
	return &per_cpu_ptr(zone->pageset, cpu)->pcp;
}
#else
static inline struct per_cpu_pages *zone_pcp(struct zone *zone, int cpu)
{
	return per_cpu_ptr(zone->per_cpu_pageset, cpu);
}

/* The depot of a zone, or NULL: with pagedepot=off, and until the zone has one. */
static __always_inline struct depot *zone_depot(struct zone *zone)
{
	return static_branch_unlikely(&pagedepot_on) ? zone->depot : NULL;
}

/* Pages on a zone's shelf and in its heaps, which are no CPU's. */
unsigned long depot_shelf_pages(struct zone *zone);

/* What rivals that have more than the pcp lists cache. */
unsigned long depot_rival_pages(struct zone *zone, int cpu);

/* Pages of a zone that a CPU caches, beyond those in its pcp lists. */
static inline unsigned long depot_cpu_pages(struct zone *zone, int cpu)
{
	struct depot *depot = zone_depot(zone);

	return depot ? depot_cached(depot, cpu) : depot_rival_pages(zone, cpu);
}

/* What /proc/zoneinfo is to print of a CPU: its lists, or what stands in their place. */
static inline struct per_cpu_pages *depot_shown(struct zone *zone, int cpu,
						struct per_cpu_pages *pcp, struct per_cpu_pages *shown)
{
	struct depot *depot = zone_depot(zone);

	*shown = *pcp;
	shown->count = pcp->count + depot_cpu_pages(zone, cpu);
	if (depot)
		shown->high = depot_high(depot, cpu);
	return shown;
}
#endif

#endif
