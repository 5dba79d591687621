/* Keeps the head and the tail of a command's output.
 *
 * Both are rings of records: a header of 4 bytes (stream in the top two bits, length below) and the bytes. The head
 * fills once and is never overwritten; later output goes to the tail, which drops its oldest records. Records are short
 * compared to the ring, so dropping whole records loses little. The kernel allocates the memory as it is touched, and
 * log_free gives it back.
 *
 * The rings are shared anonymous mappings. log_release_pages removes their pages from the agent's address space without
 * losing them: when the sandbox runs out of memory the kernel kills its largest process, and that must not be the
 * agent because of the output it keeps.
 */
#define _GNU_SOURCE
#include "log.h"

#include <string.h>
#include <sys/mman.h>

#define RECORD_HEAD 4u
#define REST_BYTES (1024u * 1024)

static size_t record_max(const struct ring *r) {
    size_t n = r->cap / 8;
    return n > 16384 ? 16384 : n < 16 ? 16 : n;
}

static bool ring_open(struct ring *r, size_t cap, uint64_t first) {
    r->p = mmap(NULL, cap, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (r->p == MAP_FAILED) {
        r->p = NULL;
        return false;
    }
    r->cap = cap;
    r->start = r->end = r->last = 0;
    r->first = first;
    return true;
}

static void ring_put(struct ring *r, uint64_t at, const uint8_t *p, size_t n) {
    size_t i = at % r->cap, front = r->cap - i < n ? r->cap - i : n;
    memcpy(r->p + i, p, front);
    memcpy(r->p, p + front, n - front);
}

static void ring_get(const struct ring *r, uint64_t at, uint8_t *p, size_t n) {
    size_t i = at % r->cap, front = r->cap - i < n ? r->cap - i : n;
    memcpy(p, r->p + i, front);
    memcpy(p + front, r->p, n - front);
}

static uint32_t head_at(const struct ring *r, uint64_t at) {
    uint8_t raw[RECORD_HEAD];
    ring_get(r, at, raw, sizeof raw);
    return get_u32(raw);
}

static uint32_t length_at(const struct ring *r, uint64_t at) { return head_at(r, at) & 0x3fffffff; }

static void set_head(struct ring *r, uint64_t at, enum stream stream, size_t n) {
    uint8_t raw[RECORD_HEAD];
    put_u32(raw, (uint32_t)stream << 30 | (uint32_t)n);
    ring_put(r, at, raw, sizeof raw);
}

static void drop_oldest(struct ring *r) {
    uint32_t n = length_at(r, r->start);
    r->start += RECORD_HEAD + n;
    r->first += n;
}

/* Adds at most one record; returns the bytes added, 0 if the ring is full and may not drop. */
static size_t ring_add(struct ring *r, enum stream stream, const uint8_t *p, size_t n, bool may_drop) {
    size_t max = record_max(r);
    bool merge = r->end > r->start && head_at(r, r->last) >> 30 == stream && length_at(r, r->last) < max;
    size_t have = merge ? length_at(r, r->last) : 0, need = merge ? 0 : RECORD_HEAD;
    if (n > max - have) n = max - have;
    size_t room = r->cap - (size_t)(r->end - r->start);
    if (!may_drop) {
        if (room <= need) return 0;
        if (n > room - need) n = room - need;
    }
    while (r->cap - (size_t)(r->end - r->start) < need + n) drop_oldest(r);
    if (!merge) {
        r->last = r->end;
        r->end += RECORD_HEAD;
    }
    ring_put(r, r->end, p, n);
    r->end += n;
    set_head(r, r->last, stream, have + n);
    return n;
}

void log_init(struct log *l, size_t keep) {
    memset(l, 0, sizeof *l);
    l->keep = keep;
}

static void ring_close(struct ring *r) {
    if (r->p) munmap(r->p, r->cap);
    memset(r, 0, sizeof *r);
}

void log_release_pages(struct log *l, bool now) {
    if (l->total - l->released < (now ? 1 : REST_BYTES)) return;
    l->released = l->total;
    if (l->head.p) madvise(l->head.p, l->head.cap, MADV_DONTNEED);
    if (l->tail.p) madvise(l->tail.p, l->tail.cap, MADV_DONTNEED);
}

void log_free(struct log *l) {
    ring_close(&l->head);
    ring_close(&l->tail);
}

size_t log_memory(const struct log *l) {
    size_t tail = (size_t)(l->tail.end < l->tail.cap ? l->tail.end : l->tail.cap);
    return (size_t)l->head.end + tail;
}

static void count_dropped(struct log *l, size_t n) {
    l->cut = true;
    l->total += n;
}

void log_add(struct log *l, enum stream stream, const uint8_t *p, size_t n) {
    if (l->keep < 256) {
        count_dropped(l, n);
        return;
    }
    if (!l->head.p && l->total == 0 && !ring_open(&l->head, l->keep / 2, 0)) {
        count_dropped(l, n);
        return;
    }
    while (n > 0 && !l->tail.p && l->head.p) {
        size_t took = ring_add(&l->head, stream, p, n, false);
        if (took == 0) break;
        p += took, n -= took, l->total += took;
    }
    if (n == 0) return;
    if (!l->tail.p && !ring_open(&l->tail, l->keep / 2, l->total)) {
        count_dropped(l, n);
        return;
    }
    while (n > 0) {
        uint64_t was = l->tail.first;
        size_t took = ring_add(&l->tail, stream, p, n, true);
        p += took, n -= took, l->total += took;
        if (l->tail.first != was) l->cut = true;
    }
}

void log_seek(const struct log *l, struct cursor *c, uint64_t offset) {
    memset(c, 0, sizeof *c);
    const struct ring *r = &l->head;
    uint64_t head_bytes = l->tail.p ? 0 : l->total;
    if (l->tail.p) {
        for (uint64_t at = r->start; at < r->end; at += RECORD_HEAD + length_at(r, at)) head_bytes += length_at(r, at);
    }
    if (offset >= head_bytes && l->tail.p) {
        r = &l->tail;
        c->in_tail = true;
    }
    c->record = r->start;
    c->offset = r->first;
    while (c->record < r->end) {
        uint32_t n = length_at(r, c->record);
        if (c->offset + n > offset || c->record + RECORD_HEAD + n >= r->end) break;
        c->offset += n;
        c->record += RECORD_HEAD + n;
    }
    if (c->record < r->end && offset > c->offset) {
        uint32_t n = length_at(r, c->record);
        uint64_t inside = offset - c->offset;
        c->inside = inside > n ? n : (uint32_t)inside;
        c->offset += c->inside;
    }
}

/* Moves the cursor to a record with unread bytes; false at the end. */
static bool find_unread(const struct log *l, struct cursor *c) {
    for (;;) {
        const struct ring *r = c->in_tail ? &l->tail : &l->head;
        if (c->in_tail && c->record < r->start) {
            c->record = r->start;
            c->offset = r->first;
            c->inside = 0;
        }
        if (c->record < r->end) {
            uint32_t n = length_at(r, c->record);
            if (c->inside < n) return true;
            if (c->record + RECORD_HEAD + n < r->end) {
                c->record += RECORD_HEAD + n;
                c->inside = 0;
                continue;
            }
        }
        if (c->in_tail || !l->tail.p) return false;
        c->in_tail = true;
        c->record = l->tail.start;
        c->offset = l->tail.first;
        c->inside = 0;
    }
}

size_t log_next(const struct log *l, struct cursor *c, uint8_t *to, size_t max, uint8_t *stream, uint64_t *offset) {
    size_t n = 0;
    *stream = 0;
    while (n < max && find_unread(l, c)) {
        const struct ring *r = c->in_tail ? &l->tail : &l->head;
        uint8_t this_stream = (uint8_t)(head_at(r, c->record) >> 30);
        if (n > 0 && (this_stream != *stream || c->offset != *offset + n)) break;
        if (n == 0) {
            *stream = this_stream;
            *offset = c->offset;
        }
        size_t part = length_at(r, c->record) - c->inside;
        if (part > max - n) part = max - n;
        ring_get(r, c->record + RECORD_HEAD + c->inside, to + n, part);
        c->inside += (uint32_t)part;
        c->offset += part;
        n += part;
    }
    return n;
}
