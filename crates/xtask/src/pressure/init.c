/*
 * The first program of the machine: mounts what the tests read, sets huge pages aside, runs each
 * program in /tests, and powers off. A program's name ends in the filter of its tests, if it has
 * one, behind a dot. `cargo xtask pressure` reads the lines that begin with "= ".
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* Huge pages of 2 MiB that are set aside, for depots of 8 MiB at most. */
#define HUGE_PAGES "8"

static void check(const char *name, bool holds)
{
	if (holds)
		printf("= check %s ok\n", name);
	else
		printf("= check %s failed %s\n", name, strerror(errno));
}

static bool put(const char *path, const char *text)
{
	int file = open(path, O_WRONLY);
	bool done = file >= 0 && write(file, text, strlen(text)) == (ssize_t)strlen(text);

	if (file >= 0)
		close(file);
	return done;
}

static void run(const char *name)
{
	char path[300];
	const char *dot = strchr(name, '.');
	char *filter = dot ? (char *)dot + 1 : NULL;
	char *arguments[] = { path, "--nocapture", "--test-threads=1", filter, NULL };
	char *environment[] = { "PAGEDEPOT_NO_SKIPS=1", "RUST_BACKTRACE=1", NULL };
	int status = -1;
	pid_t child;

	snprintf(path, sizeof(path), "/tests/%s", name);
	printf("= begin %s\n", name);
	child = fork();
	if (child == 0) {
		execve(path, arguments, environment);
		_exit(127);
	}
	if (child < 0 || waitpid(child, &status, 0) != child || status != 0)
		printf("= check %s failed status %d\n", name, status);
	else
		printf("= check %s ok\n", name);
}

int main(void)
{
	struct dirent *entry;
	DIR *tests;

	setvbuf(stdout, NULL, _IOLBF, 0);
	check("proc", mount("proc", "/proc", "proc", 0, NULL) == 0);
	check("sysfs", mount("sysfs", "/sys", "sysfs", 0, NULL) == 0);
	check("cgroup2", mount("cgroup2", "/sys/fs/cgroup", "cgroup2", 0, NULL) == 0);
	check("memory", put("/sys/fs/cgroup/cgroup.subtree_control", "+memory"));
	check("psi", access("/proc/pressure/memory", R_OK | W_OK) == 0);
	check("hugetlb", put("/proc/sys/vm/nr_hugepages", HUGE_PAGES));
	tests = opendir("/tests");
	check("tests", tests != NULL);
	while (tests && (entry = readdir(tests)))
		if (entry->d_name[0] != '.')
			run(entry->d_name);
	printf("= done\n");
	fflush(stdout);
	sync();
	reboot(RB_POWER_OFF);
	return 1;
}
