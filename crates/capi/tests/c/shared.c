/* A depot that processes share, from C99: sent, claimed, recovered, inherited. Exits with 0. */
#define _POSIX_C_SOURCE 200809L
#include <errno.h>
#include <pagedepot.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "check.h"

enum { HEIR = 7 };

/* Joins the segment, sends one page, holds another, and is killed. */
static void be_killed(int file, int pipe) {
    pagedepot_shared_options_t options = PAGEDEPOT_SHARED_INIT;
    options.heir = HEIR;
    pagedepot_t *depot = pagedepot_adopt(file, &options);
    CHECK(depot);
    char *held = pagedepot_alloc(depot, 0), *page = pagedepot_alloc(depot, 2);
    pagedepot_sent_t sent;
    CHECK(held && page);
    strcpy(held, "left");
    strcpy(page, "sent");
    CHECK(pagedepot_send(depot, page, 2, &sent) == 0);
    CHECK(write(pipe, &sent, sizeof sent) == sizeof sent);
    kill(getpid(), SIGKILL);
}

/* What this process can do without: the blocks of order 9 that it holds. */
static void *withheld[2];

static void give(void *depot) {
    for (int at = 0; at < 2; at++) {
        if (withheld[at]) {
            pagedepot_free(depot, withheld[at], 9);
            withheld[at] = NULL;
        }
    }
}

/* A host takes all of a segment that a guest uses, and gives it back when the guest runs short. */
static void host_and_guest(void) {
    pagedepot_t *host = pagedepot_create(NULL, 4 * MIB, NULL);
    CHECK(host && pagedepot_on_shortage(host, give, host) == 0);
    FAILS(pagedepot_on_shortage(host, NULL, NULL) == -1, EINVAL);
    for (int at = 0; at < 2; at++) {
        char *block = withheld[at] = pagedepot_alloc(host, 9);
        CHECK(block);
        memset(block, 1, 2 * MIB);
        CHECK((size_t)pagedepot_discard(host, block, 9) == 2 * MIB && block[0] == 0);
        CHECK(pagedepot_discard(host, block + pagedepot_page_size(host), 0) >= 0);
    }
    FAILS(pagedepot_discard(host, &host, 0) == -1, EINVAL);
    FAILS(pagedepot_discard(host, withheld[0], 77) == -1, EINVAL);
    pagedepot_t *guest = pagedepot_adopt(pagedepot_shared_fd(host), NULL);
    CHECK(guest);
    char *page = pagedepot_alloc(guest, 0);
    CHECK(page && !withheld[0] && !withheld[1]);
    CHECK(pagedepot_free(guest, page, 0) == 0);
    pagedepot_delete(guest);
    pagedepot_delete(host);
}

static volatile int stage;

static void nap(void) {
    struct timespec pause = {0, 1000 * 1000};
    nanosleep(&pause, NULL);
}

/* Whether the main thread sleeps. */
static int main_sleeps(void) {
    char path[64], state = 0;
    snprintf(path, sizeof path, "/proc/self/task/%d/stat", (int)getpid());
    FILE *stat = fopen(path, "r");
    CHECK(stat && fscanf(stat, "%*d (%*[^)]) %c", &state) == 1);
    fclose(stat);
    return state == 'S';
}

/* Gives a block back when the main thread waits in pagedepot_delete(). */
static void give_late(void *depot) {
    if (stage == 0) {
        stage = 1;
    }
    while (stage == 1 || !main_sleeps()) {
        nap();
    }
    if (withheld[0]) {
        CHECK(pagedepot_free(depot, withheld[0], 9) == 0);
        withheld[0] = NULL;
    }
    stage = 3;
}

/* A depot that is deleted while its function runs in the library's thread, which has a handle. */
static void delete_a_giver(void) {
    pagedepot_t *host = pagedepot_create(NULL, 4 * MIB, NULL);
    CHECK(host && pagedepot_on_shortage(host, give_late, host) == 0);
    pagedepot_t *guest = pagedepot_adopt(pagedepot_shared_fd(host), NULL);
    CHECK(guest);
    for (int at = 0; at < 2; at++) {
        CHECK((withheld[at] = pagedepot_alloc(host, 9)));
    }
    pagedepot_free(guest, pagedepot_alloc(guest, 9), 9);
    while (stage == 0) {
        nap();
    }
    stage = 2;
    pagedepot_delete(host);
    CHECK(stage == 3);
    /* It has left the segment, and what it never freed is free. */
    for (int at = 0; at < 2; at++) {
        CHECK(pagedepot_alloc(guest, 9));
    }
    pagedepot_delete(guest);
}

