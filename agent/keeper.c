/* The keeper of a code context: /.warren/agent context --id ID [--idle-s N] [--grace-ms N] [--env NAME] …
 *                                             -- PROGRAM ARGUMENT …
 *
 * Theory of operation. The keeper is a background process of the user. It starts the runner, an interpreter that runs
 * cells and keeps its state between them, and serves the clients of cells (cell.c), one after the other:
 *
 *   cell client ══ socket ══ keeper ─┬─ descriptor 3 of the runner: requests, events, ends
 *   cell client …                    └─ pipes at its 1 and 2: text, also of what user code starts
 *
 * User code has descriptors 1, 2 and 3 of the runner at most. With them it can pretend to be the runner, but it never
 * has a descriptor on which the frames of a client travel: the keeper puts text into frames. The kernel lets no process
 * of the user look into the keeper, from its first instruction on, because the user may not read the program's file.
 *
 * Everything is bounded: what a cell may give, what waits for a client that does not read, how many clients there are.
 * The requests of clients that wait for their turn stay in their sockets. Only the loop at the end of this file waits.
 *
 * A client that goes away, or asks for it, has its cell interrupted; a runner that does not end the cell within the
 * grace time is killed. When the runner ends the keeper ends too, with its exit code.
 *
 * When the runner is ready the keeper writes its directory, the variables that `--env` names and the runner's hello to
 * stdout, so that whoever restarts the context can give it the same directory and variables again.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent.h"
#include "keeper.h"

#define MIB (1024u * 1024)
#define MAX_WAITING 64
#define MAX_LEAVING 4         /* clients whose cell has ended and that have not read all of it */
#define MAX_TEXT (12 * MIB)   /* of a cell, with the heads of its frames; */
#define MAX_EVENTS (16 * MIB) /* together they are less than the agent keeps of a command */
#define BACK_PRESSURE MIB     /* if more waits for the client, the runner is not read */
#define GRACE_US 2000000u     /* how long an interrupted cell has to end, unless --grace-ms says otherwise */
#define REQUEST_US 5000000u   /* for each part of a request, which a client sends as soon as it has connected */

/* ---- clients ---- */

static void begin_cell(struct keeper *k) {
    struct piece *begin = new_frame('b', NULL, 0);
    if (!begin) {
        client_gone(k, k->current);
        return;
    }
    /* Frames that the runner has sent since the last cell do not belong to this one, and are read before its request is
     * sent. Text that was written since then comes first in this cell. */
    int waiting = 0;
    if (k->channel >= 0) ioctl(k->channel, FIONREAD, &waiting);
    for (size_t n; k->channel >= 0 && waiting > 0 && (n = read_channel(k)) > 0;) waiting -= (int)n;
    drain_text(k);
    queue_put(&k->current->out, begin);
    begin->next = k->between.first;
    if (k->between.last) k->current->out.last = k->between.last;
    k->current->out.held += k->between.held;
    k->between = (struct queue){0};
    k->state = RUNNING;
    k->request->at = 0;
    k->order_head_bytes = 0;
    k->text_left = MAX_TEXT - MAX_BETWEEN;
    k->events_left = MAX_EVENTS;
    if (k->channel >= 0) send_request(k);
}

