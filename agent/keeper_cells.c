/* The keeper's cells: the queue of each client, the text of the cell that runs, its interruption and its end.
 *
 * Everything that a cell gives is bounded. Text is put into frames as it is read; what is above the limit is counted,
 * and the client is told at the end. Text that is written while no cell runs waits in `between` for the next one.
 *
 * The worker's time is spent on frames rather than on bytes, and user code could send millions of them in a second. So a
 * context gives 2,500 frames at once and 1,000 a second after that. Above this rate its runner is not read, and waits:
 * text that is written meanwhile comes as one long frame. Only events that came at once with too many others, or after
 * the interrupt of their cell, are cut.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "keeper.h"

#define CALM_US 10000u /* after an interrupted cell: a late SIGINT must not meet the next one */

/* ---- queues ---- */

struct piece *new_frame(char type, const void *payload, size_t n) {
    struct piece *p = malloc(sizeof *p + FRAME_HEAD + n);
    if (!p) return NULL;
    *p = (struct piece){NULL, FRAME_HEAD + n, 0};
    frame_head(p->bytes, type, n);
    if (payload) memcpy(p->bytes + FRAME_HEAD, payload, n);
    return p;
}

void queue_put(struct queue *q, struct piece *p) {
    if (!p) return;
    if (q->last) q->last->next = p;
    else q->first = p;
    q->last = p;
    q->held += sizeof *p + p->size;
}

void give_frame(struct keeper *k, struct queue *to, struct piece *p) {
    uint64_t now = keeper_now(k);
    if (!p) return;
    queue_put(to, p);
    k->paid_until = (k->paid_until > now ? k->paid_until : now) + FRAME_US;
}

uint64_t paced_until(const struct keeper *k) { return k->paid_until > BURST_US ? k->paid_until - BURST_US : 0; }

static void drop_first(struct queue *q) {
    struct piece *p = q->first;
    q->held -= sizeof *p + p->size;
    q->first = p->next;
    if (!q->first) q->last = NULL;
    free(p);
}

static void drop_all(struct queue *q) {
    while (q->first) drop_first(q);
}

/* Sends what the socket takes; false if the client is gone. */
bool client_flush(struct keeper *k, struct client *c) {
    while (c->out.first) {
        struct piece *p = c->out.first;
        ssize_t n = send(c->fd, p->bytes + p->at, p->size - p->at, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0) return errno == EAGAIN || errno == EINTR;
        k->flush_by = keeper_now(k) + FLUSH_US;
        if ((p->at += (size_t)n) == p->size) drop_first(&c->out);
    }
    return true;
}

/* ---- signals to the runner ---- */

static void signal_runner(struct keeper *k, int number) {
    if (k->runner > 0 && kill(-k->runner, number) != 0) kill(k->runner, number);
}

/* Only the first reason is kept: what follows is its consequence. */
void kill_runner(struct keeper *k, const char *why) {
    if (!k->reason) k->reason = why;
    k->kill_at = 0;
    signal_runner(k, SIGKILL);
}

/* Interrupts the cell that runs. With `or_kill` the runner is killed if the cell does not end within the grace time. */
void interrupt_cell(struct keeper *k, bool or_kill) {
    if (k->state != RUNNING || (or_kill && k->kill_at)) return;
    uint64_t now = keeper_now(k);
    signal_runner(k, SIGINT);
    k->calm_at = now + CALM_US;
    if (!or_kill) return;
    k->kill_at = now + k->grace_us;
    k->again_at = now + k->grace_us / 2;
}

/* Repeats the interrupt: a shell that was just forking, or had not begun with the cell, has not noticed the first
 * one. */
void interrupt_again(struct keeper *k) {
    k->again_at = 0;
    if (k->state != RUNNING || !k->kill_at) return;
    signal_runner(k, SIGINT);
    k->calm_at = keeper_now(k) + CALM_US;
}

/* ---- text ---- */

