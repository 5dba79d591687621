/* Operations on directory trees: list, remove, move, pack, unpack. They run in a job with the user's rights.
 *
 * A packed tree is a sequence of records, each the length and the fields of one entry, and after the record of a file
 * its bytes. User code may change the tree meanwhile: an entry that has gone is left out, and a file that has shrunk is
 * filled up with zeros, because its record has already said how long it is.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "files.h"

#define FLUSH_BYTES (64u * 1024)
#define MAX_DEPTH 512

bool join_path(char *to, size_t size, const char *dir, const char *name) {
    const char *slash = *dir && dir[strlen(dir) - 1] != '/' ? "/" : "";
    if ((size_t)snprintf(to, size, "%s%s%s", dir, slash, name) < size) return true;
    errno = ENAMETOOLONG;
    return false;
}

bool is_dot_entry(const char *name) { return strcmp(name, ".") == 0 || strcmp(name, "..") == 0; }

static bool flush(int fd, struct buf *b, size_t above) {
    if (buf_used(b) <= above) return true;
    bool good = write_all(fd, buf_head(b), buf_used(b));
    buf_take(b, buf_used(b));
    return good;
}

/* ---- list ---- */

static int list_below(const struct file_request *r, struct buf *b, const char *dir, uint64_t depth);

static int list_entry(const struct file_request *r, struct buf *b, const char *dir, const char *name, uint64_t depth) {
    char path[PATH_MAX], target[PATH_MAX];
    struct stat st;
    if (!join_path(path, sizeof path, dir, name) || lstat(path, &st) != 0) return 0;
    size_t mark = record_open(b);
    add_stat(b, path, &st);
    ssize_t n = S_ISLNK(st.st_mode) ? readlink(path, target, sizeof target) : -1;
    if (n >= 0) add_bytes(b, TAG_TARGET, target, (size_t)n);
    if (r->details) add_details(b, path, &st);
    record_close(b, mark);
    if (!flush(r->out, b, FLUSH_BYTES)) return errno;
    /* A subdirectory that cannot be read is listed, but not entered. */
    if (S_ISDIR(st.st_mode) && depth > 1) list_below(r, b, path, depth - 1);
    return 0;
}

static int is_entry(const struct dirent *e) { return !is_dot_entry(e->d_name); }

static int compare_names(const struct dirent **a, const struct dirent **b) {
    return strcmp((*a)->d_name, (*b)->d_name);
}

int sorted_entries(const char *dir, struct dirent ***entries) { return scandir(dir, entries, is_entry, compare_names); }

/* With details the entries come in the order of their names, for which all names of a directory are held in memory. */
static int list_in_order(const struct file_request *r, struct buf *b, const char *dir, uint64_t depth) {
    struct dirent **entries;
    int error = 0, count = sorted_entries(dir, &entries);
    if (count < 0) return errno;
    for (int i = 0; i < count; i++) {
        if (!error) error = list_entry(r, b, dir, entries[i]->d_name, depth);
        free(entries[i]);
    }
    free(entries);
    return error;
}

static int list_below(const struct file_request *r, struct buf *b, const char *dir, uint64_t depth) {
    if (r->details) return list_in_order(r, b, dir, depth);
    DIR *d = opendir(dir);
    if (!d) return errno;
    int error = 0;
    for (struct dirent *e; !error && (e = readdir(d));)
        if (is_entry(e)) error = list_entry(r, b, dir, e->d_name, depth);
    closedir(d);
    return error;
}

int tree_list(const struct file_request *r) {
    struct buf b = {0};
    uint64_t depth = r->depth ? r->depth : 1;
    int error = list_below(r, &b, r->path, depth > MAX_DEPTH ? MAX_DEPTH : depth);
    if (!error && !flush(r->out, &b, 0)) error = errno;
    return error;
}

/* ---- remove ---- */

