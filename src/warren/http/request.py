"""What the server knows of a request: one record, which the stages of the pipeline fill and read.

It travels as an argument. FastAPI's routes, which get only the scope, and the connection, which wants to know whose
request it serves, find it in the scope under REQUEST, the one key of ours there.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, NamedTuple

from starlette.requests import HTTPConnection
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from warren.access.bindings import Grant
from warren.model.access import Caller
from warren.model.api import Operation
from warren.model.e2b import Plane
from warren.model.errors import WarrenError
from warren.model.preview import Preview

REQUEST: Final = "warren.request"
ANONYMOUS: Final = Caller(scopes=frozenset())
"""Who sends a request that needs no caller, or whose caller is not known yet."""
NO_ROUTE: Final = "unknown"


class Kind(Enum):
    """What a request is: of the API, in the words of E2B's clients, for a server inside a sandbox, or for a page."""

    API = "api"
    E2B = "e2b"
    PREVIEW = "preview"
    PAGE = "page"


class E2bAddress(NamedTuple):
    """What a request of E2B's clients is for: a service of the sandbox `session_id`, or the control plane. `path` is
    what the client asked that service for, `base` the host and prefix that it used for the control plane. `access` and
    `traffic` are the tokens that it brings; `is_signed`: its query is, instead of a token."""

    plane: Plane
    session_id: str
    path: str
    base: str = ""
    access: str = ""
    traffic: str = ""
    is_signed: bool = False

    @property
    def is_call(self) -> bool:
        """Whether it is a remote procedure call, whose errors have another form."""
        return is_call(self.plane, self.path)


def is_call(plane: Plane, path: str) -> bool:
    return plane is Plane.ENVD and path.count("/") == 2 and "." in path.partition("/")[2].partition("/")[0]


def _stays() -> bool:
    return False


@dataclass(slots=True, eq=False)
class Request:
    """`scope` is ASGI's, as the rest of the server sees the request; `headers` are its headers by name, of several with
    one name the last.

    What it is: its `kind`; the `operation` of the table with the `params` in its path, if it asks for one; `streams`
    tells whether its body may have any length. A request of E2B's clients has `e2b`, a preview its `preview`; with
    `own_origin` its host is an origin of its own. `show_error` makes of an error what E2B's clients read, if
    `shows_e2b_errors`; `refused` is the answer to a request that makes no sense.

    Who asks: the `caller` once the request was admitted. `known` is the caller if another credential than a key has
    identified it: a token of a sandbox, a link to a preview, a `grant` of a page or a ticket. `check_again` asks
    whether that still holds. `refusal` is why none of them counts. `traffic_token`: the one that the request brings
    opens the sandbox whose port it names. `page_token` is what the cookie of a page has, `page_mark` a text that tells
    signed-in browsers apart and gives nothing away.

    What became of it: `action` is what the audit record calls it, `route` what the log does, if neither comes from the
    operation. `forwarded`: a worker answers, and records it. `from_sandbox`: the answer is due to a sandbox, and its
    status tells nothing about Warren.

    `has_left` tells whether the client has closed, also if the event loop has not seen it yet.
    """

    scope: Scope
    headers: Mapping[bytes, bytes] = field(default_factory=dict)
    has_left: Callable[[], bool] = _stays
    id: str = ""
    kind: Kind = Kind.API
    operation: Operation | None = None
    params: Mapping[str, Any] = field(default_factory=dict)
    streams: bool = False
    e2b: E2bAddress | None = None
    preview: Preview | None = None
    own_origin: bool = False
    show_error: Callable[[Any], Response] | None = None
    shows_e2b_errors: bool = False
    refused: Response | None = None
    caller: Caller = ANONYMOUS
    known: Caller | None = None
    traffic_token: bool = False
    grant: Grant | None = None
    check_again: Callable[[], Awaitable[None]] | None = None
    refusal: WarrenError | None = None
    page_token: str = ""
    page_mark: str = ""
    action: str = ""
    route: str = ""
    forwarded: bool = False
    from_sandbox: bool = False

    @property
    def session_id(self) -> str:
        """The session that the path names, or ""."""
        found: str = self.params.get("session_id", "")
        return found

    def set_headers(self, headers: list[tuple[bytes, bytes]]) -> None:
        self.scope["headers"] = headers
        self.headers = dict(headers)


Stage = Callable[[Request, Receive, Send], Awaitable[None]]


def request_in(scope: Scope) -> Request:
    """Returns the record of a request, which is made if there is none yet."""
    request: Request | None = scope.get(REQUEST)
    if request is None:
        request = scope[REQUEST] = Request(scope)
    return request


def request_of(connection: HTTPConnection) -> Request:
    """Returns the record of the request that a route answers."""
    request: Request = connection.scope[REQUEST]
    return request


def caller_of(connection: HTTPConnection) -> Caller:
    return request_of(connection).caller
