"""Taking from the neighbour: what one sandbox does to the kernel, measured by what another one still gets of it."""

from warren_attack.probe import Probe
from warren_attack.warren.arena import Arena
from warren_attack.warren.fair_share import beside

_DISK = "documents"  # beside an honest neighbour that writes to its disk, too

PROBES: tuple[Probe[Arena], ...] = (
    beside("fair-cpu", "compute in 64 processes", "busy", count=64),
    beside("fair-calls", "make system calls and random numbers", "calls", count=8),
    beside("fair-memory", "take, use and give back all memory", "memory", count=2, memory=0.6),
    beside("fair-page-cache", "read more files than the memory holds", "page_cache", count=4, memory=2.0, honest=_DISK),
    beside("fair-mappings", "change mappings, which interrupts all processors", "mappings"),
    beside("fair-disk-writes", "write to the disk as fast as it goes", "writes", honest=_DISK),
    beside("fair-fsyncs", "force every write to the disk", "fsyncs", count=8, honest=_DISK),
    beside("fair-syncs", "have the kernel write back all file systems", "syncs", honest=_DISK),
    beside("fair-truncates", "allocate and release space on the disk", "truncates", honest=_DISK),
    beside("fair-inodes", "make, move and remove files", "inodes"),
    beside("fair-dentries", "look for names that do not exist", "dentries"),
    beside("fair-inotify", "let events pile up that nobody reads", "inotify", count=2),
    beside("fair-fork-bomb", "a fork bomb", "forks", count=2),
    beside("fair-execs", "start programs", "execs", count=8),
    beside("fair-signals", "send signals", "signals"),
    beside("fair-timers", "hundreds of timers", "timers"),
    beside("fair-pipes", "wake each other up by pipes", "pipes", count=8),
    beside("fair-futexes", "wake each other up by futexes", "futexes", count=8),
    beside("fair-epolls", "polls within polls", "epolls"),
    beside("fair-locks", "quarrel over file locks", "locks", count=8),
    beside("fair-open-files", "open and close as many files as allowed", "open_files"),
    beside("fair-terminals", "keep the line discipline of terminals busy", "terminals"),
    beside("fair-socket-buffers", "fill the buffers of sockets", "sockets", count=2),
    beside("fair-connections", "connect and disconnect", "connections"),
    beside("fair-output", "print without end", "output", count=2),
    beside("fair-create-cpu", "slow the making of sandboxes down by computing", "busy", count=64, creates=True),
    beside("fair-create-memory", "the same by memory", "memory", count=2, memory=0.6, creates=True),
    beside("fair-create-disk", "the same by disk writes", "writes", creates=True),
    beside("fair-create-inodes", "the same by making and removing files", "inodes", creates=True),
    beside("fair-create-forks", "the same by a fork bomb", "forks", count=2, creates=True),
)
