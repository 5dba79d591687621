/* Commands and terminals, as the agent sees them.
 *
 * command.c, kill_all.c, spawn.c, input.c, output.c, shell.c and tend.c. They use channel.h to talk to the worker,
 * supervise.h to start commands, and of files.h only which file jobs are running. */
#ifndef WARREN_COMMAND_H
#define WARREN_COMMAND_H

#include "channel.h"
#include "log.h"
#include "request.h"
#include "supervise.h"

#define ORDER_ENTRIES 1024u

enum life { LIFE_STARTING, LIFE_RUNNING, LIFE_ENDED };

struct pipe_end {
    struct watch watch; /* fd is -1 once closed */
    bool at_end;        /* no process can write to it any more */
};

/* shell.c: how a line of shell is run, with what the line before has left. */
struct shell_line {
    char **argv, **env;
    int state_fd, text_fd; /* -1 where there is none */
    size_t script_bytes;
    uid_t uid; /* whose state it is */
    char *cwd; /* the directory that is carried over, or NULL */
};

struct command {
    struct command *next;
    char id[65], *title, *cwd, user[33]; /* cwd: the requested one, or NULL */
    enum life life;
    bool terminal, forgotten;
    bool forget_later; /* at the end of this turn of the main loop */
    bool until_closed; /* it has not ended before its output is closed */
    bool lingers;      /* its first process has ended, its output is not closed */
    pid_t supervisor, pid;
    struct watch control; /* the socket to the supervisor; its fd is -1 once everything has ended */
    struct pipe_end out, err;
    struct watch in;
    struct buf input;
    bool input_end, input_waits;
    struct log log;
    uint8_t *writes; /* which pipe each write went to, oldest first: 1 out, 2 err */
    uint32_t writes_from, writes_count;
    bool writes_lost, paused;
    uint32_t start_channel;
    bool has_start_channel;
    bool exit_delayed; /* it exited while its tree is being ended, and is reported after that */
    uint64_t started_us, ended_us, deadline_us;
    uint64_t ordered_us, overdue_us; /* when its supervisor got an order, and when it must have carried it out (tend.c);
                                        0: it has none */
    uint32_t grace_ms;
    enum reason ending; /* why it is being ended; REASON_EXITED while it is not */
    struct report end;
    struct shell_line shell;
};

extern struct command *commands; /* the newest first */

/* command.c, for connection.c: requests. */
void command_start(uint32_t channel, struct fields f);
void command_attach(uint32_t channel, struct fields f);
void command_control(uint32_t channel, struct fields f);
void command_list(uint32_t channel);
/* command.c, for main.c: once per turn of the main loop. */
uint64_t command_next_deadline(void); /* UINT64_MAX if there is none */
void command_deadlines(void);
void command_tidy(void);
/* command.c, for the others of this group. */
void control_ready(struct watch *w, uint32_t events);
void send_exit(struct channel *ch);
void command_closed(struct command *c); /* the output of a command that lingers was closed */
void forget(struct command *c);

/* kill_all.c */
void command_kill_all(uint32_t channel);
bool command_ending_all(void); /* everything in the sandbox is being ended: nothing new may be started */
void command_check_ended_all(void);
void kill_all_resumed(uint64_t paused_us);

/* spawn.c: opens pipes or a terminal and starts the supervisor. Returns 0, or a code and why. */
enum code spawn(struct command *c, struct request *r, const struct user *u, const char **why);
bool set_terminal_size(int fd, uint64_t rows, uint64_t cols);

/* spare.c: keeps the supervisor of a command that has ended for the next one. */
void spare_keep(struct command *c); /* takes its supervisor, which waits */
bool spare_start(struct command *c, const struct launch *l); /* false if there is none that can take it */
bool spare_kept(void);
uint64_t spare_next(void); /* when `spare_tidy` has to be called; UINT64_MAX if there is none */
void spare_tidy(void);

/* input.c */
void input_ready(struct watch *w, uint32_t events);
void command_stdin(struct command *c, struct channel *ch, const uint8_t *p, size_t n);
void command_stdin_eof(struct command *c);

/* output.c */
void output_open(struct command *c, int out, int err);
void output_collect(struct command *c, bool all);
void output_close(struct command *c);
void output_note_writes(const int *fds, size_t n, bool lost);
void output_after_signals(void);
bool output_pending(void); /* writes were noted whose data was not read yet */
void command_resume(struct command *c); /* continues reading if no reader lags behind any more */
bool command_send_output(struct channel *ch); /* sends what fits; true if there is more */

/* shell.c: `cd` and `export` last from one shell command to the next. */
bool shell_prepare(struct shell_line *s, uid_t uid, const char *text, char **base_env, char **own_env, bool carry,
                   bool keep_cwd);
void shell_done(struct shell_line *s, bool keep_cwd);
void shell_free(struct shell_line *s);

/* tend.c: keeps the agent's own processes going where commands may be root. */
void tend(void);
uint64_t tend_next(void);
void tend_ordered(struct command *c, uint32_t grace_ms);
void tend_lost_supervisor(void);
void tend_resumed(struct command *c, uint64_t paused_us);

#endif
