// SPDX-License-Identifier: GPL-2.0
/*
 * What only nodes of memory show: pages come from the node that a policy or a cpuset asks for,
 * whichever CPU freed them, and go back to it; a full node is a reason to fall back only where
 * Linux does; a node's zones are drained alone; and a node's memory comes, goes and comes back.
 */
#include "init.h"
#include <errno.h>
#include <fcntl.h>
#include <linux/mempolicy.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

#define NODES_MAX	64
#define MIB		(1ul << 20)
#define PAGE		4096ul
#define MASK_BITS	64
#define SYSFS		"/sys/devices/system/node/"

/* Blocks of memory above 4 GiB that are the last node's, of 128 MiB: the only ones that wait. */
static const int added[] = { 32, 33 };

/* Whether a list of numbers and ranges has this one. */
static bool is_listed(const char *path, int number)
{
	char text[256], *rest;

	if (slurp(path, text, sizeof(text)) < 0)
		return false;
	for (char *word = strtok_r(text, ",\n", &rest); word; word = strtok_r(NULL, ",\n", &rest)) {
		int first = 0, last;

		if (sscanf(word, "%d-%d", &first, &last) < 2)
			last = first;
		if (first <= number && number <= last)
			return true;
	}
	return false;
}

static bool has_memory(int node)
{
	return is_listed(SYSFS "has_memory", node);
}

/* The nodes that have memory, a bit each. */
static unsigned long with_memory(void)
{
	unsigned long mask = 0;

	for (int node = 0; node < nodes; node++)
		if (has_memory(node))
			mask |= 1ul << node;
	return mask;
}

/* A node's first CPU. */
static int cpu_of(int node)
{
	char path[64], text[64];

	snprintf(path, sizeof(path), SYSFS "node%d/cpulist", node);
	return slurp(path, text, sizeof(text)) > 0 && text[0] >= '0' ? atoi(text) : -1;
}

static bool use_policy(int mode, unsigned long mask)
{
	return !syscall(SYS_set_mempolicy, mode, mask ? &mask : NULL, mask ? MASK_BITS : 0);
}

/* Memory under a policy of its own, not touched yet. NULL: there is no such policy now. */
static char *map(size_t bytes, int mode, unsigned long mask)
{
	char *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (at == MAP_FAILED)
		return NULL;
	madvise(at, bytes, MADV_NOHUGEPAGE);
	if (mode == MPOL_DEFAULT || !syscall(SYS_mbind, at, bytes, mode, &mask, MASK_BITS, 0))
		return at;
	munmap(at, bytes);
	return NULL;
}

/* No other process writes this and the number of a page. */
static void write_own(char *at, size_t bytes)
{
	for (size_t page = 0; page < bytes; page += PAGE)
		*(uint64_t *)(at + page) = (uint64_t)getpid() << 40 | page;
}

static long foreign_pages(const char *at, size_t bytes)
{
	long foreign = 0;

	for (size_t page = 0; page < bytes; page += PAGE)
		foreign += *(const uint64_t *)(at + page) != ((uint64_t)getpid() << 40 | page);
	return foreign;
}

/*
 * Adds to `on` the pages that lie on each node. `to`: moves them there before (less than 0: leaves
 * them where they are).
 */
static void place(char *at, size_t bytes, int to, long *on)
{
	enum { MANY = 512 };
	void *pages[MANY];
	int nodes_to[MANY], status[MANY];

	for (size_t begin = 0; begin < bytes; begin += MANY * PAGE) {
		size_t count = (bytes - begin) / PAGE < MANY ? (bytes - begin) / PAGE : MANY;

		for (size_t i = 0; i < count; i++) {
			pages[i] = at + begin + i * PAGE;
			nodes_to[i] = to;
			status[i] = -1;
		}
		syscall(SYS_move_pages, 0, count, pages, to < 0 ? NULL : nodes_to, status,
			to < 0 ? 0 : MPOL_MF_MOVE);
		for (size_t i = 0; i < count; i++)
			if (status[i] >= 0 && status[i] < NODES_MAX)
				on[status[i]]++;
	}
}

