"""A Docker engine for tests, with its own data, socket, process and network namespace; all of it is removed at the end.

The network namespace keeps it from touching the bridge and the packet rules of an engine that may run on this machine.
It has no mount namespace of its own, because tests look at sandboxes from the host.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

from this_run import patience

_START_S = patience(30.0)
_STOP_S = patience(20.0)


class DockerEngine:
    """`url` is a value for DOCKER_HOST. `kill` and `start` show what outlives the engine. Containers have a network
    only if `bridge` is given: the address of the engine's end of it, with its mask. `settings` go into its
    configuration."""

    def __init__(self, bridge: str = "", **settings: object) -> None:
        self._settings = {"live-restore": True, **settings}
        self._network = ("--bip", bridge) if bridge else ("--bridge=none",)
        self.root = Path(tempfile.mkdtemp(prefix="docker-"))
        self.url = f"unix://{self.root}/docker.sock"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        # Its own configuration: it must not read that of the machine's engine.
        (self.root / "daemon.json").write_text(json.dumps(self._settings))
        command = [
            *("unshare", "--net", "--", "dockerd", "--config-file", f"{self.root}/daemon.json", "--host", self.url),
            *("--data-root", f"{self.root}/data", "--exec-root", f"{self.root}/exec"),
            *("--pidfile", f"{self.root}/docker.pid", "--iptables=false", "--ip6tables=false", *self._network),
        ]
        with (self.root / "log").open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={**os.environ, "TMPDIR": str(self.root)},  # an engine that starts slowly dumps its stacks there
            )
        self._wait_until_ready(self._process)

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def _wait_until_ready(self, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + _START_S
        while time.monotonic() < deadline and process.poll() is None:
            if self.docker("version", check=False).returncode == 0:
                return
            time.sleep(0.1)
        log = (self.root / "log").read_text(errors="replace")[-2000:]
        raise RuntimeError(f"the Docker engine of the tests did not start:\n{log}")

    def docker(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        command = ["docker", "--host", self.url, *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=check, stdin=subprocess.DEVNULL)

    def import_rootfs(self, rootfs: Path, reference: str) -> None:
        """Makes an image from a directory, unless the engine has it."""
        if self.docker("image", "inspect", reference, check=False).returncode == 0:
            return
        with subprocess.Popen(["tar", "-C", str(rootfs), "-c", "."], stdout=subprocess.PIPE) as tar:
            subprocess.run(
                ["docker", "--host", self.url, "import", "-", reference],
                stdin=tar.stdout,
                capture_output=True,
                check=True,
            )

    def kill(self) -> None:
        """Kills the engine with SIGKILL; its containers go on."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        self._end_containerd()
        # Until somebody reaps the dead containerd, the next engine would take it for a living one.
        (self.root / "exec/containerd/containerd.pid").unlink(missing_ok=True)

    def close(self) -> None:
        containers = self.docker("ps", "--all", "--quiet", check=False).stdout.split()
        if containers:
            self.docker("rm", "--force", "--volumes", *containers, check=False)
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                self.kill()
        self._end_containerd()
        self._end_shims()
        for mount in reversed(mounts_below(self.root)):
            subprocess.run(["umount", "--lazy", mount], check=False)
        shutil.rmtree(self.root, ignore_errors=True)

    def _end_containerd(self) -> None:
        """Ends the containerd that a killed engine leaves behind."""
        with contextlib.suppress(FileNotFoundError, ValueError, ProcessLookupError):
            pid = int((self.root / "exec/containerd/containerd.pid").read_text())
            if str(self.root).encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                os.kill(pid, signal.SIGKILL)

    def _end_shims(self) -> None:
        """Ends the shims that a containerd leaves behind if it is killed just when a container ends."""
        for place in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                command = place.read_bytes()
                if b"containerd-shim" in command.split(b"\0")[0] and f"{self.root}/".encode() in command:
                    os.kill(int(place.parent.name), signal.SIGKILL)


def mounts_below(root: Path) -> list[str]:
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return [point for line in lines if (point := line.split()[4]).startswith(f"{root}/")]
