/* The supervisor: one process per command, between the agent and the command. It may take another command when nothing
 * is left of one (spare.c).
 *
 * It is a sub-reaper, so every process that the command starts stays below it, however often it forks and whatever
 * sessions it creates. It has the agent's uid, so the command cannot signal it (root can, where that is allowed: see
 * tend.c). When waitpid reports no child, no process of the command is alive, which is how a kill knows that it is
 * done. And the exit code of the command is never mixed up with those of orphans.
 *
 *   agent ── seqpacket ── supervisor ── command (uid of the user, session of its own)
 *                                    └─ orphans the command left
 *
 * Ending a tree: send TERM to all and wait for the grace time; then send STOP to all until a scan of /proc finds no
 * process that is not stopped (a fork bomb cannot outrun that: stopped processes still count against the process
 * limit); then send KILL to all until waitpid fails with ECHILD.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "supervise.h"

#define MAX_TREE 40000
#define GIVE_UP_US (10 * 1000 * 1000)
#define SAME_SIGNAL_US (20 * 1000)

extern char **environ;

static int control;
static pid_t leader;
static bool leader_gone, leader_carries, no_child;
static struct report result;
static uint32_t killed;

static void send_report(struct report *n) {
    if (send(control, n, sizeof *n, MSG_NOSIGNAL) < 0) _exit(0);
}

/* ---- the command's own process, until it becomes the command ---- */

/* Why the command could not be started. The child writes it: until it execs, it shares the supervisor's memory. */
static volatile struct report refusal;

static void refuse(enum stage stage) {
    refusal.kind = REPORT_FAILED;
    refusal.stage = stage;
    refusal.error = errno;
    _exit(120);
}

static void move_descriptor(int from, int to) {
    if (from == to) fcntl(to, F_SETFD, 0);
    else if (from >= 0) dup2(from, to);
}

static void run_program(char **argv) {
    execvpe(argv[0], argv, environ);
    int error = errno;
    if (error == EAGAIN) refuse(STAGE_LIMIT);
    const char *why = error == ENOENT && !strchr(argv[0], '/') ? "command not found" : strerror(error);
    dprintf(2, "%s: %s\n", argv[0], why);
    _exit(error == ENOENT || error == ENOTDIR ? 127 : 126);
}

static void enter_directory(const struct launch *l) {
    if (l->cwd) {
        if (chdir(l->cwd) != 0) refuse(STAGE_CWD);
        return;
    }
    if (l->carried_cwd && chdir(l->carried_cwd) == 0) return;
    if (chdir(settings.workspace) != 0 && chdir("/") != 0) refuse(STAGE_CWD);
    if (l->carried_cwd) dprintf(2, "warren: %s is gone, going on in %s\n", l->carried_cwd, settings.workspace);
}

static void become_command(const struct launch *l) {
    sigset_t none;
    sigemptyset(&none);
    signal(SIGPIPE, SIG_DFL); /* the only signal that the agent ignores */
    sigprocmask(SIG_SETMASK, &none, NULL);
    setsid();
    raise_own_oom_score();
    limit_processes();
    if (!become_user(&l->user)) refuse(errno == EAGAIN ? STAGE_LIMIT : STAGE_USER);
    prctl(PR_SET_DUMPABLE, 0, 0, 0,
          0); /* until execve this memory is the supervisor's, and no process of the user may look into it */
    if (l->terminal) ioctl(l->in, TIOCSCTTY, 0);
    move_descriptor(l->in, 0);
    move_descriptor(l->out, 1);
    move_descriptor(l->err, 2);
    int text = l->text_fd == 60 ? fcntl(60, F_DUPFD_CLOEXEC, 61) : l->text_fd;
    move_descriptor(l->state_fd, 60);
    move_descriptor(text, 59);
    setpriority(PRIO_PROCESS, 0, 0);
    umask(022);
    enter_directory(l);
    environ = l->env;
    run_program(l->argv);
}

/* ---- the tree below us ---- */

