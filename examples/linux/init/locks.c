// SPDX-License-Identifier: GPL-2.0
/*
 * How often zone->lock is taken, and found held, by workloads that page allocators are judged by.
 * Each begins with empty caches. The amounts follow the machine's memory.
 */
#include "init.h"
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096l
#define MIB (1l << 20)

/* What is counted, by its names in /proc/pagedepot and in figures. */
static const char *const counted[][2] = {
	{ "locks", "zone_lock_takes" }, { "contended", "zone_lock_contended" },
	{ "takes", "zone_lock_refills" }, { "puts", "zone_lock_spills" },
	{ "spilled", "zone_lock_spilled_pages" }, { "spilled_blocks", "zone_lock_spilled_blocks" },
};
#define COUNTED (sizeof(counted) / sizeof(counted[0]))

static long long before[COUNTED];

void locks_before(void)
{
	ask("drain 1 1");
	ask("counts");
	for (size_t i = 0; i < COUNTED; i++)
		before[i] = figure(counted[i][0]);
}

void locks_after(const char *workload)
{
	ask("counts");
	for (size_t i = 0; i < COUNTED; i++) {
		long long now = figure(counted[i][0]);

		/* With Linux's lists blocks are not told from pages. */
		if (now || i < 2)
			printf("= %s %lld workload=%s\n", counted[i][1], now - before[i], workload);
	}
}

static void touch_pages(char *at, long bytes)
{
	for (long page = 0; page < bytes; page += PAGE)
		at[page] = 1;
}

/* Memory of single pages. */
static char *map(long bytes)
{
	char *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (at == MAP_FAILED)
		_exit(1);
	madvise(at, bytes, MADV_NOHUGEPAGE);
	return at;
}

/* Ends children; all have to have ended well. */
static void wait_for(const char *workload, int count)
{
	int status, failed = 0;

	while (count-- > 0)
		failed += wait(&status) < 0 || status;
	check(workload, !failed, "%d processes failed", failed);
}

/* A process for each CPU touches memory and gives it back, twice. */
static void faults_all(void)
{
	locks_before();
	fflush(stdout);
	for (int cpu = 0; cpu < cpus; cpu++)
		if (!fork()) {
			pin(cpu);
			for (int i = 0; i < 2; i++) {
				char *at = map(16 * MIB);

				touch_pages(at, 16 * MIB);
				munmap(at, 16 * MIB);
			}
			_exit(0);
		}
	wait_for("locks_faults", cpus);
	locks_after("faults");
}

/* Processes with up to 64 MiB each, together at most half of the free memory, exit at once. */
static void exit_all(void)
{
	enum { PROCESSES = 64 };
	long bytes = value_in("/proc/meminfo", "MemFree:") * 1024 / 2 / PROCESSES;
	int ready[2], go[2], unready = 0;
	char byte;

	bytes = bytes > 64 * MIB ? 64 * MIB : bytes & -MIB;
	printf("= exit_mib %ld\n", bytes / MIB);
	if (bytes < MIB || pipe(ready) || pipe(go)) {
		check("locks_exit", false, "%ld bytes, %s", bytes, strerror(errno));
		return;
	}
	fflush(stdout);
	for (int i = 0; i < PROCESSES; i++)
		if (!fork()) {
			close(go[1]);
			pin(i % cpus);
			touch_pages(map(bytes), bytes);
			if (write(ready[1], &byte, 1) != 1)
				_exit(1);
			/* Until the other end is closed. */
			_exit(read(go[0], &byte, 1) != 0);
		}
	for (int i = 0; i < PROCESSES; i++)
		unready += read(ready[0], &byte, 1) != 1;
	check("locks_exit_ready", !unready, "%d processes have no memory", unready);
	locks_before();
	close(go[1]);
	wait_for("locks_exit", PROCESSES);
	locks_after("exit");
	close(go[0]);
	close(ready[0]);
	close(ready[1]);
}

/* Threads touch chunks of memory; one thread gives all of them back, again and again. */
#define CHUNK_BYTES MIB
#define CHUNKS 4
#define PURGES 8
#define MUTATORS_MAX 63

struct mutator {
	pthread_t thread;
	int cpu;
	char *at;
	/* Whether a chunk is the purger's. */
	volatile bool dirty[CHUNKS];
};

