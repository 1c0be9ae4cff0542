/* The consumer of the example killed_peer of pagedepot-linux, in C: claims the pages whose messages
 * come over a socket, and checks what is in them. Arguments: descriptors of segment and socket. */
#define _POSIX_C_SOURCE 200809L
#include <pagedepot.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Reads one message. Returns 0 at the end. */
static int receive(int socket, pagedepot_sent_t *sent) {
    size_t done = 0;
    while (done < sizeof *sent) {
        ssize_t got = read(socket, (char *)sent + done, sizeof *sent - done);
        if (got <= 0) {
            return 0;
        }
        done += (size_t)got;
    }
    return 1;
}

int main(int count, char **arguments) {
    if (count != 3) {
        fprintf(stderr, "usage: consumer SEGMENT SOCKET, both descriptors\n");
        return 2;
    }
    pagedepot_t *depot = pagedepot_adopt(atoi(arguments[1]), NULL);
    if (!depot) {
        fprintf(stderr, "%s\n", pagedepot_last_error());
        return 1;
    }
    pagedepot_sent_t sent;
    uint32_t expected = 0;
    while (receive(atoi(arguments[2]), &sent)) {
        unsigned order;
        uint32_t number;
        void *page = pagedepot_claim(depot, sent, &order);
        if (!page) {
            perror("pagedepot_claim");
            return 1;
        }
        memcpy(&number, page, sizeof number);
        if (number != expected++ || order != 0) {
            fprintf(stderr, "page %u came instead of %u\n", number, expected - 1);
            return 1;
        }
        pagedepot_free(depot, page, order);
    }
    printf("the consumer in C has claimed %u pages\n", expected);
    pagedepot_delete(depot);
    return 0;
}
