"""A server as the commands use it: how to reach it, and which session is meant.

The key is never an argument, because every user of the machine can read the arguments of a process: it is taken from
WARREN_API_KEY, or is the one that a server of the same user left for its clients.
"""

import contextlib
import functools
import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import click

from warren import SandboxClient
from warren.cli.main import report
from warren.cli.options import server_options
from warren.cli.output import ProgressLine, print_json, print_table, printable
from warren.model.errors import ImageBuilding, InvalidRequest, SessionNotFound, Unauthorized, WarrenError
from warren.model.mismatch import describe
from warren.sdk.blocking.backend import find_session_of_thread
from warren.sdk.blocking.remote import Remote
from warren.sdk.blocking.session_holder import create_session
from warren.sdk.blocking.transport import Transport
from warren.sdk.discovery import find_key, find_url, key_remedy
from warren.sdk.protocol import ClientRequest

SESSION_ID: Final = re.compile(r"ses_[0-9a-f]{32}")
_SHORT_ID_LENGTH: Final = 16
_PAGE: Final = 1000


class RemoteServer:
    """A connection to a server; closed on leaving `with`."""

    def __init__(self, url: str) -> None:
        self.url = url or find_url()
        self.key = find_key(self.url)
        self.transport = Transport(self.url, self.key)
        self.backend = Remote(self.transport)

    def __enter__(self) -> "RemoteServer":
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self.backend.close()
        if isinstance(error, Unauthorized):
            problem = "does not take this API key" if self.key else "wants an API key"
            address = self.transport.address.url
            first = key_remedy(self.key) or "set WARREN_API_KEY to its key"
            remedy = (
                f"{first}; `warren keys create NAME --state-dir DIR` makes one on its machine, with --scopes admin an "
                "administrator's"
            )
            raise Unauthorized(f"the server at {address} {problem}", remedy=remedy) from error

    def call(
        self, method: str, path: str, query: Mapping[str, Any] | None = None, *, values: Any = None, work_s: float = 0.0
    ) -> Any:
        """Sends a request and returns the JSON of its response."""
        return self.transport.call(ClientRequest(method, path, query, values=values, work_s=work_s))

    def client(self, session_id: str) -> SandboxClient:
        return SandboxClient(session_id=session_id, backend=self.backend)

    def sessions(self, **filters: Any) -> Iterator[dict[str, Any]]:
        """Yields all sessions, newest first, page by page."""
        after: str | None = ""
        while after is not None:
            page = self.backend.call("list_sessions", limit=_PAGE, after=after, **filters)
            yield from page["sessions"]
            after = page["next"]

    def find(self, name: str, thread: str) -> str:
        """Returns the id of a session, given its thread, its id, or the beginning of its id."""
        if thread:
            session = find_session_of_thread(self.backend, thread)
            if session is None:
                raise SessionNotFound(f"the thread {thread!r} has no session", remedy="`warren create` makes one")
            return str(session["session_id"])
        return name if SESSION_ID.fullmatch(name) else self._find_by_prefix(name)

    def _find_by_prefix(self, name: str) -> str:
        prefix = f"ses_{name.removeprefix('ses_')}"
        matches = [each["session_id"] for each in self.sessions() if each["session_id"].startswith(prefix)]
        if len(matches) == 1:
            return str(matches[0])
        if matches:
            raise InvalidRequest(f"{len(matches)} sessions begin with {name!r}", remedy="give more of its id")
        raise SessionNotFound(f"there is no session {name!r}", remedy="`warren ps` shows those there are")

    def create_session(self, options: dict[str, Any]) -> dict[str, Any]:
        """Makes a session; waits, with a line of progress, while the server builds the environment's image."""
        progress = ImageProgress()
        try:
            return create_session(self.backend, secrets.token_hex(16), options, on_progress=progress)
        finally:
            progress.end()

    def find_or_create(self, name: str, thread: str, replace_lost: bool = False) -> str:
        """Does what `find` does, but a thread without a session gets one, as with its first command over the API."""
        if not thread:
            if replace_lost:
                raise click.UsageError("--replace-lost needs --thread; without one, `warren create` makes a session")
            return self.find(name, "")
        options: dict[str, Any] = {"thread_id": thread, "replace_lost": replace_lost}
        session = self.create_session(options)
        report_fresh_sandbox(session)
        return str(session["session_id"])


@dataclass(frozen=True, slots=True)
class Answer:
    """What a command has found out: `values` for programs, printed as JSON; `show` prints it for people."""

    values: Any
    show: Callable[[], None]
    exit_code: int = 0


def line(values: Any, text: str) -> Answer:
    return Answer(values, functools.partial(click.echo, text))


def table(values: Any, titles: Sequence[str], rows: Iterable[Sequence[object]]) -> Answer:
    return Answer(values, functools.partial(print_table, titles, list(rows)))


def server_command(command: Callable[..., Answer]) -> Callable[..., int]:
    """Gives a command --url and --json. It is called with the server before its other arguments, and what it returns is
    printed, as JSON or for people."""

    @functools.wraps(command)
    def call(*arguments: Any, url: str, as_json: bool, **options: Any) -> int:
        with RemoteServer(url) as server:
            answer = command(server, *arguments, **options)
        print_json(answer.values) if as_json else answer.show()
        return answer.exit_code

    return server_options(call)


class ImageProgress:
    """Shows how far the server is with an image that it builds; nothing as long as it builds none."""

    def __init__(self) -> None:
        self._line: ProgressLine | None = None

    def __call__(self, building: ImageBuilding) -> None:
        if self._line is None:
            report(building.message)
            self._line = ProgressLine("image")
        self._line(printable(building.step), building.fraction)

    def end(self) -> None:
        if self._line is not None:
            self._line.__exit__()


def report_fresh_sandbox(session: dict[str, Any]) -> None:
    """Tells the user when a thread's files are gone because its earlier session ended."""
    if session.get("created") and session.get("previous"):
        reason = session["previous"]["reason"]
        report(f"this is a fresh sandbox: the thread's earlier session ended ({reason}), and its files are gone")


def report_mismatch(session: dict[str, Any]) -> None:
    """Tells the user where the session that was kept differs from what was asked for."""
    if session.get("mismatch"):
        report(f"this is the session that the thread has, with {describe(session['mismatch'])}")


def short_id(session_id: str) -> str:
    return session_id[:_SHORT_ID_LENGTH]


def split_session(words: tuple[str, ...], thread: str) -> tuple[str, tuple[str, ...]]:
    """Splits arguments into SESSION and the rest; with --thread all of them are the rest."""
    if thread:
        return "", words
    if not words or not words[0]:
        raise click.UsageError("which session? Give SESSION (`warren ps` shows them) or --thread T")
    return words[0], words[1:]


def complete(ctx: click.Context, incomplete: str, list_names: Callable[[RemoteServer], Iterable[str]]) -> list[str]:
    """Returns the names that fit, for shell completion; none if the server cannot be asked."""
    with contextlib.suppress(WarrenError, OSError), RemoteServer(ctx.params.get("url") or "") as server:
        return [name for name in list_names(server) if name.startswith(incomplete)]
    return []


def complete_session(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    def list_ids(server: RemoteServer) -> list[str]:
        return [short_id(each["session_id"]) for each in server.backend.call("list_sessions", limit=100)["sessions"]]

    return complete(ctx, incomplete, list_ids)
