/* The one connection to the worker, and the channels on it.
 *
 * A new connection takes the place of the old one: after a restart the worker dials again while the
 * kernel may still hold the old socket open. Losing the connection detaches commands and terminals,
 * which go on, and undoes file operations, which were the caller's.
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
static struct watch line = {.fd = -1};
static struct channel *channels;
static size_t channel_count;
static bool greeted, wakened, sending;

struct channel *channel_first(void) { return channels; }
void connection_wake(void) { wakened = true; }
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
    if (c) command_flow(c);
}

void send_error(uint32_t channel, enum code code, const char *format, ...) {
    char text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    size_t mark = frame_open(&outbox, SAY_ERROR, channel);
    add_number(&outbox, TAG_CODE, code);
    add_text(&outbox, TAG_MESSAGE, text);
    frame_close(&outbox, mark);
    connection_wake();
}

void send_done(uint32_t channel) {
    frame_close(&outbox, frame_open(&outbox, SAY_DONE, channel));
    connection_wake();
}

void send_credit(uint32_t channel, uint32_t n) {
    uint8_t raw[4];
    put_u32(raw, n);
    size_t mark = frame_open(&outbox, SAY_CREDIT, channel);
    buf_add(&outbox, raw, sizeof raw);
    frame_close(&outbox, mark);
    connection_wake();
}

static void hang_up(void) {
    if (line.fd < 0) return;
    watch_drop(&line);
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

/* ---- what the worker says ---- */

static bool hello(const uint8_t *p, size_t n) {
    uint64_t version = 0;
    struct fields it = {p, p + n, false};
    for (struct field f; next_field(&it, &f);)
        if (f.tag == TAG_VERSION) field_number(&f, &version);
    size_t mark = frame_open(&outbox, SAY_HELLO, 0);
    add_number(&outbox, TAG_VERSION, WIRE_VERSION);
    add_number(&outbox, TAG_PID, (uint64_t)getpid());
    add_number(&outbox, TAG_OP, LAST_FILE_OP);
    frame_close(&outbox, mark);
    connection_wake();
    greeted = version == WIRE_VERSION;
    return true;
}

static void data(struct channel *ch, const uint8_t *p, size_t n) {
    if (ch->command) command_stdin(ch->command, ch, p, n);
    else if (ch->job) job_data(ch->job, p, n);
}

static void end_of_data(struct channel *ch) {
    if (ch->command) command_stdin_eof(ch->command);
    else if (ch->job) job_eof(ch->job);
}

static void more_credit(struct channel *ch, const uint8_t *p, size_t n) {
    if (n != 4) return;
    ch->credit += get_u32(p);
    if (ch->credit > 1u << 30) ch->credit = 1u << 30;
    connection_wake();
}

static void let_go(struct channel *ch) {
    if (ch->job) job_abandon(ch->job);
    channel_close(ch);
}

static bool understand(const struct header *h, const uint8_t *p) {
    struct fields f = {p, p + h->length, false};
    struct channel *ch = channel_find(h->channel);
    if (!greeted) return h->kind == ASK_HELLO && hello(p, h->length);
    switch (h->kind) {
    case ASK_START: command_start(h->channel, f); return true;
    case ASK_ATTACH: command_attach(h->channel, f); return true;
    case ASK_FILE: job_start(h->channel, f); return true;
    case ASK_CONTROL: command_control(h->channel, f); return true;
    case ASK_LIST: command_list(h->channel); return true;
    case ASK_PING: send_done(h->channel); return true;
    case ASK_DATA: if (ch) data(ch, p, h->length); return true;
    case ASK_EOF: if (ch) end_of_data(ch); return true;
    case ASK_CREDIT: if (ch) more_credit(ch, p, h->length); return true;
    case ASK_CLOSE: if (ch) let_go(ch); return true;
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
        if (!understand(&h, buf_head(b) + HEADER_BYTES)) return false;
        buf_take(b, HEADER_BYTES + h.length);
    }
    return true;
}

static void receive(void) {
    for (;;) {
        uint8_t *to = buf_room(&inbox, READ_BYTES);
        ssize_t n = recv(line.fd, to, inbox.cap - inbox.len, 0);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno == EAGAIN) return;
        if (n <= 0) {
            hang_up();
            return;
        }
        inbox.len += (size_t)n;
        if (!connection_parse(&inbox)) {
            hang_up();
            return;
        }
        if (buf_used(&inbox) == 0 && inbox.cap > READ_BYTES) buf_free(&inbox);
        if (n < (ssize_t)READ_BYTES) return;
    }
}

/* ---- what we say ---- */

static bool send_some(void) {
    while (buf_used(&outbox) > 0) {
        ssize_t n = send(line.fd, buf_head(&outbox), buf_used(&outbox), MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno == EAGAIN) return false;
        if (n < 0) {
            hang_up();
            return true;
        }
        buf_take(&outbox, (size_t)n);
    }
    return true;
}

/* Puts the channel that did not get its turn in front, so that one busy channel cannot starve the others. */
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
            wakened = true;
            return;
        }
        next = ch->next;
        struct command *c = ch->command;
        if (c) {
            if (command_pump(ch)) wakened = true;
            command_flow(c);
        } else if (ch->job) {
            job_credit(ch->job);
        }
    }
}

void connection_flush(void) {
    while (wakened && line.fd >= 0 && !sending) {
        wakened = false;
        pump_all();
        bool all_sent = send_some();
        if (line.fd < 0) return;
        if (!all_sent && !sending) {
            sending = true;
            watch_set(&line, EPOLLIN | EPOLLOUT);
        }
        if (buf_used(&outbox) == 0 && outbox.cap > 2 * READ_BYTES && !wakened) buf_free(&outbox);
    }
    if (line.fd < 0) buf_free(&outbox);
}

static void line_ready(struct watch *w, uint32_t events) {
    (void)w;
    if (events & EPOLLOUT) {
        if (send_some() && line.fd >= 0) {
            sending = false;
            watch_set(&line, EPOLLIN);
        }
        wakened = true;
    }
    if (line.fd >= 0 && events & (EPOLLIN | EPOLLHUP | EPOLLERR)) receive();
}

void connection_take(int fd) {
    hang_up();
    int bytes = 512 * 1024;
    setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
    watch_add(&line, fd, EPOLLIN, line_ready, NULL);
}
