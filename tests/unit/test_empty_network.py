"""Sockets that belong to a network namespace in which there is nothing."""

import asyncio
import os
import socket
from pathlib import Path

import pytest

from warren.sandboxes.host.empty_network import unix_socket

_SO_NETNS_COOKIE = 71

pytestmark = pytest.mark.anyio


def network(of: socket.socket) -> bytes:
    return of.getsockopt(socket.SOL_SOCKET, _SO_NETNS_COOKIE, 8)


async def test_both_ends_of_a_connection_belong_to_no_network_of_the_host(tmp_path: Path) -> None:
    own = os.readlink("/proc/thread-self/ns/net")
    with await unix_socket() as listener, await unix_socket() as client, socket.socket(socket.AF_UNIX) as ours:
        listener.bind(str(tmp_path / "socket"))
        listener.listen()
        client.connect(str(tmp_path / "socket"))
        with listener.accept()[0] as accepted:
            assert {network(one) for one in (listener, client, accepted)} == {network(client)} != {network(ours)}
        assert [name for _, name in socket.if_nameindex()] != []
    assert os.readlink("/proc/thread-self/ns/net") == os.readlink("/proc/self/ns/net") == own


async def test_a_socket_that_nobody_waits_for_is_closed() -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        making = asyncio.ensure_future(unix_socket())
        await asyncio.sleep(0)
        making.cancel()
        with pytest.raises(asyncio.CancelledError):
            await making
    (await unix_socket()).close()
    await asyncio.sleep(0.01)
    assert len(os.listdir("/proc/self/fd")) <= before
