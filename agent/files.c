/* Operations on single files: read, write, stat, make, remove; their metadata; and the dispatch of all file operations.
 *
 * This runs in a job, which has the user's rights and none of the agent's, so the kernel decides what is allowed. Names
 * may be exchanged by user code at any moment. So nothing is opened in a way that could block, and a file that is read
 * is checked after it was opened.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <time.h>
#include <unistd.h>

#include "files.h"

#define COPY_BYTES (256u * 1024)
#define NOT_REGULAR (-(int)CODE_INVALID_PATH)
#define PREFIX "user.e2b." /* the names of the attributes that are metadata begin with it */
#define PREFIX_BYTES (sizeof PREFIX - 1)

static char names[65536]; /* the names of a file's attributes; the kernel's limit for such a list */

enum code code_of(int error) {
    switch (error) {
    case ENOENT: return CODE_NOT_FOUND;
    case EACCES:
    case EPERM:
    case EROFS: return CODE_PERMISSION_DENIED;
    case EISDIR: return CODE_IS_DIRECTORY;
    case ENOTDIR: return CODE_NOT_A_DIRECTORY;
    case EEXIST:
    case ENOTEMPTY: return CODE_EXISTS;
    case EINVAL:
    case ELOOP:
    case ENAMETOOLONG:
    case EXDEV: return CODE_INVALID_PATH;
    case ENOSPC:
    case EDQUOT:
    case EFBIG: return CODE_NO_SPACE;
    case EMFILE:
    case ENFILE:
    case ENOMEM:
    case EAGAIN: return CODE_LIMIT;
    default: return CODE_IO;
    }
}

static enum kind kind_of(mode_t mode) {
    return S_ISREG(mode) ? KIND_FILE : S_ISDIR(mode) ? KIND_DIRECTORY : S_ISLNK(mode) ? KIND_SYMLINK : KIND_OTHER;
}

void add_stat(struct buf *b, const char *path, const struct stat *st) {
    enum kind kind = kind_of(st->st_mode);
    add_text(b, TAG_PATH, path);
    add_number(b, TAG_KIND, kind);
    add_number(b, TAG_SIZE, kind == KIND_FILE ? (uint64_t)st->st_size : 0);
    add_number(b, TAG_MODE, st->st_mode & 07777);
    add_number(b, TAG_UID, st->st_uid);
    add_number(b, TAG_GID, st->st_gid);
    add_number(b, TAG_MTIME_NS, (uint64_t)st->st_mtim.tv_sec * 1000000000u + (uint64_t)st->st_mtim.tv_nsec);
}

/* ---- metadata: attributes of the file whose names begin with PREFIX ---- */

/* Returns the next name of metadata, without PREFIX, in a list that llistxattr(2) has filled; NULL at its end. */
static const char *next_key(const char **at, const char *end) {
    while (*at < end) {
        const char *name = *at;
        *at += strlen(name) + 1;
        if (strncmp(name, PREFIX, PREFIX_BYTES) == 0 && name[PREFIX_BYTES]) return name + PREFIX_BYTES;
    }
    return NULL;
}

/* Adds keys and values, each followed by a NUL byte. User code can set any attribute: values with a NUL byte, and those
 * above the limit, are left out. */
static void add_metadata(struct buf *b, const char *path) {
    char value[MAX_METADATA_BYTES], all[MAX_METADATA_BYTES];
    size_t used = 0;
    ssize_t size = llistxattr(path, names, sizeof names);
    const char *at = names, *end = names + (size > 0 ? size : 0);
    for (const char *key; (key = next_key(&at, end));) {
        ssize_t n = lgetxattr(path, key - PREFIX_BYTES, value, sizeof value);
        size_t key_bytes = strlen(key) + 1;
        if (n < 0 || memchr(value, 0, (size_t)n) || used + key_bytes + (size_t)n + 1 > sizeof all) continue;
        memcpy(all + used, key, key_bytes);
        memcpy(all + used + key_bytes, value, (size_t)n);
        used += key_bytes + (size_t)n + 1;
        all[used - 1] = 0;
    }
    if (used) add_bytes(b, TAG_METADATA, all, used);
}

