/* What belongs to a depot beside its blocks: options, ceiling, waiting, mixed batches, monitor,
 * spaces, published statistics. From C99, with good and bad arguments. Exits with 0. */
#define _POSIX_C_SOURCE 200809L
#include <errno.h>
#include <pagedepot.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "check.h"

static void options(void) {
    pagedepot_options_t options = PAGEDEPOT_OPTIONS_INIT;
    options.page_bytes = sysconf(_SC_PAGESIZE) > 16384 ? 65536 : 16384;
    size_t page_bytes = options.page_bytes;
    options.isolated_cpus = "1-3,70";
    options.ceiling = 32 * MIB;
    pagedepot_t *depot = pagedepot_new(64 * MIB, &options);
    CHECK(depot);
    CHECK(pagedepot_page_size(depot) == page_bytes && pagedepot_ceiling(depot) == 32 * MIB);
    pagedepot_delete(depot);
    options.page_bytes = 5000;
    FAILS(pagedepot_new(MIB, &options) == NULL, EINVAL);
    CHECK(strstr(pagedepot_last_error(), "65536"));
    options.page_bytes = 0;
    options.isolated_cpus = "3-1";
    FAILS(pagedepot_new(MIB, &options) == NULL, EINVAL);
    CHECK(strstr(pagedepot_last_error(), "isolated_cpus"));
}

static void ceiling(void) {
    pagedepot_t *depot = pagedepot_new(16 * MIB, NULL);
    CHECK(depot && pagedepot_ceiling(depot) == 16 * MIB);
    CHECK(pagedepot_set_ceiling(depot, 4 * MIB) == 0 && pagedepot_ceiling(depot) == 4 * MIB);
    void *large = pagedepot_alloc(depot, 9);
    CHECK(large && pagedepot_alloc(depot, 10) == NULL);
    FAILS(pagedepot_set_ceiling(depot, 1) == -1, EINVAL);
    pagedepot_options_t both = PAGEDEPOT_OPTIONS_INIT;
    both.ceiling = 4 * MIB;
    both.grow_to = 2048 * MIB;
    FAILS_WITH(pagedepot_new(MIB, &both) == NULL, ENOTSUP, "grow_to");
    CHECK(pagedepot_set_ceiling(depot, 16 * MIB) == 0);
    CHECK(pagedepot_free(depot, large, 9) == 0);
    FAILS_WITH(pagedepot_set_ceiling(NULL, 1) == -1, EINVAL, "depot is NULL");
    CHECK(pagedepot_ceiling(NULL) == 0);
    pagedepot_delete(depot);
}

struct freer {
    pagedepot_t *depot;
    void *block;
};

static void *free_later(void *given) {
    struct freer *freer = given;
    struct timespec nap = {0, 20 * 1000 * 1000};
    nanosleep(&nap, NULL);
    CHECK(pagedepot_free(freer->depot, freer->block, 10) == 0);
    return NULL;
}

static void waiting(void) {
    pagedepot_t *depot = pagedepot_new(4 * MIB, NULL);
    struct freer freer = {depot, pagedepot_alloc(depot, 10)};
    CHECK(freer.block);
    FAILS(pagedepot_alloc_wait(depot, 0, 5) == NULL, ENOMEM);
    FAILS(pagedepot_alloc_wait(depot, 11, 5) == NULL, EINVAL);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, free_later, &freer) == 0);
    char *page = pagedepot_alloc_wait(depot, 0, 60 * 1000);
    CHECK(page);
    page[0] = 1;
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK(pagedepot_free(depot, page, 0) == 0);
    pagedepot_delete(depot);
}

struct taker {
    pagedepot_t *depot;
    char *blocks[200];
};

static void *take_what_is_added(void *given) {
    struct taker *taker = given;
    for (int at = 0; at < 200; at++) {
        taker->blocks[at] = pagedepot_alloc_wait(taker->depot, 10, 60 * 1000);
        CHECK(taker->blocks[at]);
    }
    return NULL;
}

/* Blocks that a thread gets while the depot grows are that thread's, for the tools, too. */
static void growing(void) {
    pagedepot_options_t options = PAGEDEPOT_OPTIONS_INIT;
    options.grow_to = 2048 * MIB;
    static struct taker taker;
    taker.depot = pagedepot_new(1024 * MIB, &options);
    CHECK(taker.depot);
    while (pagedepot_alloc(taker.depot, 10)) {
    }
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, take_what_is_added, &taker) == 0);
    CHECK(pagedepot_grow(taker.depot, 1) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
    for (int at = 0; at < 200; at++) {
        taker.blocks[at][0] = 1;
    }
    FAILS(pagedepot_grow(taker.depot, 1) == -1, ENOMEM);
    pagedepot_delete(taker.depot);
}

