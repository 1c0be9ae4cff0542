// SPDX-License-Identifier: GPL-2.0
/*
 * kernbench: make, by the host's compiler on this kernel, of a small C project. User-mode Linux
 * reaches the host's files by hostfs, and may not write there; what is built goes to memory.
 */
#include "init.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define HOST "/host"

/* Where the project is: by itself, for the host may have it below the /tmp that ours hides. */
#define PROJECT "/tmp/project"

/* The host's root, with a /tmp and a /proc of our own, and the project. */
static bool mount_host(const char *project)
{
	mkdir(HOST, 0755);
	return !mount("none", HOST, "hostfs", MS_RDONLY, "/") &&
	       !mount("none", HOST "/tmp", "tmpfs", 0, "size=256m") &&
	       !mount("none", HOST "/proc", "proc", 0, NULL) &&
	       !mkdir(HOST PROJECT, 0755) &&
	       !mount("none", HOST PROJECT, "hostfs", MS_RDONLY, project);
}

/* Runs a command of the host's; true: it ended well. */
static bool in_host(const char *command)
{
	int status = -1;
	pid_t shell;

	fflush(stdout);
	shell = fork();
	if (!shell) {
		char *const environment[] = { "PATH=/usr/local/bin:/usr/bin:/bin", "LC_ALL=C",
						"HOME=/tmp", NULL };

		if (!chroot(HOST) && !chdir("/tmp"))
			execle("/bin/sh", "sh", "-c", command, NULL, environment);
		_exit(127);
	}
	waitpid(shell, &status, 0);
	return !status;
}

static double seconds(struct timeval time)
{
	return time.tv_sec + time.tv_usec / 1e6;
}

void kernbench(void)
{
	const char *clean = "rm -rf build && mkdir build && cat " PROJECT "/*.* > /dev/null";
	char *project = told_word("depot_project="), make[128];
	long runs = told("depot_builds=", 1);

	check("kernbench_host", project && mount_host(project), "no project, or no hostfs: %s",
	      strerror(errno));
	if (!project)
		return;
	/* Read once, so that the first run is as the others. */
	snprintf(make, sizeof(make), "make -C build -f " PROJECT "/Makefile -j%ld > log 2>&1 || "
		 "{ cat log; false; }", 2 * cpus);
	for (long run = -1; run < runs; run++) {
		struct rusage before, after;
		double user, system, elapsed;
		int64_t start;
		bool built;

		check("kernbench_clean", in_host(clean), "%s", clean);
		locks_before();
		getrusage(RUSAGE_CHILDREN, &before);
		start = now_ns();
		built = in_host(make);
		elapsed = (now_ns() - start) / 1e9;
		getrusage(RUSAGE_CHILDREN, &after);
		check("kernbench_make", built, "%s", make);
		user = seconds(after.ru_utime) - seconds(before.ru_utime);
		system = seconds(after.ru_stime) - seconds(before.ru_stime);
		if (run < 0)
			continue;
		locks_after("kernbench");
		printf("= user_s %.2f\n= system_s %.2f\n= elapsed_s %.2f\n= cpu_percent %.0f\n", user, system,
		       elapsed, 100 * (user + system) / elapsed);
	}
	free(project);
	books("kernbench");
}
