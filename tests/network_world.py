"""An Internet of the test's own: Warren's server in one network namespace, servers with public addresses in another.

The server's resolver asks a name server of the test, whose answers the test may change at any time. Sockets made by
`listen` belong to the outer namespace, so whatever the test serves on them is outside.

    with NetworkWorld(folder) as world:
        world.names["api.example"] = ["93.184.216.34"]
        listener = world.listen("93.184.216.34", 443)
        server = PlacedServer(world, state)
"""

import contextlib
import secrets
import shlex
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from networks import Network
from server_process import ServerProcess

from warren_attack.warren.name_server import answer

ADDRESSES: Final = tuple(f"93.184.216.{number}" for number in range(34, 44))
"""Public addresses of the namespace outside."""
PRIVATE: Final = "10.99.0.7"
"""A private address out there."""
SILENT: Final = ".silent.test"
"""Questions for names below this are never answered."""
API_KEY: Final = secrets.token_hex(16)
HEADERS: Final = {"Authorization": f"Bearer {API_KEY}"}
_SERVE: Final = (sys.executable, "-m", "warren.cli.main", "serve")


class _NoAnswer(Exception):
    pass


class NetworkWorld:
    """`names`: the addresses of each name. `asked`: the names that were looked up, in order."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.names: dict[str, Sequence[str]] = {}
        self.asked: list[str] = []
        self.network = Network()
        self._sockets: list[socket.socket] = []
        try:
            self.inner, self.outer = self.network.place("server"), self.network.place("outside")
            for address in (*ADDRESSES, PRIVATE):
                self.network.give_address(self.outer, address)
            self._start_name_server()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> "NetworkWorld":
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        for sock in self._sockets:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()
        self.network.close()

    # -- Warren's side

    @property
    def within(self) -> tuple[str, ...]:
        """The command that runs another command in the server's namespace, with the resolver of this world."""
        resolv = self._folder / "resolv.conf"
        resolv.write_text(f"nameserver {self.outer.address}\noptions timeout:2 attempts:1\n")
        script = f'mount --bind {shlex.quote(str(resolv))} /etc/resolv.conf && exec "$@"'
        return (*self.inner.within, "unshare", "--mount", "--propagation", "slave", "sh", "-c", script, "sh")

    def new_socket(self, info: Any) -> socket.socket:
        """Makes a socket that reaches the server, for aiohttp."""
        return self.network.new_socket(info)

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        """Lets this thread reach the server. The block must not await anything."""
        with self.network.inside():
            yield

    # -- outside

    def listen(self, address: str, port: int, kind: int = socket.SOCK_STREAM) -> socket.socket:
        """Returns a socket outside, which is closed with this world."""
        with self.network.inside(self.outer):
            sock = socket.socket(socket.AF_INET, kind)
        self._sockets.append(sock)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((address, port))
        if kind == socket.SOCK_STREAM:
            sock.listen(256)
        return sock

    def run_outside(self, *command: str, **options: Any) -> "subprocess.Popen[bytes]":
        """Starts a program outside; the caller ends it."""
        return subprocess.Popen([*self.outer.within, *command], **options)

    # -- the name server

    def _start_name_server(self) -> None:
        sock = self.listen(self.outer.address, 53, socket.SOCK_DGRAM)
        threading.Thread(target=self._answer_names, args=(sock,), daemon=True).start()

    def _answer_names(self, sock: socket.socket) -> None:
        while True:
            try:
                query, peer = sock.recvfrom(4096)
            except OSError:
                return
            with contextlib.suppress(_NoAnswer):
                if query:
                    sock.sendto(answer(query, self._find), peer)

    def _find(self, name: str) -> Sequence[str] | None:
        self.asked.append(name)
        if name.endswith(SILENT):
            raise _NoAnswer
        return self.names.get(name)


class PlacedServer(ServerProcess):
    """`warren serve` in a world. Its API takes HEADERS, and is reached through the world's `new_socket` and
    `inside`."""

    def __init__(self, world: NetworkWorld, state_dir: Path, *flags: str, **environ: str) -> None:
        self._world = world
        where = ("--host", world.inner.address)
        super().__init__(state_dir, *where, *flags, argv=(*world.within, *_SERVE), WARREN_API_KEY=API_KEY, **environ)

    @property
    def url(self) -> str:
        return f"http://{self._world.inner.address}:{self.port}"

    def wait_until_ready(self, path: str = "/ready") -> None:
        with self._world.inside():
            super().wait_until_ready(path)
