"""Texts are replaced however they are cut into pieces, and in linear time whatever they are."""

import time
from collections.abc import AsyncIterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from this_run import patience

from warren.sandboxes.egress.broker_http import Scrubber

_TEXTS = st.text("ab", min_size=8, max_size=200).map(str.encode)
_LINE = b"0123456789abcdefghijklmnopqrstuvwxyz"
_PARTS_OF_LINE = st.tuples(st.integers(0, 28), st.integers(8, 36)).map(lambda part: _LINE[part[0] :][: part[1]])


def passed_by(traces: Sequence[bytes], data: bytes, size: int) -> bytes:
    scrubber = Scrubber(traces)
    return b"".join(scrubber.feed(data[at : at + size]) for at in range(0, len(data), size)) + scrubber.end()


@given(st.lists(_TEXTS, min_size=1, max_size=2), st.lists(_TEXTS | st.integers(0, 1), max_size=6), st.integers(1, 90))
def test_no_text_is_seen_however_it_is_cut(traces: Sequence[bytes], parts: Sequence[bytes | int], size: int) -> None:
    data = b"".join(traces[part % len(traces)] if isinstance(part, int) else part for part in parts)
    passed = passed_by(traces, data, size)
    assert len(passed) == len(data)
    assert not any(trace in passed for trace in traces)
    assert all(new in (old, ord("*")) for old, new in zip(data, passed, strict=True))


@given(st.lists(_PARTS_OF_LINE, min_size=1, max_size=4), st.lists(_PARTS_OF_LINE, max_size=6), st.integers(1, 90))
def test_every_byte_of_texts_that_overlap_is_blotted_out(
    traces: Sequence[bytes], parts: Sequence[bytes], size: int
) -> None:
    data = b"".join(parts)
    expected = bytearray(data)
    for trace in traces:
        for at in range(len(data)):
            if data.startswith(trace, at):
                expected[at : at + len(trace)] = b"*" * len(trace)
    assert passed_by(traces, data, size) == expected


@pytest.mark.parametrize("size", [1, 9, 12, 100])
def test_texts_that_are_parts_of_others_or_overlap_hide_nothing(size: int) -> None:
    short, long, other = b"acme-prod", b"acme-prod-9f3c77aa01", b"77aa01-and-more"
    data = b"{" + long + b"-and-more, " + short + b", " + other + b"}"
    for traces in ([short, long, other], [other, long, short]):
        assert passed_by(traces, data, size) == b"{%b, %b, %b}" % (b"*" * 29, b"*" * 9, b"*" * 15)


def test_what_begins_no_text_is_not_held_back() -> None:
    scrubber = Scrubber([b"secret" * 20])
    assert scrubber.feed(b"no secre") == b"no "
    assert scrubber.feed(b"d") == b"secred"


def test_texts_that_resemble_themselves_cost_no_more_than_others() -> None:
    def cost(traces: Sequence[bytes], size: int) -> float:
        def once() -> float:
            scrubber, begun = Scrubber(traces), time.thread_time()
            scrubber.feed(b"a" * size)
            return time.thread_time() - begun

        return min(once() for _ in range(3))

    alike = [b"a" * (4096 + number) + b"b" * (4096 - number) for number in range(20)]
    assert cost(alike, 65536) < patience(0.02)  # 0.1, if each place where one may begin were compared
    short = [b"a" * (40 + number % 9) + b"b" + b"a" * (49 - number // 9) for number in range(56)]
    assert cost(short, 16384) < patience(0.012)  # 0.03, if they were looked for in so little as it is
    middling = [b"a" * (600 + number) + b"b" + b"a" * (600 - number) for number in range(56)]
    assert cost(middling, 2400) < patience(0.012)


@pytest.mark.anyio
async def test_little_is_scrubbed_at_once_and_paid_for() -> None:
    paid: list[float] = []

    async def work(seconds: float) -> None:
        paid.append(seconds)

    async def pieces() -> AsyncIterator[bytes]:
        yield text[:70_000]
        yield text[70_000:]

    text = b"plain secret-0 " * 10_000
    scrubber = Scrubber([b"secret-0"], work)
    found = [piece async for piece in scrubber.pieces(pieces())]
    assert b"".join(found) == await scrubber.clean_all(text) == scrubber.clean(text)
    assert max(map(len, found)) <= 16 * 1024 + 8
    assert len(paid) == 20
