/* Stops a shell at a moment at which none of its processes can lose a signal.
 *
 * A shell that carries its state (shell.c) has a trap on EXIT, and so bash catches every signal that would end it: it
 * records the signal, and runs the trap and exits when it next checks. Between two checks it may start one more
 * program, which never gets the signal. A forked child has the same handler until it execs, and exec discards what the
 * handler recorded. Both would run on as if no signal had been sent.
 *
 * So the signal is sent while the shell is stopped in a wait and none of its children is between fork and exec. If the
 * children are the same before and after the stop and none has ended, the shell was still waiting when it was stopped.
 * The signal is sent once, to all at the same time.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "supervise.h"

#define LOOKS                                                                                                          \
    1000 /* then the signal is sent anyway: the shell may be busy for long, or a child may have a handler of its own */
#define PAUSE_US 500

static int looks;

struct text { char s[4096]; };

static struct text read_text(const char *path) {
    struct text t;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? 0 : read(fd, t.s, sizeof t.s - 1);
    if (fd >= 0) close(fd);
    t.s[n > 0 ? n : 0] = 0;
    return t;
}

static struct text children_of(pid_t pid) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/task/%d/children", pid, pid);
    return read_text(path);
}

static bool catches(const char *pid, int number) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%s/status", pid);
    struct text status = read_text(path);
    const char *caught = strstr(status.s, "\nSigCgt:");
    return caught && strtoull(caught + 8, NULL, 16) >> (number - 1) & 1;
}

static char state_of(pid_t pid) {
    char name[16];
    struct process m;
    snprintf(name, sizeof name, "%d", pid);
    return read_stat(name, &m) ? m.state : 'X';
}

static bool is_stopped(pid_t pid) { return strchr("TtZX", state_of(pid)); }

/* Whether each child is alive and has called exec, or does not catch the signal. */
static bool children_are_settled(struct text children, int number) {
    struct process m;
    for (char *rest = children.s, *pid; (pid = strtok_r(rest, " ", &rest));) {
        if (!read_stat(pid, &m) || m.state == 'Z' || m.state == 'X') return false;
        if (m.forked_only && !m.stopped && catches(pid, number)) return false;
    }
    return true;
}

static bool look_again(void) { return looks-- > 0 && usleep(PAUSE_US) == 0; }

static bool stop_in_wait(pid_t shell, int number) {
    struct text before = children_of(shell);
    if (!children_are_settled(before, number) || state_of(shell) != 'S') return false;
    kill(shell, SIGSTOP);
    while (!is_stopped(shell) && look_again()) {}
    struct text after = children_of(shell);
    if (is_stopped(shell) && strcmp(before.s, after.s) == 0 && children_are_settled(after, number)) return true;
    kill(shell, SIGCONT);
    return false;
}

/* KILL cannot be caught, and signals that stop and continue would interfere with the stop here. */
static bool can_be_caught(int number) {
    static const int others[] = {SIGKILL, SIGSTOP, SIGCONT, SIGTSTP, SIGTTIN, SIGTTOU};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (number == others[i]) return false;
    return number >= 1 && number <= 64;
}

bool hold_shell(pid_t shell, int number) {
    char name[16];
    snprintf(name, sizeof name, "%d", shell);
    if (!can_be_caught(number) || catches(name, SIGCONT)) return false;
    looks = LOOKS;
    while (!is_stopped(shell)) {
        if (stop_in_wait(shell, number)) return true;
        if (!look_again()) return false;
    }
    return false;
}
