/*
 * What the first process of a sandbox does to itself before it becomes the agent; direct.c says what it finds.
 *
 * It is root of its own user namespace and nothing on the host. What it needs from outside is opened before it leaves
 * the host's root: clones of the mounts, and /proc, which the kernel gives only to whoever sees one already.
 * Everything gets its place after that, by descriptors that no link has led to, when the namespace holds nothing else.
 */
#include "launch.h"
#include <net/if.h>
#include <poll.h>
#include <sys/statfs.h>

#define SYS_close_range_ 436
#define SET_FLAG 0
#define SET_STRING 1
#define CREATE 6
#define FSOPEN_CLOEXEC_ 1
#define FSMOUNT_CLOEXEC_ 1
#define AT_RECURSIVE_ 0x8000
#define MOVE_MOUNT_T_EMPTY_PATH_ 0x40
#define NO_MAGIC_LINKS 0x02
#define NO_LINKS 0x04
#define MOUNT_ATTR_NOEXEC_ 0x8
#define CLOSE_LATER 4
#define PROC_MAGIC 0x9fa0
#define CLONE_NEWCGROUP_ 0x02000000
#define JOIN_SESSION_KEYRING 1
#define CAPABILITIES_VERSION 0x20080522
#define EMPTY_FOLDER "size=4k,nr_inodes=1,mode=555"

struct open_how_ { uint64_t flags, mode, resolve; };
_Static_assert(sizeof(struct open_how_) == 24, "struct open_how");

struct place {
    char room[PATH_ROOM];
    const char *kind, *source, *target, *flags, *data;
    int mount;
};

static struct place places[MANY];
static int channel;

/* ---- mounts ---- */

static uint64_t attributes(const char *flags) {
    static const struct {
        const char *name;
        uint64_t bit;
    } known[] = {{"ro", MOUNT_ATTR_RDONLY_},
                 {"rw", 0},
                 {"nosuid", MOUNT_ATTR_NOSUID_},
                 {"nodev", MOUNT_ATTR_NODEV_},
                 {"noexec", MOUNT_ATTR_NOEXEC_}};
    char room[PATH_ROOM], *rest = room, *word;
    uint64_t found = 0;
    size_t i;

    path(room, "%s", flags);
    while ((word = strsep(&rest, ","))) {
        for (i = 0; i < sizeof known / sizeof *known && strcmp(word, known[i].name); i++) {}
        if (i == sizeof known / sizeof *known) usage("'%s' is no flag of a mount", word);
        found |= known[i].bit;
    }
    return found;
}

static void set_options(int context, const char *kind, const char *options) {
    char room[PATH_ROOM], *rest = room, *word, *value;
    int outcome;

    path(room, "%s", options);
    while ((word = strsep(&rest, ","))) {
        if (!*word) continue;
        value = strchr(word, '=');
        if (value) *value++ = 0;
        outcome = syscall(SYS_fsconfig_, context, value ? SET_STRING : SET_FLAG, word, value, 0);
        if (outcome) fail("the option %s of %s", word, kind);
    }
}

int new_mount(const char *kind, const char *source, const char *options, uint64_t flags) {
    int context = syscall(SYS_fsopen_, kind, FSOPEN_CLOEXEC_), mount_;

    if (context < 0) fail("opening a file system of the kind %s", kind);
    if (syscall(SYS_fsconfig_, context, SET_STRING, "source", source, 0)) fail("naming %s", kind);
    set_options(context, kind, options);
    if (syscall(SYS_fsconfig_, context, CREATE, NULL, NULL, 0)) fail("making a file system of the kind %s", kind);
    mount_ = syscall(SYS_fsmount_, context, FSMOUNT_CLOEXEC_, flags);
    if (mount_ < 0) fail("mounting %s", kind);
    close(context);
    return mount_;
}

static int clone_mount(int from, const char *name, int flags, const char *shown) {
    int tree = syscall(SYS_open_tree_, from, name, OPEN_TREE_CLONE_ | O_CLOEXEC | flags);

    if (tree < 0) fail("opening %s", shown);
    return tree;
}

static void set_flags(int mount_, uint64_t flags, const char *shown) {
    struct mount_attributes wanted = {.set = flags};

    if (syscall(SYS_mount_setattr_, mount_, "", AT_EMPTY_PATH, &wanted, sizeof wanted))
        fail("setting the flags of %s", shown);
}

