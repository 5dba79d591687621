"""Figures of running sandboxes, measured in the sandbox when somebody asks: what its processes use, and its disk.

Nothing is kept, so there is one point, for now. What the kernel caches of files is not counted.
"""

import asyncio
import math
import os
from typing import Any, Final

from starlette.responses import Response

from warren.e2b.control.bodies import bad, whole_in_query
from warren.e2b.control.sandboxes import running_session
from warren.e2b.errors import E2bError
from warren.e2b.routes import E2bCall, Route
from warren.http.context import answer_json
from warren.model.access import Scope
from warren.model.e2b import sandbox_id_of, session_id_of
from warren.model.errors import SandboxLost, WarrenError
from warren.model.operations import Command
from warren.model.session import Session
from warren.model.spec import MIB, Limits
from warren.sessions.schemas import timestamp

_PAUSE_S: Final = 0.2
_END: Final = "end"
_SCRIPT: Final = (
    f"cat /proc/[0-9]*/stat 2>/dev/null; echo {_END}; sleep {_PAUSE_S}; cat /proc/[0-9]*/stat 2>/dev/null; "
    f"echo {_END}; df -P -k / 2>/dev/null"
)
_COMMAND: Final = Command(argv=("/bin/sh", "-c", _SCRIPT), timeout_s=5.0, keep_bytes=1024 * 1024, carry_state=False)
_TICKS: Final = os.sysconf("SC_CLK_TCK")  # a second
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
_FRESH_S: Final = 5  # one point is good for so long
_MOST_AT_ONCE: Final = 8
_MOST_ASKED: Final = 100
_MOST_PROCESSES: Final = 5000
_FIELDS: Final = 23  # of a process that are read, its name left out
_DIGITS: Final = 18
_LATEST: Final = 1 << 36  # in seconds: the year 4147


async def show_metrics(call: E2bCall) -> Response:
    start = _seconds(call, "start") or 0
    end = _seconds(call, "end")
    if end is not None and end < start:
        raise bad("end is before start")
    session = await running_session(call)
    now = call.sessions.clock.wall()
    if not start <= now <= (_LATEST if end is None else end + _FRESH_S):
        return answer_json([])
    return answer_json([await _measure(call, session, now)])


def _seconds(call: E2bCall, name: str) -> int | None:
    """Clients of 2.7 send milliseconds."""
    value = whole_in_query(call.parameter(name), name, 0, 1000 * _LATEST)
    return value // 1000 if value is not None and value > _LATEST else value


async def show_metrics_of_many(call: E2bCall) -> Response:
    if call.context.cluster is not None:
        raise E2bError(501, "metrics of several sandboxes are not supported in a cluster: ask for those of each")
    wanted = [name for text in call.query.get("sandbox_ids", []) for name in text.split(",") if name]
    if not wanted or len(wanted) > _MOST_ASKED:
        raise bad(f"sandbox_ids must name 1 to {_MOST_ASKED} sandboxes, with commas between them")
    slots, found = asyncio.Semaphore(_MOST_AT_ONCE), dict[str, Any]()

    async def measure(session_id: str) -> None:
        async with slots:
            session = await call.sessions.store.get(call.tenant, session_id)
            if session is not None and session.state.can_run:
                found[sandbox_id_of(session_id)] = await _measure(call, session, call.sessions.clock.wall())

    names = {session_id_of(name) for name in wanted}
    for result in await asyncio.gather(*map(measure, names), return_exceptions=True):
        if isinstance(result, BaseException) and not isinstance(result, WarrenError):
            raise result
    return answer_json({"sandboxes": found})


async def _measure(call: E2bCall, session: Session, now: float) -> dict[str, Any]:
    limits = session.limits or Limits()
    sandbox = await call.sessions.find_sandbox(session)
    if sandbox is None:
        raise SandboxLost("the sandbox cannot be reached")
    result = await sandbox.exec(_COMMAND)
    # The sandbox says what it likes, and reading it may take a while.
    return await asyncio.to_thread(_figures, result.stdout, limits, now)


def _figures(said: str, limits: Limits, now: float) -> dict[str, Any]:
    first, second, disk = (*said.split(f"{_END}\n", 2), "", "")[:3]
    before, after = _read_processes(first), _read_processes(second)
    ticks = sum(max(0, used - before[pid][0]) for pid, (used, _) in after.items() if pid in before)
    count = max(1, math.ceil(limits.cpus))
    used, total = _read_disk(disk)
    memory = sum(pages for _, pages in after.values()) * _PAGE
    return {
        "timestamp": timestamp(now),
        "timestampUnix": int(now),
        "cpuCount": count,
        "cpuUsedPct": round(100 * ticks / _TICKS / _PAUSE_S / count, 2),
        "memUsed": min(memory, limits.memory_mb * MIB),
        "memTotal": limits.memory_mb * MIB,
        "memCache": 0,
        "diskUsed": used,
        "diskTotal": total or limits.disk_mb * MIB,
    }


def _read_processes(text: str) -> dict[int, tuple[int, int]]:
    """By process id: the ticks that it has used of processors, and the pages of memory that it has."""
    found = {}
    for line in text.split("\n", _MOST_PROCESSES)[:_MOST_PROCESSES]:
        pid, _, rest = line.partition(" ")
        fields = rest.rpartition(")")[2].split(None, _FIELDS)
        try:
            found[_number(pid)] = _number(fields[11]) + _number(fields[12]), max(0, _number(fields[21]))
        except (ValueError, IndexError):
            continue
    return found


def _read_disk(text: str) -> tuple[int, int]:
    """Bytes used, and in all, as `df -P -k` says it."""
    try:
        total, used = text.splitlines()[1].split()[1:3]
        return _number(used) * 1024, _number(total) * 1024
    except (ValueError, IndexError):
        return 0, 0


def _number(text: str) -> int:
    return int(text[:_DIGITS])


ROUTES: tuple[Route, ...] = (
    Route("GET", "/sandboxes/{sandbox_id}/metrics", "e2b_get_metrics", Scope.READ, show_metrics),
    Route("GET", "/sandboxes/metrics", "e2b_list_metrics", Scope.READ, show_metrics_of_many),
)
