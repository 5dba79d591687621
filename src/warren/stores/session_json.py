"""Sessions as JSON, for the stores that keep text.

Only fields that differ from their default are written, so a version with more fields can read the rows of this one.
Text is kept exactly, lone surrogates included: such JSON cannot be encoded as UTF-8 and is stored as bytes
("surrogatepass"), which `json.loads` accepts.
"""

import json
from dataclasses import MISSING, asdict, fields
from operator import attrgetter
from typing import Any, Final

from warren.model.artifact import LeftOut, SavedAtEnd
from warren.model.header_rules import HeaderRule
from warren.model.network import NetworkRules
from warren.model.preview import NO_PREVIEW_RULES, PreviewRules
from warren.model.session import EndReason, OnIdle, Previous, Session, SessionState
from warren.model.spec import Layer, Limits
from warren.model.volume import VolumeMount
from warren.stores.encryption import Encryption, decrypt

_NAMES: Final = tuple(field.name for field in fields(Session))
_VALUES: Final = attrgetter(*_NAMES)
_DEFAULTS: Final = tuple(
    field.default_factory() if field.default_factory is not MISSING else field.default for field in fields(Session)
)
_LIMITS: Final = tuple(field.name for field in fields(Limits))
_ENCODER: Final = json.JSONEncoder(ensure_ascii=False, check_circular=False, separators=(",", ":"))


def encode_session(session: Session, encryption: Encryption | None = None) -> str:
    """Returns the session as JSON. With a key, the values of its variables, and of the headers that its requests get,
    are encrypted for this session alone."""
    values: dict[str, Any] = {
        name: value
        for name, value, default in zip(_NAMES, _VALUES(session), _DEFAULTS, strict=True)
        if value != default
    }
    if session.limits is not None:
        values["limits"] = {name: getattr(session.limits, name) for name in _LIMITS}  # asdict takes ten times as long
    if session.require:
        values["require"] = sorted(session.require)
    if "network" in values:
        values["network"] = _encode_network(session, encryption)
    if session.env and encryption is not None:
        values["env"] = encryption.encrypt(_ENCODER.encode(session.env), session.id)
    if session.previous is not None:
        values["previous"] = asdict(session.previous)
    if session.previews != NO_PREVIEW_RULES:
        rules = asdict(session.previews)
        values["previews"] = {name: value for name, value in rules.items() if value != getattr(NO_PREVIEW_RULES, name)}
    if session.artifacts is not None:
        values["artifacts"] = asdict(session.artifacts)
    if session.volumes:
        values["volumes"] = [asdict(mount) for mount in session.volumes]
    return _ENCODER.encode(values)


def decode_session(text: str | bytes, encryption: Encryption | None = None) -> Session:
    values = json.loads(text)
    if "state" in values:
        values["state"] = SessionState(values["state"])
    if "reason" in values:
        values["reason"] = EndReason(values["reason"])
    for name in ("on_idle", "on_timeout"):
        if name in values:
            values[name] = OnIdle(values[name])
    if "limits" in values:
        values["limits"] = Limits(**values["limits"])
    if "require" in values:
        values["require"] = frozenset(map(Layer, values["require"]))
    if "network" in values:
        values["network"] = _decode_network(values["network"], values["id"], encryption)
    for name in ("secrets", "gpus"):
        if name in values:
            values[name] = tuple(values[name])
    if isinstance(values.get("env"), str):
        values["env"] = json.loads(decrypt(encryption, values["env"], values["id"]))
    if "previous" in values:
        previous = values["previous"]
        values["previous"] = Previous(**{**previous, "reason": EndReason(previous["reason"])})
    if "previews" in values:
        values["previews"] = PreviewRules(**{name: _frozen(value) for name, value in values["previews"].items()})
    if "artifacts" in values:
        saved = values["artifacts"]
        values["artifacts"] = SavedAtEnd(**{**saved, "left_out": tuple(LeftOut(**one) for one in saved["left_out"])})
    if "volumes" in values:
        values["volumes"] = tuple(VolumeMount(**mount) for mount in values["volumes"])
    return Session(**values)


def _encode_network(session: Session, encryption: Encryption | None) -> dict[str, Any]:
    values = session.network.as_mapping()
    if session.network.headers:
        headers: Any = [[each.host, each.header, each.value] for each in session.network.headers]
        if encryption is not None:
            headers = encryption.encrypt(_ENCODER.encode(headers), _headers_of(session.id))
        values["headers"] = headers
    return values


def _decode_network(values: dict[str, Any], session_id: str, encryption: Encryption | None) -> NetworkRules:
    headers = values.get("headers", ())
    if isinstance(headers, str):
        headers = json.loads(decrypt(encryption, headers, _headers_of(session_id)))
    return NetworkRules.stored(values, tuple(HeaderRule(*each) for each in headers))


def _headers_of(session_id: str) -> str:
    return f"headers of {session_id}"


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def metadata_text(name: str, value: str) -> str:
    """Returns a text that the JSON of every session with this metadata contains; other sessions may contain it too."""
    return _ENCODER.encode({name: value})[1:-1]


def to_storable(value: Any) -> Any:
    """Turns text that is not UTF-8 into bytes, which SQLite never considers equal to any text."""
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            return value.encode(errors="surrogatepass")
    return value


def to_text(stored: str | bytes) -> str:
    return stored if isinstance(stored, str) else stored.decode(errors="surrogatepass")
