#include "launch.h"

/* Only the time of the attempt counts: it may fail, and the child is of no further use. */
void try_move(const char *procs)
{
    int fd;

    if (!procs || fork())
        return;
    fd = open(procs, O_WRONLY | O_CLOEXEC);
    if (fd >= 0 && write(fd, "0", 1) == 1)
        _exit(0);
    _exit(1);
}
