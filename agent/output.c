/* The output of commands: from their pipes into the log, and from the log to the readers.
 *
 * stdout and stderr are two pipes, and yet the order of their writes is kept: both pipes are in packet mode (one write,
 * one packet), and the kernel queues a realtime signal for every write. The signal queue gives the order of the writes;
 * for each signal the agent reads the packets of one write from that pipe. A write of several pages is several packets
 * and one signal: see `one_write`. If the kernel cannot queue a signal it sends SIGIO, and the agent reads what is
 * there without knowing its order. Where pipes send no signals (settings.exact_order is false) the agent polls them.
 *
 * A lossless reader that lags behind pauses the reading, and so the command.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "command.h"

#define PACKET 4096
#define TAKE_ROUNDS 512
#define PIPE_BYTES (256 * 1024)
#define LAG_BYTES (256u * 1024)
#define FRAME_BYTES (128u * 1024)

static bool lagging(const struct command *c) {
    if (c->log.keep < 256) return false; /* nothing is kept for readers, so the command need not wait for them */
    for (struct channel *ch = channel_first(); ch; ch = ch->next)
        if (ch->command == c && ch->flags & FLAG_LOSSLESS && !(ch->flags & FLAG_DEFER) &&
            c->log.total - ch->cursor.offset > LAG_BYTES)
            return true;
    return false;
}

static void close_end(struct pipe_end *e) {
    if (e->watch.fd >= 0) watch_drop(&e->watch);
    e->at_end = true;
}

/* Reads one packet, or up to a full buffer from a pipe that left packet mode; -1 if there is nothing. */
static ssize_t take(struct command *c, struct pipe_end *e, enum stream stream) {
    static uint8_t buffer[64 * 1024];
    if (e->watch.fd < 0) return -1;
    ssize_t n;
    do n = read(e->watch.fd, buffer, sizeof buffer);
    while (n < 0 && errno == EINTR);
    if (n > 0) log_add(&c->log, stream, buffer, (size_t)n);
    else if (n == 0 || errno != EAGAIN) close_end(e);
    return n > 0 ? n : -1;
}

static size_t waiting_in(const struct pipe_end *e) {
    int n = 0;
    return e->watch.fd >= 0 && ioctl(e->watch.fd, FIONREAD, &n) == 0 ? (size_t)n : 0;
}

static uint8_t write_at(const struct command *c, uint32_t i) { return c->writes[(c->writes_from + i) % ORDER_ENTRIES]; }

/* Forgets the next writes to a pipe that was found empty: their data has been read already, and looking for each of
 * them would double the system calls. */
static void skip_writes(struct command *c, uint8_t which) {
    while (c->writes_count > 0 && write_at(c, 0) == which) {
        c->writes_from = (c->writes_from + 1) % ORDER_ENTRIES;
        c->writes_count--;
    }
}

/* Reads the packets of one write. A short packet ends a write. Whether a full packet does is unknown: the agent then
 * assumes that a write is as long as the average of the writes waiting in this pipe. */
static void one_write(struct command *c, uint8_t which) {
    struct pipe_end *e = which == 1 ? &c->out : &c->err;
    size_t taken = 0;
    for (;;) {
        ssize_t n = take(c, e, which == 1 ? STREAM_OUT : STREAM_ERR);
        if (n < 0) skip_writes(c, which);
        if (n < PACKET) return;
        taken += (size_t)n;
        if (taken >= PIPE_BYTES) return;
        if (c->writes_count == 0 || write_at(c, 0) == which) {
            if (n % PACKET != 0 || taken >= PIPE_BYTES) return;
            continue;
        }
        size_t more = 0;
        for (uint32_t i = 0; i < c->writes_count; i++) more += write_at(c, i) == which;
        if (taken >= (taken + waiting_in(e)) / (more + 1)) return;
    }
}

static void take_in_order(struct command *c) {
    while (c->writes_count > 0 && !lagging(c)) {
        uint8_t which = write_at(c, 0);
        c->writes_from = (c->writes_from + 1) % ORDER_ENTRIES;
        c->writes_count--;
        one_write(c, which);
        signals_take(); /* a write to a full pipe is signalled twice: empty it early */
    }
}

static void take_rest(struct command *c, bool all) {
    bool some = true;
    for (int rounds = 0; some && (all || !lagging(c)); rounds++) {
        if (rounds == TAKE_ROUNDS) {
            c->writes_lost = true; /* there may be more: continue in the next turn */
            return;
        }
        some = take(c, &c->out, c->terminal ? STREAM_TERMINAL : STREAM_OUT) > 0;
        if (c->err.watch.fd >= 0) some |= take(c, &c->err, STREAM_ERR) > 0;
    }
}

static void set_polling(struct command *c) {
    bool paused = lagging(c);
    if (paused == c->paused) return;
    c->paused = paused;
    if (settings.exact_order && !c->terminal) return;
    uint32_t events = paused ? 0 : EPOLLIN;
    if (c->out.watch.fd >= 0 && !c->out.at_end) watch_set(&c->out.watch, events);
    if (c->err.watch.fd >= 0 && !c->err.at_end) watch_set(&c->err.watch, events);
}

