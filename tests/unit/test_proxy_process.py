"""The worker's end of the egress process's socket, in an attacker's hands."""

import socket
import subprocess
import time
from collections.abc import Iterator

import pytest
from unit.scripted_agent import LINGER_S, lingering, pass_on

from warren.sandboxes.network.proxy_process import ProxyGone, ProxyProcess

pytestmark = pytest.mark.anyio


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "1000"]) as process:
        yield process
        process.kill()


@pytest.mark.parametrize("flags", [0, socket.MSG_OOB], ids=["ordinary", "urgent"])
@pytest.mark.parametrize("is_read", [True, False], ids=["read", "unread"])
async def test_open_files_that_the_process_sends_hold_nobody_up(
    is_read: bool, flags: int, process: subprocess.Popen[bytes]
) -> None:
    ours, theirs = socket.socketpair()  # as before Linux 6.16: from then on `start` has `ours` refuse them
    proxy = ProxyProcess(process, ours, lambda: None)
    with theirs, lingering() as sock:
        pass_on(theirs, sock, flags)
        sock.close()  # the worker has the last one
        began = time.monotonic()
        if is_read:
            with pytest.raises(ProxyGone):
                await proxy.ask("ping")
        else:
            process.kill()
        await proxy.close()
        assert time.monotonic() - began < LINGER_S / 3
    assert process.returncode == -9
