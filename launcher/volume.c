/* A named volume in a running sandbox: mounts it there, and takes it away again.
 *
 * A volume is an ext4 image that any number of sandboxes of this machine share: one loop device, one superblock, and a
 * mount for each sandbox, with ids mapped to that sandbox's. Two loop devices on one image would destroy it. So whoever
 * attaches, grows or copies an image holds an exclusive flock on it; and a loop device keeps the very file that it was
 * given open, lock and all, until it detaches itself with its last mount. Who gets the lock knows that no loop device
 * has the image, whatever was killed before; who does not finds the device that has it.
 *
 * The target is looked up in the sandbox's mount namespace, where everything may be changed by the sandbox meanwhile:
 * by one call that follows no link, and from then on by the descriptor. The process that enters runs nothing of the
 * sandbox's. What is taken away is told by the device that is mounted there.
 */
#include "launch.h"
#include <dirent.h>
#include <sys/file.h>
#include <sys/xattr.h>

#define SYS_pidfd_send_signal_ 424
#define LOOP_MAJOR 7
#define LOOP_GET_STATUS64 0x4C05
#define LOOK_TRIES 1000
#define LOOK_PAUSE_US 5000
#define LAST_LOOP "trusted.warren.loop" /* the loop device that the image had last; only a hint */
#define SET_FLAG 0
#define SET_STRING 1
#define CREATE 6
#define CLOEXEC_ 1
#define MOUNT_ATTR_NOATIME_ 0x10
#define MOVE_MOUNT_T_EMPTY_PATH_ 0x40
#define RESOLVE 0x16 /* RESOLVE_IN_ROOT, RESOLVE_NO_SYMLINKS and RESOLVE_NO_MAGICLINKS */

struct loop_status { uint64_t device, inode, others[27]; };
_Static_assert(sizeof(struct loop_status) == 232, "struct loop_info64");

/* ---- the loop device ---- */

static int has_image(int device, const struct stat *image) {
    struct loop_status status;

    return !ioctl(device, LOOP_GET_STATUS64, &status) && status.device == image->st_dev &&
           status.inode == image->st_ino;
}

/* Returns a descriptor of the loop device if it has the image, else -1. An open device does not detach itself. */
static int open_if_it_has(int index, const struct stat *image) {
    char name[PATH_ROOM];
    int device = open(path(name, "/dev/loop%d", index), O_RDWR | O_CLOEXEC);

    if (device >= 0 && has_image(device, image)) return device;
    if (device >= 0) close(device);
    return -1;
}

static int find_loop(int image, const struct stat *found, int *index) {
    char name[PATH_ROOM];
    struct dirent *entry;
    int device = -1;
    DIR *blocks;

    if (fgetxattr(image, LAST_LOOP, index, sizeof *index) == sizeof *index) device = open_if_it_has(*index, found);
    if (device >= 0 || !(blocks = opendir("/sys/block"))) return device;
    while (device < 0 && (entry = readdir(blocks)))
        if (sscanf(entry->d_name, "loop%d", index) == 1 && !access(path(name, "/sys/block/loop%d/loop", *index), F_OK))
            device = open_if_it_has(*index, found);
    closedir(blocks);
    return device;
}

static int loop_of(int image, int *index) {
    struct stat found;
    int tries, device;

    if (fstat(image, &found) || !S_ISREG(found.st_mode)) usage("--volume-fd is no image");
    for (tries = 0; tries < LOOK_TRIES; tries++) {
        if (!flock(image, LOCK_EX | LOCK_NB)) {
            if (fstat(image, &found) || !found.st_nlink) break; /* removed, or replaced by a larger one, meanwhile */
            device = attach_loop(image, index);
            fsetxattr(image, LAST_LOOP, index, sizeof *index, 0);
            return device;
        }
        if (errno != EWOULDBLOCK) fail("locking the volume");
        if ((device = find_loop(image, &found, index)) >= 0) return device;
        usleep(LOOK_PAUSE_US); /* somebody is attaching it, or its last mount has just gone */
    }
    usage("the volume is being changed by somebody else");
}

/* ---- the mount ---- */