/* Keeps the last EARLY_BYTES of what the runner writes before its hello. */
static void keep_early(struct keeper *k, const uint8_t *p, size_t n) {
    if (n > EARLY_BYTES) p += n - EARLY_BYTES, n = EARLY_BYTES;
    size_t kept = k->early_bytes + n > EARLY_BYTES ? EARLY_BYTES - n : k->early_bytes;
    memmove(k->early, k->early + k->early_bytes - kept, kept);
    memcpy(k->early + kept, p, n);
    k->early_bytes = kept + n;
}

static void keep_text(struct keeper *k, char type, const uint8_t *p, size_t n) {
    if (k->state == STARTING) {
        keep_early(k, p, n);
        return;
    }
    if (k->state == RUNNING && !k->current) return; /* its client is gone, and the next cell did not write it */
    size_t fits = k->text_left > FRAME_HEAD ? k->text_left - FRAME_HEAD : 0;
    size_t kept = n < fits ? n : fits;
    struct piece *f = kept ? new_frame(type, p, kept) : NULL;
    if (!f) kept = 0;
    else k->text_left -= f->size;
    k->text_cut += n - kept;
    give_frame(k, k->state == RUNNING ? &k->current->out : &k->between, f);
}

/* Reads once from stdout (0) or stderr (1) of the runner; returns the number of bytes. */
size_t take_text(struct keeper *k, int i, size_t most) {
    static uint8_t buffer[COPY_BYTES];
    ssize_t n = read(k->text[i], buffer, most < sizeof buffer ? most : sizeof buffer);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return 0;
    if (n <= 0) {
        close(k->text[i]);
        k->text[i] = -1;
        return 0;
    }
    keep_text(k, i ? 'e' : 'o', buffer, (size_t)n);
    return (size_t)n;
}

/* Reads the text that has been written until now, and no more: somebody may write as fast as this reads. */
void drain_text(struct keeper *k) {
    for (int i = 0; i < 2; i++) {
        int waiting = 0;
        if (k->text[i] < 0 || ioctl(k->text[i], FIONREAD, &waiting) != 0) continue;
        for (size_t n; waiting > 0 && (n = take_text(k, i, (size_t)waiting)) > 0;) waiting -= (int)n;
    }
}

/* ---- the life of a cell ---- */

void forget_client(struct client *c) {
    close(c->fd);
    drop_all(&c->out);
    *c = (struct client){.fd = -1};
}

void go_idle(struct keeper *k) {
    k->current = NULL;
    free(k->request);
    k->request = NULL;
    k->state = IDLE;
    k->again_at = 0;
    if (k->calm_at) k->calm_at = keeper_now(k) + CALM_US;
    if (!k->deaf) k->kill_at = 0;
    k->text_left = MAX_BETWEEN > k->between.held ? MAX_BETWEEN - k->between.held : 0;
    k->expire_at = keeper_now(k) + k->idle_us;
}

/* Forgets a client. If its cell has reached the runner, the cell is interrupted. */
void client_gone(struct keeper *k, struct client *c) {
    bool was_current = c == k->current;
    forget_client(c);
    if (!was_current) return;
    k->current = NULL;
    if (k->state == TAKING || (k->state == RUNNING && k->request && k->request->at == 0)) go_idle(k);
    else interrupt_cell(k, true);
}

/* Tells the client how much was cut off, if anything was. */
static void tell_cut(struct client *c, const char *what, uint64_t n) {
    char line[40];
    if (n)
        queue_put(&c->out,
                  new_frame('c', line, (size_t)snprintf(line, sizeof line, "%s %llu", what, (unsigned long long)n)));
}

/* Ends the current cell; `last` is the frame that says so, and NULL means that there was no memory for it. */
void end_cell(struct keeper *k, struct piece *last) {
    struct client *c = k->current;
    if (!c) {
        free(last);
    } else if (!last) { /* hanging up says at least that the cell is over */
        forget_client(c);
    } else {
        tell_cut(c, "text", k->text_cut);
        tell_cut(c, "events", k->events_cut);
        queue_put(&c->out, last);
        c->leaving = true;
    }
    k->text_cut = k->events_cut = 0;
    go_idle(k);
}
