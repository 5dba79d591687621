/*
 * warren-launch direct: makes a sandbox without an OCI runtime.
 *
 * Four processes, which end by themselves when the launcher is killed:
 *
 *   the launcher   root of the host. Makes the cgroups, and the mounts that launch.c describes, in a mount namespace
 *                  of its own. Waits for the agent, and says how it went. Once the owner is made it is confined to the
 *                  system calls that it still needs (calls.h).
 *   the attacher   root too. Moves the first process to its cgroups, which takes the kernel up to 20 ms. Where there is
 *                  only cgroup v2 there is none: the owner is born in the sandbox's cgroup.
 *   the owner      becomes the sandbox's own uid and makes the user namespace, so that it belongs to that uid; then it
 *                  makes the first process, in new namespaces of all kinds but two (mounts, cgroups), and ends.
 *   the first      prepares itself (inside.c) and becomes the agent. Its parent is the launcher.
 *
 *     launcher  ── fork ──> attacher                       moves itself, waits for a pid ──────────────┐
 *               ── fork ──> owner    user namespace ──> ready                                          │
 *       cgroups, limits                                                                                │
 *       uid and gid map ──────────> go: clone ──> first                       pid ──> launcher, attacher
 *       bundle, disk, /dev, root, view                     lo, hostname                                │
 *       ── go ────────────────────────────────────────────> mount namespace, root, /proc, masks        │
 *                                                          cgroup namespace <──────────── attached ────┘
 *       end of file: it runs <──────────────────────────── rights, filter, exec of the agent
 *
 * All options that are the same for many sandboxes come on stdin, as words that each end with a NUL. With --try the
 * options are checked, and nothing is made.
 */
#include "launch.h"

#define SYS_clone3_ 435
#define CLONE_INTO_CGROUP_ 0x200000000ULL
#define MAX_PLAN (256 * 1024)
#define MAX_WORDS 2048
#define HOST_NAME 64

struct clone_arguments {
    uint64_t flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls, set_tid, set_tid_size, cgroup;
};
_Static_assert(sizeof(struct clone_arguments) == 88, "struct clone_args up to cgroup");

struct pipes { int ready[2], go[2], pids[2], attached[2], channel[2]; };

/* ---- what comes from the worker ---- */

static char **read_plan(void) {
    static char text[MAX_PLAN], *words[MAX_WORDS + 1];
    size_t size = 0, at;
    ssize_t more;
    int count = 0;

    while ((more = read(0, text + size, sizeof text - size)) > 0) size += more;
    if (more < 0) fail("reading the options from stdin");
    if (size == sizeof text) usage("the options on stdin are longer than %d bytes", MAX_PLAN - 1);
    if (size && text[size - 1]) usage("the options on stdin do not end with a NUL");
    for (at = 0; at < size; at += strlen(text + at) + 1) {
        if (count == MAX_WORDS) usage("more than %d words on stdin", MAX_WORDS);
        words[count++] = text + at;
    }
    words[count] = NULL;
    return words;
}

static void read_filter(const struct options *o, struct filter *filter) {
    char digest[65];
    ssize_t size = pread(o->filter, filter->code, sizeof filter->code, 0);

    if (size < 0) fail("reading the filter of system calls");
    if (!size || size % 8 || (size_t)size == sizeof filter->code)
        usage("the filter of system calls is none: %zd bytes", size);
    filter->size = size;
    sha256(filter->code, size, digest);
    if (strcmp(digest, o->filter_digest))
        usage("the filter of system calls is another one: %s, not %s", digest, o->filter_digest);
}

static int is_path(const char *text) { return text[0] == '/' && text[1] && !strstr(text, ".."); }

static void check_paths(const struct list *list, const char *option) {
    int i;

    for (i = 0; i < list->count; i++)
        if (!is_path(list->items[i])) usage("%s needs a path, not '%s'", option, list->items[i]);
}

static void check_pairs(const struct list *list, const char *option, int of_files) {
    const char *equals, *item;
    int i;

    for (i = 0; i < list->count; i++) {
        item = list->items[i];
        equals = strchr(item, '=');
        if (!equals || equals == item || !equals[1] || (of_files && !is_path(item)) || (!of_files && *item == '/') ||
            strstr(item, ".."))
            usage("%s needs %s=VALUE, not '%s'", option, of_files ? "FILE" : "NAME", item);
    }
}

