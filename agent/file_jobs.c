/* File operations. Each runs in a process of its own (a job), which takes on the user's rights before it opens
 * anything.
 *
 * A job has the user's rights over files and none of the agent's. Its real uid stays the agent's, so that user code
 * cannot stop it.
 *
 *   agent ── data (write, unpack, watch) ──▶ job ── data (read, list, pack, watch, search) ──▶ agent
 *         ── commit: one byte ─────────────▶     ── result: code, then fields or a sentence ──▶
 *
 * A job that gets no commit byte undoes its work. The job has ended when its result pipe is closed.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "channel.h"
#include "files.h"

#define PIPE_BYTES (256 * 1024)
#define FRAME_BYTES (128u * 1024)
#define MAX_RESULT 8192u

struct job {
    struct job *next;
    uint32_t channel;
    pid_t pid;
    struct watch in, out, result;
    int commit;
    struct buf input, reply;
    bool input_end, readable, takes_data, is_search;
    bool undoes; /* it undoes its work if it gets no commit byte */
    uint32_t taken;
};

static struct job *jobs;

bool job_any(void) { return jobs; }

bool job_has(pid_t pid) {
    for (struct job *j = jobs; j; j = j->next)
        if (j->pid == pid) return true;
    return false;
}

void job_continue_all(void) {
    for (struct job *j = jobs; j; j = j->next) kill(j->pid, SIGCONT);
}

/* ---- inside the job ---- */

static void answer(int fd, enum code code, const void *p, size_t n) {
    uint8_t raw[4];
    put_u32(raw, (uint32_t)code);
    write_all(fd, raw, sizeof raw);
    write_all(fd, p, n);
}

static void run(const struct file_request *r, const struct user *u, int result) {
    struct buf reply = {0};
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    signal(SIGXFSZ, SIG_IGN); /* so that writing too large a file fails instead of killing the job */
    int error = 0;
    if (r->op == OP_SEARCH || (r->op == OP_LIST && r->details)) raise_own_oom_score();
    if (!act_as_user(u)) error = errno;
    prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
    if (!error && chdir(settings.workspace) != 0 && chdir("/") != 0) error = errno;
    if (!error) error = file_run(r, &reply);
    if (error) {
        enum code code = error < 0 ? (enum code)(-error) : code_of(error);
        const char *why = error > 0 ? strerror(error) : "not a regular file";
        if (error < 0 && buf_used(&reply) > 0) answer(result, code, buf_head(&reply), buf_used(&reply));
        else answer(result, code, why, strlen(why));
    } else {
        answer(result, 0, buf_head(&reply), buf_used(&reply));
    }
    _exit(0);
}

/* ---- in the agent ---- */

static void finish(struct job *j) {
    struct channel *ch = channel_find(j->channel);
    uint32_t code = buf_used(&j->reply) >= 4 ? get_u32(buf_head(&j->reply)) : (uint32_t)CODE_IO;
    const char *text = (const char *)buf_head(&j->reply) + 4;
    if (ch && ch->job == j) {
        if (buf_used(&j->reply) < 4 && j->is_search) {
            send_error(j->channel, CODE_LIMIT, "the search was killed: it needed more memory than there is");
        } else if (buf_used(&j->reply) < 4) {
            send_error(j->channel, CODE_IO, "the file operation was interrupted");
        } else if (code) {
            send_error(j->channel, (enum code)code, "%.*s", (int)(buf_used(&j->reply) - 4), text);
        } else {
            size_t mark = frame_open(&outbox, RESPONSE_DONE, j->channel);
            buf_add(&outbox, text, buf_used(&j->reply) - 4);
            frame_close(&outbox, mark);
            outbox_wake();
        }
        ch->job = NULL;
        channel_close(ch);
    }
    struct watch *all[] = {&j->in, &j->out, &j->result};
    for (size_t i = 0; i < 3; i++)
        if (all[i]->fd >= 0) watch_drop(all[i]);
    if (j->commit >= 0) close(j->commit);
    buf_free(&j->input);
    buf_free(&j->reply);
    for (struct job **p = &jobs; *p; p = &(*p)->next)
        if (*p == j) {
            *p = j->next;
            break;
        }
    free(j);
}