static bool is_given(const struct file_request *r, const char *key) {
    size_t n = strlen(key);
    for (size_t i = 0; i < r->metadata_count; i++)
        if (strncmp(r->metadata[i], key, n) == 0 && r->metadata[i][n] == '=') return true;
    return false;
}

/* Replaces the metadata of the file by that of the request. If the file system has no attributes, nothing is kept, and
 * that is no error. */
static int set_metadata(const struct file_request *r, int fd) {
    char name[256];
    ssize_t size = flistxattr(fd, names, sizeof names);
    const char *at = names, *end = names + (size > 0 ? size : 0);
    for (const char *key; (key = next_key(&at, end));)
        if (!is_given(r, key) && fremovexattr(fd, key - PREFIX_BYTES) != 0 && errno != ENODATA) return errno;
    for (size_t i = 0; i < r->metadata_count; i++) {
        const char *equals = strchr(r->metadata[i], '=');
        int key_bytes = equals ? (int)(equals - r->metadata[i]) : 0;
        if (!key_bytes || (size_t)snprintf(name, sizeof name, PREFIX "%.*s", key_bytes, r->metadata[i]) >= sizeof name)
            return EINVAL;
        if (fsetxattr(fd, name, equals + 1, strlen(equals + 1), 0) != 0) return errno == ENOTSUP ? 0 : errno;
    }
    return 0;
}

void copy_metadata(int from, int to) {
    char value[MAX_METADATA_BYTES];
    ssize_t size = flistxattr(from, names, sizeof names);
    const char *at = names, *end = names + (size > 0 ? size : 0);
    for (const char *key; (key = next_key(&at, end));) {
        ssize_t n = fgetxattr(from, key - PREFIX_BYTES, value, sizeof value);
        if (n >= 0 && fsetxattr(to, key - PREFIX_BYTES, value, (size_t)n, 0) != 0) return;
    }
}

void add_details(struct buf *b, const char *path, const struct stat *st) {
    struct stat target;
    char real[PATH_MAX];
    add_number(b, TAG_SIZE, (uint64_t)st->st_size);
    add_text(b, TAG_OWNER, user_name(st->st_uid));
    add_text(b, TAG_GROUP, group_name(st->st_gid));
    if (!S_ISLNK(st->st_mode)) {
        add_metadata(b, path);
    } else if (stat(path, &target) == 0 && realpath(path, real)) {
        add_text(b, TAG_TARGET_PATH, real);
        add_number(b, TAG_TARGET_KIND, kind_of(target.st_mode));
        add_number(b, TAG_TARGET_MODE, target.st_mode & 07777);
    }
}

/* ---- */

int make_parents(const struct file_request *r, const char *path) {
    char copy[PATH_MAX];
    if (strlen(path) >= sizeof copy) return ENAMETOOLONG;
    strcpy(copy, path);
    for (char *slash = copy + 1; (slash = strchr(slash, '/')); slash++) {
        *slash = 0;
        bool made = mkdir(copy, 0777) == 0;
        if (!made && errno != EEXIST && errno != EROFS && errno != EACCES) return errno;
        if (made && r->owner && lchown(copy, r->uid, r->gid) != 0) return errno;
        struct stat st;
        if (stat(copy, &st) != 0) return errno == ENOENT ? EACCES : errno;
        if (!S_ISDIR(st.st_mode)) return ENOTDIR;
        *slash = '/';
    }
    return 0;
}

