/* The bundle: a tmpfs with the places for all mounts of the sandbox and, for a runtime, config.json and the user
 * namespace. Launcher and sandbox have it in their own mount namespaces only, so it ends with them.
 */
#include "launch.h"

#define BUNDLE_OPTIONS "mode=711,size=8m,nr_inodes=256"

static void write_config(const char *name) {
    static char piece[65536];
    int fd = open(name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    ssize_t size;

    if (fd < 0) fail("making %s", name);
    while ((size = read(0, piece, sizeof piece)) > 0)
        if (write(fd, piece, size) != size) fail("writing %s", name);
    if (size < 0) fail("reading config.json from stdin");
    close(fd);
}

/* Without a runtime there is no config.json and no place for the user namespace. */
void make_bundle(const char *at, int for_runtime) {
    static const char *const folders[] = {"rootfs", "disk", "dev", "image", "agent", "empty", "tree0", "tree1"};
    char name[PATH_ROOM];
    size_t i;

    if (mount("bundle", at, "tmpfs", MS_NOSUID | MS_NODEV | MS_NOATIME, BUNDLE_OPTIONS))
        fail("mounting a tmpfs at %s", at);
    for (i = 0; i < sizeof folders / sizeof *folders; i++)
        if (mkdir(path(name, "%s/%s", at, folders[i]), 0700)) fail("making %s", name);
    if (!for_runtime) return;
    if (mknod(path(name, "%s/userns", at), S_IFREG | 0600, 0)) fail("making %s", name);
    write_config(path(name, "%s/config.json", at));
}

void bind_namespace(int fd, const char *bundle) {
    char source[PATH_ROOM], target[PATH_ROOM];

    path(source, "/proc/self/fd/%d", fd);
    if (mount(source, path(target, "%s/userns", bundle), NULL, MS_BIND, NULL))
        fail("binding the user namespace to %s", target);
}