/* Checks the items of lists now, because nothing may be made before all options are known to be good. */
static void check_items(const struct options *o) {
    int i;

    check_paths(&o->masks, "--mask");
    check_paths(&o->read_only, "--read-only");
    check_paths(&o->cgroups, "--cgroup");
    check_pairs(&o->enabled, "--enable", 1);
    check_pairs(&o->settings, "--set", 1);
    check_pairs(&o->tried, "--try-set", 1);
    check_pairs(&o->sysctls, "--sysctl", 0);
    check_pairs(&o->environment, "--env", 0);
    for (i = 0; i < o->capabilities.count; i++)
        if (number("--capability", o->capabilities.items[i]) > LAST_CAPABILITY)
            usage("there is no capability %s", o->capabilities.items[i]);
    check_devices(o);
    read_places(o);
}

static void check(const struct options *o) {
    if (!o->at || !o->agent || !o->root || !o->base || (!o->disk_fd == !o->tmpfs))
        usage("direct needs --at, --agent, --root, --base and one of --disk-fd and --tmpfs");
    if (!o->writable && (o->changes || o->owned.count)) usage("--changes and --own need --writable");
    if (!o->id || !o->hostname || !o->filter || !o->filter_digest || !o->mounts.count)
        usage("direct needs --id, --hostname, --filter, --filter-sha256 and --mount");
    if (o->base < UIDS || o->base > UINT32_MAX - UIDS || o->owner > UINT32_MAX - UIDS)
        usage("--base and --owner are no uids of a sandbox");
    if (!o->into && !o->cgroups.count) usage("direct needs --cgroup or --into");
    if (!o->cgroups.count && !o->allowed.count) usage("--into alone needs --allow-device: all devices could be used");
    if (!o->wait == !o->pid_file) usage("direct needs one of --pid-file and --wait");
    if (!o->command || !*o->command) usage("nothing to run after --");
    if (!is_path(*o->command) || (o->into && !is_path(o->into)))
        usage("%s is no path", is_path(*o->command) ? o->into : *o->command);
    if (!*o->id || !*o->hostname || strlen(o->hostname) > HOST_NAME) usage("--id and --hostname need a name");
    if (o->environment.count == MANY) usage("more than %d times --env", MANY - 1);
    if (o->keep < 2 || o->keep > MANY) usage("--keep needs the number of the last descriptor to keep");
    check_items(o);
}

/* ---- the owner ---- */

static void tell(int fd, const void *data, size_t size) {
    if (write(fd, data, size) != (ssize_t)size) _exit(FAILED);
}

static void own(const struct options *o, const struct filter *filter, struct pipes *p, pid_t launcher) {
    pid_t pid;
    char byte = 0;
    gid_t base = o->base;

    /* Those who wait for the launcher learn of its death from the end of a pipe: no other process may hold that end
     * open. */
    close(p->go[1]);
    close(p->channel[0]);
    if (setgroups(0, NULL) || setresgid(base, base, base) || setresuid(base, base, base))
        fail("becoming uid %llu", (unsigned long long)o->base);
    die_with(launcher); /* again, because the kernel forgets it when the uid changes */
    if (unshare(CLONE_NEWUSER)) fail("making a user namespace (are they allowed here? see user.max_user_namespaces)");
    tell(p->ready[1], &byte, 1);
    if (read(p->go[0], &byte, 1) != 1) _exit(FAILED);
    pid = syscall(SYS_clone, CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_PARENT | SIGCHLD, 0, 0,
                  0, 0);
    if (pid < 0) fail("making the sandbox's namespaces");
    if (pid == 0) {
        close(p->ready[1]); /* else the launcher would not see that the owner is dead */
        close(p->go[0]);
        become_agent(o, filter, p->channel[1], p->attached[0]);
    }
    if (p->pids[1] >= 0) tell(p->pids[1], &pid, sizeof pid);
    tell(p->ready[1], &pid, sizeof pid);
    _exit(0);
}

