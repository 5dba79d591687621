"""Checks of the machine: its kernel and the kernel's features, memory and disk."""

import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from warren.doctor import trials
from warren.doctor.check import Check, fail, ok, warn
from warren.doctor.kernel_state import check_kernel_state
from warren.model.spec import Limits
from warren.sandboxes.host.cgroups import NEEDED, Hierarchies
from warren.sandboxes.host.disk_room import DiskWatch
from warren.sandboxes.host.uids import FIRST

_LEAST_KERNEL = (5, 19)  # overlays of idmapped mounts; idmapped mounts alone came with 5.12
_ARCHITECTURES = ("x86_64", "aarch64")
_LEAST_PYTHON = (3, 11)
_GIB = 1 << 30
_SANDBOXES_OF_FILES = 4
_APPARMOR = Path("/proc/sys/kernel/apparmor_restrict_unprivileged_userns")


def check_machine(state_dir: Path) -> Iterable[Check]:
    yield check_kernel(platform.system(), platform.release(), platform.machine())
    yield _check_python()
    yield _check_root()
    yield from check_cgroups(Hierarchies.here())
    yield _check_swap(Hierarchies.here())
    yield check_user_namespaces()
    yield _check_idmapped(state_dir)
    yield _check_seccomp()
    yield _check_disk(state_dir)
    yield _check_memory(Path("/proc/meminfo").read_text())
    yield _check_inotify()
    yield check_open_files(int(Path("/proc/sys/fs/file-max").read_text()))
    yield check_disk_watch(DiskWatch.can_restrict())
    yield check_socket_buffers(Hierarchies.here())
    yield from check_kernel_state()
    yield _check_program("mke2fs", "disks of sandboxes are made with it", "install e2fsprogs")


def check_kernel(system: str, release: str, machine: str) -> Check:
    if system != "Linux":
        return fail("kernel", system, "sandboxes need Linux: use a Linux machine, or a virtual one")
    if machine not in _ARCHITECTURES:
        return fail("kernel", f"Linux on {machine}", f"use one of {', '.join(_ARCHITECTURES)}")
    numbers = tuple(int(part) for part in re.findall(r"\d+", release)[:2])
    found = f"Linux {release} on {machine}"
    least = ".".join(map(str, _LEAST_KERNEL))
    return (
        ok("kernel", found) if numbers >= _LEAST_KERNEL else fail("kernel", found, f"Linux {least} or later is needed")
    )


def _check_python() -> Check:
    found = f"Python {platform.python_version()}"
    return (
        ok("python", found) if sys.version_info >= _LEAST_PYTHON else fail("python", found, "use Python 3.11 or later")
    )


def _check_root() -> Check:
    if os.geteuid() == 0:
        return ok("root", "running as root")
    return fail(
        "root", f"running as uid {os.geteuid()}", "use sudo: the oci provider makes namespaces, mounts and cgroups"
    )


def check_cgroups(hierarchies: Hierarchies) -> Iterable[Check]:
    version = hierarchies.version
    if version == "none":
        yield fail("cgroups", "none are mounted", "mount cgroup2 at /sys/fs/cgroup")
        return
    hidden = ", the v2 mount is hidden from OCI runtimes" if version == "hybrid" else ""
    yield ok("cgroups", f"{version}{hidden}")
    there = _v2_controllers(hierarchies) if version == "v2" else set(hierarchies.mounts)
    for name in NEEDED:
        if name in there:
            yield ok(f"cgroup {name}", "can be limited")
        else:
            yield fail(
                f"cgroup {name}",
                "there is no such controller",
                f"enable it on the kernel's command line: {_switch(name)}",
            )


def _v2_controllers(hierarchies: Hierarchies) -> set[str]:
    try:
        return set((hierarchies.mounts[""] / "cgroup.controllers").read_text().split())
    except OSError:
        return set()


def _switch(controller: str) -> str:
    return "cgroup_enable=memory" if controller == "memory" else f"remove cgroup_disable={controller}"


def _check_swap(hierarchies: Hierarchies) -> Check:
    swap = len(Path("/proc/swaps").read_text().splitlines()) > 1
    if hierarchies.limits_swap:
        return ok("swap", "memory and swap are limited together")
    if not swap:
        return ok("swap", "the machine has no swap")
    return fail("swap", "there is swap, and the kernel cannot limit it", "boot with swapaccount=1, or swapoff -a")


