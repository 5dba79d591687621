/* Searches files by name and by content. Runs in a job, as the user, in bounded memory and time.
 *
 * The walk visits names in byte order and follows no link. Contents are matched line by line with the POSIX extended
 * expressions of the C library. An expression can be made to need any amount of memory or time, so:
 *   - the process has a limit on its address space and is the kernel's first choice when memory runs out;
 *   - a timer interrupts regcomp and regexec by a jump out of them. After such a jump nothing is allocated any more.
 *
 * Matches leave as records while the search goes on; the counts that make up the summary are the job's result.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <limits.h>
#include <locale.h>
#include <regex.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "files.h"

#ifdef __SANITIZE_ADDRESS__
#define MEMORY_BYTES (1024u * 1024 * 1024) /* the sanitizers keep freed memory mapped */
#else
#define MEMORY_BYTES (128u * 1024 * 1024)
#endif
#define LINE_BYTES (1024u * 1024) /* only so much of a line is matched */
#define READ_BYTES (64u * 1024)
#define TEXT_BYTES 500u           /* only so much of a line is sent */
#define FLUSH_BYTES (16u * 1024)
#define FLUSH_US 50000u
#define MAX_DEPTH 512u
#define SUMMARY_BYTES 512u

struct glob {
    char *parts[MAX_GLOB_BYTES / 2 + 1];
    size_t count;
    bool name_only; /* it has no slash: it is matched with the name alone, in any directory */
};

static const struct file_request *request;
static struct glob globs[MAX_GLOBS];
static regex_t expression, byte_expression; /* for lines that are UTF-8, and for others */
static bool has_expression, has_byte_expression;
static char literal[PATH_MAX]; /* a text that every match contains */
static size_t literal_bytes;
static char path[PATH_MAX];
static const char *names[MAX_DEPTH]; /* the path below the root, name by name */
static struct buf found;
static uint64_t matches, searched, binary, too_large, unreadable, hidden, long_lines, flushed_us;
static enum truncation truncation;
static int output_error;

/* ---- time ---- */

static sigjmp_buf out_of_time;
static volatile sig_atomic_t time_is_up, in_expression;

static void timer_fired(int number) {
    (void)number;
    time_is_up = 1;
    if (in_expression) siglongjmp(out_of_time, 1);
}

static void start_timer(uint64_t ms) {
    struct sigaction action = {.sa_handler = timer_fired};
    struct itimerval timer = {.it_value = {(time_t)(ms / 1000), (suseconds_t)(ms % 1000 * 1000)}};
    sigaction(SIGALRM, &action, NULL);
    setitimer(ITIMER_REAL, &timer, NULL);
}

static bool stopped(void) {
    if (time_is_up) truncation = TRUNCATED_BY_TIME;
    return truncation || output_error;
}

/* ---- memory ---- */

/* Limits the memory to MEMORY_BYTES above what is mapped already, which is terabytes with the sanitizers. */
static void limit_memory(void) {
    unsigned long pages = 0;
    FILE *f = fopen("/proc/self/statm", "re");
    if (f) {
        if (fscanf(f, "%lu", &pages) != 1) pages = 0;
        fclose(f);
    }
    rlim_t bytes = (rlim_t)pages * (rlim_t)sysconf(_SC_PAGESIZE) + MEMORY_BYTES;
    setrlimit(RLIMIT_AS, &(struct rlimit){bytes, bytes});
}

/* ---- text: UTF-8 where it is valid, else bytes ---- */

static void use_utf8(bool utf8) {
    static int now = -1;
    if (now != utf8) setlocale(LC_CTYPE, utf8 ? "C.UTF-8" : "C");
    now = utf8;
}

static bool is_utf8(const char *s) {
    use_utf8(true);
    return mbstowcs(NULL, s, 0) != (size_t)-1;
}

/* ---- names ---- */

static void split_glob(struct glob *g, char *text) {
    g->name_only = !strchr(text, '/');
    for (char *rest = text + (*text == '/'), *part; (part = strsep(&rest, "/"));) g->parts[g->count++] = part;
}

static bool name_matches(const char *glob, const char *name) {
    use_utf8(is_utf8(glob) && is_utf8(name));
    return fnmatch(glob, name, request->ignore_case ? FNM_CASEFOLD : 0) == 0;
}

/* A part `**` stands for any number of names, at the end for at least one. Only the last `**` passed has to be
 * tried again with one name more, so the time is bounded by names times parts. */
