/* The lines of this program that hold pages are those that pagedepot_allocinfo() names. */
#define PAGEDEPOT_CALL_SITES
#include <pagedepot.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char text[4096];

/* Ends the program unless a line holds these bytes in so many calls; 0 bytes: unless it holds
 * none. */
static void expect(pagedepot_t *depot, int line, unsigned long bytes, unsigned long calls) {
    char wanted[256], place[128];
    size_t length = pagedepot_allocinfo(depot, text, sizeof text);
    if (length == 0 || length >= sizeof text || strlen(text) != length) {
        fprintf(stderr, "%zu bytes, errno %d\n", length, errno);
        exit(1);
    }
    snprintf(place, sizeof place, " %s:%d:1 [pages]\n", __FILE__, line);
    snprintf(wanted, sizeof wanted, "%12lu %8lu%s", bytes, calls, place);
    if (bytes ? !strstr(text, wanted) : strstr(text, place) != NULL) {
        fprintf(stderr, "not \"%s\" in:\n%s", bytes ? wanted : place, text);
        exit(1);
    }
}

/* Ends the program unless no line of it holds pages. */
static void expect_no_lines(pagedepot_t *depot) {
    pagedepot_allocinfo(depot, text, sizeof text);
    if (strstr(text, __FILE__)) {
        fprintf(stderr, "no line holds pages, and yet:\n%s", text);
        exit(1);
    }
}

int main(void) {
    pagedepot_t *depot = pagedepot_new(64 << 20, NULL);
    void *pages[3], *many[100];
    int lines[5], nth;
    for (nth = 0; nth < 3; nth++) {
        pages[nth] = pagedepot_alloc(depot, 0); lines[0] = __LINE__;
    }
    void *block = pagedepot_alloc_flags(depot, 4, PAGEDEPOT_ZEROED); lines[1] = __LINE__;
    void *waited = pagedepot_alloc_wait(depot, 1, 10); lines[2] = __LINE__;
    void *run = pagedepot_alloc_contiguous(depot, 5, 1, 0); lines[3] = __LINE__;
    size_t got = pagedepot_alloc_many(depot, 0, 0, many, 100); lines[4] = __LINE__;
    if (!pages[2] || !block || !waited || !run || got != 100) {
        return 1;
    }
    expect(depot, lines[0], 3 * 4096, 3);
    expect(depot, lines[1], 16 * 4096, 1);
    expect(depot, lines[2], 2 * 4096, 1);
    expect(depot, lines[3], 5 * 4096, 1);
    expect(depot, lines[4], 100 * 4096, 100);
    /* Pages of a run are its line's until they are freed, in whatever parts. */
    pagedepot_free_contiguous(depot, (char *)run + 3 * 4096, 2);
    expect(depot, lines[3], 3 * 4096, 1);
    pagedepot_free(depot, run, 0);
    expect(depot, lines[3], 2 * 4096, 0);
    /* The parts of a block are its line's. */
    if (pagedepot_split(depot, block, 4, 2)) {
        return 1;
    }
    expect(depot, lines[1], 16 * 4096, 4);
    for (nth = 0; nth < 4; nth++) {
        pagedepot_free(depot, (char *)block + nth * 4 * 4096, 2);
    }
    pagedepot_free(depot, pages[0], 0);
    pagedepot_free_many(depot, 0, many, got);
    expect(depot, lines[0], 2 * 4096, 2);
    expect(depot, lines[1], 0, 0);
    expect(depot, lines[4], 0, 0);
    /* A text that does not fit is cut, and its length is told. */
    size_t whole = pagedepot_allocinfo(depot, text, 10);
    if (strlen(text) != 9 || whole <= 9 || pagedepot_allocinfo(depot, NULL, 0) != whole) {
        return 1;
    }
    if (pagedepot_alloc(NULL, 0) || pagedepot_allocinfo(NULL, text, 10) || errno != EINVAL) {
        return 1;
    }
    /* A block that was sent is no line's, nor one that was claimed. */
    pagedepot_t *shared = pagedepot_create(NULL, 4 << 20, NULL);
    pagedepot_sent_t sent[3];
    pages[0] = shared ? pagedepot_alloc(shared, 2) : NULL; lines[0] = __LINE__;
    got = shared ? pagedepot_alloc_many(shared, 0, 0, many, 2) : 0; lines[1] = __LINE__;
    if (!pages[0] || got != 2) {
        return 1;
    }
    expect(shared, lines[0], 4 * 4096, 1);
    if (pagedepot_send(shared, pages[0], 2, sent) ||
        pagedepot_send_many(shared, many, 0, sent + 1, 2) != 2) {
        return 1;
    }
    expect_no_lines(shared);
    if (pagedepot_claim(shared, sent[0], NULL) != pages[0]) {
        return 1;
    }
    expect_no_lines(shared);
    pagedepot_delete(shared);
    pagedepot_free(depot, pages[1], 0);
    pagedepot_free(depot, pages[2], 0);
    pagedepot_free(depot, waited, 1);
    pagedepot_free_contiguous(depot, (char *)run + 4096, 2);
    pagedepot_delete(depot);
    puts("each line holds what it allocated");
    return 0;
}
