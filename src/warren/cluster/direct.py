"""Clients that ask a worker itself, with their key, about sessions that it has, without the way through a coordinator.

The option `direct_clients` lets a worker answer them, and puts its address into the answer of a create. It is a way to
sessions that are there: whoever wants a new one, a list, or anything else asks the cluster's address.
"""

from functools import partial
from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

from warren.access.identity import Identity
from warren.cluster.auth import SECRET_HEADER
from warren.cluster.entrance import fence
from warren.cluster.lease import Lease
from warren.http.identify import find_operation
from warren.http.request import Request
from warren.model.api import SESSION
from warren.model.errors import Misdirected

_SESSIONS: Final = SESSION.partition("{")[0]  # /api/sessions/


def with_clients(coordinators: ASGIApp, clients: ASGIApp) -> ASGIApp:
    """Sends what clients ask about sessions to `clients`, and all else to `coordinators`."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        is_direct = scope["type"] in ("http", "websocket") and scope["path"].startswith(_SESSIONS)
        if is_direct and all(name != SECRET_HEADER for name, _ in scope["headers"]):
            await clients(scope, receive, send)
        else:
            await coordinators(scope, receive, send)

    return app


class KeyIdentify:
    """Clients with a key; neither E2B's nor those of pages and previews come this way."""

    def __init__(self, identity: Identity) -> None:
        self._identity = identity

    def recognise(self, request: Request) -> None:
        find_operation(request)

    async def find_caller(self, request: Request, receive: Receive, send: Send) -> tuple[Receive, Send]:
        """Raises Unauthorized."""
        headers = request.scope["headers"]
        request.caller = await self._identity.caller(headers)
        request.check_again = partial(self._identity.check_again, headers)
        return receive, send


class DirectEntrance:
    """Checks the lease, as for coordinators, and that the request is for a session. Whether it is one of this worker
    is found out where the session is."""

    def __init__(self, lease: Lease) -> None:
        self._lease = lease

    async def __call__(self, request: Request, receive: Receive, send: Send) -> Send:
        if request.operation is None or not request.session_id:
            raise Misdirected("a worker answers for its sessions only", remedy="ask the address of the cluster")
        self._lease.check()
        return fence(self._lease, request.scope, receive, send)
