"""A network of the test's own: each process has a network namespace, and a router in another namespace joins them.

The router forwards between them until two are cut off from each other; then it silently drops what they send. The test
itself has an end in the router's namespace: sockets that are made there stay there, whoever uses them. No interface is
in the machine's own namespace, so no packet leaves.
"""

import contextlib
import ctypes
import os
import secrets
import socket
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import this_run

_NETNS = Path("/run/netns")
_CLONE_NEWNET = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class Place:
    """Where one process runs."""

    namespace: str
    address: str

    @property
    def within(self) -> tuple[str, ...]:
        """The command that runs another command there."""
        return ("nsenter", f"--net={_NETNS / self.namespace}")


class Network:
    def __init__(self) -> None:
        self._name = f"{this_run.name()}-{secrets.token_hex(4)}"
        self._places: list[Place] = []
        self._made: list[str] = []
        self._router = self._namespace("router")
        _run("nsenter", f"--net={_NETNS / self._router}", "sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward")

    def close(self) -> None:
        for name in self._made:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)

    def _namespace(self, name: str) -> str:
        full = f"{self._name}-{name}"
        _run("ip", "netns", "add", full)
        self._made.append(full)
        _run("ip", "-n", full, "link", "set", "lo", "up")
        return full

    def place(self, name: str) -> Place:
        number = len(self._places) + 1
        place = Place(self._namespace(name), f"10.213.{number}.2")
        side, gate = f"to{number}", f"10.213.{number}.1"
        for command in (
            f"ip -n {self._router} link add {side} type veth peer name out netns {place.namespace}",
            f"ip -n {self._router} address add {gate}/24 dev {side}",
            f"ip -n {self._router} link set {side} up",
            f"ip -n {place.namespace} address add {place.address}/24 dev out",
            f"ip -n {place.namespace} link set out up",
            f"ip -n {place.namespace} route add default via {gate}",
        ):
            _run(*command.split())
        self._places.append(place)
        return place

    def give_address(self, place: Place, address: str) -> None:
        """Gives the place one more address, which everybody in this network can reach."""
        _run(*f"ip -n {place.namespace} address add {address}/32 dev lo".split())
        _run(*f"ip -n {self._router} route add {address}/32 via {place.address}".split())

    # -- what the test does in it

    @contextlib.contextmanager
    def inside(self, place: Place | None = None) -> Iterator[None]:
        """Moves this thread into the namespace of `place`, or of the router. The block must not await anything."""
        home = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        there = os.open(_NETNS / (place.namespace if place else self._router), os.O_RDONLY)
        try:
            _enter(there)
            try:
                yield
            finally:
                _enter(home)
        finally:
            os.close(home)
            os.close(there)

    def new_socket(self, info: Any) -> socket.socket:
        """Makes a socket in the router's namespace, for aiohttp."""
        family, kind, protocol, _, _ = info
        with self.inside():
            return socket.socket(family, kind, protocol)

    @contextlib.contextmanager
    def cut(self, ones: Iterable[Place], others: Iterable[Place]) -> Iterator[None]:
        """Cuts all connections between `ones` and `others`, for the duration of the block."""
        pairs = [(one.address, other.address) for one in ones for other in others if one != other]
        both = sorted({*pairs, *((other, one) for one, other in pairs)})
        try:
            for here, there in both:
                self._rule("add", here, there)
            yield
        finally:
            for here, there in both:
                with contextlib.suppress(subprocess.CalledProcessError):
                    self._rule("del", here, there)

    def _rule(self, verb: str, here: str, there: str) -> None:
        _run(*f"ip -n {self._router} rule {verb} pref 100 from {here} to {there} blackhole".split())


def _enter(namespace: int) -> None:
    if _libc.setns(namespace, _CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "setns")


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)