static void move_to(int mount_, int target, const char *shown) {
    if (syscall(SYS_move_mount_, mount_, "", target, "", MOVE_MOUNT_F_EMPTY_PATH_ | MOVE_MOUNT_T_EMPTY_PATH_))
        fail("mounting %s", shown);
}

/* Opens a path without following any link in it. */
static int open_below(int above, const char *name, uint64_t flags) {
    struct open_how_ how = {.flags = flags | O_CLOEXEC, .resolve = NO_LINKS | NO_MAGIC_LINKS};

    return syscall(SYS_openat2_, above, name, &how, sizeof how);
}

/* The same, but returns -1 only if there is no such path. */
static int find(int above, const char *name, uint64_t flags) {
    int fd = open_below(above, name, flags);

    if (fd < 0 && errno != ENOENT) fail("opening %s of the sandbox", name);
    return fd;
}

static int find_place(int root, const char *name) {
    int fd = find(root, name + 1, O_PATH);

    if (fd < 0) fail("the sandbox has no %s", name);
    return fd;
}

/* ---- before the host's root is left ---- */

static void read_place(struct place *place, const char *item) {
    char *rest = place->room, *words[5];
    int i;

    path(place->room, "%s", item);
    for (i = 0; i < 5; i++)
        if (!(words[i] = strsep(&rest, ":"))) usage("--mount needs KIND:SOURCE:TARGET:FLAGS:OPTIONS, not '%s'", item);
    if (rest || words[2][0] != '/' || !words[2][1] || strstr(item, "..") || words[1][0] == '/')
        usage("--mount needs KIND:SOURCE:TARGET:FLAGS:OPTIONS, not '%s'", item);
    place->kind = words[0];
    place->source = words[1];
    place->target = words[2];
    place->flags = words[3];
    place->data = words[4];
}

void read_places(const struct options *o) {
    static const char *const kinds[] = {"bind", "proc", "tmpfs", "devpts"};
    size_t kind;
    int i;

    for (i = 0; i < o->mounts.count; i++) {
        read_place(&places[i], o->mounts.items[i]);
        for (kind = 0; kind < sizeof kinds / sizeof *kinds && strcmp(kinds[kind], places[i].kind); kind++) {}
        if (kind == sizeof kinds / sizeof *kinds) usage("'%s' is no kind of mount", places[i].kind);
        attributes(places[i].flags);
    }
}

static void open_mounts(const struct options *o) {
    struct place *place;
    uint64_t flags;
    int i;

    for (i = 0; i < o->mounts.count; i++) {
        place = &places[i];
        flags = attributes(place->flags);
        if (strcmp(place->kind, "bind")) place->mount = new_mount(place->kind, place->source, place->data, flags);
        else {
            place->mount = clone_mount(AT_FDCWD, place->source, 0, place->source);
            if (flags) set_flags(place->mount, flags, place->source);
        }
    }
}

/* Makes the root a mount of this namespace and leaves the host's. A clone of it is mounted over it first: mounts that
 * came from another namespace are locked to their place, and pivot_root refuses them. */
static int leave_host(void) {
    int tree = clone_mount(AT_FDCWD, "rootfs", AT_RECURSIVE_, "rootfs"), root;

    if (syscall(SYS_move_mount_, tree, "", AT_FDCWD, "rootfs", MOVE_MOUNT_F_EMPTY_PATH_)) fail("mounting the root");
    if (fchdir(tree) || syscall(SYS_pivot_root, ".", ".") || umount2(".", MNT_DETACH) || chdir("/"))
        fail("leaving the host's root");
    close(tree);
    root = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (root < 0) fail("opening the root");
    return root;
}

/* ---- after it ---- */

static int put_mounts(const struct options *o, int root) {
    int i, target, proc = -1;

    for (i = 0; i < o->mounts.count; i++) {
        target = find_place(root, places[i].target);
        move_to(places[i].mount, target, places[i].target);
        close(target);
        if (!strcmp(places[i].kind, "proc")) proc = places[i].mount;
        else close(places[i].mount);
    }
    return proc;
}