static int remove_below(int parent, const char *name, int depth) {
    if (unlinkat(parent, name, 0) == 0 || errno == ENOENT) return 0;
    if (errno != EISDIR && errno != EPERM) return errno;
    int fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0) return errno;
    DIR *d = depth > 0 ? fdopendir(fd) : NULL;
    if (!d) {
        close(fd);
        return depth > 0 ? errno : ENAMETOOLONG;
    }
    int error = 0;
    for (struct dirent *e; (e = readdir(d));) {
        int failed = is_dot_entry(e->d_name) ? 0 : remove_below(fd, e->d_name, depth - 1);
        if (failed) error = failed;
    }
    closedir(d);
    if (error) return error;
    return unlinkat(parent, name, AT_REMOVEDIR) == 0 || errno == ENOENT ? 0 : errno;
}

int tree_remove(const char *path) { return remove_below(AT_FDCWD, path, 2000); }

/* ---- move: a rename, or a copy and a removal where the two are different mounts ---- */

/* User code may exchange both names at any time, for a pipe or a device for instance: nothing here may wait for one. */
static int copy_file(const char *from, const char *to) {
    static uint8_t buffer[256 * 1024];
    struct stat st;
    int in = open(from, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY), out = -1, error = 0;
    if (in < 0) return errno;
    if (fstat(in, &st) != 0) error = errno;
    else if (!S_ISREG(st.st_mode)) error = EINVAL;
    else if ((out = open(to, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600)) < 0) error = errno;
    for (ssize_t n = 1; !error && n > 0;) {
        n = read(in, buffer, sizeof buffer);
        if (n < 0 || !write_all(out, buffer, (size_t)n)) error = errno;
    }
    if (!error) {
        struct timespec times[2] = {st.st_atim, st.st_mtim};
        copy_metadata(in, out);
        fchmod(out, st.st_mode & 0777);
        futimens(out, times);
    }
    close(in);
    if (out >= 0) close(out);
    return error;
}

static int copy_any(const char *from, const char *to, int depth) {
    struct stat st;
    char target[PATH_MAX], a[PATH_MAX], b[PATH_MAX];
    if (lstat(from, &st) != 0) return errno;
    if (S_ISREG(st.st_mode)) return copy_file(from, to);
    if (S_ISLNK(st.st_mode)) {
        ssize_t n = readlink(from, target, sizeof target - 1);
        if (n < 0) return errno;
        target[n] = 0;
        return symlink(target, to) == 0 ? 0 : errno;
    }
    if (!S_ISDIR(st.st_mode)) return mknod(to, S_IFIFO | (st.st_mode & 0777), 0) == 0 ? 0 : errno;
    if (depth == 0) return ENAMETOOLONG;
    if (mkdir(to, 0700) != 0) return errno;
    DIR *d = opendir(from);
    int error = d ? 0 : errno;
    for (struct dirent *e; !error && (e = readdir(d));) {
        if (is_dot_entry(e->d_name)) continue;
        if (!join_path(a, sizeof a, from, e->d_name) || !join_path(b, sizeof b, to, e->d_name)) error = errno;
        else error = copy_any(a, b, depth - 1);
    }
    if (d) closedir(d);
    chmod(to, st.st_mode & 0777);
    return error;
}

int tree_move(const char *from, const char *to) {
    struct stat st;
    char aside[PATH_MAX];
    if (rename(from, to) == 0) return 0;
    if (errno != EXDEV) return errno;
    if (stat(to, &st) == 0 && S_ISDIR(st.st_mode)) return rmdir(to) == 0 ? tree_move(from, to) : errno;
    /* Copy beside the target first, so that the target never exists in part. */
    const char *slash = strrchr(to, '/');
    int dir = slash ? (int)(slash - to) + 1 : 0;
    if ((size_t)snprintf(aside, sizeof aside, "%.*s.warren-%d", dir, to, getpid()) >= sizeof aside) return ENAMETOOLONG;
    int error = copy_any(from, aside, MAX_DEPTH);
    if (!error && rename(aside, to) != 0) error = errno;
    if (error) tree_remove(aside);
    return error ? error : tree_remove(from);
}

