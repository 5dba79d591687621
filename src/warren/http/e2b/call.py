"""What the handlers of E2B's operations get."""

import urllib.parse
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive
from starlette.types import Scope as RequestScope

from warren.http.context import Context
from warren.http.e2b.envd.started import StartedCommands
from warren.http.e2b.envd.state import EnvdState
from warren.http.e2b.errors import E2bError
from warren.http.e2b.template_builds import TemplateBuilds
from warren.http.e2b.tokens import SandboxTokens
from warren.http.problems import read_json_body
from warren.http.request import E2bAddress, Request
from warren.http.server.tls_hellos import TLS_HELLOS, TlsHellos
from warren.model.access import Caller
from warren.model.image_pulls import NO_PULLS, PullRules
from warren.sessions.ending import unusable_error
from warren.sessions.manager import Sessions
from warren.sessions.uses import SandboxUse


@dataclass(frozen=True, slots=True)
class E2bRules:
    """`templates` are names of templates with the environment that each stands for; other names stand for the
    environment of that name. With `public_ports` the ports of sandboxes made by E2B's clients are public, unless the
    client wants them private. `builds` builds templates; without it none are built here. `pulls` says on which images
    that are missing here templates may be built."""

    templates: Mapping[str, str] = field(default_factory=dict)
    public_ports: bool = True
    builds: TemplateBuilds | None = None
    pulls: PullRules = NO_PULLS


@dataclass
class E2bCall:
    """One request."""

    context: Context
    rules: E2bRules
    tokens: SandboxTokens
    request: Request
    receive: Receive
    started: StartedCommands
    envd: EnvdState

    @property
    def sessions(self) -> Sessions:
        return self.context.sessions

    @property
    def caller(self) -> Caller:
        return self.request.caller

    @property
    def address(self) -> E2bAddress:
        assert self.request.e2b is not None
        return self.request.e2b

    @property
    def session_id(self) -> str:
        """The id of the sandbox whose service it is for, "" for the control plane."""
        return self.address.session_id

    @property
    def scope(self) -> RequestScope:
        return self.request.scope

    @property
    def params(self) -> Mapping[str, str]:
        """The parts of its path that the operation names."""
        return self.request.params

    @property
    def tenant(self) -> str:
        return self.caller.tenant

    @property
    def tls_hellos(self) -> TlsHellos | None:
        """Names that clients have asked for over TLS; None if the server speaks it."""
        hellos: TlsHellos | None = self.scope.get("state", {}).get(TLS_HELLOS)
        return hellos

    def header(self, name: str) -> str:
        return self.request.headers.get(name.lower().encode(), b"").decode("latin-1")

    @cached_property
    def query(self) -> dict[str, list[str]]:
        return urllib.parse.parse_qs(
            self.scope["query_string"].decode("latin-1"), keep_blank_values=True, errors="surrogateescape"
        )

    def parameter(self, name: str) -> str:
        """The last value that the query has for this name, or ""."""
        return self.query.get(name, [""])[-1]

    def sandbox(self, *, counts: bool = True) -> SandboxUse:
        """The session and its sandbox for an `async with` block. Policies, quotas and the audit record apply."""
        return self.sessions.using(self.tenant, self.session_id, counts=counts)

    async def check_awake(self) -> None:
        """Raises SessionPaused for a session that is paused: to ask whether it runs does not wake it."""
        session = await self.sessions.get(self.tenant, self.session_id)
        if session.state.is_paused:
            raise unusable_error(session)

    async def stream(self) -> AsyncIterator[bytes]:
        """Yields the body as it comes. Raises ClientDisconnect."""
        while True:
            message = await self.receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnect
            if message.get("body"):
                yield message["body"]
            if not message.get("more_body"):
                return

    async def body(self) -> bytes:
        """The whole body; the guard bounds its length."""
        return b"".join([piece async for piece in self.stream()])

    async def json(self) -> dict[str, Any]:
        data = await self.body()
        values = await read_json_body(data) if data else {}
        if values is None:
            return {}
        if not isinstance(values, dict):
            raise E2bError(400, "the body must be a JSON object")
        return values


Run = Callable[[E2bCall], Awaitable[Response]]
