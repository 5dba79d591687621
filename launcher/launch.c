/*
 * warren-launch: prepares on the host, as root, what an OCI runtime needs to start a sandbox.
 *
 * Theory of operation
 *
 * The worker starts one warren-launch per sandbox. It runs for some milliseconds, as root, and
 * then becomes the OCI runtime (execve, same pid), which starts the sandbox and exits. It
 * makes what the runtime cannot make, or makes wrongly:
 *
 *   a mount namespace   of its own, everything private. All mounts below live in it; the runtime
 *                       copies them into the sandbox. The host's mount table does not change, and
 *                       the mounts vanish with the sandbox, even if all processes are killed.
 *   the bundle          a small tmpfs at a fixed path that the sandbox's root may walk to. It holds
 *                       config.json, the places for the mounts below, and what the runtime writes down
 *                       about the sandbox: nobody has to remove any of it.
 *   a user namespace    created by a child that has become the sandbox's own uid, so that the
 *                       kernel's per-user limits (inotify, namespaces, …) are counted per sandbox
 *                       and not against the host's root. It is bound to BUNDLE/userns.
 *   the disk            an ext4 image without a name on a loop device that detaches itself;
 *                       or a tmpfs. Mounted at BUNDLE/disk. It is fresh:
 *                       no sandbox has chosen a name on it, so no path on it can be a link.
 *   the root            trees of the host laid over each other: the agent's, layers, and the image's at the
 *                       bottom, with ids mapped so that the image's root is the sandbox's root.
 *                       Mounted at BUNDLE/rootfs. Their paths are given relative to the bundle, so
 *                       that no path of the host shows in the sandbox's mount table. It is read-only, or
 *                       what is written to it lies on the disk, in root.upper. The kernel writes there in
 *                       the name of who mounted the root, the host's root: so nobody but a process with
 *                       CAP_SYS_RESOURCE, which the kernel takes away for this, gets what the disk keeps in reserve.
 *                       The agent's own directory is read-only in any case.
 *   seeded directories  directories of the disk that are not empty in the image: the image's lies below the disk's.
 *   /dev                device nodes of its own, on a small tmpfs at BUNDLE/dev: a runtime would bind the
 *                       host's, whose times and file locks the sandboxes would then share. Its null also
 *                       lies over /dev/null, which crun binds over the files that a sandbox may not see.
 *                       A graphics processor is such a node too, with the numbers of the host's.
 *   a view              files with the memory and the processors that the sandbox may use, at BUNDLE/view, for
 *                       /proc to show instead of the machine's; and an uptime that counts from the sandbox's
 *                       start (a time namespace, where the kernel has them). Programs choose by these how
 *                       much memory and how many threads they take. Nobody is bound to a processor by this: the
 *                       sandboxes on one would wait while another is idle.
 *   rlimits             only lowered: root may lack CAP_SYS_RESOURCE, and raising would fail. The limit of
 *                       cores is 1: for every other one, also 0, the kernel starts the program that
 *                       core_pattern names, as the host's root. That of locked memory can be left to the
 *                       agent: crun raises its own before it loads the rules for devices.
 *
 * The runtime will move the sandbox into its cgroups. If no process has been moved for a while, the kernel
 * lets the first one wait for some 10 ms. So a child tries such a move at once, and the kernel is ready when
 * the runtime is.
 *
 * Runtimes make the sandbox's root the owner of stdin, stdout and stderr (fchown). If one of them
 * were the host's /dev/null, a sandbox would own it: so stdin becomes a pipe without a writer,
 * stdout the same as stderr, and stderr must be a pipe of the worker.
 *
 * Descriptor 3, the socket on which the agent will listen, is passed on unchanged. If the
 * worker dies, the kernel kills this process (PDEATHSIG survives the execve). A failure writes
 * one line to stderr and exits with 125; nothing has to be undone, because everything made here
 * ends with this process.
 *
 * usage: warren-launch sandbox OPTION… -- RUNTIME ARGUMENT…
 *                                            stdin holds config.json
 *          --at DIR            where the bundle appears for the runtime: config.json, the file userns, and the
 *                              directories rootfs, disk, dev, image, agent, empty, tree0, tree1, view and layer0 …
 *          --base UID          the sandbox's uids are BASE … BASE+65535
 *          --agent DIR         a tree that holds the agent, to lie above the image
 *          --root DIR          the image
 *          --layer DIR         a tree above the image, the uppermost first (repeatable)
 *          --writable          the root can be written to
 *          --own PATH:MODE     a directory of a writable root, made if it is missing, for --owner (repeatable)
 *          --changes FD        a socket; the descriptor of root.upper is sent over it
 *          --tree SRC:DST      another read-only tree of the host, at DST below the root
 *          --disk-fd FD        an open ext4 image, or
 *          --tmpfs OPTIONS     the mount options of a tmpfs
 *          --dir NAME:MODE     a directory to make on the disk (repeatable)
 *          --seed NAME:PATH    such a directory, laid over PATH of the image (repeatable)
 *          --owner UID         who owns these directories, and those of --own
 *          --device PATH:NAME  a node in /dev with the numbers of the host's character device PATH (repeatable)
 *          --hide DIR          a mount to take away first (repeatable)
 *          --move FILE         the cgroup.procs that a child tries to move to
 *          --memory BYTES --cpus N    what the view shows; the directory `view` is there only with these
 *          --nofile N --fsize BYTES
 *          --memlock BYTES     0 leaves it as it is; 8 MiB without this option
 *        warren-launch disk OPTION… --at DIR    the disk alone, mounted at DIR for all to see;
 *                                               with --try only in a namespace of its own
 *          --memory BYTES --cpus N    what the view shows, which is then on the disk, in `view`
 *          --pts DIR           where to mount terminals too, and
 *          --terminals N       how many there can be
 *        warren-launch seal --pid PID           nosuid and nodev for the mounts of a container that has just
 *                                               started: an engine has no such option for its binds
 *        warren-launch version
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <grp.h>

#define VERSION "1"
#define FAILED 125
#define UIDS 65536
#define MANY 128
#define PATH_ROOM 4096
#define LOOP_TRIES 500
#define BUNDLE_OPTIONS "mode=711,size=8m,nr_inodes=256"
#define LAUNCH_NICE 5 /* sandboxes that run have priority over those that are being made */
/* The disk does not survive a crash anyway, so no flush has to wait for the disk of the host. */
#define DISK_OPTIONS "noinit_itable,barrier=0,resuid=65534"
/* What the disk then holds is plain files, whiteouts and opaque directories. Nothing has to be synchronized either. */
#define UPPER_OPTIONS "index=off,metacopy=off,redirect_dir=off,xino=auto,uuid=off,volatile"
#define MARK "disk/mark" /* shows the disk itself in a sandbox where all else of it shows through an overlay */

