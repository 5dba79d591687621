/* The disk of a sandbox: an ext4 image on a loop device, or a tmpfs.
 *
 * The image comes as a descriptor and has no name any more. The loop device detaches itself when the last mount of it
 * is gone, so a disk ends with its sandbox even if the worker is dead.
 *
 * The image of a sandbox is mounted with its ids mapped: what belongs to uid 1000 inside belongs to uid 1000 on the
 * disk, whatever the sandbox's uids are on the host, so a copy of the image fits any sandbox. A saved disk has its
 * directories already. Everything in them may be a guest's; their names at the top are not: no guest sees the top.
 */
#include "launch.h"

#define LOOP_TRIES 500
/* The disk does not survive a crash of the host anyway, so no flush has to wait for the hardware. */
#define DISK_OPTIONS "noinit_itable,barrier=0,resuid=65534,errors=remount-ro"

/* From the kernel's headers, which the include directory of a libc may lack. */
#define LOOP_MAJOR 7
#define LOOP_CTL_GET_FREE 0x4C82
#define LOOP_CONFIGURE 0x4C0A
#define LO_FLAGS_AUTOCLEAR 4

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
_Static_assert(offsetof(struct loop_settings, info) == 8 && offsetof(struct loop_settings, reserved) == 240 &&
                   sizeof(struct loop_settings) == 304,
               "struct loop_config with struct loop_info64");

static int open_loop(int index) {
    char name[PATH_ROOM];
    int fd = open(path(name, "/dev/loop%d", index), O_RDWR | O_CLOEXEC);

    if (fd < 0 && errno == ENOENT) { /* no devtmpfs here: a container with a /dev of its own */
        if (mknod(name, S_IFBLK | 0600, makedev(LOOP_MAJOR, index)) && errno != EEXIST) fail("making %s", name);
        fd = open(name, O_RDWR | O_CLOEXEC);
    }
    if (fd < 0) fail("opening %s", name);
    return fd;
}

/* Attaches the image to a free loop device. Another process may take that device first: then the next one is tried. */
int attach_loop(int image, int *index) {
    struct loop_settings settings = {.fd = image, .info.flags = LO_FLAGS_AUTOCLEAR};
    int control = open("/dev/loop-control", O_RDWR | O_CLOEXEC), device, tries;

    if (control < 0) fail("opening /dev/loop-control");
    strncpy((char *)settings.info.file_name, "warren", sizeof settings.info.file_name - 1);
    for (tries = 0; tries < LOOP_TRIES; tries++) {
        *index = ioctl(control, LOOP_CTL_GET_FREE);
        if (*index < 0) fail("finding a free loop device");
        device = open_loop(*index);
        if (ioctl(device, LOOP_CONFIGURE, &settings) == 0) {
            close(control);
            return device;
        }
        if (errno != EBUSY && errno != EAGAIN) fail("attaching the disk image to loop device %d", *index);
        close(device);
        usleep(tries < 20 ? 50 : 2000);
    }
    fail("attaching the disk image: other processes took %d loop devices before us", LOOP_TRIES);
}

/* Whether ids on the disk are mapped. Those of a tmpfs are not: older kernels cannot, and it is never saved. */
int is_mapped(const struct options *o, int userns) { return o->disk_fd && userns >= 0; }

static void mount_image(const struct options *o, const char *where, int userns) {
    struct mount_attributes wanted = {.set = MOUNT_ATTR_IDMAP_, .userns_fd = userns};
    char device_name[PATH_ROOM];
    int device, index, disk;

    device = attach_loop(o->disk_fd, &index);
    path(device_name, "/dev/loop%d", index);
    disk = new_mount("ext4", device_name, DISK_OPTIONS, MOUNT_ATTR_NOSUID_ | MOUNT_ATTR_NODEV_ | MOUNT_ATTR_NOATIME_);
    if (is_mapped(o, userns) && syscall(SYS_mount_setattr_, disk, "", AT_EMPTY_PATH, &wanted, sizeof wanted))
        fail("mapping the ids of the disk");
    if (syscall(SYS_move_mount_, disk, "", AT_FDCWD, where, MOVE_MOUNT_F_EMPTY_PATH_))
        fail("mounting the disk %s at %s", device_name, where);
    close(disk);
    close(device);
    close(o->disk_fd);
}

/* Whether a directory of this name is there already, as on a saved disk. Anything else of this name is refused. */
int is_kept(const struct options *o, int above, const char *name) {
    int fd;

    if (!o->saved) return 0;
    fd = openat(above, name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd >= 0) return !close(fd);
    if (errno != ENOENT) fail("entering %s of the saved disk", name);
    return 0;
}

static void make_directory(const struct options *o, int disk, const char *item) {
    char name[256];
    const char *colon = strrchr(item, ':');
    mode_t mode;

    if (!colon || colon == item || (size_t)(colon - item) >= sizeof name || memchr(item, '/', colon - item))
        usage("--dir needs NAME:MODE, not '%s'", item);
    memcpy(name, item, colon - item);
    name[colon - item] = 0;
    mode = strtoul(colon + 1, NULL, 8);
    if (is_kept(o, disk, name)) return;
    if (mkdirat(disk, name, 0700) || fchownat(disk, name, o->owner, o->owner, AT_SYMLINK_NOFOLLOW))
        fail("making %s on the disk", name);
    if (fchmodat(disk, name, mode, 0)) fail("setting the mode of %s on the disk", name);
}

static void fill_disk(const struct options *o, const char *where) {
    int i, disk = open(where, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    if (disk < 0) fail("opening the disk at %s", where);
    if (unlinkat(disk, "lost+found", AT_REMOVEDIR) && errno != ENOENT) fail("removing lost+found from the disk");
    for (i = 0; i < o->dirs.count; i++) make_directory(o, disk, o->dirs.items[i]);
    close(disk);
}

/* Mounts the disk once more, with its ids mapped: for a container whose user namespace is the host's. */
void map_disk(const struct options *o) {
    struct mount_attributes wanted = {.set = MOUNT_ATTR_IDMAP_, .userns_fd = user_namespace(o->base)};
    int disk = syscall(SYS_open_tree_, AT_FDCWD, o->at, OPEN_TREE_CLONE_ | O_CLOEXEC);

    if (disk < 0) fail("opening the disk at %s", o->at);
    if (syscall(SYS_mount_setattr_, disk, "", AT_EMPTY_PATH, &wanted, sizeof wanted))
        fail("mapping the ids of the disk");
    if (syscall(SYS_move_mount_, disk, "", AT_FDCWD, o->mapped, MOVE_MOUNT_F_EMPTY_PATH_))
        fail("mounting the disk at %s", o->mapped);
}

/* Without a user namespace (-1) ids are not mapped. */
void make_disk(const struct options *o, const char *where, int userns) {
    if (o->disk_fd) mount_image(o, where, userns);
    else if (mount("disk", where, "tmpfs", MS_NOSUID | MS_NODEV | MS_NOATIME, o->tmpfs))
        fail("mounting a tmpfs (%s) at %s", o->tmpfs, where);
    if (is_mapped(o, userns)) own_files_as(o, o->base);
    fill_disk(o, where);
    if (is_mapped(o, userns)) own_files_as(o, 0);
}
