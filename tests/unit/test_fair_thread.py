"""Long work has one thread, and owners take turns."""

import asyncio
import threading

import pytest

from warren.kernel.fair_thread import FairThread

pytestmark = pytest.mark.anyio


class Work:
    """Waits in the thread until the test lets it go on."""

    def __init__(self) -> None:
        self.may_go_on = threading.Event()
        self.done: list[str] = []
        self.threads: set[int] = set()

    def do(self, name: str) -> str:
        self.may_go_on.wait(10)
        self.threads.add(threading.get_ident())
        self.done.append(name)
        return name


async def test_owners_take_turns_in_one_thread() -> None:
    thread, work = FairThread(), Work()
    wanted = [("greedy", f"greedy {number}") for number in range(4)] + [("other", "other 0"), ("other", "other 1")]
    tasks = [asyncio.create_task(thread.run(owner, lambda name=name: work.do(name))) for owner, name in wanted]  # type: ignore[misc]
    await asyncio.sleep(0)
    work.may_go_on.set()
    assert await asyncio.gather(*tasks) == [name for _, name in wanted]
    assert work.done.index("other 0") <= 2 < work.done.index("greedy 2")
    assert work.done.index("other 1") <= 4 < work.done.index("greedy 3")
    assert len(work.threads) == 1


async def test_owners_take_turns_in_a_few_threads_and_one_that_has_many_pieces_keeps_nobody_out() -> None:
    threads, work = FairThread(2), Work()
    wanted = ["greedy"] * 6 + ["other"]
    tasks = [asyncio.create_task(threads.run(owner, lambda name=owner: work.do(name))) for owner in wanted]  # type: ignore[misc]
    await asyncio.sleep(0.05)
    work.may_go_on.set()
    assert await asyncio.gather(*tasks) == wanted
    assert work.done.index("other") <= 4
    assert await threads.run("one", lambda: 7) == 7


async def test_errors_reach_the_caller_and_the_next_work_is_done() -> None:
    thread = FairThread()
    with pytest.raises(ValueError, match="invalid literal"):
        await thread.run("one", lambda: int("x"))
    assert await thread.run("one", lambda: int("7")) == 7


async def test_work_that_nobody_waits_for_is_not_begun() -> None:
    thread, work = FairThread(), Work()
    tasks = [asyncio.create_task(thread.run("one", lambda name=name: work.do(name))) for name in "abc"]  # type: ignore[misc]
    await asyncio.sleep(0.05)
    tasks[1].cancel()
    await asyncio.wait([tasks[1]])
    work.may_go_on.set()
    assert [await tasks[0], await tasks[2]] == ["a", "c"]
    assert work.done == ["a", "c"]
