/* The life of commands and terminals: starting, attaching, signalling, ending, forgetting.
 *
 * A command is STARTING until its supervisor reports that the program runs, RUNNING until its first process has ended
 * (with `until_closed`: until its output is closed too), and ENDED until it is forgotten. It is kept after its end,
 * with its output, so that a worker that was away can ask for both. The oldest ones are forgotten when there are too
 * many.
 *
 *   START ─▶ spawn ─▶ supervisor ─▶ STARTED or FAILED, EXITED, GONE: what is left of the tree has ended as well
 *
 * The end of a command that is killed is reported when its whole tree has ended; if it had ended before, the answer to
 * the kill waits for that instead. The supervisor lives, and `control.fd` is open, as long as any process of the
 * command does.
 */
#define _GNU_SOURCE
#include "command.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define MAX_COMMANDS 1024
#define MAX_ENDED 64
#define MAX_KEPT (64u * 1024 * 1024)
#define LIVE_KEEP (1024u * 1024)
#define RETRY_US (200 * 1000)
#define LOOK_US (5 * 1000)
#define LATE_US                                                                                                        \
    (250 * 1000) /* a time limit that is noticed later than this may have passed while the sandbox was frozen, */
#define NEWS_US (1000 * 1000) /* and so long the worker has to say so */

struct command *commands;

static struct command *find(const char *id) {
    for (struct command *c = commands; c; c = c->next)
        if (!c->forgotten && strcmp(c->id, id) == 0) return c;
    return NULL;
}

/* ---- starting ---- */

static char *make_title(const struct request *r) {
    char text[201] = "";
    if (r->shell) snprintf(text, sizeof text, "%s", r->shell);
    for (size_t i = 0; i < r->argc && strlen(text) < 198; i++) {
        size_t n = strlen(text);
        snprintf(text + n, sizeof text - n, "%s%s", i ? " " : "", r->argv[i]);
    }
    char *copy = strdup(text);
    if (!copy) fail("memory");
    return copy;
}

/* Ends the channels that still read from the command or wait for its end. */
static void close_readers(struct command *c) {
    for (struct channel *ch = channel_first(), *next; ch; ch = next) {
        next = ch->next;
        if (ch->command != c && ch->kill_of != c) continue;
        send_error(ch->id, CODE_NO_PROCESS, "process %s was forgotten", c->id);
        ch->command = ch->kill_of = NULL;
        channel_close(ch);
    }
}

static void remove_command(struct command *c) {
    for (struct command **p = &commands; *p; p = &(*p)->next)
        if (*p == c) {
            *p = c->next;
            break;
        }
    close_readers(c);
    output_close(c);
    if (c->in.fd >= 0) watch_drop(&c->in);
    if (c->control.fd >= 0) watch_drop(&c->control);
    log_free(&c->log);
    buf_free(&c->input);
    shell_free(&c->shell);
    free(c->writes);
    free(c->title);
    free(c->cwd);
    free(c);
}

/* Hides the command at once, but keeps draining its pipes while any process may still write to them. */
void forget(struct command *c) {
    c->forgotten = true;
    close_readers(c);
    log_free(&c->log);
    c->log.keep = 0;
    if (c->control.fd < 0) remove_command(c);
}

static bool has_reader(const struct command *c) {
    for (struct channel *ch = channel_first(); ch; ch = ch->next)
        if (ch->command == c) return true;
    return false;
}

static void make_room(void) {
    for (;;) {
        size_t ended = 0, kept = 0;
        struct command *oldest = NULL;
        for (struct command *c = commands; c; c = c->next) {
            kept += log_memory(&c->log);
            if (c->life != LIFE_ENDED || c->forgotten || has_reader(c)) continue;
            ended++;
            oldest = c; /* new commands are put in front */
        }
        if (!oldest || (ended <= MAX_ENDED && kept <= MAX_KEPT)) return;
        forget(oldest);
    }
}

static size_t commands_count(void) {
    size_t n = 0;
    for (struct command *c = commands; c; c = c->next) n++;
    return n;
}

