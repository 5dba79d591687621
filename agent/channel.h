/* Between the agent and the worker: descriptors to wait for, channels, and the answers that wait to be sent.
 *
 * loop.c and channel.c. They use wire.h, log.h and process.h, and call back into whatever registered with them. */
#ifndef WARREN_CHANNEL_H
#define WARREN_CHANNEL_H

#include "log.h"
#include "process.h"
#include "wire.h"

/* loop.c: a descriptor that the main loop waits for. `of` is what the handler needs. */
struct watch {
    int fd;
    void (*ready)(struct watch *w, uint32_t events);
    void *of;
};
void watch_add(struct watch *w, int fd, uint32_t events, void (*ready)(struct watch *, uint32_t), void *of);
void watch_set(struct watch *w, uint32_t events);
/* Leaves the descriptor, which is watched for input, to another watch. */
void watch_move(struct watch *from, struct watch *to, void (*ready)(struct watch *, uint32_t), void *of);
void watch_drop(struct watch *w); /* also closes the descriptor */
/* Opens the loop. `writes` is called with the pipes that commands have written to, in the order of the writes. `lost`
 * says that the kernel has not told of all of them. */
void loop_open(void (*writes)(const int *fds, size_t n, bool lost));
/* Waits for one descriptor and calls its handler; -1 waits for ever. */
void loop_wait(int timeout_ms);
/* Reaps the children that have ended. */
void loop_reap(void);
/* Reads the signal queue now: writes to pipes, ends of children. */
void signals_take(void);

/* channel.c: one request of the worker's that is not answered completely yet. */
struct command;
struct job;
struct channel {
    struct channel *next;
    uint32_t id, flags;
    struct command *command; /* it reads from this command or writes to it, or … */
    struct command *kill_of; /* … it waits until the last process of that command has ended, or … */
    struct job *job; /* … it belongs to this file operation, or … */
    bool kill_all; /* … it waits until everything but the agent has ended */
    void (*on_close)(struct command *c); /* called with `command`, if there is one */
    struct cursor cursor;
    uint64_t credit; /* bytes of output that the worker is ready to take */
    uint32_t stdin_used; /* bytes received and not yet granted back */
    bool mute; /* only writes to the command, does not read from it */
};
struct channel *channel_open(uint32_t id); /* NULL, after sending an error, if the id is in use */
struct channel *channel_find(uint32_t id);
void channel_close(struct channel *ch);
struct channel *channel_first(void);
/* Moves the channel that did not get its turn to the front, so that a busy channel cannot starve the others. */
void channel_resume_at(struct channel *first);

extern struct buf outbox;
extern bool outbox_woken; /* there may be something to send; connection.c resets it */
void outbox_wake(void);
bool outbox_has_room(void);
void send_error(uint32_t channel, enum code code, const char *format, ...) __attribute__((format(printf, 3, 4)));
void send_done(uint32_t channel);
void send_credit(uint32_t channel, uint32_t n);

#endif