static bool glob_matches(const struct glob *g, size_t depth) {
    if (g->name_only) return name_matches(g->parts[0], names[depth - 1]);
    size_t part = 0, name = 0, retry_part = SIZE_MAX, retry_name = 0;
    while (name < depth) {
        if (part < g->count && strcmp(g->parts[part], "**") == 0) {
            retry_part = ++part;
            retry_name = name;
        } else if (part < g->count && name_matches(g->parts[part], names[name])) {
            part++, name++;
        } else if (retry_part != SIZE_MAX) {
            part = retry_part;
            name = ++retry_name;
        } else {
            return false;
        }
    }
    return part == g->count;
}

static bool is_selected(size_t depth) {
    for (size_t i = 0; i < request->glob_count; i++)
        if (glob_matches(&globs[i], depth)) return true;
    return request->glob_count == 0;
}

/* ---- results ---- */

static void flush_found(size_t above) {
    if (buf_used(&found) <= above) return;
    if (!write_all(request->out, buf_head(&found), buf_used(&found))) output_error = errno;
    buf_take(&found, buf_used(&found));
    flushed_us = now_us();
}

/* Counts a match; false, and the search is over, if as many as were asked for had been found before. */
static bool count_match(void) {
    if (matches == request->max_matches) {
        truncation = TRUNCATED_BY_MATCHES;
        return false;
    }
    matches++;
    return true;
}

static void report_name(const struct stat *st) {
    if (!count_match()) return;
    size_t mark = record_open(&found);
    add_stat(&found, path, st);
    record_close(&found, mark);
}

static bool continues_character(char c) { return (c & 0xc0) == 0x80; }

static void report_line(uint64_t number, const char *line, size_t length, size_t column) {
    if (!count_match()) return;
    size_t from = 0, shown = length;
    if (length > TEXT_BYTES) {
        if (column > TEXT_BYTES / 2) from = column - TEXT_BYTES / 4;
        if (from > length - TEXT_BYTES) from = length - TEXT_BYTES;
        shown = TEXT_BYTES;
        for (int i = 0; i < 3 && from > 0 && continues_character(line[from]); i++) from++, shown--;
        for (int i = 0; i < 3 && from + shown < length && continues_character(line[from + shown]); i++) shown--;
    }
    size_t mark = record_open(&found);
    add_text(&found, TAG_PATH, path);
    add_number(&found, TAG_KIND, KIND_FILE);
    add_number(&found, TAG_LINE, number);
    add_number(&found, TAG_COLUMN, column + 1);
    add_bytes(&found, TAG_TEXT, line + from, shown);
    if (shown < length) add_number(&found, TAG_TRUNCATED, 1);
    record_close(&found, mark);
}

/* ---- the expression ---- */

/* Returns where the bracket expression that begins at `s` ends, or NULL. */
static const char *skip_brackets(const char *s) {
    s++;
    if (*s == '^') s++;
    if (*s == ']') s++;
    for (; *s && *s != ']'; s++)
        if (*s == '[' && (s[1] == ':' || s[1] == '.' || s[1] == '=')) {
            char end[3] = {s[1], ']', 0};
            s = strstr(s + 2, end);
            if (!s) return NULL;
            s++;
        }
    return *s ? s : NULL;
}

/* Finds the longest text that every match must contain: looking for that first is ten times faster. It ignores groups
 * and gives up on alternatives; where in doubt the text is shorter, or there is none. */
static void find_literal(const char *pattern) {
    static char run[PATH_MAX];
    size_t n = 0;
    int depth = 0;
    if (request->ignore_case || strchr(pattern, '|')) return;
    for (const char *s = pattern;; s++) {
        bool escaped = *s == '\\' && s[1] && strchr(".[]()*+?{}|^$\\/", s[1]);
        if (escaped) s++;
        if (*s && depth == 0 && (escaped || !strchr(".[]()*+?{}|^$\\", *s))) {
            run[n++] = *s;
            continue;
        }
        if (!escaped && (*s == '*' || *s == '?' || *s == '{')) /* the character before it is optional */
            while (n > 0 && continues_character(run[--n])) {}
        if (n > literal_bytes) memcpy(literal, run, literal_bytes = n);
        n = 0;
        if (!*s) return;
        if (escaped) continue;
        if (*s == '\\' && s[1]) s++;
        else if (*s == '(') depth++;
        else if (*s == ')') depth--;
        else if (*s == '[' || *s == '{') s = *s == '[' ? skip_brackets(s) : strchr(s, '}');
        if (!s || depth < 0) {
            literal_bytes = 0;
            return;
        }
    }
}

