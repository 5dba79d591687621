/* The one connection to the worker: receives frames, dispatches them, and sends the answers.
 *
 * A new connection replaces the old one: after a restart the worker connects again while the kernel may still hold
 * the old socket open. When the connection is lost, commands and terminals run on, and file operations are undone.
 *
 * Answers wait in the outbox (channel.c) until the end of the turn. `connection_flush` then asks each channel for more
 * output as long as the outbox has room, and sends it. A socket that takes no more is waited for.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "agent.h"
#include "command.h"
#include "files.h"

#define READ_BYTES (64u * 1024)
#define READS 64 /* in one turn */

static struct buf inbox;
static struct watch worker = {.fd = -1};
static bool greeted, sending;

static void disconnect(void) {
    if (worker.fd < 0) return;
    watch_drop(&worker);
    for (struct channel *ch; (ch = channel_first());) {
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
    add_number(&outbox, TAG_CONTROL, LAST_CONTROL_OP);
    frame_close(&outbox, mark);
    outbox_wake();
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
    outbox_wake();
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
    case REQUEST_FILE: job_start(h->channel, f, command_ending_all()); return true;
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

/* Handles the whole frames in the buffer; false if the worker breaks the protocol. */
static bool handle_frames(struct buf *b) {
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
    for (int reads = 0; reads < READS; reads++) {
        uint8_t *to = buf_room(&inbox, READ_BYTES);
        ssize_t n = recv(worker.fd, to, inbox.cap - inbox.len, 0);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno == EAGAIN) return;
        if (n <= 0) {
            disconnect();
            return;
        }
        inbox.len += (size_t)n;
        if (!handle_frames(&inbox)) {
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

static void pump_all(void) {
    struct channel *next;
    for (struct channel *ch = channel_first(); ch; ch = next) {
        if (!outbox_has_room()) {
            channel_resume_at(ch);
            outbox_woken = true;
            return;
        }
        next = ch->next;
        struct command *c = ch->command;
        if (c) {
            if (command_send_output(ch)) outbox_woken = true;
            command_resume(c);
        } else if (ch->job) {
            job_credit(ch->job);
        }
    }
}

void connection_flush(void) {
    while (outbox_woken && worker.fd >= 0 && !sending) {
        outbox_woken = false;
        pump_all();
        bool all_sent = send_some();
        if (worker.fd < 0) return;
        if (!all_sent && !sending) {
            sending = true;
            watch_set(&worker, EPOLLIN | EPOLLOUT);
        }
        if (buf_used(&outbox) == 0 && outbox.cap > 2 * READ_BYTES && !outbox_woken) buf_free(&outbox);
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
        outbox_woken = true;
    }
    if (worker.fd >= 0 && events & (EPOLLIN | EPOLLHUP | EPOLLERR)) receive();
}

void connection_hear(void) {
    if (worker.fd >= 0) receive();
}

void connection_take(int fd) {
    disconnect();
    int bytes = 512 * 1024;
    setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
    watch_add(&worker, fd, EPOLLIN, worker_ready, NULL);
}
