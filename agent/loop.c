/* The agent's event loop: descriptors that it waits for, and the signals that the kernel queues for it.
 *
 * The agent has one thread. `loop_wait` is the only place where it sleeps: it waits for one descriptor to become ready
 * and calls that descriptor's handler, which must not block. Signals are blocked and read from a descriptor too:
 *
 *   SIGCHLD       a child has ended; `loop_reap` collects it later in the same turn.
 *   SIGRTMIN + 1  a command has written to one of its pipes. The queue of these signals tells in which order writes to
 *                 different pipes were made (output.c), so they are handed to whoever opened the loop.
 *   SIGIO         the kernel could not queue such a signal: the order of some writes is lost.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "channel.h"

static int poller = -1, signals = -1;
static struct watch signal_watch;
static bool children_ended;
static void (*on_writes)(const int *fds, size_t n, bool lost);

void watch_add(struct watch *w, int fd, uint32_t events, void (*ready)(struct watch *, uint32_t), void *of) {
    *w = (struct watch){fd, ready, of};
    struct epoll_event e = {.events = events, .data.ptr = w};
    if (epoll_ctl(poller, EPOLL_CTL_ADD, fd, &e) != 0) fail("epoll");
}

void watch_set(struct watch *w, uint32_t events) {
    struct epoll_event e = {.events = events, .data.ptr = w};
    epoll_ctl(poller, EPOLL_CTL_MOD, w->fd, &e);
}

void watch_move(struct watch *from, struct watch *to, void (*ready)(struct watch *, uint32_t), void *of) {
    *to = (struct watch){from->fd, ready, of};
    from->fd = -1;
    struct epoll_event e = {.events = EPOLLIN, .data.ptr = to};
    if (epoll_ctl(poller, EPOLL_CTL_MOD, to->fd, &e) != 0) fail("epoll");
}

void watch_drop(struct watch *w) {
    epoll_ctl(poller, EPOLL_CTL_DEL, w->fd, NULL);
    close(w->fd);
    w->fd = -1;
}

void signals_take(void) {
    struct signalfd_siginfo info[64];
    int fds[64];
    for (int round = 0; round < 64; round++) { /* bounded, because user code can write as fast as the agent reads */
        ssize_t n = read(signals, info, sizeof info);
        if (n <= 0) return;
        size_t count = (size_t)n / sizeof *info, writes = 0;
        bool lost = false;
        for (size_t i = 0; i < count; i++) {
            if ((int)info[i].ssi_signo == SIGRTMIN + 1) fds[writes++] = info[i].ssi_fd;
            children_ended |= info[i].ssi_signo == SIGCHLD;
            lost |= info[i].ssi_signo == SIGIO;
        }
        on_writes(fds, writes, lost);
        if (count < 64) return;
    }
}

static void signals_ready(struct watch *w, uint32_t events) {
    (void)w, (void)events;
    signals_take();
}

/* Tries whether this kernel signals writes to pipes in packet mode. */
static bool pipes_tell_of_writes(void) {
    int p[2];
    bool told = false;
    if (pipe2(p, O_CLOEXEC | O_DIRECT) != 0) return false;
    fcntl(p[0], F_SETFL, O_NONBLOCK | O_ASYNC);
    fcntl(p[0], F_SETOWN, getpid());
    fcntl(p[0], F_SETSIG, SIGRTMIN + 1);
    struct signalfd_siginfo info;
    if (write(p[1], "x", 1) == 1)
        told = read(signals, &info, sizeof info) == sizeof info && (int)info.ssi_signo == SIGRTMIN + 1 &&
               info.ssi_fd == p[0];
    close(p[0]);
    close(p[1]);
    return told;
}

static void listen_to_signals(void) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGCHLD);
    sigaddset(&set, SIGIO);
    sigaddset(&set, SIGRTMIN + 1);
    sigprocmask(SIG_SETMASK, &set, NULL);
    /* Commands must not inherit signals that the worker's parent ignored (nohup). */
    for (int s = 1; s < 65; s++) signal(s, SIG_DFL);
    signal(SIGPIPE, SIG_IGN);
    signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    if (signals < 0) fail("signalfd");
    settings.exact_order = pipes_tell_of_writes();
    watch_add(&signal_watch, signals, EPOLLIN, signals_ready, NULL);
}

void loop_open(void (*writes)(const int *, size_t, bool)) {
    on_writes = writes;
    poller = epoll_create1(EPOLL_CLOEXEC);
    if (poller < 0) fail("epoll");
    listen_to_signals();
}

void loop_wait(int timeout_ms) {
    /* One event per turn: a handler may free what a later event of the same turn would point to. */
    struct epoll_event e;
    int n = epoll_wait(poller, &e, 1, timeout_ms);
    if (n < 0 && errno != EINTR) fail("epoll");
    if (n != 1) return;
    struct watch *w = e.data.ptr;
    w->ready(w, e.events);
}

void loop_reap(void) {
    if (!children_ended) return;
    children_ended = false;
    /* Supervisors report the ends of commands and pipes those of jobs: these exit codes are not needed. */
    while (waitpid(-1, NULL, WNOHANG) > 0) {}
}
