/* Fuzzes the keeper of a code context: a runner and clients that send anything, at any moment.
 *
 * The keeper is compiled into this file with functions of this one in the place of the kernel's. The input decides what
 * each of them returns: which descriptors are ready, what comes from them, how much they take, how late it is. A
 * descriptor is used only while it is open, none is forgotten, and a client gets whole frames in their order.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "input.h"

#define RUNNER 1234
#define FIRST_FD 10
#define MAX_FDS 1024
#define REPEATED 200 /* from this length on the bytes that come are repetitions of one */

static int fuzz_poll(struct pollfd *p, nfds_t n, int timeout_ms);
static ssize_t fuzz_recv(int fd, void *to, size_t n, int flags);
static ssize_t fuzz_read(int fd, void *to, size_t n);
static ssize_t fuzz_send(int fd, const void *p, size_t n, int flags);
static ssize_t fuzz_write(int fd, const void *p, size_t n);
static int fuzz_ioctl(int fd, unsigned long what, int *waiting);
static int fuzz_accept(int fd, void *address, void *size, int flags);
static int fuzz_getsockopt(int fd, int level, int option, void *to, socklen_t *size);
static int fuzz_close(int fd);
static pid_t fuzz_waitpid(pid_t pid, int *status, int flags);
static int fuzz_kill(pid_t pid, int number);
static void fuzz_exit(int code) __attribute__((noreturn));

#define poll fuzz_poll
#define recv fuzz_recv
#define read fuzz_read
#define send fuzz_send
#define write fuzz_write
#define ioctl fuzz_ioctl
#define accept4 fuzz_accept
#define getsockopt fuzz_getsockopt
#define close fuzz_close
#define waitpid fuzz_waitpid
#define kill fuzz_kill
#define _exit fuzz_exit
#define dprintf(fd, ...) ((void)snprintf(NULL, 0, __VA_ARGS__))
#include "../keeper.c"
#include "../keeper_cells.c"
#include "../keeper_runner.c"
#undef close
#undef _exit

/* What a client has been sent so far. */
struct sent {
    uint8_t head[FRAME_HEAD];
    size_t head_bytes, left, frames;
    bool ended;
};

static struct keeper keeper;
static jmp_buf end_of_run;
static uint64_t clock_us;
static bool is_open[MAX_FDS];
static struct sent sent[MAX_FDS];
static int next_fd;

void fail(const char *what) {
    fprintf(stderr, "%s\n", what);
    abort();
}

uint64_t now_us(void) { return clock_us; }

bool write_all(int fd, const void *p, size_t n) {
    promise(fd == 1 && p && n > 0);
    return take_byte() != 255;
}

static void fuzz_exit(int code) {
    (void)code;
    longjmp(end_of_run, 1);
}

static int new_fd(void) {
    if (next_fd == MAX_FDS) longjmp(end_of_run, 1);
    is_open[next_fd] = true;
    return next_fd++;
}

static int must_be_open(int fd) {
    promise(fd >= FIRST_FD && fd < next_fd && is_open[fd]);
    return fd;
}

static int failed(int error) {
    errno = error;
    return -1;
}

static int fuzz_close(int fd) {
    if (fd >= 0) is_open[must_be_open(fd)] = false;
    return 0;
}

/* Time goes on by a power of two, up to half a minute, or until the timeout. */
static int fuzz_poll(struct pollfd *p, nfds_t n, int timeout_ms) {
    if (input_left == 0) longjmp(end_of_run, 1);
    uint8_t events = take_byte(), later = take_byte();
    if (later >= 128) clock_us += timeout_ms > 0 ? (uint64_t)timeout_ms * 1000 : 0;
    else if (later) clock_us += 1ull << later % 25;
    for (nfds_t i = 0; i < n; i++)
        if (p[i].fd >= 0) must_be_open(p[i].fd);
    if (events >= 250) return failed(EINTR);
    for (events %= 8; events > 0; events--) {
        struct pollfd *at = &p[take_byte() % (FIRST_CLIENT + 6)];
        uint8_t kind = take_byte();
        if (at->fd >= 0) at->revents |= (short)((kind & 3 ? at->events : 0) | (kind & 4 ? POLLHUP : 0));
    }
    return 1;
}

static ssize_t fuzz_recv(int fd, void *to, size_t n, int flags) {
    (void)flags;
    must_be_open(fd);
    promise(n > 0);
    size_t size = take_byte();
    if (size == 0) return 0;
    if (size == 1) return failed(EAGAIN);
    if (size < REPEATED) return (ssize_t)take_bytes(to, size - 1 < n ? size - 1 : n);
    if ((size - REPEATED + 1) * 1024 < n) n = (size - REPEATED + 1) * 1024;
    memset(to, take_byte(), n);
    return (ssize_t)n;
}

