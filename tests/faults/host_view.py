"""What is on this machine of the sandboxes of one state directory, and what of it belongs to none."""

import os
from collections.abc import Iterable
from pathlib import Path

from faults.faulty_server import SEEN

_UIDS = Path("/run/warren/uids")


def sandboxes(state_dir: Path) -> set[str]:
    return {path.name for kind in ("sandboxes", "docker") for path in state_dir.glob(f"{kind}/*")}


def described(state_dir: Path, names: Iterable[str]) -> list[str]:
    """What is in the directories of these sandboxes, for messages."""
    return [f"{path.name} ({_inside(path)})" for name in sorted(names) for path in state_dir.glob(f"*/{name}")]


def _inside(path: Path) -> str:
    try:
        return " ".join(sorted(inside.name for inside in path.iterdir())) or "empty"
    except FileNotFoundError:
        return "gone by now"


def strays(state_dir: Path) -> list[str]:
    """Whatever is left of sandboxes of which there is no directory any more, and mounts on the host of any."""
    there = sandboxes(state_dir)
    gone = _seen(state_dir) - there
    found = [f"cgroup {path}" for name in gone for path in cgroups(name)]
    found += [f"runtime state {path}" for path in state_dir.glob("runtime/*/*") if path.name not in there]
    found += [f"socket directory {path}" for name in gone if (path := Path("/run/warren/docker") / name).exists()]
    found += [f"uids {owner}" for owner in _uid_owners() if _within(owner, state_dir) and owner.name not in there]
    found += [f"one loop device too many, of {text}" for text in _disks(state_dir)[len(there) :]]
    found += _lone_volumes(state_dir)
    found += [f"process {text}" for text in _programs(state_dir) if not any(name in text for name in there)]
    return sorted([*found, *_mounts(state_dir)])


def child_of(pid: int, module: str) -> int:
    """The process of that Python module which this one has started, or 0."""
    threads = Path(f"/proc/{pid}/task").glob("*/children")
    for child in [child for thread in threads for child in _text(thread).split()]:
        if module in _text(Path(f"/proc/{child}/cmdline")).split("\0"):
            return int(child)
    return 0


def uid_ranges(state_dir: Path) -> int:
    return sum(_within(owner, state_dir) for owner in _uid_owners())


def _seen(state_dir: Path) -> set[str]:
    return set(_text(state_dir / SEEN).split())


def cgroups(name: str) -> list[Path]:
    root = Path("/sys/fs/cgroup")
    return [path for path in (root / "warren" / name, *root.glob(f"*/warren/{name}")) if path.exists()]


def _uid_owners() -> list[Path]:
    owners = []
    for link in _UIDS.glob("[0-9]*"):
        try:
            owners.append(Path(os.readlink(link)))
        except OSError:
            continue
    return owners


def _within(path: Path, state_dir: Path) -> bool:
    return path.is_relative_to(state_dir)


def _loops(state_dir: Path) -> dict[str, str]:
    """The number of each loop device, and its file."""
    texts = {path.parts[3][4:]: _text(path).strip() for path in Path("/sys/block").glob("loop*/loop/backing_file")}
    return {number: text for number, text in texts.items() if f"{state_dir}/" in text}


def _disks(state_dir: Path) -> list[str]:
    """The files of loop devices that are disks of sandboxes: these have no name any more."""
    return [text for text in _loops(state_dir).values() if text.endswith("(deleted)")]


def _lone_volumes(state_dir: Path) -> list[str]:
    """Volumes that have a loop device though no process sees them, or two of these."""
    volumes = {number: text for number, text in _loops(state_dir).items() if not text.endswith("(deleted)")}
    if not volumes:
        return []
    mounts = " ".join(_text(path) for path in Path("/proc").glob("[0-9]*/mountinfo"))
    lone = [f"a loop device of {text}, which nobody has" for at, text in volumes.items() if f" 7:{at} " not in mounts]
    twice = {text for text in volumes.values() if list(volumes.values()).count(text) > 1}
    return [*lone, *(f"two loop devices of {text}" for text in twice)]


def _programs(state_dir: Path) -> list[str]:
    texts = [_text(path).replace("\0", " ").strip() for path in Path("/proc").glob("[0-9]*/cmdline")]
    return [text for text in texts if f"{state_dir}/sandboxes/" in text]


def _mounts(state_dir: Path) -> list[str]:
    points = [line.split()[4] for line in _text(Path("/proc/self/mountinfo")).splitlines()]
    return [f"mount {point}" for point in points if point.startswith(f"{state_dir}/")]


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
