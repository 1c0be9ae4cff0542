// SPDX-License-Identifier: GPL-2.0
/*
 * The only program of the machine: runs the scenarios that the kernel's command line names, prints
 * what they measured and whether they held, and powers off. `cargo xtask linux` reads the lines:
 *
 *   = METRIC VALUE [NAME=NUMBER]...     a figure
 *   = check NAME ok|failed [WHY]        something that must hold
 *   = done                              all scenarios ended
 */
#include "init.h"
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define DRAINS 10000
#define CPU_1 "/sys/devices/system/cpu/cpu1/online"

static char answer[4096];
static char command_line[2048];
long cpus, nodes, rounds = 3;
bool has_depot;

void check(const char *name, bool holds, const char *why, ...)
{
	va_list args;

	printf("= check %s %s", name, holds ? "ok" : "failed");
	if (!holds) {
		putchar(' ');
		va_start(args, why);
		vprintf(why, args);
		va_end(args);
	}
	putchar('\n');
}

long slurp(const char *path, char *into, size_t bytes)
{
	long got = 0, more;
	int file = open(path, O_RDONLY);

	into[0] = 0;
	if (file < 0)
		return -1;
	while ((more = read(file, into + got, bytes - 1 - got)) > 0)
		got += more;
	into[got] = 0;
	close(file);
	return got;
}

bool put(const char *path, const char *text)
{
	int file = open(path, O_WRONLY);
	bool done = file >= 0 && write(file, text, strlen(text)) == (long)strlen(text);

	if (file >= 0)
		close(file);
	return done;
}

void must_put(const char *path, const char *text)
{
	bool done = put(path, text);

	check("put", done, "%s to %s: %s", text, path, strerror(errno));
}

void ask(const char *format, ...)
{
	char command[64];
	va_list args;

	va_start(args, format);
	vsnprintf(command, sizeof(command), format, args);
	va_end(args);
	if (!put("/proc/pagedepot", command))
		check("ask", false, "%s: %s", command, strerror(errno));
	slurp("/proc/pagedepot", answer, sizeof(answer));
}

long long figure(const char *name)
{
	size_t length = strlen(name);

	for (char *line = answer; line && *line; line = strchr(line, '\n'), line += !!line)
		if (!strncmp(line, name, length) && line[length] == ' ')
			return atoll(line + length);
	return -1;
}

long long value_in(const char *path, const char *name)
{
	static char text[1 << 17];
	char *at;

	slurp(path, text, sizeof(text));
	at = strstr(text, name);
	return at ? atoll(at + strlen(name) + strspn(at + strlen(name), ": \t")) : -1;
}

int64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000000000ll + now.tv_nsec;
}

void pin(int cpu)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	sched_setaffinity(0, sizeof(set), &set);
}

void unpin(void)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	for (int cpu = 0; cpu < cpus; cpu++)
		CPU_SET(cpu, &set);
	sched_setaffinity(0, sizeof(set), &set);
}

/*
 * How often the zone's lock was taken for refills and spills since the last call, and for how many
 * pages. What goes past the lists is not in it: locks.c prints all takes. Linux's lists are counted
 * by the pages that they ask for, which are more than they get where a zone runs dry.
 */
static void counted(const char *params)
{
	static long long takes, pages;
	long long takes_now, pages_now;

	ask("counts");
	takes_now = figure("takes") + figure("puts");
	pages_now = figure("refilled") + figure("spilled");
	if (params) {
		printf("= zone_lock_bulk_takes %lld %s\n", takes_now - takes, params);
		printf("= zone_lock_bulk_pages %lld %s\n", pages_now - pages, params);
	}
	takes = takes_now;
	pages = pages_now;
}

/* Alone on a CPU: pairs, batches, and pages that another CPU frees. */
static void times(void)
{
	pin(0);
	for (long round = 0; round < rounds; round++) {
		for (int order = 0; order <= 3; order += 3) {
			ask("pair %d 500", order);
			printf("= pair_ns %.3f order=%d\n", figure("pair_ps") / 1e3, order);
		}
		static const int batches[][2] = { { 0, 64 }, { 0, 512 }, { 3, 64 } };

		for (size_t i = 0; i < sizeof(batches) / sizeof(batches[0]); i++) {
			int order = batches[i][0], batch = batches[i][1];
			char params[32];

			snprintf(params, sizeof(params), "order=%d batch=%d", order, batch);
			counted(NULL);
			ask("batch %d %d 0 200", order, batch);
			printf("= alloc_ns %.3f order=%d batch=%d\n", figure("alloc_ps") / 1e3, order, batch);
			printf("= free_ns %.3f order=%d batch=%d\n", figure("free_ps") / 1e3, order, batch);
			counted(params);
		}
		if (cpus > 1) {
			ask("remote 1 300");
			printf("= remote_ns %.3f\n", figure("remote_ps") / 1e3);
		}
	}
	unpin();
}

