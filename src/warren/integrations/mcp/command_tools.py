"""The tools that run commands. The model reads their docstrings."""

import secrets
from typing import Annotated, Any, Final

from mcp.types import CallToolResult
from pydantic import Field

from warren.integrations.mcp.calls import MAX_CHARACTERS, Call, SandboxName, run_tool, shorten, text_result
from warren.integrations.mcp.sandboxes import Sandbox, Sandboxes
from warren.model.errors import SandboxLost, WarrenError
from warren.sdk.results import ExecuteResult, ProcessInfo

DEFAULT_TIMEOUT_S: Final = 120.0
_LONGEST_WAIT_S: Final = 60.0

_Line = Annotated[str, Field(description="A line for bash; may have several lines.", min_length=1)]
_ProcessId = Annotated[str, Field(description="The id that bash_background gave.", min_length=1)]


class CommandTools:
    def __init__(self, sandboxes: Sandboxes) -> None:
        self._sandboxes = sandboxes

    async def bash(
        self,
        call: Call,
        command: _Line,
        timeout: Annotated[float, Field(description="Seconds until it is ended.", gt=0)] = DEFAULT_TIMEOUT_S,
        sandbox: SandboxName = "",
    ) -> CallToolResult:
        """Run a bash command in an isolated Linux sandbox and wait for its end.

        The working directory and exported variables last from one call to the next; files stay as long as the
        sandbox. It begins in /workspace. Returns what was written to stdout and stderr, in order, and the exit code
        if it is not 0. Long output is shortened in the middle; the answer names the file that has all of it. For
        servers and anything that takes long, use bash_background.
        """

        async def work(box: Sandbox) -> CallToolResult:
            result = await box.client.execute(command, timeout)
            if result.reason == "sandbox_lost":
                raise SandboxLost("the sandbox died during the command")
            output = shorten(result.output, await _save_output(box, result))
            ending = _describe_end(result, timeout)
            return text_result(output, ending or ("" if output else "(no output)"), failed=result.reason == "timeout")

        return await run_tool(self._sandboxes, call, sandbox, work)

    async def bash_background(
        self,
        call: Call,
        command: _Line,
        name: Annotated[str, Field(description="An id of your own for it; else one is made.", max_length=64)] = "",
        sandbox: SandboxName = "",
    ) -> CallToolResult:
        """Start a bash command in the background of the sandbox and return at once.

        For servers, watchers, long builds. Gives an id for background_output and background_stop. It runs until it
        ends by itself, is stopped, or the sandbox ends.
        """

        async def work(box: Sandbox) -> CallToolResult:
            process = await box.client.spawn(command, name=name)
            return text_result(
                f"Started in the background as {process.id}. background_output shows what it writes, "
                "background_stop ends it."
            )

        return await run_tool(self._sandboxes, call, sandbox, work)

    async def background_output(
        self,
        call: Call,
        process_id: _ProcessId,
        offset: Annotated[
            int,
            Field(description="Byte to read from; an answer says where to read on. Negative: so many from the end."),
        ] = 0,
        wait: Annotated[
            float, Field(description="Seconds to wait if nothing new is there yet.", ge=0, le=_LONGEST_WAIT_S)
        ] = 0.0,
        sandbox: SandboxName = "",
    ) -> CallToolResult:
        """Read the output of a background command, piece by piece, and see whether it still runs."""

        async def work(box: Sandbox) -> CallToolResult:
            process = await box.client.process(process_id)
            start = offset if offset >= 0 else max(0, (await process.info()).bytes_total + offset)
            page: dict[str, Any] = {"offset": start, "limit": MAX_CHARACTERS, "wait_s": wait}
            found = await box.backend.call("read_output", box.session_id, process_id=process_id, work_s=wait, **page)
            text = "".join(chunk["data"] for chunk in found["chunks"])
            return text_result(text, _describe_state(await process.info(), found["next_offset"]))

        return await run_tool(self._sandboxes, call, sandbox, work)

    async def background_stop(self, call: Call, process_id: _ProcessId, sandbox: SandboxName = "") -> CallToolResult:
        """End a background command and everything it started. Its output can still be read afterwards."""

        async def work(box: Sandbox) -> CallToolResult:
            process = await box.client.process(process_id)
            if not (info := await process.info()).running and not info.background:
                return text_result(f"{process_id} had ended before, with exit code {info.exit_code}.")
            result = await process.kill()
            return text_result(f"{process_id} was stopped; its exit code is {result.exit_code}.")

        return await run_tool(self._sandboxes, call, sandbox, work)

    async def stop_all(self, call: Call, sandbox: SandboxName = "") -> CallToolResult:
        """End everything that runs in the sandbox at once; files stay.

        The way out when no command can be started any more because too many processes run.
        """

        async def work(box: Sandbox) -> CallToolResult:
            return text_result(f"{await box.client.kill_all()} processes were ended; the files are still there.")

        return await run_tool(self._sandboxes, call, sandbox, work)


async def _save_output(box: Sandbox, result: ExecuteResult) -> str:
    """Writes an output that is too long to be shown into a file of the sandbox; returns a hint where it is."""
    if len(result.output) <= MAX_CHARACTERS:
        return ""
    path = f"/tmp/warren-output/{secrets.token_hex(4)}.txt"
    try:
        await box.client.write_file(path, result.output)
    except SandboxLost:
        raise
    except WarrenError as exc:
        return f"they could not be kept in a file: {exc.message}"
    if result.truncated:
        return f"the first and last part of all {result.bytes_total} bytes are in {path}"
    return f"all of the output is in {path}: use grep, head, tail or read_file on it"


def _describe_end(result: ExecuteResult, timeout: float) -> str:
    if result.reason == "timeout":
        return (
            f"[ended after {timeout:g} s, its time-out; the output above is what came until then. Give a longer "
            "timeout, or use bash_background]"
        )
    if result.reason == "oom":
        return f"[exit code {result.exit_code}: the sandbox ran out of memory, use less of it]"
    notes = [f"exit code {result.exit_code}"] if result.exit_code else []
    if result.background:
        notes.append(f"processes left running in the background: {result.background}")
    return f"[{'; '.join(notes)}]" if notes else ""


def _describe_state(info: ProcessInfo, next_offset: int) -> str:
    state = "still running" if info.running else f"ended, exit code {info.exit_code}"
    left = info.bytes_total - next_offset
    more = f"{left} bytes more are there" if left > 0 else "nothing more so far" if info.running else "that is all"
    return f"[{state}; {more}; read on with offset={next_offset}]"