def check_user_namespaces(apparmor: Path = _APPARMOR) -> Check:
    """`apparmor`: the file that says whether AppArmor restricts user namespaces of unprivileged users, as on Ubuntu."""
    name = "user namespaces"
    if os.geteuid() != 0:
        return warn(name, "not tried: that needs root", "run `sudo warren doctor`")
    why = _trial("userns", str(FIRST))
    if why:
        return fail(name, why, "sysctl user.max_user_namespaces=65536 (and kernel.unprivileged_userns_clone=1)")
    if apparmor.exists() and apparmor.read_text().strip() != "0":
        return warn(
            name,
            "a uid without any rights can make one, and AppArmor gives it no rights inside: `direct` cannot work",
            f"sysctl kernel.{apparmor.name}=0, or install crun, which does not need it and is slower",
        )
    return ok(name, "one can be made by a uid without any rights")


def _check_idmapped(state_dir: Path) -> Check:
    name = "idmapped mounts"
    place = next(path for path in (state_dir, *state_dir.parents) if path.exists())
    if os.geteuid() != 0:
        return warn(name, "not tried: that needs root", "run `sudo warren doctor`")
    why = _trial("idmap", str(place))
    if not why:
        return ok(name, f"the file system of {place} has them")
    remedy = "put WARREN_STATE_DIR on ext4, xfs or btrfs; without, files of images belong to nobody inside"
    return warn(name, f"{place}: {why}", remedy)


def _trial(*arguments: str) -> str:
    """Runs a trial in a process of its own. Returns why it fails; empty if it works."""
    argv = [sys.executable, "-I", str(trials.__file__), *arguments]
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=20, check=False)
    return "" if done.returncode == 0 else (done.stdout.strip() or done.stderr.strip()[-200:] or "it failed")


def _check_seccomp() -> Check:
    try:
        actions = Path("/proc/sys/kernel/seccomp/actions_avail").read_text().split()
    except OSError:
        return fail("seccomp", "the kernel has none", "use a kernel with CONFIG_SECCOMP_FILTER")
    needed = {"errno", "kill_process", "allow"}
    if needed <= set(actions):
        return ok("seccomp", f"{len(actions)} actions")
    return fail("seccomp", f"only {' '.join(actions)}", "use a kernel with CONFIG_SECCOMP_FILTER")


def _check_disk(state_dir: Path) -> Check:
    place = next(path for path in (state_dir, *state_dir.parents) if path.exists())
    stat = os.statvfs(place)
    free = stat.f_bavail * stat.f_frsize
    found = f"{free / _GIB:.1f} GiB free at {place}"
    if free < _GIB // 4:
        return fail("disk", found, "free some space, or set WARREN_STATE_DIR to another disk")
    if free < 4 * _GIB:
        return warn("disk", found, "a sandbox may take its disk limit (1 GiB by default): free some space")
    return ok("disk", found)


def _check_memory(meminfo: str) -> Check:
    found = re.search(r"MemAvailable:\s+(\d+) kB", meminfo)
    free = int(found[1]) * 1024 if found else 0
    text = f"{free / _GIB:.1f} GiB available"
    return (
        ok("memory", text)
        if free >= _GIB
        else warn("memory", text, "a sandbox may take 512 MiB by default: stop something")
    )


def _check_inotify() -> Check:
    instances, watches = (
        int(Path(f"/proc/sys/fs/inotify/max_user_{name}").read_text()) for name in ("instances", "watches")
    )
    found = f"{instances} instances and {watches} watches for each user, and each sandbox is a user of its own"
    if instances >= 64 and watches >= 8192:
        return ok("inotify", found)
    return warn("inotify", found, "sysctl fs.inotify.max_user_instances=128 fs.inotify.max_user_watches=65536")


def check_open_files(most: int) -> Check:
    """Warns if one sandbox can open so many of the machine's files that others get none."""
    usual = Limits()
    one = usual.pids * usual.open_files
    found = f"the machine can have {most} files open, a sandbox {one} by default"
    if one * _SANDBOXES_OF_FILES <= most:
        return ok("open files", found)
    return warn("open files", found, f"sysctl fs.file-max={one * _SANDBOXES_OF_FILES}, or lower open_files or pids")


def check_disk_watch(works: bool) -> Check:
    if works:
        return ok("disk watch", "writers can be stopped before the disk is full")
    return warn(
        "disk watch",
        "/sys/fs/ext4 cannot be written to, so no more disk is promised than there is",
        "mount sysfs read-write, or count with disk_overcommit 1",
    )


def check_socket_buffers(hierarchies: Hierarchies) -> Check:
    name = "socket buffers"
    if hierarchies.version == "v2":
        return ok(name, "they count as memory")
    file = hierarchies.mounts.get("memory", Path("/nowhere")) / "memory.kmem.tcp.limit_in_bytes"
    if file.exists():
        return ok(name, "they have a limit of their own")
    return warn(name, "this kernel cannot limit them", "use cgroup v2: systemd.unified_cgroup_hierarchy=1")


def _check_program(name: str, why: str, remedy: str) -> Check:
    path = shutil.which(name, path="/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
    return ok(name, path) if path else fail(name, f"not installed; {why}", remedy)
