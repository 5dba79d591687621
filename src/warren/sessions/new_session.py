"""What a caller asks for, and what it comes to: values and pure functions of `sessions`."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from warren.model.session import CAME_TO_NOTHING, IDLE_TIMEOUT_S, MAX_LIFETIME_S, EndReason, Previous, Session
from warren.model.spec import Layer, Limits


@dataclass(frozen=True, slots=True)
class Defaults:
    environment: str = "base"
    idle_timeout_s: float = IDLE_TIMEOUT_S
    max_lifetime_s: float = MAX_LIFETIME_S


@dataclass(frozen=True, slots=True)
class NewSession:
    """What a caller asks for. With `replace_lost` a thread whose sandbox has died gets a fresh one."""

    environment: str = ""
    thread_id: str = ""
    image: str = ""
    limits: Mapping[str, float] = field(default_factory=dict)
    require: frozenset[Layer] = frozenset()
    env: Mapping[str, str] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict)
    idle_timeout_s: float | None = None
    max_lifetime_s: float | None = None
    replace_lost: bool = False
    provider: str = ""


@dataclass(frozen=True, slots=True)
class Opened:
    """`created`: it was made by this call. Otherwise the thread had it, or the key stands for it (`replayed`)."""

    session: Session
    created: bool
    replayed: bool = False


def fingerprint(request: Any) -> str:
    """The same request has the same one, in every process; a field added later counts only where it is given."""
    values = asdict(request)
    if not values.get("provider"):
        values.pop("provider", None)
    text = json.dumps(values, sort_keys=True, default=_plain)
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


def _plain(value: object) -> object:
    if isinstance(value, frozenset | set):
        return sorted(value)
    if isinstance(value, bytes):
        return value.hex()
    raise TypeError(f"no fingerprint for {type(value).__name__}")


def previous_of(earlier: Session | None) -> Previous | None:
    if earlier is None:
        return None
    if earlier.reason in CAME_TO_NOTHING:
        return earlier.previous
    return Previous(earlier.id, earlier.reason or EndReason.DELETED, earlier.detail)


def limits_of(limits: Limits, wanted: Mapping[str, float]) -> Limits | None:
    """None when nothing else is wanted than the environment gives anyway."""
    changes: dict[str, Any] = dict(wanted)
    changed = replace(limits, **changes)
    return None if changed == limits else changed
