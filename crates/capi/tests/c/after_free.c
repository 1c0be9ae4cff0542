/* Reads a page after it was freed: the tools must report it. */
#include <pagedepot.h>
#include <stdio.h>

int main(void) {
    pagedepot_t *depot = pagedepot_new(1 << 20, NULL);
    volatile char *page = pagedepot_alloc(depot, 0);
    page[0] = 1;
    pagedepot_free(depot, (void *)page, 0);
    printf("%d\n", page[0]);
    pagedepot_delete(depot);
    return 0;
}
