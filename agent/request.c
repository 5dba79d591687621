/* Parses the fields of START, ATTACH, CONTROL and FILE. fuzz/agent.c fuzzes these parsers.
 *
 * A request comes from the worker, or, through sudo, from user code, so the type and the range of every field are
 * checked. Unknown fields are ignored: a newer worker may send more.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "process.h"
#include "request.h"

#define MAX_TEXT (3u * 1024 * 1024)
#define MAX_LIST 65536u

static void add_to(char ***list, size_t *n, char *item, bool *bad) {
    if (!item || *n >= MAX_LIST) {
        free(item);
        *bad = true;
        return;
    }
    if ((*n & (*n + 1)) == 0) {
        char **more = realloc(*list, (*n + 1) * 2 * sizeof **list);
        if (!more) fail("memory");
        *list = more;
    }
    (*list)[(*n)++] = item;
    (*list)[*n] = NULL;
}

static void set_text(char **at, const struct field *f, size_t max, bool *bad) {
    free(*at);
    *at = field_string(f, max);
    if (!*at) *bad = true;
}

struct request request_parse(struct fields it) {
    struct request r = {.grace_ms = 2000, .keep = 10u * 1024 * 1024, .rows = 24, .cols = 80};
    r.argv = calloc(1, sizeof *r.argv);
    r.env = calloc(1, sizeof *r.env);
    r.base_env = calloc(1, sizeof *r.base_env);
    if (!r.argv || !r.env || !r.base_env) fail("memory");
    for (struct field f; next_field(&it, &f);) {
        uint64_t n = 0;
        bool is_number = field_number(&f, &n);
        char *s;
        switch (f.tag) {
        case TAG_ID:
            s = field_string(&f, 64);
            if (!s || !*s) r.bad = true;
            else snprintf(r.id, sizeof r.id, "%s", s);
            free(s);
            break;
        case TAG_ARGV: add_to(&r.argv, &r.argc, field_string(&f, MAX_TEXT), &r.bad); break;
        case TAG_ENV: add_to(&r.env, &r.envc, field_string(&f, MAX_TEXT), &r.bad); break;
        case TAG_BASE_ENV: add_to(&r.base_env, &r.base_envc, field_string(&f, MAX_TEXT), &r.bad); break;
        case TAG_SHELL: set_text(&r.shell, &f, MAX_TEXT, &r.bad); break;
        case TAG_CWD: set_text(&r.cwd, &f, 4095, &r.bad); break;
        case TAG_USER: set_text(&r.user, &f, 255, &r.bad); break;
        case TAG_TIMEOUT_MS: r.timeout_ms = n, r.bad |= !is_number || n > UINT32_MAX; break;
        case TAG_GRACE_MS: r.grace_ms = n, r.bad |= !is_number || n > 3600000; break;
        case TAG_FLAGS: r.flags = n, r.bad |= !is_number; break;
        case TAG_KEEP: r.keep = n, r.bad |= !is_number || n > 1u << 30; break;
        case TAG_ROWS: r.rows = n, r.bad |= !is_number || n > 65535; break;
        case TAG_COLS: r.cols = n, r.bad |= !is_number || n > 65535; break;
        case TAG_OFFSET: r.offset = n, r.bad |= !is_number; break;
        case TAG_OP: r.op = n, r.bad |= !is_number; break;
        case TAG_AGE_MS: r.paused_ms = n, r.bad |= !is_number || n > 1ull << 48; break;
        case TAG_SIGNAL: r.signal = n, r.bad |= !is_number || n > 64; break;
        default: break;
        }
    }
    r.bad |= it.broken;
    return r;
}

void request_free(struct request *r) {
    free_strings(r->argv);
    free_strings(r->env);
    free_strings(r->base_env);
    free(r->shell);
    free(r->cwd);
    free(r->user);
}

bool file_request_parse(struct fields it, struct file_request *r, char **user) {
    bool bad = false;
    for (struct field f; next_field(&it, &f);) {
        uint64_t n = 0;
        bool is_number = field_number(&f, &n);
        switch (f.tag) {
        case TAG_OP: r->op = (enum file_op)n, bad |= !is_number || n < OP_READ || n > LAST_FILE_OP; break;
        case TAG_PATH: free(r->path), r->path = field_string(&f, 4095), bad |= !r->path; break;
        case TAG_PATH2: free(r->path2), r->path2 = field_string(&f, 4095), bad |= !r->path2; break;
        case TAG_USER: free(*user), *user = field_string(&f, 255), bad |= !*user; break;
        case TAG_OFFSET: r->offset = n, bad |= !is_number || n > INT64_MAX; break;
        case TAG_LENGTH: r->length = n, r->has_length = true, bad |= !is_number; break;
        case TAG_MODE: r->mode = n, r->has_mode = true, bad |= !is_number || n > 07777; break;
        case TAG_DEPTH: r->depth = n, bad |= !is_number; break;
        case TAG_COUNT: r->max_matches = n, bad |= !is_number; break;
        case TAG_TIMEOUT_MS: r->timeout_ms = n, bad |= !is_number || n > UINT32_MAX; break;
        case TAG_OWNER: free(r->owner), r->owner = field_string(&f, 255), bad |= !r->owner; break;
        case TAG_METADATA:
            if (r->metadata_count == MAX_METADATA ||
                !(r->metadata[r->metadata_count] = field_string(&f, MAX_METADATA_BYTES)))
                bad = true;
            else r->metadata_count++;
            break;
        case TAG_PATTERN: free(r->pattern), r->pattern = field_string(&f, MAX_GLOB_BYTES), bad |= !r->pattern; break;
        case TAG_GLOB:
            if (r->glob_count == MAX_GLOBS || !(r->globs[r->glob_count] = field_string(&f, MAX_GLOB_BYTES))) bad = true;
            else r->glob_count++;
            break;
        case TAG_FLAGS:
            r->recursive = n & FLAG_RECURSIVE, r->ignore_case = n & FLAG_IGNORE_CASE, r->hidden = n & FLAG_HIDDEN;
            r->details = n & FLAG_DETAILS, r->attributes = n & FLAG_ATTRIBUTES, r->sets_metadata = n & FLAG_METADATA;
            bad |= !is_number;
            break;
        default: break;
        }
    }
    if (r->op == OP_SEARCH && !r->timeout_ms) bad = true;
    return !bad && !it.broken && r->op && r->path && *r->path && (r->op != OP_RENAME || (r->path2 && *r->path2));
}

void file_request_free(struct file_request *r) {
    free(r->path);
    free(r->path2);
    free(r->pattern);
    free(r->owner);
    for (size_t i = 0; i < r->metadata_count; i++) free(r->metadata[i]);
    for (size_t i = 0; i < r->glob_count; i++) free(r->globs[i]);
}
