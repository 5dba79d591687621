"""Makes JSON of what is none."""

import binascii
import datetime
import math

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def encoded_bytes(value: "Any") -> "Any":
    if isinstance(value, (bytes, bytearray, memoryview)):
        return binascii.b2a_base64(value, newline=False).decode()
    return value


def plain(value: "Any", depth: int = 0) -> "Any":
    """Returns a value that JSON can hold: NaN becomes null, a time ISO 8601, anything unknown its text."""
    kind = type(value)
    if kind in (str, int, bool, type(None)):
        return value
    if kind is float:
        return value if math.isfinite(value) else None
    if depth > 50:
        return str(value)
    if isinstance(value, dict):
        return {str(plain(key, 50)): plain(item, depth + 1) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(item, depth + 1) for item in value]
    if value != value:  # NaN, NaT
        return None
    if isinstance(value, (datetime.date, datetime.time)):
        return value.isoformat()
    if isinstance(value, (bytes, bytearray)):
        return encoded_bytes(value)
    if hasattr(value, "dtype") and hasattr(value, "tolist"):  # of numpy
        item = value.tolist()
        if kind.__name__ == "datetime64" and not hasattr(item, "isoformat"):
            return str(value.astype("datetime64[s]"))
        return plain(item, depth + 1) if type(item) is not kind else str(value)
    return value.isoformat() if hasattr(value, "isoformat") else str(value)
