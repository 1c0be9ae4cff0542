/*
 * The first program of the machine: mounts what the tests read, runs the programs of a list, and
 * powers off. `cargo xtask guest` reads the lines that begin with "= ".
 *
 * /list has a line for each program: the name of the run and the program's file, then what precedes
 * it in its environment ("@NAME=VALUE") and its arguments, between tabs.
 *
 * A program's console passes through here. Of the harness's last line ("test result: ok. 3 passed;
 * 0 failed; 1 ignored; ...") the numbers become figures. A program without such a line is a test.
 * Lines by which a test says that it was left out are repeated as "= untested".
 */
#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/wait.h>
#include <unistd.h>

/* A program's words. */
#define WORDS_MAX 64
/* Seconds from one line of a program to the next, under emulation. */
#define SECONDS_MAX 1700

/* The program that runs, which leads a session of its own. */
static pid_t child;

static void kill_child(int signal)
{
	(void)signal;
	kill(-child, SIGKILL);
}

static void check(const char *name, bool holds)
{
	if (holds)
		printf("= check %s ok\n", name);
	else
		printf("= check %s failed %s\n", name, strerror(errno));
}

static bool is_left_out(const char *line)
{
	static const char *const words[] = { "SKIPPED", "skipped:" };
	size_t i;

	if (!strncmp(line, "test ", 5) && strstr(line, " ... ignored"))
		return true;
	for (i = 0; i < sizeof(words) / sizeof(*words); i++)
		if (strstr(line, words[i]))
			return true;
	return false;
}

/* Returns whether the program has the harness. */
static bool pass_on(const char *name, FILE *from)
{
	char line[2048];
	unsigned int passed, failed, ignored;
	bool has_harness = false;

	while (alarm(SECONDS_MAX), fgets(line, sizeof(line), from)) {
		const char *numbers = strstr(line, "test result:");
		/* The harness ends the line with its verdict, which comes after the test's figures. */
		const char *figure = strstr(line, " ... = ");

		fputs(line, stdout);
		if (is_left_out(line))
			printf("= untested %s: %s", name, line);
		else if (!strncmp(line, "test ", 5))
			printf("= begin %s %s", name, line + 5);
		if (figure)
			printf("%s", figure + strlen(" ... "));
		if (numbers && sscanf(numbers, "test result: %*[A-Za-z]. %u passed; %u failed; %u ignored",
				      &passed, &failed, &ignored) == 3) {
			printf("= tests_passed %u\n= tests_failed %u\n= tests_ignored %u\n",
			       passed, failed, ignored);
			has_harness = true;
		}
	}
	alarm(0);
	return has_harness;
}

static void run(char *line)
{
	static char *const common[] = { "RUST_BACKTRACE=0", "PATH=/", "TMPDIR=/tmp",
					"PAGEDEPOT_GUEST=1" };
	char *words[WORDS_MAX], *environment[WORDS_MAX];
	size_t word_count = 0, variables = sizeof(common) / sizeof(*common);
	const char *name = strtok(line, "\t"), *file = strtok(NULL, "\t");
	int ends[2], status = -1;
	bool has_harness;
	char *word;
	FILE *from;

	memcpy(environment, common, sizeof(common));
	words[word_count++] = (char *)file;
	while ((word = strtok(NULL, "\t")) && word_count < WORDS_MAX - 1 && variables < WORDS_MAX - 1) {
		if (*word == '@')
			environment[variables++] = word + 1;
		else
			words[word_count++] = word;
	}
	words[word_count] = environment[variables] = NULL;
	printf("= begin %s\n", name);
	if (pipe(ends) != 0) {
		check(name, false);
		return;
	}
	child = fork();
	if (child == 0) {
		/* What a program leaves behind is not to outlive it. */
		setsid();
		dup2(ends[1], 1);
		dup2(ends[1], 2);
		close(ends[0]);
		close(ends[1]);
		execve(file, words, environment);
		_exit(127);
	}
	close(ends[1]);
	from = fdopen(ends[0], "r");
	has_harness = pass_on(name, from);
	fclose(from);
	if (child < 0 || waitpid(child, &status, 0) != child)
		status = -1;
	if (!has_harness)
		printf("= %s 1\n", status == 0 ? "tests_passed" : "tests_failed");
	/* The last line of a program that has passed. */
	if (status != 0)
		printf("= check %s failed status %d\n", name, status);
	else
		printf("= check %s ok\n", name);
	kill(-child, SIGKILL);
}

int main(void)
{
	const struct sigaction on_alarm = { .sa_handler = kill_child, .sa_flags = SA_RESTART };
	char line[4096];
	FILE *list;

	setvbuf(stdout, NULL, _IOLBF, 0);
	sigaction(SIGALRM, &on_alarm, NULL);
	check("proc", mount("proc", "/proc", "proc", 0, NULL) == 0);
	check("sysfs", mount("sysfs", "/sys", "sysfs", 0, NULL) == 0);
	check("shm", mount("tmpfs", "/dev/shm", "tmpfs", 0, NULL) == 0);
	check("cgroup2", mount("cgroup2", "/sys/fs/cgroup", "cgroup2", 0, NULL) == 0);
	printf("= page_bytes %ld\n= cpus %ld\n", sysconf(_SC_PAGESIZE), sysconf(_SC_NPROCESSORS_ONLN));
	list = fopen("/list", "r");
	check("list", list != NULL);
	while (list && fgets(line, sizeof(line), list)) {
		line[strcspn(line, "\n")] = 0;
		if (*line)
			run(line);
	}
	printf("= done\n");
	fflush(stdout);
	sync();
	reboot(RB_POWER_OFF);
	return 1;
}
