/* The client of one cell: /.warren/agent cell --pid KEEPER CONTEXT
 *
 * It reads the request from stdin up to its end, hands it to the keeper of the context (keeper.c), and writes every
 * frame that comes back to stdout. So a cell is a command like any other: what ends a command ends the cell.
 *
 *   agent ══ stdin, stdout ══ cell client ══ socket ══ keeper
 *
 * User code has the same uid. It cannot reach the descriptors of this process, which the kernel does not let others
 * look into from its first instruction on: the program's file cannot be read. And whoever answers on the socket must be
 * the process whose pid the agent told.
 *
 * SIGTERM and SIGINT interrupt the cell, whose end then still comes; a cell that has not begun is left at once.
 * Exit codes: 0 the cell has ended, 69 there is no such context, 70 it was lost, 75 too many cells wait for it.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "agent.h"
#include "context.h"

#define COPY_BYTES (64 * 1024)
enum { ENDED = 0, WRONG_USE = 64, TOO_LONG = 65, NO_CONTEXT = 69, LOST = 70, TOO_MANY = 75 };

/* What has come from the keeper and is not written to stdout yet, and how far the frame at its end has come. */
static struct {
    uint8_t bytes[COPY_BYTES];
    size_t from, to;
    uint8_t head[FRAME_HEAD];
    size_t head_bytes, left;
    bool begun, ended, lost;
} in;

static void leave(int code, const char *why) {
    dprintf(2, "warren-cell: %s\n", why);
    _exit(code);
}

/* Reads stdin to its end and returns it as a frame. */
static uint8_t *read_request(size_t *size) {
    size_t room = COPY_BYTES, used = FRAME_HEAD;
    uint8_t *p = malloc(room);
    while (p) {
        ssize_t n = read(0, p + used, room - used);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) leave(LOST, "the request cannot be read");
        if (n == 0) break;
        used += (size_t)n;
        if (used > FRAME_HEAD + MAX_REQUEST) leave(TOO_LONG, "the request is longer than 16 MiB");
        if (used < room) continue;
        uint8_t *larger = realloc(p, room *= 2);
        if (!larger) free(p);
        p = larger;
    }
    if (!p) leave(LOST, "there is no memory for the request");
    frame_head(p, 'Q', used - FRAME_HEAD);
    *size = used;
    return p;
}

static int call_keeper(const char *id, pid_t pid) {
    struct sockaddr_un a;
    struct ucred peer = {0};
    socklen_t size = sizeof peer, length = context_address(&a, id);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) leave(LOST, strerror(errno));
    if (connect(fd, (struct sockaddr *)&a, length) != 0)
        leave(errno == EAGAIN ? TOO_MANY : NO_CONTEXT,
              errno == EAGAIN ? "too many cells wait for this context" : "the context has ended");
    /* The kernel gives a connecting process the credentials of the one that called listen. */
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0 || peer.pid != pid || peer.uid != getuid())
        leave(NO_CONTEXT, "another process answers in the place of the context");
    return fd;
}

static void follow_frames(const uint8_t *p, size_t n) {
    while (n > 0 && !in.ended) {
        size_t part = in.head_bytes < FRAME_HEAD ? FRAME_HEAD - in.head_bytes : in.left;
        if (part > n) part = n;
        if (in.head_bytes < FRAME_HEAD) {
            memcpy(in.head + in.head_bytes, p, part);
            in.head_bytes += part;
            if (in.head_bytes == FRAME_HEAD) in.left = frame_length(in.head);
        } else in.left -= part;
        p += part, n -= part;
        if (in.head_bytes < FRAME_HEAD || in.left > 0) continue;
        in.head_bytes = 0;
        in.begun = true;
        in.lost = in.head[0] == 'l';
        in.ended = in.lost || in.head[0] == 'x';
    }
}

static bool is_refusal(void) {
    static const char refusal[] = "l\0\0\0\4" BUSY;
    return in.to == sizeof refusal - 1 && memcmp(in.bytes, refusal, in.to) == 0;
}

/* Reads once from the keeper; false if it is gone. */
static bool receive(int conn) {
    ssize_t n = recv(conn, in.bytes, sizeof in.bytes, 0);
    if (n < 0) return errno == EAGAIN || errno == EINTR;
    in.from = 0;
    in.to = (size_t)n;
    if (!in.begun && is_refusal()) leave(TOO_MANY, "too many cells wait for this context");
    follow_frames(in.bytes, in.to);
    return n > 0;
}

static void write_out(void) {
    ssize_t n = write(1, in.bytes + in.from, in.to - in.from);
    if (n > 0) in.from += (size_t)n;
    else if (errno != EAGAIN && errno != EINTR) _exit(LOST);
}

static void write_lost(void) {
    static const char lost[] = "l\0\0\0\4gone";
    memcpy(in.bytes, lost, in.to = sizeof lost - 1);
    in.from = 0;
    in.ended = in.lost = true;
}

static void interrupt(int conn, int signals) {
    static bool sent;
    struct signalfd_siginfo info;
    uint8_t frame[FRAME_HEAD];
    if (read(signals, &info, sizeof info) != sizeof info) return;
    if (!in.begun) _exit(128 + (int)info.ssi_signo);
    if (sent) return;
    frame_head(frame, 'i', 0);
    sent = send(conn, frame, sizeof frame, MSG_NOSIGNAL) == sizeof frame;
}

static void attend(int conn, int signals, const uint8_t *request, size_t size) {
    size_t sent = 0;
    while (!in.ended || in.from < in.to) {
        bool full = in.from < in.to;
        struct pollfd p[3] = {{signals, POLLIN, 0},
                              {in.ended || (full && sent == size) ? -1 : conn,
                               (short)((full ? 0 : POLLIN) | (sent < size ? POLLOUT : 0)), 0},
                              {full ? 1 : -1, POLLOUT, 0}};
        if (poll(p, 3, -1) < 0) continue;
        if (p[0].revents) interrupt(conn, signals);
        if (p[1].revents & POLLOUT && sent < size) {
            ssize_t n = send(conn, request + sent, size - sent, MSG_NOSIGNAL);
            if (n > 0) sent += (size_t)n;
            else if (errno != EAGAIN && errno != EINTR)
                size = sent; /* the keeper has hung up; what it sent before that is still read */
        }
        if (p[2].revents) write_out();
        if (p[1].revents & (POLLIN | POLLHUP | POLLERR) && in.from == in.to && !receive(conn)) {
            if (in.head_bytes > 0) leave(LOST, "the context was lost in the middle of a message");
            write_lost();
        }
    }
}

int cell_main(int argc, char **argv) {
    prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
    if (argc != 5 || strcmp(argv[2], "--pid") != 0 || strlen(argv[4]) > MAX_CONTEXT_ID)
        leave(WRONG_USE, "cell --pid PID CONTEXT runs a cell; not to be run by hand");
    size_t size;
    uint8_t *request = read_request(&size);
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigprocmask(SIG_SETMASK, &set, NULL);
    signal(SIGPIPE, SIG_IGN);
    int signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    int conn = call_keeper(argv[4], (pid_t)strtol(argv[3], NULL, 10));
    fcntl(1, F_SETFL, fcntl(1, F_GETFL) | O_NONBLOCK);
    attend(conn, signals, request, size);
    _exit(in.lost ? LOST : ENDED);
}
