"""Warren as a code executor of AutoGen: `CodeExecutorAgent("coder", code_executor=WarrenCodeExecutor())`.

`start` (or `async with`) makes the session, `stop` ends it. Python blocks, and those of JavaScript, TypeScript, R and
Java, run in an interpreter of their language, which keeps variables until `restart`; shell blocks are commands.
`client=` or `session_id=` takes a session that exists: there the executor has interpreters of its own, and whoever made
the session ends it.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Self, Unpack

from warren.integrations.extras import missing_package

try:
    from autogen_core import CancellationToken, Component
    from autogen_core.code_executor import CodeBlock, CodeExecutor, CodeResult
    from pydantic import BaseModel, Field
except ModuleNotFoundError as exc:
    raise missing_package(exc, __name__, "autogen") from None

from warren.integrations.framework_errors import GONE
from warren.integrations.reports import (
    EXIT_NOT_RUN,
    EXIT_TIMED_OUT,
    Picture,
    describe_code,
    describe_command,
)
from warren.model.errors import ContextLost, ContextNotFound, SandboxLost, WarrenError
from warren.sdk.aio.client import AsyncSandboxClient
from warren.sdk.code_results import OutputMessage, Result
from warren.sdk.options import SandboxOptions

_SHELLS: Final = frozenset({"bash", "sh", "shell", "console"})
_INTERPRETERS: Final = {
    "": "python", "py": "python", "python": "python", "python3": "python", "java": "java", "js": "javascript",
    "javascript": "javascript", "node": "javascript", "r": "r", "ts": "typescript", "typescript": "typescript",
}  # fmt: skip
_NO_CONFIG: Final = frozenset({"api_key", "on_image_progress"})


class WarrenCodeExecutorConfig(BaseModel):
    """`options` are those of SandboxClient. The key is not in it: it is in WARREN_API_KEY where it is loaded."""

    server_url: str = ""
    session_id: str = ""
    timeout: float = 60.0
    max_output_chars: int = 100_000
    options: dict[str, Any] = Field(default_factory=dict)


@dataclass
class WarrenCodeResult(CodeResult):
    """`pictures` are those that the blocks have shown; `output` has a note in their place."""

    pictures: tuple[Picture, ...] = ()


class WarrenCodeExecutor(CodeExecutor, Component[WarrenCodeExecutorConfig]):
    """Runs blocks one after the other until one fails. What goes wrong is in the output, with exit code 124 for a block
    that took longer than `timeout` seconds and 125 for a sandbox that is gone; `restart` makes a new one."""

    component_config_schema = WarrenCodeExecutorConfig
    component_provider_override: ClassVar[str | None] = "warren.integrations.autogen.WarrenCodeExecutor"

    def __init__(
        self,
        server_url: str = "",
        *,
        client: AsyncSandboxClient | None = None,
        session_id: str = "",
        timeout: float = 60.0,
        max_output_chars: int = 100_000,
        **options: Unpack[SandboxOptions],
    ) -> None:
        self._given, self._server_url, self._session_id = client, server_url, session_id
        self._timeout_s, self._max_chars, self._options = timeout, max_output_chars, options
        self._client: AsyncSandboxClient | None = None
        self._contexts: dict[str, str] = {}
        self._turn = asyncio.Lock()

    def __repr__(self) -> str:
        return f"<WarrenCodeExecutor {self._client or 'not started'}>"

    @property
    def client(self) -> AsyncSandboxClient:
        """The client of the session, for files and ports, which AutoGen has no methods for."""
        if self._client is None:
            raise ValueError("the code executor does not run: call start(), or use `async with`")
        return self._client

    async def start(self) -> None:
        if self._client is None:
            given = self._given
            new = AsyncSandboxClient(self._server_url, session_id=self._session_id, **self._options)
            self._client = given or await new.__aenter__()

    async def stop(self) -> None:
        if self._client is None:
            return
        await self._end_interpreters()
        client, self._client = self._client, None
        if client is not self._given:
            await client.leave()

    async def restart(self) -> None:
        """Forgets all variables; files stay. When the session that `start` made is gone, makes another one."""
        await self._end_interpreters()
        try:
            await self.client.list_code_contexts()
        except GONE:
            if self._given or self._session_id:
                raise
            await self.stop()
            await self.start()

    async def _end_interpreters(self) -> None:
        contexts = [*self._contexts.values()]
        self._contexts.clear()
        for context in contexts:
            with suppress(WarrenError):
                await self.client.remove_code_context(context)

    async def execute_code_blocks(
        self, code_blocks: Sequence[CodeBlock], cancellation_token: CancellationToken
    ) -> WarrenCodeResult:
        if not code_blocks:
            raise ValueError("there are no code blocks")
        if wrong := [each.language for each in code_blocks if not _is_known(each.language)]:
            known = ", ".join(sorted({*_SHELLS, *_INTERPRETERS} - {""}))
            raise ValueError(f"blocks of {wrong[0]} cannot be run; those of {known} can")
        work = asyncio.ensure_future(self._run(self.client, code_blocks))
        cancellation_token.link_future(work)
        return await work

    async def _run(self, client: AsyncSandboxClient, blocks: Sequence[CodeBlock]) -> WarrenCodeResult:
        outputs: list[str] = []
        pictures: list[Picture] = []
        exit_code = 0
        async with self._turn:
            for block in blocks:
                try:
                    output, exit_code = await self._run_block(client, block, pictures)
                except WarrenError as exc:
                    output, exit_code = f"[sandbox: {exc}]", EXIT_NOT_RUN
                outputs.append(output if output.endswith("\n") or not output else f"{output}\n")
                if exit_code:
                    break
        return WarrenCodeResult(exit_code, "".join(outputs), tuple(pictures))

    async def _run_block(
        self, client: AsyncSandboxClient, block: CodeBlock, pictures: list[Picture]
    ) -> tuple[str, int]:
        language = block.language.strip().lower()
        if language in _SHELLS:
            result = await client.execute(block.code, self._timeout_s, carry_state=False)
            if result.reason == "sandbox_lost":
                raise SandboxLost("the sandbox was lost while the command ran")
            command = describe_command(result, self._timeout_s, self._max_chars)
            return command.text, command.exit_code
        language = _INTERPRETERS[language]
        if language not in self._contexts:
            self._contexts[language] = (await client.create_code_context(language)).id
        shown: list[OutputMessage | Result] = []
        take = shown.append
        try:
            execution = await client.run_code(
                block.code, language, self._contexts[language], timeout=self._timeout_s,
                on_stdout=take, on_stderr=take, on_result=take,
            )  # fmt: skip
        except (ContextLost, ContextNotFound):
            self._contexts.pop(language)
            raise
        if execution.context_lost:
            with suppress(WarrenError):
                await client.remove_code_context(self._contexts.pop(language))
        code = describe_code(execution, shown, self._timeout_s, self._max_chars)
        pictures += code.pictures
        failed = EXIT_TIMED_OUT if execution.reason == "timeout" else 1
        return code.text, 0 if execution.ok else failed

    # -- configuration

    def _to_config(self) -> WarrenCodeExecutorConfig:
        if self._given is not None and not self._given.session_id:
            raise ValueError("the client has no session yet, so there is nothing that a configuration could name")
        return WarrenCodeExecutorConfig(
            server_url=self._server_url,
            session_id=self._given.session_id if self._given else self._session_id,
            timeout=self._timeout_s,
            max_output_chars=self._max_chars,
            options={name: value for name, value in self._options.items() if name not in _NO_CONFIG},
        )

    @classmethod
    def _from_config(cls, config: WarrenCodeExecutorConfig) -> Self:
        return cls(
            config.server_url,
            session_id=config.session_id,
            timeout=config.timeout,
            max_output_chars=config.max_output_chars,
            **config.options,
        )


def _is_known(language: str) -> bool:
    name = language.strip().lower()
    return name in _SHELLS or name in _INTERPRETERS
