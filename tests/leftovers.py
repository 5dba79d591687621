"""What of ours is on this machine: processes, mounts, cgroups, loop devices, directories.

Taken before and after the tests: what is there afterwards and was not before was left behind.
"""

import contextlib
import os
import re
from pathlib import Path

_OUR_PROGRAMS = {"warren-agent", "warren-launch", "agent"}
_OUR_PATHS = re.compile(r"/(warren-(test|docker)-[^/ ]+|warren/(sandboxes|run))\b|\.making-")


def ours() -> set[str]:
    return {*_processes(), *_mounts(), *_cgroups(), *_loop_devices(), *_directories()}


def _processes() -> set[str]:
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                if _is_ours(os.readlink(entry / "exe"), command):
                    found.add(f"process {entry.name}: {command.strip()[:200]}")
    return found


def _is_ours(program: str, command: str) -> bool:
    name = program.removesuffix(" (deleted)").rsplit("/", 1)[-1]
    return (name in _OUR_PROGRAMS and "warren" in f"{program} {command}") or (
        name.startswith(("dockerd", "containerd")) and "/warren-docker-" in command
    )


def _mounts() -> set[str]:
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return {f"mount {line.split()[4]}" for line in lines if _OUR_PATHS.search(line.split()[4])}


def _cgroups() -> set[str]:
    return {f"cgroup {path}" for top in _cgroup_tops() for path in top.glob("*/") if path.is_dir()}


def _cgroup_tops() -> list[Path]:
    root = Path("/sys/fs/cgroup")
    return [*root.glob("warren"), *root.glob("*/warren")]


def _loop_devices() -> set[str]:
    found = set()
    for device in Path("/sys/block").glob("loop*/loop/backing_file"):
        with contextlib.suppress(OSError):
            if _OUR_PATHS.search(text := device.read_text().strip()):
                found.add(f"loop device {device.parts[3]}: {text}")
    return found


def _directories() -> set[str]:
    return {f"directory {path}" for path in Path("/tmp").glob("warren-*")}
