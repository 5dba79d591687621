/* The keeper's runner: how it is started, the frames that it sends, and what happens when it ends.
 *
 * The runner has descriptors 0 to 3: /dev/null, two pipes for text, and a socket for frames. User code runs in the same
 * process and can write anything to them. So a frame of an unknown type, or one that is too long, ends the runner; a
 * frame that does not belong to a cell is ignored; and payloads that are not wanted are skipped as they come, not kept.
 *
 * Before each frame the text that was written until then is read: so text keeps its place before results.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "keeper.h"

#define MAX_END (1024u * 1024)
#define MAX_HELLO 4096u
#define MAX_VARIABLES (256u * 1024)
#define MAX_SAID (32u * 1024 * 1024) /* the longest frame that is read, be it kept or skipped */
#define DEAF_US 1000000u             /* how long a runner may live after it has closed its socket */
#define NOT_READY 1

/* ---- start ---- */

static void become_runner(int fds[4], pid_t keeper, char **argv) {
    sigset_t none;
    sigemptyset(&none);
    setsid();
    prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
    if (getppid() != keeper) _exit(1);
    for (int i = 0; i < 4; i++) /* away from 0 to 3 first, so that dup2 overwrites none that is still needed */
        if ((fds[i] = fcntl(fds[i], F_DUPFD_CLOEXEC, 10)) < 0) _exit(1);
    for (int i = 0; i < 4; i++) dup2(fds[i], i);
    for (int s = 1; s < 65; s++) signal(s, SIG_DFL);
    sigprocmask(SIG_SETMASK, &none, NULL);
    execvp(argv[0], argv);
    int error = errno;
    dprintf(2, "%s: %s\n", argv[0], error == ENOENT && !strchr(argv[0], '/') ? "command not found" : strerror(error));
    _exit(error == ENOENT || error == ENOTDIR ? 127 : 126);
}

void start_runner(struct keeper *k, char **argv) {
    int pair[2], out[2], err[2], nothing = open("/dev/null", O_RDONLY | O_CLOEXEC);
    pid_t keeper = getpid();
    if (nothing < 0 || socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0 || pipe2(out, O_CLOEXEC) != 0 ||
        pipe2(err, O_CLOEXEC) != 0)
        fail("pipes");
    k->runner = fork();
    if (k->runner == 0) become_runner((int[]){nothing, out[1], err[1], pair[1]}, keeper, argv);
    if (k->runner < 0) fail("fork");
    int theirs[] = {nothing, out[1], err[1], pair[1]}, ours[] = {pair[0], out[0], err[0]};
    for (size_t i = 0; i < 4; i++) close(theirs[i]);
    for (size_t i = 0; i < 3; i++) fcntl(ours[i], F_SETFL, fcntl(ours[i], F_GETFL) | O_NONBLOCK);
    k->channel = pair[0], k->text[0] = out[0], k->text[1] = err[0];
}

/* ---- its frames ---- */

static void broken_protocol(struct keeper *k) {
    k->frame.type = 0;
    kill_runner(k, "protocol");
}

/* Writes the variables that --env names as NAME=VALUE, each followed by a NUL; if they are too long together, none.
 * False if nobody reads them. */
static bool tell_variables(struct keeper *k) {
    size_t n = 0;
    struct piece *told = new_frame('v', NULL, MAX_VARIABLES);
    if (!told) return true;
    for (char **o = k->options; *o; o += 2) {
        const char *value = strcmp(*o, "--env") == 0 ? getenv(o[1]) : NULL;
        if (value)
            n += (size_t)snprintf((char *)told->bytes + FRAME_HEAD + n, MAX_VARIABLES - n, "%s=%s", o[1], value) + 1;
        if (n >= MAX_VARIABLES) break;
    }
    frame_head(told->bytes, 'v', n);
    bool written = n == 0 || n >= MAX_VARIABLES || write_all(1, told->bytes, FRAME_HEAD + n);
    free(told);
    return written;
}

static bool tell_directory(void) {
    char path[PATH_MAX];
    uint8_t head[FRAME_HEAD];
    if (!getcwd(path, sizeof path)) return true;
    frame_head(head, 'd', strlen(path));
    return write_all(1, head, sizeof head) && write_all(1, path, strlen(path));
}

/* The runner is ready: tells this, and what it runs with, to whoever started the keeper. */
static void hear_hello(struct keeper *k) {
    bool written = tell_directory() && tell_variables(k) && write_all(1, k->frame.body->bytes, k->frame.body->size);
    free(k->frame.body);
    k->early_bytes = 0;
    if (!written) kill_runner(k, NULL);
    go_idle(k);
}

static void frame_ended(struct keeper *k) {
    struct piece *body = k->frame.body;
    if (body || k->frame.type == 'x') drain_text(k);
    k->frame.head_bytes = 0;
    if (k->frame.type == 'h') hear_hello(k);
    else if (k->frame.type == 'x' && k->runner > 0) end_cell(k, body ? body : new_frame('x', "{}", 2));
    else if (k->frame.type == 'r' && k->current) give_frame(k, &k->current->out, body);
    else free(body);
    k->frame.type = 0;
    k->frame.body = NULL;
}