static void start_checked(uint32_t channel, struct request *r) {
    struct user u;
    const char *name = r->user && *r->user ? r->user : settings.user, *why = "";
    if (command_ending_all()) {
        send_error(channel, CODE_CONFLICT, "everything in the sandbox is being ended; try again");
        return;
    }
    if (r->bad || !*r->id || (r->argc > 0) == (r->shell != NULL)) {
        send_error(channel, CODE_INVALID, "that is no command");
        return;
    }
    if (find(r->id)) {
        send_error(channel, CODE_CONFLICT, "a process with the id %s exists", r->id);
        return;
    }
    if (!find_user(name, &u)) {
        send_error(channel, CODE_UNKNOWN_USER, "there is no user %s in this sandbox", name);
        return;
    }
    make_room();
    if (commands_count() >= MAX_COMMANDS) {
        send_error(channel, CODE_LIMIT, "%d commands are running, more are not taken", MAX_COMMANDS);
        return;
    }
    struct channel *ch = channel_open(channel);
    if (!ch) return;
    struct command *c = calloc(1, sizeof *c);
    if (!c) fail("memory");
    c->in.fd = c->out.watch.fd = c->err.watch.fd = c->control.fd = -1;
    c->shell.state_fd = c->shell.text_fd = -1;
    snprintf(c->id, sizeof c->id, "%s", r->id);
    snprintf(c->user, sizeof c->user, "%s", u.name);
    c->title = make_title(r);
    c->cwd = r->cwd ? strdup(r->cwd) : NULL;
    c->terminal = r->flags & FLAG_TERMINAL;
    c->until_closed = r->flags & FLAG_UNTIL_CLOSED;
    c->grace_ms = (uint32_t)r->grace_ms;
    log_init(&c->log, !(r->flags & FLAG_DEFER) && r->keep < LIVE_KEEP ? LIVE_KEEP : (size_t)r->keep);
    c->next = commands;
    commands = c;
    c->started_us = now_us();
    if (r->timeout_ms) c->deadline_us = c->started_us + r->timeout_ms * 1000;
    enum code code = spawn(c, r, &u, &why);
    if (code) {
        send_error(channel, code, "the command cannot be started: %s", why);
        channel_close(ch);
        remove_command(c);
        return;
    }
    ch->command = c;
    ch->on_close = command_resume;
    ch->flags = (uint32_t)r->flags | FLAG_FOLLOW;
    c->start_channel = channel;
    c->has_start_channel = true;
}

void command_start(uint32_t channel, struct fields f) {
    struct request r = request_parse(f);
    start_checked(channel, &r);
    request_free(&r);
}

/* ---- reports of the supervisor ---- */

static void on_started(struct command *c, const struct report *n) {
    c->life = LIFE_RUNNING;
    c->pid = n->pid;
    struct channel *ch = c->has_start_channel ? channel_find(c->start_channel) : NULL;
    if (!ch || ch->command != c || ch->flags & FLAG_DEFER) return;
    size_t mark = frame_open(&outbox, RESPONSE_STARTED, ch->id);
    add_text(&outbox, TAG_ID, c->id);
    add_number(&outbox, TAG_PID, (uint64_t)n->pid);
    frame_close(&outbox, mark);
    outbox_wake();
}

static void on_refused(struct command *c, const struct report *n) {
    struct channel *ch = c->has_start_channel ? channel_find(c->start_channel) : NULL;
    if (ch && ch->command == c) {
        if (n->stage == STAGE_CWD)
            send_error(ch->id, CODE_NO_CWD, "the working directory %s cannot be entered: %s",
                       c->cwd ? c->cwd : settings.workspace, strerror(n->error));
        else if (n->stage == STAGE_USER)
            send_error(ch->id, CODE_UNKNOWN_USER, "cannot become user %s: %s", c->user, strerror(n->error));
        else send_error(ch->id, CODE_LIMIT, "the sandbox is at its limit of %u processes", settings.nproc);
        channel_close(ch);
    }
    remove_command(c);
}

