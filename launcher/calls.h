/* The system calls of the processes that make a sandbox without a runtime (direct.c has a picture of them).
 *
 * The launcher, once it has started the owner, is confined to CONFINED, RARE and OLD (confine.c). The other lists are
 * here to be read, and to be compared: a test traces sandboxes of several kinds, and fails if a process makes a call
 * that its list lacks, or if CONFINED has one that is not made.
 *
 * The other processes are not confined. A process cannot give a filter up, and its children inherit it: that of the owner
 * or of the first process would stay with the agent and with every command of the sandbox. It would have to allow all that
 * a sandbox may call, and would cost time there. Neither has a right on the host, and the first process loads the
 * sandbox's own filter as its last deed. For the same reason the launcher is confined only when the owner is on its way,
 * and not at all if it becomes an OCI runtime. The attacher only writes a number to files, and a filter costs 0.2 ms.
 *
 * A name that ends with an underscore is one that launch.h has the number of.
 */
#ifndef WARREN_CALLS_H
#define WARREN_CALLS_H

/* The launcher, until it is confined. */
#define STARTING_CALLS                                                                                                 \
    CALL(bpf), CALL(clone), CALL(clone3_), CALL(close), CALL(dup3), CALL(execve), CALL(fchown), CALL(fcntl),           \
        CALL(fstat), CALL(getpid), CALL(getppid), CALL(mkdirat), CALL(mount), CALL(openat), CALL(pipe2), CALL(prctl),  \
        CALL(pread64), CALL(read), CALL(rt_sigprocmask), CALL(set_tid_address), CALL(setpriority), CALL(socketpair),   \
        CALL(umask), CALL(unshare), CALL(write)

/* After that. */
#define CONFINED_CALLS                                                                                                 \
    CALL(chdir), CALL(close), CALL(exit_group), CALL(faccessat), CALL(fchmod), CALL(fchmodat), CALL(fchownat),         \
        CALL(fcntl), CALL(fsconfig_), CALL(fsmount_), CALL(fsopen_), CALL(fstat), CALL(fstatfs), CALL(getppid),        \
        CALL(ioctl), CALL(mkdirat), CALL(mknodat), CALL(mount), CALL(mount_setattr_), CALL(move_mount_),               \
        CALL(newfstatat), CALL(open_tree_), CALL(openat), CALL(openat2_), CALL(prctl), CALL(read), CALL(sendmsg),      \
        CALL(setfsgid), CALL(setfsuid), CALL(setns), CALL(symlinkat), CALL(unlinkat), CALL(wait4), CALL(waitid),       \
        CALL(write)

/* What a failure, a wait for a loop device, an older kernel or another C library takes. */
#define RARE_CALLS                                                                                                     \
    CALL(brk), CALL(clock_gettime), CALL(clock_nanosleep), CALL(futex), CALL(getrandom), CALL(mmap), CALL(munmap),     \
        CALL(nanosleep), CALL(restart_syscall), CALL(rt_sigprocmask), CALL(writev)

#ifdef __x86_64__ /* which has calls that newer machines express by others */
#define OLD_CALLS                                                                                                      \
    CALL(access), CALL(chmod), CALL(chown), CALL(lstat), CALL(mkdir), CALL(mknod), CALL(open), CALL(rmdir),            \
        CALL(stat), CALL(symlink), CALL(unlink)
#else
#define OLD_CALLS
#endif

/* The attacher and the owner, from their birth to their end. */
#define ATTACHER_CALLS                                                                                                 \
    CALL(close), CALL(exit_group), CALL(fcntl), CALL(getppid), CALL(gettid), CALL(openat), CALL(prctl), CALL(read),    \
        CALL(rt_sigprocmask), CALL(write)
#define OWNER_CALLS                                                                                                    \
    CALL(clone), CALL(close), CALL(exit_group), CALL(getppid), CALL(gettid), CALL(prctl), CALL(read),                  \
        CALL(rt_sigprocmask), CALL(setgroups), CALL(setresgid), CALL(setresuid), CALL(unshare), CALL(write)

/* The first process, until it becomes the agent. */
#define FIRST_CALLS                                                                                                    \
    CALL(capset), CALL(chdir), CALL(close), CALL(close_range_), CALL(execve), CALL(fchdir), CALL(fcntl),               \
        CALL(fsconfig_), CALL(fsmount_), CALL(fsopen_), CALL(fstat), CALL(fstatfs), CALL(ioctl), CALL(keyctl),         \
        CALL(mount_setattr_), CALL(move_mount_), CALL(open_tree_), CALL(openat), CALL(openat2_), CALL(pivot_root),     \
        CALL(ppoll), CALL(prctl), CALL(prlimit64), CALL(read), CALL(sethostname), CALL(setsid), CALL(socket),          \
        CALL(umask), CALL(umount2), CALL(unshare), CALL(write)

#endif
