/* Carries the directory and the exported variables from one shell command to the next.
 *
 * No shell stays alive for that (a stuck one would block the sandbox): each command is a shell of its own, which reads
 * the state of the one before when it starts and writes its own state when it ends. Both go through one anonymous
 * file, descriptor 60 of the shell:
 *
 *     the script it reads first │ what it must put back │ NUL │ its directory │ NUL │ its exports
 *
 * The script restores the exports, sets the variables of this command, and sets a trap on EXIT that writes the rest.
 * Only the user who wrote a state ever evaluates it.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "command.h"

#define MAX_STATE (1024u * 1024)
#define MAX_ARGUMENT (120u * 1024)
#define STATE_PATH "/proc/self/fd/60"
#define TEXT_PATH "/proc/self/fd/59"

/* There is a state for each user, because no user may evaluate what another wrote. */
struct state {
    struct state *next;
    uid_t uid;
    char *exports, *cwd;
};
static struct state *states;

static struct state *find_state(uid_t uid) {
    for (struct state *s = states; s; s = s->next)
        if (s->uid == uid) return s;
    return NULL;
}

static int anonymous_file(const char *name, const void *p, size_t n) {
    int fd = memfd_create(name, MFD_CLOEXEC);
    if (fd >= 0 && !write_all(fd, p, n)) {
        close(fd);
        return -1;
    }
    return fd;
}

static void add(struct buf *b, const char *s) { buf_add(b, s, strlen(s)); }

static void add_quoted(struct buf *b, const char *s) {
    buf_add(b, "'", 1);
    for (; *s; s++) {
        if (*s == '\'') add(b, "'\\''");
        else buf_add(b, s, 1);
    }
    buf_add(b, "'", 1);
}

static void add_names(struct buf *b, char **env) {
    for (char **e = env; *e; e++) {
        buf_add(b, " ", 1);
        buf_add(b, *e, strcspn(*e, "="));
    }
}

