/* Gives jemalloc its extents from a depot, in a program that knows neither:
 *
 *     LD_PRELOAD=./libpagedepot_jemalloc.so redis-server
 *
 * jemalloc keeps its size classes, bins and thread caches. Whenever it would map memory it asks the
 * hooks below (jemalloc(3), `arena.<i>.extent_hooks`), and what it has no more use for goes back to
 * the depot, where CPUs cache it, drains collect it, and trims give it to the system.
 *
 * Environment:
 *   PAGEDEPOT_JEMALLOC_MIB       size of the depot (default: half of RAM)
 *   PAGEDEPOT_JEMALLOC_DECAY_MS  for how long jemalloc keeps unused extents itself (default: 1000)
 *   PAGEDEPOT_JEMALLOC_DRAIN     drain behind the program: quiet, full, handover, none (default)
 *   PAGEDEPOT_JEMALLOC_DRAIN_MS  so often (default: 100)
 *   PAGEDEPOT_JEMALLOC_TRIM_MS   give back what was not used for so long (default: 1000)
 *   PAGEDEPOT_JEMALLOC_REPORT    write counters to this file, ten times a second
 *
 * What the depot cannot give is mapped.
 *
 * A forked child (BGSAVE) has copies of the parent's pages and can use them; extents that it needs
 * are mapped, and those of the parent's depot that it has no use for stay where they are. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <pagedepot.h>

/* What pagedepot_alloc_contiguous() can give at once, in pages. */
#define PAGES_MAX ((size_t)1 << 18)

/* Extents of so many bytes are zeroed by dropping their memory: most are for metadata that is used
 * bit by bit. */
#define ZERO_MIN ((size_t)64 << 10)

/* As jemalloc.h has it; declared here so that no header of jemalloc is needed. */
typedef struct extent_hooks_s extent_hooks_t;
struct extent_hooks_s {
    void *(*alloc)(extent_hooks_t *, void *, size_t, size_t, bool *, bool *, unsigned);
    bool (*dalloc)(extent_hooks_t *, void *, size_t, bool, unsigned);
    void (*destroy)(extent_hooks_t *, void *, size_t, bool, unsigned);
    bool (*commit)(extent_hooks_t *, void *, size_t, size_t, size_t, unsigned);
    bool (*decommit)(extent_hooks_t *, void *, size_t, size_t, size_t, unsigned);
    bool (*purge_lazy)(extent_hooks_t *, void *, size_t, size_t, size_t, unsigned);
    bool (*purge_forced)(extent_hooks_t *, void *, size_t, size_t, size_t, unsigned);
    bool (*split)(extent_hooks_t *, void *, size_t, size_t, size_t, bool, unsigned);
    bool (*merge)(extent_hooks_t *, void *, size_t, void *, size_t, bool, unsigned);
};

static pagedepot_t *depot;
/* Bytes of its pages, which are the system's. Those of jemalloc are as large, or larger. */
static size_t page;
static atomic_ulong extents, returned, mapped, drains, trimmed_bytes;
static int drain_mode = -1;
static long drain_ms = 100, trim_ms = 1000;
static const char *report_file;

