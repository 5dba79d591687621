/* The supervisor of a command, and sudo, which talks to it.
 *
 * supervise.c, hold.c and elevate.c run in the supervisor; sudo.c is a program inside the sandbox. They use process.h
 * and request.h, and know nothing of the agent but the messages below. */
#ifndef WARREN_SUPERVISE_H
#define WARREN_SUPERVISE_H

#include "process.h"

/* From supervisor to agent. A command sends STARTED or FAILED, then EXITED, then GONE if anything had survived it. */
enum report_kind { REPORT_STARTED = 1, REPORT_FAILED, REPORT_EXITED, REPORT_GONE };
enum stage { STAGE_USER = 1, STAGE_CWD, STAGE_LIMIT };
struct report {
    uint32_t kind, stage;
    int32_t pid, error, status;
    uint32_t killed, survivors, background;
    uint32_t waits; /* of EXITED: nothing is left of the tree, and the supervisor can take another command */
    uint64_t cpu_us;
};
/* From agent to supervisor. */
struct order {
    uint32_t signal;   /* for the command's process group, or … */
    uint32_t end_tree; /* … end the whole tree: TERM, then KILL after the grace time */
    uint32_t grace_ms;
};
/* What to start. The descriptors are -1 where there is none. */
struct launch {
    struct user user;
    char **argv, **env;
    const char *cwd, *carried_cwd; /* cwd must exist; carried_cwd may have been removed */
    int in, out, err, state_fd, text_fd;
    bool terminal;
};
/* Starts the command and supervises it, and then others, as long as the agent keeps `ctl`, their socket, open. For a
 * process that was forked for this. */
void supervise(struct launch *l, int ctl) __attribute__((noreturn));
/* Reads the process tree from /proc; returns the number of processes below this one. */
size_t scan_tree(void);

/* spare.c: waits for the next command. Ends this process if none will come. What it fills `l` with is valid until
 * `forget_launch`. */
void take_over(int socket, struct launch *l);
void forget_launch(void);

/* hold.c: stops a shell at a moment at which none of its processes can lose a signal.
 * True if the caller must continue the shell after sending the signal. */
bool hold_shell(pid_t shell, int number);

/* elevate.c: the supervisor's side of sudo. */
int elevate_listen(void); /* returns -1 if the socket cannot be made */
void elevate_accept(int listener);
void elevate_reaped(pid_t pid);

/* What sudo.c and elevate.c tell each other. */
#define SUDO_SOCKET "warren-sudo-%d" /* in the abstract namespace, with the supervisor's pid */
#define SUDO_VERSION 1u              /* the first message, to which the descriptors below are attached */
enum sudo_fd { SUDO_IN, SUDO_OUT, SUDO_ERR, SUDO_CWD, SUDO_REQUEST, SUDO_FDS };
enum sudo_flag { SUDO_TERMINAL = 1, SUDO_LOGIN = 2, SUDO_KEEP_HOME = 4 };
enum sudo_kind { SUDO_SIGNAL = 1, SUDO_EXITED };
struct sudo_event {
    uint32_t kind;
    int32_t value; /* of SUDO_SIGNAL the signal for the command's process group; of SUDO_EXITED the status of wait(2) */
};

#endif
