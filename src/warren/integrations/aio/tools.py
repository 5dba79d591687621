"""What the standard tools of an agent do. Each returns a text for the model, and raises WarrenError."""

import contextlib
import json
import secrets
from typing import Any, Final

from warren.integrations.aio import commands
from warren.integrations.reports import shorten
from warren.sdk.aio.client import AsyncSandboxClient

_LONGEST_WAIT_S: Final = 60
_MAX_ENTRIES: Final = 500


async def bash(
    client: AsyncSandboxClient, default_s: float, max_chars: int, command: str, timeout: float | None = None
) -> str:
    report = await commands.run_command(client, command, default_s if timeout is None else timeout, max_chars)
    return report.to_text()


async def run_code(
    client: AsyncSandboxClient,
    default_s: float,
    max_chars: int,
    code: str,
    language: str = "python",
    timeout: float | None = None,
) -> tuple[str, dict[str, Any]]:
    """Returns the text, and the execution as the API has it."""
    limit_s = default_s if timeout is None else timeout
    report = await commands.run_code(client, code, language, limit_s, max_chars)
    notice = f"[{report.execution.notice}]\n" if report.execution.notice else ""
    return notice + (report.text or "[no output]"), json.loads(report.execution.to_json())


async def bash_background(client: AsyncSandboxClient, command: str) -> str:
    process = await client.spawn(command, name=f"bg-{secrets.token_hex(3)}")
    return f"started in the background as {process.id}"


async def background_output(client: AsyncSandboxClient, max_chars: int, process_id: str, wait_s: float = 0) -> str:
    process = await client.process(process_id)
    if wait_s > 0:
        with contextlib.suppress(TimeoutError):  # the text says then that it still runs
            await process.wait(min(wait_s, _LONGEST_WAIT_S))
    text = await process.output()
    info = await process.info()
    state = "still running" if info.running else f"exit code {info.exit_code}"
    return f"{shorten(text, max_chars)[0].rstrip()}\n[{state}]".lstrip("\n")


async def background_stop(client: AsyncSandboxClient, process_id: str) -> str:
    process = await client.process(process_id)
    result = await process.kill()
    return f"{process_id} has ended, exit code {result.exit_code}"


async def read_file(client: AsyncSandboxClient, max_chars: int, path: str) -> str:
    data = await client.read_file(path)
    if b"\0" in data[:8192]:
        return f"[{path} is not a text file: {len(data)} bytes]"
    return shorten(data.decode(errors="replace"), max_chars)[0] or f"[{path} is empty]"


async def write_file(client: AsyncSandboxClient, path: str, content: str) -> str:
    entry = await client.write_file(path, content)
    return f"wrote {entry.size} bytes to {entry.path}"


async def list_files(client: AsyncSandboxClient, path: str = "/workspace") -> str:
    found = await client.list_files(path)
    lines = [f"{each.name}/" if each.is_dir else f"{each.name} ({each.size} bytes)" for each in found[:_MAX_ENTRIES]]
    rest = [f"[and {len(found) - _MAX_ENTRIES} more]"] if len(found) > _MAX_ENTRIES else []
    return "\n".join([*lines, *rest]) or f"[{path} is empty]"
