/*
 * The first program of the machine: mounts what the tests read, runs each program in /tests, and
 * powers off. `cargo xtask guest` reads the lines that begin with "= ".
 *
 * A program's console passes through here. Of the harness's last line ("test result: ok. 3 passed;
 * 0 failed; 1 ignored; ...") the numbers become figures.
 */
#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* A program's words in /arguments/NAME, one a line. */
#define WORDS_MAX 64
/* Seconds for one program, under emulation. */
#define SECONDS_MAX 900

static void check(const char *name, bool holds)
{
	if (holds)
		printf("= check %s ok\n", name);
	else
		printf("= check %s failed %s\n", name, strerror(errno));
}

static void read_words(const char *name, char **words)
{
	char path[300], line[256];
	FILE *file;
	int count = 1;

	snprintf(path, sizeof(path), "/arguments/%s", name);
	file = fopen(path, "r");
	while (file && count < WORDS_MAX - 1 && fgets(line, sizeof(line), file)) {
		line[strcspn(line, "\n")] = 0;
		if (*line)
			words[count++] = strdup(line);
	}
	if (file)
		fclose(file);
	words[count] = NULL;
}

static void pass_on(const char *name, FILE *from)
{
	char line[2048];
	unsigned int passed, failed, ignored;

	while (fgets(line, sizeof(line), from)) {
		const char *numbers = strstr(line, "test result:");
		/* The harness ends the line with its verdict, which comes after the test's figures. */
		const char *figure = strstr(line, " ... = ");

		fputs(line, stdout);
		if (!strncmp(line, "test ", 5))
			printf("= begin %s %s", name, line + 5);
		if (figure)
			printf("%s", figure + strlen(" ... "));
		if (numbers && sscanf(numbers, "test result: %*[A-Za-z]. %u passed; %u failed; %u ignored",
				      &passed, &failed, &ignored) == 3)
			printf("= tests_passed %u\n= tests_failed %u\n= tests_ignored %u\n",
			       passed, failed, ignored);
	}
}

static void run(const char *name)
{
	char path[300];
	char *words[WORDS_MAX] = { path };
	char *environment[] = { "RUST_BACKTRACE=0", "PATH=/", "TMPDIR=/tmp", "PAGEDEPOT_GUEST=1", NULL };
	int ends[2], status = -1;
	FILE *from;
	pid_t child;

	snprintf(path, sizeof(path), "/tests/%s", name);
	read_words(name, words);
	printf("= begin %s\n", name);
	if (pipe(ends) != 0) {
		check(name, false);
		return;
	}
	child = fork();
	if (child == 0) {
		/* What a program leaves behind is not to outlive it. */
		setsid();
		alarm(SECONDS_MAX);
		dup2(ends[1], 1);
		dup2(ends[1], 2);
		close(ends[0]);
		close(ends[1]);
		execve(path, words, environment);
		_exit(127);
	}
	close(ends[1]);
	from = fdopen(ends[0], "r");
	pass_on(name, from);
	fclose(from);
	if (child < 0 || waitpid(child, &status, 0) != child || status != 0)
		printf("= check %s failed status %d\n", name, status);
	else
		printf("= check %s ok\n", name);
	kill(-child, SIGKILL);
}

static int by_name(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

int main(void)
{
	char *names[256];
	size_t count = 0, i;
	struct dirent *entry;
	DIR *tests;

	setvbuf(stdout, NULL, _IOLBF, 0);
	check("proc", mount("proc", "/proc", "proc", 0, NULL) == 0);
	check("sysfs", mount("sysfs", "/sys", "sysfs", 0, NULL) == 0);
	check("shm", mount("tmpfs", "/dev/shm", "tmpfs", 0, NULL) == 0);
	check("cgroup2", mount("cgroup2", "/sys/fs/cgroup", "cgroup2", 0, NULL) == 0);
	printf("= page_bytes %ld\n= cpus %ld\n", sysconf(_SC_PAGESIZE), sysconf(_SC_NPROCESSORS_ONLN));
	tests = opendir("/tests");
	check("tests", tests != NULL);
	while (tests && count < sizeof(names) / sizeof(*names) && (entry = readdir(tests)))
		if (entry->d_name[0] != '.')
			names[count++] = strdup(entry->d_name);
	qsort(names, count, sizeof(*names), by_name);
	for (i = 0; i < count; i++)
		run(names[i]);
	printf("= done\n");
	fflush(stdout);
	sync();
	reboot(RB_POWER_OFF);
	return 1;
}
