"""The tools that run commands and code. The model reads their docstrings."""

import secrets
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any, Final, TypedDict

from warren.integrations.aio import commands
from warren.integrations.mcp.calls import MAX_CHARACTERS, SandboxName, image_content, run_tool, shorten, text_result
from warren.integrations.mcp.sandboxes import Sandboxes, ToolSandbox
from warren.integrations.mcp.tools import CHANGES, READS, REPEATABLE, McpTool, ToolAnswer, ToolCall, about
from warren.integrations.reports import EXIT_TIMED_OUT
from warren.model.errors import SandboxLost, WarrenError
from warren.sdk.results import ExecuteResult, ProcessInfo

_DEFAULT_TIMEOUT_S: Final = 120.0
_LONGEST_WAIT_S: Final = 60.0

_Line = Annotated[str, about("A line for bash; may have several lines.", minLength=1)]
_ProcessId = Annotated[str, about("The id that bash_background gave.", minLength=1)]


class CommandEnd(TypedDict):
    output: Annotated[str, about("stdout and stderr, in order; shortened in the middle if it is long.")]
    exit_code: int
    reason: Annotated[str, about("exited, signal, timeout, oom or cancelled.")]
    truncated: Annotated[bool, about("Whether output lacks something.")]
    bytes: Annotated[int, about("How much the command wrote.")]
    output_file: Annotated[str | None, about("The file in the sandbox that has what output lacks.")]
    background: Annotated[int, about("How many of its processes still run.")]
    note: Annotated[str, about("How it ended, if there is something to say about it.")]


class Started(TypedDict):
    process_id: Annotated[str, about("For background_output and background_stop.")]


class OutputPart(TypedDict):
    output: str
    next_offset: Annotated[int, about("Where to read on.")]
    bytes: Annotated[int, about("How much the command wrote so far.")]
    running: bool
    exit_code: int | None


class Stopped(TypedDict):
    process_id: str
    exit_code: int | None
    was_running: bool


class StoppedAll(TypedDict):
    killed: Annotated[int, about("How many processes were ended.")]


