"""Reads JSON strictly.

NaN, numbers that are too large or too long, lone surrogates, deep nesting and very long lists are refused before values
are made from them: each would break an answer or a handler later, or take the event loop's time from everybody.
"""

import json
import math
import re
from collections.abc import Iterator
from itertools import accumulate
from typing import Any, NoReturn

from warren.model.errors import InvalidJson, TooLarge
from warren.model.long_json import LongTexts

MAX_DEPTH = 100
MAX_VALUES = 25_000
MAX_ESCAPES = 400_000
MAX_BARE = 2 * 1024 * 1024  # bytes outside of texts: numbers take the longest to parse
MAX_DIGITS = 128  # of a number, if the body could hold many numbers
_FEW = 64 * 1024
_WHOLE = (
    4 * 1024 * 1024
)  # a longer body is read piece by piece; it is no request, so nobody needs to know where it is wrong
_SHOWN = 60
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def read_json(body: bytes, most: int = MAX_VALUES) -> Any:
    """Returns the value. `most` bounds the number of values. Raises InvalidJson, which says what is wrong and where, or
    TooLarge."""
    if len(body) > MAX_DEPTH:  # a shorter body cannot be too deep or hold too many values
        _refuse_too_much(_without_escapes(body), most)
    value = _decode(body)
    if b"\\u" in body:
        _refuse_lone_surrogates(body)
    return value


def read_in_steps(body: bytes, most: int = MAX_VALUES) -> Iterator[Any]:
    """Does the same as `read_json` in steps that each take a while for a body of some MiB: yields None after each, and
    at last the value."""
    for step in read_and_count(body, most):
        yield step and step[0]


def read_and_count(body: bytes, most: int = MAX_VALUES) -> Iterator[tuple[Any, int] | None]:
    """Does the same as `read_in_steps`; at last comes the value and about how many values it contains."""
    if len(body) > _WHOLE:
        yield from _read_long(body, most)
        return
    rest = _without_escapes(body)
    yield None
    if len(body) > MAX_DEPTH:
        _refuse_too_much(rest, most)
        yield None
    if (count := _count_values(_without_texts(rest))) > most + 1:
        raise _too_many(most)
    del rest
    value = _decode(body)
    if b"\\u" in body:
        yield None
        _refuse_lone_surrogates(body)
    yield value, count


def _read_long(body: bytes, most: int) -> Iterator[tuple[Any, int] | None]:
    if body.count(b"\\") > MAX_ESCAPES:
        raise _too_many_escapes()
    yield None
    try:
        texts = LongTexts(body)
        bare = yield from texts.find(2 * (most + 1))
        if bare is None:
            raise _too_many(most)
        _refuse_much(bare, most)
        if b"NaN" in bare or b"Infinity" in bare:
            _refuse_constant("NaN or Infinity")
        long = iter((yield from texts.decode()))
        yield None
        rest = texts.rest()
        if b"\\u" in rest:
            _refuse_lone_surrogates(rest)
            yield None
        decoder = json.JSONDecoder(parse_constant=lambda _: next(long), parse_float=_finite)
        value = decoder.decode(rest.decode())
    except ValueError as exc:
        raise InvalidJson("this is not valid JSON in UTF-8, or too much of it is names and numbers") from exc
    yield value, _count_values(bare)


def _decode(body: bytes) -> Any:
    body = body.removeprefix(_BYTE_ORDER_MARK)
    try:
        return _DECODER.decode(body.decode())
    except UnicodeDecodeError as exc:
        raise InvalidJson(f"the body is not valid UTF-8: byte {exc.start} is 0x{body[exc.start]:02x}") from exc
    except json.JSONDecodeError as exc:
        raise json_error(exc) from exc
    except ValueError as exc:  # a number of more than 4,300 digits
        raise InvalidJson("the JSON in the body holds a number that is too long") from exc


def _count_values(bare: bytes) -> int:
    """Returns about how many values valid JSON contains, from what is outside of its texts."""
    return 1 + max(bare.count(b","), bare.count(b"[") + bare.count(b"{"))


def _without_escapes(body: bytes) -> bytes:
    """Returns the body without escaped backslashes and quotes, so that every quote in it begins or ends a text."""
    if b"\\" not in body:
        return body
    if body.count(b"\\") > MAX_ESCAPES:
        raise _too_many_escapes()
    return body.replace(b"\\\\", b"").replace(b'\\"', b"")


def _refuse_too_much(body: bytes, most: int) -> None:
    """Raises TooLarge or InvalidJson before the decoder allocates anything. It must be fast, because the event loop
    waits. Texts may contain any number of commas and brackets."""
    if body.count(b'"') > 4 * (most + 1):  # a value and its name have two quotes each
        raise too_deep() if _is_deep(_without_texts(body[: 64 * MAX_DEPTH]), most) else _too_many(most)
    _refuse_much(_without_texts(body), most)


def _refuse_much(bare: bytes, most: int) -> None:
    if bare.count(b",") >= most or bare.count(b"[") + bare.count(b"{") > most:
        raise too_deep() if _is_deep(bare[: 64 * MAX_DEPTH], most) else _too_many(most)
    if len(bare) > MAX_BARE:
        raise TooLarge(
            f"the JSON in the body has more than {MAX_BARE} bytes outside of texts", remedy="send large data as a file"
        )
    if len(bare) > _FEW and _LONG_NUMBER.search(bare):
        raise InvalidJson(f"the JSON in the body is long and holds a number of more than {MAX_DIGITS} digits")
    if _is_deep(bare, most):
        raise too_deep()


def _without_texts(body: bytes) -> bytes:
    """Returns the body without what stands between quotes."""
    return b"".join(body.split(b'"')[::2])


def _too_many(most: int) -> TooLarge:
    return TooLarge(f"the JSON in the body holds more than {most} values", remedy="send large data as a file")


def _too_many_escapes() -> TooLarge:
    return TooLarge(f"the JSON in the body holds more than {MAX_ESCAPES} escapes", remedy="send large data as a file")


def _is_deep(bare: bytes, most: int) -> bool:
    """Returns whether brackets nest too deeply. Looks only at as many brackets as `most` values can have."""
    brackets = bare.translate(None, _NO_BRACKETS)[: 2 * most + 2]
    return any(map(MAX_DEPTH.__lt__, accumulate(map(_STEPS.__getitem__, brackets))))


def _refuse_lone_surrogates(body: bytes) -> None:
    if _LONE_SURROGATE.search(body.replace(b"\\\\", b"--")):
        raise InvalidJson("the JSON in the body holds half of a surrogate pair, which is no character")


def _refuse_constant(name: str) -> NoReturn:
    raise InvalidJson(f"the JSON in the body holds {name}, which JSON does not know")


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise InvalidJson(f"the JSON in the body holds {shortened(text)}, which is too large")
    return value


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_finite)
_LONG_NUMBER = re.compile(rb"[0-9]{%d}" % (MAX_DIGITS + 1))
_LONE_SURROGATE = re.compile(
    rb"\\u[dD](?:[89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])|(?<!\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD])[c-fC-F])"
)
_STEPS = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}
_NO_BRACKETS = bytes(set(range(256)) - _STEPS.keys())


def json_error(exc: json.JSONDecodeError) -> InvalidJson:
    return InvalidJson(
        f"the body is not valid JSON: {exc.msg.removesuffix(' at')} at line {exc.lineno}, column {exc.colno}"
    )


def too_deep() -> InvalidJson:
    return InvalidJson(f"the JSON in the body is nested too deeply: at most {MAX_DEPTH} levels are taken")


def shortened(text: str) -> str:
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"
