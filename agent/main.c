/* warren-agent: the first process of every sandbox.
 *
 * Theory of operation. The agent is PID 1. It has a uid of its own, which no command can take, and keeps only the
 * capabilities to start commands as another user and to end them (SETUID, SETGID, KILL, SETPCAP). What it runs cannot
 * dump, trace or signal it. It talks to the worker over one unix socket, either inherited as a listening descriptor
 * (its name exists only on the host) or created at a path that only the agent can enter.
 *
 *   worker ══ socket ══ agent ─┬─ supervisor ── command, and all that it starts      (supervise.c)
 *                              ├─ supervisor ─┬ command … ── sudo, the same program by another name (sudo.c)
 *                              │              └ runner ── the command that sudo was given (elevate.c)
 *                              ├─ supervisor ── keeper of a code context ── runner ── what its cells start (keeper.c)
 *                              ├─ supervisor ── client of one cell (cell.c); like the keeper the same program as this
 *                              └─ file job (already the user, never the agent's rights) (file_jobs.c)
 *
 * The agent itself never blocks and never opens a path of the user: it forks a job that takes on the user's rights
 * first. The agent keeps the output (log.c) and the exit codes of commands, so that the worker may die and come back.
 * Only the loop at the end of this file waits; everything else runs to its end when a descriptor is ready.
 *
 * In a sandbox that somebody else has made, on another machine, it is started with --guest: it is not the first process
 * there, other processes are beside it, and it may lack the capability to drop others. What keeps that sandbox from the
 * rest of the world is then the affair of whoever made it. The worker reaches it through relay.c.
 *
 * Files: main.c start and main loop; connection.c channels and frames; request.c parsing of requests; command.c the
 * life of commands; spawn.c how one is started; input.c its stdin; output.c its output; log.c the output that is kept;
 * supervise.c its process tree; elevate.c, sudo.c and tend.c root inside; hold.c when to signal it; shell.c state
 * between shell commands; keeper.c and cell.c code contexts; relay.c a way through other people's pipes; file_jobs.c file operations; files.c, tree.c, watching.c
 * and search.c what they do; users.c identities; wire.c encoding.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "agent.h"

#define CAPS ((1u << 5) | (1u << 6) | (1u << 7) | (1u << 8)) /* KILL SETGID SETUID SETPCAP */

struct settings settings = {"/workspace", "sandboxuser", 1, 65534, 0, 0, false, false, false, false};
static bool children_ended;
static int poller = -1, signals = -1;
static struct watch signal_watch, listener = {.fd = -1};

void fail(const char *what) {
    dprintf(2, "warren-agent: %s: %s\n", what, strerror(errno));
    exit(111);
}

uint64_t now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000u + (uint64_t)t.tv_nsec / 1000u;
}

void watch_add(struct watch *w, int fd, uint32_t events, void (*ready)(struct watch *, uint32_t), void *of) {
    *w = (struct watch){fd, ready, of};
    struct epoll_event e = {.events = events, .data.ptr = w};
    if (epoll_ctl(poller, EPOLL_CTL_ADD, fd, &e) != 0) fail("epoll");
}

void watch_set(struct watch *w, uint32_t events) {
    struct epoll_event e = {.events = events, .data.ptr = w};
    epoll_ctl(poller, EPOLL_CTL_MOD, w->fd, &e);
}

void watch_drop(struct watch *w) {
    epoll_ctl(poller, EPOLL_CTL_DEL, w->fd, NULL);
    close(w->fd);
    w->fd = -1;
}

/* ---- signals: ends of children, and writes to commands' pipes ---- */

void signals_take(void) {
    struct signalfd_siginfo info[64];
    int fds[64];
    for (int round = 0; round < 64; round++) { /* bounded: user code can write as fast as the agent reads */
        ssize_t n = read(signals, info, sizeof info);
        if (n <= 0) return;
        size_t count = (size_t)n / sizeof *info, writes = 0;
        bool lost = false;
        for (size_t i = 0; i < count; i++) {
            if ((int)info[i].ssi_signo == SIGRTMIN + 1) fds[writes++] = info[i].ssi_fd;
            children_ended |= info[i].ssi_signo == SIGCHLD;
            lost |= info[i].ssi_signo == SIGIO;
        }
        command_signals(fds, writes, lost);
        if (count < 64) return;
    }
}

static void reap_all(void) {
    children_ended = false;
    /* Supervisors report the ends of commands and pipes those of jobs: these exit codes are not needed. */
    while (waitpid(-1, NULL, WNOHANG) > 0) {}
}

static void signals_ready(struct watch *w, uint32_t events) {
    (void)w, (void)events;
    signals_take();
}

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

/* ---- start ---- */

static void accept_connection(struct watch *w, uint32_t events) {
    (void)events;
    int fd = accept4(w->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd >= 0) connection_take(fd);
}

static int listen_at(const char *path) {
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (strlen(path) >= sizeof a.sun_path) fail("the socket's path is too long");
    memcpy(a.sun_path, path, strlen(path));
    unlink(path);
    if (fd < 0 || bind(fd, (struct sockaddr *)&a, sizeof a) != 0 || listen(fd, 16) != 0) fail(path);
    return fd;
}

/* On Docker there is no user namespace: PID 1 starts as the host's root and gives that up for good. Where commands may be
 * root, it leaves that uid to them. */