/* An extent from the system: for what the depot cannot give. */
static void *map(size_t size, size_t alignment) {
    size_t room = size + alignment - page;
    if (room < size) {
        return NULL;
    }
    char *start = mmap(NULL, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (start == MAP_FAILED) {
        return NULL;
    }
    size_t before = -(size_t)start & (alignment - 1);
    size_t after = room - before - size;
    if (before > 0) {
        munmap(start, before);
    }
    if (after > 0) {
        munmap(start + before + size, after);
    }
    atomic_fetch_add_explicit(&mapped, 1, memory_order_relaxed);
    return start + before;
}

static void *hook_alloc(extent_hooks_t *hooks, void *address, size_t size, size_t alignment,
                        bool *zero, bool *commit, unsigned arena) {
    (void)hooks;
    (void)arena;
    if (address != NULL) {
        /* jemalloc would like to extend another extent; it does without. */
        return NULL;
    }
    size_t pages = size / page;
    size_t align_pages = alignment / page;
    void *extent = NULL;
    if (pages <= PAGES_MAX && align_pages <= PAGES_MAX) {
        bool is_small = size < ZERO_MIN;
        unsigned flags = *zero && is_small ? PAGEDEPOT_ZEROED : 0;
        extent = pagedepot_alloc_contiguous(depot, pages, align_pages, flags);
        if (extent != NULL && *zero && !is_small && madvise(extent, size, MADV_DONTNEED) != 0) {
            memset(extent, 0, size);
        }
    }
    if (extent != NULL) {
        atomic_fetch_add_explicit(&extents, 1, memory_order_relaxed);
    } else if ((extent = map(size, alignment)) != NULL) {
        *zero = true;
    }
    *commit = true;
    return extent;
}

/* true, here and below: it was not done, and jemalloc must keep the extent. */
static bool hook_dalloc(extent_hooks_t *hooks, void *address, size_t size, bool committed,
                        unsigned arena) {
    (void)hooks;
    (void)committed;
    (void)arena;
    if (!pagedepot_contains(depot, address)) {
        return true;
    }
    /* It fails in a forked child: the pages are the parent's. */
    if (pagedepot_free_contiguous(depot, address, size / page) != 0) {
        return true;
    }
    atomic_fetch_add_explicit(&returned, 1, memory_order_relaxed);
    return false;
}

static void hook_destroy(extent_hooks_t *hooks, void *address, size_t size, bool committed,
                         unsigned arena) {
    bool is_kept = hook_dalloc(hooks, address, size, committed, arena);
    if (is_kept && !pagedepot_contains(depot, address)) {
        munmap(address, size);
    }
}

static bool hook_commit(extent_hooks_t *hooks, void *address, size_t size, size_t offset,
                        size_t length, unsigned arena) {
    (void)hooks, (void)address, (void)size, (void)offset, (void)length, (void)arena;
    return false;
}

static bool hook_refuse(extent_hooks_t *hooks, void *address, size_t size, size_t offset,
                        size_t length, unsigned arena) {
    (void)hooks, (void)address, (void)size, (void)offset, (void)length, (void)arena;
    return true;
}

/* Of extents that jemalloc keeps: mapped ones, and those of a forked child. */
static bool hook_purge(extent_hooks_t *hooks, void *address, size_t size, size_t offset,
                       size_t length, unsigned arena) {
    (void)hooks, (void)size, (void)arena;
    return madvise((char *)address + offset, length, MADV_DONTNEED) != 0;
}

/* The depot takes back any part of what it gave. */
static bool hook_split(extent_hooks_t *hooks, void *address, size_t size, size_t size_a,
                       size_t size_b, bool committed, unsigned arena) {
    (void)hooks, (void)address, (void)size, (void)size_a, (void)size_b;
    (void)committed, (void)arena;
    return false;
}

/* And neighbours at once, if both are its own. */
static bool hook_merge(extent_hooks_t *hooks, void *a, size_t size_a, void *b, size_t size_b,
                       bool committed, unsigned arena) {
    (void)hooks, (void)size_a, (void)size_b, (void)committed, (void)arena;
    return pagedepot_contains(depot, a) != pagedepot_contains(depot, b);
}

static extent_hooks_t hooks = {
    .alloc = hook_alloc,
    .dalloc = hook_dalloc,
    .destroy = hook_destroy,
    .commit = hook_commit,
    .decommit = hook_refuse,
    .purge_lazy = hook_refuse,
    .purge_forced = hook_purge,
    .split = hook_split,
    .merge = hook_merge,
};

static long now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static void report(void) {
    pagedepot_stats_t stats;
    if (report_file == NULL || pagedepot_stats(depot, &stats) != 0) {
        return;
    }
    char text[512];
    int length = snprintf(text, sizeof text,
        "extents=%lu\nreturned=%lu\nmapped=%lu\ndrains=%lu\ntrimmed_bytes=%lu\n"
        "held_pages=%lu\nfree_pages=%lu\ncached_pages=%lu\ndrained_pages=%lu\n",
        extents, returned, mapped, drains, trimmed_bytes,
        (unsigned long)(stats.managed_pages - stats.free_pages - stats.cached_pages),
        (unsigned long)stats.free_pages, (unsigned long)stats.cached_pages,
        (unsigned long)stats.drained_pages);
    FILE *file = fopen(report_file, "w");
    if (file != NULL) {
        fwrite(text, 1, length, file);
        fclose(file);
    }
}

/* Gives back what rests: nothing was allocated or freed past the CPUs' caches since `since`. */
static void trim_if_idle(long now) {
    static uint64_t seen;
    static long since;
    static bool is_given;
    pagedepot_stats_t stats;
    if (pagedepot_stats(depot, &stats) != 0) {
        return;
    }
    uint64_t moved = stats.refills + stats.spills + stats.free_pages;
    if (moved != seen) {
        seen = moved;
        since = now;
        is_given = false;
    }
    if (is_given || now - since < trim_ms) {
        return;
    }
    pagedepot_trimmed_t trimmed = {0};
    pagedepot_drain_handover(depot, 10, 50, NULL);
    if (pagedepot_trim(depot, &trimmed) == 0) {
        atomic_fetch_add_explicit(&trimmed_bytes, trimmed.bytes, memory_order_relaxed);
        is_given = !trimmed.cut_short;
    }
    if (pagedepot_stats(depot, &stats) == 0) {
        seen = stats.refills + stats.spills + stats.free_pages;
    }
}

static void *work(void *unused) {
    (void)unused;
    long next_drain = now_ms() + drain_ms, next_look = now_ms() + 100;
    for (;;) {
        long now = now_ms();
        if (drain_mode >= 0 && now >= next_drain) {
            pagedepot_drain(depot, drain_mode, NULL);
            atomic_fetch_add_explicit(&drains, 1, memory_order_relaxed);
            next_drain = now + drain_ms;
        }
        if (now >= next_look) {
            trim_if_idle(now);
            report();
            next_look = now + 100;
        }
        long next = drain_mode >= 0 && next_drain < next_look ? next_drain : next_look;
        long pause = next - now_ms();
        struct timespec rest = {pause / 1000, pause % 1000 * 1000000};
        if (pause > 0) {
            nanosleep(&rest, NULL);
        }
    }
    return NULL;
}

static void fail(const char *what, const char *why) {
    fprintf(stderr, "libpagedepot_jemalloc: %s: %s; the program goes on without a depot\n", what,
            why);
}

/* A whole number from the environment; the default when it is none, which is said. */
static long number(const char *name, long least, long otherwise) {
    const char *text = getenv(name);
    if (text == NULL) {
        return otherwise;
    }
    char *end;
    errno = 0;
    long value = strtol(text, &end, 10);
    if (errno != 0 || end == text || *end != '\0' || value < least || value > 1L << 40) {
        fprintf(stderr, "libpagedepot_jemalloc: %s=%s is no number from %ld on; taking %ld\n", name,
                text, least, otherwise);
        return otherwise;
    }
    return value;
}

static void read_drain(void) {
    const char *mode = getenv("PAGEDEPOT_JEMALLOC_DRAIN");
    if (mode == NULL || strcmp(mode, "none") == 0) {
        return;
    }
    if (strcmp(mode, "quiet") == 0) {
        drain_mode = PAGEDEPOT_QUIET;
    } else if (strcmp(mode, "full") == 0) {
        drain_mode = PAGEDEPOT_FULL;
    } else if (strcmp(mode, "handover") == 0) {
        drain_mode = PAGEDEPOT_HANDOVER;
    } else {
        fprintf(stderr, "libpagedepot_jemalloc: PAGEDEPOT_JEMALLOC_DRAIN=%s: "
                "there are quiet, full, handover and none; taking none\n", mode);
    }
}

typedef int mallctl_t(const char *, void *, size_t *, void *, size_t);

static bool set_hooks(mallctl_t *mallctl, long decay_ms) {
    unsigned arenas = 0;
    size_t length = sizeof arenas;
    if (mallctl("opt.narenas", &arenas, &length, NULL, 0) != 0) {
        fail("opt.narenas", "this jemalloc has no statistics interface (mallctl)");
        return false;
    }
    for (unsigned at = 0; at < arenas; at++) {
        char name[64];
        extent_hooks_t *new_hooks = &hooks;
        ssize_t decay = decay_ms;
        snprintf(name, sizeof name, "arena.%u.extent_hooks", at);
        int error = mallctl(name, NULL, NULL, &new_hooks, sizeof new_hooks);
        if (error != 0 && at == 0) {
            fail(name, strerror(error));
            return false;
        }
        if (error != 0) {
            /* Those before have hooks, which need the thread. */
            fprintf(stderr, "libpagedepot_jemalloc: %s: %s; the depot serves %u of %u arenas\n",
                    name, strerror(error), at, arenas);
            return true;
        }
        snprintf(name, sizeof name, "arena.%u.dirty_decay_ms", at);
        mallctl(name, NULL, NULL, &decay, sizeof decay);
    }
    return true;
}

static void start_thread(void) {
    sigset_t all, before;
    pthread_t thread;
    sigfillset(&all);
    /* The program's handlers run on its own threads. */
    pthread_sigmask(SIG_BLOCK, &all, &before);
    int error = pthread_create(&thread, NULL, work, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error != 0) {
        fprintf(stderr, "libpagedepot_jemalloc: no thread for drains and trims: %s\n",
                strerror(error));
    } else {
        pthread_setname_np(thread, "pagedepot");
        pthread_detach(thread);
    }
}

__attribute__((constructor)) static void begin(void) {
    mallctl_t *mallctl = (mallctl_t *)dlsym(RTLD_DEFAULT, "mallctl");
    if (mallctl == NULL) {
        /* A shell on the way to the program, or a program without jemalloc. */
        return;
    }
    long ram_mib = (long)((size_t)sysconf(_SC_PHYS_PAGES) * (size_t)sysconf(_SC_PAGESIZE) >> 20);
    long mib = number("PAGEDEPOT_JEMALLOC_MIB", 1, ram_mib / 2);
    long decay_ms = number("PAGEDEPOT_JEMALLOC_DECAY_MS", 0, 1000);
    drain_ms = number("PAGEDEPOT_JEMALLOC_DRAIN_MS", 1, drain_ms);
    trim_ms = number("PAGEDEPOT_JEMALLOC_TRIM_MS", 1, trim_ms);
    const char *file = getenv("PAGEDEPOT_JEMALLOC_REPORT");
    /* A copy: programs that change their title (Redis) overwrite the environment. */
    report_file = file != NULL ? strdup(file) : NULL;
    read_drain();
    depot = pagedepot_new((size_t)mib << 20, NULL);
    if (depot == NULL) {
        fail("cannot make a depot", pagedepot_last_error());
        return;
    }
    page = pagedepot_page_size(depot);
    /* Hooks that are set stay: the depot is never deleted. */
    if (set_hooks(mallctl, decay_ms)) {
        start_thread();
    }
}
