/* /dev of a sandbox: its own nodes on a small tmpfs, with the numbers of the host's devices.
 *
 * Binding the host's nodes would let sandboxes share their times and file locks. Everything belongs to the sandbox's
 * root.
 */
#include "launch.h"

static void make_device(const char *dev, const char *name, int major_, int minor_, uint64_t owner) {
    char file[PATH_ROOM];

    path(file, "%s/%s", dev, name);
    if (mknod(file, S_IFCHR | 0666, makedev(major_, minor_)) || chmod(file, 0666) || chown(file, owner, owner))
        fail("making the device %s", file);
}

static void make_entries(const char *dev) {
    static const char *const links[][2] = {{"fd", "/proc/self/fd"},
                                           {"stdin", "/proc/self/fd/0"},
                                           {"stdout", "/proc/self/fd/1"},
                                           {"stderr", "/proc/self/fd/2"},
                                           {"ptmx", "pts/ptmx"}};
    /* A runtime may use the mode of the mount point for what it mounts there. */
    static const struct {
        const char *name;
        mode_t mode;
    } folders[] = {{"pts", 0755}, {"shm", 01777}};
    char file[PATH_ROOM];
    size_t i;

    for (i = 0; i < sizeof links / sizeof *links; i++)
        if (symlink(links[i][1], path(file, "%s/%s", dev, links[i][0]))) fail("making %s", file);
    for (i = 0; i < sizeof folders / sizeof *folders; i++)
        if (mkdir(path(file, "%s/%s", dev, folders[i].name), 0700) || chmod(file, folders[i].mode))
            fail("making %s", file);
}

/* Makes the folder of a name such as nvidia-caps/nvidia-cap1, if it has one. */
static void make_folder(const char *dev, const char *name, uint64_t owner) {
    const char *slash = strchr(name, '/');
    char file[PATH_ROOM];

    if (!slash) return;
    path(file, "%s/%.*s", dev, (int)(slash - name), name);
    if (slash == name || !slash[1] || strchr(slash + 1, '/') || strstr(name, ".."))
        usage("'%s' is not a name for a device", name);
    if (mkdir(file, 0755) == 0) {
        if (chmod(file, 0755) || chown(file, owner, owner)) fail("making %s", file);
    } else if (errno != EEXIST) fail("making %s", file);
}

static void copy_device(const char *dev, const char *item, uint64_t owner) {
    char source[PATH_ROOM], *colon;
    struct stat found;

    path(source, "%s", item);
    colon = strrchr(source, ':');
    if (!colon || colon == source || !colon[1]) usage("--device needs PATH:NAME, not '%s'", item);
    *colon = 0;
    if (stat(source, &found)) fail("looking at the device %s", source);
    if (!S_ISCHR(found.st_mode)) usage("%s is not a character device", source);
    make_folder(dev, colon + 1, owner);
    make_device(dev, colon + 1, major(found.st_rdev), minor(found.st_rdev), owner);
}

void make_devices(const struct options *o) {
    char dev[PATH_ROOM], null[PATH_ROOM];
    int i;

    path(dev, "%s/dev", o->at);
    if (mount("dev", dev, "tmpfs", MS_NOSUID | MS_NOEXEC | MS_NOATIME, "mode=755,size=64k,nr_inodes=64"))
        fail("mounting a tmpfs at %s", dev);
    make_device(dev, "null", 1, 3, o->base);
    make_device(dev, "zero", 1, 5, o->base);
    make_device(dev, "full", 1, 7, o->base);
    make_device(dev, "random", 1, 8, o->base);
    make_device(dev, "urandom", 1, 9, o->base);
    make_device(dev, "tty", 5, 0, o->base);
    make_entries(dev);
    for (i = 0; i < o->devices.count; i++) copy_device(dev, o->devices.items[i], o->base);
    if (chown(dev, o->base, o->base)) fail("giving %s away", dev);
    if (!o->direct && mount(path(null, "%s/null", dev), "/dev/null", NULL, MS_BIND, NULL))
        fail("binding %s to /dev/null", null);
}

void make_terminals(const char *where, uint64_t most) {
    char options[128];

    snprintf(options, sizeof options, "newinstance,ptmxmode=0666,mode=0620,gid=5,max=%llu", (unsigned long long)most);
    if (mount("devpts", where, "devpts", MS_NOSUID | MS_NOEXEC, options))
        fail("mounting terminals (%s) at %s", options, where);
}