static void become_agent_user(uid_t uid) {
    struct {
        uint32_t version;
        int pid;
    } h = {0x20080522, 0};
    struct { uint32_t effective, permitted, inheritable; } d[2];
    if (syscall(SYS_capget, &h, d) != 0) fail("capget");
    d[0].effective = CAPS;
    if (!settings.allow_root)
        d[0].permitted = CAPS; /* else what commands of root get is kept, without being in force */
    d[0].inheritable = d[1].effective = d[1].permitted = d[1].inheritable = 0;
    if (prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0) != 0) fail("keepcaps");
    if (setgroups(0, NULL) != 0 || setresgid(uid, uid, uid) != 0 || setresuid(uid, uid, uid) != 0) fail("become");
    if (syscall(SYS_capset, &h, d) != 0) fail("capset");
    prctl(PR_SET_KEEPCAPS, 0, 0, 0, 0);
}

static unsigned long number(const char *s) { return s ? strtoul(s, NULL, 10) : 0; }

static void usage(void) {
    dprintf(2, "warren-agent --listen-fd N | --socket PATH [--become UID] [--user NAME] [--workspace DIR]\n"
               "             [--uids LOW-HIGH] [--nproc N] [--memlock BYTES] [--ephemeral] [--allow-root] "
               "[--guest]\nThe first process of a Warren sandbox; not to be run by hand.\n");
    exit(2);
}

/* For this process and all that it starts. Raising it could fail, lowering it cannot. */
static void lower_memlock(rlim_t most) {
    struct rlimit r;
    if (getrlimit(RLIMIT_MEMLOCK, &r) != 0) fail("getrlimit");
    if (r.rlim_max == RLIM_INFINITY || r.rlim_max > most) r.rlim_max = most;
    r.rlim_cur = r.rlim_max;
    if (setrlimit(RLIMIT_MEMLOCK, &r) != 0) fail("setrlimit");
}

static int parse_arguments(int argc, char **argv) {
    int fd = -1;
    const char *socket_path = NULL, *uid = NULL;
    for (int i = 1; i < argc; i++) {
        const char *name = argv[i], *value = i + 1 < argc ? argv[i + 1] : NULL;
        if (strcmp(name, "--version") == 0) {
            printf("warren-agent %u\n", WIRE_VERSION);
            exit(0);
        }
        if (strcmp(name, "--ephemeral") == 0) {
            settings.ephemeral = true;
            continue;
        }
        if (strcmp(name, "--allow-root") == 0) {
            settings.allow_root = true;
            continue;
        }
        if (strcmp(name, "--guest") == 0) {
            settings.guest = true;
            continue;
        }
        if (!value) usage();
        i++;
        if (strcmp(name, "--listen-fd") == 0) fd = (int)number(value);
        else if (strcmp(name, "--socket") == 0) socket_path = value;
        else if (strcmp(name, "--become") == 0) uid = value;
        else if (strcmp(name, "--user") == 0) settings.user = value;
        else if (strcmp(name, "--workspace") == 0) settings.workspace = value;
        else if (strcmp(name, "--nproc") == 0) settings.nproc = (unsigned)number(value);
        else if (strcmp(name, "--memlock") == 0) lower_memlock((rlim_t)number(value));
        else if (strcmp(name, "--uids") == 0) {
            settings.uid_low = (uid_t)number(value);
            settings.uid_high = (uid_t)number(strchr(value, '-') ? strchr(value, '-') + 1 : value);
        } else usage();
    }
    if ((fd < 0) == !socket_path) usage();
    if (socket_path) fd = listen_at(socket_path);
    if (uid) become_agent_user((uid_t)number(uid));
    settings.agent_uid = geteuid();
    if (settings.allow_root && settings.agent_uid == 0) fail("--allow-root needs --become: the agent is root itself");
    if (settings.allow_root) settings.uid_low = 0;
    if (settings.guest && settings.allow_root) fail("--guest and --allow-root exclude each other");
    if (settings.guest) prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
    return fd;
}

static int time_left_ms(void) {
    uint64_t next = command_next_deadline(), tending = tend_next(), now = now_us();
    if (tending < next) next = tending;
    if (next == UINT64_MAX) return -1;
    if (next <= now) return 0;
    uint64_t ms = (next - now + 999) / 1000;
    return ms > 3600000 ? 3600000 : (int)ms;
}

int main(int argc, char **argv) {
    const char *name = argc > 0 ? strrchr(argv[0], '/') : NULL;
    if (argc > 0 && strcmp(name ? name + 1 : argv[0], "sudo") == 0) return sudo_main(argc, argv);
    if (argc > 1 && strcmp(argv[1], "context") == 0) return keeper_main(argc, argv);
    if (argc > 1 && strcmp(argv[1], "cell") == 0) return cell_main(argc, argv);
    if (argc > 1 && strcmp(argv[1], "relay") == 0) return relay_main(argc, argv);
    int fd = parse_arguments(argc, argv);
    prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    users_init();
    umask(022);
    if (chdir("/") != 0) fail("/");
    poller = epoll_create1(EPOLL_CLOEXEC);
    if (poller < 0) fail("epoll");
    listen_to_signals();
    fcntl(fd, F_SETFD, FD_CLOEXEC);
    fcntl(fd, F_SETFL, O_NONBLOCK);
    watch_add(&listener, fd, EPOLLIN, accept_connection, NULL);
    for (;;) {
        /* One event per turn: a handler may free what a later event of the same turn would point to. */
        struct epoll_event e;
        int n = epoll_wait(poller, &e, 1, output_pending() ? 0 : time_left_ms());
        if (n < 0 && errno != EINTR) fail("epoll");
        if (n == 1) {
            struct watch *w = e.data.ptr;
            w->ready(w, e.events);
        }
        output_after_signals();
        if (children_ended) reap_all();
        command_deadlines();
        tend();
        command_check_ended_all();
        connection_flush();
        command_tidy();
    }
}
