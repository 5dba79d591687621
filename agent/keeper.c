/* The keeper of a code context: /.warren/agent context --id ID [--idle-s N] [--grace-ms N] [--env NAME] … -- PROGRAM ARGUMENT …
 *
 * Theory of operation. The keeper is a background process of the user. It starts the runner, an interpreter that runs
 * cells and keeps its state between them, and serves the clients of cells (cell.c), one after the other:
 *
 *   cell client ══ socket ══ keeper ─┬─ descriptor 3 of the runner: requests, events, ends
 *   cell client …                    └─ pipes at its 1 and 2: text, also of what user code starts
 *
 * User code has descriptors 1, 2 and 3 at most, so it can pretend to be its own runner, but it never has one on which
 * the frames of a client travel: the keeper wraps text into frames, and the kernel lets nobody look into the keeper,
 * from its first instruction on, because the program's file cannot be read.
 *
 * Text is read before each frame of the runner's, so it keeps its place before results. What background work writes
 * between cells waits for the next one. Everything is bounded: what a cell may give, what waits for a client that does
 * not read, how many clients there are. Waiting clients' requests stay in their sockets. Only the loop at the end waits.
 *
 * A client that goes away, or asks for it, has its cell interrupted; a runner that does not end the cell within the
 * grace time is killed. When the runner ends the keeper ends too, with its exit code.
 *
 * Its directory, and the variables that `--env` names, are told before the hello, so that whoever restarts the context
 * can give them again.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent.h"
#include "context.h"
#include "process.h"

#define MIB (1024u * 1024)
#define COPY_BYTES (64u * 1024)
#define MAX_CLIENTS 72
#define MAX_WAITING 64
#define MAX_LEAVING 4 /* clients whose cell has ended and that have not read all of it */
#define MAX_TEXT (12 * MIB) /* of a cell, with the heads of its frames; */
#define MAX_EVENTS (16 * MIB) /* together they are less than the agent keeps of a command */
#define MAX_BETWEEN COPY_BYTES /* text between two cells */
#define MAX_END MIB
#define MAX_HELLO 4096u
#define MAX_VARIABLES (256u * 1024)
#define MAX_SAID (32 * MIB)
#define BACK_PRESSURE MIB
#define EARLY_BYTES 2048u
#define REQUEST_US 5000000u /* for each part of a request, which a client sends as soon as it has connected */
#define FLUSH_US 10000000u
#define DEAF_US 1000000u
#define CALM_US 10000u /* after a cell that was interrupted: a late SIGINT must not meet the next one */
#define NOT_READY 1

struct piece {
    struct piece *next;
    size_t size, at; /* `at`: what was sent already, or received */
    uint8_t bytes[];
};
struct queue {
    struct piece *first, *last;
    size_t held; /* bytes of memory */
};
struct client {
    int fd; /* -1: this place is free */
    uint64_t turn;
    bool leaving;
    struct queue out;
};

static enum { STARTING, IDLE, TAKING, RUNNING, ENDING } state;
static pid_t runner;
static int channel = -1, text[2] = {-1, -1}, listener = -1, signals = -1;
static struct client clients[MAX_CLIENTS], *current; /* current: of TAKING and RUNNING; NULL if it went away */
static size_t most_clients = MAX_CLIENTS;
static struct queue between;
static size_t text_left = MAX_BETWEEN, events_left;
static uint64_t text_cut, events_cut;
static struct piece *request; /* being received while TAKING, being sent while RUNNING */
static uint8_t request_head[FRAME_HEAD], order_head[FRAME_HEAD];
static size_t request_head_bytes, order_head_bytes;
static uint64_t idle_us, grace_us = 2000000u, kill_at, again_at, calm_at, request_by, expire_at, flush_by;
static bool expiring, deaf;
static const char *reason; /* why the runner was killed, if not by a signal of somebody else's */
static int exit_code;
static char **options; /* up to the NULL at their end */
static char early[EARLY_BYTES];
static size_t early_bytes;

/* The frame that is coming from the runner; without a body its payload is skipped. */
static struct {
    uint8_t head[FRAME_HEAD];
    size_t head_bytes, left;
    char type; /* 0: ignored */
    struct piece *body;
} frame;

