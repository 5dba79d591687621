"""The messages of `process.Process`, as E2B's clients send them."""

import base64
import binascii
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, Field, model_validator

from warren.model.operations import TerminalSize


def _decode(text: Any) -> Any:
    """Decodes base64 of either alphabet, with or without its padding."""
    if not isinstance(text, str):
        return text
    plain = text.rstrip("=").replace("-", "+").replace("_", "/")
    try:
        return base64.b64decode(plain + "=" * (-len(plain) % 4), validate=True)
    except binascii.Error:
        raise ValueError("must be base64") from None


class Values(BaseModel):
    """Fields that are null count as absent; those that nobody knows are ignored."""

    @model_validator(mode="before")
    @classmethod
    def _drop_nulls(cls, values: Any) -> Any:
        return {name: one for name, one in values.items() if one is not None} if isinstance(values, dict) else values


_Data = Annotated[bytes, BeforeValidator(_decode)]


class Config(Values):
    cmd: str = ""
    args: list[str] = []
    envs: dict[str, str] = {}
    cwd: str | None = None


class PtySize(Values):
    cols: Annotated[int, Field(ge=0, le=0xFFFF)] = 0
    rows: Annotated[int, Field(ge=0, le=0xFFFF)] = 0


class Pty(Values):
    size: PtySize | None = None


class StartRequest(Values):
    process: Config = Config()
    pty: Pty | None = None
    tag: str | None = None
    stdin: bool = True

    @property
    def takes_input(self) -> bool:
        return self.stdin or self.pty is not None


class Selector(Values):
    pid: Annotated[int, Field(ge=0, le=0xFFFFFFFF)] | None = None
    tag: str | None = None


class Input(Values):
    stdin: _Data | None = None
    pty: _Data | None = None


class OfProcess(Values):
    process: Selector = Selector()


class SignalRequest(OfProcess):
    signal: str | int = 0


class InputRequest(OfProcess):
    input: Input = Input()


class UpdateRequest(OfProcess):
    pty: Pty | None = None


class InputData(Values):
    input: Input = Input()


class InputEvent(Values):
    start: OfProcess | None = None
    data: InputData | None = None
    keepalive: dict[str, Any] | None = None


def terminal_size(pty: Pty) -> TerminalSize:
    size = pty.size or PtySize()
    return TerminalSize(size.rows or 24, size.cols or 80)
