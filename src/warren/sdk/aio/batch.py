"""Many commands: one after the other in one sandbox, or side by side in several."""

import contextlib
from collections.abc import Sequence
from functools import partial
from typing import Self, Unpack

from warren.model.errors import InvalidRequest, WarrenError
from warren.sdk.aio.client import AsyncSandboxClient
from warren.sdk.aio.platform import run_parallel
from warren.sdk.options import ClientOptions
from warren.sdk.results import ExecuteResult

Command = str | Sequence[str]


class AsyncBatchSandboxClient:
    """Takes the options of AsyncSandboxClient.

    `execute_batch` returns a result for every command, in their order. A command that could not be run at all has a
    result too, with exit code 125 and the reason in its output, and the others go on. With `parallel` above one the
    commands are spread over that many fresh sandboxes, which end afterwards; without it they share one. With a
    `thread_id` or a `session_id` they all run in that sandbox, which stays.
    """

    def __init__(self, server_url: str = "", **options: Unpack[ClientOptions]) -> None:
        self._server_url, self._options = server_url, options

    def __repr__(self) -> str:
        return f"<AsyncBatchSandboxClient {self._server_url or self._options.get('mode', 'remote')}>"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        return None

    async def execute_batch(
        self,
        commands: Sequence[Command],
        *,
        parallel: int = 1,
        timeout: float | None = None,
        stop_on_error: bool = False,
    ) -> list[ExecuteResult]:
        """Runs the commands and returns their results in order; with `stop_on_error` a lane ends at its first failure.

        `timeout` is that of each command.
        """
        if isinstance(commands, str):
            raise InvalidRequest("the commands must be a list", remedy="write execute_batch([command])")
        if parallel < 1:
            raise InvalidRequest(f"parallel is {parallel}, it must be 1 or more")
        lanes = min(parallel, len(commands))
        numbered = list(enumerate(commands))
        runs = [partial(self._run_lane, numbered[lane::lanes], timeout, stop_on_error) for lane in range(lanes)]
        results = [each for lane in await run_parallel(runs, parallel) for each in lane]
        return [result for _, result in sorted(results, key=lambda each: each[0])]

    async def _run_lane(
        self, commands: list[tuple[int, Command]], timeout: float | None, stop_on_error: bool
    ) -> list[tuple[int, ExecuteResult]]:
        results: list[tuple[int, ExecuteResult]] = []
        client = AsyncSandboxClient(self._server_url, **self._options)
        try:
            for number, command in commands:
                result = await _run(client, command, timeout)
                results.append((number, result))
                if stop_on_error and not result.ok:
                    break
        finally:
            # The results count: a session that cannot be ended now ends by its time-outs.
            with contextlib.suppress(WarrenError):
                await client.leave()
        return results


async def _run(client: AsyncSandboxClient, command: Command, timeout: float | None) -> ExecuteResult:
    try:
        return await client.execute(command, timeout)
    except WarrenError as exc:
        return ExecuteResult(exit_code=125, output=str(exc), stderr=str(exc), reason=exc.code)