/* ---- queues ---- */

static struct piece *new_frame(char type, const void *payload, size_t n) {
    struct piece *p = malloc(sizeof *p + FRAME_HEAD + n);
    if (!p) return NULL;
    *p = (struct piece){NULL, FRAME_HEAD + n, 0};
    frame_head(p->bytes, type, n);
    if (payload) memcpy(p->bytes + FRAME_HEAD, payload, n);
    return p;
}

static void put(struct queue *q, struct piece *p) {
    if (!p) return;
    if (q->last) q->last->next = p;
    else q->first = p;
    q->last = p;
    q->held += sizeof *p + p->size;
}

static void drop_first(struct queue *q) {
    struct piece *p = q->first;
    q->held -= sizeof *p + p->size;
    q->first = p->next;
    if (!q->first) q->last = NULL;
    free(p);
}

static void drop_all(struct queue *q) {
    while (q->first) drop_first(q);
}

/* Sends what the socket takes; false if its other end is gone. */
static bool flush(struct client *c) {
    while (c->out.first) {
        struct piece *p = c->out.first;
        ssize_t n = send(c->fd, p->bytes + p->at, p->size - p->at, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0) return errno == EAGAIN || errno == EINTR;
        flush_by = now_us() + FLUSH_US;
        if ((p->at += (size_t)n) == p->size) drop_first(&c->out);
    }
    return true;
}

/* ---- the runner ---- */

static void signal_runner(int number) {
    if (runner > 0 && kill(-runner, number) != 0) kill(runner, number);
}

static void kill_runner(const char *why) {
    if (!reason) reason = why;
    kill_at = 0;
    signal_runner(SIGKILL);
}

static void interrupt_cell(bool or_kill) {
    if (state != RUNNING || (or_kill && kill_at)) return;
    uint64_t now = now_us();
    signal_runner(SIGINT);
    calm_at = now + CALM_US;
    if (!or_kill) return;
    kill_at = now + grace_us;
    again_at = now + grace_us / 2;
}

/* A shell that was forking, or had not begun, has not noticed the first one. */
static void interrupt_again(void) {
    again_at = 0;
    if (state != RUNNING || !kill_at) return;
    signal_runner(SIGINT);
    calm_at = now_us() + CALM_US;
}

static void become_runner(int fds[4], pid_t keeper, char **argv) {
    sigset_t none;
    sigemptyset(&none);
    setsid();
    prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
    if (getppid() != keeper) _exit(1);
    for (int i = 0; i < 4; i++) /* away from 0 to 3 first: none may be overwritten before it has moved */
        if ((fds[i] = fcntl(fds[i], F_DUPFD_CLOEXEC, 10)) < 0) _exit(1);
    for (int i = 0; i < 4; i++) dup2(fds[i], i);
    for (int s = 1; s < 65; s++) signal(s, SIG_DFL);
    sigprocmask(SIG_SETMASK, &none, NULL);
    execvp(argv[0], argv);
    int error = errno;
    dprintf(2, "%s: %s\n", argv[0], error == ENOENT && !strchr(argv[0], '/') ? "command not found" : strerror(error));
    _exit(error == ENOENT || error == ENOTDIR ? 127 : 126);
}

static void start_runner(char **argv) {
    int pair[2], out[2], err[2], nothing = open("/dev/null", O_RDONLY | O_CLOEXEC);
    pid_t keeper = getpid();
    if (nothing < 0 || socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0 || pipe2(out, O_CLOEXEC) != 0 ||
        pipe2(err, O_CLOEXEC) != 0)
        fail("pipes");
    runner = fork();
    if (runner == 0) become_runner((int[]){nothing, out[1], err[1], pair[1]}, keeper, argv);
    if (runner < 0) fail("fork");
    int theirs[] = {nothing, out[1], err[1], pair[1]}, ours[] = {pair[0], out[0], err[0]};
    for (size_t i = 0; i < 4; i++) close(theirs[i]);
    for (size_t i = 0; i < 3; i++) fcntl(ours[i], F_SETFL, fcntl(ours[i], F_GETFL) | O_NONBLOCK);
    channel = pair[0], text[0] = out[0], text[1] = err[0];
}