/* From the kernel's headers, which the include directory of a libc may lack. */
#define LOOP_MAJOR 7
#define LOOP_CTL_GET_FREE 0x4C82
#define LOOP_CONFIGURE 0x4C0A
#define LO_FLAGS_AUTOCLEAR 4
#define SYS_open_tree_ 428
#define SYS_move_mount_ 429
#define SYS_mount_setattr_ 442
#define OPEN_TREE_CLONE_ 1
#define MOVE_MOUNT_F_EMPTY_PATH_ 4
#define MOUNT_ATTR_RDONLY_ 0x1
#define MOUNT_ATTR_NOSUID_ 0x2
#define MOUNT_ATTR_NODEV_ 0x4
#define MOUNT_ATTR_IDMAP_ 0x00100000
#define CLONE_NEWTIME_ 0x00000080

struct loop_settings {
    uint32_t fd, block_size;
    struct {
        uint64_t device, inode, rdevice, offset, sizelimit;
        uint32_t number, encrypt_type, encrypt_key_size, flags;
        uint8_t file_name[64], crypt_name[64], encrypt_key[32];
        uint64_t init[2];
    } info;
    uint64_t reserved[8];
};

struct mount_attributes {
    uint64_t set, clear, propagation, userns_fd;
};

struct list {
    const char *items[MANY];
    int count;
};

struct options {
    const char *at, *agent, *root, *tmpfs, *pts, *move;
    uint64_t base, owner, nofile, fsize, pid, terminals, memory, cpus, changes, memlock, disk_fd;
    int try_only, writable;
    struct list trees, layers, dirs, seeds, owned, devices, hidden;
    char **command;
};

__attribute__((noreturn, format(printf, 1, 2))) static void fail(const char *format, ...)
{
    int error = errno;
    va_list args;

    fputs("warren-launch: ", stderr);
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    if (error)
        fprintf(stderr, ": %s", strerror(error));
    fputc('\n', stderr);
    exit(FAILED);
}

__attribute__((noreturn, format(printf, 1, 2))) static void usage(const char *format, ...)
{
    va_list args;

    fputs("warren-launch: ", stderr);
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fputc('\n', stderr);
    exit(FAILED);
}

__attribute__((format(printf, 2, 3))) static const char *path(char *room, const char *format, ...)
{
    va_list args;
    int length;

    va_start(args, format);
    length = vsnprintf(room, PATH_ROOM, format, args);
    va_end(args);
    if (length < 0 || length >= PATH_ROOM)
        usage("a path is longer than %d bytes", PATH_ROOM - 1);
    return room;
}

/* ---- options ---- */

static uint64_t number(const char *name, const char *text)
{
    char *end;
    uint64_t value;

    errno = 0;
    value = strtoull(text, &end, 10);
    if (errno || end == text || *end || *text == '-')
        usage("%s needs a number, not '%s'", name, text);
    return value;
}

static void append(struct list *list, const char *name, const char *value)
{
    if (list->count == MANY)
        usage("more than %d times %s", MANY, name);
    list->items[list->count++] = value;
}