/* Reads as much of the current client's request as has come, and begins the cell when it is complete. */
static void take_request(struct keeper *k) {
    bool in_head = k->request_head_bytes < FRAME_HEAD;
    uint8_t *to = in_head ? k->request_head + k->request_head_bytes : k->request->bytes + k->request->at;
    size_t most = in_head ? FRAME_HEAD - k->request_head_bytes : k->request->size - k->request->at;
    ssize_t n = recv(k->current->fd, to, most, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (n <= 0) {
        client_gone(k, k->current);
        return;
    }
    k->request_by = keeper_now(k) + REQUEST_US;
    if (!in_head) k->request->at += (size_t)n;
    else if ((k->request_head_bytes += (size_t)n) == FRAME_HEAD) {
        size_t length = frame_length(k->request_head);
        k->request =
            k->request_head[0] == 'Q' && length > 0 && length <= MAX_REQUEST ? new_frame('Q', NULL, length) : NULL;
        if (!k->request) {
            client_gone(k, k->current);
            return;
        }
        k->request->at = FRAME_HEAD;
    }
    if (k->request && k->request->at == k->request->size) begin_cell(k);
    else if (in_head && k->request) take_request(k);
}

/* Reads from the client whose cell runs. It may send `i`, to interrupt the cell; after anything else it is dropped. */
static void take_order(struct keeper *k) {
    ssize_t n =
        recv(k->current->fd, k->order_head + k->order_head_bytes, FRAME_HEAD - k->order_head_bytes, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (n > 0 && (k->order_head_bytes += (size_t)n) < FRAME_HEAD) return;
    k->order_head_bytes = 0;
    if (n > 0 && k->order_head[0] == 'i' && frame_length(k->order_head) == 0) interrupt_cell(k, true);
    else client_gone(k, k->current);
}

static size_t count_clients(const struct keeper *k, bool leaving) {
    size_t n = 0;
    for (size_t i = 0; i < MAX_CLIENTS; i++) n += k->clients[i].fd >= 0 && k->clients[i].leaving == leaving;
    return n;
}

static void accept_client(struct keeper *k) {
    struct ucred peer;
    socklen_t size = sizeof peer;
    struct client *c = NULL;
    int fd = accept4(k->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0) return;
    for (size_t i = 0; i < k->most_clients && !c; i++)
        if (k->clients[i].fd < 0) c = &k->clients[i];
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0 || peer.uid != getuid()) {
        close(fd);
    } else if (!c || count_clients(k, false) - (k->current != NULL) >= MAX_WAITING) {
        uint8_t busy[FRAME_HEAD + sizeof BUSY - 1];
        frame_head(busy, 'l', sizeof BUSY - 1);
        memcpy(busy + FRAME_HEAD, BUSY, sizeof BUSY - 1);
        send(fd, busy, sizeof busy, MSG_NOSIGNAL | MSG_DONTWAIT);
        close(fd);
    } else {
        *c = (struct client){.fd = fd, .turn = k->turns++};
    }
}

static bool may_begin(const struct keeper *k) {
    return k->state == IDLE && !k->calm_at && !k->expiring && k->channel >= 0 && count_clients(k, true) < MAX_LEAVING;
}

/* Begins with the client that has waited longest, of those that have sent something. */
static void choose_client(struct keeper *k, const struct pollfd *p) {
    struct client *next = NULL;
    for (size_t i = 0; i < MAX_CLIENTS; i++)
        if (p[i].fd >= 0 && p[i].fd == k->clients[i].fd && p[i].revents & POLLIN && !k->clients[i].leaving &&
            (!next || k->clients[i].turn < next->turn))
            next = &k->clients[i];
    if (!next || !may_begin(k)) return;
    k->current = next;
    k->state = TAKING;
    k->request_head_bytes = 0;
    k->request_by = keeper_now(k) + REQUEST_US;
    take_request(k);
}

static void serve_client(struct keeper *k, struct client *c, short events) {
    if (c == k->current && k->state == RUNNING && events & (POLLIN | POLLHUP | POLLERR)) take_order(k);
    else if (c == k->current && k->state == TAKING && events & (POLLIN | POLLHUP | POLLERR)) take_request(k);
    else if (c != k->current && events & (POLLHUP | POLLERR)) forget_client(c);
}

static void flush_clients(struct keeper *k) {
    for (size_t i = 0; i < MAX_CLIENTS; i++) {
        struct client *c = &k->clients[i];
        if (c->fd < 0) continue;
        if (!client_flush(k, c)) client_gone(k, c);
        else if (c->leaving && !c->out.first) forget_client(c);
    }
}

/* ---- ends ---- */

static void take_signals(struct keeper *k) {
    struct signalfd_siginfo info;
    int status;
    while (read(k->signals, &info, sizeof info) == sizeof info)
        if (info.ssi_signo == SIGINT) interrupt_cell(k, false);
    if (k->runner > 0 && waitpid(k->runner, &status, WNOHANG) == k->runner) runner_ended(k, status);
}

/* Closes the runner's socket: at its end a runner exits. */
static void expire(struct keeper *k) {
    k->expiring = true;
    close(k->listener);
    k->listener = -1;
    close(k->channel);
    k->channel = -1;
    k->kill_at = keeper_now(k) + k->grace_us;
}

static bool may_expire(const struct keeper *k) {
    return k->state == IDLE && k->idle_us && !k->expiring && !k->deaf &&
           count_clients(k, false) + count_clients(k, true) == 0;
}

static void check_deadlines(struct keeper *k) {
    own_time_pass(&k->time, 0);
    uint64_t now = keeper_now(k);
    if (k->again_at && now >= k->again_at) interrupt_again(k);
    if (k->state == IDLE && k->calm_at && now >= k->calm_at) k->calm_at = 0;
    if (k->kill_at && now >= k->kill_at) kill_runner(k, k->deaf && !k->expiring ? "protocol" : NULL);
    if (k->state == TAKING && now >= k->request_by) client_gone(k, k->current);
    if (may_expire(k) && now >= k->expire_at) expire(k);
    if (k->state == ENDING && (count_clients(k, true) == 0 || now >= k->flush_by)) _exit(k->exit_code);
}

static int time_left_ms(const struct keeper *k) {
    uint64_t next = UINT64_MAX, now = keeper_now(k);
    if (k->kill_at) next = k->kill_at;
    if (k->again_at && k->again_at < next) next = k->again_at;
    if (k->state == IDLE && k->calm_at && k->calm_at < next) next = k->calm_at;
    if (k->state == TAKING && k->request_by < next) next = k->request_by;
    if (may_expire(k) && k->expire_at < next) next = k->expire_at;
    if (k->state == ENDING && k->flush_by < next) next = k->flush_by;
    if (paced_until(k) > now && paced_until(k) < next) next = paced_until(k);
    if (next == UINT64_MAX) return -1;
    return next <= now ? 0 : own_time_ms(next - now);
}

/* ---- start ---- */

static void listen_as(struct keeper *k, const char *id) {
    struct sockaddr_un a;
    socklen_t length = context_address(&a, id);
    k->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (k->listener < 0 || bind(k->listener, (struct sockaddr *)&a, length) != 0 || listen(k->listener, 128) != 0)
        fail("the context's socket");
}

static void listen_to_signals(struct keeper *k) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGCHLD);
    sigaddset(&set, SIGINT);
    sigprocmask(SIG_SETMASK, &set, NULL);
    signal(SIGPIPE, SIG_IGN);
    k->signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    if (k->signals < 0) fail("signalfd");
}