static void drains(void)
{
	pin(0);
	for (long round = 0; round < rounds; round++) {
		for (int full = 0; full < 2; full++) {
			ask("drain %d 20", full);
			printf("= drain_ns %lld full=%d\n", figure("drain_ns"), full);
		}
		if (has_depot) {
			ask("drain 2 20");
			printf("= handover_ns %lld\n", figure("drain_ns"));
		}
	}
	/* While another CPU drains. */
	for (long round = 0; round < rounds && cpus > 1; round++) {
		static const int rates[] = { 100, 10000 };

		for (int i = 0; i < 2; i++) {
			ask("start 0 %d 1", rates[i]);
			ask("batch 0 512 0 1000");
			printf("= alloc_ns %.3f order=0 batch=512 drains_per_s=%d\n",
			       figure("alloc_median_ps") / 1e3, rates[i]);
			printf("= free_ns %.3f order=0 batch=512 drains_per_s=%d\n",
			       figure("free_median_ps") / 1e3, rates[i]);
			ask("stop");
			printf("= drains_per_second %lld drains_per_s=%d\n", figure("per_s"), rates[i]);
		}
	}
	unpin();
}

/*
 * Touches own memory of folios of an order, as many at a time as a window has; each time into
 * `windows_ns`. Returns how many windows. `looks`: outside of the windows, whether a folio was
 * zeroed, and nobody else writes to it.
 */
#define WINDOW_PAGES 64
#define WINDOWS_MAX 1024

