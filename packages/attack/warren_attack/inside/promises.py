"""Places that must not be there: writable ones without a limit, and programs that would run as somebody else."""

import contextlib
import os
import stat

from .calls import CONTAINED, THROUGH, ProbeVerdict


def write_everywhere(allowed: list[str]) -> ProbeVerdict:
    """Tries to make a file in each directory of /proc and /sys, and at the top of each mount."""
    with open("/proc/self/mountinfo") as file:
        places = {line.split(" ")[4] for line in file}
    for top in ("/proc", "/sys"):
        for folder, names, _ in os.walk(top):
            names[:] = [name for name in names if not name.isdigit() and name not in ("self", "thread-self")]
            places.add(folder)
    written = sorted(place for place in places if place not in allowed and _can_write(place))
    if written:
        return THROUGH, f"files could be made in {', '.join(written[:5])}"
    return CONTAINED, f"{len(places)} places were tried"


def _can_write(place: str) -> bool:
    path = f"{place}/.warren-attack-{os.getpid()}"
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC))
    except OSError:
        return False
    with contextlib.suppress(OSError):
        os.unlink(path)
    return True


def suid_and_devices(allowed: list[str]) -> ProbeVerdict:
    """Each place that can be written to says that it runs nobody's programs as somebody else, and opens no device."""
    lacking = []
    for place in allowed:
        flags = os.statvfs(place).f_flag
        if not flags & os.ST_NOSUID or not flags & os.ST_NODEV:
            lacking.append(place)
        with contextlib.suppress(OSError):
            os.mknod(f"{place}/.warren-device", stat.S_IFCHR | 0o666, os.makedev(1, 3))
            return THROUGH, f"a device could be made in {place}"
    return (THROUGH, f"without nosuid or nodev: {', '.join(lacking)}") if lacking else (CONTAINED, "nosuid and nodev")
