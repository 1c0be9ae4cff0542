/* Every function of the header, from C99, with good and bad arguments. Exits with 0. */
#define _POSIX_C_SOURCE 200809L
#include <errno.h>
#include <pagedepot.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

enum { BATCH = 200 };

/* A page is mapped once more, through the depot's file. */
static void in_a_file(pagedepot_t *depot) {
    size_t bytes = pagedepot_page_size(depot);
    char *page = pagedepot_alloc(depot, 0);
    CHECK(page);
    off_t at = page - (char *)pagedepot_base(depot);
    char *other = mmap(NULL, bytes, PROT_READ, MAP_SHARED, pagedepot_fd(depot), at);
    CHECK(other != MAP_FAILED);
    page[7] = 42;
    CHECK(other[7] == 42);
    CHECK(munmap(other, bytes) == 0);
    CHECK(pagedepot_free(depot, page, 0) == 0);
}

static void options(void) {
    pagedepot_options_t options = PAGEDEPOT_OPTIONS_INIT;
    FAILS(pagedepot_new(0, NULL) == NULL, EINVAL);
    CHECK(strstr(pagedepot_last_error(), "at least one page"));
    FAILS(pagedepot_new((size_t)-1, &options) == NULL, EINVAL);
    options.flags = 1u << 31;
    FAILS(pagedepot_new(MIB, &options) == NULL, EINVAL);
    options.flags = 0;
    options.size = 0;
    FAILS(pagedepot_new(MIB, &options) == NULL, EINVAL);
    options.size = sizeof options + 8;
    FAILS(pagedepot_new(MIB, &options) == NULL, EINVAL);
    CHECK(strstr(pagedepot_last_error(), "newer"));
    /* A program that was compiled with an older header. */
    options.size = sizeof options.size + sizeof options.flags;
    options.flags = PAGEDEPOT_MEMFD;
    pagedepot_t *depot = pagedepot_new(MIB, &options);
    CHECK(depot);
    in_a_file(depot);
    pagedepot_delete(depot);
}

static void blocks(pagedepot_t *depot) {
    FAILS(pagedepot_fd(depot) == -1, ENOTSUP);
    for (unsigned order = 0; order <= 10; order++) {
        size_t bytes = pagedepot_page_size(depot) << order;
        char *block = pagedepot_alloc_flags(depot, order, PAGEDEPOT_ZEROED);
        CHECK(block && (size_t)block % bytes == (size_t)pagedepot_base(depot) % bytes);
        CHECK(pagedepot_contains(depot, block) && block[0] == 0 && block[bytes - 1] == 0);
        memset(block, 1, bytes);
        CHECK(pagedepot_order_for(bytes) == (int)order);
        FAILS(pagedepot_free(depot, block + 1, order) == -1, EINVAL);
        CHECK(pagedepot_free(depot, block, order) == 0);
    }
    FAILS(pagedepot_alloc(depot, 11) == NULL, EINVAL);
    FAILS(pagedepot_alloc_flags(depot, 0, 1u << 30) == NULL, EINVAL);
    FAILS(pagedepot_free(depot, &depot, 0) == -1, EINVAL);
    CHECK(pagedepot_free(depot, NULL, 0) == 0);
    FAILS(pagedepot_order_for((size_t)-1) == -1, EINVAL);

    void *many[BATCH];
    CHECK(pagedepot_alloc_many(depot, 0, 0, many, BATCH) == BATCH);
    CHECK(pagedepot_free_many(depot, 0, many, BATCH) == 0);
    many[0] = many;
    FAILS(pagedepot_free_many(depot, 0, many, 1) == 1, EINVAL);
    void *some[] = {NULL, pagedepot_alloc(depot, 2), NULL};
    CHECK(pagedepot_free_many(depot, 2, some, 3) == 0);
    pagedepot_block_t mixed[] = {{NULL, 0}, {pagedepot_alloc(depot, 3), 3}, {NULL, 77}};
    CHECK(pagedepot_free_mixed(depot, mixed, 3) == 0);
    CHECK(pagedepot_free_contiguous(depot, NULL, 600) == 0);
    FAILS(pagedepot_alloc_many(depot, 0, 0, NULL, 1) == 0, EINVAL);
    FAILS(pagedepot_free_many(depot, 0, NULL, 2) == 2, EINVAL);
    FAILS(pagedepot_free_mixed(depot, NULL, 3) == 3, EINVAL);
    CHECK(pagedepot_alloc_many(depot, 0, 0, NULL, 0) == 0);
    CHECK(pagedepot_free_many(depot, 0, NULL, 0) == 0);

    char *run = pagedepot_alloc_contiguous(depot, 600, 0, PAGEDEPOT_UNMOVABLE);
    CHECK(run);
    CHECK(pagedepot_free_contiguous(depot, run, 100) == 0);
    CHECK(pagedepot_free_contiguous(depot, run + 100 * pagedepot_page_size(depot), 500) == 0);
    FAILS(pagedepot_alloc_contiguous(depot, 0, 1, 0) == NULL, EINVAL);
    FAILS(pagedepot_alloc_contiguous(depot, 1, 3, 0) == NULL, EINVAL);

    char *block = pagedepot_alloc(depot, 1);
    CHECK(pagedepot_split(depot, block, 1, 0) == 0);
    CHECK(pagedepot_free(depot, block, 0) == 0);
    CHECK(pagedepot_free(depot, block + pagedepot_page_size(depot), 0) == 0);
}

