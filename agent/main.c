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
 * In a sandbox that somebody else has made, on another machine, the agent is started with --guest: it is not the first
 * process there, other processes run beside it, and it may lack the capability to drop capabilities. Whoever made that
 * sandbox isolates it. The worker reaches the agent through relay.c.
 *
 * The files are groups, each with a header. A group calls only those above it in this list, and what has to go the
 * other way is a function that was handed over (loop_open, channel.on_close):
 *
 *   process.h    process.c, users.c               what every process needs: failure, clock, /proc, identities
 *   wire.h       wire.c                           the encoding of the protocol
 *   request.h    request.c                        what a request says
 *   log.h        log.c                            the output that is kept
 *   channel.h    loop.c, channel.c                the event loop, and the answers to the worker
 *   supervise.h  supervise.c, hold.c              one command's process tree
 *                elevate.c, sudo.c                root inside the sandbox
 *   files.h      file_jobs.c                      file operations: a process for each
 *                files.c, tree.c, watching.c, search.c    what these processes do
 *   command.h    command.c, spawn.c, spare.c      the life of commands, and how one is started
 *                input.c, output.c, shell.c       stdin; stdout and stderr; state between shell commands
 *                tend.c, kill_all.c               what keeps supervisors going; how everything is ended
 *   context.h    keeper.c, keeper_cells.c, keeper_runner.c, cell.c    code contexts: programs that run as the user
 *   agent.h      main.c, connection.c, relay.c    start, dispatch of requests; a way through other people's pipes
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include "agent.h"
#include "command.h"

#define CAPS ((1u << 5) | (1u << 6) | (1u << 7) | (1u << 8)) /* KILL SETGID SETUID SETPCAP */

static struct watch listener = {.fd = -1};

/* What a worker has sent is heard at once: the kernel may have queued the ends of commands behind it. */
static void accept_connection(struct watch *w, uint32_t events) {
    (void)events;
    int fd = accept4(w->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0) return;
    connection_take(fd);
    connection_hear();
}

/* Before a time limit takes effect: the sandbox may have been frozen meanwhile, and the worker says for how long, before
 * it lets the sandbox run on. It may have connected just for that. */
static void hear_worker(void) {
    accept_connection(&listener, 0);
    connection_hear();
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

/* Gives the host's root up for good: on Docker, without a user namespace, PID 1 starts as that. Where commands may be
 * root of a user namespace, the agent leaves uid 0 to them. */
static void become_agent_user(uid_t uid) {
    struct {
        uint32_t version;
        int pid;
    } h = {0x20080522, 0};
    struct { uint32_t effective, permitted, inheritable; } d[2];
    _Static_assert(sizeof h == 8 && sizeof d == 24, "__user_cap_header_struct and two __user_cap_data_struct");
    if (syscall(SYS_capget, &h, d) != 0) fail("capget");
    d[0].effective = CAPS;
    /* Where root is allowed the other capabilities stay permitted, but not effective, so that commands of root can get
     * them. */
    if (!settings.allow_root) d[0].permitted = CAPS;
    d[0].inheritable = d[1].effective = d[1].permitted = d[1].inheritable = 0;
    /* Root inside can take every id, this one too, and the kernel lets a process set the limits of another whose ids
     * are all its own. No process has the agent's ids, and its supervisors', if they are not all the same. */
    gid_t saved = settings.allow_root ? 0 : uid;
    if (prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0) != 0) fail("keepcaps");
    if (setgroups(0, NULL) != 0 || setresgid(uid, uid, saved) != 0 || setresuid(uid, uid, uid) != 0) fail("become");
    if (syscall(SYS_capset, &h, d) != 0) fail("capset");
    prctl(PR_SET_KEEPCAPS, 0, 0, 0, 0);
}

static unsigned long number(const char *s) { return s ? strtoul(s, NULL, 10) : 0; }

static void usage(void) {
    dprintf(2, "warren-agent --listen-fd N | --socket PATH [--become UID] [--user NAME] [--workspace DIR]\n"
               "             [--uids LOW-HIGH] [--nproc N] [--memlock BYTES] [--ephemeral] [--allow-root] [--guest]\n"
               "The first process of a Warren sandbox; not to be run by hand.\n");
    exit(2);
}

/* Lowers the limit of this process and all that it starts. A higher limit than the present one is ignored: raising
 * needs a capability that the agent may lack. */
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
    if (spare_next() < next) next = spare_next();
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
    loop_open(output_note_writes);
    fcntl(fd, F_SETFD, FD_CLOEXEC);
    fcntl(fd, F_SETFL, O_NONBLOCK);
    watch_add(&listener, fd, EPOLLIN, accept_connection, NULL);
    for (;;) {
        loop_wait(output_pending() ? 0 : time_left_ms());
        output_after_signals();
        loop_reap();
        if (command_ending_all() || command_next_deadline() <= now_us()) hear_worker();
        command_deadlines();
        tend();
        command_check_ended_all();
        connection_flush();
        command_tidy();
        spare_tidy();
    }
}