static pid_t start_owner(const struct options *o) {
    struct clone_arguments arguments = {.flags = CLONE_INTO_CGROUP_, .exit_signal = SIGCHLD};
    pid_t pid;
    int directory;

    if (!o->into) return fork();
    directory = open(o->into, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (directory < 0) fail("opening the cgroup %s", o->into);
    arguments.cgroup = directory;
    pid = syscall(SYS_clone3_, &arguments, sizeof arguments);
    if (pid) close(directory);
    return pid;
}

/* ---- the launcher ---- */

static void make_pipe(int ends[2]) {
    if (pipe2(ends, O_CLOEXEC)) fail("making a pipe");
}

static int map_ids(const struct options *o, struct pipes *p, pid_t owner) {
    char byte, name[PATH_ROOM];
    int userns;

    if (read(p->ready[0], &byte, 1) != 1) exit(FAILED); /* the owner has written why */
    write_map(owner, "uid_map", o->base);
    write_map(owner, "gid_map", o->base);
    userns = open(path(name, "/proc/%d/ns/user", owner), O_RDONLY | O_CLOEXEC);
    if (userns < 0) fail("opening %s", name);
    if (write(p->go[1], &byte, 1) != 1) fail("telling the owner to go on");
    return userns;
}

static void make_parts(const struct options *o, int userns) {
    char where[PATH_ROOM];

    make_bundle(o->at, 0);
    make_disk(o, path(where, "%s/disk", o->at), userns);
    make_devices(o);
    make_root(o, userns);
    if (o->memory && o->cpus) make_view(o);
}

/* Whether the first process is dead: its channel closes when it becomes the agent, but also when it dies. */
static int has_ended(pid_t pid) {
    siginfo_t found = {0};

    return waitid(P_PID, pid, &found, WEXITED | WNOHANG | WNOWAIT) || found.si_pid == pid;
}

static void set_oom_score(const struct options *o, pid_t pid) {
    char name[PATH_ROOM], text[32];
    int fd = open(path(name, "/proc/%d/oom_score_adj", pid), O_WRONLY | O_CLOEXEC);
    int length = snprintf(text, sizeof text, "%llu", (unsigned long long)o->oom_score);

    /* Written even if it is the present value, because the sandbox cannot go below what root has written. */
    if (fd < 0 || write(fd, text, length) != length) fail("writing %s", name);
    close(fd);
}

/* Sets what belongs to the IPC namespace of the first process. The launcher enters it for that and stays there. */
static void set_ipc(const struct options *o, pid_t pid) {
    char name[PATH_ROOM];
    int namespace = open(path(name, "/proc/%d/ns/ipc", pid), O_RDONLY | O_CLOEXEC);

    if (namespace < 0 || setns(namespace, CLONE_NEWIPC)) fail("entering %s", name);
    close(namespace);
    set_ipc_values(o);
}

static void write_pid(const char *name, pid_t pid) {
    char text[32];
    int fd = open(name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    int length = snprintf(text, sizeof text, "%d", pid);

    if (fd < 0 || write(fd, text, length) != length) fail("writing %s", name);
    close(fd);
}

static void give_stdio(const struct options *o) {
    if (fchown(0, o->base, o->base) || fchown(2, o->base, o->base)) fail("giving stdio to the sandbox");
}

/* Waits until the first process has become the agent, which closes the channel. */
static void await_agent(int channel) {
    char byte;
    ssize_t size;

    while ((size = read(channel, &byte, 1)) < 0 && errno == EINTR) {}
    if (size) exit(FAILED); /* the first process has written why */
}

int direct(struct options *o) {
    static struct filter filter;
    struct pipes p = {.pids = {-1, -1}, .attached = {-1, -1}};
    char byte = 0;
    pid_t launcher = getpid(), attacher = -1, owner, first;
    int userns;

    read_options(o, read_plan());
    check(o);
    read_filter(o, &filter);
    if (o->try_only) return 0;
    check_stderr();
    die_with_worker(o);
    setpriority(PRIO_PROCESS, 0, LAUNCH_NICE);
    harmless_stdio();
    give_stdio(o);
    if (o->cgroups.count) {
        make_pipe(p.pids);
        make_pipe(p.attached);
        attacher = start_attacher(o, p.pids, p.attached[1]);
        close(p.attached[1]);
    }
    private_mounts();
    if (o->memory && o->cpus) own_clock();
    make_pipe(p.ready);
    make_pipe(p.go);
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, p.channel)) fail("making a channel");
    if (o->into) {
        make_cgroups(o);
        limit_devices(o);
    }
    owner = start_owner(o);
    if (owner < 0) fail("starting the owner of the user namespace");
    if (owner == 0) own(o, &filter, &p, launcher);
    confine(); /* not before: the owner and all that comes of it would inherit the filter */
    close(p.channel[1]);
    close(p.ready[1]);
    if (!o->into) make_cgroups(o);
    userns = map_ids(o, &p, owner);
    make_parts(o, userns);
    if (read(p.ready[0], &first, sizeof first) != sizeof first) exit(FAILED);
    set_oom_score(o, first);
    set_ipc(o, first);
    if (write(p.channel[0], &byte, 1) != 1) fail("telling the first process to go on");
    await_agent(p.channel[0]);
    wait_for(owner); /* it and the attacher have done their work: nobody else has to reap them */
    if (attacher > 0) wait_for(attacher);
    if (o->wait) return wait_for(first);
    if (has_ended(first)) usage("the first process of the sandbox has died");
    write_pid(o->pid_file, first);
    return 0;
}