/* Pages of written memory that are not on a node. */
static long strays(char *at, size_t bytes, int node)
{
	long on[NODES_MAX] = {};

	place(at, bytes, -1, on);
	return bytes / PAGE - on[node];
}

/* Pages that are elsewhere of memory that is written, moved if `to` is a node, and given back. */
static long touch_on(size_t bytes, int mode, unsigned long mask, int node, int to)
{
	char *at = map(bytes, mode, mask);
	long on[NODES_MAX] = {}, elsewhere;

	if (!at)
		return -1;
	write_own(at, bytes);
	if (to >= 0)
		place(at, bytes, to, on);
	elsewhere = strays(at, bytes, to >= 0 ? to : node) + foreign_pages(at, bytes);
	munmap(at, bytes);
	return elsewhere;
}

/* Pages are dealt out to all nodes in turn. */
static long interleave(size_t bytes, unsigned long mask)
{
	char *at = map(bytes, MPOL_INTERLEAVE, mask);
	long on[NODES_MAX] = {}, share = bytes / PAGE / __builtin_popcountl(mask), wrong = 0;

	if (!at)
		return -1;
	write_own(at, bytes);
	place(at, bytes, -1, on);
	for (int node = 0; node < nodes; node++)
		if (mask >> node & 1)
			wrong += labs(on[node] - share) > 1 ? labs(on[node] - share) : 0;
	munmap(at, bytes);
	return wrong;
}

/* A CPU of each node takes memory of each node: what the policies say of it holds. */
static void policies(void)
{
	unsigned long mask = with_memory();
	long bound = 0, preferred = 0, moved = 0, local = 0, dealt = 0;

	for (int node = 0; node < nodes; node++) {
		int cpu = cpu_of(node);

		check("node_cpus", cpu >= 0, "node %d has none", node);
		pin(cpu);
		for (int other = 0; other < nodes; other++) {
			if (!(mask >> other & 1))
				continue;
			/* Where there is no such policy, that is no fewer pages elsewhere. */
			bound += labs(touch_on(2 * MIB, MPOL_BIND, 1ul << other, other, -1));
			preferred += labs(touch_on(2 * MIB, MPOL_PREFERRED, 1ul << other, other, -1));
			moved += labs(touch_on(MIB, MPOL_DEFAULT, 0, node, other));
		}
		if (mask >> node & 1)
			local += labs(touch_on(2 * MIB, MPOL_DEFAULT, 0, node, -1));
		dealt += labs(interleave(4 * MIB, mask));
	}
	check("policy_bind", bound == 0, "%ld pages", bound);
	check("policy_preferred", preferred == 0, "%ld pages", preferred);
	check("policy_local", local == 0, "%ld pages", local);
	check("policy_interleave", dealt == 0, "%ld pages", dealt);
	check("move_pages", moved == 0, "%ld pages", moved);
	ask("thisnode 500");
	check("policy_kernel", figure("taken") > 0 && figure("refused") == 0 &&
	      figure("elsewhere") == 0 && figure("foreign") == 0,
	      "of %lld pages %lld elsewhere, %lld overwritten, none for %lld ways of nodes",
	      figure("taken"), figure("elsewhere"), figure("foreign"), figure("refused"));
}

/* What a child tells. */
struct story { long mib, elsewhere; };

static struct story *new_story(void)
{
	return mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
}

/*
 * A child takes more than a node has. Bound to it, it is killed, with no page elsewhere; where the
 * node is only preferred, the rest comes from other nodes.
 */
