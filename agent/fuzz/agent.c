/* Fuzzes what the agent reads from others. The first byte of the input says what:
 *
 *   0  the connection to the worker: frames and requests, with channels that open and close (connection.c)
 *   1  /etc/passwd and /etc/group, which root inside may write (users.c)
 *   2  the state that a shell leaves for the next one (shell.c)
 *   3  members of an archive (tree.c)
 *   4  the output that is kept: what is read must be what was added, at its offset (log.c)
 *
 * The files are compiled into this one, with functions of this one in the place of the kernel's where the input decides
 * what they return. Commands and file jobs are not started: their requests are parsed, and their channels live as long
 * as the input says.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <limits.h>
#include <stdbool.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "input.h"

#define WORKER 1000 /* no descriptor of this process */

static int fuzz_open(const char *path, int flags);
static ssize_t fuzz_recv(int fd, void *to, size_t n, int flags);
static ssize_t fuzz_send(int fd, const void *p, size_t n, int flags);
static int fuzz_setsockopt(int fd, int level, int option, const void *p, socklen_t n);

#define recv fuzz_recv
#define send fuzz_send
#define setsockopt fuzz_setsockopt
#include "../connection.c"
#define open fuzz_open
#include "../users.c"
#undef open
#undef MAX_NAMES
#include "../shell.c"
#include "../tree.c"

/* ---- the connection ---- */

static uint32_t watched;

void watch_add(struct watch *w, int fd, uint32_t events, void (*ready)(struct watch *, uint32_t), void *of) {
    *w = (struct watch){fd, ready, of};
    watched = events;
}
void watch_set(struct watch *w, uint32_t events) {
    promise(w->fd == WORKER);
    watched = events;
}
void watch_drop(struct watch *w) {
    promise(w->fd == WORKER);
    w->fd = -1;
}

static int fuzz_setsockopt(int fd, int level, int option, const void *p, socklen_t n) {
    promise(fd == WORKER && level == SOL_SOCKET && option == SO_SNDBUF && p && n == sizeof(int));
    return 0;
}

static ssize_t fuzz_recv(int fd, void *to, size_t n, int flags) {
    promise(fd == WORKER && n >= READ_BYTES && flags == 0);
    size_t size = take_byte();
    if (size == 0) return input_left == 0 ? 0 : (errno = EAGAIN, -1);
    if (size < 128) return (ssize_t)take_bytes(to, size);
    if ((size - 127) * 1024 < n) n = (size - 127) * 1024;
    memset(to, take_byte(), n);
    return (ssize_t)n;
}

/* Each call takes two bits: it sends all, a part, or nothing now. */
static uint8_t how_to_send;

static ssize_t fuzz_send(int fd, const void *p, size_t n, int flags) {
    promise(fd == WORKER && p && n > 0 && flags == MSG_NOSIGNAL);
    uint8_t how = how_to_send & 3;
    how_to_send = (uint8_t)(how_to_send >> 2 | how << 6);
    if (how < 2) return (ssize_t)(how && n > 1 ? n / 2 : n);
    errno = how_to_send == 255 ? EPIPE : EAGAIN;
    return -1;
}

/* Parses a request; `offset` is what it says under this name, and here how much output its command has. */
static bool parses(struct fields f, uint64_t *offset) {
    struct request r = request_parse(f);
    bool good = !r.bad;
    *offset = r.offset;
    promise(!good || (strlen(r.id) <= 64 && r.signal <= 64 && r.rows <= 65535 && r.cols <= 65535));
    for (size_t i = 0; i < r.argc; i++) promise(r.argv[i]);
    promise(!r.argv[r.argc] && !r.env[r.envc] && !r.base_env[r.base_envc]);
    request_free(&r);
    return good;
}

/* A command that belongs to one channel. `input` is what it was sent, and of its log only `total` is used: the bytes of
 * output that are left. */
static void close_command(struct command *c) {
    buf_free(&c->input);
    free(c);
}

void command_start(uint32_t channel, struct fields f) {
    uint64_t output;
    struct channel *ch = parses(f, &output) ? channel_open(channel) : NULL;
    if (!ch) return;
    ch->command = calloc(1, sizeof *ch->command);
    ch->on_close = close_command;
    if (!ch->command) fail("memory");
    ch->command->log.total = output % (1u << 20);
    frame_close(&outbox, frame_open(&outbox, RESPONSE_STARTED, channel));
    outbox_wake();
}
void command_attach(uint32_t channel, struct fields f) { command_start(channel, f); }
void command_control(uint32_t channel, struct fields f) {
    struct channel *ch = channel_find(channel);
    uint64_t offset;
    if (parses(f, &offset)) send_done(channel);
    else if (ch && !ch->job) channel_close(ch);
}
void command_list(uint32_t channel) { send_done(channel); }
void command_stdin(struct command *c, struct channel *ch, const uint8_t *p, size_t n) {
    buf_add(&c->input, p, n);
    send_credit(ch->id, (uint32_t)n);
}
void command_stdin_eof(struct command *c) { buf_free(&c->input); }
bool command_send_output(struct channel *ch) {
    static const uint8_t text[16384];
    uint64_t *left = &ch->command->log.total, n = *left < sizeof text ? *left : sizeof text;
    promise(ch->credit <= 1u << 30);
    if (n > ch->credit) n = ch->credit;
    if (n == 0) return false;
    size_t mark = frame_open(&outbox, RESPONSE_OUTPUT, ch->id);
    buf_add(&outbox, text, n);
    frame_close(&outbox, mark);
    ch->credit -= n;
    return (*left -= n) > 0 && ch->credit > 0;
}
void command_resume(struct command *c) { promise(c); }
bool command_ending_all(void) { return false; }

