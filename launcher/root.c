/* The root of a sandbox: trees of the host, with mapped ids, laid over each other by overlayfs.
 *
 * The working directory is the bundle, and all paths are relative to it, because the options of an overlay can be seen
 * in the sandbox's mount table. A writable root has its upper directory on the disk. A path of the image may be a link
 * that its author chose, so directories in it are entered step by step, without following links.
 */
#include "launch.h"
#include <sys/statfs.h>

/* So that the upper directory holds nothing but plain files, whiteouts and opaque directories, which can be saved.
 * `volatile`: nothing is synchronized, because the disk does not survive a crash. */
/* No attribute of a file leads to another: the kernel may follow such ones unless it is told not to. */
#define LAYER_OPTIONS "metacopy=off,redirect_dir=nofollow"
#define UPPER_OPTIONS LAYER_OPTIONS ",index=off,xino=auto,uuid=off,volatile"
#define READ_ONLY 1 /* ST_RDONLY */
#define MARK "mark" /* a directory that shows the disk itself where all others of it are below an overlay */

/* Makes a tree read-only, with its ids mapped to the sandbox's. Not every file system can map ids: without that the
 * files belong to nobody, which is enough for reading them, but not (`must_map`) for a root that can be written to. */
static void set_attributes(int tree, int userns, const char *source, int must_map) {
    struct mount_attributes wanted = {
        .set = MOUNT_ATTR_RDONLY_ | MOUNT_ATTR_NOSUID_ | MOUNT_ATTR_NODEV_ | MOUNT_ATTR_IDMAP_, .userns_fd = userns};

    if (syscall(SYS_mount_setattr_, tree, "", AT_EMPTY_PATH, &wanted, sizeof wanted) == 0) return;
    if (errno != EINVAL && errno != EOPNOTSUPP && errno != EPERM) fail("making %s read-only", source);
    if (must_map) fail("mapping the ids of %s, which a writable root needs and its file system cannot do", source);
    wanted.set &= ~(uint64_t)MOUNT_ATTR_IDMAP_;
    wanted.userns_fd = 0;
    if (syscall(SYS_mount_setattr_, tree, "", AT_EMPTY_PATH, &wanted, sizeof wanted))
        fail("making %s read-only (Linux 5.12 or later is needed)", source);
}

static void mount_tree(const char *source, const char *target, int userns, int must_map) {
    int tree = syscall(SYS_open_tree_, AT_FDCWD, source, OPEN_TREE_CLONE_ | O_CLOEXEC);

    if (tree < 0) fail("opening the tree %s", source);
    set_attributes(tree, userns, source, must_map);
    if (syscall(SYS_move_mount_, tree, "", AT_FDCWD, target, MOVE_MOUNT_F_EMPTY_PATH_))
        fail("mounting %s at %s", source, target);
    close(tree);
}

static int open_directory(const char *name) {
    int fd = open(name, O_PATH | O_DIRECTORY | O_CLOEXEC);

    if (fd < 0) fail("opening %s", name);
    return fd;
}

/* Opens a directory of the root. Makes it if it is missing, and replaces what is no directory, so that no link leads
 * elsewhere. */