/* Whether the payload of the frame is to be kept. Only frames between the request of a cell and its end belong to
 * it. */
static bool is_wanted(struct keeper *k, size_t size) {
    if (k->frame.type == 'h') return true;
    if (!k->current) return false;
    if (k->frame.type == 'x') return size <= FRAME_HEAD + MAX_END;
    if (size > k->events_left || paced_until(k) > keeper_now(k) + (k->kill_at ? 0 : BURST_US)) {
        k->events_cut++;
        return false;
    }
    k->events_left -= size;
    return true;
}

static void frame_begun(struct keeper *k) {
    char type = (char)k->frame.head[0];
    size_t length = frame_length(k->frame.head);
    bool known = type == 'h' || type == 'r' || type == 'x';
    if (!known || length > MAX_SAID || (k->state == STARTING && (type != 'h' || length > MAX_HELLO))) {
        broken_protocol(k);
        return;
    }
    k->frame.left = length;
    k->frame.body = NULL;
    k->frame.type = type;
    if (type == 'h' ? k->state != STARTING : k->state != RUNNING || k->request) k->frame.type = 0;
    else if (is_wanted(k, FRAME_HEAD + length)) {
        k->frame.body = new_frame(type, NULL, length);
        if (k->frame.body) k->frame.body->at = FRAME_HEAD;
        else if (type == 'h') broken_protocol(k);
        else if (type == 'r') k->events_cut++;
    }
    if (length == 0) {
        if (k->frame.body) k->frame.body->at = 0;
        frame_ended(k);
    }
}

static void read_frames(struct keeper *k, const uint8_t *p, size_t n) {
    while (n > 0 && !k->reason) {
        if (k->frame.head_bytes < FRAME_HEAD) {
            k->frame.head[k->frame.head_bytes++] = *p++;
            n--;
            if (k->frame.head_bytes == FRAME_HEAD) frame_begun(k);
            continue;
        }
        size_t part = n < k->frame.left ? n : k->frame.left;
        if (k->frame.body) {
            memcpy(k->frame.body->bytes + k->frame.body->at, p, part);
            k->frame.body->at += part;
        }
        p += part, n -= part, k->frame.left -= part;
        if (k->frame.left > 0) continue;
        if (k->frame.body) k->frame.body->at = 0;
        frame_ended(k);
    }
}

/* Reads frames of the runner once; returns the number of bytes. */
size_t read_channel(struct keeper *k) {
    static uint8_t buffer[CHANNEL_BYTES];
    ssize_t n = recv(k->channel, buffer, sizeof buffer, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return 0;
    if (n > 0) {
        read_frames(k, buffer, (size_t)n);
        return (size_t)n;
    }
    close(k->channel); /* the runner is ending, or has closed its side and cannot be heard any more */
    k->channel = -1;
    k->deaf = true;
    if (!k->kill_at) k->kill_at = keeper_now(k) + DEAF_US;
    return 0;
}

void send_request(struct keeper *k) {
    ssize_t n = send(k->channel, k->request->bytes + k->request->at, k->request->size - k->request->at,
                     MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0) return; /* if the runner is gone, read_channel finds out */
    if ((k->request->at += (size_t)n) < k->request->size) return;
    free(k->request);
    k->request = NULL;
}

/* ---- its end ---- */

static struct piece *lost_frame(struct keeper *k, int status) {
    char text_of[32];
    int n = snprintf(text_of, sizeof text_of, WIFSIGNALED(status) ? "signal %d" : "exit %d",
                     WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
    return k->reason ? new_frame('l', k->reason, strlen(k->reason)) : new_frame('l', text_of, (size_t)n);
}

void runner_ended(struct keeper *k, int status) {
    k->runner = 0;
    /* Reads what it has said before it ended, and no more than that: a child may hold the socket open and go on. The end
     * of the cell is not taken from there: the context is lost, and the client of this cell is to know. */
    for (int rounds = 0; rounds < 64 && k->channel >= 0 && read_channel(k) > 0; rounds++) {}
    drain_text(k);
    k->exit_code = k->expiring ? 0 : WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    if (k->state == STARTING) {
        if (k->early_bytes && write(2, k->early, k->early_bytes) < 0) {}
        dprintf(2, "%swarren-context: the runner ended before it was ready\n",
                k->early_bytes && k->early[k->early_bytes - 1] != '\n' ? "\n" : "");
        if (k->exit_code == 0) k->exit_code = NOT_READY;
    }
    if (k->state == RUNNING) end_cell(k, lost_frame(k, status));
    k->state = ENDING;
    close(k->listener);
    k->listener = -1;
    for (size_t i = 0; i < MAX_CLIENTS; i++)
        if (k->clients[i].fd >= 0 && !k->clients[i].leaving) forget_client(&k->clients[i]);
    k->current = NULL;
    k->flush_by = keeper_now(k) + FLUSH_US;
}
