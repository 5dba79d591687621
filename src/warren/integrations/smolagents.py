"""Warren as the place where agents of smolagents run their code: `CodeAgent(..., executor=WarrenExecutor())`.

The code of all steps runs in one interpreter of a sandbox, so variables, functions and imports last from step to step.
The first step makes the session, `cleanup` (or leaving `with CodeAgent(...)`) ends it. `client=` or `session_id=` takes
a session that exists: the executor has an interpreter of its own there, and whoever made the session ends it.
"""

import contextlib
import io
import re
import secrets
import shlex
from collections.abc import Sequence
from typing import Any, Final, Unpack

from warren.integrations.extras import missing_package

try:
    import PIL.Image
    from smolagents import AgentLogger, LogLevel, Tool
    from smolagents.local_python_executor import CodeOutput
    from smolagents.remote_executors import RemotePythonExecutor
    from smolagents.serialization import SafeSerializer
    from smolagents.tools import get_tools_definition_code
    from smolagents.utils import AgentError
except ModuleNotFoundError as exc:
    raise missing_package(exc, __name__, "smolagents") from None

from warren.integrations.reports import describe_code
from warren.model.errors import ContextLost, ContextNotFound, WarrenError
from warren.sdk.blocking.client import SandboxClient
from warren.sdk.code_results import Execution, Result
from warren.sdk.options import SandboxOptions

DEFAULT_TIMEOUT_S: Final = 300.0
_INSTALL_S: Final = 600.0
_LONGEST_ENDING: Final = 20_000
_OPTIONAL: Final = re.compile(r"^import (numpy|PIL)\n", flags=re.M)
_MAX_ANSWER: Final = 100_000_000
_BY_FILE: Final = "file:"
# A long answer would not fit into an exception.
_ANSWER_BY_FILE: Final = """

def _by_file(forward):
    def answer(*args, **kwargs):
        try:
            return forward(*args, **kwargs)
        except BaseException as exc:
            if type(exc).__name__ == "FinalAnswerException" and len(exc.value) > 50_000:
                import tempfile
                with tempfile.NamedTemporaryFile("w", delete=False) as file:
                    file.write(exc.value)
                exc.args = ("file:" + file.name,)
            raise
    return answer

final_answer.forward = _by_file(final_answer.forward)
"""
_TOO_LONG: Final = "The answer is too long. Write it into a file, and answer with the name of the file."