/* Sends and claims blocks in one call each. */
static void check_many(pagedepot_t *depot, pagedepot_t *alone) {
    enum { COUNT = 100 };
    void *blocks[COUNT + 1], *claimed[COUNT + 2];
    unsigned orders[COUNT + 2];
    pagedepot_sent_t sent[COUNT + 2];
    CHECK(pagedepot_alloc_many(depot, 1, 0, blocks, COUNT) == COUNT);
    for (int nth = 0; nth < COUNT; nth++) {
        *(char *)blocks[nth] = (char)nth;
    }
    /* One behind them is no block. */
    blocks[COUNT] = &sent;
    FAILS(pagedepot_send_many(depot, blocks, 1, sent, COUNT + 1) == COUNT, EINVAL);
    FAILS(pagedepot_send_many(depot, blocks, 99, sent, 1) == 0, EINVAL);
    FAILS(pagedepot_send_many(alone, blocks, 1, sent, 1) == 0, ENOTSUP);
    /* The last two: a message that was claimed already, and none. */
    sent[COUNT] = sent[70];
    memset(&sent[COUNT + 1], 0xff, sizeof *sent);
    FAILS(pagedepot_claim_many(depot, sent, claimed, orders, COUNT + 2) == COUNT, EINVAL);
    CHECK(!claimed[COUNT] && !claimed[COUNT + 1]);
    for (int nth = 0; nth < COUNT; nth++) {
        CHECK(claimed[nth] == blocks[nth] && orders[nth] == 1);
        CHECK(*(char *)claimed[nth] == (char)nth);
    }
    FAILS(pagedepot_claim_many(depot, sent, claimed, NULL, 1) == 0, ENOENT);
    CHECK(!claimed[0]);
    CHECK(pagedepot_free_many(depot, 1, blocks, COUNT) == 0);
}

