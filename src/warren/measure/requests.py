"""Requests that are timed, one by one and many at once."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NamedTuple

from warren.measure.http_client import Client, RequestFailed, cleanup, create, exec_message, message

_HELLO: Final = "echo hello"
# Other limits than those of the environment: no pool has such a sandbox, it is made for this session.
COLD: Final = message("POST", "/api/sessions", {"limits": {"memory_mb": 500}})


async def time_requests(client: Client, message: bytes, times: int) -> list[float]:
    found = []
    for _ in range(times):
        start = time.perf_counter()
        response = await client.send(message)
        found.append(time.perf_counter() - start)
        if response.status != 200:
            raise RequestFailed(response.body.decode(errors="replace"))
    return found


async def create_cold(client: Client) -> str:
    return str((await client.send(COLD)).json()["session_id"])


# -- from create to first output


async def first_output(client: Client) -> tuple[float | None, str]:
    """Returns the seconds from requesting a session to its first command's output; None if either failed."""
    start, session_id = time.perf_counter(), ""
    try:
        session_id = await create(client)
        output = (await client.send(exec_message(session_id, _HELLO))).json()["output"]
        return (time.perf_counter() - start if output == "hello\n" else None), session_id
    except RequestFailed:
        return None, session_id


# -- many


class Outcome(NamedTuple):
    taken: list[float]
    failed: list[str]
    seconds: float

    @property
    def rate(self) -> float:
        return len(self.taken) / self.seconds


async def repeat(clients: Sequence[Client], total: int, work: Callable[[Client], Awaitable[None]]) -> Outcome:
    """Runs `work` `total` times, shared by the clients; each runs one at a time."""
    left, taken, failed = iter(range(total)), list[float](), list[str]()

    async def loop(client: Client) -> None:
        for _ in left:
            start = time.perf_counter()
            try:
                await work(client)
                taken.append(time.perf_counter() - start)
            except RequestFailed as exc:
                failed.append(str(exc))

    start = time.perf_counter()
    await asyncio.gather(*(loop(client) for client in clients))
    return Outcome(taken, failed, time.perf_counter() - start)


async def creates(
    clients: Sequence[Client], total: int, create: Callable[[Client], Awaitable[str]] = create
) -> tuple[Outcome, list[str]]:
    made: list[str] = []

    async def one(client: Client) -> None:
        made.append(await create(client))

    return await repeat(clients, total, one), made


async def cleanups(clients: Sequence[Client], made: Sequence[str]) -> Outcome:
    names = iter(list(made))

    async def one(client: Client) -> None:
        await cleanup(client, next(names))

    return await repeat(clients, len(made), one)


async def exec_until(deadline: float, client: Client, message: bytes) -> list[float]:
    taken = []
    while time.perf_counter() < deadline:
        taken += await time_requests(client, message, 1)
    return taken


async def commands(clients: Sequence[Client], session_ids: Sequence[str], seconds: float) -> tuple[float, list[float]]:
    """Every client runs `true` in its session, again and again; returns how many ran per second, and their times."""
    messages = [exec_message(session_id, ["true"]) for session_id in session_ids]
    start = time.perf_counter()
    loops = [exec_until(start + seconds, *pair) for pair in zip(clients, messages, strict=True)]
    taken = [one for many in await asyncio.gather(*loops) for one in many]
    return len(taken) / (time.perf_counter() - start), taken
