/* The channels of the connection to the worker, and the answers that wait to be sent.
 *
 * The worker opens a channel with each request and chooses its number. Commands and file jobs write their answers as
 * frames to `outbox` and call `outbox_wake`; connection.c sends them at the end of the turn. A channel lives until its
 * answer is complete, the worker closes it, or the connection is lost. This file knows nothing of the socket.
 */
#define _GNU_SOURCE
#include "channel.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#define MAX_CHANNELS 2048
#define OUTBOX_FULL (256u * 1024)

struct buf outbox;
bool outbox_woken;
static struct channel *channels;
static size_t channel_count;

struct channel *channel_first(void) { return channels; }
void outbox_wake(void) { outbox_woken = true; }
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
    void (*on_close)(struct command *) = ch->on_close;
    free(ch);
    if (c) on_close(c);
}

void channel_resume_at(struct channel *first) {
    struct channel *before = channels, *last = first;
    if (first == channels) return;
    while (before->next != first) before = before->next;
    while (last->next) last = last->next;
    before->next = NULL;
    last->next = channels;
    channels = first;
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
    outbox_wake();
}

void send_done(uint32_t channel) {
    frame_close(&outbox, frame_open(&outbox, RESPONSE_DONE, channel));
    outbox_wake();
}

void send_credit(uint32_t channel, uint32_t n) {
    uint8_t raw[4];
    put_u32(raw, n);
    size_t mark = frame_open(&outbox, RESPONSE_CREDIT, channel);
    buf_add(&outbox, raw, sizeof raw);
    frame_close(&outbox, mark);
    outbox_wake();
}
