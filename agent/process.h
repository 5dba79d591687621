/* What every process of this program needs: settings, failure, the clock, whole reads and writes, users, /proc.
 *
 * process.c and users.c. They use no other header of the agent. */
#ifndef WARREN_PROCESS_H
#define WARREN_PROCESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* How the agent was started. main.c fills it in once; supervisors and jobs inherit it when they are forked. */
struct settings {
    const char *workspace, *user; /* where commands start, and as whom, unless a request says otherwise */
    uid_t uid_low, uid_high;      /* the ids that commands may have */
    uid_t agent_uid;              /* the agent's own, which no command may have */
    unsigned nproc;               /* the most processes of a user; 0: no limit */
    bool ephemeral;               /* exit, and so end the sandbox, when the worker disconnects */
    bool exact_order;             /* the kernel signals every write to a pipe */
    bool allow_root;              /* commands may be root of the sandbox's user namespace */
    bool guest;                   /* somebody else made the sandbox: the agent is not its first process */
};
extern struct settings settings;

/* Writes what failed and the text of errno to stderr, and exits with 111. */
void fail(const char *what) __attribute__((noreturn));
/* The monotonic clock. */
uint64_t now_us(void);
/* The time of a process that may be frozen with its sandbox: what it stood still is left out. Nobody tells the process, so
 * `own_time_pass` is called after each wait and before each look at a deadline: what takes longer than it should was no
 * time of its own. On a busy machine it may thus go slow, never fast. Waits are cut into pieces (`own_time_ms`), so that a
 * pause takes away an eighth of what was left at most, or TURN_US. */
#define TURN_US 250000u
struct own_time { uint64_t stood_us, looked_us; };
static inline uint64_t own_now(const struct own_time *t) { return now_us() - t->stood_us; }
static inline void own_time_pass(struct own_time *t, int waited_ms) {
    uint64_t now = now_us(), most = t->looked_us + (uint64_t)(waited_ms < 0 ? 0 : waited_ms) * 1000 + TURN_US;
    if (t->looked_us && waited_ms >= 0 && now > most) t->stood_us += now - most;
    t->looked_us = now;
}
static inline int own_time_ms(uint64_t left_us) {
    uint64_t piece = left_us / 8 < 100000 ? 100000 : left_us / 8;
    uint64_t ms = ((left_us < piece ? left_us : piece) + 999) / 1000;
    return ms > 3600000 ? 3600000 : (int)ms;
}
/* Write or read exactly `n` bytes, however many calls that takes; false with errno set, or at the end of the data. */
bool write_all(int fd, const void *p, size_t n);
bool read_all(int fd, void *p, size_t n);
/* Joins two environments; variables of `own` replace those of `base`. The caller frees the list, but no string. */
char **merge_environment(char **base, char **own);
/* Closes all other descriptors above 2: a forked process must not hold pipes of other commands open. Sorts `fds`. */
void keep_only(int *fds, size_t n);
/* Makes the kernel kill this process rather than the agent when memory runs out. */
void raise_own_oom_score(void);
/* Applies settings.nproc to this process and all that it starts. */
void limit_processes(void);

/* A process as /proc shows it. `ours` is set by scan_tree (supervise.c). */
struct process {
    pid_t pid, parent;
    char state;
    bool ours, stopped, forked_only;
};
/* Fills `m` from /proc/PID/stat; false if there is no such process. */
bool read_stat(const char *pid, struct process *m);
/* Kills the direct children of a process. */
void kill_children(pid_t parent);

/* users.c: the users that commands run as. */
struct user {
    uid_t uid;
    gid_t gid, groups[32];
    int group_count;
    char name[33], home[256];
};
/* Reads once what does not change later: which capabilities can be dropped, and whether /etc can be written to. */
void users_init(void);
/* Looks a user up by name or number; false if there is none, or if no command may run as that user. */
bool find_user(const char *name, struct user *out);
/* Becomes that user for good, without any capability (root keeps a few, see users.c); false with errno set. */
bool become_user(const struct user *u);
/* Takes on the user's rights over files, but keeps the agent's real uid: the user cannot signal, stop or trace it. */
bool act_as_user(const struct user *u);
/* The name, or the number as text. Only a file job may call these: they remember what they read for as long as the
 * process lives, and would not see a later change. */
const char *user_name(uid_t uid);
const char *group_name(gid_t gid);

#endif