/* Dead processes that had an heir are in all slots. */
static void open_after_estates(void) {
    char folder[] = "/tmp/pagedepot-c-XXXXXX", path[64];
    CHECK(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/segment", folder);
    pagedepot_shared_options_t options = PAGEDEPOT_SHARED_INIT;
    options.heir = HEIR;
    pid_t child = fork();
    if (child == 0) {
        pagedepot_t *depot = pagedepot_create(path, 64 * MIB, &options);
        for (; depot; depot = pagedepot_open(path, &options)) {
            CHECK(pagedepot_alloc(depot, 0));
        }
        kill(getpid(), SIGKILL);
    }
    CHECK(waitpid(child, NULL, 0) == child);
    FAILS(pagedepot_open(path, NULL) == NULL, EBUSY);
    options.heir = 0;
    options.orphans = 3;
    FAILS(pagedepot_open(path, &options) == NULL, EINVAL);
    options.orphans = 2;
    /* A program that was compiled with an older header. */
    options.size -= sizeof options.orphans;
    FAILS(pagedepot_open(path, &options) == NULL, EBUSY);
    options.size = sizeof options;
    pagedepot_t *depot = pagedepot_open(path, &options);
    CHECK(depot && pagedepot_recover(depot, 2) == 0);
    pagedepot_delete(depot);
    CHECK(unlink(path) == 0 && rmdir(folder) == 0);
}

/* Memory that is added to a segment, and a ceiling of one of its processes. */
static void grow_and_limit(void) {
    pagedepot_shared_options_t options = PAGEDEPOT_SHARED_INIT;
    options.grow_to = 8 * MIB;
    pagedepot_t *depot = pagedepot_create(NULL, 4 * MIB, &options);
    CHECK(depot && pagedepot_bytes(depot) == 4 * MIB && pagedepot_ceiling(depot) == 8 * MIB);
    CHECK(pagedepot_alloc(depot, 10) && !pagedepot_alloc(depot, 9));
    FAILS_WITH(pagedepot_grow(depot, 0) == -1, EINVAL, "0 bytes");
    FAILS_WITH(pagedepot_grow(depot, 4 * MIB + 1) == -1, ENOMEM, "grow_to");
    FAILS(pagedepot_grow(depot, (size_t)-1) == -1, ENOMEM);
    CHECK(pagedepot_bytes(depot) == 4 * MIB);
    CHECK(pagedepot_grow(depot, 2 * MIB - 1) == 0 && pagedepot_bytes(depot) == 6 * MIB);
    CHECK(pagedepot_alloc(depot, 9) && !pagedepot_alloc(depot, 9));
    CHECK(pagedepot_grow(depot, 2 * MIB) == 0 && pagedepot_alloc(depot, 9));
    options.ceiling = 1;
    pagedepot_t *small = pagedepot_adopt(pagedepot_shared_fd(depot), &options);
    CHECK(small && pagedepot_ceiling(small) == pagedepot_page_size(small));
    /* What this one may have, the other does not lose. */
    CHECK(pagedepot_set_ceiling(small, 2 * MIB) == 0 && pagedepot_ceiling(small) == 2 * MIB);
    FAILS(pagedepot_set_ceiling(small, 1) == -1, EINVAL);
    FAILS_WITH(pagedepot_set_ceiling(depot, 4 * MIB) == -1, ENOMEM, "held");
    CHECK(pagedepot_ceiling(depot) == 4 * MIB && pagedepot_set_ceiling(depot, (size_t)-1) == 0);
    pagedepot_delete(depot);
    CHECK(pagedepot_alloc(small, 9) && !pagedepot_alloc(small, 0));
    pid_t child = fork();
    if (child == 0) {
        errno = 0;
        _exit(pagedepot_grow(small, 1) == -1 && errno == EPERM ? 0 : 1);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    pagedepot_delete(small);
}

static uint64_t free_none(void *context, uint64_t wanted, int is_last_resort) {
    (void)context, (void)wanted, (void)is_last_resort;
    return 0;
}

/* As many callbacks as the header names. */
static void register_callbacks(void) {
    pagedepot_t *depot = pagedepot_create(NULL, MIB, NULL);
    for (int nth = 0; nth < 6; nth++) {
        CHECK(pagedepot_on_pressure(depot, free_none, NULL) == 0);
    }
    FAILS(pagedepot_on_pressure(depot, free_none, NULL) == -1, ENOSPC);
    pagedepot_delete(depot);
}

int main(void) {
    host_and_guest();
    grow_and_limit();
    register_callbacks();
    open_after_estates();
    delete_a_giver();
    pagedepot_t *depot = pagedepot_create(NULL, 4 * MIB, NULL), *alone = pagedepot_new(MIB, NULL);
    CHECK(depot && alone && pagedepot_shared_fd(depot) >= 0);
    FAILS(pagedepot_shared_fd(alone) == -1, ENOTSUP);
    FAILS(pagedepot_open("/nowhere/at/all", NULL) == NULL, ENOENT);
    FAILS(pagedepot_open("/proc/self/exe", NULL) == NULL, errno);
    FAILS_WITH(pagedepot_adopt(-1, NULL) == NULL, EBADF, "negative");
    FAILS_WITH(pagedepot_open(NULL, NULL) == NULL, EINVAL, "path is NULL");
    int ends[2];
    CHECK(pipe(ends) == 0);
    pid_t child = fork();
    if (child == 0) {
        be_killed(pagedepot_shared_fd(depot), ends[1]);
    }
    pagedepot_sent_t sent, none = {{0, 0}};
    CHECK(read(ends[0], &sent, sizeof sent) == sizeof sent);
    CHECK(waitpid(child, NULL, 0) == child);
    unsigned order;
    char *page = pagedepot_claim(depot, sent, &order);
    CHECK(page && order == 2 && strcmp(page, "sent") == 0);
    FAILS(pagedepot_claim(depot, sent, NULL) == NULL, ENOENT);
    FAILS(pagedepot_claim(depot, none, NULL) == NULL, errno);
    CHECK(pagedepot_free(depot, page, order) == 0);
    check_many(depot, alone);
    int is_found = 0;
    void *pages[16];
    size_t count;
    while ((count = pagedepot_inherit(depot, HEIR, pages, 16))) {
        while (count-- > 0) {
            is_found += strcmp(pages[count], "left") == 0;
            CHECK(pagedepot_free(depot, pages[count], 0) == 0);
        }
    }
    CHECK(is_found == 1);
    pagedepot_recover(depot, 1);
    pagedepot_delete(alone);
    pagedepot_delete(depot);
    return 0;
}
