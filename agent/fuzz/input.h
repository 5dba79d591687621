/* What libFuzzer has made up for one run, taken piece by piece. When it is used up everything is zero. */
#ifndef WARREN_FUZZ_INPUT_H
#define WARREN_FUZZ_INPUT_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

static const uint8_t *input;
static size_t input_left;

static inline uint8_t take_byte(void) {
    if (input_left == 0) return 0;
    input_left--;
    return *input++;
}

static inline size_t take_bytes(void *to, size_t n) {
    if (n > input_left) n = input_left;
    if (n) memcpy(to, input, n);
    input += n;
    input_left -= n;
    return n;
}

/* Bytes that say where in a stream they stand: copies those from `offset` on. */
#define PATTERN_BYTES 8191u
static inline void pattern_copy(uint8_t *to, uint64_t offset, size_t n) {
    static uint8_t pattern[2 * PATTERN_BYTES];
    if (pattern[0] == 0)
        for (uint32_t i = 0; i < sizeof pattern; i++)
            pattern[i] = (uint8_t)(1 + (i % PATTERN_BYTES * 2654435761u >> 16) % 255);
    for (size_t part; n > 0; to += part, offset += part, n -= part) {
        part = n < PATTERN_BYTES ? n : PATTERN_BYTES;
        memcpy(to, pattern + offset % PATTERN_BYTES, part);
    }
}

static inline int pattern_equals(const uint8_t *p, uint64_t offset, size_t n) {
    static uint8_t expected[PATTERN_BYTES];
    for (size_t part; n > 0; p += part, offset += part, n -= part) {
        part = n < PATTERN_BYTES ? n : PATTERN_BYTES;
        pattern_copy(expected, offset, part);
        if (memcmp(p, expected, part) != 0) return 0;
    }
    return 1;
}

/* A promise of the code under test was broken: libFuzzer keeps the input. */
#define promise(holds)                                                                                                 \
    do {                                                                                                               \
        if (!(holds)) {                                                                                                \
            fprintf(stderr, "%s:%d: broken: %s\n", __FILE__, __LINE__, #holds);                                        \
            abort();                                                                                                   \
        }                                                                                                              \
    } while (0)

#endif
