"""Finds the runtime that works on this machine: Warren's own (direct.py), or an OCI runtime that is installed.

A runtime need not work: it may refuse the cgroups, lack user namespaces or be built without seccomp, or the kernel may
be too old for it. So each is tried with a throw-away sandbox that has everything a real one has, and the result is kept
until the machine is restarted or the program changes.

An OCI runtime protects its program file from the sandboxes it makes: each time it starts, it makes a copy that cannot
be written, and starts that one. `SealedProgram` is such a copy, made once and used by all.
"""

import fcntl
import json
import os
import shutil
import weakref
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final

from warren.model.errors import InvalidRequest, ProviderUnavailable
from warren.sandboxes.host.processes import ENVIRONMENT, Finished, boot_id, run

# Best first: Warren's own launcher needs half of crun's time for a sandbox, and crun half of runc's.
PREFERRED: Final = ("direct", "crun", "runc")
KNOWN: Final = (*PREFERRED, "runsc")

# Exactly what runtimes look for.
_SEALS: Final = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
_MFD_EXEC: Final = 0x10

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


class SealedProgram:
    """A copy of a program in memory that nobody can change. Raises OSError where the machine runs no such program."""

    def __init__(self, path: str) -> None:
        self._fd = _new_program(os.path.basename(path))
        weakref.finalize(self, os.close, self._fd)
        with open(path, "rb") as source:
            while os.sendfile(self._fd, source.fileno(), None, 1 << 30):
                pass
        fcntl.fcntl(self._fd, fcntl.F_ADD_SEALS, _SEALS)
        if not os.access(self.path, os.X_OK):
            raise PermissionError(f"{self.path} cannot be executed")

    @property
    def path(self) -> str:
        """A path for every process that may look at this one, also in other mount namespaces."""
        return f"/proc/{os.getpid()}/fd/{self._fd}"


def _new_program(name: str) -> int:
    flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
    try:
        return os.memfd_create(name, flags | _MFD_EXEC)
    except OSError:  # a kernel before 6.3, where such memory can always be executed
        return os.memfd_create(name, flags)


@lru_cache(maxsize=4)
def _sealed(path: str, fingerprint: str) -> SealedProgram | None:
    try:
        return SealedProgram(path)
    except OSError:
        return None


class Runtimes:
    """`probe(name)` starts and ends a throw-away sandbox. With `wanted` no other runtime is chosen. `own`: the programs
    of runtimes that come with Warren."""

    def __init__(
        self, state_dir: Path, probe: Probe, wanted: str | None, own: Mapping[str, Path] | None = None
    ) -> None:
        if wanted is not None and wanted not in KNOWN:
            raise InvalidRequest(f"there is no runtime {wanted!r}", remedy=f"one of {', '.join(KNOWN)}")
        self._cache_file = state_dir / f"runtime-{boot_id()}.json"
        self._probe = probe
        self._wanted = wanted
        self._own = {name: str(path) for name, path in (own or {}).items()}
        self._tried: dict[str, Runtime] = {}
        self._sealable: dict[str, str] = {}  # paths of runtimes whose sealed copy works

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

    def program(self, name: str) -> str:
        """Returns what to start: a sealed copy of the runtime as it is installed now, if possible."""
        with suppress(OSError):  # it is not there any more, or somewhere else
            path = self._sealable.get(name)
            if path and (sealed := _sealed(path, _fingerprint(path))) is not None:
                return sealed.path
        return self._find(name) or name

    def _find(self, name: str) -> str | None:
        return self._own.get(name) or shutil.which(name, path=ENVIRONMENT["PATH"])

    async def examine(self, name: str) -> Runtime:
        runtime = self._tried.get(name)
        if runtime is None:
            runtime = await self._examine(name)
            if runtime.works:
                self._tried[name] = runtime
                if name not in self._own:
                    await self._try_sealed(runtime)
        return runtime

    async def _try_sealed(self, runtime: Runtime) -> None:
        with suppress(OSError, ProviderUnavailable):
            sealed = _sealed(runtime.path, _fingerprint(runtime.path))
            if sealed is not None and (await run([sealed.path, "--version"], timeout_s=10)).code == 0:
                self._sealable[runtime.name] = runtime.path

    async def _examine(self, name: str) -> Runtime:
        path = self._find(name)
        if path is None:
            return Runtime(name, "", "", False, "not installed")
        fingerprint = _fingerprint(path)
        known = self._read_cache().get(fingerprint)
        if known is not None:
            return known
        version = await _version(path)
        if name == "runsc":
            runtime = Runtime(name, path, version, False, await _why_not_runsc(path))
        else:
            outcome = await self._probe(name)
            works = outcome.code == 0
            runtime = Runtime(name, path, version, works, "a sandbox was tried" if works else outcome.last_line)
        self._add_to_cache(fingerprint, runtime)
        return runtime

    def _read_cache(self) -> dict[str, Runtime]:
        try:
            return {mark: Runtime(**values) for mark, values in json.loads(self._cache_file.read_text()).items()}
        except (OSError, ValueError, TypeError, AttributeError):
            return {}

    def _add_to_cache(self, fingerprint: str, runtime: Runtime) -> None:
        """Keeps only success: an operator may cure a failure the next minute."""
        if not runtime.works:
            return
        known = {**self._read_cache(), fingerprint: runtime}
        self._cache_file.parent.mkdir(mode=0o711, parents=True, exist_ok=True)
        temporary = self._cache_file.with_name(f".{self._cache_file.name}.{os.getpid()}")
        temporary.write_text(json.dumps({mark: asdict(value) for mark, value in known.items()}))
        temporary.rename(self._cache_file)
        for old in self._cache_file.parent.glob("runtime-*.json"):
            if old != self._cache_file:
                old.unlink(missing_ok=True)


def _fingerprint(path: str) -> str:
    """Returns a text that changes when the program does."""
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
