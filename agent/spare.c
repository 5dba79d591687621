/* Keeps a supervisor whose command has ended for the next one, because forking one is a good part of what a short command
 * costs.
 *
 * A supervisor with nothing left below it says so with the end of its command, and waits. What a forked one inherits, it
 * gets as one message: the strings in a row, the descriptors attached. The agent keeps one, for some seconds. It forks as
 * ever where there is none, where a message would be too long, and where commands may be root: root could stop or kill
 * the one that waits.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "command.h"

#define KEEP_US (10 * 1000 * 1000)
#define MAX_MESSAGE (32u * 1024)
#define MAX_STRINGS 512u
#define FDS 5

/* The message begins with this; behind it come cwd and carried_cwd, if there are such, arguments and environment. */
struct head {
    struct user user;
    uint32_t argc, envc;
    bool terminal, has_cwd, has_carried, has_fd[FDS];
};
struct message {
    struct head head;
    char text[MAX_MESSAGE];
};
union ancillary {
    char room[CMSG_SPACE(FDS * sizeof(int))];
    struct cmsghdr first;
};

/* ---- in the agent ---- */

static struct watch spare = {.fd = -1};
static pid_t spare_pid;
static uint64_t until_us;

bool spare_kept(void) { return spare.fd >= 0; }
uint64_t spare_next(void) { return spare.fd < 0 ? UINT64_MAX : until_us; }

void spare_tidy(void) {
    if (spare.fd >= 0 && now_us() >= until_us) watch_drop(&spare);
}

/* It has been killed: what waits has nothing to say. */
static void spare_lost(struct watch *w, uint32_t events) {
    (void)events;
    watch_drop(w);
}

void spare_keep(struct command *c) {
    if (spare.fd >= 0) {
        watch_drop(&c->control);
        return;
    }
    watch_move(&c->control, &spare, spare_lost, NULL);
    spare_pid = c->supervisor;
    until_us = now_us() + KEEP_US;
}

static bool add_string(struct message *m, size_t *n, const char *s) {
    size_t more = strlen(s) + 1;
    if (more > sizeof m->text - *n) return false;
    memcpy(m->text + *n, s, more);
    *n += more;
    return true;
}

static bool add_strings(struct message *m, size_t *n, char **list, uint32_t *count) {
    for (*count = 0; list[*count]; ++*count)
        if (*count == MAX_STRINGS || !add_string(m, n, list[*count])) return false;
    return true;
}

static bool hand_over(int socket, const struct launch *l) {
    static struct message m;
    union ancillary a = {0};
    const int fds[FDS] = {l->in, l->out, l->err, l->state_fd, l->text_fd};
    int given[FDS];
    size_t n = 0, count = 0;
    m.head = (struct head){.user = l->user, .terminal = l->terminal, .has_cwd = l->cwd, .has_carried = l->carried_cwd};
    for (size_t i = 0; i < FDS; i++)
        if ((m.head.has_fd[i] = fds[i] >= 0)) given[count++] = fds[i];
    if ((l->cwd && !add_string(&m, &n, l->cwd)) || (l->carried_cwd && !add_string(&m, &n, l->carried_cwd)))
        return false;
    if (!add_strings(&m, &n, l->argv, &m.head.argc) || !add_strings(&m, &n, l->env, &m.head.envc)) return false;
    struct iovec part = {&m, offsetof(struct message, text) + n};
    struct msghdr h = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = a.room};
    h.msg_controllen = CMSG_SPACE(count * sizeof *given);
    a.first = (struct cmsghdr){.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
    a.first.cmsg_len = CMSG_LEN(count * sizeof *given);
    memcpy(CMSG_DATA(&a.first), given, count * sizeof *given);
    return sendmsg(socket, &h, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)part.iov_len;
}

bool spare_start(struct command *c, const struct launch *l) {
    if (spare.fd < 0) return false;
    if (!hand_over(spare.fd, l)) {
        watch_drop(&spare);
        return false;
    }
    watch_move(&spare, &c->control, control_ready, c);
    c->supervisor = spare_pid;
    return true;
}

/* ---- in the supervisor ---- */

static char *next_string(char **at) {
    char *s = *at;
    *at += strlen(s) + 1;
    return s;
}

static char **next_strings(char **at, uint32_t count, char **list) {
    for (uint32_t i = 0; i < count; i++) list[i] = next_string(at);
    list[count] = NULL;
    return list;
}

static struct message received;
static size_t received_bytes;

void take_over(int socket, struct launch *l) {
    static char *argv[MAX_STRINGS + 1], *env[MAX_STRINGS + 1];
    union ancillary a;
    struct iovec part = {&received, sizeof received};
    ssize_t got;
    struct msghdr h;
    do { /* an order may still come that was meant for the command before */
        h = (struct msghdr){.msg_iov = &part, .msg_iovlen = 1, .msg_control = a.room, .msg_controllen = sizeof a.room};
        got = recvmsg(socket, &h, MSG_CMSG_CLOEXEC);
    } while (got == sizeof(struct order));
    if (got < (ssize_t)sizeof(struct head)) _exit(0);
    received_bytes = (size_t)got;
    struct head *head = &received.head;
    char *at = received.text;
    struct cmsghdr *rights = CMSG_FIRSTHDR(&h);
    size_t taken = 0, count = rights ? (rights->cmsg_len - CMSG_LEN(0)) / sizeof(int) : 0;
    int fds[FDS], given[FDS];
    if (rights) memcpy(given, CMSG_DATA(rights), count * sizeof *given);
    for (size_t i = 0; i < FDS; i++) {
        if (head->has_fd[i] && taken == count) _exit(0); /* the descriptors would be more than this sandbox may have */
        fds[i] = head->has_fd[i] ? given[taken++] : -1;
    }
    *l = (struct launch){.user = head->user, .terminal = head->terminal};
    if (head->has_cwd) l->cwd = next_string(&at);
    if (head->has_carried) l->carried_cwd = next_string(&at);
    l->argv = next_strings(&at, head->argc, argv);
    l->env = next_strings(&at, head->envc, env);
    l->in = fds[0], l->out = fds[1], l->err = fds[2], l->state_fd = fds[3], l->text_fd = fds[4];
}

/* The command's environment may hold secrets. */
void forget_launch(void) { memset(&received, 0, received_bytes); }
