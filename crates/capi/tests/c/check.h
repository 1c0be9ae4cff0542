/* What the tests in C are written with. */
#ifndef CHECK_H
#define CHECK_H

#include <errno.h>
#include <pagedepot.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Bytes of 256 pages: a MiB where a page has 4 KiB. */
#define MIB (256 * (size_t)sysconf(_SC_PAGESIZE))

#define CHECK(what)                                                             \
    do {                                                                        \
        if (!(what)) {                                                          \
            const char *text = pagedepot_last_error();                          \
            fprintf(stderr, "%s:%d: %s (errno %d, %s)\n", __FILE__, __LINE__,   \
                    #what, errno, text ? text : "no text");                     \
            exit(1);                                                            \
        }                                                                       \
    } while (0)
#define FAILS(call, number)                                                     \
    do {                                                                        \
        errno = 0;                                                              \
        CHECK(call);                                                            \
        CHECK(errno == (number));                                               \
    } while (0)
/* With a text of its own. */
#define FAILS_WITH(call, number, words)                                         \
    do {                                                                        \
        FAILS(call, number);                                                    \
        const char *told = pagedepot_last_error();                              \
        CHECK(told && strstr(told, words));                                     \
    } while (0)

#endif