/* ---- text ---- */

static void keep_early(const uint8_t *p, size_t n) {
    if (n > EARLY_BYTES) p += n - EARLY_BYTES, n = EARLY_BYTES;
    size_t kept = early_bytes + n > EARLY_BYTES ? EARLY_BYTES - n : early_bytes;
    memmove(early, early + early_bytes - kept, kept);
    memcpy(early + kept, p, n);
    early_bytes = kept + n;
}

static void keep_text(char type, const uint8_t *p, size_t n) {
    if (state == STARTING) {
        keep_early(p, n);
        return;
    }
    if (state == RUNNING && !current) return; /* nobody is there to read it, and it is not the next cell's */
    size_t fits = text_left > FRAME_HEAD ? text_left - FRAME_HEAD : 0;
    size_t kept = n < fits ? n : fits;
    struct piece *f = kept ? new_frame(type, p, kept) : NULL;
    if (!f) kept = 0;
    else text_left -= f->size;
    text_cut += n - kept;
    put(state == RUNNING ? &current->out : &between, f);
}

/* Reads once from a pipe; returns how much. */
static size_t take_text(int i, size_t most) {
    static uint8_t buffer[COPY_BYTES];
    ssize_t n = read(text[i], buffer, most < sizeof buffer ? most : sizeof buffer);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return 0;
    if (n <= 0) {
        close(text[i]);
        text[i] = -1;
        return 0;
    }
    keep_text(i ? 'e' : 'o', buffer, (size_t)n);
    return (size_t)n;
}

/* Reads the text that has been written until now, and no more: somebody may write as fast as this reads. */
static void drain_text(void) {
    for (int i = 0; i < 2; i++) {
        int waiting = 0;
        if (text[i] < 0 || ioctl(text[i], FIONREAD, &waiting) != 0) continue;
        for (size_t n; waiting > 0 && (n = take_text(i, (size_t)waiting)) > 0;) waiting -= (int)n;
    }
}

/* ---- the life of a cell ---- */

static void forget_client(struct client *c) {
    close(c->fd);
    drop_all(&c->out);
    *c = (struct client){.fd = -1};
}

static void go_idle(void) {
    current = NULL;
    free(request);
    request = NULL;
    state = IDLE;
    again_at = 0;
    if (calm_at) calm_at = now_us() + CALM_US;
    if (!deaf) kill_at = 0;
    text_left = MAX_BETWEEN > between.held ? MAX_BETWEEN - between.held : 0;
    expire_at = now_us() + idle_us;
}

static void client_gone(struct client *c) {
    bool was_current = c == current;
    forget_client(c);
    if (!was_current) return;
    current = NULL;
    if (state == TAKING || (state == RUNNING && request && request->at == 0)) go_idle();
    else interrupt_cell(true);
}

static void tell_cut(struct client *c, const char *what, uint64_t n) {
    char line[40];
    if (n)
        put(&c->out, new_frame('c', line, (size_t)snprintf(line, sizeof line, "%s %llu", what, (unsigned long long)n)));
}

/* The last frame of the current cell. */
static void end_cell(struct piece *last) {
    struct client *c = current;
    if (!c) {
        free(last);
    } else if (!last) { /* no memory for a few bytes: hanging up says at least that it is over */
        forget_client(c);
    } else {
        tell_cut(c, "text", text_cut);
        tell_cut(c, "events", events_cut);
        put(&c->out, last);
        c->leaving = true;
    }
    text_cut = events_cut = 0;
    go_idle();
}

/* ---- frames of the runner ---- */

static void broken_protocol(void) {
    frame.type = 0;
    kill_runner("protocol");
}

/* NAME=VALUE, each with a NUL behind it. Too much of them is not told at all. */
static bool tell_variables(void) {
    size_t n = 0;
    struct piece *told = new_frame('v', NULL, MAX_VARIABLES);
    if (!told) return true;
    for (char **o = options; *o; o += 2) {
        const char *value = strcmp(*o, "--env") == 0 ? getenv(o[1]) : NULL;
        if (value)
            n += (size_t)snprintf((char *)told->bytes + FRAME_HEAD + n, MAX_VARIABLES - n, "%s=%s", o[1], value) + 1;
        if (n >= MAX_VARIABLES) break;
    }
    frame_head(told->bytes, 'v', n);
    bool written = n == 0 || n >= MAX_VARIABLES || write_all(1, told->bytes, FRAME_HEAD + n);
    free(told);
    return written;
}

