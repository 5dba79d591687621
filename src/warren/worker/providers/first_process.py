"""The first process of a sandbox, seen from the host: ending it ends, by the kernel, all the others."""

import asyncio
import os
import signal

from warren.model.errors import ProviderUnavailable
from warren.worker.host.spawning import readable
from warren.worker.providers.record import Record

_DEATH_S = 20.0


async def end(record: Record) -> None:
    """Returns when it is dead; does nothing if it never was, or has died."""
    if not record.pid:
        return
    try:
        pidfd = os.pidfd_open(record.pid)
    except OSError:
        return
    try:
        if record.alive():  # asked after the descriptor was opened: it is this process and no other
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            await asyncio.wait_for(readable(pidfd), _DEATH_S)
    except ProcessLookupError:
        return
    except TimeoutError:
        raise ProviderUnavailable(f"process {record.pid} of a sandbox does not die") from None
    finally:
        os.close(pidfd)


async def ended(record: Record) -> None:
    """Waits for its end."""
    try:
        pidfd = os.pidfd_open(record.pid)
    except OSError:
        return
    try:
        if record.alive():
            await readable(pidfd)
    finally:
        os.close(pidfd)
