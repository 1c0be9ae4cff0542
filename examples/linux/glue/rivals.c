// SPDX-License-Identifier: GPL-2.0
/*
 * Two designs of the threads, in a kernel of their own (DEPOT_RIVALS), so that no other pays for
 * them. Lists, batches and limits are Linux's, and so is the code that uses them. What differs is
 * which lists a CPU uses, and what keeps others from them: depot_enter() and depot_leave() are in
 * the place of pcp_spin_trylock() and pcp_spin_unlock(). pagedepot.c includes this.
 *
 * pagedepot=rcu, "Remote per-cpu lists drain support" (Saenz Julienne, 2022): a CPU has two sets of
 * lists per zone, finds the one in use by a pointer, and takes no lock. A drain switches the
 * pointers of all CPUs, waits for one grace period, and empties the sets that were in use. The
 * series turns interrupts off; here, as the lists of today want it, an interrupt above an operation
 * on the same set goes to the zone's lock.
 *
 * pagedepot=magazine, "Per-cpu page allocator replacement prototype" (Gorman, 2013): a zone has two
 * sets, each with a lock that interrupts do not take: they, and whoever has turned them off, go to
 * the zone's lock. A CPU prefers one by its number. An allocation takes the first that has pages
 * and whose lock is free, a free waits for the preferred one. A set holds 1024 pages and gives back
 * 64 at a time; refills are Linux's, and blocks of higher orders are in the sets, too.
 */
enum { DEPOT_NO_RIVAL, DEPOT_RCU, DEPOT_MAGAZINE };
static int depot_rival __read_mostly;

/* Defined further down. */
static void pageset_update(struct per_cpu_pages *pcp, unsigned long high_min,
			   unsigned long high_max, unsigned long batch);

#define DEPOT_MAGAZINES		2
#define DEPOT_MAGAZINE_HIGH	1024
#define DEPOT_MAGAZINE_BATCH	64

static bool depot_parse_rival(const char *str)
{
	if (!strcmp(str, "rcu"))
		depot_rival = DEPOT_RCU;
	else if (!strcmp(str, "magazine"))
		depot_rival = DEPOT_MAGAZINE;
	return depot_rival;
}

/* The set that a CPU's pointer names; until a zone has been set up, all it has. */
static __always_inline struct per_cpu_pages *depot_set(struct per_cpu_pages *own)
{
	struct per_cpu_pages *set = READ_ONCE(own->depot_set);

	return likely(set) ? set : own;
}

/* This CPU's set, for this CPU alone until depot_leave(); NULL: an operation is under way below. */
static __always_inline struct per_cpu_pages *depot_enter_rcu(struct per_cpu_pages __percpu *pageset)
{
	struct per_cpu_pages *set;

	/* The grace period waits for sections without preemption. */
	preempt_disable();
	set = depot_set(this_cpu_ptr(pageset));
	if (unlikely(set->depot_busy)) {
		preempt_enable();
		return NULL;
	}
	set->depot_busy = true;
	barrier();
	return set;
}

/* For an allocation, which looks around. */
static struct per_cpu_pages *depot_lock_any(struct per_cpu_pages *preferred)
{
	struct per_cpu_pages *set = preferred;

	do {
		if (READ_ONCE(set->count) && spin_trylock(&set->lock))
			return set;
		set = depot_set(set);
	} while (set != preferred);
	do {
		if (READ_ONCE(set->count))
			break;
		set = depot_set(set);
	} while (set != preferred);
	spin_lock(&set->lock);
	return set;
}

static __always_inline struct per_cpu_pages *
depot_enter_magazine(struct per_cpu_pages __percpu *pageset, bool any)
{
	struct per_cpu_pages *set;

	if (in_interrupt() || irqs_disabled())
		return NULL;
	preempt_disable();
	set = depot_set(this_cpu_ptr(pageset));
	if (any)
		return depot_lock_any(set);
	spin_lock(&set->lock);
	return set;
}

static __always_inline struct per_cpu_pages *depot_enter(struct per_cpu_pages __percpu *pageset,
							 bool any)
{
	return depot_rival == DEPOT_RCU ? depot_enter_rcu(pageset) :
					  depot_enter_magazine(pageset, any);
}

static __always_inline void depot_leave(struct per_cpu_pages *set)
{
	if (depot_rival == DEPOT_RCU) {
		barrier();
		set->depot_busy = false;
	} else {
		spin_unlock(&set->lock);
	}
	preempt_enable();
}

/* Frees come first in the file; a hook between them and the allocations sets DEPOT_ANY. */
#define DEPOT_ANY	false
#undef pcp_spin_trylock
#define pcp_spin_trylock(pageset)	depot_enter(pageset, DEPOT_ANY)
#undef pcp_spin_unlock
#define pcp_spin_unlock(set)		depot_leave(set)

/* Empties a set that the caller owns, in the steps of drain_pages_zone(). */
static void depot_empty(struct zone *zone, struct per_cpu_pages *set)
{
	while (set->count)
		free_pcppages_bulk(zone, min(set->count, set->batch << CONFIG_PCP_BATCH_SCALE_MAX),
				   set, 0);
}

static struct per_cpu_pages *depot_spare(struct zone *zone, int cpu)
{
	struct per_cpu_pages *own = per_cpu_ptr(zone->per_cpu_pageset, cpu);

	return depot_set(own) == own ? per_cpu_ptr(zone->depot_spares, cpu) : own;
}