static bool tell_directory(void) {
    char path[PATH_MAX];
    uint8_t head[FRAME_HEAD];
    if (!getcwd(path, sizeof path)) return true;
    frame_head(head, 'd', strlen(path));
    return write_all(1, head, sizeof head) && write_all(1, path, strlen(path));
}

static void hear_hello(void) {
    bool written = tell_directory() && tell_variables() && write_all(1, frame.body->bytes, frame.body->size);
    free(frame.body);
    early_bytes = 0;
    if (!written) kill_runner(NULL);
    go_idle();
}

static void frame_ended(void) {
    struct piece *body = frame.body;
    drain_text();
    frame.head_bytes = 0;
    if (frame.type == 'h') hear_hello();
    else if (frame.type == 'x') end_cell(body ? body : new_frame('x', "{}", 2));
    else if (frame.type == 'r' && current) put(&current->out, body);
    else free(body);
    frame.type = 0;
    frame.body = NULL;
}

/* Whether the payload is wanted. Those of a cell come between its request and its end. */
static bool is_wanted(size_t size) {
    if (frame.type == 'h') return true;
    if (!current) return false;
    if (frame.type == 'x') return size <= FRAME_HEAD + MAX_END;
    if (size > events_left) {
        events_cut++;
        return false;
    }
    events_left -= size;
    return true;
}

static void frame_begun(void) {
    char type = (char)frame.head[0];
    size_t length = frame_length(frame.head);
    bool known = type == 'h' || type == 'r' || type == 'x';
    if (!known || length > MAX_SAID || (state == STARTING && (type != 'h' || length > MAX_HELLO))) {
        broken_protocol();
        return;
    }
    frame.left = length;
    frame.body = NULL;
    frame.type = type;
    if (type == 'h' ? state != STARTING : state != RUNNING || request) frame.type = 0;
    else if (is_wanted(FRAME_HEAD + length)) {
        frame.body = new_frame(type, NULL, length);
        if (frame.body) frame.body->at = FRAME_HEAD;
        else if (type == 'h') broken_protocol();
        else if (type == 'r') events_cut++;
    }
    if (length == 0) {
        if (frame.body) frame.body->at = 0;
        frame_ended();
    }
}

static void read_frames(const uint8_t *p, size_t n) {
    while (n > 0 && !reason) {
        if (frame.head_bytes < FRAME_HEAD) {
            frame.head[frame.head_bytes++] = *p++;
            n--;
            if (frame.head_bytes == FRAME_HEAD) frame_begun();
            continue;
        }
        size_t part = n < frame.left ? n : frame.left;
        if (frame.body) {
            memcpy(frame.body->bytes + frame.body->at, p, part);
            frame.body->at += part;
        }
        p += part, n -= part, frame.left -= part;
        if (frame.left > 0) continue;
        if (frame.body) frame.body->at = 0;
        frame_ended();
    }
}

