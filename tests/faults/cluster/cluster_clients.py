"""Clients of a cluster that do everything at once, whatever breaks, and know what they were told.

What was not answered, or refused with a status that leaves it open, may have been done or not. All of it ends up in
the ledger, which is compared with the cluster when that has recovered.
"""

import random
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final

from faults.caller import Answer
from faults.cluster.cluster_caller import ClusterCaller
from faults.invariants import Held

_MOST: Final = 3
_OPEN: Final = {0, 502, 503, 507}  # nobody knows, or it could not be done now
Operation = Callable[[ClusterCaller], Awaitable[None]]


@dataclass
class Acknowledged(Held):
    worker: str = ""
    owner: str = ""


@dataclass
class ClusterLedger:
    """`held` are sessions that must be there. `doubted` may be: their end was asked for and not answered, or another
    session of their thread was given out. `gone` were said to be lost or ended. `wrong` is what must never be."""

    held: dict[str, Acknowledged] = field(default_factory=dict)
    doubted: dict[str, Acknowledged] = field(default_factory=dict)
    gone: dict[str, Acknowledged] = field(default_factory=dict)
    deleted: set[str] = field(default_factory=set)
    wrong: list[str] = field(default_factory=list)
    data_lost: bool = False

    def holds(self, session: dict[str, Any]) -> Acknowledged:
        new = Acknowledged(session["session_id"], session["thread_id"] or "", worker=session["worker"])
        for other in list(self.held.values()):
            if new.thread_id and other.thread_id == new.thread_id and other.id != new.id:
                self.gone[other.id] = self.held.pop(other.id)
        if new.id in self.gone or new.id in self.deleted:
            self.wrong.append(f"{new} is given out, and was gone")
        return self.held.setdefault(new.id, self.doubted.pop(new.id, new))


class ClusterClient:
    """`work` goes on until `enough` says so."""

    def __init__(self, number: int, chance: random.Random, ledger: ClusterLedger) -> None:
        self._name, self._chance, self._ledger = f"client-{number}", chance, ledger
        self._count = 0
        self.done: Counter[str] = Counter()

    async def work(self, caller: ClusterCaller, enough: Callable[[], bool]) -> None:
        while not enough():
            await self._choose()(caller)

    @property
    def _mine(self) -> list[Acknowledged]:
        return [held for held in self._ledger.held.values() if held.owner == self._name]

    def _choose(self) -> Operation:
        doing: list[Operation] = [self._create, self._use_thread]
        if self._mine:
            doing = [self._read, self._read, self._write, self._write, self._delete, self._use_thread]
        if 0 < len(self._mine) < _MOST:
            doing.append(self._create)
        return self._chance.choice(doing)

    def _next(self) -> str:
        self._count += 1
        return f"{self._name}-{self._count}"

    def _answered(self, what: str, answer: Answer, held: Acknowledged | None = None) -> bool:
        """Whether it was done."""
        self.done[what if answer.ok else f"{what} {answer.status}"] += 1
        if answer.ok or answer.status in _OPEN:
            return answer.ok
        if answer.status == 429 and held is None:
            return False
        if answer.status == 410 and held is not None:
            self._ledger.gone[held.id] = self._ledger.held.pop(held.id, held)
            return False
        self._ledger.wrong.append(f"{what} of {held}: {answer.status} {answer.body}")
        return False

    # -- creating

    async def _create(self, caller: ClusterCaller) -> None:
        rules = {"allow": ["192.0.2.1"]} if self._chance.random() < 0.3 else None  # such a session has an egress
        answer = await caller.create(metadata={"mark": self._next()}, network=rules)
        if self._answered("create", answer):
            self._ledger.holds(answer.body).owner = self._name

    async def _use_thread(self, caller: ClusterCaller) -> None:
        thread = f"{self._name}-thread"
        answer = await caller.create(thread_id=thread, replace_lost=True)
        if self._answered("thread", answer):
            held = self._ledger.holds(answer.body)
            held.owner = self._name
            if "thread.txt" not in held.files:
                await self._put(caller, held, "thread.txt", thread.encode())

    # -- using

    async def _read(self, caller: ClusterCaller) -> None:
        held = self._chance.choice(self._mine)
        answer = await caller.exec(held.id, "cat data.txt 2>/dev/null; true")
        if self._answered("read", answer, held):
            allowed = held.files.get("data.txt", {b""})
            if answer.body["reason"] != "sandbox_lost" and answer.body["stdout"].encode() not in allowed:
                self._ledger.wrong.append(f"{held} reads {answer.body}")

    async def _write(self, caller: ClusterCaller) -> None:
        held = self._chance.choice(self._mine)
        await self._put(caller, held, "data.txt", self._next().encode())

    async def _put(self, caller: ClusterCaller, held: Acknowledged, path: str, new: bytes) -> None:
        old = held.files.get(path, {b""})
        held.files[path] = old | {new}
        if self._answered("write", await caller.upload(held.id, path, new), held):
            held.files[path] = {new}

    async def _delete(self, caller: ClusterCaller) -> None:
        held = self._chance.choice(self._mine)
        del self._ledger.held[held.id]
        answer = await caller.delete(held.id)
        if self._answered("delete", answer, held):
            self._ledger.deleted.add(held.id)
        elif held.id not in self._ledger.gone:
            self._ledger.doubted[held.id] = held
