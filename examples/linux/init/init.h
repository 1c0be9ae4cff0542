/* SPDX-License-Identifier: GPL-2.0 */
/* What scenarios share; init.c says what is printed. */
#ifndef INIT_H
#define INIT_H
#define _GNU_SOURCE
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* CPUs that are online, nodes of memory, and how often a scenario repeats what it measures. */
extern long cpus, nodes, rounds;
extern bool has_depot;

void check(const char *name, bool holds, const char *why, ...);
/* Reads a whole file, at most `bytes - 1` of it. */
long slurp(const char *path, char *into, size_t bytes);
bool put(const char *path, const char *text);
/* A check fails where the text cannot be written. */
void must_put(const char *path, const char *text);
/* Asks the kernel's side; then figure() finds its figures. -1: there is none of this name. */
void ask(const char *format, ...);
long long figure(const char *name);
/* The number behind the first `name` in a file. -1: it is not there. */
long long value_in(const char *path, const char *name);
int64_t now_ns(void);
void pin(int cpu);
void unpin(void);
/* The number behind `name` on the kernel's command line. */
long told(const char *name, long otherwise);
/* The word behind `name`, in memory of its own. NULL: it is not there. */
char *told_word(const char *name);
/* Whatever was done before: every cached frame is in one place, and counts agree. */
void books(const char *after);
/* Each CPU that is online caches pages of each zone. */
void all_cache(void);
/* Brings a block of memory into a state, such as "offline". */
void memory_state(int block, const char *state);

/* From here to locks_after(), takes of zone->lock are one workload's. */
void locks_before(void);
void locks_after(const char *workload);

/* Scenarios with files of their own. */
void vmalloc_tests(void);
void kernbench(void);
void streams(void);
void locks(void);
void memory_nodes(void);

#endif
