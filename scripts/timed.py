"""Runs a command and prints, at the end, how long it took and the processor time of everything it has started.

    python scripts/timed.py COMMAND [ARGUMENT ...]

Processes that the command leaves to init count too: this process takes init's place, and reaps them.
"""

import ctypes
import os
import resource
import signal
import sys
import time

_PR_SET_CHILD_SUBREAPER = 36


def main(argv: list[str]) -> int:
    begun = time.monotonic()
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    child = os.posix_spawnp(argv[0], argv, os.environ)
    # A Ctrl-C reaches the command too; this process stays until the command has ended.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: os.kill(child, signal.SIGTERM))
    ended = 0
    while ended != child:
        ended, status = os.wait()
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    used_s = usage.ru_utime + usage.ru_stime
    sys.stdout.write(f"{_minutes(time.monotonic() - begun)}, {_minutes(used_s)} of processor time\n")
    return os.waitstatus_to_exitcode(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)


def _minutes(seconds: float) -> str:
    return f"{int(seconds) // 60} min {int(seconds) % 60} s"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
