/* The rlimits of a sandbox. They are only lowered: root may lack CAP_SYS_RESOURCE, and raising would fail. */
#include "launch.h"

/* hardening.py judges by the same numbers. A timer of POSIX counts as a pending signal. */
#define PENDING_SIGNALS 16384
#define MESSAGE_QUEUES 819200 /* bytes */

static void lower(int resource, rlim_t wanted) {
    struct rlimit limit;

    if (getrlimit(resource, &limit)) return;
    if (limit.rlim_max != RLIM_INFINITY && limit.rlim_max < wanted) wanted = limit.rlim_max;
    limit.rlim_cur = limit.rlim_max = wanted;
    if (setrlimit(resource, &limit)) fail("lowering limit %d", resource);
}

/* Sets the limit of cores to 1 (launch.c says why not 0). If it is 0 already and must not be raised, that is enough,
 * unless a crash starts a program. */
static void forbid_cores(void) {
    struct rlimit limit = {1, 1};
    char first = 0;
    int fd;

    if (setrlimit(RLIMIT_CORE, &limit) == 0) return;
    fd = open("/proc/sys/kernel/core_pattern", O_RDONLY | O_CLOEXEC);
    if (fd < 0 || read(fd, &first, 1) != 1 || first == '|')
        fail("setting the limit of cores to 1 (a crash would start the program of kernel.core_pattern)");
    close(fd);
    lower(RLIMIT_CORE, 0);
}

void lower_limits(const struct options *o) {
    forbid_cores();
    if (o->memlock) lower(RLIMIT_MEMLOCK, o->memlock);
    if (o->nofile) lower(RLIMIT_NOFILE, o->nofile);
    if (o->fsize) lower(RLIMIT_FSIZE, o->fsize);
    lower(RLIMIT_RTPRIO, 0);
    lower(RLIMIT_NICE, 0);
    lower(RLIMIT_SIGPENDING, PENDING_SIGNALS);
    lower(RLIMIT_MSGQUEUE, MESSAGE_QUEUES);
}