static void read_option(struct options *o, const char *name, const char *value)
{
    if (!strcmp(name, "--at")) o->at = value;
    else if (!strcmp(name, "--agent")) o->agent = value;
    else if (!strcmp(name, "--root")) o->root = value;
    else if (!strcmp(name, "--disk-fd")) o->disk_fd = number(name, value);
    else if (!strcmp(name, "--tmpfs")) o->tmpfs = value;
    else if (!strcmp(name, "--pts")) o->pts = value;
    else if (!strcmp(name, "--move")) o->move = value;
    else if (!strcmp(name, "--terminals")) o->terminals = number(name, value);
    else if (!strcmp(name, "--base")) o->base = number(name, value);
    else if (!strcmp(name, "--owner")) o->owner = number(name, value);
    else if (!strcmp(name, "--nofile")) o->nofile = number(name, value);
    else if (!strcmp(name, "--memlock")) o->memlock = number(name, value);
    else if (!strcmp(name, "--fsize")) o->fsize = number(name, value);
    else if (!strcmp(name, "--pid")) o->pid = number(name, value);
    else if (!strcmp(name, "--memory")) o->memory = number(name, value);
    else if (!strcmp(name, "--cpus")) o->cpus = number(name, value);
    else if (!strcmp(name, "--changes")) o->changes = number(name, value);
    else if (!strcmp(name, "--layer")) append(&o->layers, name, value);
    else if (!strcmp(name, "--own")) append(&o->owned, name, value);
    else if (!strcmp(name, "--seed")) append(&o->seeds, name, value);
    else if (!strcmp(name, "--tree")) append(&o->trees, name, value);
    else if (!strcmp(name, "--dir")) append(&o->dirs, name, value);
    else if (!strcmp(name, "--device")) append(&o->devices, name, value);
    else if (!strcmp(name, "--hide")) append(&o->hidden, name, value);
    else usage("unknown option %s", name);
}

static void read_options(struct options *o, char **argv)
{
    for (; *argv; argv++) {
        if (!strcmp(*argv, "--")) {
            o->command = argv + 1;
            return;
        }
        if (!strcmp(*argv, "--try")) {
            o->try_only = 1;
            continue;
        }
        if (!strcmp(*argv, "--writable")) {
            o->writable = 1;
            continue;
        }
        if (!argv[1])
            usage("%s needs a value", *argv);
        read_option(o, argv[0], argv[1]);
        argv++;
    }
}

/* ---- namespaces ---- */

static void private_mounts(void)
{
    if (unshare(CLONE_NEWNS))
        fail("making a mount namespace (root is needed)");
    if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL))
        fail("making the mounts private");
}

static void hide(const char *where)
{
    if (umount2(where, MNT_DETACH) && errno != EINVAL && errno != ENOENT)
        fail("hiding %s", where);
}

static void be_owner_and_wait(uint64_t base, int ready, int go)
{
    char byte = 0;

    if (setgroups(0, NULL) || setresgid(base, base, base) || setresuid(base, base, base))
        fail("becoming uid %llu", (unsigned long long)base);
    if (unshare(CLONE_NEWUSER))
        fail("making a user namespace (are they allowed here? see user.max_user_namespaces)");
    if (write(ready, &byte, 1) != 1)
        _exit(FAILED);
    while (read(go, &byte, 1) < 0 && errno == EINTR)
        ;
    _exit(0);
}

static void write_map(pid_t pid, const char *which, uint64_t base)
{
    char name[PATH_ROOM], text[64];
    int fd, length = snprintf(text, sizeof text, "0 %llu %d\n", (unsigned long long)base, UIDS);

    fd = open(path(name, "/proc/%d/%s", pid, which), O_WRONLY | O_CLOEXEC);
    if (fd < 0 || write(fd, text, length) != length)
        fail("writing %s", name);
    close(fd);
}

