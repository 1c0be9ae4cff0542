/* mimalloc over memory of a depot: its only arena is a range of the depot, and the system gives it
 * no other.
 *
 *     cc managed.c $(pkg-config --cflags --libs pagedepot) -lmimalloc
 *
 * mimalloc never gives an arena back, so the range is held until the program ends. What mimalloc
 * purges goes to the system by madvise, which a depot allows in anonymous pages that are held. */
#include <mimalloc.h>
#include <pagedepot.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MIB ((size_t)1 << 20)
/* mimalloc 2 wants arenas aligned to 32 MiB, its segments. */
#define ALIGN (32 * MIB)
#define ARENA (128 * MIB)
#define BLOCKS 20000

static void check(int is_right, const char *what) {
    if (!is_right) {
        fprintf(stderr, "%s\n", what);
        exit(1);
    }
}

int main(void) {
    pagedepot_t *depot = pagedepot_new(512 * MIB, NULL);
    check(depot != NULL, depot == NULL ? pagedepot_last_error() : "");
    size_t page = pagedepot_page_size(depot);
    char *range = pagedepot_alloc_contiguous(depot, ARENA / page, ALIGN / page, 0);
    check(range != NULL, "the depot has no 128 MiB in a row");

    /* Committed, of no huge pages, and zero: nothing of the depot was touched yet. */
    check(mi_manage_os_memory(range, ARENA, true, false, true, -1), "mimalloc takes no such range");
    mi_option_enable(mi_option_limit_os_alloc);

    static char *blocks[BLOCKS];
    int inside = 0;
    for (size_t at = 0; at < BLOCKS; at++) {
        size_t bytes = 16 + at % 8192;
        blocks[at] = mi_malloc(bytes);
        check(blocks[at] != NULL, "out of memory");
        inside += pagedepot_contains(depot, blocks[at]);
        memset(blocks[at], (int)at, bytes);
    }
    for (size_t at = 0; at < BLOCKS; at++) {
        check(blocks[at][15] == (char)at, "another block lies over this one");
        mi_free(blocks[at]);
    }
    /* The others lie in the segment that mimalloc had before main(). */
    printf("%d of %d blocks lay in the depot, which holds %lld pages for mimalloc\n", inside,
           BLOCKS, (long long)pagedepot_validate(depot));
    check(inside > BLOCKS / 4, "mimalloc made no use of the depot");
    return 0;
}