static int mount_volume(int image, int read_only) {
    uint64_t flags = MOUNT_ATTR_NOSUID_ | MOUNT_ATTR_NODEV_ | MOUNT_ATTR_NOATIME_;
    int index, device = loop_of(image, &index), context = syscall(SYS_fsopen_, "ext4", CLOEXEC_), tree;
    char name[PATH_ROOM];

    if (context < 0) fail("opening ext4");
    path(name, "/dev/loop%d", index);
    if (syscall(SYS_fsconfig_, context, SET_STRING, "source", name, 0) ||
        syscall(SYS_fsconfig_, context, SET_STRING, "errors", "remount-ro", 0))
        fail("naming the volume");
    /* Freed blocks are given back to the host, because an image lasts; what was never written of it is zero. */
    if (syscall(SYS_fsconfig_, context, SET_FLAG, "discard", NULL, 0) ||
        syscall(SYS_fsconfig_, context, SET_FLAG, "noinit_itable", NULL, 0))
        fail("choosing how the volume is mounted");
    if (syscall(SYS_fsconfig_, context, CREATE, NULL, NULL, 0)) fail("opening the volume's file system");
    tree = syscall(SYS_fsmount_, context, CLOEXEC_, flags | (read_only ? MOUNT_ATTR_RDONLY_ : 0));
    if (tree < 0) fail("mounting the volume");
    close(context);
    close(device);
    return tree;
}

static void map_ids(int tree, int userns) {
    struct mount_attributes wanted = {.set = MOUNT_ATTR_IDMAP_, .userns_fd = userns};

    if (syscall(SYS_mount_setattr_, tree, "", AT_EMPTY_PATH, &wanted, sizeof wanted))
        fail("mapping the ids of the volume");
}

/* ---- the sandbox ---- */

/* Opens a namespace of the sandbox's first process, and makes sure that the number is still that process's. */
static int open_namespace(const struct options *o, const char *kind) {
    char name[PATH_ROOM];
    int fd = open(path(name, "/proc/%llu/ns/%s", (unsigned long long)o->pid, kind), O_RDONLY | O_CLOEXEC);

    if (fd < 0 || syscall(SYS_pidfd_send_signal_, o->pidfd, 0, NULL, 0)) usage("the sandbox has ended");
    return fd;
}

/* Enters the sandbox's mount namespace and opens the place there. */
static int open_target(const struct options *o, int namespace) {
    struct { uint64_t flags, mode, resolve; } how = {O_PATH | O_DIRECTORY | O_CLOEXEC, 0, RESOLVE};
    _Static_assert(sizeof how == 24, "struct open_how");
    int root, target;

    if (setns(namespace, CLONE_NEWNS)) fail("entering the sandbox");
    root = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
    target = root < 0 ? -1 : syscall(SYS_openat2_, root, o->at + 1, &how, sizeof how);
    if (target < 0 && errno == ELOOP) usage("the path leads through a link");
    if (target < 0) fail("opening %s in the sandbox", o->at);
    return target;
}

static void check_options(const struct options *o) {
    if (!o->pid || !o->pidfd || !o->at || o->at[0] != '/' || !o->at[1])
        usage("a volume needs --pid, --pidfd and --at PATH");
    die_with_worker(o);
}

void attach_volume(const struct options *o) {
    int namespace, userns, tree, target;

    check_options(o);
    if (!o->volume_fd) usage("attach needs --volume-fd");
    namespace = open_namespace(o, "mnt");
    userns = o->base ? user_namespace(o->base) : open_namespace(o, "user");
    tree = mount_volume(o->volume_fd, o->read_only_volume);
    map_ids(tree, userns);
    target = open_target(o, namespace);
    if (syscall(SYS_move_mount_, tree, "", target, "", MOVE_MOUNT_F_EMPTY_PATH_ | MOVE_MOUNT_T_EMPTY_PATH_))
        fail("mounting the volume at %s", o->at);
}

void detach_volume(const struct options *o) {
    struct stat found;
    int target;

    check_options(o);
    if (!o->loop) usage("detach needs --loop");
    target = open_target(o, open_namespace(o, "mnt"));
    if (fstat(target, &found) || found.st_dev != makedev(LOOP_MAJOR, o->loop - 1))
        usage("another file system is mounted at %s", o->at);
    if (fchdir(target) || umount2(".", MNT_DETACH | UMOUNT_NOFOLLOW)) fail("taking the volume away from %s", o->at);
}