static void wrong_use(void) {
    dprintf(2, "context --id ID [--idle-s N] [--grace-ms N] [--env NAME] … -- PROGRAM [ARGUMENT …] keeps a code "
               "context; not to be run by hand\n");
    _exit(64);
}

static char **parse(struct keeper *k, int argc, char **argv, const char **id) {
    int i = 2;
    for (; i + 1 < argc && strcmp(argv[i], "--") != 0; i += 2) {
        const char *value = argv[i + 1];
        if (strcmp(argv[i], "--id") == 0) *id = value;
        else if (strcmp(argv[i], "--idle-s") == 0) k->idle_us = strtoull(value, NULL, 10) * 1000000u;
        else if (strcmp(argv[i], "--grace-ms") == 0) k->grace_us = strtoull(value, NULL, 10) * 1000u;
        else if (strcmp(argv[i], "--env") != 0) wrong_use();
    }
    if (i + 1 >= argc || !*id || !**id || strlen(*id) > MAX_CONTEXT_ID) wrong_use();
    argv[i] = NULL;
    k->options = argv + 2;
    return argv + i + 1;
}

/* Serves no more clients than there are descriptors for: else accepting would fail, again and again. */
static void bound_clients(struct keeper *k) {
    struct rlimit r;
    k->most_clients = MAX_CLIENTS;
    if (getrlimit(RLIMIT_NOFILE, &r) == 0 && r.rlim_cur < MAX_CLIENTS + 16)
        k->most_clients = r.rlim_cur > 32 ? (size_t)r.rlim_cur - 16 : 16;
    for (size_t i = 0; i < MAX_CLIENTS; i++) k->clients[i].fd = -1;
}

