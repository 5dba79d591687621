/* What the worker asks for, parsed from the fields of a frame (request.c). Uses wire.h. */
#ifndef WARREN_REQUEST_H
#define WARREN_REQUEST_H

#include <sys/types.h>

#include "wire.h"

/* START, ATTACH and CONTROL; sudo sends its request to the supervisor in the same form. */
struct request {
    char id[65], *shell, *cwd, *user;
    char **argv, **env, **base_env;
    size_t argc, envc, base_envc;
    uint64_t timeout_ms, grace_ms, flags, keep, rows, cols, offset, op, signal, paused_ms;
    bool bad; /* a field was malformed or out of range: nothing else here may be used */
};
struct request request_parse(struct fields it);
void request_free(struct request *r);

/* FILE. The descriptors and ids are not part of the request: file_jobs.c sets them for the process that does the
 * work. */
struct file_request {
    enum file_op op;
    char *path, *path2, *owner;
    char *globs[MAX_GLOBS], *pattern;
    char *metadata[MAX_METADATA]; /* key=value */
    size_t glob_count, metadata_count;
    uint64_t offset, length, mode, depth, max_matches, timeout_ms;
    bool has_length, has_mode, recursive, ignore_case, hidden, details, attributes, sets_metadata;
    int in, out, commit; /* data to the file, data from it, one byte when the data is complete */
    uid_t uid;           /* the owner's, if there is an `owner`: who gets what is created */
    gid_t gid;
};
/* False if it is no valid file operation. The caller frees both `r` and `user` in any case. */
bool file_request_parse(struct fields it, struct file_request *r, char **user);
void file_request_free(struct file_request *r);

#endif
