"""Parts of bench/service.py about tenants: the cost of admission, and how one tenant's flood affects another."""

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

from sandboxes import Count, Table
from service_server import Server, serving
from table import percentile

from warren.measure.http_client import CREATE, Client, RequestFailed, exec_message, message, with_key

ADMIN = "the-bench-has-this-key-0123456789"
QUOTA = {"requests_per_minute": 10_000_000, "exec_seconds_per_day": 10_000_000, "bytes_out_per_day": 1 << 50}
POLICY = {"mode": "enforce", "deny": ["curl", "wget", "ssh"]}
FLOOD = 40


@dataclass
class Tenant:
    client: Client
    key: str

    async def send(self, request: bytes) -> dict[str, object]:
        found: dict[str, object] = (await self.client.send(with_key(request, self.key))).json()
        return found

    async def create(self) -> str:
        return str((await self.send(CREATE))["session_id"])

    async def delete(self, session_id: str) -> None:
        await self.send(message("DELETE", f"/api/sessions/{session_id}"))


async def new_tenant(client: Client, name: str, policy: object = None, quota: object = None) -> Tenant:
    admin = Tenant(client, ADMIN)
    await admin.send(message("PUT", f"/api/admin/tenants/{name}", {"quota": quota or {}, "policy": policy or {}}))
    made = await admin.send(message("POST", "/api/admin/keys", {"name": "bench", "tenant": name}))
    return Tenant(client, str(made["key"]))


# -- the cost of keys, audit, quotas and policies


async def admission_part(table: Table, count: Count) -> None:
    """Runs the same command on two servers, in turns: one without admission, one with everything on."""
    with serving("--no-auth", "--no-audit") as bare, serving(WARREN_API_KEY=ADMIN) as full:
        async with bare.clients(1) as [plain], full.clients(1) as [guarded]:
            tenants = {
                "no key, no audit": Tenant(plain, ""),
                "key and audit": await new_tenant(guarded, "keyed"),
                "key, audit and quotas": await new_tenant(guarded, "bounded", quota=QUOTA),
                "key, audit, quotas and a command policy": await new_tenant(guarded, "ruled", POLICY, QUOTA),
            }
            took = await _time_in_turns(tenants, count(40, 3))
    base = percentile(took["no key, no audit"], 50)
    table.add("exec of true, no key, no audit, p50", f"{base * 1000:.2f} ms")
    for name, times in itertools.islice(took.items(), 1, None):
        more = percentile(times, 50) - base
        table.add(f"  {name}: more than that, p50", f"{more * 1000:+.2f} ms", "<= 0.5 ms", more <= 0.0005)


async def _time_in_turns(tenants: dict[str, Tenant], rounds: int) -> dict[str, list[float]]:
    lines = {name: exec_message(await tenant.create(), ["true"]) for name, tenant in tenants.items()}
    took: dict[str, list[float]] = {name: [] for name in tenants}
    for number in range(rounds + 2):
        for name, tenant in tenants.items():
            for _ in range(15):
                start = time.perf_counter()
                await tenant.send(lines[name])
                if number >= 2:
                    took[name].append(time.perf_counter() - start)
    return took


# -- two tenants, one flooding


async def tenants_part(table: Table, count: Count) -> None:
    with serving(WARREN_API_KEY=ADMIN) as server:
        async with server.clients(1) as [client]:
            await server.wait_for_pool(client, 5)
            calm = await new_tenant(client, "calm")
            loud = await new_tenant(client, "loud")
            times = count(100, 10)
            alone = await _time_sessions(calm, times)
            async with flooding(server, loud.key, _commands) as commands:
                beside_commands = await _time_sessions(calm, times)
            async with flooding(server, loud.key, _sessions) as sessions:
                beside_sessions = await _time_sessions(calm, times)
    table.add(f"a flood of commands, {FLOOD} connections", f"{commands.rate:.0f}/s")
    table.add(f"a flood of sessions, {FLOOD} connections, created and deleted", f"{sessions.rate:.0f}/s")
    for what, quiet, busy in (
        ("exec, beside a flood of commands", alone[1], beside_commands[1]),
        ("exec, beside a flood of sessions", alone[1], beside_sessions[1]),
        ("create, beside a flood of commands", alone[0], beside_commands[0]),
        ("create, beside a flood of sessions", alone[0], beside_sessions[0]),
    ):
        for percent in (50, 95):
            before, after = percentile(quiet, percent), percentile(busy, percent)
            figure = f"{before * 1000:.1f} -> {after * 1000:.1f} ms"
            goal = ("<= x2", after <= 2 * before) if percent == 95 else ("", None)
            table.add(f"{what}, p{percent}: x{after / before:.1f}", figure, *goal)


async def _time_sessions(tenant: Tenant, times: int) -> tuple[list[float], list[float]]:
    """Returns how long each create took, and each of five commands."""
    created, ran = [], []
    for _ in range(times):
        start = time.perf_counter()
        session_id = await tenant.create()
        created.append(time.perf_counter() - start)
        line = exec_message(session_id, ["true"])
        for _ in range(5):
            start = time.perf_counter()
            await tenant.send(line)
            ran.append(time.perf_counter() - start)
        await tenant.delete(session_id)
        await asyncio.sleep(0.1)
    return created, ran


class Flood:
    """Counts what the flooding tenant gets done."""

    def __init__(self) -> None:
        self.done = 0
        self.refused = 0
        self.rate = 0.0

    async def run(self, work: Callable[[], Awaitable[object]]) -> None:
        while True:
            try:
                await work()
                self.done += 1
            except RequestFailed:
                self.refused += 1
                await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def flooding(
    server: Server, key: str, kind: Callable[[Tenant], Awaitable[Callable[[], Awaitable[object]]]]
) -> AsyncIterator[Flood]:
    flood = Flood()
    async with server.clients(FLOOD) as clients:
        works = [await kind(Tenant(client, key)) for client in clients]
        tasks = [asyncio.ensure_future(flood.run(work)) for work in works]
        await asyncio.sleep(1)
        start, before = time.perf_counter(), flood.done
        try:
            yield flood
            flood.rate = (flood.done - before) / (time.perf_counter() - start)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
    if flood.refused:
        print(f"  ({flood.refused} of the flood's requests were refused)")


async def _commands(tenant: Tenant) -> Callable[[], Awaitable[object]]:
    line = exec_message(await tenant.create(), ["true"])
    return lambda: tenant.send(line)


async def _sessions(tenant: Tenant) -> Callable[[], Awaitable[object]]:
    async def once() -> None:
        await tenant.delete(await tenant.create())

    return once