struct job { uint64_t bytes; };

void job_start(uint32_t channel, struct fields f, bool ending) {
    struct file_request r = {0};
    char *user = NULL;
    bool good = file_request_parse(f, &r, &user) && !ending;
    promise(!good || (r.path[0] && r.op >= OP_READ && r.op <= LAST_FILE_OP && r.mode <= 07777));
    promise(r.glob_count <= MAX_GLOBS && r.metadata_count <= MAX_METADATA);
    file_request_free(&r);
    free(user);
    struct channel *ch = good ? channel_open(channel) : NULL;
    if (ch && !(ch->job = calloc(1, sizeof *ch->job))) fail("memory");
}
void job_data(struct job *j, const uint8_t *p, size_t n) { j->bytes += n ? n + p[n - 1] : 0; }
void job_eof(struct job *j) { j->bytes = 0; }
void job_abandon(struct job *j) { free(j); }
void job_credit(struct job *j) { promise(j); }

static void fuzz_connection(void) {
    connection_take(WORKER);
    greeted = take_byte() & 1;
    how_to_send = take_byte();
    while (input_left > 0 && worker.fd >= 0) {
        uint8_t event = take_byte();
        if (event == 255) connection_take(WORKER);
        else worker.ready(&worker, event & 1 ? watched : EPOLLIN);
        connection_flush();
    }
    disconnect();
    promise(!channel_first() && !inbox.p && !outbox.p);
    outbox_woken = false;
}

/* ---- files of the image ---- */

static int file_of(const void *p, size_t n) {
    int fd = memfd_create("fuzz", MFD_CLOEXEC);
    if (fd < 0 || !write_all(fd, p, n) || lseek(fd, 0, SEEK_SET) != 0) fail("memfd");
    return fd;
}

static int fuzz_open(const char *path, int flags) {
    promise(strncmp(path, "/etc/", 5) == 0 && flags & O_NONBLOCK);
    return file_of(input, input_left);
}

static void fuzz_users(void) {
    char name[40] = "";
    struct user u;
    settings.uid_low = take_byte() & 1;
    settings.uid_high = 65534;
    settings.agent_uid = 65000;
    take_bytes(name, take_byte() % sizeof name);
    name[sizeof name - 1] = 0;
    if (look_up(name, &u)) {
        promise(u.uid >= settings.uid_low && u.uid <= settings.uid_high && u.uid != settings.agent_uid);
        promise(u.gid >= settings.uid_low && u.gid <= settings.uid_high && u.gid != settings.agent_uid);
        promise(u.group_count >= 1 && u.group_count <= 32 && u.groups[0] == u.gid && u.home[0] == '/');
        for (int i = 1; i < u.group_count; i++)
            promise(u.groups[i] >= settings.uid_low && u.groups[i] <= settings.uid_high);
    }
    struct names names = {.path = "/etc/group"};
    for (unsigned long id = 0; id < 3; id++) promise(strlen(name_of(&names, id * 50)) < 64);
}

static void fuzz_shell(void) {
    static char *env[] = {"A=1", "B=it's", NULL}, *base[] = {"C=2", NULL};
    struct shell_line s;
    uid_t uid = take_byte() & 1;
    if (!shell_prepare(&s, uid, "true", base, env, true, take_byte() & 1)) fail("shell");
    if (!write_all(s.state_fd, input, input_left)) fail("state");
    shell_done(&s, take_byte() & 1);
    shell_free(&s);
    const struct state *state = find_state(uid);
    promise(!state || (state->exports && (!state->cwd || state->cwd[0] == '/')));
    for (struct state *next; states; states = next) {
        next = states->next;
        free(states->exports);
        free(states->cwd);
        free(states);
    }
}

static void fuzz_archive(void) {
    int fd = file_of(input, input_left);
    bool end = false, good = true;
    while (good && !end) {
        struct member m = {0};
        good = read_member(fd, &m, &end);
        promise(!good || (m.name && strlen(m.name) < PATH_MAX));
        free(m.name);
        free(m.target);
    }
    close(fd);
}

/* ---- the log ---- */

static void check_reader(const struct log *l, uint64_t from) {
    static uint8_t out[5000];
    struct cursor c;
    uint8_t stream;
    uint64_t at = 0, last = 0;
    log_seek(l, &c, from);
    for (size_t n, most;; last = at + n) {
        most = input_left ? 1 + take_byte() * 19u : sizeof out; /* byte by byte only as long as the input says so */
        if ((n = log_next(l, &c, out, most, &stream, &at)) == 0) break;
        promise(at >= last && at + n <= l->total && stream >= 1 && stream <= 3);
        promise(pattern_equals(out, at, n));
    }
    promise(from >= l->total || l->keep < 256 || last == l->total);
}

static void fuzz_log(void) {
    static uint8_t in[255 * 16];
    struct log l;
    log_init(&l, take_byte() * 16u + (take_byte() & 1 ? 200000 : 0));
    while (input_left > 0) {
        uint8_t what = take_byte();
        size_t n = take_byte() * (what & 4 ? 16u : 1u);
        pattern_copy(in, l.total, n);
        if (what & 3) log_add(&l, (enum stream)(what & 3), in, n);
        if (what & 8) check_reader(&l, l.total ? (n * 257 + what) % (l.total + 10) : 0);
        if (what & 16) log_release_pages(&l, what & 32);
    }
    check_reader(&l, 0);
    log_free(&l);
}

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n) {
    static void (*const parts[])(void) = {fuzz_connection, fuzz_users, fuzz_shell, fuzz_archive, fuzz_log};
    input = p;
    input_left = n;
    uint8_t part = take_byte();
    if (part < sizeof parts / sizeof *parts) parts[part]();
    return 0;
}