static int touch(size_t bytes, int order, int times_over, bool looks, int64_t *windows_ns)
{
	size_t folio = (size_t)4096 << order, window = folio * (order < 9 ? WINDOW_PAGES : 1);
	/* No other process writes this and the number of a page. */
	uint64_t own = (uint64_t)getpid() << 40;
	int windows = 0, foreign = 0;

	for (int i = 0; i < times_over; i++) {
		char *all = mmap(NULL, bytes + folio, PROT_READ | PROT_WRITE,
				 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		char *at = (char *)(((uintptr_t)all + folio - 1) & -folio);

		if (all == MAP_FAILED)
			_exit(1);
		madvise(all, bytes + folio, order ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
		for (size_t begin = 0; begin < bytes; begin += window) {
			int64_t start = now_ns();

			for (size_t page = begin; page < begin + window; page += folio)
				at[page] = 1;
			windows_ns[windows++ % WINDOWS_MAX] = now_ns() - start;
			for (size_t page = begin; looks && page < begin + window; page += folio) {
				uint64_t *word = (uint64_t *)(at + page);

				foreign += *word != 1;
				*word = own | page;
			}
		}
		for (size_t page = 0; looks && page < bytes; page += folio)
			foreign += *(uint64_t *)(at + page) != (own | page);
		munmap(all, bytes + folio);
	}
	if (foreign) {
		check("contents", false, "%d folios of a process", foreign);
		_exit(1);
	}
	return windows < WINDOWS_MAX ? windows : WINDOWS_MAX;
}

static int compare_ns(const void *a, const void *b)
{
	int64_t one = *(const int64_t *)a, other = *(const int64_t *)b;

	return one < other ? -1 : one > other;
}

/*
 * Page faults by `clients` processes, each touching `mib` of its own, so many times over, in folios
 * of an order. The mean of all windows but the slowest fifth, in which the host ran something else;
 * where nanoseconds are instructions, of all. Clients that share CPUs interrupt each other's
 * windows: of these it is the time that all take, over all faults. Less than 0: a client failed.
 */
static double faults(int clients, int mib, int order, int times_over)
{
	double *means = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	bool counts = told("depot_counts=", 0);
	int64_t start = now_ns();
	int status, failed = 0;
	pid_t pids[clients];
	double sum = 0;

	fflush(stdout);
	for (int client = 0; client < clients; client++) {
		pids[client] = fork();
		if (!pids[client]) {
			static int64_t windows_ns[WINDOWS_MAX];
			int windows, kept, folios = order < 9 ? WINDOW_PAGES : 1;

			pin(client % cpus);
			/* Where instructions are counted, nothing is added to them. */
			windows = touch((size_t)mib << 20, order, times_over, !counts, windows_ns);
			kept = counts ? windows : windows - windows / 5;
			qsort(windows_ns, windows, sizeof(windows_ns[0]), compare_ns);
			for (int i = 0; i < kept; i++)
				means[client] += (double)windows_ns[i] / kept / folios;
			_exit(0);
		}
	}
	/* This process has those of a parent that was killed, too. */
	for (int client = 0; client < clients; client++)
		failed += pids[client] < 0 || waitpid(pids[client], &status, 0) < 0 || status;
	if (clients > cpus)
		sum = (double)(now_ns() - start) / ((double)clients * times_over * (mib << 8 >> order));
	else
		for (int client = 0; client < clients; client++)
			sum += means[client] / clients;
	munmap(means, 4096);
	if (!failed)
		return sum;
	check("faults", false, "%d of %d clients failed", failed, clients);
	return -1;
}

/* Has this kernel fault in folios of an order, of those that there are single pages always. */
static bool use_order(int order)
{
	const char *const huge = "/sys/kernel/mm/transparent_hugepage";
	char path[96];

	if (!order)
		return true;
	snprintf(path, sizeof(path), "%s/hugepages-%dkB/enabled", huge, 4 << order);
	if (put(path, "madvise"))
		return true;
	/* Before folios had sizes there was this one. */
	snprintf(path, sizeof(path), "%s/enabled", huge);
	return order == 9 && put(path, "always");
}

static void leave_order(int order)
{
	char path[96];

	snprintf(path, sizeof(path), "/sys/kernel/mm/transparent_hugepage/hugepages-%dkB/enabled",
		 4 << order);
	if (order)
		put(path, "never");
}

static void pft_by(int clients, int order)
{
	for (int rate = 0; rate <= 100; rate += 100) {
		double ns;

		if (rate)
			ask("start 0 %d -1", rate);
		ns = faults(clients, 16, order, 4);
		if (ns >= 0)
			printf("= fault_ns %.1f order=%d clients=%d drains_per_s=%d\n", ns, order, clients,
			       rate);
		if (rate)
			ask("stop");
	}
}

/* A count has four clients at most, which share the CPUs that there are. */
static void pft(void)
{
	static const int orders[] = { 0, 2, 4, 9 };
	int clients_max = told("depot_counts=", 0) ? 4 : cpus;

	for (long round = 0; round < rounds; round++)
		for (size_t i = 0; i < sizeof(orders) / sizeof(orders[0]); i++) {
			if (!use_order(orders[i]))
				continue;
			for (int clients = 1; clients <= clients_max; clients *= 2)
				pft_by(clients, orders[i]);
			leave_order(orders[i]);
		}
}

/* Of the drainer, for a page that is given back, on a CPU that has just freed 512. */
static void drain_instructions(void)
{
	static const char *const modes[] = { "quiet", "full" };

	for (int mode = 0; mode < 2; mode++) {
		ask("drain %d 20", mode);
		if (figure("drain_pages") > 0)
			printf("= drain_instructions %.1f mode=%s\n",
			       (double)figure("drain_mean_ns") * 20 / figure("drain_pages"), modes[mode]);
		check("drain_pages", figure("drain_pages") > 0, "%lld pages", figure("drain_pages"));
	}
}

/* With an instruction a nanosecond, times are counts. */
static void instructions(void)
{
	for (int order = 0; order <= 3; order += 3) {
		ask("pair %d 3", order);
		printf("= pair_instructions %.1f order=%d\n", figure("pair_ps") / 1e3, order);
	}
	for (int batch = 64; batch <= 512; batch *= 8) {
		char params[32];

		snprintf(params, sizeof(params), "order=0 batch=%d", batch);
		counted(NULL);
		ask("batch 0 %d 0 3", batch);
		printf("= alloc_instructions %.1f %s\n", figure("alloc_ps") / 1e3, params);
		printf("= free_instructions %.1f %s\n", figure("free_ps") / 1e3, params);
		counted(params);
	}
	drain_instructions();
}

void books(const char *after)
{
	char name[64];

	ask("validate");
	snprintf(name, sizeof(name), "books_after_%s", after);
	check(name, figure("faults") == 0, "%lld faults", figure("faults"));
}

void all_cache(void)
{
	ask("uncached");
	check("all_cache", !has_depot || figure("uncached_cpus") == 0, "%lld caches are empty",
	      figure("uncached_cpus"));
}

static void interfaces(void)
{
	long long foreign;

	counted(NULL);
	ask("bulk 300 50");
	check("bulk", figure("bulk_pages") == 300 * 50, "%lld pages", figure("bulk_pages"));
	foreign = figure("foreign");
	for (int order = 0; order <= 3; order++) {
		ask("batch %d 200 3 2", order);
		foreign += figure("foreign");
	}
	ask("batch 9 4 2 2");
	foreign += figure("foreign");
	counted("");
	ask("reserves 20");
	check("reserves", figure("reserve_rounds") > 0 && figure("lent") == 0, "%s", answer);
	all_cache();
	books("interfaces");
	ask("handlers 1");
	ask("batch 0 512 2 400");
	foreign += figure("foreign");
	ask("pair 0 200");
	ask("handlers 0");
	check("handlers", figure("handler_irqs") > 0 && figure("handler_softirqs") > 0, "%s", answer);
	foreign += figure("foreign");
	check("contents", foreign == 0, "%lld of the kernel's pages", foreign);
	books("handlers");
}

/*
 * What disabled caches had. No page stays in any. On Linux's lists, which are disabled by their
 * limit, a page that is freed is seen in passing; a depot has closed its CPUs' gates, and has none.
 */
static void disabled(const char *name, long long left, long long passing)
{
	printf("= disabled_passing %lld\n", passing);
	check(name, left == 0 && (!has_depot || passing == 0),
	      "%lld pages stayed, %lld were seen in passing%s", left, passing,
	      has_depot ? "" : ", as lists may have them");
}

static void disable(void)
{
	ask("start 0 1000 -1");
	ask("disable %ld", 20 * rounds);
	disabled("zone_pcp_disable", figure("disabled_left"), figure("disabled_passing"));
	ask("stop");
	books("disable");
}

/* Each kind of drain, beside handlers that allocate above tasks that preempt each other. */
static void modes(void)
{
	for (int mode = 0; mode < 3; mode++) {
		ask("start %d 1000 -1", mode);
		ask("handlers 1");
		faults(2 * cpus, 4, 0, rounds);
		ask("handlers 0");
		check("contents", figure("foreign") == 0, "%lld pages of handlers", figure("foreign"));
		ask("stop");
		check("modes", figure("drains") > 0, "mode %d did not drain", mode);
		books("modes");
	}
}

/* Asks for ranges of so many pages: some are to be had. */
static void ranges(const char *what, int pages)
{
	ask("%s %d %ld", what, pages, 5 * rounds);
	if (!figure("tried")) {
		printf("= untested %s: this kernel has none\n", what);
		return;
	}
	printf("= %s_got %lld\n", what, figure("got"));
	check(what, figure("got") > 0, "none of %lld", figure("tried"));
}

static void contig(void)
{
	ranges("contig", 512);
	ranges("cma", 256);
	check("compaction", put("/proc/sys/vm/compact_memory", "1"), "%s", strerror(errno));
	books("contig");
}

static void thp(void)
{
	size_t bytes = 32 << 20;
	char *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	long long huge;

	madvise(at, bytes, MADV_HUGEPAGE);
	memset(at, 1, bytes);
	huge = value_in("/proc/meminfo", "AnonHugePages:");
	munmap(at, bytes);
	check("thp", huge > 0, "%lld KiB huge", huge);
	books("thp");
}

/*
 * Caches are disabled while a CPU is gone: no grace period is for its sake. It comes online while
 * they are: it has caches afterwards.
 */
static void hotplug_disabled(void)
{
	long long graces;
	int status = 0;
	pid_t other;

	must_put(CPU_1, "0");
	ask("counts");
	graces = figure("graces");
	ask("disable 1 0");
	ask("counts");
	check("disable_offline", figure("graces") == graces, "%lld grace periods",
	      figure("graces") - graces);
	fflush(stdout);
	other = fork();
	if (!other) {
		usleep(200000);
		_exit(!put(CPU_1, "1"));
	}
	ask("disable 1 600");
	disabled("disable_online", figure("disabled_left"), figure("disabled_passing"));
	check("online", waitpid(other, &status, 0) == other && !status, "status %d", status);
	all_cache();
}

/* CPUs go and come while others allocate and drains run. */
static void cpu_hotplug(void)
{
	int64_t start = now_ns();
	pid_t busy;
	long failed = 0, tried = 0;
	long others = cpus < 4 ? cpus - 1 : 3, all = rounds < 8 ? 30 : 4 * rounds;

	ask("start 0 1000 0");
	fflush(stdout);
	busy = fork();
	if (!busy)
		for (;;)
			faults(2, 8, 0, 1);
	for (long round = 0; round < all; round++) {
		char path[64];

		snprintf(path, sizeof(path), "/sys/devices/system/cpu/cpu%ld/online", 1 + round % others);
		if (access(path, W_OK))
			continue;
		tried++;
		failed += !put(path, "0");
		failed += !put(path, "1");
		if (tried % 100 == 0)
			printf("%ld times gone and back after %lld s\n", tried,
			       (long long)(now_ns() - start) / 1000000000);
	}
	kill(busy, SIGKILL);
	waitpid(busy, NULL, 0);
	ask("stop");
	check("cpu_hotplug", tried > 0 && !failed, "%ld of %ld failed", failed, tried);
	hotplug_disabled();
	books("cpu_hotplug");
}

void memory_state(int block, const char *state)
{
	char path[64];

	snprintf(path, sizeof(path), "/sys/devices/system/memory/memory%d/state", block);
	must_put(path, state);
}

/* Blocks of memory go and come back; then memory that was never there is added. */
static void memory_hotplug(void)
{
	long offlined = 0, failed = 0;
	long long before, after;
	char path[80], state[32];

	for (long round = 0; round < rounds; round++)
		for (int block = 1; block < 16; block++) {
			snprintf(path, sizeof(path), "/sys/devices/system/memory/memory%d/state", block);
			if (slurp(path, state, sizeof(state)) < 0 || strncmp(state, "online", 6))
				continue;
			if (put(path, "offline")) {
				offlined++;
				failed += !put(path, "online");
			}
		}
	/* A node of one block has pages there that do not move. */
	if (!offlined && nodes > 2)
		printf("= untested memory_offline: each block has pages of the kernel\n");
	else
		check("memory_offline", offlined > 0 && !failed, "%ld offlined, %ld did not come back",
		      offlined, failed);
	books("memory_offline");
	before = value_in("/proc/meminfo", "MemTotal:");
	if (put("/sys/devices/system/memory/probe", "0x40000000")) {
		memory_state(8, "online_movable");
		after = value_in("/proc/meminfo", "MemTotal:");
		check("memory_add", after > before, "%lld KiB before, %lld after", before, after);
		faults(2, 64, 0, 2);
		ask("counts");
		check("movable_caches", figure("movable_cached") > 0 &&
		      (!has_depot || figure("movable_shelved") > 0), "%lld pages, %lld on the shelf",
		      figure("movable_cached"), figure("movable_shelved"));
		/*
		 * Above twice the memory of the boot: nothing of it is cached, in a zone that caches. Tables of
		 * nodes tell of it at boot.
		 */
		must_put("/sys/devices/system/memory/probe", "0x80000000");
		memory_state(16, "online_movable");
		before = value_in("/proc/meminfo", "MemTotal:");
		check("memory_beyond", before > after, "%lld KiB before, %lld after", after, before);
		faults(2, 120, 0, 2);
		faults(2, 120, 9, 1);
		must_put(CPU_1, "0");
		memory_state(8, "offline");
		/* It is all that is left of its zone. */
		faults(2, 32, 0, 2);
		ask("counts");
		check("beyond_cached", !has_depot || nodes > 1 || figure("movable_cached") == 0,
		      "%lld pages are cached", figure("movable_cached"));
		memory_state(16, "offline");
		/* It comes online while the zone has no memory. */
		must_put(CPU_1, "1");
		memory_state(8, "online_movable");
		all_cache();
		memory_state(8, "offline");
	} else {
		printf("= untested memory_add: %s\n", strerror(errno));
	}
	books("memory_add");
}

/*
 * An image of the memory is made by one CPU, and dropped, because there is no place to write it to.
 * It has all of the depots' pages: that CPU drains itself with interrupts off.
 */
static void hibernate(void)
{
	char states[64];
	long long busy;

	if (slurp("/sys/power/state", states, sizeof(states)) < 0 || !strstr(states, "disk")) {
		printf("= untested hibernate: this kernel has none\n");
		return;
	}
	ask("counts");
	busy = figure("busy");
	check("hibernate", !put("/sys/power/state", "disk") && errno == ENODEV, "%s", strerror(errno));
	ask("counts");
	check("hibernate_drains", figure("busy") == busy, "%lld drains found CPUs busy",
	      figure("busy") - busy);
	all_cache();
	books("hibernate");
}

/*
 * Takes the memory that is free but for so much, as pages of a file, which need no faults: with the
 * checks of PREEMPT_RT an emulated fault takes 130 us or more, and a GiB half a minute or more.
 */
static int ballast(long long free_kib)
{
	long long kib = value_in("/proc/meminfo", "MemAvailable:") - free_kib;
	int file = memfd_create("ballast", 0);

	if (kib > 0)
		check("ballast", file >= 0 && !fallocate(file, 0, 0, kib << 10), "%lld KiB: %s", kib,
		      strerror(errno));
	return file;
}

/* A process takes memory until it is killed, while others allocate and drains run. */
static void oom(void)
{
	int file = ballast(200 << 10);
	int64_t start = now_ns();
	long killed = 0, all = 4 * rounds;

	ask("start 0 100 -1");
	fflush(stdout);
	for (long round = 0; round < all; round++) {
		int status = 0;
		pid_t hog = fork();

		if (!hog) {
			put("/proc/self/oom_score_adj", "1000");
			for (;;) {
				char *at = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE,
						MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

				if (at == MAP_FAILED)
					_exit(1);
				madvise(at, 1 << 20, MADV_NOHUGEPAGE);
				memset(at, 1, 1 << 20);
			}
		}
		waitpid(hog, &status, 0);
		killed += WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
		if (killed && killed % 100 == 0)
			printf("%ld killed after %lld s\n", killed, (long long)(now_ns() - start) / 1000000000);
	}
	printf("= oom_kill_ns %lld\n", (long long)(now_ns() - start) / all);
	close(file);
	ask("stop");
	check("oom", killed == all, "%ld of %ld were killed", killed, all);
	books("oom");
}

static void fifo(int priority)
{
	struct sched_param param = { .sched_priority = priority };

	if (sched_setscheduler(0, priority ? SCHED_FIFO : SCHED_OTHER, &param))
		check("fifo", false, "%s", strerror(errno));
}

/*
 * A process on a CPU that takes memory and gives it back: so many times with pauses, at a real-time
 * priority, or without end as an ordinary one.
 */
static pid_t taker(int cpu, int priority, long bursts)
{
	static int64_t windows_ns[WINDOWS_MAX];
	pid_t pid;

	fflush(stdout);
	pid = fork();
	if (pid)
		return pid;
	pin(cpu);
	fifo(priority);
	for (; bursts; bursts -= priority > 0) {
		touch(priority ? 256 << 10 : 2 << 20, 0, 1, true, windows_ns);
		if (priority)
			usleep(1000 + 100 * cpu);
	}
	_exit(0);
}

/* Whether tasks of real-time classes may have CPUs for themselves; else others get a part. */
static void leave_all_to_realtime(bool all)
{
	char path[64];

	must_put("/proc/sys/kernel/sched_rt_runtime_us", all ? "-1" : "950000");
	for (int cpu = 0; cpu < cpus; cpu++) {
		snprintf(path, sizeof(path), "/sys/kernel/debug/sched/fair_server/cpu%d/runtime", cpu);
		must_put(path, all ? "0" : "50000000");
	}
}

/* A task of a real-time class that stays in user mode hands over in a tick: no stopper runs. */
static void hog_hands_over(void)
{
	volatile bool *stop = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	static int64_t windows_ns[WINDOWS_MAX];
	long long handovers, isolated;
	pid_t hog;

	ask("counts");
	handovers = figure("tick_handovers");
	isolated = figure("isolated");
	fflush(stdout);
	hog = fork();
	if (!hog) {
		pin(cpus - 1);
		fifo(50);
		while (!*stop) {
			int64_t begin = now_ns();

			touch(2 << 20, 0, 1, true, windows_ns);
			while (!*stop && now_ns() - begin < 100000000)
				;
		}
		_exit(0);
	}
	for (int i = 0; i < 40; i++) {
		/* Drains of all zones, and not of a zone: it is the drainer's task that waits. */
		ask("start 1 0 0 1");
		usleep(10000);
		ask("stop");
	}
	*stop = true;
	waitpid(hog, NULL, 0);
	munmap((void *)stop, 4096);
	ask("counts");
	check("realtime_hands_over", !has_depot || (figure("tick_handovers") > handovers &&
	      figure("isolated") > isolated), "%s", answer);
	printf("= tick_handovers %lld\n= tick_ns_max %lld\n", figure("tick_handovers"),
	       figure("tick_ns_max"));
}

/*
 * On each CPU a task of a real-time class preempts an ordinary one wherever that is, with places,
 * heaps and locks of a zone in hand, and needs them itself; and so do drains and disablers above
 * both. Ordinary tasks run only while all others sleep: one that spun for them would spin for ever.
 */
static void priorities(void)
{
	long bursts = 200 * rounds, failed = 0, left = 0, passing = 0;
	pid_t ordinary[cpus], realtime[cpus];
	struct utsname kernel;

	uname(&kernel);
	if (!strstr(kernel.version, "PREEMPT_RT")) {
		printf("= untested priorities: this kernel has no PREEMPT_RT\n");
		return;
	}
	mount("none", "/sys/kernel/debug", "debugfs", 0, NULL);
	leave_all_to_realtime(true);
	/* An ordinary drainer holds what the one above waits for. */
	ask("start 1 1000 0");
	for (int cpu = 0; cpu < cpus; cpu++) {
		ordinary[cpu] = taker(cpu, 0, -1);
		realtime[cpu] = taker(cpu, 50, bursts);
	}
	pin(0);
	fifo(80);
	for (long round = 0; round < 5 * rounds; round++) {
		ask("drain 0 2");
		ask("drain 1 2");
		ask("disable 2");
		left += figure("disabled_left");
		passing += figure("disabled_passing");
	}
	for (int cpu = 0; cpu < cpus; cpu++) {
		int status = 0;

		failed += waitpid(realtime[cpu], &status, 0) < 0 || status;
		kill(ordinary[cpu], SIGKILL);
		waitpid(ordinary[cpu], NULL, 0);
	}
	fifo(0);
	unpin();
	ask("stop");
	check("priorities", !failed && figure("drains") > 0, "%ld failed, %lld drains", failed,
	      figure("drains"));
	disabled("priorities_disable", left, passing);
	if (cpus > 1)
		hog_hands_over();
	leave_all_to_realtime(false);
	books("priorities");
}

/* The sum of the numbers behind each `name` in a file, or behind the word that it begins. */
static long long sum_in(const char *path, const char *name)
{
	static char text[1 << 17];
	long long sum = 0;

	slurp(path, text, sizeof(text));
	for (char *at = text; (at = strstr(at, name));) {
		at += strlen(name) - 1;
		sum += atoll(at + strcspn(at, " "));
	}
	return sum;
}

/* What /proc/zoneinfo says of CPUs is what they cache: all but what lies on shelves. */
static void zoneinfo(void)
{
	long long shown, cached, again;

	ask("batch 0 512 0 2");
	ask("counts");
	cached = figure("cached") - figure("shelved");
	shown = sum_in("/proc/zoneinfo", " count: ");
	ask("counts");
	again = figure("cached") - figure("shelved");
	/* Other tasks may run in between. */
	check("zoneinfo", shown >= (cached < again ? cached : again) - 256 &&
	      shown <= (cached > again ? cached : again) + 256,
	      "%lld pages shown, %lld cached, then %lld", shown, cached, again);
	check("zoneinfo_high", sum_in("/proc/zoneinfo", " high:  ") > 0, "high is 0");
}

/* Limits follow the fraction of a zone that is written. Lists follow theirs later, as they free. */
static void limits(void)
{
	static const char fraction[] = "/proc/sys/vm/percpu_pagelist_high_fraction";
	bool done = put(fraction, "8");
	long long eighth = sum_in("/proc/zoneinfo", " high:  "), part;

	done = put(fraction, "64") && done;
	part = sum_in("/proc/zoneinfo", " high:  ");
	ask("batch 0 512 0 2");
	done = put(fraction, "0") && done;
	check("limits", done && (!has_depot || (part > 0 && eighth > 4 * part)),
	      "%lld pages for an eighth, %lld for a 64th", eighth, part);
}

/* Events are counted once for each page: those of a batch, and of what other tasks do meanwhile. */
static void vmstat(void)
{
	enum { BATCH = 2 * 2048, OTHERS = 2000 };
	long long allocated = sum_in("/proc/vmstat", "\npgalloc_");
	long long freed = sum_in("/proc/vmstat", "\npgfree ");

	ask("batch 0 512 0 2");
	allocated = sum_in("/proc/vmstat", "\npgalloc_") - allocated;
	freed = sum_in("/proc/vmstat", "\npgfree ") - freed;
	check("vmstat", allocated >= BATCH && allocated < BATCH + OTHERS && freed >= BATCH &&
	      freed < BATCH + OTHERS, "of %d pages %lld allocated, %lld freed", BATCH, allocated, freed);
}

/* Requests and frees that may come from anywhere pass the caches by, and are counted once. */
static void nolock(void)
{
	enum { PAGES = 4096, OTHERS = 2000 };
	long long freed = sum_in("/proc/vmstat", "\npgfree "), pages;

	ask("nolock %d", PAGES);
	freed = sum_in("/proc/vmstat", "\npgfree ") - freed;
	pages = figure("nolock_pages");
	if (pages < 0) {
		printf("= untested nolock: this kernel has none\n");
		return;
	}
	check("nolock", pages > OTHERS && llabs(freed - pages) < OTHERS &&
	      (!has_depot || figure("nolock_moved") == 0), "%lld pages, %lld freed, moved %lld times",
	      pages, freed, figure("nolock_moved"));
}

static void zoneinfo_and_vmstat(void)
{
	zoneinfo();
	limits();
	vmstat();
	nolock();
	books("zoneinfo");
}

static long long interrupts_of(int cpu)
{
	static char text[1 << 16];
	long long sum = 0;

	slurp("/proc/interrupts", text, sizeof(text));
	for (char *line = strchr(text, '\n'); line && line[1]; line = strchr(line + 1, '\n')) {
		char *at = strchr(line, ':');

		for (int column = 0; at && column <= cpu; column++) {
			at += 1 + strspn(at + 1, " ");
			if (column == cpu)
				sum += atoll(at);
			at = strchr(at, ' ');
		}
	}
	return sum;
}

/* Drains so many times at a rate, 0: without a pause. Leaves the drainer's figures. */
static void drain_many(int mode, int rate, long drains)
{
	ask("start %d %d 0 %ld", mode, rate, drains);
	for (int waited = 0; waited < 1200; waited++) {
		usleep(50000);
		ask("drains");
		if (figure("drains") >= drains)
			break;
	}
	ask("stop");
	check("drained", figure("drains") >= drains, "%lld of %ld drains", figure("drains"), drains);
}

/* Interrupts of a CPU while it is drained so often (not at all: a window of two seconds). */
static double interrupts_by(int cpu, int mode, long drains)
{
	long long before = interrupts_of(cpu);

	if (mode < 0)
		usleep(2000000);
	else
		drain_many(mode, 0, drains);
	return interrupts_of(cpu) - before;
}

/* A process that runs on a CPU: in user mode, or it takes memory and gives it back. */
struct worker {
	volatile bool *stop;
	pid_t pid;
};

static struct worker worker_start(int cpu, size_t bytes)
{
	struct worker worker = {
		.stop = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0),
	};

	fflush(stdout);
	worker.pid = fork();
	if (!worker.pid) {
		pin(cpu);
		while (!*worker.stop)
			if (bytes) {
				char *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
						MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);

				munmap(at, bytes);
			}
		_exit(0);
	}
	/* Until the tick has stopped. */
	usleep(1500000);
	return worker;
}

