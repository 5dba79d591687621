"""Measures sessions that are created all at once."""

import asyncio
from collections.abc import Awaitable, Sequence

from warren.measure.http_client import Client, cleanup
from warren.measure.requests import first_output


async def gather_and_clean_up(
    clients: Sequence[Client], work: Sequence[Awaitable[tuple[float | None, str]]]
) -> list[float | None]:
    found = await asyncio.gather(*work)
    await asyncio.gather(*(cleanup(client, made) for client, (_, made) in zip(clients, found, strict=True) if made))
    return [seconds for seconds, _ in found]


async def burst(clients: Sequence[Client]) -> list[float | None]:
    """Creates all sessions at once. Returns how long each took from its create to its first output."""
    return await gather_and_clean_up(clients, [first_output(client) for client in clients])
