/* Operations on single files. Runs in a job with the user's rights, so the kernel decides what is allowed. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "agent.h"

#define COPY_BYTES (256u * 1024)
#define NOT_REGULAR (-(int)CODE_INVALID_PATH)

bool write_all(int fd, const void *p, size_t n) {
    const uint8_t *at = p;
    while (n > 0) {
        ssize_t wrote = write(fd, at, n);
        if (wrote < 0 && errno == EINTR) continue;
        if (wrote < 0) return false;
        at += wrote;
        n -= (size_t)wrote;
    }
    return true;
}

bool read_all(int fd, void *p, size_t n) {
    uint8_t *at = p;
    while (n > 0) {
        ssize_t got = read(fd, at, n);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return false;
        at += got;
        n -= (size_t)got;
    }
    return true;
}

enum code code_of(int error) {
    switch (error) {
    case ENOENT: return CODE_NOT_FOUND;
    case EACCES: case EPERM: case EROFS: return CODE_PERMISSION_DENIED;
    case EISDIR: return CODE_IS_DIRECTORY;
    case ENOTDIR: return CODE_NOT_A_DIRECTORY;
    case EEXIST: case ENOTEMPTY: return CODE_EXISTS;
    case EINVAL: case ELOOP: case ENAMETOOLONG: case EXDEV: return CODE_INVALID_PATH;
    case ENOSPC: case EDQUOT: case EFBIG: return CODE_NO_SPACE;
    case EMFILE: case ENFILE: case ENOMEM: case EAGAIN: return CODE_LIMIT;
    default: return CODE_IO;
    }
}

void add_stat(struct buf *b, const char *path, const struct stat *st) {
    enum kind kind = S_ISREG(st->st_mode) ? KIND_FILE : S_ISDIR(st->st_mode) ? KIND_DIRECTORY
                     : S_ISLNK(st->st_mode) ? KIND_SYMLINK : KIND_OTHER;
    add_text(b, TAG_PATH, path);
    add_number(b, TAG_KIND, kind);
    add_number(b, TAG_SIZE, kind == KIND_FILE ? (uint64_t)st->st_size : 0);
    add_number(b, TAG_MODE, st->st_mode & 07777);
    add_number(b, TAG_UID, st->st_uid);
    add_number(b, TAG_GID, st->st_gid);
    add_number(b, TAG_MTIME_NS, (uint64_t)st->st_mtim.tv_sec * 1000000000u + (uint64_t)st->st_mtim.tv_nsec);
}

int make_parents(const char *path) {
    char copy[PATH_MAX];
    if (strlen(path) >= sizeof copy) return ENAMETOOLONG;
    strcpy(copy, path);
    for (char *slash = copy + 1; (slash = strchr(slash, '/')); slash++) {
        *slash = 0;
        if (mkdir(copy, 0777) != 0 && errno != EEXIST && errno != EROFS && errno != EACCES) return errno;
        struct stat st;
        if (stat(copy, &st) != 0) return errno == ENOENT ? EACCES : errno;
        if (!S_ISDIR(st.st_mode)) return ENOTDIR;
        *slash = '/';
    }
    return 0;
}

static int stat_path(const char *path, struct buf *reply) {
    struct stat st;
    char target[PATH_MAX];
    if (lstat(path, &st) != 0) return errno;
    add_stat(reply, path, &st);
    ssize_t n = S_ISLNK(st.st_mode) ? readlink(path, target, sizeof target) : -1;
    if (n >= 0) add_bytes(reply, TAG_TARGET, target, (size_t)n);
    return 0;
}

static int op_read(const struct file_request *r) {
    static uint8_t buffer[COPY_BYTES];
    int fd = open(r->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    struct stat st;
    if (fd < 0) return errno == ENXIO ? NOT_REGULAR : errno;
    if (fstat(fd, &st) != 0) return errno;
    if (S_ISDIR(st.st_mode)) return EISDIR;
    if (!S_ISREG(st.st_mode)) return NOT_REGULAR;
    if (r->offset && lseek(fd, (off_t)r->offset, SEEK_SET) < 0) return errno;
    uint64_t left = r->has_length ? r->length : UINT64_MAX;
    while (left > 0) {
        ssize_t n = read(fd, buffer, left < sizeof buffer ? (size_t)left : sizeof buffer);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return errno;
        if (n == 0) break;
        if (!write_all(r->out, buffer, (size_t)n)) return errno;
        left -= (uint64_t)n;
    }
    return 0;
}

static int copy_input(const struct file_request *r, int to) {
    static uint8_t buffer[COPY_BYTES];
    for (;;) {
        ssize_t n = read(r->in, buffer, sizeof buffer);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return errno;
        if (n == 0) break;
        if (!write_all(to, buffer, (size_t)n)) return errno;
    }
    char word;
    return read_all(r->commit, &word, 1) ? 0 : ECANCELED;
}

static int write_in_place(const struct file_request *r, const char *path) {
    int fd = open(path, O_WRONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY | O_TRUNC);
    return fd < 0 ? errno : copy_input(r, fd);
}

static int temporary_beside(const char *path, char *name, size_t size) {
    const char *slash = strrchr(path, '/');
    int dir = slash ? (int)(slash - path) + 1 : 0;
    struct timespec t;
    for (int i = 0; i < 100; i++) {
        clock_gettime(CLOCK_MONOTONIC, &t);
        if ((size_t)snprintf(name, size, "%.*s.warren-%d-%lx", dir, path, getpid(), (unsigned long)t.tv_nsec) >= size) {
            errno = ENAMETOOLONG;
            return -1;
        }
        int fd = open(name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
        if (fd >= 0 || errno != EEXIST) return fd;
    }
    return -1;
}

/* Sets `begun` if it has read any of the data. */
static int replace(const struct file_request *r, const char *path, mode_t mode, bool *begun) {
    char temporary[PATH_MAX];
    int fd = temporary_beside(path, temporary, sizeof temporary);
    *begun = fd >= 0;
    if (fd < 0) return errno;
    int error = copy_input(r, fd);
    if (!error && fchmod(fd, mode) != 0) error = errno;
    if (close(fd) != 0 && !error) error = errno;
    if (!error && rename(temporary, path) != 0) error = errno;
    if (error) unlink(temporary);
    return error;
}

