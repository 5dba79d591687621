/* The view: files for /proc that show the memory and the processors of the sandbox instead of the machine's.
 *
 * They are written once and do not change. Programs read them to choose how much memory and how many threads to use;
 * what the sandbox really uses is the business of its cgroups.
 */
#include "launch.h"

static void write_view(const char *at, const char *name, const char *text, size_t size) {
    char file[PATH_ROOM];
    int fd;

    unlink(path(file, "%s/view/%s", at, name)); /* on a saved disk is that of another sandbox */
    fd = open(file, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0444);
    if (fd < 0 || fchmod(fd, 0444) || write(fd, text, size) != (ssize_t)size) fail("writing %s", file);
    close(fd);
}

/* Copies the first `cpus` entries of the machine's list, without what follows the last one. */
static void view_processors(const char *at, uint64_t cpus) {
    static char text[256 * 1024];
    int fd = open("/proc/cpuinfo", O_RDONLY | O_CLOEXEC);
    size_t size = 0;
    ssize_t more;
    char *end = text;

    if (fd < 0) fail("opening /proc/cpuinfo");
    while ((more = read(fd, text + size, sizeof text - 1 - size)) > 0) size += more;
    close(fd);
    text[size] = 0;
    while (cpus-- && !strncmp(end, "processor", 9)) {
        char *blank = strstr(end, "\n\n");

        end = blank ? blank + 2 : text + size;
    }
    write_view(at, "cpuinfo", text, end - text);
}

static void view_memory(const char *at, uint64_t bytes) {
    static const char *const empty[] = {
        "Buffers",        "Cached",       "SwapCached",     "Active",      "Inactive", "Active(anon)",
        "Inactive(anon)", "Active(file)", "Inactive(file)", "Unevictable", "Mlocked",  "SwapTotal",
        "SwapFree",       "Dirty",        "Writeback",      "AnonPages",   "Mapped",   "Shmem",
        "KReclaimable",   "Slab",         "SReclaimable",   "SUnreclaim"};
    char text[2048];
    unsigned long long kb = bytes / 1024;
    size_t i, size;

    size = snprintf(text, sizeof text, "MemTotal:       %8llu kB\nMemFree:        %8llu kB\nMemAvailable:   %8llu kB\n",
                    kb, kb, kb);
    for (i = 0; i < sizeof empty / sizeof *empty; i++)
        size += snprintf(text + size, sizeof text - size, "%s:%*d kB\n", empty[i], 23 - (int)strlen(empty[i]), 0);
    write_view(at, "meminfo", text, size);
}

static void view_statistics(const char *at, uint64_t cpus) {
    static const char zeros[] = " 0 0 0 0 0 0 0 0 0 0\n", loads[] = "0.00 0.00 0.00 1/1 1\n";
    static char text[64 * 1024];
    uint64_t i;
    size_t size = snprintf(text, sizeof text, "cpu %s", zeros);

    for (i = 0; i < cpus && size < sizeof text - 256; i++)
        size += snprintf(text + size, sizeof text - size, "cpu%llu%s", (unsigned long long)i, zeros);
    size += snprintf(
        text + size, sizeof text - size,
        "intr 0\nctxt 0\nbtime %lld\nprocesses 1\nprocs_running 1\nprocs_blocked 0\nsoftirq 0 0 0 0 0 0 0 0 0 0 0\n",
        (long long)time(NULL));
    write_view(at, "stat", text, size);
    write_view(at, "loadavg", loads, sizeof loads - 1);
}

void make_view(const struct options *o) {
    char name[PATH_ROOM];

    if ((mkdir(path(name, "%s/view", o->at), 0711) && (!o->saved || errno != EEXIST)) || chmod(name, 0711))
        fail("making %s", name);
    view_processors(o->at, o->cpus);
    view_memory(o->at, o->memory);
    view_statistics(o->at, o->cpus);
}