/* ---- pack: records; the record of a file is followed by exactly as many bytes as it says ---- */

static int pack_content(int out, int fd, uint64_t size) {
    static uint8_t buffer[256 * 1024];
    while (size > 0) {
        size_t want = size < sizeof buffer ? (size_t)size : sizeof buffer;
        ssize_t n = read(fd, buffer, want);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) {
            memset(buffer, 0, want); /* it shrank while it was read */
            n = (ssize_t)want;
        }
        if (!write_all(out, buffer, (size_t)n)) return errno;
        size -= (uint64_t)n;
    }
    return 0;
}

static int pack_one(int out, const char *path, const char *name, int depth) {
    struct stat st;
    struct buf b = {0};
    char target[PATH_MAX], inner[PATH_MAX], inner_name[PATH_MAX];
    int fd = -1, error = 0;
    if (lstat(path, &st) != 0) return errno == ENOENT && depth < MAX_DEPTH ? 0 : errno;
    if (S_ISREG(st.st_mode)) {
        fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
        if (fd < 0 && errno == ENOENT) return 0; /* removed since it was listed */
        if (fd < 0 || fstat(fd, &st) != 0) return errno;
        if (!S_ISREG(st.st_mode)) {
            close(fd);
            return 0; /* user code has replaced it since lstat */
        }
    } else if (!S_ISDIR(st.st_mode) && !S_ISLNK(st.st_mode)) {
        return 0; /* sockets, pipes and devices are not packed */
    }
    size_t mark = record_open(&b);
    add_stat(&b, name, &st);
    ssize_t n = S_ISLNK(st.st_mode) ? readlink(path, target, sizeof target) : -1;
    if (n >= 0) add_bytes(&b, TAG_TARGET, target, (size_t)n);
    record_close(&b, mark);
    if (!flush(out, &b, 0)) error = errno;
    buf_free(&b);
    if (fd >= 0) {
        if (!error) error = pack_content(out, fd, (uint64_t)st.st_size);
        close(fd);
    }
    DIR *d = !error && S_ISDIR(st.st_mode) && depth > 0 ? opendir(path) : NULL;
    if (!error && S_ISDIR(st.st_mode) && !d) return depth > 0 ? errno : ENAMETOOLONG;
    for (struct dirent *e; d && !error && (e = readdir(d));) {
        if (is_dot_entry(e->d_name)) continue;
        bool top = strcmp(name, ".") == 0;
        if (!join_path(inner, sizeof inner, path, e->d_name) ||
            !join_path(inner_name, sizeof inner_name, top ? "" : name, e->d_name))
            error = errno;
        else error = pack_one(out, inner, inner_name, depth - 1);
    }
    if (d) closedir(d);
    return error;
}

int tree_pack(const struct file_request *r) {
    struct stat st;
    const char *slash = strrchr(r->path, '/');
    if (stat(r->path, &st) != 0) return errno;
    return pack_one(r->out, r->path, S_ISDIR(st.st_mode) ? "." : slash ? slash + 1 : r->path, MAX_DEPTH);
}

/* ---- unpack ---- */

struct member {
    char *name, *target;
    uint64_t kind, size, mode, mtime_ns, uid, gid;
    bool has_mtime, has_owner;
};

static bool read_member(int in, struct member *m, bool *end) {
    static uint8_t raw[MAX_RECORD];
    uint8_t head[4];
    ssize_t n = read(in, head, 1);
    *end = n == 0;
    if (n != 1 || !read_all(in, head + 1, 3)) return false;
    uint32_t length = get_u32(head);
    if (length > sizeof raw || !read_all(in, raw, length)) return false;
    struct fields it = {raw, raw + length, false};
    for (struct field f; next_field(&it, &f);) {
        if (f.tag == TAG_PATH && !m->name) m->name = field_string(&f, 4095);
        if (f.tag == TAG_TARGET && !m->target) m->target = field_string(&f, 4095);
        if (f.tag == TAG_KIND) field_number(&f, &m->kind);
        if (f.tag == TAG_SIZE) field_number(&f, &m->size);
        if (f.tag == TAG_MODE) field_number(&f, &m->mode);
        if (f.tag == TAG_MTIME_NS) m->has_mtime = field_number(&f, &m->mtime_ns);
        if (f.tag == TAG_UID) m->has_owner = field_number(&f, &m->uid);
        if (f.tag == TAG_GID) field_number(&f, &m->gid);
    }
    return !it.broken && m->name && *m->name;
}

