"""A maker: a process that makes and ends sandboxes for the server that started it (sandboxes/makers/pool.py).

python -m warren.app.maker FD PID START_TIME     FD: the socket to the server; the others say which process it is
"""

import asyncio
import gc
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Final, cast

from warren.app.wiring import build_provider
from warren.config.settings import Settings, as_variables, read_settings
from warren.kernel.logs import set_up_logs
from warren.sandboxes.host.processes import ENVIRONMENT, start_time
from warren.sandboxes.makers.serving import Maker, MakingProvider

_OPTIONS: Final = (
    "state_dir",
    "bin_dir",
    "runtime",
    "gpus",
    "total_",
    "min_free_",
    "disk_overcommit",
    "log_l",
    "log_fo",
)


def spawn_maker(settings: Settings, control: int) -> "subprocess.Popen[bytes]":
    """Starts a maker that uses the descriptor. Its environment has no keys."""
    path = os.pathsep.join((str(Path(__file__).parents[2]), *filter(os.path.isabs, sys.path)))
    own = {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1", "WARREN_CONFIG": os.devnull, "WARREN_EGRESS": "false"}
    pid = os.getpid()
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "warren.app.maker", *map(str, (control, pid, start_time(pid) or 0))],
        stdin=subprocess.DEVNULL,
        env={**ENVIRONMENT, **as_variables(settings, _OPTIONS), **own},
        pass_fds=(control,),
        start_new_session=True,
    )


async def serve(control: socket.socket, settings: Settings, server: tuple[int, int]) -> None:
    provider = build_provider(settings, "oci", server=server)
    gc.freeze()
    await Maker(control, cast(MakingProvider, provider)).run()


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # only the server ends this process
        signal.signal(number, signal.SIG_IGN)
    control, pid, began = map(int, sys.argv[1:])
    settings = read_settings()
    set_up_logs(settings.log_level, settings.log_format)
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(socket.socket(fileno=control), settings, (pid, began)))


if __name__ == "__main__":
    main()
