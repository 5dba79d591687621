"""A cluster whose processes are killed, paused and restarted, and what is seen of it from outside."""

import asyncio
import contextlib
import json
import os
import re
import shutil
import signal
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from cluster_processes import SECRET, Cluster
from faults.cluster.cluster_caller import ClusterCaller
from faults.host_view import described, sandboxes, strays, uid_ranges
from faults.invariants import is_between
from faults.world import new_state, remove_state
from redis_server import RedisServer
from server_process import ServerProcess

from warren.cluster.roster import HEARTBEAT_S, LEASE_S, PROTOCOL
from warren.sandboxes.host.record import SandboxRecord

FLAGS: Final = ("--container-image", "host", "--cpus", "1")
POOL: Final = {"POOL_SIZE": "1", "POOL_MIN": "1", "MAX_POOL_SIZE": "2"}
SURE_S: Final = LEASE_S - HEARTBEAT_S - 0.5
"""A worker that was away for less has lost nothing."""
RECOVERY_S: Final = 60.0
TRUSTED: Final = {"x-warren-cluster": SECRET, "x-warren-protocol": str(PROTOCOL)}


class ClusterWorld:
    """`start` and `close` are its beginning and end; what happens in between may go wrong in any way."""

    def __init__(
        self,
        image_cache: Path,
        *flags: str,
        workers: int = 3,
        coordinators: int = 2,
        provider: str = "oci",
        redis: Callable[[Path], Any] | None = None,
        **environ: str,
    ) -> None:
        self._states = [new_state(image_cache) for _ in range(workers + coordinators)]
        self.redis = (redis or _durable_redis)(self._states[0] / "redis")
        self.cluster = Cluster(
            self.redis,
            self._states[:workers],
            self._states[workers:],
            *FLAGS,
            *flags,
            provider=provider,
            **{**POOL, **environ},
        )

    @property
    def workers(self) -> dict[str, ServerProcess]:
        return self.cluster.workers

    @property
    def coordinators(self) -> list[ServerProcess]:
        return self.cluster.coordinators

    @property
    def urls(self) -> list[str]:
        return self.cluster.urls

    def start(self) -> None:
        self.redis.start()
        self.cluster.start()

    def close(self) -> None:
        self.cluster.kill()
        self.redis.kill()
        self._remove_states()

    def _remove_states(self) -> None:
        for state in self._states:
            remove_state(state)

    # -- faults

    async def restart(self, process: ServerProcess) -> None:
        """It has ended, or is being ended."""
        await asyncio.to_thread(process.wait_for_end)
        process.start(wait=False)
        await asyncio.to_thread(process.wait_until_ready)

    @contextlib.contextmanager
    def without_failover(self) -> Iterator[None]:
        """Coordinators stand still: however slow the machine is, nobody gives up the sessions of a worker."""
        with contextlib.ExitStack() as still:
            for coordinator in self.coordinators:
                still.enter_context(stopped(coordinator.pid))
            yield

    def restart_redis(self, *, with_data: bool = True) -> None:
        self.redis.kill()
        if not with_data:
            shutil.rmtree(self.redis.directory / "appendonlydir", ignore_errors=True)
        self.redis.start()

    # -- looking

    async def recovered(self, caller: ClusterCaller) -> None:
        """Every coordinator sees Redis and all workers, and every worker has heard of all coordinators."""
        deadline = time.monotonic() + RECOVERY_S
        while trouble := await self._troubles(caller):
            assert time.monotonic() < deadline, f"after {RECOVERY_S:g} s: " + "; ".join(trouble)
            await asyncio.sleep(0.1)

    async def _troubles(self, caller: ClusterCaller) -> list[str]:
        found = [] if self.redis.ask("EXISTS", "{warren}") else ["Redis has lost its data"]
        for number in range(len(caller.urls)):
            answer = await caller.through(number).ask("GET", "/api/cluster")
            if not answer.ok:
                found.append(f"coordinator {number + 1} answers {answer.status} {answer.body}")
                continue
            seen = answer.body
            if seen["redis"] != "there" or not seen["settled"]:
                found.append(f"coordinator {number + 1} sees Redis {seen['redis']}, settled: {seen['settled']}")
            states = {worker["id"]: worker["state"] for worker in seen["workers"]}
            if set(states) != set(self.workers) or set(states.values()) != {"ready"}:
                found.append(f"coordinator {number + 1} sees {states}")
        return found + self._ignorant_workers()

    def _ignorant_workers(self) -> list[str]:
        """Until a worker has said that it knows a coordinator, that one does not give it up."""
        known = {name: self.known_coordinators(name) for name in self.workers}
        return [f"{name} knows {ids}" for name, ids in known.items() if len(ids) != len(self.coordinators)]

    def known_coordinators(self, worker: str) -> list[str]:
        report = self.redis.ask("HGET", f"{{warren}}:worker:{len(worker)}:{worker}", "report")
        ids: list[str] = json.loads(report)["coordinators"] if report else []
        return ids

    async def settled(self, caller: ClusterCaller) -> None:
        """Nothing is in between any more, and what is on the machines is what the cluster says there is."""
        deadline = time.monotonic() + RECOVERY_S
        while wrong := await self.differences(caller):
            assert time.monotonic() < deadline, f"after {RECOVERY_S:g} s: " + "; ".join(wrong)
            await asyncio.sleep(0.1)

    async def differences(self, caller: ClusterCaller) -> list[str]:
        active = await caller.sessions()
        threads = Counter(session["thread_id"] for session in active if session["thread_id"])
        found = [f"{session['session_id']} is {session['state']}" for session in active if is_between(session)]
        found += [f"the thread {thread} has {count} sessions" for thread, count in threads.items() if count > 1]
        found += [f"the thread {thread} has {count} sandboxes" for thread, count in self.threads().items() if count > 1]
        for name, worker in self.workers.items():
            running = [one for one in active if one["state"] == "running" and one["worker"] == name]
            stats = await asyncio.to_thread(self.stats, worker)
            found += [f"{name}: {text}" for text in _differences(worker.state_dir, running, stats)]
        return found

    def stats(self, worker: ServerProcess) -> dict[str, Any]:
        asked = urllib.request.Request(f"{worker.url}/internal/worker", headers=TRUSTED)
        with urllib.request.urlopen(asked, timeout=10) as answer:
            found: dict[str, Any] = json.load(answer)["stats"]
            return found

    def last_words(self, lines: int = 25) -> list[str]:
        """The ends of the logs, for messages."""
        processes = [*self.workers.values(), *self.coordinators]
        return [f"-- {one.log_path}\n" + "\n".join(one.log.splitlines()[-lines:]) for one in processes]

    def words_about(self, text: str) -> list[str]:
        """What the logs say about the sessions that a message names."""
        named = set(re.findall(r"ses_[0-9a-f]+", text))
        processes = [*self.workers.items(), *((one.state_dir.name, one) for one in self.coordinators)]
        logs = ((name, line) for name, process in processes for line in process.log.splitlines())
        return [f"{name}: {line}" for name, line in logs if any(one in line for one in named)]

    def threads(self) -> Counter[str]:
        """By the file that clients write into the sandboxes of their threads, how many live sandboxes each has."""
        found: Counter[str] = Counter()
        for worker in self.workers.values():
            for name in sandboxes(worker.state_dir):
                text = inside(worker.state_dir, name, "thread.txt")
                found[text] += bool(text)
        return found


