/* The interfaces between the parts of the agent. */
#ifndef WARREN_AGENT_H
#define WARREN_AGENT_H

#include <sys/types.h>

#include "log.h"
#include "wire.h"

/* A descriptor that the main loop waits for. */
struct watch {
    int fd;
    void (*ready)(struct watch *w, uint32_t events);
    void *of;
};
void watch_add(struct watch *w, int fd, uint32_t events, void (*ready)(struct watch *, uint32_t), void *of);
void watch_set(struct watch *w, uint32_t events);
void watch_drop(struct watch *w); /* also closes the descriptor */

struct settings {
    const char *workspace, *user;
    uid_t uid_low, uid_high, agent_uid;
    unsigned nproc;
    bool ephemeral;   /* exit, and end the sandbox, when the worker disconnects */
    bool exact_order; /* the kernel signals every write to a pipe */
    bool allow_root;  /* commands may be root of the sandbox's user namespace; the agent has another uid then */
    bool guest;       /* the sandbox is not Warren's: the agent is not its first process */
};
extern struct settings settings;
uint64_t now_us(void);
void fail(const char *what) __attribute__((noreturn));

/* users.c: the users that commands run as. */
struct user {
    uid_t uid;
    gid_t gid, groups[32];
    int group_count;
    char name[33], home[256];
};
void users_init(void);
bool find_user(const char *name, struct user *out);
/* Becomes that user for good, without any capability (root keeps a few, see users.c); false with errno set. */
bool become_user(const struct user *u);
/* Takes on the user's rights over files, but keeps the agent's real uid: the user cannot signal, stop or trace it. */
bool act_as_user(const struct user *u);
/* The name, or the number as text. Only for a job, which does not outlive the answer: they remember what they read. */
const char *user_name(uid_t uid);
const char *group_name(gid_t gid);

/* supervise.c: one process per command, which owns the whole process tree of the command. */
enum report_kind { REPORT_STARTED = 1, REPORT_FAILED, REPORT_EXITED, REPORT_GONE };
enum stage { STAGE_USER = 1, STAGE_CWD, STAGE_LIMIT };
struct report {
    uint32_t kind, stage;
    int32_t pid, error, status;
    uint32_t killed, survivors, background;
    uint64_t cpu_us;
};
struct order {
    uint32_t signal;   /* for the command's process group, or … */
    uint32_t end_tree; /* … end the whole tree: TERM, then KILL after the grace time */
    uint32_t grace_ms;
};
struct launch {
    struct user user;
    char **argv, **env;
    const char *cwd, *carried_cwd; /* cwd must exist; carried_cwd may have been removed */
    int in, out, err, state_fd, text_fd;
    bool terminal;
};
void supervise(struct launch *l, int ctl) __attribute__((noreturn));
/* Joins two environments; variables of `own` replace those of `base`. The strings are not copied. */
char **merge_environment(char **base, char **own);
/* Closes all other descriptors above 2: a forked process must not hold pipes of other commands open. */
void keep_only(int *fds, size_t n);
void kill_children(pid_t parent);
size_t scan_tree(void);
/* Makes the kernel kill this process rather than the agent when memory runs out. */
void raise_own_oom_score(void);
void limit_processes(void);
/* A process as /proc shows it. */
struct process {
    pid_t pid, parent;
    char state;
    bool ours, stopped, forked_only;
};
bool read_stat(const char *pid, struct process *m);

/* elevate.c: the supervisor's side of sudo; sudo.c: the program inside. */
#define SUDO_SOCKET "warren-sudo-%d" /* in the abstract namespace, with the supervisor's pid */
#define SUDO_VERSION 1u
enum sudo_fd {
    SUDO_IN,
    SUDO_OUT,
    SUDO_ERR,
    SUDO_CWD,
    SUDO_REQUEST,
    SUDO_FDS
}; /* sent with the first message, the version */
enum sudo_flag { SUDO_TERMINAL = 1, SUDO_LOGIN = 2, SUDO_KEEP_HOME = 4 };
struct sudo_event {
    uint32_t kind;
    int32_t value;
};
enum sudo_kind { SUDO_SIGNAL = 1, SUDO_EXITED }; /* for the command's process group; its status, as wait(2) has it */
int elevate_listen(void); /* -1 if it cannot be */
void elevate_accept(int listener);
void elevate_reaped(pid_t pid);
int sudo_main(int argc, char **argv);

/* keeper.c and cell.c: the programs of code contexts, which run as the user. */
int keeper_main(int argc, char **argv);
int cell_main(int argc, char **argv);

/* relay.c: the way to an agent on another machine. */
int relay_main(int argc, char **argv);

/* hold.c: stops a shell at a moment at which none of its processes can lose a signal.
 * True if the caller must continue the shell after sending the signal. */
bool hold_shell(pid_t shell, int number);

