/* The keeper of a code context, shared by keeper.c, keeper_cells.c and keeper_runner.c.
 *
 * keeper.c serves the clients and has the loop, keeper_runner.c talks to the runner, keeper_cells.c has what both need:
 * the cell that runs, its text and its end. Each calls only the files after it. */
#ifndef WARREN_KEEPER_H
#define WARREN_KEEPER_H

#include <stdbool.h>
#include <sys/types.h>

#include "context.h"
#include "process.h"

#define COPY_BYTES (64u * 1024)
#define MAX_CLIENTS 72
#define MAX_BETWEEN COPY_BYTES /* text between two cells */
#define EARLY_BYTES 2048u
#define FLUSH_US 10000000u /* how long an ending keeper waits for a client that reads nothing */
#define FRAME_US 1000u     /* a context may give one frame in this time, */
#define BURST_US (2500u * FRAME_US) /* and this many at once after a pause */
#define CHANNEL_BYTES (16u * 1024) /* read from the runner at once: fewer frames than that, even empty ones */

/* One frame, on its way to a client or to the runner. */
struct piece {
    struct piece *next;
    size_t size, at; /* `at`: how much of it was sent already, or received */
    uint8_t bytes[];
};
struct queue {
    struct piece *first, *last;
    size_t held; /* bytes of memory */
};
struct client {
    int fd; /* -1: this place is free */
    uint64_t turn;
    bool leaving; /* its cell has ended; it still has to read the rest */
    struct queue out;
};

enum keeper_state {
    STARTING, /* the runner has not said hello */
    IDLE,     /* no cell */
    TAKING,   /* the request of `current` is being received */
    RUNNING,  /* the cell of `current` runs */
    ENDING    /* the runner has ended; the last clients are being served */
};

struct keeper {
    enum keeper_state state;
    char **options; /* of the command line, up to the NULL at their end */
    uint64_t idle_us, grace_us;
    int listener, signals;

    /* The runner. */
    pid_t runner;
    int channel, text[2]; /* the socket for frames, and its stdout and stderr; -1 once closed */
    bool deaf;            /* the channel was closed by the runner, or broke */
    bool expiring;        /* nobody has used it for `idle_us`: the runner was asked to end */
    const char *reason;   /* why the keeper killed the runner; NULL if it did not */
    int exit_code;
    char early[EARLY_BYTES]; /* the last text before the hello, for whoever wonders why there was none */
    size_t early_bytes;
    struct {
        uint8_t head[FRAME_HEAD];
        size_t head_bytes, left;
        char type;          /* 0: the frame is ignored */
        struct piece *body; /* NULL: the payload is skipped */
    } frame;                /* the one that is coming from the runner */

    /* The clients, and the cell of one of them. */
    struct client clients[MAX_CLIENTS];
    struct client *current; /* of TAKING and RUNNING; NULL if it went away */
    size_t most_clients;
    uint64_t turns;
    struct piece *request; /* being received while TAKING, being sent while RUNNING */
    uint8_t request_head[FRAME_HEAD], order_head[FRAME_HEAD];
    size_t request_head_bytes, order_head_bytes;
    struct queue between; /* text that was written while no cell ran */
    size_t text_left, events_left;
    uint64_t text_cut, events_cut; /* bytes of text and numbers of events that did not fit */
    uint64_t paid_until; /* grows by FRAME_US with every frame of events or text; never before the present */

    /* When to act, by the time of its own; 0: not at all. */
    struct own_time time;
    uint64_t kill_at;    /* kill the runner, which has not ended the cell or itself */
    uint64_t again_at;   /* repeat an interrupt */
    uint64_t calm_at;    /* begin with the next cell */
    uint64_t request_by; /* the next part of a request must have come */
    uint64_t expire_at;
    uint64_t flush_by; /* give up the clients that do not read */
};

static inline uint64_t keeper_now(const struct keeper *k) { return own_now(&k->time); }

/* keeper_cells.c */
struct piece *new_frame(char type, const void *payload, size_t n); /* NULL if there is no memory */
void queue_put(struct queue *q, struct piece *p);                  /* does nothing if `p` is NULL */
void give_frame(struct keeper *k, struct queue *to, struct piece *p); /* the same, and counts the frame */
uint64_t paced_until(const struct keeper *k); /* when the next frame may be read from the runner */
bool client_flush(struct keeper *k, struct client *c);
void forget_client(struct client *c);
void client_gone(struct keeper *k, struct client *c);
void kill_runner(struct keeper *k, const char *why);
void interrupt_cell(struct keeper *k, bool or_kill);
void interrupt_again(struct keeper *k);
size_t take_text(struct keeper *k, int i, size_t most);
void drain_text(struct keeper *k);
void end_cell(struct keeper *k, struct piece *last);
void go_idle(struct keeper *k);

/* keeper_runner.c */
void start_runner(struct keeper *k, char **argv);
size_t read_channel(struct keeper *k);
void send_request(struct keeper *k);
void runner_ended(struct keeper *k, int status);

#endif
