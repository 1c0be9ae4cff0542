// SPDX-License-Identifier: GPL-2.0
/*
 * lib/test_vmalloc.c, as it comes: loading the module runs its tests. It refuses to stay, and
 * leaves what they took in the kernel's log. Page tables are counted before and after.
 */
#include "init.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MODULE "/test_vmalloc.ko"

/* In the order of their bits. The three of kvfree_rcu() and percpu are not about vmalloc. */
static const char *const tests[] = {
	"fix_size_alloc_test", "full_fit_alloc_test", "long_busy_list_alloc_test",
	"random_size_alloc_test", "fix_align_alloc_test", "random_size_align_alloc_test",
	"align_shift_alloc_test", NULL, NULL, NULL, "vm_map_ram_test", NULL, "vrealloc_test",
};
#define TESTS (sizeof(tests) / sizeof(tests[0]))
/* No range has every alignment: it fails, and newer versions say that they expect it. */
#define ALIGN_SHIFT 6
#define ALIGN_SHIFT_LOOPS 64

/* Prints a test's line. Returns how many tests failed. */
static int summary(const char *line, int threads, int loops)
{
	const char *average = strstr(line, "avg: ");
	long long usec;
	char name[64];
	int passed, failed;

	if (!average || sscanf(line, "Summary: %63s passed: %d failed: %d", name, &passed, &failed) != 3 ||
	    sscanf(average, "avg: %lld", &usec) != 1)
		return 0;
	for (size_t bit = 0; bit < TESTS; bit++)
		if (tests[bit] && !strcmp(tests[bit], name)) {
			int of = bit == ALIGN_SHIFT ? ALIGN_SHIFT_LOOPS : loops;

			printf("= loop_ns %.1f test=%d threads=%d\n", usec * 1e3 / of, 1 << bit, threads);
			return bit == ALIGN_SHIFT ? 0 : failed;
		}
	return 0;
}

/* What the log has from here on, record by record. Returns how many tests failed; -1: none ran. */
static int summaries(int log, int threads, int loops)
{
	int failed = 0, ran = 0;
	char record[1024];
	long got;

	/* Of a log that was longer than its buffer, what is left: the summaries are its end. */
	while ((got = read(log, record, sizeof(record) - 1)) > 0 || (got < 0 && errno == EPIPE)) {
		char *text;

		record[got > 0 ? got : 0] = 0;
		text = strstr(record, "Summary: ");
		if (text) {
			ran++;
			failed += summary(text, threads, loops);
		}
	}
	return ran ? failed : -1;
}

static void run(int log, int threads, int loops)
{
	int module = open(MODULE, O_RDONLY), mask = 0, failed;
	char options[96];

	for (size_t bit = 0; bit < TESTS; bit++)
		mask |= tests[bit] ? 1 << bit : 0;
	snprintf(options, sizeof(options), "run_test_mask=%d test_loop_count=%d nr_threads=%d "
		 "sequential_test_order=1", mask, loops, threads);
	lseek(log, 0, SEEK_END);
	/* It never stays: its tests are its init function. */
	check("test_vmalloc_ran", module >= 0 && syscall(SYS_finit_module, module, options, 0) < 0 &&
	      errno == EAGAIN, "%s", strerror(errno));
	close(module);
	failed = summaries(log, threads, loops);
	check("test_vmalloc", failed == 0, failed < 0 ? "no test ran" : "%d failed", failed);
}

void vmalloc_tests(void)
{
	int log = open("/dev/kmsg", O_RDONLY | O_NONBLOCK), loops = told("depot_loops=", 500);
	long most = told("depot_threads=", cpus);

	for (long round = 0; round < rounds; round++)
		for (int threads = 1; threads <= most; threads *= 2) {
			ask("tables");
			printf("= page_table_bytes_start %lld threads=%d\n", figure("table_bytes"), threads);
			run(log, threads, loops);
			ask("tables");
			printf("= page_table_bytes_end %lld threads=%d\n", figure("table_bytes"), threads);
		}
	close(log);
	books("vmalloc");
}
