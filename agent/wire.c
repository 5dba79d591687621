/* Buffers, frames and fields: the encoding of the protocol that wire.h describes. fuzz/agent.c fuzzes these parsers.
 *
 * Numbers are little endian. The length of a frame or of a record is written when it is closed, into the place that was
 * left for it. The parsers check every length against the bytes that there are.
 */
#include "wire.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void out_of_memory(void) {
    static const char text[] = "warren-agent: out of memory\n";
    if (write(2, text, sizeof text - 1) < 0) {}
    _exit(111);
}

uint8_t *buf_room(struct buf *b, size_t n) {
    if (b->off == b->len) b->off = b->len = 0;
    if (b->cap - b->len >= n) return b->p + b->len;
    if (b->off > 0) {
        memmove(b->p, b->p + b->off, b->len - b->off);
        b->len -= b->off;
        b->off = 0;
        if (b->cap - b->len >= n) return b->p + b->len;
    }
    size_t cap = b->cap ? b->cap : 1024;
    while (cap < b->len + n) cap *= 2;
    uint8_t *p = realloc(b->p, cap);
    if (!p) out_of_memory();
    b->p = p;
    b->cap = cap;
    return b->p + b->len;
}

void buf_add(struct buf *b, const void *data, size_t n) {
    if (n == 0) return;
    memcpy(buf_room(b, n), data, n);
    b->len += n;
}

void buf_take(struct buf *b, size_t n) {
    b->off += n;
    if (b->off >= b->len) b->off = b->len = 0;
}

void buf_free(struct buf *b) {
    free(b->p);
    memset(b, 0, sizeof *b);
}

void put_u32(uint8_t *at, uint32_t v) {
    for (int i = 0; i < 4; i++) at[i] = (uint8_t)(v >> (8 * i));
}
void put_u64(uint8_t *at, uint64_t v) {
    for (int i = 0; i < 8; i++) at[i] = (uint8_t)(v >> (8 * i));
}
uint32_t get_u32(const uint8_t *at) {
    return (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}
uint64_t get_u64(const uint8_t *at) { return get_u32(at) | (uint64_t)get_u32(at + 4) << 32; }

/* Returns a mark for frame_close. It is relative to the unread part of the buffer, because adding may move the bytes.
 */
size_t frame_open(struct buf *b, enum response_type kind, uint32_t channel) {
    uint8_t *p = buf_room(b, HEADER_BYTES);
    memset(p, 0, HEADER_BYTES);
    put_u32(p + 4, channel);
    p[8] = (uint8_t)kind;
    size_t mark = b->len - b->off;
    b->len += HEADER_BYTES;
    return mark;
}

void frame_close(struct buf *b, size_t mark) {
    put_u32(b->p + b->off + mark, (uint32_t)(b->len - b->off - mark - HEADER_BYTES));
}

void add_bytes(struct buf *b, enum tag tag, const void *data, size_t n) {
    uint8_t *p = buf_room(b, 5 + n);
    p[0] = (uint8_t)tag;
    put_u32(p + 1, (uint32_t)n);
    if (n) memcpy(p + 5, data, n);
    b->len += 5 + n;
}

void add_number(struct buf *b, enum tag tag, uint64_t v) {
    uint8_t raw[8];
    put_u64(raw, v);
    add_bytes(b, tag, raw, sizeof raw);
}

void add_text(struct buf *b, enum tag tag, const char *s) { add_bytes(b, tag, s, strlen(s)); }

size_t record_open(struct buf *b) {
    buf_room(b, 4);
    size_t mark = b->len - b->off;
    b->len += 4;
    return mark;
}

void record_close(struct buf *b, size_t mark) { put_u32(b->p + b->off + mark, (uint32_t)(b->len - b->off - mark - 4)); }

bool parse_header(const uint8_t *p, struct header *out) {
    out->length = get_u32(p);
    out->channel = get_u32(p + 4);
    out->kind = p[8];
    return out->length <= MAX_FRAME && p[9] == 0 && p[10] == 0 && p[11] == 0;
}

bool next_field(struct fields *it, struct field *out) {
    if (it->p == it->end) return false;
    if (it->end - it->p < 5 || get_u32(it->p + 1) > (size_t)(it->end - it->p - 5)) {
        it->broken = true;
        return false;
    }
    out->tag = it->p[0];
    out->len = get_u32(it->p + 1);
    out->p = it->p + 5;
    it->p += 5 + out->len;
    return true;
}

bool field_number(const struct field *f, uint64_t *out) {
    if (f->len == 4) *out = get_u32(f->p);
    else if (f->len == 8) *out = get_u64(f->p);
    else return false;
    return true;
}

void free_strings(char **list) {
    for (char **p = list; p && *p; p++) free(*p);
    free(list);
}

char *field_string(const struct field *f, size_t max) {
    if (f->len > max || memchr(f->p, 0, f->len)) return NULL;
    char *s = malloc((size_t)f->len + 1);
    if (!s) out_of_memory();
    memcpy(s, f->p, f->len);
    s[f->len] = 0;
    return s;
}