/* Whether a setting has the value already. The kernel writes tabs between numbers. */
static int has_value(int proc, const char *name, const char *value) {
    char text[256] = "", *at;
    int fd = open_below(proc, name, O_RDONLY);
    ssize_t size = fd < 0 ? -1 : read(fd, text, sizeof text - 1);

    if (fd >= 0) close(fd);
    if (size < 1 || text[size - 1] != '\n') return 0;
    text[size - 1] = 0;
    for (at = text; *at; at++)
        if (*at == '\t') *at = ' ';
    return !strcmp(text, value);
}

static void set_value(int proc, const char *item) {
    char name[PATH_ROOM], *value;
    struct statfs found;
    int fd;

    path(name, "sys/%s", item);
    value = strchr(name, '=');
    *value++ = 0;
    fd = open_below(proc, name, O_WRONLY);
    if (fd < 0 && errno == EACCES && has_value(proc, name, value))
        return; /* the launcher has written it (set_ipc_values) */
    if (fd < 0 || fstatfs(fd, &found) || found.f_type != PROC_MAGIC)
        fail("opening the setting %s of this kernel", name);
    if (write(fd, value, strlen(value)) != (ssize_t)strlen(value)) fail("setting %s to %s", name, value);
    close(fd);
}

static int is_of_ipc(const char *item) { return !strncmp(item, "kernel/", 7); }

/* Writes the settings of the sandbox's IPC namespace as the host's root, in that namespace. Older kernels let nobody
 * else write them; newer ones let only the sandbox's own root, and then this does nothing and set_values writes them.
 */
void set_ipc_values(const struct options *o) {
    int i, fd, proc = new_mount("proc", "proc", "", 0);
    char name[PATH_ROOM];

    for (i = 0; i < o->sysctls.count; i++) {
        if (!is_of_ipc(o->sysctls.items[i])) continue;
        path(name, "sys/%s", o->sysctls.items[i]);
        *strchr(name, '=') = 0;
        fd = open_below(proc, name, O_WRONLY);
        if (fd < 0 && errno == EACCES) return;
        close(fd);
        set_value(proc, o->sysctls.items[i]);
    }
}

static void set_values(const struct options *o, int proc) {
    int i;

    for (i = 0; i < o->sysctls.count; i++) set_value(proc, o->sysctls.items[i]);
}

static void protect(const struct options *o, int root) {
    int i, target, tree;

    for (i = 0; i < o->read_only.count; i++) {
        target = find(root, o->read_only.items[i] + 1, O_PATH);
        if (target < 0) continue;
        tree = clone_mount(target, "", AT_EMPTY_PATH | AT_RECURSIVE_, o->read_only.items[i]);
        set_flags(tree, MOUNT_ATTR_RDONLY_ | MOUNT_ATTR_NOSUID_ | MOUNT_ATTR_NODEV_ | MOUNT_ATTR_NOEXEC_,
                  o->read_only.items[i]);
        move_to(tree, target, o->read_only.items[i]);
        close(tree);
        close(target);
    }
}

/* Covers a path, with `made` if this is the first of its kind, else with a clone of the first. */
static void cover(int target, int *first, int made, const char *shown) {
    int tree = *first < 0 ? made : clone_mount(*first, "", AT_EMPTY_PATH, shown);

    move_to(tree, target, shown);
    if (*first < 0) *first = tree;
    else close(tree);
}

static int make_null(int root) {
    int null = clone_mount(root, "dev/null", 0, "/dev/null");

    set_flags(null, MOUNT_ATTR_RDONLY_ | MOUNT_ATTR_NOSUID_ | MOUNT_ATTR_NOEXEC_, "/dev/null");
    return null;
}

static int make_empty(void) {
    return new_mount("tmpfs", "mask", EMPTY_FOLDER,
                     MOUNT_ATTR_RDONLY_ | MOUNT_ATTR_NOSUID_ | MOUNT_ATTR_NODEV_ | MOUNT_ATTR_NOEXEC_);
}

static void mask(const struct options *o, int root) {
    int i, target, null = -1, empty = -1;
    struct stat found;

    for (i = 0; i < o->masks.count; i++) {
        target = find(root, o->masks.items[i] + 1, O_PATH);
        if (target < 0) continue;
        if (fstat(target, &found)) fail("looking at %s", o->masks.items[i]);
        if (S_ISDIR(found.st_mode)) cover(target, &empty, empty < 0 ? make_empty() : -1, o->masks.items[i]);
        else cover(target, &null, null < 0 ? make_null(root) : -1, o->masks.items[i]);
        close(target);
    }
    close(null);
    close(empty);
}

