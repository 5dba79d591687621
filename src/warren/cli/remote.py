"""A server as the commands see it: where it is, which session is meant, what an end means as an exit code.

The key is never an argument, because every user of the machine can read the arguments of a process: it is taken
from WARREN_API_KEY, or is the one that a server of this user has left for its user.
"""

import contextlib
import re
import secrets
from collections.abc import Callable, Iterator
from typing import Any, Final

import click

from warren import SandboxClient
from warren.cli.main import EXIT_WARREN_FAILED, report
from warren.model.errors import InvalidRequest, SessionNotFound, Unauthorized, WarrenError
from warren.model.operations import Reason
from warren.sdk.blocking.backend import find_session_of_thread
from warren.sdk.blocking.remote import Remote
from warren.sdk.blocking.transport import Transport
from warren.sdk.discovery import DEFAULT_URL, find_key, find_url
from warren.sdk.protocol import CREATE_S
from warren.sdk.results import ExecuteResult

EXIT_TIMEOUT: Final = 124
_WHOLE_ID: Final = re.compile(r"ses_[0-9a-f]{32}")
_SHOWN: Final = 16
_PAGE: Final = 1000

url_option = click.option("--url", default="", metavar="URL", help=f"The server.  [WARREN_URL, else {DEFAULT_URL}]")
json_option = click.option("--json", "as_json", is_flag=True, help="For programs: one JSON document.")
thread_option = click.option("--thread", default="", metavar="T", help="The thread's session, instead of SESSION.")


def server_options(command: Callable[..., Any]) -> Callable[..., Any]:
    return url_option(json_option(command))


class Server:
    """A connection to it; closed on leaving `with`."""

    def __init__(self, url: str) -> None:
        self.url = url or find_url()
        self.key = find_key(self.url)
        self.transport = Transport(self.url, self.key)
        self.backend = Remote(self.transport)

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self.backend.close()
        if isinstance(error, Unauthorized):
            said = "does not take this API key" if self.key else "wants an API key"
            where = self.transport.address.url
            remedy = "set WARREN_API_KEY to its key; `warren keys create NAME --state-dir DIR` makes one on its machine"
            raise Unauthorized(f"the server at {where} {said}", remedy=remedy) from error

    def client(self, session_id: str) -> SandboxClient:
        return SandboxClient(session_id=session_id, backend=self.backend)

    def sessions(self, **filters: Any) -> Iterator[dict[str, Any]]:
        """All of them, newest first, however many there are."""
        after: str | None = ""
        while after is not None:
            page = self.backend.call("list_sessions", limit=_PAGE, after=after, **filters)
            yield from page["sessions"]
            after = page["next"]

    def find(self, name: str, thread: str) -> str:
        """The id of the session that is meant: by its thread, its id, or the beginning of its id."""
        if thread:
            found = find_session_of_thread(self.backend, thread)
            if found is None:
                raise SessionNotFound(f"the thread {thread!r} has no session", remedy="`warren create` makes one")
            return str(found["session_id"])
        return name if _WHOLE_ID.fullmatch(name) else self._by_prefix(name)

    def _by_prefix(self, name: str) -> str:
        begin = f"ses_{name.removeprefix('ses_')}"
        found = [each["session_id"] for each in self.sessions() if each["session_id"].startswith(begin)]
        if len(found) == 1:
            return str(found[0])
        if found:
            raise InvalidRequest(f"{len(found)} sessions begin with {name!r}", remedy="give more of its id")
        raise SessionNotFound(f"there is no session {name!r}", remedy="`warren ps` shows those there are")

    def find_or_make(self, name: str, thread: str) -> str:
        """As `find`; but a thread without a session gets one, as with its first command over the API."""
        if not thread:
            return self.find(name, "")
        made = self.backend.call("create_session", key=secrets.token_hex(16), work_s=CREATE_S, thread_id=thread)
        tell_of_fresh(made)
        return str(made["session_id"])


def tell_of_fresh(made: dict[str, Any]) -> None:
    """The files of a thread's earlier session are gone: that must not go unnoticed."""
    if made.get("created") and made.get("previous"):
        why = made["previous"]["reason"]
        report(f"this is a fresh sandbox: the thread's earlier session ended ({why}), and its files are gone")


def short_id(session_id: str) -> str:
    return session_id[:_SHOWN]


def take_session(words: tuple[str, ...], thread: str) -> tuple[str, tuple[str, ...]]:
    """The SESSION a command line begins with, and the rest; with --thread there is only the rest."""
    if thread:
        return "", words
    if not words or not words[0]:
        raise click.UsageError("which session? Give SESSION (`warren ps` shows them) or --thread T")
    return words[0], words[1:]


def exit_code_of(result: ExecuteResult, timeout_s: float | None) -> int:
    if result.reason == Reason.TIMEOUT:
        after = "its time-out" if timeout_s is None else f"{timeout_s:g} s"
        report(f"the command was ended after {after}, with {result.killed} processes", "--timeout S gives it longer")
        return EXIT_TIMEOUT
    if result.reason == Reason.OOM:
        report("the command ran out of memory", "`warren create --memory MB` makes a session with more")
    if result.reason == Reason.SANDBOX_LOST:
        report("the sandbox was lost while the command ran")
        return EXIT_WARREN_FAILED
    return result.exit_code


def parse_pairs(option: str, texts: tuple[str, ...]) -> dict[str, str]:
    pairs = [text.partition("=") for text in texts]
    for name, equals, _ in pairs:
        if not (name and equals):
            raise click.UsageError(f"{option} {name}: expected K=V")
    return {name: value for name, _, value in pairs}


def complete_session(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """For shell completion: what the server has, or nothing when it cannot be asked."""
    with contextlib.suppress(WarrenError, OSError), Server(ctx.params.get("url") or "") as server:
        page = server.backend.call("list_sessions", limit=100)
        found = [short_id(each["session_id"]) for each in page["sessions"]]
        return [name for name in found if name.startswith(incomplete)]
    return []
