"""Starts the interpreters of code contexts: when a caller wants one, and for the pool ahead of time.

A context's keeper is a process of the sandbox like any other, with the context's id. It says hello when its interpreter
is ready; one that ends before, or says something else, is removed again.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import anyio

from warren.interfaces.sandbox import Process, Sandbox
from warren.model.code import AGENT, CONTEXT_IDLE_S, NO_PROGRAM, BadFrames, FrameReader, Language
from warren.model.errors import InvalidJson, LanguageMissing, TooLarge, Unavailable, WarrenError
from warren.model.operations import Command, ExecResult
from warren.model.strict_json import read_json

_START_S: Final = 30.0
_KEEP: Final = 64 * 1024
_LONGEST_HELLO: Final = 512 * 1024
_MAX_NAMES: Final = 16 * 1024  # bytes


@dataclass(frozen=True, slots=True)
class Hello:
    """What a keeper says when its interpreter is ready. `env` are the variables that the context was created with."""

    version: str = ""
    cwd: str = ""
    env: Mapping[str, str] = field(default_factory=dict)


async def start_keeper(
    sandbox: Sandbox,
    language: Language,
    context_id: str,
    *,
    cwd: str = "",
    env: Mapping[str, str] | None = None,
    base_env: Mapping[str, str] | None = None,
    idle_s: float = CONTEXT_IDLE_S,
    image: str = "",
    user: str = "",
) -> Hello:
    """Returns when the context can run cells. It ends when it ran none for `idle_s`; 0: it does not.

    If it fails or is cancelled, no process is left. Raises Conflict if the context exists, and
    LanguageMissing if the image lacks the program.
    """
    options = ["--idle-s", str(max(1, round(idle_s)))] if idle_s else []
    named = [word for name in env or () for word in ("--env", name)]
    if sum(map(len, named)) > _MAX_NAMES:
        named = []
    command = Command(
        argv=(AGENT, "context", "--id", context_id, *options, *named, "--", *language.argv),
        cwd=cwd,
        user=user,
        env=dict(env or {}),
        base_env=dict(base_env or {}),
        keep_bytes=_KEEP,
        judged_as=language.judged_start,
    )
    ended = await _start(sandbox, language, command, context_id)
    if isinstance(ended, Hello):
        return ended
    raise _why_not(language, ended, image)


async def _start(sandbox: Sandbox, language: Language, command: Command, context_id: str) -> Hello | ExecResult:
    """How it ended, if it did not say hello; then it is forgotten."""
    process = await sandbox.start(command, process_id=context_id)
    try:
        async with asyncio.timeout(_START_S):
            hello = await read_hello(process)
        if hello is not None:
            return hello
        await process.kill(0)  # one that has said something else may still run
        ended = await process.wait()
    except TimeoutError:
        await remove_keeper(sandbox, process)
        raise Unavailable(f"the {language.name} interpreter was not ready after {_START_S:g} s") from None
    except BaseException:
        with anyio.CancelScope(shield=True), contextlib.suppress(WarrenError):
            await remove_keeper(sandbox, process)
        raise
    await sandbox.forget(context_id)
    return ended


async def remove_keeper(sandbox: Sandbox, process: Process) -> None:
    """Ends a context and everything that its code has started, and forgets it."""
    await process.kill(0)
    await process.ended()
    await sandbox.forget(process.id)


async def read_hello(process: Process) -> Hello | None:
    """None if it said something else, or nothing before it ended."""
    frames, size, source, told = FrameReader("dvh"), 0, process.output(), dict[str, bytes]()
    try:
        async for chunk in source:
            size += len(chunk.data)
            if size > _LONGEST_HELLO:
                return None
            if chunk.stream == "stdout":
                for kind, payload in frames.feed(chunk.data):
                    told[kind] = payload
                    if kind == "h":
                        return _hello_of(told)
    except BadFrames:
        return None
    finally:
        if isinstance(source, AsyncGenerator):
            with anyio.CancelScope(shield=True):
                await source.aclose()
    return None


def _variables_of(payload: bytes) -> dict[str, str]:
    entries = payload.decode("utf-8", "surrogateescape").split("\0")
    return {name: value for name, found, value in (entry.partition("=") for entry in entries) if found}


def _hello_of(told: Mapping[str, bytes]) -> Hello:
    try:
        values: Any = read_json(told["h"])
    except (InvalidJson, TooLarge):
        values = {}
    version = values.get("version") if isinstance(values, dict) else ""
    cwd = told.get("d", b"").decode("utf-8", "surrogateescape")
    return Hello(version[:100] if isinstance(version, str) else "", cwd, _variables_of(told.get("v", b"")))


def _why_not(language: Language, ended: ExecResult, image: str) -> WarrenError:
    said = ended.stderr.strip()[-2000:]
    if ended.exit_code == NO_PROGRAM:
        of_image = f"the image {image}" if image else "the sandbox's image"
        return LanguageMissing(
            f"{of_image} has no {language.needs or language.program}, which code in {language.name} needs",
            remedy="use an environment whose image has it, or another language",
        )
    how = said or f"it ended with exit code {ended.exit_code} ({ended.reason})"
    return Unavailable(f"the {language.name} interpreter could not be started: {how}")
