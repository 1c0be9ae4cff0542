/* Calls of threads and programs that are ending, and of one whose stderr nobody reads. From C99.
 * Exits with 0. */
#define _POSIX_C_SOURCE 200809L
#include <errno.h>
#include <limits.h>
#include <pagedepot.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

static pthread_key_t key;
static char rounds[PTHREAD_DESTRUCTOR_ITERATIONS];
static pagedepot_monitor_t *monitor;
static pagedepot_t *depot;
static pagedepot_t *full;

/* Destructors of the library's own have run. */
static void fail_late(void) {
    pagedepot_last_error();
    errno = 0;
    if (pagedepot_new(0, NULL) || errno != EINVAL) {
        _exit(3);
    }
    errno = 0;
    if (pagedepot_alloc_wait(full, 0, 1) || errno != ENOMEM) {
        _exit(6);
    }
}

/* The last destructor of a thread: each that names a value again is called again. */
static void fail_last(void *round) {
    fail_late();
    if (round != &rounds[PTHREAD_DESTRUCTOR_ITERATIONS - 1]) {
        pthread_setspecific(key, (char *)round + 1);
    }
}

static void at_exit(void) {
    fail_late();
    pagedepot_monitor_stop(monitor);
    pagedepot_delete(depot);
    pagedepot_delete(full);
}

static void *fail_early(void *unused) {
    (void)unused;
    CHECK(pthread_setspecific(key, rounds) == 0);
    FAILS_WITH(pagedepot_new(0, NULL) == NULL, EINVAL, "at least one page");
    FAILS(pagedepot_alloc_wait(full, 0, 1) == NULL, ENOMEM);
    return NULL;
}

/* A double free is told to a pipe that has no reader, and the program goes on. */
static void free_twice(void) {
    int ends[2];
    pagedepot_options_t options = PAGEDEPOT_OPTIONS_INIT;
    options.flags = PAGEDEPOT_MISUSE_PRINTS | PAGEDEPOT_NO_CACHES;
    pagedepot_t *mine = pagedepot_new(MIB, &options);
    if (!mine || pipe(ends) != 0 || close(ends[0]) != 0 || dup2(ends[1], 2) != 2) {
        _exit(4);
    }
    signal(SIGPIPE, SIG_IGN);
    void *page = pagedepot_alloc(mine, 0);
    pagedepot_free(mine, page, 0);
    pagedepot_free(mine, page, 0);
    pagedepot_drain(mine, PAGEDEPOT_FULL, NULL);
    _exit(pagedepot_alloc(mine, 0) ? 0 : 5);
}

int main(void) {
    pid_t child = fork();
    if (child == 0) {
        free_twice();
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    full = pagedepot_new(MIB, NULL);
    CHECK(full && pagedepot_alloc(full, 8));
    pthread_t thread;
    CHECK(pthread_key_create(&key, fail_last) == 0);
    CHECK(pthread_create(&thread, NULL, fail_early, NULL) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK(atexit(at_exit) == 0);
    depot = pagedepot_new(MIB, NULL);
    CHECK(depot && (monitor = pagedepot_monitor_start(depot, NULL)));
    FAILS(pagedepot_new(0, NULL) == NULL, EINVAL);
    FAILS(pagedepot_alloc_wait(full, 0, 1) == NULL, ENOMEM);
    return 0;
}
