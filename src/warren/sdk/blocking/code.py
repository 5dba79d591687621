"""The code methods of the client: pieces of code (cells) in interpreters of the sandbox that keep their state."""

# Made from src/warren/sdk/aio/code.py by scripts/generate_sync.py: edit that one.

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from warren.model.errors import ServerUnreachable
from warren.sdk.blocking.platform import call_back
from warren.sdk.blocking.session_holder import SessionHolder
from warren.sdk.code_results import (
    CodeContext,
    Execution,
    ExecutionBuilder,
    ExecutionError,
    OutputMessage,
    Result,
)
from warren.sdk.protocol import COMMAND_TIMEOUT_S, new_key, work_s

_Callbacks = dict[str, Callable[[Any], Any] | None]


class Code(SessionHolder):
    """The part of a client that runs code. Methods that take a context also take its id."""

    timeout: float
    exactly_once: bool

    def run_code(
        self,
        code: str,
        language: str = "",
        context: CodeContext | str | None = None,
        *,
        on_stdout: Callable[[OutputMessage], Any] | None = None,
        on_stderr: Callable[[OutputMessage], Any] | None = None,
        on_result: Callable[[Result], Any] | None = None,
        on_error: Callable[[ExecutionError], Any] | None = None,
        timeout: float | None = None,
        env: Mapping[str, str] | None = None,
        save_artifacts: Sequence[str] = (),
        save_results: bool = False,
    ) -> Execution:
        """Runs code in an interpreter that keeps its state: variables are there for the code that runs next.

        `language`: python (the default), javascript, typescript, bash, r or java; `context` is one of
        `create_code_context`, else the language's own is taken. The callbacks are called while the code runs. An error
        of the code and a time-out are results (see `error` and `reason`), not exceptions.

        `timeout`: by default the client's, if it was given one, else the server's; 0 is none. After it, and when the
        caller is interrupted, the code is interrupted; the interpreter keeps its state if the code heeds that. If the
        connection breaks, ServerUnreachable has the `execution_id` for `get_execution`.

        `save_artifacts`: files and globs that are saved as artifacts when it has ended; `save_results`: so are pictures
        and PDFs among the results. `saved` of the execution says what was saved.
        """
        own_s = None if self.timeout == COMMAND_TIMEOUT_S else self.timeout
        limit_s = own_s if timeout is None else timeout
        given: dict[str, Any] = {"language": language, "context": _id_of(context), "env": dict(env or {})}
        given |= {"save_artifacts": list(save_artifacts), "save_results": save_results}
        values = {"code": code, "timeout_s": limit_s, **{name: value for name, value in given.items() if value}}
        callbacks: _Callbacks = {"stdout": on_stdout, "stderr": on_stderr, "result": on_result, "error": on_error}
        if self.exactly_once and not any(callbacks.values()):
            found = self._perform("run_code", key=new_key(), work_s=work_s(limit_s or 0), **values)
            return Execution.of({**found, "notice": self._take_notice()})
        return self._collect("run_code", callbacks, **values)

    def get_execution(
        self,
        execution_id: str,
        *,
        on_stdout: Callable[[OutputMessage], Any] | None = None,
        on_stderr: Callable[[OutputMessage], Any] | None = None,
        on_result: Callable[[Result], Any] | None = None,
        on_error: Callable[[ExecutionError], Any] | None = None,
    ) -> Execution:
        """Returns the execution of code that was started earlier, from its beginning; waits for its end if it runs."""
        callbacks: _Callbacks = {"stdout": on_stdout, "stderr": on_stderr, "result": on_result, "error": on_error}
        return self._collect("get_execution", callbacks, execution_id=execution_id)

    def create_code_context(
        self,
        language: str = "python",
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        idle_timeout: float | None = None,
    ) -> CodeContext:
        """Starts a new interpreter in the workspace or `cwd`. It ends when unused for `idle_timeout` seconds."""
        options = {"cwd": cwd, "env": dict(env or {}) or None, "idle_timeout_s": idle_timeout}
        return CodeContext.of(self._perform("create_context", language=language, **options))

    def list_code_contexts(self) -> list[CodeContext]:
        """Returns the interpreters of the sandbox."""
        return [CodeContext.of(each) for each in (self._perform("list_contexts"))["contexts"]]

    def restart_code_context(self, context: CodeContext | str) -> CodeContext:
        """Ends the interpreter and starts it anew, without its variables."""
        return CodeContext.of(self._perform("restart_context", context_id=_id_of(context)))

    def interrupt_code_context(self, context: CodeContext | str) -> CodeContext:
        """Interrupts the code that runs there, as Ctrl-C would; variables stay."""
        return CodeContext.of(self._perform("interrupt_context", context_id=_id_of(context)))

    def remove_code_context(self, context: CodeContext | str) -> None:
        """Ends the interpreter and everything it has started."""
        self._perform("delete_context", context_id=_id_of(context))

    def _collect(self, operation: str, callbacks: _Callbacks, **values: Any) -> Execution:
        builder = ExecutionBuilder()
        try:
            with contextlib.closing(self._follow(operation, **values)) as events:
                for name, event in events:
                    told = builder.add(name, event)
                    function = callbacks.get(name)
                    if function is not None and told is not None:
                        call_back(function, told)
            if not builder.has_ended:
                raise ServerUnreachable("the stream ended before the code did", remedy="the server may have stopped")
        except ServerUnreachable as exc:
            if not builder.id:
                raise
            raise _cut_off(exc, builder.id) from exc
        return builder.execution(self._take_notice())

    def _take_notice(self) -> str | None:
        notice, self._notice = self._notice, None
        return notice


def _id_of(context: CodeContext | str | None) -> str:
    return context.id if isinstance(context, CodeContext) else context or ""


def _cut_off(exc: ServerUnreachable, execution_id: str) -> ServerUnreachable:
    told = ServerUnreachable(exc.message, remedy=f"get_execution({execution_id!r}) gives what came of the code")
    told.execution_id = execution_id
    return told
