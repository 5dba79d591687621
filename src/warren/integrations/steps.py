"""Work on a sandbox, written once for both clients.

A plan is a generator: it yields the calls it needs (`Call`) and is sent their answers, or the error they ended with.
`run` does the calls with a client that blocks, `arun` with one for asyncio; the plan cannot tell which.
"""

from collections.abc import Generator
from typing import Any, NamedTuple, TypeVar

from warren.model.errors import WarrenError
from warren.sdk.aio.client import AsyncSandboxClient
from warren.sdk.blocking.client import SandboxClient

T = TypeVar("T")


class Call(NamedTuple):
    """A method of the client, or of something that an earlier call gave."""

    verb: str
    args: tuple[Any, ...]
    options: dict[str, Any]
    target: Any = None


Plan = Generator[Call, Any, T]


def call(verb: str, *args: Any, **options: Any) -> Generator[Call, Any, Any]:
    """`answer = yield from call("read_file", path)`"""
    return (yield Call(verb, args, options))


def call_on(target: Any, verb: str, *args: Any, **options: Any) -> Generator[Call, Any, Any]:
    """`text = yield from call_on(process, "output")`"""
    return (yield Call(verb, args, options, target))


def run(client: SandboxClient, plan: Plan[T]) -> T:
    try:
        wanted = next(plan)
        while True:
            try:
                answer = _method(client, wanted)(*wanted.args, **wanted.options)
            except (WarrenError, TimeoutError) as exc:
                wanted = plan.throw(exc)
            else:
                wanted = plan.send(answer)
    except StopIteration as stop:
        result: T = stop.value
        return result


async def arun(client: AsyncSandboxClient, plan: Plan[T]) -> T:
    try:
        wanted = next(plan)
        while True:
            try:
                answer = await _method(client, wanted)(*wanted.args, **wanted.options)
            except (WarrenError, TimeoutError) as exc:
                wanted = plan.throw(exc)
            else:
                wanted = plan.send(answer)
    except StopIteration as stop:
        result: T = stop.value
        return result


def _method(client: Any, wanted: Call) -> Any:
    return getattr(client if wanted.target is None else wanted.target, wanted.verb)
