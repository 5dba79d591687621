"""A sandbox that is known only by a command that runs a shell in it, as `docker exec -i NAME sh -c` does.

The attacking code is brought in through that command, to a temporary directory. A sandbox without python3 gets the few
attacks that a shell can make; the others are UNDECIDED. Nobody can replace a sandbox that an attack has ruined: all
that would follow is UNDECIDED.
"""

import asyncio
import base64
import contextlib
import os
import shlex
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from warren_attack.inside.leaks import PRIVATE, SECRETS
from warren_attack.probe import ProbeResult, ProbeVerdict, undecided
from warren_attack.sandbox_code import CHECK, LEAST_PYTHON, attack_argv, has_python, packed_code, read_outcome

_RUN_S: Final = 60.0
_KEEP_BYTES: Final = 1 << 20
_PIECE: Final = 24_000  # of an argument: some commands carry it in the address of an HTTP request
_AGAIN_S: Final = 2.0
_HELLO: Final = "warren-attack-hello"
_PLACES: Final = ("/tmp", "/dev/shm", "/var/tmp", ".")
_WRITE: Final = "import base64, sys; open(sys.argv[1], sys.argv[2]).write(base64.b64decode(sys.argv[3]))"
_WITHOUT_PYTHON: Final = {
    "escape:capability_sets": "capability_sets",
    "escape:no_new_privileges": "status NoNewPrivs 1",
    "escape:seccomp_filter": "status Seccomp 2",
    "leaks:read_kernel_secrets": shlex.join(("readable", *SECRETS)),
    "leaks:private_files": shlex.join(("readable", *PRIVATE)),
    "network:interfaces": "interfaces",
    "network:routes": "routes",
}


class Unreachable(Exception):
    """No command runs in the sandbox."""


@dataclass(frozen=True, slots=True)
class _Ran:
    stdout: str
    how: str


class CommandSandbox:
    """`prefix` is the command; the line for the shell becomes its last argument. Use `open` before anything else."""

    def __init__(self, prefix: Sequence[str]) -> None:
        self._prefix = tuple(prefix)
        self._archive = ""
        self._lost = ""
        self.uid = -1
        self.python = ""
        self.why_no_python = ""

    async def open(self) -> None:
        """Looks what the sandbox has, and brings the code in. Raises Unreachable if no command runs in it."""
        said = await self._run(f"echo {_HELLO} $(id -u)")
        words = said.stdout.split()
        if _HELLO not in words:
            raise Unreachable(f"{shlex.join(self._prefix)} 'echo {_HELLO}' does not run a command: {said.how}")
        self.uid = int(words[-1]) if words[-1].isdecimal() else -1
        checked = (await self._run(shlex.join(("python3", "-I", "-c", CHECK)))).stdout
        if not has_python(checked):
            least = ".".join(map(str, LEAST_PYTHON))
            self.why_no_python = f"it needs python3 {least} or later in the sandbox, which has none that works"
            return
        self.python, self.uid = ".".join(checked.split()[:3]), int(checked.split()[3])
        for place in _PLACES:
            if await self._bring_code(f"{place}/.warren-attack-{os.getpid()}.zip"):
                return
        self.why_no_python = f"its code can be written to none of {', '.join(_PLACES)}"

    async def close(self) -> None:
        """Removes the code."""
        if self._archive:
            await self._run(shlex.join(("rm", "-f", self._archive)))

    async def inside(self, attack: str, **arguments: Any) -> ProbeResult:
        if self._lost:
            return undecided(f"not tried: the sandbox is of no use any more: {self._lost}")
        if not self.why_no_python:
            ran = await self._run(shlex.join(attack_argv(self._archive, attack, arguments)))
        elif attack in _WITHOUT_PYTHON:
            script = (Path(__file__).parent / "inside" / "without_python.sh").read_text()
            ran = await self._run(f"{script}\n{_WITHOUT_PYTHON[attack]}")
        else:
            return undecided(f"not tried: {self.why_no_python}")
        return read_outcome(ran.stdout, ran.how)

    async def usable(self) -> str:
        if self._lost:
            return ""  # said once, by the probe that it is due to
        said = await self._run(f"echo {_HELLO}")
        return "" if _HELLO in said.stdout else said.how

    async def renew(self) -> None:
        """Gives the sandbox a moment to recover."""
        await asyncio.sleep(_AGAIN_S)
        self._lost = await self.usable()

    async def _bring_code(self, path: str) -> bool:
        code = base64.b64encode(packed_code()).decode()
        for at in range(0, len(code), _PIECE):
            piece, mode = code[at : at + _PIECE], "ab" if at else "wb"
            await self._run(shlex.join(("python3", "-I", "-c", _WRITE, path, mode, piece)))
        self._archive = path
        if (await self.inside("limits:allocate", mib=1)).verdict is ProbeVerdict.CONTAINED:
            return True
        await self.close()
        return False

    async def _run(self, line: str) -> _Ran:
        """Runs a line in the sandbox. Whatever goes wrong is in what it returns."""
        try:
            process = await asyncio.create_subprocess_exec(
                *(*self._prefix, line),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as exc:
            return _Ran("", str(exc))
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            async with asyncio.timeout(_RUN_S):
                out, err = await asyncio.gather(_last_bytes(process.stdout), _last_bytes(process.stderr))
                code = await process.wait()
        except TimeoutError:
            return _Ran("", f"no answer within {_RUN_S:g} s")
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
        last_line = ((out + err).strip().splitlines() or ["no output"])[-1]
        return _Ran(out, f"exit code {code}, {last_line[:200]}")


async def _last_bytes(stream: asyncio.StreamReader) -> str:
    """Reads to the end and keeps the last part, where the verdict is: a sandbox may print without end."""
    kept = b""
    while part := await stream.read(65536):
        kept = (kept + part)[-_KEEP_BYTES:]
    return kept.decode(errors="replace")