static int stat_path(const struct file_request *r, const char *path, struct buf *reply) {
    struct stat st;
    char target[PATH_MAX];
    if (lstat(path, &st) != 0) return errno;
    add_stat(reply, path, &st);
    ssize_t n = S_ISLNK(st.st_mode) ? readlink(path, target, sizeof target) : -1;
    if (n >= 0) add_bytes(reply, TAG_TARGET, target, (size_t)n);
    if (r->details) add_details(reply, path, &st);
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
    if (!read_all(r->commit, &word, 1)) return ECANCELED;
    return r->sets_metadata ? set_metadata(r, to) : 0;
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

/* Writes a new file beside the old one and renames it, which is atomic. What is not a plain file is written to in
 * place. */
static int op_write(const struct file_request *r, struct buf *reply) {
    char real[PATH_MAX];
    const char *path = r->path;
    size_t n = strlen(path);
    struct stat st;
    bool begun = false;
    if (path[n - 1] == '/') return EISDIR;
    int error = make_parents(r, path);
    if (error) return error;
    if (lstat(path, &st) == 0 && S_ISLNK(st.st_mode) && realpath(path, real)) path = real;
    bool exists = stat(path, &st) == 0;
    if (exists && S_ISDIR(st.st_mode)) return EISDIR;
    if (exists && S_ISREG(st.st_mode) && !may_write(path)) return errno;
    mode_t mode = r->has_mode ? (mode_t)r->mode & 0777 : exists ? st.st_mode & 0777 : 0644;
    if (exists && !S_ISREG(st.st_mode)) error = write_in_place(r, path);
    else error = replace(r, path, mode, &begun);
    if (error == EACCES && exists && !begun) error = write_in_place(r, path);
    return error ? error : stat_path(r, path, reply);
}

/* Opens the file, creating or emptying it, gives it to the user, and writes. This is not atomic; it is for those who
 * watch the file and expect to see each of these steps. */
static int op_write_in_place(const struct file_request *r, struct buf *reply) {
    const char *path = r->path;
    struct stat st;
    uid_t uid = r->owner ? r->uid : geteuid();
    gid_t gid = r->owner ? r->gid : getegid();
    if (path[strlen(path) - 1] == '/') return EISDIR;
    int error = make_parents(r, path);
    if (error) return error;
    bool exists = stat(path, &st) == 0;
    if (exists && S_ISDIR(st.st_mode)) return EISDIR;
    /* Another user's file keeps its owner if this user may write to it but not change its owner. */
    if (exists && chown(path, uid, gid) != 0 && errno != EPERM && errno != EROFS && errno != EACCES) return errno;
    /* O_CREAT only if the file is missing: in /tmp the kernel refuses it, even to root, for a file of another user. */
    int fd = open(path, O_WRONLY | O_TRUNC | O_CLOEXEC | O_NONBLOCK | O_NOCTTY | (exists ? 0 : O_CREAT), 0666);
    if (fd < 0) return errno == ENXIO ? NOT_REGULAR : errno;
    if (!exists && fchown(fd, uid, gid) != 0) return errno;
    if (r->has_mode && fchmod(fd, (mode_t)r->mode & 0777) != 0) return errno;
    error = copy_input(r, fd);
    if (close(fd) != 0 && !error) error = errno;
    return error ? error : stat_path(r, path, reply);
}

static int op_mkdir(const struct file_request *r) {
    int error = make_parents(r, r->path);
    if (error) return error;
    if (mkdir(r->path, 0777) != 0) return errno;
    if (r->owner && lchown(r->path, r->uid, r->gid) != 0) return errno;
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
    case OP_STAT: return stat_path(r, r->path, reply);
    case OP_MKDIR: return op_mkdir(r);
    case OP_REMOVE: return op_remove(r);
    case OP_RENAME: return tree_move(r->path, r->path2);
    case OP_PACK: return tree_pack(r);
    case OP_UNPACK: return tree_unpack(r, reply);
    case OP_WATCH: return tree_watch(r);
    case OP_SEARCH: return tree_search(r, reply);
    case OP_WRITE_IN_PLACE: return op_write_in_place(r, reply);
    }
    return EINVAL;
}