static struct process *tree;
static size_t tree_size;

static bool is_in_tree(pid_t parent) {
    if (parent == getpid()) return true;
    for (size_t i = 0; i < tree_size; i++)
        if (tree[i].pid == parent) return tree[i].ours;
    return false;
}

/* Reads the process tree from /proc; returns the number of processes below this one. */
size_t scan_tree(void) {
    if (!tree) tree = malloc(MAX_TREE * sizeof *tree);
    DIR *proc = opendir("/proc");
    if (!tree || !proc) return 0;
    tree_size = 0;
    for (struct dirent *d; (d = readdir(proc)) && tree_size < MAX_TREE;)
        if (d->d_name[0] >= '1' && d->d_name[0] <= '9' && read_stat(d->d_name, &tree[tree_size])) tree_size++;
    closedir(proc);
    size_t ours = 0;
    for (bool more = true; more;) {
        more = false;
        for (size_t i = 0; i < tree_size; i++)
            if (!tree[i].ours && is_in_tree(tree[i].parent)) tree[i].ours = more = true, ours++;
    }
    return ours;
}

static void signal_tree(int number) {
    scan_tree();
    for (size_t i = 0; i < tree_size; i++)
        if (tree[i].ours) kill(tree[i].pid, number);
}

static void stop_tree(void) {
    for (int round = 0; round < 200; round++) {
        bool moving = false;
        scan_tree();
        for (size_t i = 0; i < tree_size; i++)
            if (tree[i].ours && !tree[i].stopped) moving = true, kill(tree[i].pid, SIGSTOP);
        if (!moving) return;
    }
}

static void reap(void) {
    struct rusage use;
    int status;
    for (;;) {
        pid_t pid = wait4(-1, &status, WNOHANG, &use);
        if (pid < 0 && errno == EINTR) continue;
        no_child = pid < 0;
        if (pid <= 0) return;
        killed++;
        elevate_reaped(pid);
        result.cpu_us += (uint64_t)(use.ru_utime.tv_sec + use.ru_stime.tv_sec) * 1000000u;
        result.cpu_us += (uint64_t)(use.ru_utime.tv_usec + use.ru_stime.tv_usec);
        if (pid != leader) continue;
        leader_gone = true;
        result.status = status;
    }
}

static void wait_for_children(int signals, int timeout_ms) {
    struct pollfd p = {signals, POLLIN, 0};
    struct signalfd_siginfo info;
    if (poll(&p, 1, timeout_ms) > 0 && read(signals, &info, sizeof info) < 0) {}
    reap();
}

/* Waits so long of its own time: a tree that is frozen while it is being ended keeps its grace. */
static void wait_for_end(int signals, uint64_t us) {
    struct own_time t = {0};
    own_time_pass(&t, 0);
    uint64_t until = own_now(&t) + us;
    for (uint64_t now; !no_child && (now = own_now(&t)) < until;) {
        int ms = own_time_ms(until - now);
        wait_for_children(signals, ms);
        own_time_pass(&t, ms);
    }
}

static void end_tree(int signals, uint32_t grace_ms) {
    struct own_time t = {0};
    reap();
    killed = 0;
    size_t alive = scan_tree();
    if (grace_ms && !no_child) {
        if (leader_carries && !leader_gone) hold_shell(leader, SIGTERM);
        signal_tree(SIGTERM);
        signal_tree(SIGCONT);
    }
    wait_for_end(signals, (uint64_t)grace_ms * 1000);
    own_time_pass(&t, 0);
    uint64_t give_up = own_now(&t) + GIVE_UP_US;
    while (!no_child && own_now(&t) < give_up) {
        stop_tree();
        signal_tree(SIGKILL);
        wait_for_children(signals, 5);
        own_time_pass(&t, 5);
    }
    /* `killed` counts what this process has reaped. Processes that were reaped by their own dying parent are only in
     * `alive`. */
    result.killed = killed > alive ? killed : (uint32_t)alive;
    result.survivors = no_child ? 0 : (uint32_t)scan_tree();
}

