/* Fuzzes relay.c: a worker that sends anything, an agent that answers at any moment.
 *
 * relay.c is compiled into this file with functions of this one in the place of the kernel's. The input decides what
 * each of them returns: which descriptor is ready, how many bytes come. What the relay writes is compared with what the
 * agent has said.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "input.h"

#define AGENT 7
#define MANY 64 /* at this many bytes from the worker the input says only how much to repeat */

static int fuzz_poll(struct pollfd *p, nfds_t n, int timeout);
static ssize_t fuzz_read(int fd, void *to, size_t n);
static ssize_t fuzz_write(int fd, const void *p, size_t n);
static void fuzz_exit(int code) __attribute__((noreturn));

#define poll fuzz_poll
#define read fuzz_read
#define write fuzz_write
#define _exit fuzz_exit
#define dprintf(fd, ...) ((void)snprintf(NULL, 0, __VA_ARGS__))
#include "../relay.c"
#undef poll
#undef read
#undef write
#undef _exit
#undef dprintf

static jmp_buf end_of_run;
static uint64_t said, heard,
    passed; /* bytes that the agent has said, offset of the next on stdout, bytes it was given */

static void fuzz_exit(int code) {
    promise(code == 1);
    longjmp(end_of_run, 1);
}

static int fuzz_poll(struct pollfd *p, nfds_t n, int timeout) {
    (void)timeout;
    promise(n == 2 && taken <= written && written <= come && come - taken <= WINDOW && come == said);
    if (input_left == 0) longjmp(end_of_run, 1);
    uint8_t which = take_byte();
    for (nfds_t i = 0; i < n; i++) p[i].revents = p[i].fd >= 0 && which >> i & 1 ? POLLIN : 0;
    return which & 3;
}

/* One byte says how many come; from MANY on they are repetitions of the next one. */
static ssize_t from_worker(uint8_t *to, size_t n) {
    promise(n > 0);
    size_t size = take_byte();
    if (size < MANY) return (ssize_t)take_bytes(to, size < n ? size : n);
    size = (size - MANY + 1) * 8192;
    if (size > n) size = n;
    memset(to, take_byte(), size);
    return (ssize_t)size;
}

static ssize_t fuzz_read(int fd, void *to, size_t n) {
    uint8_t how = take_byte();
    if (how == 255) {
        errno = EINTR;
        return -1;
    }
    if (fd == 0) return from_worker(to, n);
    promise(fd == AGENT && n > 0 && n <= WINDOW);
    size_t size = n * how / 254;
    pattern_copy(to, said, size);
    said += size;
    return (ssize_t)size;
}

static ssize_t fuzz_write(int fd, const void *p, size_t n) {
    const uint8_t *bytes = p;
    promise(n > 0);
    if (fd == AGENT) {
        if (take_byte() == 255) return -1;
        passed += n;
        return (ssize_t)n;
    }
    promise(fd == 1);
    if (bytes >= in && bytes < in + sizeof in) { /* a mark; before it in its frame is the offset from which all comes */
        promise(n == MARK_BYTES);
        heard = get_u64(bytes - FRAME_BYTES + 1);
        return (ssize_t)n;
    }
    if (n > 1 && take_byte() & 1) n /= 2;
    promise(pattern_equals(bytes, heard, n));
    heard += n;
    return (ssize_t)n;
}

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n) {
    input = p;
    input_left = n;
    taken = come = written = given = said = heard = passed = 0;
    used = 0;
    marked = false;
    agent = AGENT;
    memset(mark, 0, sizeof mark);
    if (setjmp(end_of_run) == 0)
        for (;;) {
            take_turn();
            promise(passed == given);
        }
    return 0;
}
