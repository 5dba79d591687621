/* What the parts of warren-launch share; launch.c opens with the theory of operation. */
#ifndef WARREN_LAUNCH_H
#define WARREN_LAUNCH_H

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
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

#define FAILED 125
#define UIDS 65536
#define MANY 128
#define PATH_ROOM 4096
#define LAUNCH_NICE 5 /* sandboxes that run have priority over those that are being made */

/* From the kernel's headers, which the include directory of a libc may lack. */
#define SYS_open_tree_ 428
#define SYS_move_mount_ 429
#define SYS_fsopen_ 430
#define SYS_fsconfig_ 431
#define SYS_fsmount_ 432
#define SYS_openat2_ 437
#define SYS_mount_setattr_ 442
#define OPEN_TREE_CLONE_ 1
#define MOVE_MOUNT_F_EMPTY_PATH_ 4
#define MOUNT_ATTR_RDONLY_ 0x1
#define MOUNT_ATTR_NOSUID_ 0x2
#define MOUNT_ATTR_NODEV_ 0x4
#define MOUNT_ATTR_NOATIME_ 0x10
#define MOUNT_ATTR_IDMAP_ 0x00100000
#define CLONE_NEWTIME_ 0x00000080

/* Every structure that is copied from the kernel has its size checked: a wrong one would be read beyond its end. */
struct mount_attributes { uint64_t set, clear, propagation, userns_fd; };
_Static_assert(sizeof(struct mount_attributes) == 32, "struct mount_attr");

struct list {
    const char *items[MANY];
    int count;
};

struct options {
    const char *at, *agent, *root, *tmpfs, *pts, *move, *mapped;
    uint64_t base, owner, nofile, fsize, pid, terminals, memory, cpus, changes, memlock, disk_fd, worker, pidfd,
        volume_fd, loop;
    int try_only, writable, saved, read_only_volume;
    struct list trees, layers, dirs, seeds, owned, devices, hidden;
    char **command;
    /* the options that only `direct` has */
    int direct, wait;
    const char *id, *pid_file, *hostname, *into, *filter_digest;
    uint64_t filter, keep, oom_score;
    struct list cgroups, enabled, settings, tried, allowed, sysctls, mounts, masks, read_only, capabilities,
        environment;
};

#define LAST_CAPABILITY 63
#define MAX_FILTER (4096 * 8) /* the longest filter that the kernel accepts */

struct filter {
    uint8_t code[MAX_FILTER + 8];
    size_t size;
};

/* report.c */
__attribute__((noreturn, format(printf, 1, 2))) void fail(const char *format, ...);
__attribute__((noreturn, format(printf, 1, 2))) void usage(const char *format, ...);
__attribute__((format(printf, 2, 3))) const char *path(char *room, const char *format, ...);
const char *split(char *room, const char *option, const char *item, char separator);

/* options.c */
uint64_t number(const char *name, const char *text);
void read_options(struct options *o, char **argv);

/* namespaces.c */
void private_mounts(void);
void hide(const char *where);
void write_map(pid_t pid, const char *which, uint64_t base);
int user_namespace(uint64_t base);
void own_clock(void);
void own_files_as(const struct options *o, uint64_t id);

/* cgroup.c */
pid_t try_move(const char *procs);
void make_cgroups(const struct options *o);
void check_devices(const struct options *o);
void limit_devices(const struct options *o);
pid_t start_attacher(const struct options *o, const int pids[2], int done);

/* bundle.c */
void make_bundle(const char *at, int for_runtime);
void bind_namespace(int fd, const char *bundle);

/* view.c */
void make_view(const struct options *o);

/* disk.c */
int is_mapped(const struct options *o, int userns);
void make_disk(const struct options *o, const char *where, int userns);
void map_disk(const struct options *o);
int is_kept(const struct options *o, int above, const char *name);
int attach_loop(int image, int *index);

/* devices.c */
void make_devices(const struct options *o);
void make_terminals(const char *where, uint64_t most);

/* root.c */
void make_root(const struct options *o, int userns);

/* seal.c */
void seal(const struct options *o);

/* volume.c */
void attach_volume(const struct options *o);
void detach_volume(const struct options *o);

/* limits.c */
void lower_limits(const struct options *o);

/* confine.c */
void confine(void);

/* sha256.c */
void sha256(const uint8_t *data, size_t size, char text[65]);

/* inside.c */
int new_mount(const char *kind, const char *source, const char *options, uint64_t flags);
void read_places(const struct options *o);
void set_ipc_values(const struct options *o);
__attribute__((noreturn)) void become_agent(const struct options *o, const struct filter *filter, int to_launcher,
                                            int attached);

/* direct.c */
int direct(struct options *o);

/* launch.c */
int wait_for(pid_t pid);
void die_with(pid_t parent);
void die_with_worker(const struct options *o);
void check_stderr(void);
void harmless_stdio(void);

#endif
