"""Values of answers that are too long to be made at once: texts and lists that are made on their way to the caller.

A handler puts `LongText` and `LongList` into its values instead of a str or a list. Over HTTP `json_pieces` writes them
as JSON, piece by piece and in turns with other requests; in the local mode `resolved` makes plain values of them. So an
answer of any length costs little memory and holds up nobody.
"""

import contextlib
import json
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from typing import Any, Final

from warren.kernel.pacing import Pace

_PIECE: Final = 64 * 1024
_escaped: Final = json.encoder.encode_basestring_ascii


class LongText:
    """`pieces` gives the text in parts of a bounded length, each time from its beginning."""

    __slots__ = ("pieces",)

    def __init__(self, pieces: Callable[[], Iterator[str]]) -> None:
        self.pieces = pieces


class LongList:
    """Its items are plain values, and can be taken once. `len` gives their number if that was known."""

    __slots__ = ("_length", "items")

    def __init__(self, items: Iterable[Any] | AsyncGenerator[Any, None], length: int = 0) -> None:
        self.items = items
        self._length = length

    def __len__(self) -> int:
        return self._length


class LongObject(dict[str, Any]):
    """A dictionary inside of other values that holds LongText, LongList or LongObject."""


class HasLongValues(Exception):
    """Raised by `encode` for values that need `json_pieces`."""


def _refuse_long(value: Any) -> Any:
    if isinstance(value, LongText | LongList):
        raise HasLongValues
    raise TypeError(f"{type(value).__name__} is not a value of JSON")


ENCODER: Final = json.JSONEncoder(default=_refuse_long)


def encode(values: Any) -> bytes:
    """The values as JSON and a newline, for those who read it at a terminal. Raises HasLongValues.

    It is ASCII with escapes, because bytes that are not text are lone surrogates in it.
    """
    return f"{ENCODER.encode(values)}\n".encode()


async def json_pieces(values: Any) -> AsyncGenerator[bytes, None]:
    """The same as `encode`, in pieces."""
    pace, parts, size = Pace(), list[str](), 0
    async with contextlib.aclosing(_parts(values)) as source:
        async for part in source:
            parts.append(part)
            size += len(part)
            if size >= _PIECE:
                yield "".join(parts).encode()
                parts, size = [], 0
            await pace.give_way()
    yield "".join([*parts, "\n"]).encode()


async def _parts(value: Any) -> AsyncGenerator[str, None]:
    if isinstance(value, LongText):
        yield '"'
        for piece in value.pieces():
            yield _escaped(piece)[1:-1]
        yield '"'
    elif isinstance(value, LongList):
        separator = "["
        async with contextlib.aclosing(_items(value)) as items:
            async for item in items:
                if isinstance(item, LongObject):
                    yield separator
                    async with contextlib.aclosing(_parts(item)) as parts:
                        async for part in parts:
                            yield part
                else:
                    yield separator + ENCODER.encode(item)
                separator = ", "
        yield "[]" if separator == "[" else "]"
    elif isinstance(value, dict):
        separator = "{"
        for name, item in value.items():
            yield f"{separator}{_escaped(name)}: "
            async with contextlib.aclosing(_parts(item)) as parts:
                async for part in parts:
                    yield part
            separator = ", "
        yield "{}" if separator == "{" else "}"
    else:
        for part in _plain_parts(value):
            yield part


def _plain_parts(value: Any) -> Iterator[str]:
    if isinstance(value, str) and len(value) > _PIECE:
        yield '"'
        for begin in range(0, len(value), _PIECE):
            yield _escaped(value[begin : begin + _PIECE])[1:-1]
        yield '"'
    elif isinstance(value, list) and value:
        separator = "["
        for item in value:
            yield separator
            yield from _plain_parts(item)
            separator = ", "
        yield "]"
    elif isinstance(value, dict) and value:
        separator = "{"
        for name, item in value.items():
            yield separator
            yield from _plain_parts(name)
            yield ": "
            yield from _plain_parts(item)
            separator = ", "
        yield "}"
    else:
        yield ENCODER.encode(value)


async def _items(value: LongList) -> AsyncGenerator[Any, None]:
    if isinstance(value.items, AsyncGenerator):
        async with contextlib.aclosing(value.items) as items:
            async for item in items:
                yield item
    else:
        for item in value.items:
            yield item


async def resolved(values: dict[str, Any]) -> dict[str, Any]:
    """The same values with plain texts, lists and dictionaries."""
    pace = Pace()
    return {name: await _resolved(value, pace) for name, value in values.items()}


async def _resolved(value: Any, pace: Pace) -> Any:
    if isinstance(value, LongText):
        parts = []
        for piece in value.pieces():
            parts.append(piece)
            await pace.give_way()
        return "".join(parts)
    if isinstance(value, LongList):
        found = []
        async for item in _items(value):
            found.append(await _resolved(item, pace) if isinstance(item, LongObject) else item)
            await pace.give_way()
        return found
    if isinstance(value, LongObject):
        return {name: await _resolved(item, pace) for name, item in value.items()}
    return value
