/* The protocol between worker and agent, version 1. src/warren/sandboxes/agent/wire.py describes it in full. */
#ifndef WARREN_WIRE_H
#define WARREN_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define WIRE_VERSION 1u
#define HEADER_BYTES 12u
#define MAX_FRAME (4u * 1024 * 1024)
#define MAX_RECORD (64u * 1024)
#define STDIN_WINDOW (256u * 1024)
#define OUTPUT_WINDOW (1024u * 1024)
#define MAX_GLOBS 64u
#define MAX_GLOB_BYTES 4000u
#define MAX_METADATA 64u         /* entries of one file */
#define MAX_METADATA_BYTES 4096u /* their keys and values together */

enum request_type {
    REQUEST_HELLO = 1,
    REQUEST_START,
    REQUEST_ATTACH,
    REQUEST_FILE,
    REQUEST_DATA,
    REQUEST_EOF,
    REQUEST_CREDIT,
    REQUEST_CONTROL,
    REQUEST_LIST,
    REQUEST_CLOSE,
    REQUEST_PING
};
enum response_type {
    RESPONSE_HELLO = 0x41,
    RESPONSE_STARTED,
    RESPONSE_OUTPUT,
    RESPONSE_EXIT,
    RESPONSE_ERROR,
    RESPONSE_DATA,
    RESPONSE_DONE,
    RESPONSE_CREDIT
};

enum tag {
    TAG_VERSION = 1,
    TAG_ID,
    TAG_ARGV,
    TAG_SHELL,
    TAG_ENV,
    TAG_CWD,
    TAG_USER,
    TAG_TIMEOUT_MS,
    TAG_GRACE_MS,
    TAG_FLAGS,
    TAG_KEEP,
    TAG_ROWS,
    TAG_COLS,
    TAG_OFFSET,
    TAG_LENGTH,
    TAG_OP,
    TAG_PATH,
    TAG_PATH2,
    TAG_MODE,
    TAG_DEPTH,
    TAG_SIGNAL,
    TAG_BASE_ENV,
    TAG_PID = 30,
    TAG_EXIT_CODE,
    TAG_REASON,
    TAG_DURATION_US,
    TAG_CPU_US,
    TAG_BYTES,
    TAG_KILLED,
    TAG_SURVIVORS,
    TAG_BACKGROUND,
    TAG_CODE,
    TAG_MESSAGE,
    TAG_RUNNING,
    TAG_AGE_MS,
    TAG_TRUNCATED,
    TAG_SIZE,
    TAG_MTIME_NS,
    TAG_UID,
    TAG_GID,
    TAG_KIND,
    TAG_TARGET,
    TAG_COMMAND,
    TAG_TERMINAL,
    TAG_CHANGE,
    TAG_COUNT,
    TAG_GLOB,
    TAG_PATTERN,
    TAG_LINE,
    TAG_COLUMN,
    TAG_TEXT,
    TAG_SEARCHED,
    TAG_BINARY,
    TAG_TOO_LARGE,
    TAG_UNREADABLE,
    TAG_HIDDEN,
    TAG_LONG_LINES,
    TAG_OWNER,
    TAG_GROUP,
    TAG_TARGET_PATH,
    TAG_TARGET_KIND,
    TAG_TARGET_MODE,
    TAG_METADATA,
    TAG_CONTROL
};

