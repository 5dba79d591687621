/* What every process of this program does to itself, or finds out about others.
 *
 * One binary is the agent, a supervisor, a file job, sudo, the keeper and the client of a code context, and the relay.
 * All of them fail in the same way, read the same clock, write whole buffers and look processes up in /proc. This file
 * calls nothing else of the program, so that each of them can use it.
 */
#define _GNU_SOURCE
#include "process.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define FORKED_ONLY 0x40 /* the kernel's PF_FORKNOEXEC: the process has not called exec since it was forked */

struct settings settings = {.workspace = "/workspace", .user = "sandboxuser", .uid_low = 1, .uid_high = 65534};

void fail(const char *what) {
    dprintf(2, "warren-agent: %s: %s\n", what, strerror(errno));
    exit(111);
}

uint64_t now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000u + (uint64_t)t.tv_nsec / 1000u;
}

/* ---- reading and writing ---- */

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

/* ---- environment, descriptors and limits ---- */

char **merge_environment(char **base, char **own) {
    size_t n = 0, a = 0, b = 0;
    while (base[a]) a++;
    while (own[b]) b++;
    char **all = calloc(a + b + 1, sizeof *all);
    if (!all) fail("memory");
    for (size_t i = 0; i < a; i++) {
        bool replaced = false;
        for (size_t j = 0; j < b; j++) replaced |= strncmp(base[i], own[j], strcspn(base[i], "=") + 1) == 0;
        if (!replaced) all[n++] = base[i];
    }
    for (size_t j = 0; j < b; j++) all[n++] = own[j];
    return all;
}

static int by_value(const void *a, const void *b) { return *(const int *)a - *(const int *)b; }

static void close_between(unsigned from, unsigned to) {
    if (from > to || syscall(SYS_close_range, from, to, 0) == 0) return;
    for (unsigned fd = from; fd <= to && fd < 65536; fd++) close((int)fd);
}

void keep_only(int *fds, size_t n) {
    qsort(fds, n, sizeof *fds, by_value);
    unsigned from = 3;
    for (size_t i = 0; i < n; i++) {
        if (fds[i] < (int)from) continue;
        close_between(from, (unsigned)fds[i] - 1);
        from = (unsigned)fds[i] + 1;
    }
    close_between(from, ~0u);
}

void raise_own_oom_score(void) {
    /* The files in /proc/self of a process that is not dumpable belong to root, and this uid could not open them. */
    prctl(PR_SET_DUMPABLE, 1, 0, 0, 0);
    int fd = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
    if (fd < 0) return;
    if (write(fd, "800", 3) < 0) {}
    close(fd);
}

void limit_processes(void) {
    struct rlimit r = {settings.nproc, settings.nproc};
    if (settings.nproc) setrlimit(RLIMIT_NPROC, &r);
}

/* ---- other processes ---- */

bool read_stat(const char *pid, struct process *m) {
    char path[64], text[512];
    snprintf(path, sizeof path, "/proc/%s/stat", pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return false;
    ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    if (n <= 0) return false;
    text[n] = 0;
    char *after = strrchr(text, ')');
    unsigned flags;
    if (!after || sscanf(after + 1, " %c %d %*d %*d %*d %*d %u", &m->state, &m->parent, &flags) != 3) return false;
    m->pid = atoi(pid);
    m->ours = false;
    m->stopped = strchr("TtZX", m->state);
    m->forked_only = flags & FORKED_ONLY;
    return true;
}

void kill_children(pid_t parent) {
    DIR *proc = opendir("/proc");
    struct process m;
    for (struct dirent *d; proc && (d = readdir(proc));)
        if (d->d_name[0] >= '1' && d->d_name[0] <= '9' && read_stat(d->d_name, &m) && m.parent == parent)
            kill(m.pid, SIGKILL);
    if (proc) closedir(proc);
}