static void on_ended(struct command *c, const struct report *n) {
    c->end = *n;
    c->ended_us = now_us();
    c->deadline_us = 0;
    output_collect(c, true);
    shell_done(&c->shell, c->cwd);
    shell_free(&c->shell);
    c->life = LIFE_ENDED;
    command_stdin_eof(c);
    outbox_wake();
}

/* Ends a command whose first process ended before, and which has waited for its output to be closed. */
void command_closed(struct command *c) {
    struct report end = c->end;
    c->lingers = false;
    on_ended(c, &end);
}

static void on_exited(struct command *c, const struct report *n) {
    c->lingers = c->until_closed && n->background && !(c->out.at_end && c->err.at_end);
    if (c->lingers) c->end = *n;
    else on_ended(c, n);
}

static void on_gone(struct command *c, const struct report *n) {
    if (c->lingers) command_closed(c);
    if (c->exit_delayed) {
        c->exit_delayed = false;
        c->end.killed = n->killed;
        c->end.survivors = n->survivors;
        struct report end = {.kind = REPORT_EXITED, .status = c->end.status, .killed = n->killed};
        end.survivors = n->survivors;
        end.cpu_us = n->cpu_us;
        on_ended(c, &end);
    }
    for (struct channel *ch = channel_first(), *next; ch; ch = next) {
        next = ch->next;
        if (ch->kill_of != c) continue;
        size_t mark = frame_open(&outbox, RESPONSE_DONE, ch->id);
        add_number(&outbox, TAG_KILLED, n->killed);
        add_number(&outbox, TAG_SURVIVORS, n->survivors);
        frame_close(&outbox, mark);
        channel_close(ch);
    }
    if (n->killed > c->end.killed)
        c->end.killed = n->killed; /* the command ended by itself, its children were killed */
    c->end.background = 0;
    outbox_wake();
}

/* Nothing is left of what the command started, and its supervisor is not its own any more. */
static void on_nothing_left(struct command *c) {
    on_gone(c, &(struct report){.killed = c->end.killed, .survivors = c->end.survivors});
    if (c->forgotten) remove_command(c);
}

void control_ready(struct watch *w, uint32_t events) {
    struct command *c = w->of;
    struct report n;
    (void)events;
    for (;;) {
        ssize_t got = recv(w->fd, &n, sizeof n, 0);
        if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
        if (got != sizeof n) break;
        if (n.kind == REPORT_STARTED) on_started(c, &n);
        else if (n.kind == REPORT_EXITED && c->ending && n.background) c->end = n, c->exit_delayed = true;
        else if (n.kind == REPORT_EXITED) on_exited(c, &n);
        else if (n.kind == REPORT_GONE) on_gone(c, &n);
        if (n.kind == REPORT_EXITED && n.waits) {
            spare_keep(c);
            on_nothing_left(c);
            return;
        }
        if (n.kind == REPORT_FAILED) {
            on_refused(c, &n);
            return;
        }
    }
    /* The supervisor has ended, and so has everything that the command started. */
    watch_drop(w);
    if (c->lingers) command_closed(c);
    if (c->life != LIFE_ENDED || c->end.background) tend_lost_supervisor();
    if (c->life != LIFE_ENDED && !c->exit_delayed)
        on_ended(c, &(struct report){.kind = REPORT_EXITED, .status = SIGKILL});
    on_nothing_left(c);
}

/* ---- attach, control, list ---- */

/* The worker reads a missing field as zero. */
static void add_unless_zero(enum tag tag, uint64_t v) {
    if (v) add_number(&outbox, tag, v);
}

