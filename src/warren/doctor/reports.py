"""Doctor reports for the operator of a server, and the file in which `warren doctor --attack` saves its report.

The checks run in a process of their own, `warren doctor --json`: they take seconds, and some of them change the state
of the process. A report is reused for a minute, for everybody who asks.
"""

import asyncio
import json
import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from warren.kernel.logs import get_log
from warren.kernel.shielding import run_shielded
from warren.model.errors import Unavailable
from warren.sandboxes.host.processes import stop_child

ATTACK_FILE: Final = "attack-report.json"
FRESH_S: Final = 60.0
_LONGEST_S: Final = 120.0
_STOP_S: Final = 10.0
_MAX_BYTES: Final = 4 * 1024 * 1024

_log = get_log(__name__)


class DoctorReports:
    """`command` prints the checks as JSON. It runs for the first caller who asks, and ends if that caller leaves."""

    def __init__(
        self, command: Sequence[str], env: Mapping[str, str], state_dir: Path, *, fresh_s: float = FRESH_S
    ) -> None:
        self._command, self._env, self._state_dir = command, env, state_dir
        self._fresh_s = fresh_s
        self._making = asyncio.Lock()
        self._last: tuple[float, dict[str, Any]] | None = None

    async def report(self) -> Mapping[str, Any]:
        async with self._making:  # one run at a time: callers that come meanwhile get its report
            if self._last is None or time.monotonic() - self._last[0] >= self._fresh_s:
                values = {**await self._run(), "at": time.time()}
                self._last = time.monotonic(), values
        attack = await asyncio.to_thread(read_attack_report, self._state_dir)
        return {**self._last[1], "attack": attack}

    async def _run(self) -> dict[str, Any]:
        process = await asyncio.create_subprocess_exec(
            *self._command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=dict(self._env),
            start_new_session=True,
        )
        try:
            async with asyncio.timeout(_LONGEST_S):
                out, err = await process.communicate()
        except TimeoutError:
            raise Unavailable(f"the checks were not done after {_LONGEST_S:.0f} s", retry_after_s=60) from None
        finally:
            if process.returncode is None:  # also if the caller was cancelled: the checks must not outlive it
                await run_shielded(stop_child(process, _STOP_S))
        try:
            found = json.loads(out)
            return {"checks": found["checks"], "counts": found["counts"]}
        except (ValueError, KeyError, TypeError):
            _log.warning("doctor_failed", status=process.returncode, output=err[-2000:].decode(errors="replace"))
            raise Unavailable("the checks could not be made", remedy="the server's log says why") from None


def save_attack_report(state_dir: Path, report: Mapping[str, Any]) -> None:
    """Replaces the last report by one that only this user can read. If it cannot be saved, logs that and goes on."""
    try:
        fd, name = tempfile.mkstemp(dir=state_dir, prefix=f".{ATTACK_FILE}-")  # with mode 0600
        try:
            with os.fdopen(fd, "w") as file:
                json.dump(report, file)
            os.replace(name, state_dir / ATTACK_FILE)
        except BaseException:
            os.unlink(name)
            raise
    except OSError as exc:
        _log.warning("attack_report_not_saved", error=exc.strerror or str(exc))


def read_attack_report(state_dir: Path) -> dict[str, Any] | None:
    try:
        fd = os.open(state_dir / ATTACK_FILE, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        with os.fdopen(fd, "rb") as file:
            found = json.loads(file.read(_MAX_BYTES))
            return {**found, "at": float(found["at"])}
    except (OSError, ValueError, KeyError, TypeError):
        return None
