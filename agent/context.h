/* Code contexts: what keeper.c and cell.c have in common.
 *
 * A frame is one byte that says its type, four bytes of length, most significant first, and the payload:
 *   cell client -> keeper -> runner   Q a request       cell client -> keeper          i interrupt it
 *   runner -> keeper -> cell client   r an event, x the end; h, once and before all others: the runner is ready
 *   keeper -> cell client             b begin, o and e text of stdout and stderr, c cut, l lost
 *   keeper -> its own stdout          d its directory; v variables, if it was asked to tell some; h
 * Requests, events and ends are JSON that nothing here reads. */
#ifndef WARREN_CONTEXT_H
#define WARREN_CONTEXT_H

#include <arpa/inet.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

#define FRAME_HEAD 5u
#define MAX_REQUEST (16u * 1024 * 1024)
#define MAX_CONTEXT_ID 64
#define BUSY "busy" /* the payload of `l` for a client above the limit */

static inline void frame_head(uint8_t *to, char type, size_t length) {
    uint32_t n = htonl((uint32_t)length);
    to[0] = (uint8_t)type;
    memcpy(to + 1, &n, sizeof n);
}

static inline size_t frame_length(const uint8_t *head) {
    uint32_t n;
    memcpy(&n, head + 1, sizeof n);
    return ntohl(n);
}

/* The socket of a context, in the abstract namespace. */
static inline socklen_t context_address(struct sockaddr_un *a, const char *id) {
    *a = (struct sockaddr_un){.sun_family = AF_UNIX};
    int n = snprintf(a->sun_path + 1, sizeof a->sun_path - 1, "warren-context-%.*s", MAX_CONTEXT_ID, id);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
}

#endif