static void result_ready(struct watch *w, uint32_t events) {
    struct job *j = w->of;
    (void)events;
    uint8_t *to = buf_room(&j->reply, MAX_RESULT);
    ssize_t n = read(w->fd, to, MAX_RESULT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (n > 0 && buf_used(&j->reply) + (size_t)n <= 2 * MAX_RESULT) {
        j->reply.len += (size_t)n;
        return;
    }
    watch_drop(w);
    if (j->out.fd < 0) finish(j);
}

/* Sends what the job has written, as far as the worker has granted credit. */
void job_credit(struct job *j) {
    struct channel *ch = channel_find(j->channel);
    while (j->readable && j->out.fd >= 0 && ch && ch->credit > 0 && outbox_has_room()) {
        size_t max = ch->credit < FRAME_BYTES ? (size_t)ch->credit : FRAME_BYTES;
        size_t mark = frame_open(&outbox, RESPONSE_DATA, j->channel);
        uint8_t *to = buf_room(&outbox, max);
        ssize_t n = read(j->out.fd, to, max);
        if (n > 0) {
            outbox.len += (size_t)n;
            frame_close(&outbox, mark);
            ch->credit -= (uint64_t)n;
            outbox_wake();
            continue;
        }
        outbox.len -= HEADER_BYTES;
        if (n < 0 && errno == EINTR) continue;
        j->readable = false;
        if (n < 0 && errno == EAGAIN) return;
        watch_drop(&j->out);
        if (j->result.fd < 0) finish(j);
        return;
    }
}

static void out_ready(struct watch *w, uint32_t events) {
    struct job *j = w->of;
    (void)events;
    j->readable = true;
    if (!channel_find(j->channel)) watch_drop(w);
    else outbox_wake();
}

static void feed(struct job *j) {
    while (j->in.fd >= 0 && buf_used(&j->input) > 0) {
        ssize_t n = write(j->in.fd, buf_head(&j->input), buf_used(&j->input));
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno == EAGAIN) break;
        if (n < 0) {
            watch_drop(&j->in); /* the job ended early; its result says why */
            break;
        }
        buf_take(&j->input, (size_t)n);
    }
    if (j->in.fd < 0) buf_free(&j->input);
    size_t queued = buf_used(&j->input);
    if (j->taken > queued && (queued == 0 || j->taken - queued >= STDIN_WINDOW / 4)) {
        send_credit(j->channel, j->taken - (uint32_t)queued);
        j->taken = (uint32_t)queued;
    }
    if (queued == 0 && j->input_end) {
        if (j->in.fd >= 0) watch_drop(&j->in);
        if (j->commit >= 0) {
            if (write(j->commit, "c", 1) < 0) {}
            close(j->commit);
            j->commit = -1;
        }
    }
    if (j->in.fd >= 0) watch_set(&j->in, queued ? EPOLLOUT : 0);
}

static void in_ready(struct watch *w, uint32_t events) {
    struct job *j = w->of;
    if (events & (EPOLLERR | EPOLLHUP) && !(events & EPOLLOUT)) watch_drop(w);
    feed(j);
}

void job_data(struct job *j, const uint8_t *p, size_t n) {
    if (!j->takes_data || j->input_end || j->taken + n > STDIN_WINDOW) return;
    j->taken += (uint32_t)n;
    if (j->in.fd >= 0) buf_add(&j->input, p, n);
    feed(j);
}

void job_eof(struct job *j) {
    if (!j->takes_data) return;
    j->input_end = true;
    feed(j);
}

/* The worker does not wait for the job any more. A job that writes undoes its work; others are killed. */
void job_abandon(struct job *j) {
    struct channel *ch = channel_find(j->channel);
    if (ch && ch->job == j) ch->job = NULL;
    j->channel = 0;
    if (j->commit >= 0) close(j->commit);
    j->commit = -1;
    if (j->in.fd >= 0) watch_drop(&j->in);
    if (j->out.fd >= 0) watch_drop(&j->out);
    if (!j->undoes && j->result.fd >= 0)
        kill(j->pid, SIGKILL); /* a job is not reaped before its result pipe ends, so this pid is still its own */
    if (j->result.fd < 0) finish(j);
}