/* The namespace belongs to uid `base`; the child that made it ends before this returns. */
static int user_namespace(uint64_t base)
{
    int ready[2], go[2], status, fd;
    char byte, name[PATH_ROOM];
    pid_t pid;

    if (pipe2(ready, O_CLOEXEC) || pipe2(go, O_CLOEXEC))
        fail("making a pipe");
    pid = fork();
    if (pid < 0)
        fail("forking");
    if (pid == 0) {
        close(go[1]);
        be_owner_and_wait(base, ready[1], go[0]);
    }
    close(ready[1]);
    close(go[0]);
    if (read(ready[0], &byte, 1) != 1)
        exit(FAILED); /* the child has written why */
    write_map(pid, "uid_map", base);
    write_map(pid, "gid_map", base);
    fd = open(path(name, "/proc/%d/ns/user", pid), O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        fail("opening %s", name);
    close(go[1]);
    close(ready[0]);
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    return fd;
}

/* ---- cgroups ---- */

/* Only the time of the attempt counts: it may fail, and the child is of no further use. */
static void try_move(const char *procs)
{
    int fd;

    if (!procs || fork())
        return;
    fd = open(procs, O_WRONLY | O_CLOEXEC);
    if (fd >= 0 && write(fd, "0", 1) == 1)
        _exit(0);
    _exit(1);
}

/* ---- the bundle ---- */

static void write_config(const char *name)
{
    static char piece[65536];
    int fd = open(name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    ssize_t size;

    if (fd < 0)
        fail("making %s", name);
    while ((size = read(0, piece, sizeof piece)) > 0)
        if (write(fd, piece, size) != size)
            fail("writing %s", name);
    if (size < 0)
        fail("reading config.json from stdin");
    close(fd);
}

static void make_bundle(const char *at)
{
    static const char *const folders[] = {"rootfs", "disk", "dev", "image", "agent", "empty", "tree0", "tree1"};
    char name[PATH_ROOM];
    size_t i;

    if (mount("bundle", at, "tmpfs", MS_NOSUID | MS_NODEV | MS_NOATIME, BUNDLE_OPTIONS))
        fail("mounting a tmpfs at %s", at);
    for (i = 0; i < sizeof folders / sizeof *folders; i++)
        if (mkdir(path(name, "%s/%s", at, folders[i]), 0700))
            fail("making %s", name);
    if (mknod(path(name, "%s/userns", at), S_IFREG | 0600, 0))
        fail("making %s", name);
    write_config(path(name, "%s/config.json", at));
}

static void bind_namespace(int fd, const char *bundle)
{
    char source[PATH_ROOM], target[PATH_ROOM];

    path(source, "/proc/self/fd/%d", fd);
    if (mount(source, path(target, "%s/userns", bundle), NULL, MS_BIND, NULL))
        fail("binding the user namespace to %s", target);
}

/* ---- the view of the machine ---- */

static void write_view(const char *at, const char *name, const char *text, size_t size)
{
    char file[PATH_ROOM];
    int fd = open(path(file, "%s/view/%s", at, name), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0444);

    if (fd < 0 || fchmod(fd, 0444) || write(fd, text, size) != (ssize_t)size)
        fail("writing %s", file);
    close(fd);
}

/* The first processors of the machine's list; what follows them describes the machine. */
static void view_processors(const char *at, uint64_t cpus)
{
    static char text[256 * 1024];
    int fd = open("/proc/cpuinfo", O_RDONLY | O_CLOEXEC);
    size_t size = 0;
    ssize_t more;
    char *end = text;

    if (fd < 0)
        fail("opening /proc/cpuinfo");
    while ((more = read(fd, text + size, sizeof text - 1 - size)) > 0)
        size += more;
    close(fd);
    text[size] = 0;
    while (cpus-- && !strncmp(end, "processor", 9)) {
        char *blank = strstr(end, "\n\n");

        end = blank ? blank + 2 : text + size;
    }
    write_view(at, "cpuinfo", text, end - text);
}

static void view_memory(const char *at, uint64_t bytes)
{
    static const char *const empty[] = {"Buffers", "Cached", "SwapCached", "Active", "Inactive", "Active(anon)",
        "Inactive(anon)", "Active(file)", "Inactive(file)", "Unevictable", "Mlocked", "SwapTotal", "SwapFree", "Dirty",
        "Writeback", "AnonPages", "Mapped", "Shmem", "KReclaimable", "Slab", "SReclaimable", "SUnreclaim"};
    char text[2048];
    unsigned long long kb = bytes / 1024;
    size_t i, size;

    size = snprintf(text, sizeof text, "MemTotal:       %8llu kB\nMemFree:        %8llu kB\nMemAvailable:   %8llu kB\n",
        kb, kb, kb);
    for (i = 0; i < sizeof empty / sizeof *empty; i++)
        size += snprintf(text + size, sizeof text - size, "%s:%*d kB\n", empty[i], 23 - (int)strlen(empty[i]), 0);
    write_view(at, "meminfo", text, size);
}

static void view_statistics(const char *at, uint64_t cpus)
{
    static const char zeros[] = " 0 0 0 0 0 0 0 0 0 0\n", loads[] = "0.00 0.00 0.00 1/1 1\n";
    static char text[64 * 1024];
    uint64_t i;
    size_t size = snprintf(text, sizeof text, "cpu %s", zeros);

    for (i = 0; i < cpus && size < sizeof text - 256; i++)
        size += snprintf(text + size, sizeof text - size, "cpu%llu%s", (unsigned long long)i, zeros);
    size += snprintf(text + size, sizeof text - size,
        "intr 0\nctxt 0\nbtime %lld\nprocesses 1\nprocs_running 1\nprocs_blocked 0\nsoftirq 0 0 0 0 0 0 0 0 0 0 0\n",
        (long long)time(NULL));
    write_view(at, "stat", text, size);
    write_view(at, "loadavg", loads, sizeof loads - 1);
}

/* A kernel without time namespaces shows its own uptime. */
static void own_clock(void)
{
    struct timespec now;
    char text[64];
    int fd, length;

    if (clock_gettime(CLOCK_BOOTTIME, &now) || unshare(CLONE_NEWTIME_))
        return;
    fd = open("/proc/self/timens_offsets", O_WRONLY | O_CLOEXEC);
    length = snprintf(text, sizeof text, "boottime %lld 0", -(long long)now.tv_sec);
    if (fd < 0 || write(fd, text, length) != length)
        fail("setting the sandbox's clock");
    close(fd);
}

static void make_view(const struct options *o)
{
    char name[PATH_ROOM];

    if (mkdir(path(name, "%s/view", o->at), 0711))
        fail("making %s", name);
    view_processors(o->at, o->cpus);
    view_memory(o->at, o->memory);
    view_statistics(o->at, o->cpus);
}

/* ---- the disk ---- */

static int open_loop(int index)
{
    char name[PATH_ROOM];
    int fd = open(path(name, "/dev/loop%d", index), O_RDWR | O_CLOEXEC);

    if (fd < 0 && errno == ENOENT) { /* no devtmpfs here: a container with a /dev of its own */
        if (mknod(name, S_IFBLK | 0600, makedev(LOOP_MAJOR, index)) && errno != EEXIST)
            fail("making %s", name);
        fd = open(name, O_RDWR | O_CLOEXEC);
    }
    if (fd < 0)
        fail("opening %s", name);
    return fd;
}

/* Another process may take the free device first: then ask again. */
static int attach(int image, int *index)
{
    struct loop_settings settings = {.fd = image, .info.flags = LO_FLAGS_AUTOCLEAR};
    int control = open("/dev/loop-control", O_RDWR | O_CLOEXEC), device, tries;

    if (control < 0)
        fail("opening /dev/loop-control");
    strncpy((char *)settings.info.file_name, "warren", sizeof settings.info.file_name - 1);
    for (tries = 0; tries < LOOP_TRIES; tries++) {
        *index = ioctl(control, LOOP_CTL_GET_FREE);
        if (*index < 0)
            fail("finding a free loop device");
        device = open_loop(*index);
        if (ioctl(device, LOOP_CONFIGURE, &settings) == 0) {
            close(control);
            return device;
        }
        if (errno != EBUSY && errno != EAGAIN)
            fail("attaching the disk image to loop device %d", *index);
        close(device);
        usleep(tries < 20 ? 50 : 2000);
    }
    fail("attaching the disk image: other processes took %d loop devices before us", LOOP_TRIES);
}

static void mount_image(int image, const char *where)
{
    char device_name[PATH_ROOM];
    int device, index;

    device = attach(image, &index);
    path(device_name, "/dev/loop%d", index);
    if (mount(device_name, where, "ext4", MS_NOSUID | MS_NODEV | MS_NOATIME, DISK_OPTIONS))
        fail("mounting the disk %s at %s", device_name, where);
    close(device);
    close(image);
}

static void make_directory(int disk, const char *item, uint64_t owner)
{
    char name[256];
    const char *colon = strrchr(item, ':');
    mode_t mode;

    if (!colon || colon == item || (size_t)(colon - item) >= sizeof name || memchr(item, '/', colon - item))
        usage("--dir needs NAME:MODE, not '%s'", item);
    memcpy(name, item, colon - item);
    name[colon - item] = 0;
    mode = strtoul(colon + 1, NULL, 8);
    if (mkdirat(disk, name, 0700) || fchownat(disk, name, owner, owner, AT_SYMLINK_NOFOLLOW))
        fail("making %s on the disk", name);
    if (fchmodat(disk, name, mode, 0))
        fail("setting the mode of %s on the disk", name);
}

static void fill_disk(const struct options *o, const char *where)
{
    int i, disk = open(where, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    if (disk < 0)
        fail("opening the disk at %s", where);
    if (unlinkat(disk, "lost+found", AT_REMOVEDIR) && errno != ENOENT)
        fail("removing lost+found from the disk");
    for (i = 0; i < o->dirs.count; i++)
        make_directory(disk, o->dirs.items[i], o->owner);
    close(disk);
}

static void make_disk(const struct options *o, const char *where)
{
    if (o->disk_fd)
        mount_image(o->disk_fd, where);
    else if (mount("disk", where, "tmpfs", MS_NOSUID | MS_NODEV | MS_NOATIME, o->tmpfs))
        fail("mounting a tmpfs (%s) at %s", o->tmpfs, where);
    fill_disk(o, where);
}

/* ---- devices ---- */

static void make_device(const char *dev, const char *name, int major_, int minor_, uint64_t owner)
{
    char file[PATH_ROOM];

    path(file, "%s/%s", dev, name);
    if (mknod(file, S_IFCHR | 0666, makedev(major_, minor_)) || chmod(file, 0666) || chown(file, owner, owner))
        fail("making the device %s", file);
}

static void make_entries(const char *dev)
{
    static const char *const links[][2] = {{"fd", "/proc/self/fd"}, {"stdin", "/proc/self/fd/0"},
        {"stdout", "/proc/self/fd/1"}, {"stderr", "/proc/self/fd/2"}, {"ptmx", "pts/ptmx"}};
    /* A runtime may use the mode of the mount point for what it mounts there. */
    static const struct { const char *name; mode_t mode; } folders[] = {{"pts", 0755}, {"shm", 01777}};
    char file[PATH_ROOM];
    size_t i;

    for (i = 0; i < sizeof links / sizeof *links; i++)
        if (symlink(links[i][1], path(file, "%s/%s", dev, links[i][0])))
            fail("making %s", file);
    for (i = 0; i < sizeof folders / sizeof *folders; i++)
        if (mkdir(path(file, "%s/%s", dev, folders[i].name), 0700) || chmod(file, folders[i].mode))
            fail("making %s", file);
}

/* A folder in /dev for the devices of one kind, such as nvidia-caps. */
static void make_folder(const char *dev, const char *name, uint64_t owner)
{
    const char *slash = strchr(name, '/');
    char file[PATH_ROOM];

    if (!slash)
        return;
    path(file, "%s/%.*s", dev, (int)(slash - name), name);
    if (slash == name || !slash[1] || strchr(slash + 1, '/') || strstr(name, ".."))
        usage("'%s' is not a name for a device", name);
    if (mkdir(file, 0755) == 0) {
        if (chmod(file, 0755) || chown(file, owner, owner))
            fail("making %s", file);
    } else if (errno != EEXIST)
        fail("making %s", file);
}

static void copy_device(const char *dev, const char *item, uint64_t owner)
{
    char source[PATH_ROOM], *colon;
    struct stat found;

    path(source, "%s", item);
    colon = strrchr(source, ':');
    if (!colon || colon == source || !colon[1])
        usage("--device needs PATH:NAME, not '%s'", item);
    *colon = 0;
    if (stat(source, &found))
        fail("looking at the device %s", source);
    if (!S_ISCHR(found.st_mode))
        usage("%s is not a character device", source);
    make_folder(dev, colon + 1, owner);
    make_device(dev, colon + 1, major(found.st_rdev), minor(found.st_rdev), owner);
}

static void make_devices(const struct options *o)
{
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
    for (i = 0; i < o->devices.count; i++)
        copy_device(dev, o->devices.items[i], o->base);
    if (chown(dev, o->base, o->base))
        fail("giving %s away", dev);
    if (mount(path(null, "%s/null", dev), "/dev/null", NULL, MS_BIND, NULL))
        fail("binding %s to /dev/null", null);
}

static void make_terminals(const char *where, uint64_t most)
{
    char options[128];

    snprintf(options, sizeof options, "newinstance,ptmxmode=0666,mode=0620,gid=5,max=%llu", (unsigned long long)most);
    if (mount("devpts", where, "devpts", MS_NOSUID | MS_NOEXEC, options))
        fail("mounting terminals (%s) at %s", options, where);
}

/* ---- trees of the host ---- */

/*
 * Not every file system can map ids. Without mapping, the files belong to nobody but can be read; if they are to be
 * changed, that does not do.
 */
static void set_attributes(int tree, int userns, const char *source, int must_map)
{
    struct mount_attributes wanted = {
        .set = MOUNT_ATTR_RDONLY_ | MOUNT_ATTR_NOSUID_ | MOUNT_ATTR_NODEV_ | MOUNT_ATTR_IDMAP_, .userns_fd = userns};

    if (syscall(SYS_mount_setattr_, tree, "", AT_EMPTY_PATH, &wanted, sizeof wanted) == 0)
        return;
    if (errno != EINVAL && errno != EOPNOTSUPP && errno != EPERM)
        fail("making %s read-only", source);
    if (must_map)
        fail("mapping the ids of %s, which a writable root needs and its file system cannot do", source);
    wanted.set &= ~(uint64_t)MOUNT_ATTR_IDMAP_;
    wanted.userns_fd = 0;
    if (syscall(SYS_mount_setattr_, tree, "", AT_EMPTY_PATH, &wanted, sizeof wanted))
        fail("making %s read-only (Linux 5.12 or later is needed)", source);
}

static void mount_tree(const char *source, const char *target, int userns, int must_map)
{
    int tree = syscall(SYS_open_tree_, AT_FDCWD, source, OPEN_TREE_CLONE_ | O_CLOEXEC);

    if (tree < 0)
        fail("opening the tree %s", source);
    set_attributes(tree, userns, source, must_map);
    if (syscall(SYS_move_mount_, tree, "", AT_FDCWD, target, MOVE_MOUNT_F_EMPTY_PATH_))
        fail("mounting %s at %s", source, target);
    close(tree);
}

static int open_directory(const char *name)
{
    int fd = open(name, O_PATH | O_DIRECTORY | O_CLOEXEC);

    if (fd < 0)
        fail("opening %s", name);
    return fd;
}

/* Makes the directory if it is missing, and replaces what is none: no link leads elsewhere. */
static int enter(int above, const char *name, uint64_t owner)
{
    int fd, tries;

    for (tries = 0; tries < 3; tries++) {
        fd = openat(above, name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (fd >= 0)
            return fd;
        if (errno != ENOENT && unlinkat(above, name, 0))
            break;
        if (mkdirat(above, name, 0755) || fchownat(above, name, owner, owner, AT_SYMLINK_NOFOLLOW) ||
            fchmodat(above, name, 0755, 0))
            break;
    }
    fail("entering the directory %s of the root", name);
}

/* Takes `above`, and returns a descriptor of the directory at `below` under it. */
static int walk(int above, const char *below, uint64_t owner)
{
    char room[PATH_ROOM], *rest = room, *name;
    int fd;

    path(room, "%s", below);
    while ((name = strsep(&rest, "/"))) {
        if (!*name)
            continue;
        if (!strcmp(name, ".") || !strcmp(name, ".."))
            usage("a path leads through %s: %s", name, below);
        fd = enter(above, name, owner);
        close(above);
        above = fd;
    }
    return above;
}

/* Without an `upper` it is read-only. An overlay has inodes of its own: locks and watches of one sandbox do not affect
 * another. */
static void lay_over(const char *where, const char *lower, const char *upper, const char *what)
{
    char options[PATH_ROOM];
    unsigned long flags = MS_NOSUID | MS_NODEV;

    if (upper)
        path(options, "lowerdir=%s,upperdir=disk/%s.upper,workdir=disk/%s.work," UPPER_OPTIONS, lower, upper, upper);
    else {
        path(options, "lowerdir=%s", lower);
        flags |= MS_RDONLY;
    }
    if (mount("root", where, "overlay", flags, options))
        fail("laying %s over %s (%s)", what, where, options);
}

/* The top of an overlay has the attributes of its upper directory: `like` is the one whose these are. */
static void make_upper(const char *name, const char *like)
{
    char upper[PATH_ROOM], work[PATH_ROOM];
    struct stat found;

    if (stat(like, &found))
        fail("looking at %s", like);
    if (mkdir(path(upper, "disk/%s.upper", name), 0700) || chown(upper, found.st_uid, found.st_gid) ||
        chmod(upper, found.st_mode & 07777) || mkdir(path(work, "disk/%s.work", name), 0700))
        fail("making the upper directory of %s", name);
}

/* The text before the separator is put into `room`. */
static const char *split(char *room, const char *option, const char *item, char separator)
{
    char *found;

    path(room, "%s", item);
    found = strrchr(room, separator);
    if (!found || found == room || !found[1])
        usage("%s: '%s' needs a '%c'", option, item, separator);
    *found = 0;
    return found + 1;
}

static void mount_root(const struct options *o, int userns)
{
    char lower[PATH_ROOM], name[PATH_ROOM];
    int i, length;

    mount_tree(o->agent, "agent", userns, o->writable);
    mount_tree(o->root, "image", userns, o->writable);
    length = snprintf(lower, sizeof lower, "agent");
    for (i = 0; i < o->layers.count; i++) {
        if (mkdir(path(name, "layer%d", i), 0700))
            fail("making %s", name);
        mount_tree(o->layers.items[i], name, userns, o->writable);
        length += snprintf(lower + length, sizeof lower - length, ":%s", name);
    }
    snprintf(lower + length, sizeof lower - length, ":image");
    if (o->writable)
        make_upper("root", "image");
    lay_over("rootfs", lower, o->writable ? "root" : NULL, o->root);
    if (o->writable)
        lay_over("rootfs/.warren", "agent/.warren:empty", NULL, o->agent);
}

static void mount_trees(const struct options *o, int userns)
{
    char source[PATH_ROOM], place[PATH_ROOM], tree[PATH_ROOM], lower[PATH_ROOM];
    const char *target;
    int i, fd;

    for (i = 0; i < o->trees.count; i++) {
        target = split(source, "--tree", o->trees.items[i], ':');
        fd = walk(open_directory("rootfs"), target, o->base);
        mount_tree(source, path(tree, "tree%d", i), userns, o->writable);
        if (o->writable)
            make_upper(tree, tree);
        /* What the agent's tree has at this place lies above, as it does elsewhere. */
        if (access(path(place, "agent%s", target), F_OK))
            path(lower, "%s:empty", tree);
        else
            path(lower, "%s:%s", place, tree);
        lay_over(path(place, "/proc/self/fd/%d", fd), lower, o->writable ? tree : NULL, source);
        close(fd);
    }
}

static void mount_seeds(const struct options *o)
{
    char name[PATH_ROOM], place[PATH_ROOM], lower[PATH_ROOM];
    const char *below;
    int i;

    for (i = 0; i < o->seeds.count; i++) {
        below = split(name, "--seed", o->seeds.items[i], ':');
        close(walk(open_directory("image"), below, o->base));
        make_upper(name, path(place, "disk/%s", name));
        lay_over(place, path(lower, "image/%s:empty", below), name, below);
    }
}

static void give_directories(const struct options *o)
{
    char name[PATH_ROOM], place[PATH_ROOM];
    struct stat found;
    mode_t mode;
    int i, fd;

    for (i = 0; i < o->owned.count; i++) {
        mode = strtoul(split(name, "--own", o->owned.items[i], ':'), NULL, 8);
        fd = walk(open_directory("rootfs"), name, o->base);
        path(place, "/proc/self/fd/%d", fd);
        if (fstat(fd, &found))
            fail("looking at %s of the root", name);
        if ((found.st_uid != o->owner || found.st_gid != o->owner) && chown(place, o->owner, o->owner))
            fail("giving %s of the root away", name);
        if ((found.st_mode & 07777) != mode && chmod(place, mode))
            fail("setting the mode of %s of the root", name);
        close(fd);
    }
}

static void send_changes(int socket)
{
    union { char room[CMSG_SPACE(sizeof(int))]; struct cmsghdr align; } control = {0};
    char byte = 0;
    struct iovec data = {&byte, 1};
    struct msghdr message = {
        .msg_iov = &data, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control.room};
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    int fd = open("disk/root.upper", O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(head), &fd, sizeof fd);
    if (fd < 0 || sendmsg(socket, &message, MSG_NOSIGNAL) != 1)
        fail("sending the descriptor of the changes");
    close(fd);
    close(socket);
}

static void make_root(const struct options *o, int userns)
{
    if (chdir(o->at))
        fail("entering %s", o->at);
    if ((o->writable || o->seeds.count) && mkdir(MARK, 0700))
        fail("making %s", MARK);
    mount_root(o, userns);
    mount_trees(o, userns);
    mount_seeds(o);
    give_directories(o);
    if (o->changes)
        send_changes(o->changes);
}

/* ---- the mounts of a container ---- */

static int is_below(const char *where, const char *top)
{
    size_t length = strlen(top);

    return !strncmp(where, top, length) && (where[length] == '/' || !where[length]);
}

/* The kernel writes blanks, backslashes and line ends of a path as \ooo. */
static void unescape(char *text)
{
    char *to = text;
    unsigned value;

    for (; *text; text++, to++)
        if (*text == '\\' && sscanf(text, "\\%3o", &value) == 1) {
            *to = (char)value;
            text += 3;
        } else
            *to = *text;
    *to = 0;
}

/* No command has run in it, so no path in it can be a link of a sandbox. The worker reads back what holds. */
static void seal(const struct options *o)
{
    struct mount_attributes attributes = {.set = MOUNT_ATTR_NOSUID_ | MOUNT_ATTR_NODEV_};
    char name[PATH_ROOM], line[2 * PATH_ROOM], where[PATH_ROOM];
    FILE *table;
    int namespace;

    if (!o->pid)
        usage("seal needs --pid");
    table = fopen(path(name, "/proc/%llu/mountinfo", (unsigned long long)o->pid), "re");
    if (!table)
        fail("opening %s", name);
    namespace = open(path(name, "/proc/%llu/ns/mnt", (unsigned long long)o->pid), O_RDONLY | O_CLOEXEC);
    if (namespace < 0 || setns(namespace, CLONE_NEWNS))
        fail("entering %s", name);
    while (fgets(line, sizeof line, table)) {
        if (sscanf(line, "%*s %*s %*s %*s %4095s", where) != 1)
            continue;
        unescape(where);
        if (!is_below(where, "/proc") && !is_below(where, "/sys") && !is_below(where, "/dev"))
            syscall(SYS_mount_setattr_, AT_FDCWD, where, 0, &attributes, sizeof attributes);
    }
}

/* ---- limits ---- */

static void lower(int resource, rlim_t wanted)
{
    struct rlimit limit;

    if (getrlimit(resource, &limit))
        return;
    if (limit.rlim_max != RLIM_INFINITY && limit.rlim_max < wanted)
        wanted = limit.rlim_max;
    limit.rlim_cur = limit.rlim_max = wanted;
    if (setrlimit(resource, &limit))
        fail("lowering limit %d", resource);
}

/* Where the limit is 0 already, it may not be raised to 1; that is enough unless crashes start a program. */
static void forbid_cores(void)
{
    struct rlimit limit = {1, 1};
    char first = 0;
    int fd;

    if (setrlimit(RLIMIT_CORE, &limit) == 0)
        return;
    fd = open("/proc/sys/kernel/core_pattern", O_RDONLY | O_CLOEXEC);
    if (fd < 0 || read(fd, &first, 1) != 1 || first == '|')
        fail("setting the limit of cores to 1 (a crash would start the program of kernel.core_pattern)");
    close(fd);
    lower(RLIMIT_CORE, 0);
}

static void lower_limits(const struct options *o)
{
    forbid_cores();
    if (o->memlock)
        lower(RLIMIT_MEMLOCK, o->memlock);
    if (o->nofile)
        lower(RLIMIT_NOFILE, o->nofile);
    if (o->fsize)
        lower(RLIMIT_FSIZE, o->fsize);
}

/* ---- commands ---- */

static void run(char **command)
{
    if (!command || !*command)
        usage("nothing to run after --");
    execvp(command[0], command);
    fail("starting %s", command[0]);
}

static void die_with_parent(void)
{
    pid_t parent = getppid();

    if (prctl(PR_SET_PDEATHSIG, SIGKILL))
        fail("asking to die with the worker");
    if (getppid() != parent)
        exit(FAILED);
}

static void check_stderr(void)
{
    struct stat error;

    if (fstat(2, &error) || !S_ISFIFO(error.st_mode))
        usage("stderr has to be a pipe: the sandbox's root will own it");
}

static void harmless_stdio(void)
{
    int empty[2];

    if (pipe(empty) || dup2(empty[0], 0) < 0 || dup2(2, 1) < 0)
        fail("replacing stdin and stdout");
    close(empty[0]);
    close(empty[1]);
}

static void sandbox(const struct options *o)
{
    char where[PATH_ROOM];
    int i, userns;

    if (!o->at || !o->agent || !o->root || !o->base || (!o->disk_fd == !o->tmpfs))
        usage("sandbox needs --at, --agent, --root, --base and one of --disk-fd and --tmpfs");
    if (!o->writable && (o->changes || o->owned.count))
        usage("--changes and --own need --writable");
    check_stderr();
    die_with_parent();
    try_move(o->move);
    setpriority(PRIO_PROCESS, 0, LAUNCH_NICE);
    userns = user_namespace(o->base);
    private_mounts();
    for (i = 0; i < o->hidden.count; i++)
        hide(o->hidden.items[i]);
    make_bundle(o->at);
    harmless_stdio();
    bind_namespace(userns, o->at);
    make_disk(o, path(where, "%s/disk", o->at));
    make_devices(o);
    make_root(o, userns);
    if (o->memory && o->cpus) {
        make_view(o);
        own_clock();
    }
    close(userns);
    lower_limits(o);
    run(o->command);
}

static void disk(const struct options *o)
{
    if (!o->at || (!o->disk_fd == !o->tmpfs))
        usage("disk needs --at and one of --disk-fd and --tmpfs");
    if (!o->pts != !o->terminals)
        usage("--pts needs --terminals");
    if (o->try_only)
        private_mounts();
    make_disk(o, o->at);
    if (o->memory && o->cpus)
        make_view(o);
    if (o->pts)
        make_terminals(o->pts, o->terminals);
}

int main(int argc, char **argv)
{
    struct options o = {.memlock = 8 << 20};

    umask(077);
    if (argc == 2 && !strcmp(argv[1], "version")) {
        puts("warren-launch " VERSION);
        return 0;
    }
    if (argc < 2)
        usage("what to do? sandbox, disk, seal or version");
    read_options(&o, argv + 2);
    if (!strcmp(argv[1], "sandbox"))
        sandbox(&o);
    else if (!strcmp(argv[1], "disk"))
        disk(&o);
    else if (!strcmp(argv[1], "seal"))
        seal(&o);
    else
        usage("cannot do '%s'", argv[1]);
    return 0;
}