class WarrenExecutor(RemotePythonExecutor):  # type: ignore[misc]  # smolagents is not typed
    """Runs the Python code of an agent in a sandbox.

    `additional_imports`: packages that pip installs there before the first step. `timeout`: the seconds that a step may
    take; 0 is none. A step that fails, takes too long or has no sandbox raises AgentError, which the agent's model
    reads. If the interpreter dies, the next step has a fresh one with the tools and variables that smolagents has sent.
    """

    def __init__(
        self,
        additional_imports: Sequence[str] = (),
        logger: AgentLogger | None = None,
        allow_pickle: bool = False,
        *,
        server_url: str = "",
        client: SandboxClient | None = None,
        session_id: str = "",
        timeout: float = DEFAULT_TIMEOUT_S,
        **options: Unpack[SandboxOptions],
    ) -> None:
        self.installed_packages: list[str]
        super().__init__([*additional_imports], logger or AgentLogger(level=LogLevel.ERROR), allow_pickle)
        self.client = client or SandboxClient(server_url, session_id=session_id, **options)
        self._timeout_s = timeout
        self._is_guest, self._has_own_context = client is not None, bool(client or session_id)
        self._context, self._is_lost = "", False
        self._tools: dict[str, Tool] = {}
        self._variables: dict[str, Any] = {}

    def __repr__(self) -> str:
        return f"<WarrenExecutor {self.client.session_id or 'without a session'}>"

    def __call__(self, code_action: str) -> CodeOutput:
        if self._is_lost:
            self._is_lost = False
            self._load(self._variables)
            self.run_code_raise_errors(_definitions(self._tools))
        return self.run_code_raise_errors(code_action)

    def run_code_raise_errors(self, code: str) -> CodeOutput:
        written: list[str] = []
        execution = self._run(code, self._timeout_s, written)
        logs = "".join(written)
        if execution.error is not None and execution.error.name == self.FINAL_ANSWER_EXCEPTION:
            return CodeOutput(self._final_answer(execution.error.value), logs, True)
        ending = describe_code(execution, (), self._timeout_s, _LONGEST_ENDING).text
        if not execution.ok:
            raise AgentError(f"{logs}\nExecuting code yielded an error:\n{ending}", self.logger)
        return CodeOutput(_value_of(execution), f"{logs}\n{ending}" if ending else logs, False)

    def _run(self, code: str, timeout_s: float, written: list[str]) -> Execution:
        take = written.append
        try:
            self._prepare()
            execution = self.client.run_code(
                code, "python", self._context, timeout=timeout_s, on_stdout=take, on_stderr=take
            )
        except (ContextLost, ContextNotFound) as exc:  # it died after the step before
            self._note_loss()
            raise AgentError(f"The next step has a fresh interpreter: {exc}", self.logger) from exc
        except WarrenError as exc:
            raise AgentError(str(exc), self.logger) from exc
        if execution.context_lost:
            self._note_loss()
        if execution.reason == "sandbox_lost":
            raise AgentError("the sandbox was lost while the code ran; its files are gone", self.logger)
        return execution

    def _prepare(self) -> None:
        """Sees that there is an interpreter, which has the packages that it was made with."""
        if self._has_own_context and not self._context:
            self._context = self.client.create_code_context("python").id
        if missing := [each for each in self.additional_imports if each not in self.installed_packages]:
            self.installed_packages += missing  # before, because installing runs code as well
            try:
                self.install_packages(missing)
            except BaseException:
                self.installed_packages = []
                raise

    def _note_loss(self) -> None:
        self._is_lost = True
        if self._context:
            with contextlib.suppress(WarrenError):
                self.client.remove_code_context(self._context)
        self._context = ""

    def _final_answer(self, encoded: str) -> Any:
        if encoded.startswith(_BY_FILE):
            path = encoded.removeprefix(_BY_FILE)
            try:
                data = self.client.read_file(path, length=_MAX_ANSWER + 1)
                self.client.remove(path)
            except WarrenError as exc:
                raise AgentError(str(exc), self.logger) from exc
            if len(data) > _MAX_ANSWER:
                raise AgentError(_TOO_LONG, self.logger)
            encoded = data.decode()
        return self._deserialize_final_answer(encoded, self.allow_pickle)

    # -- what smolagents sends

    def install_packages(self, additional_imports: list[str]) -> list[str]:
        written: list[str] = []
        execution = self._run(f"%pip install -q {shlex.join(additional_imports)}", _INSTALL_S, written)
        if not execution.ok:
            names = ", ".join(additional_imports)
            raise AgentError(f"could not install {names}:\n{''.join(written)}{execution.error}", self.logger)
        return additional_imports

    def send_tools(self, tools: dict[str, Tool]) -> None:
        if agents := [name for name, tool in tools.items() if not isinstance(tool, Tool)]:
            raise ValueError(f"code in a sandbox cannot call managed agents: {', '.join(agents)}")
        needed = {pkg for tool in tools.values() if not _is_patched(tool) for pkg in tool.to_dict()["requirements"]}
        if missing := sorted(needed - {"smolagents", *self.installed_packages}):
            self.install_packages(["pillow" if each == "PIL" else each for each in missing])
            self.installed_packages += missing
        if "final_answer" in tools and not _is_patched(tools["final_answer"]):  # twice, and it would call itself
            self._patch_final_answer_with_exception(tools["final_answer"])
        self._tools |= tools
        self.run_code_raise_errors(_definitions(tools))

    def send_variables(self, variables: dict[str, Any]) -> None:
        self._variables |= variables
        self._load(variables)

    def _load(self, variables: dict[str, Any]) -> None:
        if not variables:
            return
        path = f"/tmp/.variables-{secrets.token_hex(8)}"  # code would have 3 MiB at most
        serialized = SafeSerializer.dumps(variables, allow_pickle=self.allow_pickle)
        reader = SafeSerializer.get_deserializer_code(self.allow_pickle)
        try:
            self.client.write_file(path, serialized)
            self.run_code_raise_errors(f"{reader}\nglobals().update(_deserialize(open({path!r}).read()))")
            self.client.remove(path)
        except WarrenError as exc:
            raise AgentError(str(exc), self.logger) from exc

    def cleanup(self) -> None:
        """Ends the session, or in one that existed before, the interpreter. Does nothing the second time."""
        try:
            self._note_loss()
            if not self._is_guest:
                self.client.leave()
        except WarrenError as exc:
            self.logger.log_error(f"could not end the session: {exc}")

    def delete(self) -> None:
        self.cleanup()


def _definitions(tools: dict[str, Tool]) -> str:
    """Returns the code that defines tools. That of a patched final answer imports what it would use if it is there."""
    others: str = get_tools_definition_code({name: tool for name, tool in tools.items() if not _is_patched(tool)})
    patched = get_tools_definition_code({name: tool for name, tool in tools.items() if _is_patched(tool)})
    return others + _OPTIONAL.sub("", patched) + (_ANSWER_BY_FILE if "final_answer" in tools else "")


def _is_patched(tool: Tool) -> bool:
    return hasattr(tool, "_forward")


def _value_of(execution: Execution) -> Any:
    """Returns the value of the last expression as a picture or as text; without one, the last picture shown."""
    main = next((each for each in execution.results if each.is_main_result), None)
    pictures = [each for each in execution.results if each.png or each.jpeg]
    if main is None:
        return _picture(pictures[-1]) if pictures else None
    if main in pictures:
        return _picture(main)
    return next((main[name] for name in ("text", *main.formats()) if main[name] is not None), None)


def _picture(result: Result) -> PIL.Image.Image:
    return PIL.Image.open(io.BytesIO(result.to_bytes("png" if result.png else "jpeg")))