static void full_node(int mode, int node, int cpu)
{
	struct story *story = new_story();
	int status = 0;
	long mib;
	pid_t hog;

	ask("node %d %d", node, cpu);
	mib = figure("node_free") >> 8;
	fflush(stdout);
	hog = fork();
	if (!hog) {
		put("/proc/self/oom_score_adj", "1000");
		pin(cpu);
		if (!use_policy(mode, 1ul << node))
			_exit(2);
		for (; story->mib < mib + 16; story->mib++) {
			char *at = map(MIB, MPOL_DEFAULT, 0);

			if (!at)
				_exit(1);
			write_own(at, MIB);
			story->elsewhere += strays(at, MIB, node);
		}
		_exit(0);
	}
	waitpid(hog, &status, 0);
	if (mode == MPOL_BIND)
		check("full_bind", WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL &&
		      story->elsewhere == 0 && story->mib >= mib / 2,
		      "status %d after %ld of %ld MiB, %ld pages elsewhere", status, story->mib, mib,
		      story->elsewhere);
	else
		check("full_preferred", !status && story->elsewhere > (16 << 8) / 2 &&
		      story->elsewhere < (story->mib << 8) / 2,
		      "status %d after %ld of %ld MiB, %ld pages elsewhere", status, story->mib, mib,
		      story->elsewhere);
	munmap(story, 4096);
}

/* In a cpuset with the memory of one node, on a CPU whose fronts are full of another one's. */
static void cpusets(void)
{
	unsigned long mask = with_memory();
	long wrong = 0, tried = 0;

	mkdir("/cg", 0755);
	if (mount("none", "/cg", "cgroup2", 0, NULL) || !put("/cg/cgroup.subtree_control", "+cpuset") ||
	    mkdir("/cg/one", 0755)) {
		check("cpusets", false, "%s", strerror(errno));
		return;
	}
	for (int node = 0; node < nodes; node++) {
		char text[16];
		int status = 0;
		pid_t child;

		snprintf(text, sizeof(text), "%d", node);
		if (!(mask >> node & 1) || !put("/cg/one/cpuset.mems", text))
			continue;
		fflush(stdout);
		child = fork();
		if (!child) {
			pin(cpu_of(node ? 0 : nodes - 1));
			touch_on(2 * MIB, MPOL_DEFAULT, 0, 0, -1);
			if (!put("/cg/one/cgroup.procs", "0"))
				_exit(2);
			_exit(touch_on(4 * MIB, MPOL_DEFAULT, 0, node, -1) != 0);
		}
		tried++;
		wrong += waitpid(child, &status, 0) != child || status;
	}
	check("cpusets", tried == __builtin_popcountl(mask) && !wrong, "%ld of %ld nodes", wrong, tried);
	check("cpusets_gone", !rmdir("/cg/one") && !umount("/cg"), "%s", strerror(errno));
}

/*
 * On each CPU a process takes memory of `mask`'s nodes in turn, and gives it back from another CPU.
 * Pages are where they were asked for, and of no other process. Returns how many there are.
 */
static long storm_begin(pid_t *pids, unsigned long mask)
{
	fflush(stdout);
	for (long cpu = 0; cpu < cpus; cpu++) {
		pids[cpu] = fork();
		if (pids[cpu])
			continue;
		for (unsigned long turn = cpu;; turn++) {
			int node = turn % nodes;
			char *at;

			if (!(mask >> node & 1))
				continue;
			pin(cpu);
			at = map(MIB, MPOL_BIND, 1ul << node);
			if (!at)
				continue;
			write_own(at, MIB);
			/* Memory that goes offline meanwhile has its pages moved elsewhere. */
			if (foreign_pages(at, MIB) || (mask & (mask - 1) && strays(at, MIB, node)))
				_exit(1);
			pin((cpu + 1 + turn) % cpus);
			munmap(at, MIB);
		}
	}
	return cpus;
}