enum { SIGNALS, CHANNEL, OUT, ERR, LISTENER, FIRST_CLIENT };

static void prepare_poll(const struct keeper *k, struct pollfd *p) {
    bool giving = k->state == RUNNING && k->current, choosing = may_begin(k);
    bool room = !giving || k->current->out.held <= BACK_PRESSURE;
    bool paced = (giving || k->state == IDLE) && paced_until(k) > keeper_now(k);
    bool hears = room && (!paced || !giving || k->kill_at); /* the end of an interrupted cell must not wait */
    bool sending = k->state == RUNNING && k->request;
    p[SIGNALS] = (struct pollfd){k->signals, POLLIN, 0};
    p[CHANNEL] =
        (struct pollfd){hears || sending ? k->channel : -1, (short)((hears ? POLLIN : 0) | (sending ? POLLOUT : 0)), 0};
    for (int i = 0; i < 2; i++) p[OUT + i] = (struct pollfd){room && !paced ? k->text[i] : -1, POLLIN, 0};
    p[LISTENER] = (struct pollfd){k->listener, POLLIN, 0};
    for (size_t i = 0; i < MAX_CLIENTS; i++) {
        const struct client *c = &k->clients[i];
        bool reading = c == k->current || (choosing && !c->leaving);
        p[FIRST_CLIENT + i] = (struct pollfd){c->fd, (short)((reading ? POLLIN : 0) | (c->out.first ? POLLOUT : 0)), 0};
    }
}

/* Waits until something can be done, and does it. */
static void take_turn(struct keeper *k) {
    static struct pollfd p[FIRST_CLIENT + MAX_CLIENTS];
    prepare_poll(k, p);
    int timeout_ms = time_left_ms(k);
    if (poll(p, FIRST_CLIENT + MAX_CLIENTS, timeout_ms) < 0 && errno != EINTR) fail("poll");
    own_time_pass(&k->time, timeout_ms);
    for (int i = 0; i < 2; i++)
        if (p[OUT + i].revents && k->text[i] >= 0) take_text(k, i, COPY_BYTES);
    if (p[CHANNEL].revents & POLLOUT && k->request && k->state == RUNNING && k->channel >= 0) send_request(k);
    if (p[CHANNEL].revents & (POLLIN | POLLHUP | POLLERR) && k->channel >= 0) read_channel(k);
    if (p[SIGNALS].revents) take_signals(k);
    for (size_t i = 0; i < MAX_CLIENTS; i++)
        if (p[FIRST_CLIENT + i].revents && k->clients[i].fd >= 0 && k->clients[i].fd == p[FIRST_CLIENT + i].fd)
            serve_client(k, &k->clients[i], p[FIRST_CLIENT + i].revents);
    choose_client(k, p + FIRST_CLIENT);
    if (p[LISTENER].revents && k->listener >= 0) accept_client(k);
    flush_clients(k);
    check_deadlines(k);
}

static void prepare(struct keeper *k) {
    k->grace_us = GRACE_US;
    k->listener = k->signals = k->channel = k->text[0] = k->text[1] = -1;
    k->text_left = MAX_BETWEEN;
    bound_clients(k);
}

int keeper_main(int argc, char **argv) {
    static struct keeper keeper; /* zeros, which a program file does not have to hold */
    const char *id = NULL;
    prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
    prepare(&keeper);
    char **program = parse(&keeper, argc, argv, &id);
    listen_to_signals(&keeper);
    listen_as(&keeper, id);
    start_runner(&keeper, program);
    for (;;) take_turn(&keeper);
}