/* Tries to open the file: access(2) would check the real uid, which is the agent's. */
static bool may_write(const char *path) {
    int fd = open(path, O_WRONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd >= 0) close(fd);
    return fd >= 0;
}

/* Writes a new file beside the old one and renames it, which is atomic. Writes in place what is not a plain file. */
static int op_write(const struct file_request *r, struct buf *reply) {
    char real[PATH_MAX];
    const char *path = r->path;
    size_t n = strlen(path);
    struct stat st;
    bool begun = false;
    if (path[n - 1] == '/') return EISDIR;
    int error = make_parents(path);
    if (error) return error;
    if (lstat(path, &st) == 0 && S_ISLNK(st.st_mode) && realpath(path, real)) path = real;
    bool exists = stat(path, &st) == 0;
    if (exists && S_ISDIR(st.st_mode)) return EISDIR;
    if (exists && S_ISREG(st.st_mode) && !may_write(path)) return errno;
    mode_t mode = r->has_mode ? (mode_t)r->mode & 0777 : exists ? st.st_mode & 0777 : 0644;
    if (exists && !S_ISREG(st.st_mode)) error = write_in_place(r, path);
    else error = replace(r, path, mode, &begun);
    if (error == EACCES && exists && !begun) error = write_in_place(r, path);
    return error ? error : stat_path(path, reply);
}

static int op_mkdir(const struct file_request *r) {
    int error = make_parents(r->path);
    if (error) return error;
    if (mkdir(r->path, 0777) != 0) return errno;
    return chmod(r->path, r->has_mode ? (mode_t)r->mode & 01777 : 0755) == 0 ? 0 : errno;
}

static int op_remove(const struct file_request *r) {
    struct stat st;
    if (lstat(r->path, &st) != 0) return errno;
    if (!S_ISDIR(st.st_mode)) return unlink(r->path) == 0 ? 0 : errno;
    return r->recursive ? tree_remove(r->path) : EISDIR;
}

int file_run(const struct file_request *r, struct buf *reply) {
    switch (r->op) {
    case OP_READ: return op_read(r);
    case OP_WRITE: return op_write(r, reply);
    case OP_LIST: return tree_list(r);
    case OP_STAT: return stat_path(r->path, reply);
    case OP_MKDIR: return op_mkdir(r);
    case OP_REMOVE: return op_remove(r);
    case OP_RENAME: return tree_move(r->path, r->path2);
    case OP_PACK: return tree_pack(r);
    case OP_UNPACK: return tree_unpack(r, reply);
    case OP_WATCH: return tree_watch(r);
    case OP_SEARCH: return tree_search(r, reply);
    }
    return EINVAL;
}