enum flag {
    FLAG_STDIN = 1,
    FLAG_CARRY = 2,
    FLAG_TERMINAL = 4,
    FLAG_DEFER = 8,
    FLAG_LOSSLESS = 16,
    FLAG_FOLLOW = 32,
    FLAG_RECURSIVE = 64,
    FLAG_ONCE = 128,
    FLAG_IGNORE_CASE = 256,
    FLAG_HIDDEN = 512,
    FLAG_DETAILS = 1024,
    FLAG_ATTRIBUTES = 2048,
    FLAG_METADATA = 4096,
    FLAG_UNTIL_CLOSED = 8192
};
enum file_op {
    OP_READ = 1,
    OP_WRITE,
    OP_LIST,
    OP_STAT,
    OP_MKDIR,
    OP_REMOVE,
    OP_RENAME,
    OP_PACK,
    OP_UNPACK,
    OP_WATCH,
    OP_SEARCH,
    OP_WRITE_IN_PLACE
};
#define LAST_FILE_OP OP_WRITE_IN_PLACE /* HELLO tells the worker, because an older agent has fewer */
enum control_op { CONTROL_SIGNAL = 1, CONTROL_KILL, CONTROL_RESIZE, CONTROL_FORGET, CONTROL_KILL_ALL, CONTROL_RESUMED };
#define LAST_CONTROL_OP CONTROL_RESUMED /* the same */

enum code {
    CODE_NOT_FOUND = 1,
    CODE_PERMISSION_DENIED,
    CODE_IS_DIRECTORY,
    CODE_NOT_A_DIRECTORY,
    CODE_EXISTS,
    CODE_INVALID_PATH,
    CODE_NO_SPACE,
    CODE_UNKNOWN_USER,
    CODE_NO_PROCESS,
    CODE_INVALID,
    CODE_LIMIT,
    CODE_IO,
    CODE_CONFLICT,
    CODE_NO_CWD
};

enum reason { REASON_EXITED, REASON_SIGNAL, REASON_TIMEOUT, REASON_CANCELLED };
enum kind { KIND_FILE, KIND_DIRECTORY, KIND_SYMLINK, KIND_OTHER };
enum change {
    CHANGE_CREATED = 1,
    CHANGE_MODIFIED,
    CHANGE_REMOVED,
    CHANGE_MOVED_FROM,
    CHANGE_MOVED_TO,
    CHANGE_OVERFLOW,
    CHANGE_ATTRIBUTES,
    CHANGE_SYNCED
};
enum truncation { TRUNCATED_BY_MATCHES = 1, TRUNCATED_BY_TIME };
enum stream { STREAM_OUT = 1, STREAM_ERR, STREAM_TERMINAL };

/* A queue of bytes: added at the end, taken from the front. Running out of memory ends the process. */
struct buf {
    uint8_t *p;
    size_t off, len, cap;
};

static inline size_t buf_used(const struct buf *b) { return b->len - b->off; }
static inline uint8_t *buf_head(const struct buf *b) { return b->p + b->off; }
uint8_t *buf_room(struct buf *b, size_t n);
void buf_add(struct buf *b, const void *data, size_t n);
void buf_take(struct buf *b, size_t n);
void buf_free(struct buf *b);

void put_u32(uint8_t *at, uint32_t v);
void put_u64(uint8_t *at, uint64_t v);
uint32_t get_u32(const uint8_t *at);
uint64_t get_u64(const uint8_t *at);

/* Writing: frame_open … add_* … frame_close. */
size_t frame_open(struct buf *b, enum response_type kind, uint32_t channel);
void frame_close(struct buf *b, size_t mark);
void add_number(struct buf *b, enum tag tag, uint64_t v);
void add_bytes(struct buf *b, enum tag tag, const void *p, size_t n);
void add_text(struct buf *b, enum tag tag, const char *s);
size_t record_open(struct buf *b);
void record_close(struct buf *b, size_t mark);

/* Reading: a header, then the fields. Never reads outside the given bytes. */
struct header {
    uint32_t length, channel;
    uint8_t kind;
};
bool parse_header(const uint8_t *p, struct header *out);

struct field {
    uint8_t tag;
    const uint8_t *p;
    uint32_t len;
};
struct fields {
    const uint8_t *p, *end;
    bool broken;
};
bool next_field(struct fields *it, struct field *out);
bool field_number(const struct field *f, uint64_t *out);
/* Copies a field to a C string; NULL if it contains a NUL byte or is longer than max. */
char *field_string(const struct field *f, size_t max);
/* Frees a list that ends with NULL, and its strings. */
void free_strings(char **list);

#endif
