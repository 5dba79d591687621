/* The output of a command in the order it was written: its head and its tail, up to `keep` bytes. */
#ifndef WARREN_LOG_H
#define WARREN_LOG_H

#include "wire.h"

struct ring {
    uint8_t *p;
    size_t cap;
    uint64_t start, end, last; /* positions of the oldest record, the end and the newest record; they only grow */
    uint64_t first;            /* offset of the oldest record's first byte in the whole output */
};

struct log {
    struct ring head, tail;
    size_t keep;
    uint64_t total;
    uint64_t released; /* `total` when the pages were last released */
    bool cut;
};

/* The position of a reader, set by log_seek. */
struct cursor {
    bool in_tail;
    uint64_t record, offset;
    uint32_t inside;
};

void log_init(struct log *l, size_t keep);
void log_free(struct log *l);
size_t log_memory(const struct log *l);
void log_release_pages(struct log *l, bool now);
void log_add(struct log *l, enum stream stream, const uint8_t *p, size_t n);
void log_seek(const struct log *l, struct cursor *c, uint64_t offset);
/* Copies the next bytes of one stream; 0 at the end. `offset` is where they stand in the whole output. */
size_t log_next(const struct log *l, struct cursor *c, uint8_t *to, size_t max, uint8_t *stream, uint64_t *offset);

#endif