/* ---- the supervisor's own life ---- */

static void signal_group(int number) {
    bool held = leader_carries && hold_shell(leader, number);
    if (kill(-leader, number) != 0) kill(leader, number);
    if (held) kill(leader, SIGCONT);
}

static void take_order(int signals) {
    struct order o;
    ssize_t n = recv(control, &o, sizeof o, MSG_DONTWAIT);
    if (n == 0) _exit(0);
    if (n != sizeof o) return;
    if (o.signal) {
        if (!leader_gone) signal_group((int)o.signal);
        return;
    }
    bool was_gone = leader_gone;
    end_tree(signals, o.grace_ms);
    if (was_gone) result.kind = REPORT_GONE;
    else result.kind = REPORT_EXITED;
    send_report(&result);
    _exit(0);
}

/* Waits a moment if a signal ended the leader: the same signal may be about to end the others, which do not count as
 * background then. */
static void report_exit(int signals) {
    uint64_t until = now_us() + SAME_SIGNAL_US;
    while (WIFSIGNALED(result.status) && !no_child && now_us() < until) wait_for_children(signals, 5);
    result.kind = REPORT_EXITED;
    result.background = no_child ? 0 : (uint32_t)scan_tree();
    result.waits = no_child && !settings.allow_root && !settings.guest;
    send_report(&result);
}

static int in_child(void *l) {
    become_command(l);
    return 120;
}

/* Like vfork: does not copy the memory, and returns when the child has become the command or has failed. */
static pid_t start_command(struct launch *l) {
    static uint8_t stack[1024 * 1024] __attribute__((aligned(16)));
    refusal = (struct report){.kind = REPORT_STARTED};
    pid_t pid = clone(in_child, stack + sizeof stack, CLONE_VM | CLONE_VFORK | SIGCHLD, l);
    if (pid < 0) refusal = (struct report){.kind = REPORT_FAILED, .stage = STAGE_LIMIT, .error = errno};
    struct report n = refusal;
    n.pid = pid;
    send_report(&n);
    if (n.kind == REPORT_FAILED) _exit(0);
    return pid;
}

/* Returns when nothing is left of the command, and another one may come. */
static void supervise_one(struct launch *l, int signals, int sudo) {
    leader_carries = l->state_fd >= 0;
    leader_gone = no_child = false;
    result = (struct report){0};
    killed = 0;
    leader = start_command(l);
    int mine[] = {l->in, l->out, l->err, l->state_fd, l->text_fd};
    for (size_t i = 0; i < sizeof mine / sizeof *mine; i++)
        if (mine[i] >= 0) close(mine[i]);
    struct pollfd p[3] = {{control, POLLIN, 0}, {signals, POLLIN, 0}, {sudo, POLLIN, 0}};
    struct signalfd_siginfo info;
    bool reported = false;
    for (;;) {
        reap();
        if (leader_gone && !reported) {
            report_exit(signals);
            if (result.waits) return;
            if (no_child) _exit(0);
            reported = true;
        }
        if (no_child) break;
        if (poll(p, 3, -1) < 0 && errno != EINTR) break;
        if (p[1].revents && read(signals, &info, sizeof info) < 0) {}
        if (p[0].revents) take_order(signals);
        if (p[2].revents) elevate_accept(sudo);
    }
    result.kind = REPORT_GONE;
    result.killed = 0;
    if (leader_gone) send_report(&result);
    _exit(0);
}

void supervise(struct launch *l, int ctl) {
    control = ctl;
    keep_only((int[]){ctl, l->in, l->out, l->err, l->state_fd, l->text_fd}, 6);
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGCHLD);
    sigprocmask(SIG_SETMASK, &set, NULL);
    int signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    int sudo = settings.allow_root ? elevate_listen() : -1; /* must exist before the command can call it */
    for (;;) {
        supervise_one(l, signals, sudo);
        forget_launch();
        take_over(control, l);
    }
}
