/* How the launcher fails, and what all its parts need to build names.
 *
 * A failure is one line on stderr and the exit code FAILED. Nothing is undone: all that was made ends with this
 * process. `fail` is for what the system refuses, and says why; `usage` is for what the caller got wrong.
 */
#include "launch.h"

__attribute__((noreturn, format(printf, 1, 2))) void fail(const char *format, ...) {
    int error = errno;
    va_list args;

    fputs("warren-launch: ", stderr);
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    if (error) fprintf(stderr, ": %s", strerror(error));
    fputc('\n', stderr);
    exit(FAILED);
}

__attribute__((noreturn, format(printf, 1, 2))) void usage(const char *format, ...) {
    va_list args;

    fputs("warren-launch: ", stderr);
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fputc('\n', stderr);
    exit(FAILED);
}

__attribute__((format(printf, 2, 3))) const char *path(char *room, const char *format, ...) {
    va_list args;
    int length;

    va_start(args, format);
    length = vsnprintf(room, PATH_ROOM, format, args);
    va_end(args);
    if (length < 0 || length >= PATH_ROOM) usage("a path is longer than %d bytes", PATH_ROOM - 1);
    return room;
}

/* Splits an item at its last separator: puts the text before it into `room` and returns the text after it. */
const char *split(char *room, const char *option, const char *item, char separator) {
    char *found;

    path(room, "%s", item);
    found = strrchr(room, separator);
    if (!found || found == room || !found[1]) usage("%s: '%s' needs a '%c'", option, item, separator);
    *found = 0;
    return found + 1;
}
