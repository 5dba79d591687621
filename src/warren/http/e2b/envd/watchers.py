"""Changes in directories, for E2B's clients: as a stream (WatchDir), or collected until they are asked for.

A watcher that a client has created collects events until the client takes them, in a task that ends when the watcher is
removed, or when its sandbox is gone. Before events are handed out the watch is synchronised, so that no change is
missing that was made before the client asked. Too many events are an error for the client, once, when it has taken the
events before.
"""

import asyncio
import contextlib
import json
import secrets
from collections.abc import AsyncGenerator, Mapping
from typing import Final

import anyio

from warren.http.e2b.call import E2bCall, Run
from warren.http.e2b.connect import Message, server_stream, unary
from warren.http.e2b.envd.filesystem import entry_of
from warren.http.e2b.envd.places import Rights, called_user, rights_of, text_field
from warren.http.e2b.envd.state import Collecting, EnvdState
from warren.http.e2b.errors import ConnectError
from warren.interfaces.sandbox import FileWatch, Sandbox
from warren.model.errors import WarrenError
from warren.model.operations import Change, FileEvent
from warren.model.session import Session

MAX_WATCHERS: Final = 32  # of a session
MAX_EVENT_BYTES: Final = 512 * 1024  # of a watcher
_EVENT_BYTES: Final = 200
_STEP: Final = 16
_TYPES: Final = {
    Change.CREATED: "EVENT_TYPE_CREATE",
    Change.MOVED_TO: "EVENT_TYPE_CREATE",
    Change.MODIFIED: "EVENT_TYPE_WRITE",
    Change.REMOVED: "EVENT_TYPE_REMOVE",
    Change.MOVED_FROM: "EVENT_TYPE_RENAME",
    Change.ATTRIBUTES: "EVENT_TYPE_CHMOD",
}
_OVERFLOW: Final = "too much happened at once, and some of it was missed: watch fewer directories, or ask more often"


class Directory:
    """A directory that a client watches. `turn` is the lock of its sandbox, which looks at one entry at a time, however
    many watch."""

    def __init__(self, sandbox: Sandbox, rights: Rights, message: Message, turn: asyncio.Lock) -> None:
        self._sandbox, self._user, self._turn = sandbox, rights.user, turn
        self._root = rights.path(text_field(message, "path")).rstrip("/") or "/"
        self._recursive = _switch(message, "recursive")
        self._with_entry = _switch(message, "includeEntry", "include_entry")

    def watch(self) -> FileWatch:
        return self._sandbox.watch(self._root, recursive=self._recursive, user=self._user, attributes=True)

    async def show(self, event: FileEvent) -> Message:
        name = event.path[len(self._root.rstrip("/")) + 1 :] or "."
        shown: Message = {
            "name": name.encode(errors="surrogateescape").decode(errors="replace"),
            "type": _TYPES[event.change],
        }
        if self._with_entry and event.change not in (Change.REMOVED, Change.MOVED_FROM):
            async with self._turn:
                with contextlib.suppress(WarrenError):  # it is gone already
                    shown["entry"] = entry_of(await self._sandbox.stat(event.path, user=self._user, details=True))
        return shown


def _switch(message: Message, *names: str) -> bool:
    value = next((message[name] for name in names if name in message), False)
    if not isinstance(value, bool):
        raise ConnectError("invalid_argument", f"{names[0]} must be true or false")
    return value


