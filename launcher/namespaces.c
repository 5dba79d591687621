/* The namespaces of the launcher itself, and the sandbox's user namespace.
 *
 * A user namespace belongs to whoever makes it, and the kernel counts its limits (inotify, namespaces, …) against that
 * uid. So a child becomes the sandbox's first uid, makes the namespace and waits until the launcher, which has the
 * right to, has written its maps and opened it. The namespace then lives as long as the descriptor.
 */
#include "launch.h"
#include <sys/fsuid.h>

#define NO_SETUID_FIXUP 4 /* SECBIT_NO_SETUID_FIXUP */

void private_mounts(void) {
    if (unshare(CLONE_NEWNS)) fail("making a mount namespace (root is needed)");
    if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL)) fail("making the mounts private");
}

void hide(const char *where) {
    if (umount2(where, MNT_DETACH) && errno != EINVAL && errno != ENOENT) fail("hiding %s", where);
}

static void be_owner_and_wait(uint64_t base, int ready, int go) {
    char byte = 0;

    if (setgroups(0, NULL) || setresgid(base, base, base) || setresuid(base, base, base))
        fail("becoming uid %llu", (unsigned long long)base);
    if (unshare(CLONE_NEWUSER)) fail("making a user namespace (are they allowed here? see user.max_user_namespaces)");
    if (write(ready, &byte, 1) != 1) _exit(FAILED);
    while (read(go, &byte, 1) < 0 && errno == EINTR) {}
    _exit(0);
}

void write_map(pid_t pid, const char *which, uint64_t base) {
    char name[PATH_ROOM], text[64];
    int fd, length = snprintf(text, sizeof text, "0 %llu %d\n", (unsigned long long)base, UIDS);

    fd = open(path(name, "/proc/%d/%s", pid, which), O_WRONLY | O_CLOEXEC);
    if (fd < 0 || write(fd, text, length) != length) fail("writing %s", name);
    close(fd);
}

/* Makes the user namespace of uid `base` and returns a descriptor of it. The child that made it has ended then. */
int user_namespace(uint64_t base) {
    int ready[2], go[2], status, fd;
    char byte, name[PATH_ROOM];
    pid_t pid;

    if (pipe2(ready, O_CLOEXEC) || pipe2(go, O_CLOEXEC)) fail("making a pipe");
    pid = fork();
    if (pid < 0) fail("forking");
    if (pid == 0) {
        close(go[1]);
        be_owner_and_wait(base, ready[1], go[0]);
    }
    close(ready[1]);
    close(go[0]);
    if (read(ready[0], &byte, 1) != 1) exit(FAILED); /* the child has written why */
    write_map(pid, "uid_map", base);
    write_map(pid, "gid_map", base);
    fd = open(path(name, "/proc/%d/ns/user", pid), O_RDONLY | O_CLOEXEC);
    if (fd < 0) fail("opening %s", name);
    close(go[1]);
    close(ready[0]);
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {}
    return fd;
}

/* Lets the uptime count from now. Where the kernel has no time namespaces, the sandbox sees the machine's. */
void own_clock(void) {
    struct timespec now;
    char text[64];
    int fd, length;

    if (clock_gettime(CLOCK_BOOTTIME, &now) || unshare(CLONE_NEWTIME_)) return;
    fd = open("/proc/self/timens_offsets", O_WRONLY | O_CLOEXEC);
    length = snprintf(text, sizeof text, "boottime %lld 0", -(long long)now.tv_sec);
    if (fd < 0 || write(fd, text, length) != length) fail("setting the sandbox's clock");
    close(fd);
}

/* Makes files in the name of `id` from now on: an id-mapped mount takes only ids that it maps. The launcher keeps its
 * capabilities, which the kernel would otherwise take from a uid other than 0. */
void own_files_as(const struct options *o, uint64_t id) {
    int bits = prctl(PR_GET_SECUREBITS);

    if (bits < 0 || prctl(PR_SET_SECUREBITS, bits | NO_SETUID_FIXUP)) fail("keeping the capabilities");
    setfsgid(id);
    setfsuid(id);
    if ((gid_t)setfsgid(-1) != id || (uid_t)setfsuid(-1) != id)
        fail("making files as uid %llu", (unsigned long long)id);
    if (prctl(PR_SET_SECUREBITS, bits)) fail("keeping no capabilities");
    die_with_worker(o); /* again, because the kernel forgets it when the uid of files changes */
}