static void worker_stop(struct worker worker)
{
	*worker.stop = true;
	waitpid(worker.pid, NULL, 0);
	munmap((void *)worker.stop, 4096);
	books("isolate");
}

/*
 * Pages that a drainer takes from an isolated CPU, by a thousand drains in about a second. A plugin
 * counts its instructions (../plugin/count.c). The CPU has more than its fronts can hold.
 */
static void isolate_counts(void)
{
	static const char *const modes[] = { "quiet", "full" };
	struct worker worker = worker_start(cpus - 1, 2 << 20);

	for (int mode = 0; mode < 2; mode++) {
		drain_many(mode, 1000, 1000);
		printf("= counted_drain_pages %lld mode=%s\n", figure("drains_pages"), modes[mode]);
	}
	worker_stop(worker);
}

/*
 * A CPU that runs one task in user mode, or one that allocates, is drained 10,000 times. What a
 * window without drains has, in as much time, is taken off.
 */
static void isolate(void)
{
	static const char *const modes[] = { "quiet", "full", "handover" };
	int cpu = cpus - 1;

	for (int busy = 0; busy < 2; busy++) {
		struct worker worker = worker_start(cpu, busy ? 256 << 10 : 0);
		double idle_per_s = interrupts_by(cpu, -1, 0) / 2;

		printf("= idle_interrupts %.1f busy=%d\n", idle_per_s, busy);
		for (int mode = 0; mode < (has_depot ? 3 : 2); mode++) {
			int64_t start = now_ns();
			double all = interrupts_by(cpu, mode, DRAINS);
			double idle = idle_per_s * (now_ns() - start) / 1e9;

			printf("= isolated_interrupts %.1f mode=%s busy=%d drains=%d\n",
			       all > idle ? all - idle : 0, modes[mode], busy, DRAINS);
			/* Of a CPU in user mode there is nothing to take. */
			if (busy)
				printf("= isolated_drain_ns %lld mode=%s\n", figure("drains_ns"), modes[mode]);
		}
		worker_stop(worker);
	}
}