/* Ends it: children that have ended before found a page at fault, or died of one. */
static long storm_end(const pid_t *pids, long count)
{
	long failed = 0;

	for (long i = 0; i < count; i++) {
		int status = 0;

		kill(pids[i], SIGKILL);
		failed += waitpid(pids[i], &status, 0) != pids[i] || !WIFSIGNALED(status) ||
			WTERMSIG(status) != SIGKILL;
	}
	return failed;
}

static void storms(void)
{
	for (int mode = 0; mode < 2; mode++) {
		pid_t pids[cpus];
		long failed, count;

		ask("start %d 1000 -1", mode);
		count = storm_begin(pids, with_memory());
		sleep(2 + rounds);
		failed = storm_end(pids, count);
		ask("stop");
		check("nodes_storm", failed == 0 && figure("drains") > 0, "%ld of %ld processes, %lld drains",
		      failed, count, figure("drains"));
		books("nodes_storm");
	}
}

/*
 * A CPU frees pages of another node: it caches them for that node's zones. A drain of these leaves
 * its own node's, and what it does not use goes back.
 */
static void remote(void)
{
	int cpu = cpu_of(0);
	long long own, shelf_age = 0, cached;

	pin(cpu);
	touch_on(4 * MIB, MPOL_BIND, 1, 0, -1);
	touch_on(4 * MIB, MPOL_BIND, 2, 1, -1);
	ask("node 1 %d", cpu);
	check("remote_cached", figure("node_cpu_cached") > 0, "CPU %d has none of node 1", cpu);
	ask("node 0 %d", cpu);
	own = figure("node_cpu_cached");
	ask("drain_node 1");
	ask("node 1 %d", cpu);
	cached = figure("node_cached");
	ask("node 0 %d", cpu);
	check("node_drained", cached <= 64 && own > 0 && figure("node_cpu_cached") > own / 2,
	      "%lld pages of node 1 stayed; of node 0 %lld of %lld", cached, figure("node_cpu_cached"),
	      own);
	touch_on(4 * MIB, MPOL_BIND, 2, 1, -1);
	do {
		usleep(500000);
		ask("node 1 %d", cpu);
		cached = figure("node_cpu_cached");
	} while (has_depot && cached > 4 * 63 && ++shelf_age < 40);
	/* Linux's lists give a batch back, and what is left when they are used again. */
	check("remote_idle", !has_depot || cached <= 4 * 63, "%lld pages stayed", cached);
}

/* Pages of a node that is full of page cache, taken on its CPU: by reclaim there, if that is on. */
static void zone_reclaim(int node)
{
	enum { MORE = 32 * MIB, QUARTER = MORE / PAGE / 4 };
	static const char mode[] = "/proc/sys/vm/zone_reclaim_mode";
	static const char reclaimed[] = "pgsteal_direct ";
	static const char boost[] = "/proc/sys/vm/watermark_boost_factor";
	static char buffer[256 << 10];
	struct story *story = new_story();
	int cpu = cpu_of(node), status = 0;
	const char *disk = "/dev/ram0";
	pid_t reader;

	/* Or pageblocks that are mixed have kswapd reclaim ahead. */
	must_put(boost, "0");
	mknod(disk, S_IFBLK | 0600, makedev(1, 0));
	fflush(stdout);
	reader = fork();
	if (!reader) {
		int file = open(disk, O_RDONLY);
		size_t bytes;

		ask("node %d %d", node, cpu);
		bytes = figure("node_free") * PAGE / 4 * 5;
		pin(cpu);
		if (file < 0 || !use_policy(MPOL_BIND, 1ul << node))
			_exit(1);
		for (size_t at = 0; at < bytes; at += sizeof(buffer))
			if (pread(file, buffer, sizeof(buffer), at) != sizeof(buffer))
				_exit(2);
		/* It has the file open: with the last descriptor its pages would go. */
		kill(getpid(), SIGSTOP);
		_exit(0);
	}
	waitpid(reader, &status, WUNTRACED);
	check("zone_reclaim_file", WIFSTOPPED(status), "status %d", status);
	for (int reclaims = 0; reclaims < 2; reclaims++) {
		long long done = value_in("/proc/vmstat", reclaimed);
		size_t bytes;
		pid_t child;

		put(mode, reclaims ? "1" : "0");
		ask("node %d %d", node, cpu);
		bytes = figure("node_free") * PAGE + MORE;
		fflush(stdout);
		child = fork();
		if (!child) {
			pin(cpu);
			story->elsewhere = touch_on(bytes, MPOL_DEFAULT, 0, node, -1);
			_exit(0);
		}
		waitpid(child, &status, 0);
		done = value_in("/proc/vmstat", reclaimed) - done;
		printf("= zone_reclaim_elsewhere_pages %ld mode=%d\n", story->elsewhere, reclaims);
		check("zone_reclaim", !status && (reclaims ? done > 0 && story->elsewhere < QUARTER :
						  done == 0 && story->elsewhere > QUARTER),
		      "mode %d: %lld pages reclaimed, %ld of %zu elsewhere", reclaims, done,
		      story->elsewhere, bytes / PAGE);
	}
	put(mode, "0");
	must_put(boost, "15000");
	kill(reader, SIGKILL);
	waitpid(reader, &status, 0);
	munmap(story, 4096);
	books("zone_reclaim");
}