class CommandTools:
    def __init__(self, sandboxes: Sandboxes) -> None:
        self._sandboxes = sandboxes

    def tools(self) -> Sequence[McpTool]:
        return (
            McpTool(self.bash, "Run a command", CHANGES),
            McpTool(self.run_code, "Run code", CHANGES),
            McpTool(self.bash_background, "Start a background command", CHANGES),
            McpTool(self.background_output, "Read background output", READS),
            McpTool(self.background_stop, "Stop a background command", REPEATABLE),
            McpTool(self.stop_all, "Stop everything that runs", REPEATABLE),
        )

    async def bash(
        self,
        call: ToolCall,
        command: _Line,
        timeout: Annotated[float, about("Seconds until it is ended.", exclusiveMinimum=0)] = _DEFAULT_TIMEOUT_S,
        sandbox: SandboxName = "",
    ) -> ToolAnswer[CommandEnd]:
        """Run a bash command in an isolated Linux sandbox and wait for its end.

        The working directory and exported variables last from one call to the next; files stay as long as the
        sandbox. It begins in /workspace. Returns what was written to stdout and stderr, in order, and the exit code
        if it is not 0. Long output is shortened in the middle; the answer names the file that has all of it. For
        servers and anything that takes long, use bash_background.
        """

        async def work(box: ToolSandbox) -> ToolAnswer[CommandEnd]:
            result = await box.client.execute(command, timeout)
            if result.reason == "sandbox_lost":
                raise SandboxLost("the sandbox died during the command")
            hint, path = await _save_output(box, result)
            output = shorten(result.output, hint)
            note = _describe_end(result, timeout)
            data = CommandEnd(
                output=output,
                exit_code=EXIT_TIMED_OUT if result.reason == "timeout" else result.exit_code,
                reason=result.reason,
                truncated=result.truncated or output != result.output,
                bytes=result.bytes_total,
                output_file=path,
                background=result.background,
                note=note.strip("[]"),
            )
            ending = note or ("" if output else "(no output)")
            return text_result(output, ending, data=data, failed=result.reason == "timeout")

        return await run_tool(self._sandboxes, call, sandbox, work)

    async def run_code(
        self,
        call: ToolCall,
        code: Annotated[str, about("The code; may have several lines.", minLength=1)],
        language: Annotated[str, about("python, javascript, typescript, bash, r or java.")] = "python",
        timeout: Annotated[float, about("Seconds until it is interrupted.", exclusiveMinimum=0)] = _DEFAULT_TIMEOUT_S,
        sandbox: SandboxName = "",
    ) -> ToolAnswer[None]:
        """Run code in an interpreter of the sandbox that keeps its state, as a notebook does.

        Variables, functions and imports are there for the next call. Returns what the code wrote, the value of its
        last expression, and the pictures that it showed (such as charts of matplotlib); or the traceback of its error.
        Files are those that bash sees. For data analysis and anything done step by step this is better than bash.
        """

        # No structured content: a client that shows its model nothing else would hide the pictures.
        async def work(box: ToolSandbox) -> ToolAnswer[None]:
            report = await commands.run_code(box.client, code, language, timeout, MAX_CHARACTERS)
            text = report.text or ("" if report.pictures else "(no output)")
            answer: ToolAnswer[None] = text_result(text, data=None, failed=report.execution.reason != "exited")
            pictures = (image_content(picture.data, picture.mime_type) for picture in report.pictures)
            return replace(answer, content=(*answer.content, *pictures))

        return await run_tool(self._sandboxes, call, sandbox, work)

    async def bash_background(
        self,
        call: ToolCall,
        command: _Line,
        name: Annotated[str, about("An id of your own for it; else one is made.", maxLength=64)] = "",
        sandbox: SandboxName = "",
    ) -> ToolAnswer[Started]:
        """Start a bash command in the background of the sandbox and return at once.

        For servers, watchers, long builds. Gives an id for background_output and background_stop. It runs until it
        ends by itself, is stopped, or the sandbox ends.
        """

        async def work(box: ToolSandbox) -> ToolAnswer[Started]:
            process = await box.client.spawn(command, name=name)
            return text_result(
                f"Started in the background as {process.id}. background_output shows what it writes, "
                "background_stop ends it.",
                data=Started(process_id=process.id),
            )

        return await run_tool(self._sandboxes, call, sandbox, work)

    async def background_output(
        self,
        call: ToolCall,
        process_id: _ProcessId,
        offset: Annotated[
            int,
            about("Byte to read from; an answer says where to read on. Negative: so many from the end."),
        ] = 0,
        wait: Annotated[
            float, about("Seconds to wait if nothing new is there yet.", minimum=0, maximum=_LONGEST_WAIT_S)
        ] = 0.0,
        sandbox: SandboxName = "",
    ) -> ToolAnswer[OutputPart]:
        """Read the output of a background command, piece by piece, and see whether it still runs."""

        async def work(box: ToolSandbox) -> ToolAnswer[OutputPart]:
            process = await box.client.process(process_id)
            start = offset if offset >= 0 else max(0, (await process.info()).bytes_total + offset)
            page: dict[str, Any] = {"offset": start, "limit": MAX_CHARACTERS, "wait_s": wait}
            found = await box.backend.call("read_output", box.session_id, process_id=process_id, work_s=wait, **page)
            text = "".join(chunk["data"] for chunk in found["chunks"])
            info = await process.info()
            data = OutputPart(
                output=text,
                next_offset=found["next_offset"],
                bytes=info.bytes_total,
                running=info.running,
                exit_code=info.exit_code,
            )
            return text_result(text, _describe_state(info, found["next_offset"]), data=data)

        return await run_tool(self._sandboxes, call, sandbox, work)

    async def background_stop(
        self, call: ToolCall, process_id: _ProcessId, sandbox: SandboxName = ""
    ) -> ToolAnswer[Stopped]:
        """End a background command and everything it started. Its output can still be read afterwards."""

        async def work(box: ToolSandbox) -> ToolAnswer[Stopped]:
            process = await box.client.process(process_id)
            if not (info := await process.info()).running and not info.background:
                text = f"{process_id} had ended before, with exit code {info.exit_code}."
                return text_result(
                    text, data=Stopped(process_id=process_id, exit_code=info.exit_code, was_running=False)
                )
            code = (await process.kill()).exit_code
            text = f"{process_id} was stopped; its exit code is {code}."
            return text_result(text, data=Stopped(process_id=process_id, exit_code=code, was_running=True))

        return await run_tool(self._sandboxes, call, sandbox, work)

    async def stop_all(self, call: ToolCall, sandbox: SandboxName = "") -> ToolAnswer[StoppedAll]:
        """End everything that runs in the sandbox at once; files stay.

        The way out when no command can be started any more because too many processes run.
        """

        async def work(box: ToolSandbox) -> ToolAnswer[StoppedAll]:
            killed = await box.client.kill_all()
            text = f"{killed} processes were ended; the files are still there."
            return text_result(text, data=StoppedAll(killed=killed))

        return await run_tool(self._sandboxes, call, sandbox, work)


async def _save_output(box: ToolSandbox, result: ExecuteResult) -> tuple[str, str | None]:
    """Writes an output that is too long to be shown into a file of the sandbox; returns a hint, and the file's path."""
    if len(result.output) <= MAX_CHARACTERS:
        return "", None
    path = f"/tmp/warren-output/{secrets.token_hex(4)}.txt"
    try:
        await box.client.write_file(path, result.output)
    except SandboxLost:
        raise
    except WarrenError as exc:
        return f"they could not be kept in a file: {exc.message}", None
    if result.truncated:
        return f"the first and last part of all {result.bytes_total} bytes are in {path}", path
    return f"all of the output is in {path}: use grep, head, tail or read_file on it", path


def _describe_end(result: ExecuteResult, timeout: float) -> str:
    if result.reason == "timeout":
        return (
            f"[exit code {EXIT_TIMED_OUT}: ended after {timeout:g} s, its time-out; the output above is what came "
            "until then. Give a longer timeout, or use bash_background]"
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
