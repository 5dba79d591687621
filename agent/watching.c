/* Reports changes below a directory. Runs in a job, as the user, until the agent kills it.
 *
 * The kernel queues an event before the call that made the change returns. So what was queued when the worker asks to
 * sync, with a byte of data, is all that happened before it asked; it is reported, and then a record that says so. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "files.h"

#define EVENTS (IN_CREATE | IN_MODIFY | IN_ATTRIB | IN_DELETE | IN_MOVED_FROM | IN_MOVED_TO | IN_DELETE_SELF)
#define MAX_WATCHES 8192

static char *directories[MAX_WATCHES];
static int out, inotify;
static bool recursive, attributes;

static bool report_change(enum change change, const char *path, bool directory) {
    struct buf b = {0};
    size_t mark = record_open(&b);
    if (change) {
        add_number(&b, TAG_CHANGE, change);
        add_text(&b, TAG_PATH, path);
        add_number(&b, TAG_KIND, directory ? KIND_DIRECTORY : KIND_FILE);
    }
    record_close(&b, mark);
    bool good = write_all(out, buf_head(&b), buf_used(&b));
    buf_free(&b);
    return good;
}

/* Watches a directory and, if recursive, those below. With `report_existing`, reports what is in it as created. */
static int watch_directory(const char *path, bool report_existing) {
    int wd = inotify_add_watch(inotify, path, EVENTS | IN_ONLYDIR);
    if (wd < 0) return errno;
    if (wd >= MAX_WATCHES) {
        inotify_rm_watch(inotify, wd);
        report_change(CHANGE_OVERFLOW, "", false);
        return ENOSPC;
    }
    free(directories[wd]);
    directories[wd] = strdup(path);
    if (!recursive) return 0;
    DIR *d = opendir(path);
    char inner[PATH_MAX];
    for (struct dirent *e; d && (e = readdir(d));) {
        struct stat st;
        if (is_dot_entry(e->d_name) || !join_path(inner, sizeof inner, path, e->d_name) || lstat(inner, &st) != 0)
            continue;
        if (report_existing && !report_change(CHANGE_CREATED, inner, S_ISDIR(st.st_mode))) break;
        /* The file was written before it could be watched. A caller that tells the steps of a write apart waits for
         * this one. */
        bool written = attributes && S_ISREG(st.st_mode) && st.st_size > 0;
        if (report_existing && written && !report_change(CHANGE_MODIFIED, inner, false)) break;
        if (S_ISDIR(st.st_mode)) watch_directory(inner, report_existing);
    }
    if (d) closedir(d);
    return 0;
}

static bool report_event(const struct inotify_event *e) {
    char path[PATH_MAX];
    if (e->mask & IN_Q_OVERFLOW) return report_change(CHANGE_OVERFLOW, "", false);
    if (e->wd < 0 || e->wd >= MAX_WATCHES || !directories[e->wd]) return true;
    bool directory = e->mask & IN_ISDIR;
    if (e->mask & IN_DELETE_SELF) return e->wd != 1 || report_change(CHANGE_REMOVED, directories[e->wd], true);
    if (!e->len || !join_path(path, sizeof path, directories[e->wd], e->name)) return true;
    enum change change = e->mask & IN_CREATE                 ? CHANGE_CREATED
                         : e->mask & IN_DELETE               ? CHANGE_REMOVED
                         : e->mask & IN_MOVED_FROM           ? CHANGE_MOVED_FROM
                         : e->mask & IN_MOVED_TO             ? CHANGE_MOVED_TO
                         : attributes && e->mask & IN_ATTRIB ? CHANGE_ATTRIBUTES
                                                             : CHANGE_MODIFIED;
    if (!report_change(change, path, directory)) return false;
    if (recursive && directory && e->mask & (IN_CREATE | IN_MOVED_TO)) watch_directory(path, true);
    return true;
}

/* Reports the events of one read(2), or of as many as `queued` bytes take. Returns 0 or an errno value; sets `end` if
 * nobody reads the reports. */
static int report_events(int queued, bool *end) {
    static uint8_t raw[64 * 1024] __attribute__((aligned(8)));
    do {
        ssize_t n = read(inotify, raw, sizeof raw);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return n < 0 && errno == EAGAIN ? 0 : errno;
        for (uint8_t *at = raw; at < raw + n;) {
            struct inotify_event *e = (struct inotify_event *)at;
            if (!report_event(e)) {
                *end = true;
                return 0;
            }
            at += sizeof *e + e->len;
        }
        queued -= (int)n;
    } while (queued > 0);
    return 0;
}

static int sync_with(int in, bool *end) {
    uint8_t asked[256];
    int queued = 0;
    ssize_t n = read(in, asked, sizeof asked);
    if (n < 0 && errno == EINTR) return 0;
    *end = n <= 0;
    if (*end) return 0;
    int error = ioctl(inotify, FIONREAD, &queued) == 0 ? 0 : errno;
    if (!error && queued > 0) error = report_events(queued, end);
    while (!error && !*end && n-- > 0) *end = !report_change(CHANGE_SYNCED, "", false);
    return error;
}

int tree_watch(const struct file_request *r) {
    char *root = strdup(r->path);
    for (size_t n = strlen(root); n > 1 && root[n - 1] == '/';) root[--n] = 0;
    out = r->out;
    recursive = r->recursive;
    attributes = r->attributes;
    inotify = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
    if (inotify < 0) return errno;
    int error = watch_directory(root, false);
    if (error) return error;
    if (!report_change(0, "", false)) return 0;
    for (bool end = false; !error && !end;) {
        struct pollfd ready[] = {{inotify, POLLIN, 0}, {r->in, POLLIN, 0}};
        if (poll(ready, 2, -1) < 0) error = errno == EINTR ? 0 : errno;
        else if (ready[1].revents) error = sync_with(r->in, &end);
        else error = report_events(0, &end);
    }
    return error;
}