void output_collect(struct command *c, bool all) {
    if (settings.exact_order && !c->terminal) {
        signals_take();
        take_in_order(c);
    }
    bool unordered = !settings.exact_order || c->terminal || c->writes_lost || c->out.at_end || c->err.at_end;
    if (all || (unordered && !lagging(c))) {
        c->writes_count = 0;
        c->writes_lost = false;
        take_rest(c, all);
    }
    log_release_pages(&c->log, all);
    set_polling(c);
    /* The pipes of a tree that is being ended close before the supervisor has counted it: its report closes the command,
     * so that the result names no process that is already dead. */
    if (c->lingers && !c->ending && c->out.at_end && c->err.at_end) command_closed(c);
    outbox_wake();
}

/* One pipe may end while the other is still written to. The rest of the ended one can be read at once: nothing is
 * written to it any more, so no order is lost. */
static void pipe_ready(struct watch *w, uint32_t events) {
    struct command *c = w->of;
    struct pipe_end *e = w == &c->out.watch ? &c->out : &c->err;
    if (events & (EPOLLHUP | EPOLLERR)) {
        if (!e->at_end) watch_set(w, EPOLLET);
        e->at_end = true; /* while the reading is paused, a level-triggered end would be reported again and again */
    }
    output_collect(c, false);
}

static bool listen_to(struct command *c, struct pipe_end *e, int fd) {
    fcntl(fd, F_SETPIPE_SZ, PIPE_BYTES);
    if (settings.exact_order && !c->terminal) {
        fcntl(fd, F_SETFL, O_NONBLOCK | O_ASYNC);
        fcntl(fd, F_SETOWN, getpid());
        fcntl(fd, F_SETSIG, SIGRTMIN + 1);
    } else {
        fcntl(fd, F_SETFL, O_NONBLOCK);
    }
    watch_add(&e->watch, fd, settings.exact_order && !c->terminal ? 0 : EPOLLIN, pipe_ready, c);
    return true;
}

void output_open(struct command *c, int out, int err) {
    c->out.watch.fd = c->err.watch.fd = -1;
    listen_to(c, &c->out, out);
    if (err >= 0) listen_to(c, &c->err, err);
    else c->err.at_end = true;
    if (settings.exact_order && !c->terminal && !c->writes) c->writes = buf_room(&(struct buf){0}, ORDER_ENTRIES);
}

void output_close(struct command *c) {
    close_end(&c->out);
    close_end(&c->err);
}

/* ---- the order of writes ---- */

static void note_write(int fd) {
    for (struct command *c = commands; c; c = c->next) {
        uint8_t which = c->out.watch.fd == fd ? 1 : c->err.watch.fd == fd ? 2 : 0;
        if (!which || !c->writes) continue;
        if (c->writes_count == ORDER_ENTRIES) c->writes_lost = true;
        else c->writes[(c->writes_from + c->writes_count++) % ORDER_ENTRIES] = which;
        return;
    }
}

void output_note_writes(const int *fds, size_t n, bool lost) {
    for (size_t i = 0; i < n; i++) note_write(fds[i]);
    for (struct command *c = commands; lost && c; c = c->next) c->writes_lost = true;
}

bool output_pending(void) {
    for (struct command *c = commands; c; c = c->next)
        if ((c->writes_count || c->writes_lost) && !c->paused) return true;
    return false;
}

void output_after_signals(void) {
    for (struct command *c = commands; c; c = c->next)
        if ((c->writes_count || c->writes_lost) && !c->paused) output_collect(c, false);
}

/* ---- from the log to a reader ---- */

bool command_send_output(struct channel *ch) {
    struct command *c = ch->command;
    bool over = c->life == LIFE_ENDED || !(ch->flags & FLAG_FOLLOW);
    if (c->life == LIFE_STARTING) return false; /* STARTED comes first */
    if ((ch->flags & FLAG_DEFER || ch->mute) && !over) return false;
    if (ch->mute) {
        send_exit(ch);
        return false;
    }
    while (outbox_has_room()) {
        size_t max = ch->credit < FRAME_BYTES ? (size_t)ch->credit : FRAME_BYTES, mark, n = 0;
        uint8_t stream = 0;
        uint64_t offset = 0;
        if (max > 0) {
            mark = frame_open(&outbox, RESPONSE_OUTPUT, ch->id);
            buf_room(&outbox, 9 + max);
            uint8_t *at = outbox.p + outbox.len;
            n = log_next(&c->log, &ch->cursor, at + 9, max, &stream, &offset);
            if (n == 0) {
                outbox.len -= HEADER_BYTES;
            } else {
                at[0] = stream;
                put_u64(at + 1, offset);
                outbox.len += 9 + n;
                frame_close(&outbox, mark);
                ch->credit -= n;
            }
        }
        if (n > 0) continue;
        if (max == 0 && ch->cursor.offset < c->log.total && !c->forgotten) return false;
        if (over) send_exit(ch);
        return false;
    }
    return true;
}

void command_resume(struct command *c) {
    if (c->paused && !lagging(c)) {
        set_polling(c);
        output_collect(c, false);
    }
}