/* Reads once; returns how much. */
static size_t read_channel(void) {
    static uint8_t buffer[COPY_BYTES];
    ssize_t n = recv(channel, buffer, sizeof buffer, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return 0;
    if (n > 0) {
        read_frames(buffer, (size_t)n);
        return (size_t)n;
    }
    close(channel); /* the runner is ending, or can never say anything again */
    channel = -1;
    deaf = true;
    if (!kill_at) kill_at = now_us() + DEAF_US;
    return 0;
}

static void send_request(void) {
    ssize_t n = send(channel, request->bytes + request->at, request->size - request->at, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0) return; /* if the runner is gone, reading tells */
    if ((request->at += (size_t)n) < request->size) return;
    free(request);
    request = NULL;
}

/* ---- clients ---- */

static void begin_cell(void) {
    struct piece *begin = new_frame('b', NULL, 0);
    if (!begin) {
        client_gone(current);
        return;
    }
    /* What the runner said since the last cell is no part of this one; what was written since then comes first. */
    int waiting = 0;
    if (channel >= 0) ioctl(channel, FIONREAD, &waiting);
    for (size_t n; channel >= 0 && waiting > 0 && (n = read_channel()) > 0;) waiting -= (int)n;
    drain_text();
    put(&current->out, begin);
    begin->next = between.first;
    if (between.last) current->out.last = between.last;
    current->out.held += between.held;
    between = (struct queue){0};
    state = RUNNING;
    request->at = 0;
    order_head_bytes = 0;
    text_left = MAX_TEXT - MAX_BETWEEN;
    events_left = MAX_EVENTS;
    if (channel >= 0) send_request();
}

/* Reads of the current client's request what has come. */
static void take_request(void) {
    bool in_head = request_head_bytes < FRAME_HEAD;
    uint8_t *to = in_head ? request_head + request_head_bytes : request->bytes + request->at;
    size_t most = in_head ? FRAME_HEAD - request_head_bytes : request->size - request->at;
    ssize_t n = recv(current->fd, to, most, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (n <= 0) {
        client_gone(current);
        return;
    }
    request_by = now_us() + REQUEST_US;
    if (!in_head) request->at += (size_t)n;
    else if ((request_head_bytes += (size_t)n) == FRAME_HEAD) {
        size_t length = frame_length(request_head);
        request = request_head[0] == 'Q' && length > 0 && length <= MAX_REQUEST ? new_frame('Q', NULL, length) : NULL;
        if (!request) {
            client_gone(current);
            return;
        }
        request->at = FRAME_HEAD;
    }
    if (request && request->at == request->size) begin_cell();
    else if (in_head && request) take_request();
}

/* A client whose cell runs may say `i`, and nothing else. */
static void take_order(void) {
    ssize_t n = recv(current->fd, order_head + order_head_bytes, FRAME_HEAD - order_head_bytes, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (n > 0 && (order_head_bytes += (size_t)n) < FRAME_HEAD) return;
    order_head_bytes = 0;
    if (n > 0 && order_head[0] == 'i' && frame_length(order_head) == 0) interrupt_cell(true);
    else client_gone(current);
}

static size_t count_clients(bool leaving) {
    size_t n = 0;
    for (size_t i = 0; i < MAX_CLIENTS; i++) n += clients[i].fd >= 0 && clients[i].leaving == leaving;
    return n;
}

static void accept_client(void) {
    static uint64_t turns;
    struct ucred peer;
    socklen_t size = sizeof peer;
    struct client *c = NULL;
    int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0) return;
    for (size_t i = 0; i < most_clients && !c; i++)
        if (clients[i].fd < 0) c = &clients[i];
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0 || peer.uid != getuid()) {
        close(fd);
    } else if (!c || count_clients(false) - (current != NULL) >= MAX_WAITING) {
        uint8_t busy[FRAME_HEAD + sizeof BUSY - 1];
        frame_head(busy, 'l', sizeof BUSY - 1);
        memcpy(busy + FRAME_HEAD, BUSY, sizeof BUSY - 1);
        send(fd, busy, sizeof busy, MSG_NOSIGNAL | MSG_DONTWAIT);
        close(fd);
    } else {
        *c = (struct client){.fd = fd, .turn = turns++};
    }
}

static bool may_begin(void) {
    return state == IDLE && !calm_at && !expiring && channel >= 0 && count_clients(true) < MAX_LEAVING;
}

/* The first client that has said something. */
static void choose_client(const struct pollfd *p) {
    struct client *next = NULL;
    for (size_t i = 0; i < MAX_CLIENTS; i++)
        if (p[i].fd >= 0 && p[i].fd == clients[i].fd && p[i].revents & POLLIN && !clients[i].leaving &&
            (!next || clients[i].turn < next->turn))
            next = &clients[i];
    if (!next || !may_begin()) return;
    current = next;
    state = TAKING;
    request_head_bytes = 0;
    request_by = now_us() + REQUEST_US;
    take_request();
}

static void serve_client(struct client *c, short events) {
    if (c == current && state == RUNNING && events & (POLLIN | POLLHUP | POLLERR)) take_order();
    else if (c == current && state == TAKING && events & (POLLIN | POLLHUP | POLLERR)) take_request();
    else if (c != current && events & (POLLHUP | POLLERR)) forget_client(c);
}

static void flush_clients(void) {
    for (size_t i = 0; i < MAX_CLIENTS; i++) {
        struct client *c = &clients[i];
        if (c->fd < 0) continue;
        if (!flush(c)) client_gone(c);
        else if (c->leaving && !c->out.first) forget_client(c);
    }
}

/* ---- ends ---- */

static struct piece *lost_frame(int status) {
    char text_of[32];
    int n = snprintf(text_of, sizeof text_of, WIFSIGNALED(status) ? "signal %d" : "exit %d",
                     WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
    return reason ? new_frame('l', reason, strlen(reason)) : new_frame('l', text_of, (size_t)n);
}

static void runner_ended(int status) {
    runner = 0;
    for (int rounds = 0; rounds < 64 && channel >= 0 && read_channel() > 0; rounds++) {} /* its last words */
    drain_text();
    exit_code = expiring ? 0 : WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    if (state == STARTING) {
        if (early_bytes && write(2, early, early_bytes) < 0) {}
        dprintf(2, "%swarren-context: the runner ended before it was ready\n",
                early_bytes && early[early_bytes - 1] != '\n' ? "\n" : "");
        if (exit_code == 0) exit_code = NOT_READY;
    }
    if (state == RUNNING) end_cell(lost_frame(status));
    state = ENDING;
    close(listener);
    listener = -1;
    for (size_t i = 0; i < MAX_CLIENTS; i++)
        if (clients[i].fd >= 0 && !clients[i].leaving) forget_client(&clients[i]);
    current = NULL;
    flush_by = now_us() + FLUSH_US;
}

static void take_signals(void) {
    struct signalfd_siginfo info;
    int status;
    while (read(signals, &info, sizeof info) == sizeof info)
        if (info.ssi_signo == SIGINT) interrupt_cell(false);
    if (runner > 0 && waitpid(runner, &status, WNOHANG) == runner) runner_ended(status);
}

/* Closes the runner's input, which is its sign to end. */
static void expire(void) {
    expiring = true;
    close(listener);
    listener = -1;
    close(channel);
    channel = -1;
    kill_at = now_us() + grace_us;
}

static bool may_expire(void) {
    return state == IDLE && idle_us && !expiring && !deaf && count_clients(false) + count_clients(true) == 0;
}

static void check_deadlines(void) {
    uint64_t now = now_us();
    if (again_at && now >= again_at) interrupt_again();
    if (state == IDLE && calm_at && now >= calm_at) calm_at = 0;
    if (kill_at && now >= kill_at) kill_runner(deaf && !expiring ? "protocol" : NULL);
    if (state == TAKING && now >= request_by) client_gone(current);
    if (may_expire() && now >= expire_at) expire();
    if (state == ENDING && (count_clients(true) == 0 || now >= flush_by)) _exit(exit_code);
}

static int time_left_ms(void) {
    uint64_t next = UINT64_MAX, now = now_us();
    if (kill_at) next = kill_at;
    if (again_at && again_at < next) next = again_at;
    if (state == IDLE && calm_at && calm_at < next) next = calm_at;
    if (state == TAKING && request_by < next) next = request_by;
    if (may_expire() && expire_at < next) next = expire_at;
    if (state == ENDING && flush_by < next) next = flush_by;
    if (next == UINT64_MAX) return -1;
    return next <= now ? 0 : next - now > 3600000000u ? 3600000 : (int)((next - now + 999) / 1000);
}

/* ---- start ---- */

static void listen_as(const char *id) {
    struct sockaddr_un a;
    socklen_t length = context_address(&a, id);
    listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (listener < 0 || bind(listener, (struct sockaddr *)&a, length) != 0 || listen(listener, 128) != 0)
        fail("the context's socket");
}

static void listen_to_signals(void) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGCHLD);
    sigaddset(&set, SIGINT);
    sigprocmask(SIG_SETMASK, &set, NULL);
    signal(SIGPIPE, SIG_IGN);
    signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    if (signals < 0) fail("signalfd");
}

