"""A server whose machine loses power: its state directory is on a file system that drops what was not synced.

The file system is told to write nothing any more (`lose_unsynced`), as fstests do to simulate a loss of power. Then
everything goes that a machine has in memory: the server, its sandboxes, their cgroups, what is in /run. The file system
is mounted again, which replays its journal, and the server starts.
"""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import this_run
from faults.faulty_server import ARGV, CUTS_POWER, FAULT, lose_unsynced
from faults.host_view import cgroups
from faults.world import FLAGS, remove_state
from server_process import ServerProcess

_MKFS = {"ext4": ("mkfs.ext4", "-q"), "xfs": ("mkfs.xfs", "-q", "-m", "reflink=1")}
_UIDS = Path("/run/warren/uids")


class Machine:
    def __init__(self, image_cache: Path, kind: str, *, snapshot_store: str = "") -> None:
        self._images = image_cache / "images"
        self.state_dir = this_run.new_state_dir()
        self._image = self.state_dir.with_suffix(".img")
        with self._image.open("xb") as file:
            file.truncate(1 << 30)
        subprocess.run([*_MKFS[kind], self._image], check=True)
        self._mount()
        (self.state_dir / "images").symlink_to(self._images)
        os.sync()
        self.packs = bool(snapshot_store)
        more = {"WARREN_SNAPSHOT_STORE": str(self.state_dir / snapshot_store)} if snapshot_store else {}
        self.server = ServerProcess(self.state_dir, *FLAGS, argv=ARGV, **{CUTS_POWER: "1"}, **more)
        self.server.log_path = self.state_dir.with_suffix(".log")
        try:
            self._start()
        except BaseException:
            self.server.kill()
            self._unmount()
            raise

    def _mount(self) -> None:
        subprocess.run(["mount", "-o", "loop", self._image, self.state_dir], check=True)

    def _unmount(self) -> None:
        until = time.monotonic() + this_run.patience(20)  # loop devices of sandboxes that were killed let go
        while subprocess.run(["umount", self.state_dir], capture_output=True).returncode:
            assert time.monotonic() < until, "the file system is in use"
            time.sleep(0.05)
        while subprocess.run(["losetup", "-j", self._image], capture_output=True, check=True).stdout:
            assert time.monotonic() < until, "the file system is in use, though it is not mounted"
            time.sleep(0.05)

    def _start(self) -> None:
        self.server.start()
        self._sandboxes = Path(os.readlink(self.state_dir / "sandboxes"))  # in memory

    def cut(self) -> None:
        """The power fails now."""
        lose_unsynced(self.state_dir)
        self.server.kill()
        self.restart()

    def restart(self) -> None:
        """The power comes back, after a server that has died at a step."""
        self.server.wait_for_end(30)
        self._forget()
        self._unmount()
        self._mount()
        (self.state_dir / FAULT).unlink(missing_ok=True)  # its removal was lost
        self._start()

    def _forget(self) -> None:
        """Ends what only a running machine has: sandboxes of this state directory, and what /run says of them."""
        until = time.monotonic() + this_run.patience(20)
        while left := [*self._launchers(), *(path for name in os.listdir(self._sandboxes) for path in cgroups(name))]:
            assert time.monotonic() < until, f"these do not end: {left}"
            for each in left:
                _kill(each) if isinstance(each, int) else _end(each)
        shutil.rmtree(self._sandboxes)
        for link in _UIDS.glob("[0-9]*"):
            with suppress(OSError):
                if Path(os.readlink(link)).is_relative_to(self.state_dir):
                    link.unlink()

    def _launchers(self) -> list[int]:
        """What makes a sandbox goes on without its server."""
        places = [os.fsencode(place) for place in (self.state_dir, self._sandboxes)]
        return [pid for pid, argv in _programs() if any(place in argv for place in places)]

    def close(self) -> None:
        (self.state_dir / FAULT).unlink(missing_ok=True)
        self.server.kill()
        remove_state(self.state_dir)
        if self._sandboxes.is_dir():
            self._forget()
        self._unmount()
        self.state_dir.rmdir()
        self._image.unlink()
        self.server.log_path.unlink()


def _programs() -> Iterator[tuple[int, bytes]]:
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            yield int(path.parent.name), path.read_bytes()


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _end(cgroup: Path) -> None:
    with suppress(OSError):
        for path in [*cgroup.glob("**/"), cgroup]:
            for pid in (path / "cgroup.procs").read_text().split():
                os.kill(int(pid), signal.SIGKILL)
            for file, text in (("freezer.state", "THAWED"), ("cgroup.freeze", "0")):
                if (path / file).exists():
                    (path / file).write_text(text)
    for path in sorted(cgroup.glob("**/"), reverse=True):
        with suppress(OSError):
            path.rmdir()