static void mixed(void) {
    pagedepot_t *depot = pagedepot_new(16 * MIB, NULL);
    pagedepot_block_t blocks[200];
    for (unsigned at = 0; at < 200; at++) {
        blocks[at].order = at % 4;
        blocks[at].block = pagedepot_alloc(depot, blocks[at].order);
        CHECK(blocks[at].block);
    }
    CHECK(pagedepot_free_mixed(depot, blocks, 100) == 0);
    blocks[100].order = 11;
    char *good = blocks[150].block;
    blocks[150].block = good + 1;
    FAILS(pagedepot_free_mixed(depot, blocks + 100, 100) == 2, EINVAL);
    CHECK(pagedepot_free(depot, blocks[100].block, 100 % 4) == 0);
    CHECK(pagedepot_free(depot, good, 150 % 4) == 0);
    CHECK(pagedepot_validate(depot) == 0);
    pagedepot_delete(depot);
}

static uint64_t give_up(void *context, uint64_t wanted) {
    *(uint64_t *)context += wanted;
    return 0;
}

static void monitor(void) {
    pagedepot_t *depot = pagedepot_new(64 * MIB, NULL);
    uint64_t wanted = 0;
    pagedepot_callback_t callbacks[2] = {{1, give_up, &wanted}, {0, give_up, &wanted}};
    pagedepot_monitor_options_t options = PAGEDEPOT_MONITOR_INIT;
    options.look_ms = 5;
    options.idle_ms = 20;
    options.callbacks = callbacks;
    options.callbacks_count = 2;
    pagedepot_monitor_t *monitor = pagedepot_monitor_start(depot, &options);
    CHECK(monitor);
    void *block = pagedepot_alloc_flags(depot, 10, PAGEDEPOT_ZEROED);
    CHECK(block && pagedepot_free(depot, block, 10) == 0);
    pagedepot_monitor_counts_t counts = {0};
    while (counts.looks < 3) {
        struct timespec nap = {0, 5 * 1000 * 1000};
        nanosleep(&nap, NULL);
        CHECK(pagedepot_monitor_counts(monitor, &counts) == 0);
    }
    CHECK(counts.level >= 0 && counts.level <= 3);
    FAILS(pagedepot_monitor_counts(monitor, NULL) == -1, EINVAL);
    pagedepot_monitor_stop(monitor);
    CHECK(pagedepot_new(0, NULL) == NULL);
    FAILS_WITH(pagedepot_monitor_start(NULL, NULL) == NULL, EINVAL, "depot is NULL");
    options.callbacks = NULL;
    FAILS_WITH(pagedepot_monitor_start(depot, &options) == NULL, EINVAL, "callbacks_count");
    options.callbacks = callbacks;
    callbacks[1].give_up = NULL;
    FAILS(pagedepot_monitor_start(depot, &options) == NULL, EINVAL);
    options.callbacks_count = 0;
    options.idle_ms = -2;
    FAILS(pagedepot_monitor_start(depot, &options) == NULL, EINVAL);
    CHECK(strstr(pagedepot_last_error(), "idle_ms"));
    pagedepot_monitor_stop(pagedepot_monitor_start(depot, NULL));
    pagedepot_monitor_stop(NULL);
    pagedepot_delete(depot);
}