static void *mutate(void *of)
{
	struct mutator *self = of;

	pin(self->cpu);
	for (int i = 0; i < PURGES * CHUNKS; i++) {
		int chunk = i % CHUNKS;

		while (__atomic_load_n(&self->dirty[chunk], __ATOMIC_ACQUIRE))
			usleep(1000);
		touch_pages(self->at + chunk * CHUNK_BYTES, CHUNK_BYTES);
		__atomic_store_n(&self->dirty[chunk], true, __ATOMIC_RELEASE);
	}
	return NULL;
}

static void purge(struct mutator *mutators, int count)
{
	for (long left = (long)count * CHUNKS * PURGES; left > 0;) {
		long before = left;

		for (int i = 0; i < count; i++)
			for (int chunk = 0; chunk < CHUNKS; chunk++) {
				volatile bool *dirty = &mutators[i].dirty[chunk];

				if (!__atomic_load_n(dirty, __ATOMIC_ACQUIRE))
					continue;
				madvise(mutators[i].at + chunk * CHUNK_BYTES, CHUNK_BYTES, MADV_DONTNEED);
				__atomic_store_n(dirty, false, __ATOMIC_RELEASE);
				left--;
			}
		if (left == before)
			usleep(1000);
	}
}

static void purger(void)
{
	static struct mutator mutators[MUTATORS_MAX];
	int count = cpus - 1 < MUTATORS_MAX ? cpus - 1 : MUTATORS_MAX, started = 0;

	/* With one CPU all share it. */
	count = count ? count : 1;
	locks_before();
	for (; started < count; started++) {
		struct mutator *of = &mutators[started];

		of->cpu = (started + 1) % cpus;
		of->at = map(CHUNKS * CHUNK_BYTES);
		if (pthread_create(&of->thread, NULL, mutate, of))
			break;
	}
	check("locks_purger", started == count, "%d of %d threads", started, count);
	pin(0);
	purge(mutators, started);
	for (int i = 0; i < started; i++) {
		pthread_join(mutators[i].thread, NULL);
		munmap(mutators[i].at, CHUNKS * CHUNK_BYTES);
	}
	locks_after("purger");
}

/* A file of half as much again as the memory, read by four; what was read first is reclaimed. */
static void stream(void)
{
	enum { READERS = 4 };
	long bytes = value_in("/proc/meminfo", "MemTotal:") * 1024 / 2 * 3 / READERS & -MIB;
	const char *disk = "/dev/ram0";

	mknod(disk, S_IFBLK | 0600, makedev(1, 0));
	locks_before();
	fflush(stdout);
	for (int i = 0; i < READERS; i++)
		if (!fork()) {
			static char buffer[128 << 10];
			int file = open(disk, O_RDONLY);

			pin(i % cpus);
			for (long at = 0; at < bytes; at += sizeof(buffer))
				if (pread(file, buffer, sizeof(buffer), i * bytes + at) != sizeof(buffer))
					_exit(1);
			_exit(0);
		}
	wait_for("locks_stream", READERS);
	locks_after("stream");
	put("/proc/sys/vm/drop_caches", "3");
}

/* As a compiler: its heap grows, it writes an object, and a program that it runs ends. */
static void compile(unsigned int job)
{
	static char object[256 << 10];
	long heap = (1 + job % 4) * MIB;
	char name[32];
	int file;

	for (long at = 0; at < heap; at += MIB / 4)
		touch_pages(map(MIB / 4), MIB / 4);
	if (!fork()) {
		touch_pages(map(MIB), MIB);
		_exit(0);
	}
	wait(NULL);
	snprintf(name, sizeof(name), "/%u.o", job);
	file = open(name, O_CREAT | O_WRONLY, 0600);
	_exit(file < 0 || write(file, object, (32 + job * 37 % 224) << 10) < 0);
}

/* Two jobs for each CPU at a time; the link reads all objects. */
static void kernbench_like(void)
{
	int jobs = 8 * cpus, running = 0;
	static char buffer[64 << 10];
	char name[32];

	locks_before();
	fflush(stdout);
	for (int job = 0; job < jobs; job++) {
		if (running == 2 * cpus) {
			wait_for("locks_kernbench", 1);
			running--;
		}
		if (!fork())
			compile(job);
		running++;
	}
	wait_for("locks_kernbench", running);
	for (int job = 0; job < jobs; job++) {
		int file;

		snprintf(name, sizeof(name), "/%d.o", job);
		file = open(name, O_RDONLY);
		while (read(file, buffer, sizeof(buffer)) > 0)
			;
		close(file);
		unlink(name);
	}
	locks_after("kernbench");
}

void locks(void)
{
	faults_all();
	exit_all();
	purger();
	stream();
	kernbench_like();
	books("locks");
}
