/* The supervisor's side of sudo, in sandboxes whose commands may be root.
 *
 * Nothing in a sandbox can gain rights by running a program: the mounts are nosuid and no_new_privs is set. So the
 * program `sudo` (sudo.c) asks the supervisor of the command that it belongs to, over a socket whose name has the
 * supervisor's pid in it, and hands over its stdin, stdout, stderr and working directory. For each caller the
 * supervisor forks a runner, which starts the command and reports its end:
 *
 *   supervisor ─┬─ command … ── sudo ══ socket ══╗
 *               └─ runner (reads the request) ═══╝── the command of root, in a session of its own
 *
 * So it is below the supervisor like all that the command starts, and whatever ends the command ends it too. The agent
 * takes no part, and a caller that sends nonsense, or nothing, has only its own runner to hold up. When the caller
 * ends, the runner ends the command's process group.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "request.h"
#include "supervise.h"

#define MAX_RUNNERS 32
#define MAX_REQUEST (8 * 1024 * 1024)
#define REQUEST_MS 10000
#define HANGUP_MS 1000
#define ANCESTORS 1000

extern char **environ;

static pid_t runners[MAX_RUNNERS];

/* ---- in the runner ---- */

struct elevated {
    int fds[SUDO_FDS];
    struct request request;
    struct user user;
    char **env;
};

static void complain(const struct elevated *e, const char *what, const char *why) {
    dprintf(e->fds[SUDO_ERR], "sudo: %s%s%s\n", what, why ? ": " : "", why ? why : "");
}

static bool receive(int conn, int fds[SUDO_FDS]) {
    union {
        struct cmsghdr head;
        char room[CMSG_SPACE(SUDO_FDS * sizeof(int))];
    } space;
    uint32_t version = 0;
    struct iovec part = {&version, sizeof version};
    struct msghdr m = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = &space, .msg_controllen = sizeof space};
    struct pollfd p = {conn, POLLIN, 0};
    if (poll(&p, 1, REQUEST_MS) != 1 || recvmsg(conn, &m, MSG_CMSG_CLOEXEC | MSG_DONTWAIT) != sizeof version)
        return false;
    struct cmsghdr *c = CMSG_FIRSTHDR(&m);
    if (version != SUDO_VERSION || m.msg_flags & MSG_CTRUNC || !c || c->cmsg_type != SCM_RIGHTS) return false;
    if (c->cmsg_len != CMSG_LEN(SUDO_FDS * sizeof(int))) return false;
    memcpy(fds, CMSG_DATA(c), SUDO_FDS * sizeof(int));
    for (int i = 0; i < SUDO_FDS; i++) /* away from 0 to 2, which dup2 overwrites later */
        if (fds[i] < 10 && (fds[i] = fcntl(fds[i], F_DUPFD_CLOEXEC, 10)) < 0) return false;
    return true;
}

static bool read_request(struct elevated *e) {
    struct stat st;
    int fd = e->fds[SUDO_REQUEST];
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode) || st.st_size > MAX_REQUEST) return false;
    uint8_t *p = malloc((size_t)st.st_size + 1);
    if (!p) return false;
    ssize_t n = pread(fd, p, (size_t)st.st_size, 0);
    e->request = request_parse((struct fields){p, p + (n > 0 ? n : 0), false});
    free(p);
    return n > 0 && !e->request.bad && e->request.argc > 0;
}

static void build_environment(struct elevated *e, const struct ucred *caller) {
    static char home[300], user[64], logname[64], sudo_user[64], sudo_uid[32], sudo_gid[32], number[16];
    static char *own[8];
    size_t n = 0;
    struct user who;
    snprintf(number, sizeof number, "%u", caller->uid);
    snprintf(home, sizeof home, "HOME=%s", e->user.home);
    snprintf(user, sizeof user, "USER=%s", e->user.name);
    snprintf(logname, sizeof logname, "LOGNAME=%s", e->user.name);
    snprintf(sudo_user, sizeof sudo_user, "SUDO_USER=%s", find_user(number, &who) ? who.name : number);
    snprintf(sudo_uid, sizeof sudo_uid, "SUDO_UID=%u", caller->uid);
    snprintf(sudo_gid, sizeof sudo_gid, "SUDO_GID=%u", caller->gid);
    if (!(e->request.flags & SUDO_KEEP_HOME)) own[n++] = home;
    char *rest[] = {user, logname, sudo_user, sudo_uid, sudo_gid};
    for (size_t i = 0; i < sizeof rest / sizeof *rest; i++) own[n++] = rest[i];
    e->env = merge_environment(merge_environment(e->request.env, own), e->request.base_env);
}

static void enter_directory(const struct elevated *e) {
    const struct request *r = &e->request;
    const char *path = r->cwd ? r->cwd : r->flags & SUDO_LOGIN ? e->user.home : NULL;
    if (path ? chdir(path) == 0 : fchdir(e->fds[SUDO_CWD]) == 0) return;
    dprintf(2, "sudo: the directory %s cannot be entered: %s\n", path ? path : ".", strerror(errno));
    _exit(1);
}

