/* The stdin of commands: queues up to a window, and writes as fast as the command reads.
 *
 * The worker may have STDIN_WINDOW bytes on the way. Each channel remembers how many it has sent that are not written
 * yet, and gets them back as credit when the command has read them. A terminal has no end of file: it gets Ctrl-D
 * instead.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "command.h"

static void grant(struct command *c) {
    size_t queued = buf_used(&c->input);
    for (struct channel *ch = channel_first(); ch; ch = ch->next) {
        if (ch->command != c || ch->stdin_used <= queued) continue;
        uint32_t n = ch->stdin_used - (uint32_t)queued;
        if (queued > 0 && n < STDIN_WINDOW / 4) continue;
        ch->stdin_used -= n;
        send_credit(ch->id, n);
    }
}

static void feed(struct command *c) {
    while (c->in.fd >= 0 && buf_used(&c->input) > 0) {
        ssize_t n = write(c->in.fd, buf_head(&c->input), buf_used(&c->input));
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno == EAGAIN) break;
        if (n < 0) {
            watch_drop(&c->in);
            break;
        }
        buf_take(&c->input, (size_t)n);
    }
    if (c->in.fd < 0) buf_free(&c->input);
    bool waits = c->in.fd >= 0 && buf_used(&c->input) > 0;
    if (c->in.fd >= 0 && waits != c->input_waits) watch_set(&c->in, waits ? EPOLLOUT : 0);
    c->input_waits = waits;
    if (!waits && c->input_end && c->in.fd >= 0) {
        if (c->terminal && c->life != LIFE_ENDED) {
            if (write(c->in.fd, "\004", 1) < 0) {}
            c->input_end = false;
        } else {
            watch_drop(&c->in);
        }
    }
    if (!waits) buf_free(&c->input);
    grant(c);
}

void input_ready(struct watch *w, uint32_t events) {
    struct command *c = w->of;
    if (events & (EPOLLERR | EPOLLHUP) && !(events & EPOLLOUT)) watch_drop(w);
    feed(c);
}

void command_stdin(struct command *c, struct channel *ch, const uint8_t *p, size_t n) {
    if (ch->stdin_used + n > STDIN_WINDOW) {
        send_error(ch->id, CODE_INVALID, "more input than was granted");
        channel_close(ch);
        return;
    }
    ch->stdin_used += (uint32_t)n;
    if (c->in.fd >= 0 && !c->input_end) buf_add(&c->input, p, n);
    feed(c);
}

void command_stdin_eof(struct command *c) {
    c->input_end = true;
    feed(c);
}
