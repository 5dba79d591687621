"""How a request names the graphics processors that it wants.

`gpus: 2` asks for any two, `gpus: ["0", "GPU-5c3a…"]` for these. Both become a tuple with one entry for each processor,
so its length is the number that quotas and placement count.
"""

import re
from typing import Any, Final

from warren.model.errors import InvalidRequest

ANY: Final = "any"
MAX_GPUS: Final = 16
_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9:._-]{0,79}")
_REMEDY: Final = 'a number such as 1, or a list of ids such as ["0"]'


def read_gpus(value: Any) -> tuple[str, ...]:
    """Reads the value of a request. Raises InvalidRequest."""
    if isinstance(value, int) and not isinstance(value, bool):
        if not 0 <= value <= MAX_GPUS:
            raise InvalidRequest(f"gpus is {value}, it must be between 0 and {MAX_GPUS}")
        return (ANY,) * value
    if not isinstance(value, list | tuple):
        raise InvalidRequest(f"gpus is {str(value)[:80]!r}", remedy=_REMEDY)
    return check_gpus(tuple(_read_id(each) for each in value))


def check_gpus(gpus: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the tuple. Raises InvalidRequest for one that `read_gpus` cannot return."""
    if len(gpus) > MAX_GPUS:
        raise InvalidRequest(f"gpus names {len(gpus)}, a sandbox can have {MAX_GPUS} at most")
    for each in gpus:
        _read_id(each)
    named = [each for each in gpus if each != ANY]
    if len(set(named)) < len(named):
        raise InvalidRequest("gpus names one of them twice")
    return gpus


def parse_gpus(text: str) -> tuple[str, ...]:
    """Reads the option of the command line: a number such as `1`, or ids such as `id:0,1`. Raises InvalidRequest."""
    if text.startswith("id:"):
        return read_gpus([part.strip() for part in text.removeprefix("id:").split(",")])
    if not text.isascii() or not text.isdigit():
        raise InvalidRequest(f"gpus is {text[:80]!r}", remedy="a number such as 1, or ids such as id:0,1")
    return read_gpus(int(text[:4]))


def gpus_value(text: str) -> int | list[str] | None:
    """Returns the option of the command line as a request has it; None for an empty text."""
    found = parse_gpus(text) if text else None
    return None if found is None else len(found) if set(found) <= {ANY} else list(found)


def _read_id(value: Any) -> str:
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        value = str(value)
    if not isinstance(value, str) or not _ID.fullmatch(value):
        raise InvalidRequest(f"{str(value)[:80]!r} is not the id of a GPU", remedy=_REMEDY)
    return value