def _durable_redis(directory: Path) -> RedisServer:
    return RedisServer(directory, "--appendonly", "yes", "--appendfsync", "always")


def inside(state_dir: Path, sandbox_id: str, name: str) -> str:
    """A file in the workspace of a sandbox, seen from the host; empty if it is not there."""
    with contextlib.suppress(OSError, ValueError):
        record = SandboxRecord.load(state_dir / "sandboxes" / sandbox_id)
        if record is not None and record.alive():
            return Path(f"/proc/{record.pid}/root/workspace/{name}").read_text()
    return ""


def _differences(state_dir: Path, running: list[dict[str, Any]], stats: dict[str, Any]) -> Iterator[str]:
    there, used = sandboxes(state_dir), {session["sandbox_id"] for session in running}
    ready = sum(pool["ready"] for pool in stats["pools"].values())
    creating = sum(pool["creating"] for pool in stats["pools"].values())
    if creating or stats["destroying"]:
        yield f"{creating} are being made, {stats['destroying']} destroyed"
    if used - there:
        yield f"sandboxes that are used and not there: {used - there}"
    if len(used) != len(running):
        yield f"{len(running)} sessions run in {len(used)} sandboxes"
    if len(there) != len(used) + ready:
        unused = ", ".join(described(state_dir, there - used))
        yield f"{len(there)} sandboxes, for {len(used)} sessions and a pool of {ready}; without a session: {unused}"
        yield f"the worker says {stats}"
    if (claims := uid_ranges(state_dir)) != len(there):
        yield f"{claims} uid ranges for {len(there)} sandboxes"
    yield from strays(state_dir)


@contextlib.contextmanager
def stopped(pid: int) -> Iterator[None]:
    """A process that stands still for a while."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