/* What a refused free named stays its holder's: with the tools, too. */
static void refused(void) {
    pagedepot_options_t options = PAGEDEPOT_OPTIONS_INIT;
    options.flags = PAGEDEPOT_CHECKED;
    pagedepot_t *depot = pagedepot_new(MIB, &options);
    size_t bytes = pagedepot_page_size(depot);
    char *block = pagedepot_alloc(depot, 3);
    CHECK(block);
    memset(block, 1, bytes << 3);
    FAILS(pagedepot_free(depot, block, 0) == -1, EINVAL);
    FAILS(pagedepot_free(depot, block, 2) == -1, EINVAL);
    FAILS(pagedepot_free(depot, block + bytes, 1) == -1, EINVAL);
    FAILS(pagedepot_free(depot, block + bytes, 0) == -1, EINVAL);
    FAILS(pagedepot_free(depot, (char *)pagedepot_base(depot) + MIB - bytes, 5) == -1, EINVAL);
    void *many[] = {pagedepot_alloc(depot, 0), block, pagedepot_alloc(depot, 0)};
    FAILS(pagedepot_free_many(depot, 0, many, 3) == 1, EINVAL);
    FAILS(pagedepot_free_contiguous(depot, block, 7) == -1, EINVAL);
    FAILS(pagedepot_free_contiguous(depot, block, (uint32_t)-1) == -1, EINVAL);
    for (size_t at = 0; at < bytes << 3; at += 64)
        CHECK(block[at] == 1);
    memset(block, 2, bytes << 3);
    CHECK(pagedepot_free(depot, block, 3) == 0);
    FAILS(pagedepot_free(depot, block, 3) == -1, EINVAL);
    pagedepot_delete(depot);
}

/* This thread may run on another CPU meanwhile, which then cannot hand over: see fence_after_ms. */
static void handing_over(pagedepot_t *depot) {
    pagedepot_drained_t asked = {0}, drained = {0};
    void *page = pagedepot_alloc(depot, 0);
    CHECK(page && pagedepot_free(depot, page, 0) == 0);
    CHECK(pagedepot_drain(depot, PAGEDEPOT_HANDOVER, &asked) == 0);
    CHECK(asked.fences == 0 && asked.busy_cpus == 0);
    CHECK(pagedepot_hand_over(depot) >= 0);
    CHECK(pagedepot_hand_over(depot) == 0);
    int complete = pagedepot_drain_handover(depot, 0, 10000, &drained);
    CHECK(complete == (drained.pending_cpus == 0));
    CHECK(complete == 1 || drained.isolated_cpus > 0 || drained.busy_cpus > 0);
#ifndef NO_CACHES
    CHECK(asked.taken_pages + asked.unreachable_pages + asked.pending_pages > 0);
#endif
    CHECK(pagedepot_drain_handover(depot, -1, 0, NULL) >= 0);
    FAILS(pagedepot_drain_handover(depot, -2, 0, NULL) == -1, EINVAL);
    FAILS(pagedepot_drain_handover(NULL, 0, 0, NULL) == -1, EINVAL);
    FAILS(pagedepot_hand_over(NULL) == -1, EINVAL);
}