static void become_elevated(const struct elevated *e) {
    sigset_t none;
    sigemptyset(&none);
    for (int s = 1; s < 65; s++) signal(s, SIG_DFL);
    sigprocmask(SIG_SETMASK, &none, NULL);
    setsid();
    for (int i = 0; i < 3; i++) dup2(e->fds[i], i);
    if (e->request.flags & SUDO_TERMINAL) ioctl(0, TIOCSCTTY, 0);
    raise_own_oom_score();
    if (!become_user(&e->user)) {
        dprintf(2, "sudo: cannot become %s: %s\n", e->user.name, strerror(errno));
        _exit(1);
    }
    prctl(PR_SET_DUMPABLE, 0, 0, 0, 0); /* until execve this memory is a copy of the supervisor's */
    umask(022);
    enter_directory(e);
    environ = e->env;
    char **argv = e->request.argv;
    execvp(argv[0], argv);
    int error = errno;
    const char *why = error == ENOENT && !strchr(argv[0], '/') ? "command not found"
                      : error == EAGAIN                        ? "too many processes"
                                                               : strerror(error);
    dprintf(2, "sudo: %s: %s\n", argv[0], why);
    _exit(1);
}

static void signal_command(pid_t pid, int number) {
    if (number < 1 || number > 64) return;
    if (kill(-pid, number) != 0) kill(pid, number);
}

/* Passes signals on until the command has ended, and returns its status. */
static int attend(int conn, pid_t pid, int signals) {
    struct pollfd p[2] = {{conn, POLLIN, 0}, {signals, POLLIN, 0}};
    struct signalfd_siginfo info;
    struct sudo_event event;
    struct own_time t = {0};
    uint64_t kill_us = 0;
    for (int status;;) {
        own_time_pass(&t, kill_us ? HANGUP_MS / 10 : -1);
        pid_t ended = waitpid(pid, &status, WNOHANG);
        if (ended == pid || (ended < 0 && errno != EINTR)) return ended == pid ? status : SIGKILL;
        if (kill_us && own_now(&t) >= kill_us) signal_command(pid, SIGKILL);
        if (poll(p, 2, kill_us ? HANGUP_MS / 10 : -1) < 0 && errno != EINTR) return SIGKILL;
        if (p[1].revents && read(signals, &info, sizeof info) < 0) {}
        if (!p[0].revents || kill_us) continue;
        ssize_t n = recv(conn, &event, sizeof event, MSG_DONTWAIT);
        if (n < 0 && (errno == EAGAIN || errno == EINTR)) continue;
        if (n == sizeof event && event.kind == SUDO_SIGNAL) {
            signal_command(pid, event.value);
            continue;
        }
        p[0].fd = -1; /* the caller is gone, or sends nonsense */
        kill_us = own_now(&t) + HANGUP_MS * 1000;
        signal_command(pid, SIGTERM);
        signal_command(pid, SIGCONT);
    }
}

static int run_request(int conn, const struct ucred *caller, struct elevated *e) {
    const char *name = e->request.user && *e->request.user ? e->request.user : "root";
    if (!find_user(name, &e->user)) {
        complain(e, "there is no such user", name);
        return 1 << 8;
    }
    build_environment(e, caller);
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGCHLD);
    sigprocmask(SIG_SETMASK, &set, NULL);
    int signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    pid_t pid = fork();
    if (pid == 0) become_elevated(e);
    if (pid < 0) {
        complain(e, "the command cannot be started", strerror(errno));
        return 1 << 8;
    }
    for (int i = 0; i < SUDO_FDS; i++) close(e->fds[i]);
    return attend(conn, pid, signals);
}

static void run(int conn, const struct ucred *caller) {
    static const int ignored[] = {SIGTERM, SIGINT, SIGHUP, SIGQUIT};
    struct elevated e = {0};
    keep_only((int[]){conn}, 1);
    for (size_t i = 0; i < sizeof ignored / sizeof *ignored; i++) signal(ignored[i], SIG_IGN);
    /* Runners count as processes of root: callers cannot use up those that are kept for the agent. */
    limit_processes();
    if (setresuid(0, (uid_t)-1, (uid_t)-1) != 0 || !receive(conn, e.fds)) _exit(1);
    struct sudo_event end = {SUDO_EXITED, 1 << 8};
    if (read_request(&e)) end.value = run_request(conn, caller, &e);
    else complain(&e, "the request cannot be read", NULL);
    send(conn, &end, sizeof end, MSG_NOSIGNAL);
    _exit(0);
}

/* ---- in the supervisor ---- */

int elevate_listen(void) {
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    int n = snprintf(a.sun_path + 1, sizeof a.sun_path - 1, SUDO_SOCKET, getpid());
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) return -1;
    if (bind(fd, (struct sockaddr *)&a, (socklen_t)(sizeof a.sun_family + 1 + (size_t)n)) == 0 &&
        listen(fd, MAX_RUNNERS) == 0)
        return fd;
    close(fd);
    return -1;
}

void elevate_reaped(pid_t pid) {
    for (size_t i = 0; i < MAX_RUNNERS; i++)
        if (runners[i] == pid) runners[i] = 0;
}

/* Whether a process is below this supervisor: only what its command has started may call it. */
static bool is_below_us(pid_t pid) {
    char name[16];
    struct process m;
    for (int i = 0; i < ANCESTORS && pid > 1; i++, pid = m.parent) {
        snprintf(name, sizeof name, "%d", pid);
        if (!read_stat(name, &m)) return false;
        if (m.parent == getpid()) return true;
    }
    return false;
}

void elevate_accept(int listener) {
    struct ucred caller;
    socklen_t size = sizeof caller;
    size_t slot = 0;
    int conn = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    if (conn < 0) return;
    while (slot < MAX_RUNNERS && runners[slot]) slot++;
    bool known = getsockopt(conn, SOL_SOCKET, SO_PEERCRED, &caller, &size) == 0 && caller.uid <= settings.uid_high &&
                 is_below_us(caller.pid);
    pid_t pid = known && slot < MAX_RUNNERS ? fork() : -1;
    if (pid == 0) run(conn, &caller);
    if (pid > 0) runners[slot] = pid;
    close(conn);
}