class Watcher:
    """Collects the events of one directory, known by its id for as long as it watches."""

    def __init__(self, state: EnvdState, session_id: str, directory: Directory) -> None:
        self.id: Final = f"w{secrets.token_hex(10)}"
        self._state, self._session_id, self._directory = state, session_id, directory
        self._watch = directory.watch()
        self._events: list[Message] = []
        self._size = 0
        self._overflowed = False
        self._task: asyncio.Task[None] | None = None

    async def begin(self) -> None:
        """Returns when it watches. Raises what is wrong with the directory."""
        watchers = self._state.watchers.setdefault(self._session_id, {})
        if len(watchers) >= MAX_WATCHERS:
            raise ConnectError("resource_exhausted", f"a sandbox takes {MAX_WATCHERS} watchers at most: remove one")
        watchers[self.id] = self
        try:
            await anext(self._watch)
        except BaseException:
            self._forget()
            raise
        self._task = asyncio.create_task(self._collect(), name="e2b watcher")
        self._task.add_done_callback(lambda task: self._forget())

    async def end(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with anyio.CancelScope(shield=True):
                await asyncio.wait([self._task])

    def _forget(self) -> None:
        self._take_all()
        watchers = self._state.watchers.get(self._session_id, {})
        watchers.pop(self.id, None)
        if not watchers:
            self._state.watchers.pop(self._session_id, None)

    async def take(self) -> list[Message]:
        """Returns every event of what was changed before the call. Raises ConnectError once if some were lost."""
        await self._watch.sync()
        if not self._events and self._overflowed:
            self._overflowed = False
            raise ConnectError("internal", _OVERFLOW)
        return self._take_all()

    def _take_all(self) -> list[Message]:
        events, self._events = self._events, []
        self._state.give_back_room(self._session_id, self._size)
        self._size = 0
        return events

    async def _collect(self) -> None:
        taken = 0
        with contextlib.suppress(WarrenError):  # its sandbox is gone
            async for event in self._watch:
                taken += 1
                if taken % _STEP == 0:  # others may watch the same directory, and all get their events at once
                    await asyncio.sleep(0)
                if event.change is Change.OVERFLOW:
                    self._overflowed = True
                elif not self._overflowed:
                    self._add(await self._directory.show(event))

    def _add(self, shown: Message) -> None:
        size = _EVENT_BYTES + len(shown["name"]) + (len(json.dumps(shown["entry"])) if "entry" in shown else 0)
        if self._size + size > MAX_EVENT_BYTES or not self._state.take_room(self._session_id, size):
            self._overflowed = True
            return
        self._events.append(shown)
        self._size += size


async def _directory(call: E2bCall, session: Session, sandbox: Sandbox, message: Message) -> Directory:
    rights = await rights_of(call, session, sandbox, called_user(call))
    return Directory(sandbox, rights, message, call.envd.turn_of(session.id))


async def _create_watcher(call: E2bCall, message: Message) -> Message:
    async with call.sandbox() as (session, sandbox):
        watcher = Watcher(call.envd, call.session_id, await _directory(call, session, sandbox, message))
        await watcher.begin()
    return {"watcherId": watcher.id}


async def _get_events(call: E2bCall, message: Message) -> Message:
    async with call.sandbox():
        return {"events": await _watcher(call, message).take()}


async def _remove_watcher(call: E2bCall, message: Message) -> Message:
    async with call.sandbox():
        await _watcher(call, message).end()
    return {}


def _watcher(call: E2bCall, message: Message) -> Collecting:
    watcher_id = text_field(message, "watcherId", "watcher_id")
    watcher = call.envd.watchers.get(call.session_id, {}).get(watcher_id)
    if watcher is None:
        raise ConnectError(
            "not_found", f"there is no watcher {watcher_id[:80]!r}: it was removed, or the server started anew"
        )
    return watcher


async def _watch_dir(call: E2bCall, message: Message) -> AsyncGenerator[Message, None]:
    """Does not keep the session alive."""
    async with call.sandbox(counts=False) as (session, sandbox):
        directory = await _directory(call, session, sandbox, message)
        async with contextlib.aclosing(directory.watch()) as events:
            async for event in events:
                if event.change is Change.OVERFLOW:
                    raise ConnectError("internal", _OVERFLOW)
                is_start = event.change is Change.WATCHING
                yield {"start": {}} if is_start else {"filesystem": await directory.show(event)}


HANDLERS: Mapping[str, Run] = {
    "e2b_create_watcher": unary(_create_watcher),
    "e2b_get_watcher_events": unary(_get_events),
    "e2b_remove_watcher": unary(_remove_watcher),
    "e2b_watch_directory": server_stream(_watch_dir, {"keepalive": {}}),
}
