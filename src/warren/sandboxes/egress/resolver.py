"""Resolves names for sandboxes, in threads, and caches for a few seconds what was found and what was not.

A name server that does not answer holds a thread for seconds, and anybody may have such a name server. So threads are
shared: a sandbox has few at once, a tenant half of what the others leave, and who finds none free waits for a turn, of
its tenant and of its sandbox. The more of a tenant's look-ups wait, the earlier they are given up.
"""

import asyncio
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from ipaddress import ip_address
from typing import Final

from warren.kernel.bounded_dict import BoundedDict
from warren.kernel.fair_share import FairShare, Turns
from warren.model.addresses import Address

_THREADS: Final = 32
_OF_SANDBOX: Final = 8
_WAITING: Final = 512
_KEPT_S: Final = 5.0
_FAILURE_KEPT_S: Final = 3.0
_KEPT: Final = 2048
_TIMEOUT_S: Final = 15.0
_SHORTEST_TIMEOUT_S: Final = 3.0

Addresses = tuple[Address, ...]


class NotResolved(Exception):
    """The name has no address now; the message says why."""


def _look_up(name: str) -> Addresses:
    # getaddrinfo applies the slow IDNA codec to a str, but not to bytes.
    found = socket.getaddrinfo(name.encode(), None, type=socket.SOCK_STREAM)
    return tuple(dict.fromkeys(ip_address(str(each[4][0])) for each in found))


class Resolver:
    def __init__(self, look_up: Callable[[str], Addresses] = _look_up) -> None:
        self._look_up = look_up
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="resolve")
        self._known = BoundedDict[str, tuple[float, Addresses]](_KEPT)  # no addresses: the name was not found
        self._asking: dict[str, asyncio.Future[Addresses]] = {}
        self._tenants = FairShare(_THREADS, of_rest=1)
        self._sandboxes = FairShare(each=_OF_SANDBOX)
        self._places = FairShare(_WAITING, of_rest=1)  # of those that wait, by tenant
        self._waiting: dict[str, Turns[asyncio.Future[None]]] = {}  # by tenant, then by sandbox

    def __repr__(self) -> str:
        return f"<Resolver: {len(self._asking)} names asked for, {self._places.in_all} wait>"

    async def resolve(self, name: str, tenant: str, sandbox: str) -> Addresses:
        """Returns at least one address. Raises NotResolved."""
        try:
            async with asyncio.timeout(self._timeout_s(tenant)):
                found = self._kept(name)
                if found is None and name not in self._asking:
                    await self._wait_for_turn(tenant, sandbox)
                    found = self._take_turn(name, tenant, sandbox)
                if found is None:
                    # Shielded: other connections wait for the same look-up.
                    found = await asyncio.shield(self._asking[name])
        except TimeoutError:
            raise NotResolved("its name was not found in time") from None
        if not found:
            raise NotResolved("its name cannot be found")
        return found

    def _timeout_s(self, tenant: str) -> float:
        used = self._places.held(tenant) / (_WAITING / 2)
        return max(_SHORTEST_TIMEOUT_S, _TIMEOUT_S * (1 - used))

    def _kept(self, name: str) -> Addresses | None:
        until, found = self._known.get(name) or (0.0, ())
        return found if until > asyncio.get_running_loop().time() else None

    def _may_begin(self, tenant: str, sandbox: str) -> bool:
        return self._tenants.may_take(tenant) and self._sandboxes.may_take(sandbox)

    async def _wait_for_turn(self, tenant: str, sandbox: str) -> None:
        """Returns when the sandbox has a thread, which is then counted."""
        if self._may_begin(tenant, sandbox):  # nobody waits who could have it: free threads are given away at once
            self._count(tenant, sandbox)
            return
        if not self._places.try_take(tenant):
            raise NotResolved("too many names are looked up at the same time")
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(tenant, Turns()).add(sandbox, turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # it came at the same moment, and nobody takes it
                self._release(tenant, sandbox)
            raise
        finally:
            self._places.give_back(tenant)

    def _take_turn(self, name: str, tenant: str, sandbox: str) -> Addresses | None:
        """Begins the look-up with the thread that was counted, unless others have asked meanwhile. Returns what is
        known already."""
        found = self._kept(name)
        if found is not None or name in self._asking:
            self._release(tenant, sandbox)
            return found
        asking = asyncio.get_running_loop().run_in_executor(self._threads, self._look_up_quietly, name)
        self._asking[name] = asking
        asking.add_done_callback(lambda done: self._keep(name, tenant, sandbox, done))
        return None

    def _look_up_quietly(self, name: str) -> Addresses:
        try:
            return self._look_up(name)
        except OSError:
            return ()

    def _keep(self, name: str, tenant: str, sandbox: str, done: "asyncio.Future[Addresses]") -> None:
        del self._asking[name]
        if not done.cancelled() and done.exception() is None:
            kept_s = _KEPT_S if done.result() else _FAILURE_KEPT_S
            self._known[name] = (asyncio.get_running_loop().time() + kept_s, done.result())
        self._release(tenant, sandbox)

    def _count(self, tenant: str, sandbox: str) -> None:
        self._tenants.take(tenant)
        self._sandboxes.take(sandbox)

    def _release(self, tenant: str, sandbox: str) -> None:
        self._tenants.give_back(tenant)
        self._sandboxes.give_back(sandbox)
        self._give_turns()

    def _give_turns(self) -> None:
        """Gives free threads to those that wait: to the tenant that has the fewest first."""
        for tenant in self._tenants.smallest_first(list(self._waiting)):
            turns = self._waiting[tenant]
            for _ in range(turns.owners):
                while (given := self._next_turn(turns)) is not None and given[1].done():
                    pass  # it was given up meanwhile
                if given is None:
                    break
                sandbox, turn = given
                if self._may_begin(tenant, sandbox):
                    self._count(tenant, sandbox)
                    turn.set_result(None)
                else:
                    turns.put_back(sandbox, turn)
            if not turns:
                del self._waiting[tenant]

    @staticmethod
    def _next_turn(turns: "Turns[asyncio.Future[None]]") -> "tuple[str, asyncio.Future[None]] | None":
        return turns.next() if turns else None
