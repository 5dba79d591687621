"""The two ways in which asking a worker fails; what matters is whether it may be asked again.

They are no WarrenErrors: no client sees them. Whoever forwards decides whether to try elsewhere, or what to answer.
"""


class ForwardingFailed(Exception):
    """`why` is a short sentence for logs and answers; it names no address and no header."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


class Unreachable(ForwardingFailed):
    """Nothing of the request was taken: no connection came about. It is safe to ask another worker."""


class Broken(ForwardingFailed):
    """The connection ended after the request, or a part of it, was sent: whether it was done is not known.

    Also when the worker said something that is not HTTP, or its answer broke off.
    """


class Refused(ForwardingFailed):
    """A worker refused a WebSocket with a status that the forwarder wanted to hear of. It is safe to ask another."""

    def __init__(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        super().__init__(f"the worker refused with {status}")
        self.status = status
        self.headers = headers
