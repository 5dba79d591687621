"""A session as JSON text and back, for stores that keep text.

Only what differs from its default is written, so a row of today can be read when the session has
gained a field. Text is kept exactly, lone surrogates included: such JSON cannot be encoded as UTF-8
and is kept as bytes ("surrogatepass"), which `json.loads` takes as they are.
"""

import json
from dataclasses import MISSING, asdict, fields
from operator import attrgetter
from typing import Any, Final

from warren.model.session import EndReason, Previous, Session, SessionState
from warren.model.spec import Layer, Limits
from warren.stores.sealing import Sealer, opened

_NAMES: Final = tuple(field.name for field in fields(Session))
_VALUES: Final = attrgetter(*_NAMES)
_DEFAULTS: Final = tuple(
    field.default_factory() if field.default_factory is not MISSING else field.default for field in fields(Session)
)
_ENCODER: Final = json.JSONEncoder(ensure_ascii=False, check_circular=False, separators=(",", ":"))


def encoded(session: Session, sealer: Sealer | None = None) -> str:
    """With a sealer the values of its variables are in it only sealed, for this session."""
    values: dict[str, Any] = {
        name: value
        for name, value, default in zip(_NAMES, _VALUES(session), _DEFAULTS, strict=True)
        if value != default
    }
    if session.limits is not None:
        values["limits"] = asdict(session.limits)
    if session.require:
        values["require"] = sorted(session.require)
    if session.env and sealer is not None:
        values["env"] = sealer.seal(_ENCODER.encode(session.env), session.id)
    if session.previous is not None:
        values["previous"] = asdict(session.previous)
    return _ENCODER.encode(values)


def decoded(text: str | bytes, sealer: Sealer | None = None) -> Session:
    values = json.loads(text)
    if "state" in values:
        values["state"] = SessionState(values["state"])
    if "reason" in values:
        values["reason"] = EndReason(values["reason"])
    if "limits" in values:
        values["limits"] = Limits(**values["limits"])
    if "require" in values:
        values["require"] = frozenset(map(Layer, values["require"]))
    if isinstance(values.get("env"), str):
        values["env"] = json.loads(opened(sealer, values["env"], values["id"]))
    if "previous" in values:
        previous = values["previous"]
        values["previous"] = Previous(**{**previous, "reason": EndReason(previous["reason"])})
    return Session(**values)


def pair(name: str, value: str) -> str:
    """What the text of a session with this in its metadata contains (others may contain it too)."""
    return _ENCODER.encode({name: value})[1:-1]


def storable(value: Any) -> Any:
    """Text that is not UTF-8 as bytes: SQLite never takes them for equal to any text."""
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            return value.encode(errors="surrogatepass")
    return value


def text_of(stored: str | bytes) -> str:
    return stored if isinstance(stored, str) else stored.decode(errors="surrogatepass")
