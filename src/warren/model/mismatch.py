"""Where a thread's session has something else than was asked for."""

from collections.abc import Mapping
from typing import Any

Mismatch = Mapping[str, Mapping[str, Any]]
"""By the name of a wish (`environment`, `limits.memory_mb` …) what the session `has` and what was `asked` for. Empty if
they agree."""


def describe(mismatch: Mismatch) -> str:
    return "; ".join(
        f"{name} {_shown(values['has'])}, {_shown(values['asked'])} was asked for" for name, values in mismatch.items()
    )


def _shown(value: object) -> str:
    return repr(value[:100]) if isinstance(value, str) else f"{value:g}" if isinstance(value, float) else str(value)