/* The worker has checked the names, but here they become part of a script: check them again. */
static bool names_are_plain(char **env) {
    for (char **e = env; *e; e++) {
        size_t n = strspn(*e, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_0123456789");
        if (n == 0 || (*e)[n] != '=' || ((*e)[0] >= '0' && (*e)[0] <= '9')) return false;
    }
    return true;
}

static void write_script(struct buf *b, const struct state *state, char **own_env, bool bash) {
    add(b, bash ? "unset BASH_ENV\n" : "");
    if (state) add(b, state->exports);
    buf_add(b, "\n", 1);
    if (*own_env && bash) {
        add(b, "declare -p");
        add_names(b, own_env);
        add(b, " >&60 2>/dev/null\n");
    }
    for (char **e = own_env; *e; e++) {
        size_t n = strcspn(*e, "=");
        add(b, "export ");
        buf_add(b, *e, n + 1);
        add_quoted(b, *e + n + 1);
        buf_add(b, "\n", 1);
    }
    add(b, "trap '{ set +x; printf \"\\0%s\\0\" \"$PWD\"; ");
    if (*own_env) {
        add(b, "unset -v");
        add_names(b, own_env);
        add(b, "; ");
    }
    if (bash) add(b, "export -n PWD OLDPWD SHLVL _; ");
    /* In dash a redirection cannot name a descriptor above 9. */
    add(b, bash ? "export -p; } >&60 2>/dev/null' EXIT\n" : "export -p; } >>" STATE_PATH " 2>/dev/null' EXIT\n");
}

static char *dup_or_fail(const char *s) {
    char *copy = strdup(s);
    if (!copy) fail("memory");
    return copy;
}

static size_t count(char **list) {
    size_t n = 0;
    while (list[n]) n++;
    return n;
}

static char **concat_lists(char **a, char **b, const char *more) {
    size_t na = count(a), nb = count(b), n = 0;
    char **all = malloc((na + nb + 2) * sizeof *all);
    if (!all) fail("memory");
    for (size_t i = 0; i < na; i++) all[n++] = dup_or_fail(a[i]);
    for (size_t i = 0; i < nb; i++) all[n++] = dup_or_fail(b[i]);
    if (more) all[n++] = dup_or_fail(more);
    all[n] = NULL;
    return all;
}

static bool prepare_state(struct shell_line *s, char **own_env, bool bash) {
    struct buf script = {0};
    write_script(&script, find_state(s->uid), own_env, bash);
    s->script_bytes = buf_used(&script);
    s->state_fd = anonymous_file("state", buf_head(&script), s->script_bytes);
    buf_free(&script);
    return s->state_fd >= 0;
}

bool shell_prepare(struct shell_line *s, uid_t uid, const char *text, char **base_env, char **own_env, bool carry,
                   bool keep_cwd) {
    static char *nothing[] = {NULL};
    bool bash = access("/bin/bash", X_OK) == 0 || access("/usr/bin/bash", X_OK) == 0;
    memset(s, 0, sizeof *s);
    s->state_fd = s->text_fd = -1;
    s->uid = uid;
    const struct state *state = find_state(uid);
    if (carry && (!names_are_plain(own_env) || !prepare_state(s, own_env, bash))) return false;
    if (carry && !keep_cwd && state && state->cwd) s->cwd = dup_or_fail(state->cwd);
    bool restored = carry && state;
    s->env = concat_lists(restored ? nothing : base_env, carry && bash ? nothing : own_env,
                          carry && bash ? "BASH_ENV=" STATE_PATH : NULL);
    if (strlen(text) > MAX_ARGUMENT) {
        s->text_fd = anonymous_file("text", text, strlen(text));
        if (s->text_fd < 0) return false;
        text = ". " TEXT_PATH;
    }
    struct buf line = {0};
    if (carry && !bash) add(&line, ". " STATE_PATH "\n");
    buf_add(&line, text, strlen(text) + 1);
    char *program[] = {bash ? "bash" : "sh", "-c", (char *)buf_head(&line), NULL};
    s->argv = concat_lists(program, nothing, NULL);
    buf_free(&line);
    return true;
}

static void keep_state(uid_t uid, char *exports, const char *cwd) {
    struct state *state = find_state(uid);
    if (!state) {
        state = calloc(1, sizeof *state);
        if (!state) fail("memory");
        state->uid = uid;
        state->next = states;
        states = state;
    }
    free(state->exports);
    state->exports = exports;
    if (!cwd) return;
    free(state->cwd);
    state->cwd = dup_or_fail(cwd);
}

/* Reads the state that the shell wrote. Malformed state is ignored. */
void shell_done(struct shell_line *s, bool keep_cwd) {
    struct stat st;
    if (s->state_fd < 0 || fstat(s->state_fd, &st) != 0) return;
    size_t size = (size_t)st.st_size;
    if (size <= s->script_bytes || size - s->script_bytes > MAX_STATE) return;
    size -= s->script_bytes;
    char *text = malloc(size + 1);
    if (!text) fail("memory");
    if (pread(s->state_fd, text, size, (off_t)s->script_bytes) != (ssize_t)size) {
        free(text);
        return;
    }
    text[size] = 0;
    char *cwd = memchr(text, 0, size), *exports = cwd ? memchr(cwd + 1, 0, (size_t)(text + size - cwd - 1)) : NULL;
    if (cwd && exports && !memchr(exports + 1, 0, (size_t)(text + size - exports - 1))) {
        struct buf all = {0};
        add(&all, exports + 1);
        add(&all, text);
        buf_add(&all, "", 1);
        keep_state(s->uid, (char *)all.p, !keep_cwd && cwd[1] == '/' ? cwd + 1 : NULL);
    }
    free(text);
}

void shell_free(struct shell_line *s) {
    free_strings(s->argv);
    free_strings(s->env);
    free(s->cwd);
    if (s->state_fd >= 0) close(s->state_fd);
    if (s->text_fd >= 0) close(s->text_fd);
    memset(s, 0, sizeof *s);
    s->state_fd = s->text_fd = -1;
}
