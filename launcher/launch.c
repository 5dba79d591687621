/*
 * warren-launch: prepares on the host, as root, what a sandbox needs, and starts it, itself or by an OCI runtime.
 *
 * Theory of operation
 *
 * The worker starts one warren-launch per sandbox. It runs for some milliseconds, as root, and
 * then becomes the OCI runtime (execve, same pid), which starts the sandbox and exits; or it does
 * without (direct.c). It makes what the runtime cannot make, or makes wrongly:
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
 *                       or a tmpfs. Mounted at BUNDLE/disk; an image with its ids mapped, so that a file of uid
 *                       1000 inside is one of uid 1000 on it. It is fresh, or a copy of another sandbox's disk. No
 *                       sandbox chooses a name at its top, so none of these names can be a link.
 *   the root            trees of the host laid over each other: the agent's, layers, and the image's at the
 *                       bottom, with ids mapped so that the image's root is the sandbox's root.
 *                       Mounted at BUNDLE/rootfs. Their paths are given relative to the bundle, so
 *                       that no path of the host shows in the sandbox's mount table. It is read-only, or
 *                       what is written to it lies on the disk, in root.upper. The kernel writes there in
 *                       the name of who mounted the root, and whose files have the sandbox's first uid meanwhile
 *                       (own_files_as): so nobody but a process with CAP_SYS_RESOURCE, which the kernel takes away
 *                       for this, gets what the disk keeps in reserve.
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
 * the runtime is. All children of the launcher have ended and are reaped when it ends or becomes the runtime,
 * unless it fails.
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
 *          --worker PID        who must still be the parent; it ends with that process
 *          --agent DIR         a tree that holds the agent, to lie above the image
 *          --root DIR          the image
 *          --layer DIR         a tree above the image, the uppermost first (repeatable)
 *          --writable          the root can be written to
 *          --own PATH:MODE     a directory of a writable root, made if it is missing, for --owner (repeatable)
 *          --changes FD        a socket; the descriptor of root.upper is sent over it
 *          --tree SRC:DST      another read-only tree of the host, at DST below the root
 *          --disk-fd FD        an open ext4 image, or
 *          --tmpfs OPTIONS     the mount options of a tmpfs
 *          --saved             the image is a copy of a sandbox's disk: its directories stay as they are
 *          --dir NAME:MODE     a directory to make on the disk (repeatable)
 *          --seed NAME:PATH    such a directory, laid over PATH of the image (repeatable)
 *          --owner UID         who owns these directories, and those of --own
 *          --device PATH:NAME  a node in /dev with the numbers of the host's character device PATH (repeatable)
 *          --hide DIR          a mount to take away first (repeatable)
 *          --move FILE         the cgroup.procs that a child tries to move to
 *          --memory BYTES --cpus N    what the view shows; the directory `view` is there only with these
 *          --nofile N --fsize BYTES
 *          --memlock BYTES     0 leaves it as it is; 8 MiB without this option
 *        warren-launch direct OPTION…           the options of `sandbox` but --hide, and those below; from the command
 *                                            line first, then from stdin, where each word ends with a NUL
 *          --id ID             the sandbox's; so that the worker recognizes its processes
 *          --pid-file FILE     gets the number of the first process on the host, or
 *          --wait              waits for its end, and exits as it did
 *          --hostname NAME
 *          --cgroup DIR        a cgroup of v1 to make and to move the sandbox to (repeatable)
 *          --into DIR          that of v2
 *          --enable FILE=VALUE to write before the cgroups are made; no matter if it fails (repeatable)
 *          --set FILE=VALUE    a limit (repeatable)
 *          --try-set FILE=VALUE    the same, no matter if it fails (repeatable)
 *          --allow-device KIND:MAJOR:MINOR:ACCESS    with --into: all other devices are refused (repeatable)
 *          --mount KIND:SOURCE:TARGET:FLAGS:OPTIONS    in this order; the source of a bind is below --at (repeatable)
 *          --sysctl NAME=VALUE --mask PATH --read-only PATH --capability NUMBER --env NAME=VALUE    (repeatable)
 *          --oom-score N
 *          --filter FD --filter-sha256 HEX    the filter of system calls, compiled, and its hash
 *          --keep FD           the last descriptor that the agent gets
 *          --try               only checks the options
 *          -- AGENT ARGUMENT…
 *        warren-launch disk OPTION… --at DIR    the disk alone, mounted at DIR for all to see;
 *                                               with --try only in a namespace of its own
 *          --memory BYTES --cpus N    what the view shows, which is then on the disk, in `view`
 *          --mapped DIR        where to mount the disk once more, with its ids mapped to --base
 *          --pts DIR           where to mount terminals too, and
 *          --terminals N       how many there can be
 *        warren-launch seal --pid PID           nosuid and nodev for the mounts of a container that has just
 *                                               started: an engine has no such option for its binds
 *        warren-launch reclaim --at FILE --memory BYTES    takes memory from a cgroup: writes the number to the file. That
 *                                               may take long, and ends at once when this program is killed
 *        warren-launch attach OPTION…           mounts a named volume in a running sandbox
 *          --pid PID           the sandbox's first process
 *          --pidfd FD          the same process
 *          --volume-fd FD      an open ext4 image, by a description of its own: a lock is taken on it
 *          --at PATH           a directory of the sandbox
 *          --base UID          maps ids to BASE …; without it, as the sandbox's user namespace does
 *          --read-only-volume
 *          --worker PID
 *        warren-launch detach --pid PID --pidfd FD --at PATH --loop N    takes away what the loop device of the minor
 *                                            number N has at PATH
 *        warren-launch version
 */
