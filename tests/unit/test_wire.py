"""Every byte either decodes or is a ProtocolError: round trips, and fuzz on both parsers and the link."""

import asyncio
import contextlib
from collections.abc import Iterator

import anyio
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from unit.scripted_agent import hello, linked, output, said

from warren.model.errors import ProtocolError, SandboxLost, WarrenError
from warren.sandboxes.agent.link import AgentLink
from warren.sandboxes.agent.wire import (
    MAX_RECORD,
    Records,
    WireCode,
    WireFields,
    WireRequest,
    WireResponse,
    WireTag,
    credit,
    credit_frame,
    fields,
    frame,
    record,
)
from warren.sandboxes.agent.wire import output as parse_output

TAGS = st.sampled_from(list(WireTag))
# A busy machine is no failure; the first text drawn loads the tables of Unicode, which takes seconds.
patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
VALUES = st.one_of(st.integers(0, 2**64 - 1), st.text(), st.binary(max_size=300))


def records_of(records: Records, data: bytes) -> Iterator[WireFields]:
    records.add(data)
    while (found := records.next()) is not None:
        yield found


def test_a_frame_is_twelve_bytes_and_its_payload() -> None:
    assert frame(WireRequest.START, 7, b"abc") == b"\x03\0\0\0\x07\0\0\0\x02\0\0\0abc"


def test_credit_survives_the_wire() -> None:
    raw = credit_frame(5, 1234)
    assert credit(memoryview(raw[12:])) == 1234
    with pytest.raises(ProtocolError):
        credit(memoryview(b"123"))


def test_text_that_is_no_utf8_survives_the_wire() -> None:
    name = b"caf\xe9".decode("utf-8", "surrogateescape")
    assert WireFields(fields([(WireTag.PATH, name)])).text(WireTag.PATH) == name


@patient
@given(st.dictionaries(TAGS, VALUES))
def test_fields_survive_the_wire(items: dict[WireTag, int | str | bytes]) -> None:
    found = WireFields(fields(items.items()))
    for tag, value in items.items():
        assert tag in found
        if isinstance(value, int):
            assert found.number(tag) == value
        elif isinstance(value, str):
            assert found.text(tag) == value


@patient
@given(st.binary(max_size=2000))
def test_any_bytes_are_fields_or_a_protocol_error(data: bytes) -> None:
    try:
        found = WireFields(data)
        for tag in WireTag:
            found.text(tag)
            found.number(tag)
    except ProtocolError:
        pass


@patient
@given(st.binary(max_size=100))
def test_any_bytes_are_output_or_a_protocol_error(data: bytes) -> None:
    try:
        stream, offset, rest = parse_output(memoryview(data))
    except ProtocolError:
        assert len(data) < 9
    else:
        assert (stream, len(rest)) == (data[0], len(data) - 9)
        assert 0 <= offset < 2**64


@patient
@given(st.lists(st.dictionaries(TAGS, VALUES, max_size=5), max_size=8), st.lists(st.integers(1, 50), min_size=1))
def test_records_survive_any_cut(items: list[dict[WireTag, int | str | bytes]], cuts: list[int]) -> None:
    stream = b"".join(record(item.items()) for item in items)
    records, found, at, turn = Records(), list[WireFields](), 0, 0
    while at < len(stream):
        size = cuts[turn % len(cuts)]
        found += records_of(records, stream[at : at + size])
        at, turn = at + size, turn + 1
    assert [set(item) for item in items] == [{tag for tag in WireTag if tag in entry} for entry in found]
    assert len(records) == 0


@patient
@given(st.lists(st.binary(max_size=200), max_size=20))
def test_any_bytes_are_records_or_a_protocol_error(parts: list[bytes]) -> None:
    records = Records()
    try:
        for part in parts:
            list(records_of(records, part))
            assert len(records) <= MAX_RECORD + 4 + len(part)
    except ProtocolError:
        pass


def test_a_record_that_is_too_long_is_refused_by_its_length_alone() -> None:
    records = Records()
    with pytest.raises(ProtocolError, match="too long"):
        list(records_of(records, (MAX_RECORD + 1).to_bytes(4, "little")))


FRAMES = st.one_of(
    st.builds(said, st.sampled_from(list(WireResponse)), st.integers(0, 4), st.binary(max_size=64)),
    st.builds(output, st.integers(0, 3), st.integers(0, 4), st.integers(0, 2**64 - 1), st.binary(max_size=3000)),
    st.builds(
        lambda channel, code: said(
            WireResponse.ERROR, channel, fields([(WireTag.CODE, code), (WireTag.MESSAGE, "no")])
        ),
        st.integers(1, 3), st.sampled_from([*WireCode, 0, 99]),
    ),
    st.binary(max_size=40),
    st.just(hello()),
)  # fmt: skip


async def consume(link: AgentLink, kind: WireRequest) -> None:
    channel = await link.open(kind)
    try:
        await channel.last()
    except WarrenError:
        pass
    finally:
        channel.close()


@settings(patient, max_examples=150)
@given(st.lists(FRAMES, max_size=12), st.lists(st.integers(1, 400), min_size=1, max_size=5))
def test_a_link_fed_with_anything_in_any_cut_ends_well(frames: list[bytes], cuts: list[int]) -> None:
    """Whatever arrives, every channel ends and nothing is raised into the event loop."""
    asyncio.run(feed(b"".join(frames), cuts))


async def feed(stream: bytes, cuts: list[int]) -> None:
    raised: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: raised.append(context))
    async with linked() as (link, agent):
        tasks = [
            asyncio.ensure_future(consume(link, kind))
            for kind in (WireRequest.START, WireRequest.ATTACH, WireRequest.FILE)
        ]
        await asyncio.sleep(0)
        pieces, at, turn = [], 0, 0
        while at < len(stream):
            size = cuts[turn % len(cuts)]
            pieces.append(stream[at : at + size])
            at, turn = at + size, turn + 1
        with contextlib.suppress(ConnectionError):
            await agent.says_in_pieces(pieces)
        agent.hang_up()
        with anyio.fail_after(5):
            await asyncio.gather(*tasks)
            await link.lost.wait()
        with pytest.raises((SandboxLost, ProtocolError)):
            await link.open(WireRequest.PING)
    assert raised == []
