"""Sockets that belong to a network namespace in which there is nothing."""

import asyncio
import os
import socket
from pathlib import Path

import pytest

from warren.sandboxes.host import empty_network
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


async def test_sockets_are_made_ahead_for_whoever_comes_next() -> None:
    while empty_network._stock:
        os.close(empty_network._stock.popleft())
    making = asyncio.ensure_future(unix_socket())
    await asyncio.sleep(0)
    making.cancel()
    with pytest.raises(asyncio.CancelledError):
        await making
    (await unix_socket()).close()
    count = len(empty_network._stock)
    assert count > 0
    (await unix_socket()).close()
    assert len(empty_network._stock) == count - 1


async def test_a_child_has_sockets_of_its_own() -> None:
    (await unix_socket()).close()
    if (child := os.fork()) == 0:
        os._exit(len(empty_network._stock))
    assert (await asyncio.to_thread(os.waitpid, child, 0))[1] == 0
    assert len(empty_network._stock) > 0