void send_exit(struct channel *ch) {
    struct command *c = ch->command;
    bool finished = c->life == LIFE_ENDED;
    size_t mark = frame_open(&outbox, finished && ch->flags & FLAG_FOLLOW ? RESPONSE_EXIT : RESPONSE_DONE, ch->id);
    int status = c->end.status, number = finished && WIFSIGNALED(status) ? WTERMSIG(status) : 0;
    enum reason reason = c->ending ? c->ending : number ? REASON_SIGNAL : REASON_EXITED;
    add_unless_zero(TAG_RUNNING, !finished);
    add_number(&outbox, TAG_EXIT_CODE, (uint64_t)(number ? 128 + number : WEXITSTATUS(status)));
    add_unless_zero(TAG_SIGNAL, (uint64_t)number);
    add_unless_zero(TAG_REASON, reason);
    add_number(&outbox, TAG_DURATION_US, (finished ? c->ended_us : now_us()) - c->started_us);
    add_number(&outbox, TAG_CPU_US, c->end.cpu_us);
    add_unless_zero(TAG_BYTES, c->log.total);
    add_unless_zero(TAG_TRUNCATED, c->log.cut);
    add_unless_zero(TAG_KILLED, c->end.killed);
    add_unless_zero(TAG_SURVIVORS, c->end.survivors);
    add_unless_zero(TAG_BACKGROUND, c->end.background);
    frame_close(&outbox, mark);
    c->forget_later |= finished && ch->flags & FLAG_ONCE && !c->end.background;
    channel_close(ch);
}

void command_tidy(void) {
    for (struct command *c = commands, *next; c; c = next) {
        next = c->next;
        if (c->forget_later && !c->forgotten) forget(c);
    }
}

void command_attach(uint32_t channel, struct fields f) {
    struct request r = request_parse(f);
    struct command *c = r.bad ? NULL : find(r.id);
    struct channel *ch = NULL;
    if (!c) send_error(channel, CODE_NO_PROCESS, "there is no process %s", r.id);
    else ch = channel_open(channel);
    if (ch) {
        ch->command = c;
        ch->on_close = command_resume;
        ch->flags = (uint32_t)r.flags & ~(uint32_t)FLAG_DEFER;
        ch->mute = r.offset >> 63;
        log_seek(&c->log, &ch->cursor, r.offset);
        outbox_wake();
    }
    request_free(&r);
}

static bool order_supervisor(struct command *c, struct order o) {
    return c->control.fd >= 0 && send(c->control.fd, &o, sizeof o, MSG_NOSIGNAL) == sizeof o;
}

static void end_command(struct command *c, enum reason reason, uint32_t grace_ms) {
    if (c->life != LIFE_ENDED && c->ending == REASON_EXITED) c->ending = reason;
    c->deadline_us = 0;
    if (c->life == LIFE_STARTING) {
        /* User code can stop the child before it has become the command, and the supervisor waits for that. */
        kill_children(c->supervisor);
        c->deadline_us = now_us() + RETRY_US; /* the supervisor may not have cloned its child yet: try again */
    }
    order_supervisor(c, (struct order){.end_tree = 1, .grace_ms = grace_ms});
    tend_ordered(c, grace_ms);
}

static void control(uint32_t channel, struct command *c, const struct request *r) {
    bool alive = c->control.fd >= 0;
    switch (r->op) {
    case CONTROL_SIGNAL:
        if (alive && r->signal) order_supervisor(c, (struct order){.signal = (uint32_t)r->signal});
        if (r->signal == SIGKILL || r->signal == SIGTERM)
            c->until_closed = false; /* its end is reported even if another process holds its output open */
        if (c->lingers && !c->until_closed) command_closed(c);
        break;
    case CONTROL_KILL:
        end_command(c, REASON_CANCELLED, (uint32_t)r->grace_ms);
        if (c->life == LIFE_ENDED && alive) {
            struct channel *ch = channel_open(channel);
            if (ch) ch->kill_of = c;
            return;
        }
        break;
    case CONTROL_RESIZE:
        if (!c->terminal || !set_terminal_size(c->out.watch.fd, r->rows, r->cols)) {
            send_error(channel, CODE_INVALID, "process %s has no terminal", c->id);
            return;
        }
        break;
    case CONTROL_FORGET:
        if (c->life != LIFE_ENDED) {
            send_error(channel, CODE_CONFLICT, "process %s is still running", c->id);
            return;
        }
        forget(c);
        break;
    default: send_error(channel, CODE_INVALID, "there is no such control"); return;
    }
    send_done(channel);
}

