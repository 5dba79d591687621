"""Clients that do everything at once until the server is gone, and know what they were told.

What was cut off is remembered: when the server is back the client repeats what may be repeated and finds out
what became of the rest. All of it ends up in the ledger that the invariants are checked against.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Final

from faults.caller import Answer, Caller
from faults.invariants import COUNTER, Held, Ledger

_MOST: Final = 2
_FULL: Final = {503, 507}

Operation = Callable[[Caller], Awaitable[None]]


class Client:
    """`work` goes on until the server is gone; `come_back` clears up what was cut off."""

    def __init__(self, number: int, chance: random.Random, ledger: Ledger) -> None:
        self._name, self._chance, self._ledger = f"client-{number}", chance, ledger
        self._mine: list[Held] = []
        self._count = 0
        self._cut: list[Operation] = []
        self.done: Counter[str] = Counter()

    async def work(self, caller: Caller) -> None:
        while not self._cut:
            await self._choose()(caller)

    async def come_back(self, caller: Caller) -> None:
        cut, self._cut = self._cut, []
        for again in cut:
            await again(caller)
        assert not self._cut

    def _choose(self) -> Operation:
        if not self._mine:
            return self._chance.choice([self._create, self._create_with_key, self._use_thread])
        doing = [self._exec, self._exec_once, self._upload, self._start, self._delete]
        return self._chance.choice([*doing, self._create_with_key] if len(self._mine) < _MOST else doing)

    def _held(self) -> Held:
        return self._chance.choice(self._mine)

    def _next(self) -> str:
        self._count += 1
        return f"{self._name}-{self._count}"

    def _answered(self, what: str, answer: Answer, again: Operation) -> bool:
        """Whether it was done. If the answer never came, `again` is for later."""
        if answer.cut:
            self._cut.append(again)
            return False
        assert answer.ok or answer.status in _FULL, f"{what}: {answer}"
        self.done[what] += answer.ok
        return answer.ok

    def _hold(self, answer: Answer) -> None:
        held = self._ledger.holds(answer.good())
        if held not in self._mine:
            self._mine.append(held)

    # -- creating

    async def _create(self, caller: Caller) -> None:
        mark = self._next()

        async def look(caller: Caller) -> None:
            """Nobody knows its id: it was made or not, once at most, and can only be found by looking."""
            found = await caller.sessions(metadata=f"mark={mark}")
            assert len(found) <= 1
            for session in found:
                (await caller.delete(session["session_id"])).good()

        answer = await caller.create(metadata={"mark": mark})
        if self._answered("create", answer, look):
            self._hold(answer)

    async def _create_with_key(self, caller: Caller) -> None:
        key = self._next()
        body = {"metadata": {"mark": key}, "limits": {"memory_mb": 256} if self._chance.random() < 0.3 else None}

        async def again(caller: Caller) -> None:
            answer = await caller.create(key, **body)
            if self._answered("create with key", answer, again):
                self._hold(answer)
                assert len(await caller.sessions(metadata=f"mark={key}")) == 1

        answer = await caller.create(key, **body)
        if self._answered("create with key", answer, again):
            self._hold(answer)

    async def _use_thread(self, caller: Caller) -> None:
        """Two at once, for the same thread."""
        answers = await asyncio.gather(*(caller.create(thread_id=self._name) for _ in range(2)))
        for answer in answers:
            if self._answered("thread", answer, self._use_thread):
                self._hold(answer)
        assert len({answer.body["session_id"] for answer in answers if answer.ok}) <= 1

    # -- using

    async def _exec(self, caller: Caller) -> None:
        held = self._held()

        async def nothing(caller: Caller) -> None:
            pass

        answer = await caller.exec(held.id, "echo hello")
        if self._answered("exec", answer, nothing):
            assert answer.body["stdout"] == "hello\n"

    async def _exec_once(self, caller: Caller) -> None:
        held, key = self._held(), self._next()

        async def again(caller: Caller) -> None:
            answer = await caller.exec(held.id, f"echo x >> {key}; sleep 0.05; cat {key}", key=key)
            if self._answered("exec with key", answer, again):
                assert answer.body["stdout"] == "x\n", answer
                held.files[key] = {b"x\n"}

        await again(caller)

    async def _upload(self, caller: Caller) -> None:
        held, new = self._held(), f"{self._next()}\n".encode() * self._chance.choice([1, 10_000])
        old = held.files.get("data.txt")

        async def either(caller: Caller) -> None:
            if old is None:
                (await caller.upload(held.id, "data.txt", new)).good()
            else:
                held.files["data.txt"] = old | {new}

        answer = await caller.upload(held.id, "data.txt", new)
        if self._answered("upload", answer, either):
            held.files["data.txt"] = {new}

    async def _start(self, caller: Caller) -> None:
        held = self._held()
        if held.counter:
            return await self._exec(caller)

        async def again(caller: Caller) -> None:
            answer = await caller.start(held.id, COUNTER, "counter")
            if answer.status == 409 or self._answered("background", answer, again):
                held.counter = "counter"

        await again(caller)

    async def _delete(self, caller: Caller) -> None:
        held = self._held()
        self._mine.remove(held)
        self._ledger.held.pop(held.id)

        async def again(caller: Caller) -> None:
            if self._answered("delete", await caller.delete(held.id), again):
                self._ledger.dropped(held.id)

        await again(caller)
