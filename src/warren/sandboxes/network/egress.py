"""The network of this worker's sandboxes: what lets each reach the outside, and the proxy process in between.

A sandbox whose network is open has a route, a BPF program and two sockets in its network namespace (sk_lookup.py). The
worker hands the sockets to `warren-egress` and closes its own copies, so they end with that process: then the program
finds no socket and refuses everything. The worker restarts a process that has ended, and gives it new sockets and the
current rules of every open sandbox; rules that it may have ended of are first tried in a process of their own. When the
worker ends, the program's link, the process and the sockets end with it.
"""

import asyncio
import contextlib
import errno
import hashlib
import os
import secrets
import socket
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from warren.kernel.logs import get_log
from warren.kernel.shielding import run_shielded
from warren.model.errors import InvalidRequest, IsolationUnavailable, ProviderUnavailable, SandboxLost
from warren.model.network import FEW_RULES, NO_NETWORK, EgressBound, EgressPolicy, NetworkRules, NetworkUse
from warren.model.spec import Isolation, Layer
from warren.sandboxes.egress.broker import BrokerSetup
from warren.sandboxes.egress.messages import KEPT, BrokenMessage, pack_rules, unpack_use
from warren.sandboxes.host import sk_lookup
from warren.sandboxes.host.record import SandboxRecord
from warren.sandboxes.network.namespaces import namespace_thread, open_namespace
from warren.sandboxes.network.proxy_process import ProxyGone, ProxyProcess

_BACKLOG: Final = 128
_RESTARTS_S: Final = (0.0, 0.1, 0.5, 2.0, 5.0)
_STEADY_S: Final = 30.0
_PKTINFO: Final = 8
_log = get_log(__name__)


class Egress:
    def __init__(self, policy: EgressPolicy | None = None, *, within: Sequence[str] = ()) -> None:
        self._policy, self._within = policy or EgressPolicy(), tuple(within)
        self._owner_key = secrets.token_bytes(32)
        self._networks: weakref.WeakValueDictionary[str, OpenableNetwork] = weakref.WeakValueDictionary()
        self._open: dict[str, OpenableNetwork] = {}
        self._proxy: ProxyProcess | None = None
        self._starting = asyncio.Lock()
        self._restarting: asyncio.Task[None] | None = None
        self._is_closed = False

    @property
    def why_not(self) -> str:
        return "it needs root" if os.geteuid() != 0 else sk_lookup.why_not_here()

    async def try_out(self) -> None:
        if self.why_not:
            raise ProviderUnavailable(self.why_not)
        proxy = await ProxyProcess.start(self._policy, self._within)
        await proxy.close()

    @property
    def pid(self) -> int:
        """The pid of the proxy process; 0 if none runs."""
        return self._proxy.pid if self._proxy is not None and not self._proxy.is_gone else 0

    def network_of(self, record: SandboxRecord) -> "OpenableNetwork":
        network = self._networks.get(record.sandbox_id)
        if network is None:
            network = self._networks[record.sandbox_id] = OpenableNetwork(self, record)
        return network

    def group_of(self, owner: str) -> str:
        """Returns a keyed hash of an owner: the process can tell owners apart, but not who they are."""
        return hashlib.blake2b(owner.encode(), key=self._owner_key, digest_size=16).hexdigest()

    def keep(self, network: "OpenableNetwork") -> None:
        """Remembers an open network, which has to be closed even if nobody else refers to its sandbox any more."""
        self._open[network.sandbox_id] = network

    async def forget(self, sandbox_id: str) -> None:
        network = self._networks.pop(sandbox_id, None)
        if network is not None:
            await run_shielded(network.forget())
        self._open.pop(sandbox_id, None)

    async def close(self) -> None:
        self._is_closed = True
        if self._restarting is not None:
            self._restarting.cancel()
            await asyncio.wait([self._restarting])
        if self._proxy is not None:
            await self._proxy.close()
        for network in self._open.values():
            network.drop()
        self._open.clear()

    async def running(self) -> ProxyProcess:
        """Returns the proxy process; starts it if there is none. Raises ProviderUnavailable."""
        # One task starts the process; the others wait for it and use it.
        async with self._starting:
            if self._is_closed:
                raise ProviderUnavailable("the network is closed")
            if self._proxy is None or self._proxy.is_gone:
                self._proxy = await ProxyProcess.start(self._policy, self._within, when_gone=self._restart_later)
                _log.info("egress_started", pid=self._proxy.pid)
            return self._proxy

    async def try_out_rules(self, message: Mapping[str, Any]) -> None:
        """Gives rules to a process of their own, which ends afterwards. Raises InvalidRequest if it ends of them, and
        ProviderUnavailable."""
        proxy = await ProxyProcess.start(self._policy, self._within)
        try:
            await proxy.ask("try", **message)
        except ProxyGone:
            raise InvalidRequest(
                "the process of the network ends of these rules, and the sandbox is left without a network",
                remedy="set fewer or other rules, and tell the operator of this server",
            ) from None
        finally:
            await run_shielded(proxy.close())

    def _restart_later(self) -> None:
        _log.error("egress_ended", action="restart")
        if not self._is_closed and (self._restarting is None or self._restarting.done()):
            self._restarting = asyncio.create_task(self._restart(), name="egress-restart")

    async def _restart(self) -> None:
        """Restarts the process until it stays up and has the sockets of all sandboxes with an open network."""
        attempt = 0
        while any(network.is_open for network in self._open.values()):
            await asyncio.sleep(_RESTARTS_S[min(attempt, len(_RESTARTS_S) - 1)])
            attempt += 1
            try:
                proxy = await self.running()
            except ProviderUnavailable as exc:
                _log.error("egress_not_started", action="retry", error=exc)
                continue
            for network in sorted(self._open.values(), key=lambda each: each.is_suspect):
                await network.reopen()
            if await _stays(proxy):
                return


