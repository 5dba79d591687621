/* The way to an agent whose socket the worker cannot reach: warren-agent relay SOCKET
 *
 * The worker reaches the agent of a sandbox on another machine through whatever runs programs there. It starts this
 * program, writes to its stdin and reads its stdout, both over a network that may break at any moment. The relay keeps
 * running while the network is away, and repeats what may have been lost.
 *
 *   worker ══ network ══ stdin, stdout ══ relay ══ socket ══ agent
 *
 * stdin carries frames: a type u8, an offset u64, a length u32 (little endian), and as many bytes.
 *   'D'  bytes for the agent; the offset is that of the first byte. Bytes that were passed on before are skipped: a
 *        worker that does not know whether a frame has arrived repeats it.
 *   'A'  the worker has taken the agent's bytes up to the offset. No more than WINDOW bytes are sent ahead of that.
 *   'R'  repeat: the frame holds a mark of the worker's choice. The relay writes the mark to stdout, and after it all
 *        bytes of the agent from the offset on. Before the first mark it writes nothing. A worker that has lost its
 *        connection sends a new mark, and skips what it reads before that. Each mark is greater than the one before;
 *        one that is not was overtaken on its way, and is ignored.
 *
 * It ends when the agent closes the socket (a worker has connected in another way), or when stdin ends.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "agent.h"
#include "wire.h"

#define WINDOW (512u * 1024)
#define FRAME_BYTES 13u
#define MAX_DATA (1024u * 1024)
#define MARK_BYTES 24u

static uint8_t
    window[WINDOW]; /* a ring of the bytes from the agent that the worker may ask for again, by their offset */
static uint64_t taken, come, written,
    given; /* offsets of bytes from the agent: acknowledged, read, written to stdout; of bytes to the agent: sent */
static uint8_t mark[MARK_BYTES]; /* the last mark; every mark is greater than these zeros */
static bool marked;
static uint8_t in[FRAME_BYTES + MAX_DATA]; /* what has come from the worker and is not a whole frame yet */
static size_t used;
static int agent = -1;

static void leave(const char *why) {
    dprintf(2, "warren-relay: %s\n", why);
    _exit(1);
}

static void put(int fd, const uint8_t *p, size_t n) {
    while (n > 0) {
        ssize_t done = write(fd, p, n);
        if (done < 0 && errno == EINTR) continue;
        if (done <= 0) leave(fd == 1 ? "nobody reads" : "the agent is gone");
        p += done;
        n -= (size_t)done;
    }
}

static size_t at_most(uint64_t wanted, uint64_t most) { return (size_t)(wanted < most ? wanted : most); }

static void take_from_agent(void) {
    size_t at = come % WINDOW, room = at_most(WINDOW - (come - taken), WINDOW - at);
    ssize_t n = read(agent, window + at, room);
    if (n < 0 && (errno == EINTR || errno == EAGAIN)) return;
    if (n <= 0) leave("the agent has closed the connection");
    come += (uint64_t)n;
}

static void write_out(void) {
    while (marked && written < come) {
        size_t at = written % WINDOW, n = at_most(come - written, WINDOW - at);
        put(1, window + at, n);
        written += n;
    }
}

static void handle(char kind, uint64_t offset, const uint8_t *p, size_t n) {
    if (kind == 'D') {
        if (offset > given) leave("bytes are missing");
        if (offset + n <= given) return;
        size_t known = (size_t)(given - offset);
        put(agent, p + known, n - known);
        given = offset + n;
    } else if (kind == 'A' && n == 0) {
        if (offset > written) leave("more is acknowledged than was sent");
        if (offset > taken) taken = offset;
    } else if (kind == 'R' && n == MARK_BYTES) {
        if (memcmp(p, mark, MARK_BYTES) <= 0) return;
        if (offset < taken || offset > written) leave("what is wanted again is not kept");
        taken = written = offset;
        marked = true;
        memcpy(mark, p, n);
        put(1, p, n);
    } else leave("that is no frame");
}

/* Reads once from stdin and handles the whole frames; the rest of a frame is kept for the next time. */
static void take_from_worker(void) {
    ssize_t n = read(0, in + used, sizeof in - used);
    if (n < 0 && errno == EINTR) return;
    if (n <= 0) leave("stdin has ended");
    used += (size_t)n;
    size_t at = 0;
    while (used - at >= FRAME_BYTES) {
        uint32_t length = get_u32(in + at + 9);
        uint64_t offset = get_u64(in + at + 1);
        if (length > MAX_DATA) leave("a frame is too long");
        if (used - at < FRAME_BYTES + length) break;
        handle((char)in[at], offset, in + at + FRAME_BYTES, length);
        at += FRAME_BYTES + length;
    }
    memmove(in, in + at, used -= at);
}

static void take_turn(void) {
    struct pollfd p[2] = {{0, POLLIN, 0}, {come - taken < WINDOW ? agent : -1, POLLIN, 0}};
    if (poll(p, 2, -1) < 0 && errno != EINTR) leave("poll");
    if (p[0].revents) take_from_worker();
    if (p[1].revents) take_from_agent();
    write_out();
}

int relay_main(int argc, char **argv) {
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    if (argc != 3 || strlen(argv[2]) >= sizeof a.sun_path) leave("it takes the path of the agent's socket");
    memcpy(a.sun_path, argv[2], strlen(argv[2]));
    prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
    signal(SIGPIPE, SIG_IGN);
    agent = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    for (int tries = 0; connect(agent, (struct sockaddr *)&a, sizeof a) != 0; tries++) { /* the agent may be starting */
        if ((errno != ENOENT && errno != ECONNREFUSED) || tries == 250) leave(strerror(errno));
        usleep(20 * 1000);
    }
    for (;;) take_turn();
}