static void taking_back(pagedepot_t *depot) {
    pagedepot_drained_t drained = {0};
    pagedepot_trimmed_t trimmed = {0};
    pagedepot_stats_t stats = {0};
    CHECK(pagedepot_drain(depot, PAGEDEPOT_QUIET, NULL) == 0);
    CHECK(pagedepot_drain(depot, PAGEDEPOT_FULL, &drained) == 0);
    FAILS(pagedepot_drain(depot, 77, NULL) == -1, EINVAL);
    handing_over(depot);
    pagedepot_given_back_t given = {0};
    CHECK(pagedepot_give_back(depot, 0, 1000, NULL) == 0);
    CHECK(pagedepot_give_back(depot, UINT64_MAX, 60000, &given) == 0);
    CHECK(given.end == PAGEDEPOT_GIVE_BACK_NOTHING_FREE ||
          given.end == PAGEDEPOT_GIVE_BACK_LOW_MEMORY ||
          given.end == PAGEDEPOT_GIVE_BACK_ISOLATED);
    CHECK(pagedepot_trim(depot, &trimmed) == 0);
    CHECK(pagedepot_stats(depot, &stats) == 0);
    CHECK(stats.managed_pages * pagedepot_page_size(depot) == pagedepot_bytes(depot));
    CHECK(stats.drained_pages >= drained.taken_pages && stats.metadata_bytes > 0);
    void *page = pagedepot_alloc(depot, 0);
    CHECK(pagedepot_pin(depot, page, 1) == 0);
    CHECK(pagedepot_unpin(depot, page, 1) == 0);
    FAILS(pagedepot_unpin(depot, page, 1) == -1, EINVAL);
    FAILS(pagedepot_pin(depot, &depot, 1) == -1, EINVAL);
    FAILS(pagedepot_pin(depot, (char *)page + 64, 1) == -1, EINVAL);
    CHECK(pagedepot_pin(depot, page, 1) == 0);
    FAILS(pagedepot_unpin(depot, (char *)page + 64, 1) == -1, EINVAL);
    CHECK(pagedepot_unpin(depot, page, 1) == 0);
    CHECK(pagedepot_validate(depot) == 1);
    CHECK(pagedepot_free(depot, page, 0) == 0);
    FAILS(pagedepot_grow(depot, MIB) == -1, ENOMEM);
}

/* Only the block's own contents go, and only those of a block. */
static void discarding(pagedepot_t *depot) {
    size_t bytes = pagedepot_page_size(depot);
    char *block = pagedepot_alloc(depot, 4);
    CHECK(block);
    memset(block, 1, bytes << 4);
    FAILS_WITH(pagedepot_discard(depot, block + bytes, 3) == -1, EINVAL, "no block");
    FAILS_WITH(pagedepot_discard(depot, block + 1, 0) == -1, EINVAL, "no block");
    FAILS_WITH(pagedepot_discard(depot, &depot, 0) == -1, EINVAL, "no block");
    FAILS_WITH(pagedepot_discard(depot, block, 11) == -1, EINVAL, "order");
    for (size_t at = 0; at < bytes << 4; at += 64)
        CHECK(block[at] == 1);
    CHECK(pagedepot_discard(depot, block, 4) == (int64_t)(bytes << 4));
    CHECK(block[0] == 0 && block[(bytes << 4) - 1] == 0);
    CHECK(pagedepot_free(depot, block, 4) == 0);
}

struct cache {
    pagedepot_t *depot;
    void *pages[256 + 1]; /* and what the last request returned */
    size_t held;
    unsigned calls;
};

static uint64_t give_up(void *context, uint64_t wanted, int last) {
    struct cache *cache = context;
    uint64_t freed = 0;
    (void)last;
    cache->calls++;
    for (; freed < wanted && cache->held > 0; freed++)
        CHECK(pagedepot_free(cache->depot, cache->pages[--cache->held], 0) == 0);
    return freed;
}

