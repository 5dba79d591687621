"""`warren-egress`: a worker starts it with the descriptor of a socket pair's end, and it ends when that is closed.

It starts as root, because only root may be able to read its program, and gives up all rights before it serves the first
sandbox. The first message holds the filter of system calls and the operator's policy.
"""

import asyncio
import base64
import contextlib
import encodings.idna  # noqa: F401 - TLS asks for it, and later it may be out of reach
import gc
import os
import signal
import socket
import sys
from collections.abc import Coroutine
from typing import Any, Final

from warren.model.errors import WarrenError
from warren.model.network import EgressPolicy
from warren.sandboxes.egress import confinement
from warren.sandboxes.egress.broker import BrokerSetup
from warren.sandboxes.egress.messages import (
    MAX_MESSAGE,
    BrokenMessage,
    MessageReader,
    pack,
    pack_use,
    unpack_bounds,
    unpack_rules,
)
from warren.sandboxes.egress.proxy import SandboxEgress, Shared

_SOCKETS: Final = 2
_SWITCH_S: Final = 0.0005  # a thread that has found a name waits for the loop this long, not 5 ms each of several times


class EgressServer:
    def __init__(self, control: socket.socket, reader: MessageReader, shared: Shared) -> None:
        self._loop = asyncio.get_running_loop()
        self._control, self._reader, self._shared = control, reader, shared
        self._descriptors: list[int] = []
        self._sandboxes: dict[str, SandboxEgress] = {}
        self._answers = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self.ended = asyncio.Event()
        control.setblocking(False)
        self._loop.add_reader(control.fileno(), self._read)

    def _read(self) -> None:
        try:
            data, descriptors, _, _ = socket.recv_fds(self._control, 1 << 16, 2 * _SOCKETS)
        except BlockingIOError:
            return
        except OSError:
            data, descriptors = b"", []
        self._descriptors += descriptors
        if not data:  # the worker has ended
            self.ended.set()
            return
        for message in self._reader.feed(data):
            self._spawn(self._do(message))

    async def _do(self, message: dict[str, Any]) -> None:
        answer: dict[str, Any] = {"number": message.get("number")}
        try:
            await getattr(self, f"_on_{message['do']}")(message, answer)
        except (WarrenError, KeyError, OSError, ValueError, AttributeError, TypeError) as exc:
            answer["error"] = f"{type(exc).__name__}: {exc}"[:400]
        await self._answer(answer)

    async def _on_open(self, message: dict[str, Any], answer: dict[str, Any]) -> None:
        # Before anything is waited for: descriptors come in the order of their messages.
        tcp, udp = (socket.socket(fileno=self._descriptors.pop(0)) for _ in range(_SOCKETS))
        name = message["sandbox"]
        if (old := self._sandboxes.pop(name, None)) is not None:
            await old.close()
        rules, broker = unpack_rules(message["rules"]), _read_broker(message)
        self._sandboxes[name] = SandboxEgress(tcp, udp, rules, self._shared, broker, unpack_bounds(message))

    async def _on_set(self, message: dict[str, Any], answer: dict[str, Any]) -> None:
        rules, broker = unpack_rules(message["rules"]), _read_broker(message)
        await self._sandboxes[message["sandbox"]].set_rules(rules, broker, unpack_bounds(message))

    async def _on_try(self, message: dict[str, Any], answer: dict[str, Any]) -> None:
        """Reads rules as `_on_open` and `_on_set` do, for nobody."""
        unpack_rules(message["rules"]), _read_broker(message), unpack_bounds(message)

    async def _on_use(self, message: dict[str, Any], answer: dict[str, Any]) -> None:
        answer["use"] = pack_use(self._sandboxes[message["sandbox"]].use())

    async def _on_close(self, message: dict[str, Any], answer: dict[str, Any]) -> None:
        sandbox = self._sandboxes.pop(message["sandbox"])
        await sandbox.close()
        answer["use"] = pack_use(sandbox.use())

    async def _answer(self, answer: dict[str, Any]) -> None:
        async with self._answers:
            with contextlib.suppress(OSError):
                await self._loop.sock_sendall(self._control, b"".join(pack(answer)))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _read_broker(message: dict[str, Any]) -> BrokerSetup | None:
    return None if message["broker"] is None else BrokerSetup.from_mapping(message["broker"])


def read_first(control: socket.socket, reader: MessageReader) -> dict[str, Any] | None:
    """Returns the first message; None if the worker has ended."""
    while data := control.recv(1 << 16):
        for message in reader.feed(data):
            return message
    return None


async def serve(control: socket.socket, reader: MessageReader, first: dict[str, Any], most: int) -> None:
    policy: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in first["policy"].items()
    }
    server = EgressServer(control, reader, Shared(EgressPolicy(**policy), most))
    await server._answer({"number": first["number"]})
    await server.ended.wait()


def main() -> int:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # only the worker ends this process
        signal.signal(number, signal.SIG_IGN)
    control = socket.socket(fileno=int(sys.argv[1]))
    reader = MessageReader(MAX_MESSAGE)
    new_loop = _loop_factory()
    sys.setswitchinterval(_SWITCH_S)
    try:
        first = read_first(control, reader)
        if first is None:
            return 0
        # Before the first byte of a sandbox is read. The filter comes last: the calls above are not in its list.
        confinement.give_up_rights()
        most = confinement.limit_resources()
        confinement.filter_calls(base64.b64decode(first["filter"]))
        gc.freeze()  # what is loaded stays: the garbage collector need not look at it each time
        runner = asyncio.Runner(loop_factory=new_loop)
        runner.run(serve(control, reader, first, most))
    except (OSError, BrokenMessage) as exc:
        sys.stderr.write(f"warren-egress: {exc}\n")
        return 1
    os._exit(0)  # do not wait for threads that still resolve names


def _loop_factory() -> Any:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


if __name__ == "__main__":
    sys.exit(main())