static void space(void) {
    pagedepot_options_t options = PAGEDEPOT_OPTIONS_INIT;
    CHECK(pagedepot_new(0, NULL) == NULL);
    FAILS_WITH(pagedepot_space_new(NULL, 0) == NULL, EINVAL, "depot is NULL");
    pagedepot_t *private = pagedepot_new(16 * MIB, NULL);
    FAILS(pagedepot_space_new(private, 0) == NULL, ENOTSUP);
    CHECK(strstr(pagedepot_last_error(), "Memfd"));
    pagedepot_delete(private);
    options.flags = PAGEDEPOT_MEMFD;
    pagedepot_t *depot = pagedepot_new(64 * MIB, &options);
    pagedepot_space_t *space = pagedepot_space_new(depot, 0);
    CHECK(space);
    size_t page = pagedepot_page_size(depot), bytes = 10 * page;
    char *area = pagedepot_vmalloc(space, bytes - 5, PAGEDEPOT_ZEROED);
    CHECK(area && area[0] == 0 && area[bytes - 1] == 0);
    memset(area, 7, bytes);
    char *larger = pagedepot_vrealloc(space, area, 5 * bytes, PAGEDEPOT_ZEROED);
    CHECK(larger && larger[bytes - 1] == 7 && larger[bytes] == 0 && larger[5 * bytes - 1] == 0);
    FAILS(pagedepot_vfree(space, larger + 1) == -1, EINVAL);
    CHECK(pagedepot_vfree(space, larger) == 0 && pagedepot_vfree(space, NULL) == 0);
    /* All of the last page, where the area before had other contents. */
    area = pagedepot_vmalloc(space, bytes, 0);
    CHECK(area);
    memset(area, 7, bytes);
    CHECK(pagedepot_vfree(space, area) == 0);
    area = pagedepot_vmalloc(space, bytes - 5, PAGEDEPOT_ZEROED);
    CHECK(area && area[0] == 0 && area[bytes - 1] == 0);
    CHECK(pagedepot_vfree(space, area) == 0);
    FAILS(pagedepot_vmalloc(space, 0, 0) == NULL, EINVAL);
    FAILS(pagedepot_vmalloc(space, MIB, 1u << 30) == NULL, EINVAL);
    FAILS(pagedepot_vmalloc(space, MIB << 20, 0) == NULL, EINVAL);
    FAILS(pagedepot_vmalloc(space, 65 * MIB, 0) == NULL, ENOMEM);
    /* Two pages, the second one first. */
    char *pages[] = {pagedepot_alloc(depot, 0), pagedepot_alloc(depot, 0)};
    CHECK(pages[0] && pages[1]);
    pages[0][3] = 1;
    pages[1][3] = 2;
    const void *mapped[] = {pages[1], pages[0]};
    char *both = pagedepot_vmap(space, mapped, 2);
    CHECK(both && both[3] == 2 && both[page + 3] == 1);
    mapped[1] = pages[0] + 1;
    FAILS(pagedepot_vmap(space, mapped, 2) == NULL, EINVAL);
    FAILS(pagedepot_vmap(space, NULL, 2) == NULL, EINVAL);
    FAILS(pagedepot_vfree(space, both) == -1, EINVAL);
    CHECK(pagedepot_vunmap(space, both) == 0 && pagedepot_purge(space) >= 0);
    CHECK(pagedepot_free(depot, pages[0], 0) == 0 && pagedepot_free(depot, pages[1], 0) == 0);
    /* Never freed: the pages go back with the space. */
    CHECK(pagedepot_vmalloc(space, MIB, PAGEDEPOT_NO_RECLAIM));
    pagedepot_space_delete(space);
    pagedepot_space_delete(NULL);
    CHECK(pagedepot_validate(depot) == 0);
    FAILS(pagedepot_vmalloc(NULL, 1, 0) == NULL, EINVAL);
    FAILS(pagedepot_purge(NULL) == -1, EINVAL);
    pagedepot_delete(depot);
}

static void publish(void) {
    pagedepot_t *depot = pagedepot_new(16 * MIB, NULL);
    char folder[] = "/tmp/pagedepot-c-XXXXXX";
    CHECK(mkdtemp(folder));
    CHECK(pagedepot_new(0, NULL) == NULL);
    FAILS_WITH(pagedepot_publish(NULL, folder) == NULL, EINVAL, "depot is NULL");
    FAILS(pagedepot_publish(depot, "/nowhere") == NULL, ENOENT);
    pagedepot_published_t *published = pagedepot_publish(depot, folder);
    CHECK(published);
    const char *path = pagedepot_published_path(published);
    struct stat status;
    CHECK(strncmp(path, folder, strlen(folder)) == 0 && stat(path, &status) == 0);
    CHECK((status.st_mode & 0777) == 0600 && status.st_size > 4096);
    pagedepot_withdraw(published);
    pagedepot_withdraw(NULL);
    CHECK(pagedepot_published_path(NULL) == NULL);
    CHECK(rmdir(folder) == 0); /* the file is gone */
    pagedepot_delete(depot);
}

int main(void) {
    options();
    ceiling();
    waiting();
    growing();
    mixed();
    monitor();
    space();
    publish();
    return 0;
}
