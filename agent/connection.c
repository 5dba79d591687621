/* The one connection to the worker, and the channels on it.
 *
 * A new connection replaces the old one: after a restart the worker connects again while the kernel may still hold
 * the old socket open. When the connection is lost, commands and terminals run on, and file operations are undone.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "agent.h"

#define MAX_CHANNELS 2048
#define READ_BYTES (64u * 1024)
#define OUTBOX_FULL (256u * 1024)

struct buf outbox;
static struct buf inbox;
static struct watch worker = {.fd = -1};
static struct channel *channels;
static size_t channel_count;
static bool greeted, wake_requested, sending;

struct channel *channel_first(void) { return channels; }
void connection_wake(void) { wake_requested = true; }
bool outbox_has_room(void) { return buf_used(&outbox) < OUTBOX_FULL; }

struct channel *channel_find(uint32_t id) {
    for (struct channel *ch = channels; ch; ch = ch->next)
        if (ch->id == id) return ch;
    return NULL;
}

struct channel *channel_open(uint32_t id) {
    if (id == 0 || channel_find(id) || channel_count >= MAX_CHANNELS) {
        send_error(id, CODE_LIMIT, "channel %u is in use, or too many are", id);
        return NULL;
    }
    struct channel *ch = calloc(1, sizeof *ch);
    if (!ch) fail("memory");
    ch->id = id;
    ch->credit = OUTPUT_WINDOW;
    ch->next = channels;
    channels = ch;
    channel_count++;
    return ch;
}

void channel_close(struct channel *ch) {
    for (struct channel **p = &channels; *p; p = &(*p)->next)
        if (*p == ch) {
            *p = ch->next;
            channel_count--;
            break;
        }
    struct command *c = ch->command;
    free(ch);
    if (c) command_resume(c);
}

void send_error(uint32_t channel, enum code code, const char *format, ...) {
    char text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    size_t mark = frame_open(&outbox, RESPONSE_ERROR, channel);
    add_number(&outbox, TAG_CODE, code);
    add_text(&outbox, TAG_MESSAGE, text);
    frame_close(&outbox, mark);
    connection_wake();
}

void send_done(uint32_t channel) {
    frame_close(&outbox, frame_open(&outbox, RESPONSE_DONE, channel));
    connection_wake();
}

void send_credit(uint32_t channel, uint32_t n) {
    uint8_t raw[4];
    put_u32(raw, n);
    size_t mark = frame_open(&outbox, RESPONSE_CREDIT, channel);
    buf_add(&outbox, raw, sizeof raw);
    frame_close(&outbox, mark);
    connection_wake();
}

static void disconnect(void) {
    if (worker.fd < 0) return;
    watch_drop(&worker);
    while (channels) {
        struct channel *ch = channels;
        if (ch->job) job_abandon(ch->job);
        channel_close(ch);
    }
    buf_free(&inbox);
    buf_free(&outbox);
    greeted = sending = false;
    if (settings.ephemeral) exit(0);
}

/* ---- receiving ---- */

static bool handle_hello(const uint8_t *p, size_t n) {
    uint64_t version = 0;
    struct fields it = {p, p + n, false};
    for (struct field f; next_field(&it, &f);)
        if (f.tag == TAG_VERSION) field_number(&f, &version);
    size_t mark = frame_open(&outbox, RESPONSE_HELLO, 0);
    add_number(&outbox, TAG_VERSION, WIRE_VERSION);
    add_number(&outbox, TAG_PID, (uint64_t)getpid());
    add_number(&outbox, TAG_OP, LAST_FILE_OP);
    frame_close(&outbox, mark);
    connection_wake();
    greeted = version == WIRE_VERSION;
    return true;
}

static void handle_data(struct channel *ch, const uint8_t *p, size_t n) {
    if (ch->command) command_stdin(ch->command, ch, p, n);
    else if (ch->job) job_data(ch->job, p, n);
}

static void handle_eof(struct channel *ch) {
    if (ch->command) command_stdin_eof(ch->command);
    else if (ch->job) job_eof(ch->job);
}

static void handle_credit(struct channel *ch, const uint8_t *p, size_t n) {
    if (n != 4) return;
    ch->credit += get_u32(p);
    if (ch->credit > 1u << 30) ch->credit = 1u << 30;
    connection_wake();
}

static void close_by_worker(struct channel *ch) {
    if (ch->job) job_abandon(ch->job);
    channel_close(ch);
}