/* Free pages, once nothing is cached that can be had back. */
static long long free_pages(void)
{
	put("/proc/sys/vm/drop_caches", "3");
	for (int i = 0; i < 3; i++)
		ask("drain 1 1");
	usleep(200000);
	return value_in("/proc/meminfo", "MemFree:") / 4;
}

/* Free pages, and the library's clock, before the first scenario. */
static long long free_before, ms_before;

/* After everything: nothing may be lost, but for what the kernel keeps of what it has used. */
static void memfree(void)
{
	long long all = value_in("/proc/meminfo", "MemTotal:") / 4, left;

	put("/proc/sys/vm/compact_memory", "1");
	left = free_pages();
	printf("= mem_free_pages %lld\n", left);
	check("pages_back", free_before - left < all / 64, "%lld of %lld pages", free_before - left,
	      all);
	ask("counts");
	/* It has gone back where half of it was taken, if five minutes have passed. */
	check("clock", figure("now_ms") >= ms_before, "%lld ms after %lld", figure("now_ms"), ms_before);
	printf("= cached_pages %lld\n", figure("cached"));
	printf("= takes %lld\n= puts %lld\n= fences %lld\n", figure("takes"), figure("puts"),
	       figure("fences"));
}

static const struct { const char *name; void (*run)(void); } scenarios[] = {
	{ "times", times }, { "drains", drains }, { "pft", pft }, { "instructions", instructions },
	{ "interfaces", interfaces }, { "disable", disable }, { "contig", contig }, { "thp", thp },
	{ "cpu_hotplug", cpu_hotplug }, { "memory_hotplug", memory_hotplug }, { "oom", oom },
	{ "zoneinfo", zoneinfo_and_vmstat }, { "isolate", isolate }, { "vmalloc", vmalloc_tests },
	{ "kernbench", kernbench }, { "streams", streams }, { "memfree", memfree },
	{ "modes", modes }, { "locks", locks }, { "isolate_counts", isolate_counts },
	{ "hibernate", hibernate }, { "nodes", memory_nodes }, { "priorities", priorities },
};