static int unpack_content(int in, int fd, uint64_t size) {
    static uint8_t buffer[256 * 1024];
    while (size > 0) {
        size_t want = size < sizeof buffer ? (size_t)size : sizeof buffer;
        ssize_t n = read(in, buffer, want);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return ECANCELED;
        if (!write_all(fd, buffer, (size_t)n)) return errno;
        size -= (uint64_t)n;
    }
    return 0;
}

static int unpack_file(int in, const char *path, const struct member *m) {
    struct stat st;
    if (lstat(path, &st) == 0 && !S_ISDIR(st.st_mode)) unlink(path); /* never write through an existing link */
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0) return errno == EEXIST ? EISDIR : errno;
    int error = unpack_content(in, fd, m->size);
    if (!error && m->has_owner && fchown(fd, (uid_t)m->uid, (gid_t)m->gid) != 0) error = errno;
    if (!error && fchmod(fd, (mode_t)m->mode & 0777) != 0) error = errno;
    struct timespec t = {(time_t)(m->mtime_ns / 1000000000u), (long)(m->mtime_ns % 1000000000u)};
    if (m->has_mtime) futimens(fd, (struct timespec[]){t, t});
    if (close(fd) != 0 && !error) error = errno;
    return error;
}

static int unpack_one(const struct file_request *r, const struct member *m) {
    char path[PATH_MAX];
    struct stat st;
    if (!join_path(path, sizeof path, r->path, m->name)) return errno;
    int error = make_parents(r, path);
    if (error) return error;
    if (m->kind == KIND_FILE) return unpack_file(r->in, path, m);
    if (m->kind == KIND_SYMLINK && m->target) {
        if (lstat(path, &st) == 0 && !S_ISDIR(st.st_mode)) unlink(path);
        if (symlink(m->target, path) != 0) return errno;
        return m->has_owner && lchown(path, (uid_t)m->uid, (gid_t)m->gid) != 0 ? errno : 0;
    }
    if (m->kind != KIND_DIRECTORY) return EINVAL;
    if (mkdir(path, 0777) == 0) {
        if (m->has_owner && lchown(path, (uid_t)m->uid, (gid_t)m->gid) != 0) return errno;
    } else if (errno != EEXIST) {
        return errno;
    }
    if (lstat(path, &st) != 0 || !S_ISDIR(st.st_mode)) return ENOTDIR;
    /* Keep the directory writable for its owner: its members come after it. */
    if (strcmp(m->name, ".") != 0) chmod(path, ((mode_t)m->mode & 0777) | 0700);
    return 0;
}

int tree_unpack(const struct file_request *r, struct buf *reply) {
    uint64_t count = 0;
    int error = make_parents(r, r->path);
    if (!error && mkdir(r->path, 0755) != 0 && errno != EEXIST) error = errno;
    struct stat st;
    if (!error && (stat(r->path, &st) != 0 || !S_ISDIR(st.st_mode))) error = ENOTDIR;
    for (bool end = false; !error;) {
        struct member m = {0};
        bool good = read_member(r->in, &m, &end);
        if (good) error = unpack_one(r, &m);
        else if (!end) error = EINVAL;
        free(m.name);
        free(m.target);
        if (end) break;
        count++;
    }
    char word;
    if (!error && !read_all(r->commit, &word, 1)) error = ECANCELED;
    add_number(reply, TAG_COUNT, count);
    return error;
}
