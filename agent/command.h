/* A command or terminal, shared by command.c, spawn.c, input.c and output.c. */
#ifndef WARREN_COMMAND_H
#define WARREN_COMMAND_H

#include "agent.h"

#define ORDER_ENTRIES 1024u

enum life { LIFE_STARTING, LIFE_RUNNING, LIFE_ENDED };

struct pipe_end {
    struct watch watch; /* fd is -1 once closed */
    bool at_end;        /* no process can write to it any more */
};

struct command {
    struct command *next;
    char id[65], *title, *cwd, user[33]; /* cwd: the requested one, or NULL */
    enum life life;
    bool terminal, forgotten, forget_later; /* forget_later: at the end of this turn */
    bool until_closed, lingers; /* lingers: its first process has ended, its output is not closed */
    pid_t supervisor, pid;
    struct watch control;
    struct pipe_end out, err;
    struct watch in;
    struct buf input;
    bool input_end, input_waits;
    struct log log;
    uint8_t *writes; /* which pipe each write went to, oldest first: 1 out, 2 err */
    uint32_t writes_from, writes_count;
    bool writes_lost, paused;
    uint32_t start_channel;
    bool has_start_channel,
        exit_delayed; /* exit_delayed: it exited while its tree is being ended; reported after that */
    uint64_t started_us, ended_us, deadline_us;
    uint64_t overdue_us; /* when its supervisor is to have done as it was told (tend.c) */
    uint32_t grace_ms;
    enum reason ending;
    struct report end;
    struct shell_line shell;
};

struct request {
    char id[65], *shell, *cwd, *user;
    char **argv, **env, **base_env;
    size_t argc, envc, base_envc;
    uint64_t timeout_ms, grace_ms, flags, keep, rows, cols, offset, op, signal;
    bool bad;
};

struct request request_parse(struct fields it);
void request_free(struct request *r);

extern struct command *commands;

/* spawn.c: opens pipes or a terminal and starts the supervisor. Returns 0, or a code and why. */
enum code spawn(struct command *c, struct request *r, const struct user *u, const char **why);
bool set_terminal_size(int fd, uint64_t rows, uint64_t cols);
void control_ready(struct watch *w, uint32_t events);
void input_ready(struct watch *w, uint32_t events);

void output_open(struct command *c, int out, int err);
void output_collect(struct command *c, bool all);
void output_close(struct command *c);
void send_exit(struct channel *ch);
void command_closed(struct command *c);

/* tend.c */
void tend_ordered(struct command *c, uint32_t grace_ms);
void tend_lost_supervisor(void);
void forget(struct command *c);

#endif