static void wrong_use(void) {
    dprintf(2, "context --id ID [--idle-s N] [--grace-ms N] [--env NAME] … -- PROGRAM [ARGUMENT …] keeps a code "
               "context; not to be run by hand\n");
    _exit(64);
}

static char **parse(int argc, char **argv, const char **id) {
    int i = 2;
    for (; i + 1 < argc && strcmp(argv[i], "--") != 0; i += 2) {
        const char *value = argv[i + 1];
        if (strcmp(argv[i], "--id") == 0) *id = value;
        else if (strcmp(argv[i], "--idle-s") == 0) idle_us = strtoull(value, NULL, 10) * 1000000u;
        else if (strcmp(argv[i], "--grace-ms") == 0) grace_us = strtoull(value, NULL, 10) * 1000u;
        else if (strcmp(argv[i], "--env") != 0) wrong_use();
    }
    if (i + 1 >= argc || !*id || !**id || strlen(*id) > MAX_CONTEXT_ID) wrong_use();
    argv[i] = NULL;
    options = argv + 2;
    return argv + i + 1;
}

/* Accepting more than there are descriptors for would fail, again and again. */
static void bound_clients(void) {
    struct rlimit r;
    if (getrlimit(RLIMIT_NOFILE, &r) == 0 && r.rlim_cur < MAX_CLIENTS + 16)
        most_clients = r.rlim_cur > 32 ? (size_t)r.rlim_cur - 16 : 16;
    for (size_t i = 0; i < MAX_CLIENTS; i++) clients[i].fd = -1;
}