static void states(const char *state)
{
	for (size_t i = 0; i < sizeof(added) / sizeof(added[0]); i++)
		memory_state(added[i], state);
}

/*
 * Memory of the last node alone comes, all of it movable, is used by all CPUs, goes while some of
 * it is in use, and comes back. Without it, the last of eight nodes has none.
 */
static void node_hotplug(void)
{
	int last = nodes - 1;
	bool had_memory = has_memory(last);

	for (long round = 0; round < rounds; round++) {
		pid_t pids[cpus];
		long failed, count, bound = 0;
		char *kept;

		states("online_movable");
		check("node_has_memory", has_memory(last), "node %d has none", last);
		for (int cpu = 0; cpu < cpus; cpu++) {
			pin(cpu);
			bound += touch_on(8 * MIB, MPOL_BIND, 1ul << last, last, -1);
		}
		check("node_added", bound == 0, "%ld pages elsewhere", bound);
		ask("counts");
			check("node_caches", figure("movable_cached") > 0, "none of node %d is cached", last);
		all_cache();
		count = storm_begin(pids, 1ul << last);
		sleep(1);
		memory_state(added[1], "offline");
		failed = storm_end(pids, count);
		check("node_shrinks", failed == 0, "%ld of %ld processes", failed, count);
		kept = map(16 * MIB, MPOL_BIND, 1ul << last);
		check("node_kept", kept, "%s", strerror(errno));
		write_own(kept, 16 * MIB);
		memory_state(added[0], "offline");
		check("contents", foreign_pages(kept, 16 * MIB) == 0, "%ld pages that were moved",
		      foreign_pages(kept, 16 * MIB));
		munmap(kept, 16 * MIB);
		check("node_gone", has_memory(last) == had_memory &&
		      (touch_on(MIB, MPOL_BIND, 1ul << last, last, -1) < 0) == !had_memory,
		      "node %d has memory", last);
		books("node_hotplug");
	}
	unpin();
}

void memory_nodes(void)
{
	long online = 0;

	for (int node = 0; node < NODES_MAX; node++)
		online += is_listed(SYSFS "online", node);
	check("nodes", online == nodes && nodes > 1, "%ld are online of %d", online, nodes);
	if (online != nodes || nodes < 2)
		return;
	policies();
	for (int node = 0; node < 2; node++) {
		full_node(MPOL_BIND, 1, cpu_of(node));
		full_node(MPOL_PREFERRED, 1, cpu_of(node));
	}
	books("full_node");
	cpusets();
	storms();
	remote();
	zone_reclaim(1);
	node_hotplug();
}