async def _stays(proxy: ProxyProcess) -> bool:
    for _ in range(int(_STEADY_S / 0.1)):
        if proxy.is_gone:
            return False
        await asyncio.sleep(0.1)
    return True


@dataclass(frozen=True, slots=True)
class _KernelSide:
    """The kernel objects of a sandbox with an open network. All but the route end with these descriptors."""

    namespace: int
    sockets: int
    link: int

    @classmethod
    def make(cls, namespace: int) -> "_KernelSide":
        """Makes the objects. Must run inside the namespace."""
        sk_lookup.set_route(is_there=True)
        sockets = sk_lookup.new_map()
        program = -1
        try:
            program = sk_lookup.load_program(sockets)
            return cls(namespace, sockets, sk_lookup.attach(program, namespace))
        except BaseException:
            os.close(sockets)
            raise
        finally:
            if program >= 0:
                os.close(program)

    def close(self) -> None:
        for descriptor in (self.link, self.sockets, self.namespace):
            os.close(descriptor)


class OpenableNetwork:
    """The network of one sandbox. `rules` hold now, or will hold as soon as the proxy process runs again.

    `is_suspect`: the process that all sandboxes share has ended while it was given these rules. Then it gets them again
    only after a process of their own has taken them.
    """

    def __init__(self, egress: Egress, record: SandboxRecord) -> None:
        self._egress, self._record = egress, record
        self._lock = asyncio.Lock()
        self._way: _KernelSide | None = None
        self._on: ProxyProcess | None = None
        self._broker: BrokerSetup | None = None
        self._bounds: tuple[EgressBound, ...] = ()
        self._before = self._last = NetworkUse()
        self._is_forgotten = False
        self.is_suspect = False
        self.rules = NO_NETWORK

    @property
    def sandbox_id(self) -> str:
        return self._record.sandbox_id

    @property
    def is_open(self) -> bool:
        return self._way is not None

    def adapt(self, isolation: Isolation) -> Isolation:
        if self._way is None:
            return isolation
        layers = dict(isolation.layers)
        layers.pop(Layer.NO_NETWORK, None)
        what = "the Internet" if self.rules.internet else f"what {len(self.rules.allow)} rules allow"
        if self._broker is not None and self._broker.secrets:
            what += f" and the hosts of {len(self._broker.secrets)} secrets"
        open_network = {Layer.NO_NETWORK: f"its network is open to {what}, through the worker's proxy"}
        return replace(isolation, layers=layers, missing={**isolation.missing, **open_network})

    async def set(
        self, rules: NetworkRules, broker: BrokerSetup | None = None, bounds: Sequence[EgressBound] = ()
    ) -> None:
        wanted = rules.is_open or broker is not None
        if wanted and Layer.NO_NETWORK in self._record.spec.require:
            raise IsolationUnavailable(
                "this sandbox was required to have no network",
                remedy="leave no_network out of `require`, or give it no rules",
            )
        async with self._lock:
            try:
                self._check_alive()
                await _index(rules)
                self.rules, self._broker, self._bounds = rules, broker, tuple(bounds)
                await (self._apply() if wanted else self._shut())
            except BaseException as exc:
                # Fail closed: whatever went wrong, the sandbox is left without a network. Shielded, also when
                # cancelled.
                await run_shielded(self._shut())
                if isinstance(exc, OSError):
                    self._check_alive()
                    raise ProviderUnavailable(f"opening the network of a sandbox: {exc.strerror}") from exc
                raise

    async def use(self) -> NetworkUse:
        async with self._lock:
            if self._on is not None and not self._on.is_gone:
                with contextlib.suppress(ProxyGone, ProviderUnavailable):
                    self._note(await self._on.ask("use", sandbox=self.sandbox_id))
            is_counting = self._on is not None and not self._on.is_gone
            open_now = self._last.open_connections if is_counting else 0
            return replace(_added(self._before, self._last), open_connections=open_now)

    async def reopen(self) -> None:
        """Gives a new proxy process what the last one had."""
        async with self._lock:
            if self._way is None or (self._on is not None and not self._on.is_gone):
                return
            try:
                await self._apply()
            except (OSError, ProviderUnavailable, InvalidRequest) as exc:
                _log.error("network_not_reopened", sandbox=self.sandbox_id, error=exc)

    async def forget(self) -> None:
        async with self._lock:
            self._is_forgotten = True
            await self._shut(is_dying=True)

    def drop(self) -> None:
        """Closes the kernel objects after the proxy process has ended for good."""
        self._is_forgotten = True
        if self._way is not None:
            self._way.close()
            self._way = None

    # -- under the lock

    def _check_alive(self) -> None:
        if self._is_forgotten or not self._record.alive():
            raise SandboxLost(f"sandbox {self.sandbox_id} is lost: its network cannot be set")

    async def _apply(self) -> None:
        """Brings the current rules into force. If the proxy process dies meanwhile, starts it again, once. Raises
        InvalidRequest if these rules are what it dies of."""
        for is_last in (False, True):
            if self.is_suspect:
                await self._egress.try_out_rules(self._described())
            proxy = await self._egress.running()
            try:
                await (self._replace(proxy) if self._on is proxy else self._hand_over(proxy))
                self.is_suspect = False
                return
            except ProxyGone as exc:
                self.is_suspect = self.is_suspect or exc.is_suspect
                if is_last:
                    raise ProviderUnavailable("the process of the network has ended twice") from None

    def _described(self) -> dict[str, Any]:
        broker = None if self._broker is None else self._broker.as_mapping()
        # Without a tenant a sandbox shares with nobody.
        known = self._bounds or (EgressBound(f"sandbox:{self.sandbox_id}"),)
        bounds = [(self._egress.group_of(each.owner), each.connections, each.mbps) for each in known]
        return {"sandbox": self.sandbox_id, "rules": pack_rules(self.rules.indexed), "broker": broker, "bounds": bounds}

    async def _replace(self, proxy: ProxyProcess) -> None:
        await proxy.ask("set", **self._described())

    async def _hand_over(self, proxy: ProxyProcess) -> None:
        self._before, self._last = _added(self._before, self._last), NetworkUse()
        self._on = None
        with contextlib.ExitStack() as ours:
            sockets: list[socket.socket] = []
            ours.callback(_close_all, sockets)
            way = self._way
            if way is None:
                way = self._way = await _make_way(self._record, sockets)
                self._egress.keep(self)
            else:
                await namespace_thread().run(way.namespace, lambda: _make_sockets(sockets))
            tcp, udp = sockets
            # Only a process that has the rules and both sockets gets connections: the program finds the sockets
            # afterwards. Of a request that is cancelled the process may have taken them: then `_shut` takes them back.
            self._on = proxy
            try:
                await proxy.ask("open", descriptors=(tcp.fileno(), udp.fileno()), **self._described())
            except Exception:
                self._on = None
                raise
            sk_lookup.put_socket(way.sockets, sk_lookup.SLOT_TCP, tcp)
            sk_lookup.put_socket(way.sockets, sk_lookup.SLOT_UDP, udp)

    async def _shut(self, *, is_dying: bool = False) -> None:
        # Forgotten first: if anything below fails, the network counts as closed.
        self.rules, self._broker = NO_NETWORK, None
        proxy, self._on = self._on, None
        way, self._way = self._way, None
        try:
            if proxy is not None and not proxy.is_gone:
                try:
                    self._note(await proxy.ask("close", sandbox=self.sandbox_id))
                except ProxyGone as exc:  # perhaps it still worked on rules that the caller has not waited for
                    self.is_suspect = self.is_suspect or exc.is_suspect
                except ProviderUnavailable:
                    pass
            self._before, self._last = _added(self._before, self._last), NetworkUse()
            if way is not None and not is_dying:
                with contextlib.suppress(OSError):
                    await namespace_thread().run(way.namespace, lambda: sk_lookup.set_route(is_there=False))
        finally:
            if way is not None:
                way.close()

    def _note(self, answer: dict[str, Any]) -> None:
        try:
            self._last = unpack_use(answer["use"])
        except (BrokenMessage, KeyError) as exc:
            _log.error("egress_talks_nonsense", error=exc)


