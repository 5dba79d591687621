"""Frames of Connect's streams: however they are cut they are read alike, and what is no frame is refused."""

import itertools
import json
import struct
from collections.abc import AsyncIterator, Iterable
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from warren.http.e2b.connect import END, MAX_MESSAGE, frame, read_messages
from warren.http.e2b.errors import ConnectError
from warren.model.errors import WarrenError

MESSAGES: list[dict[str, Any]] = [{"a": 1}, {}, {"text": "é" * 20, "list": [None, True, 1.5]}]
WHOLE = b"".join(map(frame, MESSAGES))


async def _pieces(pieces: Iterable[bytes]) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece


def read(*pieces: bytes) -> list[Any]:
    async def run() -> list[Any]:
        return [message async for message in read_messages(_pieces(pieces))]

    return anyio.run(run)


def test_pieces_may_be_cut_anywhere() -> None:
    for cut in range(len(WHOLE) + 1):
        assert read(WHOLE[:cut], WHOLE[cut:]) == MESSAGES
    assert read(*(WHOLE[at : at + 1] for at in range(len(WHOLE)))) == MESSAGES
    assert read(WHOLE, frame({}, END), b"whatever comes after the end") == MESSAGES


def test_a_stream_that_ends_within_a_frame_is_refused() -> None:
    complete = [len(b"".join(map(frame, MESSAGES[:count]))) for count in range(len(MESSAGES) + 1)]
    for cut in set(range(len(WHOLE))) - set(complete):
        with pytest.raises(ConnectError, match="middle of a frame"):
            read(WHOLE[:cut])


@pytest.mark.parametrize(
    "data",
    [
        struct.pack(">BI", 0, MAX_MESSAGE + 1),
        struct.pack(">BI", 1, 2) + b"{}",
        struct.pack(">BI", 0x80, 2) + b"{}",
        struct.pack(">BI", 0, 2) + b"[]",
        struct.pack(">BI", 0, 4) + b"null",
        struct.pack(">BI", 0, 2) + b"\xff\xfe",
    ],
)
def test_what_is_no_message_is_refused(data: bytes) -> None:
    with pytest.raises((ConnectError, WarrenError)):
        read(data)


@given(st.binary(max_size=200), st.integers(0, 200))
def test_any_bytes_are_messages_or_refused(data: bytes, cut: int) -> None:
    try:
        found = read(data[:cut], data[cut:])
    except (ConnectError, WarrenError):
        return
    assert all(isinstance(message, dict) for message in found)


@given(st.lists(st.dictionaries(st.text(max_size=5), st.text(max_size=20), max_size=3), max_size=5), st.data())
def test_messages_come_back_as_they_were(messages: list[dict[str, str]], data: st.DataObject) -> None:
    whole = b"".join(map(frame, messages))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=6)))
    bounds = [0, *cuts, len(whole)]
    found = read(*(whole[begin:end] for begin, end in itertools.pairwise(bounds)))
    assert json.dumps(found) == json.dumps(messages)