static int compile(regex_t *to, const char *pattern) {
    in_expression = 1;
    int error = regcomp(to, pattern, REG_EXTENDED | (request->ignore_case ? REG_ICASE : 0));
    in_expression = 0;
    return error;
}

/* Compiles the expression of the request. Returns 0, or a negative code and a sentence in `reply`. */
static int prepare_expression(struct buf *reply) {
    char why[128], text[256];
    use_utf8(true);
    int error = compile(&expression, request->pattern);
    if (!error) {
        has_expression = true;
        find_literal(request->pattern);
        return 0;
    }
    regerror(error, &expression, why, sizeof why);
    if (error == REG_ESPACE) snprintf(text, sizeof text, "the regular expression needs too much memory");
    else snprintf(text, sizeof text, "the regular expression is invalid: %s", why);
    buf_add(reply, text, strlen(text));
    return error == REG_ESPACE ? -(int)CODE_LIMIT : -(int)CODE_INVALID;
}

/* Returns the expression for a line: that for characters, or, if the line is not UTF-8, that for bytes. An expression
 * that cannot be compiled for bytes is used as it was compiled for characters. */
static const regex_t *expression_for(const char *line, size_t length) {
    static bool tried;
    bool ascii = true;
    for (size_t i = 0; ascii && i < length; i++) ascii = (signed char)line[i] >= 0;
    if (ascii || is_utf8(line)) {
        use_utf8(true);
        return &expression;
    }
    use_utf8(false);
    if (!tried) has_byte_expression = compile(&byte_expression, request->pattern) == 0;
    tried = true;
    if (has_byte_expression) return &byte_expression;
    use_utf8(true);
    return &expression;
}

/* ---- contents ---- */

/* Matches one line and reports it. Overwrites the byte after the line. */
static void match_line(uint64_t number, char *line, size_t length) {
    regmatch_t match[1];
    if (length > 0 && line[length - 1] == '\r') length--;
    line[length] = 0;
    const regex_t *used = expression_for(line, length);
    in_expression = 1;
    bool matched = regexec(used, line, 1, match, 0) == 0;
    in_expression = 0;
    if (matched) report_line(number, line, length, (size_t)match[0].rm_so);
}

/* Matches the complete lines of a block and returns their size in bytes. */
static size_t match_lines(char *block, size_t bytes, uint64_t *number, bool *in_long_line) {
    char *at = block, *end = block + bytes, *hit = block;
    if (literal_bytes) hit = memmem(at, bytes, literal, literal_bytes);
    for (char *newline; !stopped() && (newline = memchr(at, '\n', (size_t)(end - at))); at = newline + 1) {
        if (*in_long_line) {
            *in_long_line = false; /* its beginning has been matched already */
            continue;
        }
        ++*number;
        if (literal_bytes && hit && hit < at) hit = memmem(at, (size_t)(end - at), literal, literal_bytes);
        if (!literal_bytes || (hit && hit < newline)) match_line(*number, at, (size_t)(newline - at));
    }
    return (size_t)(at - block);
}

static void search_contents(int fd) {
    static char block[LINE_BYTES + 1];
    size_t used = 0;
    uint64_t number = 0, total = 0;
    bool in_long_line = false;
    searched++;
    while (!stopped()) {
        size_t room = LINE_BYTES - used;
        ssize_t n = read(fd, block + used, room < READ_BYTES ? room : READ_BYTES);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) unreadable++, searched--;
        if (n <= 0) break;
        if (memchr(block + used, 0, (size_t)n)) {
            binary++, searched--;
            return;
        }
        total += (uint64_t)n;
        used += (size_t)n;
        size_t done = match_lines(block, used, &number, &in_long_line);
        if (done == 0 && used == LINE_BYTES) {
            if (!in_long_line) {
                match_line(++number, block, used);
                long_lines++;
            }
            in_long_line = true;
            done = used;
        }
        memmove(block, block + done, used - done);
        used -= done;
        if (total > request->length) { /* the file grows while it is read */
            too_large++, searched--;
            return;
        }
    }
    if (used > 0 && !in_long_line && !stopped()) match_line(number + 1, block, used);
}