static uint64_t late_us; /* when a time limit was noticed late */

/* The sandbox was frozen for so long: the time of what runs in it goes on where it stood. What the worker had asked for
 * before, and the agent has read only now, did not wait all of that time. */
static void resumed(uint32_t channel, uint64_t paused_us) {
    uint64_t now = now_us();
    for (struct command *c = commands; c; c = c->next) {
        uint64_t since = now - c->started_us, moved = paused_us < since ? paused_us : since;
        tend_resumed(c, paused_us);
        if (c->life == LIFE_ENDED) continue;
        c->started_us += moved;
        if (c->deadline_us) c->deadline_us += moved;
    }
    kill_all_resumed(paused_us);
    late_us = 0;
    send_done(channel);
}

void command_control(uint32_t channel, struct fields f) {
    struct request r = request_parse(f);
    struct command *c = r.bad ? NULL : find(r.id);
    if (r.bad) send_error(channel, CODE_INVALID, "that is no control request");
    else if (r.op == CONTROL_KILL_ALL) command_kill_all(channel);
    else if (r.op == CONTROL_RESUMED) resumed(channel, r.paused_ms * 1000);
    else if (!c) send_error(channel, CODE_NO_PROCESS, "there is no process %s", r.id);
    else control(channel, c, &r);
    request_free(&r);
}

static void list_one(const struct command *c) {
    int status = c->end.status, number = c->life == LIFE_ENDED && WIFSIGNALED(status) ? WTERMSIG(status) : 0;
    size_t record = record_open(&outbox);
    add_text(&outbox, TAG_ID, c->id);
    add_text(&outbox, TAG_COMMAND, c->title);
    add_text(&outbox, TAG_USER, c->user);
    add_number(&outbox, TAG_RUNNING, c->life != LIFE_ENDED);
    add_number(&outbox, TAG_TERMINAL, c->terminal);
    add_number(&outbox, TAG_PID, (uint64_t)c->pid);
    add_number(&outbox, TAG_BYTES, c->log.total);
    add_number(&outbox, TAG_TRUNCATED, c->log.cut);
    add_number(&outbox, TAG_AGE_MS, (now_us() - c->started_us) / 1000);
    add_number(&outbox, TAG_BACKGROUND, c->end.background);
    if (c->life == LIFE_ENDED) {
        add_number(&outbox, TAG_EXIT_CODE, (uint64_t)(number ? 128 + number : WEXITSTATUS(status)));
        add_number(&outbox, TAG_REASON, c->ending ? c->ending : number ? REASON_SIGNAL : REASON_EXITED);
    }
    record_close(&outbox, record);
}

void command_list(uint32_t channel) {
    for (struct command *c = commands; c; c = c->next) {
        if (c->forgotten) continue;
        size_t mark = frame_open(&outbox, RESPONSE_DATA, channel);
        list_one(c);
        frame_close(&outbox, mark);
    }
    send_done(channel);
}

/* ---- time ---- */

/* When the time limit takes effect; UINT64_MAX if there is none. */
static uint64_t effective_deadline(const struct command *c) {
    if (!c->deadline_us) return UINT64_MAX;
    return c->deadline_us < late_us ? late_us + NEWS_US : c->deadline_us;
}

uint64_t command_next_deadline(void) {
    uint64_t next = command_ending_all() ? now_us() + LOOK_US : UINT64_MAX;
    for (struct command *c = commands; c; c = c->next)
        if (effective_deadline(c) < next) next = effective_deadline(c);
    return next;
}

void command_deadlines(void) {
    uint64_t now = now_us();
    for (struct command *c = commands; c; c = c->next)
        if (effective_deadline(c) <= now) {
            if (now - c->deadline_us > LATE_US && late_us < c->deadline_us) late_us = now;
            else if (c->lingers) c->ending = REASON_TIMEOUT, command_closed(c);
            else end_command(c, REASON_TIMEOUT, c->grace_ms);
        }
}
