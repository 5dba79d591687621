/* Feeds the parsers and the log with malformed input. Built with sanitizers; any fault ends it.
 *
 *   warren-agent-fuzz ROUNDS SEED
 *
 * Inputs are requests with bytes changed and cut off. The log is checked against a simple model: what it returns must
 * be what was added, at the offset it says.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "log.h"
#include "process.h"
#include "request.h"

static uint64_t state;

void fail(const char *what) {
    fprintf(stderr, "%s\n", what);
    abort();
}

static uint32_t draw(uint32_t below) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return below ? (uint32_t)(state >> 33) % below : 0;
}

static void some_field(struct buf *b) {
    uint8_t raw[64];
    size_t n = draw(sizeof raw);
    for (size_t i = 0; i < n; i++) raw[i] = (uint8_t)draw(256);
    if (draw(2)) add_number(b, (enum tag)(1 + draw(80)), draw(3) ? draw(200) : (uint64_t)draw(~0u) << draw(33));
    else add_bytes(b, (enum tag)(1 + draw(80)), raw, n);
}

static void damage(struct buf *b) {
    for (uint32_t i = draw(4); i > 0 && b->len > 0; i--) {
        if (draw(3) == 0) b->len = draw((uint32_t)b->len);
        else b->p[draw((uint32_t)b->len)] = (uint8_t)draw(256);
    }
}

static void parse_all(const uint8_t *p, size_t n) {
    /* Allocate exactly that size, so that the sanitizer sees a read beyond it. */
    uint8_t *exact = malloc(n ? n : 1);
    if (!exact) fail("memory");
    memcpy(exact, p, n);
    struct header h;
    if (n >= HEADER_BYTES) parse_header(exact, &h);
    struct request r = request_parse((struct fields){exact, exact + n, false});
    request_free(&r);
    struct file_request f = {0};
    char *user = NULL;
    file_request_parse((struct fields){exact, exact + n, false}, &f, &user);
    file_request_free(&f);
    free(user);
    free(exact);
}

static void fuzz_parsers(void) {
    struct buf b = {0};
    for (uint32_t i = draw(12); i > 0; i--) some_field(&b);
    damage(&b);
    parse_all(b.p ? b.p : (const uint8_t *)"", b.len);
    buf_free(&b);
}

/* The byte at an offset of the model's output. */
static uint8_t model(uint64_t offset) { return (uint8_t)(offset * 2654435761u >> 13); }

static void check_reader(const struct log *l, uint64_t from) {
    static uint8_t out[5000];
    struct cursor c;
    uint8_t stream;
    uint64_t at = 0, last = 0;
    log_seek(l, &c, from);
    for (size_t n; (n = log_next(l, &c, out, 1 + draw(sizeof out - 1), &stream, &at)) > 0; last = at + n) {
        if (at < last || at + n > l->total || stream < 1 || stream > 3) fail("log: offsets");
        for (size_t i = 0; i < n; i++)
            if (out[i] != model(at + i)) fail("log: bytes");
    }
    if (from < l->total && l->keep >= 256 && last != l->total) fail("log: the end is missing");
}

static void fuzz_log(void) {
    static uint8_t in[3000];
    struct log l;
    log_init(&l, draw(3) ? 256 + draw(4000) : draw(300000));
    for (uint32_t i = draw(60); i > 0; i--) {
        size_t n = draw(4) ? draw(40) : draw(sizeof in);
        for (size_t k = 0; k < n; k++) in[k] = model(l.total + k);
        log_add(&l, (enum stream)(1 + draw(3)), in, n);
        if (draw(5) == 0) check_reader(&l, draw((uint32_t)l.total + 10));
    }
    check_reader(&l, 0);
    log_free(&l);
}

int main(int argc, char **argv) {
    long rounds = argc > 1 ? atol(argv[1]) : 10000;
    state = argc > 2 ? (uint64_t)atol(argv[2]) : 1;
    for (long i = 0; i < rounds; i++) {
        fuzz_parsers();
        if (i % 4 == 0) fuzz_log();
    }
    printf("%ld rounds, no fault\n", rounds);
    return 0;
}