static void pressure(void) {
    struct cache cache = {.depot = pagedepot_new(MIB, NULL)};
    CHECK(cache.depot);
    while ((cache.pages[cache.held] = pagedepot_alloc(cache.depot, 0)))
        cache.held++;
    CHECK(errno == ENOMEM && cache.held > 0);
    FAILS(pagedepot_on_pressure(cache.depot, NULL, NULL) == -1, EINVAL);
    CHECK(pagedepot_on_pressure(cache.depot, give_up, &cache) == 0);
    void *page = pagedepot_alloc(cache.depot, 0);
    CHECK(page && cache.calls > 0);
    pagedepot_delete(cache.depot);
}

static void no_handle(void) {
    FAILS(pagedepot_alloc(NULL, 0) == NULL, EINVAL);
    FAILS(pagedepot_free(NULL, &errno, 0) == -1, EINVAL);
    FAILS(pagedepot_drain(NULL, PAGEDEPOT_QUIET, NULL) == -1, EINVAL);
    FAILS_WITH(pagedepot_trim(NULL, NULL) == -1, EINVAL, "depot is NULL");
    /* A text that is older says nothing of the next failure. */
    pagedepot_t *depot = pagedepot_new(0, NULL);
    CHECK(!depot);
    FAILS_WITH(pagedepot_give_back(NULL, 1, 1, NULL) == -1, EINVAL, "depot is NULL");
    CHECK(!pagedepot_new(0, NULL));
    FAILS_WITH(pagedepot_grow(NULL, MIB) == -1, EINVAL, "depot is NULL");
    CHECK(!pagedepot_new(0, NULL));
    FAILS_WITH(pagedepot_pin(NULL, NULL, 1) == -1, EINVAL, "depot is NULL");
    CHECK(!pagedepot_new(0, NULL));
    FAILS_WITH(pagedepot_discard(NULL, NULL, 0) == -1, EINVAL, "depot is NULL");
    CHECK(!pagedepot_new(0, NULL));
    FAILS_WITH(pagedepot_validate(NULL) == -1, EINVAL, "depot is NULL");
    CHECK(!pagedepot_new(0, NULL));
    FAILS_WITH(pagedepot_on_pressure(NULL, NULL, NULL) == -1, EINVAL, "depot is NULL");
    FAILS(pagedepot_stats(NULL, NULL) == -1, EINVAL);
    FAILS(pagedepot_fd(NULL) == -1, EINVAL);
    CHECK(pagedepot_bytes(NULL) == 0 && pagedepot_page_size(NULL) == 0);
    pagedepot_delete(NULL);
}

static void *churn(void *given) {
    pagedepot_t *depot = given;
    void *held[64] = {0};
    unsigned random = (unsigned)(size_t)&held | 1;
    for (unsigned i = 0; i < 20000; i++) {
        random = random * 1664525u + 1013904223u;
        unsigned at = random >> 26;
        if (held[at])
            CHECK(pagedepot_free(depot, held[at], at % 2 ? 0 : 3) == 0);
        held[at] = pagedepot_alloc(depot, at % 2 ? 0 : 3);
        if (held[at])
            *(unsigned *)held[at] = i;
        if (i % 1000 == 0)
            CHECK(pagedepot_drain(depot, PAGEDEPOT_QUIET, NULL) == 0);
    }
    for (unsigned at = 0; at < 64; at++)
        CHECK(pagedepot_free(depot, held[at], at % 2 ? 0 : 3) == 0);
    return NULL;
}

static void threads(pagedepot_t *depot) {
    pthread_t thread[4];
    for (int i = 0; i < 4; i++)
        CHECK(pthread_create(&thread[i], NULL, churn, depot) == 0);
    for (int i = 0; i < 4; i++)
        CHECK(pthread_join(thread[i], NULL) == 0);
    CHECK(pagedepot_validate(depot) == 0);
}

static void in_a_child(pagedepot_t *depot) {
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        FAILS(pagedepot_alloc(depot, 0) == NULL, EPERM);
        pagedepot_delete(depot);
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
}

int main(void) {
    CHECK(strcmp(pagedepot_version(), VERSION) == 0);
    options();
    no_handle();
    pagedepot_t *depot = pagedepot_new(64 * MIB, NULL);
    CHECK(depot);
    blocks(depot);
    refused();
    taking_back(depot);
    discarding(depot);
    threads(depot);
    in_a_child(depot);
    pressure();
    pagedepot_delete(depot);
    return 0;
}
