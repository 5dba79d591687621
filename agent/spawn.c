/* Starts a command: opens pipes or a terminal, builds the environment, forks the supervisor.
 *
 * The agent opens everything before it forks, so that a command that cannot be started is refused with a reason. It
 * keeps one end of each pipe, or the master of the terminal; the supervisor hands the other ends to the command
 * (supervise.c).
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/fsuid.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "command.h"

struct ends { int in[2], out[2], err[2]; };

static void close_ends(struct ends *e) {
    int *all = (int *)e;
    for (size_t i = 0; i < sizeof *e / sizeof *all; i++)
        if (all[i] >= 0) close(all[i]);
}

/* The user owns the pipes, so that the command can open /dev/stdin, /dev/stdout and /dev/stderr. */
static bool open_pipes(struct ends *e, bool with_input, const struct user *u) {
    int mode = O_CLOEXEC | (settings.exact_order ? O_DIRECT : 0);
    setfsuid(u->uid);
    bool good = pipe2(e->out, mode) == 0 && pipe2(e->err, mode) == 0 && (!with_input || pipe2(e->in, O_CLOEXEC) == 0);
    setfsuid(settings.agent_uid);
    if (good && with_input) return fcntl(e->in[1], F_SETFL, O_NONBLOCK) == 0;
    return good && (e->in[0] = open("/dev/null", O_RDONLY | O_CLOEXEC)) >= 0;
}

bool set_terminal_size(int fd, uint64_t rows, uint64_t cols) {
    struct winsize size = {.ws_row = (unsigned short)rows, .ws_col = (unsigned short)cols};
    return ioctl(fd, TIOCSWINSZ, &size) == 0;
}

static bool open_terminal(struct ends *e, const struct request *r, const struct user *u) {
    /* The user who opens the master owns the terminal; only the identity for files changes here. */
    setfsuid(u->uid);
    int master = open("/dev/ptmx", O_RDWR | O_NOCTTY | O_CLOEXEC | O_NONBLOCK);
    setfsuid(settings.agent_uid);
    int unlock = 0, number;
    if (master < 0 || ioctl(master, TIOCSPTLCK, &unlock) != 0 || ioctl(master, TIOCGPTN, &number) != 0) goto no;
    char path[32];
    snprintf(path, sizeof path, "/dev/pts/%d", number);
    setfsuid(u->uid);
    int slave = open(path, O_RDWR | O_NOCTTY | O_CLOEXEC);
    setfsuid(settings.agent_uid);
    if (slave < 0) goto no;
    set_terminal_size(master, r->rows, r->cols);
    e->in[0] = slave;
    e->out[1] = fcntl(slave, F_DUPFD_CLOEXEC, 3);
    e->err[1] = fcntl(slave, F_DUPFD_CLOEXEC, 3);
    e->out[0] = master;
    e->in[1] = fcntl(master, F_DUPFD_CLOEXEC, 3);
    return e->out[1] >= 0 && e->err[1] >= 0 && e->in[1] >= 0;
no:
    if (master >= 0) close(master);
    return false;
}

static char **base_environment(const struct user *u, bool terminal) {
    static char home[300], user[64], logname[64];
    static char *list[9];
    size_t n = 0;
    snprintf(home, sizeof home, "HOME=%s", u->home);
    snprintf(user, sizeof user, "USER=%s", u->name);
    snprintf(logname, sizeof logname, "LOGNAME=%s", u->name);
    list[n++] = home;
    list[n++] = user;
    list[n++] = logname;
    list[n++] = "SHELL=/bin/bash";
    list[n++] = "LANG=C.UTF-8";
    list[n++] = "PATH=/home/sandboxuser/.local/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
    if (terminal) list[n++] = "TERM=xterm-256color";
    list[n] = NULL;
    return list;
}

static bool fork_supervisor(struct command *c, struct launch *l) {
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0) return false;
    pid_t pid = fork();
    if (pid == 0) supervise(l, pair[1]);
    close(pair[1]);
    if (pid < 0) {
        int error = errno;
        close(pair[0]);
        errno = error;
        return false;
    }
    fcntl(pair[0], F_SETFL, O_NONBLOCK);
    c->supervisor = pid;
    watch_add(&c->control, pair[0], EPOLLIN, control_ready, c);
    return true;
}

enum code spawn(struct command *c, struct request *r, const struct user *u, const char **why) {
    struct ends e = {{-1, -1}, {-1, -1}, {-1, -1}};
    bool terminal = c->terminal;
    if (terminal ? !open_terminal(&e, r, u) : !open_pipes(&e, r->flags & FLAG_STDIN, u)) {
        /* The kernel says "no space" when this sandbox, or the whole machine, has all terminals it may have. */
        *why = terminal && errno == ENOSPC ? "all terminals that the sandbox may have are open" : strerror(errno);
        close_ends(&e);
        return CODE_LIMIT;
    }
    struct launch l = {
        .user = *u, .cwd = r->cwd, .in = e.in[0], .out = e.out[1], .err = e.err[1], .terminal = terminal};
    char **base = merge_environment(base_environment(u, terminal), r->base_env),
         **env = merge_environment(base, r->env);
    l.state_fd = l.text_fd = -1;
    l.argv = r->argv;
    l.env = env;
    if (r->shell) {
        if (!shell_prepare(&c->shell, u->uid, r->shell, base, r->env, r->flags & FLAG_CARRY && !terminal, r->cwd)) {
            *why = "the shell's state cannot be prepared";
            free(env);
            free(base);
            close_ends(&e);
            return CODE_INVALID;
        }
        l.argv = c->shell.argv;
        l.env = c->shell.env;
        l.carried_cwd = c->shell.cwd;
        l.state_fd = c->shell.state_fd;
        l.text_fd = c->shell.text_fd;
        if (!(r->flags & FLAG_CARRY) || terminal) l.env = env;
    }
    output_open(c, e.out[0],
                e.err[0]); /* before the fork, because the kernel does not signal writes that were made earlier */
    e.out[0] = e.err[0] = -1;
    bool good = spare_start(c, &l) || fork_supervisor(c, &l);
    int error = errno;
    free(env);
    free(base);
    close(e.in[0]), close(e.out[1]), close(e.err[1]);
    e.in[0] = e.out[1] = e.err[1] = -1;
    if (!good) {
        *why = strerror(error);
        close_ends(&e);
        return CODE_LIMIT;
    }
    if (e.in[1] >= 0) watch_add(&c->in, e.in[1], 0, input_ready, c);
    return 0;
}