static ssize_t fuzz_read(int fd, void *to, size_t n) {
    if (fd != keeper.signals) return fuzz_recv(fd, to, n, 0);
    struct signalfd_siginfo info = {.ssi_signo = take_byte() == 1 ? SIGINT : SIGCHLD};
    promise(n == sizeof info);
    if (input_left == 0 || take_byte() & 1) return failed(EAGAIN);
    memcpy(to, &info, sizeof info);
    return sizeof info;
}

/* The frames of a client: `b` or a refusal, then anything that belongs to a cell, then one end, and nothing after it. */
static void check_sent(struct sent *s, const uint8_t *p, size_t n) {
    while (n > 0) {
        promise(!s->ended);
        if (s->head_bytes < FRAME_HEAD) {
            s->head[s->head_bytes++] = *p++;
            n--;
            if (s->head_bytes < FRAME_HEAD) continue;
            promise(strchr(s->frames++ ? "oercxl" : "bl", s->head[0]));
            s->left = frame_length(s->head);
        } else {
            size_t part = n < s->left ? n : s->left;
            p += part, n -= part, s->left -= part;
        }
        if (s->left > 0) continue;
        s->head_bytes = 0;
        s->ended = s->head[0] == 'x' || s->head[0] == 'l';
    }
}

static ssize_t fuzz_send(int fd, const void *p, size_t n, int flags) {
    must_be_open(fd);
    promise(n > 0 && flags & MSG_NOSIGNAL && flags & MSG_DONTWAIT);
    size_t most = input_left ? take_byte() : 1;
    if (most == 0) return failed(EPIPE);
    if (most == 1) return failed(EAGAIN);
    if (most < 128 && most - 1 < n) n = most - 1;
    if (fd != keeper.channel) check_sent(&sent[fd], p, n);
    return (ssize_t)n;
}

static ssize_t fuzz_write(int fd, const void *p, size_t n) {
    promise(fd == 2 && p && n > 0);
    return (ssize_t)n;
}

static int fuzz_ioctl(int fd, unsigned long what, int *waiting) {
    must_be_open(fd);
    promise(what == FIONREAD);
    *waiting = take_byte() * 4;
    return 0;
}

static int fuzz_accept(int fd, void *address, void *size, int flags) {
    (void)address, (void)size, (void)flags;
    must_be_open(fd);
    return take_byte() == 255 ? failed(EMFILE) : new_fd();
}

static int fuzz_getsockopt(int fd, int level, int option, void *to, socklen_t *size) {
    must_be_open(fd);
    promise(level == SOL_SOCKET && option == SO_PEERCRED && *size == sizeof(struct ucred));
    *(struct ucred *)to = (struct ucred){.uid = getuid() + (take_byte() == 255)};
    return 0;
}

static pid_t fuzz_waitpid(pid_t pid, int *status, int flags) {
    promise(pid == RUNNER && flags == WNOHANG);
    if (!(take_byte() & 1)) return 0;
    *status = take_byte() & 1 ? SIGKILL : 3 << 8;
    return pid;
}

static int fuzz_kill(pid_t pid, int number) {
    promise((pid == RUNNER || pid == -RUNNER) && (number == SIGINT || number == SIGKILL));
    return 0;
}

static void start(void) {
    static char *options[] = {"--env", "PATH", NULL};
    memset(&keeper, 0, sizeof keeper);
    memset(sent, 0, sizeof sent);
    memset(is_open, 0, sizeof is_open);
    next_fd = FIRST_FD;
    clock_us = 1000000;
    prepare(&keeper);
    keeper.most_clients = MAX_CLIENTS;
    keeper.options = options;
    keeper.idle_us = take_byte() & 1 ? 60000000 : 0;
    keeper.listener = new_fd(), keeper.signals = new_fd(), keeper.channel = new_fd();
    keeper.text[0] = new_fd(), keeper.text[1] = new_fd();
    keeper.runner = RUNNER;
}

/* Frees what the keeper holds, so that what is left is lost. */
static void stop(void) {
    int known[] = {keeper.listener, keeper.signals, keeper.channel, keeper.text[0], keeper.text[1]};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) fuzz_close(known[i]);
    for (size_t i = 0; i < MAX_CLIENTS; i++)
        if (keeper.clients[i].fd >= 0) forget_client(&keeper.clients[i]);
    drop_all(&keeper.between);
    free(keeper.request);
    free(keeper.frame.body);
    for (int fd = FIRST_FD; fd < next_fd; fd++) promise(!is_open[fd]);
}

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n) {
    input = p;
    input_left = n;
    start();
    if (setjmp(end_of_run) == 0)
        for (;;) take_turn(&keeper);
    stop();
    return 0;
}
