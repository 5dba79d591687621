"""`SandboxMiddleware`: the tools, a text for the system prompt, and a sandbox that is ready when it is needed.

It requests the thread's sandbox when a run begins, while the model still thinks about its first call. It destroys
nothing when a run ends: the sandbox belongs to the thread, and the server's time-outs end it.
"""

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable
from typing import Any, Unpack

from warren.integrations.extras import missing_package

try:
    from langchain.agents.middleware import AgentMiddleware, AgentState, ModelRequest, ModelResponse
    from langchain_core.messages import SystemMessage
    from langgraph.runtime import Runtime
except ModuleNotFoundError as exc:
    raise missing_package(exc, __name__, "langchain") from None

from warren.integrations.langgraph_tools import COMMAND_TIMEOUT_S, MAX_CHARS, sandbox_tools
from warren.integrations.prompt import sandbox_prompt
from warren.integrations.threads import ClientPair, ThreadClients
from warren.model.errors import WarrenError
from warren.sdk.aio.client import AsyncSandboxClient
from warren.sdk.blocking.client import SandboxClient
from warren.sdk.options import SandboxOptions


class SandboxMiddleware(AgentMiddleware[AgentState[Any], Any, Any]):
    """For `create_agent(model, middleware=[SandboxMiddleware(...)])`. Takes the options of `sandbox_tools`.

    `prompt` replaces the text for the system prompt; an empty text leaves the prompt alone.
    """

    def __init__(
        self,
        server_url: str = "",
        *,
        prompt: str | None = None,
        warm_up: bool = True,
        timeout: float = COMMAND_TIMEOUT_S,
        max_chars: int = MAX_CHARS,
        **options: Unpack[SandboxOptions],
    ) -> None:
        super().__init__()
        self.clients = ThreadClients(server_url, **options)
        self.tools = sandbox_tools(clients=self.clients, timeout=timeout, max_chars=max_chars)
        self._prompt = sandbox_prompt() if prompt is None else prompt
        self._warm_up = warm_up
        self._tasks: set[asyncio.Task[None]] = set()

    def before_agent(self, state: AgentState[Any], runtime: Runtime[Any]) -> None:
        pair = self.clients.pair()
        if self._warm_up:
            threading.Thread(target=_warm_up, args=(pair,), name="warren warm-up", daemon=True).start()

    async def abefore_agent(self, state: AgentState[Any], runtime: Runtime[Any]) -> None:
        pair = self.clients.pair()
        if self._warm_up:
            task = asyncio.create_task(_awarm_up(pair))
            self._tasks.add(task)  # the event loop itself keeps only a weak reference
            task.add_done_callback(self._tasks.discard)

    def wrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], ModelResponse[Any]]
    ) -> ModelResponse[Any]:
        return handler(self._add_prompt(request))

    async def awrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]]
    ) -> ModelResponse[Any]:
        return await handler(self._add_prompt(request))

    def _add_prompt(self, request: ModelRequest[Any]) -> ModelRequest[Any]:
        if not self._prompt:
            return request
        before = request.system_message.content_blocks if request.system_message is not None else []
        text = f"\n\n{self._prompt}" if before else self._prompt
        message = SystemMessage(content_blocks=[*before, {"type": "text", "text": text}])
        return request.override(system_message=message)


# Errors are ignored here: the first tool that needs the sandbox reports them to the model.


def _warm_up(pair: ClientPair) -> None:
    with contextlib.suppress(WarrenError):
        pair.run(SandboxClient.create_session)


async def _awarm_up(pair: ClientPair) -> None:
    with contextlib.suppress(WarrenError):
        await pair.arun(AsyncSandboxClient.create_session)