static bool handle_frame(const struct header *h, const uint8_t *p) {
    struct fields f = {p, p + h->length, false};
    struct channel *ch = channel_find(h->channel);
    if (!greeted) return h->kind == REQUEST_HELLO && handle_hello(p, h->length);
    switch (h->kind) {
    case REQUEST_START: command_start(h->channel, f); return true;
    case REQUEST_ATTACH: command_attach(h->channel, f); return true;
    case REQUEST_FILE: job_start(h->channel, f); return true;
    case REQUEST_CONTROL: command_control(h->channel, f); return true;
    case REQUEST_LIST: command_list(h->channel); return true;
    case REQUEST_PING: send_done(h->channel); return true;
    case REQUEST_DATA:
        if (ch) handle_data(ch, p, h->length);
        return true;
    case REQUEST_EOF:
        if (ch) handle_eof(ch);
        return true;
    case REQUEST_CREDIT:
        if (ch) handle_credit(ch, p, h->length);
        return true;
    case REQUEST_CLOSE:
        if (ch) close_by_worker(ch);
        return true;
    default: return false;
    }
}

bool connection_parse(struct buf *b) {
    struct header h;
    while (buf_used(b) >= HEADER_BYTES) {
        if (!parse_header(buf_head(b), &h)) return false;
        if (buf_used(b) < HEADER_BYTES + h.length) {
            buf_room(b, HEADER_BYTES + h.length - buf_used(b));
            return true;
        }
        if (!handle_frame(&h, buf_head(b) + HEADER_BYTES)) return false;
        buf_take(b, HEADER_BYTES + h.length);
    }
    return true;
}

static void receive(void) {
    for (;;) {
        uint8_t *to = buf_room(&inbox, READ_BYTES);
        ssize_t n = recv(worker.fd, to, inbox.cap - inbox.len, 0);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno == EAGAIN) return;
        if (n <= 0) {
            disconnect();
            return;
        }
        inbox.len += (size_t)n;
        if (!connection_parse(&inbox)) {
            disconnect();
            return;
        }
        if (buf_used(&inbox) == 0 && inbox.cap > READ_BYTES) buf_free(&inbox);
        if (n < (ssize_t)READ_BYTES) return;
    }
}

/* ---- sending ---- */

static bool send_some(void) {
    while (buf_used(&outbox) > 0) {
        ssize_t n = send(worker.fd, buf_head(&outbox), buf_used(&outbox), MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno == EAGAIN) return false;
        if (n < 0) {
            disconnect();
            return true;
        }
        buf_take(&outbox, (size_t)n);
    }
    return true;
}

/* Moves the channel that did not get its turn to the front, so that a busy channel cannot starve the others. */
static void resume_at(struct channel *first) {
    struct channel *before = channels, *last = first;
    if (first == channels) return;
    while (before->next != first) before = before->next;
    while (last->next) last = last->next;
    before->next = NULL;
    last->next = channels;
    channels = first;
}

static void pump_all(void) {
    struct channel *next;
    for (struct channel *ch = channels; ch; ch = next) {
        if (!outbox_has_room()) {
            resume_at(ch);
            wake_requested = true;
            return;
        }
        next = ch->next;
        struct command *c = ch->command;
        if (c) {
            if (command_send_output(ch)) wake_requested = true;
            command_resume(c);
        } else if (ch->job) {
            job_credit(ch->job);
        }
    }
}

void connection_flush(void) {
    while (wake_requested && worker.fd >= 0 && !sending) {
        wake_requested = false;
        pump_all();
        bool all_sent = send_some();
        if (worker.fd < 0) return;
        if (!all_sent && !sending) {
            sending = true;
            watch_set(&worker, EPOLLIN | EPOLLOUT);
        }
        if (buf_used(&outbox) == 0 && outbox.cap > 2 * READ_BYTES && !wake_requested) buf_free(&outbox);
    }
    if (worker.fd < 0) buf_free(&outbox);
}

static void worker_ready(struct watch *w, uint32_t events) {
    (void)w;
    if (events & EPOLLOUT) {
        if (send_some() && worker.fd >= 0) {
            sending = false;
            watch_set(&worker, EPOLLIN);
        }
        wake_requested = true;
    }
    if (worker.fd >= 0 && events & (EPOLLIN | EPOLLHUP | EPOLLERR)) receive();
}

void connection_take(int fd) {
    disconnect();
    int bytes = 512 * 1024;
    setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
    watch_add(&worker, fd, EPOLLIN, worker_ready, NULL);
}