/* shell.c: `cd` and `export` last from one shell command to the next. */
struct shell_line {
    char **argv, **env;
    int state_fd, text_fd;
    size_t script_bytes;
    uid_t uid; /* the user */
    char *cwd; /* carried, or NULL */
};
bool shell_prepare(struct shell_line *s, uid_t uid, const char *text, char **base_env, char **own_env, bool carry,
                   bool keep_cwd);
void shell_done(struct shell_line *s, bool keep_cwd);
void shell_free(struct shell_line *s);

/* command.c: commands and terminals. */
struct channel;
struct command;
void command_start(uint32_t channel, struct fields f);
void command_attach(uint32_t channel, struct fields f);
void command_control(uint32_t channel, struct fields f);
void command_list(uint32_t channel);
bool command_ending_all(void); /* everything in the sandbox is being ended: nothing new may be started */
void command_check_ended_all(void);
void command_stdin(struct command *c, struct channel *ch, const uint8_t *p, size_t n);
void command_stdin_eof(struct command *c);
void command_resume(struct command *c); /* continues reading if no reader lags behind any more */
bool command_send_output(struct channel *ch); /* sends what fits; true if there is more */
void command_signals(const int *fds, size_t n, bool lost);
void output_after_signals(void);
bool output_pending(void); /* writes were noted whose data was not read yet */
void signals_take(void); /* reads the signal queue: writes to pipes, ends of children */
uint64_t command_next_deadline(void);
void command_deadlines(void);
void command_tidy(void);

/* file_jobs.c: file operations, each in a process with the user's rights. */
struct job;
void job_start(uint32_t channel, struct fields f);
void job_data(struct job *j, const uint8_t *p, size_t n);
void job_eof(struct job *j);
void job_abandon(struct job *j);
void job_credit(struct job *j);
bool job_has(pid_t pid);
bool job_any(void);
void job_continue_all(void);

/* tend.c: keeps the agent's own processes going where commands may be root. */
void tend(void);
uint64_t tend_next(void);

/* files.c, tree.c, watching.c, search.c: what runs in that process. */
struct file_request {
    enum file_op op;
    char *path, *path2, *owner;
    char *globs[MAX_GLOBS], *pattern;
    char *metadata[MAX_METADATA]; /* key=value */
    size_t glob_count, metadata_count;
    uint64_t offset, length, mode, depth, max_matches, timeout_ms;
    bool has_length, has_mode, recursive, ignore_case, hidden, details, attributes, sets_metadata;
    int in, out, commit; /* data to the file, data from it, one byte when the data is complete */
    uid_t uid; /* who gets what is created, if there is an `owner` */
    gid_t gid;
};
bool file_request_parse(struct fields it, struct file_request *r, char **user);
void file_request_free(struct file_request *r);
/* Fills `reply` with fields and gives 0 or an errno value; or with a sentence, and gives a negative enum code. */
int file_run(const struct file_request *r, struct buf *reply);
int tree_pack(const struct file_request *r);
int tree_unpack(const struct file_request *r, struct buf *reply);
int tree_watch(const struct file_request *r);
int tree_search(const struct file_request *r, struct buf *reply);
int tree_list(const struct file_request *r);
int tree_remove(const char *path);
int tree_move(const char *from, const char *to);
int make_parents(const struct file_request *r, const char *path);
bool join_path(char *to, size_t size, const char *dir, const char *name); /* false with errno if it is too long */
bool is_dot_entry(const char *name);
struct dirent;
int sorted_entries(const char *dir, struct dirent ***entries); /* as scandir(3), by name, without . and .. */
enum code code_of(int error);
struct stat;
void add_stat(struct buf *b, const char *path, const struct stat *st);
/* What costs more to find out: names of the owners, what a link leads to, metadata. */
void add_details(struct buf *b, const char *path, const struct stat *st);
void copy_metadata(int from, int to);
bool write_all(int fd, const void *p, size_t n);
bool read_all(int fd, void *p, size_t n);

/* connection.c: the one connection, and its channels. */
struct channel {
    struct channel *next;
    uint32_t id, flags;
    struct command *command;
    struct command *kill_of; /* waits until the last process of that command has ended */
    struct job *job;
    struct cursor cursor;
    uint64_t credit;
    uint32_t stdin_used; /* bytes received and not yet granted back */
    bool mute; /* only writes to the command, does not read from it */
    bool kill_all; /* waits until everything but the agent has ended */
};
extern struct buf outbox;
struct channel *channel_open(uint32_t id); /* NULL, after sending an error, if the id is in use */
struct channel *channel_find(uint32_t id);
void channel_close(struct channel *ch);
struct channel *channel_first(void);
void send_error(uint32_t channel, enum code code, const char *format, ...) __attribute__((format(printf, 3, 4)));
void send_done(uint32_t channel);
void send_credit(uint32_t channel, uint32_t n);
bool outbox_has_room(void);
void connection_wake(void);
void connection_take(int fd);
void connection_flush(void);          /* once per turn of the main loop */
bool connection_parse(struct buf *b); /* handles whole frames; false if the worker breaks the protocol */

#endif
