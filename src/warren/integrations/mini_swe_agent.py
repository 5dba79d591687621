"""Warren as an environment of mini-swe-agent, chosen in its YAML:
`environment_class: warren.integrations.mini_swe_agent.WarrenEnvironment`.

Other names of that block are those of `WarrenEnvironmentConfig`, and options of the client such as `image`. The session
is made at once. It ends by `cleanup`, when the environment is dropped, or with the program; with `session_id` the
environment works in a session that exists, which stays.
"""

import logging
import os
import subprocess
import weakref
from functools import cached_property
from typing import Any, Final

from warren.integrations.extras import missing_package

try:
    from minisweagent.exceptions import Submitted
    from minisweagent.utils.serialize import recursive_merge
    from pydantic import BaseModel, ConfigDict
except ModuleNotFoundError as exc:
    raise missing_package(exc, __name__, "mini-swe-agent") from None

from warren.integrations.reports import describe_command
from warren.model.errors import WarrenError
from warren.sdk.blocking.client import SandboxClient

_SUBMIT: Final = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
_NOT_RUN: Final = -1
_UNAME: Final = ("system", "node", "release", "version", "machine", "processor")
_NOT_SHOWN: Final = {"api_key"}


class WarrenEnvironmentConfig(BaseModel):
    """How commands run. Names that are not here are options of the client, such as `image` and `limits`."""

    model_config = ConfigDict(extra="allow")

    cwd: str = ""
    env: dict[str, str] = {}
    forward_env: list[str] = []
    """Variables of this machine that commands get; `env` goes before them."""
    timeout: int = 30
    interpreter: list[str] = ["bash", "-lc"]
    user: str = ""
    server_url: str = ""
    session_id: str = ""


class WarrenEnvironment:
    """A session of Warren. Commands do not share directory or variables, as mini-swe-agent tells its model."""

    def __init__(
        self, *, config_class: type = WarrenEnvironmentConfig, logger: logging.Logger | None = None, **kwargs: Any
    ) -> None:
        self.logger = logger or logging.getLogger("minisweagent.environment")
        self.config: WarrenEnvironmentConfig = config_class(**kwargs)
        self.client = SandboxClient(
            self.config.server_url, session_id=self.config.session_id, **(self.config.model_extra or {})
        )
        self._end = weakref.finalize(self, self.client.leave)
        try:
            session_id = self.client.create_session().session_id
        except BaseException:
            self._end()
            raise
        self.logger.info("working in the session %s of Warren", session_id)

    def execute(self, action: dict[str, Any], cwd: str = "", *, timeout: int | None = None) -> dict[str, Any]:
        command, limit_s = action.get("command", ""), timeout or self.config.timeout
        if not self._end.alive:
            return _not_run(RuntimeError("the environment was cleaned up"), "")
        passed_on = {name: os.environ[name] for name in self.config.forward_env if name in os.environ}
        try:
            result = self.client.execute(
                [*self.config.interpreter, command],
                limit_s,
                cwd=cwd or self.config.cwd,
                env=passed_on | self.config.env,
                user=self.config.user,
                carry_state=False,
            )
        except WarrenError as exc:
            return _not_run(exc, "")
        if result.reason == "timeout":
            return _not_run(subprocess.TimeoutExpired(command, limit_s), result.output)
        report = describe_command(result, limit_s, None)
        output = {"output": report.text, "returncode": report.exit_code, "exception_info": ""}
        self._check_finished(output)
        return output

    def _check_finished(self, output: dict[str, Any]) -> None:
        first, _, submission = output["output"].lstrip().partition("\n")
        if first.strip() == _SUBMIT and output["returncode"] == 0:
            extra = {"exit_status": "Submitted", "submission": submission}
            raise Submitted({"role": "exit", "content": submission, "extra": extra})

    def get_template_vars(self, **kwargs: Any) -> dict[str, Any]:
        merged: dict[str, Any] = recursive_merge(self.config.model_dump(exclude=_NOT_SHOWN), self._uname, kwargs)
        return merged

    @cached_property
    def _uname(self) -> dict[str, str]:
        """What `platform.uname` says in the sandbox."""
        result = self.client.execute("for each in s n r v m p; do uname -$each; done", carry_state=False)
        return dict(zip(_UNAME, result.stdout.splitlines(), strict=False))

    def serialize(self) -> dict[str, Any]:
        shown = self.config.model_dump(mode="json", exclude=_NOT_SHOWN)
        kind = f"{type(self).__module__}.{type(self).__name__}"
        return {"info": {"config": {"environment": shown, "environment_type": kind}}}

    def cleanup(self) -> None:
        """Ends the session, unless it was there before."""
        self._end()


def _not_run(exc: Exception, output: str) -> dict[str, Any]:
    return {
        "output": output,
        "returncode": _NOT_RUN,
        "exception_info": f"An error occurred while executing the command: {exc}",
        "extra": {"exception_type": type(exc).__name__, "exception": str(exc)},
    }
