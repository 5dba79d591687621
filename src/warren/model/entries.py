"""Reads entries of the registry from JSON or YAML, key by key; errors name the place of the mistake."""

import contextlib
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Final, TypeVar

from warren.model.errors import InvalidRequest
from warren.model.suggestions import suggest

MAX_TEXT: Final = 64 * 1024
MAX_DESCRIPTION: Final = 4096
MAX_ITEMS: Final = 100
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")

T = TypeVar("T")
Place = tuple[str | int, ...]


class InvalidEntry(InvalidRequest):
    """An entry is wrong. `place` holds the keys that lead to the mistake."""

    def __init__(self, message: str, place: Place, *, remedy: str = "") -> None:
        super().__init__(message, remedy=remedy)
        self.place = place


@contextlib.contextmanager
def mistakes_at(*place: str | int) -> Iterator[None]:
    """Turns an InvalidRequest raised in the block into an InvalidEntry for this place."""
    try:
        yield
    except InvalidRequest as exc:
        raise InvalidEntry(exc.message, place, remedy=exc.remedy) from exc


class Fields:
    """The keys of an entry, or of the part of an entry at `place`. Raises InvalidEntry for a key that is not in
    `known`."""

    def __init__(self, values: Any, known: Collection[str], place: Place = ()) -> None:
        self.place = place
        if not isinstance(values, Mapping):
            what = f"{dotted(place)} must be keys and values" if place else "keys and values are expected"
            raise InvalidEntry(f"{what}, this is {type(values).__name__}", place)
        for key in values:
            if key not in known:
                remedy = f"{suggest(key, known)}the keys are {', '.join(known)}"
                raise InvalidEntry(f"there is no key {shown(dotted((*place, key)))}", (*place, str(key)), remedy=remedy)
        self.values = values

    def __contains__(self, key: str) -> bool:
        return key in self.values

    def error(self, key: str, message: str, *, remedy: str = "") -> InvalidEntry:
        return InvalidEntry(f"{dotted((*self.place, key))} {message}", (*self.place, key), remedy=remedy)

    def require(self, key: str) -> None:
        if key not in self.values:
            raise InvalidEntry(f"the key {dotted((*self.place, key))!r} is missing", self.place)

    def text(self, key: str, most: int = MAX_TEXT) -> str:
        return self._text(self.values.get(key, ""), key, most)

    def name(self, key: str) -> str:
        value = self.text(key)
        if value and not _NAME.fullmatch(value):
            raise self.error(
                key, f"is {shown(value)}, which is no name", remedy="letters, digits, `_`, `.` and `-`, 64 at most"
            )
        return value

    def seconds(self, key: str, check: Callable[[str, float], float]) -> float | None:
        if (value := self.values.get(key)) is None:
            return None
        with mistakes_at(*self.place, key):
            return check(dotted((*self.place, key)), value)

    def texts(self, key: str, most: int = MAX_TEXT) -> dict[str, str]:
        """Returns a mapping of names to texts."""
        return {
            str(name): self._text(value, f"{key}.{name}", most, (*self.place, key, str(name)))
            for name, value in self.mapping(key).items()
        }

    def mapping(self, key: str) -> Mapping[Any, Any]:
        value = self.values.get(key, {})
        if not isinstance(value, Mapping):
            raise self.error(key, f"is {shown(value)}, it must be keys and values")
        if len(value) > MAX_ITEMS:
            raise self.error(key, f"has {len(value)} entries, at most {MAX_ITEMS} are taken")
        return value

    def items(self, key: str, read: Callable[[Any, Place], T]) -> tuple[T, ...]:
        """Returns a list as a tuple, each item read by `read`."""
        value = self.values.get(key, ())
        if not isinstance(value, list | tuple):
            raise self.error(key, f"is {shown(value)}, it must be a list")
        if len(value) > MAX_ITEMS:
            raise self.error(key, f"has {len(value)} items, at most {MAX_ITEMS} are taken")
        return tuple(read(item, (*self.place, key, place)) for place, item in enumerate(value))

    def _text(self, value: Any, key: str, most: int, place: Place = ()) -> str:
        return read_text(value, place or (*self.place, key), most)


def read_text(value: Any, place: Place, most: int = MAX_TEXT) -> str:
    name = dotted(place)
    if not isinstance(value, str):
        raise InvalidEntry(f"{name} is {shown(value)}, it must be a text", place, remedy="put it in quotes")
    if len(value) > most:
        raise InvalidEntry(f"{name} has {len(value)} characters, at most {most} are taken", place)
    if "\0" in value or not _is_text(value):
        raise InvalidEntry(f"{name} has characters that no text has", place)
    return value


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def size_of(value: Any, most: int = 1 << 40) -> int:
    """Returns about the length of the value as JSON. Counting stops at `most`."""
    size, left = 0, [value]
    while left and size <= most:
        each = left.pop()
        size += 4 + (len(each) if isinstance(each, str) else 0)
        if isinstance(each, Mapping):
            left.extend(each)
            left.extend(each.values())
        elif isinstance(each, list | tuple):
            left.extend(each)
    return size


def dotted(place: Place) -> str:
    return ".".join(str(each)[:100] for each in place)


def shown(value: object) -> str:
    """Returns the value as error messages show it."""
    text = ascii(value) if not isinstance(value, Mapping | list | tuple) else type(value).__name__
    return text if len(text) <= 80 else f"{text[:80]}…"
