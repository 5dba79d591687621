"""Which OCI runtime works on this machine.

Being installed says little: a runtime may refuse the cgroups, lack user namespaces or be built
without seccomp. So each is tried with a throw-away sandbox that has everything a real one has,
and the outcome is kept for as long as the machine and the program stay the same.
"""

import json
import os
import shutil
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from warren.model.errors import InvalidRequest, ProviderUnavailable
from warren.worker.host.boot import boot_id
from warren.worker.host.spawning import ENVIRONMENT, Finished, run

# Best first: crun starts a sandbox in half of runc's time, and needs no daemon or Go runtime to do it.
PREFERRED: Final = ("crun", "runc")
KNOWN: Final = (*PREFERRED, "runsc")

Probe = Callable[[str], Awaitable[Finished]]


@dataclass(frozen=True, slots=True)
class Runtime:
    name: str
    path: str
    version: str
    works: bool
    why: str


@dataclass(frozen=True, slots=True)
class RuntimeReport:
    runtimes: tuple[Runtime, ...]
    chosen: str
    why: str


class Runtimes:
    """`probe(name)` starts and ends a throw-away sandbox. `wanted` leaves no choice."""

    def __init__(self, state_dir: Path, probe: Probe, wanted: str | None) -> None:
        if wanted is not None and wanted not in KNOWN:
            raise InvalidRequest(f"there is no runtime {wanted!r}", remedy=f"one of {', '.join(KNOWN)}")
        self._memory = state_dir / f"runtime-{boot_id()}.json"
        self._probe = probe
        self._wanted = wanted
        self._tried: dict[str, Runtime] = {}

    async def choose(self) -> Runtime:
        tried = []
        for name in [self._wanted] if self._wanted else PREFERRED:
            runtime = await self.examine(name)
            if runtime.works:
                return runtime
            tried.append(f"{name}: {runtime.why}")
        raise ProviderUnavailable(
            f"no OCI runtime works here ({'; '.join(tried)})", remedy="install crun or runc, or use the docker provider"
        )

    async def report(self) -> RuntimeReport:
        runtimes = tuple([await self.examine(name) for name in KNOWN])
        wanted = (self._wanted,) if self._wanted else PREFERRED
        usable = [runtime.name for runtime in runtimes if runtime.works and runtime.name in wanted]
        if not usable:
            return RuntimeReport(runtimes, "", "none of them works here")
        why = "it was asked for" if self._wanted else f"the first of {', '.join(PREFERRED)} that works here"
        return RuntimeReport(runtimes, usable[0], why)

    def path(self, name: str) -> str:
        return shutil.which(name, path=ENVIRONMENT["PATH"]) or name

    async def examine(self, name: str) -> Runtime:
        if name not in self._tried:
            self._tried[name] = await self._examine(name)
        return self._tried[name]

    async def _examine(self, name: str) -> Runtime:
        path = shutil.which(name, path=ENVIRONMENT["PATH"])
        if path is None:
            return Runtime(name, "", "", False, "not installed")
        mark = _mark(path)
        known = self._recall().get(mark)
        if known is not None:
            return known
        version = await _version(path)
        if name == "runsc":
            runtime = Runtime(name, path, version, False, await _why_not_runsc(path))
        else:
            outcome = await self._probe(name)
            works = outcome.code == 0
            runtime = Runtime(name, path, version, works, "a sandbox was tried" if works else outcome.last_line)
        self._remember(mark, runtime)
        return runtime

    def _recall(self) -> dict[str, Runtime]:
        try:
            return {mark: Runtime(**values) for mark, values in json.loads(self._memory.read_text()).items()}
        except (OSError, ValueError, TypeError, AttributeError):
            return {}

    def _remember(self, mark: str, runtime: Runtime) -> None:
        """Only what works: a failure may be cured the next minute, by what its message told."""
        if not runtime.works:
            return
        known = {**self._recall(), mark: runtime}
        self._memory.parent.mkdir(mode=0o711, parents=True, exist_ok=True)
        temporary = self._memory.with_name(f".{self._memory.name}.{os.getpid()}")
        temporary.write_text(json.dumps({mark: asdict(value) for mark, value in known.items()}))
        temporary.rename(self._memory)
        for old in self._memory.parent.glob("runtime-*.json"):
            if old != self._memory:
                old.unlink(missing_ok=True)


def _mark(path: str) -> str:
    """Changes when the program does."""
    stat = os.stat(path)
    return f"{path} {stat.st_size} {stat.st_mtime_ns}"


async def _version(path: str) -> str:
    first = (await run([path, "--version"], timeout_s=10)).stderr.splitlines()
    return first[0].strip() if first else "unknown"


async def _why_not_runsc(path: str) -> str:
    help_text = (await run([path, "help", "run"], timeout_s=10)).stderr
    if "pass-fd" not in help_text:
        return "this build cannot hand a socket to the sandbox (no --pass-fd)"
    return "not supported by this version of Warren"