enum { SIGNALS, CHANNEL, OUT, ERR, LISTENER, FIRST_CLIENT };

static void prepare_poll(struct pollfd *p) {
    bool room = !(state == RUNNING && current) || current->out.held <= BACK_PRESSURE, choosing = may_begin();
    bool sending = state == RUNNING && request;
    p[SIGNALS] = (struct pollfd){signals, POLLIN, 0};
    p[CHANNEL] =
        (struct pollfd){room || sending ? channel : -1, (short)((room ? POLLIN : 0) | (sending ? POLLOUT : 0)), 0};
    for (int i = 0; i < 2; i++) p[OUT + i] = (struct pollfd){room ? text[i] : -1, POLLIN, 0};
    p[LISTENER] = (struct pollfd){listener, POLLIN, 0};
    for (size_t i = 0; i < MAX_CLIENTS; i++) {
        const struct client *c = &clients[i];
        bool reading = c == current || (choosing && !c->leaving);
        p[FIRST_CLIENT + i] = (struct pollfd){c->fd, (short)((reading ? POLLIN : 0) | (c->out.first ? POLLOUT : 0)), 0};
    }
}

int keeper_main(int argc, char **argv) {
    static struct pollfd p[FIRST_CLIENT + MAX_CLIENTS];
    const char *id = NULL;
    prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
    char **program = parse(argc, argv, &id);
    bound_clients();
    listen_to_signals();
    listen_as(id);
    start_runner(program);
    for (;;) {
        prepare_poll(p);
        if (poll(p, FIRST_CLIENT + MAX_CLIENTS, time_left_ms()) < 0 && errno != EINTR) fail("poll");
        for (int i = 0; i < 2; i++)
            if (p[OUT + i].revents && text[i] >= 0) take_text(i, COPY_BYTES);
        if (p[CHANNEL].revents & POLLOUT && request && state == RUNNING && channel >= 0) send_request();
        if (p[CHANNEL].revents & (POLLIN | POLLHUP | POLLERR) && channel >= 0) read_channel();
        if (p[SIGNALS].revents) take_signals();
        for (size_t i = 0; i < MAX_CLIENTS; i++)
            if (p[FIRST_CLIENT + i].revents && clients[i].fd >= 0 && clients[i].fd == p[FIRST_CLIENT + i].fd)
                serve_client(&clients[i], p[FIRST_CLIENT + i].revents);
        choose_client(p + FIRST_CLIENT);
        if (p[LISTENER].revents && listener >= 0) accept_client();
        flush_clients();
        check_deadlines();
    }
}
