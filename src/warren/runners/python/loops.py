"""Runs cells that await. One event loop is kept for the life of the context; it turns only while such a cell runs."""

import asyncio

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import CodeType
    from typing import Any

_AWAITS = 0x280
_loop: "asyncio.AbstractEventLoop | None" = None


def run(steps: "list[CodeType]", namespace: "dict[str, Any]") -> "Any":
    global _loop
    if _loop is None or _loop.is_closed():
        _loop = asyncio.new_event_loop()
    asyncio.set_event_loop(_loop)
    task = _loop.create_task(_run_steps(steps, namespace))
    try:
        return _loop.run_until_complete(task)
    except KeyboardInterrupt as exc:
        if task.done():
            raise
        # It came while the loop waited: where the cell waits is seen by cancelling it.
        where = _cancel(_loop, task)
        raise exc.with_traceback(where or exc.__traceback__) from None


async def _run_steps(steps: "list[CodeType]", namespace: "dict[str, Any]") -> "Any":
    value = None
    for step in steps:
        value = eval(step, namespace)
        if step.co_flags & _AWAITS:
            value = await value
    return value


def _cancel(loop: asyncio.AbstractEventLoop, task: "asyncio.Task[Any]") -> "Any":
    task.cancel()
    try:
        loop.run_until_complete(task)
    except (asyncio.CancelledError, Exception) as exc:
        return exc.__traceback__
    return None