static void search_file(const struct stat *st) {
    if ((uint64_t)st->st_size > request->length) {
        too_large++;
        return;
    }
    struct stat opened;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd >= 0 && fstat(fd, &opened) == 0 && S_ISREG(opened.st_mode)) search_contents(fd);
    else if (fd >= 0 || errno != ENOENT) unreadable++;
    if (fd >= 0) close(fd);
}

/* ---- the walk ---- */

/* Whether the path is in proc, sysfs or a cgroup file system (v1 or v2): their files are made up as they are read. */
static bool is_kernel_filesystem(void) {
    struct statfs fs;
    return statfs(path, &fs) == 0 &&
           (fs.f_type == 0x9fa0 || fs.f_type == 0x62656572 || fs.f_type == 0x27e0eb || fs.f_type == 0x63677270);
}

static void search_entry(const struct stat *st, size_t depth) {
    if (!is_selected(depth)) return;
    if (!has_expression) report_name(st);
    else if (S_ISREG(st->st_mode)) search_file(st);
    if (buf_used(&found) > 0 && now_us() - flushed_us > FLUSH_US) flush_found(0);
    else flush_found(FLUSH_BYTES);
}

/* Searches below a directory. Returns 0, or the errno value that says why the directory itself cannot be read. */
static int search_directory(dev_t device, size_t depth) {
    struct dirent **entries;
    size_t end = strlen(path);
    int count = depth < MAX_DEPTH ? sorted_entries(path, &entries) : -1;
    if (count < 0) return depth < MAX_DEPTH ? errno : ENAMETOOLONG;
    for (int i = 0; i < count && !stopped(); i++) {
        struct stat st;
        const char *name = entries[i]->d_name;
        if (*name == '.' && !request->hidden) {
            hidden++;
            continue;
        }
        names[depth] = name;
        const char *slash = end > 0 && path[end - 1] == '/' ? "" : "/";
        if ((size_t)snprintf(path + end, sizeof path - end, "%s%s", slash, name) >= sizeof path - end) {
            unreadable++;
        } else if (lstat(path, &st) != 0) {
            unreadable += errno != ENOENT;
        } else {
            search_entry(&st, depth + 1);
            bool enter = S_ISDIR(st.st_mode) && (st.st_dev == device || !is_kernel_filesystem());
            if (enter && !stopped() && search_directory(st.st_dev, depth + 1) != 0) unreadable++;
        }
        path[end] = 0;
    }
    for (int i = 0; i < count; i++) free(entries[i]);
    free(entries);
    return 0;
}

static int search_root(void) {
    struct stat st;
    if (stat(path, &st) != 0) return errno;
    if (S_ISDIR(st.st_mode)) return search_directory(st.st_dev, 0);
    char *slash = strrchr(path, '/');
    names[0] = slash ? slash + 1 : path;
    search_entry(&st, 1);
    return 0;
}

static void summarize(struct buf *reply) {
    add_number(reply, TAG_COUNT, matches);
    add_number(reply, TAG_SEARCHED, searched);
    add_number(reply, TAG_BINARY, binary);
    add_number(reply, TAG_TOO_LARGE, too_large);
    add_number(reply, TAG_UNREADABLE, unreadable);
    add_number(reply, TAG_HIDDEN, hidden);
    add_number(reply, TAG_LONG_LINES, long_lines);
    add_number(reply, TAG_TRUNCATED, truncation);
}

/* Searches until the timer fires. This function must not return before all calls of regcomp and regexec are over,
 * because the timer jumps back into it. */
static int search_in_time(struct buf *reply) {
    static const char slow[] = "the regular expression is too complex: compiling it took all the time of the search";
    if (sigsetjmp(out_of_time, 1)) {
        in_expression = 0;
        truncation = TRUNCATED_BY_TIME;
        if (has_expression) return 0;
        buf_add(reply, slow, sizeof slow - 1);
        return -(int)CODE_LIMIT;
    }
    start_timer(request->timeout_ms);
    int error = request->pattern ? prepare_expression(reply) : 0;
    return error ? error : search_root();
}

int tree_search(const struct file_request *r, struct buf *reply) {
    request = r;
    if (snprintf(path, sizeof path, "%s", r->path) >= (int)sizeof path) return ENAMETOOLONG;
    for (size_t i = 0; i < r->glob_count; i++) split_glob(&globs[i], r->globs[i]);
    buf_room(reply, SUMMARY_BYTES);
    limit_memory();
    int error = search_in_time(reply);
    if (error) return error;
    flush_found(0);
    summarize(reply);
    return output_error;
}