async def _index(rules: NetworkRules) -> None:
    """Indexes the rules, in a thread if there are many. The network's process gets them indexed."""
    if len(rules.allow) + len(rules.deny) > FEW_RULES:
        await asyncio.to_thread(lambda: rules.indexed)


def _added(before: NetworkUse, use: NetworkUse) -> NetworkUse:
    return NetworkUse(
        before.bytes_sent + use.bytes_sent,
        before.bytes_received + use.bytes_received,
        before.connections + use.connections,
        0,
        before.refused + use.refused,
        (*before.refusals, *use.refusals)[-KEPT:],
        (*before.ended, *use.ended)[-KEPT:],
    )


async def _make_way(record: SandboxRecord, sockets: list[socket.socket]) -> _KernelSide:
    """Makes the kernel objects of an open network, and the first sockets, which it appends to `sockets`. Raises
    SandboxLost, OSError."""
    made: list[_KernelSide] = []
    namespace = open_namespace(record)

    def make() -> None:
        made.append(_KernelSide.make(namespace))
        _make_sockets(sockets)

    try:
        await namespace_thread().run(namespace, make)
        return made[0]
    except BaseException:
        for way in made:
            way.close()
        if not made:
            os.close(namespace)
        raise


def _make_sockets(made: list[socket.socket]) -> None:
    """Makes the TCP and the UDP socket. Must run inside the namespace. On port 53 they also answer on 127.0.0.1, where
    programs without a resolv.conf ask; if that port is taken, the program still finds them."""
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
        made.append(socket.socket(socket.AF_INET, kind))
        _bind(made[-1])
    tcp, udp = made
    tcp.listen(_BACKLOG)
    udp.setsockopt(socket.IPPROTO_IP, _PKTINFO, 1)


def _close_all(sockets: Sequence[socket.socket]) -> None:
    for sock in sockets:
        sock.close()


def _bind(sock: socket.socket) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind(("0.0.0.0", 53))
    except OSError as exc:
        if exc.errno != errno.EADDRINUSE:
            raise
        sock.bind(("198.18.0.1", 0))