/* Under the mutex of drains: spare sets are empty, but for those that this switches. */
static void depot_drain_rcu(struct zone *only)
{
	bool switched = false;
	struct zone *zone;
	int cpu;

	for_each_populated_zone(zone) {
		if (!zone->depot_spares || (only && zone != only))
			continue;
		for_each_possible_cpu(cpu) {
			/* Pairs with the dependent loads behind depot_set(): it is empty by then. */
			smp_store_release(&per_cpu_ptr(zone->per_cpu_pageset, cpu)->depot_set,
					  depot_spare(zone, cpu));
			switched = true;
		}
	}
	if (!switched)
		return;
	synchronize_rcu();
	for_each_populated_zone(zone)
		if (zone->depot_spares && (!only || zone == only))
			for_each_possible_cpu(cpu)
				depot_empty(zone, depot_spare(zone, cpu));
}

static void depot_drain_magazines(struct zone *only)
{
	struct zone *zone;
	int nth;

	for_each_populated_zone(zone) {
		if (!zone->depot_magazines || (only && zone != only))
			continue;
		for (nth = 0; nth < DEPOT_MAGAZINES; nth++) {
			struct per_cpu_pages *set = &zone->depot_magazines[nth];

			spin_lock(&set->lock);
			depot_empty(zone, set);
			spin_unlock(&set->lock);
		}
	}
}

/* For __drain_all_pages(). */
static bool depot_drain_rival(struct zone *only)
{
	if (!depot_rival)
		return false;
	if (!depot_lock_drains(only))
		return true;
	if (depot_rival == DEPOT_RCU)
		depot_drain_rcu(only);
	else
		depot_drain_magazines(only);
	mutex_unlock(&pcpu_drain_mutex);
	return true;
}

/* For drain_pages_zone(), of a CPU that has gone, or of this one. */
static bool depot_drain_rival_cpu(unsigned int cpu, struct zone *zone)
{
	if (depot_rival == DEPOT_RCU && zone->depot_spares) {
		struct per_cpu_pages *own = per_cpu_ptr(zone->per_cpu_pageset, cpu), *set;

		preempt_disable();
		WARN_ON_ONCE(cpu_online(cpu) && cpu != smp_processor_id());
		set = depot_set(own);
		if (!set->depot_busy) {
			set->depot_busy = true;
			barrier();
			depot_empty(zone, set);
			barrier();
			set->depot_busy = false;
		}
		preempt_enable();
	}
	return depot_rival;
}

static void depot_init_set(struct per_cpu_pages *set)
{
	int list;

	spin_lock_init(&set->lock);
	for (list = 0; list < NR_PCP_LISTS; list++)
		INIT_LIST_HEAD(&set->lists[list]);
}

static void __meminit depot_setup_rival(struct zone *zone)
{
	/* CPUs that share a core share a set, where there are enough. */
	unsigned int shift = num_possible_cpus() >= 2 * DEPOT_MAGAZINES;
	int cpu, nth;

	if (depot_rival == DEPOT_RCU && !zone->depot_spares) {
		struct per_cpu_pages __percpu *spares = alloc_percpu(struct per_cpu_pages);

		for_each_possible_cpu(cpu)
			depot_init_set(per_cpu_ptr(spares, cpu));
		zone->depot_spares = spares;
	}
	if (depot_rival == DEPOT_MAGAZINE && !zone->depot_magazines) {
		struct per_cpu_pages *sets = kcalloc(DEPOT_MAGAZINES, sizeof(*sets), GFP_KERNEL);

		for (nth = 0; nth < DEPOT_MAGAZINES; nth++) {
			depot_init_set(&sets[nth]);
			sets[nth].depot_set = &sets[(nth + 1) % DEPOT_MAGAZINES];
		}
		zone->depot_magazines = sets;
		for_each_possible_cpu(cpu)
			per_cpu_ptr(zone->per_cpu_pageset, cpu)->depot_set =
				&sets[(cpu >> shift) % DEPOT_MAGAZINES];
	}
}

/* For __zone_set_pageset_high_and_batch(). With a @high_max of 0 nothing may be held. */
static void depot_rival_limits(struct zone *zone, unsigned long high_min, unsigned long high_max,
			       unsigned long batch)
{
	int cpu, nth;

	if (zone->depot_spares)
		for_each_possible_cpu(cpu)
			pageset_update(per_cpu_ptr(zone->depot_spares, cpu), high_min, high_max,
				       batch);
	if (!zone->depot_magazines)
		return;
	high_max = high_max ? DEPOT_MAGAZINE_HIGH : 0;
	for (nth = 0; nth < DEPOT_MAGAZINES; nth++)
		pageset_update(&zone->depot_magazines[nth], high_max, high_max,
			       high_max ? DEPOT_MAGAZINE_BATCH : 1);
	/* For /proc/zoneinfo: nothing uses it. */
	for_each_possible_cpu(cpu)
		WRITE_ONCE(per_cpu_ptr(zone->per_cpu_pageset, cpu)->high, high_max);
}

/* What a CPU has beyond its per_cpu_pages; magazines are counted for the first CPUs. */
static unsigned long depot_rival_count(struct zone *zone, int cpu)
{
	if (zone->depot_spares)
		return per_cpu_ptr(zone->depot_spares, cpu)->count;
	if (zone->depot_magazines && cpu < DEPOT_MAGAZINES)
		return zone->depot_magazines[cpu].count;
	return 0;
}
