"""Where the attack takes place: the sandbox under attack, its neighbour, and the host's view of both.

The arena copies the attacking code (`inside/`) into the sandbox and runs it with the image's python3. It replaces a
sandbox that dies under an attack before the next probe.
"""

import asyncio
import contextlib
import os
import secrets
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from warren.interfaces.provider import Provider
from warren.interfaces.sandbox import Process, Sandbox
from warren.model.capability import Capability
from warren.model.errors import InvalidRequest, WarrenError
from warren.model.operations import Command, ExecResult
from warren.model.spec import SandboxSpec
from warren_attack.probe import ProbeResult, ProbeVerdict
from warren_attack.sandbox_code import CHECK, attack_argv, has_python, packed_code, read_outcome
from warren_attack.warren.host_view import HostView
from warren_attack.warren.outside import Outside

_CODE = "/tmp/.warren-attack/inside.zip"
_TIMEOUT_S = 30.0


class Arena:
    """`secret_paths` are paths on the host that no sandbox should be able to find out."""

    def __init__(self, provider: Provider, spec: SandboxSpec, secret_paths: tuple[Path, ...] = ()) -> None:
        self.provider = provider
        self.spec = spec
        self.secret_paths = secret_paths
        self.host_name = socket.gethostname()
        self.canary = f"canary{secrets.token_hex(8)}"
        self.user = ""  # that the attacks run as; empty: the sandbox's own
        self.opened_at = time.monotonic()
        self._made: list[str] = []
        self._outside: Outside | None = None

    sandbox: Sandbox
    neighbour: Sandbox
    host: HostView
    neighbour_host: HostView

    async def open(self) -> None:
        self.sandbox, self.host = await self.fresh(self.spec)
        self.neighbour, self.neighbour_host = await self.fresh()

    async def close(self) -> None:
        """Destroys every sandbox, even if destroying another one fails."""
        if self._outside is not None:
            await self._outside.close()
        ends = await asyncio.gather(*map(self.provider.destroy, self._made), return_exceptions=True)
        for end in ends:
            if end is not None:
                raise end

    async def renew(self) -> None:
        with contextlib.suppress(WarrenError):
            await self.provider.destroy(self.sandbox.id)
        self.sandbox, self.host = await self.fresh(self.spec)

    @property
    def other_spec(self) -> SandboxSpec:
        """Of the sandboxes beside the attacked one, which alone has the graphics processors."""
        return replace(self.spec, gpus=())

    async def fresh(self, spec: SandboxSpec | None = None) -> tuple[Sandbox, HostView]:
        sandbox = await self.provider.create(spec or self.other_spec)
        self._made.append(sandbox.id)
        await arm(sandbox)
        token = secrets.token_hex(12)
        marker = await sandbox.start(Command(argv=("python3", "-I", "-c", "import time; time.sleep(60)", token)))
        try:
            return sandbox, await HostView.find(token)
        finally:
            await marker.kill(0)

    def why_no_egress(self) -> str:
        """Empty if sandboxes can be given a network."""
        if Capability.EGRESS not in self.provider.capabilities:
            return f"the provider {self.provider.name} does not have the capability egress"
        return ""

    async def outside(self) -> Outside:
        if self._outside is None:
            self._outside = Outside(self.provider)
            await self._outside.open()
        return self._outside

    async def inside(
        self, attack: str, *, box: Sandbox | None = None, timeout_s: float = _TIMEOUT_S, **arguments: object
    ) -> ProbeResult:
        """Runs the attack and returns its own verdict; UNDECIDED if it printed none."""
        return outcome_of(await self.run(attack, box=box, timeout_s=timeout_s, **arguments))

    async def run(
        self, attack: str, *, box: Sandbox | None = None, timeout_s: float = _TIMEOUT_S, **arguments: object
    ) -> ExecResult:
        return await (box or self.sandbox).exec(attack_command(attack, arguments, timeout_s, self.user))

    @asynccontextmanager
    async def holding(self, box: Sandbox, attack: str, **arguments: object) -> AsyncIterator[str]:
        """Runs `attack` in `box` meanwhile; yields the line by which it reported that it is ready."""
        process = await box.start(attack_command(attack, arguments, None, self.user))
        try:
            yield await asyncio.wait_for(_first_line(process), _TIMEOUT_S)
        finally:
            with contextlib.suppress(WarrenError):
                await process.kill(0)
                await process.wait()  # the next probe must not meet it

    async def usable(self, *, memory_mib: int = 16) -> str:
        """Why the sandbox is not usable any more; empty if it is."""
        self.user = ""
        try:
            async with asyncio.timeout(20):
                await self.sandbox.ping()
                outcome = await self.inside("limits:allocate", mib=memory_mib, timeout_s=15)
                await self.sandbox.write("/workspace/.usable", b"yes")
        except (WarrenError, TimeoutError) as exc:
            return f"{type(exc).__name__}: {exc}"
        return "" if outcome.verdict is ProbeVerdict.CONTAINED else outcome.evidence


def attack_command(attack: str, arguments: dict[str, Any], timeout_s: float | None, user: str = "") -> Command:
    argv = attack_argv(_CODE, attack, arguments)
    return Command(argv=argv, timeout_s=timeout_s, grace_s=0.2, cwd="/tmp", keep_bytes=1 << 20, user=user)


def outcome_of(result: ExecResult) -> ProbeResult:
    """Reads the verdict of an attack that has ended."""
    last_line = (result.output.strip().splitlines() or ["no output"])[-1]
    return read_outcome(result.stdout, f"{result.reason}, exit code {result.exit_code}, {last_line[:200]}")


async def arm(sandbox: Sandbox) -> None:
    """Copies the attacking code in. Raises InvalidRequest where the image has no python3 to run it."""
    result = await sandbox.exec(Command(argv=("python3", "-I", "-c", CHECK)))
    if result.exit_code != 0 or not has_python(result.stdout):
        raise InvalidRequest(
            "the probes need python3 in the image, and this one has none that works",
            remedy="attack an image that has it: `warren doctor --attack --env base`, or --env host",
        )
    await sandbox.write(_CODE, packed_code())


async def _first_line(process: Process) -> str:
    text = ""
    async for chunk in process.output():
        text += chunk.data.decode(errors="replace")
        if "\n" in text.lstrip():
            return text.strip().splitlines()[0]
    raise WarrenError(f"a helper of the attack ended before it was ready: {text.strip()[-300:]}")


def host_environment_canary(arena: Arena) -> None:
    """A word in this process's environment that no sandbox may ever see."""
    os.environ["WARREN_ATTACK_CANARY"] = arena.canary