static void raise_loopback(void) {
    struct ifreq request = {.ifr_name = "lo"};
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);

    if (fd < 0 || ioctl(fd, SIOCGIFFLAGS, &request)) fail("looking at the loopback interface");
    request.ifr_flags |= IFF_UP | IFF_RUNNING;
    if (ioctl(fd, SIOCSIFFLAGS, &request)) fail("raising the loopback interface");
    close(fd);
}

/* ---- rights ---- */

static void drop_capabilities(const struct options *o) {
    struct {
        uint32_t version;
        int pid;
    } head = {CAPABILITIES_VERSION, 0};
    struct { uint32_t effective, permitted, inheritable; } sets[2] = {{0}};
    _Static_assert(sizeof head == 8 && sizeof sets == 24, "__user_cap_header_struct and two __user_cap_data_struct");
    uint64_t kept = 0, each;
    int i;

    for (i = 0; i < o->capabilities.count; i++) {
        each = number("--capability", o->capabilities.items[i]);
        kept |= 1ULL << each;
    }
    if (prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)) fail("emptying the ambient capabilities");
    for (i = 0; i <= LAST_CAPABILITY && prctl(PR_CAPBSET_READ, i) >= 0; i++)
        if (!(kept >> i & 1) && prctl(PR_CAPBSET_DROP, i)) fail("dropping capability %d", i);
    for (i = 0; i < 2; i++) sets[i].effective = sets[i].permitted = (uint32_t)(kept >> 32 * i);
    if (syscall(SYS_capset, &head, sets)) fail("setting the capabilities");
}

static void load_filter(const struct filter *filter) {
    struct {
        unsigned short length;
        const void *code;
    } program = {filter->size / 8, filter->code};
    _Static_assert(sizeof program == 16, "struct sock_fprog");

    if (prctl(PR_SET_SECCOMP, 2, &program)) fail("loading the filter of system calls");
}

static void await(int fd) {
    char byte;
    ssize_t size;

    while ((size = read(fd, &byte, 1)) < 0 && errno == EINTR) {}
    if (size != 1) exit(FAILED); /* the writer has ended, and has written why if it could */
}

static void tell_failure(void) {
    char byte = 0;

    while (write(channel, &byte, 1) < 0 && errno == EINTR) {}
}

/* Becomes the agent. The exec closes `to_launcher`, from which the launcher knows that all went well; before a failure
 * ends this process, a byte is written to it. `attached` is -1, or the pipe on which the attacher says that it is done.
 */
void become_agent(const struct options *o, const struct filter *filter, int to_launcher, int attached) {
    int root, proc;

    channel = to_launcher;
    atexit(tell_failure);
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) || prctl(PR_SET_DUMPABLE, 0)) fail("asking to die with the launcher");
    if (setsid() < 0 || sethostname(o->hostname, strlen(o->hostname))) fail("naming the sandbox");
    if (syscall(SYS_keyctl, JOIN_SESSION_KEYRING, NULL) < 0 && errno != ENOSYS) fail("making a session keyring");
    raise_loopback();
    await(to_launcher);
    if (poll(&(struct pollfd){.fd = to_launcher}, 1, 0)) /* the launcher died before PR_SET_PDEATHSIG took effect */
        exit(FAILED);
    if (unshare(CLONE_NEWNS) || chdir(o->at)) fail("making the sandbox's mount namespace");
    open_mounts(o);
    root = leave_host();
    proc = put_mounts(o, root);
    set_values(o, proc);
    protect(o, root);
    mask(o, root);
    if (attached >= 0) await(attached);
    if (unshare(CLONE_NEWCGROUP_)) fail("making a cgroup namespace");
    lower_limits(o);
    umask(022);
    drop_capabilities(o);
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)) fail("forbidding new privileges");
    if (syscall(SYS_close_range_, o->keep + 1, ~0U, CLOSE_LATER)) fail("closing descriptors");
    if (prctl(PR_SET_PDEATHSIG, 0)) fail("outliving the launcher");
    load_filter(filter);
    execve(o->command[0], o->command, (char **)o->environment.items);
    fail("starting %s", o->command[0]);
}