static int enter(int above, const char *name, uint64_t owner) {
    int fd, tries;

    for (tries = 0; tries < 3; tries++) {
        fd = openat(above, name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (fd >= 0) return fd;
        if (errno != ENOENT && unlinkat(above, name, 0)) break;
        if (mkdirat(above, name, 0755) || fchownat(above, name, owner, owner, AT_SYMLINK_NOFOLLOW) ||
            fchmodat(above, name, 0755, 0))
            break;
    }
    fail("entering the directory %s of the root", name);
}

/* Returns a descriptor of the directory `below` under the directory `above`, which it closes. */
static int walk(int above, const char *below, uint64_t owner) {
    char room[PATH_ROOM], *rest = room, *name;
    int fd;

    path(room, "%s", below);
    while ((name = strsep(&rest, "/"))) {
        if (!*name) continue;
        if (!strcmp(name, ".") || !strcmp(name, "..")) usage("a path leads through %s: %s", name, below);
        fd = enter(above, name, owner);
        close(above);
        above = fd;
    }
    return above;
}

/* Mounts an overlay; without an `upper` it is read-only. An overlay has inodes of its own, so locks and watches of one
 * sandbox do not affect another. */
static void lay_over(const char *where, const char *lower, const char *upper, const char *what) {
    char options[PATH_ROOM];
    unsigned long flags = MS_NOSUID | MS_NODEV;

    if (upper)
        path(options, "lowerdir=%s,upperdir=disk/%s.upper,workdir=disk/%s.work," UPPER_OPTIONS, lower, upper, upper);
    else {
        path(options, "lowerdir=%s," LAYER_OPTIONS, lower);
        flags |= MS_RDONLY;
    }
    if (mount("root", where, "overlay", flags, options)) fail("laying %s over %s (%s)", what, where, options);
}

/* Where the kernel cannot use the upper directory, it makes an overlay read-only and reports no error. Closes `top`. */
static void check_writable(int top, const char *what) {
    struct statfs found;

    if (fstatfs(top, &found)) fail("looking at %s", what);
    if (found.f_flags & READ_ONLY) usage("%s cannot be written to: the kernel does not take its upper directory", what);
    close(top);
}

/* On a saved disk the mark of an overlay that nobody synchronizes is still in its work directory, and would keep the
 * next from being mounted. The disk was synchronized when it was saved. The kernel clears away the rest. */
static void clear_mark(int disk, const char *work) {
    static const char *const below[] = {"work", "incompat", "volatile"};
    int i, next, above = -1, at = openat(disk, work, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);

    for (i = 0; i < 3 && at >= 0; i++) {
        next = openat(at, below[i], O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (above >= 0) close(above);
        above = at;
        at = next;
    }
    if ((at < 0 || (unlinkat(at, "dirty", 0) && errno != ENOENT) || unlinkat(above, "volatile", AT_REMOVEDIR)) &&
        errno != ENOENT)
        fail("clearing %s", work);
    if (above >= 0) close(above);
    if (at >= 0) close(at);
}

/* Makes the upper directory of an overlay. The top of the overlay will show its owner and mode: they are those of
 * `like`. On a saved disk they are what the sandbox has made of them. */
static void make_upper(const struct options *o, const char *name, const char *like) {
    char upper[PATH_ROOM], work[PATH_ROOM];
    int disk = open_directory("disk");
    struct stat found;

    path(upper, "%s.upper", name);
    path(work, "%s.work", name);
    if (stat(like, &found)) fail("looking at %s", like);
    if (!is_kept(o, disk, upper) &&
        (mkdirat(disk, upper, 0700) || fchownat(disk, upper, found.st_uid, found.st_gid, AT_SYMLINK_NOFOLLOW) ||
         fchmodat(disk, upper, found.st_mode & 07777, 0)))
        fail("making the upper directory of %s", name);
    if (is_kept(o, disk, work)) clear_mark(disk, work);
    else if (mkdirat(disk, work, 0700)) fail("making the work directory of %s", name);
    close(disk);
}

static void mount_root(const struct options *o, int userns) {
    char lower[PATH_ROOM], name[PATH_ROOM];
    int i, length;

    mount_tree(o->agent, "agent", userns, o->writable);
    mount_tree(o->root, "image", userns, o->writable);
    length = snprintf(lower, sizeof lower, "agent");
    for (i = 0; i < o->layers.count; i++) {
        if (mkdir(path(name, "layer%d", i), 0700)) fail("making %s", name);
        mount_tree(o->layers.items[i], name, userns, o->writable);
        length += snprintf(lower + length, sizeof lower - length, ":%s", name);
    }
    snprintf(lower + length, sizeof lower - length, ":image");
    if (o->writable) make_upper(o, "root", "image");
    lay_over("rootfs", lower, o->writable ? "root" : NULL, o->root);
    if (o->writable) check_writable(open_directory("rootfs"), "the root");
    if (o->writable) lay_over("rootfs/.warren", "agent/.warren:empty", NULL, o->agent);
}

static void mount_trees(const struct options *o, int userns) {
    char source[PATH_ROOM], place[PATH_ROOM], tree[PATH_ROOM], lower[PATH_ROOM];
    const char *target;
    int i, fd;

    for (i = 0; i < o->trees.count; i++) {
        target = split(source, "--tree", o->trees.items[i], ':');
        fd = walk(open_directory("rootfs"), target, o->base);
        mount_tree(source, path(tree, "tree%d", i), userns, o->writable);
        if (o->writable) make_upper(o, tree, tree);
        /* Here as elsewhere the agent's tree lies above, if it has anything at this place. */
        if (access(path(place, "agent%s", target), F_OK)) path(lower, "%s:empty", tree);
        else path(lower, "%s:%s", place, tree);
        lay_over(path(place, "/proc/self/fd/%d", fd), lower, o->writable ? tree : NULL, source);
        close(fd);
        if (o->writable) check_writable(walk(open_directory("rootfs"), target, o->base), target);
    }
}

static void mount_seeds(const struct options *o) {
    char name[PATH_ROOM], place[PATH_ROOM], lower[PATH_ROOM];
    const char *below;
    int i;

    for (i = 0; i < o->seeds.count; i++) {
        below = split(name, "--seed", o->seeds.items[i], ':');
        close(walk(open_directory("image"), below, o->base));
        make_upper(o, name, path(place, "disk/%s", name));
        lay_over(place, path(lower, "image/%s:empty", below), name, below);
        check_writable(open_directory(place), below);
    }
}

static void give_directories(const struct options *o) {
    char name[PATH_ROOM], place[PATH_ROOM];
    struct stat found;
    mode_t mode;
    int i, fd;

    for (i = 0; i < o->owned.count; i++) {
        mode = strtoul(split(name, "--own", o->owned.items[i], ':'), NULL, 8);
        fd = walk(open_directory("rootfs"), name, o->base);
        path(place, "/proc/self/fd/%d", fd);
        if (fstat(fd, &found)) fail("looking at %s of the root", name);
        if ((found.st_uid != o->owner || found.st_gid != o->owner) && chown(place, o->owner, o->owner))
            fail("giving %s of the root away", name);
        if ((found.st_mode & 07777) != mode && chmod(place, mode)) fail("setting the mode of %s of the root", name);
        close(fd);
    }
}

static void send_changes(int socket) {
    union {
        char room[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } control = {0};
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
    if (fd < 0 || sendmsg(socket, &message, MSG_NOSIGNAL) != 1) fail("sending the descriptor of the changes");
    close(fd);
    close(socket);
}

static void make_mark(const struct options *o) {
    int disk = open_directory("disk");

    if (!is_kept(o, disk, MARK) && mkdirat(disk, MARK, 0700)) fail("making %s on the disk", MARK);
    close(disk);
}

void make_root(const struct options *o, int userns) {
    if (chdir(o->at)) fail("entering %s", o->at);
    if (is_mapped(o, userns)) own_files_as(o, o->base);
    if (o->writable || o->seeds.count) make_mark(o);
    mount_root(o, userns);
    mount_trees(o, userns);
    mount_seeds(o);
    give_directories(o);
    if (o->changes) send_changes(o->changes);
    if (is_mapped(o, userns)) own_files_as(o, 0);
}
