"""How a request to a worker, or to a server in a sandbox, fails. The classes say whether it may be sent again.

These are not WarrenErrors, because no client sees them: the router and `PeerCalls` translate them.
"""


class ForwardingFailed(Exception):
    """A request failed. `reason` is a short sentence for logs and responses, in which "it" is the server that was
    asked: the caller says which. It names no address and no header."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Unreachable(ForwardingFailed):
    """No connection was made, so the worker has seen nothing. The request may be sent to another worker."""


class Broken(ForwardingFailed):
    """The connection ended after a part of the request was sent: the worker may or may not have carried it out.

    Also raised when the response is not valid HTTP, or breaks off.
    """


class WebSocketRefused(ForwardingFailed):
    """A worker refused a WebSocket with a status that the caller asked to handle itself. It is safe to try another."""

    def __init__(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        super().__init__(f"it refused with {status}")
        self.status = status
        self.headers = headers