long told(const char *name, long otherwise)
{
	const char *at = strstr(command_line, name);

	return at ? atol(at + strlen(name)) : otherwise;
}

char *told_word(const char *name)
{
	const char *at = strstr(command_line, name);

	at = at ? at + strlen(name) : NULL;
	return at ? strndup(at, strcspn(at, " \n")) : NULL;
}

int main(void)
{
	char *wanted;
	bool restarts;

	mount("none", "/proc", "proc", 0, NULL);
	mount("none", "/sys", "sysfs", 0, NULL);
	setvbuf(stdout, NULL, _IOLBF, 0);
	/* Or the kernel says that caches are dropped, in the middle of a line of this. */
	put("/proc/sys/vm/drop_caches", "4");
	cpus = sysconf(_SC_NPROCESSORS_ONLN);
	slurp("/proc/cmdline", command_line, sizeof(command_line));
	rounds = told("depot_rounds=", rounds);
	nodes = told("depot_nodes=", 1);
	ask("counts");
	has_depot = figure("depot") > 0;
	ms_before = figure("now_ms");
	printf("= depot %d\n= cpus %ld\n", has_depot, cpus);
	restarts = strstr(command_line, "depot_reboot");
	free_before = free_pages();
	printf("= mem_free_before_pages %lld\n", free_before);
	wanted = told_word("depot_run=");
	for (char *name = wanted ? strtok(wanted, ",") : NULL; name; name = strtok(NULL, ",")) {
		bool known = false;

		for (size_t i = 0; i < sizeof(scenarios) / sizeof(scenarios[0]); i++)
			if (!strcmp(scenarios[i].name, name)) {
				printf("= begin %s\n", name);
				scenarios[i].run();
				printf("= mem_free_after_pages %lld scenario=%zu\n", free_pages(), i);
				known = true;
			}
		if (!known)
			check("scenario", false, "there is no %s", name);
	}
	printf("= done\n");
	fflush(stdout);
	sync();
	reboot(restarts ? RB_AUTOBOOT : RB_POWER_OFF);
	for (;;)
		pause();
}
