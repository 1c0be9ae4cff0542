/* Packets in pages: a receiver allocates a burst of pages and writes packets into them; a ring
 * takes them to another thread, which reads them and frees a burst at once. Each thread is mostly
 * on a CPU of its own, so pages are allocated on one CPU and freed on another.
 *
 *     cc ring.c $(pkg-config --cflags --libs pagedepot) -lpthread -o ring && ./ring 1000000
 */
#define _POSIX_C_SOURCE 200809L
#include <errno.h>
#include <pagedepot.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SLOTS = 1024, BURST = 32, PACKET = 1500 };

/* One thread puts, one takes. */
struct ring {
    _Alignas(64) atomic_size_t put;
    _Alignas(64) atomic_size_t taken;
    void *slots[SLOTS];
};

struct packet {
    unsigned long number;
    unsigned char payload[PACKET];
};

static pagedepot_t *depot;
static struct ring ring;
static unsigned long packets = 200000;

static void fail(const char *what) {
    const char *text = pagedepot_last_error();
    fprintf(stderr, "%s: %s\n", what, text ? text : strerror(errno));
    exit(1);
}

/* Puts count pages into the ring, as there is room for them. */
static void put(void **pages, size_t count) {
    size_t put = atomic_load_explicit(&ring.put, memory_order_relaxed);
    for (size_t at = 0; at < count; at++) {
        while (put - atomic_load_explicit(&ring.taken, memory_order_acquire) == SLOTS)
            sched_yield();
        ring.slots[put++ % SLOTS] = pages[at];
        /* Pairs with the acquire in take(): the slot, and the packet in the page, are seen. */
        atomic_store_explicit(&ring.put, put, memory_order_release);
    }
}

/* Takes at least one page out, and at most BURST. */
static size_t take(void **pages) {
    size_t taken = atomic_load_explicit(&ring.taken, memory_order_relaxed), put;
    while ((put = atomic_load_explicit(&ring.put, memory_order_acquire)) == taken)
        sched_yield();
    size_t count = put - taken < BURST ? put - taken : BURST;
    for (size_t at = 0; at < count; at++)
        pages[at] = ring.slots[(taken + at) % SLOTS];
    /* Pairs with the acquire in put(): the slots were read. */
    atomic_store_explicit(&ring.taken, taken + count, memory_order_release);
    return count;
}

static void *receive(void *unused) {
    (void)unused;
    void *pages[BURST];
    for (unsigned long number = 0; number < packets;) {
        size_t wanted = packets - number < BURST ? packets - number : BURST;
        /* Fewer than wanted when the depot is nearly empty: the other thread frees some. While a
         * request waits for that, no CPU caches pages. */
        size_t got = pagedepot_alloc_many(depot, 0, 0, pages, wanted);
        if (got == 0) {
            if (!(pages[0] = pagedepot_alloc_wait(depot, 0, 10000)))
                fail("no page within ten seconds");
            got = 1;
        }
        for (size_t at = 0; at < got; at++) {
            struct packet *packet = pages[at];
            packet->number = number++;
            memset(packet->payload, (int)(packet->number & 0xff), sizeof packet->payload);
        }
        put(pages, got);
    }
    return NULL;
}

static void *process(void *unused) {
    (void)unused;
    void *pages[BURST];
    for (unsigned long number = 0; number < packets;) {
        size_t count = take(pages);
        for (size_t at = 0; at < count; at++, number++) {
            const struct packet *packet = pages[at];
            unsigned char byte = (unsigned char)(number & 0xff);
            if (packet->number != number || packet->payload[PACKET - 1] != byte) {
                fprintf(stderr, "packet %lu came as %lu\n", number, packet->number);
                exit(1);
            }
        }
        if (pagedepot_free_many(depot, 0, pages, count) != 0)
            fail("a page was not freed");
    }
    return NULL;
}

int main(int count, char **arguments) {
    if (count > 1)
        packets = strtoul(arguments[1], NULL, 10);
    /* More than the ring can hold and CPUs cache: the receiver seldom waits for pages. */
    if (!(depot = pagedepot_new(16u << 20, NULL)))
        fail("no depot");
    pthread_t receiver, processor;
    if (pthread_create(&receiver, NULL, receive, NULL) ||
        pthread_create(&processor, NULL, process, NULL))
        fail("no thread");
    pthread_join(receiver, NULL);
    pthread_join(processor, NULL);
    pagedepot_drained_t drained;
    pagedepot_stats_t stats;
    if (pagedepot_drain(depot, PAGEDEPOT_QUIET, &drained) || pagedepot_stats(depot, &stats) ||
        pagedepot_validate(depot) != 0)
        fail("pages are missing");
    printf("%lu packets; %llu magazines filled, %llu emptied; %llu pages taken back, %llu "
           "CPUs fenced for it\n",
           packets, (unsigned long long)stats.refills, (unsigned long long)stats.spills,
           (unsigned long long)drained.taken_pages, (unsigned long long)drained.fences);
    pagedepot_delete(depot);
    return 0;
}