#include "launch.h"

#define VERSION "1"

#ifdef __SANITIZE_ADDRESS__ /* The program runs for milliseconds and frees nothing on purpose. */
const char *__asan_default_options(void);
const char *__asan_default_options(void) { return "detect_leaks=0"; }
#endif

static void run(char **command) {
    if (!command || !*command) usage("nothing to run after --");
    execvp(command[0], command);
    fail("starting %s", command[0]);
}

int wait_for(pid_t pid) {
    int status;

    while (waitpid(pid, &status, 0) < 0)
        if (errno != EINTR) fail("waiting for a process");
    return WIFEXITED(status) ? WEXITSTATUS(status) : FAILED;
}

void die_with(pid_t parent) {
    if (prctl(PR_SET_PDEATHSIG, SIGKILL)) fail("asking to die with the worker");
    if (getppid() != parent) exit(FAILED);
}

/* Dies with the worker. --worker says which process that is: if it has died already, the parent is another one. */
void die_with_worker(const struct options *o) { die_with(o->worker ? (pid_t)o->worker : getppid()); }

void check_stderr(void) {
    struct stat error;

    if (fstat(2, &error) || !S_ISFIFO(error.st_mode)) usage("stderr has to be a pipe: the sandbox's root will own it");
}

void harmless_stdio(void) {
    int empty[2];

    if (pipe(empty) || dup2(empty[0], 0) < 0 || dup2(2, 1) < 0) fail("replacing stdin and stdout");
    close(empty[0]);
    close(empty[1]);
}

static void sandbox(const struct options *o) {
    char where[PATH_ROOM];
    int i, userns;
    pid_t mover;

    if (!o->at || !o->agent || !o->root || !o->base || (!o->disk_fd == !o->tmpfs))
        usage("sandbox needs --at, --agent, --root, --base and one of --disk-fd and --tmpfs");
    if (!o->writable && (o->changes || o->owned.count)) usage("--changes and --own need --writable");
    check_stderr();
    die_with_worker(o);
    mover = try_move(o->move);
    setpriority(PRIO_PROCESS, 0, LAUNCH_NICE);
    userns = user_namespace(o->base);
    private_mounts();
    for (i = 0; i < o->hidden.count; i++) hide(o->hidden.items[i]);
    make_bundle(o->at, 1);
    harmless_stdio();
    bind_namespace(userns, o->at);
    make_disk(o, path(where, "%s/disk", o->at), userns);
    make_devices(o);
    make_root(o, userns);
    if (o->memory && o->cpus) {
        make_view(o);
        own_clock();
    }
    close(userns);
    lower_limits(o);
    if (mover > 0) wait_for(mover); /* the runtime would wait for the same, and would not reap it */
    run(o->command);
}

static void disk(const struct options *o) {
    if (!o->at || (!o->disk_fd == !o->tmpfs)) usage("disk needs --at and one of --disk-fd and --tmpfs");
    if (!o->pts != !o->terminals) usage("--pts needs --terminals");
    if (o->mapped && (!o->base || !o->disk_fd)) usage("--mapped needs --base and --disk-fd");
    if (o->try_only) private_mounts();
    make_disk(o, o->at, -1);
    if (o->memory && o->cpus) make_view(o);
    if (o->mapped) map_disk(o);
    if (o->pts) make_terminals(o->pts, o->terminals);
}

/* The kernel may take less than it was asked for, and says so by an error: that is none here. */
static void reclaim(const struct options *o) {
    char text[32];
    int file, length;

    if (!o->at) usage("reclaim needs --at");
    die_with_worker(o);
    length = snprintf(text, sizeof text, "%llu", (unsigned long long)o->memory);
    file = open(o->at, O_WRONLY | O_CLOEXEC);
    if (file < 0) fail("opening the cgroup");
    if (write(file, text, (size_t)length) < 0 && errno != EAGAIN && errno != EBUSY && errno != EINTR)
        fail("reclaiming");
}

int main(int argc, char **argv) {
    static struct options o = {.memlock = 8 << 20};

    umask(077);
    if (argc == 2 && (!strcmp(argv[1], "version") || !strcmp(argv[1], "--version"))) {
        puts("warren-launch " VERSION);
        return 0;
    }
    if (argc < 2) usage("what to do? sandbox, direct, disk, seal, reclaim, attach, detach or version");
    o.direct = !strcmp(argv[1], "direct");
    read_options(&o, argv + 2);
    if (o.direct) return direct(&o);
    if (!strcmp(argv[1], "sandbox")) sandbox(&o);
    else if (!strcmp(argv[1], "disk")) disk(&o);
    else if (!strcmp(argv[1], "seal")) seal(&o);
    else if (!strcmp(argv[1], "reclaim")) reclaim(&o);
    else if (!strcmp(argv[1], "attach")) attach_volume(&o);
    else if (!strcmp(argv[1], "detach")) detach_volume(&o);
    else usage("cannot do '%s'", argv[1]);
    return 0;
}