static bool open_pipe(int p[2], bool wanted, int ours) {
    p[0] = p[1] = -1;
    if (!wanted) return true;
    if (pipe2(p, O_CLOEXEC) != 0) return false;
    fcntl(p[ours], F_SETPIPE_SZ, PIPE_BYTES);
    return fcntl(p[ours], F_SETFL, O_NONBLOCK) == 0;
}

static void close_pipes(int p[4][2]) {
    for (int i = 0; i < 8; i++)
        if (p[i / 2][i % 2] >= 0) close(p[i / 2][i % 2]);
}

static void launch(struct channel *ch, struct file_request *r, const struct user *u) {
    bool writes = r->op == OP_WRITE || r->op == OP_WRITE_IN_PLACE || r->op == OP_UNPACK;
    bool takes = writes || r->op == OP_WATCH;
    bool gives = r->op == OP_READ || r->op == OP_LIST || r->op == OP_PACK || r->op == OP_WATCH || r->op == OP_SEARCH;
    int p[4][2] = {{-1, -1}, {-1, -1}, {-1, -1}, {-1, -1}}; /* in, commit, out, result */
    pid_t pid = -1;
    if (open_pipe(p[0], takes, 1) && open_pipe(p[1], writes, 1) && open_pipe(p[2], gives, 0) &&
        open_pipe(p[3], true, 0)) {
        pid = fork();
        if (pid == 0) {
            r->in = p[0][0], r->commit = p[1][0], r->out = p[2][1];
            int result = p[3][1];
            keep_only((int[]){r->in, r->commit, r->out, result}, 4);
            run(r, u, result);
        }
    }
    if (pid < 0) {
        send_error(ch->id, CODE_LIMIT, "no process for a file operation: %s", strerror(errno));
        channel_close(ch);
        close_pipes(p);
        return;
    }
    struct job *j = calloc(1, sizeof *j);
    if (!j) fail("memory");
    *j = (struct job){.channel = ch->id,
                      .pid = pid,
                      .commit = p[1][1],
                      .takes_data = takes,
                      .undoes = writes,
                      .is_search = r->op == OP_SEARCH};
    j->in.fd = j->out.fd = j->result.fd = -1;
    j->next = jobs;
    jobs = j;
    if (takes) watch_add(&j->in, p[0][1], 0, in_ready, j);
    if (gives) watch_add(&j->out, p[2][0], EPOLLIN | EPOLLET, out_ready, j);
    watch_add(&j->result, p[3][0], EPOLLIN, result_ready, j);
    p[0][1] = p[1][1] = p[2][0] = p[3][0] = -1;
    close_pipes(p);
    ch->job = j;
}

void job_start(uint32_t channel, struct fields f, bool ending) {
    struct file_request r = {.in = -1, .out = -1, .commit = -1};
    struct user u, owner;
    char *user = NULL;
    bool good = file_request_parse(f, &r, &user);
    const char *name = user && *user ? user : settings.user;
    if (!good) {
        send_error(channel, CODE_INVALID, "that is no file operation");
    } else if (ending) {
        send_error(channel, CODE_CONFLICT, "everything in the sandbox is being ended; try again");
    } else if (!find_user(name, &u)) {
        send_error(channel, CODE_UNKNOWN_USER, "there is no user %s in this sandbox", name);
    } else if (r.owner && !find_user(r.owner, &owner)) {
        send_error(channel, CODE_UNKNOWN_USER, "there is no user %s in this sandbox", r.owner);
    } else {
        if (r.owner) r.uid = owner.uid, r.gid = owner.gid;
        struct channel *ch = channel_open(channel);
        if (ch) launch(ch, &r, &u);
    }
    file_request_free(&r);
    free(user);
}
