"""A provider for tests only: the real agent in throw-away namespaces, without an OCI runtime.

It shows agent, wire and AgentSandbox together on any Linux machine with root, in milliseconds.
"""

import asyncio
import os
import secrets
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import anyio

from warren.interfaces.sandbox import Sandbox
from warren.model.capability import Capability
from warren.model.errors import InvalidRequest, IsolationUnavailable, SandboxNotFound
from warren.model.metrics import SandboxMetrics
from warren.model.spec import Isolation, Layer, SandboxSpec
from warren.sandboxes.agent.link import AgentLink
from warren.sandboxes.agent.sandbox import AgentSandbox

LAUNCHER = Path(__file__).with_name("namespace_launcher.py")


async def no_metrics() -> SandboxMetrics:
    """Its processes have no cgroup of their own."""
    return SandboxMetrics()


@dataclass
class Box:
    folder: Path
    spec: SandboxSpec
    launcher: "subprocess.Popen[bytes]"
    life: int  # a pipe whose other end the agent holds open as long as it lives


class NamespaceProvider:
    name = "namespace"
    local_images = True
    half_made: frozenset[str] = frozenset()
    capabilities = frozenset({Capability.TERMINALS})

    def __init__(self, agent: Path, state: Path, boxes: dict[str, Box] | None = None) -> None:
        self.agent, self.state = agent, state
        self.boxes = {} if boxes is None else boxes
        self._handed_out: list[AgentSandbox] = []

    async def create(self, spec: SandboxSpec) -> Sandbox:
        if spec.require:
            raise IsolationUnavailable("this provider isolates nothing")
        if spec.image != "base":
            raise InvalidRequest(f"there is no image {spec.image}")
        await self.check(spec)
        sandbox_id = f"sb_{secrets.token_hex(8)}"
        folder = self.state / sandbox_id
        folder.mkdir()
        try:
            self.boxes[sandbox_id] = self._launch(folder, spec)
            return await self.adopt(sandbox_id)
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self.destroy(sandbox_id)
                shutil.rmtree(folder, ignore_errors=True)
            raise

    def _launch(self, folder: Path, spec: SandboxSpec) -> Box:
        life, agents_end = os.pipe()
        with os.fdopen(agents_end, "wb"), socket.socket(socket.AF_UNIX) as door:
            door.bind(str(folder / "agent.sock"))
            door.listen(16)
            command = [sys.executable, "-I", "-S", LAUNCHER, self.agent, str(door.fileno()), str(spec.limits.disk_mb)]
            keep = (door.fileno(), agents_end)
            launcher = subprocess.Popen(command, pass_fds=keep, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
            return Box(folder, spec, launcher, life)

    async def check(self, spec: SandboxSpec) -> None:
        if spec.disk:
            raise InvalidRequest("this provider saves no disks")

    async def adopt(self, sandbox_id: str) -> Sandbox:
        box = self.boxes.get(sandbox_id)
        if box is None:
            raise SandboxNotFound(f"there is no sandbox {sandbox_id}")
        timeout_s = 5 if box.launcher.poll() is None else 0.1
        link = await AgentLink.dial(box.folder, timeout_s=timeout_s, why_lost=lambda: "its agent died")
        isolation = Isolation(self.name, "none", {}, dict.fromkeys(Layer, "not here"))
        sandbox = AgentSandbox(
            sandbox_id,
            link,
            isolation,
            env=box.spec.env,
            oom_kills=lambda: 0,
            metrics=no_metrics,
        )
        self._handed_out.append(sandbox)
        return sandbox

    async def image_version(self, image: str) -> str:
        return ""

    async def load_image(self, image: str) -> None:
        pass

    async def destroy(self, sandbox_id: str) -> None:
        box = self.boxes.pop(sandbox_id, None)
        if box is not None:
            await stop(box)
            os.close(box.life)
            for sandbox in self._handed_out:
                if sandbox.id == sandbox_id:
                    await sandbox.close()
            shutil.rmtree(box.folder, ignore_errors=True)

    async def list_ids(self, labels: Mapping[str, str] | None = None) -> Sequence[str]:
        wanted = (labels or {}).items()
        return [name for name, box in self.boxes.items() if wanted <= box.spec.labels.items()]

    async def sweep(self) -> int:
        return 0

    async def close(self) -> None:
        for sandbox in self._handed_out:
            await sandbox.close()


async def stop(box: Box) -> None:
    """Returns when the agent is dead, not just told to die."""
    box.launcher.terminate()
    await asyncio.to_thread(box.launcher.wait)
    await asyncio.to_thread(os.read, box.life, 1)
