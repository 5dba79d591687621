/* Makes the mounts of a container that an engine has started nosuid and nodev.
 *
 * The engine has no option for that. This runs before the first command does, so no path in the container can be a link
 * that a sandbox has chosen. A mount that cannot be changed is no error here: the worker reads back which flags hold.
 */
#include "launch.h"

static int is_below(const char *where, const char *top) {
    size_t length = strlen(top);

    return !strncmp(where, top, length) && (where[length] == '/' || !where[length]);
}

/* The kernel writes blanks, backslashes and line ends of a path as \ooo. */
static void unescape(char *text) {
    char *to = text;
    unsigned value;

    for (; *text; text++, to++)
        if (*text == '\\' && sscanf(text, "\\%3o", &value) == 1) {
            *to = (char)value;
            text += 3;
        } else *to = *text;
    *to = 0;
}

void seal(const struct options *o) {
    struct mount_attributes attributes = {.set = MOUNT_ATTR_NOSUID_ | MOUNT_ATTR_NODEV_};
    char name[PATH_ROOM], line[2 * PATH_ROOM], where[PATH_ROOM];
    FILE *table;
    int namespace;

    if (!o->pid) usage("seal needs --pid");
    table = fopen(path(name, "/proc/%llu/mountinfo", (unsigned long long)o->pid), "re");
    if (!table) fail("opening %s", name);
    namespace = open(path(name, "/proc/%llu/ns/mnt", (unsigned long long)o->pid), O_RDONLY | O_CLOEXEC);
    if (namespace < 0 || setns(namespace, CLONE_NEWNS)) fail("entering %s", name);
    while (fgets(line, sizeof line, table)) {
        if (sscanf(line, "%*s %*s %*s %*s %4095s", where) != 1) continue;
        unescape(where);
        if (!is_below(where, "/proc") && !is_below(where, "/sys") && !is_below(where, "/dev"))
            syscall(SYS_mount_setattr_, AT_FDCWD, where, 0, &attributes, sizeof attributes);
    }
}
